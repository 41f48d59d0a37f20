//! Damage to parts and inline runs, and what became of it (I22).
//!
//! A *case* draws a run, damages what was stored of it, and reads that by the descriptor that was kept elsewhere. Read
//! back it is an error, or exactly the updates that were written: anything else is *silently wrong*, and panics here.
//! Where the damage lies beyond what the descriptor covers, or left the bytes as they were, the same updates are right.
//! A case follows from its number alone.
#![expect(clippy::unwrap_used, reason = "what is damaged here is made here, and sound before that")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, ListArray, RecordBatch,
    StringArray, StringViewArray, UInt64Array,
};
use arrow::datatypes::{Field, Int64Type, Schema};
use bytes::Bytes;
use stash_part::{
    EncodeOptions, PartEncoder, PartError, PartLayout, PartMeta, RowSchema, Sorted, Updates, consolidate,
    decode_inline, encode_inline, tail_range, verify_whole,
};
use stash_types::{Description, Frontier, InlineRun, PartDescriptor, SinkId, wire::Wire};

/// What was done, and what became of it: how often.
pub type Tally = BTreeMap<(&'static str, &'static str), u64>;

/// What is read back by a descriptor.
const SAME: &str = "the same updates";
/// A run whose columns are other ones than its message says.
const OTHER_RUN: &str = "inline: another run under this schema";

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound.max(1)
    }

    fn range(&mut self, len: usize, max: usize) -> std::ops::Range<usize> {
        let from = self.below(len);
        from..(from + 1 + self.below(max)).min(len)
    }
}

/// A part as it was written, with the descriptor that is kept elsewhere.
struct Stored {
    part: PartDescriptor,
    object: Vec<u8>,
    /// Where each row group ends.
    ends: Vec<usize>,
    inline: InlineRun,
    updates: Sorted,
}

fn columns(schema: usize, rows: usize, random: &mut Random) -> Vec<(&'static str, ArrayRef)> {
    let mut text = |_| (random.below(5) > 0).then(|| "text ".repeat(random.below(9)));
    let texts: Vec<Option<String>> = (0..rows).map(&mut text).collect();
    let numbers = || texts.iter().map(|text| text.as_ref().map(|text| text.len() as i64 * 7 - 100));
    let keys: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..rows as u64));
    match schema {
        0 => vec![],
        1 => vec![("key", keys), ("text", Arc::new(StringArray::from(texts)))],
        2 => vec![
            ("money", Arc::new(numbers().map(|n| n.map(i128::from)).collect::<Decimal128Array>())),
            ("ratio", Arc::new(numbers().map(|n| n.map(|n| n as f64 / 3.0)).collect::<Float64Array>())),
            ("flag", Arc::new(numbers().map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>())),
        ],
        3 => {
            let lists = numbers().map(|n| n.map(|n| (0..n % 4).map(Some).collect::<Vec<_>>()));
            vec![
                ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
                ("view", Arc::new(texts.iter().map(Option::as_deref).collect::<StringViewArray>())),
            ]
        }
        _ => {
            let bytes = texts.iter().map(|text| text.as_ref().map(String::as_bytes));
            let bytes: ArrayRef = Arc::new(bytes.collect::<BinaryArray>());
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]
                .map(|name| (name, Arc::clone(&bytes)))
                .into()
        }
    }
}

