//! Directs a demo run: starts the processes, hears what they say, and kills and pauses them on events.
//!
//! - Replica `a` stands still in the middle of its second PUT, is killed there, and comes back at once as a
//!   new incarnation.
//! - Replica `b` stands still a quarter into its first table, is stopped there, and goes on when `a` has passed it,
//!   or after two seconds.
//! - The consumer is killed in the middle of the first batch it hands on, and comes back.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    Ports,
    delivered::Delivered,
    events::{ConsumerEvent, ReplicaEvent, peak_rss},
    feed::{Feed, Table},
    screen::Screen,
    spec::{ConsumerSpec, Engine, FeedSpec, ReplicaSpec},
    summary::{Outcomes, Peak},
};
use crate::{failure::Interrupted, interrupt::Interrupt, session::Address};

/// How long a pause lasts at most: a stopped process may hold the lock of the embedded catalog.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Who plays.
#[derive(Clone)]
pub struct Cast {
    /// The stash.
    pub at: Address,
    /// The changefeed.
    pub feed: FeedSpec,
    /// What renders the feed on the replicas.
    pub engine: Engine,
    /// Workers of each replica.
    pub workers: u32,
    /// Memory for batches in each process.
    pub memory_bytes: u64,
    /// Where the processes tell their metrics.
    pub metrics: Option<Ports>,
}

/// What a run came to.
#[derive(Debug)]
pub struct Played {
    /// What was handed over.
    pub delivered: Delivered,
    /// What became of the offers.
    pub outcomes: Outcomes,
    /// The peak memory of each process.
    pub peaks: Vec<Peak>,
}

/// Which replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    A,
    B,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::A => "a",
            Who::B => "b",
        }
    }

    /// How many times each of its descriptions covers: the two never agree for long.
    fn cuts(self) -> Vec<u64> {
        match self {
            Who::A => vec![1, 2, 3],
            Who::B => vec![2, 1, 4, 1],
        }
    }
}

enum Told {
    Replica(Who, ReplicaEvent),
    ReplicaEnded(Who),
    Consumer(ConsumerEvent, Vec<u8>),
    ConsumerEnded,
    Failed(anyhow::Error),
}

/// A run under way.
pub struct Stage {
    cast: Cast,
    tables: Vec<Table>,
    as_of: u64,
    end: u64,
    told: (mpsc::Sender<Told>, mpsc::Receiver<Told>),
    listeners: JoinSet<()>,
    screen: Screen,
    a: Replica,
    b: Replica,
    consumer: Option<(Child, ChildStdin)>,
    consumer_done: bool,
    consumer_killed: bool,
    pause: Pause,
    played: Played,
}

#[derive(Debug, Default)]
struct Replica {
    child: Option<Child>,
    done: bool,
    starts: u32,
    opened: usize,
    positions: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Pause {
    ToCome,
    Now { until: u64, at_most: Instant },
    Over,
}

impl Stage {
    /// Sets the stage for a feed.
    pub fn open(feed: &dyn Feed, cast: Cast, quiet: bool) -> anyhow::Result<Stage> {
        let (tables, as_of, end) = (feed.tables(), feed.as_of(), feed.end());
        let replica = || Replica { positions: vec![as_of; tables.len()], ..Replica::default() };
        let names: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
        Ok(Stage {
            told: mpsc::channel(64),
            listeners: JoinSet::new(),
            screen: Screen::new(names, (end - as_of) * tables.len() as u64, quiet),
            a: replica(),
            b: replica(),
            consumer: None,
            consumer_done: false,
            consumer_killed: false,
            pause: Pause::ToCome,
            played: Played {
                delivered: Delivered::new(tables.clone(), as_of),
                outcomes: Outcomes::default(),
                peaks: Vec::new(),
            },
            cast,
            tables,
            as_of,
            end,
        })
    }

