//! The fenced commit that resolves an offer, and reading back what a commit did.
//!
//! The head row is the fence. The first thing a commit does is to move it, and only if it stands where the
//! decision saw it; everything else happens behind that, in the same transaction. Here is the commit as a sequence of
//! statements, for a database that is in the process, and what every commit shares.

use stash_types::{BatchId, CommitId, Frontier, SinkId, fault, wire::Wire};

use super::decode::facts_frame;
use super::incarnations::{Offerer, view_in};
use super::link::{Arg, args};
use super::write::{Tx, Write};
use super::{Result, Sql, deletions, head_columns, incarnation_columns};
use crate::rows::{
    CommitRequest, Committed, DeletionReason, HeadRow, HeadStatus, IncarnationState, NewBatch, OutcomeKind,
    PartRow, Resolution,
};
use crate::{Cas, CatalogError, Misuse};

pub(crate) const OP: &str = "commit";

/// Resolves an offer, statement by statement, in one transaction.
///
/// A commit that was made before, by the same id, is answered as it was the first time.
pub(crate) async fn stepwise(catalog: &Sql, request: &CommitRequest) -> Result<Cas<Committed>> {
    let sink = request.sink;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let Some(head) = move_head(&mut write, request).await? else {
        return missed(&mut write, request).await;
    };
    fault::place("catalog.head_moved");
    let (_, offerer) = view_in(&mut write, sink, request.incarnation).await?;
    if let Some(committed) = offerer.committed(request.commit) {
        return Ok(Cas::Done(committed));
    }
    refuse_closed(request, &offerer)?;
    // SUBTLE: a drop moves neither upper nor fence. One that landed late, after its answer was lost and could not be read
    // back, leaves the head as the next try saw it: who decides again finds the offer resolved (I8, I21).
    if request.description.upper() <= offerer.row.resolved {
        // As it stood: what was moved above is rolled back.
        let (upper, fence) = (request.expected_upper, request.expected_fence);
        let status = if request.resolution.moved_upper().is_some() { HeadStatus::Open } else { head.status };
        return Ok(Cas::Conflict(HeadRow { upper, fence, status, ..head }));
    }
    refuse_drop_that_ends(request, &head)?;
    let seq = match &request.resolution {
        Resolution::Accept { batch, .. } => {
            insert(&mut write, request, head.next_seq, batch).await?;
            Some(head.next_seq)
        }
        Resolution::Extend { upper, .. } => extend(&mut write, request, head.next_seq, *upper).await?,
        Resolution::Drop { .. } => None,
    };
    let shard = catalog.shard(sink);
    let keys: Vec<_> = request.resolution.unlinked().iter().map(|name| (name.under(shard), None)).collect();
    deletions::queue(&mut write, sink, &keys, unlink_reason(request)).await?;
    for (event, detail) in events(request, &seq.map_or_else(String::new, |seq| seq.to_string())) {
        write.record(sink, Some(request.incarnation), event, &detail).await?;
    }
    let revision = write.revise().await?;
    let committed = Committed { revision, seq, upper: head.upper, fence: head.fence };
    finish(&mut write, request, committed, head.next_seq).await?;
    write.commit(revision).await?;
    Ok(Cas::Done(committed))
}

pub(crate) fn inconsistent<T>(what: String) -> Result<T> {
    Err(Misuse::Inconsistent { what }.into())
}

/// Refuses an incarnation that may not write.
fn refuse_closed(request: &CommitRequest, offerer: &Offerer) -> Result<()> {
    match &offerer.row.state {
        IncarnationState::Open => Ok(()),
        IncarnationState::Closed { reason } => Err(CatalogError::IncarnationClosed {
            sink: request.sink,
            incarnation: request.incarnation,
            reason: reason.clone(),
        }),
    }
}

/// Refuses a drop that would end the chain.
fn refuse_drop_that_ends(request: &CommitRequest, head: &HeadRow) -> Result<()> {
    match request.resolution {
        Resolution::Drop { .. } if head.status != request.status => inconsistent(format!(
            "a drop cannot change the chain's status from {:?} to {:?}",
            head.status, request.status
        )),
        _ => Ok(()),
    }
}

/// Why the keys it does not keep are deleted.
pub(crate) fn unlink_reason(request: &CommitRequest) -> DeletionReason {
    match request.outcome {
        OutcomeKind::Dropped => DeletionReason::Dropped,
        OutcomeKind::Accepted | OutcomeKind::Trimmed { .. } => DeletionReason::Trimmed,
    }
}