fn stored(schema: usize, rows: usize, row_group_rows: usize, random: &mut Random) -> Stored {
    let columns = columns(schema, rows, random);
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), *name != "key"))
        .collect();
    let schema = RowSchema::new(Arc::new(Schema::new(fields))).unwrap();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    let times: Vec<u64> = (0..rows).map(|row| row as u64 % 11 + ((row as u64 % 3) << 62)).collect();
    let diffs = Int64Array::from_iter_values((0..rows).map(|row| row as i64 % 5 + 1));
    let updates = consolidate(Updates::from_columns(&schema, columns, times.into(), diffs).unwrap()).unwrap();
    let meta = PartMeta {
        sink: "k00000000-0000-0000-0000-00000000002a".parse::<SinkId>().unwrap(),
        description: Description::new(Frontier::MIN, Frontier::EMPTY).unwrap(),
        group: 0,
        run: 1,
        ordinal: 2,
    };
    let options = EncodeOptions { row_group_rows_max: row_group_rows, ..EncodeOptions::default() };
    let mut encoder = PartEncoder::new(&schema, meta, options).unwrap();
    encoder.write(&updates).unwrap();
    let encoded = encoder.finish().unwrap();
    let (part, object) = (encoded.descriptor(3, 4), encoded.chunks.concat());
    let tail = Bytes::copy_from_slice(&object[tail_range(&part).start as usize..]);
    let layout = PartLayout::parse(&schema, &part, tail).unwrap();
    let ends = layout.row_groups().iter().map(|span| span.range.end as usize).collect();
    let inline = encode_inline(&updates, 0).unwrap();
    Stored { part, object, ends, inline, updates }
}

/// Reads a stored object by a descriptor, as far as there are bytes.
fn read(schema: &RowSchema, part: &PartDescriptor, object: &Bytes) -> Result<RecordBatch, PartError> {
    let slice = |range: std::ops::Range<u64>| {
        let end = (range.end as usize).min(object.len());
        object.slice((range.start as usize).min(end)..end)
    };
    let (lower, upper) = (Frontier::MIN, Frontier::EMPTY);
    let layout = PartLayout::parse(schema, part, slice(tail_range(part)))?;
    let pieces = layout
        .prune(lower, upper)
        .into_iter()
        .map(|i| layout.decode_row_group(i, slice(layout.row_groups()[i].range.clone()), lower, upper))
        .map(|piece| piece.map(Sorted::into_updates))
        .collect::<Result<Vec<_>, _>>()?;
    Updates::concat(schema, &pieces).map(Updates::into_batch)
}

/// Who refused.
fn refused_by(error: &PartError) -> &'static str {
    let text = error.to_string();
    let says = |what: &str| text.contains(what);
    match error {
        PartError::WrongSchema { .. } => "refused: schema fingerprint",
        PartError::TooLarge { .. } => "refused: size",
        PartError::Corrupt { .. } if says("tail differs from its digest") => "refused: tail digest",
        PartError::Corrupt { .. } if says("inline run differs from its digest") => "refused: inline digest",
        PartError::Corrupt { .. } if says("differs from its digest") => "refused: row group digest",
        PartError::Corrupt { .. } if says("the tail has") || says("bytes of") => "refused: length",
        PartError::Corrupt { .. } if says("tell of different parts") => "refused: facts",
        PartError::Corrupt { .. } => "refused: other",
        other => panic!("damage is reported as corrupt bytes, not as: {other}"),
    }
}

fn judge(
    case: u64,
    damage: &'static str,
    expected: &RecordBatch,
    read: impl FnOnce() -> Result<RecordBatch, PartError>,
) -> (&'static str, &'static str) {
    let came = catch_unwind(AssertUnwindSafe(read));
    match came.unwrap_or_else(|_| panic!("case {case}, {damage}: a panic reached the caller")) {
        Ok(read) => {
            assert_eq!(&read, expected, "case {case}, {damage}: silently wrong");
            (damage, SAME)
        }
        Err(error) => (damage, refused_by(&error)),
    }
}

