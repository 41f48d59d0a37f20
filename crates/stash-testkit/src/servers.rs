//! Real servers for tests, on the loopback, started by the tests themselves.
//!
//! - [`radosgw`]: the object gateway of Ceph, an object store that is nobody's imitation: it checks signatures.
//! - [`ministack`]: another dialect of S3, with the complete API and without authentication.
//! - [`postgres`]: PostgreSQL; [`PostgresServer::start_private`] for a test that kills it.
//!
//! The functions give the one server of this test process, started by the first call; several test processes run at the same
//! time, each with servers of its own. A server is ready when the call returns, and gone when the process is, however it ends
//! (see `supervised`). Tests share a server and keep apart by bucket ([`S3Server::new_bucket`]) or database
//! ([`PostgresServer::new_database`]).
//!
//! A server that is not installed is `None`, *reported*: one line a process and server, `SKIPPED: …`, straight to standard
//! error, where the test harness does not swallow it. With `STASH_TEST_SERVERS=required` in the environment it is a panic. A server
//! that is installed and does not start is a panic always.

mod postgres;
mod s3;
mod supervised;

use std::{
    collections::BTreeSet,
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

pub use postgres::{PostgresOptions, PostgresServer};
pub use s3::{S3Server, S3User};
use supervised::Supervised;
use tokio::sync::OnceCell;

/// The radosgw of this test process.
pub async fn radosgw() -> Option<&'static S3Server> {
    static SERVER: OnceCell<Option<S3Server>> = OnceCell::const_new();
    SERVER.get_or_init(S3Server::start_radosgw).await.as_ref()
}

/// The ministack of this test process.
pub async fn ministack() -> Option<&'static S3Server> {
    static SERVER: OnceCell<Option<S3Server>> = OnceCell::const_new();
    SERVER.get_or_init(S3Server::start_ministack).await.as_ref()
}

/// The PostgreSQL of this test process. It is shared: nobody kills it.
pub async fn postgres() -> Option<&'static PostgresServer> {
    static SERVER: OnceCell<Option<PostgresServer>> = OnceCell::const_new();
    SERVER.get_or_init(PostgresServer::start_private).await.as_ref()
}

/// Reports that tests of `server` do not run here, once a process; a panic where servers are required. For other
/// requirements of a test than servers, too.
///
/// # Panics
/// With `STASH_TEST_SERVERS=required` in the environment.
pub fn skipped(server: &str, why: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    assert!(!required(), "{server} is required by STASH_TEST_SERVERS: {why}");
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(server.to_owned()) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {server}: {why}");
    }
}

fn required() -> bool {
    setting("STASH_TEST_SERVERS").is_some_and(|setting| setting == "required")
}

#[expect(clippy::disallowed_methods, reason = "which servers a test must have is the environment's to say")]
fn setting(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Where a program is, by the search path.
fn program(name: &str) -> Option<PathBuf> {
    let path = setting("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Starts a server off the runtime's threads. Ports that another process took first cost an attempt.
async fn start(
    name: &'static str,
    script: &'static str,
    ports: usize,
    variables: Vec<(&'static str, String)>,
) -> Supervised {
    let starting = tokio::task::spawn_blocking(move || {
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let attempt = || Supervised::start(name, script, ports, &variables);
        attempt().or_else(|_| attempt()).or_else(|_| attempt())
    });
    match starting.await {
        Ok(Ok(server)) => server,
        Ok(Err(why)) => panic!("{name} is installed and does not start:\n{why}"),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
