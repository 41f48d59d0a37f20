//! `expire`: takes of a sink what its time has come for, or says what that would be.

use std::process::ExitCode;

use serde_json::json;
use stash::Expired;

use super::deletions::{Deletions, refused};
use crate::{
    cli::ExpireArgs,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: ExpireArgs, out: Output) -> anyhow::Result<ExitCode> {
    let (expired, Deletions { deleted, deferred }) =
        with_sink(at, Purpose::of(args.commit), &args.sink, async |sink| {
            let waiting = sink.deletions_queued().await?;
            let expired = sink.expire(args.commit).await?;
            let deletions = match args.commit {
                true => Deletions::settle(sink, waiting.saturating_add(expired.keys)).await?,
                false => Deletions::planned(expired.keys),
            };
            Ok((expired, deletions))
        })
        .await?;
    let Expired { closed, absent, batches, keys: _, earliest } = expired;
    if out.is_json() {
        out.document(&json!({
            "sink": args.sink.as_str(),
            "incarnations_closed": closed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "consumers_absent": absent.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            "batches_unlinked": batches,
            "objects_deleted": deleted,
            "deletes_deferred": deferred,
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
        ("  objects deleted", output::count(deleted)),
        ("  the chain begins at", begins),
    ]);
    if args.commit {
        out.line(format!("expired in sink {}\n{lines}", args.sink))?;
        refused(deferred).iter().try_for_each(|line| out.line(line))?;
    } else {
        out.line(format!("would expire in sink {}\n{lines}", args.sink))?;
        out.line("dry run: nothing was changed; pass --commit")?;
    }
    Ok(ExitCode::SUCCESS)
}
