//! What the operators of a sink tell each other: through timely's channels between workers, and through queues between
//! a worker and the task that minds the chain.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stash::{Description, ErrorKind, Frontier, Minted};

use crate::errors::Errors;

/// Why a rendering stopped, alike on all workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// The chain is complete: its `up_to` was reached, or it seals with its input.
    Complete,
    /// The input ended without completing the chain: all that was there is resolved. A later start goes on from it.
    Ended,
    /// This rendering cannot go on: drop the dataflow, and render again with a new grant.
    Reopen(String),
    /// The dataflow is in error from this time on, by this replica's word or another's: consumers get everything before,
    /// and then the error. Nothing is written any more until the sink is dropped.
    Poisoned {
        /// The time of the error.
        at: u64,
        /// What the dataflow says.
        message: String,
    },
    /// The sink is going away: it was dropped, or a worker dropped its token.
    GoingAway,
    /// Rendering again will not help: the reason says what does.
    Failed(String),
}

/// From the minting worker to all.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Control {
    /// Write a share of `[lower, upper)`, leaving out times below `floor`.
    Mint { lower: u64, upper: u64, floor: u64 },
    /// The chain's upper, and where the inputs have to keep their history from.
    Chain { upper: u64, hold: u64 },
    /// Nothing follows. `moved`: the chain took something of this rendering.
    Stop { stop: Stop, moved: bool },
}

impl Control {
    pub(crate) fn mint(minted: Minted) -> Control {
        let Minted { description, floor } = minted;
        Control::Mint {
            lower: description.lower().as_u64(),
            upper: description.upper().as_u64(),
            floor: floor.as_u64(),
        }
    }
}

/// The description that a [`Control::Mint`] speaks of. `None` when it has no times, which no minter sends.
pub(crate) fn minted(lower: u64, upper: u64, floor: u64) -> Option<Minted> {
    let description = Description::new(frontier_of(lower), frontier_of(upper))?;
    Some(Minted { description, floor: frontier_of(floor) })
}

/// A frontier from its number; `u64::MAX` is the empty one.
pub(crate) fn frontier_of(number: u64) -> Frontier {
    Frontier::from_be_bytes(number.to_be_bytes())
}

/// From each worker to the merging one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// A share.
    Share {
        /// Disarmed; it says nothing of errors.
        frame: Bytes,
        /// The errors that this worker knows of within the description. Only with those of all others they tell
        /// whether there is one: rows are where they are, and one that does not fit may be taken back elsewhere.
        errors: Errors,
    },
    /// No share can be made.
    Failed(Failure),
    /// The worker's token was dropped.
    TokenDropped,
}

/// Why a share cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// Another rendering may mend it.
    Passing(String),
    /// No rendering mends it: the same rows would fail again. The reason says what does.
    Lasting(String),
}

impl Failure {
    /// What an error of the stash means for a share.
    pub(crate) fn of(error: &stash::Error) -> Failure {
        match error.kind() {
            // A store that denies is asked again: credentials are renewed.
            ErrorKind::FixCall if !matches!(error, stash::Error::Blob(_)) => {
                Failure::Lasting(error.to_string())
            }
            _ => Failure::Passing(error.to_string()),
        }
    }
}

/// From the operators of the minting worker to the task that minds the chain.
#[derive(Debug)]
pub(crate) enum ToChain {
    /// Below this frontier every worker has all updates and all errors.
    Frontier(Frontier),
    /// The inputs ended without saying that the chain is complete ([`crate::Connection::says`]).
    Ended,
    /// What a worker reports.
    Report(Report),
}

#[cfg(test)]
mod tests {
    use stash::{BatchError, Error};

    use super::*;

    #[test]
    fn a_process_that_closed_its_stash_does_not_fail_the_rendering_of_the_others_for_good() {
        let failure = Failure::of(&Error::from(BatchError::Closed));
        assert!(matches!(failure, Failure::Passing(_)), "{failure:?}");
    }

    #[test]
    fn what_the_same_rows_would_run_into_again_is_a_failure_that_lasts() {
        let too_large = BatchError::OverBudget { wanted: 2, largest: 1 };
        let failure = Failure::of(&Error::from(too_large));
        assert!(matches!(failure, Failure::Lasting(_)), "{failure:?}");
    }
}
