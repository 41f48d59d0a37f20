//! Sinks and sources for timely and differential dataflow.
//!
//! Under construction: see the modules.

pub mod batch;
mod held;
pub mod hold;
pub mod rows;
mod scan;

/// The version of Arrow that columns are made of, as `stash` has it.
pub use stash::arrow;
