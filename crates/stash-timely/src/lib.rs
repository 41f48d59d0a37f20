//! Sinks and sources for timely and differential dataflow.

pub mod batch;
mod connection;
mod error;
mod held;
pub mod hold;
mod message;
mod minder;
mod replica;
pub mod rows;
mod scan;
mod sink;
pub mod source;
mod token;
mod write;

pub use connection::{Background, Connected, Connection, SinkConfig};
pub use error::SinkError;
pub use hold::Hold;
pub use message::Stop;
pub use replica::{Outcome, Place, RENDERINGS_MAX, Replica};
pub use rows::{Row, RowBuilder, RowError};
pub use sink::{no_errors, stash_arranged, stash_sink, stash_sink_with};
pub use source::{Acknowledge, SourceError, SourceOptions, SourceStatus, SourceToken, Start, stash_source};
pub use token::{HeldUse, HeldWatch, SinkStatus, SinkToken};

/// The version of Arrow that columns are made of, as `stash` has it.
pub use stash::arrow;
