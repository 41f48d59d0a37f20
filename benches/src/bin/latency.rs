//! How long three updates take from [`stash::Chain::offer`] until a subscriber in another task has read them.
//!
//! With `--processes n`, n more processes write batches of the same kind to other sinks of the same catalog for
//! as long as it takes.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use arrow::{
    array::{ArrayRef, RecordBatch, StringArray, UInt64Array},
    datatypes::{DataType, Field, Schema},
};
use clap::Parser;
use stash::{Chain, Frontier, Incarnation, Launch, Sink, SinkSpec, StartAt, Stash, Subscription};
use stash_benches::{Results, peak_memory, percentile};
use tokio::sync::mpsc;

/// Batches after which the subscriber acknowledges, outside of what is measured.
const ACKNOWLEDGE_EVERY: u64 = 64;

#[derive(Parser)]
#[command(about = "Latency of small batches, from offer to read")]
struct Arguments {
    /// Batches that are measured.
    #[arg(long, default_value_t = 2000)]
    batches: u64,
    /// More processes that write to the same catalog meanwhile.
    #[arg(long, default_value_t = 0)]
    processes: u32,
    /// One JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// What those processes are told: the stash to write to.
    #[arg(long, hide = true, requires = "sink")]
    hammer: Option<String>,
    /// And the sink.
    #[arg(long, hide = true)]
    sink: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match (&arguments.hammer, &arguments.sink) {
        (Some(url), Some(sink)) => hammer(url, sink).await,
        _ => measure(&arguments).await,
    }
}

/// Writes until standard input closes, which it does when the process that measures ends.
async fn hammer(url: &str, name: &str) -> Result<()> {
    let mut closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut writer = Writer::open(url, name).await?;
    loop {
        tokio::select! {
            _ = &mut closed => return Ok(()),
            written = writer.write() => drop(written?),
        }
    }
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("file://{}", folder.path().display());
    let mut writer = Writer::open(&url, "measured").await?;
    let subscription = writer.sink.subscribe("reader", StartAt::Beginning).await?;
    let mut hammers = Hammers::default();
    for n in 0..arguments.processes {
        hammers.spawn(&url, &format!("hammer-{n}"))?;
    }

    let (received, mut receive) = mpsc::channel(1);
    let mut tasks = tokio::task::JoinSet::new();
    let batches = arguments.batches;
    tasks.spawn(async move { read(subscription, batches, received).await });
    let mut latencies = Vec::new();
    let began = Instant::now();
    for _ in 0..batches {
        let offered = writer.write().await?;
        let read: Instant = receive.recv().await.context("the subscriber ended early")?;
        latencies.push(read.duration_since(offered));
    }
    let took = began.elapsed();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    hammers.end()?;
    writer.close().await?;

    let mut results = Results::default();
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    results.add("batches", batches as f64);
    results.add("processes", f64::from(arguments.processes));
    for (name, percent) in [("p50_ms", 50), ("p90_ms", 90), ("p99_ms", 99), ("max_ms", 100)] {
        results.add(name, millis(percentile(&mut latencies, percent)));
    }
    results.add("batches_per_s", batches as f64 / took.as_secs_f64());
    results.add("peak_memory_mib", peak_memory().unwrap_or_default() as f64 / f64::from(1 << 20));
    results.print(arguments.json);
    Ok(())
}

async fn read(mut subscription: Subscription, batches: u64, received: mpsc::Sender<Instant>) -> Result<()> {
    for n in 1..=batches {
        let Some(delivery) = subscription.next().await? else { bail!("the chain ended") };
        let mut reader = delivery.read();
        let mut rows = 0;
        while let Some(batch) = reader.next().await? {
            rows += batch.num_rows();
        }
        let now = Instant::now();
        if rows != 3 {
            bail!("{rows} rows arrived, 3 were written");
        }
        if n % ACKNOWLEDGE_EVERY == 0 || n == batches {
            subscription.acknowledge(delivery.upper()).await?;
        }
        received.send(now).await?;
    }
    Ok(())
}

/// One worker that writes three updates a time.
struct Writer {
    sink: Sink,
    incarnation: Box<Incarnation>,
    chain: Chain,
    time: u64,
}

impl Writer {
    async fn open(url: &str, name: &str) -> Result<Writer> {
        let stash = Stash::open(url).await?;
        let schema = Schema::new(vec![
            Field::new("key", DataType::UInt64, false),
            Field::new("text", DataType::Utf8, false),
        ]);
        let sink = stash.declare_sink(SinkSpec::new(name, schema)?).await?;
        let incarnation = Box::new(sink.open_incarnation(Launch::single("writer", 1)?).await?.render()?);
        let chain = incarnation.chain()?;
        Ok(Writer { sink, incarnation, chain, time: 0 })
    }

    fn updates(&self) -> Result<RecordBatch> {
        let keys: ArrayRef = Arc::new(UInt64Array::from(vec![self.time, self.time + 1, self.time + 2]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["one", "two", "three"]));
        Ok(self.sink.updates(vec![keys, texts], vec![self.time; 3], vec![1, 1, 1])?)
    }

    /// Writes the next batch; the moment at which it was offered.
    async fn write(&mut self) -> Result<Instant> {
        let minted = self.chain.mint(Frontier::at(self.time + 1))?.minted().context("nothing to mint")?;
        let share = self.incarnation.worker(0)?.write(minted, [self.updates()?]).await?;
        self.chain.merge(share).await?;
        let offered = Instant::now();
        self.chain.offer().await?.context("nothing to offer")?;
        self.time += 1;
        Ok(offered)
    }

    async fn close(self) -> Result<()> {
        let Writer { sink, incarnation, chain, time: _ } = self;
        drop(chain);
        incarnation.close("the bench is done").await?;
        sink.stash().close().await?;
        Ok(())
    }
}

/// The other processes; they end with this.
#[derive(Default)]
struct Hammers(Vec<Child>);

impl Hammers {
    fn spawn(&mut self, url: &str, sink: &str) -> Result<()> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(["--hammer", url, "--sink", sink]).stdin(Stdio::piped());
        self.0.push(command.spawn().context("another process")?);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        for mut child in self.0.drain(..) {
            drop(child.stdin.take());
            let status = child.wait()?;
            if !status.success() {
                bail!("another process failed: {status}");
            }
        }
        Ok(())
    }
}

impl Drop for Hammers {
    fn drop(&mut self) {
        // Their standard input closes with this, and they end by themselves.
        let _ = self.end();
    }
}
