//! Waiting for a revision, and noticing one that went backwards (I7).
//!
//! Writes of this process raise a watched number. Writes of other processes are noticed by asking the file
//! for its `data_version` on a connection of its own, every few milliseconds and only while somebody
//! waits: whoever waits asks, and the others are woken by what one of them finds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use super::connection::quietly;
use super::decode::Fields;
use super::{Result, SqliteCatalog};

/// How often the file is asked while somebody waits.
const POLL: Duration = Duration::from_millis(7);
/// The longest a caller waits at once; who wants more asks again.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// The connection that asks the file, and what it answered last.
#[derive(Debug)]
struct Poll {
    connection: SqliteConnection,
    version: i64,
    asked: Instant,
}

/// The highest revision known, watched.
#[derive(Debug)]
pub(super) struct Watch {
    revision: watch::Sender<u64>,
    poll: Mutex<Option<Poll>>,
}

impl Watch {
    pub(super) fn new(revision: u64) -> Watch {
        Watch { revision: watch::Sender::new(revision), poll: Mutex::new(None) }
    }

    /// Wakes who waits for `revision`.
    pub(super) fn raise(&self, revision: u64) {
        self.revision.send_if_modified(|known| {
            let raised = revision > *known;
            *known = revision.max(*known);
            raised
        });
    }

    pub(super) async fn close(&self) {
        if let Some(poll) = self.poll.lock().await.take() {
            quietly(poll.connection.close().await);
        }
    }
}

/// The present revision.
pub(super) async fn revision(catalog: &SqliteCatalog) -> Result<u64> {
    // SUBTLE: what was seen is read before the revision is: another task may see a later one in between, and
    // comparing with that would take this honest answer for lost history.
    let saw = catalog.seen.load(Ordering::Acquire);
    let mut held = catalog.reader("revision").await?;
    let row = sqlx::query("SELECT one, revision FROM catalog WHERE one = 1")
        .fetch_optional(&mut *held)
        .await
        .map_err(|error| catalog.failed("revision", error))?;
    let Some(row) = row else {
        return Err(catalog.damaged("table catalog, row 1: it is gone".to_owned()));
    };
    let found = Fields::new(&catalog.location, "catalog", &row).u64("revision")?;
    drop(held);
    if found < saw {
        return Err(catalog.behind(saw, found));
    }
    catalog.saw(found);
    Ok(found)
}

/// Waits until the revision is above `seen`, or for `patience`.
pub(super) async fn changed(catalog: &SqliteCatalog, seen: u64, patience: Duration) -> Result<u64> {
    let deadline = Instant::now() + patience.min(PATIENCE_MAX);
    let mut watched = catalog.watch.revision.subscribe();
    loop {
        let found = revision(catalog).await?;
        if found > seen || Instant::now() >= deadline {
            return Ok(found);
        }
        // Other processes are asked about between two looks of our own; a spurious wake only looks again.
        loop {
            let next = deadline.min(Instant::now() + POLL);
            let woken = timeout_at(next, watched.wait_for(|known| *known > seen)).await.is_ok();
            if woken || Instant::now() >= deadline || others_wrote(catalog).await? {
                break;
            }
        }
    }
}

/// Whether another connection committed since the last time anybody asked.
async fn others_wrote(catalog: &SqliteCatalog) -> Result<bool> {
    // Somebody else is asking: what they find wakes us.
    let Ok(mut slot) = catalog.watch.poll.try_lock() else { return Ok(false) };
    if catalog.closed.load(Ordering::Acquire) {
        return Ok(true);
    }
    let failed = |error| catalog.failed("changed", error);
    let first = slot.is_none();
    if first {
        let Some(connection) = catalog.connections.extra().await else { return Ok(false) };
        *slot = Some(Poll { connection: connection.map_err(failed)?, version: 0, asked: Instant::now() });
    }
    let Some(poll) = slot.as_mut() else { return Ok(false) };
    if !first && poll.asked.elapsed() < POLL / 2 {
        return Ok(false);
    }
    let version: i64 =
        sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut poll.connection).await.map_err(failed)?;
    poll.asked = Instant::now();
    let wrote = first || version != poll.version;
    poll.version = version;
    drop(slot);
    if wrote {
        // Raises the watched number, so that every other waiter wakes too.
        revision(catalog).await?;
    }
    Ok(wrote)
}
