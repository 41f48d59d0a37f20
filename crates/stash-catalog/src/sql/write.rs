//! Transactions: statements of one operation, and what every write does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stash_types::{SinkId, Timestamp, fault};

use super::decode::{Columns, Fields};
use super::link::{Arg, Held, Link, Row, Uncommitted, args};
#[cfg(feature = "postgres")]
use super::watch::channel;
use super::{Dialect, Result, Sql, head_columns};
use crate::{CatalogError, HeadRow, HeadStatus, Misuse};

/// The statements of one operation.
#[derive(Debug)]
pub(crate) struct Tx<'c> {
    pub(crate) catalog: &'c Sql,
    pub(crate) op: &'static str,
    link: Box<dyn Link + 'c>,
}

impl Sql {
    /// Waits for a connection that writes.
    pub(crate) async fn writer(&self, op: &'static str) -> Result<Box<dyn Held + '_>> {
        self.held(op, self.database.writer().await)
    }

    /// Waits for a connection that reads.
    pub(crate) async fn reader(&self, op: &'static str) -> Result<Box<dyn Held + '_>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.was_closed(op));
        }
        self.held(op, self.database.reader().await)
    }

    fn held<'s>(
        &self,
        op: &'static str,
        held: sqlx::Result<Option<Box<dyn Held + 's>>>,
    ) -> Result<Box<dyn Held + 's>> {
        held.map_err(|error| self.failed(op, error))?.ok_or_else(|| self.was_closed(op))
    }

    /// Statements that need no common snapshot.
    pub(crate) fn each<'c>(&'c self, op: &'static str, held: &'c mut Box<dyn Held + '_>) -> Tx<'c> {
        Tx { catalog: self, op, link: held.each() }
    }

    /// Begins a transaction that reads one snapshot; it ends when it is dropped.
    pub(crate) async fn read<'c>(
        &'c self,
        op: &'static str,
        held: &'c mut Box<dyn Held + '_>,
    ) -> Result<Tx<'c>> {
        let link = held.snapshot().await.map_err(|error| self.failed(op, error))?;
        Ok(Tx { catalog: self, op, link })
    }

    /// Begins a transaction that writes; nothing of it remains unless it is committed.
    pub(crate) async fn write<'c>(
        &'c self,
        op: &'static str,
        held: &'c mut Box<dyn Held + '_>,
    ) -> Result<Write<'c>> {
        // Read before the lock is taken: whoever committed in between can only have raised it.
        let saw = self.seen.load(Ordering::Acquire);
        let link = held.begin().await.map_err(|error| self.failed(op, error))?;
        fault::place("catalog.begun");
        let mut tx = Tx { catalog: self, op, link };
        let now = tx.now().await?;
        Ok(Write { tx, now, saw })
    }
}

impl<'c> Tx<'c> {
    /// Turns a failed statement into this operation's error.
    pub(crate) fn failed(&self, error: sqlx::Error) -> CatalogError {
        self.catalog.failed(self.op, error)
    }

    /// Of two texts of a statement the one that this database takes.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "the text of a database left out")
    )]
    pub(crate) fn pick(&self, sqlite: &'static str, postgres: &'static str) -> &'static str {
        match self.catalog.database.dialect() {
            Dialect::Sqlite => sqlite,
            #[cfg(feature = "postgres")]
            Dialect::Postgres => postgres,
        }
    }

    /// Runs a statement, and leaves what its failure means to the caller.
    pub(crate) async fn try_rows(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
        self.link.fetch(sql, args).await
    }

    /// Runs a statement.
    pub(crate) async fn rows(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<Row>> {
        self.try_rows(sql, args).await.map_err(|error| self.failed(error))
    }

    /// Runs a statement that returns one row at most.
    pub(crate) async fn row(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Option<Row>> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// Runs a statement that always returns a row.
    pub(crate) async fn one(&mut self, sql: &'static str, args: Vec<Arg>) -> Result<Row> {
        match self.row(sql, args).await? {
            Some(row) => Ok(row),
            None => Err(self.failed(sqlx::Error::RowNotFound)),
        }
    }

    /// The present moment by the catalog's clock.
    pub(crate) async fn now(&mut self) -> Result<Timestamp> {
        match &self.catalog.clock {
            Some(clock) => Ok(Arc::clone(clock).now()),
            None => {
                let sql = self.pick(
                    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now",
                    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now",
                );
                let row = self.one(sql, vec![]).await?;
                self.fields("clock", &row).time("now")
            }
        }
    }

    /// Reads the columns of a row of `table`.
    pub(crate) fn fields<'r>(&self, table: &'static str, row: &'r Row) -> Fields<'r>
    where
        'c: 'r,
    {
        self.catalog.fields(table, row)
    }
}

impl Sql {
    /// Reads the columns of a row of `table`.
    pub(crate) fn fields<'r>(&'r self, table: &'static str, row: &'r Row) -> Fields<'r> {
        let columns: &dyn Columns = &**row;
        Fields::new(&self.location, table, columns)
    }
}

