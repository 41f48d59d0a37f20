//! `audit`: whose every byte below the prefix is, and what of the chains is lost.
//!
//! It describes. Exit code 1 if something that was accepted is lost or was exchanged; what is foreign or garbage is said
//! and no failure.

use std::process::ExitCode;

use serde_json::{Value, json};
use stash::{AuditReport, Class, DeletionReason, Names, Stash, Stranger, Tally, Unowned};

use crate::{
    cli::AuditArgs,
    output::{self, Output},
    progress::Meter,
    session::{Address, Purpose, with_stash},
};

/// Names that are printed for people; the JSON has more.
pub(super) const NAMES_SHOWN: usize = 20;

/// Runs the command.
pub async fn run(at: &Address, args: AuditArgs, out: Output) -> anyhow::Result<ExitCode> {
    let report = with_stash(at, Purpose::Look, async |stash| {
        let sink = match &args.sink {
            Some(name) => Some(stash.sink_or_dropped(name.as_str()).await?),
            None => None,
        };
        let mut meter = Meter::new(out, "listing", None);
        let progress = |listed: Tally| {
            meter.at(listed.bytes, None, || output::counted(listed.entries, "entry", "entries"));
        };
        let report = stash.audit(sink.as_ref(), progress).await?;
        drop(meter);
        if out.is_json() {
            out.document(&document(stash, &args, &report))?;
        } else {
            out.line(text(stash, &report))?;
        }
        Ok(report)
    })
    .await?;
    Ok(if report.is_damaged() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn document(stash: &Stash, args: &AuditArgs, report: &AuditReport) -> Value {
    let lines = report.lines.iter().map(|line| {
        let sink = line.sink.as_ref();
        json!({
            "sink": sink.map(|sink| sink.name.as_str()),
            "sink_id": sink.map(|sink| sink.id.to_string()),
            "sink_dropped": sink.map(|sink| sink.dropped),
            "class": line.class.name(),
            "reason": line.class.reason(),
            "entries": line.tally.entries,
            "bytes": line.tally.bytes,
        })
    });
    let lost = report
        .lost
        .first
        .iter()
        .map(|lost| json!({ "key": lost.name, "seq": lost.why.seq, "bytes": lost.bytes }));
    json!({
        "prefix": stash.url(),
        "catalog": stash.catalog_id().to_string(),
        "sink": args.sink.as_ref().map(|sink| sink.as_str()),
        "ok": !report.is_damaged(),
        "listed": report.listed,
        "accounted": report.accounted(),
        "classes": lines.collect::<Vec<_>>(),
        "lost": { "all": report.lost.all, "first": lost.collect::<Vec<_>>() },
        "foreign": names_json(&report.foreign, Stranger::name),
    })
}

/// Names and their reasons in JSON: how many there are, and the first of them.
pub(super) fn names_json<W: Copy>(names: &Names<W>, why: impl Fn(W) -> &'static str) -> Value {
    let first = names.first.iter();
    let first = first.map(|one| json!({ "name": one.name, "bytes": one.bytes, "reason": why(one.why) }));
    json!({ "all": names.all, "first": first.collect::<Vec<_>>() })
}

fn text(stash: &Stash, report: &AuditReport) -> String {
    let mut table = output::table(&["sink", "class", "reason", "entries", "bytes"], &["entries", "bytes"]);
    for line in &report.lines {
        let sink = line.sink.as_ref().map_or_else(
            || "-".to_owned(),
            |sink| format!("{}{}", sink.name, if sink.dropped { " (dropped)" } else { "" }),
        );
        let (class, reason) = words(line.class);
        let Tally { entries, bytes } = line.tally;
        table.add_row([
            sink,
            class.to_owned(),
            reason.to_owned(),
            output::count(entries),
            output::bytes(bytes),
        ]);
    }
    let accounted = report.accounted();
    table.add_row([
        "all".to_owned(),
        String::new(),
        String::new(),
        output::count(accounted.entries),
        output::bytes(accounted.bytes),
    ]);
    let mut lines = vec![table.trim_fmt()];
    lines.push(format!(
        "\nprefix {}: listed {} of {} bytes, accounted for {} of {} bytes",
        stash.url(),
        output::counted(report.listed.entries, "entry", "entries"),
        output::count(report.listed.bytes),
        output::count(accounted.entries),
        output::count(accounted.bytes),
    ));
    let other_length = report.of(|class| class == Class::Foreign(Stranger::OtherLength)).entries;
    lines.extend(foreign_but(&report.foreign, other_length));
    lines.extend(exchanged(&report.foreign, other_length));
    match report.lost.all.entries {
        0 => lines.push("lost: nothing that a batch references is missing".to_owned()),
        lost => {
            lines.push(format!(
                "LOST: {} that batches reference and the store does not have; `stash-admin explain KEY` tells the \
                 history, a backup of the store may have them:",
                output::counted(lost, "object", "objects")
            ));
            let named = report.lost.first.iter().take(NAMES_SHOWN);
            lines.extend(
                named.map(|one| format!("  {}  (batch {})", output::visible(&one.name), one.why.seq)),
            );
            lines.extend(and_more(lost));
        }
    }
    let unowned = report.of(Class::is_unowned);
    if unowned.entries > 0 {
        lines.push(format!(
            "{}, {}, that nobody owns: `stash-admin sweep` plans the deletion",
            output::counted(unowned.entries, "entry", "entries"),
            output::bytes(unowned.bytes)
        ));
    }
    lines.join("\n")
}

/// What is foreign, by name.
pub(super) fn strangers(foreign: &Names<Stranger>) -> Vec<String> {
    foreign_but(foreign, 0)
}

/// The same but for `exchanged` objects of other lengths, which are said on their own: Stash deletes them with their
/// batches, as what it believes them to be.
fn foreign_but(foreign: &Names<Stranger>, exchanged: u64) -> Vec<String> {
    let entries = foreign.all.entries.saturating_sub(exchanged);
    if entries == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "foreign: {}, which Stash never deletes:",
        output::counted(entries, "entry", "entries")
    )];
    let named = foreign.first.iter().filter(|one| one.why != Stranger::OtherLength);
    lines.extend(
        named
            .take(NAMES_SHOWN)
            .map(|one| format!("  {}  ({})", output::visible(&one.name), words(Class::Foreign(one.why)).1)),
    );
    lines.extend(and_more(entries));
    lines
}

