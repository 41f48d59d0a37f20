//! What can go wrong when a sink is connected or rendered.

use std::ops::Range;

use stash::IncarnationId;

use crate::rows::RowError;

/// Why a sink cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The dataflow's workers are not those that the connection was opened for.
    #[error(
        "sink {sink}: worker {worker} of {peers} asks for a connection of workers {local:?} of {launched}: give the \
         launch the workers of the timely configuration"
    )]
    OtherWorkers {
        /// The sink's name.
        sink: String,
        /// The worker that asked, of all.
        worker: usize,
        /// Workers of the dataflow.
        peers: usize,
        /// Workers of the launch.
        launched: u32,
        /// The launch's workers in this process.
        local: Range<u32>,
    },
    /// The rendering is over.
    #[error("sink {sink}: incarnation {incarnation} has stopped: open a new connection, and render again")]
    Stopped {
        /// The sink's name.
        sink: String,
        /// The incarnation.
        incarnation: IncarnationId,
    },
    /// Renderings in a row stopped without moving the chain.
    #[error("sink {sink}: {renderings} renderings in a row moved nothing, the last because: {reason}")]
    NoProgress {
        /// The sink's name.
        sink: String,
        /// How many.
        renderings: u32,
        /// Why the last one stopped.
        reason: String,
    },
    /// A rendering stopped for a reason that no other rendering mends.
    #[error("sink {sink} cannot be written: {reason}")]
    Failed {
        /// The sink's name.
        sink: String,
        /// Why.
        reason: String,
    },
    /// The rows cannot be columns.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The stash refused or failed.
    #[error(transparent)]
    Stash(#[from] stash::Error),
}
