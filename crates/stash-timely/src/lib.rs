//! Sinks and sources for timely and differential dataflow.
//!
//! Under construction: see the modules.

pub mod batch;
mod held;
pub mod rows;
mod scan;
