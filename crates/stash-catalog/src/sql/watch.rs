//! Waiting for a revision, and noticing one that went backwards (I7).
//!
//! Writes of this process raise a watched number. How the writes of other processes are noticed is the database's
//! business: `Database::wait`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Result, Sql};

/// The longest a caller waits at once; who wants more asks again.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// The highest revision known, watched.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) revision: watch::Sender<u64>,
}

impl Watch {
    pub(crate) fn new(revision: u64) -> Watch {
        Watch { revision: watch::Sender::new(revision) }
    }

    /// Wakes who waits for `revision`.
    pub(crate) fn raise(&self, revision: u64) {
        self.revision.send_if_modified(|known| {
            let raised = revision > *known;
            *known = revision.max(*known);
            raised
        });
    }
}

/// The channel on which a catalog's writes are told, where the database has channels.
#[cfg(feature = "postgres")]
pub(crate) fn channel(catalog: stash_types::CatalogId) -> String {
    format!("stash.{catalog}")
}

/// The present revision.
pub(crate) async fn revision(catalog: &Sql) -> Result<u64> {
    const OP: &str = "revision";
    // SUBTLE: what was seen is read before the revision is: another task may see a later one in between, and
    // comparing with that would take this honest answer for lost history.
    let saw = catalog.seen.load(Ordering::Acquire);
    let mut held = catalog.reader(OP).await?;
    let row =
        catalog.each(OP, &mut held).row("SELECT one, revision FROM catalog WHERE one = 1", vec![]).await?;
    let Some(row) = row else {
        return Err(catalog.damaged("table catalog, row 1: it is gone".to_owned()));
    };
    let found = catalog.fields("catalog", &row).u64("revision")?;
    drop(held);
    if found < saw {
        return Err(catalog.behind(saw, found));
    }
    catalog.saw(found);
    Ok(found)
}

/// Waits until the revision is above `seen`, or for `patience`.
pub(crate) async fn changed(catalog: &Sql, seen: u64, patience: Duration) -> Result<u64> {
    let deadline = Instant::now() + patience.min(PATIENCE_MAX);
    loop {
        let found = super::asked!(catalog, revision(catalog))?;
        if found > seen || Instant::now() >= deadline {
            return Ok(found);
        }
        catalog.database.wait(catalog, seen, deadline).await?;
    }
}
