//! The chain as it is read: its head, its linked batches, the keys they reference.
//!
//! Linked rows are gapless: each begins where the one before it extends to, the last extends to the head's
//! upper. What is read is checked for that before it is handed on.

use std::collections::BTreeMap;

use stash_types::{Frontier, PartKey, SinkId};

use super::link::args;
use super::write::Tx;
use super::{Result, Sql, head_columns};
use crate::Misuse;
use crate::rows::{BatchRow, ChainSlice, HeadRow};

/// The head of a sink's chain.
pub(crate) async fn head(catalog: &Sql, sink: SinkId) -> Result<HeadRow> {
    const OP: &str = "head";
    let mut held = catalog.reader(OP).await?;
    head_in(&mut catalog.each(OP, &mut held), sink).await
}

/// The head of a sink's chain, as the transaction sees it.
pub(crate) async fn head_in(tx: &mut Tx<'_>, sink: SinkId) -> Result<HeadRow> {
    let sql = concat!("SELECT ", head_columns!(), " FROM chains WHERE sink = $1");
    match tx.row(sql, args![sink]).await? {
        Some(row) => tx.fields("chains", &row).head(),
        None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
    }
}

/// The linked batches whose extent is above `from`, with the head.
pub(crate) async fn slice(catalog: &Sql, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
    const OP: &str = "chain";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    let head = head_in(&mut snapshot, sink).await?;
    let rows = snapshot
        .rows(
            "SELECT id, seq, lower, upper, extent, offered_lower, offered_upper, incarnation, facts, accepted
             FROM batches WHERE sink = $1 AND linked = 1 AND extent > $2 ORDER BY extent LIMIT $3",
            args![sink, from, i64::from(limit)],
        )
        .await?;
    let mut batches = BTreeMap::new();
    for row in &rows {
        let batch = catalog.fields("batches", row).batch()?;
        batches.insert(batch.seq, batch);
    }
    if let (Some((first, _)), Some((last, _))) = (batches.first_key_value(), batches.last_key_value()) {
        let (first, last) = (*first, *last);
        fill(&mut snapshot, sink, (first, last), &mut batches).await?;
    }
    let batches: Vec<_> = batches.into_values().collect();
    gapless(catalog, &head, &batches)?;
    Ok(ChainSlice { head, batches })
}

/// Reads parts and inline runs into their batches.
async fn fill(
    snapshot: &mut Tx<'_>,
    sink: SinkId,
    (first, last): (u64, u64),
    batches: &mut BTreeMap<u64, BatchRow>,
) -> Result<()> {
    let catalog = snapshot.catalog;
    let parts = snapshot
        .rows(
            "SELECT key, seq, descriptor FROM parts WHERE sink = $1 AND seq BETWEEN $2 AND $3 ORDER BY seq, place",
            args![sink, first, last],
        )
        .await?;
    for row in &parts {
        let (seq, part) = catalog.fields("parts", row).part()?;
        match batches.get_mut(&seq) {
            Some(batch) => batch.parts.push(part),
            None => {
                return Err(catalog
                    .damaged(format!("table parts: batch {seq} of {sink} has parts, but is not linked")));
            }
        }
    }
    let runs = snapshot
        .rows(
            "SELECT seq, run_group, payload, digest, facts, schema FROM inline_runs
             WHERE sink = $1 AND seq BETWEEN $2 AND $3 ORDER BY seq, place",
            args![sink, first, last],
        )
        .await?;
    for row in &runs {
        let (seq, run) = catalog.fields("inline_runs", row).inline()?;
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
fn gapless(catalog: &Sql, head: &HeadRow, batches: &[BatchRow]) -> Result<()> {
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
pub(crate) async fn referenced(catalog: &Sql, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
    const OP: &str = "referenced keys";
    let mut held = catalog.reader(OP).await?;
    let mut snapshot = catalog.read(OP, &mut held).await?;
    head_in(&mut snapshot, sink).await?;
    let rows =
        snapshot.rows("SELECT key, seq FROM parts WHERE sink = $1 ORDER BY seq, place", args![sink]).await?;
    rows.iter()
        .map(|row| {
            let fields = catalog.fields("parts", row);
            Ok((fields.parse("key")?, fields.u64("seq")?))
        })
        .collect()
}
