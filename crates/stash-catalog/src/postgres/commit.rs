//! The fenced commit as one statement: from a view to an accepted batch there and back twice.
//!
//! A statement runs in one snapshot, taken when it begins. It then waits for the head row, and whoever held that may have
//! changed what the snapshot shows: at READ COMMITTED only the row that was waited for is read anew, and not the
//! deletion queue, nor the incarnation. So the statement does not trust its snapshot, it proves it: every write to a sink
//! stamps the head row with its revision, and the statement goes on only if the row it locked is stamped as the one in
//! its snapshot is. Then nothing of the sink was written in between, and all it reads is true.
//!
//! Where the proof fails, and where anything else is not as the plain case has it (a key that is queued, an incarnation
//! that is closed, an offer that was resolved), the statement writes nothing, and the commit is made step by step, in
//! a transaction that locks first and reads then: `sql::commit::stepwise`, which is what the embedded catalog does. So there is
//! one account of what a commit refuses and answers.
//!
//! The locks are taken in the order that every write has: the head, the incarnation behind it, the catalog's row.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::PgPool;
use stash_types::{Frontier, PartName, fault};

use super::connection::storable;
use super::failure::is_unknown;
use crate::rows::{CommitRequest, Committed, NewBatch, Resolution};
use crate::sql::commit::{
    OP, batch_facts, bump, descriptor_frame, empty_batch, events, kind, outcome_columns, run_facts,
    status_columns, stepwise, unlink_reason, why_missed,
};
use crate::sql::decode::{Fields, reason_word};
use crate::sql::history::{PRUNE, outdated};
use crate::sql::link::int;
use crate::sql::watch::channel;
use crate::sql::{Result, Sql};
use crate::{Cas, CatalogError};

/// Stands for the batch's `seq` in what is recorded, until the statement knows it.
const SEQ: &str = "%SEQ%";

