//! Processor time a row with one worker and with two, and how fast the sink is beside the stash's own path for rows that
//! are sorted already.
//!
//! Each is measured in a process of its own: a sink from the last worker's sealed batch on until the snapshot is
//! accepted; the stash's own path from sorted Arrow batches in memory on, as many shares side by side as there are
//! workers, each with the rows that a worker of the sink has. They take turns, so that a busy machine slows all alike,
//! and the median of the rounds is told.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use arrow::array::RecordBatch;
use stash::{Frontier, Launch, Minted, OwnedParts, ShareMessage, ShareWriter, Sink};
use stash_benches::{Results, cpu_time, load};
use stash_timely::{Row as _, RowBuilder};

use crate::{
    child,
    dataflow::{PARK, Rendered, Row, World, feed, row},
};

/// What processor time a row with two workers may be, of what it is with one.
const MUST_SCALE: f64 = 1.2;
/// What the throughput must be, of the stash's own.
const MUST_REACH: f64 = 0.7;
/// Rows of a record batch of the stash's own path.
const ROWS_A_BATCH: usize = 8192;

#[derive(clap::Args)]
pub struct Arguments {
    /// Rows in all.
    #[arg(long, default_value_t = 4_000_000)]
    rows: u64,
    /// How often each is measured.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// What a process of its own measures.
    #[arg(long, hide = true, requires = "workers")]
    alone: Option<Alone>,
    /// With how many workers.
    #[arg(long, hide = true)]
    workers: Option<u32>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Alone {
    Sink,
    Own,
}

pub fn measure(arguments: &Arguments) -> Result<Results> {
    let rows = arguments.rows;
    match (arguments.alone, arguments.workers) {
        (Some(Alone::Sink), Some(workers)) => return through_sink(rows, workers),
        (Some(Alone::Own), Some(workers)) => return own_path(rows, workers),
        _ => {}
    }
    let mut measured = [("own", 1), ("sink", 1), ("own", 2), ("sink", 2)].map(|kind| (kind, Vec::new()));
    for _ in 0..arguments.rounds {
        for ((alone, workers), rounds) in &mut measured {
            let (rows, workers) = (rows.to_string(), workers.to_string());
            let told = ["scaling", "--rows", &rows, "--alone", alone, "--workers", &workers];
            rounds.push(child(&told.map(str::to_owned))?);
        }
    }

    let mut results = Results::default();
    results.add("rows", rows as f64);
    results.add("rounds", f64::from(arguments.rounds));
    for ((alone, workers), rounds) in &measured {
        let name = |name: &str| format!("{alone}_{workers}_{name}");
        let wall = median(rounds, "wall_s")?;
        results.add(name("write_s"), wall);
        results.add(name("rows_per_s"), rows as f64 / wall);
        results.add(name("cpu_us_per_row"), median(rounds, "cpu_s")? * 1e6 / rows as f64);
        if *alone == "sink" {
            results.add(name("all_cpu_us_per_row"), median(rounds, "all_cpu_s")? * 1e6 / rows as f64);
        }
    }
    let ratio = |a: &str, b: &str| anyhow::Ok(of(&results, a)? / of(&results, b)?);
    let told = [
        ("scaling", ratio("sink_2_cpu_us_per_row", "sink_1_cpu_us_per_row")?),
        ("scaling_with_arranging", ratio("sink_2_all_cpu_us_per_row", "sink_1_all_cpu_us_per_row")?),
        ("must_scaling", MUST_SCALE),
        ("of_own_1", ratio("sink_1_rows_per_s", "own_1_rows_per_s")?),
        ("of_own_2", ratio("sink_2_rows_per_s", "own_2_rows_per_s")?),
        ("must_of_own", MUST_REACH),
        ("load", load()),
    ];
    told.into_iter().for_each(|(name, value)| results.add(name, value));
    Ok(results)
}

fn of(results: &Results, name: &str) -> Result<f64> {
    results.get(name).with_context(|| format!("nothing was told of {name}"))
}

fn median(rounds: &[Results], name: &str) -> Result<f64> {
    let mut all = rounds.iter().map(|round| of(round, name)).collect::<Result<Vec<_>>>()?;
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().context("a round")
}

/// When something began: in time, and in the process's time on a core.
#[derive(Clone, Copy)]
struct Begun(Instant, Duration);

impl Begun {
    fn now() -> Begun {
        Begun(Instant::now(), cpu_time())
    }

