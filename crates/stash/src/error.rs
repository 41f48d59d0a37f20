//! One error for callers, and what to do about it.

use stash_batch::{Absence, BatchError};
use stash_blob::{BlobError, ClaimError};
use stash_catalog::CatalogError;
use stash_chain::{ChainError, Remedy};
use stash_part::PartError;
use stash_types::{
    CatalogId, Description, IdError, IncarnationId, KeyError, NameError, SinkId, wire::WireError,
};

use crate::{PlanError, Tally};

/// What a call of this library gives.
pub type Result<T> = std::result::Result<T, Error>;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The same call may succeed later.
    Retry,
    /// This incarnation or session is over: open a new one.
    Reopen,
    /// The call does not fit: fix it.
    FixCall,
    /// What was asked for is not there, for the reason given.
    Absent,
    /// Data or catalog need an operator: stop.
    Repair,
    /// A fault of Stash or of its environment that nothing else describes: report it.
    Report,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call does not fit.
    #[error("{what}")]
    InvalidUsage {
        /// What does not fit, with the frontiers or ids at fault, and what to do.
        what: String,
    },
    /// There is no stash where it was to be opened, and it was not to be created.
    #[error("there is no stash at {url}: {why}")]
    NoStash {
        /// Where it was looked for.
        url: String,
        /// What is missing.
        why: String,
    },
    /// The blobs belong to a catalog that is not where it was looked for. None is made in its place.
    #[error(
        "{blobs} belongs to catalog {catalog}, and there is none at {place}: restore its backup there, connect to it where it is, \
         or read with `stash-admin salvage` what the parts hold"
    )]
    CatalogLost {
        /// Where the blobs are.
        blobs: String,
        /// Their catalog.
        catalog: CatalogId,
        /// Where it was looked for.
        place: String,
    },
    /// The protocol refuses a message or offer.
    #[error("sink {sink}: {source}")]
    Chain {
        /// The sink.
        sink: SinkId,
        /// Why.
        source: ChainError,
    },
    /// The incarnation ended: a worker failed. It is closed in the catalog; open a new one.
    #[error(
        "incarnation {incarnation} of sink {sink} ended at description {description}: {reason}; open a new incarnation"
    )]
    Ended {
        /// The sink.
        sink: SinkId,
        /// The incarnation.
        incarnation: IncarnationId,
        /// Where it failed.
        description: Description,
        /// What happened.
        reason: String,
    },
    /// The dataflow said that the sink is going away.
    #[error("sink {sink} is going away")]
    GoingAway {
        /// The sink.
        sink: SinkId,
    },
    /// What was asked for is not there.
    #[error(transparent)]
    Absent(Absence),
    /// Writing or reading a batch failed.
    #[error(transparent)]
    Batch(BatchError),
    /// The catalog refused or failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The prefix cannot be used.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The columns cannot be used.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A name cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An id cannot be read.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A message cannot be read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A file cannot be used as the plan of a sweep.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An audit's own count is wrong.
    #[error(
        "the audit listed {} entries of {} bytes and accounted for {} of {} bytes: report this",
        listed.entries, listed.bytes, classed.entries, classed.bytes
    )]
    Unaccounted {
        /// What the listing showed.
        listed: Tally,
        /// What the classes sum up to.
        classed: Tally,
    },
}

impl From<BatchError> for Error {
    fn from(error: BatchError) -> Error {
        match error {
            BatchError::Absent(absence) => Error::Absent(absence),
            BatchError::Catalog(error) => Error::Catalog(error),
            BatchError::Blob(error) => Error::Blob(error),
            BatchError::InvalidUsage { what } => Error::InvalidUsage { what },
            other => Error::Batch(other),
        }
    }
}

impl Error {
    pub(crate) fn no_stash(url: impl ToString, why: String) -> Error {
        Error::NoStash { url: url.to_string(), why }
    }

    pub(crate) fn lost_catalog(blobs: String, catalog: CatalogId, place: impl ToString) -> Error {
        Error::CatalogLost { blobs, catalog, place: place.to_string() }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::InvalidUsage { .. } | Error::NoStash { .. } => ErrorKind::FixCall,
            Error::Name(_) | Error::Key(_) | Error::Id(_) => ErrorKind::FixCall,
            Error::Chain { source: ChainError::SinkDropped, .. } => ErrorKind::Absent,
            Error::Chain { source, .. } => match source.remedy() {
                Remedy::FixTheCall => ErrorKind::FixCall,
                Remedy::Reopen => ErrorKind::Reopen,
                Remedy::Stop => ErrorKind::Repair,
            },
            Error::CatalogLost { .. } => ErrorKind::Repair,
            Error::Ended { .. } => ErrorKind::Reopen,
            Error::GoingAway { .. } => ErrorKind::Absent,
            Error::Absent(Absence::Lost { .. } | Absence::Corrupt { .. }) => ErrorKind::Repair,
            Error::Absent(_) => ErrorKind::Absent,
            Error::Batch(error) => match error {
                BatchError::OverBudget { .. } | BatchError::RowTooLarge { .. } | BatchError::Part { .. } => {
                    ErrorKind::FixCall
                }
                BatchError::SharedFailed { lasting: true, .. } => ErrorKind::FixCall,
                BatchError::SharedFailed { .. } | BatchError::Ended { .. } | BatchError::Closed => {
                    ErrorKind::Reopen
                }
                BatchError::Scratch { .. } => ErrorKind::Retry,
                _ => ErrorKind::Report,
            },
            Error::Catalog(error) => match error {
                CatalogError::InvalidUsage(_) => ErrorKind::FixCall,
                CatalogError::IncarnationClosed { .. }
                | CatalogError::SessionFenced { .. }
                | CatalogError::Closed { .. } => ErrorKind::Reopen,
                CatalogError::SinkDropped { .. } => ErrorKind::Absent,
                CatalogError::Newer { .. } => ErrorKind::FixCall,
                CatalogError::CatalogBehind { .. } | CatalogError::Damaged { .. } => ErrorKind::Repair,
                CatalogError::Determinate { retry: true, .. } | CatalogError::Indeterminate { .. } => {
                    ErrorKind::Retry
                }
                CatalogError::Determinate { .. } => ErrorKind::Report,
            },
            Error::Blob(error) => match error {
                BlobError::Determinate { retry: true, .. } | BlobError::Indeterminate { .. } => {
                    ErrorKind::Retry
                }
                BlobError::NotFound { .. } => ErrorKind::Absent,
                BlobError::Denied { .. } => ErrorKind::FixCall,
                BlobError::Determinate { .. } => ErrorKind::Report,
            },
            Error::Claim(_) | Error::Part(_) => ErrorKind::FixCall,
            Error::Wire(_) | Error::Plan(_) => ErrorKind::FixCall,
            Error::Unaccounted { .. } => ErrorKind::Report,
        }
    }
}
