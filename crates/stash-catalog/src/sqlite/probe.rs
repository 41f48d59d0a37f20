//! Rows of any values, read as the rows of a table are.
//!
//! A catalog file that was damaged or edited may hold anything, whatever its tables demand. A probe makes such
//! rows without a file: it selects the values it is given under the names that a table's decoder asks for. Every
//! row must come out as a value or as [`CatalogError::Damaged`](crate::CatalogError::Damaged). No data passes through here outside of tests.

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};
use stash_types::{CatalogId, InlineRun, ShardId};
use uuid::Uuid;

use super::connection::failure;
use crate::Committed;
use crate::rows::{
    BatchRow, ConsumerRow, DeletionRow, HeadRow, HistoryRow, IncarnationRow, PartRow, SinkRow,
};
use crate::sql::Result;
use crate::sql::decode::Fields;

/// Where a probe says it is.
const LOCATION: &str = "probe";

/// What a column holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Null,
    /// An integer.
    Int(i64),
    /// A number with a fraction.
    Real(f64),
    /// Text, which need not be UTF-8.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

/// A table, as one of its decoders reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// `sinks`.
    Sinks,
    /// `chains`.
    Chains,
    /// `incarnations`.
    Incarnations,
    /// `incarnations`: the commit that is recorded there.
    Commits,
    /// `batches`.
    Batches,
    /// `parts`.
    Parts,
    /// `inline_runs`.
    InlineRuns,
    /// `consumers`.
    Consumers,
    /// `deletions`.
    Deletions,
    /// `history`.
    History,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 10] = [
        Table::Sinks,
        Table::Chains,
        Table::Incarnations,
        Table::Commits,
        Table::Batches,
        Table::Parts,
        Table::InlineRuns,
        Table::Consumers,
        Table::Deletions,
        Table::History,
    ];

    /// The columns its decoder reads.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Sinks => &[
                "id",
                "name",
                "schema",
                "fingerprint",
                "as_of",
                "up_to",
                "seals",
                "retention_ms",
                "absent_hold_ms",
                "declared",
                "dropped",
            ],
            Table::Chains => &[
                "sink",
                "upper",
                "fence",
                "next_seq",
                "status",
                "poisoned_at",
                "poison_message",
                "released",
                "expired",
                "revision",
            ],
            Table::Incarnations => &[
                "id",
                "sink",
                "replica",
                "launch",
                "as_of",
                "resolved",
                "closed",
                "last_lower",
                "last_upper",
                "last_outcome",
                "last_from",
                "opened",
                "lease_until",
            ],
            Table::Commits => &["commit_revision", "commit_seq", "commit_upper", "commit_fence"],
            Table::Batches => &[
                "id",
                "seq",
                "lower",
                "upper",
                "extent",
                "offered_lower",
                "offered_upper",
                "incarnation",
                "facts",
                "accepted",
            ],
            Table::Parts => &["key", "seq", "descriptor"],
            Table::InlineRuns => &["seq", "run_group", "payload", "digest", "facts", "schema"],
            Table::Consumers => &["name", "acked", "session", "seen"],
            Table::Deletions => &["key", "sink", "reason", "queued", "attempts"],
            Table::History => &["at", "sink", "incarnation", "key", "event", "detail"],
        }
    }
}

/// What a row came out as.
#[derive(Clone, Debug, PartialEq)]
pub enum Probed {
    /// A sink.
    Sink(SinkRow),
    /// The head of a chain.
    Head(HeadRow),
    /// An incarnation.
    Incarnation(IncarnationRow),
    /// A recorded commit.
    Committed(Committed),
    /// A batch, without its parts and runs.
    Batch(BatchRow),
    /// A part, with the `seq` of its batch.
    Part(u64, PartRow),
    /// An inline run, with the `seq` of its batch.
    Inline(u64, InlineRun),
    /// A consumer.
    Consumer(ConsumerRow),
    /// A key that is queued for deletion.
    Deletion(DeletionRow),
    /// An event.
    History(HistoryRow),
}

/// Reads rows of any values.
#[derive(Debug)]
pub struct RowProbe {
    connection: SqliteConnection,
}