/// Runs the cases with these numbers.
pub fn run(cases: std::ops::Range<u64>) -> Tally {
    let mut random = Random(41);
    let sizes = [(1, 10), (40, 9), (300, 100), (300, 1000)];
    let parts: Vec<Stored> = (0..5)
        .flat_map(|schema| sizes.map(|(rows, row_group_rows)| (schema, rows, row_group_rows)))
        .map(|(schema, rows, row_group_rows)| stored(schema, rows, row_group_rows, &mut random))
        .collect();
    let mut tally = Tally::new();
    for case in cases {
        let mut random = Random(case.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let stored = &parts[random.below(parts.len())];
        let other = &parts[random.below(parts.len())];
        let came = if random.below(4) == 0 {
            inline_case(case, stored, other, &mut random)
        } else {
            part_case(case, stored, other, &mut random)
        };
        *tally.entry(came).or_default() += 1;
    }
    tally
}

fn part_case(
    case: u64,
    stored: &Stored,
    other: &Stored,
    random: &mut Random,
) -> (&'static str, &'static str) {
    let schema = stored.updates.schema();
    let mut object = stored.object.clone();
    let mut part = stored.part.clone();
    let damage = damage(&mut object, &stored.ends, &other.object, random).unwrap_or_else(|| {
        // A descriptor by itself: the frame it travels in is sealed, the row it rests in is not.
        let mut frame = part.to_wire().unwrap().to_vec();
        let bit = random.below(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        assert!(PartDescriptor::from_wire(&frame).is_err(), "case {case}: bit {bit} of a frame");
        part = other.part.clone();
        "another part's descriptor"
    });
    let object = Bytes::from(object);
    let same_bytes = object[..] == stored.object[..] && part == stored.part;
    let whole = verify_whole(&part, std::slice::from_ref(&object)).is_ok();
    assert_eq!(whole, same_bytes, "case {case}, {damage}: the digest of the whole");
    judge(case, damage, stored.updates.batch(), || read(schema, &part, &object))
}

/// Damages an object; `None` leaves it as it is.
fn damage(object: &mut Vec<u8>, ends: &[usize], other: &[u8], random: &mut Random) -> Option<&'static str> {
    let len = object.len();
    match random.below(10) {
        0 | 1 => {
            object[random.below(len)] ^= 1 << random.below(8);
            Some("a bit flipped")
        }
        2 => {
            object.truncate(random.below(len));
            Some("cut")
        }
        3 => {
            object.extend((0..1 + random.below(100)).map(|at| at as u8));
            Some("extended")
        }
        4 => {
            let range = random.range(len, 200);
            object[range].fill(0);
            Some("a stretch zeroed")
        }
        5 if ends.len() > 1 => {
            let at = random.below(ends.len() - 1);
            let start = if at == 0 { 0 } else { ends[at - 1] };
            // The second one first: the same bytes, where another row group should be.
            object[start..ends[at + 1]].rotate_left(ends[at] - start);
            Some("two row groups swapped")
        }
        6 => {
            let (a, b) = (random.range(len, 64), random.range(len, 64));
            let size = a.len().min(b.len());
            let moved = object[a.start..a.start + size].to_vec();
            object.copy_within(b.start..b.start + size, a.start);
            object[b.start..b.start + size].copy_from_slice(&moved);
            Some("two stretches swapped")
        }
        7 => {
            let range = random.range(len.min(other.len()), 4096);
            object[range.clone()].copy_from_slice(&other[range]);
            Some("a stretch of another part")
        }
        8 => {
            *object = other.to_vec();
            Some("another part's bytes")
        }
        _ => None,
    }
}

fn inline_case(
    case: u64,
    stored: &Stored,
    other: &Stored,
    random: &mut Random,
) -> (&'static str, &'static str) {
    let mut run = stored.inline.clone();
    let mut payload = run.payload.to_vec();
    let len = payload.len();
    let damage = match random.below(6) {
        0 | 1 => {
            payload[random.below(len)] ^= 1 << random.below(8);
            "inline: a bit flipped"
        }
        2 => {
            payload.truncate(random.below(len));
            "inline: cut"
        }
        3 => {
            payload.extend_from_slice(&other.inline.payload);
            "inline: extended"
        }
        4 => {
            payload = other.inline.payload.to_vec();
            "inline: another run's bytes"
        }
        _ => {
            run = InlineRun { schema: run.schema, ..other.inline.clone() };
            payload = run.payload.to_vec();
            OTHER_RUN
        }
    };
    run.payload = payload.into();
    // A whole other run, digest and all, is another run: its columns decide whether it can be read here.
    let swapped = damage == OTHER_RUN;
    if swapped && other.updates.schema() == stored.updates.schema() {
        return (damage, "it is that run");
    }
    let expected = if swapped { other } else { stored };
    judge(case, damage, expected.updates.batch(), || {
        decode_inline(stored.updates.schema(), &run).map(|updates| updates.into_updates().into_batch())
    })
}
