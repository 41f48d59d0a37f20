//! Arrangement batches that can be sent between threads.
//!
//! Differential's own spines count references to their batches with `Rc`: a batch can never leave its worker,
//! nor can a cursor over it. [`ArcBatch`] counts atomically and is otherwise the batch it holds: the spine merges it, a
//! cursor walks it. So a scan of what a worker holds can move to another thread, while the worker keeps turning.
//!
//! - [`KeySpine`] and [`ValSpine`] are differential's spines over such batches; [`arrange_keys`] and
//!   [`arrange_vals`] arrange into them, exchanged by a hash of the key. Any other arrangement will do whose
//!   batches are [`ArcBatch`]es: `arrange_core` takes whatever its batcher makes `Into` them.
//! - Times are u64 throughout; u64::MAX is no time, it is the empty frontier.
//! - [`Multiplicity`] says which diffs a stash can carry, and as what.
//!
//! A `TraceAgent` stays what it is, bound to its worker: it is the batches of the *stream* that travel.

use std::ops::Deref;
use std::sync::Arc;

use differential_dataflow::difference::Semigroup;
use differential_dataflow::hashable::Hashable;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::trace::cursor::{Cursor, Navigable};
use differential_dataflow::trace::implementations::Vector;
use differential_dataflow::trace::implementations::ord_neu::{
    OrdKeyBatch, OrdKeyBatcher, OrdValBatch, OrdValBatcher,
};
use differential_dataflow::trace::implementations::spine_fueled::{Merger, Spine, SpineBatch};
use differential_dataflow::{ExchangeData, VecCollection};
use timely::progress::frontier::AntichainRef;

/// A batch of keys without values.
pub type KeyBatch<K, R> = ArcBatch<OrdKeyBatch<Vector<((K, ()), u64, R)>>>;
/// A trace of [`KeyBatch`]es.
pub type KeySpine<K, R> = Spine<KeyBatch<K, R>>;
/// A batch of keys with values.
pub type ValBatch<K, V, R> = ArcBatch<OrdValBatch<Vector<((K, V), u64, R)>>>;
/// A trace of [`ValBatch`]es.
pub type ValSpine<K, V, R> = Spine<ValBatch<K, V, R>>;

/// Arranges a collection by its records, in batches that can be sent; exchanged by a hash of the record.
pub fn arrange_keys<'scope, K, R>(
    collection: VecCollection<'scope, u64, K, R>,
) -> Arranged<'scope, TraceAgent<KeySpine<K, R>>>
where
    K: ExchangeData + Hashable,
    R: ExchangeData + Semigroup,
{
    collection
        .map(|key| (key, ()))
        .arrange_named::<OrdKeyBatcher<_, _, _>, KeySpine<K, R>>("ArrangeKeys", OrdKeyBatcher::new)
}

/// Arranges a collection of `(key, value)` by key, in batches that can be sent; exchanged by a hash of the key.
pub fn arrange_vals<'scope, K, V, R>(
    collection: VecCollection<'scope, u64, (K, V), R>,
) -> Arranged<'scope, TraceAgent<ValSpine<K, V, R>>>
where
    K: ExchangeData + Hashable,
    V: ExchangeData,
    R: ExchangeData + Semigroup,
{
    collection
        .arrange_named::<OrdValBatcher<_, _, _, _>, ValSpine<K, V, R>>("ArrangeVals", OrdValBatcher::new)
}

/// A batch that can be shared and sent between threads: immutable, cloned by counting.
#[derive(Debug)]
pub struct ArcBatch<B>(Arc<B>);

impl<B> Clone for ArcBatch<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> ArcBatch<B> {
    /// The batch itself, for the last one who has it; for exactly one of them.
    pub(crate) fn into_inner(self) -> Option<B> {
        Arc::into_inner(self.0)
    }
}

impl<B> From<B> for ArcBatch<B> {
    fn from(batch: B) -> Self {
        Self(Arc::new(batch))
    }
}

impl<B> Deref for ArcBatch<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.0
    }
}

impl<B: SpineBatch> SpineBatch for ArcBatch<B> {
    type Time = B::Time;
    type Merger = ArcMerger<B>;

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A merge of two [`ArcBatch`]es in progress: the batch's own merger.
pub struct ArcMerger<B: SpineBatch>(B::Merger);

impl<B: SpineBatch> Merger<ArcBatch<B>> for ArcMerger<B> {
    fn new(older: &ArcBatch<B>, newer: &ArcBatch<B>, compaction: AntichainRef<'_, B::Time>) -> Self {
        Self(B::Merger::new(older, newer, compaction))
    }

