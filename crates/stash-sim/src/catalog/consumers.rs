//! Consumers: named, one session each, and what they have acknowledged.

use stash_catalog::{Acknowledged, CatalogError, ConsumerRow, Misuse, RegisterConsumer, StartAt};
use stash_types::{ConsumerName, Frontier, SessionId, SinkId, Timestamp};

use super::Result;
use super::state::{Kind, Sink, State};

impl State {
    /// Registers a consumer, or opens a new session of a known one, which fences the older. Releases nothing.
    pub(super) fn register(&mut self, now: Timestamp, request: RegisterConsumer) -> Result<ConsumerRow> {
        let RegisterConsumer { sink, consumer, session, start } = request;
        let held = self.live_sink(sink)?;
        let known = held.consumers.get(&consumer);
        let acked = match known {
            Some(known) if start == StartAt::SkipExpired => known.acked.max(held.head.expired),
            Some(known) => known.acked,
            None => start_at(held, &consumer, start)?,
        };
        // A clock that goes back makes nobody look absent.
        let seen = known.map_or(now, |known| known.seen.max(now));
        let row = ConsumerRow { name: consumer.clone(), acked, session, seen };
        self.sink_mut(sink)?.consumers.insert(consumer.clone(), row.clone());
        self.raise_fence(sink)?;
        self.record(now, sink, None, "registered", format!("{consumer} at {acked}, session {session}"));
        self.stamp(sink)?;
        Ok(row)
    }

    /// Notes that the consumer was heard.
    pub(super) fn renew_session(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
    ) -> Result<()> {
        if self.live_sink(sink)?.in_session(consumer, session)?.seen >= now {
            return Ok(());
        }
        if let Some(known) = self.sink_mut(sink)?.consumers.get_mut(consumer) {
            known.seen = now;
        }
        self.stamp(sink)?;
        Ok(())
    }

    /// Forgets a consumer, and releases what only it held. The last one leaving releases nothing.
    pub(super) fn unregister(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        consumer: &ConsumerName,
    ) -> Result<bool> {
        if self.sink_mut(sink)?.consumers.remove(consumer).is_none() {
            return Ok(false);
        }
        self.raise_fence(sink)?;
        self.record(now, sink, None, "unregistered", consumer.to_string());
        self.release(now, sink)?;
        self.stamp(sink)?;
        Ok(true)
    }

    /// Acknowledges everything below `upper`.
    pub(super) fn acknowledge(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged> {
        let held = self.live_sink(sink)?;
        let known = held.in_session(consumer, session)?;
        if upper == known.acked {
            return Ok(Acknowledged { released: 0, queued: 0 });
        }
        if upper < known.acked || !is_boundary(held, upper) {
            let (acked, chain_upper) = (known.acked, held.head.upper);
            return Err(
                Misuse::NotABatchUpper { consumer: consumer.clone(), upper, acked, chain_upper }.into()
            );
        }
        if let Some(known) = self.sink_mut(sink)?.consumers.get_mut(consumer) {
            (known.acked, known.seen) = (upper, known.seen.max(now));
        }
        let done = self.release(now, sink)?;
        self.stamp(sink)?;
        Ok(done)
    }
}

impl Sink {
    /// The consumer, if `session` may still speak for it.
    fn in_session(&self, consumer: &ConsumerName, session: SessionId) -> Result<&ConsumerRow> {
        let sink = self.head.sink;
        match self.consumers.get(consumer) {
            None => Err(Misuse::NoSuchConsumer { sink, consumer: consumer.clone() }.into()),
            Some(known) if known.session != session => {
                Err(CatalogError::SessionFenced { sink, consumer: consumer.clone() })
            }
            Some(known) => Ok(known),
        }
    }
}

fn start_at(sink: &Sink, consumer: &ConsumerName, start: StartAt) -> Result<Frontier> {
    let earliest = sink.head.released.max(sink.head.expired);
    let as_of = Frontier::at(sink.row.spec.as_of);
    match start {
        StartAt::Now => Ok(sink.head.upper),
        StartAt::Earliest | StartAt::SkipExpired => Ok(earliest),
        StartAt::Beginning if earliest > as_of => {
            Err(Misuse::BeginningGone { consumer: consumer.clone(), earliest }.into())
        }
        StartAt::Beginning => Ok(as_of),
    }
}

/// Whether the chain can be cut at `upper` without cutting a batch: it is the upper of a batch, or lies where
/// the chain is proven empty, which is anywhere up to a row's extent, and anywhere in a row without updates.
/// Below what expired there is no batch to be cut.
fn is_boundary(sink: &Sink, upper: Frontier) -> bool {
    if upper >= sink.head.upper {
        return upper == sink.head.upper;
    }
    if upper <= sink.head.expired {
        return true;
    }
    let row = sink.linked().find(|batch| batch.row.extent >= upper);
    row.is_some_and(|batch| match batch.kind {
        Kind::Updates => upper >= batch.row.upper,
        Kind::Empty | Kind::Rest => upper >= batch.row.lower,
    })
}
