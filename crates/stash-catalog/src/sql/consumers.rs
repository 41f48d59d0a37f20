//! Consumers: named, one session each, and what they have acknowledged.

use stash_types::{ConsumerName, Frontier, SessionId, SinkId};

use super::link::args;
use super::write::{Tx, Write};
use super::{Result, Sql, release};
use crate::rows::{Acknowledged, ConsumerRow, HeadRow, RegisterConsumer, StartAt};
use crate::{CatalogError, Misuse};

async fn find(write: &mut Write<'_>, sink: SinkId, name: &ConsumerName) -> Result<Option<ConsumerRow>> {
    let sql = "SELECT name, acked, session, seen FROM consumers WHERE sink = $1 AND name = $2";
    let row = write.row(sql, args![sink, name]).await?;
    row.map(|row| write.fields("consumers", &row).consumer()).transpose()
}

async fn as_of(write: &mut Write<'_>, sink: SinkId) -> Result<Frontier> {
    let row = write.one("SELECT id, as_of FROM sinks WHERE id = $1", args![sink]).await?;
    write.fields("sinks", &row).frontier("as_of")
}

/// Registers a consumer, or opens a new session of a known one, which fences the older.
///
/// Releases nothing by itself: a first consumer that starts at the chain's upper lets go of what lies
/// before it with its first acknowledgement, so that a second one still has time to start earlier.
pub(crate) async fn register(catalog: &Sql, request: &RegisterConsumer) -> Result<ConsumerRow> {
    const OP: &str = "register consumer";
    let RegisterConsumer { sink, consumer, session, start } = request;
    let (sink, session) = (*sink, *session);
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let head = write.take_live_head(sink, 1).await?;
    let known = find(&mut write, sink, consumer).await?;
    let acked = match &known {
        Some(known) if *start == StartAt::SkipExpired => known.acked.max(head.expired),
        Some(known) => known.acked,
        None => start_at(&mut write, &head, consumer, *start).await?,
    };
    // A clock that goes back makes nobody look absent.
    let seen = known.map_or(write.now, |known| known.seen.max(write.now));
    write
        .rows(
            "INSERT INTO consumers (sink, name, acked, session, seen) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (sink, name) DO UPDATE
                SET acked = excluded.acked, session = excluded.session, seen = excluded.seen",
            args![sink, consumer, acked, session, seen],
        )
        .await?;
    write.record(sink, None, "registered", &format!("{consumer} at {acked}, session {session}")).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(ConsumerRow { name: consumer.clone(), acked, session, seen })
}

async fn start_at(
    write: &mut Write<'_>,
    head: &HeadRow,
    consumer: &ConsumerName,
    start: StartAt,
) -> Result<Frontier> {
    let earliest = head.released.max(head.expired);
    match start {
        StartAt::Now => Ok(head.upper),
        StartAt::Earliest | StartAt::SkipExpired => Ok(earliest),
        StartAt::Beginning => {
            let as_of = as_of(write, head.sink).await?;
            match earliest > as_of {
                true => Err(Misuse::BeginningGone { consumer: consumer.clone(), earliest }.into()),
                false => Ok(as_of),
            }
        }
    }
}

/// The consumer in this transaction, if `session` may still speak for it.
async fn in_session(
    write: &mut Write<'_>,
    sink: SinkId,
    consumer: &ConsumerName,
    session: SessionId,
) -> Result<ConsumerRow> {
    match find(write, sink, consumer).await? {
        None => Err(Misuse::NoSuchConsumer { sink, consumer: consumer.clone() }.into()),
        Some(known) if known.session != session => {
            Err(CatalogError::SessionFenced { sink, consumer: consumer.clone() })
        }
        Some(known) => Ok(known),
    }
}

