//! `parts`: the objects in the store that a sink's chain references.

use std::process::ExitCode;

use serde_json::json;

use crate::{
    cli::SinkArg,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: SinkArg, out: Output) -> anyhow::Result<ExitCode> {
    let (shard, batches) =
        with_sink(at, Purpose::Look, &args.sink, async |sink| Ok((sink.shard(), sink.batches().await?)))
            .await?;
    let parts = || batches.iter().flat_map(|batch| batch.parts.iter().map(move |part| (batch, part)));
    if out.is_json() {
        for (batch, part) in parts() {
            let (descriptor, facts) = (&part.descriptor, &part.descriptor.facts);
            out.document(&json!({
                "key": part.name.under(shard).to_string(),
                "seq": batch.seq,
                "updates": facts.update_count,
                "min_time": facts.min_time,
                "max_time": facts.max_time,
                "bytes": descriptor.len,
                "uncompressed_bytes": facts.uncompressed_bytes,
                "process": descriptor.process,
                "group": descriptor.group,
                "run": descriptor.run,
                "ordinal": descriptor.ordinal,
                "digest": descriptor.digest.to_string(),
            }))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if parts().next().is_none() {
        let inline: usize = batches.iter().map(|batch| batch.inline.len()).sum();
        out.line(format!(
            "no parts: {} linked, {} in the catalog itself",
            output::counted(output::len(batches.len()), "batch", "batches"),
            output::counted(output::len(inline), "inline run", "inline runs")
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        output::table(&["seq", "updates", "times", "bytes", "run", "key"], &["seq", "updates", "bytes"]);
    for (batch, part) in parts() {
        let (descriptor, facts) = (&part.descriptor, &part.descriptor.facts);
        table.add_row([
            batch.seq.to_string(),
            output::count(facts.update_count),
            format!("{} to {}", facts.min_time, facts.max_time),
            output::bytes(descriptor.len),
            format!("{}.{}.{}", descriptor.process, descriptor.run, descriptor.ordinal),
            part.name.under(shard).to_string(),
        ]);
    }
    out.line(table.trim_fmt())?;
    Ok(ExitCode::SUCCESS)
}
