//! The sink: three operators that put a collection into a stash.
//!
//! ```text
//! updates ──┬───────────────────────► write ──► merge      write: on every worker (`crate::write`)
//! errors  ──┼──┬────────────────────►   ▲         │        merge: on the minting worker
//!           └──┴─► mint ── broadcast ───┘         ▼        mint:  on the minting worker
//!                   ▲                          minder      minder: a task off the workers (`crate::minder`)
//!                   └──────────────────────────────┘
//! ```
//!
//! The graph is the same on every worker; which one mints is part of the connection. Messages between the operators
//! travel at time 0, under a capability that the minting operator keeps until the rendering stops: so a dataflow whose
//! inputs have ended is complete only when all it gave was resolved, and progress costs nothing meanwhile.
//!
//! - The frontier that is minted from is the meet of the updates' and the errors' frontiers, as they are *after* the
//!   updates were sealed into batches.
//! - Merging takes in whatever is there at each activation, so that nothing waits behind a batch that is offered.
//! - Errors are consolidated first, by time and message: those whose time is not complete are in an arrangement of their
//!   own, as any dataflow's. What the writer and the minder keep of them is bounded (`crate::errors`).
//! - When a token is dropped, or the minder stops, every worker is told once, and lets go.

use std::{
    borrow::Borrow,
    fmt::{Debug, Display},
    hash::{Hash, Hasher},
    marker::PhantomData,
    sync::{Arc, PoisonError, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use differential_dataflow::{
    AsCollection, ExchangeData, VecCollection,
    operators::arrange::{Arranged, arrangement::arrange_core},
    trace::{
        BatchCursor, Cursor, Navigable, Span, TraceReader,
        implementations::{ord_neu::OrdKeyBatcher, spine_fueled::SpineBatch},
    },
};
use stash::Frontier;
use timely::{
    dataflow::{
        Scope, Stream,
        channels::pact::{Exchange, Pipeline},
        operators::{
            Capability,
            generic::{OutputBuilder, builder_rc::OperatorBuilder, operator::empty},
            vec::{Broadcast, Map},
        },
    },
    progress::frontier::MutableAntichain,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    Connection, SinkError, SinkToken, Stop,
    batch::{KeyBatch, KeySpine, Multiplicity},
    message::{Control, Failure, Report, ToChain, frontier_of, minted},
    minder::{Minder, ToWorker},
    remains::{Keys, Remains},
    rows::{Encode, OfType, Row, RowBuilder, check_encoded, check_schema},
    scan::{NoRow, Projection, RowSink},
    token::WorkerState,
    write::{Scans, Writer},
};

/// Puts a collection into a stash: every update of `collection`, with its own time and multiplicity, until an update of
/// `errors` says that the dataflow's result is undefined from its time on.
///
/// To be called alike on every worker. Updates stay on the worker that has them; equal rows of several workers are
/// summed by whoever reads. Times before the connection's as-of are part of the accumulation at it.
///
/// Errors are summed by time and message over all workers, and so arranged until their time is complete: that memory is
/// the dataflow's. Of what is left then the first thousand are kept until they are written; should all of these be taken
/// back by rows that do not fit on another worker, the sink stops rather than guess.
pub fn stash_sink<'scope, R, D, E, F>(
    collection: VecCollection<'scope, u64, R, D>,
    errors: VecCollection<'scope, u64, E, F>,
    connection: &Connection,
) -> Result<SinkToken, SinkError>
where
    R: Row + ExchangeData + Send + Sync,
    D: Multiplicity + ExchangeData,
    E: ExchangeData + Display,
    F: Multiplicity + ExchangeData,
{
    stash_sink_with(collection, errors, OfType, connection)
}

/// The same for rows whose columns are known at run time only: [`crate::rows::ArrowRows`], say.
pub fn stash_sink_with<'scope, R, D, E, F, C>(
    collection: VecCollection<'scope, u64, R, D>,
    errors: VecCollection<'scope, u64, E, F>,
    encode: C,
    connection: &Connection,
) -> Result<SinkToken, SinkError>
where
    R: ExchangeData + Send + Sync,
    D: Multiplicity + ExchangeData,
    E: ExchangeData + Display,
    F: Multiplicity + ExchangeData,
    C: Encode<R>,
{
    check_encoded(&encode, connection.sink().schema())?;
    let keyed = collection.map(|row| (row, ()));
    // SUBTLE: the trace itself is dropped here, and with it what it would keep for readers; the stream's batches go on.
    let stream = arrange_core::<_, _, OrdKeyBatcher<R, u64, D>, KeySpine<R, D>>(
        keyed.inner,
        Pipeline,
        "StashArrange",
        OrdKeyBatcher::new,
    )
    .stream;
    render(stream, errors, KeyRows { encode, row: PhantomData::<fn() -> R> }, connection)
}

