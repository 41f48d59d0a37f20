//! The task that follows the chain and hands its batches to the worker.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::{Int64Type, UInt64Type};
use stash::{CatalogError, Frontier, RowSchema, Sink, StartAt, Subscription};
use timely::scheduling::SyncActivator;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{SourceError, Start, token::Shared};
use crate::rows::RowError;

/// What the task tells the operator, in chain order.
pub(super) enum Message {
    /// Updates of the delivery that is read.
    Updates(Updates),
    /// The delivery ended.
    Delivered {
        upper: Frontier,
        /// There may be many without updates: they count too.
        _waiting: OwnedSemaphorePermit,
    },
    /// The chain is complete, or this is why nothing follows.
    End(Result<(), SourceError>),
}

/// Some updates in columns.
pub(super) struct Updates {
    /// The row columns, as the row type has them.
    pub(super) rows: RecordBatch,
    pub(super) times: UInt64Array,
    pub(super) diffs: Int64Array,
    /// Their share of what may wait for the worker.
    _waiting: OwnedSemaphorePermit,
}

/// What the task reads.
pub(super) struct Reading {
    pub(super) sink: Sink,
    /// The columns that the rows' type reads.
    pub(super) schema: RowSchema,
    pub(super) start: Start,
    pub(super) consumer: Option<String>,
}

/// The way to the operator: bounded in bytes, and it wakes the worker; also when it is dropped, so that an end
/// without a word is noticed.
pub(super) struct Outlet {
    sender: Option<mpsc::UnboundedSender<Message>>,
    waker: SyncActivator,
    room: Arc<Semaphore>,
    units_max: u32,
}

/// Bytes are counted in units of this many.
const UNIT: usize = 1 << 10;

impl Outlet {
    pub(super) fn new(sender: mpsc::UnboundedSender<Message>, waker: SyncActivator, bytes: usize) -> Outlet {
        let units_max = units(bytes);
        let permits =
            usize::try_from(units_max).unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        Outlet { sender: Some(sender), waker, room: Arc::new(Semaphore::new(permits)), units_max }
    }

    /// Waits for room.
    async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Gone> {
        let room = Arc::clone(&self.room);
        room.acquire_many_owned(units(bytes).min(self.units_max)).await.map_err(|_| Gone)
    }

    fn send(&self, message: Message) -> Result<(), Gone> {
        self.sender.as_ref().ok_or(Gone)?.send(message).map_err(|_| Gone)?;
        self.waker.activate().map_err(|_| Gone)
    }

    /// Returns when the operator is gone.
    async fn closed(&self) {
        if let Some(sender) = &self.sender {
            sender.closed().await;
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // SUBTLE: first the sender, then the worker's waking: the other way round it looks, sees an open
        // channel, and is not woken again.
        drop(self.sender.take());
        let _ = self.waker.activate();
    }
}

/// At least one, so that every message waits its turn.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

/// Nobody listens any more.
struct Gone;

/// Why the task ends before the chain does.
enum Halt {
    Gone,
    Failed(SourceError),
}

impl From<Gone> for Halt {
    fn from(Gone: Gone) -> Halt {
        Halt::Gone
    }
}

impl From<stash::Error> for Halt {
    fn from(error: stash::Error) -> Halt {
        Halt::Failed(error.into())
    }
}

impl From<stash::BatchError> for Halt {
    fn from(error: stash::BatchError) -> Halt {
        stash::Error::from(error).into()
    }
}

/// Reads until the chain is complete, something fails, or the source is over.
pub(super) async fn read(
    reading: Reading,
    subscribed: oneshot::Sender<Subscription>,
    outlet: Outlet,
    shared: Arc<Shared>,
) {
    let end = tokio::select! {
        end = reading.follow(subscribed, &outlet) => end,
        () = shared.over() => return,
        () = outlet.closed() => return,
    };
    let end = match end {
        Ok(()) => Ok(()),
        Err(Halt::Failed(error)) => Err(error),
        Err(Halt::Gone) => return,
    };
    // Nobody listens: nobody is missing the end.
    let _ = outlet.send(Message::End(end));
}

impl Reading {
    async fn follow(&self, subscribed: oneshot::Sender<Subscription>, outlet: &Outlet) -> Result<(), Halt> {
        // Registered first, read then: what the consumer holds from now on is not deleted before it is read.
        if let Some(consumer) = &self.consumer {
            // The token is dropped already, or it keeps the session.
            let _ = subscribed.send(self.subscribe(consumer).await?);
        }
        let mut chain = self.sink.read_from(self.from().await?);
        while let Some(delivery) = chain.next().await? {
            if !delivery.is_empty() && self.wants(delivery.upper()) {
                let mut reader = delivery.read();
                while let Some(batch) = reader.next().await? {
                    let waiting = outlet.room(batch.get_array_memory_size()).await?;
                    outlet.send(Message::Updates(self.updates(&batch, waiting)?))?;
                }
            }
            let (upper, _waiting) = (delivery.upper(), outlet.room(0).await?);
            outlet.send(Message::Delivered { upper, _waiting })?;
        }
        Ok(())
    }

