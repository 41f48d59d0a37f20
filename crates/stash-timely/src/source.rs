//! Sources: the chain of a sink becomes a differential collection.
//!
//! One worker reads, picked by the sink's id alike in all processes; what it reads is exchanged by whatever
//! arranges it. A task of the runtime follows the chain and hands Arrow batches over, within a bound of bytes;
//! the operator turns them into rows and gives out a small portion an activation, so that the worker keeps
//! turning. All other workers' operators are done at once.
//!
//! Where a source starts is a choice of meaning ([`Start`]): a *snapshot* is the whole collection as it was at
//! some time and every change after it, and needs the chain from its beginning; *changes since* are updates
//! alone, for dataflows that keep no state.
//!
//! Invariants:
//! - The capability stands at the start, then at the upper of the last delivery given out entirely; within a
//!   delivery at its lower. No update is given out below it.
//! - Every update keeps its time and sign, except those of a snapshot below its as-of, which stand at the as-of.
//! - **Complete is said.** The capability is dropped when the chain says that it is complete, and never else:
//!   not when reading failed, the chain is poisoned, the sink dropped, the consumer fenced, the runtime shut
//!   down, or the token dropped. An empty frontier would tell a sealing sink downstream that its input ended
//!   there. So a dataflow whose source ended early does not end by itself: who sees it
//!   ([`SourceToken::status`], told on every worker) drops the dataflow, with `worker.drop_dataflow`.
//! - Only what was given out entirely is acknowledged, and no more than what the holds, or the token, allow.
//!
//! What this does not do: read one chain by several workers; start anew after an error (drop the dataflow and
//! render it again: the stash's own bounded retries are behind us then); notice that another session of the
//! consumer took over before it acknowledges.

mod acknowledge;
mod emit;
mod options;
mod read;
mod token;
mod uppers;

use std::sync::Arc;

