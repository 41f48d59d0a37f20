//! The disk is full: the stash lies on a small file system in memory. Writers are told so by type, nothing breaks,
//! and once there is room the run completes.

use std::{io::Write, path::Path, process::Command};

use anyhow::{Context, ensure};
use arrow::datatypes::{DataType, Field, Schema};
use stash::{ErrorKind, OpenOptions, SinkSpec};
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

/// Where the room goes, and how there is some again.
#[derive(Clone, Copy, Debug)]
enum Full {
    /// Parts fill it; the file system grows.
    OfParts { weight: u64 },
    /// Something else fills it at once, so that the catalog has no room to grow either; that is removed.
    OfSomethingElse,
}

/// Takes all the room there is left.
fn take_all_room(file: &Path) -> anyhow::Result<()> {
    let mut filler = std::fs::File::create(file)?;
    for len in [64 << 10, 4 << 10, 1] {
        while filler.write_all(&vec![0; len]).is_ok() {}
    }
    Ok(())
}

async fn fill(mount: &Mount, full: Full) -> anyhow::Result<Told> {
    let mut setup = Setup::new(crate::BINARY, 41);
    setup.stash = Some(mount.path().join("stash"));
    // The keeper holds everything, so that the room runs out for certain.
    (setup.keeper, setup.sweeper, setup.deletes_refused) = (true, false, true);
    if let Full::OfParts { weight } = full {
        setup.weight = weight;
    }
    let mut world = World::start(setup).await?;
    world.holding = true;
    let (mut told, filler) = (Told::default(), mount.path().join("filler"));
    while !world.is_held_up() {
        ensure!(!world.is_over(), "the file system was never full: {told:?}");
        match world.step().await?.what {
            What::Told(Event::Stuck { kind, error }) => told.stuck.push((kind, error)),
            What::Told(Event::Ended { kind, error, .. }) => told.ended.push((kind, error)),
            What::Told(Event::Reached { .. })
                if matches!(full, Full::OfSomethingElse) && !filler.exists() =>
            {
                take_all_room(&filler)?;
            }
            _ => {}
        }
    }
    match full {
        Full::OfParts { .. } => mount.grow(512)?,
        Full::OfSomethingElse => std::fs::remove_file(&filler)?,
    }
    world.release().await?;
    live(&mut world).await?;
    Ok(told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_by_type_and_costs_nothing_once_there_is_room() {
    let mut told = Vec::new();
    let parts = |weight| Full::OfParts { weight };
    let rest = Full::OfSomethingElse;
    for (mib, how) in [(1, parts(1)), (2, parts(4)), (4, parts(8)), (8, parts(24)), (16, rest), (32, rest)] {
        let Some(mount) = Mount::new(mib).expect("a folder to mount on") else {
            return crate::skip("a full disk: mounting a file system is not permitted here");
        };
        let all = crate::within_deadline(async {
            let filled = fill(&mount, how).await;
            filled.map_err(|error| error.context(format!("{mib} MiB, {how:?}")))
        })
        .await;
        println!("{mib} MiB, {how:?}: {all:?}");
        for (kind, error) in all.stuck.iter().chain(&all.ended) {
            assert!(["Retry", "Reopen"].contains(&kind.as_str()), "{kind}: {error}");
        }
        told.extend(all.stuck.into_iter().chain(all.ended));
    }
    assert!(told.iter().any(|(_, error)| error.contains("disk full")), "nobody was told: {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_without_room_says_so_and_has_all_that_it_said_it_has() {
    let Some(mount) = Mount::new(4).expect("a folder to mount on") else {
        return crate::skip("a full disk: mounting a file system is not permitted here");
    };
    let url = format!("file://{}", mount.path().join("stash").display());
    let stash = OpenOptions::new(url).open().await.expect("there is room yet");
    let filler = mount.path().join("filler");
    take_all_room(&filler).expect("a file");
    let spec = |name: &str| {
        let schema = Schema::new(vec![Field::new("k", DataType::UInt64, false)]);
        SinkSpec::new(name, schema).expect("sound")
    };
    let mut declared = Vec::new();
    // What the log has room for is still taken: it was as large before.
    let error = loop {
        let name = format!("sink-{}", declared.len());
        match stash.declare_sink(spec(&name)).await {
            Ok(_) => declared.push(name),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.to_string().contains("full: free some space and try again"), "{error}");
    std::fs::remove_file(&filler).expect("it is there");
    stash.declare_sink(spec("after")).await.expect("there is room again");
    declared.push("after".to_owned());
    declared.sort();
    let known = stash.sinks(true).await.expect("listed");
    let mut known: Vec<_> = known.iter().map(|row| row.spec.name.to_string()).collect();
    known.sort();
    assert_eq!(known, declared);
    stash.close().await.expect("closes");
}
