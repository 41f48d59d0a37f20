//! `history`: what was recorded of a sink, also after it was dropped.

use std::process::ExitCode;

use serde_json::{Value, json};
use stash::HistoryRow;

use crate::{
    cli::HistoryArgs,
    output::{self, Output},
    session::{Address, Purpose, with_stash},
};

/// An event in JSON.
pub(super) fn row_json(row: &HistoryRow) -> Value {
    json!({
        "at_ms": row.at.0,
        "event": row.event,
        "detail": row.detail,
        "incarnation": row.incarnation.map(|id| id.to_string()),
        "key": row.key.map(|key| key.to_string()),
    })
}

/// What there is to say of an event; of an object, which one: lower-upper-process-n, as its key ends.
fn detail(row: &HistoryRow) -> String {
    let object = row.key.map(|key| {
        let (description, process, n) = (key.name.description, key.name.process, key.name.n);
        format!("{}-{}-{process}-{n}", description.lower(), description.upper())
    });
    match (object, row.detail.is_empty()) {
        (Some(object), true) => object,
        (Some(object), false) => format!("{object}: {}", row.detail),
        (None, _) => row.detail.clone(),
    }
}

/// Events as a table.
pub(super) fn text(rows: &[HistoryRow]) -> String {
    let mut table = output::table(&["at", "event", "detail"], &[]);
    for row in rows {
        table.add_row([output::moment(row.at), row.event.clone(), detail(row)]);
    }
    table.trim_fmt()
}

/// Runs the command.
pub async fn run(at: &Address, args: HistoryArgs, out: Output) -> anyhow::Result<ExitCode> {
    let rows = with_stash(at, Purpose::Look, async |stash| {
        Ok(stash.sink_or_dropped(args.sink.as_str()).await?.history(args.limit).await?)
    })
    .await?;
    if out.is_json() {
        for row in &rows {
            out.document(&row_json(row))?;
        }
    } else {
        out.line(text(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}
