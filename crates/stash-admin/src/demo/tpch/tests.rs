use std::collections::{BTreeMap, BTreeSet, HashMap};

use arrow::{
    array::AsArray,
    datatypes::{Int64Type, UInt64Type},
    row::{RowConverter, SortField},
};

use super::*;

type Update = (u64, Vec<u8>, i64);

fn spec() -> TpchSpec {
    TpchSpec { scale: 0.002, seed: 7, ticks: 60, refresh_every: 10, trickle_orders: 2 }
}

fn feed(spec: TpchSpec) -> TpchFeed {
    TpchFeed::new(spec).unwrap()
}

/// The updates of `table` in `[lower, upper)` as (time, row, diff), retractions first, as asked for by `workers`.
fn updates(feed: &TpchFeed, table: usize, lower: u64, upper: u64, workers: u32) -> Vec<Update> {
    let fields =
        feed.tables()[table].schema.fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
    let converter = RowConverter::new(fields).unwrap();
    let mut all = Vec::new();
    for worker in 0..workers {
        for batch in feed.updates(table, lower, upper, worker, workers) {
            let batch = batch.unwrap();
            assert_eq!(batch.schema(), feed.tables()[table].update_schema());
            assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
            let parted = feed::part(&batch).unwrap();
            let rows = converter.convert_columns(parted.columns).unwrap();
            let stamps = parted.times.iter().zip(parted.diffs);
            all.extend(
                rows.iter().zip(stamps).map(|(row, (time, diff))| (*time, row.data().to_vec(), *diff)),
            );
        }
    }
    all.sort_by(|a, b| (a.0, a.2, &a.1).cmp(&(b.0, b.2, &b.1)));
    all
}

#[test]
fn every_retraction_hits_a_row_that_exists_and_no_row_exists_twice() {
    let feed = feed(spec());
    for table in [0, 1] {
        let mut live: HashMap<Vec<u8>, u64> = HashMap::new();
        let (mut retractions, mut of_new_rows) = (0, 0);
        for (time, row, diff) in updates(&feed, table, 0, feed.end(), 1) {
            match diff {
                1 => assert_eq!(live.insert(row, time), None, "a row is inserted twice at {time}"),
                -1 => {
                    let since = live.remove(&row).expect("what is retracted exists");
                    assert!(since < time);
                    retractions += 1;
                    of_new_rows += usize::from(since > 0);
                }
                _ => panic!("diff {diff}"),
            }
        }
        assert!(retractions > 300 && of_new_rows > 60, "{table}: {retractions} {of_new_rows}");
    }
}

#[test]
fn keys_stay_unique_lines_belong_to_orders_and_statuses_agree_at_every_time() {
    let feed = feed(TpchSpec { ticks: 30, scale: 0.001, ..spec() });
    // Content by key, replayed a tick at a time: retractions come first.
    let mut orders: BTreeMap<i64, String> = BTreeMap::new();
    let mut lines: BTreeMap<(i64, i32), String> = BTreeMap::new();
    for time in 0..feed.end() {
        for (table, status_at) in [(0, 2), (1, 9)] {
            let batches: Vec<_> = feed.updates(table, time, time + 1, 0, 1).map(Result::unwrap).collect();
            for wanted in [-1, 1] {
                for batch in &batches {
                    let key = batch.column(0).as_primitive::<Int64Type>();
                    let status = batch.column(status_at).as_string::<i32>();
                    let number =
                        (table == 1).then(|| batch.column(3).as_primitive::<arrow::datatypes::Int32Type>());
                    let diffs = batch.column(batch.num_columns() - 1).as_primitive::<Int64Type>();
                    for row in (0..batch.num_rows()).filter(|row| diffs.value(*row) == wanted) {
                        let (key, status) = (key.value(row), status.value(row).to_owned());
                        let was = match (wanted, number) {
                            (1, None) => orders.insert(key, status.clone()).is_some(),
                            (1, Some(number)) => {
                                lines.insert((key, number.value(row)), status.clone()).is_some()
                            }
                            (_, None) => orders.remove(&key).as_ref() != Some(&status),
                            (_, Some(number)) => {
                                lines.remove(&(key, number.value(row))).as_ref() != Some(&status)
                            }
                        };
                        assert!(!was, "{table} {time} {key} {status} {wanted}");
                    }
                }
            }
        }
        let mut shipped: BTreeMap<i64, BTreeSet<&str>> = BTreeMap::new();
        lines.iter().for_each(|((key, _), status)| _ = shipped.entry(*key).or_default().insert(status));
        assert!(shipped.keys().eq(orders.keys()), "at {time} lines and orders differ");
        for (key, status) in &orders {
            let wanted = match shipped[key].iter().copied().collect::<Vec<_>>()[..] {
                ["F"] => "F",
                ["O"] => "O",
                _ => "P",
            };
            assert_eq!(status, wanted, "order {key} at {time}");
        }
    }
}

