//! The sweeper: sweeps and verifies after whatever changes.
//!
//! While others work and die, what a dead one left is still there; so only promises that hold at every moment are
//! told as violations: that rows are gapless, that nothing referenced is missing, queued or altered.

use std::time::Duration;

use stash::Sink;

use super::Orders;
use crate::message::{Event, Order, tell};

/// Sweeps between whose verifications.
const SWEEPS_A_VERIFICATION: u32 = 8;
/// How long one wait for a change lasts before it is asked again whether to stop.
const PATIENCE: Duration = Duration::from_millis(200);

/// Sweeps until it is told to stop.
pub(super) async fn play(sink: &Sink, orders: &mut Orders) -> anyhow::Result<()> {
    let mut revision = 0;
    for turn in 1u32.. {
        while let Some(order) = orders.try_next() {
            if order == Order::Stop {
                return Ok(());
            }
        }
        orders.persist(async || sink.sweep().await).await?;
        if turn % SWEEPS_A_VERIFICATION == 0 {
            verify(sink, orders).await?;
        }
        let seen = revision;
        let changed = async || Ok(sink.stash().catalog().changed(seen, PATIENCE).await?);
        revision = orders.persist(changed).await?;
    }
    Ok(())
}

async fn verify(sink: &Sink, orders: &mut Orders) -> anyhow::Result<()> {
    let report = orders.persist(async || sink.verify(|_| {}).await).await?;
    for violation in report.violations {
        if violation.invariant != "I17" {
            tell(&Event::Violation { what: format!("{}: {}", violation.invariant, violation.what) });
        }
    }
    Ok(())
}