/// The errors of a dataflow that makes none.
pub fn no_errors<'scope>(scope: Scope<'scope, u64>) -> VecCollection<'scope, u64, String, i64> {
    empty(scope).as_collection()
}

/// Puts an arrangement into a stash, through a projection of its keys and values.
///
/// The arrangement's batches are shared, not copied; they must be ones that can be sent between threads, as
/// [`crate::batch`]'s are. `projection` makes the row of a position; where it fails, the position's updates become
/// updates of the error collection, beside `errors`. A batch that the sink is the last to have is dropped in one piece, on
/// another thread.
pub fn stash_arranged<'scope, Tr, R, P, E, F>(
    arranged: Arranged<'scope, Tr>,
    errors: VecCollection<'scope, u64, E, F>,
    projection: P,
    connection: &Connection,
) -> Result<SinkToken, SinkError>
where
    Tr: TraceReader<Time = u64>,
    Tr::Batch: SpineBatch<Time = u64, Merger: Send> + Navigable + Send,
    BatchCursor<Tr>: Cursor<Time = u64, Diff: Multiplicity> + Send + 'static,
    R: Row + Debug,
    P: for<'a, 'b> Fn(
            <BatchCursor<Tr> as Cursor>::Key<'a>,
            <BatchCursor<Tr> as Cursor>::Val<'b>,
        ) -> Result<R, String>
        + Clone
        + Send
        + 'static,
    E: ExchangeData + Display,
    F: Multiplicity + ExchangeData,
{
    check_schema::<R>(connection.sink().schema())?;
    let stream = arranged.stream;
    render(stream, errors, Projected { projection, row: PhantomData::<fn() -> R> }, connection)
}

/// Renders the three operators.
fn render<'scope, B, E, F, S>(
    updates: Stream<'scope, u64, Vec<Span<u64, B>>>,
    errors: VecCollection<'scope, u64, E, F>,
    scans: S,
    connection: &Connection,
) -> Result<SinkToken, SinkError>
where
    B: SpineBatch<Time = u64, Merger: Send> + Navigable + Clone + Send + 'static,
    B::Cursor: Cursor<Time = u64> + Send + 'static,
    <B::Cursor as Cursor>::Diff: Multiplicity,
    E: ExchangeData + Display,
    F: Multiplicity + ExchangeData,
    S: Scans<B::Cursor>,
{
    let scope = updates.scope();
    let worker = connection.check_scope(scope.index(), scope.peers())?;
    let shares = connection.writer(worker)?;
    let mints = scope.index() == connection.minting_worker();
    let chain = if mints { Some(connection.chain()?) } else { None };
    let state = Arc::new(WorkerState::default());
    // Equal errors meet on one worker, so that one which is taken back counts for nothing. Consolidated, for the writer
    // keeps a few of them only: however many come and go at one time, it sees what is left.
    let as_of = connection.as_of();
    let errors = errors.inner.map(move |(error, time, diff)| (error.to_string(), time.max(as_of), diff));
    let errors = errors.as_collection().consolidate().inner;

    let (inbox, control) = mint(&scope, updates.clone(), errors.clone(), connection, chain);
    let (token, reports) =
        write(&scope, updates, errors, control.broadcast(), connection, shares, scans, &state);
    merge(&scope, reports, connection, inbox);
    Ok(token)
}

/// How often a writer looks whether it is to be rendered again, where nothing else wakes it.
const LOOKING: Duration = Duration::from_secs(1);

/// How the mint and merge operators of the minting worker reach the minder.
type Inbox = Option<UnboundedSender<ToChain>>;