use differential_dataflow::{AsCollection, Data, VecCollection};
use stash::SinkId;
use timely::dataflow::{
    Scope,
    channels::pact::Pipeline,
    operators::{
        generic::{Operator, builder_rc::OperatorBuilder},
        vec::Broadcast,
    },
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::rows::{Row, check_schema, row_schema};

pub use options::{Acknowledge, SourceOptions, Start};
pub use token::{SourceError, SourceStatus, SourceToken};

use emit::{Emitter, Given, Told};
use read::{Outlet, Reading};

/// The worker of `peers` that reads a sink's chain: the same on every worker of every process, and the one that
/// would mint for the sink ([`stash::Incarnation::minting_worker`]).
pub fn reading_worker(sink: SinkId, peers: usize) -> usize {
    let (high, low) = sink.uuid().as_u64_pair();
    let peers = u64::try_from(peers.max(1)).unwrap_or(u64::MAX);
    usize::try_from((high ^ low) % peers).unwrap_or(0)
}

/// The rows of a sink as a collection of this dataflow, and the token that says how far it is.
///
/// Called on every worker, with the same options. Reading begins at once, and goes on until the token or the
/// dataflow is dropped; of the tokens that of the reading worker counts. What is wrong with the options or the
/// rows' type is told by the token as well, and leaves a collection that stays empty and open.
///
/// ```
/// use stash::{Launch, SinkSpec, Stash, Frontier};
/// use stash_timely::{rows::{Row, RowBuilder}, source::{SourceOptions, Start, stash_source}};
/// use timely::dataflow::operators::{Capture, capture::Extract};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// let sink = runtime.block_on(async {
///     let stash = Stash::open("memory://").await?;
///     let spec = SinkSpec::new("words", String::schema().expect("one column"))?.up_to(2);
///     let sink = stash.declare_sink(spec).await?;
///     let incarnation = sink.open_incarnation(Launch::single("a", 1)?).await?.render()?;
///     let (mut chain, writer) = (incarnation.chain()?, incarnation.worker(0)?);
///     let mut builder = String::builder().expect("one column");
///     builder.append(&"hello".to_owned()).expect("it fits");
///     let mut updates = Some(sink.updates(builder.finish().expect("one column"), vec![0], vec![1])?);
///     while let Some(minted) = chain.mint(Frontier::EMPTY)?.minted() {
///         chain.report(writer.write(minted, updates.take()).await?).await?;
///     }
///     Ok::<_, stash::Error>(sink)
/// })?;
/// let options = SourceOptions::new(sink, runtime.handle().clone(), Start::Snapshot { as_of: 1 });
/// let captured = timely::execute_directly(move |worker| {
///     let (_token, captured) = worker.dataflow(|scope| {
///         let (words, token) = stash_source::<String>(scope, "words", options);
///         (token, words.inner.capture())
///     });
///     while worker.step_or_park(None) {}
///     captured
/// });
/// assert_eq!(captured.extract()[0].1, [("hello".to_owned(), 1, 1)]);
/// # Ok(()) }
/// ```
pub fn stash_source<'scope, R: Row + Data>(
    scope: Scope<'scope, u64>,
    name: &str,
    options: SourceOptions,
) -> (VecCollection<'scope, u64, R, i64>, SourceToken) {
    let reader = reading_worker(options.sink.id(), scope.peers());
    let reads = reader == scope.index();
    let (mut token, shared) = SourceToken::new(&options, (!reads).then_some(reader));
    let mut builder = OperatorBuilder::new(name.to_owned(), scope);
    let address = builder.operator_info().address;
    let (updates, stream) = builder.new_output();
    let (ends, told) = builder.new_output();
    let (mut updates, mut ends) = (Given::<R>::from(updates), Told::from(ends));
    builder.build(|capabilities| {
        let mut emitter = reads.then(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let mut reading = JoinSet::new();
            match prepare::<R>(&options) {
                Ok(prepared) => {
                    let waker = scope.worker().sync_activator_for(address.to_vec());
                    token.begin(&mut reading, prepared, Outlet::new(sender, waker, options.buffer_bytes));
                }
                Err(error) => shared.fail(error),
            }
            let activator = scope.activator_for(address);
            // An end that came before the first turn is told by it.
            activator.activate();
            Emitter::<R>::new(
                receiver,
                capabilities,
                activator,
                Arc::clone(&shared),
                reading,
                &options,
                reader,
            )
        });
        move |_frontiers| {
            if let Some(emitter) = &mut emitter {
                emitter.activate(&mut updates.activate(), &mut ends.activate());
            }
        }
    });
    told.broadcast().sink(Pipeline, "StashSourceEnd", move |(input, _)| {
        input.for_each(|_, ends| ends.drain(..).for_each(|end| shared.told(end)));
    });
    (stream.as_collection(), token)
}

/// What the task reads, if the options and the rows' type fit the sink.
fn prepare<R: Row>(options: &SourceOptions) -> Result<Reading, SourceError> {
    let SourceOptions { sink, start, consumer, acknowledge, .. } = options;
    check_schema::<R>(sink.schema())?;
    let first = sink.row().spec.as_of;
    match start {
        Start::Snapshot { as_of } if *as_of < first || *as_of == u64::MAX => {
            return Err(SourceError::usage(format!(
                "sink {}: there is no snapshot as of {as_of}; its chain begins at {first}, and {} is no time",
                sink.name(),
                u64::MAX
            )));
        }
        Start::Snapshot { .. } | Start::ChangesSince(_) => {}
    }
    match acknowledge {
        Acknowledge::Holds(holds) if holds.is_empty() => Err(SourceError::usage(format!(
            "sink {}: a source without a hold would acknowledge everything at once; say ByToken or Never",
            sink.name()
        ))),
        Acknowledge::Never | Acknowledge::ByToken | Acknowledge::Holds(_) => Ok(Reading {
            sink: sink.clone(),
            schema: row_schema::<R>()?,
            start: *start,
            consumer: consumer.clone(),
        }),
    }
}

#[cfg(test)]
mod support;
#[cfg(test)]
mod tests;
