//! Row schemas and updates that the targets know: what they are given is read as one of these.

use std::sync::{Arc, OnceLock};

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray, FixedSizeListArray,
    Float64Array, Int32Array, Int64Array, ListArray, NullArray, StringArray, StringViewArray, StructArray,
    UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int32Type, Schema};
use bytes::Bytes;
use stash_part::{EncodeOptions, PartEncoder, PartMeta, RowSchema, Sorted, Updates, consolidate};
use stash_types::{Description, Frontier, PartDescriptor, SinkId};
use uuid::Uuid;

use crate::input::Random;

/// How many row schemas there are.
pub const SCHEMAS: usize = 6;

/// A part that is as it should be.
#[derive(Debug)]
pub struct Honest {
    /// Its schema among [`schemas`].
    pub schema: usize,
    /// What travels.
    pub part: PartDescriptor,
    /// Its bytes.
    pub object: Bytes,
    /// What it holds.
    pub updates: Sorted,
}

impl Honest {
    /// The bytes of its tail.
    pub fn tail(&self) -> Bytes {
        let range = stash_part::tail_range(&self.part);
        self.object.slice(range.start as usize..range.end as usize)
    }
}

fn list(data_type: DataType, nullable: bool) -> DataType {
    DataType::List(Arc::new(Field::new("item", data_type, nullable)))
}

fn pair() -> Fields {
    vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, false)].into()
}

/// The row schemas: none, flat ones, nested ones, wide ones.
pub fn schemas() -> &'static [RowSchema; SCHEMAS] {
    static SCHEMAS_ONCE: OnceLock<[RowSchema; SCHEMAS]> = OnceLock::new();
    SCHEMAS_ONCE.get_or_init(|| {
        let columns: [Vec<(&str, DataType, bool)>; SCHEMAS] = [
            vec![],
            vec![("key", DataType::UInt64, false), ("text", DataType::Utf8, true)],
            vec![
                ("flag", DataType::Boolean, true),
                ("price", DataType::Decimal128(20, 4), true),
                ("ratio", DataType::Float64, false),
                ("id", DataType::FixedSizeBinary(16), true),
            ],
            vec![
                ("words", list(DataType::Utf8, true), true),
                ("pairs", list(DataType::Struct(pair()), true), true),
                ("deep", list(list(DataType::Int32, true), true), true),
            ],
            vec![
                ("kind", DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), true),
                ("view", DataType::Utf8View, true),
                ("nothing", DataType::Null, true),
            ],
            vec![
                ("both", DataType::Struct(pair()), true),
                (
                    "three",
                    DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int32, true)), 3),
                    true,
                ),
                ("raw", DataType::Binary, true),
            ],
        ];
        columns.map(|columns| {
            let fields: Vec<Field> =
                columns.into_iter().map(|(name, kind, nullable)| Field::new(name, kind, nullable)).collect();
            RowSchema::new(Arc::new(Schema::new(fields))).expect("the schema is one of ours")
        })
    })
}

const WORDS: [&str; 6] = ["", "a", "ab", "a longer text than a view holds", "ü", "\0"];
const TIMES: [u64; 6] = [0, 1, 2, 9, 1 << 63, u64::MAX - 1];

