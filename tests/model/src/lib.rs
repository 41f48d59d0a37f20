//! The explicit-state model of cutover and ownership: within its bounds, everything that can happen is tried.
//!
//! - The *decisions* are the real ones of `stash-chain`: minting, granting, deciding, applying, keeping, judging, and
//!   the share merge. What surrounds them in the product, the catalog's transactions, the replicas' processes, the
//!   store, is modelled here, with every step that another may come between as a step of its own.
//! - The *properties* are the real predicates of [`stash_chain::invariants`], by name, in every state and of every
//!   step; and what must have been reached, so that none holds for want of trying.
//! - A [`Mutant`](stash_types::fault::Mutant) is the same world with one wrapper that lies. Each must be found out by
//!   the invariant named for it.
//!
//! What it does not speak of: bytes (I22), other sinks (I23), memory (I24), slots (I25), and numbers beyond its bounds;
//! for those without bounds see `tests/proof`.

#![warn(missing_docs)]

pub mod action;
pub mod catalog;
pub mod check;
pub mod cleanup;
pub mod config;
pub mod merge;
pub mod mutants;
pub mod progress;
pub mod properties;
pub mod protocol;
pub mod replica;
pub mod state;
pub mod symmetry;
pub mod tell;
pub mod world;

#[cfg(test)]
mod tests;
