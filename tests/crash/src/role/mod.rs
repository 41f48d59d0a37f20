//! The roles: what the processes of a world do.
//!
//! A role opens the stash, says [`Event::Ready`], follows its orders and closes everything when it is told to stop.
//! A call that fails in a way that may pass ([`ErrorKind::Retry`]) is told as [`Event::Stuck`] and made again once
//! the harness says so. Any other failure ends the process with an error on standard error.

mod consumer;
mod dropper;
mod expirer;
mod replica;
mod sweeper;

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use arrow::datatypes::{DataType, Field, Schema};
use clap::{Args, ValueEnum};
use stash::{BatchConfig, Error, ErrorKind, OpenOptions, Sink, SinkSpec, StartAt, Stash, StashConfig};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines, Stdin},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    At,
    feed::Feed,
    message::{Event, Order, tell},
    place,
};

pub use consumer::add;

/// Exit status of a role that nobody listens to any more.
pub const ORPHANED: i32 = 96;
/// Exit status of a role whose deadline passed.
pub const LATE: i32 = 97;
/// Exit status of a role in which anything panicked, caught or not.
pub const PANICKED: i32 = 98;

/// The sink of every world.
pub const SINK: &str = "crashes";
/// The consumer that acknowledges.
pub const CONSUMER: &str = "reader";
/// The consumer that holds everything, where there is one.
pub const KEEPER: &str = "keeper";

/// Which role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleKind {
    /// Writes.
    Replica,
    /// Reads and acknowledges.
    Consumer,
    /// Sweeps and verifies, all the time.
    Sweeper,
    /// Takes what outlived the sink's retention.
    Expirer,
    /// Drops the sink.
    Dropper,
}

/// What a role is told on its command line.
#[derive(Clone, Debug, Args)]
pub struct RoleArgs {
    /// Which role.
    #[arg(value_enum)]
    pub kind: RoleKind,
    /// The stash's folder.
    #[arg(long)]
    pub stash: PathBuf,
    /// Die there, by SIGKILL.
    #[arg(long)]
    pub die_at: Option<At>,
    /// Stop there, by SIGSTOP.
    #[arg(long)]
    pub stop_at: Option<At>,
    /// Seed of the feed.
    #[arg(long)]
    pub seed: u64,
    /// First time without updates.
    #[arg(long)]
    pub end: u64,
    /// How much larger than usual the large times are.
    #[arg(long, default_value_t = 1)]
    pub weight: u64,
    /// Lease of an incarnation.
    #[arg(long, default_value_t = 60)]
    pub lease_secs: u32,
    /// After so many seconds the process ends itself.
    #[arg(long, default_value_t = 60)]
    pub deadline_secs: u64,
    /// The replica's name.
    #[arg(long, default_value = "a")]
    pub replica: String,
    /// Which of the replica's processes.
    #[arg(long, default_value_t = 0)]
    pub process: u32,
    /// How many processes the replica has.
    #[arg(long, default_value_t = 1)]
    pub processes: u32,
    /// Workers in each of them.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// How many times each description takes, over and over.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub cuts: Vec<u64>,
    /// Where the consumer records.
    #[arg(long, default_value = "results")]
    pub results: PathBuf,
    /// Whether the consumer registers another that holds everything.
    #[arg(long)]
    pub keeper: bool,
    /// Whether the sink has a retention.
    #[arg(long)]
    pub expires: bool,
}

impl RoleArgs {
    fn feed(&self) -> Feed {
        Feed { seed: self.seed, end: self.end, weight: self.weight }
    }
}

/// The sink of every world. What `expires` may go as soon as nobody holds it.
pub fn spec(end: u64, expires: bool) -> stash::Result<SinkSpec> {
    let fields = vec![Field::new("key", DataType::UInt64, false), Field::new("pad", DataType::Utf8, false)];
    let spec = SinkSpec::new(SINK, Schema::new(fields))?.up_to(end);
    Ok(if expires { spec.retention(Duration::from_millis(1)) } else { spec })
}

/// Small enough that a few kilobytes need parts, a few dozen several runs, and these a merge.
pub fn config(lease_secs: u32) -> StashConfig {
    let batch = BatchConfig {
        memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
        part_bytes: 12 << 10,
        inline_batch_bytes_max: 2 << 10,
        row_group_rows_max: 64,
        row_group_bytes_max: 8 << 10,
        runs_max: 2,
        chunk_bytes: 8 << 10,
        attempts_max: 3,
    };
    StashConfig { batch, lease_secs, ..StashConfig::default() }
}

/// Opens the stash in `folder`.
pub async fn open(folder: &Path, lease_secs: u32) -> stash::Result<Stash> {
    OpenOptions::new(format!("file://{}", folder.display())).config(config(lease_secs)).open().await
}

