//! What the tests of Stash as a whole share: worlds, rows, oracles, and the look at what is left.
//!
//! - A [`World`] is a store that fails by plan, a catalog, and the sessions opened over them.
//! - [`Row`]s are `(key, text)`; [`Content`] is what an oracle holds: the multiplicity of each row at each time.
//! - A [`Feed`] is a changefeed that follows from a seed: what every replica computes.
//! - [`World::at_rest`] ends every test that writes: the store's listing equals the catalog's references,
//!   nothing is queued, no upload is left (I17).
//!
//! Nothing here sleeps to wait for a state. [`HANG`] only turns a hang into a failure.

mod feed;
mod replica;
mod rows;
mod world;

pub use feed::{Chance, Feed};
pub use replica::{Replica, Step};
pub use rows::{
    Content, Row, columns, content_of, delivered, delivered_until, differences, rows_in, schema, updates,
};
pub use stash_testkit::{Polled, cancel_at_every_poll, poll_times};
pub use world::{HANG, Store, World, in_time, small};
