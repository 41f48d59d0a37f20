//! A simulated process: a life, and the session that the real code has there.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use stash::{Error, ErrorKind, OpenOptions, Sink, Stash, StashConfig};
use stash_chain::invariants::i24_bounded;

use crate::life::Life;
use crate::link::CatalogLink;
use crate::store::StoreLink;
use crate::world::{World, pause};

/// Calls that fail are made again after so many milliseconds.
const AGAIN_MS: u64 = 40;
/// They are made again so often: longer than any outage.
const AGAIN_MAX: u32 = 400;

/// A process with an open session.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) life: Arc<Life>,
    pub(crate) stash: Stash,
}

impl Process {
    /// Starts a process that opens the stash; `None` when it died meanwhile, or could not.
    pub(crate) async fn start(world: &Arc<World>, role: &str, config: StashConfig) -> Option<Process> {
        let life = Arc::new(Life::new(world.name_process(role)));
        world.born(&life);
        let stash = {
            let open = || {
                let (store, catalog) = (StoreLink::new(world, &life), CatalogLink::new(world, &life));
                OpenOptions::new("sim://stash")
                    .config(config.clone())
                    .sources(Arc::clone(&world.clock) as _, Arc::clone(&world.ids) as _)
                    .open_with(Arc::new(store), Arc::new(catalog))
            };
            // A claim that the store failed is made again: that is safe.
            let mut opened = open().await;
            for _ in 0..AGAIN_MAX {
                if opened.is_ok() {
                    break;
                }
                pause(AGAIN_MS).await;
                opened = open().await;
            }
            opened.ok()?
        };
        world.say(life.name(), "starts");
        Some(Process { life, stash })
    }

    /// The sink of that name; `None` if it was dropped, or cannot be had.
    pub(crate) async fn sink(&self, name: &str) -> Option<Sink> {
        again(|| self.stash.sink(name)).await.ok()
    }

    /// Kills it: nothing of it acts any more, whatever is on its way.
    pub(crate) fn kill(self, world: &World, how: &str) {
        if !self.life.is_dead() {
            self.life.die();
        }
        world.fault(self.life.name(), "death", how);
        self.check_memory(world);
        let Process { life: _, stash } = self;
        // What a dead process holds in memory goes with it. Within one program it has to be let go: its handles are
        // dead, so all that this does is to empty the registry of open batches.
        world.spawn(async move {
            let _ = tokio::time::timeout(Duration::from_millis(1), stash.close()).await;
        });
    }

    /// Ends it in good order: gives up what it holds and deletes it.
    pub(crate) async fn close(self, world: &World) {
        let closed = tokio::select! { biased;
            () = self.life.died() => None,
            closed = again(|| self.stash.close()) => Some(closed),
        };
        let how = match closed {
            None => return self.kill(world, "while it closed"),
            Some(Err(error)) => format!("closes: {error}"),
            Some(Ok(done)) => format!("closes: {done:?}"),
        };
        world.say(self.life.name(), how);
        self.check_memory(world);
        self.life.die();
    }

    /// What it reserved stayed within its memory (I24).
    fn check_memory(&self, world: &World) {
        let used = self.stash.budget();
        world.check(self.life.name(), i24_bounded(self.life.name(), used.peak, used.total));
    }
}

/// Makes a call again while its error says that it may succeed later.
pub(crate) async fn again<T, F: Future<Output = Result<T, Error>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut tries = 0;
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Retry && tries < AGAIN_MAX => {
                tries += 1;
                pause(AGAIN_MS).await;
            }
            done => return done,
        }
    }
}
