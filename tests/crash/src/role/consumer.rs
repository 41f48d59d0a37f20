//! The consumer: records what is delivered, durably, then acknowledges it.

use anyhow::{Context, ensure};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt64Type};
use stash::{Delivery, Error, ErrorKind, Sink, StartAt, Subscription};
use stash_types::fault;

use super::{CONSUMER, KEEPER, Orders, RoleArgs, told};
use crate::{
    feed::Content,
    message::{Event, Order, tell},
    results::Results,
};

/// Reads the chain to its end, then waits to be told to stop.
pub(super) async fn play(args: &RoleArgs, sink: &Sink, orders: &mut Orders) -> anyhow::Result<()> {
    let results = Results::open(&args.results)?;
    if args.keeper {
        orders.persist(async || sink.subscribe(KEEPER, StartAt::Beginning).await).await?;
    }
    // Somebody who comes and goes holds nothing afterwards.
    orders.persist(async || sink.subscribe("visitor", StartAt::Now).await).await?;
    orders.persist(async || sink.unregister_consumer("visitor").await).await?;
    let mut subscription =
        orders.persist(async || sink.subscribe(CONSUMER, StartAt::Beginning).await).await?;
    loop {
        let delivery = match subscription.next().await {
            Ok(Some(delivery)) => delivery,
            Ok(None) => break,
            Err(error) => {
                recover(error, orders).await?;
                continue;
            }
        };
        let content = read(&delivery, orders).await?;
        let (lower, upper) = (delivery.lower().as_u64(), delivery.upper().as_u64());
        let again = results.record(lower, upper, &content)?;
        fault::place("role.recorded");
        acknowledge(&mut subscription, &delivery, orders).await?;
        tell(&Event::Delivered { lower, upper, again });
    }
    tell(&Event::End);
    while orders.next().await != Order::Stop {}
    Ok(())
}

async fn recover(error: Error, orders: &mut Orders) -> anyhow::Result<()> {
    match error.kind() {
        ErrorKind::Retry => orders.stuck(&error).await,
        kind => anyhow::bail!("the next delivery: {kind:?}: {}", told(&error)),
    }
    Ok(())
}

async fn acknowledge(
    subscription: &mut Subscription,
    delivery: &Delivery,
    orders: &mut Orders,
) -> anyhow::Result<()> {
    while let Err(error) = subscription.acknowledge(delivery.upper()).await {
        recover(error, orders).await.context("acknowledging")?;
    }
    Ok(())
}

async fn read(delivery: &Delivery, orders: &mut Orders) -> anyhow::Result<Content> {
    'again: loop {
        let (mut content, mut reader) = (Content::new(), delivery.read());
        loop {
            match reader.next().await.map_err(Error::from) {
                Ok(Some(batch)) => add(&mut content, &batch)?,
                Ok(None) => return Ok(content),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    orders.stuck(&error).await;
                    continue 'again;
                }
                Err(error) => anyhow::bail!("reading {}: {}", delivery.piece(), told(&error)),
            }
        }
    }
}

/// Adds updates; a consolidated batch has each (time, row) once, and none that cancels out.
pub fn add(content: &mut Content, batch: &RecordBatch) -> anyhow::Result<()> {
    ensure!(batch.num_columns() == 4, "a batch of {} columns", batch.num_columns());
    let keys = batch.column(0).as_primitive::<UInt64Type>();
    let pads = batch.column(1).as_string::<i32>();
    let times = batch.column(2).as_primitive::<UInt64Type>();
    let diffs = batch.column(3).as_primitive::<Int64Type>();
    for row in 0..batch.num_rows() {
        let (time, key, diff) = (times.value(row), keys.value(row), diffs.value(row));
        ensure!(diff != 0, "an update at time {time} that cancels out was delivered");
        let before = content.insert((time, (key, pads.value(row).to_owned())), diff);
        ensure!(before.is_none(), "key {key} at time {time} came twice in one batch");
    }
    Ok(())
}