    /// Plays to the end: every chain complete, delivered and acknowledged.
    pub async fn play(mut self) -> anyhow::Result<Played> {
        let interrupt = Interrupt::listen()?;
        self.start_replica(Who::A)?;
        self.start_consumer()?;
        while !(self.a.done && self.b.done && self.consumer_done) {
            let deadline = match self.pause {
                Pause::Now { at_most, .. } => at_most,
                Pause::ToCome | Pause::Over => Instant::now() + Duration::from_secs(3600),
            };
            tokio::select! {
                told = self.told.1.recv() => match told {
                    Some(told) => self.hear(told).await?,
                    None => bail!("nobody says anything any more"),
                },
                () = sleep_until(deadline) => self.resume("it was paused for long enough")?,
                () = interrupt.wait() => return Err(Interrupted(None).into()),
            }
        }
        self.screen.finish();
        Ok(self.played)
    }

    fn replica(&mut self, who: Who) -> &mut Replica {
        match who {
            Who::A => &mut self.a,
            Who::B => &mut self.b,
        }
    }

    fn start_replica(&mut self, who: Who) -> anyhow::Result<()> {
        let first = self.replica(who).starts == 0;
        let spec = ReplicaSpec {
            replica: who.name().to_owned(),
            feed: self.cast.feed.clone(),
            cuts: who.cuts(),
            engine: self.cast.engine,
            workers: self.cast.workers,
            memory_bytes: self.cast.memory_bytes,
            stall: who == Who::A && first,
            pause: who == Who::B && first,
            metrics: self.cast.metrics.map(|ports| if who == Who::A { ports.a } else { ports.b }),
        };
        let (child, stdin, stdout) = start("--replica-process", &spec, &self.cast.at)?;
        let told = self.told.0.clone();
        self.listeners.spawn(async move {
            // The replica ends when its standard input is closed, so it lives here as long as it is heard.
            let _stdin = stdin;
            let heard = hear_replica(who, stdout, &told).await;
            let _ = told.send(heard.map_or_else(Told::Failed, |()| Told::ReplicaEnded(who))).await;
        });
        let replica = self.replica(who);
        replica.child = Some(child);
        replica.starts += 1;
        Ok(())
    }

    fn start_consumer(&mut self) -> anyhow::Result<()> {
        let spec = ConsumerSpec {
            sinks: self.tables.iter().map(|table| table.name.clone()).collect(),
            memory_bytes: self.cast.memory_bytes,
            metrics: self.cast.metrics.map(|ports| ports.consumer),
        };
        let (child, stdin, stdout) = start("--consumer-process", &spec, &self.cast.at)?;
        let told = self.told.0.clone();
        self.listeners.spawn(async move {
            let heard = hear_consumer(stdout, &told).await;
            let _ = told.send(heard.map_or_else(Told::Failed, |()| Told::ConsumerEnded)).await;
        });
        self.consumer = Some((child, stdin));
        Ok(())
    }

    async fn hear(&mut self, told: Told) -> anyhow::Result<()> {
        match told {
            Told::Replica(who, event) => self.hear_replica_event(who, event).await,
            Told::ReplicaEnded(who) => self.replica_ended(who).await,
            // What a killed consumer had still said is lost with it.
            Told::Consumer(..) if self.consumer.is_none() => Ok(()),
            Told::Consumer(event, bytes) => self.hear_consumer_event(event, &bytes).await,
            Told::ConsumerEnded => self.consumer_ended().await,
            Told::Failed(error) => Err(error),
        }
    }

    async fn hear_replica_event(&mut self, who: Who, event: ReplicaEvent) -> anyhow::Result<()> {
        match event {
            ReplicaEvent::Opened { table, incarnation, as_of, floor } => {
                self.screen.opened(who.name(), table, &incarnation, as_of, floor);
                self.replica(who).opened += 1;
                // The other one starts when this one is under way: its death is to be seen on every machine.
                if self.b.starts == 0 && self.a.opened == self.tables.len() {
                    self.start_replica(Who::B)?;
                }
            }
            ReplicaEvent::Pausing => self.pause(who)?,
            ReplicaEvent::Complete { table } => self.screen.complete(who.name(), table),
            ReplicaEvent::Reopening { table, reason } => self.screen.reopening(who.name(), table, &reason),
            ReplicaEvent::Stalled { at, puts } => self.kill_replica(who, &at, puts).await?,
            ReplicaEvent::Resolved { .. } => self.resolved(who, &event)?,
            ReplicaEvent::Done { puts, put_bytes, peak_rss, peak_budget, requests } => {
                self.played.outcomes.asked(requests);
                self.replica(who).done = true;
                self.played.outcomes.puts += puts;
                self.played.outcomes.put_bytes += put_bytes;
                let name = format!("replica {}", who.name());
                self.played.peaks.push(Peak { process: name, peak_rss, peak_budget: Some(peak_budget) });
                self.screen.done(who.name());
                if who == Who::A {
                    self.resume("the other replica is through")?;
                }
            }
        }
        Ok(())
    }