/// Tells the minder how far the inputs are, and all workers what it answers.
fn mint<'scope, B, F>(
    scope: &Scope<'scope, u64>,
    updates: Stream<'scope, u64, Vec<Span<u64, B>>>,
    errors: Stream<'scope, u64, Vec<(String, u64, F)>>,
    connection: &Connection,
    chain: Option<stash::Chain>,
) -> (Inbox, Stream<'scope, u64, Vec<Control>>)
where
    B: Clone + 'static,
    F: Clone + 'static,
{
    let mut builder = OperatorBuilder::new("StashMint".to_owned(), *scope);
    let info = builder.operator_info();
    let mut updates = builder.new_input(updates, Pipeline);
    let mut errors = builder.new_input(errors, Pipeline);
    let (output, control) = builder.new_output();
    let mut output =
        OutputBuilder::<_, timely::container::CapacityContainerBuilder<Vec<Control>>>::from(output);

    let (inbox, minder) = unbounded_channel();
    let (answers, answered) = mpsc::channel();
    let inbox = chain.map(|chain| {
        let activator = scope.worker().sync_activator_for(info.address.to_vec());
        let to_worker = ToWorker { sender: Some(answers), activator };
        connection.spawn(Minder::new(connection.clone(), chain, minder, to_worker).run());
        inbox
    });
    let (to_minder, connection) = (inbox.clone(), connection.clone());

    builder.build(move |mut capabilities| {
        // Held until the rendering stops; only where something is minted.
        let mut capability = capabilities.pop().filter(|_| to_minder.is_some());
        let mut told = Frontier::MIN;
        move |frontiers| {
            updates.for_each(|_, _| {});
            errors.for_each(|_, _| {});
            let (Some(held), Some(to_minder)) = (&capability, &to_minder) else { return };
            let frontier = meet(frontiers);
            if frontier > told {
                let news = connection.says(told, frontier).map_or(ToChain::Ended, ToChain::Frontier);
                told = frontier;
                // Refused once the minder stopped: its last word is in the queue.
                let _ = to_minder.send(news);
            }
            let mut stopped = false;
            let mut output = output.activate();
            let mut session = output.session(held);
            while !stopped {
                let control = match answered.try_recv() {
                    Ok(control) => control,
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        let reason = "the task that minds the chain has died".to_owned();
                        Control::Stop { stop: Stop::Reopen(reason), moved: false }
                    }
                };
                stopped = matches!(control, Control::Stop { .. });
                session.give(control);
            }
            drop(session);
            if stopped {
                capability = None;
            }
        }
    });
    (inbox, control)
}

/// Each worker's writer, between its inputs and its reports.
#[expect(clippy::too_many_arguments, reason = "what a worker has of a sink")]
fn write<'scope, B, F, S>(
    scope: &Scope<'scope, u64>,
    updates: Stream<'scope, u64, Vec<Span<u64, B>>>,
    errors: Stream<'scope, u64, Vec<(String, u64, F)>>,
    control: Stream<'scope, u64, Vec<Control>>,
    connection: &Connection,
    shares: stash::ShareWriter,
    scans: S,
    state: &Arc<WorkerState>,
) -> (SinkToken, Stream<'scope, u64, Vec<Report>>)
where
    B: SpineBatch<Time = u64, Merger: Send> + Navigable + Clone + Send + 'static,
    B::Cursor: Cursor<Time = u64> + Send + 'static,
    <B::Cursor as Cursor>::Diff: Multiplicity,
    F: Multiplicity + ExchangeData,
    S: Scans<B::Cursor>,
{
    let mut builder = OperatorBuilder::new("StashWrite".to_owned(), *scope);
    let info = builder.operator_info();
    let mut updates = builder.new_input(updates, Pipeline);
    // Consolidating has sent equal ones to one worker.
    let mut errors = builder.new_input(errors, Pipeline);
    let mut control = builder.new_input(control, Pipeline);
    let (output, reports) = builder.new_output();
    let mut output =
        OutputBuilder::<_, timely::container::CapacityContainerBuilder<Vec<Report>>>::from(output);

    let activator = scope.activator_for(std::rc::Rc::clone(&info.address));
    let again = scope.worker().sync_activator_for(info.address.to_vec());
    let token = SinkToken::new(connection, state, scope.activator_for(std::rc::Rc::clone(&info.address)));
    let mut writer = Writer::new(connection, shares, scans, again, state);
    let mints = scope.index() == connection.minting_worker();
    let (connection, state) = (connection.clone(), Arc::clone(state));

    builder.build(move |_| {
        // Kept while this worker may still have to report.
        let mut capability: Option<Capability<u64>> = None;
        let mut stopped = false;
        let mut said_dropped = false;
        let abandons = Abandons { connection: connection.clone(), state: Arc::clone(&state), mints };
        // One timer at a time, else each activation would make another one for ever.
        let mut looks: Option<Instant> = None;
        move |frontiers| {
            let _ = &abandons;
            updates.for_each(|_, spans| {
                for span in spans.drain(..) {
                    if stopped { writer.discard(span) } else { writer.hold(span) }
                }
            });
            errors.for_each(|_, errors| {
                for (message, time, diff) in errors.drain(..) {
                    if !stopped {
                        writer.hold_error(message, time, diff.as_i64());
                    }
                }
            });
            control.for_each(|time, said| {
                if capability.is_none() {
                    capability = time.retain_least(0);
                }
                for control in said.drain(..) {
                    match control {
                        Control::Mint { lower, upper, floor } => {
                            if let Some(minted) = minted(lower, upper, floor) {
                                writer.minted(minted);
                            }
                        }
                        Control::Chain { upper, hold } => {
                            connection.advance(frontier_of(upper), frontier_of(hold));
                        }
                        Control::Stop { stop, moved } => {
                            connection.stop_with(&stop, moved);
                            stopped = true;
                        }
                    }
                }
            });
            stopped |= connection.is_unheard();
            if stopped && !state.stopped.load(Ordering::Acquire) {
                // First: who sees that it has stopped also sees what is still to be freed.
                writer.stop();
                state.stopped.store(true, Ordering::Release);
                activator.activate();
                capability = None;
                return;
            }
            if stopped {
                if writer.free_stopped() {
                    activator.activate();
                }
                return;
            }
            if let Some(held) = &capability {
                let mut output = output.activate();
                let mut session = output.session(held);
                if state.dropped.load(Ordering::Acquire) {
                    if !said_dropped {
                        session.give(Report::TokenDropped);
                        said_dropped = true;
                    }
                } else {
                    if let Some(reason) = state.reopen.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        session.give(Report::Failed(Failure::Passing(reason)));
                    }
                    writer.work(meet(&frontiers[..2]), |report| session.give(report));
                }
                if looks.is_none_or(|at| Instant::now() >= at) {
                    looks = Some(Instant::now() + LOOKING);
                    activator.activate_after(LOOKING);
                }
            }
            if writer.merge() {
                activator.activate();
            }
        }
    });
    (token, reports)
}

