//! The oracle of the demo: what a changefeed says, and what was delivered, as sums that can be compared at every time.
//!
//! A *tally* holds for each (table, time) the number of updates, the sum of their diffs, and a *digest*: the
//! sum of diff × H(row) modulo 2^128, where H is the first 128 bits of BLAKE3 over the row's columns in Arrow's
//! row format. Sums do not depend on the order of updates, on how they were cut, on how many workers brought them, or on
//! whether they were consolidated. Digests of two contents that differ are equal with a probability of about 2^-128.
//!
//! - Rows are equal as Stash has it: nulls are values, −0.0 is not 0.0, dictionaries count by value.
//! - Nothing here is shared with the product: the code that is checked does not check itself.
//! - Some updates are also kept row by row, consolidated, so that a mismatch can name rows. Where they become too many,
//!   the fullest time is thinned to the rows whose hash begins with one more zero: which rows stay depends on the rows
//!   alone, so two thinned tallies still know the same ones. The digest decides in any case.

mod compare;

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
};

use arrow::{
    array::RecordBatch,
    datatypes::{DataType, SchemaRef},
    error::ArrowError,
    row::{RowConverter, SortField},
    util::display::{ArrayFormatter, FormatOptions},
};

pub use self::compare::compare;
use super::feed::{self, Feed, Table};

/// How many consolidated updates a tally keeps row by row unless told otherwise; about 300 bytes each for lines.
pub const EXACT_ROWS_MAX: usize = 250_000;

/// The zeros a hash must begin with where no row is kept.
const NO_ROWS: u32 = u128::BITS + 1;

/// Why updates cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum TallyError {
    /// There is no such table.
    #[error("table {table} does not exist: the tally has {tables}")]
    NoTable {
        /// Its place.
        table: usize,
        /// How many there are.
        tables: usize,
    },
    /// A batch does not have the table's columns.
    #[error("a batch of table {table:?} cannot be counted: {why}")]
    Shape {
        /// The table's name.
        table: String,
        /// What differs.
        why: String,
    },
    /// Two tallies of different tables.
    #[error("tallies of different tables cannot be added up: {ours:?} and {theirs:?}")]
    Tables {
        /// The names on this side.
        ours: Vec<String>,
        /// The names on the other side.
        theirs: Vec<String>,
    },
    /// The rows have no canonical form.
    #[error("rows of table {table:?} cannot be encoded")]
    Encode {
        /// The table's name.
        table: String,
        /// Arrow's reason.
        #[source]
        source: ArrowError,
    },
}

/// The content of a table at a time, or what one time changes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The sum of all diffs: how many rows, counted by multiplicity.
    pub rows: i128,
    /// The sum of diff × H(row) modulo 2^128.
    pub digest: u128,
}

impl Content {
    fn and(self, other: Content) -> Content {
        let Content { rows, digest } = other;
        Content { rows: self.rows.wrapping_add(rows), digest: self.digest.wrapping_add(digest) }
    }
}

/// A digest is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let word = bytes.first_chunk::<8>().copied().unwrap_or_default();
        self.0 ^= u64::from_le_bytes(word);
    }
}

/// A row as it is kept: its encoding, and the sum of its diffs.
#[derive(Clone, Debug)]
struct Kept {
    row: Box<[u8]>,
    diff: i128,
}

/// Rows by their hash; rows whose diffs sum to 0 are not there.
type Exact = HashMap<u128, Kept, BuildHasherDefault<Taken>>;

/// What one time does to a table.
///
/// - `exact` holds exactly the rows whose hash begins with `zeros` zeros and whose diffs do not sum to 0.
#[derive(Clone, Debug, Default)]
struct Moment {
    updates: u64,
    change: Content,
    exact: Exact,
    zeros: u32,
}

#[derive(Debug)]
struct TableTally {
    table: Table,
    converter: Option<RowConverter>,
    moments: BTreeMap<u64, Moment>,
}

/// Sums over the updates of some tables; see the module.
///
/// - `exact_rows` is the number of rows kept in all moments; between calls it is at most `exact_rows_max`.
#[derive(Debug)]
pub struct Tally {
    tables: Vec<TableTally>,
    exact_rows: usize,
    exact_rows_max: usize,
}

impl Tally {
    /// An empty tally of `tables`, which keeps up to [`EXACT_ROWS_MAX`] rows.
    pub fn new(tables: &[Table]) -> Tally {
        Tally::with_exact_rows_max(tables, EXACT_ROWS_MAX)
    }

