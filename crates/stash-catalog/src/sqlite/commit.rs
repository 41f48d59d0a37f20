//! The fenced commit that resolves an offer, and reading back what a commit did.
//!
//! The head row is the fence. The first statement of a commit moves it, and only if it stands where the
//! decision saw it; everything else happens behind that, in the same transaction.

use stash_types::{CommitId, Frontier, IncarnationId, SinkId, fault, wire::Wire};

use super::chain::head_in;
use super::connection::Write;
use super::decode::{Fields, bytes, facts_frame, int};
use super::incarnations::incarnation_columns;
use super::{Result, SqliteCatalog, deletions, head_columns};
use crate::rows::{
    CommitRequest, Committed, DeletionReason, HeadRow, HeadStatus, IncarnationRow, IncarnationState,
    NewBatch, OutcomeKind, Resolution,
};
use crate::{Cas, CatalogError, Misuse};

const OP: &str = "commit";

/// Resolves an offer in one transaction, if the head is as expected.
///
/// A commit that was made before, by the same id, is answered as it was the first time.
pub(super) async fn commit(catalog: &SqliteCatalog, request: CommitRequest) -> Result<Cas<Committed>> {
    request.check()?;
    let sink = request.sink;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let Some(head) = move_head(&mut write, &request).await? else {
        return missed(&mut write, &request).await;
    };
    fault::place("catalog.head_moved");
    let offerer = offerer(&mut write, sink, request.incarnation).await?;
    if let Some((_, committed)) = offerer.commit.filter(|(id, _)| *id == request.commit) {
        return Ok(Cas::Done(committed));
    }
    if let IncarnationState::Closed { reason } = offerer.row.state {
        return Err(CatalogError::IncarnationClosed { sink, incarnation: request.incarnation, reason });
    }
    // SUBTLE: a drop moves neither upper nor fence. One that landed late, after its answer was lost and could not be read
    // back, leaves the head as the next try saw it: who decides again finds the offer resolved (I8, I21).
    if request.description.upper() <= offerer.row.resolved {
        return Ok(Cas::Conflict(head));
    }
    let (seq, unlink) = match &request.resolution {
        Resolution::Accept { batch, unlink } => {
            insert(&mut write, &request, head.next_seq, batch).await?;
            (Some(head.next_seq), unlink)
        }
        Resolution::Extend { upper, unlink } => {
            (extend(&mut write, &request, head.next_seq, *upper).await?, unlink)
        }
        Resolution::Drop { unlink } => {
            if head.status != request.status {
                return inconsistent(format!(
                    "a drop cannot change the chain's status from {:?} to {:?}",
                    head.status, request.status
                ));
            }
            (None, unlink)
        }
    };
    let reason = match request.outcome {
        OutcomeKind::Dropped => DeletionReason::Dropped,
        OutcomeKind::Accepted | OutcomeKind::Trimmed { .. } => DeletionReason::Trimmed,
    };
    let shard = catalog.shard(sink);
    let keys: Vec<_> = unlink.iter().map(|name| (name.under(shard), None)).collect();
    deletions::queue(&mut write, sink, &keys, reason).await?;
    record(&mut write, &request, seq).await?;
    let revision = write.revise().await?;
    let committed = Committed { revision, seq, upper: head.upper, fence: head.fence };
    finish(&mut write, &request, committed, head.next_seq).await?;
    write.commit(revision).await?;
    Ok(Cas::Done(committed))
}

fn inconsistent<T>(what: String) -> Result<T> {
    Err(Misuse::Inconsistent { what }.into())
}

/// The fence: moves the head if it stands where the decision saw it, and returns it as it is then.
async fn move_head(write: &mut Write<'_>, request: &CommitRequest) -> Result<Option<HeadRow>> {
    let moved = request.resolution.moved_upper();
    // SUBTLE: a poison at U moves no upper. Without raising the fence, a replica that decided against the
    // same U would accept over it, and deliver what the dataflow says is undefined.
    let bump = i64::from(moved == Some(request.expected_upper));
    let (status, at, message) = match &request.status {
        HeadStatus::Poisoned(error) => {
            ("poisoned", Some(bytes(Frontier::at(error.at))), Some(error.message.as_str()))
        }
        HeadStatus::Complete => ("complete", None, None),
        HeadStatus::Open | HeadStatus::Dropped => ("open", None, None),
    };
    let row = match moved {
        Some(upper) => {
            sqlx::query(concat!(
                "UPDATE chains SET upper = ?4, fence = fence + ?5, commit_id = ?6, status = ?7,
                    poisoned_at = ?8, poison_message = ?9
                 WHERE sink = ?1 AND upper = ?2 AND fence = ?3 AND status = 'open' RETURNING ",
                head_columns!()
            ))
            .bind(request.sink.to_string())
            .bind(bytes(request.expected_upper))
            .bind(int(request.expected_fence))
            .bind(bytes(upper))
            .bind(bump)
            .bind(request.commit.to_string())
            .bind(status)
            .bind(at)
            .bind(message)
            .fetch_optional(&mut *write.tx)
            .await
        }
        None => {
            sqlx::query(concat!(
                "UPDATE chains SET commit_id = ?4
                 WHERE sink = ?1 AND upper = ?2 AND fence = ?3 AND status <> 'dropped' RETURNING ",
                head_columns!()
            ))
            .bind(request.sink.to_string())
            .bind(bytes(request.expected_upper))
            .bind(int(request.expected_fence))
            .bind(request.commit.to_string())
            .fetch_optional(&mut *write.tx)
            .await
        }
    };
    row.map_err(|error| write.failed(error))?
        .map(|row| Fields::new(&write.catalog.location, "chains", &row).head())
        .transpose()
}

