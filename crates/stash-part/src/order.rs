//! The order of updates: row columns left to right, then time.
//!
//! Within a column: nulls first, then by value. Numbers by size, floats by IEEE totalOrder (so −0.0 < 0.0
//! and every NaN has its place), text and binary by bytes, lists item by item, structs field by field.
//! Dictionaries are unpacked before they get here. Every order is total, and two rows are equal exactly
//! when they compare equal.
//!
//! Two implementations agree on it. *Flat* schemas compare typed columns; all others compare the bytes of
//! Arrow's row format. Both offer a `u64` *prefix* per row that never contradicts the order: most comparisons
//! end there, the rest look at the columns.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, FieldRef, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type, i256,
};
use arrow::datatypes::{
    Date32Type, Date64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::row::{RowConverter, Rows, SortField};

use crate::error::PartError;
use crate::schema::RowSchema;
use crate::updates::Updates;

/// The version of the row order; it stands in each part, and a reader refuses another one.
pub const ORDER_VERSION: u32 = 1;

/// The rows of one batch, ready to be compared with those of any other batch of the same schema.
#[derive(Debug)]
pub(crate) struct OrderedRows {
    form: Form,
    /// How many leading columns an equal prefix decides.
    decided: usize,
    prefixes: Vec<u64>,
}

#[derive(Debug)]
enum Form {
    Flat(Vec<FlatColumn>),
    General(Rows),
}

impl OrderedRows {
    /// Prepares `updates` by the cheapest form their schema allows.
    pub(crate) fn new(updates: &Updates) -> Result<OrderedRows, PartError> {
        if updates.schema().row_schema().fields().iter().any(|field| field.data_type().is_nested()) {
            return Self::general(updates);
        }
        Self::flat(updates)
    }

    /// Compares typed columns; only for schemas without nested columns.
    fn flat(updates: &Updates) -> Result<OrderedRows, PartError> {
        let batch = updates.batch();
        let columns = key_columns(updates.schema(), batch)
            .iter()
            .map(FlatColumn::new)
            .collect::<Result<Vec<_>, PartError>>()?;
        let mut packer = Packer { prefixes: vec![0; batch.num_rows()], left: 64 };
        let schema = batch.schema();
        let fits = |(column, field): &(&FlatColumn, &FieldRef)| packer.push(column, field.is_nullable());
        let decided = columns.iter().zip(schema.fields()).take_while(fits).count();
        Ok(OrderedRows { form: Form::Flat(columns), decided, prefixes: packer.prefixes })
    }

    /// Compares row-format bytes; for any schema.
    pub(crate) fn general(updates: &Updates) -> Result<OrderedRows, PartError> {
        let columns = key_columns(updates.schema(), updates.batch());
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let rows = RowConverter::new(fields)
            .and_then(|converter| converter.convert_columns(&columns))
            .map_err(PartError::arrow("bring rows into comparable form"))?;
        let prefixes = rows.iter().map(|row| leading(row.data())).collect();
        Ok(OrderedRows { form: Form::General(rows), decided: 0, prefixes })
    }

    /// How many rows.
    pub(crate) fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// A number per row that orders as rows do, but may be equal for unequal rows.
    pub(crate) fn prefixes(&self) -> &[u64] {
        &self.prefixes
    }

    /// Orders by (row, time).
    pub(crate) fn compare(&self, row: usize, other: &OrderedRows, other_row: usize) -> Ordering {
        match self.prefixes[row].cmp(&other.prefixes[other_row]) {
            Ordering::Equal => self.compare_tied(row, other, other_row),
            decided => decided,
        }
    }

    /// Orders two rows whose prefixes are equal.
    pub(crate) fn compare_tied(&self, row: usize, other: &OrderedRows, other_row: usize) -> Ordering {
        match (&self.form, &other.form) {
            (Form::Flat(mine), Form::Flat(theirs)) => {
                for (mine, theirs) in mine.iter().zip(theirs).skip(self.decided) {
                    match mine.compare(row, theirs, other_row) {
                        Ordering::Equal => {}
                        decided => return decided,
                    }
                }
                Ordering::Equal
            }
            (Form::General(mine), Form::General(theirs)) => mine.row(row).cmp(&theirs.row(other_row)),
            // One schema always takes one form.
            _ => Ordering::Equal,
        }
    }

    /// Whether each row stands strictly after the one before: sorted, and none twice.
    pub(crate) fn is_strictly_sorted(&self) -> bool {
        (1..self.len()).all(|row| match self.prefixes[row - 1].cmp(&self.prefixes[row]) {
            Ordering::Less => true,
            Ordering::Equal => self.compare_tied(row - 1, self, row).is_lt(),
            Ordering::Greater => false,
        })
    }

    /// Bytes held beyond the batch itself, for budgets.
    pub(crate) fn memory_bytes(&self) -> usize {
        let rows = match &self.form {
            Form::Flat(_) => 0,
            Form::General(rows) => rows.size(),
        };
        rows + self.prefixes.capacity() * size_of::<u64>()
    }
}

/// The columns that decide the order: the row's, then `_time`.
fn key_columns(schema: &RowSchema, batch: &RecordBatch) -> Vec<ArrayRef> {
    batch.columns().iter().take(schema.columns() + 1).cloned().collect()
}

/// The first eight bytes as a number, zeros where there are fewer.
fn leading(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(first)
}

/// Packs columns into prefixes from the top bit down, until one does not fit whole.
struct Packer {
    prefixes: Vec<u64>,
    left: u32,
}

impl Packer {
    /// Packs one more column; false if it did not fit whole, so that no other may follow.
    // SUBTLE: how many bits a column takes follows from the schema alone, never from the batch: prefixes of
    // different batches are compared with each other.
    fn push(&mut self, column: &FlatColumn, nullable: bool) -> bool {
        if matches!(column.values, Values::Null) {
            return true;
        }
        if self.left == 0 {
            return false;
        }
        if nullable {
            self.left -= 1;
            let left = self.left;
            match &column.nulls {
                None => self.prefixes.iter_mut().for_each(|prefix| *prefix |= 1 << left),
                Some(nulls) => self
                    .prefixes
                    .iter_mut()
                    .zip(nulls.iter())
                    .for_each(|(prefix, valid)| *prefix |= u64::from(valid) << left),
            }
        }
        let width = column.values.bits();
        let fits = width.is_some_and(|width| width <= self.left);
        let take = if fits { width.unwrap_or(64) } else { self.left };
        if take > 0 {
            // A value sits in the top bits of a u64; its top `take` bits go right below what is packed.
            let shift_out = 64 - take;
            let shift_in = self.left - take;
            let nulls = column.nulls.as_ref();
            column.values.each_top(self.prefixes.len(), |row, top| {
                if nulls.is_none_or(|nulls| nulls.is_valid(row))
                    && let Some(prefix) = self.prefixes.get_mut(row)
                {
                    *prefix |= (top >> shift_out) << shift_in;
                }
            });
            self.left -= take;
        }
        fits
    }
}

/// One column without nesting, by its physical values.
#[derive(Debug)]
struct FlatColumn {
    nulls: Option<NullBuffer>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Null,
    Bool(BooleanBuffer),
    I8(ScalarBuffer<i8>),
    I16(ScalarBuffer<i16>),
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
    I128(ScalarBuffer<i128>),
    I256(ScalarBuffer<i256>),
    U8(ScalarBuffer<u8>),
    U16(ScalarBuffer<u16>),
    U32(ScalarBuffer<u32>),
    U64(ScalarBuffer<u64>),
    F16(ScalarBuffer<<Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native>),
    F32(ScalarBuffer<f32>),
    F64(ScalarBuffer<f64>),
    Bytes(OffsetBuffer<i32>, Buffer),
    LargeBytes(OffsetBuffer<i64>, Buffer),
    View(BinaryViewArray),
    Fixed(usize, Buffer),
}

impl FlatColumn {
    fn new(array: &ArrayRef) -> Result<FlatColumn, PartError> {
        macro_rules! of {
            ($form:ident, $type:ty) => {
                Values::$form(array.as_primitive::<$type>().values().clone())
            };
        }
        let values = match array.data_type() {
            DataType::Null => Values::Null,
            DataType::Boolean => Values::Bool(array.as_boolean().values().clone()),
            DataType::Int8 => of!(I8, Int8Type),
            DataType::Int16 => of!(I16, Int16Type),
            DataType::Int32 => of!(I32, Int32Type),
            DataType::Int64 => of!(I64, Int64Type),
            DataType::UInt8 => of!(U8, UInt8Type),
            DataType::UInt16 => of!(U16, UInt16Type),
            DataType::UInt32 => of!(U32, UInt32Type),
            DataType::UInt64 => of!(U64, UInt64Type),
            DataType::Float16 => of!(F16, Float16Type),
            DataType::Float32 => of!(F32, Float32Type),
            DataType::Float64 => of!(F64, Float64Type),
            DataType::Date32 => of!(I32, Date32Type),
            DataType::Date64 => of!(I64, Date64Type),
            DataType::Time32(TimeUnit::Second) => of!(I32, Time32SecondType),
            DataType::Time32(_) => of!(I32, Time32MillisecondType),
            DataType::Time64(TimeUnit::Microsecond) => of!(I64, Time64MicrosecondType),
            DataType::Time64(_) => of!(I64, Time64NanosecondType),
            DataType::Timestamp(TimeUnit::Second, _) => of!(I64, TimestampSecondType),
            DataType::Timestamp(TimeUnit::Millisecond, _) => of!(I64, TimestampMillisecondType),
            DataType::Timestamp(TimeUnit::Microsecond, _) => of!(I64, TimestampMicrosecondType),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => of!(I64, TimestampNanosecondType),
            DataType::Duration(TimeUnit::Second) => of!(I64, DurationSecondType),
            DataType::Duration(TimeUnit::Millisecond) => of!(I64, DurationMillisecondType),
            DataType::Duration(TimeUnit::Microsecond) => of!(I64, DurationMicrosecondType),
            DataType::Duration(TimeUnit::Nanosecond) => of!(I64, DurationNanosecondType),
            DataType::Decimal32(_, _) => of!(I32, Decimal32Type),
            DataType::Decimal64(_, _) => of!(I64, Decimal64Type),
            DataType::Decimal128(_, _) => of!(I128, Decimal128Type),
            DataType::Decimal256(_, _) => of!(I256, Decimal256Type),
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                Values::Bytes(array.offsets().clone(), array.values().clone())
            }
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                Values::Bytes(array.offsets().clone(), array.values().clone())
            }
            DataType::LargeUtf8 => {
                let array = array.as_string::<i64>();
                Values::LargeBytes(array.offsets().clone(), array.values().clone())
            }
            DataType::LargeBinary => {
                let array = array.as_binary::<i64>();
                Values::LargeBytes(array.offsets().clone(), array.values().clone())
            }
            DataType::Utf8View => Values::View(array.as_string_view().clone().to_binary_view()),
            DataType::BinaryView => Values::View(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(width) => {
                let array = array.as_fixed_size_binary();
                Values::Fixed(usize::try_from(*width).unwrap_or(0), array.values().clone())
            }
            other => {
                return Err(PartError::Misuse(format!("{other} has no flat order")));
            }
        };
        Ok(FlatColumn { nulls: array.nulls().cloned(), values })
    }

    fn is_valid(&self, row: usize) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
    }

    fn compare(&self, row: usize, other: &FlatColumn, other_row: usize) -> Ordering {
        match (self.is_valid(row), other.is_valid(other_row)) {
            (true, true) => self.values.compare(row, &other.values, other_row),
            (mine, theirs) => mine.cmp(&theirs),
        }
    }
}

