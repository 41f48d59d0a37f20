//! Noticing the writes of other processes: the file is asked for its `data_version` on a connection of its own,
//! every few milliseconds and only while somebody waits. Whoever waits asks, and the others are woken by what
//! one of them finds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::Embedded;
use super::connection::quietly;
use crate::sql::{Result, Sql, watch};

/// How often the file is asked while somebody waits.
const POLL: Duration = Duration::from_millis(7);

/// The connection that asks the file, and what it answered last.
#[derive(Debug)]
struct Poll {
    connection: SqliteConnection,
    version: i64,
    asked: Instant,
}

/// Whoever asks has it.
#[derive(Debug, Default)]
pub(super) struct Polls(Mutex<Option<Poll>>);

impl Polls {
    pub(super) async fn close(&self) {
        if let Some(poll) = self.0.lock().await.take() {
            quietly(poll.connection.close().await);
        }
    }
}

/// Waits until the watched revision is above `seen`, another process wrote, or `deadline`.
pub(super) async fn wait(database: &Embedded, catalog: &Sql, seen: u64, deadline: Instant) -> Result<()> {
    let mut watched = catalog.watch.revision.subscribe();
    // Other processes are asked about between two looks of our own; a spurious wake only looks again.
    loop {
        let next = deadline.min(Instant::now() + POLL);
        let woken = timeout_at(next, watched.wait_for(|known| *known > seen)).await.is_ok();
        if woken || Instant::now() >= deadline || others_wrote(database, catalog).await? {
            return Ok(());
        }
    }
}

/// Whether another connection committed since the last time anybody asked.
async fn others_wrote(database: &Embedded, catalog: &Sql) -> Result<bool> {
    // Somebody else is asking: what they find wakes us.
    let Ok(mut slot) = database.polls.0.try_lock() else { return Ok(false) };
    if catalog.closed.load(Ordering::Acquire) {
        return Ok(true);
    }
    let failed = |error| catalog.failed("changed", error);
    let first = slot.is_none();
    if first {
        let Some(connection) = database.connections.extra().await else { return Ok(false) };
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
        watch::revision(catalog).await?;
    }
    Ok(wrote)
}
