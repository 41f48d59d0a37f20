//! The sweep: finds what nobody owns and deletes it, as a plan that is made and then applied.
//!
//! There is one way to delete what nobody owns. Making a plan lists the store and judges (`classify`); applying it asks the
//! catalog about every key again, moves what is still garbage into the deletion queue, and aborts unpublished uploads.
//! Between the two may lie a moment ([`Sink::sweep`], which runs at every opening of an incarnation, so that crashes heal
//! without an operator) or a week in a file ([`Stash::plan_sweep`], [`Stash::apply_plan`]).
//!
//! - Being garbage is monotone: a plan stays valid, and what is no longer garbage never was. It is kept and reported.
//! - A plan of another catalog, or one that names a key of a shard this catalog has no sink for, or anything twice, is
//!   refused whole, before anything of it is touched. Checking it takes sixteen bytes for each of its entries.
//! - What is queued has a row of history each, as anything that is queued.
//! - Foreign things are reported, never deleted: no plan has a word for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, Write},
};

use serde::Serialize;
use stash_blob::{BlobEntryKind, BlobError};
use stash_catalog::DeletionReason;
use stash_types::{
    BlobKey, BlobPrefix, PartKey, ShardId,
    fault::{self, Mutant, broken},
};

use crate::{
    Class, Error, Names, PlanError, PlanHeader, PlanReader, PlanTotals, PlanWriter, Planned, Result, Sink,
    Stash, Stranger, Tally,
    audit::short,
    classify::{ENTRIES_A_CHUNK, Judged, KnownSink, Walk, class_of, known_sinks},
};

/// Lengths of the objects and uploads that are there.
type Lens = BTreeMap<BlobEntryKind, u64>;

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Objects listed.
    pub listed: u64,
    /// Objects that nobody owns; queued for deletion.
    pub garbage: u64,
    /// Unpublished uploads that nobody will finish; removed.
    pub uploads_removed: u64,
    /// Objects of open incarnations that may still be linked; left alone.
    pub being_written: u64,
    /// What Stash did not write, or an incarnation this catalog does not know; never deleted.
    pub foreign: Vec<String>,
}

/// What a plan was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// What the listing showed.
    pub listed: Tally,
    /// What would be deleted.
    pub planned: PlanTotals,
    /// What this catalog cannot own; never deleted.
    pub foreign: Names<Stranger>,
}

/// How a plan is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether anything is changed; else it is only said what would be.
    pub commit: bool,
    /// Objects queued and uploads aborted at most; the rest is left for another call.
    pub deletes_max: u64,
}

/// Why something that was planned was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// A batch references it.
    Referenced,
    /// An open incarnation may still offer it.
    BeingWritten,
    /// This catalog does not know its incarnation.
    Foreign,
    /// It has another length than when the plan was made: keys are written once, so it is not what was planned.
    OtherLength,
}

/// What applying a plan did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Objects moved into the deletion queue.
    pub queued: Tally,
    /// Unpublished uploads aborted.
    pub aborted: Tally,
    /// What is gone or queued already.
    pub done: Tally,
    /// What is not garbage and was kept.
    pub kept: Names<Kept>,
    /// What was not looked at, since enough was deleted.
    pub left: Tally,
}

impl Sink {
    /// Finds blobs of this sink that nobody owns and queues them for deletion. Runs at every opening of an
    /// incarnation, so that crashes heal without an operator.
    #[tracing::instrument(level = "debug", skip_all, fields(sink = %self.name()))]
    pub async fn sweep(&self) -> Result<SweepReport> {
        let stash = self.stash();
        let mut report = SweepReport::default();
        let mut applying = Applying::new(stash, ApplyOptions { commit: true, deletes_max: u64::MAX }, false);
        let mut walk = Walk::open(stash, BlobPrefix::Shard(self.shard()));
        while let Some(chunk) = walk.next().await? {
            for judged in &chunk {
                report.listed += u64::from(matches!(judged.entry.kind, BlobEntryKind::Object(_)));
                report.being_written +=
                    u64::from(matches!(judged.class, Class::BeingWritten | Class::Uploading));
                if let Class::Foreign(_) = judged.class {
                    report.foreign.push(judged.name());
                }
            }
            let planned = chunk.into_iter().filter_map(planned).collect();
            let sink = KnownSink { id: self.id(), dropped: self.row().dropped.is_some() };
            applying.apply(sink, planned).await?;
        }
        report.garbage = applying.report.queued.entries;
        report.uploads_removed = applying.report.aborted.entries;
        self.meters().sweeps.increment(1);
        if report.garbage > 0 {
            tracing::info!(sink = %self.name(), listed = report.listed, garbage = report.garbage, uploads = report.uploads_removed, "swept");
            stash.process().wake_deleter();
        }
        Ok(report)
    }

