//! The first pass over a change file: every fault is found, and where batches end is decided.
//!
//! Memory is bounded whatever the file: at most [`CUTS_MAX`] cuts are kept, and when there would be more, every
//! second one goes and batches become twice as large.

use arrow::{array::AsArray, datatypes::UInt64Type};
use arrow::{array::RecordBatch, datatypes::SchemaRef};
use stash::Frontier;

use super::Source;
use crate::{
    cli::LoadArgs,
    failure::Refusal,
    formats::{ChangeBatch, ChangeFile, Place, TIME, TimesCheck},
    output::{self, Output},
    progress::Meter,
};

/// Updates after which a batch ends with its last time, unless `--batch-every` counts times.
const BATCH_UPDATES: u64 = 65_536;
/// How many cuts are kept.
const CUTS_MAX: usize = 65_536;

/// What the first pass found.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The row's columns.
    pub(super) schema: SchemaRef,
    /// Updates, without those of diff 0.
    pub(super) updates: u64,
    /// Updates of diff 0.
    pub(super) zero_diffs: u64,
    /// The smallest time and where it stands first.
    pub(super) first: Option<(u64, Place)>,
    /// The largest time and where it stands first.
    pub(super) last: Option<(u64, Place)>,
    /// The first times of all batches but the first two, rising.
    pub(super) cuts: Vec<u64>,
}

impl Plan {
    /// Where the frontier stands at the end of the file; `None` when nothing in the file moves it.
    pub(super) fn end(&self, complete: bool) -> Option<Frontier> {
        if complete {
            return Some(Frontier::EMPTY);
        }
        self.last.map(|(time, _)| Frontier::at(time.saturating_add(1)))
    }

    /// The uppers of all descriptions of an incarnation granted `as_of`, rising strictly.
    pub(super) fn uppers(&self, as_of: u64, complete: bool) -> Vec<Frontier> {
        let snapshot = Frontier::at(as_of.saturating_add(1));
        let end = self.end(complete);
        let inner = self.cuts.iter().map(|cut| Frontier::at(*cut));
        let mut uppers: Vec<Frontier> =
            inner.filter(|cut| *cut > snapshot && end.is_some_and(|end| *cut < end)).collect();
        uppers.extend(end.filter(|end| *end > snapshot));
        uppers.insert(0, snapshot);
        uppers
    }
}

/// Reads the whole file on a thread of its own.
pub(super) async fn scan(source: Source, args: &LoadArgs, out: Output) -> anyhow::Result<Plan> {
    let rule = match (args.sort, args.batch_every) {
        (true, _) => Rule::Never,
        (false, Some(times)) => Rule::Times(times.get()),
        (false, None) => Rule::Updates(BATCH_UPDATES),
    };
    let complete = args.complete;
    let plan = tokio::task::spawn_blocking(move || scan_file(source, rule, out)).await??;
    match plan.last {
        Some((time, place)) if time == u64::MAX - 1 && !complete => Err(Refusal::fix_call(format!(
            "{}, {place}: time {time} is the last one there is, and accepting it completes the sink; pass --complete",
            args.file.display()
        ))
        .into()),
        _ => Ok(plan),
    }
}

fn scan_file(source: Source, rule: Rule, out: Output) -> anyhow::Result<Plan> {
    let Source { path, format, roles, schema } = source;
    let mut meter = Meter::new(out, "checking", std::fs::metadata(&path).ok().map(|file| file.len()));
    let mut watch =
        |progress: crate::formats::Progress| meter.at(progress.read, progress.total, || "types".to_owned());
    let mut file = ChangeFile::open_watched(&path, format, roles, schema, &mut watch)?;
    let mut order = TimesCheck::default();
    let mut cuts = Cuts::new(rule);
    let mut plan =
        Plan { schema: file.schema(), updates: 0, zero_diffs: 0, first: None, last: None, cuts: Vec::new() };
    while let Some(changes) = file.next().transpose()? {
        if rule != Rule::Never {
            order
                .see(&changes)
                .map_err(|fault| anyhow::Error::new(fault).context(path.display().to_string()))?;
        }
        plan.see(&changes, &mut cuts);
        let progress = file.progress();
        meter.at(progress.read, progress.total, || format!("{} updates", output::count(plan.updates)));
    }
    plan.cuts = cuts.cuts;
    Ok(plan)
}

impl Plan {
    fn see(&mut self, changes: &ChangeBatch, cuts: &mut Cuts) {
        self.zero_diffs += changes.dropped_zero_diffs;
        for (row, &time) in times(&changes.batch).iter().enumerate() {
            self.updates += 1;
            if self.first.is_none_or(|(first, _)| time < first) {
                self.first = Some((time, changes.place_of(row)));
            }
            if self.last.is_none_or(|(last, _)| time > last) {
                self.last = Some((time, changes.place_of(row)));
            }
            cuts.see(time);
        }
    }
}

