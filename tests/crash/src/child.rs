//! A process that the harness started: its orders, what it tells, and its end.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, Command},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    At,
    message::{Event, Order},
    setup::Who,
};

/// What is heard of a process.
#[derive(Debug)]
pub enum Heard {
    /// It told something.
    Event(Event),
    /// It wrote a line that cannot be read.
    Garbage(String),
    /// Its output ended: it is gone, or about to be.
    Silent,
}

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    /// Where it is to die.
    pub armed: Option<At>,
    /// Its standard error.
    pub log: PathBuf,
    process: tokio::process::Child,
    orders: ChildStdin,
    /// Whether the harness itself killed it.
    pub killed: bool,
}

/// Where all processes of a world are heard.
#[derive(Debug)]
pub struct Ears {
    heard: mpsc::UnboundedReceiver<(Who, u64, Heard)>,
    tell: mpsc::UnboundedSender<(Who, u64, Heard)>,
    listening: JoinSet<()>,
}

impl Ears {
    /// Hears nobody yet.
    pub fn new() -> Ears {
        let (tell, heard) = mpsc::unbounded_channel();
        Ears { heard, tell, listening: JoinSet::new() }
    }

    /// What is heard next: of whom, of which start of it, and what.
    pub async fn next(&mut self) -> (Who, u64, Heard) {
        while self.listening.try_join_next().is_some() {}
        match self.heard.recv().await {
            Some(heard) => heard,
            None => std::future::pending().await,
        }
    }
}

impl Default for Ears {
    fn default() -> Ears {
        Ears::new()
    }
}

impl Child {
    /// Starts `command` as the `start`th start of `who`.
    pub fn start(
        who: Who,
        start: u64,
        mut command: Command,
        armed: Option<At>,
        log: &Path,
        ears: &mut Ears,
    ) -> anyhow::Result<Child> {
        let errors = File::create(log).with_context(|| format!("log {}", log.display()))?;
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {who}: {command:?}"))?;
        let orders = process.stdin.take().context("its standard input")?;
        let output = process.stdout.take().context("its standard output")?;
        let tell = ears.tell.clone();
        ears.listening.spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let heard = match serde_json::from_str(&line) {
                    Ok(event) => Heard::Event(event),
                    Err(_) => Heard::Garbage(line),
                };
                let _ = tell.send((who, start, heard));
            }
            let _ = tell.send((who, start, Heard::Silent));
        });
        Ok(Child { armed, log: log.to_owned(), process, orders, killed: false })
    }

    /// Gives an order. One that is gone does not hear it, and is noticed elsewhere.
    pub async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let _ = self.orders.write_all(&line).await;
        let _ = self.orders.flush().await;
        Ok(())
    }

    /// Sends a signal; the process has not been waited for, so its id is its own.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let id = id.context("a process that is gone cannot be signalled")?;
        self.killed |= signal == Signal::KILL;
        Ok(kill_process(id, signal)?)
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.wait().await?)
    }

    /// The end of its standard error, for people.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.iter().skip(lines.len().saturating_sub(12)).map(|line| format!("\n  | {line}")).collect()
    }
}
