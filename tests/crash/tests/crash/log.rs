//! The catalog's write-ahead log loses its tail, as a power loss may leave it.
//!
//! A commit that returned was synced, so a power loss cannot take it: what it can tear is what lies behind the last
//! sync. These tests tear more than that, any commit that was not yet copied into the database file, and so also show
//! what a disk does that acknowledges what it does not keep, or an operator who puts back an old log:
//!
//! - the catalog opens as it was after some earlier commit, or says why not; it never panics, and what it shows is
//!   whole: the chain is gapless, and what it delivers is what was accepted;
//! - where history was lost, verification says so: referenced parts that were deleted since are missing (I15), parts
//!   of renderings it does not know are foreign, or nobody's (I17). Nothing else is found;
//! - a session that saw more stops with `CatalogBehind` (I7).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, ensure};
use stash::{Absence, Catalog, CatalogError, Error, ErrorKind, SystemClock, SystemIds};
use stash_catalog::SqliteCatalog;
use stash_crash::{
    Setup, World,
    audit::compare,
    feed::{Chance, Content, Feed},
    role::{self, SINK},
};

const LOG: &str = "catalog.sqlite-wal";
/// Logs that are torn in each world.
const TEARS: usize = 40;

/// Copies the stash without the log's index, which no power loss leaves. Objects are never altered: they are linked.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let name = entry.file_name();
        match (entry.path().is_dir(), name.to_str()) {
            (true, _) => copy(&entry.path(), &target)?,
            (false, Some(name)) if name.ends_with("-shm") => {}
            (false, Some(name)) if name.starts_with("catalog") => drop(fs::copy(entry.path(), target)?),
            (false, _) => fs::hard_link(entry.path(), target)?,
        }
    }
    Ok(())
}

/// Where the log begins that the database file does not have yet. What lies before was synced before it was copied.
fn first_loose_byte(stash: &Path) -> anyhow::Result<usize> {
    let (log, index) = (fs::read(stash.join(LOG))?, fs::read(stash.join("catalog.sqlite-shm"))?);
    let page = log.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    // The index holds two copies of its header, of 48 bytes each; then, in the machine's order, how many frames
    // were copied. See "WAL-Index Format" of SQLite's documentation.
    let copied = index.get(96..100).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let (page, copied) = (page.context("the log's header")?, copied.context("the index's header")?);
    Ok(32 + usize::try_from(copied)? * (24 + usize::try_from(page)?))
}

/// Tears a log from `loose` on, in one of the ways a tail can be wrong.
fn tear(log: &mut Vec<u8>, loose: usize, chance: &mut Chance) -> String {
    let len = log.len();
    let at = loose + usize::try_from(chance.below((len - loose) as u64)).expect("an offset");
    match chance.below(5) {
        0 => {
            log.truncate(at);
            format!("cut at {at} of {len}")
        }
        1 => {
            log[at..].fill(0);
            format!("zeros from {at} of {len}")
        }
        2 => {
            for _ in 0..1 + chance.below(4) {
                let flipped = at + usize::try_from(chance.below((len - at) as u64)).expect("an offset");
                log[flipped] ^= 1 << chance.below(8);
            }
            format!("bits flipped from {at} of {len}")
        }
        3 => {
            // What was on its way when the power went: a frame, or some, that nobody was told of.
            log.extend((0..chance.below(9000)).map(|_| (chance.draw() & 0xff) as u8));
            format!("noise behind {len}")
        }
        _ => {
            let old = log[loose..at].to_vec();
            log.truncate(at);
            log.extend(old.iter().take(5000));
            format!("from {at} of {len} on what stood there before")
        }
    }
}

/// A world that is killed in the middle of its work.
async fn killed_half_way(seed: u64, keeper: bool) -> anyhow::Result<World> {
    let mut setup = Setup::new(crate::BINARY, seed);
    (setup.keeper, setup.sweeper) = (keeper, false);
    let mut world = World::start(setup).await?;
    world.target_max = 12;
    while world.target() < 12 || !world.is_at_target(0) || !world.is_at_target(1) {
        world.step().await?;
    }
    world.kill_all().await?;
    Ok(world)
}

/// What a torn copy turned out to be.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It opened, at this revision, with these violations.
    Opened(u64, BTreeSet<String>),
    /// It was refused, and why.
    Refused(String),
}