    /// An empty tally of `tables`, which keeps up to `exact_rows_max` rows; with 0 no mismatch can name rows.
    pub fn with_exact_rows_max(tables: &[Table], exact_rows_max: usize) -> Tally {
        let tally =
            |table: &Table| TableTally { table: table.clone(), converter: None, moments: BTreeMap::new() };
        Tally { tables: tables.iter().map(tally).collect(), exact_rows: 0, exact_rows_max }
    }

    /// The tally of all that `feed` says.
    pub fn of_feed(feed: &dyn Feed) -> anyhow::Result<Tally> {
        let mut tally = Tally::new(&feed.tables());
        tally.add_share(feed, 0, 1)?;
        Ok(tally)
    }

    /// Adds what of `feed` falls to `worker` of `workers`, so that several threads can share the work and
    /// [`Tally::absorb`] one another's.
    pub fn add_share(&mut self, feed: &dyn Feed, worker: u32, workers: u32) -> anyhow::Result<()> {
        for table in 0..self.tables.len() {
            for batch in feed.updates(table, feed.as_of(), feed.end(), worker, workers) {
                self.add(table, &batch?)?;
            }
        }
        Ok(())
    }

    /// Adds a batch of updates of the table at the place `table`: its columns, then `_time` and `_diff`.
    pub fn add(&mut self, table: usize, batch: &RecordBatch) -> Result<(), TallyError> {
        let tables = self.tables.len();
        let tally = self.tables.get_mut(table).ok_or(TallyError::NoTable { table, tables })?;
        let TableTally { table, converter, moments } = tally;
        let parted = feed::part(batch).map_err(|why| TallyError::Shape { table: table.name.clone(), why })?;
        fits(table, &batch.schema(), parted.columns.len())?;
        let encode = |source| TallyError::Encode { table: table.name.clone(), source };
        let converter = match converter {
            Some(converter) => converter,
            None => converter.insert(row_converter(&table.schema).map_err(encode)?),
        };
        // The format has no rows without columns: all of these are the same, empty one.
        let rows = if parted.columns.is_empty() {
            None
        } else {
            Some(converter.convert_columns(parted.columns).map_err(encode)?)
        };
        let zeros = if self.exact_rows_max == 0 { NO_ROWS } else { 0 };
        let mut first = 0;
        for run in parted.times.chunk_by(|a, b| a == b) {
            let moment = moments.entry(run[0]).or_insert_with(|| Moment { zeros, ..Moment::default() });
            let before = moment.exact.len();
            for at in first..first + run.len() {
                let row = rows.as_ref().map(|rows| rows.row(at));
                let row = row.as_ref().map_or(&[][..], |row| row.data());
                let hash = hash(row);
                moment.count(parted.diffs[at], hash);
                moment.keep(hash, parted.diffs[at].into(), || row.into());
            }
            self.exact_rows = self.exact_rows + moment.exact.len() - before;
            first += run.len();
        }
        self.thin();
        Ok(())
    }

    /// Adds all that `other` has counted: the tallies of several workers or replicas' shares make one.
    pub fn absorb(&mut self, other: Tally) -> Result<(), TallyError> {
        if !self.tables.iter().map(|tally| &tally.table).eq(other.tables.iter().map(|tally| &tally.table)) {
            let names = |tally: &Tally| tally.tables.iter().map(|tally| tally.table.name.clone()).collect();
            return Err(TallyError::Tables { ours: names(self), theirs: names(&other) });
        }
        for (ours, theirs) in self.tables.iter_mut().zip(other.tables) {
            for (time, Moment { updates, change, exact, zeros }) in theirs.moments {
                let moment = ours.moments.entry(time).or_default();
                let before = moment.exact.len();
                moment.updates += updates;
                moment.change = moment.change.and(change);
                moment.thin_to(zeros);
                for (hash, Kept { row, diff }) in exact {
                    moment.keep(hash, diff, || row);
                }
                self.exact_rows = self.exact_rows + moment.exact.len() - before;
            }
        }
        self.thin();
        Ok(())
    }

    /// Brings the number of kept rows back to its limit, at the cost of the fullest times.
    fn thin(&mut self) {
        while self.exact_rows > self.exact_rows_max {
            let moments = self.tables.iter_mut().flat_map(|tally| tally.moments.values_mut());
            let Some(fullest) = moments.max_by_key(|moment| moment.exact.len()) else { return };
            let before = fullest.exact.len();
            fullest.thin_to(fullest.zeros + 1);
            self.exact_rows -= before - fullest.exact.len();
        }
    }

