//! The words of the command line.
//!
//! Looking is free: a command that only looks creates nothing, not even the stash. Changing is a dry run unless
//! `--commit`; `load`, and `read` with a consumer, say what they change by their arguments.

use std::{
    num::{IntErrorKind, NonZeroU32, NonZeroU64, NonZeroUsize, ParseIntError},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use stash::{ConsumerName, ReplicaName, ShardId, SinkName, StartAt};

use crate::{demo::DemoArgs, duration, failure::Refusal, formats::Format, metrics::MetricsArgs};

/// The heading of options that every command has.
const EVERYWHERE: &str = "Options of every command";

/// Carries batches of incremental updates (row, time, diff) through an object store.
#[derive(Debug, Parser)]
#[command(name = "stash-admin", version, subcommand_required = true)]
#[command(after_help = "A first walk:
  export STASH_URL=file:///tmp/stash
  stash-admin load orders.csv --sink orders --time-column t --diff-column d
  stash-admin chain orders
  stash-admin read orders --consumer me")]
pub struct Cli {
    /// The stash: file:///folder, or a path that begins with / or . for short; blobs and catalog lie in it. Or
    /// s3://bucket/prefix, with ?region=…&endpoint=… where needed; the catalog is elsewhere then.
    #[arg(long, global = true, env = "STASH_URL", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = EVERYWHERE)]
    pub stash: Option<String>,
    /// The catalog, where it is not in the stash's folder: postgres://user@host/database or sqlite:///file. A password
    /// is better kept in the environment: in this variable, or in PGPASSWORD.
    #[arg(long, global = true, env = "STASH_CATALOG", hide_env_values = true, value_name = "URL")]
    #[arg(help_heading = EVERYWHERE)]
    pub catalog: Option<String>,
    /// Print for machines: one JSON document, or one a line where there may be many; errors as JSON on stderr.
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// Say more on stderr: -v each accepted batch, -vv what the libraries do.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = EVERYWHERE)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a change file into a sink.
    Load(LoadArgs),
    /// Print a sink's consolidated batches, each closed by its progress.
    ///
    /// Ctrl-C and SIGTERM end it between two batches: exit code 130 if not all was read, and stderr says how far it got
    /// and how to go on.
    Read(ReadArgs),
    /// List the sinks.
    Sinks(SinksArgs),
    /// Show how far writers, readers and deletions are, and how long until something is taken that nobody read.
    Health(HealthArgs),
    /// Show a sink's chain: its head, its incarnations, its batches.
    Chain(SinkArg),
    /// List the parts of a sink: one object in the store each.
    Parts(SinkArg),
    /// Print the updates of one part, checked against its digests.
    Cat(CatArgs),
    /// Tell everything about a key: who wrote it, who owns it, what became of it.
    Explain(KeyArg),
    /// Account for every byte below the prefix: who owns it, and what is lost. Changes nothing.
    Audit(AuditArgs),
    /// Plan the deletion of what nobody owns, or apply such a plan. A dry run unless --commit.
    Sweep(SweepArgs),
    /// Read parts from a listing alone, when the catalog is lost. Needs no catalog, and changes nothing in the store.
    Salvage(SalvageArgs),
    /// Check a sink, or all of them, against the store by the named invariants. Reads every byte.
    Verify(VerifyArgs),
    /// List the consumers of a sink, or forget one.
    Consumers(ConsumersArgs),
    /// Drop a sink and delete its blobs. A dry run unless --commit.
    Drop(DropArgs),
    /// Take of a sink what its time has come for: leases that ran out, what only absent consumers hold, what outlived
    /// the retention. A dry run unless --commit.
    Expire(ExpireArgs),
    /// Show what was recorded of a sink, oldest first.
    History(HistoryArgs),
    /// See it work: replicas that fail, and an oracle that compares.
    Demo(DemoArgs),
    /// Find out what an S3 store really does, and whether a stash can live in it. Takes under a minute, and leaves nothing.
    #[cfg(feature = "s3")]
    Probe(ProbeArgs),
    /// Check how a bucket is set up, or set it up.
    #[cfg(feature = "s3")]
    Bucket(BucketArgs),
    /// Simulate: the real code over a store, network, clock and catalog that fail by seed. Touches no stash.
    Sim(SimArgs),
}

/// Arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The change file: one update a record. It is read more than once, so a pipe will not do.
    pub file: PathBuf,
    /// The sink; declared if there is none of that name.
    #[arg(long)]
    pub sink: SinkName,
    /// How the file is written: csv, ndjson or parquet. Told by the file's name if absent.
    #[arg(long)]
    pub format: Option<Format>,
    /// The column of times: integers below 2^64 - 1.
    #[arg(long, value_name = "COLUMN")]
    pub time_column: String,
    /// The column of diffs; without one every update counts +1.
    #[arg(long, value_name = "COLUMN")]
    pub diff_column: Option<String>,
    /// The rows' columns, as name:type,… (a trailing ? allows nulls) or a JSON file. If absent, an existing
    /// sink's columns, else inferred. Types: bool, int8 to int64, uint8 to uint64, float32, float64, utf8, binary,
    /// date, timestamp, decimal(p,s).
    #[arg(long, value_name = "SCHEMA")]
    pub schema: Option<String>,
    /// Workers that write side by side.
    #[arg(long, default_value = "2", value_name = "N", value_parser = at_least_one::<NonZeroU32>)]
    pub workers: NonZeroU32,
    /// Close a batch every N distinct times. Without it a batch closes at the first new time after 65,536
    /// updates. The first time always is a batch of its own: the snapshot.
    #[arg(long, value_name = "N", value_parser = at_least_one::<NonZeroU64>)]
    pub batch_every: Option<NonZeroU64>,
    /// Accept times in any order: everything after the first time becomes one batch.
    #[arg(long, conflicts_with = "batch_every")]
    pub sort: bool,
    /// Continue where the sink's chain stands: updates that are accepted already are skipped.
    #[arg(long)]
    pub resume: bool,
    /// Seal the sink at the end of the file: nothing can be added afterwards.
    #[arg(long)]
    pub complete: bool,
    /// List nothing: leave what a load that died has left to `sweep`. For credentials that may not list.
    #[arg(long)]
    pub no_sweep: bool,
    /// The name this load writes under; a newer load of the same name takes over from an older one.
    #[arg(long, default_value = "load", value_name = "NAME")]
    pub replica: ReplicaName,
    /// The first time of the sink, if it is declared by this; the first time in the file if absent.
    #[arg(long, value_name = "T")]
    pub as_of: Option<u64>,
    /// If the sink is declared by this: how long batches are kept while no consumer holds them, such as 90s, 15m, 36h
    /// or 7d. For ever if absent.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub retention: Option<Duration>,
    /// If the sink is declared by this: how long a consumer that is not heard holds batches. For ever if absent.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub absent_hold: Option<Duration>,
    /// What is measured.
    #[command(flatten)]
    pub metrics: MetricsArgs,
}

