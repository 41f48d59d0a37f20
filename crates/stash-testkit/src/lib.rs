//! Fault stores, scenarios and oracles for the tests of Stash. Never a normal dependency.
//!
//! [`FaultStore`] makes any store unreliable: by a [`FaultPlan`] that is seeded or scripted, and by [`Gate`]s
//! that hold an operation while a test acts. [`cancel_at_every_poll`] drops a call at every place where it waits;
//! [`YieldingStore`] and [`YieldingCatalog`] make more of them. [`servers`] starts real
//! ones; a [`FaultProxy`] stands before an object store, a [`TcpProxy`] before a
//! PostgreSQL. [`peak_memory`] is what a process weighed at the most.

mod background;
mod cancel;
mod fault_store;
mod gate;
mod memory;
mod plan;
pub mod proxy;
pub mod servers;
mod tcp_proxy;
mod yielding;

pub use cancel::{Polled, cancel_at_every_poll, poll_times};
pub use fault_store::{Counts, FaultStore};
pub use gate::{Gate, Point};
pub use memory::{peak_memory, resident_memory};
pub use plan::{Fault, FaultPlan, FaultRates, Op};
pub use proxy::FaultProxy;
pub use tcp_proxy::{At, TcpProxy};
pub use yielding::{YieldingCatalog, YieldingStore};