    /// Kills a replica that stands still, and starts it again.
    async fn kill_replica(&mut self, who: Who, at: &str, puts: u64) -> anyhow::Result<()> {
        let Some(mut child) = self.replica(who).child.take() else { return Ok(()) };
        let peak_rss = peak_rss(child.id());
        child.kill().await?;
        self.played.outcomes.puts_of_the_killed += puts;
        let name = format!("replica {}, killed", who.name());
        self.played.peaks.push(Peak { process: name, peak_rss, peak_budget: None });
        self.screen.killed(who.name(), at);
        self.start_replica(who)
    }

    fn resolved(&mut self, who: Who, event: &ReplicaEvent) -> anyhow::Result<()> {
        let ReplicaEvent::Resolved { table, upper, .. } = event else { return Ok(()) };
        self.played.outcomes.count(event);
        self.screen.resolved(who.name(), event);
        let end = self.end;
        if let Some(position) = self.replica(who).positions.get_mut(*table) {
            *position = (*upper).min(end);
        }
        let as_of = self.as_of;
        let sum: u64 = self.replica(who).positions.iter().map(|position| position - as_of).sum();
        self.screen.at(who.name(), sum);
        self.resume_if_passed()
    }

    /// Stops the replica that stands still for it.
    fn pause(&mut self, who: Who) -> anyhow::Result<()> {
        let quarter = ((self.end - self.as_of) / 4).max(1);
        let replica = self.replica(who);
        let until = replica.positions.first().map_or(0, |position| position + quarter);
        if let (Pause::ToCome, Some(child)) = (self.pause, &self.b.child) {
            signal(child, Signal::STOP)?;
            self.pause = Pause::Now { until, at_most: Instant::now() + PAUSE_MAX };
            self.screen.paused(who.name());
        }
        Ok(())
    }

    /// Lets the paused replica go on once the other one has passed it.
    fn resume_if_passed(&mut self) -> anyhow::Result<()> {
        let passed = self.a.positions.first().copied().unwrap_or_default();
        match self.pause {
            Pause::Now { until, .. } if passed >= until.min(self.end) => {
                self.resume("the other one has passed it")
            }
            Pause::ToCome | Pause::Now { .. } | Pause::Over => Ok(()),
        }
    }

    fn resume(&mut self, why: &str) -> anyhow::Result<()> {
        if let (Pause::Now { .. }, Some(child)) = (self.pause, &self.b.child) {
            signal(child, Signal::CONT)?;
            self.pause = Pause::Over;
            self.screen.resumed(Who::B.name(), why);
        }
        Ok(())
    }

    async fn replica_ended(&mut self, who: Who) -> anyhow::Result<()> {
        let replica = self.replica(who);
        // What a killed process leaves unsaid is no news: another one runs under its name by now.
        if let Some(child) = &mut replica.child
            && replica.done
        {
            let status = child.wait().await?;
            if !status.success() {
                bail!("replica {} ended with {status}", who.name());
            }
        } else if replica.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            bail!("replica {} ended before its feed did", who.name());
        }
        Ok(())
    }

