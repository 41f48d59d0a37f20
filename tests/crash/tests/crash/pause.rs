//! A replica stands still for longer than its lease, others go on, and then it goes on too: a zombie. What it offers
//! is refused, what it wrote is deleted, and it renders anew.
//!
//! A process that stands still within a write to the catalog holds the file's lock, and everybody waits for it: they
//! are told to try again. Where one of its threads happened to be there, the scenario is played once more. Just before
//! and just behind a write it only has the turn, and the others go on without.

use std::{fs::File, sync::Arc, time::Duration};

use rustix::process::Signal;
use stash::{Catalog, CatalogError, SystemClock, SystemIds};
use stash_catalog::SqliteCatalog;
use stash_crash::{At, Setup, What, Who, World, message::Event, plan::live, role::SINK};

const ZOMBIE: Who = Who::Replica(0, 0);

/// Waits until the lease of a stopped replica has run out, and closes it, as anybody may. `false` where it holds the
/// write lock.
async fn close_expired(world: &World) -> anyhow::Result<bool> {
    let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
    let catalog = SqliteCatalog::open(&world.stash().join("catalog.sqlite"), clock, ids).await?;
    let sink = catalog.sink_named(&SINK.parse()?).await?.spec.id;
    loop {
        let revision = catalog.revision().await?;
        match catalog.expire(sink, true).await {
            Ok(expired) if expired.closed.is_empty() => {}
            Ok(_) => break,
            Err(CatalogError::Determinate { retry: true, .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        catalog.changed(revision, Duration::from_millis(50)).await?;
    }
    catalog.close().await;
    Ok(true)
}

/// `false` where the replica stopped within a write.
async fn outlive_the_lease(place: &str, hit: u64) -> anyhow::Result<bool> {
    let mut setup = Setup::new(crate::BINARY, 77);
    setup.lease_secs = 1;
    setup.stops.insert(ZOMBIE, At::new(place, hit));
    let mut world = World::start(setup).await?;
    let (mut stopped, mut refused, mut anew) = (false, None, false);
    while !world.is_over() {
        let happening = world.step().await?;
        match happening.what {
            What::Told(Event::Stopping { .. }) => {
                stopped = true;
                if !close_expired(&world).await? {
                    return Ok(false);
                }
                // Others go on without it.
                while !world.is_at_target(1) {
                    world.step().await?;
                }
                world.signal(ZOMBIE, Signal::CONT)?;
            }
            What::Told(Event::Ended { kind, error, .. }) if happening.who == ZOMBIE && stopped => {
                refused.get_or_insert((kind, error));
            }
            What::Told(Event::Opened { .. }) if happening.who == ZOMBIE && refused.is_some() => anew = true,
            _ => {}
        }
    }
    anyhow::ensure!(stopped, "the replica did not come to {place}:{hit}");
    let (kind, error) = refused.ok_or_else(|| anyhow::anyhow!("the zombie was never refused"))?;
    anyhow::ensure!(kind == "Reopen", "the zombie was told {kind}: {error}");
    anyhow::ensure!(anew || world.is_over(), "it did not render anew");
    live(&mut world).await?;
    Ok(true)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_outlives_its_lease_is_refused_and_renders_anew() {
    for (place, hit) in [
        ("blob.temp_created", 2),
        ("blob.temp_synced", 2),
        ("blob.linked", 2),
        ("batch.part_owned", 3),
        ("batch.part_put", 3),
        ("batch.share_handed", 4),
        ("stash.share_merged", 3),
        ("stash.offer_decided", 2),
    ] {
        let mut tries = 0;
        while !crate::within_deadline(async {
            let ran = outlive_the_lease(place, hit).await;
            ran.map_err(|error| error.context(format!("stopped at {place}:{hit}")))
        })
        .await
        {
            tries += 1;
            assert!(tries < 10, "at {place}:{hit} the replica is within a write every time");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_still_with_the_turn_to_write_holds_nobody_up() {
    crate::within_deadline(async {
        let mut world = World::start(Setup::new(crate::BINARY, 78)).await?;
        let mut opening = world.setup.everybody().len();
        while opening > 0 {
            opening -= usize::from(matches!(world.step().await?.what, What::Told(Event::Ready)));
        }
        // In the place of a process that was stopped there.
        let turn = File::options().write(true).open(world.stash().join("catalog.sqlite.lock"))?;
        let turn = tokio::task::spawn_blocking(move || turn.lock().map(|()| turn)).await??;
        // At five seconds a write nobody would come to the end before the deadline of the roles.
        world.run_to_the_end().await?;
        drop(turn);
        live(&mut world).await?;
        Ok(())
    })
    .await;
}