/// By how much the fence rises.
///
/// SUBTLE: a poison at U moves no upper. Without raising the fence, a replica that decided against the
/// same U would accept over it, and deliver what the dataflow says is undefined.
pub(crate) fn bump(request: &CommitRequest) -> i64 {
    i64::from(request.resolution.moved_upper() == Some(request.expected_upper))
}

/// A status as it is stored: its word, and when and with what it was poisoned.
pub(crate) fn status_columns(status: &HeadStatus) -> (&'static str, Option<Frontier>, Option<&str>) {
    match status {
        HeadStatus::Poisoned(error) => {
            ("poisoned", Some(Frontier::at(error.at)), Some(error.message.as_str()))
        }
        HeadStatus::Complete => ("complete", None, None),
        HeadStatus::Open | HeadStatus::Dropped => ("open", None, None),
    }
}

/// An outcome as it is stored: its word, and from where a trimmed batch was taken.
pub(crate) fn outcome_columns(outcome: OutcomeKind) -> (&'static str, Option<Frontier>) {
    match outcome {
        OutcomeKind::Accepted => ("accepted", None),
        OutcomeKind::Trimmed { from } => ("trimmed", Some(from)),
        OutcomeKind::Dropped => ("dropped", None),
    }
}

/// The fence: moves the head if it stands where the decision saw it, and returns it as it is then.
async fn move_head(write: &mut Write<'_>, request: &CommitRequest) -> Result<Option<HeadRow>> {
    let (status, at, message) = status_columns(&request.status);
    let (upper, fence) = (request.expected_upper, request.expected_fence);
    let row = match request.resolution.moved_upper() {
        Some(moved) => {
            let sql = concat!(
                "UPDATE chains SET upper = $4, fence = fence + $5, commit_id = $6, status = $7,
                    poisoned_at = $8, poison_message = $9
                 WHERE sink = $1 AND upper = $2 AND fence = $3 AND status = 'open' RETURNING ",
                head_columns!()
            );
            let args =
                args![request.sink, upper, fence, moved, bump(request), request.commit, status, at, message];
            write.row(sql, args).await?
        }
        None => {
            let sql = concat!(
                "UPDATE chains SET commit_id = $4
                 WHERE sink = $1 AND upper = $2 AND fence = $3 AND status <> 'dropped' RETURNING ",
                head_columns!()
            );
            write.row(sql, args![request.sink, upper, fence, request.commit]).await?
        }
    };
    row.map(|row| write.fields("chains", &row).head()).transpose()
}

/// Why a commit could not be made, by one look at head and incarnation.
pub(crate) async fn missed(tx: &mut Tx<'_>, request: &CommitRequest) -> Result<Cas<Committed>> {
    match why_missed(tx, request).await? {
        Some(answer) => Ok(answer),
        None => inconsistent("the head is as expected, and yet it was not moved: report this".to_owned()),
    }
}

/// Why a commit could not be made, where head and incarnation say so; `None` where they do not.
pub(crate) async fn why_missed(tx: &mut Tx<'_>, request: &CommitRequest) -> Result<Option<Cas<Committed>>> {
    let sink = request.sink;
    let (head, offerer) = view_in(tx, sink, request.incarnation).await?;
    if let Some(committed) = offerer.committed(request.commit) {
        return Ok(Some(Cas::Done(committed)));
    }
    if matches!(head.status, HeadStatus::Dropped) {
        return Err(CatalogError::SinkDropped { sink });
    }
    refuse_closed(request, &offerer)?;
    if (head.upper, head.fence) != (request.expected_upper, request.expected_fence) {
        return Ok(Some(Cas::Conflict(head)));
    }
    if request.resolution.moved_upper().is_some() && head.status != HeadStatus::Open {
        return inconsistent(format!("the chain is {:?} at {}: it accepts nothing", head.status, head.upper));
    }
    if request.description.upper() <= offerer.row.resolved {
        return Ok(Some(Cas::Conflict(head)));
    }
    refuse_drop_that_ends(request, &head)?;
    Ok(None)
}

/// The facts of a batch as they are stored.
pub(crate) fn batch_facts(batch: &NewBatch) -> Result<Vec<u8>> {
    facts_frame(&batch.facts)
        .map_err(|error| Misuse::Inconsistent { what: format!("the batch's facts: {error}") }.into())
}

