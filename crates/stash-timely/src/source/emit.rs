//! The operator of the worker that reads: batches in, a portion of updates out, an activation at a time.

use std::{marker::PhantomData, sync::Arc};

use differential_dataflow::Data;
use timely::{
    container::CapacityContainerBuilder,
    dataflow::operators::{Capability, generic::OutputBuilderSession},
    scheduling::Activator,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, error::TryRecvError},
    task::JoinSet,
};

use super::{
    SourceError, SourceOptions, Start,
    read::{Message, Updates},
    token::Shared,
};
use crate::rows::{Row, RowError};

/// Updates with the time and sign they are given out with.
pub(super) type Given<R> = Vec<(R, u64, i64)>;

/// Where the operator gives them out.
pub(super) type Output<'a, R> = OutputBuilderSession<'a, u64, CapacityContainerBuilder<Given<R>>>;

/// A batch, given out up to an offset.
struct Open {
    updates: Updates,
    given: usize,
}

/// What the operator holds between activations.
pub(super) struct Emitter<R> {
    inbox: UnboundedReceiver<Message>,
    open: Option<Open>,
    capability: Option<Capability<u64>>,
    activator: Activator,
    shared: Arc<Shared>,
    start: Start,
    portion: usize,
    sink: String,
    // Goes with the operator, and takes the task with it.
    _reading: JoinSet<()>,
    rows: PhantomData<R>,
}

impl<R: Row + Data> Emitter<R> {
    pub(super) fn new(
        inbox: UnboundedReceiver<Message>,
        capability: Capability<u64>,
        activator: Activator,
        shared: Arc<Shared>,
        reading: JoinSet<()>,
        options: &SourceOptions,
    ) -> Emitter<R> {
        Emitter {
            inbox,
            open: None,
            capability: Some(capability),
            activator,
            shared,
            start: options.start,
            portion: options.updates_an_activation.get(),
            sink: options.sink.name().to_string(),
            _reading: reading,
            rows: PhantomData,
        }
    }

    /// Gives out a portion, and asks to be called again while more is there.
    pub(super) fn activate(&mut self, output: &mut Output<'_, R>) {
        if self.shared.is_over() {
            // Nothing more is given out; the memory goes now, the capability with the dataflow.
            self.open = None;
            self.inbox.close();
            while self.inbox.try_recv().is_ok() {}
            return;
        }
        let mut left = self.portion;
        while left > 0 {
            if let Some(open) = &mut self.open {
                match open.take(left, self.start) {
                    Ok((taken, updates)) => {
                        left = left.saturating_sub(taken);
                        if let Some(capability) = &self.capability {
                            output.session(capability).give_iterator(updates.into_iter());
                        }
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
                Ok(Message::Delivered(upper)) => {
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

    /// The next updates, at most so many, and how many were looked at.
    fn take<R: Row>(&mut self, most: usize, start: Start) -> Result<(usize, Given<R>), RowError> {
        let from = self.given;
        let count = most.min(self.updates.rows.num_rows() - from);
        self.given += count;
        let rows = R::read(&self.updates.rows.slice(from, count))?;
        let times = self.updates.times.values().iter().skip(from);
        let diffs = self.updates.diffs.values().iter().skip(from);
        let placed = rows
            .into_iter()
            .zip(times.zip(diffs))
            .filter_map(|(row, (time, diff))| start.place(*time).map(|time| (row, time, *diff)));
        Ok((count, placed.collect()))
    }
}
