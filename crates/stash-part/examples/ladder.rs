//! Rows per second of each step on two million updates (u64 key, 64 bytes of text), for profiling.
//!
//! `cargo run --release -p stash-part --example ladder [rows]`. Best of three; one thread.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, StringBuilder, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use stash_part::{
    EncodeOptions, EncodedPart, OutputLimits, PartEncoder, PartLayout, PartMeta, RowSchema, Sorted, Updates,
    consolidate, merge_chunks, tail_range,
};
use stash_types::{Description, Frontier, SinkId};

const SHARE_ROWS: usize = 65_536;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let rows = match std::env::args().nth(1) {
        Some(rows) => rows.parse()?,
        None => 2_000_000,
    };
    let schema = RowSchema::new(Arc::new(Schema::new(vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("text", DataType::Utf8, false),
    ])))?;
    let unsorted = updates(&schema, rows)?;
    let logical = unsorted.memory_bytes();
    let report = Report { rows, logical };

    let whole = report.best("consolidate, one batch", || Ok(consolidate(unsorted.clone())?))?;
    let shares: Vec<Updates> =
        (0..rows).step_by(SHARE_ROWS).map(|from| unsorted.slice(from, SHARE_ROWS)).collect();
    let sorted = report.best("consolidate, shares of 65,536", || {
        shares.iter().map(|share| Ok(consolidate(share.clone())?)).collect::<Outcome<Vec<Sorted>>>()
    })?;
    for runs in [1, 2, 4, 16] {
        let runs = split(&schema, &sorted, runs)?;
        let name = format!("merge, {} runs", runs.len());
        let merged = report.best(&name, || {
            let batches = merge_chunks(&schema, runs.clone(), OutputLimits::default());
            batches.map(|batch| Ok(batch?.num_rows())).sum::<Outcome<usize>>()
        })?;
        assert_eq!(merged, whole.num_rows());
    }
    let part = report.best("encode", || encode(&schema, &whole))?;
    println!("  {} rows in {} bytes, {} row group chunks", whole.num_rows(), part.len, part.chunks.len());
    let descriptor = part.descriptor(0, 0);
    let object = Bytes::from(part.chunks.concat());
    let read = report.best("decode", || {
        let cut = |range: std::ops::Range<u64>| object.slice(range.start as usize..range.end as usize);
        let layout = PartLayout::parse(&schema, &descriptor, cut(tail_range(&descriptor)))?;
        let mut rows = 0;
        for (i, span) in layout.row_groups().iter().enumerate() {
            let bytes = cut(span.range.clone());
            rows += layout.decode_row_group(i, bytes, Frontier::MIN, Frontier::EMPTY)?.num_rows();
        }
        Ok(rows)
    })?;
    assert_eq!(read, whole.num_rows());
    Ok(())
}

struct Report {
    rows: usize,
    logical: usize,
}

impl Report {
    fn best<T>(&self, name: &str, mut f: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        let mut best: Option<(f64, T)> = None;
        for _ in 0..3 {
            let start = Instant::now();
            let value = f()?;
            let secs = start.elapsed().as_secs_f64();
            if best.as_ref().is_none_or(|(least, _)| secs < *least) {
                best = Some((secs, value));
            }
        }
        let (secs, value) = best.ok_or("nothing ran")?;
        let (rows, bytes) = (self.rows as f64 / secs / 1e6, self.logical as f64 / secs / 1e6);
        println!("{name:<32} {secs:>7.3} s {rows:>7.2} M rows/s {bytes:>7.0} MB/s");
        Ok(value)
    }
}

/// Keys meet about four times each; times rise as they do in a dataflow.
fn updates(schema: &RowSchema, rows: usize) -> Outcome<Updates> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    };
    let keys: Vec<u64> = (0..rows).map(|_| (random() >> 20) % (rows as u64 / 4 + 1)).collect();
    let keys: Vec<u64> = keys.into_iter().map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).collect();
    let mut texts = StringBuilder::with_capacity(rows, rows * 64);
    for (row, key) in keys.iter().enumerate() {
        let version = row * 64 / rows;
        texts.append_value(format!(
            "order={key:016x} version={version:04} city=amsterdam state=shipped {:.>9}",
            ""
        ));
    }
    let times = UInt64Array::from_iter_values((0..rows).map(|row| (row * 256 / rows) as u64));
    let diffs = Int64Array::from_iter_values((0..rows).map(|_| if random() % 5 < 2 { -1 } else { 1 }));
    let columns = vec![Arc::new(UInt64Array::from(keys)) as _, Arc::new(texts.finish()) as _];
    Ok(Updates::from_columns(schema, columns, times, diffs)?)
}

/// The shares as `runs` sorted runs of many chunks each.
fn split(schema: &RowSchema, shares: &[Sorted], runs: usize) -> Outcome<Vec<Vec<Sorted>>> {
    let per = shares.len().div_ceil(runs);
    let merge = |shares: &[Sorted]| {
        let shares = shares.iter().map(|share| vec![share.clone()]).collect();
        merge_chunks(schema, shares, OutputLimits { rows: SHARE_ROWS, ..OutputLimits::default() })
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(shares.chunks(per).map(merge).collect::<Result<_, _>>()?)
}

fn encode(schema: &RowSchema, run: &Sorted) -> Outcome<EncodedPart> {
    let description = Description::new(Frontier::MIN, Frontier::EMPTY).ok_or("an empty description")?;
    let sink: SinkId = "k00000000-0000-0000-0000-000000000001".parse()?;
    let meta = PartMeta { sink, description, group: 0, run: 0, ordinal: 0 };
    let mut encoder = PartEncoder::new(schema, meta, EncodeOptions::default())?;
    for from in (0..run.num_rows()).step_by(SHARE_ROWS) {
        encoder.write(&run.slice(from, SHARE_ROWS))?;
    }
    Ok(encoder.finish()?)
}