    /// The sweep of an opening and of a drop: left out where the session's knobs say so, and passed over where the store
    /// denies it. What has to be done was done before; what is left there takes nobody's place, and the next sweep by
    /// somebody who may list finds it.
    pub(crate) async fn sweep_by_the_way(&self) -> Result<()> {
        if !self.stash().config().sweep_at_open {
            return Ok(());
        }
        match self.sweep().await {
            Ok(_) => Ok(()),
            Err(Error::Blob(error @ BlobError::Denied { .. })) => {
                tracing::warn!(
                    sink = %self.id(), %error,
                    "not swept: what dead writers left stays until `stash-admin sweep` runs with credentials that may list; \
                     sweep_at_open = false ends this warning"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// What a plan says of an entry; `None` for what stays.
fn planned(judged: Judged) -> Option<Planned> {
    let Judged { entry, sink, part, class } = judged;
    let (Class::Garbage(reason) | Class::LeftOver(reason)) = class else { return None };
    let token = match entry.kind {
        BlobEntryKind::Object(_) => None,
        BlobEntryKind::Upload { key: _, token } => Some(token),
        BlobEntryKind::Foreign(_) => return None,
    };
    sink.and(part).map(|key| Planned { key, token, reason, bytes: entry.len })
}

impl Stash {
    /// Lists one sink's folder, or the whole prefix, and writes what nobody owns into a plan. Changes nothing in store or
    /// catalog. `progress` is told what was listed so far.
    pub async fn plan_sweep<W: Write + Send>(
        &self,
        sink: Option<&Sink>,
        out: W,
        mut progress: impl FnMut(Tally) + Send,
    ) -> Result<(W, PlanReport)> {
        let scope = sink.map(Sink::shard);
        let header = PlanHeader {
            catalog: self.catalog_id(),
            store: self.store().location(),
            scope,
            made: self.now(),
        };
        let mut writer = PlanWriter::new(out, &header)?;
        let mut report = PlanReport::default();
        let mut walk = Walk::open(self, scope.map_or(BlobPrefix::All, BlobPrefix::Shard)).looking_twice();
        while let Some(chunk) = walk.next().await? {
            for judged in chunk {
                report.listed.add(judged.entry.len);
                if let Class::Foreign(why) = judged.class {
                    report.foreign.push(judged.name(), judged.entry.len, why);
                }
                if let Some(planned) = planned(judged) {
                    writer.add(&planned)?;
                }
            }
            progress(report.listed);
        }
        let (out, totals) = writer.finish()?;
        report.planned = totals;
        Ok((out, report))
    }

    /// Reads a whole plan, and refuses it if it was made for another catalog, names a shard that no sink here has, or
    /// names something twice.
    pub async fn check_plan(&self, plan: &mut PlanReader<impl BufRead + Send>) -> Result<PlanTotals> {
        let (theirs, ours) = (plan.header().catalog, self.catalog_id());
        if theirs != ours {
            return Err(PlanError::OtherCatalog { theirs, ours }.into());
        }
        let sinks = known_sinks(self).await?;
        let mut seen = BTreeSet::new();
        while let Some(planned) = plan.next_planned()? {
            if !sinks.contains_key(&planned.key.shard) {
                return Err(PlanError::UnknownShard { key: planned.key }.into());
            }
            let name = name(&planned);
            if !seen.insert(short(&name)) {
                return Err(PlanError::Twice { name }.into());
            }
        }
        Ok(plan.totals())
    }

    /// Applies a plan that [`Stash::check_plan`] found in order, or says what that would do: judges every key again,
    /// queues what is still garbage, aborts the uploads. [`Stash::drain_deletions`] then deletes what was queued;
    /// else the deleter comes to it. `progress` is told how much of the plan was looked at.
    pub async fn apply_plan(
        &self,
        plan: &mut PlanReader<impl BufRead + Send>,
        options: ApplyOptions,
        mut progress: impl FnMut(Tally) + Send,
    ) -> Result<ApplyReport> {
        let (theirs, ours) = (plan.header().catalog, self.catalog_id());
        if theirs != ours {
            return Err(PlanError::OtherCatalog { theirs, ours }.into());
        }
        let sinks = known_sinks(self).await?;
        let known = |key: &PartKey| -> Result<KnownSink> {
            Ok(*sinks.get(&key.shard).ok_or(PlanError::UnknownShard { key: *key })?)
        };
        let mut applying = Applying::new(self, options, true);
        let mut together: Vec<Planned> = Vec::new();
        let one_shard =
            |all: &[Planned], shard: ShardId| all.last().is_none_or(|last| last.key.shard == shard);
        loop {
            let next = plan.next_planned()?;
            let goes_on = next
                .as_ref()
                .is_some_and(|next| together.len() < ENTRIES_A_CHUNK && one_shard(&together, next.key.shard));
            if !goes_on && let Some(last) = together.last() {
                let sink = known(&last.key)?;
                applying.apply(sink, std::mem::take(&mut together)).await?;
                progress(plan.totals().all());
            }
            match next {
                Some(next) => together.push(next),
                None => break,
            }
        }
        if applying.report.queued.entries > 0 && options.commit {
            tracing::info!(garbage = applying.report.queued.entries, "swept by plan");
            self.process().wake_deleter();
        }
        Ok(applying.report)
    }
}

/// A plan being applied.
struct Applying<'a> {
    stash: &'a Stash,
    commit: bool,
    /// How much may still be deleted.
    room: u64,
    /// Whether what was planned may be gone by now.
    old: bool,
    report: ApplyReport,
}

/// What became of a planned key by what is known of it now.
enum Now {
    Garbage,
    Done,
    Kept(Kept),
}

impl<'a> Applying<'a> {
    fn new(stash: &'a Stash, options: ApplyOptions, old: bool) -> Applying<'a> {
        let ApplyOptions { commit, deletes_max } = options;
        Applying { stash, commit, room: deletes_max, old, report: ApplyReport::default() }
    }

    /// Applies what was planned for one sink.
    async fn apply(&mut self, sink: KnownSink, planned: Vec<Planned>) -> Result<()> {
        fault::place("stash.sweep_judged");
        self.settle(sink, planned).await?;
        fault::place("stash.sweep_queued");
        Ok(())
    }

    async fn settle(&mut self, sink: KnownSink, planned: Vec<Planned>) -> Result<()> {
        if planned.is_empty() {
            return Ok(());
        }
        if self.room == 0 {
            planned.iter().for_each(|one| self.report.left.add(one.bytes));
            return Ok(());
        }
        let keys: Vec<PartKey> = planned.iter().map(|one| one.key).collect();
        let states = self.stash.catalog().key_states(sink.id, &keys).await?;
        let classes: Vec<Class> = planned
            .iter()
            .zip(&states)
            // Broken, nobody looks again either: what the plan says is done.
            .map(|(one, state)| match broken(Mutant::SweepReadsFirst) {
                true => Class::Garbage(one.reason),
                false => class_of((state, &sink)),
            })
            .collect();
        let there = self.lens(&planned, &classes).await?;
        let mut garbage = Vec::new();
        for (one, class) in planned.iter().zip(classes) {
            let now = match &one.token {
                None => object(one, class, there.as_ref()),
                Some(_) => upload(one, class, there.as_ref()),
            };
            match (now, &one.token) {
                (Now::Done, _) => self.report.done.add(one.bytes),
                (Now::Kept(why), _) => self.report.kept.push(name(one), one.bytes, why),
                (Now::Garbage, _) if self.room == 0 => self.report.left.add(one.bytes),
                (Now::Garbage, token) => {
                    self.room = self.room.saturating_sub(1);
                    match token {
                        None => garbage.push((one.key, one.bytes)),
                        Some(token) => self.abort(one, token).await?,
                    }
                }
            }
        }
        self.queue(sink, &garbage).await
    }

    /// Of an old plan, what of it that is nobody's is still there.
    async fn lens(&self, planned: &[Planned], classes: &[Class]) -> Result<Option<Lens>> {
        if !self.old {
            return Ok(None);
        }
        let unowned = planned.iter().zip(classes).filter(|(one, class)| match one.token {
            None => matches!(class, Class::Garbage(_)),
            Some(_) => is_left_over(**class),
        });
        let entries: Vec<_> = unowned.map(|(one, _)| entry(one)).collect();
        let lens = self.stash.store().look_again(&entries).await?;
        Ok(Some(entries.into_iter().zip(lens).filter_map(|(entry, len)| Some((entry, len?))).collect()))
    }

    /// SUBTLE: the catalog judges each key once more under the head row, and passes over what is not garbage or is queued.
    /// What it passes over here was queued by somebody else meanwhile: garbage stays garbage. The catalog says how many it
    /// took and not which; others go along the same plan in the same order, so what they were faster with is the front.
    async fn queue(&mut self, sink: KnownSink, garbage: &[(PartKey, u64)]) -> Result<()> {
        if garbage.is_empty() {
            return Ok(());
        }
        let keys: Vec<PartKey> = garbage.iter().map(|(key, _)| *key).collect();
        let mut faster = 0;
        if self.commit {
            let entries = self.stash.catalog().enqueue(sink.id, &keys, DeletionReason::Swept).await?;
            if let Some(first) = keys.first() {
                self.stash.process().meters().of(first.shard).swept_keys.increment(entries);
            }
            let queued = usize::try_from(entries).unwrap_or(usize::MAX);
            faster = garbage.len().saturating_sub(queued);
        }
        let (others, ours) = garbage.split_at(faster);
        others.iter().for_each(|(_, bytes)| self.report.done.add(*bytes));
        ours.iter().for_each(|(_, bytes)| self.report.queued.add(*bytes));
        Ok(())
    }

    async fn abort(&mut self, one: &Planned, token: &str) -> Result<()> {
        if self.commit {
            self.stash.store().abort_upload(&BlobKey::from(one.key), token).await?;
            self.stash.process().meters().of(one.key.shard).swept_uploads.increment(1);
            fault::place("stash.upload_removed");
        }
        self.report.aborted.add(one.bytes);
        Ok(())
    }
}

/// An object of a plan by its class now, and by what the store shows of it where the plan is old.
fn object(one: &Planned, class: Class, there: Option<&Lens>) -> Now {
    match (class, there) {
        (Class::Garbage(_), None) => Now::Garbage,
        (Class::Garbage(_), Some(there)) => match there.get(&entry(one)) {
            None => Now::Done,
            Some(len) if *len != one.bytes => Now::Kept(Kept::OtherLength),
            Some(_) => Now::Garbage,
        },
        (Class::Queued(_), _) => Now::Done,
        (other, _) => Now::Kept(kept(other)),
    }
}

/// An upload of a plan by the class of its key now, and by whether the store still has it where the plan is old.
fn upload(one: &Planned, class: Class, there: Option<&Lens>) -> Now {
    match there {
        _ if !is_left_over(class) => Now::Kept(kept(class)),
        Some(there) if !there.contains_key(&entry(one)) => Now::Done,
        _ => Now::Garbage,
    }
}

/// An upload is judged like the key it was to become, except that nobody can own it twice: where the object itself is
/// referenced or queued, the upload is a leftover of an earlier try.
fn is_left_over(class: Class) -> bool {
    matches!(class, Class::Garbage(_) | Class::Referenced | Class::Queued(_))
}

/// The entry of a listing that was planned.
fn entry(one: &Planned) -> BlobEntryKind {
    let key = BlobKey::from(one.key);
    match one.token.clone() {
        None => BlobEntryKind::Object(key),
        Some(token) => BlobEntryKind::Upload { key, token },
    }
}

fn kept(class: Class) -> Kept {
    match class {
        Class::Referenced => Kept::Referenced,
        Class::BeingWritten => Kept::BeingWritten,
        _ => Kept::Foreign,
    }
}

fn name(one: &Planned) -> String {
    match &one.token {
        None => one.key.to_string(),
        Some(token) => format!("{} (upload {token})", one.key),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use stash_types::{Description, Frontier, PartName};

    use super::*;
    use crate::{Launch, SinkSpec};

    #[tokio::test]
    async fn what_somebody_else_queued_faster_is_counted_with_its_bytes_as_done() {
        let stash = Stash::open("memory://").await.expect("it opens");
        let schema = Schema::new(vec![Field::new("x", DataType::Int64, false)]);
        let sink = stash.declare_sink(SinkSpec::new("s", schema).expect("a spec")).await.expect("declared");
        let launch = Launch::single("a", 1).expect("a launch");
        let opened = sink.open_incarnation(launch).await.expect("it opens").render().expect("to render");
        let incarnation = opened.id();
        opened.close("tested").await.expect("closed");
        let description = Description::new(Frontier::at(0), Frontier::at(1)).expect("not empty");
        let garbage: Vec<(PartKey, u64)> = (0..3)
            .map(|n| (PartName { incarnation, description, process: 0, n }.under(sink.shard()), 10 + n))
            .collect();
        let known = KnownSink { id: sink.id(), dropped: false };
        let options = ApplyOptions { commit: true, deletes_max: u64::MAX };
        let (mut first, mut second) =
            (Applying::new(&stash, options, true), Applying::new(&stash, options, true));
        first.queue(known, &garbage[..2]).await.expect("queued");
        second.queue(known, &garbage).await.expect("queued");
        assert_eq!(first.report.queued, Tally { entries: 2, bytes: 21 });
        assert_eq!(second.report.queued, Tally { entries: 1, bytes: 12 });
        assert_eq!(second.report.done, Tally { entries: 2, bytes: 21 });
    }
}