/// Why the head could not be moved.
async fn missed(write: &mut Write<'_>, request: &CommitRequest) -> Result<Cas<Committed>> {
    let sink = request.sink;
    let head = head_in(write.catalog, &mut write.tx, sink).await?;
    let offerer = offerer(write, sink, request.incarnation).await?;
    if let Some((_, committed)) = offerer.commit.filter(|(id, _)| *id == request.commit) {
        return Ok(Cas::Done(committed));
    }
    if matches!(head.status, HeadStatus::Dropped) {
        return Err(CatalogError::SinkDropped { sink });
    }
    if let IncarnationState::Closed { reason } = offerer.row.state {
        return Err(CatalogError::IncarnationClosed { sink, incarnation: request.incarnation, reason });
    }
    if head.upper == request.expected_upper && head.fence == request.expected_fence {
        return inconsistent(format!("the chain is {:?} at {}: it accepts nothing", head.status, head.upper));
    }
    Ok(Cas::Conflict(head))
}

struct Offerer {
    row: IncarnationRow,
    commit: Option<(CommitId, Committed)>,
}

async fn offerer(write: &mut Write<'_>, sink: SinkId, id: IncarnationId) -> Result<Offerer> {
    let row = sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE id = ? AND sink = ?"
    ))
    .bind(id.to_string())
    .bind(sink.to_string())
    .fetch_optional(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    let Some(row) = row else { return Err(Misuse::NoSuchIncarnation { sink, incarnation: id }.into()) };
    let fields = Fields::new(&write.catalog.location, "incarnations", &row);
    let commit = match fields.parse_opt("commit_id")? {
        Some(id) => Some((id, fields.committed()?)),
        None => None,
    };
    Ok(Offerer { row: fields.incarnation()?, commit })
}

