//! `sweep`: plans the deletion of what nobody owns, and applies such a plan.
//!
//! Without a plan that is there it lists, and writes one; nothing else is changed. Of a plan that is there it says what it
//! would do now, and with `--commit` does it. A plan is checked as a whole before anything of it is touched. No file is
//! ever overwritten.

use std::{
    fs::{File, OpenOptions},
    io::{BufReader, BufWriter},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use serde_json::json;
use stash::{ApplyOptions, ApplyReport, Kept, PlanReader, PlanReport, PlanTotals, Stash, Stranger, Tally};

use super::{
    audit::{NAMES_SHOWN, and_more, names_json, strangers},
    deletions::refused,
};
use crate::{
    cli::SweepArgs,
    failure::Refusal,
    output::{self, Output},
    progress::Meter,
    session::{Address, Purpose, with_stash},
};

/// Runs the command.
pub async fn run(at: &Address, args: SweepArgs, out: Output) -> anyhow::Result<ExitCode> {
    with_stash(at, Purpose::of(args.commit), async |stash| match &args.plan {
        Some(path) if args.commit || path.symlink_metadata().is_ok() => {
            if let Some(sink) = &args.sink {
                return Err(Refusal::fix_call(format!(
                    "{} is there already: name another file for the plan of sink {sink}, or leave the sink away to \
                     see what this one would do",
                    path.display()
                ))
                .into());
            }
            apply(stash, path, &args, out).await
        }
        Some(path) => plan(stash, path.clone(), &args, out).await,
        None => plan(stash, PathBuf::from(name_for(stash)), &args, out).await,
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// A name for a plan, of the catalog and the moment.
fn name_for(stash: &Stash) -> String {
    let catalog: String = stash.catalog_id().to_string().chars().skip(1).take(8).collect();
    let moment: String = output::moment(stash.now())
        .chars()
        .map(|c| if c == ' ' { 'T' } else { c })
        .filter(|c| *c != ':')
        .collect();
    format!("stash-sweep-{catalog}-{moment}.plan")
}

async fn plan(stash: &Stash, path: PathBuf, args: &SweepArgs, out: Output) -> anyhow::Result<()> {
    let sink = match &args.sink {
        Some(name) => Some(stash.sink_or_dropped(name.as_str()).await?),
        None => None,
    };
    let named = || format!("{} cannot be written", path.display());
    let file = OpenOptions::new().write(true).create_new(true).open(&path).with_context(named)?;
    let mut meter = Meter::new(out, "listing", None);
    let progress = |listed: Tally| {
        meter.at(listed.bytes, None, || output::counted(listed.entries, "entry", "entries"));
    };
    let planned = stash.plan_sweep(sink.as_ref(), BufWriter::new(file), progress).await;
    drop(meter);
    let synced = planned.map_err(anyhow::Error::from).and_then(|(file, report)| {
        let file = file.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(named)?;
        file.sync_all().with_context(named)?;
        Ok(report)
    });
    let report = synced.inspect_err(|_| {
        // A part of a plan is refused anyway; without it the same name can be used again.
        drop(std::fs::remove_file(&path));
    })?;
    say_planned(&path, &report, out)
}

fn say_planned(path: &Path, report: &PlanReport, out: Output) -> anyhow::Result<()> {
    let PlanReport { listed, planned: PlanTotals { garbage, left_over_uploads }, foreign } = report;
    if out.is_json() {
        out.document(&json!({
            "plan": path.display().to_string(),
            "listed": listed,
            "garbage": garbage,
            "left_over_uploads": left_over_uploads,
            "foreign": names_json(foreign, Stranger::name),
            "committed": false,
        }))?;
        return Ok(());
    }
    out.line(format!(
        "listed {}, {}: nobody owns {} and {}",
        output::counted(listed.entries, "entry", "entries"),
        output::bytes(listed.bytes),
        tally(*garbage, "object", "objects"),
        tally(*left_over_uploads, "unpublished upload", "unpublished uploads"),
    ))?;
    strangers(foreign).iter().try_for_each(|line| out.line(line))?;
    out.line(format!(
        "plan: {path}\nnothing was changed; `stash-admin sweep --plan {path} --commit` deletes what it names",
        path = path.display()
    ))?;
    Ok(())
}

async fn apply(stash: &Stash, path: &Path, args: &SweepArgs, out: Output) -> anyhow::Result<()> {
    let open = || -> anyhow::Result<PlanReader<BufReader<File>>> {
        let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let reader = PlanReader::new(BufReader::new(file)).map_err(stash::Error::from);
        reader.with_context(|| format!("{} cannot be used", path.display()))
    };
    let totals = stash.check_plan(&mut open()?).await;
    let totals = totals.with_context(|| format!("{} cannot be used", path.display()))?;
    let options = ApplyOptions { commit: args.commit, deletes_max: args.max_deletes.get() };
    let all = totals.all();
    let mut meter = Meter::new(out, "sweeping", Some(all.bytes));
    let progress = |done: Tally| {
        meter.at(done.bytes, Some(all.bytes), || output::counted(done.entries, "entry", "entries"));
    };
    let report = stash.apply_plan(&mut open()?, options, progress).await?;
    drop(meter);
    let mut deferred = 0;
    if args.commit {
        stash.drain_deletions().await?;
        // The queue is asked, not the pass: the deleter in the background may have been refused before it.
        deferred = stash.catalog().deletions_queued(None).await?;
    }
    say_applied(path, totals, &report, args, deferred, out)
}

fn say_applied(
    path: &Path,
    totals: PlanTotals,
    report: &ApplyReport,
    args: &SweepArgs,
    deferred: u64,
    out: Output,
) -> anyhow::Result<()> {
    let ApplyReport { queued, aborted, done, kept, left } = report;
    if out.is_json() {
        out.document(&json!({
            "plan": path.display().to_string(),
            "planned": totals,
            "objects_deleted": queued,
            "uploads_aborted": aborted,
            "done_already": done,
            "kept": names_json(kept, kept_word),
            "left": left,
            "deletes_deferred": deferred,
            "committed": args.commit,
        }))?;
        return Ok(());
    }
    let path = path.display();
    let verb = if args.commit { "applied" } else { "would apply" };
    let deleted = if deferred > 0 { "  objects queued for deletion" } else { "  objects deleted" };
    out.line(format!(
        "{verb} {path}\n{}",
        output::pairs(&[
            (deleted, tally(*queued, "object", "objects")),
            ("  uploads aborted", tally(*aborted, "upload", "uploads")),
            ("  gone or queued already", output::count(done.entries)),
            ("  kept, since they are no garbage", output::count(kept.all.entries)),
            ("  left for another call", tally(*left, "entry", "entries")),
        ])
    ))?;
    let named = kept.first.iter().take(NAMES_SHOWN);
    let named = named.map(|one| format!("  kept {}: {}", output::visible(&one.name), kept_text(one.why)));
    named.chain(and_more(kept.all.entries)).try_for_each(|line| out.line(line))?;
    refused(deferred).iter().try_for_each(|line| out.line(line))?;
    if left.entries > 0 {
        out.line(format!(
            "stopped after --max-deletes {}: call it again, or pass a larger number, for the {} left",
            args.max_deletes,
            output::count(left.entries)
        ))?;
    }
    if !args.commit {
        out.line("dry run: nothing was changed; pass --commit")?;
    }
    Ok(())
}

fn tally(tally: Tally, one: &str, many: &str) -> String {
    format!("{}, {}", output::counted(tally.entries, one, many), output::bytes(tally.bytes))
}

fn kept_word(why: Kept) -> &'static str {
    match why {
        Kept::Referenced => "referenced",
        Kept::BeingWritten => "being_written",
        Kept::Foreign => "foreign",
        Kept::OtherLength => "other_length",
    }
}

fn kept_text(why: Kept) -> &'static str {
    match why {
        Kept::Referenced => "a batch references it",
        Kept::BeingWritten => "an open incarnation may still offer it",
        Kept::Foreign => "this catalog does not know its incarnation",
        Kept::OtherLength => "it has another length than when the plan was made",
    }
}
