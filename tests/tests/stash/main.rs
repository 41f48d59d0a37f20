//! The tests of Stash as a whole, against what it promises: one binary, a module a promise.

mod audit;
mod breaking;
mod budget;
mod cancelling;
mod coalescing;
mod denied;
mod expiry;
mod failure;
mod ledger;
mod lifecycle;
mod poison;
mod reading;
mod replicas;
mod rerender;
mod salvage;
mod verify;

use stash::{Chain, Error, Frontier, Incarnation, Launch, Minted, Resolved, Sink};
use stash_tests::{Chance, Row, updates};

/// An update of the tests: row, time, diff.
type Update = (Row, u64, i64);

/// `count` distinct rows at `time` from key `from` on, about 80 bytes each, which do not compress. One key has one
/// row, whatever the time.
fn many(from: u64, count: u64, time: u64) -> Vec<Update> {
    (from..from + count).map(|key| ((key, noise(key, 56)), time, 1)).collect()
}

/// A text of `bytes` bytes that follows from `seed` and does not compress well.
fn noise(seed: u64, bytes: usize) -> String {
    let mut chance = Chance::new(seed);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(&format!("{:016x}", chance.draw()));
    }
    text.truncate(bytes);
    text
}

/// Opens an incarnation of a replica of one process, with its chain.
async fn open(sink: &Sink, replica: &str, workers: u32) -> (Incarnation, Chain) {
    let launch = Launch::single(replica, workers).expect("a sound launch");
    let incarnation =
        sink.open_incarnation(launch).await.expect("it opens").render().expect("there is to write");
    let chain = incarnation.chain().expect("the chain is free");
    (incarnation, chain)
}

/// Mints the next description up to `frontier`.
fn mint(chain: &mut Chain, frontier: u64) -> Minted {
    chain.mint(Frontier::at(frontier)).expect("it mints").minted().expect("a description")
}

/// Writes and reports the share of every worker of a replica of one process: worker `n` writes `all[n]`, and
/// nothing where there is none.
async fn write_all(
    incarnation: &Incarnation,
    chain: &mut Chain,
    minted: Minted,
    all: &[Vec<Update>],
) -> Result<Vec<Resolved>, Error> {
    let mut resolved = Vec::new();
    for worker in incarnation.local_workers() {
        let mine = usize::try_from(worker).ok().and_then(|worker| all.get(worker));
        let mine = mine.filter(|mine| !mine.is_empty()).map(|mine| updates(incarnation.sink(), mine));
        let share = incarnation.worker(worker)?.write(minted, mine).await?;
        resolved.extend(chain.report(share).await?);
    }
    Ok(resolved)
}

/// Mints up to `frontier`, and has one worker write `all`.
async fn write(incarnation: &Incarnation, chain: &mut Chain, frontier: u64, all: &[Update]) -> Resolved {
    let minted = mint(chain, frontier);
    let resolved = write_all(incarnation, chain, minted, &[all.to_vec()]).await.expect("it is written");
    *resolved.last().expect("the batch left")
}
