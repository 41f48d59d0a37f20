//! Rendering again: a replica keeps its sinks rendered, alike on all of its workers.
//!
//! A sink cannot render itself anew. It says on every worker why it stopped; the loop here then drops the dataflows
//! that were rendered, opens connections with new grants, and renders again. Each rendering has a launch token of its
//! own, derived from the replica's, so that the processes of the replica agree without talking.
//!
//! - Only what every worker is told alike decides ([`Stop`]): no worker renders alone.
//! - The sinks of a replica are rendered together. Timely names dataflows by their order, and stops may reach workers in
//!   different orders: so when one has to be rendered again the others are asked to stop, and all are rendered again
//!   once all have. Nothing is written twice: what was accepted is covered from birth.
//! - Renderings that move nothing are not repeated without an end ([`RENDERINGS_MAX`]), and none is after a failure that
//!   another rendering does not mend ([`Stop::Failed`]).
//! - Before it renders again a worker has freed what it held: that is not beside what the next rendering holds.
//! - Where one process of several cannot open its connections or render, it panics: timely's other processes stop when
//!   a peer is lost, and the launcher starts all of them with a new token. One that is alone returns the error.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use stash::{DataflowError, ErrorKind, Launch, LaunchToken, Sink};
use timely::worker::Worker;
use uuid::Uuid;

use crate::{
    Background, Connected, Connection, HeldUse, SinkConfig, SinkError, SinkStatus, SinkToken, Stop,
    waits::Waits,
};

/// How many renderings in a row may stop without moving a chain.
pub const RENDERINGS_MAX: u32 = 10;
/// How long a worker without work sleeps before it looks around.
const PARKED: Duration = Duration::from_millis(1);
/// The first wait before an opening or a rendering is tried again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(2);

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

impl Place {
    /// The only process of a replica of so many workers.
    pub fn alone(workers: u32) -> Place {
        Place { process: 0, processes: 1, workers }
    }
}

/// One process of a replica that keeps sinks rendered. Clones share it: one for each worker.
#[derive(Clone, Debug)]
pub struct Replica {
    shared: Arc<Shared>,
}

/// What a process found when it opened the connections of a rendering, in the order of the sinks.
type Opened = Result<Vec<Connected>, Arc<SinkError>>;

#[derive(Debug)]
struct Shared {
    name: String,
    token: LaunchToken,
    place: Place,
    background: Background,
    config: SinkConfig,
    /// By rendering.
    connections: Mutex<BTreeMap<u32, Arc<OnceLock<Opened>>>>,
}

impl Replica {
    /// A process of the replica `name`. All processes share the token, which the launcher drew for this start
    /// ([`stash::Stash::draw_launch`]).
    pub fn new(name: &str, token: LaunchToken, place: Place, background: &Background) -> Replica {
        Replica::with_config(name, token, place, background, SinkConfig::default())
    }

    /// The same with another configuration of the sinks' operators.
    pub fn with_config(
        name: &str,
        token: LaunchToken,
        place: Place,
        background: &Background,
        config: SinkConfig,
    ) -> Replica {
        let (name, background, connections) = (name.to_owned(), background.clone(), Mutex::default());
        Replica { shared: Arc::new(Shared { name, token, place, background, config, connections }) }
    }

    /// Keeps one sink rendered until it ends: renders, steps the worker, and renders again whenever the sink stops in a
    /// way that another rendering mends.
    ///
    /// `render` builds the dataflow for a connection ([`crate::stash_sink`] among it) and returns the sink's token, and
    /// what is to be done between the worker's steps: to feed inputs, say. When the rendering stops that is dropped, and
    /// then all dataflows that `render` installed.
    ///
    /// To be called alike on every worker, from a thread that no runtime owns.
    pub fn keep<D: FnMut(&mut Worker)>(
        &self,
        worker: &mut Worker,
        sink: &Sink,
        mut render: impl FnMut(&mut Worker, &Connection) -> Result<(SinkToken, D), SinkError>,
    ) -> Result<Outcome, Arc<SinkError>> {
        let outcomes = self.keep_all(worker, std::slice::from_ref(sink), |worker, connected| {
            let (mut tokens, mut drives) = (Vec::new(), Vec::new());
            if let Some(Connected::Render(connection)) = connected.first() {
                let (token, drive) = render(worker, connection)?;
                tokens.push(token);
                drives.push(drive);
            }
            Ok((tokens, move |worker: &mut Worker| drives.iter_mut().for_each(|drive| drive(worker))))
        })?;
        Ok(outcomes.into_iter().next().unwrap_or(Outcome::Ended))
    }