    /// A session of the consumer, which holds what is to be read.
    async fn subscribe(&self, consumer: &str) -> Result<Subscription, stash::Error> {
        let start = match self.start {
            Start::Snapshot { .. } => StartAt::Beginning,
            Start::ChangesSince(_) => StartAt::Earliest,
        };
        match self.sink.subscribe(consumer, start).await {
            // A new consumer is refused the beginning where it is gone; the chain itself says why.
            Err(refused @ stash::Error::Catalog(CatalogError::InvalidUsage(_))) => {
                let absent = self.sink.read_from(self.sink_start()).try_next().await;
                Err(absent.err().unwrap_or(refused))
            }
            subscribed => subscribed,
        }
    }

    /// The beginning of the chain.
    fn sink_start(&self) -> Frontier {
        Frontier::at(self.sink.row().spec.as_of)
    }

    /// Where reading begins. A start above the chain's upper is waited for from there, one below its beginning
    /// is the beginning.
    async fn from(&self) -> Result<Frontier, stash::Error> {
        Ok(match self.start {
            Start::Snapshot { .. } => self.sink_start(),
            Start::ChangesSince(frontier) => frontier.min(self.sink.upper().await?).max(self.sink_start()),
        })
    }

    /// Whether a delivery that ends there can hold what is given out.
    fn wants(&self, upper: Frontier) -> bool {
        match self.start {
            Start::Snapshot { .. } => true,
            Start::ChangesSince(frontier) => frontier < upper,
        }
    }

    fn updates(&self, batch: &RecordBatch, _waiting: OwnedSemaphorePermit) -> Result<Updates, Halt> {
        let failed = |error: stash::PartError| Halt::Failed(stash::Error::from(error).into());
        let rows = self.schema.restore(batch).map_err(failed)?;
        let at = rows.num_columns();
        let column = |index: usize| batch.columns().get(index);
        let (Some(times), Some(diffs)) = (
            column(at).and_then(|times| times.as_primitive_opt::<UInt64Type>()),
            column(at + 1).and_then(|diffs| diffs.as_primitive_opt::<Int64Type>()),
        ) else {
            let count = RowError::OtherCount { wanted: at + 2, found: batch.num_columns() };
            return Err(Halt::Failed(count.into()));
        };
        Ok(Updates { rows, times: times.clone(), diffs: diffs.clone(), _waiting })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use timely::scheduling::activate::Activations;

    use super::*;

    fn outlet(bytes: usize) -> (Outlet, mpsc::UnboundedReceiver<Message>, Activations) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let activations = Activations::new(None);
        let waker = SyncActivator::new(vec![0], activations.sync());
        (Outlet::new(sender, waker, bytes), inbox, activations)
    }

    async fn waits(room: Pin<&mut impl Future>) -> bool {
        tokio::select! {
            biased;
            _ = room => false,
            () = std::future::ready(()) => true,
        }
    }

    fn active(activations: &mut Activations) -> bool {
        activations.advance();
        let found = std::cell::Cell::new(false);
        activations.map_active(|_| found.set(true));
        found.get()
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_a_larger_batch_waits_alone() {
        let (outlet, _inbox, _activations) = outlet(4 * UNIT);
        let Ok(first) = outlet.room(3 * UNIT).await else { panic!("there is room") };
        let mut second = pin!(outlet.room(UNIT + 1));
        assert!(waits(second.as_mut()).await);
        drop(first);
        assert!(!waits(second.as_mut()).await);
        let Ok(small) = outlet.room(0).await else { panic!("there is room") };
        let mut large = pin!(outlet.room(usize::MAX));
        assert!(waits(large.as_mut()).await, "as long as anything else does");
        drop(small);
        assert!(!waits(large.as_mut()).await);
    }

    #[test]
    fn the_worker_is_woken_by_each_message_and_by_an_end_without_one() {
        let (outlet, mut inbox, mut activations) = outlet(1);
        assert!(!active(&mut activations));
        assert!(outlet.send(Message::End(Ok(()))).is_ok());
        assert!(active(&mut activations) && inbox.try_recv().is_ok());
        assert!(!active(&mut activations));
        drop(outlet);
        assert!(active(&mut activations));
        assert!(matches!(inbox.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    }

    #[test]
    fn who_sends_is_told_that_nobody_listens() {
        let (outlet, inbox, _activations) = outlet(1);
        drop(inbox);
        assert!(outlet.send(Message::End(Ok(()))).is_err());
    }
}