impl Values {
    /// How many bits decide a value, if a `u64` can hold them all.
    fn bits(&self) -> Option<u32> {
        match self {
            Values::Null => Some(0),
            Values::Bool(_) => Some(1),
            Values::I8(_) | Values::U8(_) => Some(8),
            Values::I16(_) | Values::U16(_) | Values::F16(_) => Some(16),
            Values::I32(_) | Values::U32(_) | Values::F32(_) => Some(32),
            Values::I64(_) | Values::U64(_) | Values::F64(_) => Some(64),
            Values::Fixed(width, _) if *width <= 8 => u32::try_from(8 * *width).ok(),
            _ => None,
        }
    }

    /// Gives each row's value as a number that orders as the values do, aligned to the top bit.
    fn each_top(&self, rows: usize, mut give: impl FnMut(usize, u64)) {
        macro_rules! each {
            ($values:expr, $top:expr) => {
                $values.iter().enumerate().for_each(|(row, value)| give(row, $top(*value)))
            };
        }
        match self {
            Values::Null => {}
            Values::Bool(values) => {
                values.iter().enumerate().for_each(|(row, value)| give(row, u64::from(value) << 63));
            }
            Values::I8(values) => each!(values, |v: i8| ((v as u8 ^ 0x80) as u64) << 56),
            Values::I16(values) => each!(values, |v: i16| ((v as u16 ^ 0x8000) as u64) << 48),
            Values::I32(values) => each!(values, |v: i32| ((v as u32 ^ (1 << 31)) as u64) << 32),
            Values::I64(values) => each!(values, |v: i64| v as u64 ^ (1 << 63)),
            Values::I128(values) => each!(values, |v: i128| (v >> 64) as u64 ^ (1 << 63)),
            Values::I256(values) => each!(values, |v: i256| (v.to_parts().1 >> 64) as u64 ^ (1 << 63)),
            Values::U8(values) => each!(values, |v: u8| (v as u64) << 56),
            Values::U16(values) => each!(values, |v: u16| (v as u64) << 48),
            Values::U32(values) => each!(values, |v: u32| (v as u64) << 32),
            Values::U64(values) => each!(values, |v: u64| v),
            Values::F16(values) => values.iter().enumerate().for_each(|(row, value)| {
                let bits = value.to_bits();
                let flip = if bits >> 15 == 1 { !bits } else { bits | 0x8000 };
                give(row, (flip as u64) << 48);
            }),
            Values::F32(values) => each!(values, |v: f32| {
                let bits = v.to_bits();
                let flip = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
                (flip as u64) << 32
            }),
            Values::F64(values) => each!(values, |v: f64| {
                let bits = v.to_bits();
                if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
            }),
            Values::Bytes(offsets, bytes) => offsets.windows(2).enumerate().for_each(|(row, ends)| {
                give(row, leading(&bytes[ends[0] as usize..ends[1] as usize]));
            }),
            Values::LargeBytes(offsets, bytes) => offsets.windows(2).enumerate().for_each(|(row, ends)| {
                give(row, leading(&bytes[ends[0] as usize..ends[1] as usize]));
            }),
            Values::View(array) => (0..rows).for_each(|row| give(row, leading(array.value(row)))),
            Values::Fixed(width, bytes) => {
                (0..rows).for_each(|row| give(row, leading(&bytes[row * width..(row + 1) * width])));
            }
        }
    }