/// The facts of an inline run as they are stored.
pub(crate) fn run_facts(place: i64, run: &stash_types::InlineRun) -> Result<Vec<u8>> {
    facts_frame(&run.facts).map_err(|error| {
        Misuse::Inconsistent { what: format!("the facts of inline run {place}: {error}") }.into()
    })
}

/// A descriptor as it is stored.
pub(crate) fn descriptor_frame(part: &PartRow) -> Result<Vec<u8>> {
    part.descriptor.to_wire().map(|frame| frame.to_vec()).map_err(|error| {
        let PartRow { name, .. } = part;
        Misuse::Inconsistent { what: format!("part {}-{}: {error}", name.process, name.n) }.into()
    })
}

/// What a batch holds, as it is stored.
pub(crate) fn kind(batch: &NewBatch) -> &'static str {
    if batch.parts.is_empty() && batch.inline.is_empty() { "empty" } else { "updates" }
}

/// The refusal of a key that is queued for deletion.
pub(crate) fn queued_key<T>(key: &str) -> Result<T> {
    inconsistent(format!("part {key} is queued for deletion: it cannot be linked"))
}

/// The refusal of an id or key that is in the chain.
pub(crate) fn used_before<T>(what: impl std::fmt::Display) -> Result<T> {
    inconsistent(format!("{what} is in the chain already"))
}

/// Inserts a batch with its parts and inline runs.
async fn insert(write: &mut Write<'_>, request: &CommitRequest, seq: u64, batch: &NewBatch) -> Result<()> {
    let now = write.now;
    let args = args![
        request.sink,
        seq,
        batch.id,
        batch.lower,
        batch.upper,
        request.description.lower(),
        request.description.upper(),
        request.incarnation,
        batch_facts(batch)?,
        kind(batch),
        now
    ];
    let sql = "INSERT INTO batches
            (sink, seq, id, lower, upper, extent, offered_lower, offered_upper, incarnation, facts, kind, linked, accepted)
         VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8, $9, $10, 1, $11)";
    unless_used(write, sql, args, || format!("batch {}", batch.id)).await?;
    insert_parts(write, request, seq, batch).await?;
    for (place, run) in (0i64..).zip(&batch.inline) {
        let args = args![
            request.sink,
            seq,
            place,
            i64::from(run.group),
            &run.payload,
            run.digest,
            run_facts(place, run)?,
            run.schema
        ];
        write
            .rows(
                "INSERT INTO inline_runs (sink, seq, place, run_group, payload, digest, facts, schema)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                args,
            )
            .await?;
    }
    Ok(())
}

async fn unless_used(
    write: &mut Write<'_>,
    sql: &'static str,
    args: Vec<Arg>,
    what: impl FnOnce() -> String,
) -> Result<()> {
    match write.try_rows(sql, args).await {
        Ok(_) => Ok(()),
        Err(error) if error.as_database_error().is_some_and(|error| error.is_unique_violation()) => {
            used_before(what())
        }
        Err(error) => Err(write.failed(error)),
    }
}

async fn insert_parts(
    write: &mut Write<'_>,
    request: &CommitRequest,
    seq: u64,
    batch: &NewBatch,
) -> Result<()> {
    if batch.parts.is_empty() {
        return Ok(());
    }
    let shard = write.catalog.shard(request.sink);
    let keys: Vec<_> = batch.parts.iter().map(|part| part.name.under(shard).to_string()).collect();
    let list = deletions::json(write.catalog, &keys)?;
    let sql = deletions::each_of!(
        write,
        "SELECT key FROM deletions WHERE key IN (SELECT value FROM ",
        "$1",
        ") LIMIT 1"
    );
    if let Some(row) = write.row(sql, args![list]).await? {
        return queued_key(&write.fields("deletions", &row).text("key")?);
    }
    for ((place, part), key) in (0i64..).zip(&batch.parts).zip(keys) {
        let sql = "INSERT INTO parts (key, sink, seq, place, descriptor) VALUES ($1, $2, $3, $4, $5)";
        let args = args![key.as_str(), request.sink, seq, place, descriptor_frame(part)?];
        unless_used(write, sql, args, || format!("part {key}")).await?;
    }
    Ok(())
}

