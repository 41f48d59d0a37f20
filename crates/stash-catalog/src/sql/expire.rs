//! Expiring: what [`crate::expiry`] lets go of leaves the chain, and leases that ran out are closed, in one
//! transaction that holds the head row.
//!
//! The absent and the acknowledged are read behind the head row, so that a consumer that is heard, registers or
//! acknowledges at the same moment does so before all of this or after it.

use stash_types::{Frontier, SinkId, Timestamp};

use super::incarnations::{Which, close_where};
use super::link::args;
use super::release::{count, unlink_below};
use super::write::Tx;
use super::{Result, Sql, chain, consumers};
use crate::CatalogError;
use crate::expiry::{MayGo, may_go, split};
use crate::rows::{ConsumerRow, DeletionReason, Expired, HeadRow, HeadStatus};

/// What an expiry at this moment takes.
struct Plan {
    absent: Vec<ConsumerRow>,
    /// Where the chain begins.
    begin: Frontier,
    /// Where it begins afterwards, if anything goes.
    upto: Option<Frontier>,
}

/// Takes what its time has come for, or says what that would be.
pub(crate) async fn expire(catalog: &Sql, sink: SinkId, commit: bool) -> Result<Expired> {
    const OP: &str = "expire";
    if !commit {
        return would_expire(catalog, sink).await;
    }
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let head = write.take_live_head(sink, 0).await?;
    let now = write.now;
    let Plan { absent, begin, upto } = plan(&mut write, &head, now).await?;
    let closed = close_where(&mut write, sink, "its lease ran out", Which::RanOut).await?;
    let mut done = Expired {
        closed,
        absent: absent.iter().map(|row| row.name.clone()).collect(),
        batches: 0,
        keys: 0,
        earliest: upto.unwrap_or(begin),
    };
    if done.closed.is_empty() && upto.is_none() {
        return Ok(done);
    }
    if let Some(upto) = upto {
        write.record_batches(sink, upto, "expired").await?;
        for row in absent.iter().filter(|row| row.acked < upto) {
            let ConsumerRow { name, acked, seen, .. } = row;
            let detail = format!("consumer {name} stands at {acked} and was not heard since {} ms", seen.0);
            write.record(sink, None, "expired", &detail).await?;
        }
        let taken = unlink_below(&mut write, sink, upto, DeletionReason::Expired).await?;
        (done.batches, done.keys) = (taken.released, taken.queued);
    }
    // SUBTLE: a decision in flight must look again (I20), also where only an incarnation was closed.
    let sql = "UPDATE chains SET fence = fence + 1, expired = COALESCE($1, expired) WHERE sink = $2";
    write.rows(sql, args![upto, sink]).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(done)
}

async fn would_expire(catalog: &Sql, sink: SinkId) -> Result<Expired> {
    const OP: &str = "expire, dry run";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    let now = snapshot.now().await?;
    let head = chain::head_in(&mut snapshot, sink).await?;
    if head.status == HeadStatus::Dropped {
        return Err(CatalogError::SinkDropped { sink });
    }
    let Plan { absent, begin, upto } = plan(&mut snapshot, &head, now).await?;
    let sql =
        "SELECT id FROM incarnations WHERE sink = $1 AND closed IS NULL AND lease_until <= $2 ORDER BY id";
    let rows = snapshot.rows(sql, args![sink, now]).await?;
    let closed = rows.iter().map(|row| catalog.fields("incarnations", row).parse("id"));
    let closed = closed.collect::<Result<_>>()?;
    let taken = count(&mut snapshot, sink, upto.unwrap_or(Frontier::MIN)).await?;
    Ok(Expired {
        closed,
        absent: absent.into_iter().map(|row| row.name).collect(),
        batches: taken.batches,
        keys: taken.keys,
        earliest: upto.unwrap_or(begin),
    })
}

async fn plan(tx: &mut Tx<'_>, head: &HeadRow, now: Timestamp) -> Result<Plan> {
    let sql = "SELECT id, retention_ms, absent_hold_ms FROM sinks WHERE id = $1";
    let row = tx.one(sql, args![head.sink]).await?;
    let fields = tx.fields("sinks", &row);
    let (retention_ms, absent_hold_ms) = (fields.u64_opt("retention_ms")?, fields.u64_opt("absent_hold_ms")?);
    let (present, absent) = split(consumers::all_in(tx, head.sink).await?, absent_hold_ms, now);
    let upto = match may_go(&present, &absent) {
        MayGo::Nothing => None,
        MayGo::Below(upper) => Some(upper),
        MayGo::Outlived => outlived(tx, head.sink, retention_ms, now).await?,
    };
    let begin = head.released.max(head.expired);
    Ok(Plan { absent, begin, upto: upto.filter(|upto| *upto > begin) })
}

/// Where the prefix of batches ends that outlived the retention: at the first one that has not.
///
/// A row goes with its extent, which may have grown long after it was accepted: what it says, that there is
/// nothing, nobody will ask any longer.
async fn outlived(
    tx: &mut Tx<'_>,
    sink: SinkId,
    retention_ms: Option<u64>,
    now: Timestamp,
) -> Result<Option<Frontier>> {
    // `accepted + retention <= now`, turned round so that nothing overflows.
    let Some(cutoff) = retention_ms.and_then(|ms| now.0.checked_sub(ms)) else { return Ok(None) };
    let row = tx
        .one(
            "SELECT COALESCE(
                (SELECT lower FROM batches WHERE sink = $1 AND linked = 1 AND accepted > $2 ORDER BY extent LIMIT 1),
                (SELECT extent FROM batches WHERE sink = $1 AND linked = 1 ORDER BY extent DESC LIMIT 1)) AS upto",
            args![sink, cutoff],
        )
        .await?;
    tx.fields("batches", &row).frontier_opt("upto")
}
