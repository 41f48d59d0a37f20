//! Rows of a collection and columns of a stash: how the one becomes the other, and back.
//!
//! A collection holds values of a Rust type; a stash holds Arrow columns. [`Row`] ties a type to its columns: a
//! schema that [`stash::RowSchema`] accepts, a [`RowBuilder`] that appends rows one by one, and the way back
//! from a batch. There are two ways to have it:
//!
//! - [`columns_row!`](crate::columns_row) writes builders for a struct with named fields, one typed Arrow
//!   builder a field. This is the fast way, and the usual one. A field is anything that is a [`Column`]:
//!   integers, `bool`, `String`, `Vec<u8>`, byte arrays, options of these, and what
//!   [`newtype_column!`](crate::newtype_column) or a [`Value`] of the user's adds. Such values and tuples of up
//!   to eight are rows themselves, with the columns `c0`, `c1`, …; `()` is a row without columns.
//! - [`serde_row!`](crate::serde_row) takes any type that serde can write and read as a struct, nested structs,
//!   lists and options included, at two to three times the cost for a row. What it refuses is listed there.
//!
//! Both agree on the same struct of integers, `bool`, `String` and options, so a chain that was written the one
//! way is read the other.
//!
//! Invariants:
//! - The columns of a type are the same in every process: they depend on the type alone.
//! - A roundtrip gives back equal rows, in order. Where the fields' order is that of the columns, `derive(Ord)`
//!   orders rows as the stash does (columns left to right, nothing before something); not so enums through
//!   serde, which are ordered by their names.
//! - A builder is never ragged: a row that does not fit is refused, and the rows before it and after it are what they
//!   would be without it. So it is an error of that row alone, also where serde writes something else than it reads.
//! - An estimate of bytes is never more than a few bytes a column and row off, and costs no pass over the columns.
//!
//! What this does not do: choose when a builder is full, and times and diffs; both are the writer's.

mod arrow_rows;
mod column;
mod columns;
mod cut;
mod refusal;
mod traced;
mod weight;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use stash::RowSchema;

pub use arrow_rows::{ArrowRow, ArrowRowBuilder, ArrowRows};
pub use column::{Column, Value};
pub use columns::{Fill, column_name, column_of, columns_of};
pub use refusal::RowError;
pub use traced::{SerdeRows, TracedSchema};

/// A type whose values are rows of a stash.
///
/// See the [module](self) for how to have it without writing it.
pub trait Row: Sized + 'static {
    /// What appends rows to columns.
    type Builder: RowBuilder<Self>;

    /// The row columns, in order: what a sink of such rows is declared with. Refused is a type that has no columns
    /// a stash accepts.
    fn schema() -> Result<Schema, RowError>;

    /// An empty builder for the columns of [`Row::schema`].
    fn builder() -> Result<Self::Builder, RowError>;

    /// The rows of a batch of exactly the columns of [`Row::schema`], in order. A slice of a batch is read
    /// without the rest of it.
    fn read(batch: &RecordBatch) -> Result<Vec<Self>, RowError>;

    /// Whether rows point at memory elsewhere, which [`Row::pieces`] shows.
    const POINTS: bool = false;

    /// Shows `look` the pieces of memory that the row points at: so that those of many rows can be fetched at once, and
    /// freed where they lie together. Correctness never depends on it.
    fn pieces(&self, _look: &mut impl FnMut(&[u8])) {}
}

/// Appends rows to the columns of a [`Row`].
pub trait RowBuilder<R>: Send + 'static {
    /// Appends one row. One that is refused leaves the builder as it was.
    fn append(&mut self, row: &R) -> Result<(), RowError>;

    /// About how many bytes of columns the builder holds; cheap, for it is asked after every row.
    fn bytes(&self) -> usize;

    /// How many rows were appended since the last [`RowBuilder::finish`].
    fn len(&self) -> usize;

    /// Whether there is nothing to finish.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns of all rows appended, in the schema's order. The builder is empty then and can be used again.
    fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError>;
}

/// Makes columns of rows whose type alone does not say which: engines whose schemas are known at run time have
/// such.
///
/// Rows of a [`Row`] type are encoded by [`OfType`], Arrow rows of any schema by [`ArrowRows`].
pub trait Encode<R>: Clone + Send + 'static {
    /// What appends rows to columns.
    type Builder: RowBuilder<R>;

    /// The row columns, in order.
    fn schema(&self) -> Result<Schema, RowError>;

    /// An empty builder for the columns of [`Encode::schema`].
    fn builder(&self) -> Result<Self::Builder, RowError>;

    /// [`Row::POINTS`] of these rows.
    const POINTS: bool = false;

    /// [`Row::pieces`] of one of these rows.
    fn pieces(&self, _row: &R, _look: &mut impl FnMut(&[u8])) {}
}

/// Encodes rows as their type says.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfType;

impl<R: Row> Encode<R> for OfType {
    type Builder = R::Builder;

    fn schema(&self) -> Result<Schema, RowError> {
        R::schema()
    }

    fn builder(&self) -> Result<R::Builder, RowError> {
        R::builder()
    }

    const POINTS: bool = R::POINTS;

    #[inline]
    fn pieces(&self, row: &R, look: &mut impl FnMut(&[u8])) {
        row.pieces(look);
    }
}

/// The checked columns of a row type. Refused is what a stash would refuse.
pub fn row_schema<R: Row>() -> Result<RowSchema, RowError> {
    RowSchema::new(R::schema()?.into()).map_err(RowError::unfit::<R>)
}

/// Whether rows of this type are those of a sink with `schema`; dictionaries count as their values. The error
/// names the first column that differs.
pub fn check_schema<R: Row>(schema: &RowSchema) -> Result<(), RowError> {
    check_encoded::<R, _>(&OfType, schema)
}

/// The same of rows that are encoded in another way than by their type.
pub fn check_encoded<R, E: Encode<R>>(encode: &E, schema: &RowSchema) -> Result<(), RowError> {
    let ours = RowSchema::new(encode.schema()?.into()).map_err(RowError::unfit::<R>)?;
    if ours == *schema {
        return Ok(());
    }
    let (ours, theirs) = (ours.row_schema().fields(), schema.row_schema().fields());
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let told = |field: Option<&arrow::datatypes::FieldRef>| {
        field.map_or_else(|| "no column".to_owned(), |field| refusal::tell(field))
    };
    Err(RowError::OtherSchema {
        row: std::any::type_name::<R>(),
        position: at,
        ours: told(ours.get(at)),
        theirs: told(theirs.get(at)),
    })
}

#[cfg(test)]
mod tests;
