//! The audit of a world at rest: nothing lost, nothing doubled, nothing left.
//!
//! Catalog and store are looked at side by side first, without a session, whose background work could still tidy up;
//! then by the library's own verification; then file by file, below any store.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use stash::{
    BlobEntryKind, BlobKey, BlobPrefix, BlobStore, Catalog, Error, Sink, StartAt, Stash, SystemClock,
    SystemIds,
};
use stash_blob::LocalStore;
use stash_catalog::{CatalogError, Misuse, SqliteCatalog};

use crate::{
    feed::{Content, Feed},
    results::Results,
    role::{self, KEEPER, SINK},
    world::World,
};

/// What an audit saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Parts in the store, all of them referenced.
    pub parts: usize,
}

/// The catalog's and the store's own view.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Objects in the store, the stash's own left out.
    pub listed: BTreeSet<String>,
    /// Uploads and foreign names in the store.
    pub others: Vec<String>,
    /// Keys that rows reference.
    pub referenced: BTreeSet<String>,
    /// Keys in the deletion queue.
    pub queued: u64,
    /// Sinks that stand.
    pub sinks: usize,
}

/// Looks at catalog and store of the stash in `folder`, without a session.
pub async fn inventory(folder: &Path) -> anyhow::Result<Inventory> {
    let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
    let catalog = SqliteCatalog::open(&folder.join("catalog.sqlite"), clock, ids).await?;
    let store = LocalStore::open(&folder.join("blobs"))?;
    let mut seen = Inventory::default();
    let mut listing = store.list(BlobPrefix::All);
    while let Some(entry) = listing.next().await {
        match entry?.kind {
            BlobEntryKind::Object(key) if key == BlobKey::stash_json() => {}
            BlobEntryKind::Object(key) => drop(seen.listed.insert(key.to_string())),
            other => seen.others.push(format!("{other:?}")),
        }
    }
    drop(listing);
    for sink in catalog.sinks(true).await? {
        seen.sinks += usize::from(sink.dropped.is_none());
        let referenced = catalog.referenced(sink.spec.id).await?;
        seen.referenced.extend(referenced.into_iter().map(|(key, _)| key.to_string()));
    }
    seen.queued = catalog.deletions_queued(None).await?;
    catalog.close().await;
    Ok(seen)
}

/// Audits a world in which every handle was closed.
pub async fn audit(world: &World) -> anyhow::Result<Audit> {
    let feed = Feed { seed: world.setup.seed, end: world.setup.end, weight: world.setup.weight };
    let oracle = feed.content(world.setup.end);
    let (upper, delivered) = Results::open(&world.results())?.content()?;
    ensure!(upper >= world.setup.end, "delivered up to {upper} only, the feed ends at {}", world.setup.end);
    compare(&oracle, &delivered).context("what the consumer recorded")?;

    if world.setup.deletes_refused {
        delete_what_was_refused(world).await?;
    }
    let seen = inventory(&world.stash()).await?;
    ensure!(seen.others.is_empty(), "left in the store: {:?}", seen.others);
    ensure!(seen.queued == 0, "{} keys are left in the deletion queue", seen.queued);
    ensure!(
        seen.listed == seen.referenced,
        "in the store and not referenced: {:?}; referenced and not in the store: {:?}",
        seen.listed.difference(&seen.referenced).collect::<Vec<_>>(),
        seen.referenced.difference(&seen.listed).collect::<Vec<_>>()
    );
    ensure!(world.setup.keeper || seen.listed.is_empty(), "acknowledged, and left: {:?}", seen.listed);

    let stash = role::open(&world.stash(), world.setup.lease_secs).await?;
    let sink = stash.sink(SINK).await?;
    at_rest(&stash, &sink).await?;
    if world.setup.keeper {
        compare(&oracle, &read_again(&sink).await?).context("what the keeper read at the end")?;
    }
    drop(sink);
    stash.close().await?;
    files(&world.stash(), seen.listed.len())?;
    Ok(Audit { parts: seen.listed.len() })
}

/// Audits a world whose batches expired: the sink stands, nothing of its chain is left, and who asks for its
/// beginning is told so.
pub async fn audit_expired(world: &World) -> anyhow::Result<()> {
    nothing_left(world, 1).await.context("after all expired")?;
    let stash = role::open(&world.stash(), world.setup.lease_secs).await?;
    let sink = stash.sink(SINK).await?;
    let head = sink.head().await?;
    ensure!(head.expired == head.upper, "expired below {} of {}", head.expired, head.upper);
    match sink.subscribe("late", StartAt::Beginning).await {
        Err(Error::Catalog(CatalogError::InvalidUsage(Misuse::BeginningGone { earliest, .. }))) => {
            ensure!(earliest == head.expired, "who comes late is told to begin at {earliest}");
        }
        other => bail!("who comes late is not told that the beginning is gone: {other:?}"),
    }
    at_rest(&stash, &sink).await?;
    drop(sink);
    stash.close().await?;
    files(&world.stash(), 0)
}

