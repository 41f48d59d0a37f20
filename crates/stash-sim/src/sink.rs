//! What the simulation knows of a sink, without asking the product: its feed, its end, its oracle.

use std::sync::Arc;
use std::time::Duration;

use stash::{DataflowError, Error, SinkSpec};
use stash_chain::ChainRules;
use stash_types::Frontier;

use crate::feed::{Feed, schema};
use crate::oracle::Oracle;

/// A sink of a run.
#[derive(Clone, Debug)]
pub(crate) struct SinkFacts {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its updates.
    pub(crate) feed: Arc<Feed>,
    /// Where it completes, if it does at some time.
    pub(crate) up_to: Option<u64>,
    /// Whether it completes with its input.
    pub(crate) seals: bool,
    /// Whether its input closes at the feed's end.
    pub(crate) closes: bool,
    /// The error of the dataflow, if there is one.
    pub(crate) poison: Option<DataflowError>,
    /// How long an absent consumer holds batches, and how long they are kept where none does, in milliseconds.
    pub(crate) expiry: Option<(u64, u64)>,
    /// The place of the sink whose consumer feeds this one.
    pub(crate) fed_by: Option<usize>,
    /// What must be delivered.
    pub(crate) oracle: Arc<Oracle>,
}

impl SinkFacts {
    /// How it is declared.
    pub(crate) fn spec(&self) -> Result<SinkSpec, Error> {
        let spec = SinkSpec::new(self.name, schema())?.as_of(self.feed.as_of);
        let spec = if self.seals { spec.sealing() } else { spec };
        let spec = match self.expiry {
            Some((absent, kept)) => {
                spec.absent_hold(Duration::from_millis(absent)).retention(Duration::from_millis(kept))
            }
            None => spec,
        };
        Ok(match self.up_to {
            Some(time) => spec.up_to(time),
            None => spec,
        })
    }

    /// The rules of its chain.
    pub(crate) fn rules(&self) -> ChainRules {
        let up_to = self.up_to.map_or(Frontier::EMPTY, Frontier::at);
        ChainRules { as_of: self.feed.as_of, up_to, seals: self.seals }
    }

    /// Where its chain must come to.
    pub(crate) fn end(&self) -> Frontier {
        match (&self.poison, self.up_to) {
            (Some(error), _) => Frontier::at(error.at),
            (None, Some(_)) => Frontier::EMPTY,
            (None, None) if self.seals => Frontier::EMPTY,
            (None, None) => Frontier::at(self.feed.end()),
        }
    }
}
