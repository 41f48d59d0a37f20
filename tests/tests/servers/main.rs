//! Stash over radosgw and PostgreSQL, which this binary starts: what it costs, what it survives, and that nothing is left.
//!
//! A server that is not installed is reported as skipped on standard error; with `STASH_TEST_SERVERS=required` it fails. Each scenario
//! runs for `STASH_FAULT_SECONDS`, 5 where nothing is said.

mod crashes;
mod faults;
mod requests;
mod world;