    fn tell(self, results: &mut Results) {
        results.add("wall_s", self.0.elapsed().as_secs_f64());
        results.add("cpu_s", (cpu_time() - self.1).as_secs_f64());
    }
}

fn through_sink(rows: u64, workers: u32) -> Result<Results> {
    let world = World::open()?;
    let sink = world.sink("scaling")?;
    let connection = world.connect(&sink, workers)?;
    let given = connection.clone();
    let mut config = timely::Config::process(workers as usize);
    // A worker that is idle shall not spin: its time would count.
    config.worker = config.worker.idle_spin(Duration::ZERO);
    let sealed = Arc::new(AtomicU32::new(0));
    let begun = Arc::new(Mutex::new(None));
    let guards = timely::execute(config, move |worker| -> Result<Results> {
        let fed = Begun::now();
        let mut rendered = Rendered::new(worker, &given)?;
        feed(worker, &mut rendered.rows, (worker.index() as u64..rows).step_by(workers as usize));
        rendered.rows.advance_to(1);
        rendered.rows.flush();
        while !rendered.is_sealed() {
            worker.step_or_park(Some(PARK));
        }
        if sealed.fetch_add(1, Ordering::AcqRel) + 1 == workers {
            *begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Begun::now());
        }
        while !rendered.is_accepted(1)? {
            worker.step_or_park(Some(PARK));
        }
        let mut results = Results::default();
        let begun =
            begun.lock().unwrap_or_else(PoisonError::into_inner).context("the last one was sealed")?;
        begun.tell(&mut results);
        results.add("all_cpu_s", (cpu_time() - fed.1).as_secs_f64());
        rendered.end(worker);
        Ok(results)
    });
    let mut told = Vec::new();
    for results in guards.map_err(anyhow::Error::msg)?.join() {
        told.push(results.map_err(anyhow::Error::msg)??);
    }
    check(&world, &sink, rows)?;
    world.close(&connection)?;
    told.into_iter().next().context("a worker")
}

fn own_path(rows: u64, workers: u32) -> Result<Results> {
    let world = World::open()?;
    let sink = world.sink("scaling")?;
    let mut batches = Vec::new();
    for worker in 0..workers {
        let mut of_worker: Vec<Row> = (u64::from(worker)..rows).step_by(workers as usize).map(row).collect();
        of_worker.sort_unstable();
        batches.push(
            of_worker.chunks(ROWS_A_BATCH).map(|rows| columns(&sink, rows)).collect::<Result<Vec<_>>>()?,
        );
    }
    let results = world.runtime.block_on(async {
        let incarnation = sink.open_incarnation(Launch::single("replica", workers)?).await?.render()?;
        let mut chain = incarnation.chain()?;
        let minted = chain.mint(Frontier::at(1))?.minted().context("nothing to mint")?;
        let begun = Begun::now();
        let mut tasks = tokio::task::JoinSet::new();
        for (worker, batches) in (0..workers).zip(batches) {
            tasks.spawn(write(incarnation.worker(worker)?, minted, batches));
        }
        while let Some(share) = tasks.join_next().await {
            chain.report(share??).await?;
        }
        ensure!(sink.upper().await? == Frontier::at(1), "the batch was accepted");
        let mut results = Results::default();
        begun.tell(&mut results);
        drop(chain);
        incarnation.close("the bench is done").await?;
        Ok(results)
    })?;
    check(&world, &sink, rows)?;
    world.runtime.block_on(world.stash.close())?;
    Ok(results)
}

fn columns(sink: &Sink, rows: &[Row]) -> Result<RecordBatch> {
    let mut builder = Row::builder()?;
    for row in rows {
        builder.append(row)?;
    }
    Ok(sink.updates(builder.finish()?, vec![0; rows.len()], vec![1; rows.len()])?)
}

async fn write(
    writer: ShareWriter,
    minted: Minted,
    batches: Vec<RecordBatch>,
) -> Result<ShareMessage<OwnedParts>> {
    let mut share = writer.share(minted)?;
    for batch in batches {
        if let Err(error) = share.push(batch).await {
            drop(share.fail(error.to_string()));
            return Err(error.into());
        }
    }
    Ok(share.finish().await)
}

/// As many rows are there as were written.
fn check(world: &World, sink: &Sink, rows: u64) -> Result<()> {
    world.runtime.block_on(async {
        let delivery = sink.read().await?.next().await?.context("a batch")?;
        let (mut reader, mut read) = (delivery.read(), 0);
        while let Some(batch) = reader.next().await? {
            read += batch.num_rows() as u64;
        }
        ensure!(read == rows, "{read} rows of {rows} came back");
        Ok(())
    })
}
