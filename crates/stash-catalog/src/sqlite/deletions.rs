//! The deletion queue, and judging keys.
//!
//! Keys enter it in the transaction that unlinks them and leave it when the store says they are gone. No
//! statement puts a key in that a row references (I15), and none links a key that is in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sqlx::SqliteConnection;
use stash_types::{Frontier, IncarnationId, PartKey, SinkId};

use super::connection::Write;
use super::decode::{Fields, int, reason_word};
use super::{Result, SqliteCatalog, release};
use crate::Misuse;
use crate::rows::{DeletionReason, DeletionRow, IncarnationState, KeyState};

/// The first wait after a delete that failed; each further one doubles it.
const DEFER_MS: i64 = 1000;
/// The longest wait after a delete that failed.
const DEFER_MS_MAX: i64 = 300_000;

/// A list as a bound value: one statement then takes many keys.
pub(super) fn json<T: Serialize>(catalog: &SqliteCatalog, list: &[T]) -> Result<String> {
    serde_json::to_string(list).map_err(|error| catalog.damaged(format!("a list of keys: {error}")))
}

fn key_list(catalog: &SqliteCatalog, keys: &[PartKey]) -> Result<String> {
    json(catalog, &keys.iter().map(PartKey::to_string).collect::<Vec<_>>())
}

/// Refuses keys of another shard (I23).
fn check_shard(catalog: &SqliteCatalog, sink: SinkId, keys: &[PartKey]) -> Result<()> {
    let shard = catalog.shard(sink);
    match keys.iter().find(|key| key.shard != shard) {
        Some(key) => {
            let what = format!("key {key} is not of sink {sink}, whose shard is {shard}");
            Err(Misuse::Inconsistent { what }.into())
        }
        None => Ok(()),
    }
}

/// Queues keys of a sink whose head row is held, each with the `seq` of the batch that waits for it; passes
/// over those that a row references or that are queued. Returns how many were queued.
pub(super) async fn queue(
    write: &mut Write<'_>,
    sink: SinkId,
    keys: &[(PartKey, Option<u64>)],
    reason: DeletionReason,
) -> Result<u64> {
    if keys.is_empty() {
        return Ok(0);
    }
    let list: Vec<_> =
        keys.iter().map(|(key, seq)| (key.to_string(), key.name.incarnation.to_string(), seq)).collect();
    let list = json(write.catalog, &list)?;
    let rows = sqlx::query(
        "INSERT INTO deletions (key, sink, incarnation, seq, reason, queued, due, attempts)
         SELECT value ->> 0, ?1, value ->> 1, value ->> 2, ?2, ?3, ?3, 0 FROM json_each(?4)
         WHERE NOT EXISTS (SELECT 1 FROM parts WHERE parts.key = value ->> 0)
         ON CONFLICT (key) DO NOTHING RETURNING key",
    )
    .bind(sink.to_string())
    .bind(reason_word(reason))
    .bind(write.at())
    .bind(list)
    .fetch_all(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    let queued = rows
        .iter()
        .map(|row| Fields::new(&write.catalog.location, "deletions", row).parse("key"))
        .collect::<Result<Vec<PartKey>>>()?;
    write.record_keys(sink, &queued, "queued", reason_word(reason)).await?;
    Ok(u64::try_from(queued.len()).unwrap_or(u64::MAX))
}

/// Queues keys that nobody links.
pub(super) async fn enqueue(
    catalog: &SqliteCatalog,
    sink: SinkId,
    keys: &[PartKey],
    reason: DeletionReason,
) -> Result<u64> {
    const OP: &str = "enqueue deletions";
    check_shard(catalog, sink, keys)?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    // A dropped sink is no reason to keep its blobs.
    write.take_head(sink, 0).await?;
    let mut judged: Vec<_> = keys.iter().map(|key| (*key, None)).collect();
    if reason == DeletionReason::Swept {
        // SUBTLE: the plan was made before; a key of an open incarnation may still be on its way into the
        // chain. Being garbage is monotone, so what is garbage here, under the head row, stays it.
        let incarnations = incarnations_of(catalog, &mut write.tx, sink, keys).await?;
        judged.retain(|(key, _)| {
            incarnations.get(&key.name.incarnation).is_some_and(|found| is_settled(key, found))
        });
    }
    let queued = queue(&mut write, sink, &judged, reason).await?;
    if queued > 0 {
        let revision = write.stamp(sink).await?;
        write.commit(revision).await?;
    }
    Ok(queued)
}

/// Whether the writer of a key can no longer bring it into the chain.
fn is_settled(key: &PartKey, (state, resolved): &(IncarnationState, Frontier)) -> bool {
    matches!(state, IncarnationState::Closed { .. }) || *resolved >= key.name.description.upper()
}

/// State and resolved upper of the incarnations that wrote the keys, of those this sink has.
async fn incarnations_of(
    catalog: &SqliteCatalog,
    connection: &mut SqliteConnection,
    sink: SinkId,
    keys: &[PartKey],
) -> Result<BTreeMap<IncarnationId, (IncarnationState, Frontier)>> {
    let wanted: BTreeSet<_> = keys.iter().map(|key| key.name.incarnation).collect();
    let wanted: Vec<_> = wanted.iter().map(IncarnationId::to_string).collect();
    let rows = sqlx::query(
        "SELECT id, closed, resolved FROM incarnations
         WHERE sink = ? AND id IN (SELECT value FROM json_each(?))",
    )
    .bind(sink.to_string())
    .bind(json(catalog, &wanted)?)
    .fetch_all(connection)
    .await
    .map_err(|error| catalog.failed("incarnations of keys", error))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(&catalog.location, "incarnations", row);
            Ok((fields.parse("id")?, (fields.state("closed")?, fields.frontier("resolved")?)))
        })
        .collect()
}

