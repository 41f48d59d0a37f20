//! `sinks`: what is declared, and how far each chain is.

use std::process::ExitCode;

use serde_json::json;
use stash::{HeadRow, HeadStatus, SinkRow};

use crate::{
    cli::SinksArgs,
    duration,
    output::{self, Output},
    session::{Address, Purpose, with_stash},
};

/// A chain's status in words.
pub(super) fn status(head: &HeadRow) -> String {
    match &head.status {
        HeadStatus::Open => "open".to_owned(),
        HeadStatus::Complete => "complete".to_owned(),
        HeadStatus::Poisoned(error) => format!("poisoned at {}: {}", error.at, error.message),
        HeadStatus::Dropped => "dropped".to_owned(),
    }
}

/// A duration of the declaration, which may be none.
fn lasting(ms: Option<u64>) -> String {
    ms.map_or_else(|| "for ever".to_owned(), duration::written)
}

/// Runs the command.
pub async fn run(at: &Address, args: SinksArgs, out: Output) -> anyhow::Result<ExitCode> {
    let sinks = with_stash(at, Purpose::Look, async |stash| {
        let mut sinks: Vec<(SinkRow, HeadRow)> = Vec::new();
        for row in stash.sinks(args.dropped).await? {
            let head = stash.catalog().head(row.spec.id).await.map_err(stash::Error::from)?;
            sinks.push((row, head));
        }
        Ok(sinks)
    })
    .await?;
    if out.is_json() {
        for (row, head) in &sinks {
            out.document(&json!({
                "name": row.spec.name.as_str(),
                "id": row.spec.id.to_string(),
                "shard": row.shard.to_string(),
                "status": status(head),
                "as_of": row.spec.as_of,
                "up_to": output::frontier(row.spec.up_to),
                "seals": row.spec.seals,
                "upper": output::frontier(head.upper),
                "released": output::frontier(head.released),
                "expired": output::frontier(head.expired),
                "retention_ms": row.spec.retention_ms,
                "absent_hold_ms": row.spec.absent_hold_ms,
                "batches_accepted": head.next_seq.saturating_sub(1),
                "declared_ms": row.declared.0,
                "dropped_ms": row.dropped.map(|at| at.0),
            }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if sinks.is_empty() {
        out.line("no sinks; `stash-admin load FILE --sink NAME …` declares one")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(
        &[
            "sink",
            "status",
            "as-of",
            "upper",
            "released",
            "accepted",
            "retention",
            "absent hold",
            "declared",
            "id",
        ],
        &["as-of", "upper", "released", "accepted"],
    );
    for (row, head) in &sinks {
        table.add_row([
            row.spec.name.to_string(),
            status(head),
            row.spec.as_of.to_string(),
            head.upper.to_string(),
            head.released.to_string(),
            output::count(head.next_seq.saturating_sub(1)),
            lasting(row.spec.retention_ms),
            lasting(row.spec.absent_hold_ms),
            output::moment(row.declared),
            row.spec.id.to_string(),
        ]);
    }
    out.line(table.trim_fmt())?;
    Ok(ExitCode::SUCCESS)
}
