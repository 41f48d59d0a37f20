//! A snapshot that is far larger than the memory it may be written with.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use differential_dataflow::input::Input;
use stash::{
    Frontier, StashConfig, TryNext,
    arrow::{
        array::AsArray,
        datatypes::{Int64Type, UInt64Type},
    },
};
use stash_timely::{SinkStatus, Stop, no_errors, stash_sink};
use timely::{
    Config, container::CapacityContainerBuilder, dataflow::channels::pact::Pipeline,
    dataflow::operators::generic::Operator,
};

use crate::support::World;

/// Bytes of a row's text.
const TEXT: usize = 16_000;
const BUDGET: u64 = 16 << 20;
/// Megabytes of all texts, unless `STASH_SNAPSHOT_MB` says another number.
const MEGABYTES: u64 = 300;

#[expect(clippy::disallowed_methods, reason = "how large it is in the long run is the environment's to say")]
fn rows() -> u64 {
    let megabytes =
        std::env::var("STASH_SNAPSHOT_MB").map_or(MEGABYTES, |number| number.parse().expect("a number"));
    megabytes * 1_000_000 / TEXT as u64
}

/// A text that only its number has.
fn text(number: u64) -> String {
    let mut text = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(TEXT / 16);
    text.push_str(&number.to_string());
    text
}

/// An activation of the sink is short, whatever is written: another operator of the worker is activated all the while.
#[test]
fn a_snapshot_of_many_times_the_budget_is_written_while_the_worker_goes_on() {
    let mut config = StashConfig::default();
    config.batch.memory_bytes = BUDGET;
    let world = World::with_config(1, config);
    let sink = world.sink::<(u64, String)>("large");
    let connection = world.connect(&sink, 1);
    let (given, ticks) = (connection.clone(), Arc::new(AtomicU64::new(0)));
    let workers = timely::execute(Config::process(1), move |worker| {
        let ticked = Arc::clone(&ticks);
        let (mut rows, token) = worker.dataflow::<u64, _, _>(|scope| {
            let (rows, collection) = scope.new_collection::<(u64, String), i64>();
            let token = stash_sink(collection.clone(), no_errors(scope), &given).expect("rendered");
            let scope = collection.inner.scope();
            collection.inner.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(
                Pipeline,
                "Ticker",
                |_, info| {
                    let activator = scope.activator_for(info.address);
                    move |input, _| {
                        input.for_each(|_, _| {});
                        ticked.fetch_add(1, Ordering::Relaxed);
                        activator.activate_after(std::time::Duration::from_millis(1));
                    }
                },
            );
            (rows, token)
        });
        for number in 0..self::rows() {
            rows.update((number, text(number)), 1);
            if number % 250 == 0 {
                rows.flush();
                worker.step();
            }
        }
        rows.advance_to(1);
        rows.flush();
        let mut sealed = None;
        while token.upper() < Frontier::at(1) {
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
            if sealed.is_none() && token.held().scanning > 0 {
                sealed = Some(ticks.load(Ordering::Relaxed));
            }
        }
        let ticks = ticks.load(Ordering::Relaxed) - sealed.expect("it was scanned in the background");
        token.stop();
        while token.status() == SinkStatus::Running {
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
        }
        token.detach();
        worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        ticks
    });
    let ticks = workers.expect("workers").join().pop().expect("a worker").expect("no panic");
    assert!(ticks > 100, "activated {ticks} times while it was written");
    world.runtime.block_on(connection.idle());
    assert_eq!(connection.stop(), Some(&Stop::GoingAway));

    let mut seen = vec![false; usize::try_from(rows()).expect("it fits")];
    world.runtime.block_on(async {
        let mut chain = sink.read().await.expect("readable");
        while let TryNext::Delivery(delivery) = chain.try_next().await.expect("a delivery") {
            let mut reader = delivery.read();
            while let Some(batch) = reader.next().await.expect("a batch") {
                let numbers = batch.column(0).as_primitive::<UInt64Type>();
                let texts = batch.column(1).as_string::<i32>();
                let diffs = batch.column(3).as_primitive::<Int64Type>();
                for row in 0..batch.num_rows() {
                    let number = numbers.value(row);
                    assert_eq!((texts.value(row), diffs.value(row)), (text(number).as_str(), 1));
                    let seen = &mut seen[usize::try_from(number).expect("it fits")];
                    assert!(!*seen, "{number} comes once");
                    *seen = true;
                }
            }
        }
    });
    assert!(seen.into_iter().all(|seen| seen), "all of them");
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}
