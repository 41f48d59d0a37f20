//! `drop`: ends a sink and deletes its blobs, or says what that would do.

use std::process::ExitCode;

use serde_json::json;
use stash::Dropped;

use super::deletions::{Deletions, refused};
use crate::{
    cli::DropArgs,
    output::{self, Output},
    session::{Address, Purpose, with_stash},
};

/// Runs the command.
pub async fn run(at: &Address, args: DropArgs, out: Output) -> anyhow::Result<ExitCode> {
    let (behind, dropped, deletions) = with_stash(at, Purpose::of(args.commit), async |stash| {
        // Once more for a sink that was dropped: what a writer that was under way put afterwards goes too.
        let sink = stash.sink_or_dropped(args.sink.as_str()).await?;
        let (upper, consumers) = (sink.upper().await?, sink.consumers().await?);
        let behind = consumers.iter().filter(|row| row.acked < upper);
        let behind: Vec<String> =
            behind.map(|row| format!("{} (has read up to {})", row.name, row.acked)).collect();
        if !args.commit {
            let dropped = sink.preview_drop().await?;
            return Ok((behind, dropped, Deletions::planned(dropped.keys)));
        }
        let waiting = sink.deletions_queued().await?;
        let dropped = sink.drop_sink().await?;
        let deletions = Deletions::settle(&sink, waiting.saturating_add(dropped.keys)).await?;
        Ok((behind, dropped, deletions))
    })
    .await?;
    let Dropped { incarnations, batches, keys: _, consumers_behind } = dropped;
    let Deletions { deleted, deferred } = deletions;
    if out.is_json() {
        out.document(&json!({
            "sink": args.sink.as_str(),
            "incarnations_closed": incarnations,
            "batches_unlinked": batches,
            "objects_deleted": deleted,
            "deletes_deferred": deferred,
            "consumers_behind": consumers_behind,
            "committed": args.commit,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let not_done = match behind.as_slice() {
        [] => output::count(consumers_behind),
        names => format!("{}: {}", output::count(consumers_behind), names.join(", ")),
    };
    let lines = output::pairs(&[
        ("  incarnations closed", output::count(incarnations)),
        ("  batches unlinked", output::count(batches)),
        ("  objects deleted", output::count(deleted)),
        ("  consumers not done yet", not_done),
    ]);
    if args.commit {
        out.line(format!("dropped sink {}\n{lines}", args.sink))?;
        refused(deferred).iter().try_for_each(|line| out.line(line))?;
    } else {
        out.line(format!("would drop sink {}\n{lines}", args.sink))?;
        out.line("dry run: nothing was changed; pass --commit")?;
    }
    Ok(ExitCode::SUCCESS)
}
