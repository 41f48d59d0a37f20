//! What can go wrong between bytes and updates. Errors here know no keys: whoever holds the part or
//! the share adds its name.
//!
//! [`PartError::Misuse`], [`PartError::TooLarge`] and [`PartError::DiffOverflow`] speak of the call and
//! its data; [`PartError::Corrupt`] and [`PartError::Version`] of bytes; nothing here is worth a retry.

use arrow::error::ArrowError;
use parquet::errors::ParquetError;
use stash_types::SchemaFingerprint;

/// Why updates could not be made into bytes, or bytes into updates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The call or its data break a rule; the text says which and what to do.
    #[error("{0}")]
    Misuse(String),
    /// The batch or part has another schema than the one it is used with.
    #[error("schema mismatch: {0}")]
    SchemaMismatch(String),
    /// The bytes were written with another row schema.
    #[error("written with schema {found}, wanted {wanted}")]
    WrongSchema {
        /// The schema asked for.
        wanted: SchemaFingerprint,
        /// The schema that the writer declared.
        found: SchemaFingerprint,
    },
    /// Equal (row, time) sum to more than an `i64` holds.
    #[error("the diffs of one row at time {time} sum to {sum}, which is beyond i64")]
    DiffOverflow {
        /// The time of the row.
        time: u64,
        /// The sum.
        sum: i128,
    },
    /// A run's chunk begins before its previous chunk ended.
    #[error("run {run} is out of order: a chunk begins before the previous one ended")]
    OutOfOrder {
        /// The run at fault.
        run: usize,
    },
    /// Something is larger than it may be.
    #[error("{what} has {bytes} bytes, more than {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The bytes are of a format or order this build does not know.
    #[error("written with {what} version {found:?}; this build reads {known}: upgrade this process first")]
    Version {
        /// Which version.
        what: &'static str,
        /// What the bytes say.
        found: String,
        /// What this build knows.
        known: u32,
    },
    /// The bytes are not what was written.
    #[error("corrupt: {what}")]
    Corrupt {
        /// What was found wrong.
        what: String,
    },
    /// The columnar library refused well-formed input.
    #[error("cannot {doing}: {why}")]
    Columns {
        /// What was being done.
        doing: &'static str,
        /// The library's words.
        why: String,
    },
}

impl PartError {
    /// Whether the bytes themselves are at fault: they were altered, cut short or written by another version.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, PartError::Corrupt { .. })
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> PartError {
        PartError::Corrupt { what: what.into() }
    }

    pub(crate) fn arrow(doing: &'static str) -> impl Fn(ArrowError) -> PartError {
        move |error| PartError::Columns { doing, why: error.to_string() }
    }

    pub(crate) fn parquet(doing: &'static str) -> impl Fn(ParquetError) -> PartError {
        move |error| PartError::Columns { doing, why: error.to_string() }
    }
}

/// Runs `f` over bytes that were not ours to shape; a panic in there is reported as damage.
pub(crate) fn guarded<T>(
    what: &'static str,
    f: impl FnOnce() -> Result<T, PartError>,
) -> Result<T, PartError> {
    // SUBTLE: whatever `f` borrowed is only read, and its own state is dropped with the panic.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = (panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(PartError::corrupt(format!("{what}: the decoder panicked: {text}")))
    })
}
