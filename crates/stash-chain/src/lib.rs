//! The protocol of Stash as pure state machines: minting, share merge, accept, trim and drop.
//!
//! Messages go in, decisions come out; there is no I/O, no clock, no async and no randomness, so that
//! the catalog, the replicas and the simulator all run the very same rules. The hops, top down:
//!
//! - [`Minter`]: which times the next batch of an incarnation covers, and [`writes`], which of them a
//!   worker really writes;
//! - [`ShareMerge`]: the shares of all workers become one [`Batch`], or come back to be deleted;
//! - [`decide`]: what becomes of a batch that is offered to its chain;
//! - [`grant`], [`check_rendering`], [`read_hold`]: where a replica may start, and what its inputs keep;
//! - [`judge`]: what a sweep may do with a key it found in the store;
//! - [`invariants`]: the promises (I1…), as predicates over plain data.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::as_conversions))]

mod chain;
mod error;
mod grant;
pub mod invariants;
mod merge;
mod minter;
#[cfg(test)]
mod oracle_tests;
mod rules;
mod sweep;

pub use chain::{Decision, Head, Offer, Outcome, Rendering, Status, Take, decide, keeps};
pub use error::{ChainError, Remedy};
pub use grant::{Grant, check_rendering, grant, read_hold};
pub use merge::{Batch, Ended, Refused, Reported, ShareMerge};
pub use minter::{DESCRIPTIONS_IN_FLIGHT_MAX, Mint, Minted, Minter, ready, writes};
pub use rules::ChainRules;
pub use sweep::{KeyFacts, Verdict, Why, judge};
