//! What a worker holds until it is written: the batches of its arrangement, in the order of their times.
//!
//! - H1 *Order*: batches stand in time order and are disjoint in time. Between two of them may lie times without
//!   updates, which leave nothing behind.
//! - H2 *RealTimes*: a merge compacts at the minimum, so it changes no time (I3). As times are disjoint, nothing
//!   cancels in it either: a merge has as many updates as its inputs, and its fuel is its updates.
//! - H3 *Few*: where all work is done, each batch that is not reserved has more than twice the updates of the one
//!   after it: logarithmically many batches, and each update was merged logarithmically often.
//! - H4 *Once*: whatever is merging, each update stands in exactly one of the batches that [`Held::overlapping`]
//!   gives: a merge in progress is its two inputs.
//! - H5 *Apart*: after [`Held::reserve`] no batch that begins below begins a merge, and none with a batch that
//!   ends below goes on; so what can be released then, will be.
//!
//! The order of calls is `insert` and `work` as spans come; `reserve` once a description is about to be scanned,
//! and no earlier, since what is reserved stays as many batches as it is; `overlapping`; and `release` when what
//! was scanned is written.
//!
//! What it deliberately does not do: nothing here waits, sends or drops much. Big batches and abandoned merges are
//! given back ([`Held::spent`], [`Held::reserve`], [`Held::release`]), so that the caller drops them where it
//! hurts nobody. While a merge is in progress it takes the memory of its inputs and its result. A key is merged in one
//! go: fuel is overspent by what one key holds.

use std::mem;

use differential_dataflow::trace::Span;
use differential_dataflow::trace::implementations::spine_fueled::{Merger, SpineBatch};
use timely::progress::Antichain;

/// Inputs of merges that have fewer updates than this are dropped where they are.
const SPENT_MIN: usize = 10_000;

/// The batches a worker holds, merged geometrically. See the module.
pub(crate) struct Held<B: SpineBatch<Time = u64> + Clone> {
    layers: Vec<Layer<B>>,
    /// Big inputs of merges that the last `work` finished.
    spent: Vec<B>,
    /// Where the next span begins, or later.
    upper: u64,
    /// Batches that begin below are not merged.
    reserved: u64,
    /// Batches that end at or below are gone.
    released: u64,
}

/// A batch, and the times `[lower, upper)` its updates may have.
struct Piece<B> {
    lower: u64,
    upper: u64,
    batch: B,
}

enum Layer<B: SpineBatch<Time = u64>> {
    Whole(Piece<B>),
    Merging(Box<Merging<B>>),
}

/// Two neighbours, and what became of them so far.
struct Merging<B: SpineBatch<Time = u64>> {
    older: Piece<B>,
    newer: Piece<B>,
    merger: B::Merger,
}

/// The frontier as a time: u64::MAX where it is empty.
fn bound(frontier: &Antichain<u64>) -> u64 {
    frontier.elements().first().copied().unwrap_or(u64::MAX)
}

impl<B: SpineBatch<Time = u64>> Piece<B> {
    fn overlaps(&self, lower: u64, upper: u64) -> bool {
        self.lower < upper && lower < self.upper
    }

    /// Whether this batch is worth merging with the one after it (H3).
    fn outgrown_by(&self, newer: &Self) -> bool {
        self.batch.len() / 2 <= newer.batch.len()
    }
}

impl<B: SpineBatch<Time = u64>> Merging<B> {
    /// Begins a merge that changes no time (H2).
    fn begin(older: Piece<B>, newer: Piece<B>) -> Self {
        let minimum = Antichain::from_elem(0);
        let merger = B::Merger::new(&older.batch, &newer.batch, minimum.borrow());
        Self { older, newer, merger }
    }
}

impl<B: SpineBatch<Time = u64>> Layer<B> {
    fn pieces(&self) -> impl Iterator<Item = &Piece<B>> {
        let (first, second) = match self {
            Self::Whole(piece) => (piece, None),
            Self::Merging(merging) => (&merging.older, Some(&merging.newer)),
        };
        std::iter::once(first).chain(second)
    }

    /// The first time of the layer.
    fn lower(&self) -> u64 {
        match self {
            Self::Whole(piece) => piece.lower,
            Self::Merging(merging) => merging.older.lower,
        }
    }
}

