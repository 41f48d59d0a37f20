//! `history`: what was recorded of a sink, also after it was dropped.

use std::process::ExitCode;

use serde_json::{Value, json};
use stash::{HistoryRow, Timestamp};

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
        (None, _) => dated(&row.detail),
    }
}

/// The same with the moment at its end, `since 1700000000000 ms`, as people read it: catalogs know no calendar.
fn dated(detail: &str) -> String {
    let parts = detail.strip_suffix(" ms").and_then(|rest| rest.rsplit_once(" since "));
    match parts.and_then(|(what, millis)| Some((what, millis.parse().ok()?))) {
        Some((what, millis)) => format!("{what} since {}", output::moment(Timestamp(millis))),
        None => detail.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_at_the_end_of_a_detail_is_one_of_the_calendar() {
        let detail = "consumer me stands at 1 and was not heard since 1700000000000 ms";
        assert!(dated(detail).ends_with("was not heard since 2023-11-14 22:13:20Z"), "{}", dated(detail));
        for kept in ["", "the load is done", "since then ms", "waited for 5 ms"] {
            assert_eq!(dated(kept), kept);
        }
    }
}
