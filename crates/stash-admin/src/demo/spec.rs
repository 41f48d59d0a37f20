//! What a demo run is about, in the form in which its processes are told.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{
    feed::Feed,
    input::FileFeed,
    tpch::{TpchFeed, TpchSpec},
};
use crate::formats::{ChangeFile, ColumnRoles, Format, SchemaSpec};

/// Where the changefeed comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FeedSpec {
    /// TPC-H orders and lineitem under refresh.
    Tpch {
        /// The benchmark's scale factor.
        scale: f64,
        /// What the changes after the snapshot are drawn from.
        seed: u64,
        /// Times after the snapshot.
        ticks: u64,
    },
    /// The user's own change file.
    File {
        /// Where it is.
        path: PathBuf,
        /// Its format, by name.
        format: String,
        /// The column of times.
        time_column: String,
        /// The column of diffs; all is +1 without one.
        diff_column: Option<String>,
        /// The columns, where they are not to be inferred.
        schema: Option<String>,
    },
}

impl FeedSpec {
    /// Opens the feed; a file is read into memory.
    pub fn open(&self) -> anyhow::Result<Box<dyn Feed>> {
        match self {
            FeedSpec::Tpch { scale, seed, ticks } => {
                let spec = TpchSpec { scale: *scale, seed: *seed, ticks: *ticks, ..TpchSpec::default() };
                Ok(Box::new(TpchFeed::new(spec)?))
            }
            FeedSpec::File { path, format, time_column, diff_column, schema } => {
                let format: Format = format.parse().map_err(anyhow::Error::msg)?;
                let roles = ColumnRoles { time: time_column.clone(), diff: diff_column.clone() };
                let schema = schema.as_deref().map(SchemaSpec::from_arg).transpose()?;
                let file = ChangeFile::open(path, format, roles, schema)?;
                let columns = file.schema();
                let batches =
                    file.map(|batch| batch.map(|batch| batch.batch)).collect::<Result<Vec<_>, _>>()?;
                let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("input");
                let name: String =
                    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
                Ok(Box::new(FileFeed::new(format!("input-{name}"), columns, batches)?))
            }
        }
    }

    /// Bytes at which a part is closed: small enough that the snapshot makes several at every scale.
    pub fn part_bytes(&self) -> u64 {
        match self {
            FeedSpec::Tpch { scale, .. } if *scale >= 0.5 => 32 << 20,
            FeedSpec::Tpch { scale, .. } if *scale >= 0.05 => 8 << 20,
            FeedSpec::Tpch { .. } | FeedSpec::File { .. } => 1 << 20,
        }
    }
}

/// What renders the feed on a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// A task for each worker, which asks the feed for what it is to write.
    #[default]
    Tasks,
    /// A dataflow of timely for each table, fed time by time.
    Timely,
}

/// A replica process of the demo, as it is told on its command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// The replica's name.
    pub replica: String,
    /// The changefeed.
    pub feed: FeedSpec,
    /// How many times each description covers, one after the other and round again.
    pub cuts: Vec<u64>,
    /// What renders the feed.
    #[serde(default)]
    pub engine: Engine,
    /// Workers.
    pub workers: u32,
    /// Memory for batches.
    pub memory_bytes: u64,
    /// Whether to stand still in the middle of a PUT, to be killed there.
    pub stall: bool,
    /// Whether to stand still a quarter into the first table, to be stopped there, until told to go on.
    pub pause: bool,
    /// Where it tells its metrics.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

/// The consumer process of the demo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumerSpec {
    /// The sinks it reads, in the order of the feed's tables.
    pub sinks: Vec<String>,
    /// Memory for batches.
    pub memory_bytes: u64,
    /// Where it tells its metrics.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
}

/// The name of the demo's consumer.
pub const CONSUMER: &str = "demo-reader";

/// Reads a specification from a command line.
pub fn parse<T: serde::de::DeserializeOwned>(json: &str) -> anyhow::Result<T> {
    serde_json::from_str(json).context("this command is started by `stash-admin demo` itself")
}
