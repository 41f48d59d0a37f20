//! What the crate promises as a whole: random updates against the oracle, to bytes and back, and damage.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, Int64Array, ListArray, StringArray, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use stash_types::{Description, Digest, Frontier, PartDescriptor, RunFacts, SchemaFingerprint, SinkId};

use crate::footer::{FooterFacts, RowGroupFacts};
use crate::sort::consolidate_general;
use crate::testing::*;
use crate::*;

mod merging;

fn whole() -> (Frontier, Frontier) {
    (Frontier::MIN, Frontier::EMPTY)
}

/// Limits of which each may be the one that is met first.
fn any_limits() -> impl Strategy<Value = OutputLimits> {
    let bytes = || prop_oneof![Just(usize::MAX), 1usize..2000];
    (1usize..20, bytes(), bytes()).prop_map(|(rows, bytes, held_bytes)| OutputLimits {
        rows,
        bytes,
        held_bytes,
    })
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
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

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
        limits in any_limits(),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let pieces: Vec<Updates> = runs.iter().map(|len| updates(&schema, 9, *len, &mut random)).collect();
        let runs = pieces.iter().map(|piece| chunks(&consolidate(piece.clone()).unwrap(), &mut random)).collect();
        let merged = merge_chunks(&schema, runs, limits).collect::<Result<Vec<_>, _>>().unwrap();
        prop_assert!(merged.iter().all(|batch| (1..=limits.rows).contains(&batch.num_rows())));
        prop_assert_eq!(all_cells(&merged), oracle(&pieces));
    }

    #[test]
    fn oracle_merge_of_chunks_that_share_their_border_rows(
        runs in proptest::collection::vec(proptest::collection::vec(1u64..30, 0..8), 1..4),
        limits in any_limits(),
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
        let merged = merge_chunks(&schema, runs, limits).collect::<Result<Vec<_>, _>>().unwrap();
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
fn updates_follow_others_where_their_first_comes_after_the_last_of_those() {
    let run = keyed(0..10, |_| 4, |row| format!("{row}"));
    let at = |from: usize, to: usize| run.slice(from, to - from);
    assert!(at(5, 10).follows(&at(0, 5)).unwrap());
    assert!(!at(4, 10).follows(&at(0, 5)).unwrap(), "it has the same row and time");
    assert!(!at(0, 5).follows(&at(5, 10)).unwrap());
    assert!(at(0, 0).follows(&at(5, 10)).unwrap() && at(0, 5).follows(&at(5, 5)).unwrap());
    let later = keyed(9..12, |_| 5, |row| format!("{row}"));
    assert!(later.follows(&run).unwrap(), "the same row at a later time");
    assert_eq!(cells(&run.last().unwrap().unwrap()), cells(&at(9, 10)));
    assert!(at(0, 0).last().unwrap().is_none());
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
}

/// A part by another writer: any properties and any claims, with digests that are right.
fn forge(run: &Sorted, dictionary: bool, claim: impl Fn(&mut RunFacts)) -> Stored {
    forge_damaged(run, dictionary, claim, |_| {})
}

fn forge_damaged(
    run: &Sorted,
    dictionary: bool,
    claim: impl Fn(&mut RunFacts),
    damage: impl FnOnce(&mut Vec<u8>),
) -> Stored {
    let properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_dictionary_enabled(dictionary)
        .build();
    let full = Arc::clone(run.schema().full_schema());
    let mut writer = ArrowWriter::try_new(Vec::new(), full, Some(properties)).unwrap();
    writer.write(run.batch()).unwrap();
    writer.flush().unwrap();
    writer.sync().unwrap();
    damage(writer.inner_mut());
    let end = writer.inner().len();
    let mut facts = run.facts();
    claim(&mut facts);
    let RunFacts { update_count: rows, min_time, max_time, uncompressed_bytes: bytes, .. } = facts;
    let digest = Digest::of(writer.inner());
    let row_groups = vec![RowGroupFacts { end: end as u64, rows, min_time, max_time, bytes, digest }];
    let schema = run.schema().fingerprint();
    let footer = FooterFacts { meta: meta(), facts, schema, row_groups };
    for (key, value) in footer.to_metadata() {
        writer.append_key_value_metadata(KeyValue::new(key, value));
    }
    stored(writer.into_inner().unwrap(), end, facts, schema)
}

fn stored(object: Vec<u8>, tail: usize, facts: RunFacts, schema: SchemaFingerprint) -> Stored {
    let part = PartDescriptor {
        process: 0,
        n: 0,
        group: meta().group,
        run: meta().run,
        ordinal: meta().ordinal,
        len: object.len() as u64,
        tail_len: (object.len() - tail) as u64,
        tail_digest: Digest::of(&object[tail..]),
        digest: Digest::of(&object),
        facts,
        piece_bytes: facts.uncompressed_bytes,
        schema,
    };
    Stored { part, object: object.into() }
}

#[test]
fn a_forged_part_is_read_only_as_far_as_its_claims_hold() {
    let (min, max) = whole();
    let run = keyed(0..3000, |_| 9, |_| "bomb".repeat(1000));
    let honest = forge(&run, false, |_| {});
    assert_eq!(all_cells(&honest.read(run.schema(), min, max).unwrap()), cells(&run));
    let refused = |stored: Stored, why: &str| {
        let error = stored.read(run.schema(), min, max).expect_err(why).to_string();
        assert!(error.contains(why), "{error} should say {why:?}");
    };
    // Twelve megabytes from a dictionary of four kilobytes: the 838-fold kind.
    refused(forge(&run, true, |_| {}), "a page of a kind this format does not write");
    refused(forge(&run, false, |facts| facts.uncompressed_bytes = 1000), "beyond what it declares");
    refused(forge(&run, false, |facts| facts.update_count += 1), "counts are impossible");
    // Times and diffs may have dictionaries, so that a few bytes are as many of them as somebody claims.
    let none = schema(&[]);
    let times: Vec<u64> = (0..40_000).collect();
    let updates = Updates::from_columns(&none, vec![], times.into(), vec![1; 40_000].into()).unwrap();
    let small = forge(&consolidate(updates).unwrap(), true, |facts| facts.uncompressed_bytes = 40_000);
    let error = small.read(&none, min, max).unwrap_err().to_string();
    assert!(error.contains("more updates than it has room for"), "{error}");
    refused(forge(&run, false, |facts| facts.max_time += 1), "statistics contradict it");
    let unsorted = Sorted::vouch(
        Updates::concat(run.schema(), &[run.slice(1, 1).into_updates(), run.slice(0, 1).into_updates()])
            .unwrap(),
    );
    refused(forge(&unsorted, false, |_| {}), "not sorted");
    let twice = Sorted::vouch(
        Updates::concat(run.schema(), &[run.slice(0, 1).into_updates(), run.slice(0, 1).into_updates()])
            .unwrap(),
    );
    refused(forge(&twice, false, |_| {}), "not sorted and consolidated");
}

/// With digests made after the damage only the decoder's own limits are left: it may read other rows, as many
/// as declared, but must not panic, hang or take memory.
#[test]
fn a_row_group_damaged_before_it_was_digested_never_escapes_its_limits() {
    let (min, max) = whole();
    let drawn = schema(&[(DataType::Utf8, true), (DataType::Int64, true), (deep_types()[0].clone(), true)]);
    let run = consolidate(updates(&drawn, 30, 200, &mut Random::new(17))).unwrap();
    let mut random = Random::new(29);
    let mut refused = 0;
    for _ in 0..600 {
        let flip = |object: &mut Vec<u8>| {
            let at = random.below(object.len());
            object[at] ^= 1 << random.below(8);
        };
        match forge_damaged(&run, false, |_| {}, flip).read(&drawn, min, max) {
            Ok(read) => assert_eq!(read.iter().map(|read| read.num_rows()).sum::<usize>(), run.num_rows()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "only {refused} of 600 were refused");
}

#[test]
fn a_footer_bomb_is_refused_before_it_is_allocated() {
    let run = keyed(0..1, |_| 9, |_| String::new());
    // The second field of a footer is its list of schema elements: here two billion of them, or a thousand
    // structs within one another.
    let many = [0x15, 2, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07].to_vec();
    let deep = [0x1c].repeat(5000);
    // And columns within columns, sixty thousand of them: what is built by recursion would take the stack with it.
    let group = [0x35, 0, 0x18, 1, b'x', 0x15, 2, 0];
    let leaf = [0x15, 2, 0x25, 0, 0x18, 1, b'x', 0];
    let head = [0x15, 2, 0x19, 0xfc, 0xe1, 0xd4, 0x03];
    let nested = [&head[..], &group.repeat(60_000), &leaf, &[0x16, 0, 0x19, 0x0c, 0]].concat();
    for footer in [many, deep, nested, Vec::new(), vec![0]] {
        let mut object = b"PAR1".to_vec();
        let tail = object.len();
        object.extend_from_slice(&footer);
        object.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        object.extend_from_slice(b"PAR1");
        let stored = stored(object, tail, run.facts(), run.schema().fingerprint());
        let (min, max) = whole();
        let error = stored.read(run.schema(), min, max).unwrap_err();
        assert!(error.is_corrupt(), "{error}");
    }
}

#[test]
fn a_part_of_another_version_or_schema_is_refused_by_name() {
    let run = keyed(0..3, |_| 1, |_| "x".into());
    let mut stored = store(run.schema(), std::slice::from_ref(&run), small());
    let (min, max) = whole();
    let other = schema(&[(DataType::UInt64, false)]);
    assert!(matches!(stored.read(&other, min, max), Err(PartError::WrongSchema { .. })));
    let key = b"stash.order";
    let at = stored.object.windows(key.len()).position(|window| window == key).unwrap();
    let mut object = stored.object.to_vec();
    // The value follows its key: a field header and a length, then the text.
    assert_eq!(object[at + key.len() + 2], b'1');
    object[at + key.len() + 2] = b'7';
    stored.part.tail_digest = Digest::of(&object[tail_range(&stored.part).start as usize..]);
    stored.object = object.into();
    let error = stored.read(run.schema(), min, max).unwrap_err();
    assert_eq!(error, PartError::Version { what: "order", found: "7".into(), known: ORDER_VERSION });
}

#[test]
fn a_part_without_updates_and_one_without_columns_round_trip() {
    let (min, max) = whole();
    let none = schema(&[]);
    let empty = store(&none, &[], small());
    assert_eq!(empty.read(&none, min, max).unwrap().len(), 0);
    let times = UInt64Array::from(vec![3, 1, 3, 2]);
    let updates = Updates::from_columns(&none, vec![], times, vec![1, 1, 1, -1].into()).unwrap();
    let run = consolidate(updates).unwrap();
    assert_eq!((run.times(), run.diffs()), (&[1, 2, 3][..], &[1, -1, 2][..]));
    let stored = store(&none, std::slice::from_ref(&run), small());
    assert_eq!(all_cells(&stored.read(&none, min, max).unwrap()), cells(&run));
}

#[test]
fn an_encoder_refuses_what_is_out_of_order_or_outside_its_description() {
    let run = keyed(0..10, |_| 5, |_| "x".into());
    let mut encoder = PartEncoder::new(run.schema(), meta(), small()).unwrap();
    encoder.write(&run.slice(3, 3)).unwrap();
    assert_eq!(encoder.write(&run.slice(5, 2)).unwrap_err(), PartError::OutOfOrder { run: 4 });
    let description = Description::new(Frontier::at(2), Frontier::at(5)).unwrap();
    let mut encoder = PartEncoder::new(run.schema(), PartMeta { description, ..meta() }, small()).unwrap();
    assert!(matches!(encoder.write(&run), Err(PartError::Misuse(_))));
}

#[test]
fn an_inline_run_that_was_altered_is_refused() {
    let run = keyed(0..20, |key| key, |key| format!("row {key}"));
    let inline = encode_inline(&run, 1).unwrap();
    for at in 0..inline.payload.len() {
        let mut payload = inline.payload.to_vec();
        payload[at] ^= 1;
        let mut altered = stash_types::InlineRun { payload: payload.into(), ..inline.clone() };
        assert!(decode_inline(run.schema(), &altered).unwrap_err().is_corrupt(), "byte {at}");
        // Even with a fresh digest it is an error, or updates that fit the declared facts; never a panic.
        altered.digest = Digest::of(&altered.payload);
        let _ = decode_inline(run.schema(), &altered);
        altered.payload = inline.payload.slice(..at);
        altered.digest = Digest::of(&altered.payload);
        // The last bytes are padding, and may go.
        if let Ok(read) = decode_inline(run.schema(), &altered) {
            assert_eq!(cells(&read), cells(&run), "cut to {at}");
        }
    }
    let facts = RunFacts { diff_sum: 21, ..inline.facts };
    assert!(decode_inline(run.schema(), &stash_types::InlineRun { facts, ..inline }).is_err());
}

#[test]
fn a_sum_beyond_i64_is_a_typed_error_but_a_detour_is_not() {
    let schema = schema(&[]);
    let sum = |diffs: Vec<i64>| {
        let times = vec![7; diffs.len()].into();
        consolidate(Updates::from_columns(&schema, vec![], times, diffs.into()).unwrap())
    };
    let sum_max = i128::from(i64::MAX) + 1;
    assert_eq!(sum(vec![i64::MAX, 1]).unwrap_err(), PartError::DiffOverflow { time: 7, sum: sum_max });
    assert_eq!(sum(vec![i64::MAX, 5, -5]).unwrap().diffs(), [i64::MAX]);
    let runs = [vec![i64::MAX], vec![1]].map(|diffs| sum(diffs).unwrap()).to_vec();
    assert_eq!(merge_all(&schema, runs).unwrap_err(), PartError::DiffOverflow { time: 7, sum: sum_max });
}

#[test]
fn memory_is_that_of_the_slice_and_nothing_is_copied_where_nothing_is_cut() {
    let run = keyed(0..1000, |key| key % 4, |_| "x".repeat(100));
    assert!(run.slice(0, 10).memory_bytes() * 90 < run.memory_bytes());
    let kept = run.between(Frontier::at(0), Frontier::at(4)).unwrap();
    assert_eq!(kept.times().as_ptr(), run.times().as_ptr());
    assert_eq!(run.between(Frontier::at(1), Frontier::at(2)).unwrap().num_rows(), 250);
    assert_eq!(run.between(Frontier::at(4), Frontier::EMPTY).unwrap().num_rows(), 0);
}

#[test]
fn a_schema_refuses_by_name_what_would_not_come_back() {
    let column = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let entries =
        DataType::Struct(vec![column("key", DataType::Utf8), column("value", DataType::Utf8)].into());
    for (fields, named) in [
        (vec![column("_time", DataType::UInt64)], "_time"),
        (vec![column("a", DataType::Utf8), column("a", DataType::Utf8)], "\"a\""),
        (vec![column("m", DataType::Map(item(entries), false))], "\"m\""),
        (vec![column("i", DataType::Interval(IntervalUnit::DayTime))], "\"i\""),
        (vec![column("l", DataType::List(item(DataType::Null)))], "l.item"),
        (vec![column("s", DataType::Struct(Fields::empty()))], "\"s\""),
        (vec![column("d", DataType::Decimal128(10, -2))], "\"d\""),
        (vec![column("f", DataType::FixedSizeList(item(DataType::Int8), 0))], "\"f\""),
        (vec![column("z", DataType::Timestamp(TimeUnit::Second, Some("".into())))], "\"z\""),
    ] {
        let error = RowSchema::new(Arc::new(Schema::new(fields))).unwrap_err();
        assert!(matches!(&error, PartError::Misuse(why) if why.contains(named)), "{error}");
    }
    for cut in 0..20 {
        assert!(RowSchema::from_bytes(&schema(&[(DataType::Utf8, true)]).to_bytes()[..cut]).is_err());
    }
}

#[test]
fn fingerprints_tell_names_types_and_nullability_but_not_dictionaries_or_metadata() {
    let of = |field: Field| RowSchema::new(Arc::new(Schema::new(vec![field]))).unwrap().fingerprint();
    let text = Field::new("a", DataType::Utf8, true);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let labelled = text.clone().with_metadata([("k".to_owned(), "v".to_owned())].into());
    assert_eq!(of(text.clone()), of(labelled));
    assert_eq!(of(text.clone()), of(Field::new("a", dictionary, true)));
    assert_ne!(of(text.clone()), of(Field::new("b", DataType::Utf8, true)));
    assert_ne!(of(text.clone()), of(Field::new("a", DataType::Utf8, false)));
    assert_ne!(of(text.clone()), of(Field::new("a", DataType::LargeUtf8, true)));
    // The spelling is kept in parts and catalogs: this value must never change.
    assert_eq!(of(text).to_string(), "053abfd33b54eb30787e221b2625529cfd82ab66352bd495df57ff50f0193a41");
}

#[test]
fn updates_refuse_times_that_are_none_and_columns_that_are_not_theirs() {
    let schema = schema(&[(DataType::UInt64, false)]);
    let column = || Arc::new(UInt64Array::from(vec![1])) as _;
    let refused = Updates::from_columns(&schema, vec![column()], vec![u64::MAX].into(), vec![1].into());
    assert!(matches!(refused, Err(PartError::Misuse(_))));
    let wrong = Arc::new(Int64Array::from(vec![1])) as _;
    let refused = Updates::from_columns(&schema, vec![wrong], vec![1].into(), vec![1].into());
    assert!(matches!(refused, Err(PartError::SchemaMismatch(_))));
    let null = Arc::new(UInt64Array::from(vec![None])) as _;
    assert!(Updates::from_columns(&schema, vec![null], vec![1].into(), vec![1].into()).is_err());
    assert!(Updates::from_columns(&schema, vec![column()], vec![1, 2].into(), vec![1].into()).is_err());
    let list = |nullable| DataType::List(Arc::new(Field::new("item", DataType::UInt8, nullable)));
    let strict = crate::testing::schema(&[(list(false), true)]);
    let loose = array(&list(true), true, 50, &mut Random::new(3));
    let refused = Updates::from_columns(&strict, vec![loose], vec![1; 50].into(), vec![1; 50].into());
    assert!(matches!(refused, Err(PartError::SchemaMismatch(_))));
}

#[test]
fn agree_every_flat_type_where_the_prefix_decides_nothing() {
    for data_type in flat_types() {
        // Sixteen bytes that every row shares come first, so columns are compared by themselves.
        let schema = schema(&[(DataType::FixedSizeBinary(16), false), (data_type.clone(), true)]);
        let drawn = updates(&schema, 40, 300, &mut Random::new(3));
        let shared = FixedSizeBinaryArray::new(16, vec![7u8; 16 * 300].into(), None);
        let columns = vec![Arc::new(shared) as _, Arc::clone(drawn.batch().column(1))];
        let (times, diffs) = (drawn.times().to_vec(), drawn.diffs().to_vec());
        let updates = Updates::from_columns(&schema, columns, times.into(), diffs.into()).unwrap();
        let expected = oracle([&updates]);
        assert_eq!(cells(&consolidate_general(updates.clone()).unwrap()), expected, "{data_type}");
        assert_eq!(cells(&consolidate(updates).unwrap()), expected, "{data_type}");
    }
}

/// Reads a part as salvage does: nothing but its bytes tells what it is.
fn surmised(object: &Bytes) -> Result<(PartDescriptor, Vec<Sorted>), PartError> {
    let len = object.len() as u64;
    let from = |start: u64| object.slice(start as usize..);
    let trailer = len.checked_sub(TRAILER_BYTES).map_or_else(Bytes::new, from);
    let surmise = Surmise::of_footer(len, &from(footer_start(len, &trailer)?))?;
    let (schema, tail) = (surmise.schema().clone(), surmise.tail());
    let (part, _) = surmise.into_part(1, 2, from(tail.start))?;
    let stored = Stored { part: part.clone(), object: object.clone() };
    let (min, max) = whole();
    stored.read(&schema, min, max).map(|read| (part, read))
}

#[test]
fn what_is_surmised_from_a_footer_is_what_the_descriptor_said() {
    let drawn = schema(&[(DataType::Utf8, true), (DataType::Int64, false), (deep_types()[0].clone(), true)]);
    let runs = [
        keyed(0..300, |key| key % 5, |key| format!("row {key}")),
        consolidate(updates(&drawn, 30, 200, &mut Random::new(17))).unwrap(),
        Sorted::empty(&drawn),
    ];
    for run in runs {
        let options = EncodeOptions { row_group_rows_max: 100, ..small() };
        let stored = store(run.schema(), std::slice::from_ref(&run), options);
        let (part, read) = surmised(&stored.object).unwrap();
        assert_eq!(part, PartDescriptor { digest: Digest([0; 32]), ..stored.part });
        assert_eq!(all_cells(&read), cells(&run));
    }
}

#[test]
fn damage_to_a_part_that_nobody_vouches_for_is_an_error_or_harmless() {
    let run = keyed(0..300, |key| key % 5, |key| format!("row {key}"));
    let stored =
        store(run.schema(), std::slice::from_ref(&run), EncodeOptions { row_group_rows_max: 100, ..small() });
    let body = tail_range(&stored.part).start as usize;
    let mut random = Random::new(31);
    for turn in 0..3000 {
        let mut object = stored.object.to_vec();
        // Every other one in the tail, which no digest covers.
        let byte = if turn % 2 == 0 { random.below(body) } else { body + random.below(object.len() - body) };
        object[byte] ^= 1 << random.below(8);
        match surmised(&object.into()) {
            Ok((_, read)) => assert!(byte >= body && all_cells(&read) == cells(&run), "byte {byte}"),
            Err(PartError::Misuse(why)) => panic!("byte {byte} is no misuse: {why}"),
            Err(_) => {}
        }
    }
    for cut in (0..stored.object.len()).step_by(7) {
        assert!(surmised(&stored.object.slice(..cut)).is_err(), "cut to {cut} bytes");
    }
}

/// Every dictionary that a schema may declare comes back as it was declared, with its values and nulls; every other is
/// refused where it is declared, not where it is read.
#[test]
fn agree_which_dictionaries_are_accepted_and_which_come_back() {
    let words = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    for value in flat_types().into_iter().chain([words]) {
        let packed = DataType::Dictionary(Box::new(DataType::Int16), Box::new(value.clone()));
        let listed = DataType::List(Arc::new(Field::new("item", packed.clone(), true)));
        let drawn = array(&value, true, 300, &mut Random::new(11));
        for declared in [packed, listed] {
            let accepted =
                RowSchema::new(Arc::new(Schema::new(vec![Field::new("words", declared.clone(), true)])));
            let schema = match (&value, accepted) {
                (
                    DataType::Null | DataType::Boolean | DataType::Duration(_) | DataType::Dictionary(_, _),
                    refused,
                ) => {
                    let why = refused.expect_err("no dictionary holds such values").to_string();
                    assert!(
                        why.contains("words") && why.contains(&format!("declare it as {value}")),
                        "{why}"
                    );
                    continue;
                }
                (_, accepted) => accepted.unwrap(),
            };
            let stored = schema.row_schema().field(0).data_type();
            let column = match stored {
                DataType::List(item) => {
                    let lengths = OffsetBuffer::from_lengths([100, 0, 200]);
                    Arc::new(ListArray::new(Arc::clone(item), lengths, Arc::clone(&drawn), None)) as ArrayRef
                }
                _ => Arc::clone(&drawn),
            };
            let ones = column.len();
            let updates = Updates::from_columns(
                &schema,
                vec![Arc::clone(&column)],
                vec![1; ones].into(),
                vec![1; ones].into(),
            );
            let restored = schema.restore(updates.unwrap().batch()).unwrap();
            assert_eq!(restored.column(0).data_type(), &declared);
            let unpacked = cast(restored.column(0), stored).unwrap();
            assert_eq!(unpacked.to_data(), column.to_data(), "{declared}");
        }
    }
}
