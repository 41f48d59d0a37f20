//! What goes on besides: sweeps, the inputs that compact, outages, and the clock that is set wrong.

use std::sync::Arc;

use stash::StashConfig;
use stash_chain::invariants::i10_read_hold_rises;
use stash_types::Frontier;

use crate::chance::Concern;
use crate::process::{Process, again};
use crate::world::{Phase, World, pause};

/// Sweeps each sink over and over, and dies at times.
pub(crate) async fn sweep(world: Arc<World>, config: StashConfig) {
    let mut chance = world.chance(Concern::Housekeeping).split();
    while world.phase() < Phase::Stopping {
        let Some(process) = Process::start(&world, "sweeper", config.clone()).await else { continue };
        if world.phase() == Phase::Chaos && chance.per_mille(600) {
            process.life.doom(chance.between(10, 120));
        }
        tokio::select! { biased;
            () = process.life.died() => {}
            () = world.reaches(Phase::Stopping) => {}
            () = sweep_all(&world, &process) => {}
        }
        if process.life.is_dead() {
            process.kill(&world, "while sweeping");
        } else {
            process.close(&world).await;
        }
    }
}

async fn sweep_all(world: &World, process: &Process) {
    loop {
        for facts in &world.sinks {
            let Some(sink) = process.sink(facts.name).await else { continue };
            if let Ok(report) = sink.sweep().await
                && report.garbage + report.uploads_removed > 0
            {
                world.count_many("sweep found garbage", report.garbage);
                world.count_many("sweep found uploads", report.uploads_removed);
                world.say(process.life.name(), format!("sweeps {}: {report:?}", facts.name));
            }
        }
        let takes = world.chance(Concern::Housekeeping).between(100, 1500);
        pause(takes).await;
    }
}

/// Lets the inputs of each sink forget what lies below its read hold (I10).
pub(crate) async fn compact(world: Arc<World>, config: StashConfig) {
    let Some(process) = Process::start(&world, "inputs", config).await else { return };
    let mut holds = vec![Frontier::MIN; world.sinks.len()];
    while world.phase() < Phase::Stopping {
        for (place, facts) in world.sinks.iter().enumerate() {
            let Some(sink) = process.sink(facts.name).await else { continue };
            let Ok(hold) = again(|| sink.read_hold()).await else { continue };
            if let Some(before) = holds.get_mut(place) {
                world.check(process.life.name(), i10_read_hold_rises(*before, hold));
                *before = hold;
            }
            world.compact(place, hold);
        }
        let takes = world.chance(Concern::Housekeeping).between(20, 400);
        pause(takes).await;
    }
    process.close(&world).await;
}

/// Sets the catalog's clock forward and back.
pub(crate) async fn jump(world: Arc<World>) {
    while world.phase() == Phase::Chaos {
        let (wait, by_ms) = {
            let mut chance = world.chance(Concern::Housekeeping);
            let by: i64 = chance.pick(500, &[3000, 20_000, 3_600_000]);
            (chance.between(1000, 8000), if chance.per_mille(500) { by } else { -by })
        };
        pause(wait).await;
        if world.phase() == Phase::Chaos {
            world.clock.jump(by_ms);
            world.fault("clock", "clock jumps", format!("{by_ms} ms"));
        }
    }
}

/// Puts the store or the catalog out for a while.
pub(crate) async fn outages(world: Arc<World>) {
    while world.phase() == Phase::Chaos {
        let (wait, store, takes) = {
            let mut chance = world.chance(Concern::Housekeeping);
            (chance.between(1500, 9000), chance.per_mille(500), chance.between(100, 2500))
        };
        pause(wait).await;
        if world.phase() != Phase::Chaos {
            return;
        }
        let name = if store { "store" } else { "catalog" };
        world.fault(name, "outage", format!("{takes} ms"));
        world.set_out(store, true);
        pause(takes).await;
        world.set_out(store, false);
        world.say(name, "back again");
    }
}
