//! The chain as it is read: its head, its linked batches, the keys they reference.
//!
//! Linked rows are gapless: each begins where the one before it extends to, the last extends to the head's
//! upper. What is read is checked for that before it is handed on.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;
use stash_types::{Frontier, PartKey, SinkId};

use super::decode::{Fields, bytes, int};
use super::{Result, SqliteCatalog, head_columns};
use crate::Misuse;
use crate::rows::{BatchRow, ChainSlice, HeadRow};

/// The head of a sink's chain.
pub(super) async fn head(catalog: &SqliteCatalog, sink: SinkId) -> Result<HeadRow> {
    let mut held = catalog.reader("head").await?;
    head_in(catalog, &mut held, sink).await
}

/// The head of a sink's chain, as the connection's transaction sees it.
pub(super) async fn head_in(
    catalog: &SqliteCatalog,
    connection: &mut SqliteConnection,
    sink: SinkId,
) -> Result<HeadRow> {
    let row = sqlx::query(concat!("SELECT ", head_columns!(), " FROM chains WHERE sink = ?"))
        .bind(sink.to_string())
        .fetch_optional(connection)
        .await
        .map_err(|error| catalog.failed("head", error))?;
    match row {
        Some(row) => Fields::new(&catalog.location, "chains", &row).head(),
        None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
    }
}

/// The linked batches whose extent is above `from`, with the head.
pub(super) async fn slice(
    catalog: &SqliteCatalog,
    sink: SinkId,
    from: Frontier,
    limit: u32,
) -> Result<ChainSlice> {
    const OP: &str = "chain";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    let head = head_in(catalog, &mut snapshot, sink).await?;
    let rows = sqlx::query(
        "SELECT id, seq, lower, upper, extent, offered_lower, offered_upper, incarnation, facts, accepted
         FROM batches WHERE sink = ? AND linked = 1 AND extent > ? ORDER BY extent LIMIT ?",
    )
    .bind(sink.to_string())
    .bind(bytes(from))
    .bind(i64::from(limit))
    .fetch_all(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed(OP, error))?;
    let mut batches = BTreeMap::new();
    for row in &rows {
        let batch = Fields::new(&catalog.location, "batches", row).batch()?;
        batches.insert(batch.seq, batch);
    }
    if let (Some((first, _)), Some((last, _))) = (batches.first_key_value(), batches.last_key_value()) {
        let (first, last) = (*first, *last);
        fill(catalog, &mut snapshot, sink, (first, last), &mut batches).await?;
    }
    let batches: Vec<_> = batches.into_values().collect();
    gapless(catalog, &head, &batches)?;
    Ok(ChainSlice { head, batches })
}

/// Reads parts and inline runs into their batches.
async fn fill(
    catalog: &SqliteCatalog,
    snapshot: &mut SqliteConnection,
    sink: SinkId,
    (first, last): (u64, u64),
    batches: &mut BTreeMap<u64, BatchRow>,
) -> Result<()> {
    let parts = sqlx::query(
        "SELECT key, seq, descriptor FROM parts WHERE sink = ? AND seq BETWEEN ? AND ? ORDER BY seq, place",
    )
    .bind(sink.to_string())
    .bind(int(first))
    .bind(int(last))
    .fetch_all(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed("chain", error))?;
    for row in &parts {
        let (seq, part) = Fields::new(&catalog.location, "parts", row).part()?;
        match batches.get_mut(&seq) {
            Some(batch) => batch.parts.push(part),
            None => {
                return Err(catalog
                    .damaged(format!("table parts: batch {seq} of {sink} has parts, but is not linked")));
            }
        }
    }
    let runs = sqlx::query(
        "SELECT seq, run_group, payload, digest, facts, schema FROM inline_runs
         WHERE sink = ? AND seq BETWEEN ? AND ? ORDER BY seq, place",
    )
    .bind(sink.to_string())
    .bind(int(first))
    .bind(int(last))
    .fetch_all(&mut *snapshot)
    .await
    .map_err(|error| catalog.failed("chain", error))?;
    for row in &runs {
        let (seq, run) = Fields::new(&catalog.location, "inline_runs", row).inline()?;
        match batches.get_mut(&seq) {
            Some(batch) => batch.inline.push(run),
            None => {
                return Err(catalog.damaged(format!(
                    "table inline_runs: batch {seq} of {sink} has runs, but is not linked"
                )));
            }
        }
    }
    Ok(())
}

/// Proves, of what was read, that no time is missing between two rows.
fn gapless(catalog: &SqliteCatalog, head: &HeadRow, batches: &[BatchRow]) -> Result<()> {
    for (before, after) in batches.iter().zip(batches.iter().skip(1)) {
        if before.extent != after.lower {
            return Err(catalog.damaged(format!(
                "table batches: batch {} of {} extends to {}, the next begins at {}",
                before.seq, head.sink, before.extent, after.lower
            )));
        }
    }
    match batches.last() {
        Some(last) if last.extent > head.upper => Err(catalog.damaged(format!(
            "table batches: batch {} of {} extends to {}, beyond the chain's upper {}",
            last.seq, head.sink, last.extent, head.upper
        ))),
        _ => Ok(()),
    }
}

/// Every key that a row of the sink references.
pub(super) async fn referenced(catalog: &SqliteCatalog, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
    const OP: &str = "referenced keys";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    head_in(catalog, &mut snapshot, sink).await?;
    let rows = sqlx::query("SELECT key, seq FROM parts WHERE sink = ? ORDER BY seq, place")
        .bind(sink.to_string())
        .fetch_all(&mut *snapshot)
        .await
        .map_err(|error| catalog.failed(OP, error))?;
    rows.iter()
        .map(|row| {
            let fields = Fields::new(&catalog.location, "parts", row);
            Ok((fields.parse("key")?, fields.u64("seq")?))
        })
        .collect()
}
