//! How a stash is doing, by its catalog: what a user can act on, for the command line and for gauges.
//!
//! Looking costs a few small reads for each sink. [`Stash::health`] looks; [`Stash::publish`] looks and sets the gauges
//! of [`crate::METRICS`]; whoever has a recorder calls it now and then. Ages are differences between the clock of this
//! session and the catalog's, and never below zero. Every gauge is set by each look and by nothing else, so that a recorder
//! may forget what is not set any more: a sink that was dropped, a consumer that was forgotten.
//!
//! - *Behind* is what was accepted and not acknowledged: in batches, in times, and as the age of the oldest such batch.
//! - *Headroom* is what is left until something is taken that somebody has not read: a consumer's until the absent hold
//!   passes without its being heard, a chain's without consumers until the retention takes its oldest batch.

use serde::Serialize;
use stash_batch::{
    Traffic,
    metric_list::{
        BUDGET_BYTES, BUDGET_LIMIT, BUDGET_PEAK, CHAIN_BATCHES, CHAIN_LAST_ACCEPT, CHAIN_STATUS, CHAIN_UPPER,
        CONSUMER_BEHIND, CONSUMER_BEHIND_BATCHES, CONSUMER_BEHIND_TIMES, CONSUMER_HEADROOM,
        DESCRIPTIONS_OPEN, HEALTH_FAILURES, INCARNATIONS_OPEN, LEDGER_KEYS, QUEUE_KEYS, QUEUE_OLDEST,
        RETENTION_HEADROOM,
    },
};
use stash_catalog::{BatchRow, ConsumerRow, HeadRow, HeadStatus, HistoryFilter, SinkRow};
use stash_types::{Frontier, Timestamp};

use crate::{Result, Stash};

/// Events that are looked through for the last time a chain moved, where no batch is linked any more.
const EVENTS: u32 = 200;

/// How a stash is doing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Health {
    /// Its sinks, by name.
    pub sinks: Vec<SinkHealth>,
    /// Keys in the deletion queue, due or not.
    pub queue_keys: u64,
    /// How long the key that is due longest has been queued, in milliseconds; none is due without one.
    pub queue_oldest_ms: Option<u64>,
}

/// How a sink is doing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SinkHealth {
    /// The sink.
    pub sink: String,
    /// `open`, `complete` or `poisoned`.
    pub status: &'static str,
    /// The chain's upper.
    pub upper: Frontier,
    /// Batches still linked.
    pub batches: u64,
    /// When the chain last moved, by the catalog's clock, as far as it is still known.
    pub last_accept: Option<Timestamp>,
    /// How long ago that was, in milliseconds.
    pub last_accept_ms: Option<u64>,
    /// Incarnations that may still write.
    pub incarnations_open: u64,
    /// Keys in the deletion queue.
    pub queue_keys: u64,
    /// Where nobody holds the chain: until the retention takes its oldest batch, in milliseconds.
    pub retention_headroom_ms: Option<u64>,
    /// Its consumers, by name.
    pub consumers: Vec<ConsumerHealth>,
}

/// How far a consumer is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConsumerHealth {
    /// The consumer.
    pub consumer: String,
    /// Everything below is acknowledged.
    pub acknowledged: Frontier,
    /// Whether something expired that it had not acknowledged.
    pub expired: bool,
    /// Batches it has not acknowledged.
    pub behind_batches: u64,
    /// Times it has not acknowledged; of a chain that is complete, up to its last update.
    pub behind_times: u64,
    /// How long ago the oldest of those batches was accepted, in milliseconds; 0 when there is none.
    pub behind_ms: u64,
    /// Until the absent hold lets go of what it has not acknowledged, unless it is heard, in milliseconds. Without an
    /// absent hold it holds for ever.
    pub headroom_ms: Option<u64>,
}

const STATUSES: [&str; 3] = ["open", "complete", "poisoned"];

fn status(head: &HeadRow) -> &'static str {
    match head.status {
        HeadStatus::Open => "open",
        HeadStatus::Complete => "complete",
        HeadStatus::Poisoned(_) => "poisoned",
        HeadStatus::Dropped => "dropped",
    }
}

