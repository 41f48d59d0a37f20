//! The list of metrics against what the code emits, what the dashboard shows and what the alerts ask.
//!
//! A recorder holds for one thread here, and everything runs on that thread: so each test has a recorder of its own.

mod documents;
mod emitted;
mod health;
mod scene;
#[cfg(feature = "s3")]
mod server;
mod spans;
