//! One dataflow feeds another through a stash, and both are stopped and started again.
//!
//! The first puts orders into a sink. The second reads that sink as a collection, keeps the large ones, and puts them
//! into a sink of its own. It has no state, so it starts with the *changes since* what its own chain has; and it
//! acknowledges of the first chain only what its sink's hold allows: so its restart finds all that it still needs, and
//! what it needs no more is deleted.
//!
//! `cargo run -p stash-timely --example chained`

use std::{collections::BTreeMap, error::Error, sync::Arc};

use differential_dataflow::input::Input;
use serde::{Deserialize, Serialize};
use stash::{Frontier, Launch, Sink, SinkSpec, Stash};
use stash_timely::{
    Acknowledge, Background, Connected, Connection, Row, SinkConfig, SinkError, SinkStatus, SinkToken,
    SourceOptions, SourceStatus, Start, Stop, columns_row, no_errors, stash_sink, stash_source,
};
use timely::worker::Worker;
use tokio::runtime::Runtime;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Order {
    id: u64,
    cents: i64,
}
columns_row!(Order { id: u64, cents: i64 });

/// Orders are placed at one time and paid, which takes them back, some times later.
const END: u64 = 40;
const HALF: u64 = END / 2;
const LARGE: i64 = 5_000;

fn changes(time: u64) -> impl Iterator<Item = (Order, isize)> {
    let order = |id: u64| Order { id, cents: i64::try_from(id * 7919 % 10_000).unwrap_or(0) };
    let placed = (0..5).map(move |nth| (order(time * 5 + nth), 1));
    let paid = time.checked_sub(6).map(move |then| (order(then * 5), -1));
    placed.chain(paid)
}

/// What there is at the end, and when it came.
fn expected() -> BTreeMap<(Order, u64), i64> {
    let all = (0..END).flat_map(|time| changes(time).map(move |(order, diff)| ((order, time), diff as i64)));
    all.filter(|((order, _), _)| order.cents >= LARGE).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let runtime = Arc::new(Runtime::new()?);
    let stash = runtime.block_on(Stash::open(&format!("file://{}", folder.path().display())))?;
    let declare = |spec: SinkSpec| runtime.block_on(stash.declare_sink(spec));
    let orders = declare(SinkSpec::new("orders", Order::schema()?)?.up_to(END))?;
    // A source ends when its chain is complete, and then only: so this sink may take its input's end for its own.
    let large = declare(SinkSpec::new("large-orders", Order::schema()?)?.sealing())?;
    let background = Background::new(runtime.handle().clone(), 2);

    // Both go half the way and are stopped.
    println!("orders, from the beginning: {:?}", place_orders(&orders, &background, HALF)?);
    println!("large orders, from the beginning: {:?}", keep_large(&orders, &large, &background, HALF - 2)?);
    for consumer in runtime.block_on(orders.consumers())? {
        println!("of the orders the second dataflow acknowledged what lies below {}", consumer.acked);
    }

    // Both start again, from where their chains stand.
    println!("orders, again: {:?}", place_orders(&orders, &background, END)?);
    println!("large orders, again: {:?}", keep_large(&orders, &large, &background, END)?);

    let kept = runtime.block_on(read(&large))?;
    assert_eq!(kept, expected(), "as if nothing had ever stopped");
    println!("{} changes of large orders, each exactly once", kept.len());
    runtime.block_on(stash.close())?;
    Ok(())
}

/// The first dataflow, until its chain has reached `until`.
fn place_orders(orders: &Sink, background: &Background, until: u64) -> Result<Option<Stop>, Box<dyn Error>> {
    play(orders, background, until, move |worker, connection| {
        let (input, token) = worker.dataflow(|scope| {
            let (input, placed) = scope.new_collection::<Order, isize>();
            stash_sink(placed, no_errors(scope), connection).map(|token| (input, token))
        })?;
        let (as_of, first) = (connection.as_of(), worker.index() == 0);
        let (mut input, mut time) = (input, 0);
        let feed = move || {
            if time == until {
                return;
            }
            for (order, diff) in changes(time).filter(|_| first) {
                // What happened before the as-of is part of what stands there.
                input.update_at(order, time.max(as_of), diff);
            }
            time += 1;
            input.advance_to(time.max(as_of));
            input.flush();
        };
        Ok((token, feed))
    })
}

/// The second dataflow, until its chain has reached `until`.
fn keep_large(
    orders: &Sink,
    large: &Sink,
    background: &Background,
    until: u64,
) -> Result<Option<Stop>, Box<dyn Error>> {
    let (orders, runtime) = (orders.clone(), background.runtime().clone());
    play(large, background, until, move |worker, connection| {
        worker.dataflow(|scope| {
            // What its own chain has needs not be computed again.
            let since = Start::ChangesSince(connection.floor());
            let holds = Acknowledge::Holds(vec![connection.hold().clone()]);
            let options = SourceOptions::new(orders.clone(), runtime.clone(), since).consumer("large", holds);
            let (placed, source) = stash_source::<Order>(scope, "orders", options);
            let large = placed.filter(|order| order.cents >= LARGE);
            // The source reads for as long as its token lives, which the feed keeps.
            let read =
                move || assert!(!matches!(source.status(), SourceStatus::Failed(_)), "{:?}", source.status());
            stash_sink(large, no_errors(scope), connection).map(|token| (token, read))
        })
    })
}

/// Renders a sink on two workers until its chain has reached `until`; then stops it, if it is not complete.
fn play<F: FnMut()>(
    sink: &Sink,
    background: &Background,
    until: u64,
    render: impl Fn(&mut Worker, &Connection) -> Result<(SinkToken, F), SinkError> + Send + Sync + 'static,
) -> Result<Option<Stop>, Box<dyn Error>> {
    let launch = Launch::single("replica", 2)?;
    let opened = Connection::open(sink, launch, background, SinkConfig::default());
    let Connected::Render(connection) = background.runtime().block_on(opened)? else { return Ok(None) };
    let rendered = connection.clone();
    let workers = timely::execute(timely::Config::process(2), move |worker| {
        let dataflow = worker.next_dataflow_index();
        let (token, mut feed) = render(worker, &rendered)?;
        while token.status() == SinkStatus::Running {
            feed();
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
            if token.upper() >= Frontier::at(until) {
                token.stop();
            }
        }
        token.detach();
        worker.drop_dataflow(dataflow);
        Ok::<(), SinkError>(())
    })?;
    for ended in workers.join() {
        ended??;
    }
    background.runtime().block_on(connection.idle());
    Ok(connection.stop().cloned())
}

/// All of a chain.
async fn read(sink: &Sink) -> Result<BTreeMap<(Order, u64), i64>, stash::Error> {
    use stash::arrow::{
        array::AsArray,
        datatypes::{Int64Type, UInt64Type},
    };
    let mut updates = BTreeMap::new();
    let mut chain = sink.read().await?;
    while let Some(delivery) = chain.next().await? {
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await? {
            let rows = Order::read(&batch.project(&[0, 1]).expect("the row's columns")).expect("orders");
            let times = batch.column(2).as_primitive::<UInt64Type>().values();
            let diffs = batch.column(3).as_primitive::<Int64Type>().values();
            for ((row, time), diff) in rows.into_iter().zip(times).zip(diffs) {
                assert!(updates.insert((row, *time), *diff).is_none(), "each exactly once");
            }
        }
    }
    Ok(updates)
}
