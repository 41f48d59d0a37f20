//! The migrations of every database, and what keeps a catalog from being brought to this build's version.

use std::sync::Arc;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType};

use super::Dialect;
use crate::CatalogError;

pub(crate) const OP: &str = "open";

/// One step, in the text of each database.
struct Step {
    version: i64,
    noun: &'static str,
    sqlite: &'static str,
    #[cfg(feature = "postgres")]
    postgres: &'static str,
}

/// Every migration there is, by its number.
const STEPS: &[Step] = &[Step {
    version: 1,
    noun: "catalog",
    sqlite: include_str!("../../../../migrations/sqlite/0001_catalog.sql"),
    #[cfg(feature = "postgres")]
    postgres: include_str!("../../../../migrations/postgres/0001_catalog.sql"),
}];

/// The schema version this build writes.
pub(crate) fn known_version() -> i64 {
    STEPS.iter().map(|step| step.version).max().unwrap_or(0)
}

/// All migrations of a database.
pub(crate) fn migrations(dialect: Dialect) -> Vec<Migration> {
    let text = |step: &Step| match dialect {
        Dialect::Sqlite => step.sqlite,
        #[cfg(feature = "postgres")]
        Dialect::Postgres => step.postgres,
    };
    STEPS
        .iter()
        .map(|step| {
            let sql = text(step).into_sql_str();
            Migration::new(step.version, step.noun.into(), MigrationType::Simple, sql, false)
        })
        .collect()
}

/// A catalog of a version that this build does not know.
pub(crate) fn newer(location: &str, found: i64) -> CatalogError {
    CatalogError::Newer { location: location.to_owned(), found, known: known_version() }
}

/// A migration that has another text than it was applied with.
pub(crate) fn edited(location: &str, version: i64) -> CatalogError {
    let what = format!(
        "migration {version} was applied with another text than this build has: \
         use the build that wrote the catalog, or restore the migration's file"
    );
    determinate(location, what, None)
}

/// A place that holds something, and no catalog.
pub(crate) fn foreign(location: &str, place: &str, instead: &str) -> CatalogError {
    determinate(location, format!("the {place} is a database of something else: {instead}"), None)
}

/// What a failed migration means; `failure` is what its database says of an error.
pub(crate) fn refused(
    location: &str,
    error: MigrateError,
    failure: impl FnOnce(sqlx::Error) -> CatalogError,
) -> CatalogError {
    match error {
        MigrateError::VersionMissing(found) => newer(location, found),
        MigrateError::VersionMismatch(version) => edited(location, version),
        MigrateError::Execute(error) => failure(error),
        other => determinate(location, format!("the migration failed: {other}"), Some(Arc::new(other))),
    }
}

/// A catalog that cannot be opened until somebody does something about it.
pub(crate) fn determinate(
    location: &str,
    what: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
) -> CatalogError {
    CatalogError::Determinate { location: location.to_owned(), op: OP, what, retry: false, source }
}