    /// The number of updates added, unconsolidated.
    pub fn update_count(&self) -> u64 {
        self.tables.iter().flat_map(|tally| tally.moments.values()).map(|moment| moment.updates).sum()
    }

    /// The content of the table at the place `table` as of `time`; nothing for a table that does not exist.
    pub fn content_at(&self, table: usize, time: u64) -> Content {
        let moments = self.tables.get(table).into_iter().flat_map(|tally| tally.moments.range(..=time));
        moments.fold(Content::default(), |content, (_, moment)| content.and(moment.change))
    }

    /// The times at which anything was added, over all tables, in order.
    pub fn times(&self) -> Vec<u64> {
        let mut times: Vec<_> = self.tables.iter().flat_map(|tally| tally.moments.keys().copied()).collect();
        times.sort_unstable();
        times.dedup();
        times
    }
}

impl Moment {
    fn count(&mut self, diff: i64, hash: u128) {
        self.updates += 1;
        // The conversion to u128 is that of two's complement: right modulo 2^128, signs included.
        let weighed = hash.wrapping_mul(i128::from(diff) as u128);
        self.change = self.change.and(Content { rows: diff.into(), digest: weighed });
    }

    /// Counts a row by itself, if it is one of those that are kept.
    fn keep(&mut self, hash: u128, diff: i128, row: impl FnOnce() -> Box<[u8]>) {
        if diff == 0 || hash.leading_zeros() < self.zeros {
            return;
        }
        match self.exact.entry(hash) {
            Entry::Vacant(entry) => _ = entry.insert(Kept { row: row(), diff }),
            Entry::Occupied(mut entry) => {
                entry.get_mut().diff += diff;
                if entry.get().diff == 0 {
                    entry.remove();
                }
            }
        }
    }

    /// Keeps only rows whose hash begins with `zeros` zeros, or more if it is so already.
    fn thin_to(&mut self, zeros: u32) {
        if zeros > self.zeros {
            self.zeros = zeros;
            self.exact.retain(|hash, _| hash.leading_zeros() >= zeros);
            self.exact.shrink_to_fit();
        }
    }
}

/// The first 128 bits of the digest of a row.
fn hash(row: &[u8]) -> u128 {
    let digest = blake3::hash(row);
    let (half, _) = digest.as_bytes().split_at(16);
    half.iter().fold(0, |hash, byte| (hash << 8) | u128::from(*byte))
}

fn row_converter(schema: &SchemaRef) -> Result<RowConverter, ArrowError> {
    RowConverter::new(schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect())
}

/// Whether a batch with `schema`, of which the first `columns` are the row's, has the columns of `table`.
fn fits(table: &Table, schema: &SchemaRef, columns: usize) -> Result<(), TallyError> {
    let given = schema.fields().iter().take(columns);
    let column = |name: &str, data_type: &DataType| format!("{name} {data_type}");
    let same = given.len() == table.schema.fields().len()
        && given
            .clone()
            .zip(table.schema.fields())
            .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
    if same {
        return Ok(());
    }
    let list = |columns: Vec<String>| columns.join(", ");
    let why = format!(
        "it has the columns ({}), and should have ({})",
        list(given.map(|field| column(field.name(), field.data_type())).collect()),
        list(table.schema.fields().iter().map(|field| column(field.name(), field.data_type())).collect()),
    );
    Err(TallyError::Shape { table: table.name.clone(), why })
}

impl TableTally {
    /// A kept row as people read it: `name=value` for each column.
    fn show(&self, row: &[u8]) -> String {
        let shown = || -> Result<String, ArrowError> {
            let converter = row_converter(&self.table.schema)?;
            let columns = converter.convert_rows([converter.parser().parse(row)])?;
            let options = FormatOptions::default().with_null("null");
            let mut text = Vec::with_capacity(columns.len());
            for (field, column) in self.table.schema.fields().iter().zip(&columns) {
                let value = ArrayFormatter::try_new(column.as_ref(), &options)?.value(0).try_to_string()?;
                text.push(format!("{}={value}", field.name()));
            }
            Ok(text.join(" "))
        };
        // A row of no columns has no text; one that cannot be shown is still named by its bytes' digest.
        shown().unwrap_or_else(|error| format!("row {:032x} ({error})", hash(row)))
    }
}

#[cfg(test)]
mod tests;
