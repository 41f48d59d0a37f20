use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, UInt64Builder};
use arrow::datatypes::UInt64Type;
use proptest::prelude::*;

use super::*;
use crate::batch::testing::{Update, key_batch, span, val_batch};
use crate::batch::{KeyBatch, ValBatch};
use crate::errors::ERRORS_MAX;
use crate::held::Held;

/// Two columns of numbers.
#[derive(Default)]
struct Pairs {
    keys: UInt64Builder,
    vals: UInt64Builder,
    rows: usize,
    fails: bool,
}

impl RowSink for Pairs {
    fn bytes(&self) -> usize {
        self.rows * 16
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, String> {
        if self.fails {
            return Err("it was told to".to_owned());
        }
        self.rows = 0;
        Ok(vec![Arc::new(self.keys.finish()), Arc::new(self.vals.finish())])
    }
}

/// Rows of positions; keys that are multiples of five have none.
struct Rows;

impl Rows {
    fn row(key: u64, val: u64, rows: &mut Pairs) -> Result<(), NoRow> {
        if key.is_multiple_of(5) {
            return Err(NoRow::Error(format!("{} is a multiple of five", if val < 2 { 0 } else { key })));
        }
        rows.keys.append_value(key);
        rows.vals.append_value(val);
        rows.rows += 1;
        Ok(())
    }
}

impl<C> Projection<C> for Rows
where
    C: for<'a> Cursor<Key<'a> = &'a u64, Val<'a> = &'a u64>,
{
    type Rows = Pairs;

    fn project(&mut self, key: C::Key<'_>, val: C::Val<'_>, rows: &mut Pairs) -> Result<(), NoRow> {
        Self::row(*key, *val, rows)
    }
}

struct KeyRows;

impl<C> Projection<C> for KeyRows
where
    C: for<'a> Cursor<Key<'a> = &'a u64, Val<'a> = &'a ()>,
{
    type Rows = Pairs;

    fn project(&mut self, key: C::Key<'_>, (): C::Val<'_>, rows: &mut Pairs) -> Result<(), NoRow> {
        Rows::row(*key, 0, rows)
    }
}

const ALL: Window = Window { lower: 0, upper: u64::MAX, as_of: 0 };
const ONE_CHUNK: ChunkLimits = ChunkLimits { rows: usize::MAX, bytes: usize::MAX };

type Placed = Vec<((u64, u64), u64, i64)>;
type Messages = BTreeMap<(u64, String), i64>;

/// The updates of a chunk, which has no more than its limits allow.
fn placed(chunk: &Chunk, limits: ChunkLimits) -> Placed {
    let rows = chunk.times.len();
    assert!(0 < rows && rows <= limits.rows.min(limits.bytes.div_ceil(16)).max(1), "a chunk of {rows}");
    assert_eq!(chunk.diffs.len(), rows);
    let column = |index: usize| chunk.columns[index].as_primitive::<UInt64Type>().values().to_vec();
    let pairs = column(0).into_iter().zip(column(1));
    pairs.zip(chunk.times.iter().zip(&chunk.diffs)).map(|(pair, (time, diff))| (pair, *time, *diff)).collect()
}

/// Steps to the end, and gives all updates and errors.
fn run<B, P>(mut scan: Scan<B, P>, fuel: &[usize], limits: ChunkLimits) -> (Placed, Messages)
where
    B: Navigable<Cursor: Cursor<Time = u64, Diff: Multiplicity>>,
    P: Projection<B::Cursor, Rows = Pairs>,
{
    let mut all = Vec::new();
    for &given in fuel.iter().cycle() {
        let mut left = given;
        let step = scan.step(&mut left, limits).expect("no overflow");
        assert!(left <= given);
        match step {
            Step::Chunk(chunk) => all.extend(placed(&chunk, limits)),
            Step::Paused => assert_eq!(left, 0, "it pauses for want of fuel only"),
            Step::Done(last) => {
                all.extend(last.iter().flat_map(|chunk| placed(chunk, limits)));
                break;
            }
        }
    }
    (all, messages(&scan.take_errors()))
}

fn messages(errors: &Errors) -> Messages {
    errors
        .kept()
        .iter()
        .map(|(error, diff)| (error.clone(), i64::try_from(*diff).expect("it fits")))
        .collect()
}

/// What a scan should give, from the updates alone.
fn oracle(updates: &[Update], window: Window) -> (Placed, Messages) {
    let mut sums = BTreeMap::new();
    for ((key, val), time, diff) in updates {
        let at = if *time < window.as_of { window.as_of } else { *time };
        if at >= window.lower && (window.upper == u64::MAX || at < window.upper) {
            *sums.entry((*key, *val, at)).or_insert(0) += diff;
        }
    }
    let (mut rows, mut errors) = (Vec::new(), BTreeMap::new());
    for ((key, val, time), diff) in sums {
        if diff == 0 {
            continue;
        }
        if key.is_multiple_of(5) {
            let named = if val < 2 { 0 } else { key };
            *errors.entry((time, format!("{named} is a multiple of five"))).or_insert(0) += diff;
        } else {
            rows.push(((key, val), time, diff));
        }
    }
    errors.retain(|_, diff| *diff != 0);
    (rows, errors)
}

/// The updates in batches that are cut at these times.
fn cut<B>(updates: &[Update], cuts: &[u64], batch: impl Fn(Vec<Update>) -> Option<B>) -> Vec<B> {
    let mut bounds = cuts.to_vec();
    bounds.extend([0, u64::MAX]);
    bounds.sort_unstable();
    let within = |lower, upper| updates.iter().filter(move |(_, time, _)| lower <= *time && *time < upper);
    bounds.windows(2).filter_map(|bound| batch(within(bound[0], bound[1]).copied().collect())).collect()
}

fn updates() -> impl Strategy<Value = Vec<Update>> {
    prop::collection::vec((((0..12u64), 0..4u64), 0..20u64, -2..=2i64), 0..120)
}

fn window() -> impl Strategy<Value = Window> {
    let bound = || prop_oneof![4 => 0..22u64, 1 => Just(u64::MAX)];
    (0..22u64, bound(), 0..22u64).prop_map(|(lower, upper, as_of)| Window { lower, upper, as_of })
}

fn limits() -> impl Strategy<Value = ChunkLimits> {
    let limit = || prop_oneof![0..20usize, Just(usize::MAX)];
    (limit(), limit()).prop_map(|(rows, bytes)| ChunkLimits { rows, bytes: bytes.saturating_mul(16) })
}

proptest! {
    #[test]
    fn oracle_a_scan_gives_what_counts_at_its_time_consolidated(
        updates in updates(),
        cuts in prop::collection::vec(0..20u64, 0..6),
        window in window(),
        fuel in prop::collection::vec(1..30usize, 1..5),
        limits in limits(),
    ) {
        let scan = Scan::new(cut(&updates, &cuts, val_batch), window, Rows, Pairs::default());
        prop_assert_eq!(run(scan, &fuel, limits), oracle(&updates, window));

        let keys: Vec<_> = updates.iter().map(|((key, _), time, diff)| ((*key, 0), *time, *diff)).collect();
        let batch = |updates: Vec<Update>| key_batch(updates.iter().map(|u| (u.0.0, u.1, u.2)).collect());
        let scan = Scan::new(cut(&keys, &cuts, batch), window, KeyRows, Pairs::default());
        prop_assert_eq!(run(scan, &fuel, limits), oracle(&keys, window));
    }
}

proptest! {
    /// Held and scanned as a worker does it: one description after another, merging in between.
    #[test]
    fn oracle_descriptions_written_one_by_one_hold_every_update_once(
        updates in updates(),
        spans in prop::collection::btree_set(1..20u64, 0..10),
        descriptions in prop::collection::btree_set(1..22u64, 1..8),
        fuel in prop::collection::vec(0..40isize, 1..6),
    ) {
        let (mut held, mut fuel) = (Held::new(), fuel.into_iter().cycle());
        let mut turn = |held: &mut Held<_>| held.work(&mut fuel.next().unwrap_or(0));
        let mut spans = spans.into_iter().chain([20, u64::MAX]).peekable();
        let (mut at, mut written) = (0, Vec::new());
        let mut bounds = descriptions.into_iter().chain([u64::MAX]).peekable();
        let as_of = bounds.peek().map_or(0, |first| first - 1);
        let mut lower = as_of;
        for upper in bounds {
            // Spans come until the frontier has reached the description's upper.
            while at < upper && let Some(next) = spans.next() {
                let within = |time: u64| at <= time && time < next;
                let batch = val_batch(updates.iter().copied().filter(|update| within(update.1)).collect());
                held.insert(span(at, next, batch));
                at = next;
                turn(&mut held);
            }
            held.reserve(upper);
            turn(&mut held);
            let batches = held.overlapping(if lower == as_of { 0 } else { lower }, upper);
            turn(&mut held);
            let scan = Scan::new(batches, Window { lower, upper, as_of }, Rows, Pairs::default());
            written.extend(run(scan, &[3], ONE_CHUNK).0);
            held.release(upper);
            lower = upper;
        }
        written.sort_unstable();
        prop_assert_eq!(written, oracle(&updates, Window { lower: 0, upper: u64::MAX, as_of }).0);
        prop_assert_eq!(held.batches(), 0);
    }
}

fn scan_of(updates: Vec<Update>, window: Window) -> Scan<ValBatch<u64, u64, i64>, Rows> {
    Scan::new(val_batch(updates).into_iter().collect(), window, Rows, Pairs::default())
}

#[test]
fn a_scan_goes_on_in_another_thread() {
    let updates: Vec<Update> = (1..100).filter(|key| key % 5 != 0).map(|key| ((key, 0), key, 1)).collect();
    let mut scan = scan_of(updates.clone(), ALL);
    let mut positions = 30;
    assert!(matches!(scan.step(&mut positions, ONE_CHUNK), Ok(Step::Paused)));
    let rest = std::thread::spawn(move || run(scan, &[7], ONE_CHUNK)).join().expect("it ends");
    assert_eq!(rest.0, updates);
}

#[test]
fn a_position_outside_the_window_costs_as_much_as_one_inside() {
    let updates: Vec<Update> = (0..100).map(|val| ((1, val), val, 1)).collect();
    let mut scan = scan_of(updates, Window { lower: 50, upper: 51, as_of: 0 });
    let mut positions = 1_000;
    let Ok(Step::Done(Some(chunk))) = scan.step(&mut positions, ONE_CHUNK) else { panic!("one row") };
    assert_eq!((chunk.times, chunk.diffs), (vec![50], vec![1]));
    assert_eq!(positions, 900);
}

#[test]
fn the_rows_of_one_position_are_cut_into_chunks_and_steps_too() {
    let updates: Vec<Update> = (0..100).map(|time| ((1, 1), time, 1)).collect();
    let mut scan = scan_of(updates, ALL);
    let mut positions = 25;
    let limits = ChunkLimits { rows: 10, bytes: usize::MAX };
    let mut times = Vec::new();
    for _ in 0..2 {
        let Ok(Step::Chunk(chunk)) = scan.step(&mut positions, limits) else { panic!("a full chunk") };
        assert_eq!(chunk.columns[0].len(), 10);
        times.extend(chunk.times);
    }
    assert_eq!(positions, 5);
    assert!(matches!(scan.step(&mut positions, limits), Ok(Step::Paused)));
    assert_eq!((scan.times.len(), positions), (5, 0), "no more is appended than was paid for");
    times.extend(run(scan, &[1], limits).0.into_iter().map(|(_, time, _)| time));
    assert_eq!(times, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_snapshot_is_the_accumulation_at_its_as_of() {
    let updates = vec![((1, 1), 0, 1), ((1, 1), 3, -1), ((2, 1), 2, 1), ((2, 1), 4, 2), ((3, 1), 6, 1)];
    let window = Window { lower: 5, upper: 6, as_of: 5 };
    assert_eq!(run(scan_of(updates, window), &[1], ONE_CHUNK).0, vec![((2, 1), 5, 3)]);
}

#[test]
fn a_scan_of_nothing_is_done_without_a_position() {
    let mut scan = Scan::new(Vec::<ValBatch<u64, u64, i64>>::new(), ALL, Rows, Pairs::default());
    assert!(matches!(scan.step(&mut 0, ONE_CHUNK), Ok(Step::Done(None))));
    assert!(matches!(scan.step(&mut 0, ONE_CHUNK), Ok(Step::Done(None))), "and stays so");
}

#[test]
fn a_sum_beyond_i64_is_an_error_and_one_that_only_passes_beyond_is_none() {
    let half = i64::MAX / 2 + 1;
    let snapshot = Window { lower: 9, upper: 10, as_of: 9 };
    let mut scan = scan_of(vec![((1, 1), 0, half), ((1, 1), 1, half)], snapshot);
    let error = scan.step(&mut 9, ONE_CHUNK).expect_err("too many");
    assert_eq!(error, ScanError::DiffOverflow { time: 9 });

    let passing = vec![((1, 1), 0, i64::MAX), ((1, 1), 1, i64::MAX), ((1, 1), 2, -i64::MAX)];
    assert_eq!(run(scan_of(passing, snapshot), &[9], ONE_CHUNK).0, vec![((1, 1), 9, i64::MAX)]);
}

#[test]
fn a_builder_that_fails_and_a_projection_that_appends_two_are_told_apart() {
    let mut scan = scan_of(vec![((1, 1), 0, 1)], ALL);
    scan.rows.fails = true;
    let error = scan.step(&mut 9, ONE_CHUNK).expect_err("it fails");
    assert_eq!(error, ScanError::Columns("it was told to".to_owned()));

    let mut scan = scan_of(vec![((1, 1), 0, 1)], ALL);
    Rows::row(2, 2, &mut scan.rows).expect("is no multiple of five");
    let error = scan.step(&mut 9, ONE_CHUNK).expect_err("one too many");
    assert_eq!(error, ScanError::Ragged { found: 2, expected: 1 });
}

/// Fails on every row, by its value.
struct Failing;

impl Projection<<KeyBatch<u64, i64> as Navigable>::Cursor> for Failing {
    type Rows = Pairs;

    fn project(&mut self, key: &u64, (): &(), _: &mut Pairs) -> Result<(), NoRow> {
        Err(NoRow::Error(format!("{key:05}")))
    }
}

#[test]
fn of_too_many_errors_the_earliest_are_kept_with_the_whole_of_their_diffs() {
    let many = ERRORS_MAX as u64 + 500;
    let updates = (0..many).flat_map(|key| [(key, many - key, 1), (key, 2 * many, 1)]).collect();
    let batches = key_batch(updates).into_iter().collect();
    let mut scan = Scan::new(batches, ALL, Failing, Pairs::default());
    let mut positions = usize::MAX;
    assert!(matches!(scan.step(&mut positions, ONE_CHUNK), Ok(Step::Done(None))));
    let errors: Vec<_> = messages(&scan.take_errors()).into_iter().collect();
    assert_eq!(errors.len(), ERRORS_MAX);
    let expected: Vec<_> =
        (1..=ERRORS_MAX as u64).map(|time| ((time, format!("{:05}", many - time)), 1)).collect();
    assert_eq!(errors, expected);
    assert!(scan.take_errors().is_none(), "they were taken");
}

/// Run with `cargo test --release -p stash-timely -- --ignored --nocapture measure`.
#[test]
#[ignore = "a measurement, not a test"]
fn measure_a_scan_of_a_million_positions() {
    const POSITIONS: u64 = 1_000_000;
    for batches in [1, 8, 64] {
        let part = |batch: u64| {
            let keys = (0..POSITIONS).filter(move |key| key % batches == batch);
            val_batch(keys.map(|key| ((key * 5 + 1, key), batch, 1)).collect())
        };
        let parts: Vec<_> = (0..batches).filter_map(part).collect();
        for (name, window) in [("taking all", ALL), ("taking none", Window { lower: 1 << 40, ..ALL })] {
            let mut scan = Scan::new(parts.clone(), window, Rows, Pairs::default());
            let mut rows = 0;
            let limits = ChunkLimits { rows: 8_192, bytes: 8 << 20 };
            let started = std::time::Instant::now();
            loop {
                match scan.step(&mut 10_000, limits).expect("no overflow") {
                    Step::Chunk(chunk) => rows += chunk.times.len(),
                    Step::Paused => {}
                    Step::Done(last) => {
                        rows += last.map_or(0, |chunk| chunk.times.len());
                        break;
                    }
                }
            }
            let each = started.elapsed().as_nanos() as f64 / POSITIONS as f64;
            println!("{batches:>3} batches, {name} ({rows} rows): {each:.1} ns a position");
        }
    }
}

#[test]
fn without_a_bound_not_even_the_last_u64_is_left_out() {
    let updates = vec![((1, 1), u64::MAX, 1)];
    assert_eq!(
        run(scan_of(updates.clone(), ALL), &[1], ONE_CHUNK).0,
        updates,
        "whoever takes it refuses it by name"
    );
}

/// Notes the keys whose memory was asked for ahead.
struct Pointing(Arc<std::sync::Mutex<Vec<u64>>>);

impl<C> Projection<C> for Pointing
where
    C: for<'a> Cursor<Key<'a> = &'a u64, Val<'a> = &'a ()>,
{
    type Rows = Pairs;

    fn project(&mut self, key: C::Key<'_>, (): C::Val<'_>, rows: &mut Pairs) -> Result<(), NoRow> {
        let seen = self.0.lock().expect("no panic").last().copied();
        assert!(*key < 70 || seen.is_some_and(|seen| *key <= seen), "{key} was not touched before");
        Rows::row(*key, 0, rows)
    }

    const POINTS: bool = true;

    fn pieces(&self, key: C::Key<'_>, (): C::Val<'_>, _: &mut impl FnMut(&[u8])) {
        self.0.lock().expect("no panic").push(*key);
    }
}

#[test]
fn what_counts_is_touched_once_before_it_is_read_and_nothing_else_is() {
    let batch = |residue: u64| {
        let keys = (0..500).filter(|key| key % 2 == residue);
        key_batch(keys.map(|key| (key, if key % 7 == 0 { 9 } else { 1 }, 1)).collect())
    };
    let batches: Vec<_> = [batch(0), batch(1)].into_iter().flatten().collect();
    let window = Window { upper: 5, ..ALL };
    let limits = ChunkLimits { rows: 33, bytes: usize::MAX };
    for fuel in [1, 10, usize::MAX] {
        let touched = Arc::new(std::sync::Mutex::default());
        let scan = Scan::new(batches.clone(), window, Pointing(Arc::clone(&touched)), Pairs::default());
        let plain = Scan::new(batches.clone(), window, KeyRows, Pairs::default());
        assert_eq!(run(scan, &[fuel], limits), run(plain, &[fuel], limits));
        let wanted: Vec<u64> = (64..500).filter(|key| key % 7 != 0).collect();
        assert_eq!(*touched.lock().expect("no panic"), wanted, "with fuel {fuel}");
    }
}
