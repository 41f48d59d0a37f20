//! The immutable rules of a sink's chain: where it starts, and how it may end.
//!
//! Complete is said, never inferred: a dataflow that stops also closes its inputs, and its frontier
//! becomes empty. So the empty frontier completes a chain only if the sink has an `up_to`, or was
//! declared to seal with its input.

use stash_types::Frontier;

/// What was declared of a sink once and for all, as far as its chain cares.
///
/// - `as_of` is a time, so below `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRules {
    /// The original as-of: the chain's first time, at which its snapshot stands.
    pub as_of: u64,
    /// Times at or after this are not wanted: reaching it completes the chain. Empty for no bound.
    pub up_to: Frontier,
    /// Whether an empty input frontier completes the chain.
    pub seals: bool,
}

impl ChainRules {
    /// How minter and workers read their frontier: at or after `up_to` it is empty.
    pub fn read(self, frontier: Frontier) -> Frontier {
        if frontier >= self.up_to { Frontier::EMPTY } else { frontier }
    }

    /// Whether an upper may ever be empty: `up_to` is finite, or the sink seals.
    pub fn may_complete(self) -> bool {
        self.seals || !self.up_to.is_empty()
    }

    /// The chain's first lower.
    pub fn start(self) -> Frontier {
        Frontier::at(self.as_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontier_that_reached_up_to_is_read_as_empty() {
        let rules = ChainRules { as_of: 3, up_to: Frontier::at(9), seals: false };
        assert_eq!(rules.read(Frontier::at(8)), Frontier::at(8));
        assert_eq!(rules.read(Frontier::at(9)), Frontier::EMPTY);
        assert_eq!(rules.read(Frontier::EMPTY), Frontier::EMPTY);
    }

    #[test]
    fn without_up_to_only_the_empty_frontier_is_empty_and_only_a_seal_completes() {
        let rules = ChainRules { as_of: 3, up_to: Frontier::EMPTY, seals: false };
        assert_eq!(rules.read(Frontier::at(u64::MAX - 1)), Frontier::at(u64::MAX - 1));
        assert!(!rules.may_complete());
        assert!(ChainRules { seals: true, ..rules }.may_complete());
        assert!(ChainRules { up_to: Frontier::at(4), ..rules }.may_complete());
    }
}
