//! Opening a schema brings it to the version of this build, or refuses it by name.
//!
//! Looking comes first: a catalog that is up to date is opened without a write, and without the right to make tables.
//! Whoever finds something to do takes an advisory lock that belongs to the schema, and looks again: processes that open
//! a fresh database at once wait for one another. The lock goes with its session.

use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};
use stash_types::{CatalogId, Clock, IdSource};
use tokio::time::timeout;

use super::PostgresOptions;
use super::failure::failure;
use crate::sql::decode::Fields;
use crate::sql::link::int;
use crate::sql::schema::{OP, determinate, edited, foreign, known_version, migrations, newer, refused};
use crate::sql::{Dialect, Result};

/// The oldest server that is known to have what the statements need.
const VERSION_MIN: i64 = 130_000;
/// How long to wait for another process that migrates, and for a migration.
const LOCK_PATIENCE: &str = "120s";

/// Whether a catalog is made where none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is made.
    Make,
    /// It is told.
    Tell,
}

/// Brings the schema to this build's version and reads, or draws, the catalog's identity and revision; `None` where there
/// is no catalog and none is to be made.
pub(super) async fn open(
    options: &PostgresOptions,
    location: &str,
    clock: Option<&dyn Clock>,
    ids: &dyn IdSource,
    missing: Missing,
) -> Result<Option<(CatalogId, u64)>> {
    let failed = |error| failure(location, OP, error);
    let connect = options.connect_options();
    let mut connection = match timeout(options.connect_timeout, connect.connect()).await {
        Ok(connected) => connected.map_err(failed)?,
        Err(_) => return Err(failed(sqlx::Error::PoolTimedOut)),
    };
    inspect(&mut connection, location).await?;
    let opening = Opening { schema: &options.schema, location };
    let found = match opening.look(&mut connection).await? {
        Look::Whole => opening.identity(&mut connection).await?,
        Look::Nothing { .. } if missing == Missing::Tell => return Ok(None),
        Look::Nothing { .. } | Look::Older => None,
    };
    let identity = match found {
        Some(identity) => identity,
        None => opening.finish(&mut connection, clock, ids).await?,
    };
    opening.check_session(&mut connection).await?;
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "the opening connection did not close cleanly");
    }
    Ok(Some(identity))
}

/// Refuses a server that cannot be the catalog's.
async fn inspect(connection: &mut PgConnection, location: &str) -> Result<()> {
    let failed = |error| failure(location, OP, error);
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::bigint AS version, pg_is_in_recovery() AS standby,
                current_setting('default_transaction_read_only')::boolean AS reads_only,
                current_setting('fsync')::boolean AS syncs",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed)?;
    let version: i64 = row.try_get("version").map_err(failed)?;
    let flag = |name: &str| row.try_get::<bool, _>(name).map_err(failed);
    refuse_version(location, version)?;
    if flag("standby")? {
        let what = "the server is a standby, which cannot be written to: name the primary".to_owned();
        return Err(determinate(location, what, None));
    }
    if flag("reads_only")? {
        let what =
            "sessions are read-only by default (default_transaction_read_only): name a server, a database \
                    and a user that may write"
                .to_owned();
        return Err(determinate(location, what, None));
    }
    if !flag("syncs")? {
        tracing::warn!(
            location,
            "the server runs with fsync off: what is committed may be lost when it crashes"
        );
    }
    Ok(())
}

pub(super) fn refuse_version(location: &str, version: i64) -> Result<()> {
    if version < VERSION_MIN {
        let (found, least) = (version / 10_000, VERSION_MIN / 10_000);
        let what = format!("the server is PostgreSQL {found}: version {least} or newer is needed");
        return Err(determinate(location, what, None));
    }
    Ok(())
}

/// What stands in the schema.
enum Look {
    /// All tables of this build's version.
    Whole,
    /// No table.
    Nothing {
        /// Whether the schema is there.
        made: bool,
    },
    /// An older version, or one whose making was cut off.
    Older,
}

/// An opening under way.
struct Opening<'o> {
    schema: &'o str,
    location: &'o str,
}