/// Says, when a worker's dataflow is dropped before the sink has stopped, what the worker cannot say any more.
struct Abandons {
    connection: Connection,
    state: Arc<WorkerState>,
    /// Whether this is the minting worker.
    mints: bool,
}

impl Drop for Abandons {
    fn drop(&mut self) {
        if !self.state.stopped.load(Ordering::Acquire) {
            // SUBTLE: also where the stop is known already. The minder has then put its last word into a queue that nobody
            // reads any more, and took it for told.
            if self.mints {
                self.connection.goes_unheard();
            }
            self.connection.abandon(match self.state.dropped.load(Ordering::Acquire) {
                true => Stop::GoingAway,
                false => Stop::Reopen("a worker dropped its dataflow before the sink had stopped".to_owned()),
            });
        }
    }
}

/// Hands what workers report to the minder.
fn merge<'scope>(
    scope: &Scope<'scope, u64>,
    reports: Stream<'scope, u64, Vec<Report>>,
    connection: &Connection,
    inbox: Inbox,
) {
    let mut builder = OperatorBuilder::new("StashMerge".to_owned(), *scope);
    let merging = u64::try_from(connection.minting_worker()).unwrap_or_default();
    let mut reports = builder.new_input(reports, Exchange::new(move |_: &Report| merging));
    builder.build(move |_| {
        move |_| {
            reports.for_each(|_, reports| {
                for report in reports.drain(..) {
                    if let Some(inbox) = &inbox {
                        // Refused once the minder stopped: what the share names is in its process's ledger.
                        let _ = inbox.send(ToChain::Report(report));
                    }
                }
            });
        }
    });
}

/// The least of frontiers: below it nothing comes any more at any of them.
fn meet(frontiers: &[MutableAntichain<u64>]) -> Frontier {
    let of_one = |frontier: &MutableAntichain<u64>| {
        frontier.frontier().first().map_or(Frontier::EMPTY, |time| Frontier::at(*time))
    };
    frontiers.iter().map(of_one).min().unwrap_or(Frontier::EMPTY)
}

/// Rows that stand in the batches as keys.
struct KeyRows<R, E> {
    encode: E,
    row: PhantomData<fn() -> R>,
}

/// A row's builder as a scan sees it.
pub(crate) struct Rows<R, B> {
    builder: B,
    row: PhantomData<fn() -> R>,
}