    /// Keeps several sinks rendered until all have ended, and says how each did, in their order.
    ///
    /// `render` is given what opening each found, and returns the tokens of those it rendered: all that are to be
    /// rendered. Else as [`Replica::keep`].
    pub fn keep_all<D: FnMut(&mut Worker)>(
        &self,
        worker: &mut Worker,
        sinks: &[Sink],
        mut render: impl FnMut(&mut Worker, &[Connected]) -> Result<(Vec<SinkToken>, D), SinkError>,
    ) -> Result<Vec<Outcome>, Arc<SinkError>> {
        let (mut moved_nothing, mut waits) = (0, Waits::new(FIRST_WAIT, LAST_WAIT));
        let mut rendering = 0;
        loop {
            let connected = self.connected(rendering, sinks).map_err(|error| self.alone(error))?;
            let stops = self.one(worker, &connected, &mut render).map_err(|error| self.alone(error))?;
            self.forget(rendering);
            let Some((sink, reason)) = stops.iter().find_map(again) else {
                return Ok(outcomes(&connected, &stops));
            };
            if let Some(error) = stops.iter().find_map(failure) {
                return Err(Arc::new(error));
            }
            tracing::info!(sink, rendering, reason, "rendered again");
            rendering += 1;
            if stops.iter().any(|(connection, _)| connection.moved()) {
                (moved_nothing, waits) = (0, Waits::new(FIRST_WAIT, LAST_WAIT));
                continue;
            }
            moved_nothing += 1;
            if moved_nothing >= RENDERINGS_MAX {
                let (sink, reason) = (sink.to_owned(), reason.to_owned());
                return Err(Arc::new(SinkError::NoProgress { sink, renderings: moved_nothing, reason }));
            }
            self.shared.background.runtime().block_on(waits.wait());
        }
    }

    /// An error that only this process has. The others of its replica would wait for it: so where there are others it
    /// panics, which ends them as well.
    fn alone(&self, error: Arc<SinkError>) -> Arc<SinkError> {
        let Place { process, processes, .. } = self.shared.place;
        assert!(processes == 1, "process {process} of replica {} cannot go on: {error}", self.shared.name);
        error
    }

    /// One rendering, until all of its sinks have stopped.
    fn one<D: FnMut(&mut Worker)>(
        &self,
        worker: &mut Worker,
        connected: &[Connected],
        render: &mut impl FnMut(&mut Worker, &[Connected]) -> Result<(Vec<SinkToken>, D), SinkError>,
    ) -> Result<Vec<(Connection, Stop)>, Arc<SinkError>> {
        let installed = worker.installed_dataflows();
        let (tokens, mut drive) = render(worker, connected)?;
        let stops = loop {
            let statuses = tokens.iter().map(|token| (token, token.status()));
            let stopped = statuses.filter_map(|(token, status)| match status {
                SinkStatus::Stopped(stop) => Some((token.connection().clone(), stop)),
                SinkStatus::Running => None,
            });
            let stopped = stopped.collect::<Vec<_>>();
            if stopped.len() == tokens.len() {
                // What was held is freed by the worker that made it, and before more is held: not beside it.
                let freed = |held: HeldUse| held.freeing == 0 && held.scanning == 0;
                if tokens.iter().all(|token| freed(token.held())) {
                    break stopped;
                }
                worker.step_or_park(Some(PARKED));
                continue;
            }
            if stopped.iter().any(|stop| again(stop).is_some()) {
                tokens.iter().for_each(SinkToken::stop);
            }
            drive(worker);
            worker.step_or_park(Some(PARKED));
        };
        drop(drive);
        tokens.into_iter().for_each(SinkToken::detach);
        for dataflow in worker.installed_dataflows() {
            if !installed.contains(&dataflow) {
                worker.drop_dataflow(dataflow);
            }
        }
        // The next openings would close them as well; this way nothing of this rendering is under way any more.
        for (connection, _) in &stops {
            self.shared.background.runtime().block_on(connection.idle());
        }
        Ok(stops)
    }

