//! The consumer process of the demo: it reads every sink and hands the rows on.
//!
//! What it hands on goes down its standard output; whoever reads there confirms each whole batch with a
//! line, and only then the batch is acknowledged. A consumer that dies in between is handed the same
//! batch again.

use anyhow::Context;
use arrow::{array::RecordBatch, datatypes::SchemaRef, ipc::writer::StreamWriter};
use stash::{BatchConfig, Delivery, StartAt, Stash, StashConfig, Subscription};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Stdin},
    sync::mpsc,
    task::JoinSet,
};

use super::{
    events::{ConsumerEvent, emit, emit_with, peak_rss},
    spec::{CONSUMER, ConsumerSpec},
};
use crate::{metrics::Endpoint, session::Address};

/// Runs the consumer until every chain is complete.
pub async fn run(spec: ConsumerSpec, at: &Address) -> anyhow::Result<()> {
    let batch = BatchConfig { memory_bytes: spec.memory_bytes, ..BatchConfig::default() };
    let mut endpoint = Endpoint::at(spec.metrics)?;
    let config = StashConfig { batch, ..StashConfig::default() };
    let stash = at.options()?.config(config).open().await?;
    endpoint.watch(&stash);
    let mut confirmations = Vec::new();
    let mut tables = JoinSet::new();
    for (table, name) in spec.sinks.iter().enumerate() {
        let (confirm, confirmed) = mpsc::channel(1);
        confirmations.push(confirm);
        tables.spawn(read(stash.clone(), name.clone(), table, confirmed));
    }
    let mut input = JoinSet::new();
    input.spawn(forward(BufReader::new(tokio::io::stdin()), confirmations));
    loop {
        tokio::select! {
            done = tables.join_next() => match done {
                Some(done) => done.context("a table's task")??,
                None => break,
            },
            _ = input.join_next() => anyhow::bail!("the process that reads the rows is gone"),
        }
    }
    stash.close().await?;
    emit(&ConsumerEvent::Done { peak_rss: peak_rss(None), requests: stash.requests() })
}

/// Gives each confirmation, the table's number on a line, to the table's task.
async fn forward(mut lines: BufReader<Stdin>, confirmations: Vec<mpsc::Sender<()>>) {
    let mut line = String::new();
    while matches!(lines.read_line(&mut line).await, Ok(n) if n > 0) {
        let table = line.trim().parse::<usize>().ok().and_then(|table| confirmations.get(table));
        if let Some(table) = table {
            // A table that is through with its chain confirms nothing any more.
            let _ = table.send(()).await;
        }
        line.clear();
    }
}

async fn read(
    stash: Stash,
    name: String,
    table: usize,
    mut confirmed: mpsc::Receiver<()>,
) -> anyhow::Result<()> {
    let sink = stash.sink(&name).await?;
    let mut subscription = sink.subscribe(CONSUMER, StartAt::Beginning).await?;
    while let Some(delivery) = subscription.next().await? {
        hand_on(&delivery, table).await?;
        confirmed.recv().await.context("the reader of the rows is gone")?;
        acknowledge(&mut subscription, &delivery).await?;
    }
    Ok(())
}

async fn acknowledge(subscription: &mut Subscription, delivery: &Delivery) -> anyhow::Result<()> {
    subscription.acknowledge(delivery.upper()).await?;
    Ok(())
}

async fn hand_on(delivery: &Delivery, table: usize) -> anyhow::Result<()> {
    emit(&ConsumerEvent::Begin {
        table,
        lower: delivery.lower().as_u64(),
        upper: delivery.upper().as_u64(),
        parts: delivery.row().parts.len(),
    })?;
    let mut reader = delivery.read();
    let schema = reader.schema();
    while let Some(rows) = reader.next().await? {
        let bytes = encode(&schema, &rows)?;
        emit_with(&ConsumerEvent::Rows { table, bytes: bytes.len() }, &bytes)?;
    }
    emit(&ConsumerEvent::End { table })
}

fn encode(schema: &SchemaRef, rows: &RecordBatch) -> anyhow::Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    writer.write(rows)?;
    Ok(writer.into_inner()?)
}
