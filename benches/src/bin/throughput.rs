//! How many rows a second two workers write (sorted, encoded, PUT and accepted) and a reader gets back.
//!
//! Rows are a u64 key in no order and a text of 64 bytes. They are made while they are written; what making them
//! alone costs is measured first.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use arrow::{
    array::{ArrayRef, AsArray, RecordBatch, StringBuilder, UInt64Array},
    datatypes::{DataType, Field, Schema, UInt64Type},
};
use clap::Parser;
use stash::{Frontier, Launch, Minted, OpenOptions, OwnedParts, ShareMessage, ShareWriter, Sink, SinkSpec};
use stash_benches::{Numbers, Results, peak_memory};

/// Rows of a record batch.
const ROWS_A_BATCH: u64 = 8192;
/// Bytes of a row: key, text, time and diff.
const ROW_BYTES: f64 = (8 + 64 + 8 + 8) as f64;

#[derive(Parser)]
#[command(about = "Rows a second, written and read back")]
struct Arguments {
    /// Rows in all.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Workers that write.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// A stash that nobody uses, with its --catalog; a folder of its own if absent.
    #[arg(long, requires = "catalog")]
    stash: Option<String>,
    /// The catalog of --stash.
    #[arg(long, requires = "stash")]
    catalog: Option<String>,
    /// One JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { rows, workers, stash, catalog, json } = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let options = match (&stash, &catalog) {
        (Some(stash), Some(catalog)) => OpenOptions::new(stash).catalog(catalog),
        _ => OpenOptions::new(format!("file://{}", folder.path().display())),
    };
    let stash = options.open().await?;
    let schema = Schema::new(vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("text", DataType::Utf8, false),
    ]);
    let sink = stash.declare_sink(SinkSpec::new("rows", schema)?).await?;
    let incarnation = sink.open_incarnation(Launch::single("writer", workers)?).await?.render()?;
    let mut chain = incarnation.chain()?;
    let minted = chain.mint(Frontier::at(1))?.minted().context("nothing to mint")?;
    let shares =
        |worker| rows / u64::from(workers) + u64::from(u64::from(worker) < rows % u64::from(workers));

    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let (sink, count) = (sink.clone(), shares(worker));
        tasks.spawn_blocking(move || {
            batches(&sink, worker, count)
                .try_fold(0_u64, |sum, batch| anyhow::Ok(sum.wrapping_add(checksum(&batch?))))
        });
    }
    let mut made = 0_u64;
    while let Some(sum) = tasks.join_next().await {
        made = made.wrapping_add(sum??);
    }
    let making = began.elapsed();

    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let (sink, writer, count) = (sink.clone(), incarnation.worker(worker)?, shares(worker));
        tasks.spawn(async move { write(&sink, writer, minted, count).await });
    }
    while let Some(share) = tasks.join_next().await {
        chain.report(share??).await?;
    }
    let writing = began.elapsed();
    let counters = stash.counters();
    ensure!(sink.upper().await? == Frontier::at(1), "the batch was accepted");

    let began = Instant::now();
    let delivery = sink.read().await?.next().await?.context("a batch")?;
    let (mut reader, mut read, mut sum) = (delivery.read(), 0, 0_u64);
    while let Some(batch) = reader.next().await? {
        read += batch.num_rows() as u64;
        sum = sum.wrapping_add(checksum(&batch));
    }
    let reading = began.elapsed();
    ensure!(read == rows, "{read} rows of {rows} came back");
    ensure!(sum == made, "other rows came back than were written");
    drop((reader, chain));
    incarnation.close("the bench is done").await?;
    stash.close().await?;

    let mut results = Results::default();
    let rate = |took: Duration| rows as f64 / took.as_secs_f64();
    results.add("rows", rows as f64);
    results.add("workers", f64::from(workers));
    results.add("making_s", making.as_secs_f64());
    results.add("write_s", writing.as_secs_f64());
    results.add("write_rows_per_s", rate(writing));
    results.add("write_mib_per_s", rate(writing) * ROW_BYTES / f64::from(1 << 20));
    results.add("read_s", reading.as_secs_f64());
    results.add("read_rows_per_s", rate(reading));
    results.add("puts", counters.puts as f64);
    results.add("stored_mib", counters.put_bytes as f64 / f64::from(1 << 20));
    results.add("peak_memory_mib", peak_memory().unwrap_or_default() as f64 / f64::from(1 << 20));
    results.print(json);
    Ok(())
}

async fn write(
    sink: &Sink,
    writer: ShareWriter,
    minted: Minted,
    count: u64,
) -> Result<ShareMessage<OwnedParts>> {
    let mut share = writer.share(minted)?;
    for batch in batches(sink, writer.worker().0, count) {
        if let Err(error) = share.push(batch?).await {
            drop(share.fail(error.to_string()));
            return Err(error.into());
        }
    }
    Ok(share.finish().await)
}

/// A number that follows from the rows, whatever their order: each key, times the first letters of its text.
fn checksum(batch: &RecordBatch) -> u64 {
    let (keys, texts) = (batch.column(0).as_primitive::<UInt64Type>(), batch.column(1).as_string::<i32>());
    let letters = |text: &str| text.bytes().take(8).fold(0_u64, |word, byte| (word << 8) | u64::from(byte));
    let rows = keys.values().iter().zip(texts.iter().flatten());
    rows.fold(0, |sum, (key, text)| sum.wrapping_add(key.wrapping_mul(letters(text))))
}

/// The rows of a worker.
fn batches(sink: &Sink, worker: u32, count: u64) -> impl Iterator<Item = Result<RecordBatch>> {
    let mut numbers = Numbers::new(u64::from(worker) + 1);
    (0..count).step_by(ROWS_A_BATCH as usize).map(move |from| {
        let rows = ROWS_A_BATCH.min(count - from) as usize;
        let keys: UInt64Array = (0..rows).map(|_| numbers.draw()).collect::<Vec<_>>().into();
        let mut texts = StringBuilder::with_capacity(rows, rows * 64);
        for _ in 0..rows {
            texts.append_value(text(&mut numbers)?);
        }
        let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(texts.finish())];
        Ok(sink.updates(columns, vec![0; rows], vec![1; rows])?)
    })
}

/// 64 letters of sixteen kinds: they compress to about half, as texts do.
fn text(numbers: &mut Numbers) -> Result<String> {
    let mut bytes = Vec::with_capacity(64);
    for _ in 0..8 {
        let number = numbers.draw();
        bytes.extend((0..8).map(|place| b'a' + ((number >> (place * 8)) & 15) as u8));
    }
    Ok(String::from_utf8(bytes)?)
}
