//! The deletion queue, and judging keys.
//!
//! Keys enter it in the transaction that unlinks them and leave it when the store says they are gone. No
//! statement puts a key in that a row references (I15), and none links a key that is in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stash_types::{Frontier, IncarnationId, PartKey, SinkId};

use super::chain::head_in;
use super::decode::reason_word;
use super::link::args;
use super::write::{Tx, Write};
use super::{Result, Sql, release};
use crate::Misuse;
use crate::rows::{DeletionReason, DeletionRow, IncarnationState, KeyState};

/// The first wait after a delete that failed; each further one doubles it.
const DEFER_MS: i64 = 1000;
/// The longest wait after a delete that failed.
const DEFER_MS_MAX: i64 = 300_000;

/// A statement that takes a list as one bound value: both its texts. The list is JSON, its elements are `value`.
macro_rules! each_of {
    ($tx:expr, $before:expr, $list:literal, $after:expr) => {
        $tx.pick(
            concat!($before, "json_each(", $list, ")", $after),
            concat!($before, "jsonb_array_elements_text(", $list, "::jsonb)", $after),
        )
    };
}
pub(super) use each_of;

/// A list as a bound value: one statement then takes many keys.
pub(super) fn json<T: Serialize>(catalog: &Sql, list: &[T]) -> Result<String> {
    serde_json::to_string(list).map_err(|error| catalog.damaged(format!("a list of keys: {error}")))
}

fn key_list(catalog: &Sql, keys: &[PartKey]) -> Result<String> {
    json(catalog, &keys.iter().map(PartKey::to_string).collect::<Vec<_>>())
}

/// Refuses keys of another shard (I23).
fn check_shard(catalog: &Sql, sink: SinkId, keys: &[PartKey]) -> Result<()> {
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
    macro_rules! insert {
        ($list:literal) => {
            concat!(
                "INSERT INTO deletions (key, sink, incarnation, seq, reason, queued, due, attempts)
                 SELECT value ->> 0, $1, value ->> 1, CAST(value ->> 2 AS BIGINT), $2, $3, $3, 0 FROM ",
                $list,
                " WHERE NOT EXISTS (SELECT 1 FROM parts WHERE parts.key = value ->> 0)
                 ON CONFLICT (key) DO NOTHING RETURNING key"
            )
        };
    }
    let sql = write.pick(insert!("json_each($4)"), insert!("jsonb_array_elements($4::jsonb)"));
    let now = write.now;
    let rows = write.rows(sql, args![sink, reason_word(reason), now, list]).await?;
    let queued = rows
        .iter()
        .map(|row| write.fields("deletions", row).parse("key"))
        .collect::<Result<Vec<PartKey>>>()?;
    write.record_keys(sink, &queued, "queued", reason_word(reason)).await?;
    Ok(u64::try_from(queued.len()).unwrap_or(u64::MAX))
}

/// Queues keys that nobody links.
pub(crate) async fn enqueue(
    catalog: &Sql,
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
        let incarnations = incarnations_of(&mut write, sink, keys).await?;
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
    tx: &mut Tx<'_>,
    sink: SinkId,
    keys: &[PartKey],
) -> Result<BTreeMap<IncarnationId, (IncarnationState, Frontier)>> {
    let wanted: BTreeSet<_> = keys.iter().map(|key| key.name.incarnation).collect();
    let wanted: Vec<_> = wanted.iter().map(IncarnationId::to_string).collect();
    let wanted = json(tx.catalog, &wanted)?;
    let sql = each_of!(
        tx,
        "SELECT id, closed, resolved FROM incarnations WHERE sink = $1 AND id IN (SELECT value FROM ",
        "$2",
        ")"
    );
    let rows = tx.rows(sql, args![sink, wanted]).await?;
    rows.iter()
        .map(|row| {
            let fields = tx.fields("incarnations", row);
            Ok((fields.parse("id")?, (fields.state("closed")?, fields.frontier("resolved")?)))
        })
        .collect()
}

/// The keys due for deletion, those due longest first.
pub(crate) async fn due(catalog: &Sql, limit: u32) -> Result<Vec<DeletionRow>> {
    const OP: &str = "deletions due";
    let mut held = catalog.reader(OP).await?;
    let mut tx = catalog.each(OP, &mut held);
    let now = tx.now().await?;
    let rows = tx
        .rows(
            "SELECT key, sink, reason, queued, attempts FROM deletions WHERE due <= $1
             ORDER BY due, queued, key LIMIT $2",
            args![now, i64::from(limit)],
        )
        .await?;
    rows.iter().map(|row| catalog.fields("deletions", row).deletion()).collect()
}

