//! What the consumer hands on, gathered batch by batch.
//!
//! A batch counts once it is whole. A consumer that dies in the middle of one is handed the same again, and
//! a batch that was counted already is recognised by its upper: exactly once is what the chain and an
//! idempotent reader make together.

use anyhow::{Context, bail};
use arrow::ipc::reader::StreamReader;

use super::{feed::Table, tally::Tally};

/// The consumer's own state.
#[derive(Debug)]
pub struct Delivered {
    tables: Vec<Table>,
    whole: Tally,
    open: Vec<Option<Open>>,
    positions: Vec<u64>,
    /// Updates in whole batches.
    pub updates: u64,
    /// Bytes of them as Arrow columns.
    pub bytes: u64,
    /// Whole batches.
    pub batches: u64,
    /// Batches that began and whose consumer died, or that had been counted already.
    pub repeated: u64,
}

#[derive(Debug)]
struct Open {
    lower: u64,
    upper: u64,
    tally: Tally,
    updates: u64,
    bytes: u64,
}

impl Delivered {
    /// Nothing yet.
    pub fn new(tables: Vec<Table>, as_of: u64) -> Delivered {
        Delivered {
            whole: Tally::new(&tables),
            open: tables.iter().map(|_| None).collect(),
            positions: tables.iter().map(|_| as_of).collect(),
            tables,
            updates: 0,
            bytes: 0,
            batches: 0,
            repeated: 0,
        }
    }

    /// A batch begins.
    pub fn begin(&mut self, table: usize, lower: u64, upper: u64) -> anyhow::Result<()> {
        let tally = Tally::new(&self.tables);
        let open = self.open.get_mut(table).context("an unknown table")?;
        if open.is_some() {
            bail!("a batch begins before the last one ended");
        }
        *open = Some(Open { lower, upper, tally, updates: 0, bytes: 0 });
        Ok(())
    }

    /// Updates of the open batch, as an Arrow IPC stream.
    pub fn rows(&mut self, table: usize, bytes: &[u8]) -> anyhow::Result<()> {
        let open = self.open.get_mut(table).and_then(Option::as_mut).context("rows outside a batch")?;
        for batch in StreamReader::try_new(bytes, None)? {
            let batch = batch?;
            open.updates += batch.num_rows() as u64;
            open.tally.add(table, &batch)?;
        }
        open.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The open batch is whole: it counts, unless it did already.
    pub fn end(&mut self, table: usize) -> anyhow::Result<()> {
        let open = self.open.get_mut(table).and_then(Option::take).context("an end outside a batch")?;
        let position = self.positions.get_mut(table).context("an unknown table")?;
        if open.upper <= *position {
            self.repeated += 1;
            return Ok(());
        }
        if open.lower != *position {
            bail!("a batch begins at {}, but {} was handed over last: a gap", open.lower, position);
        }
        *position = open.upper;
        self.whole.absorb(open.tally)?;
        self.updates += open.updates;
        self.bytes += open.bytes;
        self.batches += 1;
        Ok(())
    }

    /// The consumer died: what was not whole does not count.
    pub fn consumer_died(&mut self) {
        for open in &mut self.open {
            self.repeated += u64::from(open.take().is_some());
        }
    }

    /// Up to where a table was handed over.
    pub fn position(&self, table: usize) -> u64 {
        self.positions.get(table).copied().unwrap_or_default()
    }

    /// All that was handed over.
    pub fn tally(&self) -> &Tally {
        &self.whole
    }
}
