//! The tests of Stash as a whole, against what it promises: one binary, a module a promise.

mod cancelling;
mod coalescing;
mod failure;
mod poison;
mod replicas;
mod rerender;

use stash::{Chain, Error, Frontier, Incarnation, Launch, Minted, Resolved, Sink};
use stash_tests::{Row, updates};

/// An update of the tests: row, time, diff.
type Update = (Row, u64, i64);

/// A row with this key.
fn row(key: u64) -> Row {
    (key, "x".to_owned())
}

/// `count` distinct rows at `time` from key `from` on, about 80 bytes each.
fn many(from: u64, count: u64, time: u64) -> Vec<Update> {
    (from..from + count).map(|key| ((key, format!("{key:056}")), time, 1)).collect()
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