impl RowProbe {
    /// A probe; needs a tokio runtime.
    pub async fn open() -> Result<RowProbe> {
        let options = SqliteConnectOptions::new().in_memory(true).disable_statement_logging();
        let connection = options.connect().await.map_err(|error| failure(LOCATION, "open", error))?;
        Ok(RowProbe { connection })
    }

    /// Reads `cells` as a row of `table`. Columns without a cell are null, cells without a column are left out.
    pub async fn read(&mut self, table: Table, cells: &[Cell]) -> Result<Probed> {
        let cells = || table.columns().iter().zip(cells.iter().chain(std::iter::repeat(&Cell::Null)));
        let columns: Vec<String> = cells()
            .map(|(name, cell)| match cell {
                // Text that is no UTF-8 cannot be bound, but SQLite makes it of bytes.
                Cell::Text(_) => format!("CAST(? AS TEXT) AS {name}"),
                _ => format!("? AS {name}"),
            })
            .collect();
        let mut query = sqlx::query(AssertSqlSafe(format!("SELECT {}", columns.join(", "))));
        for (_, cell) in cells() {
            query = match cell {
                Cell::Null => query.bind(None::<i64>),
                Cell::Int(value) => query.bind(*value),
                Cell::Real(value) => query.bind(*value),
                Cell::Text(bytes) | Cell::Blob(bytes) => query.bind(bytes.clone()),
            };
        }
        let row =
            query.fetch_one(&mut self.connection).await.map_err(|error| failure(LOCATION, "probe", error))?;
        let fields = Fields::new(LOCATION, "probe", &row);
        Ok(match table {
            Table::Sinks => {
                Probed::Sink(fields.sink(|sink| ShardId::derive(CatalogId::from_uuid(Uuid::nil()), sink))?)
            }
            Table::Chains => Probed::Head(fields.head()?),
            Table::Incarnations => Probed::Incarnation(fields.incarnation()?),
            Table::Commits => Probed::Committed(fields.committed()?),
            Table::Batches => Probed::Batch(fields.batch()?),
            Table::Parts => fields.part().map(|(seq, part)| Probed::Part(seq, part))?,
            Table::InlineRuns => fields.inline().map(|(seq, run)| Probed::Inline(seq, run))?,
            Table::Consumers => Probed::Consumer(fields.consumer()?),
            Table::Deletions => Probed::Deletion(fields.deletion()?),
            Table::History => Probed::History(fields.history()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CatalogError;

    #[tokio::test]
    async fn a_row_is_a_value_or_names_the_column_that_is_damaged() {
        let mut probe = RowProbe::open().await.expect("opens");
        let text = |text: &str| Cell::Text(text.into());
        let session = "e00000000-0000-0000-0000-000000000007";
        let consumer = [text("me"), Cell::Blob(vec![0, 0, 0, 0, 0, 0, 0, 9]), text(session), Cell::Int(5)];
        let Ok(Probed::Consumer(row)) = probe.read(Table::Consumers, &consumer).await else {
            panic!("a consumer is expected");
        };
        assert_eq!((row.name.as_str(), row.acked.as_u64(), row.seen.0), ("me", 9, 5));
        for (at, cell, named) in [
            (0, Cell::Text(vec![0xff]), "name"),
            (1, Cell::Blob(vec![9]), "acked"),
            (1, Cell::Text(vec![0, 0, 0, 0, 0, 0, 0, 9]), "acked"),
            (2, text(&session.to_uppercase()), "session"),
            (3, Cell::Int(-1), "seen"),
            (3, Cell::Null, "seen"),
        ] {
            let mut damaged = consumer.clone();
            damaged[at] = cell;
            let error = probe.read(Table::Consumers, &damaged).await.expect_err(named);
            let CatalogError::Damaged { what, .. } = &error else { panic!("{error}") };
            assert!(what.contains(&format!("column {named}")), "{what}");
        }
        for table in Table::ALL {
            let error = probe.read(table, &[]).await.expect_err("no row is all nulls");
            assert!(matches!(error, CatalogError::Damaged { .. }), "{table:?}: {error}");
        }
    }
}
