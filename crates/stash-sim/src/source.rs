//! A source: a consumer of one sink whose deliveries are the input of another.
//!
//! It acknowledges only what the fed sink's read hold allows: below it no rendering of that sink asks for anything again.
//! What it holds of the time before is incomplete, and never needed: a rendering's snapshot below the chain's upper is
//! covered from birth.

use std::sync::{Arc, Mutex};

use stash::{Error, ErrorKind, Sink, StartAt, Subscription, TryNext};
use tokio::task::JoinSet;

use crate::consumer::rows_of;
use crate::input::{Delivered, Input};
use crate::process::{Process, again};
use crate::sink::SinkFacts;
use crate::world::{World, lock, pause};

/// A source that reads.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) input: Arc<Input>,
    _reading: JoinSet<()>,
}

impl Source {
    /// Begins to read `feeder` for the replica of that name.
    pub(crate) async fn open(
        world: &Arc<World>,
        process: &Process,
        feeder: &SinkFacts,
        name: &str,
    ) -> Option<Source> {
        let sink = process.sink(feeder.name).await?;
        let fed = world.sinks.iter().find(|facts| facts.fed_by.is_some())?.name;
        let fed = process.sink(fed).await?;
        let consumer = source_name(name);
        let subscription = again(|| sink.subscribe(&consumer, StartAt::Earliest)).await.ok()?;
        let input = Arc::new(Input::Stream(Mutex::new(Delivered::default())));
        let mut reading = JoinSet::new();
        reading.spawn(read(Arc::clone(world), Arc::clone(&input), subscription, fed));
        world.say(process.life.name(), format!("{consumer} reads {}", feeder.name));
        Some(Source { input, _reading: reading })
    }
}

/// The consumer of the fed replica of that name.
pub(crate) fn source_name(replica: &str) -> String {
    format!("source-{replica}")
}

async fn read(world: Arc<World>, input: Arc<Input>, mut subscription: Subscription, fed: Sink) {
    loop {
        let done = step(&world, &input, &mut subscription, &fed).await;
        match done {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) if error.kind() == ErrorKind::Retry => pause(30).await,
            Err(error) => {
                // A newer session of the same replica took over, or the sink is gone.
                world.say("source", format!("ends: {error}"));
                return;
            }
        }
    }
}

/// Takes the next delivery; `false` when nothing follows.
async fn step(
    world: &World,
    input: &Input,
    subscription: &mut Subscription,
    fed: &Sink,
) -> Result<bool, Error> {
    let Input::Stream(delivered) = input else { return Ok(false) };
    match subscription.try_next().await? {
        TryNext::Delivery(delivery) => {
            let rows = loop {
                match rows_of(&delivery).await {
                    Err(error) if error.kind() == ErrorKind::Retry => pause(30).await,
                    rows => break rows?,
                }
            };
            {
                let mut delivered = lock(delivered);
                delivered.updates.extend(rows.into_iter().map(|((row, time), diff)| (row, time, diff)));
                delivered.updates.sort_by_key(|(_, time, _)| *time);
                delivered.uppers.push(delivery.upper().as_u64());
            }
            let hold = fed.read_hold().await?;
            let uppers = lock(delivered).uppers.clone();
            // What was delivered before is acknowledged up to the hold.
            if let Some(upper) = uppers.into_iter().rev().find(|upper| *upper <= hold.as_u64()) {
                match subscription.acknowledge(stash_types::Frontier::at(upper)).await {
                    Ok(_) | Err(Error::Catalog(stash::CatalogError::InvalidUsage(_))) => {}
                    Err(error) => return Err(error),
                }
            }
            world.count("source delivery");
            Ok(true)
        }
        TryNext::Pending => {
            pause(60).await;
            Ok(true)
        }
        TryNext::End => {
            lock(delivered).ended = true;
            Ok(false)
        }
    }
}
