//! `read`: what is acknowledged was delivered, and nothing else.

use std::{
    fs::File,
    io::{BufRead, Read},
    process::Stdio,
};

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
    let again = world.run("read s --consumer me");
    assert_eq!((again.out.as_str(), again.err.as_str()), ("", "nothing new: me has read up to 30\n"));
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

#[test]
fn a_reader_who_holds_nothing_and_is_overtaken_is_told_the_gap() {
    let world = World::new();
    world.changes("first.csv", 0..2);
    world.changes("second.csv", 2..4);
    world.load("first.csv", "s", "").ok();
    world.run("read s --consumer fast -o fast.csv").ok();
    world.load("second.csv", "s", "--resume --batch-every 1").ok();
    // A pipe that nobody empties holds the reader back where its first batch is larger than the pipe.
    let rows: String = (0..9000).map(|id| format!("{id},row {id},4,1\n")).collect();
    world.write("large.csv", &format!("id,name,t,d\n{rows}"));
    world.load("large.csv", "s", "--resume --workers 1").ok();
    world.write("last.csv", "id,name,t,d\n1,a,5,1\n1,b,6,1\n");
    let mut slow = world.spawn("read s --start earliest --follow");
    let first = slow.until_progress();
    world.load("last.csv", "s", "--resume --batch-every 1").ok();
    world.run("read s --consumer fast -o rest.csv").ok();
    // Its output is emptied first: it writes on before it finds out.
    let mut rest = String::new();
    slow.out.take().expect("open").read_to_string(&mut rest).expect("readable");
    let ran = slow.end();
    assert!(first.contains("_progress"), "{first}");
    let wanted = [
        "sink s: overtaken at ",
        "everything below 7 was acknowledged",
        ", 7); read as a consumer",
        "the output",
    ];
    let error = ran.fails(1, &wanted);
    assert!(!error.contains("sink k"), "{error}");
}

#[test]
fn a_read_that_fails_says_how_far_it_acknowledged_and_what_is_good() {
    let world = World::new();
    let rows = |time: u64| (0..9000).map(|id| format!("{id},row {id},{time},1\n")).collect::<String>();
    world.write("changes.csv", &format!("id,name,t,d\n{}{}", rows(0), rows(1)));
    world.load("changes.csv", "s", "--workers 1").ok();
    let parts = world.run("parts s --json").json();
    let lost = parts[1]["key"].as_str().expect("a key").to_owned();
    std::fs::remove_file(world.path("stash/blobs").join(&lost)).expect("removed");
    world.run("read s --consumer me -o out.ndjson").fails(
        1,
        &[
            "sink s stopped; consumer me acknowledged everything below 1",
            "out.ndjson is partial, and good up to its last _progress, 1",
            &lost,
            "missing in the store",
        ],
    );
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(1))]);
    let out = world.text("out.ndjson");
    assert!(out.ends_with("{\"_progress\": 1}\n"), "nothing follows it here");
}

#[test]
fn an_output_is_refused_where_its_name_tells_no_format_and_devices_are_written_in_place() {
    let world = world();
    world
        .run("read s --consumer me -o out.ndjson.gz")
        .fails(2, &["out.ndjson.gz", "--format csv, ndjson or parquet"]);
    assert!(!world.path("out.ndjson.gz").exists());
    world.run("read s --consumer me -o /dev/null").ok();
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(30))]);
    world.run("read s --sink s").fails(2, &["--sink"]);
    world.run("read").fails(2, &["SINK"]);
}