#[test]
fn the_cut_and_the_number_of_workers_do_not_matter() {
    let feed = feed(spec());
    for table in [0, 1] {
        let whole = updates(&feed, table, 0, feed.end(), 1);
        for (workers, cuts) in [(2, vec![0, 1, 61]), (3, vec![0, 7, 8, 30, 61]), (16, vec![0, 0, 20, 61, 99])]
        {
            let pieces = cuts.windows(2).flat_map(|cut| updates(&feed, table, cut[0], cut[1], workers));
            assert!(pieces.eq(whole.iter().cloned()), "{table} {workers} {cuts:?}");
        }
    }
}

#[test]
fn every_worker_has_a_part_of_the_snapshot_and_of_the_changes() {
    let feed = feed(TpchSpec { scale: 0.01, ..spec() });
    for (lower, upper) in [(0, 1), (1, 61)] {
        for worker in 0..4 {
            let rows: usize =
                feed.updates(0, lower, upper, worker, 4).map(|batch| batch.unwrap().num_rows()).sum();
            assert!(rows > 20, "[{lower}, {upper}) {worker}: {rows}");
        }
    }
}

#[test]
fn the_seed_decides_all_that_follows_the_snapshot_and_nothing_else_does() {
    let (one, again, other) = (feed(spec()), feed(spec()), feed(TpchSpec { seed: 8, ..spec() }));
    assert_ne!(one.new_first, other.new_first, "new orders have other contents");
    let changed =
        |feed: &TpchFeed| (0..20).map(|position| feed.identity(Order::Base(position))).collect::<Vec<_>>();
    assert_ne!(changed(&one), changed(&other), "other orders go and change");
    let longer = feed(TpchSpec { ticks: 90, ..spec() });
    for table in [0, 1] {
        let all = updates(&one, table, 0, 61, 2);
        assert_eq!(all, updates(&again, table, 0, 61, 1));
        assert_eq!(all, updates(&longer, table, 0, 61, 1), "more ticks only go on");
        assert_eq!(updates(&one, table, 0, 1, 1), updates(&other, table, 0, 1, 1));
        assert_ne!(updates(&one, table, 1, 2, 1), updates(&other, table, 1, 2, 1));
    }
}

#[test]
fn the_snapshot_is_the_benchmarks_at_its_scale() {
    let feed = feed(spec());
    let count = |table| updates(&feed, table, 0, 1, 3).len();
    assert_eq!(count(0), 3000);
    assert_eq!(count(1), feed.source.lines(1, 1).iter().count());
    let first = feed.source.orders(1, 1).iter().next().map(|order| (order.o_orderkey, order.o_totalprice.0));
    assert_eq!(first.map(|order| order.0), Some(1));
}

#[test]
fn most_ticks_are_small_and_each_refresh_is_a_set_in_and_a_set_out() {
    let feed = feed(TpchSpec { scale: 0.02, ..spec() });
    for time in 1..feed.end() {
        let batches: Vec<_> =
            (0..2).flat_map(|table| feed.updates(table, time, time + 1, 0, 1)).map(Result::unwrap).collect();
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let times = batches
            .iter()
            .flat_map(|batch| batch.column(batch.num_columns() - 2).as_primitive::<UInt64Type>().values());
        assert!(times.into_iter().all(|at| *at == time));
        // 30 orders in and 30 out are some 300 rows with their lines.
        let wanted = if time % 10 == 0 { 200..500 } else { 8..120 };
        assert!(wanted.contains(&rows), "tick {time} has {rows} rows");
    }
}

#[test]
fn new_orders_beyond_the_gaps_still_have_keys_of_their_own() {
    let feed = feed(TpchSpec { scale: 0.001, ..spec() });
    let base = (0..1500).map(Order::Base);
    let all: Vec<_> = base.chain((0..8000).map(Order::New)).map(|order| feed.identity(order)).collect();
    let keys: BTreeSet<_> = all.iter().map(|(_, key)| key).collect();
    let parts: BTreeSet<_> = all.iter().map(|(part, _)| part).collect();
    assert_eq!((keys.len(), parts.len()), (9500, 9500), "keys and contents");
}

#[test]
fn a_specification_that_cannot_be_is_refused_with_the_reason() {
    let refusal = |spec| TpchFeed::new(spec).map(|_| ()).unwrap_err().to_string();
    for scale in [0.0, -1.0, 0.0001, 101.0, f64::NAN] {
        assert!(refusal(TpchSpec { scale, ..spec() }).contains("scale"), "{scale}");
    }
    assert!(refusal(TpchSpec { refresh_every: 0, ..spec() }).contains("refresh_every"));
    assert!(refusal(TpchSpec { trickle_orders: 0, ..spec() }).contains("trickle_orders"));
    assert!(refusal(TpchSpec { ticks: u64::MAX, ..spec() }).contains("fewer ticks"));
}