fn since(now: Timestamp, then: Timestamp) -> u64 {
    now.0.saturating_sub(then.0)
}

/// How long until `ms` have passed since `then`.
fn until(now: Timestamp, then: Timestamp, ms: u64) -> u64 {
    then.0.saturating_add(ms).saturating_sub(now.0)
}

/// How far a consumer is, whose first batch that it has not acknowledged is `first` and the chain's last one `last`.
fn consumer(
    row: &ConsumerRow,
    head: &HeadRow,
    (first, last): (Option<&BatchRow>, Option<&BatchRow>),
    absent_hold_ms: Option<u64>,
    now: Timestamp,
) -> ConsumerHealth {
    // A chain that is complete has no upper; its last update was the last of its times.
    let end = match (head.upper.time(), last) {
        (Some(upper), _) => upper,
        (None, Some(last)) => last.upper.time().unwrap_or(last.facts.max_time.saturating_add(1)),
        (None, None) => row.acked.as_u64(),
    };
    let behind = row.acked < head.upper && first.is_some();
    ConsumerHealth {
        consumer: row.name.to_string(),
        acknowledged: row.acked,
        expired: row.acked < head.expired,
        behind_batches: first.map_or(0, |first| head.next_seq.saturating_sub(first.seq)),
        behind_times: if behind { end.saturating_sub(row.acked.as_u64()) } else { 0 },
        behind_ms: first.map_or(0, |first| since(now, first.accepted)),
        headroom_ms: absent_hold_ms.map(|hold| until(now, row.seen, hold)),
    }
}

impl Stash {
    /// Looks how the stash is doing: all sinks that are not dropped, their consumers, the deletion queue.
    pub async fn health(&self) -> Result<Health> {
        let mut sinks = Vec::new();
        for row in self.sinks(false).await? {
            sinks.push(self.sink_health(&row).await?);
        }
        let oldest = self.catalog().deletions_due(1).await?;
        let now = self.now();
        Ok(Health {
            sinks,
            queue_keys: self.catalog().deletions_queued(None).await?,
            queue_oldest_ms: oldest.first().map(|row| since(now, row.queued)),
        })
    }

    /// The first batch of the chain whose extent is above `from`.
    async fn batch_above(&self, row: &SinkRow, from: Frontier) -> Result<Option<BatchRow>> {
        let slice = self.catalog().chain(row.spec.id, from, 1).await?;
        Ok(slice.batches.into_iter().next())
    }

    async fn sink_health(&self, row: &SinkRow) -> Result<SinkHealth> {
        let (catalog, id) = (self.catalog(), row.spec.id);
        let head = catalog.head(id).await?;
        let consumers = catalog.consumers(id).await?;
        let earliest = self.batch_above(row, head.released.max(head.expired)).await?;
        let before_upper = Frontier::at(head.upper.as_u64().saturating_sub(1));
        let last = match &earliest {
            Some(_) => self.batch_above(row, before_upper).await?,
            None => None,
        };
        let last_accept = match &last {
            Some(last) => Some(last.accepted),
            None => self.last_recorded_accept(row).await?,
        };
        let now = self.now();
        let mut all = Vec::with_capacity(consumers.len());
        for of in &consumers {
            let first = if of.acked < head.upper { self.batch_above(row, of.acked).await? } else { None };
            let batches = (first.as_ref(), last.as_ref());
            all.push(consumer(of, &head, batches, row.spec.absent_hold_ms, now));
        }
        let held = consumers
            .iter()
            .any(|of| row.spec.absent_hold_ms.is_none_or(|hold| until(now, of.seen, hold) > 0));
        let oldest = earliest.as_ref().filter(|_| !held);
        let open = catalog.incarnations(id, false).await?.len();
        Ok(SinkHealth {
            sink: row.spec.name.to_string(),
            status: status(&head),
            upper: head.upper,
            batches: earliest.as_ref().map_or(0, |first| head.next_seq.saturating_sub(first.seq)),
            last_accept,
            last_accept_ms: last_accept.map(|at| since(now, at)),
            incarnations_open: u64::try_from(open).unwrap_or(u64::MAX),
            queue_keys: catalog.deletions_queued(Some(id)).await?,
            retention_headroom_ms: oldest
                .zip(row.spec.retention_ms)
                .map(|(oldest, retention)| until(now, oldest.accepted, retention)),
            consumers: all,
        })
    }

