//! TPC-H query 3, kept up to date by two replicas of two processes of two workers, one of which is killed.
//!
//! Orders with their lines are placed over time, and some are cancelled; the query's result (the revenue of unshipped
//! orders of one market segment) is a sink. Each replica is a timely cluster over TCP, with cuts of its own. In the
//! middle one process is killed with SIGKILL, which ends its replica; the launcher starts that anew while the other goes on.
//! A consumer reads and acknowledges; at the end what it was handed is compared with the query from scratch, and
//! nothing is left in the store.
//!
//! `cargo run -p stash-timely --example tpch`. The program starts itself for the processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    process::{Child, Command, Stdio},
};

use differential_dataflow::{input::Input, operators::CountTotal};
use serde::{Deserialize, Serialize};
use stash::{Class, Frontier, LaunchToken, Sink, SinkSpec, StartAt, Stash};
use stash_timely::{Background, Outcome, Place, Replica, Row, columns_row, no_errors, stash_sink};
use timely::{CommunicationConfig, Config, WorkerConfig, worker::Worker};
use tokio::runtime::Runtime;
use tpchgen::{
    distribution::Distributions,
    generators::{CustomerGenerator, LineItemGenerator, OrderGenerator},
    text::TextPool,
};

/// A row of the result; revenue in ten-thousandths, orderdate in days since the benchmark's first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Revenue {
    orderkey: i64,
    orderdate: i32,
    shippriority: i32,
    revenue: i64,
}
columns_row!(Revenue { orderkey: i64, orderdate: i32, shippriority: i32, revenue: i64 });

/// What the query needs of an order: key, customer, date, priority.
type Order = (i64, i64, i32, i32);
/// What it needs of a line: order, date of shipping, price less discount.
type Line = (i64, i32, i64);

/// The benchmark's scale factor.
const SCALE: f64 = 0.005;
const SEGMENT: &str = "BUILDING";
/// The query's date: orders before it, lines shipped after it.
const DATE: i32 = 1168;
/// When nothing happens any more.
const END: u64 = 60;
const PROCESSES: u32 = 2;
const WORKERS: u32 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(what), Some(spec)) if what == "--process" => process(serde_json::from_str(&spec)?),
        _ => launch(),
    }
}

/// The customers of the segment; and the orders with their lines, when each is placed and, of some, cancelled.
struct Benchmark {
    customers: BTreeSet<i64>,
    orders: Vec<(Order, Vec<Line>, u64, Option<u64>)>,
}

impl Benchmark {
    fn generate() -> Benchmark {
        let words = Distributions::static_default();
        // Comments are of no matter here, and the benchmark's own pool of words takes long to make.
        let texts: &'static TextPool = Box::leak(Box::new(TextPool::new(64 << 10, words)));
        let customers = CustomerGenerator::new_with_distributions_and_text_pool(SCALE, 1, 1, words, texts);
        let customers = customers.iter().filter(|customer| customer.c_mktsegment == SEGMENT);
        let customers = customers.map(|customer| customer.c_custkey).collect();
        let mut lines: BTreeMap<i64, Vec<Line>> = BTreeMap::new();
        for line in LineItemGenerator::new_with_distributions_and_text_pool(SCALE, 1, 1, words, texts).iter()
        {
            let paid = line.l_extendedprice.into_inner() * (100 - line.l_discount.into_inner());
            let of_order = lines.entry(line.l_orderkey).or_default();
            of_order.push((line.l_orderkey, line.l_shipdate.into_inner(), paid));
        }
        let orders = OrderGenerator::new_with_distributions_and_text_pool(SCALE, 1, 1, words, texts);
        let orders = orders.iter().zip(0_u64..).map(|(order, nth)| {
            let (key, date) = (order.o_orderkey, order.o_orderdate.into_inner());
            let placed = if nth % 2 == 0 { 0 } else { 1 + nth / 2 % (END - 1) };
            let cancelled = Some(placed + 7).filter(|time| nth % 5 == 0 && *time < END);
            let order = (key, order.o_custkey, date, order.o_shippriority);
            (order, lines.remove(&key).unwrap_or_default(), placed, cancelled)
        });
        Benchmark { customers, orders: orders.collect() }
    }