/// Where `read` starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Start {
    /// At the sink's first time; an error once anything was released.
    Beginning,
    /// At the earliest batch that is still there.
    Earliest,
    /// At the chain's upper: only what comes.
    Now,
    /// Like earliest, and a consumer that stands below what expired goes on where that ends.
    SkipExpired,
}

impl From<Start> for StartAt {
    fn from(start: Start) -> StartAt {
        match start {
            Start::Beginning => StartAt::Beginning,
            Start::Earliest => StartAt::Earliest,
            Start::Now => StartAt::Now,
            Start::SkipExpired => StartAt::SkipExpired,
        }
    }
}

/// Arguments of `read`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The sink.
    #[arg(value_name = "SINK", required_unless_present = "sink_flag", conflicts_with = "sink_flag")]
    pub sink_word: Option<SinkName>,
    /// The same as SINK.
    #[arg(long = "sink", value_name = "SINK")]
    pub sink_flag: Option<SinkName>,
    /// Read as this consumer, go on where it acknowledged, and acknowledge what was printed. What all consumers
    /// acknowledged is deleted. Without it nothing is acknowledged.
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<ConsumerName>,
    /// Where to start, unless the consumer acknowledged something already.
    #[arg(long, value_enum, default_value = "beginning")]
    pub start: Start,
    /// Start at this time instead.
    #[arg(long, value_name = "T", conflicts_with_all = ["consumer", "start"])]
    pub from: Option<u64>,
    /// Wait for more, until the sink is complete. Ended before that by Ctrl-C or SIGTERM, the exit code is 130.
    #[arg(long)]
    pub follow: bool,
    /// How to print: ndjson, csv or parquet. Told by the output's name if absent; ndjson on stdout.
    #[arg(long)]
    pub format: Option<Format>,
    /// Print into this file, which must not be there yet; a device or pipe is written in place. Parquet goes into
    /// FILE.partial until it is whole, and stays there if the read is interrupted; with a consumer it becomes FILE then
    /// too, since what it holds is acknowledged.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Stop after N batches.
    #[arg(long, value_name = "N", value_parser = at_least_one::<NonZeroU64>)]
    pub limit_batches: Option<NonZeroU64>,
    /// What is measured.
    #[command(flatten)]
    pub metrics: MetricsArgs,
}