/// A column of `len` values of one of the types above.
fn column(data_type: &DataType, nullable: bool, len: usize, random: &mut Random) -> ArrayRef {
    let valid: Vec<bool> = (0..len).map(|_| !nullable || random.below(4) > 0).collect();
    let nulls = || Some(NullBuffer::from(valid.clone()));
    let mut word = || WORDS[random.below(WORDS.len())];
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => {
            Arc::new(valid.iter().map(|v| v.then(|| word().len() > 1)).collect::<BooleanArray>())
        }
        DataType::Int32 => {
            Arc::new(valid.iter().map(|v| v.then(|| word().len() as i32 - 2)).collect::<Int32Array>())
        }
        DataType::UInt64 => {
            let values: Vec<u64> = (0..len).map(|_| random.draw() % 50).collect();
            Arc::new(UInt64Array::new(values.into(), nulls().filter(|_| nullable)))
        }
        DataType::Float64 => {
            let edges = [0.0, -0.0, 1.5, f64::NAN, f64::INFINITY, -7.25];
            let values: Vec<f64> = (0..len).map(|_| edges[random.below(edges.len())]).collect();
            Arc::new(Float64Array::new(values.into(), nulls().filter(|_| nullable)))
        }
        DataType::Decimal128(precision, scale) => {
            let values = valid.iter().map(|v| v.then(|| word().len() as i128 * 1_000_003 - 5));
            let array: Decimal128Array = values.collect();
            Arc::new(array.with_precision_and_scale(*precision, *scale).expect("the values are small"))
        }
        DataType::FixedSizeBinary(width) => {
            let values: Vec<u8> = (0..len * *width as usize).map(|_| random.below(3) as u8).collect();
            Arc::new(FixedSizeBinaryArray::new(*width, values.into(), nulls()))
        }
        DataType::Utf8 => Arc::new(valid.iter().map(|v| v.then(&mut word)).collect::<StringArray>()),
        DataType::Utf8View => Arc::new(valid.iter().map(|v| v.then(&mut word)).collect::<StringViewArray>()),
        DataType::Binary => {
            Arc::new(valid.iter().map(|v| v.then(|| word().as_bytes())).collect::<BinaryArray>())
        }
        DataType::List(field) => {
            let offsets = OffsetBuffer::<i32>::from_lengths((0..len).map(|_| random.below(4)));
            let items = column(field.data_type(), field.is_nullable(), offsets[len] as usize, random);
            Arc::new(ListArray::new(Arc::clone(field), offsets, items, nulls()))
        }
        DataType::FixedSizeList(field, size) => {
            let items = column(field.data_type(), field.is_nullable(), len * *size as usize, random);
            Arc::new(FixedSizeListArray::new(Arc::clone(field), *size, items, nulls()))
        }
        DataType::Struct(fields) => {
            let columns =
                fields.iter().map(|field| column(field.data_type(), field.is_nullable(), len, random));
            Arc::new(StructArray::new(fields.clone(), columns.collect(), nulls()))
        }
        DataType::Dictionary(_, _) => {
            let keys = valid.iter().map(|v| v.then(&mut word));
            Arc::new(keys.collect::<arrow::array::DictionaryArray<Int32Type>>())
        }
        other => unreachable!("no schema above has {other}"),
    }
}

/// About `rows` consolidated updates of a schema; the same seed gives the same.
pub fn updates(schema: usize, rows: usize, seed: u64) -> Sorted {
    let schema = &schemas()[schema];
    let mut random = Random::new(seed);
    let columns = schema
        .declared_schema()
        .fields()
        .iter()
        .map(|field| column(field.data_type(), field.is_nullable(), rows, &mut random))
        .collect();
    let times = UInt64Array::from_iter_values((0..rows).map(|_| TIMES[random.below(TIMES.len())]));
    let diffs = Int64Array::from_iter_values((0..rows).map(|_| [-1, 1, 1, 2][random.below(4)]));
    let updates = Updates::from_columns(schema, columns, times, diffs).expect("the columns fit the schema");
    consolidate(updates).expect("the sums are small")
}

/// What every part here says of itself.
pub fn meta() -> PartMeta {
    PartMeta {
        sink: SinkId::from_uuid(Uuid::from_u128(42)),
        description: Description::new(Frontier::MIN, Frontier::EMPTY).expect("it covers all times"),
        group: 1,
        run: 2,
        ordinal: 3,
    }
}

/// Encodes updates, `row_group_rows` of them in each row group.
pub fn encode(schema: usize, updates: Sorted, row_group_rows: usize) -> Honest {
    let options = EncodeOptions { row_group_rows_max: row_group_rows, ..EncodeOptions::default() };
    let mut encoder = PartEncoder::new(&schemas()[schema], meta(), options).expect("the options are right");
    encoder.write(&updates).expect("the updates are sorted");
    let encoded = encoder.finish().expect("the part is small");
    Honest { schema, part: encoded.descriptor(4, 5), object: encoded.chunks.concat().into(), updates }
}

/// Parts of every schema: none, one and several row groups.
pub fn honest() -> &'static [Honest] {
    static HONEST: OnceLock<Vec<Honest>> = OnceLock::new();
    HONEST.get_or_init(|| {
        let mut parts = Vec::new();
        for schema in 0..SCHEMAS {
            for (rows, row_group_rows) in [(3, 100), (24, 7)] {
                parts.push(encode(schema, updates(schema, rows, 7 + schema as u64), row_group_rows));
            }
        }
        parts.push(encode(1, updates(1, 0, 1), 100));
        parts
    })
}
