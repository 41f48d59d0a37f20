//! What a process weighs that writes and reads far more than it may hold (I24). Alone in its process, which is weighed.

use std::process::Command;

use arrow::{
    array::{AsArray, RecordBatch},
    datatypes::{Int64Type, UInt64Type},
};
use stash::{BatchConfig, Frontier, Launch, Sink, StashConfig};
use stash_testkit::peak_memory;
use stash_tests::{Chance, World, in_time, updates};

/// The smallest memory there is.
const MEMORY: u64 = BatchConfig::MEMORY_BYTES_MIN;
/// What is there beside batches, and what the allocator does not give back.
const BESIDE: u64 = 32 << 20;
/// A row: large enough that few make a row group, small enough that many make a batch.
const TEXT_BYTES: usize = 8 << 10;
const ROWS_A_PUSH: u64 = 64;
const PUSHES: u64 = 160;
const WORKERS: u32 = 2;
/// All of it.
const THROUGH: u64 = WORKERS as u64 * PUSHES * ROWS_A_PUSH * TEXT_BYTES as u64;

/// Set in the process that is weighed.
const WEIGHED: &str = "STASH_TEST_WEIGHED";
/// An allocator that keeps what was freed for every thread would be weighed, not Stash: one arena, and what is large goes
/// back at once. Of glibc, which reads them when a process starts.
const FRUGAL: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536")];

#[test]
#[cfg(target_os = "linux")]
fn a_process_weighs_little_more_than_its_memory_however_much_goes_through_it() {
    let itself = std::env::current_exe().expect("this test");
    let name = "writes_and_reads_far_more_than_it_may_hold";
    let weighed = Command::new(itself)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(WEIGHED, "1")
        .envs(FRUGAL)
        .output()
        .expect("it starts");
    let told = String::from_utf8_lossy(&weighed.stdout);
    assert!(weighed.status.success(), "{told}\n{}", String::from_utf8_lossy(&weighed.stderr));
    assert!(told.contains("1 passed"), "{told}");
    print!("{told}");
}

#[expect(clippy::disallowed_methods, reason = "who weighs a process says so in its environment")]
fn is_weighed() -> bool {
    std::env::var_os(WEIGHED).is_some()
}

/// Rows of keys in no order, with texts of noise.
fn rows(sink: &Sink, chance: &mut Chance) -> RecordBatch {
    let text = |chance: &mut Chance| {
        (0..TEXT_BYTES / 16).map(|_| format!("{:016x}", chance.draw())).collect::<String>()
    };
    let rows = (0..ROWS_A_PUSH).map(|_| ((chance.draw(), text(chance)), 0, 1));
    updates(sink, &rows.collect::<Vec<_>>())
}

/// Tells one content from another.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    rows: i64,
    keys: u64,
}

impl Sum {
    fn add(&mut self, batch: &RecordBatch) {
        let keys = batch.column(0).as_primitive::<UInt64Type>();
        self.keys = keys.values().iter().fold(self.keys, |sum, key| sum.wrapping_add(*key));
        let diffs = batch.columns().last().expect("diffs").as_primitive::<Int64Type>();
        self.rows += diffs.values().iter().sum::<i64>();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that weighs it, in a process of its own"]
async fn writes_and_reads_far_more_than_it_may_hold() {
    if !is_weighed() {
        return;
    }
    let batch = BatchConfig { memory_bytes: MEMORY, ..BatchConfig::default() };
    let world = World::files(StashConfig { batch, ..StashConfig::default() }).await;
    let sink = world.sink().await;
    let launch = Launch::single("a", WORKERS).expect("a sound launch");
    let opened = sink.open_incarnation(launch).await.expect("it opens");
    let incarnation = opened.render().expect("there is to write");
    let mut chain = incarnation.chain().expect("the chain is free");
    let weight = || peak_memory().expect("the system says it");
    let before = weight();

    let minted = chain.mint(Frontier::at(1)).expect("it mints").minted().expect("a description");
    let (mut written, mut chance) = (Sum::default(), Chance::new(24));
    let shares = (0..WORKERS).map(|worker| incarnation.worker(worker).expect("local").share(minted));
    let mut shares: Vec<_> = shares.collect::<Result<_, _>>().expect("they open");
    for _ in 0..PUSHES {
        for share in &mut shares {
            let rows = rows(&sink, &mut chance);
            written.add(&rows);
            in_time("pushing", share.push(rows)).await.expect("taken");
        }
    }
    for share in shares {
        chain.report(in_time("finishing", share.finish()).await).await.expect("taken");
    }
    let writing = weight() - before;

    let mut read = Sum::default();
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    let mut reader = delivery.read();
    while let Some(batch) = in_time("reading", reader.next()).await.expect("readable") {
        read.add(&batch);
    }
    let reading = weight() - before;
    drop((reader, delivery));
    assert_eq!(read, written);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;

    println!("{THROUGH} bytes within {MEMORY}: writing weighed {writing}, with reading {reading}");
    const { assert!(THROUGH > 3 * (MEMORY + BESIDE), "what is written would fit") };
    assert!(writing <= MEMORY + BESIDE, "writing {THROUGH} bytes within {MEMORY} weighed {writing}");
    assert!(reading <= MEMORY + BESIDE, "reading {THROUGH} bytes within {MEMORY} weighed {reading}");
}
