//! Sinks and sources for timely and differential dataflow: a collection into a stash, a chain into a collection.
//!
//! [`stash_sink`] puts a differential collection into a sink, [`stash_arranged`] an arrangement; [`stash_source`] makes a
//! collection of a chain. A [`Connection`] is a process's part in one rendering of a sink, and [`Replica`] keeps sinks
//! rendered: when one stops in a way that another rendering mends, it renders again, alike on all workers.
//!
//! ```
//! use differential_dataflow::input::Input;
//! use stash::{SinkSpec, Stash};
//! use stash_timely::{Background, Outcome, Place, Replica, Row, columns_row, no_errors, stash_sink};
//!
//! #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
//! struct Count {
//!     word: String,
//!     count: i64,
//! }
//! columns_row!(Count { word: String, count: i64 });
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?; // beside the workers: it uploads, merges and offers
//! let stash = runtime.block_on(Stash::open("memory://"))?;
//! let sink = runtime.block_on(stash.declare_sink(SinkSpec::new("counts", Count::schema()?)?.sealing()))?;
//!
//! let background = Background::new(runtime.handle().clone(), 2);
//! let replica = Replica::new("replica-a", stash.draw_launch(), Place::alone(2), &background);
//! let ended = timely::execute(timely::Config::process(2), move |worker| {
//!     replica.keep(worker, &sink, |worker, connection| {
//!         let (input, token) = worker.dataflow(|scope| {
//!             let (input, counts) = scope.new_collection::<Count, isize>();
//!             stash_sink(counts, no_errors(scope), connection).map(|token| (input, token))
//!         })?;
//!         let mut input = Some(input);
//!         let first = worker.index() == 0;
//!         // Called between the worker's steps: here the input is fed and ends, which completes a sealing sink.
//!         let feed = move |_: &mut timely::worker::Worker| {
//!             if let Some(mut input) = input.take() {
//!                 if first {
//!                     input.insert(Count { word: "hello".to_owned(), count: 1 });
//!                 }
//!                 input.advance_to(1);
//!             }
//!         };
//!         Ok((token, feed))
//!     })
//! })?;
//! for outcome in ended.join() {
//!     assert_eq!(outcome?.expect("kept to its end"), Outcome::Complete);
//! }
//! runtime.block_on(stash.close())?;
//! # Ok(()) }
//! ```
//!
//! - Times are `u64` below `u64::MAX`; diffs are what [`batch::Multiplicity`] says.
//! - The caller gives the runtime and the timely configuration; nothing here starts threads of its own.
//! - What a caller renders has to begin at the connection's as-of, with all before it accumulated there (I9), and its
//!   inputs have to be kept from [`SinkToken::hold`] on (I10).
//! - A row becomes columns by [`rows`]; nothing here looks into a row otherwise.
//! - An error of the dataflow is what the error collection, a projection that fails and rows that do not fit their columns
//!   sum up to, by time and message, over all workers: what one takes back that another said is none. The message of a row
//!   that does not fit shows the row, so that two of them are two errors; they are told apart by what `Debug` writes.
//! - What another rendering may mend stops a rendering as [`Stop::Reopen`]; what none mends (a row that no part can take,
//!   columns that cannot be built) as [`Stop::Failed`], at once and by name.

pub mod batch;
mod connection;
mod error;
mod errors;
mod held;
pub mod hold;
mod message;
mod minder;
mod remains;
mod replica;
pub mod rows;
mod scan;
mod sink;
pub mod source;
mod token;
mod waits;
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
