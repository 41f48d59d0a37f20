//! Unlinking: what all consumers have acknowledged leaves the chain, and its keys enter the deletion queue,
//! in one transaction. What expires leaves it the same way.
//!
//! A batch is released when its `upper` is acknowledged, although the chain may be proven empty beyond it: its
//! extent. Whatever of that is not acknowledged stays as an empty row, the *rest*, so that the linked rows
//! remain gapless from the released frontier to the head's upper and a reader never meets a hole. A rest
//! keeps `seq` and id of its batch and begins at the released frontier.

use stash_types::{Frontier, PartKey, SinkId, fault};

use super::connection::Write;
use super::decode::{Fields, bytes, facts_frame, int};
use super::{Result, deletions};
use crate::Misuse;
use crate::rows::{Acknowledged, DeletionReason, HeadRow};

/// Releases what every consumer has acknowledged. Without consumers nothing is released: their absence is a
/// state, not a frontier.
pub(super) async fn release(write: &mut Write<'_>, head: &HeadRow) -> Result<Acknowledged> {
    let nothing = Acknowledged { released: 0, queued: 0 };
    let row = sqlx::query("SELECT MIN(acked) AS acked FROM consumers WHERE sink = ?")
        .bind(head.sink.to_string())
        .fetch_one(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    let acked = Fields::new(&write.catalog.location, "consumers", &row).frontier_opt("acked")?;
    let Some(acked) = acked.filter(|acked| *acked > head.released) else { return Ok(nothing) };
    let done = unlink_below(write, head.sink, acked, DeletionReason::Released).await?;
    // SUBTLE: the fence rises only here. It makes decisions in flight look again; an acknowledgement that
    // releases nothing must not cost every writer a retry.
    sqlx::query("UPDATE chains SET released = ?, fence = fence + 1 WHERE sink = ?")
        .bind(bytes(acked))
        .bind(head.sink.to_string())
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
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
    let released = count(write, sink, upper).await?;
    let keys = unlink_parts(write, sink, upper).await?;
    let queued = deletions::queue(write, sink, &keys, reason).await?;
    fault::place("catalog.unlinked");
    let empty = facts_frame(&Default::default())
        .map_err(|error| Misuse::Inconsistent { what: format!("the facts of nothing: {error}") })?;
    sqlx::query(
        "UPDATE batches SET lower = ?2, upper = extent, facts = ?3, kind = 'rest'
         WHERE sink = ?1 AND linked = 1 AND lower < ?2 AND extent > ?2 AND (upper <= ?2 OR kind <> 'updates')",
    )
    .bind(sink.to_string())
    .bind(bytes(upper))
    .bind(empty)
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    for sql in [
        // Nothing waits for a row without queued keys: it goes at once.
        "DELETE FROM batches WHERE sink = ?1 AND linked = 1 AND extent <= ?2 AND NOT EXISTS
            (SELECT 1 FROM deletions WHERE deletions.sink = batches.sink AND deletions.seq = batches.seq)",
        "UPDATE batches SET linked = 0 WHERE sink = ?1 AND linked = 1 AND extent <= ?2",
    ] {
        sqlx::query(sql)
            .bind(sink.to_string())
            .bind(bytes(upper))
            .execute(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    }
    Ok(Acknowledged { released, queued })
}

/// How many batches are released: those with updates when their upper is passed, empty ones when their
/// extent is. A rest was counted when it was a batch.
async fn count(write: &mut Write<'_>, sink: SinkId, upper: Frontier) -> Result<u64> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS released FROM batches
         WHERE sink = ?1 AND linked = 1 AND upper <= ?2
           AND (kind = 'updates' OR (kind = 'empty' AND extent <= ?2))",
    )
    .bind(sink.to_string())
    .bind(bytes(upper))
    .fetch_one(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    Fields::new(&write.catalog.location, "batches", &row).u64("released")
}

/// Removes the references, so that the keys may be queued (I15), and the inline runs.
async fn unlink_parts(
    write: &mut Write<'_>,
    sink: SinkId,
    upper: Frontier,
) -> Result<Vec<(PartKey, Option<u64>)>> {
    let rows = sqlx::query(
        "DELETE FROM parts WHERE sink = ?1 AND seq IN
            (SELECT seq FROM batches WHERE sink = ?1 AND linked = 1 AND upper <= ?2)
         RETURNING key, seq",
    )
    .bind(sink.to_string())
    .bind(bytes(upper))
    .fetch_all(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    sqlx::query(
        "DELETE FROM inline_runs WHERE sink = ?1 AND seq IN
            (SELECT seq FROM batches WHERE sink = ?1 AND linked = 1 AND upper <= ?2)",
    )
    .bind(sink.to_string())
    .bind(bytes(upper))
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(&write.catalog.location, "parts", row);
            Ok((fields.parse("key")?, Some(fields.u64("seq")?)))
        })
        .collect()
}

/// Forgets the rows of released batches none of whose keys is queued any longer.
pub(super) async fn forget(write: &mut Write<'_>, sink: SinkId, seqs: &[u64]) -> Result<()> {
    for seq in seqs {
        sqlx::query(
            "DELETE FROM batches WHERE sink = ?1 AND seq = ?2 AND linked = 0 AND NOT EXISTS
                (SELECT 1 FROM deletions WHERE deletions.sink = ?1 AND deletions.seq = ?2)",
        )
        .bind(sink.to_string())
        .bind(int(*seq))
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    }
    Ok(())
}