/// Where a process may die in the transaction of an operation: all is written and nothing durable; it is durable
/// and nobody was told.
fn places(op: &str) -> (&'static str, &'static str) {
    match op {
        "declare sink" => ("catalog.declare_ready", "catalog.declare_done"),
        "drop sink" => ("catalog.drop_ready", "catalog.drop_done"),
        "open incarnation" => ("catalog.open_ready", "catalog.open_done"),
        "close incarnation" => ("catalog.close_ready", "catalog.close_done"),
        "commit" => ("catalog.commit_ready", "catalog.commit_done"),
        "register consumer" => ("catalog.register_ready", "catalog.register_done"),
        "acknowledge" => ("catalog.acknowledge_ready", "catalog.acknowledge_done"),
        "enqueue deletions" => ("catalog.enqueue_ready", "catalog.enqueue_done"),
        "dequeue deletions" => ("catalog.dequeue_ready", "catalog.dequeue_done"),
        "expire" => ("catalog.expire_ready", "catalog.expire_done"),
        _ => ("catalog.other_ready", "catalog.other_done"),
    }
}

/// A transaction that writes. Its first statement takes the head row of the sink it writes to.
#[derive(Debug)]
pub(crate) struct Write<'c> {
    pub(crate) tx: Tx<'c>,
    /// The moment of everything this transaction writes.
    pub(crate) now: Timestamp,
    saw: u64,
}

impl<'c> std::ops::Deref for Write<'c> {
    type Target = Tx<'c>;
    fn deref(&self) -> &Tx<'c> {
        &self.tx
    }
}

impl std::ops::DerefMut for Write<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}

impl Write<'_> {
    /// Takes the head row: every other write to the sink waits or has happened. Raises the fence by
    /// `bump`, 1 for what a decision in flight must notice and 0 for the rest.
    pub(crate) async fn take_head(&mut self, sink: SinkId, bump: i64) -> Result<HeadRow> {
        let sql = concat!("UPDATE chains SET fence = fence + $1 WHERE sink = $2 RETURNING ", head_columns!());
        let taken = self.row(sql, args![bump, sink]).await?;
        fault::place("catalog.head_taken");
        match taken {
            Some(row) => self.fields("chains", &row).head(),
            None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
        }
    }

    /// The same, refusing a sink that was dropped.
    pub(crate) async fn take_live_head(&mut self, sink: SinkId, bump: i64) -> Result<HeadRow> {
        let head = self.take_head(sink, bump).await?;
        match head.status {
            HeadStatus::Dropped => Err(CatalogError::SinkDropped { sink }),
            _ => Ok(head),
        }
    }

    /// Raises the catalog's revision; once per transaction, and last: every other write waits for the row.
    pub(crate) async fn revise(&mut self) -> Result<u64> {
        const RAISE: &str = "UPDATE catalog SET revision = revision + 1 WHERE one = 1 RETURNING revision";
        // Other processes are told once this is durable, where the database can.
        const RAISE_AND_TELL: &str =
            "WITH raised AS (UPDATE catalog SET revision = revision + 1 WHERE one = 1 RETURNING revision)
             SELECT revision, pg_notify($1, revision::text) IS NULL AS told FROM raised";
        let args = match self.catalog.database.dialect() {
            Dialect::Sqlite => vec![],
            #[cfg(feature = "postgres")]
            Dialect::Postgres => args![channel(self.catalog.id)],
        };
        let sql = self.pick(RAISE, RAISE_AND_TELL);
        let row = self.one(sql, args).await?;
        let revision = self.fields("catalog", &row).u64("revision")?;
        if revision <= self.saw {
            // I7: the database was swapped for an older one under our feet; writing would fork history.
            return Err(self.catalog.behind(self.saw, revision.saturating_sub(1)));
        }
        Ok(revision)
    }

    /// Raises the revision and writes it on the head row.
    pub(crate) async fn stamp(&mut self, sink: SinkId) -> Result<u64> {
        let revision = self.revise().await?;
        self.rows("UPDATE chains SET revision = $1 WHERE sink = $2", args![revision, sink]).await?;
        Ok(revision)
    }

    /// Makes everything durable, as `revision`, and wakes who waits for it.
    pub(crate) async fn commit(self, revision: u64) -> Result<()> {
        let Write { tx: Tx { catalog, op, link }, .. } = self;
        let (ready, done) = places(op);
        fault::place(ready);
        match link.commit().await {
            Ok(()) => {
                fault::place(done);
                catalog.saw(revision);
                Ok(())
            }
            Err(Uncommitted::Surely(error)) => Err(catalog.failed(op, error)),
            Err(Uncommitted::Perhaps(error, what)) => Err(CatalogError::Indeterminate {
                location: catalog.location.clone(),
                op,
                what: what.to_owned(),
                source: Some(Arc::new(error)),
            }),
        }
    }
}