/// What stands in the place of parts, by name.
fn exchanged(foreign: &Names<Stranger>, exchanged: u64) -> Vec<String> {
    if exchanged == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "EXCHANGED: {} of another length than batches reference: consumers stop there; restore them from a backup of the \
         store, or drop the sink, which deletes them:",
        output::counted(exchanged, "object is", "objects are")
    )];
    let named = foreign.first.iter().filter(|one| one.why == Stranger::OtherLength);
    lines.extend(
        named.take(NAMES_SHOWN).map(|one| {
            format!("  {}  ({} in the store)", output::visible(&one.name), output::bytes(one.bytes))
        }),
    );
    lines.extend(and_more(exchanged));
    lines
}

/// That there are more names than are printed.
pub(super) fn and_more(all: u64) -> Option<String> {
    let more = all.saturating_sub(output::len(NAMES_SHOWN));
    (more > 0).then(|| format!("  and {} more; --json names more of them", output::count(more)))
}

/// A class and its reason in words.
pub(super) fn words(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::Referenced => ("referenced", "by a linked batch"),
        Class::BeingWritten => ("being written", "by an open incarnation"),
        Class::Queued(reason) => ("queued for deletion", queued(reason)),
        Class::Garbage(why) => ("garbage", unowned(why)),
        Class::Gone => ("gone", "deleted while the audit looked"),
        Class::Uploading => ("unpublished upload", "being written"),
        Class::LeftOver(why) => ("left-over upload", unowned(why)),
        Class::Own => ("the stash's own", ""),
        Class::Foreign(Stranger::OtherLength) => ("EXCHANGED", stranger(Stranger::OtherLength)),
        Class::Foreign(why) => ("foreign", stranger(why)),
    }
}

fn queued(reason: DeletionReason) -> &'static str {
    match reason {
        DeletionReason::Dropped => "its batch was covered already",
        DeletionReason::Trimmed => "it was wholly trimmed away",
        DeletionReason::Released => "all consumers acknowledged its batch",
        DeletionReason::Expired => "its batch expired",
        DeletionReason::SinkDropped => "its sink was dropped",
        DeletionReason::Surrendered => "its writer gave it up",
        DeletionReason::Swept => "a sweep found that nobody owns it",
    }
}

/// Why nobody owns something, in words.
pub(super) fn unowned(why: Unowned) -> &'static str {
    match why {
        Unowned::IncarnationClosed => "its incarnation is closed",
        Unowned::DescriptionResolved => "its description is resolved without it",
        Unowned::SinkDropped => "its sink was dropped",
        Unowned::KeySettled => "an earlier try; its key is settled",
    }
}

fn stranger(why: Stranger) -> &'static str {
    match why {
        Stranger::NotOfStash => "not written by Stash",
        Stranger::UnknownShard => "of no sink of this catalog",
        Stranger::UnknownIncarnation => "of an incarnation this catalog does not know",
        Stranger::OtherLength => "a batch references the key with another length",
    }
}