/// Notes that the consumer was heard. Its absence is judged under the head row, so that it is heard either
/// before or after what an expiry takes, and never meanwhile.
pub(crate) async fn renew(
    catalog: &Sql,
    sink: SinkId,
    consumer: &ConsumerName,
    session: SessionId,
) -> Result<()> {
    const OP: &str = "renew session";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    write.take_live_head(sink, 0).await?;
    let now = write.now;
    if in_session(&mut write, sink, consumer, session).await?.seen >= now {
        return Ok(());
    }
    let sql = "UPDATE consumers SET seen = $1 WHERE sink = $2 AND name = $3";
    write.rows(sql, args![now, sink, consumer]).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await
}

/// The consumers of a sink by name, as the transaction sees them.
pub(super) async fn all_in(tx: &mut Tx<'_>, sink: SinkId) -> Result<Vec<ConsumerRow>> {
    let sql = "SELECT name, acked, session, seen FROM consumers WHERE sink = $1 ORDER BY name";
    let rows = tx.rows(sql, args![sink]).await?;
    rows.iter().map(|row| tx.fields("consumers", row).consumer()).collect()
}

/// The sink's consumers by name.
pub(crate) async fn all(catalog: &Sql, sink: SinkId) -> Result<Vec<ConsumerRow>> {
    const OP: &str = "consumers";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    super::chain::head_in(&mut snapshot, sink).await?;
    all_in(&mut snapshot, sink).await
}

/// Forgets a consumer, and releases what only it held. The last one leaving releases nothing.
pub(crate) async fn unregister(catalog: &Sql, sink: SinkId, consumer: &ConsumerName) -> Result<bool> {
    const OP: &str = "unregister consumer";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let head = write.take_head(sink, 1).await?;
    let sql = "DELETE FROM consumers WHERE sink = $1 AND name = $2 RETURNING name";
    if write.row(sql, args![sink, consumer]).await?.is_none() {
        return Ok(false);
    }
    write.record(sink, None, "unregistered", consumer.as_str()).await?;
    release::release(&mut write, &head).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(true)
}

/// Acknowledges everything below `upper`.
pub(crate) async fn acknowledge(
    catalog: &Sql,
    sink: SinkId,
    consumer: &ConsumerName,
    session: SessionId,
    upper: Frontier,
) -> Result<Acknowledged> {
    const OP: &str = "acknowledge";
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let head = write.take_live_head(sink, 0).await?;
    let known = in_session(&mut write, sink, consumer, session).await?;
    if upper == known.acked {
        return Ok(Acknowledged { released: 0, queued: 0 });
    }
    if upper < known.acked || !is_boundary(&mut write, &head, upper).await? {
        return Err(Misuse::NotABatchUpper {
            consumer: consumer.clone(),
            upper,
            acked: known.acked,
            chain_upper: head.upper,
        }
        .into());
    }
    let seen = known.seen.max(write.now);
    let sql = "UPDATE consumers SET acked = $1, seen = $2 WHERE sink = $3 AND name = $4";
    write.rows(sql, args![upper, seen, sink, consumer]).await?;
    let done = release::release(&mut write, &head).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(done)
}

/// Whether the chain can be cut at `upper` without cutting a batch: it is the upper of a batch, or lies where
/// the chain is proven empty, which is anywhere up to a row's extent, and anywhere in a row without updates.
/// Below what expired there is no batch to be cut.
///
/// SUBTLE: a row's extent grows while a consumer still reads it. What it was told at the time must stay
/// acknowledgeable, so the rule is about the range and not about the extent of this moment.
async fn is_boundary(write: &mut Write<'_>, head: &HeadRow, upper: Frontier) -> Result<bool> {
    if upper >= head.upper {
        return Ok(upper == head.upper);
    }
    if upper <= head.expired {
        return Ok(true);
    }
    let row = write
        .row(
            "SELECT seq, lower, upper, kind FROM batches WHERE sink = $1 AND linked = 1 AND extent >= $2
             ORDER BY extent LIMIT 1",
            args![head.sink, upper],
        )
        .await?;
    let Some(row) = row else { return Ok(false) };
    let fields = write.fields("batches", &row);
    let from = match fields.text("kind")?.as_str() {
        "updates" => fields.frontier("upper")?,
        _ => fields.frontier("lower")?,
    };
    Ok(upper >= from)
}
