//! Expiry: what the clock and the sink's declaration let go of.

use stash_catalog::{ConsumerRow, DeletionReason, Expired};
use stash_types::{Frontier, SinkId, Timestamp};

use super::Result;
use super::incarnations::Which;
use super::release::is_released;
use super::state::{Sink, State};

/// Whether `at` lies `ms` or more back. Something declared without a duration never does.
fn lies_back(at: Timestamp, ms: Option<u64>, now: Timestamp) -> bool {
    ms.is_some_and(|ms| u128::from(now.0) >= u128::from(at.0) + u128::from(ms))
}

impl Sink {
    fn begins(&self) -> Frontier {
        self.head.released.max(self.head.expired)
    }

    fn is_absent(&self, consumer: &ConsumerRow, now: Timestamp) -> bool {
        lies_back(consumer.seen, self.row.spec.absent_hold_ms, now)
    }

    fn absent(&self, now: Timestamp) -> impl Iterator<Item = &ConsumerRow> {
        self.consumers.values().filter(move |consumer| self.is_absent(consumer, now))
    }

    /// Where the chain begins once what has to go now is gone.
    fn begins_then(&self, now: Timestamp) -> Frontier {
        let present = self.consumers.values().filter(|consumer| !self.is_absent(consumer, now));
        let upto = match present.map(|consumer| consumer.acked).min() {
            // What somebody present holds stays; below that only what an absent one alone holds back goes here.
            Some(held) if self.absent(now).any(|consumer| consumer.acked < held) => held,
            Some(_) => return self.begins(),
            None => {
                let outlived = self
                    .linked()
                    .take_while(|batch| lies_back(batch.row.accepted, self.row.spec.retention_ms, now));
                outlived.map(|batch| batch.row.extent).last().unwrap_or(Frontier::MIN)
            }
        };
        upto.max(self.begins())
    }
}

impl State {
    /// What an expiry at this moment would do.
    pub(super) fn would_expire(&self, now: Timestamp, sink: SinkId) -> Result<Expired> {
        let found = self.live_sink(sink)?;
        let earliest = found.begins_then(now);
        let taken =
            || found.linked().filter(|batch| earliest > found.begins() && batch.row.upper <= earliest);
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let ran_out = found.incarnations.iter().filter(|one| one.is_open() && one.row.lease_until <= now);
        let mut closed: Vec<_> = ran_out.map(|one| one.row.id).collect();
        closed.sort();
        Ok(Expired {
            closed,
            absent: found.absent(now).map(|consumer| consumer.name.clone()).collect(),
            batches: count(taken().filter(|batch| is_released(batch, earliest)).count()),
            keys: count(taken().map(|batch| batch.row.parts.len()).sum()),
            earliest,
        })
    }

    /// Takes what its time has come for.
    pub(super) fn expire(&mut self, now: Timestamp, sink: SinkId) -> Result<Expired> {
        let expired = self.would_expire(now, sink)?;
        let found = self.live_sink(sink)?;
        let upto = expired.earliest;
        let takes = upto > found.begins();
        if expired.closed.is_empty() && !takes {
            return Ok(expired);
        }
        let gone = found.linked().filter(|batch| is_released(batch, upto)).map(|batch| {
            let row = &batch.row;
            let detail =
                format!("#{} [{}, {}), accepted at {} ms", row.seq, row.lower, row.upper, row.accepted.0);
            (Some(row.incarnation), detail)
        });
        let stayed_away = found.absent(now).filter(|consumer| consumer.acked < upto).map(|consumer| {
            let ConsumerRow { name, acked, seen, .. } = consumer;
            let detail = format!("consumer {name} stands at {acked} and was not heard since {} ms", seen.0);
            (None, detail)
        });
        let events: Vec<_> = gone.chain(stayed_away).collect();
        self.close_where(now, sink, "its lease ran out", Which::RanOut)?;
        if takes {
            for (incarnation, detail) in events {
                self.record(now, sink, incarnation, "expired", detail);
            }
            self.unlink_below(now, sink, upto, DeletionReason::Expired)?;
            self.sink_mut(sink)?.head.expired = upto;
        }
        self.raise_fence(sink)?;
        self.stamp(sink)?;
        Ok(expired)
    }
}
