//! Writes the fixture of the present version: a small catalog with something in every table.
//!
//! `cargo run -p stash-catalog --example fixture -- <file>`; see `migrations/README.md`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use stash_catalog::suite::{Setup, World, span};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Catalog, DeletionReason, SqliteCatalog, StartAt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let path = PathBuf::from(std::env::args_os().nth(1).context("usage: fixture <file>")?);
    anyhow::ensure!(!path.exists(), "{} exists: fixtures are never written again", path.display());
    let clock = Arc::new(ManualClock::at(1_000_000));
    let its_clock = Arc::clone(&clock);
    let catalog: Arc<dyn Catalog> =
        Arc::new(SqliteCatalog::open(&path, its_clock, Arc::new(SeededIds::new(1))).await?);
    let setup = Setup { other: Arc::clone(&catalog), catalog, clock, ids: Arc::new(SeededIds::new(2)) };
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1, 2]).await;
    world.extend(a, span(5, 9)).await;
    world.accept(b, span(0, 12), &[1]).await;
    world.register("reader", StartAt::Beginning).await?;
    setup.catalog.close_incarnation(world.sink, a, "the fixture says so").await?;
    setup.catalog.enqueue(world.sink, &[world.key(a, span(9, 12), 3)], DeletionReason::Surrendered).await?;
    setup.catalog.close().await;
    Ok(())
}