impl ReadArgs {
    /// The sink, by whichever of the two ways.
    pub fn sink(&self) -> Result<&SinkName, Refusal> {
        let named = self.sink_word.as_ref().or(self.sink_flag.as_ref());
        named.ok_or_else(|| Refusal::usage("no sink is named: stash-admin read SINK"))
    }
}

/// Arguments of `sinks`.
#[derive(Debug, Args)]
pub struct SinksArgs {
    /// Dropped ones too.
    #[arg(long)]
    pub dropped: bool,
}

/// Arguments of `health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Only this sink.
    pub sink: Option<SinkName>,
}

/// A sink.
#[derive(Debug, Args)]
pub struct SinkArg {
    /// The sink.
    pub sink: SinkName,
}

/// A key.
#[derive(Debug, Args)]
pub struct KeyArg {
    /// The part's key, `<shard>/<incarnation>/<lower>-<upper>-<process>-<n>.parquet`; what stands before the shard
    /// is ignored.
    pub key: String,
}

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The part.
    #[command(flatten)]
    pub key: KeyArg,
    /// How to print: ndjson, csv or parquet.
    #[arg(long, default_value = "ndjson")]
    pub format: Format,
}

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// The sink, dropped ones too; the whole prefix if absent.
    pub sink: Option<SinkName>,
}

/// Arguments of `sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Plan only for this sink, dropped ones too; for the whole prefix if absent.
    #[arg(conflicts_with = "commit")]
    pub sink: Option<SinkName>,
    /// The plan. A file that is not there yet is written; of one that is there it is said what it would do, and with
    /// --commit it is done. If absent, a name is made up and printed.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Really do it: every key of the plan is judged again, and what is still nobody's is deleted.
    #[arg(long, requires = "plan")]
    pub commit: bool,
    /// Stop after so many deletions; call it once more for the rest.
    #[arg(long, default_value = "10000", value_name = "N", requires = "plan")]
    #[arg(value_parser = at_least_one::<NonZeroU64>)]
    pub max_deletes: NonZeroU64,
}