    /// When the chain last moved, by what was recorded: everything was acknowledged, and no batch tells.
    async fn last_recorded_accept(&self, row: &SinkRow) -> Result<Option<Timestamp>> {
        let filter = HistoryFilter { sink: Some(row.spec.id), limit: EVENTS, ..HistoryFilter::default() };
        let events = self.catalog().history(filter).await?;
        let moved = |event: &str| matches!(event, "accepted" | "trimmed" | "completed");
        Ok(events.iter().rev().find(|event| moved(&event.event)).map(|event| event.at))
    }

    /// Looks how the stash is doing and tells the recorder that is installed, with the memory of this process.
    pub async fn publish(&self) -> Result<Health> {
        let memory = self.budget();
        BUDGET_BYTES.gauge(&[Traffic::Write.word()]).set(value(memory.write));
        BUDGET_BYTES.gauge(&[Traffic::Read.word()]).set(value(memory.read));
        BUDGET_LIMIT.gauge(&[]).set(value(memory.total));
        BUDGET_PEAK.gauge(&[]).set(value(memory.peak));
        LEDGER_KEYS.gauge(&[]).set(value(self.counters().ledger_keys));
        for (sink, open) in self.process().meters().descriptions_open() {
            DESCRIPTIONS_OPEN.gauge(&[&sink]).set(value(open));
        }
        let failures = HEALTH_FAILURES.counter(&[]);
        match self.health().await {
            Ok(health) => {
                failures.increment(0);
                health.publish();
                Ok(health)
            }
            Err(error) => {
                failures.increment(1);
                Err(error)
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a double: above 2^53 it is near enough")]
fn value(number: u64) -> f64 {
    number as f64
}

/// Milliseconds as Prometheus has durations.
fn seconds(millis: u64) -> f64 {
    value(millis) / 1000.0
}

impl Health {
    fn publish(&self) {
        QUEUE_OLDEST.gauge(&[]).set(seconds(self.queue_oldest_ms.unwrap_or(0)));
        for sink in &self.sinks {
            sink.publish();
        }
    }
}

impl SinkHealth {
    fn publish(&self) {
        let name = self.sink.as_str();
        for status in STATUSES {
            CHAIN_STATUS.gauge(&[name, status]).set(if status == self.status { 1.0 } else { 0.0 });
        }
        CHAIN_UPPER.gauge(&[name]).set(value(self.upper.as_u64()));
        CHAIN_BATCHES.gauge(&[name]).set(value(self.batches));
        if let Some(at) = self.last_accept {
            CHAIN_LAST_ACCEPT.gauge(&[name]).set(seconds(at.0));
        }
        INCARNATIONS_OPEN.gauge(&[name]).set(value(self.incarnations_open));
        QUEUE_KEYS.gauge(&[name]).set(value(self.queue_keys));
        if let Some(left) = self.retention_headroom_ms {
            RETENTION_HEADROOM.gauge(&[name]).set(seconds(left));
        }
        for consumer in &self.consumers {
            let labels = [consumer.consumer.as_str(), name];
            CONSUMER_BEHIND_BATCHES.gauge(&labels).set(value(consumer.behind_batches));
            CONSUMER_BEHIND_TIMES.gauge(&labels).set(value(consumer.behind_times));
            CONSUMER_BEHIND.gauge(&labels).set(seconds(consumer.behind_ms));
            if let Some(left) = consumer.headroom_ms {
                CONSUMER_HEADROOM.gauge(&labels).set(seconds(left));
            }
        }
    }
}
