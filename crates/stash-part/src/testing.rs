//! Random schemas and updates for property tests, and an oracle that shares nothing with the code it judges.
//!
//! Rows are drawn from a small pool, so that equal ones meet; values are drawn around the edges of their types.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::*;
use proptest::prelude::*;

use crate::{RowSchema, Sorted, Updates};

/// A small random source: runs must replay from one number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// A value that compares as the row order says, made from arrays without the code under test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cell {
    Null,
    Int(i128),
    Big(i256),
    Bytes(Vec<u8>),
    Many(Vec<Cell>),
}

/// Row, time and diff of each update, in their order.
pub(crate) fn cells(updates: &Updates) -> Vec<(Vec<Cell>, u64, i64)> {
    let columns = updates.schema().columns();
    (0..updates.num_rows())
        .map(|row| {
            let cells = updates.batch().columns()[..columns].iter().map(|column| cell(column, row)).collect();
            (cells, updates.times()[row], updates.diffs()[row])
        })
        .collect()
}

/// What consolidating `pieces` must give.
pub(crate) fn oracle<'a>(pieces: impl IntoIterator<Item = &'a Updates>) -> Vec<(Vec<Cell>, u64, i64)> {
    let mut sums = BTreeMap::new();
    for (row, time, diff) in pieces.into_iter().flat_map(cells) {
        *sums.entry((row, time)).or_insert(0) += diff;
    }
    sums.into_iter().filter(|(_, diff)| *diff != 0).map(|((row, time), diff)| (row, time, diff)).collect()
}

fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.data_type() == &DataType::Null || array.is_null(row) {
        return Cell::Null;
    }
    let items = |values: ArrayRef| Cell::Many((0..values.len()).map(|i| cell(&values, i)).collect());
    match array.data_type() {
        DataType::Boolean => Cell::Int(array.as_boolean().value(row).into()),
        DataType::UInt8 => Cell::Int(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Cell::Int(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Cell::Int(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Cell::Int(array.as_primitive::<UInt64Type>().value(row).into()),
        DataType::Float16 => {
            let bits = array.as_primitive::<Float16Type>().value(row).to_bits() as i16;
            Cell::Int((bits ^ (((bits >> 15) as u16) >> 1) as i16).into())
        }
        DataType::Float32 => {
            let bits = array.as_primitive::<Float32Type>().value(row).to_bits() as i32;
            Cell::Int((bits ^ (((bits >> 31) as u32) >> 1) as i32).into())
        }
        DataType::Float64 => {
            let bits = array.as_primitive::<Float64Type>().value(row).to_bits() as i64;
            Cell::Int((bits ^ (((bits >> 63) as u64) >> 1) as i64).into())
        }
        DataType::Decimal128(_, _) => Cell::Int(array.as_primitive::<Decimal128Type>().value(row)),
        DataType::Decimal256(_, _) => Cell::Big(array.as_primitive::<Decimal256Type>().value(row)),
        DataType::Utf8 => Cell::Bytes(array.as_string::<i32>().value(row).into()),
        DataType::LargeUtf8 => Cell::Bytes(array.as_string::<i64>().value(row).into()),
        DataType::Utf8View => Cell::Bytes(array.as_string_view().value(row).into()),
        DataType::Binary => Cell::Bytes(array.as_binary::<i32>().value(row).into()),
        DataType::LargeBinary => Cell::Bytes(array.as_binary::<i64>().value(row).into()),
        DataType::BinaryView => Cell::Bytes(array.as_binary_view().value(row).into()),
        DataType::FixedSizeBinary(_) => Cell::Bytes(array.as_fixed_size_binary().value(row).into()),
        DataType::List(_) => items(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => items(array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(_, _) => items(array.as_fixed_size_list().value(row)),
        DataType::Struct(_) => {
            Cell::Many(array.as_struct().columns().iter().map(|field| cell(field, row)).collect())
        }
        // Everything else is a signed integer underneath.
        other if other.primitive_width() == Some(4) => {
            let ints = array.to_data().into_builder().data_type(DataType::Int32).build().unwrap();
            Cell::Int(Int32Array::from(ints).value(row).into())
        }
        other if other.primitive_width() == Some(8) => {
            let ints = array.to_data().into_builder().data_type(DataType::Int64).build().unwrap();
            Cell::Int(Int64Array::from(ints).value(row).into())
        }
        DataType::Int8 => Cell::Int(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Cell::Int(array.as_primitive::<Int16Type>().value(row).into()),
        other => panic!("no cell for {other}"),
    }
}

/// Every flat type that a schema may have.
pub(crate) fn flat_types() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    vec![
        Null,
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(3),
        FixedSizeBinary(16),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, Some("UTC".into())),
        Timestamp(Microsecond, Some("+02:00".into())),
        Timestamp(Nanosecond, None),
        Duration(Second),
        Duration(Millisecond),
        Duration(Microsecond),
        Duration(Nanosecond),
        Decimal32(7, 2),
        Decimal64(16, 0),
        Decimal128(20, 4),
        Decimal128(5, 5),
        Decimal256(50, 10),
    ]
}

/// Nested and dictionary types, built over some of the flat ones.
pub(crate) fn deep_types() -> Vec<DataType> {
    use DataType::*;
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let fixed = |data_type| Arc::new(Field::new("element", data_type, false));
    let fields = || -> Fields {
        vec![Field::new("a", Int32, true), Field::new("b", Utf8, false), Field::new("c", Float64, true)]
            .into()
    };
    let dictionary = |key: DataType, value: DataType| Dictionary(Box::new(key), Box::new(value));
    vec![
        List(item(Int64)),
        List(fixed(Utf8)),
        LargeList(item(Binary)),
        List(item(Utf8View)),
        FixedSizeList(item(Int16), 2),
        FixedSizeList(fixed(Float32), 3),
        Struct(fields()),
        List(item(Struct(fields()))),
        List(item(List(item(UInt8)))),
        Struct(vec![Field::new("deep", List(item(Decimal128(10, 1))), true)].into()),
        Struct(vec![Field::new("deep", Struct(fields()), true)].into()),
        dictionary(Int8, Utf8),
        dictionary(UInt16, Binary),
        dictionary(Int32, Int64),
        dictionary(UInt64, LargeUtf8),
        List(item(dictionary(Int32, Utf8))),
        Struct(vec![Field::new("word", dictionary(Int16, Utf8), true)].into()),
    ]
}

const WORDS: [&str; 10] = [
    "",
    "a",
    "a\0",
    "aa",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "abcdefghj",
    "a longer text than a view holds",
    "ü",
];

/// A random array; nulls only if `nullable`.
pub(crate) fn array(data_type: &DataType, nullable: bool, len: usize, random: &mut Random) -> ArrayRef {
    let valid: Vec<bool> = (0..len).map(|_| !nullable || random.below(4) != 0).collect();
    let nulls = if valid.iter().all(|valid| *valid) { None } else { Some(NullBuffer::from(valid.clone())) };
    macro_rules! numbers {
        ($type:ty, $values:expr) => {{
            let edges: Vec<<$type as ArrowPrimitiveType>::Native> = $values.to_vec();
            let values: Vec<_> = (0..len).map(|_| random.pick(&edges)).collect();
            Arc::new(PrimitiveArray::<$type>::new(values.into(), nulls).with_data_type(data_type.clone()))
                as ArrayRef
        }};
    }
    macro_rules! words {
        ($array:ty) => {
            Arc::new(valid.iter().map(|valid| valid.then(|| random.pick(&WORDS))).collect::<$array>())
                as ArrayRef
        };
    }
    macro_rules! bytes {
        ($array:ty) => {
            Arc::new(
                valid
                    .iter()
                    .map(|valid| valid.then(|| [random.pick(&WORDS).as_bytes(), &[0xff]].concat()))
                    .collect::<$array>(),
            ) as ArrayRef
        };
    }
    const I64: [i64; 7] = [i64::MIN, -3, -1, 0, 1, 2, i64::MAX];
    const I32: [i32; 6] = [i32::MIN, -1, 0, 1, 7, i32::MAX];
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => {
            Arc::new(valid.iter().map(|valid| valid.then(|| random.below(2) == 0)).collect::<BooleanArray>())
        }
        DataType::Int8 => numbers!(Int8Type, [i8::MIN, -1, 0, 1, i8::MAX]),
        DataType::Int16 => numbers!(Int16Type, [i16::MIN, -1, 0, 1, i16::MAX]),
        DataType::Int32 => numbers!(Int32Type, I32),
        DataType::Int64 => numbers!(Int64Type, I64),
        DataType::UInt8 => numbers!(UInt8Type, [0, 1, 127, 128, u8::MAX]),
        DataType::UInt16 => numbers!(UInt16Type, [0, 1, 1 << 15, u16::MAX]),
        DataType::UInt32 => numbers!(UInt32Type, [0, 1, 1 << 31, u32::MAX]),
        DataType::UInt64 => numbers!(UInt64Type, [0, 1, 2, 1 << 63, u64::MAX]),
        DataType::Float16 => {
            let bits = [0u16, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7e01];
            type F16 = <Float16Type as ArrowPrimitiveType>::Native;
            numbers!(Float16Type, bits.map(F16::from_bits))
        }
        DataType::Float32 => {
            let bits =
                [0, 1 << 31, 0x3f80_0000, 0xbf80_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffc0_0001];
            numbers!(Float32Type, bits.map(f32::from_bits))
        }
        DataType::Float64 => {
            let odd_nan = f64::from_bits(0xfff8_0000_0000_0001);
            let infinite = [f64::INFINITY, f64::NEG_INFINITY];
            numbers!(Float64Type, [&[0.0, -0.0, 1.5, -1.5, f64::NAN, odd_nan], &infinite[..]].concat())
        }
        DataType::Utf8 => words!(StringArray),
        DataType::LargeUtf8 => words!(LargeStringArray),
        DataType::Utf8View => words!(StringViewArray),
        DataType::Binary => bytes!(BinaryArray),
        DataType::LargeBinary => bytes!(LargeBinaryArray),
        DataType::BinaryView => bytes!(BinaryViewArray),
        DataType::FixedSizeBinary(width) => {
            let values = (0..len * *width as usize).map(|_| random.pick(&[0u8, 1, 255])).collect::<Vec<u8>>();
            Arc::new(FixedSizeBinaryArray::new(*width, values.into(), nulls))
        }
        DataType::Date32 => numbers!(Date32Type, I32),
        DataType::Date64 => numbers!(Date64Type, I64),
        DataType::Time32(TimeUnit::Second) => numbers!(Time32SecondType, [0, 1, 86_399]),
        DataType::Time32(_) => numbers!(Time32MillisecondType, [0, 1, 86_399_999]),
        DataType::Time64(TimeUnit::Microsecond) => numbers!(Time64MicrosecondType, [0, 1, 86_399_999_999]),
        DataType::Time64(_) => numbers!(Time64NanosecondType, [0, 1, 86_399_999_999_999]),
        DataType::Timestamp(TimeUnit::Second, _) => numbers!(TimestampSecondType, I64),
        DataType::Timestamp(TimeUnit::Millisecond, _) => numbers!(TimestampMillisecondType, I64),
        DataType::Timestamp(TimeUnit::Microsecond, _) => numbers!(TimestampMicrosecondType, I64),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => numbers!(TimestampNanosecondType, I64),
        DataType::Duration(TimeUnit::Second) => numbers!(DurationSecondType, I64),
        DataType::Duration(TimeUnit::Millisecond) => numbers!(DurationMillisecondType, I64),
        DataType::Duration(TimeUnit::Microsecond) => numbers!(DurationMicrosecondType, I64),
        DataType::Duration(TimeUnit::Nanosecond) => numbers!(DurationNanosecondType, I64),
        DataType::Decimal32(_, _) => numbers!(Decimal32Type, [-9_999_999, -1, 0, 1, 9_999_999]),
        DataType::Decimal64(_, _) => numbers!(Decimal64Type, [-9_999_999_999_999_999, -1, 0, 1, 12_345]),
        DataType::Decimal128(_, _) => numbers!(Decimal128Type, [-99_999, -1, 0, 1, 99_999]),
        DataType::Decimal256(_, _) => {
            let large = i256::from_i128(i128::MAX).wrapping_mul(i256::from(1000));
            numbers!(Decimal256Type, [large.wrapping_neg(), i256::from(-1), i256::ZERO, i256::ONE, large])
        }
        DataType::List(field) => {
            let offsets = OffsetBuffer::<i32>::from_lengths((0..len).map(|_| random.below(4)));
            let items = array(field.data_type(), field.is_nullable(), offsets[len] as usize, random);
            Arc::new(ListArray::new(Arc::clone(field), offsets, items, nulls))
        }
        DataType::LargeList(field) => {
            let offsets = OffsetBuffer::<i64>::from_lengths((0..len).map(|_| random.below(4)));
            let items = array(field.data_type(), field.is_nullable(), offsets[len] as usize, random);
            Arc::new(LargeListArray::new(Arc::clone(field), offsets, items, nulls))
        }
        DataType::FixedSizeList(field, size) => {
            let items = array(field.data_type(), field.is_nullable(), len * *size as usize, random);
            Arc::new(FixedSizeListArray::new(Arc::clone(field), *size, items, nulls))
        }
        DataType::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|field| array(field.data_type(), field.is_nullable(), len, random))
                .collect();
            Arc::new(StructArray::new(fields.clone(), columns, nulls))
        }
        DataType::Dictionary(_, value) => cast(&array(value, nullable, len, random), data_type).unwrap(),
        other => panic!("no values for {other}"),
    }
}

