//! The schema of rows: which columns updates carry, and how they are kept.
//!
//! A *declared* schema is what the user names. The *stored* schema is the same columns with every
//! dictionary unpacked to its values and all metadata left off, so that chunks with different
//! dictionaries merge, no key type overflows, and schemas that differ in nothing but labels are one.
//! [`RowSchema::restore`] packs a stored batch back into the declared types.
//!
//! The *full* schema is the stored columns followed by `_time` (UInt64) and `_diff` (Int64), neither null.
//! Names that begin with `_` are reserved. Types that Parquet and the row order do not both carry exactly
//! are refused by name, here and nowhere later.

use std::{collections::HashSet, fmt, sync::Arc};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use arrow::ipc;
use stash_types::{Digest, SchemaFingerprint};

use crate::error::{PartError, guarded};

/// The column that holds each update's time.
pub const TIME_COLUMN: &str = "_time";
/// The column that holds each update's diff.
pub const DIFF_COLUMN: &str = "_diff";

/// How deep types may nest; deeper ones are refused rather than recursed into.
const NESTING_MAX: usize = 16;
/// How many leaf columns a schema may have, so that a footer stays within what a reader accepts.
const LEAVES_MAX: usize = 4096;

/// The columns of a sink's rows; cheap to clone.
///
/// - No column name begins with `_`, none occurs twice.
/// - Every type round-trips exactly, dictionaries by value.
#[derive(Clone)]
pub struct RowSchema(Arc<Inner>);

struct Inner {
    declared: SchemaRef,
    row: SchemaRef,
    full: SchemaRef,
    fingerprint: SchemaFingerprint,
}

impl RowSchema {
    /// Checks `declared` and derives the stored form. Zero columns are allowed: then only how many rows
    /// there are, and when, is known.
    pub fn new(declared: SchemaRef) -> Result<RowSchema, PartError> {
        let mut names = HashSet::new();
        let mut leaves = 0;
        let mut columns = Vec::with_capacity(declared.fields().len() + 2);
        for field in declared.fields() {
            let name = field.name();
            if name.starts_with('_') {
                return Err(PartError::Misuse(format!(
                    "column {name:?} begins with an underscore, which is reserved: rename it"
                )));
            }
            if !names.insert(name.as_str()) {
                return Err(PartError::Misuse(format!("column {name:?} occurs twice: rename one of them")));
            }
            columns.push(stored_field(field, name, 0, &mut leaves)?);
        }
        if leaves > LEAVES_MAX {
            return Err(PartError::Misuse(format!(
                "the schema has {leaves} leaf columns, more than {LEAVES_MAX}: split the sink"
            )));
        }
        let fingerprint = fingerprint(&columns);
        let row = Arc::new(Schema::new(columns.clone()));
        columns.push(Arc::new(Field::new(TIME_COLUMN, DataType::UInt64, false)));
        columns.push(Arc::new(Field::new(DIFF_COLUMN, DataType::Int64, false)));
        let full = Arc::new(Schema::new(columns));
        Ok(RowSchema(Arc::new(Inner { declared, row, full, fingerprint })))
    }

    /// The schema as it was declared, with dictionaries and metadata.
    pub fn declared_schema(&self) -> &SchemaRef {
        &self.0.declared
    }

    /// The row columns as they are stored and read.
    pub fn row_schema(&self) -> &SchemaRef {
        &self.0.row
    }

    /// The row columns, then `_time` and `_diff`.
    pub fn full_schema(&self) -> &SchemaRef {
        &self.0.full
    }

    /// How many row columns there are.
    pub fn columns(&self) -> usize {
        self.0.row.fields().len()
    }

    /// Names the stored schema by content: names, types and nullability, not metadata and not which columns
    /// were dictionaries.
    pub fn fingerprint(&self) -> SchemaFingerprint {
        self.0.fingerprint
    }