/// The keys due for deletion, those due longest first.
pub(super) async fn due(catalog: &SqliteCatalog, limit: u32) -> Result<Vec<DeletionRow>> {
    const OP: &str = "deletions due";
    let mut held = catalog.reader(OP).await?;
    let rows = sqlx::query(
        "SELECT key, sink, reason, queued, attempts FROM deletions WHERE due <= ?
         ORDER BY due, queued, key LIMIT ?",
    )
    .bind(int(catalog.clock.now().0))
    .bind(i64::from(limit))
    .fetch_all(&mut *held)
    .await
    .map_err(|error| catalog.failed(OP, error))?;
    rows.iter().map(|row| Fields::new(&catalog.location, "deletions", row).deletion()).collect()
}

/// How many keys are queued, due or not.
pub(super) async fn queued(catalog: &SqliteCatalog, sink: Option<SinkId>) -> Result<u64> {
    const OP: &str = "deletions queued";
    let mut held = catalog.reader(OP).await?;
    let row = sqlx::query("SELECT COUNT(*) AS queued FROM deletions WHERE ?1 IS NULL OR sink = ?1")
        .bind(sink.map(|sink| sink.to_string()))
        .fetch_one(&mut *held)
        .await
        .map_err(|error| catalog.failed(OP, error))?;
    Fields::new(&catalog.location, "deletions", &row).u64("queued")
}

/// Takes the head rows of every sink that queued one of the keys, always in the same order.
async fn take_heads(write: &mut Write<'_>, list: &str) -> Result<BTreeSet<SinkId>> {
    let rows = sqlx::query(
        "UPDATE chains SET revision = revision WHERE sink IN
            (SELECT sink FROM deletions WHERE key IN (SELECT value FROM json_each(?)))
         RETURNING sink",
    )
    .bind(list)
    .fetch_all(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    rows.iter().map(|row| Fields::new(&write.catalog.location, "chains", row).parse("sink")).collect()
}

async fn stamp_all(write: &mut Write<'_>, sinks: &BTreeSet<SinkId>) -> Result<u64> {
    let revision = write.revise().await?;
    for sink in sinks {
        sqlx::query("UPDATE chains SET revision = ? WHERE sink = ?")
            .bind(int(revision))
            .bind(sink.to_string())
            .execute(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    }
    Ok(revision)
}

/// Forgets keys that are gone from the store, and the rows of released batches that waited for them.
pub(super) async fn dequeue(catalog: &SqliteCatalog, keys: &[PartKey]) -> Result<()> {
    const OP: &str = "dequeue deletions";
    let list = key_list(catalog, keys)?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let sinks = take_heads(&mut write, &list).await?;
    if sinks.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(
        "DELETE FROM deletions WHERE key IN (SELECT value FROM json_each(?)) RETURNING key, sink, seq",
    )
    .bind(&list)
    .fetch_all(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    let mut gone: BTreeMap<SinkId, (Vec<PartKey>, BTreeSet<u64>)> = BTreeMap::new();
    for row in &rows {
        let fields = Fields::new(&catalog.location, "deletions", row);
        let (keys, seqs) = gone.entry(fields.parse("sink")?).or_default();
        keys.push(fields.parse("key")?);
        seqs.extend(fields.u64_opt("seq")?);
    }
    for (sink, (keys, seqs)) in gone {
        write.record_keys(sink, &keys, "deleted", "").await?;
        release::forget(&mut write, sink, &seqs.into_iter().collect::<Vec<_>>()).await?;
    }
    let revision = stamp_all(&mut write, &sinks).await?;
    write.commit(revision).await
}

/// Makes keys due again later.
pub(super) async fn defer(catalog: &SqliteCatalog, keys: &[PartKey]) -> Result<()> {
    const OP: &str = "defer deletions";
    let list = key_list(catalog, keys)?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let sinks = take_heads(&mut write, &list).await?;
    if sinks.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE deletions SET due = ?1 + MIN(?2, ?3 << MIN(attempts, 20)), attempts = attempts + 1
         WHERE key IN (SELECT value FROM json_each(?4))",
    )
    .bind(write.at())
    .bind(DEFER_MS_MAX)
    .bind(DEFER_MS)
    .bind(list)
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    let revision = stamp_all(&mut write, &sinks).await?;
    write.commit(revision).await
}

/// What is known of each key, in the order given.
pub(super) async fn key_states(
    catalog: &SqliteCatalog,
    sink: SinkId,
    keys: &[PartKey],
) -> Result<Vec<KeyState>> {
    const OP: &str = "key states";
    check_shard(catalog, sink, keys)?;
    let list = key_list(catalog, keys)?;
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    super::chain::head_in(catalog, &mut snapshot, sink).await?;
    let rows = sqlx::query(
        "SELECT asked.key AS place, parts.seq AS seq, deletions.reason AS reason FROM json_each(?) AS asked
         LEFT JOIN parts ON parts.key = asked.value LEFT JOIN deletions ON deletions.key = asked.value
         ORDER BY asked.key",
    )
    .bind(list)
    .fetch_all(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed(OP, error))?;
    let incarnations = incarnations_of(catalog, &mut snapshot, sink, keys).await?;
    keys.iter()
        .zip(&rows)
        .map(|(key, row)| {
            let fields = Fields::new(&catalog.location, "parts", row);
            Ok(KeyState {
                key: *key,
                referenced_by: fields.u64_opt("seq")?,
                queued: fields.reason_opt("reason")?,
                incarnation: incarnations.get(&key.name.incarnation).cloned(),
            })
        })
        .collect()
}