/// $1 sink, $2 and $3 the head's upper and fence that were decided against, $4 incarnation, $5 and $6 the offered
/// description, $7 commit, $8 the upper it moves to, $9 by how much the fence rises, $10 to $12 the status, $13 and $14 the
/// outcome, $15 the revision seen, $16 the moment, $17 to $19 the batch, $20 whether a row extends, $21 and $22 parts,
/// $23 to $27 inline runs, $28 to $30 what is not kept, $31 and $32 what is recorded, $33 the channel.
///
/// SUBTLE: no part of the statement sees what another part of it writes. What is queued is compared with the parts it
/// references by value, or a key that is given as both would be linked and queued (I15).
const COMMIT: &str = "
WITH seen AS MATERIALIZED (
    SELECT revision FROM chains WHERE sink = $1
), head AS MATERIALIZED (
    SELECT next_seq, revision FROM chains
    WHERE sink = $1 AND upper = $2 AND fence = $3
      AND CASE WHEN $8 IS NOT NULL THEN status = 'open'
               ELSE status <> 'dropped' AND status = $10 AND poisoned_at IS NOT DISTINCT FROM $11
                    AND poison_message IS NOT DISTINCT FROM $12 END
    FOR NO KEY UPDATE
), fit AS MATERIALIZED (
    SELECT head.next_seq, COALESCE($16, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
    FROM head JOIN seen USING (revision) JOIN incarnations ON incarnations.id = $4 AND incarnations.sink = $1
    WHERE incarnations.closed IS NULL AND incarnations.resolved < $6 AND incarnations.commit_id IS DISTINCT FROM $7
      AND NOT EXISTS (SELECT FROM deletions WHERE key = ANY ($21))
      AND NOT EXISTS (SELECT FROM parts WHERE key = ANY ($21))
      AND NOT EXISTS (SELECT FROM batches WHERE id = $17)
), raised AS (
    UPDATE catalog SET revision = catalog.revision + 1 FROM fit
    WHERE catalog.one = 1 AND catalog.revision >= $15
    RETURNING catalog.revision
), extended AS (
    UPDATE batches SET extent = $8 FROM raised
    WHERE $20 AND batches.sink = $1 AND batches.linked = 1 AND batches.extent = $2
    RETURNING batches.seq
), placed AS MATERIALIZED (
    SELECT raised.revision, fit.now,
           CASE WHEN $17 IS NOT NULL AND NOT EXISTS (SELECT FROM extended) THEN fit.next_seq END AS seq
    FROM raised, fit
), moved AS (
    UPDATE chains SET
        upper = COALESCE($8, chains.upper), fence = chains.fence + $9, commit_id = $7, revision = placed.revision,
        next_seq = chains.next_seq + CASE WHEN placed.seq IS NULL THEN 0 ELSE 1 END,
        status = CASE WHEN $8 IS NULL THEN chains.status ELSE $10 END,
        poisoned_at = CASE WHEN $8 IS NULL THEN chains.poisoned_at ELSE $11 END,
        poison_message = CASE WHEN $8 IS NULL THEN chains.poison_message ELSE $12 END
    FROM placed WHERE chains.sink = $1
    RETURNING chains.upper, chains.fence, placed.revision, placed.seq, placed.now
), resolved AS (
    UPDATE incarnations SET
        resolved = $6, last_lower = $5, last_upper = $6, last_outcome = $13, last_from = $14, commit_id = $7,
        commit_revision = moved.revision, commit_seq = moved.seq, commit_upper = moved.upper,
        commit_fence = moved.fence
    FROM moved WHERE incarnations.id = $4
), batch AS (
    INSERT INTO batches (sink, seq, id, lower, upper, extent, offered_lower, offered_upper, incarnation, facts, kind,
                         linked, accepted)
    SELECT $1, seq, $17, $2, $8, $8, $5, $6, $4, $18, $19, 1, now FROM moved WHERE seq IS NOT NULL
), referenced AS (
    INSERT INTO parts (key, sink, seq, place, descriptor)
    SELECT part.key, $1, moved.seq, part.place - 1, part.descriptor
    FROM moved, unnest($21, $22) WITH ORDINALITY AS part (key, descriptor, place)
), runs AS (
    INSERT INTO inline_runs (sink, seq, place, run_group, payload, digest, facts, schema)
    SELECT $1, moved.seq, run.place - 1, run.run_group, run.payload, run.digest, run.facts, run.schema
    FROM moved, unnest($23, $24, $25, $26, $27) WITH ORDINALITY
        AS run (run_group, payload, digest, facts, schema, place)
), queued AS (
    INSERT INTO deletions (key, sink, incarnation, seq, reason, queued, due, attempts)
    SELECT gone.key, $1, gone.incarnation, NULL, $30, moved.now, moved.now, 0
    FROM moved, unnest($28, $29) AS gone (key, incarnation)
    WHERE gone.key <> ALL ($21) AND NOT EXISTS (SELECT FROM parts WHERE parts.key = gone.key)
    ON CONFLICT (key) DO NOTHING RETURNING key, incarnation
), recorded AS (
    INSERT INTO history (at, sink, incarnation, key, event, detail)
    SELECT moved.now, $1, event.incarnation, event.key, event.event, event.detail
    FROM moved, (
        SELECT 0 AS place, key, incarnation, 'queued' AS event, $30 AS detail FROM queued
        UNION ALL
        SELECT told.place, NULL, $4, told.event, replace(told.detail, '%SEQ%', COALESCE(moved.seq::text, ''))
        FROM moved, unnest($31, $32) WITH ORDINALITY AS told (event, detail, place)
    ) AS event
    ORDER BY event.place, event.key
    RETURNING n
)
SELECT (SELECT count(*) FROM head) AS held, moved.revision, moved.seq, moved.upper, moved.fence,
       (SELECT max(n) FROM recorded) AS last, (SELECT count(*) FROM recorded) AS recorded,
       CASE WHEN moved.revision IS NOT NULL THEN pg_notify($33, moved.revision::text) IS NULL END AS told
FROM (SELECT 1) AS one LEFT JOIN moved ON true";

/// What became of the statement.
enum Tried {
    Done(Committed),
    /// The head was not as expected.
    Missed,
    /// It was, and yet something stood against it.
    Unfit,
}

/// Resolves an offer in one transaction, if the head is as expected.
pub(super) async fn commit(pool: &PgPool, catalog: &Sql, request: &CommitRequest) -> Result<Cas<Committed>> {
    match at_once(pool, catalog, request).await? {
        Tried::Done(committed) => return Ok(Cas::Done(committed)),
        Tried::Missed => {
            let mut held = catalog.reader(OP).await?;
            let mut tx = catalog.each(OP, &mut held);
            if let Some(answer) = why_missed(&mut tx, request).await? {
                return Ok(answer);
            }
        }
        Tried::Unfit => {}
    }
    stepwise(catalog, request).await
}

/// Parts as columns: what a statement unnests.
#[derive(Default)]
struct Columns {
    part_keys: Vec<String>,
    descriptors: Vec<Vec<u8>>,
    groups: Vec<i64>,
    payloads: Vec<Vec<u8>>,
    digests: Vec<Vec<u8>>,
    facts: Vec<Vec<u8>>,
    schemas: Vec<Vec<u8>>,
}

impl Columns {
    fn of(batch: &NewBatch, key: impl Fn(&PartName) -> String) -> Result<Columns> {
        let mut columns = Columns::default();
        for part in &batch.parts {
            columns.part_keys.push(key(&part.name));
            columns.descriptors.push(descriptor_frame(part)?);
        }
        for (place, run) in (0i64..).zip(&batch.inline) {
            columns.groups.push(i64::from(run.group));
            columns.payloads.push(run.payload.to_vec());
            columns.digests.push(run.digest.0.to_vec());
            columns.facts.push(run_facts(place, run)?);
            columns.schemas.push(run.schema.0.0.to_vec());
        }
        Ok(columns)
    }
}

fn stored(frontier: Frontier) -> Vec<u8> {
    frontier.to_be_bytes().to_vec()
}

async fn at_once(pool: &PgPool, catalog: &Sql, request: &CommitRequest) -> Result<Tried> {
    let shard = catalog.shard(request.sink);
    let key = |name: &PartName| name.under(shard).to_string();
    let (empty, extends);
    let batch = match &request.resolution {
        Resolution::Accept { batch, .. } => {
            extends = false;
            Some(batch)
        }
        Resolution::Extend { upper, .. } if *upper > request.expected_upper => {
            empty = empty_batch(catalog, request.expected_upper, *upper);
            extends = true;
            Some(&empty)
        }
        Resolution::Extend { .. } | Resolution::Drop { .. } => {
            extends = false;
            None
        }
    };
    let columns = batch.map_or_else(|| Ok(Columns::default()), |batch| Columns::of(batch, key))?;
    let unlinked = request.resolution.unlinked();
    let (status, poisoned_at, message) = status_columns(&request.status);
    let (outcome, from) = outcome_columns(request.outcome);
    let (told, details): (Vec<_>, Vec<_>) =
        events(request, SEQ).into_iter().map(|(event, detail)| (event, storable(detail))).unzip();
    let query = sqlx::query(COMMIT)
        .bind(request.sink.to_string())
        .bind(stored(request.expected_upper))
        .bind(int(request.expected_fence))
        .bind(request.incarnation.to_string())
        .bind(stored(request.description.lower()))
        .bind(stored(request.description.upper()))
        .bind(request.commit.to_string())
        .bind(request.resolution.moved_upper().map(stored))
        .bind(bump(request))
        .bind(status)
        .bind(poisoned_at.map(stored))
        .bind(message.map(|message| storable(message.to_owned())))
        .bind(outcome)
        .bind(from.map(stored))
        .bind(int(catalog.seen.load(Ordering::Acquire)))
        .bind(catalog.clock.as_ref().map(|clock| int(clock.now().0)))
        .bind(batch.map(|batch| batch.id.to_string()))
        .bind(batch.map(batch_facts).transpose()?)
        .bind(batch.map(kind))
        .bind(extends)
        .bind(columns.part_keys)
        .bind(columns.descriptors)
        .bind(columns.groups)
        .bind(columns.payloads)
        .bind(columns.digests)
        .bind(columns.facts)
        .bind(columns.schemas)
        .bind(unlinked.iter().map(key).collect::<Vec<_>>())
        .bind(unlinked.iter().map(|name| name.incarnation.to_string()).collect::<Vec<_>>())
        .bind(reason_word(unlink_reason(request)))
        .bind(told)
        .bind(details)
        .bind(channel(catalog.id));
    let mut connection = match pool.acquire().await {
        Ok(connection) => connection,
        Err(sqlx::Error::PoolClosed) => return Err(catalog.was_closed(OP)),
        Err(error) => return Err(catalog.failed(OP, error)),
    };
    fault::place("catalog.commit_ready");
    // SUBTLE: the statement is its own transaction, made durable after its row was sent. All is read up to where the server
    // is ready for the next, which it is only then.
    let rows = match query.fetch_all(&mut *connection).await {
        Ok(rows) => rows,
        Err(error) if is_unknown(&error) => {
            return Err(CatalogError::Indeterminate {
                location: catalog.location.clone(),
                op: OP,
                what: "the connection was lost before the commit was answered".to_owned(),
                source: Some(Arc::new(error)),
            });
        }
        // An id or key that is there already, or twice in the request: step by step it is named.
        Err(error) if error.as_database_error().is_some_and(|error| error.is_unique_violation()) => {
            return Ok(Tried::Unfit);
        }
        Err(error) => return Err(catalog.failed(OP, error)),
    };
    fault::place("catalog.commit_done");
    let Some(row) = rows.first() else { return Err(catalog.failed(OP, sqlx::Error::RowNotFound)) };
    let fields = Fields::new(&catalog.location, "chains", row);
    let Some(revision) = fields.u64_opt("revision")? else {
        return Ok(if fields.u64("held")? == 0 { Tried::Missed } else { Tried::Unfit });
    };
    let committed = Committed {
        revision,
        seq: fields.u64_opt("seq")?,
        upper: fields.frontier("upper")?,
        fence: fields.u64("fence")?,
    };
    catalog.saw(revision);
    let (last, recorded) = (fields.i64("last")?, fields.u64("recorded")?);
    if let Some(n) = outdated(last, usize::try_from(recorded).unwrap_or(usize::MAX)) {
        // What is outdated may as well go with a later write.
        if let Err(error) = sqlx::query(PRUNE).bind(n).execute(&mut *connection).await {
            tracing::debug!(%error, "the oldest history was not forgotten");
        }
    }
    Ok(Tried::Done(committed))
}
