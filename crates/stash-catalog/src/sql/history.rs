//! What happened, for people: written in the transaction that makes it true, and bounded.

use stash_types::{Frontier, IncarnationId, PartKey, SinkId};

use super::link::{Row, args};
use super::write::Write;
use super::{Result, Sql, deletions};
use crate::rows::{HistoryFilter, HistoryRow};

/// How many of the newest rows are kept.
const KEPT: i64 = 100_000;
/// Rows are pruned whenever a number divisible by this is written, so that most writes do not look.
const PRUNE_EVERY: i64 = 256;

/// One event of many: incarnation, key, detail.
type Event = (Option<String>, Option<String>, String);

impl Write<'_> {
    /// Records one event without a key.
    pub(super) async fn record(
        &mut self,
        sink: SinkId,
        incarnation: Option<IncarnationId>,
        event: &'static str,
        detail: &str,
    ) -> Result<()> {
        let sql = "INSERT INTO history (at, sink, incarnation, key, event, detail)
             VALUES ($1, $2, $3, NULL, $4, $5) RETURNING n";
        let now = self.now;
        let written = self.rows(sql, args![now, sink, incarnation, event, detail]).await?;
        self.prune(&written).await
    }

    /// Records one event for each key.
    pub(super) async fn record_keys(
        &mut self,
        sink: SinkId,
        keys: &[PartKey],
        event: &'static str,
        detail: &str,
    ) -> Result<()> {
        let about = |key: &PartKey| {
            (Some(key.name.incarnation.to_string()), Some(key.to_string()), detail.to_owned())
        };
        self.record_all(sink, event, &keys.iter().map(about).collect::<Vec<_>>()).await
    }

    /// Records one event for each linked batch whose updates lie below `upper`; a rest was recorded when it was
    /// a batch.
    pub(super) async fn record_batches(
        &mut self,
        sink: SinkId,
        upper: Frontier,
        event: &'static str,
    ) -> Result<()> {
        let rows = self
            .rows(
                "SELECT seq, incarnation, lower, upper, accepted FROM batches
                 WHERE sink = $1 AND linked = 1 AND upper <= $2
                   AND (kind = 'updates' OR (kind = 'empty' AND extent <= $2)) ORDER BY extent",
                args![sink, upper],
            )
            .await?;
        let events = rows.iter().map(|row| {
            let fields = self.fields("batches", row);
            let incarnation: IncarnationId = fields.parse("incarnation")?;
            let detail = format!(
                "#{} [{}, {}), accepted at {} ms",
                fields.u64("seq")?,
                fields.frontier("lower")?,
                fields.frontier("upper")?,
                fields.u64("accepted")?
            );
            Ok((Some(incarnation.to_string()), None, detail))
        });
        let events = events.collect::<Result<Vec<_>>>()?;
        self.record_all(sink, event, &events).await
    }

    async fn record_all(&mut self, sink: SinkId, event: &'static str, events: &[Event]) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let list = deletions::json(self.catalog, events)?;
        macro_rules! insert {
            ($list:literal) => {
                concat!(
                    "INSERT INTO history (at, sink, incarnation, key, event, detail)
                     SELECT $1, $2, value ->> 0, value ->> 1, $3, value ->> 2 FROM ",
                    $list,
                    " RETURNING n"
                )
            };
        }
        let sql = self.pick(insert!("json_each($4)"), insert!("jsonb_array_elements($4::jsonb)"));
        let now = self.now;
        let written = self.rows(sql, args![now, sink, event, list]).await?;
        self.prune(&written).await
    }

    /// Forgets the oldest rows after these were written.
    async fn prune(&mut self, written: &[Row]) -> Result<()> {
        let numbers = written.iter().map(|row| self.fields("history", row).i64("n"));
        let last = numbers.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        match outdated(last, written.len()) {
            Some(n) => self.rows(PRUNE, args![n]).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Forgets what is outdated.
pub(crate) const PRUNE: &str = "DELETE FROM history WHERE n <= $1";

/// The last row to forget after `count` were written, up to number `last`; mostly none.
pub(crate) fn outdated(last: i64, count: usize) -> Option<i64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    (last >= KEPT && last.rem_euclid(PRUNE_EVERY) < count).then(|| last.saturating_sub(KEPT))
}

/// What was recorded and fits the filter, oldest first.
pub(crate) async fn select(catalog: &Sql, filter: &HistoryFilter) -> Result<Vec<HistoryRow>> {
    const OP: &str = "history";
    let HistoryFilter { sink, key, incarnation, limit } = filter;
    let limit = if *limit == 0 { i64::MAX } else { i64::from(*limit) };
    let mut held = catalog.reader(OP).await?;
    let rows = catalog
        .each(OP, &mut held)
        .rows(
            "SELECT n, at, sink, incarnation, key, event, detail FROM history
             WHERE ($1 IS NULL OR sink = $1) AND ($2 IS NULL OR key = $2) AND ($3 IS NULL OR incarnation = $3)
             ORDER BY n DESC LIMIT $4",
            args![*sink, *key, *incarnation, limit],
        )
        .await?;
    drop(held);
    rows.iter().rev().map(|row| catalog.fields("history", row).history()).collect()
}
