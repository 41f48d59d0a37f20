//! A replica of the demo as dataflows of timely: one for each table, on workers that are threads.
//!
//! Each worker feeds its part of a table time by time, as the replica cuts, and no further ahead than it holds so many
//! updates; the sink of `stash-timely` does the rest. The rows' columns are known at run time only, so the collections
//! are of Arrow rows.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Context;
use differential_dataflow::input::{Input, InputSession};
use stash::Sink;
use stash_timely::{
    Background, Connected, Connection, Outcome, Place, Replica, SinkError, SinkToken, no_errors,
    rows::{ArrowRow, ArrowRows},
    stash_sink_with,
};
use timely::worker::Worker;

use super::{
    events::{ReplicaEvent, emit},
    feed::{Feed, part},
    replica::{pause, tell},
    spec::ReplicaSpec,
};

/// Updates that a worker may hold of a table before it is fed on.
const HELD_MAX: usize = 200_000;

/// Runs the workers of this replica to the end of its feed.
pub async fn run(
    feed: Arc<dyn Feed>,
    sinks: Vec<Sink>,
    spec: ReplicaSpec,
    pauses: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let workers = usize::try_from(spec.workers)?;
    let background = Background::new(tokio::runtime::Handle::current(), workers);
    let Some(first) = sinks.first() else { return Ok(()) };
    let token = first.stash().draw_launch();
    let replica = Replica::new(&spec.replica, token, Place::alone(spec.workers), &background);
    let story = Arc::new(Story { feed, spec, pauses, background });
    let keep = move |worker: &mut Worker| {
        let mut renderings = 0;
        replica.keep_all(worker, &sinks, |worker, connected| {
            story.announce(worker, connected, renderings)?;
            renderings += 1;
            story.render(worker, connected)
        })
    };
    let execute = move || {
        let guards = timely::execute(timely::Config::process(workers), keep).map_err(anyhow::Error::msg)?;
        guards.join().into_iter().collect::<Result<Vec<_>, String>>().map_err(anyhow::Error::msg)
    };
    let ended = tokio::task::spawn_blocking(execute).await.context("the workers")??;
    for outcomes in ended {
        for outcome in outcomes? {
            if let Outcome::Poisoned(error) = outcome {
                anyhow::bail!("poisoned at {}: {}", error.at, error.message);
            }
        }
    }
    Ok(())
}

/// What the workers play.
struct Story {
    feed: Arc<dyn Feed>,
    spec: ReplicaSpec,
    /// Whether this process is still to pause; shared by its workers.
    pauses: Arc<AtomicBool>,
    background: Background,
}

impl Story {
    /// The first worker tells what each table's opening found.
    fn announce(&self, worker: &Worker, connected: &[Connected], renderings: u32) -> Result<(), SinkError> {
        if worker.index() > 0 {
            return Ok(());
        }
        for (table, connected) in connected.iter().enumerate() {
            let event = match connected {
                Connected::Render(connection) => {
                    if renderings > 0 {
                        let reason = "the sinks are rendered again".to_owned();
                        told(emit(&ReplicaEvent::Reopening { table, reason }));
                    }
                    connection.on_resolved(move |resolved| told(tell(table, resolved)));
                    ReplicaEvent::Opened {
                        table,
                        incarnation: connection.incarnation().to_string(),
                        as_of: connection.as_of(),
                        floor: connection.floor().as_u64(),
                    }
                }
                Connected::Complete => ReplicaEvent::Complete { table },
                Connected::Poisoned(_) | Connected::Dropped => continue,
            };
            told(emit(&event));
        }
        Ok(())
    }

    /// One dataflow for each table that is to be rendered.
    fn render(
        self: &Arc<Self>,
        worker: &mut Worker,
        connected: &[Connected],
    ) -> Result<(Vec<SinkToken>, impl FnMut(&mut Worker) + use<>), SinkError> {
        let (mut tokens, mut tables) = (Vec::new(), Vec::new());
        for (table, connected) in connected.iter().enumerate() {
            let Connected::Render(connection) = connected else { continue };
            let (token, feeding) = self.render_table(worker, table, connection)?;
            tokens.push(token);
            tables.push(feeding);
        }
        Ok((tokens, move |_: &mut Worker| tables.iter_mut().for_each(Feeding::feed)))
    }

