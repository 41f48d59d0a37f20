//! A thousand times a second, each with three updates: from the moment the input's frontier passes a time until a
//! subscriber in another task has read what it has of it.
//!
//! Where offers take longer than a time lasts, descriptions take in several times: each time counts by itself. Nothing
//! may grow meanwhile: memory and what is held are told from the first seconds and from the last.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stash::{StartAt, Subscription};
use stash_benches::{Intervals, Results, load, resident_memory};
use tokio::sync::oneshot;

use crate::dataflow::{PARK, Rendered, World};

/// Between two times.
const BETWEEN: Duration = Duration::from_millis(1);
/// Deliveries after which the subscriber acknowledges, outside of what is measured.
const ACKNOWLEDGE_EVERY: u64 = 64;

#[derive(clap::Args)]
pub struct Arguments {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub fn measure(arguments: &Arguments) -> Result<Results> {
    ensure!(arguments.seconds > 0, "--seconds must be at least 1");
    let times = arguments.seconds * 1000;
    let world = World::open()?;
    let sink = world.sink("trickle")?;
    let connection = world.connect(&sink, 1)?;
    let subscription = world.runtime.block_on(sink.subscribe("reader", StartAt::Beginning))?;
    let (sender, reader) = oneshot::channel();
    let mut reading = tokio::task::JoinSet::new();
    reading.spawn_on(read(subscription, times, sender), world.runtime.handle());
    let given = connection.clone();
    let guards = timely::execute(timely::Config::process(1), move |worker| -> Result<Fed> {
        let mut rendered = Rendered::new(worker, &given)?;
        let began = Instant::now();
        let mut fed = Fed::default();
        for time in 0..times {
            let due = began + BETWEEN * u32::try_from(time).unwrap_or(u32::MAX);
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                worker.step_or_park(Some(left));
            }
            fed.late = fed.late.max(due.elapsed());
            for n in 0..3 {
                rendered.rows.update((time * 3 + n, "one of three updates".to_owned()), 1);
            }
            rendered.rows.advance_to(time + 1);
            rendered.rows.flush();
            fed.advanced.push(Instant::now());
            worker.step();
            fed.look(&rendered, time, times);
        }
        fed.took = began.elapsed();
        while !rendered.is_accepted(times)? {
            worker.step_or_park(Some(PARK));
        }
        rendered.end(worker);
        Ok(fed)
    });
    let fed = guards.map_err(anyhow::Error::msg)?.join().into_iter().next();
    let fed = fed.context("a worker")?.map_err(anyhow::Error::msg)??;
    let read = world.runtime.block_on(async {
        let read = reader.await;
        while let Some(ended) = reading.join_next().await {
            ended??;
        }
        anyhow::Ok(read?)
    })?;
    let counters = world.stash.counters();
    world.close(&connection)?;
    tell(&fed, &read, counters.puts, arguments.seconds)
}

fn tell(fed: &Fed, read: &Read, puts: u64, seconds: u64) -> Result<Results> {
    let mut latencies = Intervals::default();
    let mut advanced = fed.advanced.iter();
    let mut before = 0;
    for (upper, at) in &read.deliveries {
        let count = usize::try_from(upper.saturating_sub(before))?;
        advanced
            .by_ref()
            .take(count)
            .for_each(|advanced| latencies.add(at.saturating_duration_since(*advanced)));
        before = *upper;
    }
    ensure!(latencies.count() == fed.advanced.len() as u64, "a time was not delivered");
    ensure!(read.rows == latencies.count() * 3, "{} updates came", read.rows);

    let mut results = Results::default();
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    results.add("seconds", seconds as f64);
    results.add("times", latencies.count() as f64);
    results.add("times_per_s", latencies.count() as f64 / fed.took.as_secs_f64());
    results.add("deliveries", read.deliveries.len() as f64);
    results.add("times_a_delivery", latencies.count() as f64 / read.deliveries.len() as f64);
    for (name, permille) in [("p50_ms", 500), ("p90_ms", 900), ("p99_ms", 990), ("p99.9_ms", 999)] {
        results.add(name, millis(latencies.permille(permille)));
    }
    results.add("max_ms", millis(latencies.longest()));
    results.add("input_late_max_ms", millis(fed.late));
    results.add("puts", puts as f64);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    results.add("resident_start_mib", mib(fed.start.resident));
    results.add("resident_end_mib", mib(fed.end.resident));
    results.add("held_batches_max_start", fed.start.batches as f64);
    results.add("held_batches_max_end", fed.end.batches as f64);
    results.add("held_updates_max_start", fed.start.updates as f64);
    results.add("held_updates_max_end", fed.end.updates as f64);
    results.add("load", load());
    Ok(results)
}

/// What the worker saw.
#[derive(Default)]
struct Fed {
    /// When the frontier passed each time.
    advanced: Vec<Instant>,
    took: Duration,
    /// How late the worker was with a time at most.
    late: Duration,
    start: Most,
    end: Most,
}

/// The most of each over a while.
#[derive(Clone, Copy, Default)]
struct Most {
    resident: u64,
    batches: usize,
    updates: usize,
}

impl Fed {
    /// Looks at what is held: in the second sixth of the time, and in the last.
    fn look(&mut self, rendered: &Rendered, time: u64, times: u64) {
        let most = match time * 6 / times {
            1 => &mut self.start,
            5 => &mut self.end,
            _ => return,
        };
        let held = rendered.token.held();
        most.batches = most.batches.max(held.batches);
        most.updates = most.updates.max(held.updates + held.scanning);
        if time.is_multiple_of(100) {
            most.resident = most.resident.max(resident_memory().unwrap_or_default());
        }
    }
}

/// What the subscriber saw.
struct Read {
    /// The upper of each delivery, and when its updates were read.
    deliveries: Vec<(u64, Instant)>,
    rows: u64,
}

async fn read(mut subscription: Subscription, times: u64, done: oneshot::Sender<Read>) -> Result<()> {
    let mut read = Read { deliveries: Vec::new(), rows: 0 };
    let mut unacknowledged = 0;
    while read.deliveries.last().is_none_or(|(upper, _)| *upper < times) {
        let delivery = subscription.next().await?.context("the chain ended")?;
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await? {
            read.rows += batch.num_rows() as u64;
        }
        read.deliveries.push((delivery.upper().as_u64(), Instant::now()));
        unacknowledged += 1;
        if unacknowledged == ACKNOWLEDGE_EVERY {
            unacknowledged = 0;
            subscription.acknowledge(delivery.upper()).await?;
        }
    }
    // Whoever measures has ended with an error otherwise.
    let _ = done.send(read);
    Ok(())
}