    /// The declared schema as one Arrow IPC schema message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let generator = ipc::writer::IpcDataGenerator::default();
        let mut tracker = ipc::writer::DictionaryTracker::new(false);
        let options = ipc::writer::IpcWriteOptions::default();
        generator
            .schema_to_bytes_with_dictionary_tracker(&self.0.declared, &mut tracker, &options)
            .ipc_message
    }

    /// Reads what [`RowSchema::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<RowSchema, PartError> {
        let schema = guarded("schema", || {
            let damaged = |why: String| PartError::corrupt(format!("schema: {why}"));
            let message = ipc::root_as_message(bytes).map_err(|error| damaged(error.to_string()))?;
            let schema = message.header_as_schema().ok_or_else(|| damaged("not a schema message".into()))?;
            Ok(ipc::convert::fb_to_schema(schema))
        })?;
        RowSchema::new(Arc::new(schema))
    }

    /// Brings row columns of the declared or the stored types into the stored ones; no copy where nothing
    /// differs.
    pub(crate) fn store(&self, fields: &Fields, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>, PartError> {
        let wanted = self.0.row.fields();
        if fields.len() != wanted.len() || columns.len() != wanted.len() {
            return Err(PartError::SchemaMismatch(format!(
                "{} row columns were given, the schema has {}",
                fields.len(),
                wanted.len()
            )));
        }
        wanted
            .iter()
            .zip(fields)
            .zip(columns)
            .map(|((want, given), column)| {
                if given.name() != want.name() {
                    return Err(PartError::SchemaMismatch(format!(
                        "column {:?} stands where {:?} belongs",
                        given.name(),
                        want.name()
                    )));
                }
                convert(column, want.data_type(), want.name())
            })
            .collect()
    }

    /// Packs row columns of a stored batch (full or rows only) back into the declared types and metadata;
    /// `_time` and `_diff` are left off. Dictionaries are built anew: equal values, other keys. A dictionary
    /// whose key type cannot number the batch's distinct values is refused: restore a smaller slice.
    pub fn restore(&self, batch: &RecordBatch) -> Result<RecordBatch, PartError> {
        let declared = &self.0.declared;
        if batch.num_columns() < declared.fields().len() {
            return Err(PartError::SchemaMismatch(format!(
                "the batch has {} columns, the rows have {}",
                batch.num_columns(),
                declared.fields().len()
            )));
        }
        let columns = declared
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, column)| convert(column, field.data_type(), field.name()))
            .collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(declared), columns, &options)
            .map_err(|error| PartError::SchemaMismatch(error.to_string()))
    }
}

impl PartialEq for RowSchema {
    fn eq(&self, other: &RowSchema) -> bool {
        self.0.fingerprint == other.0.fingerprint
    }
}

impl Eq for RowSchema {}

impl fmt::Debug for RowSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowSchema").field(&self.0.row).finish()
    }
}

/// Casts between two types that differ only in dictionaries, nested names and metadata.
fn convert(column: &ArrayRef, to: &DataType, name: &str) -> Result<ArrayRef, PartError> {
    let from = column.data_type();
    if from == to {
        return Ok(Arc::clone(column));
    }
    if plain(from) != plain(to) {
        return Err(PartError::SchemaMismatch(format!("column {name:?} is {from}, wanted {to}")));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, to, &options)
        .map_err(|error| PartError::SchemaMismatch(format!("column {name:?} of {from} as {to}: {error}")))
}

