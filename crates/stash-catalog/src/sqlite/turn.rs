//! Taking turns with the writers of other processes.
//!
//! SQLite's own wait for a write lock sleeps ever longer, up to 100 ms, and whoever comes by while others
//! sleep takes the lock: three busy writers kept a fourth waiting for 200 ms and more. So a writer takes an
//! OS lock on a file beside the catalog first, looking every millisecond. It is only a courtesy: the write
//! lock of the database is what keeps writers apart, and who cannot take a turn in time goes on to that.
//!
//! A process that was stopped with the turn in its hands must not cost the others their patience at every write:
//! who waited for all of it in vain only looks from then on, until a look finds the turn free.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::migrate::lock_path;

/// How long to wait between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The file of turns; opened by the first write.
#[derive(Debug, Default)]
pub(super) struct Turns {
    file: OnceLock<Option<File>>,
    /// Whether the last wait was in vain: whoever has the turn does not come to its end.
    in_vain: AtomicBool,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    file: Option<&'a File>,
}

impl Turn<'_> {
    /// For who writes nothing.
    pub(super) fn none() -> Self {
        Turn { file: None }
    }
}

impl Turns {
    /// Waits for a turn, for at most `patience`. The caller has the writing connection, so that one handle
    /// never waits for itself.
    pub(super) async fn take(&self, catalog: Option<&Path>, patience: Duration) -> Turn<'_> {
        let open = || {
            let path = lock_path(catalog?);
            File::options().create(true).truncate(false).write(true).open(path).ok()
        };
        let Some(file) = self.file.get_or_init(open) else { return Turn { file: None } };
        let patience = if self.in_vain.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
        let begun = tokio::time::Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => {
                    self.in_vain.store(false, Ordering::Relaxed);
                    return Turn { file: Some(file) };
                }
                Err(std::fs::TryLockError::WouldBlock) if begun.elapsed() < patience => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => {
                    if matches!(error, std::fs::TryLockError::WouldBlock)
                        && !self.in_vain.swap(true, Ordering::Relaxed)
                    {
                        tracing::warn!(
                            waited = ?begun.elapsed(),
                            "another process keeps its turn to write the catalog: is one of them stopped? \
                             Going on without"
                        );
                    }
                    return Turn { file: None };
                }
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file
            && let Err(error) = file.unlock()
        {
            tracing::warn!(%error, "a turn was not given back; it ends with the process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a turn was waited for, on a clock that stands still but for sleeps, and whether it was had.
    async fn waited(turns: &Turns, catalog: &Path, patience: Duration) -> (Duration, bool) {
        let begun = tokio::time::Instant::now();
        let turn = turns.take(Some(catalog), patience).await;
        (begun.elapsed(), turn.file.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_is_kept_costs_the_others_their_patience_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let catalog = folder.path().join("catalog.db");
        let (stopped, turns) = (Turns::default(), Turns::default());
        let patience = Duration::from_secs(5);

        for _ in 0..2 {
            let kept = stopped.take(Some(&catalog), patience).await;
            assert_eq!(waited(&turns, &catalog, patience).await, (patience, false), "it waits first");
            for _ in 0..3 {
                assert_eq!(
                    waited(&turns, &catalog, patience).await,
                    (Duration::ZERO, false),
                    "it only looks"
                );
            }
            drop(kept);
            // The turn is free again, and is waited for from then on.
            for _ in 0..3 {
                assert_eq!(waited(&turns, &catalog, patience).await, (Duration::ZERO, true));
            }
        }
    }
}
