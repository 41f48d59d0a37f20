//! A word count that is kept up to date, in a stash.
//!
//! Lines come and go; two workers count their words; the counts are a sink. A consumer in another task is handed the
//! changes batch by batch, keeps the counts, and acknowledges. At the end they are compared with a count from scratch.
//!
//! `cargo run -p stash-timely --example word_count`; with `--stash URL`, in a stash of yours.

use std::{collections::BTreeMap, error::Error};

use differential_dataflow::{input::Input, operators::CountTotal};
use serde::{Deserialize, Serialize};
use stash::{Sink, SinkSpec, StartAt, Stash};
use stash_timely::{Background, Outcome, Place, Replica, Row, columns_row, no_errors, stash_sink};
use timely::worker::Worker;
use tokio::runtime::Runtime;

/// One word of the count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Count {
    word: String,
    count: i64,
}
columns_row!(Count { word: String, count: i64 });

const LINES: [&str; 8] = [
    "a part is written once and read until everyone is done",
    "a batch is trimmed where the chain already stands",
    "whoever drops a batch deletes its parts",
    "a part that nobody owns is found by the sweep",
    "the chain is gapless and the times are real",
    "a replica may die and another one goes on",
    "the sweep deletes nothing that a row references",
    "everyone who has read a batch says so",
];
/// How long a line stays.
const STAYS: u64 = 3;

/// The lines that come (+1) and go (-1) at a time.
fn changes(time: u64) -> impl Iterator<Item = (&'static str, isize)> {
    let line = |time: u64| usize::try_from(time).ok().and_then(|time| LINES.get(time)).copied();
    let comes = line(time).map(|line| (line, 1));
    let goes = time.checked_sub(STAYS).and_then(line).map(|line| (line, -1));
    comes.into_iter().chain(goes)
}

/// When nothing happens any more: two lines are left to stay.
const END: u64 = LINES.len() as u64 + STAYS - 2;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = match std::env::args().skip_while(|argument| argument != "--stash").nth(1) {
        Some(url) => url,
        None => format!("file://{}", folder.path().display()),
    };
    let runtime = Runtime::new()?;
    let stash = runtime.block_on(Stash::open(&url))?;
    let sink = runtime.block_on(stash.declare_sink(SinkSpec::new("counts", Count::schema()?)?.sealing()))?;
    let reader = runtime.spawn(consume(sink.clone()));

    let background = Background::new(runtime.handle().clone(), 2);
    let replica = Replica::new("counter", stash.draw_launch(), Place::alone(2), &background);
    let workers = timely::execute(timely::Config::process(2), move |worker| {
        replica.keep(worker, &sink, |worker, connection| {
            let (lines, token) = worker.dataflow(|scope| {
                let (input, lines) = scope.new_collection::<String, isize>();
                let words = lines.flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
                let counts = words.count_total().map(|(word, count)| Count { word, count: count as i64 });
                stash_sink(counts, no_errors(scope), connection).map(|token| (input, token))
            })?;
            let (first, as_of) = (worker.index() == 0, connection.as_of());
            let (mut lines, mut time) = (Some(lines), 0);
            let feed = move |_: &mut Worker| {
                let Some(input) = &mut lines else { return };
                for (line, diff) in changes(time).filter(|_| first) {
                    // What happened before the as-of is part of what stands there.
                    input.update_at(line.to_owned(), time.max(as_of), diff);
                }
                time += 1;
                input.advance_to(time.max(as_of));
                input.flush();
                if time == END {
                    lines = None;
                }
            };
            Ok((token, feed))
        })
    })?;
    for ended in workers.join() {
        assert_eq!(ended??, Outcome::Complete, "a sealing sink is complete when its input has ended");
    }
    let counts = runtime.block_on(reader)??;

    let mut expected = BTreeMap::new();
    for (line, diff) in (0..END).flat_map(changes) {
        for word in line.split(' ') {
            *expected.entry(word.to_owned()).or_insert(0) += diff as i64;
        }
    }
    expected.retain(|_, count| *count != 0);
    assert_eq!(counts, expected, "as if counted from scratch");
    println!("{} words are counted at the end, as from scratch", counts.len());
    runtime.block_on(stash.close())?;
    Ok(())
}

/// Reads the changes of the counts, prints and applies them, until the chain is complete.
async fn consume(sink: Sink) -> Result<BTreeMap<String, i64>, stash::Error> {
    let mut counts: BTreeMap<(String, i64), i64> = BTreeMap::new();
    let mut changes = sink.subscribe("printer", StartAt::Beginning).await?;
    while let Some(delivery) = changes.next().await? {
        let mut reader = delivery.read();
        let mut shown = Vec::new();
        while let Some(batch) = reader.next().await? {
            let rows = Count::read(&batch.project(&[0, 1]).expect("the row's columns")).expect("counts");
            let diffs =
                batch.column(3).as_any().downcast_ref::<stash::arrow::array::Int64Array>().expect("diffs");
            for (Count { word, count }, diff) in rows.into_iter().zip(diffs.values()) {
                shown.push(format!("{diff:+} {word}={count}"));
                *counts.entry((word, count)).or_insert(0) += diff;
            }
        }
        println!(
            "{}: {}",
            delivery.piece(),
            if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
        );
        changes.acknowledge(delivery.upper()).await?;
    }
    counts.retain(|_, multiplicity| *multiplicity != 0);
    assert!(counts.values().all(|multiplicity| *multiplicity == 1), "each word has one count: {counts:?}");
    Ok(counts.into_keys().collect())
}