impl<R: 'static, B: RowBuilder<R>> Rows<R, B> {
    fn new<E: Encode<R, Builder = B>>(encode: &E) -> Result<Rows<R, B>, String> {
        let builder = encode.builder().map_err(|error| error.to_string())?;
        Ok(Rows { builder, row: PhantomData })
    }

    /// SUBTLE: what is wrong with a row is said with the row. Two rows that do not fit are two errors; one that comes while
    /// the other goes must not pass for an error that was taken back.
    fn append(&mut self, row: &R) -> Result<(), NoRow>
    where
        R: Debug,
    {
        self.builder.append(row).map_err(|error| match error.is_of_one_row() {
            true => NoRow::Error(format!("{error}; row {}", shown(row))),
            false => NoRow::Columns(error.to_string()),
        })
    }
}

/// Bytes of a row that are shown in an error.
const SHOWN_MAX: usize = 256;

/// A row in an error: no two rows look alike that do not to [`Debug`].
fn shown(row: &impl Debug) -> String {
    let mut text = format!("{row:?}");
    if text.len() > SHOWN_MAX {
        let mut hasher = std::hash::DefaultHasher::new();
        text.hash(&mut hasher);
        text.truncate(text.floor_char_boundary(SHOWN_MAX));
        text.push_str(&format!("… #{:016x}", hasher.finish()));
    }
    text
}

impl<R: 'static, B: RowBuilder<R>> RowSink for Rows<R, B> {
    fn bytes(&self) -> usize {
        self.builder.bytes()
    }

    fn finish(&mut self) -> Result<Vec<arrow::array::ArrayRef>, String> {
        self.builder.finish().map_err(|error| error.to_string())
    }
}

impl<C, R, D, E> Scans<C> for KeyRows<R, E>
where
    R: Ord + Clone + Debug + Send + Sync + 'static,
    D: Multiplicity,
    E: Encode<R>,
    C: Cursor<Storage = KeyBatch<R, D>> + 'static,
    for<'a> C::Key<'a>: Borrow<R>,
{
    type Projection = KeyRows<R, E>;

    fn scan(&self) -> Result<(KeyRows<R, E>, Rows<R, E::Builder>), String> {
        let encode = self.encode.clone();
        let rows = Rows::new(&encode)?;
        Ok((KeyRows { encode, row: PhantomData }, rows))
    }

    fn remains(&self, batch: KeyBatch<R, D>) -> Result<Option<Box<dyn Remains>>, KeyBatch<R, D>> {
        let keys = |batch| Box::new(Keys::new(batch, self.encode.clone())) as Box<dyn Remains>;
        Ok(batch.into_inner().map(keys))
    }
}

impl<C, R, E> Projection<C> for KeyRows<R, E>
where
    R: Debug + 'static,
    E: Encode<R>,
    C: Cursor + 'static,
    for<'a> C::Key<'a>: Borrow<R>,
{
    type Rows = Rows<R, E::Builder>;

    fn project(&mut self, key: C::Key<'_>, _: C::Val<'_>, rows: &mut Self::Rows) -> Result<(), NoRow> {
        rows.append(key.borrow())
    }

    const POINTS: bool = E::POINTS;

    #[inline]
    fn pieces(&self, key: C::Key<'_>, _: C::Val<'_>, look: &mut impl FnMut(&[u8])) {
        self.encode.pieces(key.borrow(), look);
    }
}

/// Rows that a function makes of keys and values.
struct Projected<P, R> {
    projection: P,
    row: PhantomData<fn() -> R>,
}

impl<C, R, P> Scans<C> for Projected<P, R>
where
    R: Row + Debug,
    C: Cursor + 'static,
    P: for<'a, 'b> Fn(C::Key<'a>, C::Val<'b>) -> Result<R, String> + Clone + Send + 'static,
{
    type Projection = Projected<P, R>;

    fn scan(&self) -> Result<(Projected<P, R>, Rows<R, R::Builder>), String> {
        Ok((Projected { projection: self.projection.clone(), row: PhantomData }, Rows::new(&OfType)?))
    }
}

impl<C, R, P> Projection<C> for Projected<P, R>
where
    R: Row + Debug,
    C: Cursor + 'static,
    P: for<'a, 'b> Fn(C::Key<'a>, C::Val<'b>) -> Result<R, String> + Clone + Send + 'static,
{
    type Rows = Rows<R, R::Builder>;

    fn project(&mut self, key: C::Key<'_>, val: C::Val<'_>, rows: &mut Self::Rows) -> Result<(), NoRow> {
        rows.append(&(self.projection)(key, val).map_err(NoRow::Error)?)
    }
}

#[cfg(test)]
mod late;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod unheard;
