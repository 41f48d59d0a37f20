//! `stash-admin demo`: two replicas, one chain, a consumer, deaths on the way, and an oracle at the end.
//!
//! The command starts itself as two replica processes and a consumer process ([`stage`] directs them), gathers
//! what the consumer is handed ([`delivered`]), computes the same from the feed alone ([`tally`]), and
//! compares. A mismatch, or a blob that is left in the store, is exit code 1 and says what it is.

mod consumer;
#[cfg(feature = "timely")]
mod dataflow;
mod delivered;
mod events;
pub mod feed;
pub mod input;
mod replica;
mod screen;
mod spec;
mod stage;
mod summary;
pub mod tally;
pub mod tpch;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, bail};
use stash::{SinkSpec, Stash};

use self::{
    feed::Feed,
    spec::{Engine, FeedSpec},
    stage::{Cast, Stage},
    summary::Summary,
    tally::Tally,
};
use crate::{
    failure::{Interrupted, Refusal},
    formats::Format,
    metrics::{MetricsArgs, check_free, port_above},
    session::Address,
};

/// What to show.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// TPC-H scale factor: 0.01 takes seconds, 2 about a minute.
    #[arg(long, default_value_t = 2.0, value_name = "FACTOR", conflicts_with = "input")]
    scale: f64,
    /// What the changes after the snapshot are drawn from.
    #[arg(long, default_value_t = 1, conflicts_with = "input")]
    seed: u64,
    /// Times after the snapshot.
    #[arg(long, default_value_t = 200, conflicts_with = "input")]
    ticks: u64,
    /// What renders the feed on the replicas; `timely` needs the feature of that name.
    #[arg(long, value_enum, default_value = "tasks")]
    engine: Engine,
    /// Workers of each replica.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Memory for batches in each process, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..))]
    memory_mib: u64,
    /// Runs the same on your own change file, sorted or not.
    #[arg(long, value_name = "FILE", requires = "time_column")]
    input: Option<PathBuf>,
    /// The input's format; told from its extension if absent.
    #[arg(long, requires = "input", value_name = "csv|ndjson|parquet")]
    format: Option<Format>,
    /// The input's column of times.
    #[arg(long, requires = "input", value_name = "COLUMN")]
    time_column: Option<String>,
    /// The input's column of diffs; all is +1 without one.
    #[arg(long, requires = "input", value_name = "COLUMN")]
    diff_column: Option<String>,
    /// The input's columns (`name:type[?],…`); inferred if absent.
    #[arg(long, requires = "input", value_name = "SCHEMA")]
    schema: Option<String>,
    /// Keeps the stash, to look into its history afterwards; all batches are read and gone by then.
    #[arg(long)]
    keep: bool,
    /// What is measured.
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Runs as a replica of a demo.
    #[arg(long, hide = true, value_name = "SPEC")]
    replica_process: Option<String>,
    /// Runs as the consumer of a demo.
    #[arg(long, hide = true, value_name = "SPEC")]
    consumer_process: Option<String>,
}

impl DemoArgs {
    /// Whether this is one of the demo's own processes.
    pub fn is_process(&self) -> bool {
        self.replica_process.is_some() || self.consumer_process.is_some()
    }

    fn feed(&self) -> anyhow::Result<FeedSpec> {
        let Some(input) = &self.input else {
            return Ok(FeedSpec::Tpch { scale: self.scale, seed: self.seed, ticks: self.ticks });
        };
        let Some(format) = self.format.or_else(|| Format::of_path(input)) else {
            bail!("{}: cannot tell its format from its name: pass --format", input.display());
        };
        Ok(FeedSpec::File {
            path: std::path::absolute(input)?,
            format: format.to_string(),
            time_column: self.time_column.clone().unwrap_or_default(),
            diff_column: self.diff_column.clone(),
            schema: self.schema.clone(),
        })
    }
}

