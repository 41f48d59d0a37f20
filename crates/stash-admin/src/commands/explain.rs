//! `explain`: all that can be told of a key found in a bucket.

use std::process::ExitCode;

use serde_json::json;
use stash::{Explanation, Fate, PartKey};

use super::{chain::incarnation_json, history};
use crate::{
    cli::KeyArg,
    output::{self, Output},
    session::{Address, Purpose, with_stash},
};

/// The key in `text`, whatever stands before its shard: people paste whole paths and URLs.
pub(super) fn parse(text: &str) -> anyhow::Result<PartKey> {
    let segments: Vec<&str> = text.split('/').collect();
    let key = segments.get(segments.len().saturating_sub(3)..).unwrap_or(&[]).join("/");
    Ok(key.parse().map_err(stash::Error::from)?)
}

/// Who owns a key, in a sentence.
pub(super) fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Referenced { seq } => format!("batch {seq} of the chain references it"),
        Fate::Queued { reason } => format!("it waits for its deletion: {}", reason_text(reason)),
        Fate::BeingWritten => "an open incarnation wrote it and may still offer it".to_owned(),
        Fate::Garbage { why } => format!("nobody owns it ({why}); the next load into the sink deletes it"),
        Fate::Gone => "it is gone from the store".to_owned(),
        Fate::Foreign => "this catalog knows no such incarnation; Stash never deletes it".to_owned(),
    }
}

/// The same, where nothing but the catalog's history tells of it.
pub(super) fn owner(explanation: &Explanation) -> String {
    let gone = explanation.fate == Fate::Gone;
    match (gone, explanation.history.last()) {
        (true, None) => "nobody: no such object was ever recorded".to_owned(),
        (true, Some(last)) => {
            format!("nobody: it is gone from the store, {} at {}", last.event, output::moment(last.at))
        }
        (false, _) => fate(&explanation.fate),
    }
}

/// What to do where the chain needs an object that the store does not have, or has something else in its place.
fn alarm(explanation: &Explanation) -> Option<String> {
    let Fate::Referenced { seq } = &explanation.fate else { return None };
    let why = match (explanation.store_bytes, explanation.accepted_bytes) {
        (None, _) => "the store does not have it: it was deleted from outside".to_owned(),
        (Some(there), Some(accepted)) if there != accepted => format!(
            "the store has another one in its place, of {} bytes where {} were accepted: it was EXCHANGED from outside",
            output::count(there),
            output::count(accepted)
        ),
        _ => return None,
    };
    Some(format!(
        "ALARM: batch {seq} of sink {} needs this object and {why}, and consumers stop there; restore the object from a \
         backup, or drop the sink",
        explanation.sink
    ))
}

fn reason_text(reason: &str) -> &str {
    match reason {
        "Dropped" => "its batch was covered already",
        "Trimmed" => "it was wholly trimmed away",
        "Released" => "all consumers acknowledged its batch",
        "Expired" => "its batch expired",
        "SinkDropped" => "its sink was dropped",
        "Surrendered" => "its writer gave it up",
        "Swept" => "a sweep found that nobody owns it",
        other => other,
    }
}

/// Runs the command.
pub async fn run(at: &Address, args: KeyArg, out: Output) -> anyhow::Result<ExitCode> {
    let key = parse(&args.key)?;
    let explanation = with_stash(at, Purpose::Look, async |stash| Ok(stash.explain(key).await?)).await?;
    let alarm = alarm(&explanation);
    let code = if alarm.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if out.is_json() {
        let Explanation {
            sink,
            sink_id,
            sink_dropped,
            incarnation,
            process,
            n,
            store_bytes,
            accepted_bytes,
            ..
        } = &explanation;
        out.document(&json!({
            "key": explanation.key,
            "sink": sink,
            "sink_id": sink_id,
            "sink_dropped": sink_dropped,
            "lower": output::frontier(key.name.description.lower()),
            "upper": output::frontier(key.name.description.upper()),
            "incarnation": incarnation.as_ref().map(incarnation_json),
            "process": process,
            "n": n,
            "store_bytes": store_bytes,
            "accepted_bytes": accepted_bytes,
            "fate": explanation.fate,
            "fate_text": owner(&explanation),
            "alarm": alarm,
            "history": explanation.history.iter().map(history::row_json).collect::<Vec<_>>(),
        }))?;
        return Ok(code);
    }
    out.line(text(&explanation))?;
    if !explanation.history.is_empty() {
        out.line(format!("\n{}", history::text(&explanation.history)))?;
    }
    alarm.iter().try_for_each(|alarm| out.line(format!("\n{alarm}")))?;
    Ok(code)
}

fn text(explanation: &Explanation) -> String {
    let Explanation { sink, sink_id, sink_dropped, lower, upper, process, n, .. } = explanation;
    let dropped = if *sink_dropped { ", dropped" } else { "" };
    let written = match &explanation.incarnation {
        Some(row) => {
            format!("replica {}, incarnation {}, opened {}", row.replica, row.id, output::moment(row.opened))
        }
        None => "an incarnation this catalog does not know".to_owned(),
    };
    let store = match explanation.store_bytes {
        Some(bytes) => format!("in the store, {}", output::bytes(bytes)),
        None => "not in the store".to_owned(),
    };
    output::pairs(&[
        ("key", explanation.key.clone()),
        ("sink", format!("{sink} ({sink_id}{dropped})")),
        ("times", format!("[{lower}, {upper})")),
        ("written by", written),
        ("process", format!("{process}, its object {n}")),
        ("object", store),
        ("owner", owner(explanation)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_at_the_end_of_a_path_or_url() {
        let key = "s00000000-0000-0000-0000-000000000001/i00000000-0000-0000-0000-000000000002/\
                   0000000000000000-0000000000000001-0-0.parquet";
        for before in ["", "/tmp/stash/blobs/", "s3://bucket/prefix/"] {
            assert_eq!(parse(&format!("{before}{key}")).expect("a key").to_string(), key);
        }
        let error = parse("orders/1.parquet").expect_err("no key").to_string();
        assert!(error.contains("orders/1.parquet") && error.contains("not a part key"), "{error}");
    }
}
