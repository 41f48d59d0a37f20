//! `cat`: the updates of one part, every byte checked against the digests in the catalog.
//!
//! All of the part is printed, also what a trim left out of the batch.

use std::{io, process::ExitCode};

use anyhow::Context as _;

use super::explain;
use crate::{
    cli::CatArgs,
    failure::Refusal,
    formats::batch_writer,
    output::{Output, Stream},
    session::{Address, Purpose, with_stash},
};

/// Runs the command. The rows are JSON anyway, unless another format is asked for.
pub async fn run(at: &Address, args: CatArgs, _out: Output) -> anyhow::Result<ExitCode> {
    let key = explain::parse(&args.key.key)?;
    with_stash(at, Purpose::Look, async |stash| {
        let Some(mut reader) = stash.read_part(key).await? else {
            let explanation = stash.explain(key).await?;
            return Err(Refusal::absent(format!(
                "{key} of sink {} is not referenced, so its bytes cannot be checked: {}; \
                 `stash-admin explain` tells its history",
                explanation.sink,
                explain::owner(&explanation)
            ))
            .into());
        };
        let mut writer = batch_writer(args.format, Stream(io::stdout()));
        let written = || "stdout cannot be written";
        writer.begin(&reader.schema()).with_context(written)?;
        while let Some(batch) = reader.next().await.map_err(stash::Error::from)? {
            writer.batch(&batch).with_context(written)?;
        }
        writer.finish().with_context(written)
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}
