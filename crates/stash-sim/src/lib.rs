//! The simulator: the real code over a simulated store, network, clock and catalog, by seed.
//!
//! A [`run`] is single-threaded and takes no real time: one tokio runtime whose time is paused, so that time goes on only
//! when every task waits. All choices come from one seed (`chance`), so the same seed gives the same history, down to
//! its hash. What runs is the product: `stash`, `stash-batch`, `stash-chain`, `stash-part`; simulated are
//!
//! - the store (`store`): delays, the four cases of happened and reported, PUTs that land late, deletes that fail key by
//!   key, listings that leave out what is new, uploads that dead processes left;
//! - the catalog: [`catalog::ModelCatalog`] is the truth, and each process has its own way to it (`link`): transactions
//!   interleave, replies are lost, outages;
//! - the network between the processes of a replica (`network`), and their lives (`life`).
//!
//! Actors (`replica`, `consumer`, `source`, `housekeeping`) do what an engine and its users would. What must come
//! of it is computed by an `oracle` from the `feed` alone. The `watch` asks the invariants around every effect.
//!
//! [`run`]: run()

pub mod catalog;
mod chance;
mod clock;
mod consumer;
mod feed;
mod history;
mod housekeeping;
mod input;
pub mod invariants;
mod life;
mod link;
mod network;
mod oracle;
mod process;
mod rendering;
mod replica;
mod run;
mod schedule;
mod signal;
mod sink;
mod source;
mod store;
mod watch;
mod world;

pub use history::{Event, hash_of};
pub use run::{Report, Violated, run, run_many, run_schedule};
pub use schedule::{ConsumerShape, Ending, Rates, ReplicaShape, Schedule};
