//! How long a small batch takes to become durable: accepts of one inline run of three updates, one after
//! the other, with `synchronous=FULL`.
//!
//! `cargo run --release -p stash-catalog --example commit_rate -- <folder> [count]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use stash_catalog::suite::{Setup, World, span};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Catalog, SqliteCatalog, StartAt};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = PathBuf::from(arguments.next().context("usage: commit_rate <folder> [count]")?);
    let count: u64 = match arguments.next() {
        Some(count) => count.to_string_lossy().parse().context("the count")?,
        None => 2000,
    };
    let clock = Arc::new(ManualClock::at(1_000_000));
    let path = folder.join("commit_rate.db");
    anyhow::ensure!(!path.exists(), "{} exists: remove it first", path.display());
    let its_clock = Arc::clone(&clock);
    let catalog: Arc<dyn Catalog> =
        Arc::new(SqliteCatalog::open(&path, its_clock, Arc::new(SeededIds::new(1))).await?);
    let setup = Setup { other: Arc::clone(&catalog), catalog, clock, ids: Arc::new(SeededIds::new(2)) };
    let world = World::new(&setup).await;
    let incarnation = world.open("a").await.id;
    let (_, session) = world.register("reader", StartAt::Beginning).await?;
    let (mut commits, mut acknowledgements) = (Vec::new(), Vec::new());
    for time in 0..count {
        let request = world.accepting(incarnation, span(time, time + 1), &[]).await;
        let start = Instant::now();
        world.done(request).await;
        commits.push(start.elapsed());
        let start = Instant::now();
        world.acknowledge("reader", session, time + 1).await?;
        acknowledgements.push(start.elapsed());
    }
    for (what, mut times) in [("commit", commits), ("acknowledge", acknowledgements)] {
        times.sort();
        let total: std::time::Duration = times.iter().sum();
        let at = |percent: usize| {
            times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
        };
        println!(
            "{what}: {count} in {total:.1?}, {:.0} per second, p50 {:.2?}, p99 {:.2?}, max {:.2?}",
            f64::from(u32::try_from(times.len())?) / total.as_secs_f64(),
            at(50),
            at(99),
            at(100)
        );
    }
    setup.catalog.close().await;
    std::fs::remove_file(path)?;
    Ok(())
}