    /// The connections of one rendering: opened by the first worker of the process that asks.
    fn connected(&self, rendering: u32, sinks: &[Sink]) -> Opened {
        let slot = {
            let mut connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(connections.entry(rendering).or_default())
        };
        let open_all = || sinks.iter().map(|sink| self.open(rendering, sink)).collect::<Result<_, _>>();
        slot.get_or_init(|| open_all().map_err(Arc::new)).clone()
    }

    fn open(&self, rendering: u32, sink: &Sink) -> Result<Connected, SinkError> {
        let Shared { name, token, place, background, config, .. } = &*self.shared;
        let token = match rendering {
            0 => *token,
            later => LaunchToken::from_uuid(Uuid::new_v5(&token.uuid(), &later.to_be_bytes())),
        };
        let workers = place.processes.saturating_mul(place.workers);
        let first = place.process.saturating_mul(place.workers);
        let launch = Launch::process(name, token, place.process, workers, first, place.workers)?;
        let mut waits = Waits::new(FIRST_WAIT, LAST_WAIT);
        loop {
            let open = Connection::open(sink, launch.clone(), background, *config);
            match background.runtime().block_on(open) {
                Err(SinkError::Stash(error)) if error.kind() == ErrorKind::Absent => {
                    return Ok(Connected::Dropped);
                }
                // One process that fails for a moment would otherwise be the end of all.
                Err(SinkError::Stash(error)) if error.kind() == ErrorKind::Retry && waits.go_on() => {
                    tracing::info!(sink = %sink.name(), %error, "opened again");
                    background.runtime().block_on(waits.wait());
                }
                opened => return opened,
            }
        }
    }

    /// Earlier renderings are not asked for any more; the one that just stopped may be, by a slower worker.
    fn forget(&self, rendering: u32) {
        let mut connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|of, _| *of >= rendering);
    }
}

/// Whether a sink has to be rendered again, and why.
fn again((connection, stop): &(Connection, Stop)) -> Option<(&str, &str)> {
    match stop {
        Stop::Reopen(reason) | Stop::Failed(reason) => Some((connection.sink().name().as_str(), reason)),
        Stop::Complete | Stop::Ended | Stop::Poisoned { .. } | Stop::GoingAway => None,
    }
}

/// What no other rendering mends.
fn failure((connection, stop): &(Connection, Stop)) -> Option<SinkError> {
    let Stop::Failed(reason) = stop else { return None };
    Some(SinkError::Failed { sink: connection.sink().name().to_string(), reason: reason.clone() })
}

/// How each sink ended, where none is to be rendered again.
fn outcomes(connected: &[Connected], stops: &[(Connection, Stop)]) -> Vec<Outcome> {
    let of = |connected: &Connected| match connected {
        Connected::Complete => Outcome::Complete,
        Connected::Poisoned(error) => Outcome::Poisoned(error.clone()),
        Connected::Dropped => Outcome::GoingAway,
        Connected::Render(connection) => {
            let stop = stops.iter().find(|(of, _)| of.incarnation() == connection.incarnation());
            match stop {
                Some((_, Stop::Complete)) => Outcome::Complete,
                Some((_, Stop::GoingAway)) => Outcome::GoingAway,
                Some((_, Stop::Poisoned { at, message })) => {
                    Outcome::Poisoned(DataflowError { at: *at, message: message.clone() })
                }
                _ => Outcome::Ended,
            }
        }
    };
    connected.iter().map(of).collect()
}
