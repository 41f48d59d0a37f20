//! The easy way: columns traced from what serde reads of a type.
//!
//! [`serde_row!`](crate::serde_row) ties a type to them. Texts become Utf8, lists List, bytes written as such
//! (not as a `Vec<u8>`, which serde writes as a list) Binary, `char` UInt32, a struct or a tuple within a row a
//! Struct, an enum whose variants hold nothing Utf8.
//!
//! Refused when the schema is asked for: a type that is no struct (make a tuple or a newtype of it a row by
//! [`columns_row!`](crate::columns_row) instead), enums with data, maps, `u128` and `i128`, types that describe
//! themselves only when they are read (`serde_json::Value`, a flattened struct), types that contain themselves,
//! and fields whose names begin with `_`.
//!
//! Not noticed: a field that is written and not read, or the other way round (`skip_deserializing`, a `with` of
//! one direction). Its columns are those that are *read*; what is written beside them is lost.

use std::{
    marker::PhantomData,
    sync::{Arc, OnceLock},
};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use serde::{Serialize, de::DeserializeOwned};
use serde_arrow::{
    ArrayBuilder,
    schema::{SchemaLike, TracingOptions},
};
use stash::RowSchema;

use super::{Fill, RowBuilder, RowError, cut::cut, weight::weigh};

/// Makes rows of a type that serde can write and read: a struct, with nested ones, lists and options as it likes.
///
/// What becomes which column, and which types are refused, is told in `rows/traced.rs`: enums with data, maps
/// and 128-bit integers are. Where it will do, [`columns_row!`](crate::columns_row) is two to three times as fast.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use stash_timely::{rows::{Row, RowBuilder}, serde_row};
/// use stash::arrow::array::RecordBatch;
///
/// #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
/// enum State { Open, Paid }
/// #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
/// struct Order {
///     id: u64,
///     state: State,
///     lines: Vec<(String, u32)>,
/// }
/// serde_row!(Order);
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let order = Order { id: 7, state: State::Paid, lines: vec![("nails".to_owned(), 100)] };
/// let mut builder = Order::builder()?;
/// builder.append(&order)?;
/// let batch = RecordBatch::try_new(Order::schema()?.into(), builder.finish()?)?;
/// assert_eq!(Order::read(&batch)?, [order]);
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! serde_row {
    ($row:ty) => {
        const _: () = {
            static TRACED: $crate::rows::TracedSchema = $crate::rows::TracedSchema::new();

            impl $crate::rows::Row for $row {
                type Builder = $crate::rows::SerdeRows<$row>;

                fn schema()
                -> ::core::result::Result<$crate::arrow::datatypes::Schema, $crate::rows::RowError> {
                    ::core::result::Result::Ok($crate::arrow::datatypes::Schema::clone(
                        TRACED.of::<$row>()?,
                    ))
                }

                fn builder() -> ::core::result::Result<Self::Builder, $crate::rows::RowError> {
                    $crate::rows::SerdeRows::new(TRACED.of::<$row>()?)
                }

                fn read(
                    batch: &$crate::arrow::array::RecordBatch,
                ) -> ::core::result::Result<::std::vec::Vec<$row>, $crate::rows::RowError> {
                    TRACED.read(batch)
                }
            }
        };
    };
}

/// The columns traced from one type, once a process.
#[derive(Debug)]
pub struct TracedSchema(OnceLock<SchemaRef>);

impl TracedSchema {
    /// Nothing traced yet.
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    pub const fn new() -> TracedSchema {
        TracedSchema(OnceLock::new())
    }

    /// The columns of `R`. A value of this type serves one row type only.
    pub fn of<R: DeserializeOwned>(&self) -> Result<&SchemaRef, RowError> {
        if let Some(traced) = self.0.get() {
            return Ok(traced);
        }
        let traced = trace::<R>()?;
        Ok(self.0.get_or_init(|| traced))
    }

    /// The rows of a batch of exactly these columns.
    pub fn read<R: DeserializeOwned>(&self, batch: &RecordBatch) -> Result<Vec<R>, RowError> {
        let traced = self.of::<R>()?;
        let (found, wanted) = (batch.num_columns(), traced.fields().len());
        if found != wanted {
            return Err(RowError::OtherCount { wanted, found });
        }
        // The types are the batch's own; what does not fit the fields is refused value by value. The labels are
        // ours: they say which struct is a tuple.
        serde_arrow::from_arrow(traced.fields(), batch.columns()).map_err(RowError::serde::<R>)
    }
}

fn trace<R: DeserializeOwned>() -> Result<SchemaRef, RowError> {
    let row = std::any::type_name::<R>();
    let options = TracingOptions::new()
        .strings_as_large_utf8(false)
        .bytes_as_large_binary(false)
        .sequence_as_large_list(false)
        .map_as_struct(false)
        .enums_without_data_as_strings(true);
    let fields = Vec::<FieldRef>::from_type::<R>(options)
        .map_err(|error| RowError::Untraced { row, what: error.to_string() })?;
    let schema = Arc::new(Schema::new(fields.iter().map(plain).collect::<Vec<_>>()));
    RowSchema::new(Arc::clone(&schema)).map_err(RowError::unfit::<R>)?;
    Ok(schema)
}

