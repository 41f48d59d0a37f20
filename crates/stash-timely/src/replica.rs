//! Rendering again: a replica keeps one sink rendered, alike on all of its workers.
//!
//! A sink cannot render itself anew. It says on every worker why it stopped; the loop here then drops the dataflows
//! that were rendered for it, opens a connection with a new grant, and renders again. Each rendering has a launch token
//! of its own, derived from the replica's, so that the processes of the replica agree without talking.
//!
//! - Only what every worker is told alike decides ([`Stop`]): no worker renders alone.
//! - Renderings that move nothing are not repeated without an end ([`Replica::renderings_max`]).
//! - Where a process cannot open its connection, it returns the error. Its end is the end of the replica: timely's
//!   other processes stop when a peer is lost, and the launcher starts all of them with a new token.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use stash::{DataflowError, Launch, LaunchToken, Sink};
use timely::worker::Worker;
use uuid::Uuid;

use crate::{Background, Connected, Connection, SinkConfig, SinkError, SinkStatus, SinkToken, Stop};

/// How a kept sink ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The chain is complete.
    Complete,
    /// The input ended without completing the chain.
    Ended,
    /// The sink was dropped, or a worker dropped its token.
    GoingAway,
    /// The dataflow is in error for good, until the sink is dropped.
    Poisoned(DataflowError),
}

/// Where a process stands in its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which process, from 0.
    pub process: u32,
    /// Processes of the replica.
    pub processes: u32,
    /// Workers of each process.
    pub workers: u32,
}

/// One process of a replica that keeps a sink rendered. Clones share it: one for each worker.
#[derive(Clone, Debug)]
pub struct Replica {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sink: Sink,
    name: String,
    token: LaunchToken,
    place: Place,
    background: Background,
    config: SinkConfig,
    renderings_max: u32,
    connections: Mutex<BTreeMap<u32, Arc<OnceLock<Result<Connected, Arc<SinkError>>>>>>,
}

impl Replica {
    /// A process of the replica `name`. All processes share the token, which the launcher drew for this start
    /// ([`stash::Stash::draw_launch`]).
    pub fn new(
        sink: &Sink,
        name: &str,
        token: LaunchToken,
        place: Place,
        background: &Background,
    ) -> Replica {
        Replica::with_config(sink, name, token, place, background, SinkConfig::default())
    }

    /// The same with another configuration of the sink's operators.
    pub fn with_config(
        sink: &Sink,
        name: &str,
        token: LaunchToken,
        place: Place,
        background: &Background,
        config: SinkConfig,
    ) -> Replica {
        let shared = Shared {
            sink: sink.clone(),
            name: name.to_owned(),
            token,
            place,
            background: background.clone(),
            config,
            renderings_max: Replica::renderings_max(),
            connections: Mutex::default(),
        };
        Replica { shared: Arc::new(shared) }
    }

    /// How many renderings in a row may stop without moving the chain.
    pub const fn renderings_max() -> u32 {
        10
    }

    /// Renders, steps the worker, and renders again whenever the sink stops in a way that another rendering mends.
    ///
    /// `render` builds the dataflow for a connection ([`crate::stash_sink`] among it) and returns the sink's token, and
    /// what is to be done between the worker's steps: to feed inputs, say. That is dropped when the rendering stops, and
    /// then all dataflows that `render` installed.
    ///
    /// To be called alike on every worker, from a thread that no runtime owns.
    pub fn keep<D: FnMut(&mut Worker)>(
        &self,
        worker: &mut Worker,
        mut render: impl FnMut(&mut Worker, &Connection) -> Result<(SinkToken, D), SinkError>,
    ) -> Result<Outcome, Arc<SinkError>> {
        let mut moved_nothing = 0;
        let mut wait = Duration::from_millis(20);
        for rendering in 0.. {
            let connection = match self.connection(rendering)? {
                Connected::Render(connection) => connection,
                Connected::Complete => return Ok(Outcome::Complete),
                Connected::Poisoned(error) => return Ok(Outcome::Poisoned(error)),
            };
            let stop = self.one(worker, &connection, &mut render)?;
            self.forget(rendering);
            let reason = match stop {
                Stop::Complete => return Ok(Outcome::Complete),
                Stop::Ended => return Ok(Outcome::Ended),
                Stop::GoingAway => return Ok(Outcome::GoingAway),
                Stop::Failed(reason) => {
                    let (sink, renderings) = (self.shared.sink.name().to_string(), 1);
                    return Err(Arc::new(SinkError::NoProgress { sink, renderings, reason }));
                }
                Stop::Reopen(reason) => reason,
            };
            tracing::info!(sink = %self.shared.sink.name(), rendering, reason, "rendered again");
            if connection.moved() {
                (moved_nothing, wait) = (0, Duration::from_millis(20));
                continue;
            }
            moved_nothing += 1;
            if moved_nothing >= self.shared.renderings_max {
                let (sink, renderings) = (self.shared.sink.name().to_string(), moved_nothing);
                return Err(Arc::new(SinkError::NoProgress { sink, renderings, reason }));
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_secs(2));
        }
        Ok(Outcome::Ended)
    }

    /// One rendering, until it stops.
    fn one<D: FnMut(&mut Worker)>(
        &self,
        worker: &mut Worker,
        connection: &Connection,
        render: &mut impl FnMut(&mut Worker, &Connection) -> Result<(SinkToken, D), SinkError>,
    ) -> Result<Stop, Arc<SinkError>> {
        let installed = worker.installed_dataflows();
        let (token, mut drive) = render(worker, connection)?;
        let stop = loop {
            drive(worker);
            worker.step_or_park(Some(Duration::from_millis(1)));
            if let SinkStatus::Stopped(stop) = token.status() {
                break stop;
            }
        };
        drop(drive);
        token.detach();
        for dataflow in worker.installed_dataflows() {
            if !installed.contains(&dataflow) {
                worker.drop_dataflow(dataflow);
            }
        }
        // The next opening would close it as well; this way nothing of this rendering is under way any more.
        self.shared.background.runtime().block_on(connection.idle());
        Ok(stop)
    }

    /// The connection of one rendering: opened by the first worker of the process that asks.
    fn connection(&self, rendering: u32) -> Result<Connected, Arc<SinkError>> {
        let slot = {
            let mut connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(connections.entry(rendering).or_default())
        };
        slot.get_or_init(|| self.open(rendering).map_err(Arc::new)).clone()
    }

    fn open(&self, rendering: u32) -> Result<Connected, SinkError> {
        let Shared { sink, name, token, place, background, config, .. } = &*self.shared;
        let token = match rendering {
            0 => *token,
            later => LaunchToken::from_uuid(Uuid::new_v5(&token.uuid(), &later.to_be_bytes())),
        };
        let workers = place.processes.saturating_mul(place.workers);
        let first = place.process.saturating_mul(place.workers);
        let launch = Launch::process(name, token, place.process, workers, first, place.workers)?;
        background.runtime().block_on(Connection::open(sink, launch, background, *config))
    }

    /// Earlier renderings are not asked for any more; the one that just stopped may be, by a slower worker.
    fn forget(&self, rendering: u32) {
        let mut connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|of, _| *of >= rendering);
    }
}
