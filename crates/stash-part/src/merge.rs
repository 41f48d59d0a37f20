//! Merging sorted runs into one, consolidated, without asking where their chunks come from.
//!
//! [`RunMerge`] is a state machine: it says which run's next chunk it needs, takes it, and gives batches when
//! they are full. Whoever drives it does the waiting. A *run* is a sequence of [`Sorted`] chunks, each beginning
//! no earlier than the one before ended; an equal (row, time) may stand on both sides of that border.
//!
//! - Equal (row, time) are summed across runs and across chunk borders; zeros are dropped.
//! - What only one run still holds is passed on as slices of its own chunks.
//! - At most one chunk per run is held, plus what the batch being filled points into, and one look-ahead. The batch is
//!   given out before it and the chunks that are kept for it alone come to more than [`OutputLimits::held_bytes`].

use std::{cmp::Ordering, collections::VecDeque, sync::Arc};

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::compute::interleave;

use crate::error::PartError;
use crate::order::OrderedRows;
use crate::schema::RowSchema;
use crate::sort::narrow;
use crate::updates::{Sorted, Updates, compact};

/// A run that wins this often in a row is searched for where it stops winning.
const GALLOP_AFTER: usize = 8;

/// When a merge gives out the batch it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// When it has this many rows.
    pub rows: usize,
    /// When its rows come to this many bytes, each counted as large as those of its chunk are on average.
    pub bytes: usize,
    /// When they and the chunks that are kept for them alone come to this many bytes. Less than two chunks would make
    /// batches of single rows.
    pub held_bytes: usize,
}

impl Default for OutputLimits {
    /// 8,192 rows, so that what is done once a batch costs little, or 32 MiB, whatever that holds.
    fn default() -> OutputLimits {
        OutputLimits { rows: 8192, bytes: 32 << 20, held_bytes: usize::MAX }
    }
}

/// What a merge wants or has.
#[derive(Debug)]
pub enum MergeStep {
    /// Push the next chunk of this run, or finish it.
    Need(usize),
    /// The next batch of the result, strictly after the one before.
    Ready(Sorted),
    /// Nothing is left.
    Done,
}

/// A k-way merge with consolidation. After an error it can only be dropped.
#[derive(Debug)]
pub struct RunMerge {
    schema: RowSchema,
    limits: OutputLimits,
    runs: Vec<Run>,
    /// The chunks that heads, the pending row or the batch being filled point into, by slot.
    sources: Vec<Option<Source>>,
    /// The latest distinct (row, time), to which an equal one may still be added.
    pending: Option<Pending>,
    output: Output,
    /// Bytes of the sources that no head stands in.
    kept_bytes: usize,
    ready: VecDeque<Sorted>,
    /// A chunk of the only run left, kept whole until it is known that the next does not begin with its last row.
    held: Option<Source>,
}

#[derive(Debug, Default)]
struct Run {
    head: Option<Head>,
    finished: bool,
    /// The last row of the previous chunk, to check the order of the next.
    last: Option<OrderedRows>,
}

/// Where a run stands: a row of a source.
#[derive(Debug, Clone, Copy)]
struct Head {
    prefix: u64,
    slot: usize,
    row: usize,
}

#[derive(Debug)]
struct Source {
    updates: Sorted,
    rows: OrderedRows,
    bytes_per_row: usize,
    in_output: bool,
}

#[derive(Debug)]
struct Pending {
    head: Head,
    sum: i128,
}

impl Source {
    fn new(updates: Sorted) -> Result<Source, PartError> {
        let rows = OrderedRows::new(&updates)?;
        let bytes_per_row = updates.memory_bytes() / updates.num_rows().max(1);
        Ok(Source { updates, rows, bytes_per_row, in_output: false })
    }

    fn memory_bytes(&self) -> usize {
        self.updates.memory_bytes() + self.rows.memory_bytes()
    }
}

