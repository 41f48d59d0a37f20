//! `read`: what is acknowledged was delivered, and nothing else.

use std::{fs::File, io::BufRead, process::Stdio};

use serde_json::json;

use crate::world::{World, finish, sums_of};

/// A sink `s` with parts and inline runs, times 0 to 30.
fn world() -> World {
    let world = World::new();
    let mut text = String::from("id,name,t,d\n");
    (0..9000).for_each(|id| text += &format!("{id},row {id},0,1\n"));
    (1..30).for_each(|time| text += &format!("{time},x,{time},-1\n"));
    world.write("changes.csv", &text);
    world.load("changes.csv", "s", "--batch-every 10 --workers 1").ok();
    assert_eq!(world.blobs().len(), 1);
    world
}

#[test]
fn without_a_consumer_nothing_is_acknowledged_and_nobody_registered() {
    let world = world();
    let before = world.chain("s");
    assert_eq!(world.sums("s").len(), 9029);
    assert_eq!(world.chain("s"), before);
    assert_eq!(world.acknowledged("s"), []);
    world.at_rest();
}

#[test]
fn what_a_consumer_printed_is_acknowledged_and_deleted() {
    let world = world();
    let first = world.run("read --sink s --consumer me --limit-batches 1").ok();
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(1))]);
    assert_eq!(world.blobs(), Vec::<String>::new(), "the part was read by all");
    let rest = world.run("read --sink s --consumer me").ok();
    assert_eq!(sums_of(&(first + &rest)).len(), 9029);
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(30))]);
    assert_eq!(world.run("read --sink s --consumer me").ok(), "", "all was read");
    world.at_rest();

    // What is gone is said, never read as empty.
    world.run("read --sink s").fails(1, &["sink s", "--start earliest", "acknowledged"]);
    world.run("read --sink s --consumer other").fails(1, &["sink s", "--start earliest"]);
    world.run("read --sink s --consumer other --start earliest").ok();
    world.run("read --sink s --from 12").fails(1, &["acknowledged"]);
    world.run("read --sink s --from 99").fails(1, &["nothing was accepted at or above 30"]);
}

#[test]
fn at_rest_after_all_is_read_the_store_holds_only_its_mark() {
    let world = world();
    world.run("read --sink s --consumer me").ok();
    assert_eq!(world.blobs(), Vec::<String>::new());
    assert!(world.path("stash/blobs/stash.json").is_file());
}

#[test]
fn a_pipe_that_closes_early_acknowledges_nothing() {
    let world = world();
    let mut running = world.spawn("read --sink s --consumer me");
    // The snapshot is far larger than a pipe holds, so that it cannot have been flushed.
    let mut line = String::new();
    running.out.as_mut().expect("open").read_line(&mut line).expect("readable");
    let ran = running.close_and_end();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "it ends quietly");
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(0))]);
    assert_eq!(sums_of(&world.run("read --sink s --consumer me").ok()).len(), 9029, "delivered again");
}

#[test]
fn a_full_disk_is_said_and_acknowledges_nothing() {
    let world = world();
    for format in ["ndjson", "csv", "parquet"] {
        let mut command = world.command(&format!("read --sink s --consumer me --format {format}"));
        command.stdout(Stdio::from(File::options().write(true).open("/dev/full").expect("a full disk")));
        let child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let output = child.wait_with_output().expect("it ends");
        let err = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("stdout cannot be written") && err.contains("No space left"), "{format}: {err}");
        assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(0))], "{format}");
    }
    world.at_rest();
}

#[test]
fn an_output_file_is_never_replaced_and_parquet_is_whole_or_absent() {
    let world = world();
    for name in ["out.ndjson", "out.csv", "out.parquet"] {
        world.write(name, "precious");
        world
            .run(&format!("read --sink s --consumer me --output {name}"))
            .fails(1, &[name, "is there already"]);
        assert_eq!(world.text(name), "precious");
    }
    let report = world.run("read --sink s --consumer me -o all.parquet --json").json().remove(0);
    assert_eq!((&report["updates"], &report["acknowledged"]), (&json!(9029), &json!(true)));
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(30))]);
    world.run("load all.parquet --sink again --time-column _time --diff-column _diff --sort").ok();
    assert_eq!(world.sums("again").len(), 9029);
    assert!(!world.path("all.parquet.partial").exists());
    world.run("read --sink s -o /nowhere/at/all.csv").fails(1, &["/nowhere/at/all.csv", "cannot be created"]);
}

#[test]
fn follow_waits_for_what_comes_and_ends_when_the_sink_is_complete() {
    let world = World::new();
    world.changes("first.csv", 0..2);
    world.changes("second.csv", 2..4);
    world.load("first.csv", "s", "").ok();
    let mut running = world.spawn("read --sink s --follow --consumer me");
    let mut text = running.until_progress() + &running.until_progress();
    assert!(text.ends_with("{\"_progress\": 2}\n"), "{text}");
    world.load("second.csv", "s", "--resume").ok();
    text += &running.until_progress();
    assert!(text.ends_with("{\"_progress\": 4}\n"), "{text}");
    world.write("end.csv", "id,name,t,d\n");
    world.load("end.csv", "s", "--resume --complete --schema id:int64?,name:utf8?").ok();
    let ran = running.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    text += &ran.out;
    assert!(text.ends_with("{\"_progress\": \"end\"}\n"), "{text}");
    sums_of(&text);
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!("end"))]);
}

#[test]
fn a_newer_session_of_a_consumer_takes_over() {
    let world = World::new();
    world.changes("first.csv", 0..2);
    world.changes("second.csv", 2..4);
    world.load("first.csv", "s", "").ok();
    let mut older = world.spawn("read --sink s --follow --consumer me");
    older.until_progress();
    older.until_progress();
    world.run("read --sink s --consumer me").ok();
    world.load("second.csv", "s", "--resume").ok();
    older.end().fails(1, &["consumer me", "replaced by a newer one"]);
}

#[test]
fn reading_can_begin_and_end_anywhere() {
    let world = world();
    let times = |words: &str| {
        let sums = sums_of(&world.run(words).ok());
        (sums.keys().map(|(_, time)| *time).min(), sums.keys().map(|(_, time)| *time).max())
    };
    assert_eq!(times("read --sink s --from 12"), (Some(12), Some(29)));
    assert_eq!(times("read --sink s --limit-batches 2"), (Some(0), Some(10)));
    assert_eq!(times("read --sink s --start now"), (None, None));
    let csv = world.run("read --sink s --from 28 --format csv").ok();
    assert_eq!(csv, "id,name,_time,_diff,_progress\n28,x,28,-1,\n29,x,29,-1,\n,,,,30\n");
    world.run("read --sink s --from 12 --consumer me").fails(2, &["--from", "--consumer"]);
    finish(world.command("read --sink none")).fails(1, &["no sink none"]);
}
