//! What the crate promises as a whole: random updates against the oracle, to bytes and back, and damage.

use std::sync::Arc;

use arrow::array::{Int64Array, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use proptest::prelude::*;
use stash_types::{Description, Digest, Frontier, PartDescriptor, SinkId};

use crate::sort::consolidate_general;
use crate::testing::*;
use crate::*;

fn whole() -> (Frontier, Frontier) {
    (Frontier::MIN, Frontier::EMPTY)
}

fn meta() -> PartMeta {
    PartMeta {
        sink: "k00000000-0000-0000-0000-00000000002a".parse::<SinkId>().unwrap(),
        description: Description::new(Frontier::MIN, Frontier::EMPTY).unwrap(),
        group: 3,
        run: 4,
        ordinal: 5,
    }
}

/// A part as a reader finds it.
struct Stored {
    part: PartDescriptor,
    object: Bytes,
}

fn store(schema: &RowSchema, chunks: &[Sorted], options: EncodeOptions) -> Stored {
    let mut encoder = PartEncoder::new(schema, meta(), options).unwrap();
    chunks.iter().for_each(|chunk| encoder.write(chunk).unwrap());
    let encoded = encoder.finish().unwrap();
    verify_whole(&encoded.descriptor(1, 2), &encoded.chunks).unwrap();
    Stored { part: encoded.descriptor(1, 2), object: encoded.chunks.concat().into() }
}

impl Stored {
    fn slice(&self, range: std::ops::Range<u64>) -> Bytes {
        self.object.slice(range.start as usize..range.end as usize)
    }

    fn read(&self, schema: &RowSchema, lower: Frontier, upper: Frontier) -> Result<Vec<Sorted>, PartError> {
        let layout = PartLayout::parse(schema, &self.part, self.slice(tail_range(&self.part)))?;
        let read = |i: usize| {
            let range = layout.row_groups()[i].range.clone();
            layout.decode_row_group(i, self.slice(range), lower, upper)
        };
        layout.prune(lower, upper).into_iter().map(read).collect()
    }
}

fn all_cells(chunks: &[Sorted]) -> Vec<(Vec<Cell>, u64, i64)> {
    chunks.iter().flat_map(|chunk| cells(chunk)).collect()
}

fn small() -> EncodeOptions {
    EncodeOptions { row_group_rows_max: 7, chunk_bytes: 100, ..EncodeOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn oracle_consolidate(updates in any_updates(true)) {
        let expected = oracle([&updates]);
        prop_assert_eq!(cells(&consolidate(updates).unwrap()), expected);
    }

    #[test]
    fn agree_flat_and_general_order(updates in any_updates(false)) {
        let general = consolidate_general(updates.clone()).unwrap();
        prop_assert_eq!(cells(&consolidate(updates).unwrap()), cells(&general));
    }

    #[test]
    fn oracle_merge(
        schema in any_schema(true),
        runs in proptest::collection::vec(0usize..40, 0..6),
        output_rows in 1usize..20,
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let pieces: Vec<Updates> = runs.iter().map(|len| updates(&schema, 9, *len, &mut random)).collect();
        let runs = pieces.iter().map(|piece| chunks(&consolidate(piece.clone()).unwrap(), &mut random)).collect();
        let merged = merge_chunks(&schema, runs, output_rows).collect::<Result<Vec<_>, _>>().unwrap();
        prop_assert!(merged.iter().all(|batch| (1..=output_rows).contains(&batch.num_rows())));
        prop_assert_eq!(all_cells(&merged), oracle(&pieces));
    }

    #[test]
    fn oracle_merge_of_chunks_that_share_their_border_rows(
        runs in proptest::collection::vec(proptest::collection::vec(1u64..30, 0..8), 1..4),
        output_rows in 1usize..6,
    ) {
        // Each chunk holds the keys below its number that the one before did not pass, and its last again.
        let schema = schema(&[(DataType::UInt64, false)]);
        let chunk = |low: u64, high: u64| {
            let keys: Vec<u64> = (low..=high).collect();
            let len = keys.len();
            let columns = vec![Arc::new(UInt64Array::from(keys)) as _];
            let (times, diffs) = (vec![5; len].into(), vec![1; len].into());
            consolidate(Updates::from_columns(&schema, columns, times, diffs).unwrap()).unwrap()
        };
        let runs: Vec<Vec<Sorted>> = runs
            .into_iter()
            .map(|mut ends| {
                ends.sort_unstable();
                let mut low = 0;
                ends.into_iter().map(|high| chunk(std::mem::replace(&mut low, high), high)).collect()
            })
            .collect();
        let pieces: Vec<Updates> = runs.iter().flatten().map(|chunk| chunk.updates().clone()).collect();
        let merged = merge_chunks(&schema, runs, output_rows).collect::<Result<Vec<_>, _>>().unwrap();
        prop_assert_eq!(all_cells(&merged), oracle(&pieces));
    }

    #[test]
    fn roundtrip_part(updates in any_updates(true), lower in 0usize..8, upper in 0usize..8, seed in any::<u64>()) {
        let schema = updates.schema().clone();
        let run = consolidate(updates).unwrap();
        let stored = store(&schema, &chunks(&run, &mut Random::new(seed)), small());
        prop_assert_eq!(stored.part.facts.update_count, run.num_rows() as u64);
        prop_assert_eq!(stored.part.facts.diff_sum, run.facts().diff_sum);
        let (min, max) = whole();
        prop_assert_eq!(all_cells(&stored.read(&schema, min, max).unwrap()), cells(&run));
        let bound = |i: usize| TIMES.get(i).map_or(Frontier::EMPTY, |time| Frontier::at(*time));
        let (lower, upper) = (bound(lower), bound(upper));
        let kept: Vec<_> = cells(&run)
            .into_iter()
            .filter(|(_, time, _)| lower.as_u64() <= *time && *time < upper.as_u64())
            .collect();
        prop_assert_eq!(all_cells(&stored.read(&schema, lower, upper).unwrap()), kept);
    }

    #[test]
    fn roundtrip_inline(updates in any_updates(true), from in 0usize..10) {
        let schema = updates.schema().clone();
        let run = consolidate(updates).unwrap();
        let run = run.slice(from, 30);
        let inline = encode_inline(&run, 9).unwrap();
        prop_assert_eq!(inline.facts, run.facts());
        prop_assert_eq!(cells(&decode_inline(&schema, &inline).unwrap()), cells(&run));
    }

    #[test]
    fn roundtrip_schema(schema in any_schema(true)) {
        let read = RowSchema::from_bytes(&schema.to_bytes()).unwrap();
        prop_assert_eq!(read.declared_schema().fields(), schema.declared_schema().fields());
        prop_assert_eq!(read.fingerprint(), schema.fingerprint());
    }
}

#[test]
fn roundtrip_every_type_by_itself() {
    for data_type in flat_types().into_iter().chain(deep_types()) {
        for nullable in [false, true] {
            let schema = schema(&[(data_type.clone(), nullable)]);
            let run = consolidate(updates(&schema, 40, 200, &mut Random::new(5))).unwrap();
            let stored = store(&schema, std::slice::from_ref(&run), small());
            let (min, max) = whole();
            let read = stored.read(&schema, min, max).unwrap_or_else(|error| panic!("{data_type}: {error}"));
            assert_eq!(all_cells(&read), cells(&run), "{data_type}, nullable {nullable}");
            assert_eq!(read[0].batch().schema(), *schema.full_schema());
            let inline = decode_inline(&schema, &encode_inline(&run, 0).unwrap()).unwrap();
            assert_eq!(cells(&inline), cells(&run), "{data_type}, nullable {nullable}");
            let restored = schema.restore(run.batch()).unwrap();
            assert_eq!(restored.schema(), *schema.declared_schema());
            assert_eq!(restored.num_rows(), run.num_rows());
        }
    }
}

fn keyed(rows: std::ops::Range<u64>, time: impl Fn(u64) -> u64, text: impl Fn(u64) -> String) -> Sorted {
    let schema = RowSchema::new(Arc::new(Schema::new(vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("text", DataType::Utf8, true),
    ])))
    .unwrap();
    let keys = UInt64Array::from_iter_values(rows.clone());
    let texts = StringArray::from_iter_values(rows.clone().map(text));
    let times = UInt64Array::from_iter_values(rows.clone().map(time));
    let diffs = Int64Array::from_iter_values(rows.map(|_| 1));
    let columns = vec![Arc::new(keys) as _, Arc::new(texts) as _];
    consolidate(Updates::from_columns(&schema, columns, times, diffs).unwrap()).unwrap()
}

#[test]
fn row_groups_are_pruned_over_the_whole_range_of_times() {
    let run = keyed(0..70, |key| TIMES[key as usize / 10], |_| "x".into());
    let options = EncodeOptions { row_group_rows_max: 10, ..EncodeOptions::default() };
    let stored = store(run.schema(), std::slice::from_ref(&run), options);
    let layout =
        PartLayout::parse(run.schema(), &stored.part, stored.slice(tail_range(&stored.part))).unwrap();
    assert_eq!(layout.row_groups().len(), 7);
    for (i, time) in TIMES.iter().enumerate() {
        assert_eq!(layout.prune(Frontier::at(*time), Frontier::at(time + 1)), [i]);
        assert_eq!(layout.prune(Frontier::at(*time), Frontier::EMPTY), (i..7).collect::<Vec<_>>());
        assert_eq!(layout.prune(Frontier::MIN, Frontier::at(*time)), (0..i).collect::<Vec<_>>());
    }
}

#[test]
fn the_same_input_gives_the_same_bytes_however_it_is_chunked_on_the_way_out() {
    let run = keyed(0..500, |_| 3, |key| format!("text {key}"));
    let one = store(run.schema(), std::slice::from_ref(&run), small());
    let two = store(run.schema(), std::slice::from_ref(&run), EncodeOptions { chunk_bytes: 7, ..small() });
    assert_eq!(one.object, two.object);
    assert_eq!(one.part, two.part);
}

#[test]
fn four_hundred_wide_columns_stay_near_one_row_group() {
    let fields: Vec<Field> = (0..400).map(|i| Field::new(format!("c{i}"), DataType::Utf8, false)).collect();
    let schema = RowSchema::new(Arc::new(Schema::new(fields))).unwrap();
    let rows = 64u64;
    let text = |row: u64| format!("{row:03}{}", "x".repeat(200));
    let column = Arc::new(StringArray::from_iter_values((0..rows).map(text)));
    let columns = (0..400).map(|_| Arc::clone(&column) as _).collect();
    let (times, diffs) = (vec![1; rows as usize].into(), vec![1; rows as usize].into());
    let run = consolidate(Updates::from_columns(&schema, columns, times, diffs).unwrap()).unwrap();
    let budget = 1 << 20;
    let options =
        EncodeOptions { row_group_bytes_max: budget, chunk_bytes: 1 << 16, ..EncodeOptions::default() };
    let stored = store(&schema, std::slice::from_ref(&run), options);
    let layout = PartLayout::parse(&schema, &stored.part, stored.slice(tail_range(&stored.part))).unwrap();
    assert!(layout.row_groups().len() >= 5, "{} bytes in one row group", run.memory_bytes());
    assert!(layout.row_groups().iter().all(|span| span.uncompressed_bytes <= budget as u64));
    let (min, max) = whole();
    assert_eq!(all_cells(&stored.read(&schema, min, max).unwrap()), cells(&run));
}

#[test]
fn a_row_larger_than_a_row_group_stands_alone_and_a_larger_one_is_refused() {
    let run = keyed(0..3, |_| 1, |key| "x".repeat(if key == 1 { 5000 } else { 10 }));
    let options =
        EncodeOptions { row_group_bytes_max: 1000, row_bytes_max: 10_000, ..EncodeOptions::default() };
    let stored = store(run.schema(), std::slice::from_ref(&run), options);
    let layout =
        PartLayout::parse(run.schema(), &stored.part, stored.slice(tail_range(&stored.part))).unwrap();
    assert_eq!(layout.row_groups().iter().map(|span| span.rows).collect::<Vec<_>>(), [1, 1, 1]);
    let options = EncodeOptions { row_bytes_max: 2000, ..options };
    let refused = PartEncoder::new(run.schema(), meta(), options).unwrap().write(&run).unwrap_err();
    assert!(matches!(refused, PartError::TooLarge { what: "a single row", .. }), "{refused}");
}

#[test]
fn no_bit_flip_and_no_truncation_yields_other_rows() {
    let run = keyed(0..300, |key| key % 5, |key| format!("row {key}"));
    let stored =
        store(run.schema(), std::slice::from_ref(&run), EncodeOptions { row_group_rows_max: 100, ..small() });
    let (min, max) = whole();
    let expected = cells(&run);
    assert_eq!(all_cells(&stored.read(run.schema(), min, max).unwrap()), expected);
    let mut random = Random::new(11);
    for _ in 0..2000 {
        let mut object = stored.object.to_vec();
        let (byte, bit) = (random.below(object.len()), random.below(8));
        object[byte] ^= 1 << bit;
        let damaged = Stored { part: stored.part.clone(), object: object.into() };
        let error = damaged.read(run.schema(), min, max).expect_err("a flipped bit must be noticed");
        assert!(error.is_corrupt(), "byte {byte} bit {bit}: {error}");
        assert!(verify_whole(&damaged.part, &[damaged.object]).is_err());
    }
    let tail = stored.slice(tail_range(&stored.part));
    for cut in 0..tail.len() {
        assert!(PartLayout::parse(run.schema(), &stored.part, tail.slice(cut..)).is_ok() == (cut == 0));
        assert!(PartLayout::parse(run.schema(), &stored.part, tail.slice(..cut)).is_err());
    }
}

/// Even where a writer vouches for damaged bytes with fresh digests, nothing panics, hangs or takes memory.
#[test]
fn damage_with_fresh_digests_is_an_error_or_harmless() {
    let run = keyed(0..40, |key| key % 5, |key| format!("row {key}"));
    let stored = store(run.schema(), std::slice::from_ref(&run), EncodeOptions::default());
    let (min, max) = whole();
    let mut random = Random::new(23);
    std::panic::set_hook(Box::new(|_| {}));
    for _ in 0..1500 {
        let mut object = stored.object.to_vec();
        let tail = tail_range(&stored.part);
        let at = tail.start as usize + random.below((tail.end - tail.start) as usize);
        object[at] ^= 1 << random.below(8);
        let mut part = stored.part.clone();
        part.tail_digest = Digest::of(&object[tail.start as usize..]);
        let damaged = Stored { part, object: object.into() };
        if let Ok(read) = damaged.read(run.schema(), min, max) {
            assert_eq!(all_cells(&read), cells(&run));
        }
    }
    drop(std::panic::take_hook());
}
