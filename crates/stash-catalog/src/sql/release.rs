//! Unlinking: what all consumers have acknowledged leaves the chain, and its keys enter the deletion queue,
//! in one transaction. What expires leaves it the same way.
//!
//! A batch is released when its `upper` is acknowledged, although the chain may be proven empty beyond it: its
//! extent. Whatever of that is not acknowledged stays as an empty row, the *rest*, so that the linked rows
//! remain gapless from the released frontier to the head's upper and a reader never meets a hole. A rest
//! keeps `seq` and id of its batch and begins at the released frontier.

use stash_types::{Frontier, PartKey, SinkId, fault};

use super::decode::facts_frame;
use super::link::args;
use super::write::{Tx, Write};
use super::{Result, deletions};
use crate::Misuse;
use crate::rows::{Acknowledged, DeletionReason, HeadRow};

/// Releases what every consumer has acknowledged. Without consumers nothing is released: their absence is a
/// state, not a frontier.
pub(super) async fn release(write: &mut Write<'_>, head: &HeadRow) -> Result<Acknowledged> {
    let nothing = Acknowledged { released: 0, queued: 0 };
    let sql = "SELECT name, acked FROM consumers WHERE sink = $1 ORDER BY acked LIMIT 1";
    let row = write.row(sql, args![head.sink]).await?;
    let Some(row) = row else { return Ok(nothing) };
    let acked = write.fields("consumers", &row).frontier("acked")?;
    if acked <= head.released {
        return Ok(nothing);
    }
    let done = unlink_below(write, head.sink, acked, DeletionReason::Released).await?;
    // SUBTLE: the fence rises only here. It makes decisions in flight look again; an acknowledgement that
    // releases nothing must not cost every writer a retry.
    let sql = "UPDATE chains SET released = $1, fence = fence + 1 WHERE sink = $2";
    write.rows(sql, args![acked, head.sink]).await?;
    let detail = format!("below {acked}: batches {}, objects {}", done.released, done.queued);
    write.record(head.sink, None, "released", &detail).await?;
    Ok(done)
}

/// Unlinks every batch whose updates lie below `upper`, and queues its keys.
pub(super) async fn unlink_below(
    write: &mut Write<'_>,
    sink: SinkId,
    upper: Frontier,
    reason: DeletionReason,
) -> Result<Acknowledged> {
    let released = count(write, sink, upper).await?.batches;
    let keys = unlink_parts(write, sink, upper).await?;
    let queued = deletions::queue(write, sink, &keys, reason).await?;
    fault::place("catalog.unlinked");
    let empty = facts_frame(&Default::default())
        .map_err(|error| Misuse::Inconsistent { what: format!("the facts of nothing: {error}") })?;
    write
        .rows(
            "UPDATE batches SET lower = $2, upper = extent, facts = $3, kind = 'rest'
             WHERE sink = $1 AND linked = 1 AND lower < $2 AND extent > $2 AND (upper <= $2 OR kind <> 'updates')",
            args![sink, upper, empty],
        )
        .await?;
    for sql in [
        // Nothing waits for a row without queued keys: it goes at once.
        "DELETE FROM batches WHERE sink = $1 AND linked = 1 AND extent <= $2 AND NOT EXISTS
            (SELECT 1 FROM deletions WHERE deletions.sink = batches.sink AND deletions.seq = batches.seq)",
        "UPDATE batches SET linked = 0 WHERE sink = $1 AND linked = 1 AND extent <= $2",
    ] {
        write.rows(sql, args![sink, upper]).await?;
    }
    Ok(Acknowledged { released, queued })
}

/// What unlinking takes, or would take.
pub(super) struct Unlinked {
    pub(super) batches: u64,
    pub(super) keys: u64,
}

/// How many batches are released: those with updates when their upper is passed, empty ones when their
/// extent is. A rest was counted when it was a batch.
pub(super) async fn count(tx: &mut Tx<'_>, sink: SinkId, upper: Frontier) -> Result<Unlinked> {
    let row = tx
        .one(
            "SELECT
                (SELECT COUNT(*) FROM batches WHERE sink = $1 AND linked = 1 AND upper <= $2
                    AND (kind = 'updates' OR (kind = 'empty' AND extent <= $2))) AS batches,
                (SELECT COUNT(*) FROM parts WHERE sink = $1 AND seq IN
                    (SELECT seq FROM batches WHERE sink = $1 AND linked = 1 AND upper <= $2)) AS keys",
            args![sink, upper],
        )
        .await?;
    let fields = tx.fields("batches", &row);
    Ok(Unlinked { batches: fields.u64("batches")?, keys: fields.u64("keys")? })
}

/// Removes the references, so that the keys may be queued (I15), and the inline runs.
async fn unlink_parts(
    write: &mut Write<'_>,
    sink: SinkId,
    upper: Frontier,
) -> Result<Vec<(PartKey, Option<u64>)>> {
    let rows = write
        .rows(
            "DELETE FROM parts WHERE sink = $1 AND seq IN
                (SELECT seq FROM batches WHERE sink = $1 AND linked = 1 AND upper <= $2)
             RETURNING key, seq",
            args![sink, upper],
        )
        .await?;
    write
        .rows(
            "DELETE FROM inline_runs WHERE sink = $1 AND seq IN
                (SELECT seq FROM batches WHERE sink = $1 AND linked = 1 AND upper <= $2)",
            args![sink, upper],
        )
        .await?;
    rows.iter()
        .map(|row| {
            let fields = write.fields("parts", row);
            Ok((fields.parse("key")?, Some(fields.u64("seq")?)))
        })
        .collect()
}

/// Forgets the rows of released batches none of whose keys is queued any longer.
pub(super) async fn forget(write: &mut Write<'_>, sink: SinkId, seqs: &[u64]) -> Result<()> {
    let sql = super::deletions::each_of!(
        write,
        "DELETE FROM batches WHERE sink = $1 AND linked = 0 AND seq IN (SELECT CAST(value AS BIGINT) FROM ",
        "$2",
        ") AND NOT EXISTS
            (SELECT 1 FROM deletions WHERE deletions.sink = batches.sink AND deletions.seq = batches.seq)"
    );
    let seqs = deletions::json(write.catalog, seqs)?;
    write.rows(sql, args![sink, seqs]).await.map(drop)
}
