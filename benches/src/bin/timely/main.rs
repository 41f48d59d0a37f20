//! What the sink of `stash-timely` costs a dataflow, and how fast it is: four measurements, each of which says what it
//! must reach.
//!
//! - `turning`: how long a worker keeps an operator waiting while a snapshot is written.
//! - `memory`: what the sink adds to the memory of a dataflow.
//! - `scaling`: processor time a row with one worker and with two, beside the stash's own path for sorted rows.
//! - `trickle`: a thousand times a second, of three updates each, to a subscriber in another task.
//!
//! Ratios are taken side by side in one run, and the load of the machine is told with them: threads that want a core.

mod dataflow;
mod memory;
mod scaling;
mod trickle;
mod turning;

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use stash_benches::Results;

#[derive(Parser)]
#[command(about = "The sink for timely and differential dataflow")]
struct Arguments {
    /// One JSON object instead of lines.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    measured: Measured,
}

#[derive(Subcommand)]
enum Measured {
    /// Time between activations of an operator while a snapshot is written.
    Turning(turning::Arguments),
    /// Peak memory with the sink and without.
    Memory(memory::Arguments),
    /// Processor time and throughput with one worker and with two.
    Scaling(scaling::Arguments),
    /// Three updates a time, a thousand times a second.
    Trickle(trickle::Arguments),
}

fn main() -> Result<()> {
    let Arguments { json, measured } = Arguments::parse();
    let results = match measured {
        Measured::Turning(arguments) => turning::measure(&arguments),
        Measured::Memory(arguments) => memory::measure(&arguments),
        Measured::Scaling(arguments) => scaling::measure(&arguments),
        Measured::Trickle(arguments) => trickle::measure(&arguments),
    }?;
    results.print(json);
    Ok(())
}

/// Measures in a process of its own, whose peak memory and processor time are of this alone.
fn child(arguments: &[String]) -> Result<Results> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(arguments).arg("--json").stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", output.status);
    let told = String::from_utf8(output.stdout)?;
    Results::parse(told.trim()).with_context(|| format!("{arguments:?} told {told}"))
}