    /// The query from scratch over what is there at the end.
    fn query(&self) -> BTreeSet<Revenue> {
        let there = self.orders.iter().filter(|(.., cancelled)| cancelled.is_none());
        let wanted =
            there.filter(|((_, customer, date, _), ..)| *date < DATE && self.customers.contains(customer));
        let summed = wanted.map(|((orderkey, _, orderdate, shippriority), lines, ..)| {
            let revenue = lines.iter().filter(|(_, shipped, _)| *shipped > DATE).map(|(.., paid)| paid).sum();
            Revenue { orderkey: *orderkey, orderdate: *orderdate, shippriority: *shippriority, revenue }
        });
        summed.filter(|row| row.revenue != 0).collect()
    }
}

/// What a process is told.
#[derive(Serialize, Deserialize)]
struct ProcessSpec {
    url: String,
    replica: String,
    token: LaunchToken,
    process: u32,
    addresses: Vec<String>,
    /// Times that it is fed at once.
    stride: u64,
}

/// One process of a replica.
fn process(spec: ProcessSpec) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let stash = runtime.block_on(Stash::open(&spec.url))?;
    let sink = runtime.block_on(stash.sink("revenue"))?;
    let background = Background::new(runtime.handle().clone(), 2);
    let place = Place { process: spec.process, processes: PROCESSES, workers: WORKERS };
    let replica = Replica::new(&spec.replica, spec.token, place, &background);
    let communication = CommunicationConfig::Cluster {
        threads: usize::try_from(WORKERS)?,
        process: usize::try_from(spec.process)?,
        addresses: spec.addresses,
        report: false,
        zerocopy: false,
    };
    let (benchmark, stride) = (Benchmark::generate(), spec.stride);
    let benchmark = std::sync::Arc::new(benchmark);
    let workers =
        timely::execute(Config { communication, worker: WorkerConfig::default() }, move |worker| {
            replica.keep(worker, &sink, |worker, connection| {
                let (mut inputs, token) =
                    worker.dataflow(|scope| {
                        let (customer_input, customers) = scope.new_collection::<i64, isize>();
                        let (order_input, orders) = scope.new_collection::<Order, isize>();
                        let (line_input, lines) = scope.new_collection::<Line, isize>();
                        let orders = orders.filter(|(.., date, _)| *date < DATE);
                        let orders =
                            orders.map(|(key, customer, date, priority)| (customer, (key, date, priority)));
                        let orders = orders
                            .semijoin(customers)
                            .map(|(_, (key, date, priority))| (key, (date, priority)));
                        let lines =
                            lines.filter(|(_, shipped, _)| *shipped > DATE).map(|(key, _, paid)| (key, paid));
                        let revenue = orders.join(lines).explode(|(key, ((date, priority), paid))| {
                            isize::try_from(paid).ok().map(|paid| ((key, date, priority), paid))
                        });
                        let revenue =
                            revenue.count_total().map(|((orderkey, orderdate, shippriority), revenue)| {
                                Revenue { orderkey, orderdate, shippriority, revenue: revenue as i64 }
                            });
                        let token = stash_sink(revenue, no_errors(scope), connection)?;
                        Ok::<_, stash_timely::SinkError>(((customer_input, order_input, line_input), token))
                    })?;
                let (benchmark, connection) = (std::sync::Arc::clone(&benchmark), connection.clone());
                let (index, peers, as_of) = (worker.index(), worker.peers(), connection.as_of());
                let mine = move |nth: &usize| nth % peers == index;
                let mut time = 0;
                let feed = move |_: &mut Worker| {
                    // No further ahead than the chain follows, and all of the past at once.
                    if time >= END
                        || (time > as_of && connection.upper() < Frontier::at(time.saturating_sub(4)))
                    {
                        return;
                    }
                    let (customers, orders, lines) = &mut inputs;
                    let upper = (time + stride).min(END).max(as_of);
                    if time == 0 {
                        let of_worker = benchmark.customers.iter().enumerate().filter(|(nth, _)| mine(nth));
                        of_worker.for_each(|(_, customer)| customers.update_at(*customer, as_of, 1));
                    }
                    for (nth, (order, of_order, placed, cancelled)) in benchmark.orders.iter().enumerate() {
                        for (at, diff) in [(Some(*placed), 1), (*cancelled, -1)] {
                            if let Some(at) = at.filter(|at| mine(&nth) && (time..upper).contains(at)) {
                                orders.update_at(*order, at.max(as_of), diff);
                                of_order.iter().for_each(|line| lines.update_at(*line, at.max(as_of), diff));
                            }
                        }
                    }
                    time = upper;
                    customers.advance_to(upper);
                    orders.advance_to(upper);
                    lines.advance_to(upper);
                    customers.flush();
                    orders.flush();
                    lines.flush();
                };
                Ok((token, feed))
            })
        })?;
    for ended in workers.join() {
        assert_eq!(ended??, Outcome::Complete);
    }
    runtime.block_on(stash.close())?;
    Ok(())
}

