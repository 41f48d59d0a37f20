//! What can go wrong while a batch is written or read.

use stash_blob::BlobError;
use stash_catalog::CatalogError;
use stash_part::PartError;

use stash_types::SinkId;

use crate::Absence;

/// What went wrong, by what the caller may do next.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Fix the call.
    #[error("{what}")]
    InvalidUsage {
        /// What does not fit, with the frontiers or ids at fault.
        what: String,
    },
    /// More memory is wanted at once than the budget can ever give.
    #[error(
        "{wanted} bytes of memory are needed at once, but the budget gives at most {largest}: raise memory_bytes"
    )]
    OverBudget {
        /// Bytes wanted.
        wanted: u64,
        /// The largest that can be granted.
        largest: u64,
    },
    /// A single row takes more than a sixteenth of the memory: its run could not be merged with another.
    #[error(
        "sink {sink}: a row at time {time} has {bytes} bytes, a row may have {largest}: raise memory_bytes"
    )]
    RowTooLarge {
        /// The sink.
        sink: SinkId,
        /// The row's time.
        time: u64,
        /// Its bytes.
        bytes: u64,
        /// The largest a row may have.
        largest: u64,
    },
    /// What was asked for is not there, for a known reason.
    #[error(transparent)]
    Absent(#[from] Absence),
    /// Updates cannot be sorted, encoded or decoded.
    #[error("{context}: {source}")]
    Part {
        /// The key or description.
        context: String,
        /// What the codec says.
        source: PartError,
    },
    /// The store failed, after the tries allowed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Another worker's failure took the shared batch.
    #[error("{what}")]
    SharedFailed {
        /// What happened to it.
        what: String,
        /// Whether it would happen again ([`BatchError::lasts`]).
        lasting: bool,
    },
    /// Local scratch files failed.
    #[error("scratch file: {what}")]
    Scratch {
        /// What happened.
        what: String,
    },
    /// The process was closed, and begins nothing any more.
    #[error("this stash was closed: open it again")]
    Closed,
    /// Background work ended early: the process is closing, or a task panicked.
    #[error("{what} ended early")]
    Ended {
        /// What ended.
        what: &'static str,
    },
}

impl BatchError {
    /// Whether the same call with the same updates would fail again, whoever makes it and in whatever incarnation: the
    /// text says what to do first.
    pub fn lasts(&self) -> bool {
        match self {
            BatchError::InvalidUsage { .. }
            | BatchError::OverBudget { .. }
            | BatchError::RowTooLarge { .. }
            | BatchError::Part { .. } => true,
            BatchError::SharedFailed { lasting, .. } => *lasting,
            BatchError::Absent(_)
            | BatchError::Blob(_)
            | BatchError::Catalog(_)
            | BatchError::Scratch { .. }
            | BatchError::Closed
            | BatchError::Ended { .. } => false,
        }
    }

    /// Names what a codec error is about.
    pub(crate) fn part(context: impl std::fmt::Display) -> impl FnOnce(PartError) -> BatchError {
        let context = context.to_string();
        move |source| BatchError::Part { context, source }
    }
}

/// Why a shared batch, or a share, can only fail.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) what: String,
    /// As [`BatchError::lasts`].
    pub(crate) lasting: bool,
}

impl Failed {
    /// By somebody's word or death, not by what the updates are.
    pub(crate) fn passing(what: impl Into<String>) -> Failed {
        Failed { what: what.into(), lasting: false }
    }
}

impl From<&BatchError> for Failed {
    fn from(error: &BatchError) -> Failed {
        Failed { what: error.to_string(), lasting: error.lasts() }
    }
}

impl From<Failed> for BatchError {
    fn from(Failed { what, lasting }: Failed) -> BatchError {
        BatchError::SharedFailed { what, lasting }
    }
}
