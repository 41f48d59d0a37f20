//! One range scan over held batches: the rows of a window of times, in chunks of columns, a bit at a time.
//!
//! Terms: a *position* is a `(key, value)` with all its times; the scan walks the positions of all its batches in
//! order, merged by differential's cursors. An update counts if its time, advanced to the as-of, lies in the
//! *window*; a *row* is what the projection makes of a position, appended once for each time that counts.
//!
//! - S1 *Consolidated*: the diffs of a position's equal times are summed after advancing, exactly, and zeros
//!   vanish (I3). Positions whose rows are equal are summed by whoever merges rows: here they stay apart.
//! - S2 *Fuelled*: a step visits as many positions as it was given and stops, even between the rows of one
//!   position. Nothing runs between steps: to cancel a scan is to drop it, and it can move to another thread.
//! - S3 *Bounded*: besides the batches a scan holds one chunk, the times of one position, and some errors.
//! - S4 *Typed*: what a dataflow says of its data (a row that cannot be made) is an error *update* with a time and
//!   a diff; what keeps the scan from going on is a [`ScanError`], after which it can only be dropped.
//! - S5 *Ahead*: rows in key order point at memory in no order, and a processor that copies one row after the other
//!   waits for each of them. So a second cursor walks some positions ahead of the first and touches what their rows
//!   point at, and the waits are for many at once. It never decides anything.
//!
//! It deliberately knows neither descriptions nor shares, and decides nothing: a peek is the same scan.

use std::mem;

use arrow::array::ArrayRef;
use differential_dataflow::trace::cursor::{Cursor, CursorList, Navigable, cursor_list};

use crate::batch::Multiplicity;
use crate::errors::Errors;

/// Which updates count, and at what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first time that counts.
    pub lower: u64,
    /// One past the last time that counts; u64::MAX is no bound.
    pub upper: u64,
    /// Earlier times are advanced to this one before anything else: the accumulation of a snapshot.
    pub as_of: u64,
}

impl Window {
    /// The time that an update of this time is given, if it counts.
    #[inline]
    fn place(&self, time: u64) -> Option<u64> {
        let time = time.max(self.as_of);
        (self.lower <= time && (time < self.upper || self.upper == u64::MAX)).then_some(time)
    }
}

/// Makes rows of the positions that a cursor visits.
pub trait Projection<C: Cursor>: Send + 'static {
    /// Where the rows go.
    type Rows: RowSink;

    /// Appends exactly one row, or says why there is none and appends none.
    ///
    /// It is called once for each time that counts, and must answer each time alike.
    fn project(&mut self, key: C::Key<'_>, val: C::Val<'_>, rows: &mut Self::Rows) -> Result<(), NoRow>;

    /// Whether positions point at memory elsewhere, which [`Projection::pieces`] shows.
    const POINTS: bool = false;

    /// Shows `look` the pieces of memory that the position points at (S5).
    fn pieces(&self, _key: C::Key<'_>, _val: C::Val<'_>, _look: &mut impl FnMut(&[u8])) {}
}

/// Why a position has no row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRow {
    /// The dataflow is in error there: what is equal of another position is the same error.
    Error(String),
    /// The builder cannot go on, whatever the position.
    Columns(String),
}

/// Builders of the columns that rows are made of.
pub trait RowSink: Send + 'static {
    /// How many bytes the rows since the last `finish` take; asked after every row, so it has to be cheap.
    fn bytes(&self) -> usize;

    /// The rows since the last `finish`, as columns of equal length; leaves the sink empty, ready for more.
    fn finish(&mut self) -> Result<Vec<ArrayRef>, String>;
}

/// When a chunk is full: as soon as it reaches either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// This many rows.
    pub rows: usize,
    /// This many bytes of columns, as the sink counts them.
    pub bytes: usize,
}

/// Rows with their times and diffs: all of one length, which is not zero.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The columns of the rows.
    pub columns: Vec<ArrayRef>,
    /// The time of each.
    pub times: Vec<u64>,
    /// The diff of each, never zero.
    pub diffs: Vec<i64>,
}

/// How a step ended.
#[derive(Debug)]
pub enum Step {
    /// A chunk is full; there may be more.
    Chunk(Chunk),
    /// The positions are used up; rows may be waiting for their chunk to fill.
    Paused,
    /// All was visited; what was left makes the last chunk.
    Done(Option<Chunk>),
}