/// Runs the demo, or one of its processes. `at` is the stash to use; a folder of its own if absent.
pub async fn run(args: DemoArgs, at: Address, json: bool) -> anyhow::Result<ExitCode> {
    if let Some(spec) = &args.replica_process {
        replica::run(spec::parse(spec)?, &at).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(spec) = &args.consumer_process {
        consumer::run(spec::parse(spec)?, &at).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.engine == Engine::Timely && !cfg!(feature = "timely") {
        let what = "this was built without timely: build stash-admin with `--features timely`";
        return Err(Refusal::usage(what).into());
    }
    let feed_spec = args.feed()?;
    let feed: Arc<dyn Feed> = Arc::from(feed_spec.open()?);
    let (at, folder) = match &at.stash {
        Some(url) if url.starts_with("memory:") => {
            let what = "the demo runs several processes, and memory is seen by one only: name a folder";
            return Err(Refusal::fix_call(what).into());
        }
        Some(_) => (at, None),
        None if at.catalog.is_some() => {
            let what = "a catalog is named, but no stash: name both, or neither and have a folder made";
            return Err(Refusal::usage(what).into());
        }
        None => {
            let folder =
                tempfile::Builder::new().prefix("stash-demo-").tempdir().context("a folder for the demo")?;
            (Address { stash: Some(url_of(folder.path())?), catalog: None, no_sweep: false }, Some(folder))
        }
    };
    let outcome = perform(&args, &feed_spec, feed, &at, json).await;
    let to_look_at = match &outcome {
        Ok(summary) => args.keep || !summary.is_good(),
        Err(error) => !error.is::<Interrupted>(),
    };
    if let Some(folder) = folder
        && to_look_at
    {
        let kept = folder.keep();
        eprintln!("the stash was kept: --stash {}", url_of(&kept)?);
    }
    let summary = outcome?;
    summary.print(json, &args.metrics.prices())?;
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn url_of(folder: &Path) -> anyhow::Result<String> {
    let folder = std::fs::canonicalize(folder)?;
    let text = folder.to_str().with_context(|| format!("{} is no UTF-8", folder.display()))?;
    Ok(format!("file://{text}"))
}

async fn perform(
    args: &DemoArgs,
    feed_spec: &FeedSpec,
    feed: Arc<dyn Feed>,
    at: &Address,
    json: bool,
) -> anyhow::Result<Summary> {
    let begun = Instant::now();
    let mut endpoint = args.metrics.listen()?;
    let metrics = args.metrics.metrics_listen.map(Ports::of).transpose()?;
    let stash = at.options()?.create(true).open().await?;
    endpoint.watch(&stash);
    if !stash.sinks(true).await?.is_empty() {
        // At its end the demo lists the whole store and calls everything in it a leak.
        return Err(Refusal::fix_call(format!(
            "{} is in use already: give the demo a folder, or a prefix and a catalog, of its own",
            stash.store().location()
        ))
        .into());
    }
    declare(&stash, feed.as_ref()).await?;
    let cast = Cast {
        at: at.clone(),
        feed: feed_spec.clone(),
        engine: args.engine,
        workers: args.workers,
        memory_bytes: args.memory_mib << 20,
        metrics,
    };
    // The oracle sees the feed alone, never the stash.
    let oracle = tokio::task::spawn_blocking({
        let feed = Arc::clone(&feed);
        move || Tally::of_feed(feed.as_ref())
    });
    let played = Stage::open(feed.as_ref(), cast, json)?.play().await?;
    let expected = oracle.await.context("the oracle's task")??;
    let summary = Summary::of(&stash, feed.as_ref(), expected, played, begun.elapsed()).await?;
    stash.close().await?;
    Ok(summary)
}

/// Where the processes of a demo tell their metrics.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Replica `a`.
    pub a: SocketAddr,
    /// Replica `b`.
    pub b: SocketAddr,
    /// The consumer.
    pub consumer: SocketAddr,
}

impl Ports {
    /// The ports above the demo's own; refused where one of them is taken, before anything begins.
    fn of(own: SocketAddr) -> Result<Ports, Refusal> {
        let ports = Ports { a: port_above(own, 1)?, b: port_above(own, 2)?, consumer: port_above(own, 3)? };
        [ports.a, ports.b, ports.consumer].into_iter().try_for_each(check_free)?;
        Ok(ports)
    }
}

async fn declare(stash: &Stash, feed: &dyn Feed) -> anyhow::Result<()> {
    for table in feed.tables() {
        let spec = SinkSpec::new(&table.name, table.schema.as_ref().clone())?.as_of(feed.as_of()).sealing();
        stash.declare_sink(spec).await?;
    }
    Ok(())
}
