//! The minter chooses which times the next batch of an incarnation covers.
//!
//! - The snapshot stands alone: the first description is `[as-of, as-of + 1)`. After a re-render it is
//!   covered from birth, and costs nothing.
//! - Descriptions are contiguous (I1), cut where the frontier happens to stand. Replicas cut differently.
//! - At most so many are open; when a slot is free again, the next one takes the whole frontier. So a slow
//!   store makes batches larger, never more numerous.
//! - The last description has an empty upper only if the chain may complete ([`ChainRules`]); else an empty
//!   frontier ends the incarnation at its last finite upper.
//!
//! The minter knows nothing of shares: who merges says [`Minter::resolved`] when a batch had its outcome.

use std::collections::BTreeSet;

use stash_types::{Description, Frontier};

use crate::{ChainError, ChainRules};

/// How many descriptions of an incarnation may be open at once, unless configured otherwise.
///
/// Each open one costs every worker a sorted run and the merge a few words per worker; 16 covers the
/// latency of a store at one batch per 10 ms or so.
pub const DESCRIPTIONS_IN_FLIGHT_MAX: usize = 16;

/// A minted description, as it is broadcast to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minted {
    /// Which times the batch covers.
    pub description: Description,
    /// The chain's upper as the minter knew it, perhaps stale: times below it need not be written, since
    /// the upper only rises and they would be trimmed away.
    pub floor: Frontier,
}

/// What the minter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mint {
    /// A new description; broadcast it, then ask again: the snapshot may be followed at once.
    Minted(Minted),
    /// The frontier has not passed the next lower; ask when it has moved.
    NotYet,
    /// Too many are open; ask when one was resolved.
    InFlight,
    /// The input ended without completing the chain: the incarnation ends at its last finite upper.
    Ended,
    /// The last description is minted; none follows.
    Complete,
}

impl Mint {
    /// The description that was minted, if one was.
    pub fn minted(self) -> Option<Minted> {
        match self {
            Mint::Minted(minted) => Some(minted),
            Mint::NotYet | Mint::InFlight | Mint::Ended | Mint::Complete => None,
        }
    }
}

/// Chooses the descriptions of one incarnation.
///
/// ```
/// use stash_chain::{ChainRules, DESCRIPTIONS_IN_FLIGHT_MAX, Mint, Minter};
/// use stash_types::Frontier;
///
/// let rules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };
/// let mut minter = Minter::new(rules, 5, DESCRIPTIONS_IN_FLIGHT_MAX);
/// let mut minted = Vec::new();
/// while let Mint::Minted(next) = minter.mint(Frontier::at(9), Frontier::at(5))? {
///     minted.push(next.description.to_string());
/// }
/// assert_eq!(minted, ["[5, 6)", "[6, 9)"]);
/// # Ok::<(), stash_chain::ChainError>(())
/// ```
///
/// - `next` is the upper of what was minted last, at first the as-of.
/// - `open` holds what was minted and is not resolved, at most `in_flight_max` of them.
#[derive(Clone, Debug)]
pub struct Minter {
    rules: ChainRules,
    as_of: Frontier,
    next: Frontier,
    frontier: Frontier,
    floor: Frontier,
    in_flight_max: usize,
    open: BTreeSet<Description>,
}

impl Minter {
    /// A minter for an incarnation granted `as_of`. An `in_flight_max` of 0 is read as 1, since nothing
    /// would ever be minted.
    pub fn new(rules: ChainRules, as_of: u64, in_flight_max: usize) -> Minter {
        Minter {
            rules,
            as_of: Frontier::at(as_of),
            next: Frontier::at(as_of),
            frontier: Frontier::MIN,
            floor: Frontier::MIN,
            in_flight_max: in_flight_max.max(1),
            open: BTreeSet::new(),
        }
    }

    /// Mints the next description, if `frontier` (the minting worker's input frontier) allows one.
    ///
    /// `floor` is the chain's upper as far as it is known here; a staler one than before is ignored.
    pub fn mint(&mut self, frontier: Frontier, floor: Frontier) -> Result<Mint, ChainError> {
        if frontier < self.frontier {
            return Err(ChainError::FrontierMovedBack { before: self.frontier, now: frontier });
        }
        self.frontier = frontier;
        self.floor = self.floor.max(floor);
        let frontier = self.rules.read(frontier);
        if self.next.is_empty() {
            return Ok(Mint::Complete);
        }
        if frontier.is_empty() && !self.rules.may_complete() {
            return Ok(Mint::Ended);
        }
        let upper = if self.next == self.as_of { self.snapshot_upper() } else { frontier };
        if frontier < upper {
            return Ok(Mint::NotYet);
        }
        let Some(description) = Description::new(self.next, upper) else { return Ok(Mint::NotYet) };
        if self.open.len() >= self.in_flight_max {
            return Ok(Mint::InFlight);
        }
        self.open.insert(description);
        self.next = description.upper();
        Ok(Mint::Minted(Minted { description, floor: self.floor }))
    }

    /// Frees the slot of a description whose batch had its outcome: accepted, trimmed or dropped.
    pub fn resolved(&mut self, description: Description) -> Result<(), ChainError> {
        if self.open.remove(&description) { Ok(()) } else { Err(ChainError::NotOpen { description }) }
    }

    /// The descriptions that are open, in order.
    pub fn open(&self) -> impl Iterator<Item = Description> + '_ {
        self.open.iter().copied()
    }

    /// Where the next description begins; empty when the last one is minted.
    pub fn next(&self) -> Frontier {
        self.next
    }

    fn snapshot_upper(&self) -> Frontier {
        self.rules.read(Frontier::at(self.as_of.as_u64().saturating_add(1)))
    }
}

/// The times of `minted` that a worker must write: `max(lower, floor) ≤ time < min(upper, up_to)`. `None` if
/// there are none, as for a snapshot covered from birth: the worker reports `Empty` without looking. Dataflow
/// errors are treated alike: one outside these times is not reported.
pub fn writes(minted: Minted, rules: ChainRules) -> Option<Description> {
    let Minted { description, floor } = minted;
    Description::new(description.lower().max(floor), description.upper().min(rules.up_to))
}

/// Whether a worker whose own input frontier is `frontier` has all of `minted` and may report its share.
pub fn ready(frontier: Frontier, minted: Minted, rules: ChainRules) -> bool {
    rules.read(frontier) >= minted.description.upper()
}

#[cfg(test)]
mod tests;
