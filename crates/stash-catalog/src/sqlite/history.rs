//! What happened, for people: written in the transaction that makes it true, and bounded.

use stash_types::{Frontier, IncarnationId, PartKey, SinkId};

use super::connection::Write;
use super::decode::Fields;
use super::{Result, SqliteCatalog};
use crate::rows::{HistoryFilter, HistoryRow};

/// How many of the newest rows are kept.
const KEPT: i64 = 100_000;
/// Rows are pruned whenever a number divisible by this is written, so that most writes do not look.
const PRUNE_EVERY: i64 = 256;

impl Write<'_> {
    /// Records one event without a key.
    pub(super) async fn record(
        &mut self,
        sink: SinkId,
        incarnation: Option<IncarnationId>,
        event: &'static str,
        detail: &str,
    ) -> Result<()> {
        let written = sqlx::query(
            "INSERT INTO history (at, sink, incarnation, key, event, detail) VALUES (?, ?, ?, NULL, ?, ?)",
        )
        .bind(self.at())
        .bind(sink.to_string())
        .bind(incarnation.map(|id| id.to_string()))
        .bind(event)
        .bind(detail)
        .execute(&mut *self.tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.prune(written.last_insert_rowid(), 1).await
    }

    /// Records one event for each key.
    pub(super) async fn record_keys(
        &mut self,
        sink: SinkId,
        keys: &[PartKey],
        event: &'static str,
        detail: &str,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let pairs: Vec<_> =
            keys.iter().map(|key| (key.to_string(), key.name.incarnation.to_string())).collect();
        let pairs = super::deletions::json(self.catalog, &pairs)?;
        let written = sqlx::query(
            "INSERT INTO history (at, sink, incarnation, key, event, detail)
             SELECT ?, ?, value ->> 1, value ->> 0, ?, ? FROM json_each(?)",
        )
        .bind(self.at())
        .bind(sink.to_string())
        .bind(event)
        .bind(detail)
        .bind(pairs)
        .execute(&mut *self.tx)
        .await
        .map_err(|error| self.failed(error))?;
        let count = i64::try_from(keys.len()).unwrap_or(i64::MAX);
        self.prune(written.last_insert_rowid(), count).await
    }

    /// Records one event for each linked batch whose updates lie below `upper`; a rest was recorded when it was
    /// a batch.
    pub(super) async fn record_batches(
        &mut self,
        sink: SinkId,
        upper: Frontier,
        event: &'static str,
    ) -> Result<()> {
        let rows = sqlx::query(
            "SELECT seq, incarnation, lower, upper, accepted FROM batches
             WHERE sink = ?1 AND linked = 1 AND upper <= ?2
               AND (kind = 'updates' OR (kind = 'empty' AND extent <= ?2)) ORDER BY extent",
        )
        .bind(sink.to_string())
        .bind(super::decode::bytes(upper))
        .fetch_all(&mut *self.tx)
        .await
        .map_err(|error| self.failed(error))?;
        for row in &rows {
            let fields = Fields::new(&self.catalog.location, "batches", row);
            let detail = format!(
                "#{} [{}, {}), accepted at {} ms",
                fields.u64("seq")?,
                fields.frontier("lower")?,
                fields.frontier("upper")?,
                fields.u64("accepted")?
            );
            let incarnation = fields.parse("incarnation")?;
            self.record(sink, Some(incarnation), event, &detail).await?;
        }
        Ok(())
    }

    /// Forgets the oldest rows after `count` were written, up to number `last`.
    async fn prune(&mut self, last: i64, count: i64) -> Result<()> {
        if last < KEPT || last.rem_euclid(PRUNE_EVERY) >= count {
            return Ok(());
        }
        sqlx::query("DELETE FROM history WHERE n <= ?")
            .bind(last.saturating_sub(KEPT))
            .execute(&mut *self.tx)
            .await
            .map_err(|error| self.failed(error))?;
        Ok(())
    }
}

/// What was recorded and fits the filter, oldest first.
pub(super) async fn select(catalog: &SqliteCatalog, filter: HistoryFilter) -> Result<Vec<HistoryRow>> {
    let HistoryFilter { sink, key, incarnation, limit } = filter;
    let mut held = catalog.reader("history").await?;
    let rows = sqlx::query(
        "SELECT n, at, sink, incarnation, key, event, detail FROM history
         WHERE (?1 IS NULL OR sink = ?1) AND (?2 IS NULL OR key = ?2) AND (?3 IS NULL OR incarnation = ?3)
         ORDER BY n DESC LIMIT ?4",
    )
    .bind(sink.map(|id| id.to_string()))
    .bind(key.map(|key| key.to_string()))
    .bind(incarnation.map(|id| id.to_string()))
    .bind(if limit == 0 { -1 } else { i64::from(limit) })
    .fetch_all(&mut *held)
    .await
    .map_err(|error| catalog.failed("history", error))?;
    drop(held);
    rows.iter().rev().map(|row| Fields::new(&catalog.location, "history", row).history()).collect()
}