/// A type without dictionaries, metadata and the names of list items: what decides whether a cast changes
/// nothing but the packing.
fn plain(data_type: &DataType) -> DataType {
    let item = |field: &FieldRef| Arc::new(Field::new("item", plain(field.data_type()), field.is_nullable()));
    match data_type {
        DataType::Dictionary(_, value) => plain(value),
        DataType::List(field) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(item(field), *size),
        DataType::Struct(fields) => DataType::Struct(
            fields
                .iter()
                .map(|f| Arc::new(Field::new(f.name(), plain(f.data_type()), f.is_nullable())))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// The stored form of a column or nested field at `path`.
fn stored_field(
    field: &FieldRef,
    path: &str,
    depth: usize,
    leaves: &mut usize,
) -> Result<FieldRef, PartError> {
    let data_type = stored_type(field.data_type(), path, depth, leaves)?;
    Ok(Arc::new(Field::new(field.name(), data_type, field.is_nullable())))
}

fn stored_type(
    data_type: &DataType,
    path: &str,
    depth: usize,
    leaves: &mut usize,
) -> Result<DataType, PartError> {
    let refuse = |why: &str| Err(PartError::Misuse(format!("column {path:?} is {data_type}: {why}")));
    if depth > NESTING_MAX {
        return refuse("it nests too deeply");
    }
    let mut item = |field: &FieldRef| stored_field(field, &format!("{path}.item"), depth + 1, leaves);
    let stored = match data_type {
        DataType::List(field) => DataType::List(item(field)?),
        DataType::LargeList(field) => DataType::LargeList(item(field)?),
        DataType::FixedSizeList(_, size) if *size < 1 => return refuse("lists of size zero are lost"),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(item(field)?, *size),
        DataType::Struct(fields) if fields.is_empty() => return refuse("a struct needs a field"),
        DataType::Struct(fields) => {
            let mut names = HashSet::new();
            let mut stored = Vec::with_capacity(fields.len());
            for field in fields {
                if !names.insert(field.name()) {
                    return refuse("two of its fields share a name");
                }
                stored.push(stored_field(field, &format!("{path}.{}", field.name()), depth + 1, leaves)?);
            }
            DataType::Struct(stored.into())
        }
        DataType::Dictionary(_, value) if value.is_nested() => return refuse("its values are nested"),
        // What nothing packs into a dictionary again could not be given back as it was declared.
        DataType::Dictionary(_, value)
            if matches!(
                **value,
                DataType::Boolean | DataType::Duration(_) | DataType::Dictionary(_, _) | DataType::Null
            ) =>
        {
            return refuse(&format!("such values have no dictionary: declare it as {value}"));
        }
        DataType::Dictionary(_, value) => stored_type(value, path, depth + 1, leaves)?,
        DataType::Null if depth > 0 => return refuse("a nested column of nulls is lost: leave it out"),
        // It comes back from the catalog as none, and the schema as another.
        DataType::Timestamp(_, Some(zone)) if zone.is_empty() => return refuse("an empty time zone is lost"),
        DataType::FixedSizeBinary(size) if *size < 1 => return refuse("values of no bytes are lost"),
        DataType::Time32(TimeUnit::Second | TimeUnit::Millisecond)
        | DataType::Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond) => data_type.clone(),
        DataType::Decimal32(precision, scale) => decimal(data_type, *precision, *scale, 9, path)?,
        DataType::Decimal64(precision, scale) => decimal(data_type, *precision, *scale, 18, path)?,
        DataType::Decimal128(precision, scale) => decimal(data_type, *precision, *scale, 38, path)?,
        DataType::Decimal256(precision, scale) => decimal(data_type, *precision, *scale, 76, path)?,
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Date64
        | DataType::Timestamp(_, _)
        | DataType::Duration(_)
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => data_type.clone(),
        _ => return refuse("this type does not round-trip exactly: convert it before it reaches the sink"),
    };
    if !stored.is_nested() {
        *leaves += 1;
    }
    Ok(stored)
}

fn decimal(
    data_type: &DataType,
    precision: u8,
    scale: i8,
    precision_max: u8,
    path: &str,
) -> Result<DataType, PartError> {
    // A scale below zero or above the precision has no Parquet form.
    if precision == 0 || precision > precision_max || scale < 0 || scale.unsigned_abs() > precision {
        return Err(PartError::Misuse(format!(
            "column {path:?} is {data_type}: precision must be 1 to {precision_max} and scale 0 to the precision"
        )));
    }
    Ok(data_type.clone())
}

/// Digests names, types and nullability in an unambiguous spelling of our own: other versions of the
/// columnar library must not change it.
fn fingerprint(columns: &[FieldRef]) -> SchemaFingerprint {
    let mut spelling = b"stash row schema 1".to_vec();
    columns.iter().for_each(|field| spell_field(field, &mut spelling));
    SchemaFingerprint(Digest::of(&spelling))
}

fn spell_field(field: &Field, out: &mut Vec<u8>) {
    spell_text(field.name(), out);
    out.push(u8::from(field.is_nullable()));
    spell_type(field.data_type(), out);
}

fn spell_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn spell_type(data_type: &DataType, out: &mut Vec<u8>) {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 's',
        TimeUnit::Millisecond => 'm',
        TimeUnit::Microsecond => 'u',
        TimeUnit::Nanosecond => 'n',
    };
    let word = match data_type {
        DataType::Null => "null".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::Int8 => "i8".to_owned(),
        DataType::Int16 => "i16".to_owned(),
        DataType::Int32 => "i32".to_owned(),
        DataType::Int64 => "i64".to_owned(),
        DataType::UInt8 => "u8".to_owned(),
        DataType::UInt16 => "u16".to_owned(),
        DataType::UInt32 => "u32".to_owned(),
        DataType::UInt64 => "u64".to_owned(),
        DataType::Float16 => "f16".to_owned(),
        DataType::Float32 => "f32".to_owned(),
        DataType::Float64 => "f64".to_owned(),
        DataType::Date32 => "date32".to_owned(),
        DataType::Date64 => "date64".to_owned(),
        DataType::Utf8 => "utf8".to_owned(),
        DataType::LargeUtf8 => "utf8-large".to_owned(),
        DataType::Utf8View => "utf8-view".to_owned(),
        DataType::Binary => "binary".to_owned(),
        DataType::LargeBinary => "binary-large".to_owned(),
        DataType::BinaryView => "binary-view".to_owned(),
        DataType::FixedSizeBinary(size) => format!("binary-fixed {size}"),
        DataType::Time32(u) => format!("time32 {}", unit(u)),
        DataType::Time64(u) => format!("time64 {}", unit(u)),
        DataType::Duration(u) => format!("duration {}", unit(u)),
        DataType::Timestamp(u, None) => format!("timestamp {}", unit(u)),
        DataType::Timestamp(u, Some(zone)) => format!("timestamp {} zone {zone}", unit(u)),
        DataType::Decimal32(precision, scale) => format!("decimal32 {precision} {scale}"),
        DataType::Decimal64(precision, scale) => format!("decimal64 {precision} {scale}"),
        DataType::Decimal128(precision, scale) => format!("decimal128 {precision} {scale}"),
        DataType::Decimal256(precision, scale) => format!("decimal256 {precision} {scale}"),
        DataType::List(_) => "list".to_owned(),
        DataType::LargeList(_) => "list-large".to_owned(),
        DataType::FixedSizeList(_, size) => format!("list-fixed {size}"),
        DataType::Struct(fields) => format!("struct {}", fields.len()),
        // `stored_type` lets nothing else through.
        other => format!("other {other:?}"),
    };
    spell_text(&word, out);
    match data_type {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            spell_field(field, out);
        }
        DataType::Struct(fields) => fields.iter().for_each(|field| spell_field(field, out)),
        _ => {}
    }
}