/// The processes of a replica; none outlives the launcher.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // One that has ended already cannot be killed, and need not.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Starts both processes of a replica anew.
fn start(url: &str, stash: &Stash, replica: &str, stride: u64) -> Result<Processes, Box<dyn Error>> {
    let token = stash.draw_launch();
    let listeners =
        (0..PROCESSES).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let addresses = listeners.iter().map(|free| free.local_addr().map(|address| address.to_string()));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    drop(listeners);
    let processes = (0..PROCESSES).map(|process| {
        let (url, replica, addresses) = (url.to_owned(), replica.to_owned(), addresses.clone());
        let spec = serde_json::to_string(&ProcessSpec { url, replica, token, process, addresses, stride })?;
        let mut command = Command::new(std::env::current_exe()?);
        // Timely tells of its connections, which is not this story.
        command.args(["--process", &spec]).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.spawn()?)
    });
    processes.collect::<Result<Vec<_>, _>>().map(Processes)
}

fn launch() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());
    let runtime = Runtime::new()?;
    let stash = runtime.block_on(Stash::open(&url))?;
    let spec = SinkSpec::new("revenue", Revenue::schema()?)?.up_to(END);
    let sink = runtime.block_on(stash.declare_sink(spec))?;

    let mut one = start(&url, &stash, "one", 1)?;
    let mut two = start(&url, &stash, "two", 3)?;
    println!("two replicas of two processes of two workers are started");
    let mut consumer = Consumer { result: BTreeMap::new(), upper: Frontier::MIN };
    runtime.block_on(consumer.read(&sink, Frontier::at(END / 3)))?;

    println!("the chain is at {}: a process of replica two is killed", consumer.upper);
    two.0[1].kill()?;
    for process in &mut two.0 {
        // The other one of the replica has lost its peer, and ends.
        assert!(!process.wait()?.success(), "killed in the middle");
    }
    let mut two = start(&url, &stash, "two", 3)?;
    println!("replica two is started anew");
    runtime.block_on(consumer.read(&sink, Frontier::EMPTY))?;
    for process in one.0.iter_mut().chain(&mut two.0) {
        assert!(process.wait()?.success());
    }

    let expected = Benchmark::generate().query();
    let result = consumer.result.into_iter().filter(|(_, multiplicity)| *multiplicity != 0);
    let result =
        result.map(|(row, multiplicity)| (multiplicity == 1).then_some(row)).collect::<Option<BTreeSet<_>>>();
    assert_eq!(result.as_ref(), Some(&expected), "as the query from scratch");
    println!("{} rows at the end, as of the query from scratch", expected.len());
    runtime.block_on(async {
        stash.drain_deletions().await?;
        let verified = sink.verify(|_| {}).await?;
        assert!(verified.violations.is_empty(), "{:?}", verified.violations);
        let audit = stash.audit(None, |_| {}).await?;
        assert!(audit.lines.iter().all(|line| line.class == Class::Own), "all was acknowledged: {audit:?}");
        println!("nothing is left in the store");
        stash.close().await
    })?;
    Ok(())
}

/// What the consumer was handed.
struct Consumer {
    result: BTreeMap<Revenue, i64>,
    upper: Frontier,
}

impl Consumer {
    /// Reads and acknowledges until the chain has reached `until`.
    async fn read(&mut self, sink: &Sink, until: Frontier) -> Result<(), Box<dyn Error>> {
        let mut chain = sink.subscribe("dashboard", StartAt::Beginning).await?;
        while self.upper < until {
            let Some(delivery) = chain.next().await? else { break };
            let mut reader = delivery.read();
            while let Some(batch) = reader.next().await? {
                let rows = Revenue::read(&batch.project(&[0, 1, 2, 3])?)?;
                let diffs = batch.column(5).as_any().downcast_ref::<stash::arrow::array::Int64Array>();
                for (row, diff) in rows.into_iter().zip(diffs.ok_or("diffs are i64")?.values()) {
                    *self.result.entry(row).or_insert(0) += diff;
                }
            }
            self.upper = delivery.upper();
            chain.acknowledge(self.upper).await?;
        }
        Ok(())
    }
}