    fn work(&mut self, older: &ArcBatch<B>, newer: &ArcBatch<B>, fuel: &mut isize) {
        self.0.work(older, newer, fuel);
    }

    fn done(self) -> Option<ArcBatch<B>> {
        self.0.done().map(ArcBatch::from)
    }
}

impl<B: Navigable> Navigable for ArcBatch<B> {
    type Cursor = ArcCursor<B::Cursor>;

    fn cursor(&self) -> Self::Cursor {
        ArcCursor(self.0.cursor())
    }
}

/// A cursor over an [`ArcBatch`]: the batch's own.
#[derive(Debug)]
pub struct ArcCursor<C>(C);

impl<C: Cursor> Cursor for ArcCursor<C> {
    type Storage = ArcBatch<C::Storage>;

    type Key<'a> = C::Key<'a>;
    type ValOwn = C::ValOwn;
    type Val<'a> = C::Val<'a>;
    type Time = C::Time;
    type TimeGat<'a> = C::TimeGat<'a>;
    type Diff = C::Diff;
    type DiffGat<'a> = C::DiffGat<'a>;
    type KeyContainer = C::KeyContainer;
    type ValContainer = C::ValContainer;
    type TimeContainer = C::TimeContainer;
    type DiffContainer = C::DiffContainer;

    #[inline]
    fn key_valid(&self, batch: &Self::Storage) -> bool {
        self.0.key_valid(batch)
    }

    #[inline]
    fn val_valid(&self, batch: &Self::Storage) -> bool {
        self.0.val_valid(batch)
    }

    #[inline]
    fn key<'a>(&self, batch: &'a Self::Storage) -> Self::Key<'a> {
        self.0.key(batch)
    }

    #[inline]
    fn val<'a>(&self, batch: &'a Self::Storage) -> Self::Val<'a> {
        self.0.val(batch)
    }

    #[inline]
    fn get_key<'a>(&self, batch: &'a Self::Storage) -> Option<Self::Key<'a>> {
        self.0.get_key(batch)
    }

    #[inline]
    fn get_val<'a>(&self, batch: &'a Self::Storage) -> Option<Self::Val<'a>> {
        self.0.get_val(batch)
    }

    #[inline]
    fn map_times<L: FnMut(Self::TimeGat<'_>, Self::DiffGat<'_>)>(&mut self, batch: &Self::Storage, logic: L) {
        self.0.map_times(batch, logic);
    }

    #[inline]
    fn step_key(&mut self, batch: &Self::Storage) {
        self.0.step_key(batch);
    }

    #[inline]
    fn seek_key(&mut self, batch: &Self::Storage, key: Self::Key<'_>) {
        self.0.seek_key(batch, key);
    }

    #[inline]
    fn step_val(&mut self, batch: &Self::Storage) {
        self.0.step_val(batch);
    }

    #[inline]
    fn seek_val(&mut self, batch: &Self::Storage, val: Self::Val<'_>) {
        self.0.seek_val(batch, val);
    }

    #[inline]
    fn rewind_keys(&mut self, batch: &Self::Storage) {
        self.0.rewind_keys(batch);
    }

    #[inline]
    fn rewind_vals(&mut self, batch: &Self::Storage) {
        self.0.rewind_vals(batch);
    }
}

/// A diff that a stash can carry: a signed count of rows, which it stores as an i64.
///
/// Other diffs (products, minima) are no multiplicities: turn them into columns of the row first.
pub trait Multiplicity: Semigroup + Ord + Clone + Send + Sync + 'static {
    /// This diff as an i64.
    fn as_i64(&self) -> i64;

    /// The diff of this many, `None` where the type cannot hold it.
    fn of(count: i64) -> Option<Self>;
}

impl Multiplicity for i64 {
    #[inline]
    fn as_i64(&self) -> i64 {
        *self
    }

    fn of(count: i64) -> Option<Self> {
        Some(count)
    }
}

impl Multiplicity for i32 {
    #[inline]
    fn as_i64(&self) -> i64 {
        i64::from(*self)
    }

    fn of(count: i64) -> Option<Self> {
        Self::try_from(count).ok()
    }
}

impl Multiplicity for isize {
    #[inline]
    fn as_i64(&self) -> i64 {
        // An isize has at most 64 bits.
        *self as i64
    }

    fn of(count: i64) -> Option<Self> {
        Self::try_from(count).ok()
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
