//! `health`: how far writers, readers and deletions are, from the catalog alone.

use std::process::ExitCode;

use serde_json::json;
use stash::{ConsumerHealth, Health, SinkHealth};

use crate::{
    cli::HealthArgs,
    duration,
    output::{self, Output},
    session::{Address, Purpose, with_stash},
};

/// Runs the command.
pub async fn run(at: &Address, args: HealthArgs, out: Output) -> anyhow::Result<ExitCode> {
    let mut health = with_stash(at, Purpose::Look, async |stash| {
        if let Some(name) = &args.sink {
            // One that is not there is said as everywhere.
            stash.sink(name.as_str()).await?;
        }
        Ok(stash.health().await?)
    })
    .await?;
    if let Some(name) = &args.sink {
        health.sinks.retain(|sink| sink.sink == name.as_str());
    }
    if out.is_json() {
        documents(&health, out)?
    } else {
        tables(&health, out)?
    }
    Ok(ExitCode::SUCCESS)
}

/// An age or a distance in time; whole seconds are enough for people.
fn lasting(ms: u64) -> String {
    if ms < 1000 { "0s".to_owned() } else { duration::written(ms / 1000 * 1000) }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn documents(health: &Health, out: Output) -> anyhow::Result<()> {
    for sink in &health.sinks {
        out.document(&json!({
            "sink": sink.sink,
            "status": sink.status,
            "upper": output::frontier(sink.upper),
            "batches": sink.batches,
            "last_accept_ms": sink.last_accept.map(|at| at.0),
            "last_accept_age_ms": sink.last_accept_ms,
            "incarnations_open": sink.incarnations_open,
            "queue_keys": sink.queue_keys,
            "retention_headroom_ms": sink.retention_headroom_ms,
            "consumers": sink.consumers.iter().map(|of| json!({
                "consumer": of.consumer,
                "acknowledged": output::frontier(of.acknowledged),
                "expired": of.expired,
                "behind_batches": of.behind_batches,
                "behind_times": of.behind_times,
                "behind_ms": of.behind_ms,
                "headroom_ms": of.headroom_ms,
            })).collect::<Vec<_>>(),
        }))?;
    }
    out.document(&json!({ "queue_keys": health.queue_keys, "queue_oldest_due_ms": health.queue_oldest_ms }))?;
    Ok(())
}

fn tables(health: &Health, out: Output) -> anyhow::Result<()> {
    if health.sinks.is_empty() {
        out.line("no sinks")?;
    } else {
        out.line(chains(&health.sinks))?;
    }
    let readers: Vec<(&SinkHealth, &ConsumerHealth)> =
        health.sinks.iter().flat_map(|sink| sink.consumers.iter().map(move |of| (sink, of))).collect();
    if !readers.is_empty() {
        out.line("")?;
        out.line(consumers(&readers))?;
    }
    let queued = output::counted(health.queue_keys, "key", "keys");
    out.line(match health.queue_oldest_ms {
        Some(ms) => format!("\n{queued} to delete, the one due longest queued for {}", lasting(ms)),
        None => format!("\n{queued} to delete, none due"),
    })?;
    Ok(())
}

fn chains(sinks: &[SinkHealth]) -> String {
    let columns =
        ["sink", "status", "upper", "batches", "last accepted", "writers", "to delete", "retention in"];
    let mut table = output::table(&columns, &["upper", "batches", "writers", "to delete"]);
    for sink in sinks {
        table.add_row([
            sink.sink.clone(),
            sink.status.to_owned(),
            sink.upper.to_string(),
            output::count(sink.batches),
            or_dash(sink.last_accept_ms.map(|ms| format!("{} ago", lasting(ms)))),
            output::count(sink.incarnations_open),
            output::count(sink.queue_keys),
            or_dash(sink.retention_headroom_ms.map(lasting)),
        ]);
    }
    table.trim_fmt()
}

fn consumers(readers: &[(&SinkHealth, &ConsumerHealth)]) -> String {
    let columns =
        ["consumer", "sink", "acknowledged", "batches behind", "times behind", "oldest", "held for"];
    let mut table = output::table(&columns, &["acknowledged", "batches behind", "times behind"]);
    for (sink, of) in readers {
        table.add_row([
            of.consumer.clone(),
            sink.sink.clone(),
            of.acknowledged.to_string(),
            output::count(of.behind_batches),
            output::count(of.behind_times),
            if of.expired {
                "expired".to_owned()
            } else if of.behind_batches == 0 {
                "-".to_owned()
            } else {
                format!("{} ago", lasting(of.behind_ms))
            },
            of.headroom_ms.map_or_else(|| "ever".to_owned(), lasting),
        ]);
    }
    table.trim_fmt()
}
