//! What a seed chooses: the kind of run, its replicas and consumers, the knobs, and how much goes wrong.

use std::time::Duration;

use stash::{BatchConfig, StashConfig};

use crate::chance::{Chance, Concern};
use crate::feed::FeedShape;

/// How the sink of a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// It does not: the feed just has no more.
    Open,
    /// Its inputs close, which does not complete it.
    InputsClose,
    /// At its `up_to`.
    UpTo,
    /// With its input, being declared to seal.
    Sealing,
    /// In an error of the dataflow.
    Poisoned,
    /// The dataflow says that it is going away, and it is dropped.
    GoingAway,
    /// It is dropped while everybody is at work.
    Dropped,
}

/// How often things go wrong, of 1000 operations.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// A call is refused, and surely did nothing.
    pub refused: u64,
    /// A request is lost: nothing was done, and nobody can tell.
    pub lost_request: u64,
    /// A reply is lost: it was done, and nobody can tell.
    pub lost_reply: u64,
    /// A PUT lands long after its caller gave up waiting for it.
    pub late: u64,
    /// A message between processes is lost.
    pub lost_message: u64,
    /// A message is delivered twice.
    pub doubled_message: u64,
    /// A message is delayed for long, perhaps beyond its incarnation.
    pub delayed_message: u64,
    /// A worker fails somewhere in its share.
    pub worker_fails: u64,
}

/// A replica.
#[derive(Clone, Debug)]
pub struct ReplicaShape {
    /// Workers of each process.
    pub processes: Vec<u32>,
    /// How far it is behind its input, in milliseconds.
    pub lag_ms: u64,
    /// The knobs of its processes.
    pub config: StashConfig,
    /// Whether equal rows are always with the same worker.
    pub by_row: bool,
    /// Whether it runs on once everything is healed.
    pub survives: bool,
}

/// A consumer.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerShape {
    /// How long it takes for a batch, in milliseconds, at most.
    pub pace_ms: u64,
    /// It acknowledges so many batches at once, at most.
    pub batches_an_ack: u64,
    /// It comes after so many milliseconds; one that comes late begins at what is there.
    pub comes_ms: u64,
}

/// What a seed chooses.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The seed.
    pub seed: u64,
    /// Nobody dies and nothing lands late: every handle is closed, so a sweep must find nothing.
    pub orderly: bool,
    /// How the sink ends.
    pub ending: Ending,
    /// Whether a second sink is fed by a consumer of the first.
    pub chained: bool,
    /// The feed.
    pub feed: FeedShape,
    /// Virtual time between two ticks of the feed.
    pub period_ms: u64,
    /// The replicas.
    pub replicas: Vec<ReplicaShape>,
    /// The consumers.
    pub consumers: Vec<ConsumerShape>,
    /// How often things go wrong.
    pub rates: Rates,
    /// How long a call takes, in milliseconds, as a rule.
    pub call_ms: u64,
    /// Virtual time between two deaths, on average; 0 for none.
    pub death_ms: u64,
    /// Whether store and catalog are out for a while now and then.
    pub outages: bool,
    /// Whether the catalog's clock jumps.
    pub clock_jumps: bool,
    /// How long an absent consumer holds batches, and how long they are kept where none does, in milliseconds.
    pub expiry: Option<(u64, u64)>,
}

impl Schedule {
    /// The choices of `seed`.
    pub fn of(seed: u64) -> Schedule {
        let mut chance = Chance::of(seed, Concern::Schedule);
        let orderly = chance.per_mille(150);
        let ending = chance.pick(
            Ending::Open,
            &[
                Ending::Open,
                Ending::Open,
                Ending::InputsClose,
                Ending::UpTo,
                Ending::Sealing,
                Ending::Poisoned,
                Ending::GoingAway,
                Ending::Dropped,
            ],
        );
        let chained = matches!(ending, Ending::Open | Ending::InputsClose) && chance.per_mille(300);
        let ticks = chance.between(20, 45);
        let feed = FeedShape {
            ticks,
            snapshot: chance.pick(0, &[5, 30, 80]),
            per_tick: chance.pick(3, &[8, 8, 20]),
            keys: chance.pick(3, &[10, 40]),
            text: chance.pick(3, &[12, 30]),
            base: chance.pick(0, &[0, 1000, (1 << 63) - 20, u64::MAX - 100_000]),
        };
        let lease_secs = u32::try_from(chance.between(3, 8)).unwrap_or(3);
        let replicas = (0..chance.between(2, 3)).map(|_| replica(&mut chance, lease_secs)).collect();
        let mut schedule = Schedule {
            seed,
            orderly,
            ending,
            chained,
            feed,
            period_ms: chance.between(250, 700),
            replicas,
            consumers: consumers(&mut chance),
            rates: rates(&mut chance, orderly),
            call_ms: chance.pick(3, &[8, 20]),
            death_ms: if orderly { 0 } else { chance.between(700, 2200) },
            outages: chance.per_mille(500),
            clock_jumps: chance.per_mille(400),
            expiry: None,
        };
        // A source needs all that it has not acknowledged, so where there is one nothing expires.
        if !chained && chance.per_mille(200) {
            schedule.expiry = Some((chance.between(300, 3000), chance.between(200, 8000)));
        }
        // A single live replica has to bring the chain to its end; the others may go on or not.
        let all = chance.per_mille(400) || orderly;
        for (place, replica) in schedule.replicas.iter_mut().enumerate() {
            replica.survives = all || place == 0;
        }
        schedule
    }

