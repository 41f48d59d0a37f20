//! Kills processes at named places, many times, and audits what is left. Also plays the roles of its worlds.

use std::{path::PathBuf, process::ExitCode, time::Instant};

use clap::{Parser, Subcommand};
use stash_crash::{Campaign, Death, Plan, Report, Wanted, place, role};

/// Kills processes at named places and audits what is left.
#[derive(Debug, Parser)]
struct Cli {
    /// SIGKILLs to make. Every place comes first, then chance decides.
    #[arg(long, default_value_t = 500)]
    runs: u64,
    /// What everything follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Worlds that live at the same time; as many as there are processors where it is not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// One world only, with these deaths: WHO@PLACE:COUNT, as a failure prints them.
    #[arg(long)]
    die: Vec<Death>,
    /// Of that one world: whether a consumer holds everything.
    #[arg(long)]
    keeper: Option<bool>,
    /// A line for each world.
    #[arg(long)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plays a role of a world; for the harness alone.
    #[command(hide = true)]
    Role(Box<role::RoleArgs>),
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Command::Role(args)) = cli.command {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        role::run(*args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !place::COMPILED_IN {
        println!("SKIPPED: built without the feature `faults`: there are no places to die at");
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(torture(cli))
}

async fn torture(cli: Cli) -> anyhow::Result<ExitCode> {
    let binary: PathBuf = std::env::current_exe()?;
    if !cli.die.is_empty() {
        let plan = Plan { seed: cli.seed, deaths: cli.die, keeper: cli.keeper };
        let (outcome, audit) = plan.run(&binary).await?;
        println!("died: {:?}\nmissed: {:?}\n{audit:?}", outcome.deaths, outcome.missed);
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = cli.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let campaign = Campaign { binary, seed: cli.seed, jobs, verbose: cli.verbose };
    let (begun, mut report) = (Instant::now(), Report::default());
    campaign.cover(Wanted::all(), &mut report).await;
    campaign.random(cli.runs, &mut report).await;
    println!("{report}in {} s with seed {}", begun.elapsed().as_secs(), cli.seed);
    let whole = report.failures.is_empty() && report.never_hit().is_empty();
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
