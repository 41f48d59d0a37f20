//! The operator of the worker that reads: batches in, a portion of updates out, an activation at a time.

use std::{marker::PhantomData, sync::Arc};

use differential_dataflow::Data;
use timely::{
    container::CapacityContainerBuilder,
    dataflow::operators::{
        Capability,
        generic::{OutputBuilder, OutputBuilderSession},
    },
    scheduling::Activator,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, error::TryRecvError},
    task::JoinSet,
};

use super::{
    SourceError, SourceOptions, Start,
    read::{Message, Updates},
    token::{End, Shared},
};
use crate::rows::{Row, RowError};

/// Where updates are given out: each with its time and sign.
pub(super) type Given<R> = OutputBuilder<u64, CapacityContainerBuilder<Vec<(R, u64, i64)>>>;
type Giving<'a, R> = OutputBuilderSession<'a, u64, CapacityContainerBuilder<Vec<(R, u64, i64)>>>;
/// Where the end is told to all workers.
pub(super) type Told = OutputBuilder<u64, CapacityContainerBuilder<Vec<End>>>;
type Telling<'a> = OutputBuilderSession<'a, u64, CapacityContainerBuilder<Vec<End>>>;

/// A batch, given out up to an offset.
struct Open {
    updates: Updates,
    given: usize,
}

/// What the operator holds between activations.
pub(super) struct Emitter<R> {
    inbox: UnboundedReceiver<Message>,
    open: Option<Open>,
    /// For updates; dropped when the chain is complete.
    capability: Option<Capability<u64>>,
    /// For the end; dropped once it was told.
    telling: Option<Capability<u64>>,
    activator: Activator,
    shared: Arc<Shared>,
    start: Start,
    portion: usize,
    worker: usize,
    sink: String,
    // Goes with the operator, and takes the task with it.
    _reading: JoinSet<()>,
    rows: PhantomData<R>,
}

impl<R: Row + Data> Emitter<R> {
    pub(super) fn new(
        inbox: UnboundedReceiver<Message>,
        capabilities: Vec<Capability<u64>>,
        activator: Activator,
        shared: Arc<Shared>,
        reading: JoinSet<()>,
        options: &SourceOptions,
        worker: usize,
    ) -> Emitter<R> {
        let [mut capability, telling] = [0, 1].map(|port| capabilities.get(port).cloned());
        if let Some(capability) = &mut capability {
            capability.downgrade(&options.start.first());
        }
        Emitter {
            inbox,
            open: None,
            capability,
            telling,
            activator,
            shared,
            start: options.start,
            portion: options.updates_an_activation.get(),
            worker,
            sink: options.sink.name().to_string(),
            _reading: reading,
            rows: PhantomData,
        }
    }

    /// Gives out a portion, and asks to be called again while more is there.
    pub(super) fn activate(&mut self, giving: &mut Giving<'_, R>, telling: &mut Telling<'_>) {
        if !self.shared.is_over() {
            self.give(giving);
        }
        if self.shared.is_over() {
            // Nothing more is given out; the memory goes now, the capability with the dataflow.
            self.open = None;
            self.inbox.close();
            while self.inbox.try_recv().is_ok() {}
            if let (Some(capability), Some(end)) = (self.telling.take(), self.shared.to_tell(self.worker)) {
                telling.session(&capability).give(end);
            }
        }
    }

    fn give(&mut self, giving: &mut Giving<'_, R>) {
        let mut left = self.portion;
        while left > 0 {
            if let Some(open) = &mut self.open {
                let Some(capability) = &self.capability else { return };
                match open.take(left, self.start) {
                    Ok((taken, updates)) => {
                        left = left.saturating_sub(taken);
                        giving.session(capability).give_iterator(updates);
                    }
                    Err(error) => return self.shared.fail(error.into()),
                }
                if open.is_given() {
                    self.open = None;
                }
                continue;
            }
            // A stretch without updates costs something too.
            left -= 1;
            match self.inbox.try_recv() {
                Ok(Message::Updates(updates)) => self.open = Some(Open { updates, given: 0 }),
                Ok(Message::Delivered { upper, .. }) => {
                    // The empty frontier is not said here: the chain has still to say that it is complete.
                    if let (Some(capability), Some(upper)) = (&mut self.capability, upper.time())
                        && upper > *capability.time()
                    {
                        capability.downgrade(&upper);
                    }
                    self.shared.given_out(upper);
                }
                Ok(Message::End(Ok(()))) => {
                    self.capability = None;
                    return self.shared.complete();
                }
                Ok(Message::End(Err(error))) => return self.shared.fail(error),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    return self.shared.fail(SourceError::Ended { sink: self.sink.clone() });
                }
            }
        }
        self.activator.activate();
    }
}

impl<R> Drop for Emitter<R> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Open {
    fn is_given(&self) -> bool {
        self.given >= self.updates.rows.num_rows()
    }

    /// How many updates come next, at most so many, and those of them that are given out.
    fn take<R: Row>(
        &mut self,
        most: usize,
        start: Start,
    ) -> Result<(usize, impl Iterator<Item = (R, u64, i64)>), RowError> {
        let from = self.given;
        let count = most.min(self.updates.rows.num_rows() - from);
        self.given += count;
        let rows = R::read(&self.updates.rows.slice(from, count))?;
        let times = self.updates.times.values().iter().skip(from);
        let diffs = self.updates.diffs.values().iter().skip(from);
        let placed = rows
            .into_iter()
            .zip(times.zip(diffs))
            .filter_map(move |(row, (time, diff))| start.place(*time).map(|time| (row, time, *diff)));
        Ok((count, placed))
    }
}
