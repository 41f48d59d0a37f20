//! Sinks: declared once, immutable, dropped for good.

use sqlx::sqlite::SqliteRow;
use stash_types::{Frontier, SinkId, SinkName};

use super::connection::Write;
use super::decode::{Fields, bytes, int};
use super::incarnations::{Which, close_where};
use super::release::unlink_below;
use super::{Result, SqliteCatalog};
use crate::rows::{Declared, DeletionReason, Dropped, HeadStatus, NewSink, SinkRow};
use crate::{CatalogError, Misuse};

const OP: &str = "declare sink";

macro_rules! sink_columns {
    () => {
        "id, name, schema, fingerprint, as_of, up_to, seals, retention_ms, absent_hold_ms, declared, dropped"
    };
}

fn decode(catalog: &SqliteCatalog, row: &SqliteRow) -> Result<SinkRow> {
    Fields::new(&catalog.location, "sinks", row).sink(|id| catalog.shard(id))
}

/// Declares a sink, or finds an equal one under its name.
pub(super) async fn declare(catalog: &SqliteCatalog, sink: NewSink) -> Result<Declared> {
    sink.check()?;
    let mut held = catalog.writer(OP).await?;
    // There is no head row to take yet: the name's unique index is what two declarations race for.
    let mut write = catalog.write(OP, &mut held).await?;
    let standing =
        sqlx::query(concat!("SELECT ", sink_columns!(), " FROM sinks WHERE name = ? AND dropped IS NULL"))
            .bind(sink.name.as_str())
            .fetch_optional(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    if let Some(row) = standing {
        let standing = decode(catalog, &row)?;
        return match standing.spec.difference(&sink) {
            Some(field) => Err(Misuse::SinkDiffers { name: sink.name, field }.into()),
            None => Ok(Declared { sink: standing, created: false }),
        };
    }
    let taken: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sinks WHERE id = ?")
        .bind(sink.id.to_string())
        .fetch_one(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    if taken > 0 {
        let what = format!("sink id {} was used before: draw a new one", sink.id);
        return Err(Misuse::Inconsistent { what }.into());
    }
    insert(&mut write, &sink).await?;
    write.record(sink.id, None, "declared", &format!("{} from {}", sink.name, sink.as_of)).await?;
    let revision = write.stamp(sink.id).await?;
    let declared = write.now;
    write.commit(revision).await?;
    let shard = catalog.shard(sink.id);
    Ok(Declared { sink: SinkRow { spec: sink, shard, declared, dropped: None }, created: true })
}

async fn insert(write: &mut Write<'_>, sink: &NewSink) -> Result<()> {
    let at = write.at();
    let as_of = bytes(Frontier::at(sink.as_of));
    sqlx::query(concat!(
        "INSERT INTO sinks (",
        sink_columns!(),
        ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
    ))
    .bind(sink.id.to_string())
    .bind(sink.name.as_str())
    .bind(sink.schema.to_vec())
    .bind(sink.fingerprint.0.0.to_vec())
    .bind(as_of.clone())
    .bind(bytes(sink.up_to))
    .bind(i64::from(sink.seals))
    .bind(sink.retention_ms.map(int))
    .bind(sink.absent_hold_ms.map(int))
    .bind(at)
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    sqlx::query(
        "INSERT INTO chains (sink, upper, fence, next_seq, status, released, expired, revision)
         VALUES (?1, ?2, 0, 1, 'open', ?2, ?2, 0)",
    )
    .bind(sink.id.to_string())
    .bind(as_of)
    .execute(&mut *write.tx)
    .await
    .map_err(|error| write.failed(error))?;
    Ok(())
}

/// All sinks by name, dropped ones last.
pub(super) async fn all(catalog: &SqliteCatalog, with_dropped: bool) -> Result<Vec<SinkRow>> {
    let mut held = catalog.reader("sinks").await?;
    let rows = sqlx::query(concat!(
        "SELECT ",
        sink_columns!(),
        " FROM sinks WHERE dropped IS NULL OR ? ORDER BY dropped IS NOT NULL, name, declared, id"
    ))
    .bind(with_dropped)
    .fetch_all(&mut *held)
    .await
    .map_err(|error| catalog.failed("sinks", error))?;
    rows.iter().map(|row| decode(catalog, row)).collect()
}

/// The sink of that name that is not dropped.
pub(super) async fn named(catalog: &SqliteCatalog, name: &SinkName) -> Result<SinkRow> {
    let mut held = catalog.reader("sink").await?;
    let row =
        sqlx::query(concat!("SELECT ", sink_columns!(), " FROM sinks WHERE name = ? AND dropped IS NULL"))
            .bind(name.as_str())
            .fetch_optional(&mut *held)
            .await
            .map_err(|error| catalog.failed("sink", error))?;
    match row {
        Some(row) => decode(catalog, &row),
        None => Err(Misuse::NoSuchSink { sink: name.to_string() }.into()),
    }
}

/// The sink with that id.
pub(super) async fn one(catalog: &SqliteCatalog, sink: SinkId) -> Result<SinkRow> {
    let mut held = catalog.reader("sink").await?;
    let row = sqlx::query(concat!("SELECT ", sink_columns!(), " FROM sinks WHERE id = ?"))
        .bind(sink.to_string())
        .fetch_optional(&mut *held)
        .await
        .map_err(|error| catalog.failed("sink", error))?;
    match row {
        Some(row) => decode(catalog, &row),
        None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
    }
}

/// Drops the sink, or says what that would do.
pub(super) async fn drop_sink(catalog: &SqliteCatalog, sink: SinkId, commit: bool) -> Result<Dropped> {
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
    let dropped = count(catalog, &mut write.tx, sink).await?;
    close_where(&mut write, sink, "the sink was dropped", Which::Open).await?;
    unlink_below(&mut write, sink, Frontier::EMPTY, DeletionReason::SinkDropped).await?;
    for sql in [
        "DELETE FROM consumers WHERE sink = ?",
        "UPDATE chains SET status = 'dropped', poisoned_at = NULL, poison_message = NULL WHERE sink = ?",
    ] {
        sqlx::query(sql)
            .bind(sink.to_string())
            .execute(&mut *write.tx)
            .await
            .map_err(|error| write.failed(error))?;
    }
    sqlx::query("UPDATE sinks SET dropped = ? WHERE id = ?")
        .bind(write.at())
        .bind(sink.to_string())
        .execute(&mut *write.tx)
        .await
        .map_err(|error| write.failed(error))?;
    let detail = format!("at {}: batches {}, objects {}", head.upper, dropped.batches, dropped.keys);
    write.record(sink, None, "sink-dropped", &detail).await?;
    let revision = write.stamp(sink).await?;
    write.commit(revision).await?;
    Ok(dropped)
}

const NOTHING: Dropped = Dropped { incarnations: 0, batches: 0, keys: 0, consumers_behind: 0 };

async fn would_drop(catalog: &SqliteCatalog, sink: SinkId) -> Result<Dropped> {
    const OP: &str = "drop sink, dry run";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    let head = super::chain::head_in(catalog, &mut snapshot, sink).await?;
    match head.status {
        HeadStatus::Dropped => Ok(NOTHING),
        _ => count(catalog, &mut snapshot, sink).await,
    }
}

/// What a drop at this moment would do.
async fn count(
    catalog: &SqliteCatalog,
    connection: &mut sqlx::SqliteConnection,
    sink: SinkId,
) -> Result<Dropped> {
    let row = sqlx::query(
        "SELECT
            (SELECT COUNT(*) FROM incarnations WHERE sink = ?1 AND closed IS NULL) AS incarnations,
            (SELECT COUNT(*) FROM batches WHERE sink = ?1 AND linked = 1) AS batches,
            (SELECT COUNT(*) FROM parts WHERE sink = ?1) AS keys,
            (SELECT COUNT(*) FROM consumers JOIN chains USING (sink) WHERE sink = ?1 AND acked < upper) AS behind",
    )
    .bind(sink.to_string())
    .fetch_one(connection)
    .await
    .map_err(|error| catalog.failed("drop sink", error))?;
    let fields = Fields::new(&catalog.location, "sinks", &row);
    Ok(Dropped {
        incarnations: fields.u64("incarnations")?,
        batches: fields.u64("batches")?,
        keys: fields.u64("keys")?,
        consumers_behind: fields.u64("behind")?,
    })
}
