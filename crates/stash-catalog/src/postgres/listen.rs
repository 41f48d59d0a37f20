//! Being woken: one connection of each catalog listens on the channel of its id, on which every write is told in
//! the transaction that makes it.
//!
//! What is told is only a reason to look: who waits asks for the revision itself. A wake may be spurious, and where one is
//! lost (the connection was, or a pooler swallows them) the wait ends by polling.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPool};
use stash_types::CatalogId;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::PostgresOptions;
use crate::sql::watch::{Watch, channel};

/// How long to wait before a lost listening connection is opened anew.
const RECONNECT: Duration = Duration::from_millis(500);

/// Listens in a task of its own, which ends with this.
#[derive(Debug)]
pub(super) struct Listener {
    /// Counts the reasons to look.
    told: Arc<watch::Sender<u64>>,
    poll: Duration,
    task: Mutex<JoinSet<()>>,
}

impl Listener {
    pub(super) fn start(options: &PostgresOptions, catalog: CatalogId) -> Listener {
        let told = Arc::new(watch::Sender::new(0));
        let mut task = JoinSet::new();
        let (pool, channel, tells) = (options.pool_of_one(), channel(catalog), Arc::clone(&told));
        task.spawn(async move {
            loop {
                if let Err(error) = listen(&pool, &channel, &tells).await {
                    tracing::debug!(%error, "the listening connection was lost; waits end by polling until it is back");
                }
                sleep(RECONNECT).await;
            }
        });
        Listener { told, poll: options.poll_interval, task: Mutex::new(task) }
    }

    /// Waits until the watched revision is above `seen`, something was told, or it is time to look anyway.
    pub(super) async fn wait(&self, known: &Watch, seen: u64, deadline: Instant) {
        let (mut revision, mut told) = (known.revision.subscribe(), self.told.subscribe());
        tokio::select! {
            _ = revision.wait_for(|known| *known > seen) => {}
            _ = told.changed() => {}
            () = sleep_until(deadline.min(Instant::now() + self.poll)) => {}
        }
    }

    pub(super) async fn close(&self) {
        self.task.lock().await.shutdown().await;
    }
}

/// Listens until the connection is lost for good.
async fn listen(pool: &PgPool, channel: &str, told: &watch::Sender<u64>) -> sqlx::Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    loop {
        // Whatever was told before it listened, or while it was not connected, is gone: look.
        told.send_modify(|count| *count = count.wrapping_add(1));
        listener.try_recv().await?;
    }
}