/// Audits a world whose sink was dropped: nothing of it is left.
pub async fn audit_dropped(world: &World) -> anyhow::Result<()> {
    nothing_left(world, 0).await.context("after the drop")
}

/// So many sinks stand, and nothing of any is left in catalog or store.
async fn nothing_left(world: &World, sinks: usize) -> anyhow::Result<()> {
    let seen = inventory(&world.stash()).await?;
    ensure!(
        seen.sinks == sinks && seen.queued == 0 && seen.referenced.is_empty() && seen.listed.is_empty(),
        "left: {seen:?}"
    );
    ensure!(seen.others.is_empty(), "left in the store: {:?}", seen.others);
    files(&world.stash(), 0)
}

/// Deletes what the store refused to delete before, as soon as it is due again.
async fn delete_what_was_refused(world: &World) -> anyhow::Result<()> {
    let stash = role::open(&world.stash(), world.setup.lease_secs).await?;
    while stash.catalog().deletions_queued(None).await? > 0 {
        let revision = stash.catalog().revision().await?;
        stash.drain_deletions().await?;
        stash.catalog().changed(revision, Duration::from_millis(100)).await?;
    }
    stash.close().await?;
    Ok(())
}

/// Verification finds nothing, and nor does a sweep (I17).
async fn at_rest(stash: &Stash, sink: &Sink) -> anyhow::Result<()> {
    let report = sink.verify(|_| {}).await?;
    ensure!(report.violations.is_empty(), "violations: {:?}", report.violations);
    ensure!((report.being_written, report.queued) == (0, 0), "not at rest: {report:?}");
    let strays = stash.strays().await?;
    ensure!(strays.is_empty(), "strays: {strays:?}");
    let swept = sink.sweep().await?;
    let found = (swept.garbage, swept.uploads_removed, swept.being_written, swept.foreign.len());
    ensure!(found == (0, 0, 0, 0), "the sweep found something: {swept:?}");
    Ok(())
}

/// The whole chain, as the one who held it reads it; the first half of its batches is acknowledged.
async fn read_again(sink: &Sink) -> anyhow::Result<Content> {
    let mut subscription = sink.subscribe(KEEPER, StartAt::Beginning).await?;
    let (mut content, mut uppers) = (Content::new(), Vec::new());
    while let Some(delivery) = subscription.next().await? {
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await? {
            role::add(&mut content, &batch)?;
        }
        uppers.push(delivery.upper());
    }
    if let Some(upper) = uppers.get(uppers.len() / 2) {
        subscription.acknowledge(*upper).await?;
        sink.stash().drain_deletions().await?;
    }
    Ok(content)
}

/// Refuses what is not the oracle's content, naming the first difference.
pub fn compare(oracle: &Content, got: &Content) -> anyhow::Result<()> {
    for ((time, row), diff) in oracle {
        let found = got.get(&(*time, row.clone())).copied().unwrap_or(0);
        ensure!(found == *diff, "key {} at time {time}: {found} was delivered, {diff} is right", row.0);
    }
    if let Some(((time, row), diff)) = got.iter().find(|(at, _)| !oracle.contains_key(*at)) {
        bail!("key {} at time {time}: {diff} was delivered, nothing is right", row.0);
    }
    Ok(())
}

/// Looks at every file below the stash: parts, the marker and the catalog's own, and nothing else; no folder is
/// empty.
fn files(stash: &Path, parts_max: usize) -> anyhow::Result<()> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let mut waiting = vec![stash.join("blobs")];
    while let Some(folder) = waiting.pop() {
        let mut entries = 0;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            entries += 1;
            let name = path.file_name().and_then(|name| name.to_str()).context("a name that is no text")?;
            if path.is_dir() {
                waiting.push(path);
            } else if name.ends_with(".parquet") && !name.starts_with('.') {
                *kinds.entry("part").or_default() += 1;
            } else if name == "stash.json" {
                *kinds.entry("marker").or_default() += 1;
            } else {
                bail!("left: {}", path.display());
            }
        }
        ensure!(entries > 0, "an empty folder: {}", folder.display());
    }
    ensure!(kinds.get("marker") == Some(&1), "the marker: {kinds:?}");
    ensure!(kinds.get("part").copied().unwrap_or(0) <= parts_max, "parts that no listing shows: {kinds:?}");
    for entry in std::fs::read_dir(stash)? {
        let name = entry?.file_name();
        let name = name.to_str().context("a name that is no text")?;
        ensure!(name == "blobs" || name.starts_with("catalog.sqlite"), "left beside the catalog: {name}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_more_or_doubled_is_a_difference() {
        let row = (3, "x".to_owned());
        let oracle = Content::from([((1, row.clone()), 2)]);
        assert!(compare(&oracle, &oracle).is_ok());
        for wrong in [
            Content::new(),
            Content::from([((1, row.clone()), 4)]),
            Content::from([((2, row.clone()), 2)]),
            Content::from([((1, row.clone()), 2), ((2, row.clone()), 1)]),
        ] {
            assert!(compare(&oracle, &wrong).is_err(), "{wrong:?}");
        }
    }
}
