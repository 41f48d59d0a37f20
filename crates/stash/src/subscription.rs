//! Reading a chain: accepted batches in order, each closed by its upper, acknowledged when done with.
//!
//! A subscription with a consumer's name holds the chain from what it acknowledged on; a newer session of
//! the same consumer fences it. One without a name holds nothing and reads what is there. Delivery follows
//! the chain's rows: a consumer that comes back gets the identical batches again.
//!
//! Where the sink has an absent hold, a subscription with a name says in the background that its consumer is
//! there, for as long as it lives: also while the consumer is busy with a long batch, or waits for the next one.
//! What expired although the consumer had not acknowledged it is read as [`Absence::Expired`], never as empty.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use stash_batch::{Absence, BatchReader, BatchSource};
use stash_catalog::{
    Acknowledged, BatchRow, CatalogError, ConsumerRow, HeadRow, HeadStatus, RegisterConsumer, StartAt,
};
use stash_types::{
    ConsumerName, Description, Frontier, RunFacts, SessionId,
    fault::{self, Mutant, broken},
};
use tokio::task::JoinSet;

use crate::{Error, Result, Sink};

/// Rows that are read from the catalog at once.
const ROWS_A_READ: u32 = 64;
/// How long one wait for news lasts before the chain is looked at anyway.
const PATIENCE: Duration = Duration::from_secs(1);

impl Sink {
    /// Subscribes a consumer: from where it acknowledged, or from `start` if it is new. A known one that stands
    /// below what expired reads [`Absence::Expired`] from there, unless it starts with
    /// [`StartAt::SkipExpired`].
    pub async fn subscribe(&self, consumer: &str, start: StartAt) -> Result<Subscription> {
        let consumer: ConsumerName = consumer.parse()?;
        let session = self.stash().draw_session();
        let request = RegisterConsumer { sink: self.id(), consumer, session, start };
        let ConsumerRow { name, acked, .. } = self.stash().catalog().register_consumer(request).await?;
        Ok(Subscription::new(self, Some((name, session)), acked))
    }

    /// Reads the chain without holding it, from the earliest batch that is still linked.
    pub async fn read(&self) -> Result<Subscription> {
        let slice = self.stash().catalog().chain(self.id(), Frontier::MIN, 1).await?;
        let from = slice.batches.first().map_or(slice.head.upper, |batch| batch.lower);
        Ok(Subscription::new(self, None, from))
    }

    /// Reads one batch of the chain from `from` on.
    pub(crate) fn reader(&self, batch: BatchRow, from: Frontier) -> BatchReader {
        let (sink, shard, schema) = (self.id(), self.shard(), self.schema().clone());
        BatchReader::open(self.stash().process(), BatchSource { sink, shard, schema, batch, from })
    }

    /// Reads the chain without holding it, from `from` on.
    pub fn read_from(&self, from: Frontier) -> Subscription {
        Subscription::new(self, None, from)
    }
}

/// What [`Subscription::try_next`] found.
#[derive(Debug)]
pub enum TryNext {
    /// The next batch.
    Delivery(Box<Delivery>),
    /// Nothing yet; the chain is open.
    Pending,
    /// The chain is complete and everything was delivered.
    End,
}

/// Accepted batches of a sink, in chain order.
#[derive(Debug)]
pub struct Subscription {
    sink: Sink,
    consumer: Option<(ConsumerName, SessionId)>,
    from: Frontier,
    rows: VecDeque<BatchRow>,
    revision: u64,
    _heard: JoinSet<()>,
}

impl Subscription {
    fn new(sink: &Sink, consumer: Option<(ConsumerName, SessionId)>, from: Frontier) -> Subscription {
        let mut heard = JoinSet::new();
        if let (Some((name, session)), Some(hold_ms)) = (&consumer, sink.row().spec.absent_hold_ms) {
            heard.spawn(renew(sink.clone(), name.clone(), *session, hold_ms));
        }
        Subscription { sink: sink.clone(), consumer, from, rows: VecDeque::new(), revision: 0, _heard: heard }
    }