/// Times from the whole range, few enough to meet.
pub(crate) const TIMES: [u64; 7] = [0, 1, 2, 3, i64::MAX as u64, (1 << 63) + 5, u64::MAX - 1];

/// Updates whose rows come from a pool of `pool` rows.
pub(crate) fn updates(schema: &RowSchema, pool: usize, len: usize, random: &mut Random) -> Updates {
    let rows = UInt32Array::from_iter_values((0..len).map(|_| random.below(pool) as u32));
    // The pool is the same for every batch of one schema, so that equal rows meet across batches.
    let mut fixed = Random::new(7);
    let columns = schema
        .declared_schema()
        .fields()
        .iter()
        .map(|field| {
            take(&array(field.data_type(), field.is_nullable(), pool, &mut fixed), &rows, None).unwrap()
        })
        .collect();
    let times = UInt64Array::from_iter_values((0..len).map(|_| random.pick(&TIMES)));
    let diffs = Int64Array::from_iter_values((0..len).map(|_| random.pick(&[-2, -1, 0, 1, 1, 2])));
    Updates::from_columns(schema, columns, times, diffs).unwrap()
}

/// A schema of the columns `types`, named c0, c1, ….
pub(crate) fn schema(types: &[(DataType, bool)]) -> RowSchema {
    let field = |(i, (data_type, nullable)): (usize, &(DataType, bool))| {
        // A column of the null type holds nothing but nulls.
        Field::new(format!("c{i}"), data_type.clone(), *nullable || *data_type == DataType::Null)
    };
    RowSchema::new(Arc::new(Schema::new(types.iter().enumerate().map(field).collect::<Vec<_>>()))).unwrap()
}

/// Random schemas of up to four columns; nested and dictionary types only if `deep`.
pub(crate) fn any_schema(deep: bool) -> impl Strategy<Value = RowSchema> {
    let mut types = flat_types();
    if deep {
        types.extend(deep_types());
        types.extend(deep_types());
    }
    proptest::collection::vec((proptest::sample::select(types), any::<bool>()), 0..=4)
        .prop_map(|types| schema(&types))
}

/// Random updates of a random schema.
pub(crate) fn any_updates(deep: bool) -> impl Strategy<Value = Updates> {
    (any_schema(deep), 1usize..12, 0usize..60, any::<u64>())
        .prop_map(|(schema, pool, len, seed)| updates(&schema, pool, len, &mut Random::new(seed)))
}

/// A run cut into chunks at random places.
pub(crate) fn chunks(run: &Sorted, random: &mut Random) -> Vec<Sorted> {
    let mut chunks = Vec::new();
    let mut from = 0;
    while from < run.num_rows() {
        let len = 1 + random.below(10);
        chunks.push(run.slice(from, len));
        from += len;
    }
    chunks
}
