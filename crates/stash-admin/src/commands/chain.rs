//! `chain`: the head of a sink's chain, the renderings that wrote it, and the batches that are still linked.

use std::process::ExitCode;

use serde_json::{Value, json};
use stash::{BatchRow, IncarnationRow, IncarnationState, OutcomeKind, Sink};

use super::sinks::status;
use crate::{
    cli::SinkArg,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: SinkArg, out: Output) -> anyhow::Result<ExitCode> {
    with_sink(at, Purpose::Look, &args.sink, async |sink| {
        let (head, incarnations, batches) =
            (sink.head().await?, sink.incarnations().await?, sink.batches().await?);
        if out.is_json() {
            let spec = &sink.row().spec;
            let columns = sink.schema().declared_schema().fields().iter().map(|field| {
                json!({
                    "name": field.name(),
                    "type": field.data_type().to_string(),
                    "nullable": field.is_nullable(),
                })
            });
            out.document(&json!({
                "sink": spec.name.as_str(),
                "id": spec.id.to_string(),
                "shard": sink.shard().to_string(),
                "columns": columns.collect::<Vec<_>>(),
                "as_of": spec.as_of,
                "up_to": output::frontier(spec.up_to),
                "seals": spec.seals,
                "status": status(&head),
                "upper": output::frontier(head.upper),
                "released": output::frontier(head.released),
                "expired": output::frontier(head.expired),
                "read_hold": output::frontier(sink.read_hold().await?),
                "batches_accepted": head.next_seq.saturating_sub(1),
                "incarnations": incarnations.iter().map(incarnation_json).collect::<Vec<_>>(),
                "batches": batches.iter().map(|batch| batch_json(batch, &incarnations)).collect::<Vec<_>>(),
            }))?;
            return Ok(());
        }
        out.line(head_text(sink, &head).await?)?;
        out.line(format!("\n{}", incarnations_text(&incarnations)))?;
        out.line(format!("\n{}", batches_text(&batches, &incarnations)))?;
        Ok(())
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn head_text(sink: &Sink, head: &stash::HeadRow) -> anyhow::Result<String> {
    let spec = &sink.row().spec;
    let columns = sink.schema().declared_schema().fields().iter().map(|field| {
        format!(
            "{} {}{}",
            field.name(),
            field.data_type(),
            if field.is_nullable() { "" } else { " not null" }
        )
    });
    let ends = match (spec.up_to.time(), spec.seals) {
        (Some(up_to), _) => format!("complete at {up_to}"),
        (None, true) => "ends when a load says --complete".to_owned(),
        (None, false) => "never complete".to_owned(),
    };
    let upper = match head.upper.time() {
        None => "the end: nothing is to come".to_owned(),
        Some(time) if time <= spec.as_of => format!("{time}: nothing is accepted yet"),
        Some(time) => format!("{time}: every time below is accepted"),
    };
    let linked = match head.released.max(head.expired) {
        gone if gone.as_u64() <= spec.as_of => "nothing yet".to_owned(),
        gone => format!("everything below {gone}"),
    };
    Ok(output::pairs(&[
        ("sink", format!("{} ({})", spec.name, spec.id)),
        ("shard", sink.shard().to_string()),
        ("columns", columns.collect::<Vec<_>>().join(", ")),
        ("begins", format!("at {}, {ends}", spec.as_of)),
        ("status", status(head)),
        ("upper", upper),
        ("released", linked),
        ("inputs", format!("keep their history from {} on (read hold)", sink.read_hold().await?)),
    ]))
}

fn incarnations_text(incarnations: &[IncarnationRow]) -> String {
    if incarnations.is_empty() {
        return "no incarnations: nobody has written yet".to_owned();
    }
    let mut table = output::table(
        &["incarnation", "replica", "rendered at", "resolved to", "opened", "state"],
        &["rendered at", "resolved to"],
    );
    for row in incarnations {
        let state = match &row.state {
            IncarnationState::Open => format!("open, lease until {}", output::moment(row.lease_until)),
            IncarnationState::Closed { reason } => format!("closed: {}", output::cut(reason)),
        };
        table.add_row([
            row.id.to_string(),
            row.replica.to_string(),
            row.as_of.to_string(),
            row.resolved.to_string(),
            output::moment(row.opened),
            state,
        ]);
    }
    table.trim_fmt()
}

fn batches_text(batches: &[BatchRow], incarnations: &[IncarnationRow]) -> String {
    if batches.is_empty() {
        return "no batches are linked".to_owned();
    }
    let mut table = output::table(
        &[
            "seq",
            "times",
            "empty until",
            "offered",
            "updates",
            "parts",
            "inline",
            "bytes",
            "replica",
            "accepted",
        ],
        &["seq", "updates", "parts", "inline", "bytes"],
    );
    let (mut updates, mut parts, mut inline, mut bytes) = (0, 0, 0, 0);
    for batch in batches {
        let size = Size::of(batch);
        updates += batch.facts.update_count;
        parts += size.parts;
        inline += size.inline;
        bytes += size.bytes;
        table.add_row([
            batch.seq.to_string(),
            format!("[{}, {})", batch.lower, batch.upper),
            if batch.extent == batch.upper { String::new() } else { format!("to {}", batch.extent) },
            if (batch.offered.lower(), batch.offered.upper()) == (batch.lower, batch.upper) {
                "as is".to_owned()
            } else {
                batch.offered.to_string()
            },
            output::count(batch.facts.update_count),
            output::count(size.parts),
            output::count(size.inline),
            output::bytes(size.bytes),
            replica_of(batch, incarnations),
            output::moment(batch.accepted),
        ]);
    }
    format!(
        "{}\n\n{} linked: {} in {} and {}, {}",
        table.trim_fmt(),
        output::counted(output::len(batches.len()), "batch", "batches"),
        output::counted(updates, "update", "updates"),
        output::counted(parts, "part", "parts"),
        output::counted(inline, "inline run", "inline runs"),
        output::bytes(bytes)
    )
}

/// What a batch takes.
struct Size {
    parts: u64,
    inline: u64,
    /// Of parts in the store and of inline runs in the catalog.
    bytes: u64,
}

impl Size {
    fn of(batch: &BatchRow) -> Size {
        let stored = batch.parts.iter().map(|part| part.descriptor.len);
        let inline = batch.inline.iter().map(|run| output::len(run.payload.len()));
        Size {
            parts: output::len(batch.parts.len()),
            inline: output::len(batch.inline.len()),
            bytes: stored.chain(inline).sum(),
        }
    }
}

fn replica_of(batch: &BatchRow, incarnations: &[IncarnationRow]) -> String {
    let known = incarnations.iter().find(|row| row.id == batch.incarnation);
    known.map_or_else(|| batch.incarnation.to_string(), |row| row.replica.to_string())
}

/// A rendering in JSON.
pub(super) fn incarnation_json(row: &IncarnationRow) -> Value {
    let last = row.last.map(|last| {
        let outcome = match last.outcome {
            OutcomeKind::Accepted => "accepted",
            OutcomeKind::Trimmed { .. } => "trimmed",
            OutcomeKind::Dropped => "dropped",
        };
        json!({
            "lower": output::frontier(last.description.lower()),
            "upper": output::frontier(last.description.upper()),
            "outcome": outcome,
        })
    });
    let closed = match &row.state {
        IncarnationState::Open => None,
        IncarnationState::Closed { reason } => Some(reason),
    };
    json!({
        "id": row.id.to_string(),
        "replica": row.replica.as_str(),
        "as_of": row.as_of,
        "resolved": output::frontier(row.resolved),
        "open": closed.is_none(),
        "closed_reason": closed,
        "last": last,
        "opened_ms": row.opened.0,
        "lease_until_ms": row.lease_until.0,
    })
}

fn batch_json(batch: &BatchRow, incarnations: &[IncarnationRow]) -> Value {
    let size = Size::of(batch);
    json!({
        "seq": batch.seq,
        "id": batch.id.to_string(),
        "lower": output::frontier(batch.lower),
        "upper": output::frontier(batch.upper),
        "extent": output::frontier(batch.extent),
        "offered_lower": output::frontier(batch.offered.lower()),
        "offered_upper": output::frontier(batch.offered.upper()),
        "updates": batch.facts.update_count,
        "parts": size.parts,
        "inline_runs": size.inline,
        "bytes": size.bytes,
        "incarnation": batch.incarnation.to_string(),
        "replica": replica_of(batch, incarnations),
        "accepted_ms": batch.accepted.0,
    })
}
