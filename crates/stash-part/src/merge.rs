//! Merging sorted runs into one, consolidated, without asking where their chunks come from.
//!
//! [`RunMerge`] is a state machine: it says which run's next chunk it needs, takes it, and gives batches when
//! they are full. Whoever drives it does the waiting. A *run* is a sequence of [`Sorted`] chunks, each beginning
//! no earlier than the one before ended; an equal (row, time) may stand on both sides of that border.
//!
//! - Equal (row, time) are summed across runs and across chunk borders; zeros are dropped.
//! - What only one run still holds is passed on as slices of its own chunks.
//! - At most one chunk per run is held, plus what the batch being filled points into, and one look-ahead.

use std::{cmp::Ordering, collections::VecDeque, sync::Arc};

use arrow::array::{ArrayRef, Int64Array};
use arrow::compute::interleave;

use crate::error::PartError;
use crate::order::OrderedRows;
use crate::schema::RowSchema;
use crate::sort::narrow;
use crate::updates::{Sorted, Updates};

/// Batches are given out early when their rows come to this many bytes.
const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// A run that wins this often in a row is searched for where it stops winning.
const GALLOP_AFTER: usize = 8;

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

/// A k-way merge with consolidation.
#[derive(Debug)]
pub struct RunMerge {
    schema: RowSchema,
    output_rows: usize,
    runs: Vec<Run>,
    /// A winner tree over the runs' heads; rebuilt whenever a chunk comes or goes.
    tree: Tree,
    /// The latest distinct (row, time), to which an equal one may still be added.
    pending: Option<Pending>,
    output: Output,
    ready: VecDeque<Sorted>,
    /// A chunk of the only run left, kept whole until it is known that the next does not begin with its last row.
    held: Option<Arc<Chunk>>,
}

#[derive(Debug, Default)]
struct Run {
    head: Option<Head>,
    finished: bool,
    /// The last row of the previous chunk, to check the order of the next.
    last: Option<OrderedRows>,
}

/// A chunk and where its run stands in it.
#[derive(Debug, Clone)]
struct Head {
    chunk: Arc<Chunk>,
    row: usize,
}

#[derive(Debug)]
struct Chunk {
    updates: Sorted,
    rows: OrderedRows,
    bytes_per_row: usize,
}

#[derive(Debug)]
struct Pending {
    chunk: Arc<Chunk>,
    row: usize,
    sum: i128,
}

impl Head {
    fn compare(&self, other: &Head) -> Ordering {
        self.chunk.rows.compare(self.row, &other.chunk.rows, other.row)
    }
}