/// The times of a batch of changes.
pub(super) fn times(batch: &RecordBatch) -> &[u64] {
    let column = batch.column_by_name(TIME).and_then(|times| times.as_primitive_opt::<UInt64Type>());
    column.map_or(&[], |times| times.values())
}

/// When a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// After so many distinct times.
    Times(u64),
    /// With the last of its times, once it has so many updates.
    Updates(u64),
    /// At the end of the file.
    Never,
}

/// Decides where batches end, from times that only rise.
#[derive(Debug)]
struct Cuts {
    rule: Rule,
    cuts: Vec<u64>,
    /// The present time; how many distinct times and updates the batch has with it.
    now: Option<u64>,
    times: u64,
    updates: u64,
    in_snapshot: bool,
}

impl Cuts {
    fn new(rule: Rule) -> Cuts {
        Cuts { rule, cuts: Vec::new(), now: None, times: 0, updates: 0, in_snapshot: true }
    }

    fn see(&mut self, time: u64) {
        if self.now != Some(time) {
            if self.now.is_some() {
                self.next_time(time);
            }
            self.now = Some(time);
            self.times += 1;
        }
        self.updates += 1;
    }

    fn next_time(&mut self, time: u64) {
        // The first time is the snapshot: it ends by itself, and what follows begins anew.
        let ends = self.in_snapshot
            || match self.rule {
                Rule::Times(times) => self.times >= times,
                Rule::Updates(updates) => self.updates >= updates,
                Rule::Never => false,
            };
        if !ends {
            return;
        }
        if !self.in_snapshot {
            self.cuts.push(time);
        }
        (self.in_snapshot, self.times, self.updates) = (false, 0, 0);
        if self.cuts.len() >= CUTS_MAX {
            self.thin();
        }
    }

    /// Joins every two neighbours, and those that come likewise.
    fn thin(&mut self) {
        let mut index = 0;
        self.cuts.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        self.rule = match self.rule {
            Rule::Times(times) => Rule::Times(times.saturating_mul(2)),
            Rule::Updates(updates) => Rule::Updates(updates.saturating_mul(2)),
            Rule::Never => Rule::Never,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Schema;

    use super::*;

    fn cuts(rule: Rule, times: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut cuts = Cuts::new(rule);
        times.into_iter().for_each(|time| cuts.see(time));
        cuts.cuts
    }

    fn plan(last: u64, cuts: Vec<u64>) -> Plan {
        let place = |time| Some((time, Place::Line(1)));
        let schema = Arc::new(Schema::empty());
        Plan { schema, updates: 1, zero_diffs: 0, first: place(0), last: place(last), cuts }
    }

    #[test]
    fn the_first_time_stands_alone_and_then_every_so_many_times_end_a_batch() {
        assert_eq!(cuts(Rule::Times(1), [3, 3, 4, 4, 9, 10]), [9, 10]);
        assert_eq!(cuts(Rule::Times(2), [0, 1, 2, 3, 4, 5]), [3, 5]);
        assert_eq!(cuts(Rule::Times(1), [7, 7, 7]), [0; 0]);
    }

    #[test]
    fn a_batch_by_size_ends_only_with_a_time() {
        assert_eq!(cuts(Rule::Updates(2), [0, 1, 1, 1, 1, 2, 3, 4, 4]), [2, 4]);
    }

    #[test]
    fn cuts_are_bounded_by_joining_neighbours() {
        let many = u64::try_from(CUTS_MAX).expect("fits") * 3;
        let cuts = cuts(Rule::Times(1), 0..many);
        assert!(cuts.len() < CUTS_MAX && cuts.len() > CUTS_MAX / 4, "{}", cuts.len());
        assert!(cuts.is_sorted());
        assert_eq!(cuts.first(), Some(&5), "batches of one time were joined twice");
    }

    #[test]
    fn uppers_begin_with_the_snapshot_and_end_above_the_last_time() {
        let at = Frontier::at;
        let plan = plan(9, vec![4, 7]);
        assert_eq!(plan.uppers(0, false), [at(1), at(4), at(7), at(10)]);
        assert_eq!(plan.uppers(0, true), [at(1), at(4), at(7), Frontier::EMPTY]);
        assert_eq!(plan.uppers(5, false), [at(6), at(7), at(10)], "granted anew at 5: U is 6");
        assert_eq!(plan.uppers(9, false), [at(10)]);
        assert_eq!(plan.uppers(9, true), [at(10), Frontier::EMPTY]);
    }
}