    /// How long things go wrong.
    pub fn chaos(&self) -> Duration {
        Duration::from_millis(self.period_ms.saturating_mul(self.feed.ticks.saturating_add(9)))
    }
}

fn replica(chance: &mut Chance, lease_secs: u32) -> ReplicaShape {
    let processes =
        (0..chance.between(1, 2)).map(|_| u32::try_from(chance.between(1, 3)).unwrap_or(1)).collect();
    let batch = BatchConfig {
        memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
        part_bytes: chance.pick(1, &[1500, 3000, 1 << 20]),
        inline_batch_bytes_max: chance.pick(0, &[900, 2500, 6000]),
        row_group_rows_max: usize::try_from(chance.pick(2, &[8, 1 << 17])).unwrap_or(8),
        row_group_bytes_max: 8 << 20,
        runs_max: usize::try_from(chance.pick(2, &[3, 16])).unwrap_or(2),
        chunk_bytes: chance.pick(100, &[600, 4 << 20]),
        attempts_max: u32::try_from(chance.between(1, 4)).unwrap_or(1),
    };
    let in_flight = usize::try_from(chance.between(1, 4)).unwrap_or(1);
    ReplicaShape {
        processes,
        lag_ms: chance.below(600),
        config: StashConfig { batch, lease_secs, descriptions_in_flight_max: in_flight, sweep_at_open: true },
        by_row: chance.per_mille(500),
        survives: true,
    }
}

fn consumers(chance: &mut Chance) -> Vec<ConsumerShape> {
    let mut all: Vec<ConsumerShape> = (0..2)
        .map(|_| ConsumerShape {
            pace_ms: chance.pick(1, &[40, 400]),
            batches_an_ack: chance.pick(1, &[1, 3, 8]),
            comes_ms: 0,
        })
        .collect();
    if chance.per_mille(300) {
        all.push(ConsumerShape { comes_ms: chance.between(2000, 9000), pace_ms: 20, batches_an_ack: 2 });
    }
    all
}

fn rates(chance: &mut Chance, orderly: bool) -> Rates {
    let rate = chance.pick(30, &[45, 65]);
    Rates {
        refused: rate,
        lost_request: rate,
        lost_reply: rate,
        late: if orderly { 0 } else { rate },
        lost_message: if orderly { 0 } else { chance.pick(0, &[5, 20]) },
        doubled_message: chance.pick(20, &[60, 200]),
        delayed_message: if orderly { 0 } else { chance.pick(10, &[40]) },
        worker_fails: chance.pick(0, &[3, 8]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_and_every_size_comes_up_within_some_seeds() {
        let all: Vec<Schedule> = (0..200).map(Schedule::of).collect();
        let endings: std::collections::BTreeSet<Ending> =
            all.iter().map(|schedule| schedule.ending).collect();
        assert_eq!(endings.len(), 7, "{endings:?}");
        assert!(all.iter().any(|schedule| schedule.orderly) && all.iter().any(|schedule| schedule.chained));
        assert!(all.iter().all(|schedule| (2..=3).contains(&schedule.replicas.len())));
        assert!(all.iter().all(|schedule| schedule.replicas.iter().any(|replica| replica.survives)));
        assert!(all.iter().any(|schedule| schedule.feed.base > 1 << 63));
        assert!(all.iter().any(|schedule| schedule.expiry.is_some()));
    }
}