async fn look(stash: &Path, feed: Feed) -> anyhow::Result<Found> {
    // SUBTLE: asked before the stash opens: its deleter goes on with what is queued, and each key it strikes is a revision.
    let opened_at = revision_of(&stash.join("catalog.sqlite")).await;
    let stash = match role::open(stash, 60).await {
        Ok(stash) => stash,
        Err(error) => {
            let said = format!("{:?}: {error}", error.kind());
            ensure!(error.kind() != ErrorKind::Retry, "a torn log is not mended by another try: {said}");
            return Ok(Found::Refused(said));
        }
    };
    let revision = opened_at.context("a catalog that opens twice tells its revision")?;
    let mut violations = BTreeSet::new();
    match stash.sink(SINK).await {
        Ok(sink) => {
            let report = sink.verify(|_| {}).await?;
            violations.extend(report.violations.into_iter().map(|found| found.invariant));
            let mut subscription = sink.read().await?;
            let (from, upper) = (subscription.position().as_u64(), sink.upper().await?.as_u64());
            let (mut got, mut lost) = (Content::new(), false);
            while subscription.position().as_u64() < upper {
                let Some(delivery) = subscription.next().await? else { break };
                let mut reader = delivery.read();
                loop {
                    match reader.next().await.map_err(Error::from) {
                        Ok(Some(batch)) => role::add(&mut got, &batch)?,
                        Ok(None) => break,
                        Err(Error::Absent(Absence::Lost { .. })) => {
                            lost = true;
                            break;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            ensure!(!lost || violations.contains("I15"), "a part is lost, and verification does not say so");
            if !lost {
                let mut oracle = feed.content(upper);
                oracle.retain(|(time, _), _| *time >= from);
                compare(&oracle, &got).context("what the torn catalog delivers")?;
            }
        }
        Err(error) => ensure!(error.kind() == ErrorKind::FixCall, "{error}"),
    }
    stash.close().await?;
    Ok(Found::Opened(revision, violations))
}

/// The revision at which a catalog opens, if it does.
async fn revision_of(path: &Path) -> anyhow::Result<u64> {
    let session = session_over(path).await?;
    let revision = session.revision().await;
    session.close().await;
    Ok(revision?)
}

async fn session_over(path: &Path) -> anyhow::Result<SqliteCatalog> {
    Ok(SqliteCatalog::open(path, Arc::new(SystemClock), Arc::new(SystemIds)).await?)
}

/// Tears the log of one world again and again; how often history was lost, and how often not.
async fn tear_many(seed: u64, keeper: bool) -> anyhow::Result<(usize, usize)> {
    let world = killed_half_way(seed, keeper).await?;
    let feed = Feed { seed, end: world.setup.end, weight: world.setup.weight };
    let loose = first_loose_byte(&world.stash())?;
    let whole = fs::read(world.stash().join(LOG))?;
    ensure!(whole.len() > loose, "the whole log was copied into the database already");
    let untorn = world.file("untorn");
    copy(&world.stash(), &untorn)?;
    let Found::Opened(latest, harmless) = look(&untorn, feed).await? else {
        anyhow::bail!("the untorn copy does not open");
    };
    ensure!(
        harmless.is_subset(&BTreeSet::from(["I17".to_owned()])),
        "violations before any tear: {harmless:?}"
    );
    let (mut chance, mut lost, mut kept) = (Chance::new(seed), 0, 0);
    for turn in 0..TEARS {
        let mut log = whole.clone();
        let how = tear(&mut log, loose, &mut chance);
        let torn = world.file(&format!("torn-{turn}"));
        copy(&world.stash(), &torn)?;
        fs::write(torn.join(LOG), &log)?;
        let found = look(&torn, feed).await.with_context(|| how.clone())?;
        match found {
            Found::Opened(revision, violations) if revision == latest => {
                ensure!(violations == harmless, "{how}: nothing was lost, yet {violations:?}");
                kept += 1;
            }
            Found::Opened(revision, violations) => {
                ensure!(
                    !how.starts_with("noise"),
                    "{how}: what was synced is lost: {revision}, not {latest}"
                );
                ensure!(revision < latest, "{how}: revision {revision} after {latest}");
                let of_lost_history = BTreeSet::from(["I15".to_owned(), "I17".to_owned()]);
                ensure!(violations.is_subset(&of_lost_history), "{how}: {violations:?}");
                stops_who_saw_more(&world, turn, &log).await.with_context(|| how.clone())?;
                lost += 1;
            }
            // The very beginning is gone with the log: the store belongs to a catalog that is no more.
            Found::Refused(said) => {
                ensure!(said.contains("belongs to catalog") || said.contains("damaged"), "{how}: {said}");
                lost += 1;
            }
        }
        fs::remove_dir_all(&torn)?;
    }
    Ok((lost, kept))
}

/// A session that is open while the log is exchanged for a torn one stops.
async fn stops_who_saw_more(world: &World, turn: usize, log: &[u8]) -> anyhow::Result<()> {
    let folder: PathBuf = world.file(&format!("session-{turn}"));
    copy(&world.stash(), &folder)?;
    let path = folder.join("catalog.sqlite");
    let session = session_over(&path).await?;
    for name in ["catalog.sqlite", LOG, "catalog.sqlite-shm"] {
        fs::remove_file(folder.join(name))?;
    }
    fs::copy(world.stash().join("catalog.sqlite"), &path)?;
    fs::write(folder.join(LOG), log)?;
    let said = session.revision().await;
    ensure!(matches!(said, Err(CatalogError::CatalogBehind { .. })), "the session that saw more: {said:?}");
    session.close().await;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_log_gives_an_earlier_catalog_that_is_whole_and_says_what_is_missing() {
    let (mut lost, mut kept) = (0, 0);
    for (seed, keeper) in [(5, true), (6, false)] {
        let counted = crate::within_deadline(async {
            tear_many(seed, keeper).await.map_err(|error| error.context(format!("seed {seed}")))
        })
        .await;
        (lost, kept) = (lost + counted.0, kept + counted.1);
    }
    println!("{lost} torn logs lost history, {kept} did not");
    assert!(lost >= 20, "only {lost} of the torn logs lost history");
    assert!(kept >= 5, "only {kept} of the torn logs lost nothing");
}