/// Why a scan cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// A multiplicity that a stash cannot hold.
    #[error("the diffs of one row sum beyond i64 at time {time}: consolidate or split it upstream")]
    DiffOverflow {
        /// The time of the sum.
        time: u64,
    },
    /// A builder failed.
    #[error("the columns cannot be built, change the rows or how they are encoded: {0}")]
    Columns(String),
    /// The projection broke its contract.
    #[error("a column has {found} rows where {expected} were projected: a projection appends one, or fails")]
    Ragged {
        /// How many rows the column has.
        found: usize,
        /// How many times the projection succeeded.
        expected: usize,
    },
}

/// A range scan in progress. See the module.
pub struct Scan<B: Navigable, P: Projection<B::Cursor>> {
    cursor: CursorList<B::Cursor>,
    batches: Vec<B>,
    window: Window,
    projection: P,
    rows: P::Rows,
    /// The times that count of the position the cursor is at, consolidated, with their diffs.
    position: Vec<(u64, i128)>,
    /// How many of them are behind.
    placed: usize,
    /// The cursor that walks ahead, once there is enough to walk over.
    scout: Option<CursorList<B::Cursor>>,
    /// How many positions it is ahead.
    ahead: usize,
    times: Vec<u64>,
    diffs: Vec<i64>,
    errors: Errors,
}

impl<B, P> Scan<B, P>
where
    B: Navigable<Cursor: Cursor<Time = u64, Diff: Multiplicity>>,
    P: Projection<B::Cursor>,
{
    /// A scan over these batches, each update of which is in one of them only; `rows` is empty.
    pub fn new(batches: Vec<B>, window: Window, projection: P, rows: P::Rows) -> Self {
        let (cursor, batches) = cursor_list(batches);
        Self {
            cursor,
            batches,
            window,
            projection,
            rows,
            position: Vec::new(),
            placed: 0,
            scout: None,
            ahead: AHEAD,
            times: Vec::new(),
            diffs: Vec::new(),
            errors: Errors::default(),
        }
    }

    /// Goes on until a chunk is full, `positions` are used up, or all was visited.
    ///
    /// A position costs one, also where none of its times count; each row of it after the first costs one more.
    pub fn step(&mut self, positions: &mut usize, chunk: ChunkLimits) -> Result<Step, ScanError> {
        loop {
            while let Some(&(time, diff)) = self.position.get(self.placed) {
                if self.placed > 0 {
                    let Some(left) = positions.checked_sub(1) else { return Ok(Step::Paused) };
                    *positions = left;
                }
                self.placed += 1;
                if self.append(time, diff)? && self.is_full(chunk) {
                    return Ok(Step::Chunk(self.take_chunk()?));
                }
            }
            if self.placed > 0 {
                self.leave();
            }
            loop {
                if !self.cursor.key_valid(&self.batches) {
                    return self.done();
                }
                let Some(left) = positions.checked_sub(1) else { return Ok(Step::Paused) };
                *positions = left;
                if P::POINTS {
                    self.look_ahead();
                }
                self.gather();
                if !self.position.is_empty() {
                    break;
                }
                self.leave();
            }
        }
    }

    /// The errors of the dataflow met so far: those of this scan alone, which others may take back.
    ///
    /// To be taken once, when the scan is done.
    pub(crate) fn take_errors(&mut self) -> Errors {
        mem::take(&mut self.errors)
    }

    /// The batches that were scanned: to be freed where it hurts nobody.
    pub(crate) fn into_batches(self) -> Vec<B> {
        self.batches
    }

    /// Has the scout ahead of the cursor, whose position is about to be visited (S5).
    #[inline]
    fn look_ahead(&mut self) {
        if self.ahead == 0 {
            self.scout_on();
        }
        self.ahead -= 1;
    }

    fn scout_on(&mut self) {
        let Self { batches, window, projection, .. } = self;
        let scout = self.scout.get_or_insert_with(|| {
            let mut scout = CursorList::new(batches.iter().map(B::cursor).collect(), batches);
            // The first positions were visited without it: most scans end there.
            (0..AHEAD).for_each(|_| next_position(&mut scout, batches));
            scout
        });
        let mut found = [None; AHEAD];
        for found in &mut found {
            if !scout.key_valid(batches) {
                break;
            }
            if scout.val_valid(batches) {
                let mut counts = false;
                scout.map_times(batches, |time, _| {
                    counts |= window.place(B::Cursor::owned_time(time)).is_some();
                });
                *found = counts.then(|| (scout.key(batches), scout.val(batches)));
            }
            next_position(scout, batches);
        }
        // Apart from the walk: the fewer instructions between two reads, the more of them are under way at once.
        let mut touch = Touch::default();
        for (key, val) in found.into_iter().flatten() {
            projection.pieces(key, val, &mut |piece| touch.read(piece));
        }
        touch.done();
        self.ahead = AHEAD;
    }

    /// Collects the times that count at the cursor's position.
    #[inline]
    fn gather(&mut self) {
        let Self { cursor, batches, window, position, .. } = self;
        if !cursor.val_valid(batches) {
            return;
        }
        cursor.map_times(batches, |time, diff| {
            if let Some(time) = window.place(B::Cursor::owned_time(time)) {
                position.push((time, i128::from(B::Cursor::owned_diff(diff).as_i64())));
            }
        });
        match position.as_slice() {
            [] => {}
            [(_, diff)] if *diff != 0 => {}
            _ => consolidate(position),
        }
    }

    /// Leaves the cursor's position for the next.
    #[inline]
    fn leave(&mut self) {
        self.position.clear();
        self.placed = 0;
        next_position(&mut self.cursor, &self.batches);
    }

    /// Appends a row for this time, or notes the error; returns whether it was a row.
    #[inline]
    fn append(&mut self, time: u64, diff: i128) -> Result<bool, ScanError> {
        let diff = i64::try_from(diff).map_err(|_| ScanError::DiffOverflow { time })?;
        let (key, val) = (self.cursor.key(&self.batches), self.cursor.val(&self.batches));
        match self.projection.project(key, val, &mut self.rows) {
            Ok(()) => {
                self.times.push(time);
                self.diffs.push(diff);
                Ok(true)
            }
            Err(NoRow::Error(message)) => {
                self.errors.add(time, message, i128::from(diff));
                Ok(false)
            }
            Err(NoRow::Columns(reason)) => Err(ScanError::Columns(reason)),
        }
    }

    #[inline]
    fn is_full(&self, limits: ChunkLimits) -> bool {
        self.times.len() >= limits.rows || self.rows.bytes() >= limits.bytes
    }

    fn done(&mut self) -> Result<Step, ScanError> {
        if self.times.is_empty() { Ok(Step::Done(None)) } else { Ok(Step::Done(Some(self.take_chunk()?))) }
    }

    fn take_chunk(&mut self) -> Result<Chunk, ScanError> {
        let columns = self.rows.finish().map_err(ScanError::Columns)?;
        let (times, diffs) = (mem::take(&mut self.times), mem::take(&mut self.diffs));
        match columns.iter().find(|column| column.len() != times.len()) {
            Some(column) => Err(ScanError::Ragged { found: column.len(), expected: times.len() }),
            None => Ok(Chunk { columns, times, diffs }),
        }
    }
}

