//! The dropper: drops the sink, as often as it takes.

use stash::Sink;

use crate::message::{Event, tell};

/// Drops the sink; one that is dropped already is cleared away after.
pub(super) async fn play(sink: &Sink) -> anyhow::Result<()> {
    sink.drop_sink().await?;
    tell(&Event::End);
    Ok(())
}
