//! Sinks: named outputs with an immutable schema.

use std::{sync::Arc, time::Duration};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Schema};
use stash_batch::SinkMeters;
use stash_catalog::{ConsumerRow, Dropped, Expired, HeadRow, IncarnationRow, SinkRow};
use stash_chain::{ChainRules, Minted};
use stash_part::RowSchema;
use stash_types::{ConsumerName, Description, Frontier, ShardId, SinkId, SinkName, fault};

use crate::{Error, Result, Stash};

/// What a sink is declared with; immutable from then on.
#[derive(Clone, Debug)]
pub struct SinkSpec {
    pub(crate) name: SinkName,
    pub(crate) schema: RowSchema,
    pub(crate) as_of: u64,
    pub(crate) up_to: Option<u64>,
    pub(crate) seals: bool,
    pub(crate) retention_ms: Option<u64>,
    pub(crate) absent_hold_ms: Option<u64>,
}

impl SinkSpec {
    /// A sink with these row columns, whose snapshot stands at time 0 and which never completes. Columns that
    /// begin with `_` and types that do not round-trip are refused by name.
    pub fn new(name: &str, schema: Schema) -> Result<SinkSpec> {
        Ok(SinkSpec {
            name: name.parse()?,
            schema: RowSchema::new(schema.into())?,
            as_of: 0,
            up_to: None,
            seals: false,
            retention_ms: None,
            absent_hold_ms: None,
        })
    }

    /// The time of the snapshot: the first time of the chain.
    #[must_use]
    pub fn as_of(mut self, time: u64) -> SinkSpec {
        self.as_of = time;
        self
    }

    /// The chain is complete at this time; later updates are not wanted.
    #[must_use]
    pub fn up_to(mut self, time: u64) -> SinkSpec {
        self.up_to = Some(time);
        self
    }

    /// Without consumers, batches are kept for so long after they were accepted, and go oldest first. Default: for
    /// ever. Whole milliseconds, rounded up; zero is refused when the sink is declared.
    ///
    /// Acted on by [`Sink::expire`] and whoever calls it; never while a consumer holds the chain.
    #[must_use]
    pub fn retention(mut self, kept: Duration) -> SinkSpec {
        self.retention_ms = Some(whole_millis(kept));
        self
    }

    /// A consumer that is not heard for so long holds nothing any longer: what it has not acknowledged may go, and
    /// is read as [`crate::Absence::Expired`] when it comes back. Default: never. Whole milliseconds, rounded up;
    /// zero is refused when the sink is declared.
    ///
    /// A [`crate::Subscription`] is heard while it lives, four times in this duration, so choose one that outlasts
    /// a restart of the consumer.
    #[must_use]
    pub fn absent_hold(mut self, held: Duration) -> SinkSpec {
        self.absent_hold_ms = Some(whole_millis(held));
        self
    }

    /// An empty input frontier completes the chain. Without this it only ends the incarnation.
    #[must_use]
    pub fn sealing(mut self) -> SinkSpec {
        self.seals = true;
        self
    }
}