    fn compare(&self, a: usize, other: &Values, b: usize) -> Ordering {
        match (self, other) {
            (Values::Null, _) => Ordering::Equal,
            (Values::Bool(x), Values::Bool(y)) => x.value(a).cmp(&y.value(b)),
            (Values::I8(x), Values::I8(y)) => x[a].cmp(&y[b]),
            (Values::I16(x), Values::I16(y)) => x[a].cmp(&y[b]),
            (Values::I32(x), Values::I32(y)) => x[a].cmp(&y[b]),
            (Values::I64(x), Values::I64(y)) => x[a].cmp(&y[b]),
            (Values::I128(x), Values::I128(y)) => x[a].cmp(&y[b]),
            (Values::I256(x), Values::I256(y)) => x[a].cmp(&y[b]),
            (Values::U8(x), Values::U8(y)) => x[a].cmp(&y[b]),
            (Values::U16(x), Values::U16(y)) => x[a].cmp(&y[b]),
            (Values::U32(x), Values::U32(y)) => x[a].cmp(&y[b]),
            (Values::U64(x), Values::U64(y)) => x[a].cmp(&y[b]),
            (Values::F16(x), Values::F16(y)) => x[a].total_cmp(&y[b]),
            (Values::F32(x), Values::F32(y)) => x[a].total_cmp(&y[b]),
            (Values::F64(x), Values::F64(y)) => x[a].total_cmp(&y[b]),
            (Values::Bytes(x, xs), Values::Bytes(y, ys)) => {
                xs[x[a] as usize..x[a + 1] as usize].cmp(&ys[y[b] as usize..y[b + 1] as usize])
            }
            (Values::LargeBytes(x, xs), Values::LargeBytes(y, ys)) => {
                xs[x[a] as usize..x[a + 1] as usize].cmp(&ys[y[b] as usize..y[b + 1] as usize])
            }
            (Values::View(x), Values::View(y)) => x.value(a).cmp(y.value(b)),
            (Values::Fixed(w, xs), Values::Fixed(v, ys)) => {
                xs[a * w..(a + 1) * w].cmp(&ys[b * v..(b + 1) * v])
            }
            // One schema gives one column one form.
            _ => Ordering::Equal,
        }
    }
}
