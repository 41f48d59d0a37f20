//! Connections and transactions.
//!
//! A transaction that is given up, by an error or because its future was dropped, is rolled back when its connection
//! goes back to the pool, at once and by itself. A connection on which one may have begun unnoticed is closed instead.

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection as _, PgPool, Postgres, Row as _, Transaction, TypeInfo, ValueRef};

use super::failure::is_unknown;
use crate::sql::decode::{Columns, Found};
use crate::sql::link::{Arg, Held, Link, Row, Uncommitted};

/// Reads one snapshot.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// Each statement sees what was committed before it.
const WRITE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// A connection of the pool; `None` once that is closed.
pub(super) async fn held(pool: &PgPool) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
    match pool.acquire().await {
        Ok(connection) => Ok(Some(Box::new(HeldConnection { connection, begins: false }))),
        Err(sqlx::Error::PoolClosed) => Ok(None),
        Err(error) => Err(error),
    }
}

struct HeldConnection {
    connection: PoolConnection<Postgres>,
    /// Whether a transaction was asked for, and nobody heard yet whether it began.
    begins: bool,
}

impl HeldConnection {
    async fn begin(&mut self, sql: &'static str) -> sqlx::Result<Box<dyn Link + '_>> {
        let HeldConnection { connection, begins } = self;
        *begins = true;
        let begun = connection.begin_with(sql).await?;
        *begins = false;
        Ok(Box::new(Changes(begun)))
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        // SUBTLE: sqlx counts a transaction once its beginning was answered, so one whose beginning was cancelled is not
        // rolled back. Back in the pool, the connection would still be in it: the next statement "by itself" would be part
        // of it, answered with success, and gone with the connection.
        if self.begins {
            self.connection.close_on_drop();
        }
    }
}

#[async_trait]
impl Held for HeldConnection {
    fn each(&mut self) -> Box<dyn Link + '_> {
        Box::new(Each(&mut self.connection))
    }

    async fn snapshot(&mut self) -> sqlx::Result<Box<dyn Link + '_>> {
        HeldConnection::begin(self, SNAPSHOT).await
    }

    async fn begin(&mut self) -> sqlx::Result<Box<dyn Link + '_>> {
        HeldConnection::begin(self, WRITE).await
    }
}

/// Statements each by itself.
pub(super) struct Each<'s>(pub(super) &'s mut PgConnection);

#[async_trait]
impl Link for Each<'_> {
    async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
        fetch(self.0, sql, args).await
    }

    async fn commit(self: Box<Self>) -> Result<(), Uncommitted> {
        Ok(())
    }
}

/// A transaction.
struct Changes<'s>(Transaction<'s, Postgres>);

#[async_trait]
impl Link for Changes<'_> {
    async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
        fetch(&mut self.0, sql, args).await
    }

    async fn commit(self: Box<Self>) -> Result<(), Uncommitted> {
        self.0.commit().await.map_err(|error| match is_unknown(&error) {
            true => Uncommitted::Perhaps(error, "the connection was lost before the commit was answered"),
            false => Uncommitted::Surely(error),
        })
    }
}

/// Text as it can be stored: PostgreSQL has no place for a NUL.
pub(super) fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

async fn fetch(connection: &mut PgConnection, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
    let mut query: Query<'_, Postgres, PgArguments> = sqlx::query(sql);
    for arg in args {
        query = match arg {
            Arg::Int(value) => query.bind(value),
            Arg::Text(value) => query.bind(value.map(storable)),
            Arg::Blob(value) => query.bind(value),
        };
    }
    let rows = query.fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| -> Row { Box::new(row) }).collect())
}

impl Columns for PgRow {
    fn column(&self, name: &str) -> Result<Found<'_>, String> {
        found(self, name)
    }

    fn first(&self) -> Result<Found<'_>, String> {
        found(self, 0)
    }
}

fn found<I: sqlx::ColumnIndex<PgRow> + Copy>(row: &PgRow, column: I) -> Result<Found<'_>, String> {
    let failed = |error: sqlx::Error| error.to_string();
    let value = row.try_get_raw(column).map_err(failed)?;
    if value.is_null() {
        return Ok(Found::Null);
    }
    match value.type_info().name() {
        "INT8" => row.try_get(column).map(Found::Int).map_err(failed),
        "BOOL" => row.try_get(column).map(|flag: bool| Found::Int(i64::from(flag))).map_err(failed),
        "TEXT" => row.try_get(column).map(Found::Text).map_err(failed),
        "BYTEA" => row.try_get(column).map(Found::Blob).map_err(failed),
        _ => Ok(Found::Other("of another type")),
    }
}