/// Inserts a batch with its parts and inline runs.
async fn insert(write: &mut Write<'_>, request: &CommitRequest, seq: u64, batch: &NewBatch) -> Result<()> {
    let sink = request.sink.to_string();
    let facts = facts_frame(&batch.facts)
        .map_err(|error| Misuse::Inconsistent { what: format!("the batch's facts: {error}") })?;
    let empty = batch.parts.is_empty() && batch.inline.is_empty();
    sqlx::query(
        "INSERT INTO batches
            (sink, seq, id, lower, upper, extent, offered_lower, offered_upper, incarnation, facts, kind, linked, accepted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8, ?9, ?10, 1, ?11)",
    )
    .bind(&sink)
    .bind(int(seq))
    .bind(batch.id.to_string())
    .bind(bytes(batch.lower))
    .bind(bytes(batch.upper))
    .bind(bytes(request.description.lower()))
    .bind(bytes(request.description.upper()))
    .bind(request.incarnation.to_string())
    .bind(facts)
    .bind(if empty { "empty" } else { "updates" })
    .bind(write.at())
    .execute(&mut *write.tx)
    .await
    .map_err(|error| used_before(write, error, || format!("batch {}", batch.id)))?;
    insert_parts(write, request, seq, batch).await?;
    for (place, run) in (0i64..).zip(&batch.inline) {
        let facts = facts_frame(&run.facts).map_err(|error| Misuse::Inconsistent {
            what: format!("the facts of inline run {place}: {error}"),
        })?;
        sqlx::query(
            "INSERT INTO inline_runs (sink, seq, place, run_group, payload, digest, facts, schema)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&sink)
        .bind(int(seq))
        .bind(place)
        .bind(i64::from(run.group))
        .bind(run.payload.to_vec())
        .bind(run.digest.0.to_vec())
        .bind(facts)
        .bind(run.schema.0.0.to_vec())
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    }
    Ok(())
}

fn used_before(write: &Write<'_>, error: sqlx::Error, what: impl FnOnce() -> String) -> CatalogError {
    match error.as_database_error().is_some_and(|error| error.is_unique_violation()) {
        true => Misuse::Inconsistent { what: format!("{} is in the chain already", what()) }.into(),
        false => write.failed(error),
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
    let keys = deletions::json(write.catalog, &keys)?;
    let queued: Option<String> =
        sqlx::query_scalar("SELECT key FROM deletions WHERE key IN (SELECT value FROM json_each(?)) LIMIT 1")
            .bind(keys)
            .fetch_optional(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    if let Some(key) = queued {
        return inconsistent(format!("part {key} is queued for deletion: it cannot be linked"));
    }
    for (place, part) in (0i64..).zip(&batch.parts) {
        let key = part.name.under(shard);
        let descriptor = part
            .descriptor
            .to_wire()
            .map_err(|error| Misuse::Inconsistent { what: format!("part {key}: {error}") })?;
        sqlx::query("INSERT INTO parts (key, sink, seq, place, descriptor) VALUES (?, ?, ?, ?, ?)")
            .bind(key.to_string())
            .bind(request.sink.to_string())
            .bind(int(seq))
            .bind(place)
            .bind(descriptor.to_vec())
            .execute(&mut *write.tx)
            .await
            .map_err(|error| used_before(write, error, || format!("part {key}")))?;
    }
    Ok(())
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
    let extended =
        sqlx::query("UPDATE batches SET extent = ?3 WHERE sink = ?1 AND linked = 1 AND extent = ?2")
            .bind(request.sink.to_string())
            .bind(bytes(request.expected_upper))
            .bind(bytes(upper))
            .execute(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    if extended.rows_affected() > 0 {
        return Ok(None);
    }
    let batch = NewBatch {
        id: stash_types::BatchId::from_uuid(write.catalog.ids.random()),
        lower: request.expected_upper,
        upper,
        parts: Vec::new(),
        inline: Vec::new(),
        facts: Default::default(),
    };
    insert(write, request, seq, &batch).await?;
    Ok(Some(seq))
}

async fn record(write: &mut Write<'_>, request: &CommitRequest, seq: Option<u64>) -> Result<()> {
    let incarnation = Some(request.incarnation);
    let event = match request.outcome {
        OutcomeKind::Accepted => "accepted",
        OutcomeKind::Trimmed { .. } => "trimmed",
        OutcomeKind::Dropped => "dropped",
    };
    let detail = match (&request.resolution, seq) {
        (Resolution::Accept { batch, .. }, Some(seq)) => format!(
            "{} as #{seq} from {}: parts {}, inline runs {}, updates {}",
            request.description,
            batch.lower,
            batch.parts.len(),
            batch.inline.len(),
            batch.facts.update_count
        ),
        (Resolution::Extend { upper, .. }, _) => format!("{} is empty up to {upper}", request.description),
        _ => format!("{} below {}", request.description, request.expected_upper),
    };
    write.record(request.sink, incarnation, event, &detail).await?;
    match (&request.status, request.resolution.moved_upper()) {
        (HeadStatus::Poisoned(error), Some(_)) => {
            let detail = format!("at {}: {}", error.at, error.message);
            write.record(request.sink, incarnation, "poisoned", &detail).await
        }
        (HeadStatus::Complete, Some(upper)) => {
            write.record(request.sink, incarnation, "completed", &format!("at {upper}")).await
        }
        _ => Ok(()),
    }
}

/// Moves the incarnation's resolved upper, records the commit and stamps the head (I8).
async fn finish(
    write: &mut Write<'_>,
    request: &CommitRequest,
    committed: Committed,
    next_seq: u64,
) -> Result<()> {
    let (outcome, from) = match request.outcome {
        OutcomeKind::Accepted => ("accepted", None),
        OutcomeKind::Trimmed { from } => ("trimmed", Some(bytes(from))),
        OutcomeKind::Dropped => ("dropped", None),
    };
    sqlx::query(
        "UPDATE incarnations SET resolved = ?3, last_lower = ?2, last_upper = ?3, last_outcome = ?4, last_from = ?5,
            commit_id = ?6, commit_revision = ?7, commit_seq = ?8, commit_upper = ?9, commit_fence = ?10
         WHERE id = ?1",
    )
    .bind(request.incarnation.to_string())
    .bind(bytes(request.description.lower()))
    .bind(bytes(request.description.upper()))
    .bind(outcome)
    .bind(from)
    .bind(request.commit.to_string())
    .bind(int(committed.revision))
    .bind(committed.seq.map(int))
    .bind(bytes(committed.upper))
    .bind(int(committed.fence))
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    sqlx::query("UPDATE chains SET revision = ?, next_seq = ? WHERE sink = ?")
        .bind(int(committed.revision))
        .bind(int(next_seq.saturating_add(u64::from(committed.seq.is_some()))))
        .bind(request.sink.to_string())
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    Ok(())
}

/// What a commit did, read while no other write to the sink is under way.
///
/// It stands on the row of the incarnation that made it, so that the commit of another replica, which may
/// have come on top of it, does not hide it.
pub(super) async fn read_back(
    catalog: &SqliteCatalog,
    sink: SinkId,
    commit: CommitId,
) -> Result<Option<Committed>> {
    const OP: &str = "read back";
    let mut held = catalog.writer(OP).await?;
    // Taking the head row waits for the commit in question, here or in another process, to have ended.
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_head(sink, 0).await?;
    let row = sqlx::query(concat!(
        "SELECT ",
        incarnation_columns!(),
        " FROM incarnations WHERE sink = ? AND commit_id = ?"
    ))
    .bind(sink.to_string())
    .bind(commit.to_string())
    .fetch_optional(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    row.map(|row| Fields::new(&catalog.location, "incarnations", &row).committed()).transpose()
}
