//! The expirer: takes what outlived the retention of a sink that nobody holds, which is all of it.

use stash::Sink;

use super::Orders;
use crate::message::{Event, tell};

/// Expires until nothing is left, then deletes what is due.
pub(super) async fn play(sink: &Sink, orders: &mut Orders) -> anyhow::Result<()> {
    let upper = orders.persist(async || sink.upper().await).await?;
    // Time passes in milliseconds: the last batch may not have outlived its one yet.
    while orders.persist(async || sink.expire(true).await).await?.earliest < upper {}
    orders.persist(async || sink.stash().drain_deletions().await).await?;
    tell(&Event::End);
    Ok(())
}
