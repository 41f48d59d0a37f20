use std::sync::mpsc;

use differential_dataflow::input::Input;
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::trace::Span;
use differential_dataflow::trace::cursor::{CursorList, cursor_list};
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::{Inspect, Probe};

use super::testing::{key_batch, val_batch};
use super::*;

const fn is_sent<T: Send + Sync>() {}

/// Only has to compile: these travel to the thread that scans.
const _: () = {
    is_sent::<KeyBatch<String, i64>>();
    is_sent::<ValBatch<String, Vec<u8>, isize>>();
    is_sent::<CursorList<<KeyBatch<String, i64> as Navigable>::Cursor>>();
    is_sent::<CursorList<<ValBatch<String, Vec<u8>, isize> as Navigable>::Cursor>>();
    is_sent::<<ValBatch<String, Vec<u8>, isize> as SpineBatch>::Merger>();
};

type Listed = Vec<((u64, u64), Vec<(u64, i64)>)>;

/// Sends every batch of a stream to this thread, as a worker's batches go to the thread that scans.
fn tap<'scope, B: Clone + Send + 'static>(
    stream: Stream<'scope, u64, Vec<Span<u64, B>>>,
    to: mpsc::Sender<B>,
) -> timely::dataflow::ProbeHandle<u64> {
    let sent = stream.inspect(move |span| {
        if let Some(batch) = &span.inner {
            to.send(batch.clone()).expect("the test outlives the dataflow");
        }
    });
    sent.probe().0
}

#[test]
fn arranged_batches_leave_their_workers_and_are_read_elsewhere() {
    let (keys, from_keys) = mpsc::channel();
    let (vals, from_vals) = mpsc::channel();
    timely::execute(timely::Config::process(2), move |worker| {
        let (keys, vals) = (keys.clone(), vals.clone());
        let index = worker.index() as u64;
        let (mut input, probes) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<(u64, u64), i64>();
            let by_key = arrange_vals(collection.clone());
            let by_self = arrange_keys(collection.map(|(key, _)| key));
            (input, [tap(by_key.stream, vals), tap(by_self.stream, keys)])
        });
        for time in 0..4 {
            for key in 0..10 {
                input.update((key, index), 1);
            }
            input.advance_to(time + 1);
            input.flush();
            worker.step_while(|| probes.iter().any(|probe| probe.less_than(&(time + 1))));
        }
    })
    .expect("starts");

    let (mut cursor, storage) = cursor_list(from_vals.iter().collect::<Vec<_>>());
    let listed: Listed = cursor.to_vec(&storage, |key| *key, |val| *val);
    let each: Vec<_> = (0..4).map(|time| (time, 1)).collect();
    let expected: Listed =
        (0..10).flat_map(|key| (0..2).map(move |val| (key, val))).map(|row| (row, each.clone())).collect();
    assert_eq!(sorted(listed), expected);

    let (mut cursor, storage) = cursor_list(from_keys.iter().collect::<Vec<_>>());
    let listed = cursor.to_vec(&storage, |key| *key, |()| ());
    let both: Vec<_> = (0..4).map(|time| (time, 2)).collect();
    let expected: Vec<_> = (0..10).map(|key| ((key, ()), both.clone())).collect();
    assert_eq!(listed.into_iter().map(|(row, times)| (row, summed(times))).collect::<Vec<_>>(), expected);
}

fn sorted(mut listed: Listed) -> Listed {
    listed.iter_mut().for_each(|(_, times)| times.sort_unstable());
    listed
}

fn summed(mut times: Vec<(u64, i64)>) -> Vec<(u64, i64)> {
    differential_dataflow::consolidation::consolidate(&mut times);
    times
}

#[test]
fn a_collection_already_in_its_place_is_arranged_without_exchange() {
    let (to, from) = mpsc::channel();
    timely::execute_directly(move |worker| {
        let (mut input, probe) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<u64, i64>();
            let arranged = arrange_core::<_, _, OrdKeyBatcher<_, _, _>, KeySpine<u64, i64>>(
                collection.map(|key| (key, ())).inner,
                Pipeline,
                "Pipelined",
                OrdKeyBatcher::new,
            );
            (input, tap(arranged.stream, to))
        });
        input.update(7, 3);
        input.advance_to(1);
        input.update(7, -1);
        input.advance_to(2);
        input.flush();
        worker.step_while(|| probe.less_than(&2));
    });
    let (mut cursor, storage) = cursor_list(from.iter().collect::<Vec<_>>());
    assert_eq!(cursor.to_vec(&storage, |key| *key, |()| ()), vec![((7, ()), vec![(0, 3), (1, -1)])]);
}

#[test]
fn a_merge_of_shared_batches_holds_the_updates_of_both_at_their_times() {
    let older = val_batch(vec![((1, 1), 0, 1), ((2, 1), 0, 1)]).expect("updates");
    let newer = val_batch(vec![((1, 1), 5, -1), ((1, 2), 6, 1)]).expect("updates");
    let frontier = super::testing::frontier(0);
    let mut merger = ArcMerger::new(&older, &newer, frontier.borrow());
    let mut fuel = 1;
    merger.work(&older, &newer, &mut fuel);
    assert!(fuel <= 0, "one update's worth of fuel does not do it");
    fuel = isize::MAX;
    merger.work(&older, &newer, &mut fuel);
    let merged = merger.done().expect("nothing cancels");
    assert_eq!(merged.len(), 4);
    let listed: Listed = merged.cursor().to_vec(&merged, |key| *key, |val| *val);
    let expected = vec![((1, 1), vec![(0, 1), (5, -1)]), ((1, 2), vec![(6, 1)]), ((2, 1), vec![(0, 1)])];
    assert_eq!(listed, expected);
    assert_eq!(older.len(), 2, "its inputs are as they were");
}

#[test]
fn a_cursor_seeks_and_rewinds_as_the_one_it_holds() {
    let batch = key_batch((0..100).map(|key| (key * 2, 0, 1)).collect()).expect("updates");
    let mut cursor = batch.cursor();
    cursor.seek_key(&batch, &51);
    assert_eq!(cursor.get_key(&batch), Some(&52));
    assert_eq!(cursor.get_val(&batch), Some(&()));
    cursor.step_val(&batch);
    assert!(!cursor.val_valid(&batch));
    cursor.rewind_vals(&batch);
    assert!(cursor.val_valid(&batch));
    cursor.rewind_keys(&batch);
    assert_eq!(cursor.key(&batch), &0);

    let batch = val_batch((0..100).map(|val| ((1, val * 2), 0, 1)).collect()).expect("updates");
    let mut cursor = batch.cursor();
    cursor.seek_val(&batch, &51);
    assert_eq!(cursor.get_val(&batch), Some(&52));
    cursor.step_key(&batch);
    assert!(!cursor.key_valid(&batch));
}

#[test]
fn a_multiplicity_is_an_i64_and_back_where_it_fits() {
    assert_eq!((-3i32).as_i64(), -3);
    assert_eq!(isize::MIN.as_i64(), isize::MIN as i64);
    assert_eq!(i64::MAX.as_i64(), i64::MAX);
    assert_eq!(<i32 as Multiplicity>::of(i64::from(i32::MAX)), Some(i32::MAX));
    assert_eq!(<i32 as Multiplicity>::of(i64::from(i32::MAX) + 1), None);
    assert_eq!(<isize as Multiplicity>::of(-1), Some(-1));
    assert_eq!(<i64 as Multiplicity>::of(i64::MIN), Some(i64::MIN));
}
