//! `stash-admin`: the command line of Stash. Every verb is one library call, or a few.
//!
//! - What a machine may read goes to stdout, everything else to stderr.
//! - An error prints once, causes below it; exit code 1, or 2 for a wrong command line. A reader that goes away
//!   (broken pipe) is no error worth a word, and takes nothing from the verdict: what is lost stays exit code 1.
//! - Ctrl-C ends the command at its next safe point and closes the stash; a second one ends it at once.
//!
//! As a library it is no API: it shows what is made of words and change files to those who try to break it.

mod cli;
mod commands;
mod demo;
mod duration;
mod failure;
mod formats;
mod interrupt;
mod metrics;
mod output;
mod progress;
mod session;

use std::{ffi::OsString, io::IsTerminal, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, parser::ValueSource};

use crate::{cli::Command, output::Output, session::Address};

pub use crate::{
    cli::Cli,
    formats::{
        BatchWriter, ChangeBatch, ChangeFile, ColumnRoles, DIFF, Format, InputError, PROGRESS, Place,
        Progress, SchemaSpec, SpecError, TIME, batch_writer,
    },
    session::url_of,
};

/// Threads that run workers: two cores are used, four at most.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 4;
/// Threads that sort, encode and do file I/O. More would each keep memory of its own: the system's allocator
/// scatters what one thread takes and another gives back.
const BLOCKING_THREADS_MAX: usize = 4;

/// Runs the program with the words of its command line.
pub fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    let json = cli.json;
    trace(cli.verbose);
    // Libraries bring different cryptography for TLS; one is named, or each connection would have to guess. It fails
    // only where one is named already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    match run(cli) {
        Ok(code) => code,
        Err(error) => failure::report(&error, json),
    }
}

/// Reads a command line, the program's name first. The demo has a stash of its own unless one is named right there: the one in the
/// environment is meant for work.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words = Cli::command().try_get_matches_from(words)?;
    let mut cli = Cli::from_arg_matches(&words)?;
    if let Command::Demo(args) = &cli.command
        && !args.is_process()
        && words.value_source("stash") == Some(ValueSource::EnvVariable)
    {
        (cli.stash, cli.catalog) = (None, None);
    }
    cli.stash = cli.stash.map(session::url_of);
    Ok(cli)
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(THREADS_MIN, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(THREADS_MIN, THREADS_MAX))
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()?;
    let result = runtime.block_on(dispatch(cli));
    // A thread that waits for a terminal or a pipe must not keep the process.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { stash, catalog, json, verbose: _, command } = cli;
    let at = Address { stash, catalog, no_sweep: false };
    let out = Output::new(json);
    match command {
        Command::Demo(args) => demo::run(args, at, json).await,
        Command::Load(args) => commands::load::run(&at, args, out).await,
        Command::Read(args) => commands::read::run(&at, args, out).await,
        Command::Health(args) => commands::health::run(&at, args, out).await,
        Command::Sinks(args) => commands::sinks::run(&at, args, out).await,
        Command::Chain(args) => commands::chain::run(&at, args, out).await,
        Command::Parts(args) => commands::parts::run(&at, args, out).await,
        Command::Cat(args) => commands::cat::run(&at, args, out).await,
        Command::Explain(args) => commands::explain::run(&at, args, out).await,
        Command::Audit(args) => commands::audit::run(&at, args, out).await,
        Command::Sweep(args) => commands::sweep::run(&at, args, out).await,
        Command::Salvage(args) => commands::salvage::run(args, out).await,
        Command::Verify(args) => commands::verify::run(&at, args, out).await,
        Command::Consumers(args) => commands::consumers::run(&at, args, out).await,
        Command::Drop(args) => commands::drop::run(&at, args, out).await,
        Command::Expire(args) => commands::expire::run(&at, args, out).await,
        Command::History(args) => commands::history::run(&at, args, out).await,
        #[cfg(feature = "s3")]
        Command::Probe(args) => commands::probe::run(&at.stash, args, out).await,
        #[cfg(feature = "s3")]
        Command::Bucket(args) => commands::bucket::run(&at.stash, args, out).await,
        Command::Sim(args) => commands::sim::run(args, out).await,
    }
}

/// Traces go to stderr: warnings, and more with each `-v`.
fn trace(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(verbose > 1)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
