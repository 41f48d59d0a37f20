//! Migrations: opening a file brings it to the version of this build, or refuses it by name.
//!
//! Everything between the first look at the file and the catalog's own row happens under an exclusive OS
//! lock on `<catalog>.lock`, which is made beside the file and stays there. Without it, processes that open
//! a fresh file at once run into one another's switch to the write-ahead log and fail. The lock is the
//! operating system's and goes with the process that held it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};
use stash_types::{CatalogId, IdSource, Timestamp, fault};

use super::connection::{failure, options, quietly, writer_options};
use crate::CatalogError;
use crate::sql::decode::Fields;
use crate::sql::link::int;
use crate::sql::schema::{OP, determinate, foreign, known_version, migrations, newer, refused};
use crate::sql::{Dialect, Result};

/// How long to wait for another process that migrates.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two looks at the lock.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// Opens the writing connection of a file and brings the file to this build's version.
pub(super) async fn open_file(
    path: &Path,
    location: &str,
    busy: Duration,
    now: Timestamp,
    ids: &dyn IdSource,
) -> Result<(SqliteConnection, CatalogId, u64)> {
    let connect =
        async || writer_options(path, busy).connect().await.map_err(|error| failure(location, OP, error));
    // Opening a catalog that is up to date writes nothing: to look must be possible while another process
    // writes, and where this one may not.
    if refuse_newer(path, location, busy).await? == known_version() {
        let mut writer = connect().await?;
        apply(&mut writer, location).await?;
        if let Some((id, revision)) = identity(&mut writer, location).await? {
            return Ok((writer, id, revision));
        }
    }
    let lock = lock(path, location).await?;
    fault::place("catalog.lock_taken");
    refuse_newer(path, location, busy).await?;
    let mut writer = connect().await?;
    fault::place("catalog.file_made");
    let (id, revision) = migrate(&mut writer, location, now, ids).await?;
    drop(lock);
    Ok((writer, id, revision))
}

/// Brings an open database to this build's version and reads, or draws, its identity.
pub(super) async fn migrate(
    writer: &mut SqliteConnection,
    location: &str,
    now: Timestamp,
    ids: &dyn IdSource,
) -> Result<(CatalogId, u64)> {
    apply(writer, location).await?;
    fault::place("catalog.migrated");
    draw_identity(writer, location, now, ids).await?;
    fault::place("catalog.identity_drawn");
    let drawn = identity(writer, location).await?;
    drawn.ok_or_else(|| determinate(location, "its identity cannot be read back".to_owned(), None))
}

/// Applies the migrations that are missing, and compares those that are there.
async fn apply(writer: &mut SqliteConnection, location: &str) -> Result<()> {
    // Not `run`: its future cannot be sent between threads as far as the compiler can see, so that nobody
    // could open a catalog in a task of its own.
    let migrator = Migrator::with_migrations(migrations(Dialect::Sqlite));
    let ran = migrator.run_direct(None, &mut *writer, false).await;
    ran.map_err(|error| refused(location, error, |error| failure(location, OP, error)))
}

/// Draws the catalog's id, unless somebody did.
async fn draw_identity(
    writer: &mut SqliteConnection,
    location: &str,
    now: Timestamp,
    ids: &dyn IdSource,
) -> Result<()> {
    sqlx::query("INSERT OR IGNORE INTO catalog (one, id, revision, created) VALUES (1, ?, 0, ?)")
        .bind(CatalogId::from_uuid(ids.random()).to_string())
        .bind(int(now.0))
        .execute(&mut *writer)
        .await
        .map(drop)
        .map_err(|error| failure(location, OP, error))
}

/// The catalog's id and its revision, once the id is drawn.
async fn identity(writer: &mut SqliteConnection, location: &str) -> Result<Option<(CatalogId, u64)>> {
    let row = sqlx::query("SELECT one, id, revision FROM catalog WHERE one = 1")
        .fetch_optional(&mut *writer)
        .await
        .map_err(|error| failure(location, OP, error))?;
    let Some(row) = row else { return Ok(None) };
    let fields = Fields::new(location, "catalog", &row);
    Ok(Some((fields.parse("id")?, fields.u64("revision")?)))
}

/// Looks at the file before anything is written to it, and tells its version; 0 for one that is empty or not
/// there.
async fn refuse_newer(path: &Path, location: &str, busy: Duration) -> Result<i64> {
    match tokio::fs::metadata(path).await {
        Ok(file) if file.len() > 0 => {}
        _ => return Ok(0),
    }
    let mut look = options(path, busy)
        .pragma("query_only", "ON")
        .connect()
        .await
        .map_err(|error| failure(location, OP, error))?;
    let verdict = version(&mut look, location).await;
    quietly(look.close().await);
    let found = verdict?;
    if found > known_version() {
        return Err(newer(location, found));
    }
    Ok(found)
}

/// The version of the file; 0 for one without tables.
async fn version(look: &mut SqliteConnection, location: &str) -> Result<i64> {
    let failed = |error| failure(location, OP, error);
    let row = sqlx::query(
        "SELECT COUNT(*) AS tables, COALESCE(SUM(name = '_sqlx_migrations'), 0) AS ours
         FROM sqlite_schema WHERE type = 'table'",
    )
    .fetch_one(&mut *look)
    .await
    .map_err(failed)?;
    let (tables, ours): (i64, i64) =
        (row.try_get("tables").map_err(failed)?, row.try_get("ours").map_err(failed)?);
    if ours == 0 && tables > 0 {
        return Err(foreign(location, "file", "name another file"));
    }
    if ours == 0 {
        return Ok(0);
    }
    let row = sqlx::query("SELECT COALESCE(MAX(version), 0) AS version FROM _sqlx_migrations")
        .fetch_one(&mut *look)
        .await
        .map_err(failed)?;
    row.try_get("version").map_err(failed)
}

/// The lock file of a catalog.
pub(super) fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Takes the exclusive OS lock; it is let go when the file is dropped.
async fn lock(path: &Path, location: &str) -> Result<File> {
    let lock_path = lock_path(path);
    let named = lock_path.display().to_string();
    let failed = |what: String, error: std::io::Error| determinate(location, what, Some(Arc::new(error)));
    let opened = tokio::task::spawn_blocking(move || {
        File::options().create(true).truncate(false).write(true).open(lock_path)
    })
    .await;
    let file = match opened {
        Ok(Ok(file)) => file,
        Ok(Err(error)) => {
            return Err(failed(format!("cannot make {named}: check that its folder exists"), error));
        }
        Err(error) => return Err(failed(format!("cannot make {named}"), error.into())),
    };
    let start = tokio::time::Instant::now();
    loop {
        // Trying does not block; waiting inside the lock would hold a thread that no shutdown can wake.
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                tokio::time::sleep(LOCK_POLL).await;
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(CatalogError::Determinate {
                    location: location.to_owned(),
                    op: OP,
                    what: format!("another process has held {named} for {} s", LOCK_PATIENCE.as_secs()),
                    retry: true,
                    source: None,
                });
            }
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(failed(format!("cannot lock {named}: is it on a local disk?"), error));
            }
        }
    }
}