    /// Where the next delivery begins.
    pub fn position(&self) -> Frontier {
        self.from
    }

    /// The sink.
    pub fn sink(&self) -> &Sink {
        &self.sink
    }

    /// The next batch, waiting for it; `None` when the chain is complete and all was delivered. A poisoned
    /// chain gives its error here, again and again, once all before it was delivered.
    pub async fn next(&mut self) -> Result<Option<Delivery>> {
        loop {
            match self.try_next().await? {
                TryNext::Delivery(delivery) => return Ok(Some(*delivery)),
                TryNext::End => return Ok(None),
                TryNext::Pending => {
                    let catalog = Arc::clone(self.sink.stash().catalog());
                    catalog.changed(self.revision, PATIENCE).await?;
                }
            }
        }
    }

    /// The next batch if it is there already.
    pub async fn try_next(&mut self) -> Result<TryNext> {
        loop {
            let Some(row) = self.rows.front() else {
                match self.fill().await? {
                    Some(at_end) => return Ok(at_end),
                    None => continue,
                }
            };
            if row.lower > self.from {
                return Err(self.absent(self.from, row.lower).await?);
            }
            let upper = if self.from < row.upper { row.upper } else { row.extent };
            let (mut from, mut whole) = (self.from, row.clone());
            // Broken, a straddler is delivered with the times that others delivered before.
            if broken(Mutant::NoTrim) && from == row.lower && from < row.upper {
                whole.lower = row.offered.lower();
                from = whole.lower;
            }
            let delivery = Description::new(from, upper).map(|piece| Delivery {
                sink: self.sink.clone(),
                piece,
                row: whole,
            });
            if upper >= row.extent {
                self.rows.pop_front();
            }
            if let Some(delivery) = delivery {
                self.from = upper;
                self.sink.meters().deliveries.increment(1);
                tracing::debug!(sink = %self.sink.name(), piece = %delivery.piece, seq = delivery.row.seq, "delivered");
                fault::place("stash.delivered");
                return Ok(TryNext::Delivery(Box::new(delivery)));
            }
        }
    }

    /// Reads more rows; says what stands at the end of the chain when there are none.
    async fn fill(&mut self) -> Result<Option<TryNext>> {
        let catalog = Arc::clone(self.sink.stash().catalog());
        // SUBTLE: the revision is read before the chain. The other way round, a batch accepted in between would
        // be neither seen nor waited for.
        self.revision = catalog.revision().await?;
        let slice = catalog.chain(self.sink.id(), self.from, ROWS_A_READ).await?;
        if !slice.batches.is_empty() {
            self.rows = slice.batches.into();
            return Ok(None);
        }
        self.at_end(&slice.head).await.map(Some)
    }

    async fn at_end(&self, head: &HeadRow) -> Result<TryNext> {
        let sink = self.sink.id();
        match &head.status {
            HeadStatus::Dropped => return Err(Error::Absent(Absence::Dropped { sink })),
            _ if self.from < head.upper => return Err(self.absent(self.from, head.upper).await?),
            _ if self.from > head.upper => {
                return Err(Error::Absent(Absence::NeverWritten { sink, upper: head.upper }));
            }
            HeadStatus::Poisoned(error) => {
                return Err(Error::Absent(Absence::Poisoned { sink, error: error.clone() }));
            }
            HeadStatus::Complete => return Ok(TryNext::End),
            HeadStatus::Open => {}
        }
        Ok(TryNext::Pending)
    }

