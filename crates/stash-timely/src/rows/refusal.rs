//! Why rows and columns do not fit one another.

use arrow::datatypes::{DataType, Field};

/// What went wrong between rows and columns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The type has columns that a stash does not take.
    #[error("rows of type {row} have no columns that a stash takes; see the cause, and change the type")]
    Unfit {
        /// The type.
        row: &'static str,
        /// What is refused, with the column.
        source: stash::PartError,
    },
    /// Serde cannot tell the columns of the type.
    #[error("rows of type {row} have no columns: {what}")]
    Untraced {
        /// The type.
        row: &'static str,
        /// What is in the way, and what to do.
        what: String,
    },
    /// The rows of a sink are of another type.
    #[error("rows of type {row} have {ours} where the sink has {theirs}, as column number {position}")]
    OtherSchema {
        /// The type.
        row: &'static str,
        /// The first column that differs, from 0 on.
        position: usize,
        /// What the type has there.
        ours: String,
        /// What the sink has there.
        theirs: String,
    },
    /// A batch does not have the columns it was to be read with.
    #[error(
        "the batch has {found} where column {column:?} of {wanted} belongs; read it with its own row type"
    )]
    OtherColumn {
        /// The column that was to be read.
        column: String,
        /// Its type.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// A batch does not have as many columns as the rows.
    #[error("the batch has {found} columns and the rows have {wanted}; take off those of time and diff")]
    OtherCount {
        /// How many columns the rows have.
        wanted: usize,
        /// How many the batch has.
        found: usize,
    },
    /// A column holds nothing where the row needs a value.
    #[error("column {column:?} holds nulls: make the field an option")]
    Null {
        /// The column.
        column: String,
    },
    /// The builder cannot take the row as well.
    #[error(
        "a row of {bytes} bytes does not fit behind {held} bytes: a builder holds at most {max}; finish it before"
    )]
    Full {
        /// The row, estimated.
        bytes: usize,
        /// What the builder holds, estimated.
        held: usize,
        /// What it can hold.
        max: usize,
    },
    /// Arrow's row format does not take the columns or the row.
    #[error("the columns have no row format: {what}")]
    Format {
        /// What is refused.
        what: String,
    },
    /// Serde wrote or read something that does not fit the columns traced from the type.
    #[error("rows of type {row} do not fit their own columns: {what}")]
    Serde {
        /// The type.
        row: &'static str,
        /// What happened.
        what: String,
    },
    /// Rows that were appended before one that did not fit are gone, and so is the builder.
    #[error("rows of type {row} are lost behind one that did not fit: {what}; report this")]
    Lost {
        /// The type.
        row: &'static str,
        /// Why they could not be kept.
        what: String,
    },
}

impl RowError {
    pub(super) fn unfit<R>(source: stash::PartError) -> RowError {
        RowError::Unfit { row: std::any::type_name::<R>(), source }
    }

    /// Whether it is about the one row that was appended: nothing else is wrong with it, and the builder goes on.
    pub(crate) fn is_of_one_row(&self) -> bool {
        !matches!(self, RowError::Full { .. } | RowError::Lost { .. })
    }

    pub(super) fn serde<R>(error: impl ToString) -> RowError {
        RowError::Serde { row: std::any::type_name::<R>(), what: error.to_string() }
    }
}

/// A column in words.
pub(super) fn tell(field: &Field) -> String {
    format!("column {:?} of {}", field.name(), told_type(field.data_type(), field.is_nullable()))
}

/// A type in words.
pub(super) fn told_type(data_type: &DataType, nullable: bool) -> String {
    if nullable { format!("{data_type} or null") } else { data_type.to_string() }
}