/// Rounded up, so that nothing is kept shorter than was asked for, and only zero is zero.
fn whole_millis(duration: Duration) -> u64 {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// A declared sink. Clones share it.
#[derive(Clone, Debug)]
pub struct Sink {
    stash: Stash,
    row: SinkRow,
    schema: RowSchema,
    meters: Arc<SinkMeters>,
}

impl Sink {
    /// What is measured of it.
    pub(crate) fn meters(&self) -> &SinkMeters {
        &self.meters
    }

    pub(crate) fn of_row(stash: &Stash, row: SinkRow) -> Result<Sink> {
        let schema = RowSchema::from_bytes(&row.spec.schema)?;
        let meters = stash.process().meters().name(row.shard, row.spec.name.as_str());
        Ok(Sink { stash: stash.clone(), row, schema, meters })
    }

    /// The stash it belongs to.
    pub fn stash(&self) -> &Stash {
        &self.stash
    }

    /// Its id.
    pub fn id(&self) -> SinkId {
        self.row.spec.id
    }

    /// Its label.
    pub fn name(&self) -> &SinkName {
        &self.row.spec.name
    }

    /// Its blob namespace.
    pub fn shard(&self) -> ShardId {
        self.row.shard
    }

    /// Its row schema.
    pub fn schema(&self) -> &RowSchema {
        &self.schema
    }

    /// Updates as [`crate::ShareWriter::write`] takes them: the row columns in the schema's order, then each
    /// row's time and diff.
    pub fn updates(
        &self,
        mut columns: Vec<ArrayRef>,
        times: Vec<u64>,
        diffs: Vec<i64>,
    ) -> Result<RecordBatch> {
        let fields = self.schema.declared_schema().fields().iter();
        // A column may hold the values of what was declared as a dictionary; whoever takes the updates converts.
        let fields = fields.zip(&columns).map(|(field, column)| match field.data_type() {
            DataType::Dictionary(_, values) if **values == *column.data_type() => {
                Arc::new(field.as_ref().clone().with_data_type(column.data_type().clone()))
            }
            _ => Arc::clone(field),
        });
        let full = fields.chain(self.schema.full_schema().fields().iter().rev().take(2).rev().cloned());
        let full = full.collect::<Vec<_>>();
        columns.push(Arc::new(UInt64Array::from(times)));
        columns.push(Arc::new(Int64Array::from(diffs)));
        RecordBatch::try_new(Arc::new(Schema::new(full)), columns).map_err(|error| Error::InvalidUsage {
            what: format!("updates of sink {}: {error}", self.name()),
        })
    }

    /// As the catalog has it.
    pub fn row(&self) -> &SinkRow {
        &self.row
    }

    /// Whether the passing of time can take anything of its chain.
    pub(crate) fn can_expire(&self) -> bool {
        self.row.spec.retention_ms.is_some() || self.row.spec.absent_hold_ms.is_some()
    }

    pub(crate) fn rules(&self) -> ChainRules {
        let spec = &self.row.spec;
        ChainRules { as_of: spec.as_of, up_to: spec.up_to, seals: spec.seals }
    }

    /// Whether a worker whose own input frontier is `frontier` has all of `minted` and may report its share.
    pub fn is_ready(&self, frontier: Frontier, minted: Minted) -> bool {
        stash_chain::ready(frontier, minted, self.rules())
    }

    /// The times a worker must write for `minted`; `None` when it is covered from birth.
    pub fn writes(&self, minted: Minted) -> Option<Description> {
        stash_chain::writes(minted, self.rules())
    }

    /// The head of its chain.
    pub async fn head(&self) -> Result<HeadRow> {
        Ok(self.stash.catalog().head(self.id()).await?)
    }

    /// `U`: everything below is accepted.
    pub async fn upper(&self) -> Result<Frontier> {
        Ok(self.head().await?.upper)
    }

    /// Its incarnations, oldest first: all that ever were. A replica that starts anew each minute leaves half a
    /// million in a year; see [`Sink::open_incarnations`].
    pub async fn incarnations(&self) -> Result<Vec<IncarnationRow>> {
        Ok(self.stash.catalog().incarnations(self.id(), true).await?)
    }

    /// Its incarnations that are open, oldest first: a few per replica at most.
    pub async fn open_incarnations(&self) -> Result<Vec<IncarnationRow>> {
        Ok(self.stash.catalog().incarnations(self.id(), false).await?)
    }

    /// Its consumers by name.
    pub async fn consumers(&self) -> Result<Vec<ConsumerRow>> {
        Ok(self.stash.catalog().consumers(self.id()).await?)
    }

    /// How many of its objects wait for their deletion, also those that the store refused to delete: they are due again
    /// later.
    pub async fn deletions_queued(&self) -> Result<u64> {
        Ok(self.stash.catalog().deletions_queued(Some(self.id())).await?)
    }

    /// Forgets a consumer; it holds nothing any longer. `false` when there was none.
    pub async fn unregister_consumer(&self, consumer: &str) -> Result<bool> {
        let consumer: ConsumerName = consumer.parse()?;
        let known = self.stash.catalog().unregister_consumer(self.id(), &consumer).await?;
        self.stash.process().wake_deleter();
        Ok(known)
    }

    /// The frontier up to which the sink's inputs must keep their history (I10): a new rendering can still be
    /// granted there.
    pub async fn read_hold(&self) -> Result<Frontier> {
        // SUBTLE: the head is read first. The other way round, an incarnation that is opened in between is not seen,
        // and if the chain moves on as well, the hold rises above its as-of while it still waits for its snapshot.
        let head = crate::chain::head_of(&self.head().await?);
        let open = self.open_incarnations().await?;
        let pending = open.iter().filter(|row| row.resolved == Frontier::at(row.as_of)).map(|row| row.as_of);
        Ok(crate::rules::read_hold(self.rules(), &head, pending))
    }

    /// Takes what its time has come for, by the catalog's clock, or says what that would be: closes incarnations
    /// whose lease ran out; lets go of batches that only consumers hold which were not heard for the sink's absent
    /// hold; and, where no consumer is left who holds anything, of those that outlived the sink's retention.
    ///
    /// An opening of an incarnation does it, and so does each renewal of its lease where the sink was declared
    /// with either duration. What was taken reads as [`crate::Absence::Expired`].
    pub async fn expire(&self, commit: bool) -> Result<Expired> {
        let expired = self.stash.catalog().expire(self.id(), commit).await?;
        fault::place("stash.expired");
        if commit && expired.keys > 0 {
            self.stash.process().wake_deleter();
        }
        if commit && (expired.batches > 0 || !expired.closed.is_empty()) {
            self.meters.expired_batches.increment(expired.batches);
            tracing::info!(
                sink = %self.name(),
                batches = expired.batches,
                keys = expired.keys,
                leases = expired.closed.len(),
                absent = expired.absent.len(),
                earliest = %expired.earliest,
                "expired"
            );
        }
        Ok(expired)
    }

    /// What a drop would do.
    pub async fn preview_drop(&self) -> Result<Dropped> {
        Ok(self.stash.catalog().drop_sink(self.id(), false).await?)
    }

    /// Drops the sink: closes its incarnations, unlinks its chain, deletes its blobs.
    pub async fn drop_sink(&self) -> Result<Dropped> {
        let dropped = self.stash.catalog().drop_sink(self.id(), true).await?;
        fault::place("stash.dropped");
        self.sweep_by_the_way().await?;
        fault::place("stash.drop_swept");
        self.stash.drain_deletions().await?;
        fault::place("stash.drop_drained");
        Ok(dropped)
    }

    pub(crate) fn chain_error(&self) -> impl FnOnce(stash_chain::ChainError) -> Error {
        let sink = self.id();
        move |source| Error::Chain { sink, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_milliseconds_and_never_shorter_than_asked_for() {
        for (nanos, millis) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(whole_millis(Duration::from_nanos(nanos)), millis);
        }
        assert_eq!(whole_millis(Duration::MAX), u64::MAX, "and is refused as too long");
    }
}