/// Declares a sink that expires and has the keeper hold everything of it, before anybody else comes.
pub async fn hold(folder: &Path, end: u64, lease_secs: u32) -> stash::Result<()> {
    let stash = open(folder, lease_secs).await?;
    stash.declare_sink(spec(end, true)?).await?.subscribe(KEEPER, StartAt::Beginning).await?;
    stash.close().await?;
    Ok(())
}

/// Forgets the consumers: nobody holds anything any more.
pub async fn let_go(folder: &Path, lease_secs: u32) -> stash::Result<()> {
    let stash = open(folder, lease_secs).await?;
    let sink = stash.sink(SINK).await?;
    // In this order: what the reader acknowledged stays as long as the keeper is there.
    for consumer in [CONSUMER, KEEPER] {
        sink.unregister_consumer(consumer).await?;
    }
    drop(sink);
    stash.close().await?;
    Ok(())
}

/// Plays a role to its end.
pub fn run(args: RoleArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        place::COMPILED_IN || (args.die_at.is_none() && args.stop_at.is_none()),
        "built without the feature `faults`: there are no places to die at"
    );
    place::arm(args.die_at.clone(), args.stop_at.clone());
    let tell_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell_panic(panic);
        std::process::exit(PANICKED);
    }));
    let deadline = Duration::from_secs(args.deadline_secs);
    std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        while let Some(left) = deadline.checked_sub(begun.elapsed()) {
            std::thread::park_timeout(left.max(Duration::from_millis(1)));
        }
        eprintln!("the deadline of {} s has passed", deadline.as_secs());
        std::process::exit(LATE);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let played = runtime.block_on(play(args));
    runtime.shutdown_background();
    played
}

async fn play(args: RoleArgs) -> anyhow::Result<()> {
    let mut orders = Orders::listen();
    let sink = orders.persist(async || declared(&args).await).await.context("opening the stash")?;
    tell(&Event::Ready);
    match args.kind {
        RoleKind::Replica => replica::play(&args, &sink, &mut orders).await?,
        RoleKind::Consumer => consumer::play(&args, &sink, &mut orders).await?,
        RoleKind::Sweeper => sweeper::play(&sink, &mut orders).await?,
        RoleKind::Expirer => expirer::play(&sink, &mut orders).await?,
        RoleKind::Dropper => dropper::play(&sink).await?,
    }
    let stash = sink.stash().clone();
    drop(sink);
    orders.persist(async || stash.close().await).await.context("closing the stash")?;
    tell(&Event::Done { hits: place::hits() });
    Ok(())
}

async fn declared(args: &RoleArgs) -> stash::Result<Sink> {
    let stash = open(&args.stash, args.lease_secs).await?;
    match args.kind {
        RoleKind::Dropper => stash.sink_or_dropped(SINK).await,
        _ => stash.declare_sink(spec(args.end, args.expires)?).await,
    }
}

/// The orders of the harness. When they end, the harness is gone, and the process ends with them.
struct Orders {
    orders: mpsc::UnboundedReceiver<Order>,
    /// What was heard while something else was waited for.
    later: VecDeque<Order>,
    _listening: JoinSet<()>,
}

impl Orders {
    fn listen() -> Orders {
        let (send, orders) = mpsc::unbounded_channel();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut lines: Lines<BufReader<Stdin>> = BufReader::new(tokio::io::stdin()).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(order) => {
                        if send.send(order).is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        eprintln!("an order that cannot be read: {error}: {line}");
                        break;
                    }
                }
            }
            std::process::exit(ORPHANED);
        });
        Orders { orders, later: VecDeque::new(), _listening: listening }
    }

    async fn next(&mut self) -> Order {
        match self.later.pop_front() {
            Some(order) => order,
            None => self.heard().await,
        }
    }

    async fn heard(&mut self) -> Order {
        match self.orders.recv().await {
            Some(order) => order,
            // The listener ends the process itself.
            None => std::future::pending().await,
        }
    }

    fn try_next(&mut self) -> Option<Order> {
        self.later.pop_front().or_else(|| self.orders.try_recv().ok())
    }

    /// Makes a call until it succeeds or fails for good; between two tries the harness says when.
    async fn persist<T>(&mut self, mut call: impl AsyncFnMut() -> stash::Result<T>) -> stash::Result<T> {
        loop {
            match call().await {
                Err(error) if error.kind() == ErrorKind::Retry => self.stuck(&error).await,
                done => return done,
            }
        }
    }

    /// Tells of a failure that may pass and waits until the harness says that it has.
    async fn stuck(&mut self, error: &Error) {
        tell(&Event::Stuck { kind: format!("{:?}", error.kind()), error: told(error) });
        loop {
            match self.heard().await {
                Order::GoOn => return,
                order => self.later.push_back(order),
            }
        }
    }
}

/// An error with its causes, on one line.
fn told(error: &Error) -> String {
    let mut line = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}