/// The row of a stretch without updates.
pub(crate) fn empty_batch(catalog: &Sql, lower: Frontier, upper: Frontier) -> NewBatch {
    NewBatch {
        id: BatchId::from_uuid(catalog.ids.random()),
        lower,
        upper,
        parts: Vec::new(),
        inline: Vec::new(),
        facts: Default::default(),
    }
}

/// Moves the extent of the last row up to `upper`, or inserts an empty row when there is none that ends
/// here; returns its `seq` then.
async fn extend(
    write: &mut Write<'_>,
    request: &CommitRequest,
    seq: u64,
    upper: Frontier,
) -> Result<Option<u64>> {
    if upper == request.expected_upper {
        return Ok(None);
    }
    let sql = "UPDATE batches SET extent = $3 WHERE sink = $1 AND linked = 1 AND extent = $2 RETURNING seq";
    if write.row(sql, args![request.sink, request.expected_upper, upper]).await?.is_some() {
        return Ok(None);
    }
    let batch = empty_batch(write.catalog, request.expected_upper, upper);
    insert(write, request, seq, &batch).await?;
    Ok(Some(seq))
}

/// What is recorded of a commit, in order; `seq` is what stands for the batch's `seq`.
pub(crate) fn events(request: &CommitRequest, seq: &str) -> Vec<(&'static str, String)> {
    let (event, _) = outcome_columns(request.outcome);
    let detail = match &request.resolution {
        Resolution::Accept { batch, .. } => format!(
            "{} as #{seq} from {}: parts {}, inline runs {}, updates {}",
            request.description,
            batch.lower,
            batch.parts.len(),
            batch.inline.len(),
            batch.facts.update_count
        ),
        Resolution::Extend { upper, .. } => format!("{} is empty up to {upper}", request.description),
        Resolution::Drop { .. } => format!("{} below {}", request.description, request.expected_upper),
    };
    let end = match (&request.status, request.resolution.moved_upper()) {
        (HeadStatus::Poisoned(error), Some(_)) => {
            Some(("poisoned", format!("at {}: {}", error.at, error.message)))
        }
        (HeadStatus::Complete, Some(upper)) => Some(("completed", format!("at {upper}"))),
        _ => None,
    };
    std::iter::once((event, detail)).chain(end).collect()
}

/// Moves the incarnation's resolved upper, records the commit and stamps the head (I8).
async fn finish(
    write: &mut Write<'_>,
    request: &CommitRequest,
    committed: Committed,
    next_seq: u64,
) -> Result<()> {
    let (outcome, from) = outcome_columns(request.outcome);
    let Committed { revision, seq, upper, fence } = committed;
    write
        .rows(
            "UPDATE incarnations SET resolved = $3, last_lower = $2, last_upper = $3, last_outcome = $4,
                last_from = $5, commit_id = $6, commit_revision = $7, commit_seq = $8, commit_upper = $9,
                commit_fence = $10
             WHERE id = $1",
            args![
                request.incarnation,
                request.description.lower(),
                request.description.upper(),
                outcome,
                from,
                request.commit,
                revision,
                seq,
                upper,
                fence
            ],
        )
        .await?;
    let next_seq = next_seq.saturating_add(u64::from(seq.is_some()));
    let sql = "UPDATE chains SET revision = $1, next_seq = $2 WHERE sink = $3";
    write.rows(sql, args![revision, next_seq, request.sink]).await.map(drop)
}

/// What a commit did, read while no other write to the sink is under way.
///
/// It stands on the row of the incarnation that made it, so that the commit of another replica, which may
/// have come on top of it, does not hide it.
pub(crate) async fn read_back(catalog: &Sql, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
    const OP: &str = "read back";
    let mut held = catalog.writer(OP).await?;
    // Taking the head row waits for the commit in question, here or in another process, to have ended.
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_head(sink, 0).await?;
    let sql =
        concat!("SELECT ", incarnation_columns!(), " FROM incarnations WHERE sink = $1 AND commit_id = $2");
    if let Some(row) = write.row(sql, args![sink, commit]).await? {
        return write.fields("incarnations", &row).committed().map(Some);
    }
    if catalog.database.outlives_its_sender() {
        // SUBTLE: its connection is gone, but what it sent may still lie before the server, which then begins it
        // after this answer. It expects the fence of before: raised, it finds another head.
        write.rows("UPDATE chains SET fence = fence + 1 WHERE sink = $1", args![sink]).await?;
        let revision = write.stamp(sink).await?;
        write.commit(revision).await?;
    }
    Ok(None)
}
