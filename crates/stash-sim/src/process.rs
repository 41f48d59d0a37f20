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

#[cfg(test)]
mod tests {
    use stash::{Launch, Mint, ShareMessage};
    use stash_types::Frontier;

    use super::*;
    use crate::run::sinks;
    use crate::schedule::{Ending, Schedule};

    /// Brings the chain on by one batch without updates.
    async fn bring_on(chain: &mut stash::Chain, incarnation: &stash::Incarnation, upper: u64) {
        let Ok(Mint::Minted(minted)) = chain.mint(Frontier::at(upper)) else { panic!("nothing to mint") };
        let share: ShareMessage<_> =
            incarnation.worker(0).expect("a worker").write(minted, []).await.expect("an empty share");
        chain.report(share).await.expect("is resolved");
    }

    #[tokio::test(start_paused = true)]
    async fn the_read_hold_covers_an_incarnation_that_is_opened_while_it_is_read() {
        let schedule = Schedule { ending: Ending::Open, chained: false, expiry: None, ..Schedule::of(1) };
        let facts = sinks(&schedule);
        let as_of = facts[0].feed.as_of;
        let world = Arc::new(World::new(schedule, facts));
        let start = |role: &'static str| Process::start(&world, role, StashConfig::default());
        let (reader, writer) =
            (start("reader").await.expect("starts"), start("writer").await.expect("starts"));
        let sink = writer.stash.declare_sink(world.sinks[0].spec().expect("a spec")).await.expect("declared");
        world.watch.declared(sink.shard(), sink.id(), 0);
        let launch = |replica: &str| Launch::single(replica, 1).expect("a launch");
        let first = sink.open_incarnation(launch("r0")).await.expect("opens").render().expect("renders");
        let mut chain = first.chain().expect("its chain");
        bring_on(&mut chain, &first, as_of + 1).await;
        bring_on(&mut chain, &first, as_of + 5).await;

        // The reader stands still between its two reads. Meanwhile another replica is granted an as-of, and the chain
        // moves on.
        let seen = reader.stash.sink("a").await.expect("the sink");
        let mut hold = Box::pin(seen.read_hold());
        tokio::select! { biased;
            hold = &mut hold => panic!("read at once: {hold:?}"),
            () = pause(1) => reader.life.stand_still(),
        }
        let second = sink.open_incarnation(launch("r1")).await.expect("opens").render().expect("renders");
        bring_on(&mut chain, &first, as_of + 9).await;
        reader.life.go_on();
        let hold = hold.await.expect("the hold");
        assert!(hold <= Frontier::at(second.as_of()), "hold {hold}, rendering at {}", second.as_of());
        assert!(!world.is_violated());
    }
}