/// How many positions the scout walks at once: enough for the misses of the caches to overlap, few enough for what they
/// bring to be there when its turn comes.
const AHEAD: usize = 64;

/// Reads both ends of the pieces of memory that rows point at, for the caches: what lies between comes along, or is read
/// in order.
#[derive(Debug, Default)]
pub(crate) struct Touch(u8);

impl Touch {
    #[inline]
    pub(crate) fn read(&mut self, piece: &[u8]) {
        self.0 ^= piece.first().copied().unwrap_or_default() ^ piece.last().copied().unwrap_or_default();
    }

    /// Has the compiler believe that somebody wants to know.
    pub(crate) fn done(self) {
        std::hint::black_box(self.0);
    }
}

/// Leaves a cursor's position for the next; stays at the end.
#[inline]
fn next_position<C: Cursor>(cursor: &mut C, storage: &C::Storage) {
    if cursor.val_valid(storage) {
        cursor.step_val(storage);
    }
    if !cursor.val_valid(storage) {
        cursor.step_key(storage);
    }
}

/// Sums the diffs of equal times and drops zeros. In i128: as many i64 as memory can hold do not leave it.
fn consolidate(times: &mut Vec<(u64, i128)>) {
    times.sort_unstable_by_key(|(time, _)| *time);
    times.dedup_by(|(time, diff), (kept, sum)| {
        let equal = time == kept;
        if equal {
            *sum += *diff;
        }
        equal
    });
    times.retain(|(_, diff)| *diff != 0);
}

#[cfg(test)]
mod tests;