/// The size class of a merge: those of the lowest class are worked on first, as they are done soonest.
fn class<B: SpineBatch>(older: &Piece<B>, newer: &Piece<B>) -> u32 {
    (older.batch.len() + newer.batch.len()).max(1).ilog2()
}

impl<B: SpineBatch<Time = u64> + Clone> Held<B> {
    /// Nothing held, from time 0 on.
    pub(crate) fn new() -> Self {
        Self { layers: Vec::new(), spent: Vec::new(), upper: 0, reserved: 0, released: 0 }
    }

    /// Takes the next span of an arrangement's stream.
    ///
    /// Spans come in the order of their times; an arrangement does not send those in which nothing happened. One
    /// without updates leaves nothing, and neither does one that was released before it came. The span's
    /// compaction must not be beyond the as-of that it is scanned at: then its times are those it says.
    pub(crate) fn insert(&mut self, span: Span<u64, B>) {
        let (lower, upper) = (bound(span.lower()), bound(span.upper()));
        debug_assert!(self.upper <= lower && lower <= upper, "spans come in order");
        self.upper = self.upper.max(upper);
        let batch = span.inner.filter(|batch| batch.len() > 0 && self.released < upper);
        if let Some(batch) = batch {
            self.layers.push(Layer::Whole(Piece { lower: lower.max(self.released), upper, batch }));
        }
    }

    /// Merges, and spends an update of `fuel` for each update merged. Returns whether there is more to do.
    ///
    /// Small merges come first, so that many small batches become few even while two big ones are merging.
    pub(crate) fn work(&mut self, fuel: &mut isize) -> bool {
        self.spent.clear();
        while let Some(class) = self.lowest_class() {
            if *fuel <= 0 {
                return true;
            }
            self.pass(class, fuel);
        }
        false
    }

    /// The big inputs of the merges that the last `work` finished, to be dropped where that may take long; what is
    /// not taken, the next `work` drops.
    pub(crate) fn spent(&mut self) -> Vec<B> {
        mem::take(&mut self.spent)
    }

    /// How many of the oldest layers are reserved, and thus left alone.
    fn settled(&self) -> usize {
        let reserved = self.reserved;
        self.layers.partition_point(|layer| matches!(layer, Layer::Whole(piece) if piece.lower < reserved))
    }

    /// The lowest size class of a merge that is in progress or could begin.
    fn lowest_class(&self) -> Option<u32> {
        let layers = self.layers.iter().skip(self.settled());
        let next = layers.clone().skip(1).map(Some).chain([None]);
        let classes = layers.zip(next).filter_map(|pair| match pair {
            (Layer::Merging(merging), _) => Some(class(&merging.older, &merging.newer)),
            (Layer::Whole(older), Some(Layer::Whole(newer))) => {
                older.outgrown_by(newer).then(|| class(older, newer))
            }
            (Layer::Whole(_), _) => None,
        });
        classes.min()
    }

    /// Does the merges of one size class from the oldest to the newest, each batch in one of them at most: so that
    /// n equal batches are halved by each pass.
    fn pass(&mut self, of: u32, fuel: &mut isize) {
        let mut layers = self.layers.split_off(self.settled()).into_iter().peekable();
        while let Some(layer) = layers.next() {
            if *fuel <= 0 {
                self.layers.push(layer);
                continue;
            }
            let merging = match layer {
                Layer::Merging(merging) if class(&merging.older, &merging.newer) <= of => *merging,
                Layer::Whole(older) => {
                    let begins = |next: &Layer<B>| match next {
                        Layer::Whole(newer) => older.outgrown_by(newer) && class(&older, newer) <= of,
                        Layer::Merging(_) => false,
                    };
                    match layers.next_if(begins) {
                        Some(Layer::Whole(newer)) => Merging::begin(older, newer),
                        other => {
                            self.layers.extend([Layer::Whole(older)].into_iter().chain(other));
                            continue;
                        }
                    }
                }
                layer @ Layer::Merging(_) => {
                    self.layers.push(layer);
                    continue;
                }
            };
            self.merge(merging, fuel);
        }
    }

