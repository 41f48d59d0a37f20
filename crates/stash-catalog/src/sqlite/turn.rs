//! Taking turns with the writers of other processes.
//!
//! SQLite's own wait for a write lock sleeps ever longer, up to 100 ms, and whoever comes by while others
//! sleep takes the lock: three busy writers kept a fourth waiting for 200 ms and more. So a writer takes an
//! OS lock on a file beside the catalog first, looking every millisecond. It is only a courtesy: the write
//! lock of the database is what keeps writers apart, and who cannot take a turn in time goes on to that.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use super::migrate::lock_path;

/// How long to wait between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The file of turns; opened by the first write.
#[derive(Debug, Default)]
pub(super) struct Turns {
    file: OnceLock<Option<File>>,
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
        let begun = tokio::time::Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Turn { file: Some(file) },
                Err(std::fs::TryLockError::WouldBlock) if begun.elapsed() < patience => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(_) => return Turn { file: None },
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