/// The field with texts in place of the dictionaries that enums are traced as: a dictionary is built anew
/// wherever its values are merged, and saves nothing there.
fn plain(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Dictionary(_, value) => (**value).clone(),
        DataType::List(item) => DataType::List(plain(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain).collect()),
        other => other.clone(),
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// Appends what serde writes of rows to the columns traced from their type.
///
/// - A row that does not fit its own columns ([`RowError::Serde`]) may have been appended to some of them before that
///   is known. They are cut to the rows before it and set aside; from then on each row is tried elsewhere first. So rows
///   that fit, as nearly all do, are written once, and columns are set aside once until they are finished.
/// - What was tried is of no use, and is emptied by rows and by bytes: beside the columns there is a MiB and a row of it at
///   most, and none once they are finished.
#[derive(Debug)]
pub struct SerdeRows<R> {
    builder: ArrayBuilder,
    /// The rows in `builder`.
    appended: usize,
    fill: Fill,
    /// The columns of the rows before the first that did not fit.
    aside: Option<Vec<ArrayRef>>,
    /// Where rows are tried, once one did not fit.
    trial: Option<Trial>,
    /// Why there are no columns any more: nothing is known of the rows that were appended.
    lost: Option<String>,
    fields: SchemaRef,
    row: PhantomData<fn(R)>,
}

/// Rows that were tried and are of no use.
#[derive(Debug)]
struct Trial {
    builder: ArrayBuilder,
    rows: usize,
    /// What they weigh.
    bytes: usize,
}

/// So many rows are tried before their columns are emptied.
const TRIED_MAX: usize = 256;
/// So many bytes are tried before their columns are emptied (I24).
const TRIED_BYTES_MAX: usize = 1 << 20;

impl Trial {
    fn new<R>(fields: &SchemaRef) -> Result<Trial, RowError> {
        Ok(Trial { builder: empty::<R>(fields)?, rows: 0, bytes: 0 })
    }

    fn fits<R: Serialize>(&mut self, row: &R, bytes: usize, fields: &SchemaRef) -> Result<(), RowError> {
        let pushed = self.builder.push(row).map_err(RowError::serde::<R>);
        self.rows += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if pushed.is_err() || self.rows >= TRIED_MAX || self.bytes >= TRIED_BYTES_MAX {
            *self = Trial::new::<R>(fields)?;
        }
        pushed
    }
}

fn empty<R>(fields: &SchemaRef) -> Result<ArrayBuilder, RowError> {
    ArrayBuilder::from_arrow(fields.fields()).map_err(RowError::serde::<R>)
}

impl<R> SerdeRows<R> {
    /// An empty builder for columns that were traced from `R`.
    pub fn new(traced: &SchemaRef) -> Result<SerdeRows<R>, RowError> {
        Ok(SerdeRows {
            builder: empty::<R>(traced)?,
            appended: 0,
            fill: Fill::default(),
            aside: None,
            trial: None,
            lost: None,
            fields: Arc::clone(traced),
            row: PhantomData,
        })
    }

    /// Sets the columns aside without the row that was begun.
    fn set_aside(&mut self) -> Result<(), RowError> {
        let mut columns = self.builder.to_marrow().map_err(RowError::serde::<R>)?;
        columns
            .iter_mut()
            .try_for_each(|column| cut(column, self.appended))
            .ok_or_else(|| RowError::serde::<R>("its columns cannot be cut to the rows before"))?;
        self.builder = empty::<R>(&self.fields)?;
        self.appended = 0;
        let columns = columns.into_iter().map(ArrayRef::try_from).collect::<Result<Vec<_>, _>>();
        let columns = columns.map_err(RowError::serde::<R>)?;
        self.aside = Some(self.behind_those_aside(columns)?);
        Ok(())
    }

    fn behind_those_aside(&mut self, columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>, RowError> {
        let Some(aside) = self.aside.take() else { return Ok(columns) };
        let both = aside.iter().zip(&columns).map(|(first, rest)| concat(&[&**first, &**rest]));
        both.collect::<Result<_, _>>().map_err(RowError::serde::<R>)
    }

    fn check(&self) -> Result<(), RowError> {
        match &self.lost {
            None => Ok(()),
            Some(what) => Err(RowError::Lost { row: std::any::type_name::<R>(), what: what.clone() }),
        }
    }
}

impl<R: Serialize + 'static> RowBuilder<R> for SerdeRows<R> {
    fn append(&mut self, row: &R) -> Result<(), RowError> {
        self.check()?;
        let mut fill = self.fill;
        let bytes = weigh(row).map_err(RowError::serde::<R>)?;
        fill.admit(bytes)?;
        if let Some(trial) = &mut self.trial {
            trial.fits(row, bytes, &self.fields)?;
        }
        if let Err(error) = self.builder.push(row) {
            let refused = RowError::serde::<R>(error);
            self.lost = self.set_aside().err().map(|error| error.to_string());
            self.trial = Some(Trial::new::<R>(&self.fields)?);
            return Err(refused);
        }
        self.fill = fill;
        self.appended += 1;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.fill.bytes()
    }

    fn len(&self) -> usize {
        self.fill.rows()
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError> {
        self.check()?;
        self.fill = Fill::default();
        self.appended = 0;
        self.trial = None;
        let columns = self.builder.to_arrow().map_err(RowError::serde::<R>)?;
        self.behind_those_aside(columns)
    }
}

#[cfg(test)]
mod tests;