/// How many keys are queued, due or not.
pub(crate) async fn queued(catalog: &Sql, sink: Option<SinkId>) -> Result<u64> {
    const OP: &str = "deletions queued";
    let mut held = catalog.reader(OP).await?;
    let sql = "SELECT COUNT(*) AS queued FROM deletions WHERE $1 IS NULL OR sink = $1";
    let row = catalog.each(OP, &mut held).one(sql, args![sink]).await?;
    catalog.fields("deletions", &row).u64("queued")
}

/// Takes the head rows of every sink that queued one of the keys, always in the same order.
async fn take_heads(write: &mut Write<'_>, list: &str) -> Result<BTreeSet<SinkId>> {
    let sql = write.pick(
        "UPDATE chains SET revision = revision WHERE sink IN
            (SELECT sink FROM deletions WHERE key IN (SELECT value FROM json_each($1)))
         RETURNING sink",
        "SELECT sink FROM chains WHERE sink IN
            (SELECT sink FROM deletions WHERE key IN (SELECT value FROM jsonb_array_elements_text($1::jsonb)))
         ORDER BY sink FOR NO KEY UPDATE",
    );
    let rows = write.rows(sql, args![list]).await?;
    rows.iter().map(|row| write.fields("chains", row).parse("sink")).collect()
}

async fn stamp_all(write: &mut Write<'_>, sinks: &BTreeSet<SinkId>) -> Result<u64> {
    let revision = write.revise().await?;
    for sink in sinks {
        write.rows("UPDATE chains SET revision = $1 WHERE sink = $2", args![revision, *sink]).await?;
    }
    Ok(revision)
}

/// Forgets keys that are gone from the store, and the rows of released batches that waited for them.
pub(crate) async fn dequeue(catalog: &Sql, keys: &[PartKey]) -> Result<()> {
    const OP: &str = "dequeue deletions";
    let list = key_list(catalog, keys)?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let sinks = take_heads(&mut write, &list).await?;
    if sinks.is_empty() {
        return Ok(());
    }
    let sql = each_of!(
        write,
        "DELETE FROM deletions WHERE key IN (SELECT value FROM ",
        "$1",
        ") RETURNING key, sink, seq"
    );
    let rows = write.rows(sql, args![list]).await?;
    let mut gone: BTreeMap<SinkId, (Vec<PartKey>, BTreeSet<u64>)> = BTreeMap::new();
    for row in &rows {
        let fields = catalog.fields("deletions", row);
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
pub(crate) async fn defer(catalog: &Sql, keys: &[PartKey]) -> Result<()> {
    const OP: &str = "defer deletions";
    let list = key_list(catalog, keys)?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let sinks = take_heads(&mut write, &list).await?;
    if sinks.is_empty() {
        return Ok(());
    }
    let sql = each_of!(
        write,
        "UPDATE deletions SET attempts = attempts + 1, due = $1 + CASE
            WHEN attempts > 20 THEN $2
            WHEN ($3 << CAST(attempts AS INTEGER)) > $2 THEN $2
            ELSE $3 << CAST(attempts AS INTEGER) END
         WHERE key IN (SELECT value FROM ",
        "$4",
        ")"
    );
    let now = write.now;
    write.rows(sql, args![now, DEFER_MS_MAX, DEFER_MS, list]).await?;
    let revision = stamp_all(&mut write, &sinks).await?;
    write.commit(revision).await
}

/// What is known of each key, in the order given.
pub(crate) async fn key_states(catalog: &Sql, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
    const OP: &str = "key states";
    check_shard(catalog, sink, keys)?;
    let list = key_list(catalog, keys)?;
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    head_in(&mut snapshot, sink).await?;
    macro_rules! states {
        ($asked:literal) => {
            concat!(
                "SELECT asked.key AS place, parts.seq AS seq, deletions.reason AS reason FROM ",
                $asked,
                " LEFT JOIN parts ON parts.key = asked.value LEFT JOIN deletions ON deletions.key = asked.value
                 ORDER BY asked.key"
            )
        };
    }
    let sql = snapshot.pick(
        states!("json_each($1) AS asked"),
        states!("jsonb_array_elements_text($1::jsonb) WITH ORDINALITY AS asked (value, key)"),
    );
    let rows = snapshot.rows(sql, args![list]).await?;
    let incarnations = incarnations_of(&mut snapshot, sink, keys).await?;
    keys.iter()
        .zip(&rows)
        .map(|(key, row)| {
            let fields = catalog.fields("parts", row);
            Ok(KeyState {
                key: *key,
                referenced_by: fields.u64_opt("seq")?,
                queued: fields.reason_opt("reason")?,
                incarnation: incarnations.get(&key.name.incarnation).cloned(),
            })
        })
        .collect()
}
