//! Fault stores, scenarios and oracles for the tests of Stash. Never a normal dependency.
//!
//! [`FaultStore`] makes any store unreliable: by a [`FaultPlan`] that is seeded or scripted, and by [`Gate`]s
//! that hold an operation while a test acts.

mod cancel;
mod fault_store;
mod gate;
mod plan;

pub use cancel::{Polled, poll_times};
pub use fault_store::{Counts, FaultStore};
pub use gate::{Gate, Point};
pub use plan::{Fault, FaultPlan, FaultRates, Op};