/// Orders two heads; most pairs differ in their prefixes already.
fn compare(sources: &[Option<Source>], a: Head, b: Head) -> Ordering {
    match a.prefix.cmp(&b.prefix) {
        Ordering::Equal => match (&sources[a.slot], &sources[b.slot]) {
            (Some(left), Some(right)) => left.rows.compare_tied(a.row, &right.rows, b.row),
            // A slot is not freed while a head stands in it.
            _ => Ordering::Equal,
        },
        decided => decided,
    }
}

impl RunMerge {
    /// A merge of `runs` runs into batches within `limits`.
    pub fn new(schema: &RowSchema, runs: usize, limits: OutputLimits) -> RunMerge {
        RunMerge {
            schema: schema.clone(),
            limits: OutputLimits { rows: limits.rows.max(1), ..limits },
            runs: std::iter::repeat_with(Run::default).take(runs).collect(),
            sources: Vec::new(),
            pending: None,
            output: Output::default(),
            kept_bytes: 0,
            ready: VecDeque::new(),
            held: None,
        }
    }

    /// Goes as far as it can.
    pub fn step(&mut self) -> Result<MergeStep, PartError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(MergeStep::Ready(batch));
            }
            if let Some(run) = self.runs.iter().position(|run| run.head.is_none() && !run.finished) {
                self.free_slots();
                return Ok(MergeStep::Need(run));
            }
            let mut live = (0..self.runs.len()).filter(|run| self.runs[*run].head.is_some());
            match (live.next(), live.next()) {
                (None, _) => {
                    self.settle()?;
                    self.flush()?;
                    if let Some(held) = self.held.take() {
                        self.pass(&held.updates);
                    }
                    if self.ready.is_empty() {
                        return Ok(MergeStep::Done);
                    }
                }
                (Some(run), None) => self.pass_run(run)?,
                _ => self.merge_heads()?,
            }
        }
    }

    /// Gives the next chunk of `run`, which [`RunMerge::step`] asked for. Empty chunks are allowed.
    pub fn push(&mut self, run: usize, chunk: Sorted) -> Result<(), PartError> {
        if chunk.schema() != &self.schema {
            return Err(PartError::WrongSchema {
                wanted: self.schema.fingerprint(),
                found: chunk.schema().fingerprint(),
            });
        }
        let state = self.run(run)?;
        if chunk.is_empty() {
            return Ok(());
        }
        let last_row = OrderedRows::new(&chunk.row(chunk.num_rows() - 1)?)?;
        let source = Source::new(chunk)?;
        if let Some(last) = &state.last
            && last.compare(0, &source.rows, 0).is_gt()
        {
            return Err(PartError::OutOfOrder { run });
        }
        // The last row was copied out, so that no run keeps two chunks alive.
        state.last = Some(last_row);
        let (prefix, slot) = (source.rows.prefixes()[0], self.store(source));
        self.runs[run].head = Some(Head { prefix, slot, row: 0 });
        Ok(())
    }

    /// Says that `run` has no further chunk.
    pub fn finish(&mut self, run: usize) -> Result<(), PartError> {
        self.run(run)?.finished = true;
        Ok(())
    }

    /// Bytes held: chunks, their comparable forms, and batches not yet taken.
    pub fn memory_bytes(&self) -> usize {
        let sources =
            self.sources.iter().flatten().chain(&self.held).map(Source::memory_bytes).sum::<usize>();
        let ready = self.ready.iter().map(|batch| batch.memory_bytes()).sum::<usize>();
        sources + ready + self.output.memory_bytes()
    }

    /// Puts a source into a free slot.
    fn store(&mut self, source: Source) -> usize {
        match self.sources.iter_mut().enumerate().find(|(_, slot)| slot.is_none()) {
            Some((slot, free)) => {
                *free = Some(source);
                slot
            }
            None => {
                self.sources.push(Some(source));
                self.sources.len() - 1
            }
        }
    }

    /// Frees the sources that nothing points into.
    fn free_slots(&mut self) {
        for slot in 0..self.sources.len() {
            if !self.stands_in(slot) && !self.is_kept(slot) {
                self.sources[slot] = None;
            }
        }
    }

    /// Whether a run has its head in this slot.
    fn stands_in(&self, slot: usize) -> bool {
        self.runs.iter().any(|run| run.head.is_some_and(|head| head.slot == slot))
    }

    /// Whether the pending row or one of the batch being filled is in this slot.
    fn is_kept(&self, slot: usize) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.head.slot == slot)
            || self.sources[slot].as_ref().is_some_and(|source| source.in_output)
    }

    /// Bytes of the sources that are kept although no run stands in them any more.
    fn count_kept(&mut self) {
        let kept = |slot: &usize| !self.stands_in(*slot) && self.is_kept(*slot);
        let slots = (0..self.sources.len()).filter(kept);
        self.kept_bytes =
            slots.filter_map(|slot| self.sources[slot].as_ref()).map(Source::memory_bytes).sum();
    }

    fn is_full(&self) -> bool {
        let Output { indices, bytes, .. } = &self.output;
        indices.len() >= self.limits.rows
            || *bytes >= self.limits.bytes
            || bytes + self.kept_bytes >= self.limits.held_bytes
    }

    /// The run `run`, if it waits for a chunk.
    fn run(&mut self, run: usize) -> Result<&mut Run, PartError> {
        let runs = self.runs.len();
        match self.runs.get_mut(run) {
            Some(state) if state.head.is_none() && !state.finished => Ok(state),
            Some(_) => Err(PartError::Misuse(format!("run {run} does not wait for a chunk: step first"))),
            None => Err(PartError::Misuse(format!("run {run} is not one of {runs}"))),
        }
    }

    /// Merges until a run needs its next chunk or a batch is ready.
    fn merge_heads(&mut self) -> Result<(), PartError> {
        let mut tree = Tree::build(&self.runs, &self.sources);
        let (mut streak_of, mut streak) = (usize::MAX, 0);
        while self.ready.is_empty() {
            let Some(winner) = tree.winner() else { return Ok(()) };
            let Some(head) = self.runs[winner].head else { return Ok(()) };
            streak = if streak_of == winner { streak + 1 } else { 0 };
            streak_of = winner;
            let mut end = head.row + 1;
            if streak >= GALLOP_AFTER {
                streak = 0;
                if let Some(second) = tree.second(winner, &self.runs, &self.sources) {
                    end = gallop(&self.sources, head, second);
                }
            }
            let next = self.take_rows(head, end)?;
            self.runs[winner].head = next;
            if next.is_none() {
                // SUBTLE: here, before the run's next chunk comes. What is kept goes on counting as that run's chunk until
                // then.
                self.count_kept();
                if self.is_full() {
                    self.flush()?;
                }
                return Ok(());
            }
            tree.update(winner, &self.runs, &self.sources);
        }
        Ok(())
    }

    /// Takes the rows of `head`'s source up to `end`; the head that follows, if the source has more.
    fn take_rows(&mut self, head: Head, end: usize) -> Result<Option<Head>, PartError> {
        for row in head.row..end {
            self.take_row(head.slot, row)?;
        }
        let source = self.sources[head.slot].as_ref();
        let prefix = source.and_then(|source| source.rows.prefixes().get(end).copied());
        Ok(prefix.map(|prefix| Head { prefix, slot: head.slot, row: end }))
    }

    /// Adds one row of the merged sequence: to the pending one if equal, else after it.
    fn take_row(&mut self, slot: usize, row: usize) -> Result<(), PartError> {
        let Some(source) = &self.sources[slot] else { return Ok(()) };
        let head = Head { prefix: source.rows.prefixes()[row], slot, row };
        let diff = i128::from(source.updates.diffs()[row]);
        match &mut self.pending {
            Some(pending) if compare(&self.sources, pending.head, head).is_eq() => pending.sum += diff,
            _ => {
                self.settle()?;
                self.pending = Some(Pending { head, sum: diff });
            }
        }
        Ok(())
    }

    /// Nothing equal to the pending row is to come: it goes out, unless it came to nothing.
    fn settle(&mut self) -> Result<(), PartError> {
        let Some(Pending { head, sum }) = self.pending.take() else { return Ok(()) };
        let Some(source) = &mut self.sources[head.slot] else { return Ok(()) };
        let time = source.updates.times()[head.row];
        let diff = narrow(sum, time)?;
        if diff != 0 {
            source.in_output = true;
            self.output.indices.push((head.slot, head.row));
            self.output.times.push(time);
            self.output.diffs.push(diff);
            self.output.bytes += source.bytes_per_row;
            if self.is_full() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PartError> {
        let output = std::mem::take(&mut self.output);
        if !output.indices.is_empty() {
            self.ready.push_back(output.build(&self.schema, &self.sources)?);
        }
        self.sources.iter_mut().flatten().for_each(|source| source.in_output = false);
        self.count_kept();
        Ok(())
    }

    /// Passes on the rest of the only run that has one.
    fn pass_run(&mut self, run: usize) -> Result<(), PartError> {
        self.release_held_before(run)?;
        let Some(mut head) = self.runs[run].head.take() else { return Ok(()) };
        // The pending row may have an equal one at the head: chunks are consolidated, so at most one.
        let equal = |pending: &Pending| compare(&self.sources, pending.head, head).is_eq();
        if self.pending.as_ref().is_some_and(equal) {
            match self.take_rows(head, head.row + 1)? {
                Some(next) => head = next,
                None => return Ok(()),
            }
        }
        self.settle()?;
        self.flush()?;
        let Some(source) = self.sources[head.slot].take() else { return Ok(()) };
        self.held = Some(match head.row {
            0 => source,
            row => Source::new(source.updates.slice(row, source.rows.len() - row))?,
        });
        Ok(())
    }

    /// The held chunk goes out; its last row becomes pending if the head of `run` equals it.
    fn release_held_before(&mut self, run: usize) -> Result<(), PartError> {
        let (Some(held), Some(head)) = (self.held.take(), self.runs[run].head) else { return Ok(()) };
        let last = held.rows.len() - 1;
        let equal = (self.sources[head.slot].as_ref())
            .is_some_and(|source| held.rows.compare(last, &source.rows, head.row).is_eq());
        if equal {
            self.pass(&held.updates.slice(0, last));
            let slot = self.store(held);
            return self.take_row(slot, last);
        }
        self.pass(&held.updates);
        Ok(())
    }

    /// Gives out `updates` in slices, without copying.
    fn pass(&mut self, updates: &Sorted) {
        let mut from = 0;
        while from < updates.num_rows() {
            let slice = updates.slice(from, self.limits.rows);
            from += slice.num_rows();
            self.ready.push_back(slice);
        }
    }
}

/// The end of the stretch of `head` that stands before `second`; at least one row.
fn gallop(sources: &[Option<Source>], head: Head, second: Head) -> usize {
    let (Some(source), Some(other)) = (&sources[head.slot], &sources[second.slot]) else {
        return head.row + 1;
    };
    let before = |row: usize| source.rows.compare(row, &other.rows, second.row).is_lt();
    let len = source.rows.len();
    let (mut low, mut step) = (head.row + 1, 1);
    while low + step <= len && before(low + step - 1) {
        low += step;
        step *= 2;
    }
    let mut high = len.min(low + step);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// A tournament over the runs' heads: each inner node holds the run that stands first below it.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Option<usize>>,
    leaves: usize,
}

impl Tree {
    fn build(runs: &[Run], sources: &[Option<Source>]) -> Tree {
        let leaves = runs.len().next_power_of_two();
        let mut tree = Tree { nodes: vec![None; 2 * leaves], leaves };
        for (run, state) in runs.iter().enumerate() {
            tree.nodes[leaves + run] = state.head.is_some().then_some(run);
        }
        for node in (1..leaves).rev() {
            tree.nodes[node] = first(runs, sources, tree.nodes[2 * node], tree.nodes[2 * node + 1]);
        }
        tree
    }

    fn winner(&self) -> Option<usize> {
        self.nodes.get(1).copied().flatten()
    }

    /// Replays the matches of `run`, whose head moved.
    fn update(&mut self, run: usize, runs: &[Run], sources: &[Option<Source>]) {
        let mut node = (self.leaves + run) / 2;
        while node > 0 {
            self.nodes[node] = first(runs, sources, self.nodes[2 * node], self.nodes[2 * node + 1]);
            node /= 2;
        }
    }

    /// The head that stands first among all but `winner`: the best of those it beat.
    fn second(&self, winner: usize, runs: &[Run], sources: &[Option<Source>]) -> Option<Head> {
        let mut node = self.leaves + winner;
        let mut best = None;
        while node > 1 {
            best = first(runs, sources, best, self.nodes[node ^ 1]);
            node /= 2;
        }
        runs[best?].head
    }
}

/// The run of the two whose head stands first.
fn first(runs: &[Run], sources: &[Option<Source>], a: Option<usize>, b: Option<usize>) -> Option<usize> {
    let (Some(left), Some(right)) = (a, b) else { return a.or(b) };
    match (runs[left].head, runs[right].head) {
        (Some(x), Some(y)) if compare(sources, x, y).is_le() => a,
        (Some(_), None) => a,
        _ => b,
    }
}

/// The batch being filled: which row of which source, its time and its diff.
#[derive(Debug, Default)]
struct Output {
    indices: Vec<(usize, usize)>,
    times: Vec<u64>,
    diffs: Vec<i64>,
    bytes: usize,
}

impl Output {
    fn memory_bytes(&self) -> usize {
        self.indices.capacity() * size_of::<(usize, usize)>()
            + (self.times.capacity() + self.diffs.capacity()) * size_of::<u64>()
    }

    fn build(self, schema: &RowSchema, sources: &[Option<Source>]) -> Result<Sorted, PartError> {
        let none = Sorted::empty(schema);
        let columns = (0..schema.columns())
            .map(|column| {
                let of = |source: &Option<Source>| {
                    let updates = source.as_ref().map_or(&none, |source| &source.updates);
                    Arc::clone(updates.batch().column(column))
                };
                let arrays: Vec<ArrayRef> = sources.iter().map(of).collect();
                let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
                // Views would keep every source alive that they point into.
                interleave(&arrays, &self.indices)
                    .map(|array| compact(&array))
                    .map_err(PartError::arrow("gather merged rows; merge into smaller batches"))
            })
            .collect::<Result<Vec<ArrayRef>, _>>()?;
        let updates =
            Updates::from_columns(schema, columns, self.times.into(), Int64Array::from(self.diffs))?;
        Ok(Sorted::vouch(updates))
    }
}

/// Merges runs whose chunks are all in memory, as an iterator over the result's batches.
pub fn merge_chunks(
    schema: &RowSchema,
    runs: Vec<Vec<Sorted>>,
    limits: OutputLimits,
) -> impl Iterator<Item = Result<Sorted, PartError>> + use<> {
    let mut merge = Some(RunMerge::new(schema, runs.len(), limits));
    let mut runs: Vec<_> = runs.into_iter().map(Vec::into_iter).collect();
    std::iter::from_fn(move || {
        let state = merge.as_mut()?;
        loop {
            let moved = match state.step() {
                Ok(MergeStep::Ready(batch)) => return Some(Ok(batch)),
                Ok(MergeStep::Need(run)) => match runs.get_mut(run).and_then(Iterator::next) {
                    Some(chunk) => state.push(run, chunk),
                    None => state.finish(run),
                },
                Ok(MergeStep::Done) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = moved {
                merge = None;
                return Some(Err(error));
            }
        }
        merge = None;
        None
    })
}

/// Merges runs of one chunk each.
pub fn merge_all(schema: &RowSchema, runs: Vec<Sorted>) -> Result<Vec<Sorted>, PartError> {
    let runs = runs.into_iter().map(|run| vec![run]).collect();
    merge_chunks(schema, runs, OutputLimits { rows: 65_536, ..OutputLimits::default() }).collect()
}
