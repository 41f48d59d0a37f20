//! What the errors of PostgreSQL mean, by their SQLSTATE.

use std::sync::Arc;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::CatalogError;

/// The server's own error, if it is one.
fn of_server(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// Whether a commit that ended so may have been made: its answer was lost, or the session died with it.
pub(super) fn is_unknown(error: &sqlx::Error) -> bool {
    match of_server(error) {
        // SUBTLE: a session that is told to end may have committed before it said so.
        Some(server) => {
            matches!(server.severity(), PgSeverity::Fatal | PgSeverity::Panic)
                || server.code().starts_with("08")
        }
        None => matches!(
            error,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
        ),
    }
}

/// What a failure before a commit means, at `location`: nothing was written.
pub(super) fn failure(location: &str, op: &'static str, error: sqlx::Error) -> CatalogError {
    let location = location.to_owned();
    if matches!(error, sqlx::Error::PoolClosed) {
        return CatalogError::Closed { location, op };
    }
    let (what, retry) = match of_server(&error) {
        Some(server) if matches!(server.code(), "XX001" | "XX002") => {
            let what =
                format!("{op}: the server says that its data is damaged: {error}; restore it from a backup");
            return CatalogError::Damaged { location, what };
        }
        Some(server) => {
            let (what, retry) = by_code(server.code());
            (format!("{what} (SQLSTATE {})", server.code()), retry)
        }
        None => {
            let (what, retry) = by_kind(&error);
            (what.to_owned(), retry)
        }
    };
    CatalogError::Determinate { location, op, what, retry, source: Some(Arc::new(error)) }
}

/// What the server says, and whether the same call may succeed later without anybody's help.
fn by_code(code: &str) -> (&'static str, bool) {
    match code {
        "40001" | "40P01" => ("it collided with another transaction: try again", true),
        "55P03" => ("another session holds the row for longer than the lock timeout: try again", true),
        "57014" => ("it took longer than the statement timeout: try again", true),
        "57P01" | "57P02" | "57P03" => ("the server ended the session, or is starting: try again", true),
        "25P02" | "25P03" => ("the session was ended in the middle of its transaction: try again", true),
        "53100" => ("the server's disk is full: free some space there and try again", true),
        "53200" => ("the server is out of memory: try again", true),
        "53300" => ("the server has no connection left: lower the pools, or raise max_connections", true),
        "25006" => ("the server is read-only, a standby perhaps: name the primary", false),
        "28000" | "28P01" => ("the server refuses the user: check user, password and pg_hba.conf", false),
        "3D000" => ("there is no such database: create it first", false),
        "3F000" | "42P01" => ("the schema has lost its tables: restore it from a backup", false),
        "42501" => ("the user lacks a privilege: grant it usage of the schema and all on its tables", false),
        _ if code.starts_with("08") => ("the connection was lost: try again", true),
        _ if code.starts_with("53") => ("the server is short of something: try again", true),
        _ => ("the database refused it", false),
    }
}

/// Whether TLS could not be agreed upon; a certificate that is refused comes as data that is not valid.
fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

fn by_kind(error: &sqlx::Error) -> (&'static str, bool) {
    match error {
        sqlx::Error::PoolTimedOut => (
            "no connection within the connect timeout: is the server there, or are all connections busy?",
            true,
        ),
        error if is_tls(error) => {
            ("TLS could not be agreed upon: check the server's certificate and sslrootcert", false)
        }
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            ("the connection was lost: try again", true)
        }
        sqlx::Error::Configuration(_) => ("the connection cannot be set up as its URL says", false),
        _ => ("the database refused it", false),
    }
}

/// Whether the operation may be tried again at once: it collided, or its connection was lost before anything was
/// sent to be committed.
pub(super) fn is_transient(error: &CatalogError) -> bool {
    let CatalogError::Determinate { retry: true, source: Some(source), .. } = error else { return false };
    let Some(error) = source.downcast_ref::<sqlx::Error>() else { return false };
    match of_server(error) {
        Some(server) => {
            matches!(server.code(), "40001" | "40P01" | "57P01" | "57P02" | "25P03")
                || server.code().starts_with("08")
        }
        None => {
            let lost =
                matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed);
            lost && !is_tls(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_may_be_tried_again_is_told_from_what_somebody_must_mend() {
        for code in ["40001", "40P01", "55P03", "57014", "57P01", "53100", "53300", "08006", "53400"] {
            assert!(by_code(code).1, "{code}");
        }
        for code in ["25006", "28P01", "3D000", "42501", "42P01", "22021", "23514"] {
            assert!(!by_code(code).1, "{code}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_a_commit_unknown_and_a_full_pool_does_not() {
        let lost = || sqlx::Error::Io(io::Error::from(io::ErrorKind::ConnectionReset));
        assert!(is_unknown(&lost()) && is_transient(&failure("here", "commit", lost())));
        for error in [sqlx::Error::PoolTimedOut, sqlx::Error::PoolClosed, sqlx::Error::RowNotFound] {
            assert!(!is_unknown(&error), "{error}");
            assert!(!is_transient(&failure("here", "commit", error)));
        }
        // A certificate that is refused is refused again.
        let refused = sqlx::Error::Io(io::Error::from(io::ErrorKind::InvalidData));
        let refused = failure("here", "open", refused);
        assert!(!is_transient(&refused) && refused.to_string().contains("certificate"), "{refused}");
    }
}
