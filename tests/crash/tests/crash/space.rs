//! The disk is full: the stash lies on a small file system in memory. Writers are told so by type, nothing breaks,
//! and once there is room the run completes.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use stash_crash::{Setup, What, World, message::Event, plan::live};

/// A mounted file system; unmounted when it is dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// Mounts `mib` MiB; `None` where that is not permitted.
    fn new(mib: u32) -> anyhow::Result<Option<Mount>> {
        let folder = tempfile::tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(folder.path())
            .output();
        Ok(mounted.is_ok_and(|done| done.status.success()).then_some(Mount(folder)))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn grow(&self, mib: u32) -> anyhow::Result<()> {
        let grown = Command::new("mount")
            .args(["-o", &format!("remount,size={mib}m")])
            .arg(self.path())
            .status()
            .context("remounting")?;
        ensure!(grown.success(), "the file system does not grow");
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// What was told while there was no room.
#[derive(Debug, Default)]
struct Told {
    stuck: Vec<(String, String)>,
    ended: Vec<(String, String)>,
}

async fn fill(mount: &Mount, weight: u64) -> anyhow::Result<Told> {
    let mut setup = Setup::new(crate::BINARY, 41);
    setup.stash = Some(mount.path().join("stash"));
    // The keeper holds everything, so that the room runs out for certain.
    (setup.keeper, setup.weight, setup.sweeper) = (true, weight, false);
    let mut world = World::start(setup).await?;
    world.holding = true;
    let mut told = Told::default();
    while !world.is_held_up() {
        ensure!(!world.is_over(), "the file system was never full: {told:?}");
        match world.step().await?.what {
            What::Told(Event::Stuck { kind, error }) => told.stuck.push((kind, error)),
            What::Told(Event::Ended { kind, error, .. }) => told.ended.push((kind, error)),
            _ => {}
        }
    }
    mount.grow(512)?;
    world.release().await?;
    live(&mut world).await?;
    Ok(told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_by_type_and_costs_nothing_once_there_is_room() {
    let mut told = Vec::new();
    for (mib, weight) in [(1, 1), (2, 4), (4, 8), (8, 24)] {
        let Some(mount) = Mount::new(mib).expect("a folder to mount on") else {
            return crate::skip("a full disk: mounting a file system is not permitted here");
        };
        let all = crate::within_deadline(async {
            let filled = fill(&mount, weight).await;
            filled.map_err(|error| error.context(format!("{mib} MiB")))
        })
        .await;
        println!("{mib} MiB: {all:?}");
        for (kind, error) in all.stuck.iter().chain(&all.ended) {
            assert!(["Retry", "Reopen"].contains(&kind.as_str()), "{kind}: {error}");
        }
        told.extend(all.stuck.into_iter().chain(all.ended));
    }
    let full = |error: &str| error.contains("disk is full") || error.to_lowercase().contains("no space");
    assert!(told.iter().any(|(_, error)| full(error)), "nobody was told that the disk is full: {told:?}");
}
