//! `expire`: takes of a sink what its time has come for, or says what that would be.

use std::process::ExitCode;

use serde_json::json;
use stash::Expired;

use crate::{
    cli::ExpireArgs,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: ExpireArgs, out: Output) -> anyhow::Result<ExitCode> {
    let expired = with_sink(at, Purpose::of(args.commit), &args.sink, async |sink| {
        let expired = sink.expire(args.commit).await?;
        if args.commit {
            sink.stash().drain_deletions().await?;
        }
        Ok(expired)
    })
    .await?;
    let Expired { closed, absent, batches, keys, earliest } = expired;
    if out.is_json() {
        out.document(&json!({
            "sink": args.sink.as_str(),
            "incarnations_closed": closed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "consumers_absent": absent.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            "batches_unlinked": batches,
            "objects_deleted": keys,
            "earliest": output::frontier(earliest),
            "committed": args.commit,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = absent.iter().map(|name| name.as_str()).collect();
    let consumers = match names.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let begins =
        if earliest.is_empty() { "nowhere: nothing is left".to_owned() } else { earliest.to_string() };
    let lines = output::pairs(&[
        ("  incarnations whose lease ran out", output::count(output::len(closed.len()))),
        ("  consumers that are absent", consumers),
        ("  batches expired", output::count(batches)),
        ("  objects deleted", output::count(keys)),
        ("  the chain begins at", begins),
    ]);
    if args.commit {
        out.line(format!("expired in sink {}\n{lines}", args.sink))?;
    } else {
        out.line(format!("would expire in sink {}\n{lines}", args.sink))?;
        out.line("dry run: nothing was changed; pass --commit")?;
    }
    Ok(ExitCode::SUCCESS)
}
