//! Crash tests with real processes. Each file is one way to be hurt:
//!
//! | file | what happens |
//! |---|---|
//! | `kills` | SIGKILL at every place of the product |
//! | `processes` | two of three processes of a replica are killed at once |
//! | `pause` | a replica is stopped beyond its lease, and goes on |
//! | `space` | the disk is full |
//! | `disk` | a sync fails |
//! | `log` | the catalog's write-ahead log loses its tail |
//!
//! They need the feature `faults`, and say so without it. What the machine does not permit is told as SKIPPED.

#[cfg(feature = "faults")]
mod disk;
#[cfg(feature = "faults")]
mod kills;
#[cfg(feature = "faults")]
mod log;
#[cfg(feature = "faults")]
mod pause;
#[cfg(feature = "faults")]
mod processes;
#[cfg(feature = "faults")]
mod space;

#[cfg(feature = "faults")]
const BINARY: &str = env!("CARGO_BIN_EXE_crash-torture");

/// Tells that something was not tested, past the capture of the test's output.
#[cfg(feature = "faults")]
fn skip(what: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "SKIPPED: {what}").expect("standard error");
}

/// Bounds a scenario: a world that does not end is a failure that names itself.
#[cfg(feature = "faults")]
async fn within_deadline<T>(scenario: impl Future<Output = anyhow::Result<T>>) -> T {
    let deadline = std::time::Duration::from_secs(120);
    match tokio::time::timeout(deadline, scenario).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => panic!("{error:#}"),
        Err(_) => panic!("the scenario did not end within {} s", deadline.as_secs()),
    }
}

#[cfg(not(feature = "faults"))]
#[test]
fn crash_tests_are_skipped_without_the_feature_faults() {
    use std::io::Write;
    writeln!(std::io::stderr(), "SKIPPED: the crash tests need the feature `faults`")
        .expect("standard error");
}
