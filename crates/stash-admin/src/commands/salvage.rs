//! `salvage`: reads parts from a listing alone, when the catalog is lost. Nothing in the store is changed.
//!
//! Every part is checked first; then each batch, as an incarnation offered it, becomes a file of its own, consolidated.
//! What the catalog took with it is said, never guessed. Exit code 1 if a part is damaged or surely missing.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use serde_json::{Value, json};
use stash::{Salvage, SalvageReport, SalvagedBatch, SalvagedSink, Stranger, Tally};

use super::audit::{NAMES_SHOWN, and_more, names_json, strangers};
use crate::{
    cli::SalvageArgs,
    failure::Refusal,
    formats::{Format, batch_writer},
    output::{self, Output},
    progress::Meter,
    session,
};

/// Runs the command.
pub async fn run(args: SalvageArgs, out: Output) -> anyhow::Result<ExitCode> {
    let salvage = Salvage::open(&session::url_of(args.blobs.clone())).await?;
    let done = work(&salvage, &args, out).await;
    let closed = salvage.close().await;
    let code = done?;
    closed?;
    Ok(code)
}

/// A batch and what became of it.
struct Written {
    file: Option<PathBuf>,
    updates: u64,
    failed: Option<String>,
}

async fn work(salvage: &Salvage, args: &SalvageArgs, out: Output) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.output {
        make(folder, &args.blobs)?;
    }
    let mut meter = Meter::new(out, "checking", None);
    let progress = |checked: Tally, listed: Tally| {
        meter.at(checked.bytes, Some(listed.bytes), || output::counted(checked.entries, "part", "parts"));
    };
    let report = salvage.examine(args.sink_shard, progress).await?;
    drop(meter);
    let mut written: Vec<Vec<Written>> = Vec::new();
    let total: u64 = report.sinks.iter().flat_map(|sink| &sink.batches).map(|batch| batch.bytes).sum();
    let mut meter = Meter::new(out, "writing", Some(total));
    let mut done = 0;
    for sink in &report.sinks {
        let mut of_sink = Vec::new();
        for batch in &sink.batches {
            of_sink.push(match &args.output {
                Some(folder) => write(salvage, sink, batch, folder, args.format).await?,
                None => Written { file: None, updates: batch.facts.update_count, failed: None },
            });
            done += batch.bytes;
            meter.at(done, Some(total), String::new);
        }
        written.push(of_sink);
    }
    drop(meter);
    let document = document(salvage, &report, &written);
    if let Some(folder) = &args.output {
        let path = folder.join("salvage.json");
        let text = serde_json::to_string_pretty(&document)?;
        let written =
            create(&path).and_then(|mut file| Ok(writeln!(file, "{text}").and_then(|()| file.sync_all())?));
        written.with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if out.is_json() {
        out.document(&document)?;
    } else {
        out.line(text(salvage, &report, &written, args))?;
    }
    Ok(if is_whole(&report, &written) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_whole(report: &SalvageReport, written: &[Vec<Written>]) -> bool {
    let missing = report.sinks.iter().flat_map(|sink| &sink.batches).any(|batch| !batch.missing.is_empty());
    let failed = written.iter().flatten().any(|written| written.failed.is_some());
    report.damaged.is_empty() && report.catalog_why.is_none() && !missing && !failed
}

/// The folder that was named, if the blobs lie in one.
fn folder_of(blobs: &str) -> Option<PathBuf> {
    match url::Url::parse(blobs) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        Ok(_) => None,
        Err(_) => Some(PathBuf::from(blobs)),
    }
}

/// Whether `path`, which need not be there, lies in `folder` or is it.
fn lies_within(path: &Path, folder: &Path) -> bool {
    // Of a relative path the last ancestor is empty, and means here.
    let there = path.ancestors().map(|part| if part.as_os_str().is_empty() { Path::new(".") } else { part });
    let there = there.filter_map(|part| part.canonicalize().ok()).next();
    there.zip(folder.canonicalize().ok()).is_some_and(|(there, folder)| there.starts_with(folder))
}

/// Makes the folder of the output; one that holds something is refused, since nothing is ever overwritten, and one
/// within the blobs, since nothing there is ever changed.
fn make(folder: &Path, blobs: &str) -> anyhow::Result<()> {
    let named = || format!("{} cannot be made", folder.display());
    if folder_of(blobs).is_some_and(|blobs| lies_within(folder, &blobs)) {
        return Err(Refusal::fix_call(format!(
            "{} lies within {blobs}, where nothing may be changed: name a folder outside of it",
            folder.display()
        ))
        .into());
    }
    fs::create_dir_all(folder).with_context(named)?;
    if fs::read_dir(folder).with_context(named)?.next().is_some() {
        return Err(Refusal::fix_call(format!(
            "{} holds something already: name another folder",
            folder.display()
        ))
        .into());
    }
    Ok(())
}

fn create(path: &Path) -> anyhow::Result<File> {
    Ok(OpenOptions::new().write(true).create_new(true).open(path)?)
}

/// Where a batch goes: the sink's folder, and a name that sorts by times.
fn place(sink: &SalvagedSink, batch: &SalvagedBatch, format: Format) -> PathBuf {
    let (lower, upper) = (batch.description.lower().as_u64(), batch.description.upper().as_u64());
    let extension = match format {
        Format::Csv => "csv",
        Format::Ndjson => "ndjson",
        Format::Parquet => "parquet",
    };
    PathBuf::from(sink.id.to_string())
        .join(format!("{lower:016x}-{upper:016x}-{}.{extension}", batch.incarnation))
}

async fn write(
    salvage: &Salvage,
    sink: &SalvagedSink,
    batch: &SalvagedBatch,
    folder: &Path,
    format: Format,
) -> anyhow::Result<Written> {
    let file = place(sink, batch, format);
    let path = folder.join(&file);
    let named = || format!("{} cannot be written", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(named)?;
    }
    let output = create(&path).with_context(named)?;
    let mut writer = batch_writer(format, output.try_clone().with_context(named)?);
    let mut reader = salvage.read(sink, batch);
    writer.begin(&reader.schema()).with_context(named)?;
    let mut updates = 0;
    loop {
        match reader.next().await {
            Ok(Some(rows)) => {
                updates += output::len(rows.num_rows());
                writer.batch(&rows).with_context(named)?;
            }
            Ok(None) => break,
            Err(error) => {
                // Half a batch looks like a whole one.
                drop(writer);
                fs::remove_file(&path).with_context(named)?;
                return Ok(Written { file: None, updates: 0, failed: Some(error.to_string()) });
            }
        }
    }
    writer.progress(batch.description.upper().time()).with_context(named)?;
    writer.finish().with_context(named)?;
    output.sync_all().with_context(named)?;
    Ok(Written { file: Some(file), updates, failed: None })
}

fn document(salvage: &Salvage, report: &SalvageReport, written: &[Vec<Written>]) -> Value {
    let sinks = report.sinks.iter().zip(written).map(|(sink, written)| {
        let batches = sink.batches.iter().zip(written).map(|(batch, written)| {
            json!({
                "incarnation": batch.incarnation.to_string(),
                "lower": output::frontier(batch.description.lower()),
                "upper": output::frontier(batch.description.upper()),
                "parts": batch.parts.len(),
                "bytes": batch.bytes,
                "updates": written.updates,
                "min_time": batch.facts.min_time,
                "max_time": batch.facts.max_time,
                "overlaps": batch.overlaps,
                "missing": batch.missing,
                "file": written.file.as_ref().map(|file| file.display().to_string()),
                "failed": written.failed,
            })
        });
        let columns = sink.schema.row_schema().fields().iter();
        let columns = columns.map(|field| format!("{}: {}", field.name(), field.data_type()));
        json!({
            "sink_id": sink.id.to_string(),
            "shard": sink.shard.to_string(),
            "columns": columns.collect::<Vec<_>>(),
            "batches": batches.collect::<Vec<_>>(),
        })
    });
    let damaged =
        report.damaged.first.iter().map(|one| json!({ "key": one.name, "bytes": one.bytes, "why": one.why }));
    json!({
        "blobs": salvage.location(),
        "catalog": report.catalog.map(|catalog| catalog.to_string()),
        "catalog_unknown": report.catalog_why,
        "ok": is_whole(report, written),
        "listed": report.listed,
        "sinks": sinks.collect::<Vec<_>>(),
        "damaged": { "all": report.damaged.all, "first": damaged.collect::<Vec<_>>() },
        "unpublished_uploads": report.uploads,
        "foreign": names_json(&report.foreign, Stranger::name),
        "unknown": Salvage::UNKNOWN,
    })
}

fn text(salvage: &Salvage, report: &SalvageReport, written: &[Vec<Written>], args: &SalvageArgs) -> String {
    let mut lines = vec![format!(
        "blobs {}: listed {}, {}; {}",
        salvage.location(),
        output::counted(report.listed.entries, "entry", "entries"),
        output::bytes(report.listed.bytes),
        match (&report.catalog, &report.catalog_why) {
            (Some(catalog), _) => format!("they belong to catalog {catalog}"),
            (None, Some(why)) => format!("whose they are is not known: {}", output::visible(why)),
            (None, None) => "whose they are is not known: there is no stash.json".to_owned(),
        }
    )];
    for (sink, written) in report.sinks.iter().zip(written) {
        let incarnations: std::collections::BTreeSet<_> =
            sink.batches.iter().map(|batch| batch.incarnation).collect();
        lines.push(format!(
            "\nsink {} (shard {}): {} of {}",
            sink.id,
            sink.shard,
            output::counted(output::len(sink.batches.len()), "batch", "batches"),
            output::counted(output::len(incarnations.len()), "incarnation", "incarnations"),
        ));
        let mut table = output::table(
            &["times", "incarnation", "parts", "bytes", "updates", "first to last", "overlaps", "file"],
            &["parts", "bytes", "updates", "overlaps"],
        );
        for (batch, written) in sink.batches.iter().zip(written) {
            table.add_row([
                batch.description.to_string(),
                batch.incarnation.to_string(),
                output::count(output::len(batch.parts.len())),
                output::bytes(batch.bytes),
                output::count(written.updates),
                format!("{} to {}", batch.facts.min_time, batch.facts.max_time),
                output::count(batch.overlaps),
                written.file.as_ref().map_or_else(|| "-".to_owned(), |file| file.display().to_string()),
            ]);
        }
        lines.push(table.trim_fmt());
        for (batch, written) in sink.batches.iter().zip(written) {
            let named = format!("{} of {}", batch.description, batch.incarnation);
            lines.extend(
                batch
                    .missing
                    .iter()
                    .map(|missing| format!("MISSING in {named}: {}", output::visible(missing))),
            );
            lines.extend(
                written.failed.iter().map(|why| format!("NOT WRITTEN: {named}: {}", output::visible(why))),
            );
        }
    }
    if report.sinks.is_empty() {
        lines.push("no part that can be read was found".to_owned());
    }
    if !report.damaged.is_empty() {
        lines.push(format!(
            "\nDAMAGED: {}, left out:",
            output::counted(report.damaged.all.entries, "part", "parts")
        ));
        let named = report.damaged.first.iter().take(NAMES_SHOWN);
        lines.extend(
            named.map(|one| format!("  {}: {}", output::visible(&one.name), output::visible(&one.why))),
        );
        lines.extend(and_more(report.damaged.all.entries));
    }
    if report.uploads.entries > 0 {
        lines.push(format!(
            "{} passed over: they were never offered",
            output::counted(report.uploads.entries, "unpublished upload was", "unpublished uploads were")
        ));
    }
    lines.extend(strangers(&report.foreign));
    lines.push("\nnot known, since only the catalog knew it:".to_owned());
    lines.extend(Salvage::UNKNOWN.iter().map(|unknown| format!("  - {unknown}")));
    match &args.output {
        Some(folder) => {
            lines.push(format!("written to {}; nothing in the store was changed", folder.display()))
        }
        None => lines.push("nothing was written: pass --output DIR".to_owned()),
    }
    lines.join("\n")
}