    fn render_table(
        self: &Arc<Self>,
        worker: &mut Worker,
        table: usize,
        connection: &Connection,
    ) -> Result<(SinkToken, Feeding), SinkError> {
        let rows = ArrowRows::new(Arc::clone(connection.sink().schema().declared_schema()))?;
        let (input, token) = worker.dataflow(|scope| {
            let (input, collection) = scope.new_collection::<ArrowRow, i64>();
            let token = stash_sink_with(collection, no_errors(scope), rows.clone(), connection)?;
            Ok::<_, SinkError>((input, token))
        })?;
        let as_of = connection.as_of();
        // A snapshot above the feed's own is covered from birth, and nothing of it is computed.
        let next = if as_of == self.feed.as_of() { as_of } else { as_of + 1 };
        let feeding = Feeding {
            story: Arc::clone(self),
            table,
            worker: u32::try_from(worker.index()).unwrap_or(u32::MAX),
            rows,
            input: Some(input),
            next,
            upper: as_of + 1,
            cut: 0,
            watched: token.watch(),
        };
        Ok((token, feeding))
    }
}

/// One worker's part of a table, as it is fed.
struct Feeding {
    story: Arc<Story>,
    table: usize,
    worker: u32,
    rows: ArrowRows,
    /// Gone at the feed's end.
    input: Option<InputSession<u64, ArrowRow, i64>>,
    next: u64,
    upper: u64,
    cut: usize,
    watched: stash_timely::HeldWatch,
}

impl Feeding {
    /// Feeds the next cut, unless enough is held.
    fn feed(&mut self) {
        if self.input.is_none() || self.watched.held().updates > HELD_MAX {
            return;
        }
        let story = Arc::clone(&self.story);
        let Story { feed, spec, pauses, background } = &*story;
        let quarter = feed.as_of() + (feed.end() - feed.as_of()) / 4;
        let first = self.table == 0 && self.worker == 0;
        if first && self.upper > quarter && pauses.swap(false, Ordering::AcqRel) {
            told(background.runtime().block_on(pause()));
        }
        let upper = self.upper.min(feed.end());
        if upper >= feed.end() && spec.stall {
            // The feed was too small for a second part: stand still before its end instead.
            if first && self.next < feed.end() {
                self.next = feed.end();
                let at = format!("before the last description of table {}", self.table);
                told(emit(&ReplicaEvent::Stalled { at, puts: 0 }));
            }
            return;
        }
        if let Err(error) = self.give(upper) {
            // Nothing that a rendering could mend: the process ends, and the demo tells why.
            panic!("table {}: {error:#}", self.table);
        }
        self.next = upper;
        if upper >= feed.end() {
            self.input = None;
            return;
        }
        let cuts = &spec.cuts;
        self.upper = upper.saturating_add(cuts.get(self.cut % cuts.len().max(1)).copied().unwrap_or(1));
        self.cut += 1;
    }

    fn give(&mut self, upper: u64) -> anyhow::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let Story { feed, spec, .. } = &*self.story;
        for batch in feed.updates(self.table, self.next, upper, self.worker, spec.workers) {
            let batch = batch?;
            let parted = part(&batch).map_err(anyhow::Error::msg)?;
            let rows = self.rows.rows(parted.columns)?;
            for ((row, time), diff) in rows.into_iter().zip(parted.times).zip(parted.diffs) {
                input.update_at(row, *time, *diff);
            }
        }
        input.advance_to(upper);
        input.flush();
        Ok(())
    }
}

/// An event that cannot be told: whoever listens is gone, which ends this process by its standard input.
fn told(event: anyhow::Result<()>) {
    if let Err(error) = event {
        tracing::debug!(error = format!("{error:#}"), "not told");
    }
}
