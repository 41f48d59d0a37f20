//! What the sink adds to the memory of a dataflow: the peak of a process that writes a snapshot, beside that of a process
//! with the same dataflow and no sink, which drops its batches.
//!
//! The sink holds the snapshot's batch until it is written, when the other has dropped it: that much it may have more, and
//! the process's budget.

use anyhow::{Context, Result};
use stash_benches::{Results, load, peak_memory, resident_memory};
use timely::worker::Worker;

use crate::{
    child,
    dataflow::{HELD_ROW_BYTES, PARK, ROW_BYTES, Rendered, World, feed, without_sink},
};

/// What may be added beside the budget.
const BESIDE: u64 = 64 << 20;

#[derive(clap::Args)]
pub struct Arguments {
    /// Size of the snapshot, in 10^9 bytes of rows.
    #[arg(long, default_value_t = 1.5)]
    gigabytes: f64,
    /// What a process of its own measures.
    #[arg(long, hide = true)]
    alone: Option<Alone>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Alone {
    With,
    Without,
}

pub fn measure(arguments: &Arguments) -> Result<Results> {
    let rows = (arguments.gigabytes * 1e9 / ROW_BYTES as f64) as u64;
    match arguments.alone {
        Some(Alone::With) => return with(rows),
        Some(Alone::Without) => return without(rows),
        None => {}
    }
    let measured = |alone: &str| {
        let gigabytes = arguments.gigabytes.to_string();
        child(&["memory", "--gigabytes", &gigabytes, "--alone", alone].map(str::to_owned))
    };
    let (without, with) = (measured("without")?, measured("with")?);
    let of = |results: &Results, name: &str| results.get(name).context("a number");

    let mut results = Results::default();
    results.add("rows", rows as f64);
    results.add("gigabytes", arguments.gigabytes);
    let (peak_without, peak_with) = (of(&without, "peak_mib")?, of(&with, "peak_mib")?);
    results.add("without_sink_sealed_mib", of(&without, "sealed_mib")?);
    results.add("without_sink_peak_mib", peak_without);
    results.add("with_sink_sealed_mib", of(&with, "sealed_mib")?);
    results.add("with_sink_peak_mib", peak_with);
    results.add("with_sink_peak_writing_mib", of(&with, "writing_mib")?);
    results.add("held_mib", of(&with, "held_mib")?);
    results.add("added_mib", peak_with - peak_without);
    let budget = of(&with, "budget_mib")?;
    results.add("budget_mib", budget);
    results.add("must_added_mib", budget + mib(BESIDE));
    results.add("load", load());
    Ok(results)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn with(rows: u64) -> Result<Results> {
    let world = World::open()?;
    let sink = world.sink("memory")?;
    let connection = world.connect(&sink, 1)?;
    let given = connection.clone();
    let run = move |worker: &mut Worker| -> Result<Results> {
        let mut results = Results::default();
        let mut rendered = Rendered::new(worker, &given)?;
        feed(worker, &mut rendered.rows, 0..rows);
        rendered.rows.advance_to(1);
        rendered.rows.flush();
        while !rendered.is_sealed() {
            worker.step_or_park(Some(PARK));
        }
        results.add("sealed_mib", mib(resident_memory().unwrap_or_default()));
        let held = rendered.token.held();
        let held = held.updates.max(held.scanning) as u64;
        let mut writing = 0;
        while !rendered.is_accepted(1)? {
            worker.step_or_park(Some(PARK));
            writing = writing.max(resident_memory().unwrap_or_default());
        }
        results.add("writing_mib", mib(writing));
        results.add("held_mib", mib(held * HELD_ROW_BYTES));
        rendered.end(worker);
        Ok(results)
    };
    let mut results = alone(run)?;
    results.add("budget_mib", mib(world.stash.config().batch.memory_bytes));
    world.close(&connection)?;
    results.add("peak_mib", mib(peak_memory().unwrap_or_default()));
    Ok(results)
}

fn without(rows: u64) -> Result<Results> {
    alone(move |worker| {
        let mut results = Results::default();
        let (mut input, probe) = without_sink(worker);
        feed(worker, &mut input, 0..rows);
        input.advance_to(1);
        input.flush();
        while probe.less_than(&1) {
            worker.step_or_park(Some(PARK));
        }
        results.add("sealed_mib", mib(resident_memory().unwrap_or_default()));
        results.add("peak_mib", mib(peak_memory().unwrap_or_default()));
        Ok(results)
    })
}

/// Runs on one worker.
fn alone(run: impl Fn(&mut Worker) -> Result<Results> + Send + Sync + 'static) -> Result<Results> {
    let guards = timely::execute(timely::Config::process(1), run).map_err(anyhow::Error::msg)?;
    guards.join().into_iter().next().context("a worker")?.map_err(anyhow::Error::msg)?
}