    async fn hear_consumer_event(&mut self, event: ConsumerEvent, bytes: &[u8]) -> anyhow::Result<()> {
        match event {
            ConsumerEvent::Begin { table, lower, upper, parts: _ } => {
                self.played.delivered.begin(table, lower, upper)?;
            }
            ConsumerEvent::Rows { table, .. } => {
                self.played.delivered.rows(table, bytes)?;
                if !self.consumer_killed {
                    self.kill_consumer(table).await?;
                }
            }
            ConsumerEvent::End { table } => {
                self.played.delivered.end(table)?;
                if let Some((_, stdin)) = &mut self.consumer {
                    stdin.write_all(format!("{table}\n").as_bytes()).await.context("confirming a batch")?;
                }
                let positions = (0..self.tables.len()).map(|table| self.played.delivered.position(table));
                self.screen.at("reader", positions.map(|position| position.min(self.end) - self.as_of).sum());
            }
            ConsumerEvent::Done { peak_rss, requests } => {
                self.played.outcomes.asked(requests);
                self.consumer_done = true;
                self.played.peaks.push(Peak { process: "consumer".to_owned(), peak_rss, peak_budget: None });
                self.screen.done("reader");
            }
        }
        Ok(())
    }

    /// Kills the consumer in the middle of a batch. What it still says is not heard.
    async fn kill_consumer(&mut self, table: usize) -> anyhow::Result<()> {
        // Its standard input stays open until it is dead: it is not to learn of this and end by itself.
        let Some((mut child, _stdin)) = self.consumer.take() else { return Ok(()) };
        let peak_rss = peak_rss(child.id());
        child.kill().await?;
        self.consumer_killed = true;
        self.played.peaks.push(Peak { process: "consumer, killed".to_owned(), peak_rss, peak_budget: None });
        let table = self.tables.get(table).map_or("", |table| table.name.as_str());
        self.screen.killed("reader", &format!("in the middle of a batch of {table}"));
        Ok(())
    }

    async fn consumer_ended(&mut self) -> anyhow::Result<()> {
        match &mut self.consumer {
            // It was killed, and all it said has been heard: the next one is handed the same again.
            None => {
                self.played.delivered.consumer_died();
                self.screen.back("reader", "and is handed the same batch again");
                self.start_consumer()
            }
            Some((child, _)) => {
                let status = child.wait().await?;
                if !(self.consumer_done && status.success()) {
                    bail!("the consumer ended with {status}");
                }
                Ok(())
            }
        }
    }
}

fn signal(child: &Child, signal: Signal) -> anyhow::Result<()> {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(kill_process(id.context("the process is gone")?, signal)?)
}

fn start(
    role: &str,
    spec: &impl Serialize,
    at: &Address,
) -> anyhow::Result<(Child, ChildStdin, ChildStdout)> {
    let program = std::env::current_exe().context("finding this program")?;
    // By the environment, which nobody else reads: everybody sees the words of a command line.
    let urls = [("STASH_URL", &at.stash), ("STASH_CATALOG", &at.catalog)];
    let mut child = Command::new(program)
        .args(["demo", role, &serde_json::to_string(spec)?])
        .env_remove("STASH_CATALOG")
        .envs(urls.iter().filter_map(|(name, url)| Some((*name, url.as_ref()?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        // Ctrl-C is for the one who directs; the others end with it.
        .process_group(0)
        .spawn()
        .context("starting a process of the demo")?;
    let stdin = child.stdin.take().context("its standard input")?;
    let stdout = child.stdout.take().context("its standard output")?;
    Ok((child, stdin, stdout))
}

async fn hear_replica(who: Who, stdout: ChildStdout, told: &mpsc::Sender<Told>) -> anyhow::Result<()> {
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        // A process that was killed may have left half a line.
        if let Ok(event) = serde_json::from_str(&line) {
            told.send(Told::Replica(who, event)).await?;
        }
    }
    Ok(())
}

async fn hear_consumer(stdout: ChildStdout, told: &mpsc::Sender<Told>) -> anyhow::Result<()> {
    let mut lines = BufReader::with_capacity(1 << 20, stdout);
    let mut line = String::new();
    while lines.read_line(&mut line).await? > 0 {
        let Ok(event) = serde_json::from_str::<ConsumerEvent>(&line) else { return Ok(()) };
        let mut bytes = match &event {
            ConsumerEvent::Rows { bytes, .. } => vec![0; *bytes],
            ConsumerEvent::Begin { .. } | ConsumerEvent::End { .. } | ConsumerEvent::Done { .. } => {
                Vec::new()
            }
        };
        if lines.read_exact(&mut bytes).await.is_err() {
            return Ok(());
        }
        told.send(Told::Consumer(event, bytes)).await?;
        line.clear();
    }
    Ok(())
}