impl Opening<'_> {
    fn failed(&self, error: sqlx::Error) -> crate::CatalogError {
        failure(self.location, OP, error)
    }

    /// Looks without writing. A schema of something else, a newer version and an edited migration are refused.
    async fn look(&self, connection: &mut PgConnection) -> Result<Look> {
        let failed = |error| self.failed(error);
        let row = sqlx::query(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1) AS made,
                    COUNT(c.oid) AS tables, COUNT(c.oid) FILTER (WHERE c.relname = '_sqlx_migrations') AS ours
             FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
             WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')",
        )
        .bind(self.schema)
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
        let made: bool = row.try_get("made").map_err(failed)?;
        let (tables, ours): (i64, i64) =
            (row.try_get("tables").map_err(failed)?, row.try_get("ours").map_err(failed)?);
        if ours == 0 {
            return match tables {
                0 => Ok(Look::Nothing { made }),
                _ => Err(foreign(self.location, "schema", "name another one with ?schema=")),
            };
        }
        let rows =
            sqlx::query("SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY version")
                .fetch_all(&mut *connection)
                .await
                .map_err(failed)?;
        let known = migrations(Dialect::Postgres);
        let mut applied = 0;
        for row in &rows {
            let version: i64 = row.try_get("version").map_err(failed)?;
            let checksum: &[u8] = row.try_get("checksum").map_err(failed)?;
            match known.iter().find(|migration| migration.version == version) {
                None => return Err(newer(self.location, version)),
                Some(migration) if *migration.checksum != *checksum => {
                    return Err(edited(self.location, version));
                }
                Some(_) => applied = applied.max(version),
            }
        }
        Ok(if applied == known_version() { Look::Whole } else { Look::Older })
    }

    /// Makes what is missing, under the lock.
    async fn finish(
        &self,
        connection: &mut PgConnection,
        clock: Option<&dyn Clock>,
        ids: &dyn IdSource,
    ) -> Result<(CatalogId, u64)> {
        let failed = |error| self.failed(error);
        for (setting, value) in [("lock_timeout", LOCK_PATIENCE), ("statement_timeout", LOCK_PATIENCE)] {
            sqlx::query("SELECT set_config($1, $2, false)")
                .bind(setting)
                .bind(value)
                .execute(&mut *connection)
                .await
                .map_err(failed)?;
        }
        // The lock goes with the session, which is closed at the end of the opening.
        sqlx::query("SELECT pg_advisory_lock(hashtextextended('stash catalog ' || $1, 0))")
            .bind(self.schema)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
        let found = self.look(connection).await?;
        if !matches!(found, Look::Whole) {
            if matches!(found, Look::Nothing { made: false }) {
                // The name is letters, digits and underscores.
                let sql = format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", self.schema);
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.map_err(failed)?;
            }
            let mut migrator = Migrator::with_migrations(migrations(Dialect::Postgres));
            migrator.set_locking(false);
            let ran = migrator.run_direct(None, &mut *connection, false).await;
            ran.map_err(|error| refused(self.location, error, |error| self.failed(error)))?;
        }
        sqlx::query(
            "INSERT INTO catalog (one, id, revision, created)
             VALUES (1, $1, 0, COALESCE($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
             ON CONFLICT (one) DO NOTHING",
        )
        .bind(CatalogId::from_uuid(ids.random()).to_string())
        .bind(clock.map(|clock| int(clock.now().0)))
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
        let drawn = self.identity(connection).await?;
        drawn.ok_or_else(|| determinate(self.location, "its identity cannot be read back".to_owned(), None))
    }

    /// The catalog's id and its revision, once the id is drawn.
    async fn identity(&self, connection: &mut PgConnection) -> Result<Option<(CatalogId, u64)>> {
        let row = sqlx::query("SELECT one, id, revision FROM catalog WHERE one = 1")
            .fetch_optional(&mut *connection)
            .await
            .map_err(|error| self.failed(error))?;
        let Some(row) = row else { return Ok(None) };
        let fields = Fields::new(self.location, "catalog", &row);
        Ok(Some((fields.parse("id")?, fields.u64("revision")?)))
    }

    /// Refuses a session that did not get what it asked for: a pooler is between that leaves it out.
    async fn check_session(&self, connection: &mut PgConnection) -> Result<()> {
        let failed = |error| self.failed(error);
        let row = sqlx::query(
            "SELECT COALESCE(current_schema()::text, '') AS schema, current_setting('synchronous_commit') AS syncs",
        )
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
        let schema: String = row.try_get("schema").map_err(failed)?;
        let syncs: String = row.try_get("syncs").map_err(failed)?;
        if schema != self.schema || matches!(syncs.as_str(), "off" | "local") {
            let what = format!(
                "sessions have schema {schema:?} and synchronous_commit {syncs}, not what their startup options ask for: \
                 is a pooler between? connect to the server, or let the pooler pass options on and keep sessions"
            );
            return Err(determinate(self.location, what, None));
        }
        Ok(())
    }
}