    /// Goes on with a merge, and appends what becomes of it.
    fn merge(&mut self, merging: Merging<B>, fuel: &mut isize) {
        let Merging { older, newer, mut merger } = merging;
        merger.work(&older.batch, &newer.batch, fuel);
        // SUBTLE: a merge is done only where fuel is left. One that ended on its last drop says so next time.
        if *fuel <= 0 {
            self.layers.push(Layer::Merging(Box::new(Merging { older, newer, merger })));
            return;
        }
        let (lower, upper) = (older.lower, newer.upper);
        self.layers.extend(merger.done().map(|batch| Layer::Whole(Piece { lower, upper, batch })));
        let inputs = [older.batch, newer.batch].into_iter();
        self.spent.extend(inputs.filter(|batch| batch.len() >= SPENT_MIN));
    }

    /// Says that the batches with times below are about to be scanned and released: none of them begins a merge
    /// any more (H5). Gives back the merges that were abandoned, half done, to be dropped.
    ///
    /// A merge in progress is abandoned if its older batch ends at or below: the two would be released together,
    /// and later; and what was spent on it is lost at most once for each batch. It goes on if its older batch ends
    /// above, since no release at `below` will take either of them. So a big batch that straddles every
    /// description is still merged some day, though each of them reserves.
    pub(crate) fn reserve(&mut self, below: u64) -> Vec<B::Merger> {
        self.reserved = self.reserved.max(below);
        let begun = self.layers.partition_point(|layer| layer.lower() < below);
        let after = self.layers.split_off(begun);
        let mut abandoned = Vec::new();
        for layer in mem::take(&mut self.layers) {
            match layer {
                Layer::Merging(merging) if merging.older.upper <= below => {
                    let Merging { older, newer, merger } = *merging;
                    abandoned.push(merger);
                    self.layers.extend([older, newer].map(Layer::Whole));
                }
                layer => self.layers.push(layer),
            }
        }
        self.layers.extend(after);
        abandoned
    }

    /// Every batch that may hold times in `[lower, upper)`, oldest first; each update is in exactly one of them.
    ///
    /// For a snapshot ask from 0 on: its accumulation is of everything up to the as-of.
    pub(crate) fn overlapping(&self, lower: u64, upper: u64) -> Vec<B> {
        let pieces = self.layers.iter().flat_map(Layer::pieces);
        pieces.filter(|piece| piece.overlaps(lower, upper)).map(|piece| piece.batch.clone()).collect()
    }

    /// Forgets the batches all of whose times are below; u64::MAX is the empty frontier, and takes all of them.
    ///
    /// They are given back, for dropping a big batch takes long. A batch with times on both sides stays whole, and
    /// is asked for no more below.
    pub(crate) fn release(&mut self, below: u64) -> Vec<B> {
        self.released = self.released.max(below);
        let begun = self.layers.partition_point(|layer| layer.lower() < below);
        let after = self.layers.split_off(begun);
        let mut released = Vec::new();
        for layer in mem::take(&mut self.layers) {
            let pieces = match layer {
                Layer::Merging(mut merging) if below < merging.older.upper => {
                    merging.older.lower = below;
                    self.layers.push(Layer::Merging(merging));
                    continue;
                }
                Layer::Merging(merging) => [Some(merging.older), Some(merging.newer)],
                Layer::Whole(piece) => [Some(piece), None],
            };
            for mut piece in pieces.into_iter().flatten() {
                if piece.upper <= below {
                    released.push(piece.batch);
                } else {
                    // SUBTLE: a straddling batch now begins at `below`. Else one that was reserved up to here
                    // would count as reserved for good, and what follows it could never be merged with it.
                    piece.lower = piece.lower.max(below);
                    self.layers.push(Layer::Whole(piece));
                }
            }
        }
        self.layers.extend(after);
        released
    }

    /// How many updates are held.
    pub(crate) fn updates(&self) -> usize {
        self.layers.iter().flat_map(Layer::pieces).map(|piece| piece.batch.len()).sum()
    }

    /// How many batches are held; a merge in progress counts as two.
    pub(crate) fn batches(&self) -> usize {
        self.layers.iter().flat_map(Layer::pieces).count()
    }
}

#[cfg(test)]
mod tests;