impl RunMerge {
    /// A merge of `runs` runs into batches of about `output_rows` rows.
    pub fn new(schema: &RowSchema, runs: usize, output_rows: usize) -> RunMerge {
        RunMerge {
            schema: schema.clone(),
            output_rows: output_rows.max(1),
            runs: std::iter::repeat_with(Run::default).take(runs).collect(),
            tree: Tree::default(),
            pending: None,
            output: Output::default(),
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
                return Ok(MergeStep::Need(run));
            }
            let mut live = (0..self.runs.len()).filter(|run| self.runs[*run].head.is_some());
            match (live.next(), live.next()) {
                (None, _) => {
                    self.settle()?;
                    self.flush()?;
                    if let Some(chunk) = self.held.take() {
                        self.pass(&chunk.updates);
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
        let rows = OrderedRows::new(&chunk)?;
        if let Some(last) = &state.last
            && last.compare(0, &rows, 0).is_gt()
        {
            return Err(PartError::OutOfOrder { run });
        }
        // The last row is copied out, so that no run keeps two chunks alive.
        state.last = Some(OrderedRows::new(&chunk.row(chunk.num_rows() - 1)?)?);
        let bytes_per_row = chunk.memory_bytes() / chunk.num_rows();
        let chunk = Arc::new(Chunk { updates: chunk, rows, bytes_per_row });
        state.head = Some(Head { chunk, row: 0 });
        Ok(())
    }

    /// Says that `run` has no further chunk.
    pub fn finish(&mut self, run: usize) -> Result<(), PartError> {
        self.run(run)?.finished = true;
        Ok(())
    }

    /// Bytes held: chunks, their comparable forms, and batches not yet taken.
    pub fn memory_bytes(&self) -> usize {
        let chunk = |chunk: &Chunk| chunk.updates.memory_bytes() + chunk.rows.memory_bytes();
        let heads = self.runs.iter().filter_map(|run| run.head.as_ref()).map(|head| &head.chunk);
        // A chunk may be both a head and a source of the batch being filled: count it once.
        let mut chunks: Vec<&Arc<Chunk>> = heads.chain(&self.output.sources).chain(&self.held).collect();
        chunks.sort_by_key(|chunk| Arc::as_ptr(chunk));
        chunks.dedup_by_key(|chunk| Arc::as_ptr(chunk));
        chunks.into_iter().map(|held| chunk(held)).sum::<usize>()
            + self.ready.iter().map(|batch| batch.memory_bytes()).sum::<usize>()
            + self.output.memory_bytes()
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
        self.tree = Tree::build(&self.runs);
        let mut streak = (usize::MAX, 0);
        while self.ready.is_empty() {
            let Some(winner) = self.tree.winner() else { return Ok(()) };
            streak = if streak.0 == winner { (winner, streak.1 + 1) } else { (winner, 0) };
            let Some(head) = self.runs[winner].head.take() else { return Ok(()) };
            let end = if streak.1 >= GALLOP_AFTER {
                streak.1 = 0;
                self.tree.second(winner, &self.runs).map_or(head.row + 1, |second| gallop(&head, second))
            } else {
                head.row + 1
            };
            for row in head.row..end {
                self.take_row(&head.chunk, row)?;
            }
            if end == head.chunk.rows.len() {
                return Ok(());
            }
            self.runs[winner].head = Some(Head { chunk: head.chunk, row: end });
            self.tree.update(winner, &self.runs);
        }
        Ok(())
    }

    /// Adds one row of the merged sequence: to the pending one if equal, else after it.
    fn take_row(&mut self, chunk: &Arc<Chunk>, row: usize) -> Result<(), PartError> {
        let diff = i128::from(chunk.updates.diffs()[row]);
        match &mut self.pending {
            Some(pending) if pending.chunk.rows.compare(pending.row, &chunk.rows, row).is_eq() => {
                pending.sum += diff;
            }
            _ => {
                self.settle()?;
                self.pending = Some(Pending { chunk: Arc::clone(chunk), row, sum: diff });
            }
        }
        Ok(())
    }

    /// Nothing equal to the pending row is to come: it goes out, unless it came to nothing.
    fn settle(&mut self) -> Result<(), PartError> {
        let Some(Pending { chunk, row, sum }) = self.pending.take() else { return Ok(()) };
        let diff = narrow(sum, chunk.updates.times()[row])?;
        if diff != 0 {
            self.output.push(&chunk, row, diff);
            if self.output.indices.len() >= self.output_rows || self.output.bytes >= OUTPUT_BYTES_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PartError> {
        let output = std::mem::take(&mut self.output);
        if !output.indices.is_empty() {
            self.ready.push_back(output.build(&self.schema)?);
        }
        Ok(())
    }

    /// Passes on the rest of the only run that has one.
    fn pass_run(&mut self, run: usize) -> Result<(), PartError> {
        self.release_held_before(run)?;
        let Some(mut head) = self.runs[run].head.take() else { return Ok(()) };
        // The pending row may have an equal one at the head: chunks are consolidated, so at most one.
        self.take_row_if_equal(&mut head)?;
        if head.row == head.chunk.rows.len() {
            return Ok(());
        }
        self.settle()?;
        self.flush()?;
        if head.row == 0 {
            self.held = Some(head.chunk);
            return Ok(());
        }
        let rest = head.chunk.updates.slice(head.row, head.chunk.rows.len() - head.row);
        let rows = OrderedRows::new(&rest)?;
        let bytes_per_row = head.chunk.bytes_per_row;
        self.held = Some(Arc::new(Chunk { updates: rest, rows, bytes_per_row }));
        Ok(())
    }

    fn take_row_if_equal(&mut self, head: &mut Head) -> Result<(), PartError> {
        if let Some(pending) = &self.pending
            && pending.chunk.rows.compare(pending.row, &head.chunk.rows, head.row).is_eq()
        {
            self.take_row(&Arc::clone(&head.chunk), head.row)?;
            head.row += 1;
        }
        Ok(())
    }

    /// The held chunk goes out; its last row becomes pending if the head of `run` equals it.
    fn release_held_before(&mut self, run: usize) -> Result<(), PartError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let last = held.rows.len() - 1;
        let equal = (self.runs[run].head.as_ref())
            .is_some_and(|head| held.rows.compare(last, &head.chunk.rows, head.row).is_eq());
        if equal {
            self.pass(&held.updates.slice(0, last));
            self.take_row(&held, last)?;
        } else {
            self.pass(&held.updates);
        }
        Ok(())
    }

    /// Gives out `updates` in slices, without copying.
    fn pass(&mut self, updates: &Sorted) {
        let mut from = 0;
        while from < updates.num_rows() {
            let slice = updates.slice(from, self.output_rows);
            from += slice.num_rows();
            self.ready.push_back(slice);
        }
    }
}

/// The end of the stretch of `head` that stands before `second`; at least one row.
fn gallop(head: &Head, second: &Head) -> usize {
    let before = |row: usize| head.chunk.rows.compare(row, &second.chunk.rows, second.row).is_lt();
    let len = head.chunk.rows.len();
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
#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<Option<usize>>,
    leaves: usize,
}

impl Tree {
    fn build(runs: &[Run]) -> Tree {
        let leaves = runs.len().next_power_of_two();
        let mut tree = Tree { nodes: vec![None; 2 * leaves], leaves };
        for (run, state) in runs.iter().enumerate() {
            tree.nodes[leaves + run] = state.head.is_some().then_some(run);
        }
        for node in (1..leaves).rev() {
            tree.nodes[node] = first(runs, tree.nodes[2 * node], tree.nodes[2 * node + 1]);
        }
        tree
    }

    fn winner(&self) -> Option<usize> {
        self.nodes.get(1).copied().flatten()
    }

    /// Replays the matches of `run`, whose head moved.
    fn update(&mut self, run: usize, runs: &[Run]) {
        let mut node = (self.leaves + run) / 2;
        while node > 0 {
            self.nodes[node] = first(runs, self.nodes[2 * node], self.nodes[2 * node + 1]);
            node /= 2;
        }
    }

    /// The head that stands first among all but `winner`: the best of those it beat.
    fn second<'a>(&self, winner: usize, runs: &'a [Run]) -> Option<&'a Head> {
        let mut node = self.leaves + winner;
        let mut best = None;
        while node > 1 {
            best = first(runs, best, self.nodes[node ^ 1]);
            node /= 2;
        }
        runs[best?].head.as_ref()
    }
}

fn first(runs: &[Run], a: Option<usize>, b: Option<usize>) -> Option<usize> {
    let (Some(left), Some(right)) = (a, b) else { return a.or(b) };
    match (&runs[left].head, &runs[right].head) {
        (Some(x), Some(y)) if x.compare(y).is_le() => a,
        (Some(_), None) => a,
        _ => b,
    }
}

/// The batch being filled: which row of which chunk, and its diff.
#[derive(Debug, Default)]
struct Output {
    sources: Vec<Arc<Chunk>>,
    indices: Vec<(usize, usize)>,
    times: Vec<u64>,
    diffs: Vec<i64>,
    bytes: usize,
}

impl Output {
    fn push(&mut self, chunk: &Arc<Chunk>, row: usize, diff: i64) {
        // Few chunks are live at a time, and the latest ones are used most.
        let source = match self.sources.iter().rposition(|source| Arc::ptr_eq(source, chunk)) {
            Some(source) => source,
            None => {
                self.sources.push(Arc::clone(chunk));
                self.sources.len() - 1
            }
        };
        self.indices.push((source, row));
        self.times.push(chunk.updates.times()[row]);
        self.diffs.push(diff);
        self.bytes += chunk.bytes_per_row;
    }

    fn memory_bytes(&self) -> usize {
        self.indices.capacity() * size_of::<(usize, usize)>()
            + (self.times.capacity() + self.diffs.capacity()) * size_of::<u64>()
    }

    fn build(self, schema: &RowSchema) -> Result<Sorted, PartError> {
        let columns = (0..schema.columns())
            .map(|column| {
                let arrays: Vec<&dyn arrow::array::Array> =
                    self.sources.iter().map(|chunk| chunk.updates.batch().column(column).as_ref()).collect();
                interleave(&arrays, &self.indices)
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
    output_rows: usize,
) -> impl Iterator<Item = Result<Sorted, PartError>> + use<> {
    let mut merge = Some(RunMerge::new(schema, runs.len(), output_rows));
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
    merge_chunks(schema, runs, 65_536).collect()
}