/// Arguments of `salvage`.
#[derive(Debug, Args)]
pub struct SalvageArgs {
    /// The blobs: a folder or file:///folder, of the blobs themselves or of the stash they lie in.
    #[arg(long, value_name = "URL")]
    pub blobs: String,
    /// Write each batch into a file of this folder, which is made, and must be empty if it is there. Without it only the
    /// table is printed.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Only the sink with this shard.
    #[arg(long, value_name = "SHARD")]
    pub sink_shard: Option<ShardId>,
    /// How to write: parquet, ndjson or csv.
    #[arg(long, default_value = "parquet")]
    pub format: Format,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The sink; all of them, and the whole prefix, if absent.
    pub sink: Option<SinkName>,
}

/// Arguments of `consumers`.
#[derive(Debug, Args)]
pub struct ConsumersArgs {
    /// The sink.
    pub sink: SinkName,
    /// Forget this consumer: it holds nothing any longer. A dry run unless --commit.
    #[arg(long, value_name = "NAME")]
    pub forget: Option<ConsumerName>,
    /// Really do it.
    #[arg(long, requires = "forget")]
    pub commit: bool,
}

/// Arguments of `drop`.
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The sink.
    pub sink: SinkName,
    /// Really do it.
    #[arg(long)]
    pub commit: bool,
}

/// Arguments of `expire`.
#[derive(Debug, Args)]
pub struct ExpireArgs {
    /// The sink.
    pub sink: SinkName,
    /// Really do it.
    #[arg(long)]
    pub commit: bool,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The sink.
    pub sink: SinkName,
    /// The newest N events; 0 for all that are kept.
    #[arg(long, default_value = "100", value_name = "N")]
    pub limit: u32,
}

/// Where a stash is or will be in a bucket.
#[cfg(feature = "s3")]
#[derive(Debug, Args)]
pub struct BucketUrl {
    /// The bucket: s3://bucket/prefix, with ?region=… and ?endpoint=… where needed. The stash's own if absent.
    #[arg(value_name = "URL")]
    pub url: Option<String>,
}

/// Arguments of `probe`.
#[cfg(feature = "s3")]
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Where.
    #[command(flatten)]
    pub bucket: BucketUrl,
}

/// Arguments of `bucket`.
#[cfg(feature = "s3")]
#[derive(Debug, Args)]
pub struct BucketArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub what: BucketCommand,
}

/// What to do with a bucket.
#[cfg(feature = "s3")]
#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// Check it: lifecycle, public access, encryption, versions, locks, TLS. Changes nothing.
    Check(BucketUrl),
    /// Set it up: abort what is left of uploads, block public access, encrypt by default. Rules of others stay. A dry
    /// run unless --commit.
    Init(BucketInitArgs),
}

/// Arguments of `bucket init`.
#[cfg(feature = "s3")]
#[derive(Debug, Args)]
pub struct BucketInitArgs {
    /// Where.
    #[command(flatten)]
    pub bucket: BucketUrl,
    /// Really do it.
    #[arg(long)]
    pub commit: bool,
}

/// Arguments of `sim`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SimArgs {
    /// Replay this seed and print its history. Exit code 1 if it violates a promise.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "jobs"])]
    pub seed: Option<u64>,
    /// Run the seeds from A on and below B.
    #[arg(long, value_name = "A..B")]
    pub seeds: Option<Seeds>,
    /// Seeds at a time; as many as there are cores if absent.
    #[arg(long, value_name = "N", requires = "seeds", value_parser = at_least_one::<NonZeroUsize>)]
    pub jobs: Option<NonZeroUsize>,
}

/// Reads a number that is not zero.
fn at_least_one<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "it must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

/// Seeds, from one on and below another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let bounds = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match bounds {
            Some((first, end)) if first < end => Ok(Seeds { first, end }),
            Some(_) => Err("A must be below B".to_owned()),
            None => Err("expected A..B, such as 0..1000".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seeds_are_a_range_that_holds_some() {
        assert_eq!("3..7".parse(), Ok(Seeds { first: 3, end: 7 }));
        for bad in ["", "3", "3..", "..7", "7..3", "3..3", "-1..3", "3..=7"] {
            assert!(bad.parse::<Seeds>().is_err(), "{bad}");
        }
    }
}
