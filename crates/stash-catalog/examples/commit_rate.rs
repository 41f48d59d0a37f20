//! How long a small batch takes from its offer to being durable: view and commit of one inline run of three updates, one
//! after the other, and its acknowledgement. In a folder with `synchronous=FULL`, on a server with `synchronous_commit` on,
//! in a schema that is empty.
//!
//! `cargo run --release -p stash-catalog --example commit_rate -- <folder | postgres://…?schema=…> [count]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use stash_catalog::suite::{Setup, World, span};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Catalog, ClockSource, PostgresCatalog, PostgresOptions, SqliteCatalog, StartAt};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().context("usage: commit_rate <folder | postgres://…> [count]")?;
    let count: u64 = match arguments.next() {
        Some(count) => count.parse().context("the count")?,
        None => 2000,
    };
    let clock = Arc::new(ManualClock::at(1_000_000));
    let (its_clock, ids) = (Arc::clone(&clock), Arc::new(SeededIds::new(1)));
    let path = PathBuf::from(&place).join("commit_rate.db");
    let catalog: Arc<dyn Catalog> = if place.starts_with("postgres") {
        let options = PostgresOptions::from_url(&place)?;
        Arc::new(PostgresCatalog::open(options, ClockSource::Database, ids).await?)
    } else {
        anyhow::ensure!(!path.exists(), "{} exists: remove it first", path.display());
        Arc::new(SqliteCatalog::open(&path, its_clock, ids).await?)
    };
    anyhow::ensure!(
        catalog.sinks(true).await?.is_empty(),
        "{} is not empty: name a new place",
        catalog.location()
    );
    let setup = Setup { other: Arc::clone(&catalog), catalog, clock, ids: Arc::new(SeededIds::new(2)) };
    let world = World::new(&setup).await;
    let incarnation = world.open("a").await.id;
    let (_, session) = world.register("reader", StartAt::Beginning).await?;
    let (mut offers, mut commits, mut acknowledgements) = (Vec::new(), Vec::new(), Vec::new());
    for time in 0..count {
        let request = world.accepting(incarnation, span(time, time + 1), &[]).await;
        let offered = Instant::now();
        setup.catalog.view(world.sink, incarnation).await?;
        let start = Instant::now();
        world.done(request).await;
        commits.push(start.elapsed());
        offers.push(offered.elapsed());
        let start = Instant::now();
        world.acknowledge("reader", session, time + 1).await?;
        acknowledgements.push(start.elapsed());
    }
    for (what, mut times) in [("offer", offers), ("commit", commits), ("acknowledge", acknowledgements)] {
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
    if path.exists() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