    /// Why the chain does not begin at `from` any longer.
    async fn absent(&self, from: Frontier, earliest: Frontier) -> Result<Error> {
        let sink = self.sink.id();
        if let Some((consumer, session)) = &self.consumer {
            let rows = self.sink.consumers().await?;
            if !rows.iter().any(|row| row.name == *consumer && row.session == *session) {
                let consumer = consumer.clone();
                return Ok(Error::Catalog(CatalogError::SessionFenced { sink, consumer }));
            }
        }
        let head = self.sink.head().await?;
        Ok(if head.status == HeadStatus::Dropped {
            Error::Absent(Absence::Dropped { sink })
        } else if from < head.expired && head.released < head.expired {
            Error::Absent(Absence::Expired { sink, earliest })
        } else if from < head.released {
            Error::Absent(Absence::Acknowledged { sink, released: head.released })
        } else {
            Error::Catalog(CatalogError::Damaged {
                location: self.sink.stash().catalog().location(),
                what: format!(
                    "sink {sink}: the chain has a gap from {from} to {earliest} (I4); run `stash-admin verify`"
                ),
            })
        })
    }

    /// Acknowledges everything below `upper`, the upper of a delivered batch. What all consumers acknowledged is
    /// deleted.
    #[tracing::instrument(level = "debug", skip_all, fields(
        sink = %self.sink.name(),
        consumer = self.consumer.as_ref().map(|(name, _)| name.as_str()),
        %upper,
    ))]
    pub async fn acknowledge(&mut self, upper: Frontier) -> Result<Acknowledged> {
        let Some((consumer, session)) = &self.consumer else {
            return Err(Error::InvalidUsage {
                what: format!(
                    "sink {}: only a named consumer acknowledges; use Sink::subscribe",
                    self.sink.id()
                ),
            });
        };
        let catalog = self.sink.stash().catalog();
        fault::place("stash.acknowledging");
        let acknowledged = catalog.acknowledge(self.sink.id(), consumer, *session, upper).await?;
        fault::place("stash.acknowledged");
        let meters = self.sink.meters();
        meters.acknowledgements.increment(1);
        meters.released_batches.increment(acknowledged.released);
        tracing::debug!(released = acknowledged.released, queued = acknowledged.queued, "acknowledged");
        if acknowledged.queued > 0 {
            self.sink.stash().process().wake_deleter();
        }
        Ok(acknowledged)
    }
}

/// Says four times in the absent hold that the consumer is there, until a newer session takes over.
async fn renew(sink: Sink, consumer: ConsumerName, session: SessionId, hold_ms: u64) {
    let every = Duration::from_millis(hold_ms.div_ceil(4));
    loop {
        tokio::time::sleep(every).await;
        match sink.stash().catalog().renew_session(sink.id(), &consumer, session).await {
            Ok(()) => {}
            // Who reads on is told by its next call.
            Err(
                CatalogError::SessionFenced { .. }
                | CatalogError::SinkDropped { .. }
                | CatalogError::InvalidUsage(_),
            ) => return,
            Err(error) => {
                tracing::warn!(sink = %sink.name(), %consumer, %error, "the consumer was not heard")
            }
        }
    }
}

/// An accepted batch, or a stretch of times proven empty, as it is delivered.
#[derive(Clone, Debug)]
pub struct Delivery {
    sink: Sink,
    piece: Description,
    row: BatchRow,
}

impl Delivery {
    /// Where it begins.
    pub fn lower(&self) -> Frontier {
        self.piece.lower()
    }

    /// Where it ends: what to acknowledge once it is dealt with.
    pub fn upper(&self) -> Frontier {
        self.piece.upper()
    }

    /// Its times.
    pub fn piece(&self) -> Description {
        self.piece
    }

    /// Whether it is a stretch proven to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.piece.lower() >= self.row.upper || (self.row.parts.is_empty() && self.row.inline.is_empty())
    }

    /// The chain's row behind it: who offered it, its parts and its inline runs.
    pub fn row(&self) -> &BatchRow {
        &self.row
    }

    /// Counts over the parts and runs behind it, before merging and trimming; none for an empty one.
    pub fn facts(&self) -> RunFacts {
        if self.is_empty() { RunFacts::default() } else { self.row.facts }
    }

    /// Its consolidated updates. Can be called again: the batch is identical until it is acknowledged.
    pub fn read(&self) -> BatchReader {
        self.sink.reader(self.row.clone(), self.piece.lower())
    }
}
