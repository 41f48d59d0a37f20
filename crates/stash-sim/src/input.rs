//! What a replica computes from: the feed itself, or what a consumer of another sink was given.
//!
//! Inputs compact: what lies below the read hold of the sink they feed is forgotten (I10). A rendering finds its snapshot
//! there, or the run has found a violation.

use std::sync::Mutex;

use stash_types::Frontier;

use crate::feed::{Update, held};
use crate::sink::SinkFacts;
use crate::world::{World, lock};

/// The input of a replica.
#[derive(Debug)]
pub(crate) enum Input {
    /// The changefeed, as far as it went by now.
    Feed,
    /// What was delivered of another sink.
    Stream(Mutex<Delivered>),
}

/// What a consumer of another sink was given, in this process.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) updates: Vec<Update>,
    /// The uppers of the deliveries.
    pub(crate) uppers: Vec<u64>,
    /// Whether nothing follows.
    pub(crate) ended: bool,
}

impl Input {
    /// The frontiers it reached by now, in order, and whether it ended there.
    pub(crate) fn reached(&self, world: &World, facts: &SinkFacts, lag_ms: u64) -> (Vec<u64>, bool) {
        match self {
            Input::Feed => {
                let begun = world.now_ms().saturating_sub(lag_ms);
                let periods = begun / world.schedule.period_ms;
                let ticks = usize::try_from(periods).unwrap_or(usize::MAX).min(facts.feed.ticks.len());
                let ended = (facts.seals || facts.closes) && periods > world.schedule.feed.ticks + 2;
                (facts.feed.ticks.get(..ticks).unwrap_or_default().to_vec(), ended)
            }
            Input::Stream(delivered) => {
                let delivered = lock(delivered);
                (delivered.uppers.clone(), delivered.ended)
            }
        }
    }

    /// Its frontier by now.
    pub(crate) fn frontier(&self, world: &World, facts: &SinkFacts, lag_ms: u64) -> Frontier {
        let (reached, ended) = self.reached(world, facts, lag_ms);
        match reached.last() {
            _ if ended => Frontier::EMPTY,
            Some(last) => Frontier::at(*last),
            None => Frontier::at(facts.feed.as_of),
        }
    }

    /// The updates that a worker holds.
    pub(crate) fn held(
        &self,
        facts: &SinkFacts,
        as_of: u64,
        lower: u64,
        upper: u64,
        of: impl Fn(usize, &Update) -> bool,
    ) -> Vec<Update> {
        match self {
            Input::Feed => held(&facts.feed.updates, as_of, lower, upper, of),
            Input::Stream(delivered) => held(&lock(delivered).updates, as_of, lower, upper, of),
        }
    }
}
