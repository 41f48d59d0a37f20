//! Sinks: declared once, immutable, dropped for good.

use stash_types::{Frontier, SinkId, SinkName};

use super::chain::head_in;
use super::incarnations::{Which, close_where};
use super::link::{Row, args};
use super::release::unlink_below;
use super::write::{Tx, Write};
use super::{Result, Sql};
use crate::rows::{Declared, DeletionReason, Dropped, HeadStatus, NewSink, SinkRow};
use crate::{CatalogError, Misuse};

macro_rules! sink_columns {
    () => {
        "id, name, schema, fingerprint, as_of, up_to, seals, retention_ms, absent_hold_ms, declared, dropped"
    };
}

fn decode(catalog: &Sql, row: &Row) -> Result<SinkRow> {
    catalog.fields("sinks", row).sink(|id| catalog.shard(id))
}

/// Declares a sink, or finds an equal one under its name.
pub(crate) async fn declare(catalog: &Sql, sink: &NewSink) -> Result<Declared> {
    const OP: &str = "declare sink";
    sink.check()?;
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    // SUBTLE: there is no head row to take yet, so the catalog's row is taken, first and not last as elsewhere: of two
    // declarations of one name the later one then sees what the earlier one wrote.
    let revision = write.revise().await?;
    let named = concat!("SELECT ", sink_columns!(), " FROM sinks WHERE name = $1 AND dropped IS NULL");
    if let Some(row) = write.row(named, args![&sink.name]).await? {
        let standing = decode(catalog, &row)?;
        return match standing.spec.difference(sink) {
            Some(field) => Err(Misuse::SinkDiffers { name: sink.name.clone(), field }.into()),
            None => Ok(Declared { sink: standing, created: false }),
        };
    }
    if write.row("SELECT id FROM sinks WHERE id = $1", args![sink.id]).await?.is_some() {
        let what = format!("sink id {} was used before: draw a new one", sink.id);
        return Err(Misuse::Inconsistent { what }.into());
    }
    insert(&mut write, sink, revision).await?;
    write.record(sink.id, None, "declared", &format!("{} from {}", sink.name, sink.as_of)).await?;
    let declared = write.now;
    write.commit(revision).await?;
    let shard = catalog.shard(sink.id);
    Ok(Declared { sink: SinkRow { spec: sink.clone(), shard, declared, dropped: None }, created: true })
}

async fn insert(write: &mut Write<'_>, sink: &NewSink, revision: u64) -> Result<()> {
    let now = write.now;
    let as_of = Frontier::at(sink.as_of);
    write
        .rows(
            concat!(
                "INSERT INTO sinks (",
                sink_columns!(),
                ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL)"
            ),
            args![
                sink.id,
                &sink.name,
                &sink.schema,
                sink.fingerprint,
                as_of,
                sink.up_to,
                sink.seals,
                sink.retention_ms,
                sink.absent_hold_ms,
                now
            ],
        )
        .await?;
    write
        .rows(
            "INSERT INTO chains (sink, upper, fence, next_seq, status, released, expired, revision)
             VALUES ($1, $2, 0, 1, 'open', $2, $2, $3)",
            args![sink.id, as_of, revision],
        )
        .await?;
    Ok(())
}

/// All sinks by name, dropped ones last.
pub(crate) async fn all(catalog: &Sql, with_dropped: bool) -> Result<Vec<SinkRow>> {
    const OP: &str = "sinks";
    let mut held = catalog.reader(OP).await?;
    let rows = catalog
        .each(OP, &mut held)
        .rows(
            concat!(
                "SELECT ",
                sink_columns!(),
                " FROM sinks WHERE dropped IS NULL OR $1 = 1 ORDER BY dropped IS NOT NULL, name, declared, id"
            ),
            args![with_dropped],
        )
        .await?;
    rows.iter().map(|row| decode(catalog, row)).collect()
}

/// The sink of that name that is not dropped.
pub(crate) async fn named(catalog: &Sql, name: &SinkName) -> Result<SinkRow> {
    const OP: &str = "sink";
    let mut held = catalog.reader(OP).await?;
    let sql = concat!("SELECT ", sink_columns!(), " FROM sinks WHERE name = $1 AND dropped IS NULL");
    match catalog.each(OP, &mut held).row(sql, args![name]).await? {
        Some(row) => decode(catalog, &row),
        None => Err(Misuse::NoSuchSink { sink: name.to_string() }.into()),
    }
}

/// The sink with that id.
pub(crate) async fn one(catalog: &Sql, sink: SinkId) -> Result<SinkRow> {
    const OP: &str = "sink";
    let mut held = catalog.reader(OP).await?;
    let sql = concat!("SELECT ", sink_columns!(), " FROM sinks WHERE id = $1");
    match catalog.each(OP, &mut held).row(sql, args![sink]).await? {
        Some(row) => decode(catalog, &row),
        None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
    }
}

/// Drops the sink, or says what that would do.
pub(crate) async fn drop_sink(catalog: &Sql, sink: SinkId, commit: bool) -> Result<Dropped> {
    const OP: &str = "drop sink";
    if !commit {
        return would_drop(catalog, sink).await;
    }
    let mut held = catalog.writer(OP).await?;
    let mut write = catalog.write(OP, &mut held).await?;
    let head = match write.take_live_head(sink, 1).await {
        Err(CatalogError::SinkDropped { .. }) => return Ok(NOTHING),
        other => other?,
    };
    let dropped = count(&mut write, sink).await?;
    close_where(&mut write, sink, "the sink was dropped", Which::Open).await?;
    unlink_below(&mut write, sink, Frontier::EMPTY, DeletionReason::SinkDropped).await?;
    for sql in [
        "DELETE FROM consumers WHERE sink = $1",
        "UPDATE chains SET status = 'dropped', poisoned_at = NULL, poison_message = NULL WHERE sink = $1",
    ] {
        write.rows(sql, args![sink]).await?;
    }
    let now = write.now;
    write.rows("UPDATE sinks SET dropped = $1 WHERE id = $2", args![now, sink]).await?;
    let detail = format!("at {}: batches {}, objects {}", head.upper, dropped.batches, dropped.keys);
    write.record(sink, None, "sink-dropped", &detail).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(dropped)
}

const NOTHING: Dropped = Dropped { incarnations: 0, batches: 0, keys: 0, consumers_behind: 0 };

async fn would_drop(catalog: &Sql, sink: SinkId) -> Result<Dropped> {
    const OP: &str = "drop sink, dry run";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    match head_in(&mut snapshot, sink).await?.status {
        HeadStatus::Dropped => Ok(NOTHING),
        _ => count(&mut snapshot, sink).await,
    }
}

/// What a drop at this moment would do.
async fn count(tx: &mut Tx<'_>, sink: SinkId) -> Result<Dropped> {
    let row = tx
        .one(
            "SELECT
                (SELECT COUNT(*) FROM incarnations WHERE sink = $1 AND closed IS NULL) AS incarnations,
                (SELECT COUNT(*) FROM batches WHERE sink = $1 AND linked = 1) AS batches,
                (SELECT COUNT(*) FROM parts WHERE sink = $1) AS keys,
                (SELECT COUNT(*) FROM consumers JOIN chains USING (sink) WHERE sink = $1 AND acked < upper)
                    AS behind",
            args![sink],
        )
        .await?;
    let fields = tx.fields("sinks", &row);
    Ok(Dropped {
        incarnations: fields.u64("incarnations")?,
        batches: fields.u64("batches")?,
        keys: fields.u64("keys")?,
        consumers_behind: fields.u64("behind")?,
    })
}
