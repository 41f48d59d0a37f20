//! Loads that die, are interrupted, or are overtaken: what was accepted stands, and the rest comes later.

use std::io::{BufRead, Read};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::world::{Running, World, load_words, sums_of};

/// More batches than are accepted while a test looks.
const TIMES: u64 = 500;

fn begun(world: &World, more: &str) -> Running {
    let mut running = world.spawn(&load_words("changes.csv", "s", &format!("--batch-every 1 -v {more}")));
    running.until_accepted(3);
    running
}

fn upper(world: &World) -> u64 {
    let upper = world.upper("s").as_u64().expect("not complete");
    assert!((3..TIMES).contains(&upper), "{upper}");
    upper
}

#[test]
fn a_killed_load_goes_on_with_resume_and_what_was_accepted_stays() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let mut running = begun(&world, "");
    running.child.kill().expect("killed");
    drop(running);

    let upper = upper(&world);
    let before = world.chain("s")["batches"].clone();
    let accepted = sums.iter().filter(|((_, time), _)| *time < upper);
    assert_eq!(world.sums("s"), accepted.map(|(update, diff)| (update.clone(), *diff)).collect());
    world.load("changes.csv", "s", "").fails(1, &["--resume", &format!("below {upper}")]);

    let summary = world.load("changes.csv", "s", "--resume --json").json().remove(0);
    assert_eq!(summary["upper"], TIMES);
    assert!(summary["refused_below_upper"].as_u64().is_some_and(|refused| refused >= upper * 3), "{summary}");
    let after = world.chain("s")["batches"].clone();
    let kept = before.as_array().expect("a list");
    assert_eq!(after.as_array().expect("a list").get(..kept.len()), Some(&kept[..]));
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn an_interrupted_load_closes_cleanly_and_goes_on_later() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let running = begun(&world, "");
    let pid = Pid::from_child(&running.child);
    kill_process(pid, Signal::INT).expect("sent");
    running.end().fails(130, &["interrupted", "--resume"]);
    upper(&world);
    let chain = world.chain("s");
    assert_eq!(chain["incarnations"][0]["open"], false, "{chain}");
    world.at_rest();
    world.load("changes.csv", "s", "--resume").ok();
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn a_second_load_of_the_same_name_overtakes_the_first() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let first = begun(&world, "");
    world.load("changes.csv", "s", "--resume").ok();
    first.end().fails(1, &["sink s", "replica load", "--resume", "--replica"]);
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn loads_of_two_names_write_beside_one_another() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let first = begun(&world, "");
    world.load("changes.csv", "s", "--resume --replica other --batch-every 7").ok();
    let ran = first.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

/// Sends a signal, and waits until the process says that it heard it.
fn signal_heard(running: &mut Running, signal: Signal) {
    kill_process(Pid::from_child(&running.child), signal).expect("sent");
    let heard = running.until_said("interrupted");
    assert!(heard.starts_with("interrupted: ending cleanly"), "{heard}");
}

#[test]
fn an_interrupted_read_says_that_it_is_not_whole_and_where_to_go_on() {
    let world = World::new();
    // The first batch is larger than a pipe, so that the signal comes while it is printed.
    let rows: String = (0..9000).map(|id| format!("{id},row {id},0,1\n")).collect();
    world.write("changes.csv", &format!("id,name,t,d\n{rows}1,x,1,1\n1,y,2,1\n"));
    world.load("changes.csv", "s", "--workers 1 --batch-every 1").ok();
    let cut = |words: &str, wanted: &[&str]| {
        let mut running = world.spawn(words);
        let mut out = String::new();
        running.out.as_mut().expect("open").read_line(&mut out).expect("readable");
        signal_heard(&mut running, Signal::TERM);
        running.out.as_mut().expect("open").read_to_string(&mut out).expect("readable");
        running.end().fails(130, wanted);
        assert!(out.ends_with("{\"_progress\": 1}\n"), "{out}");
        sums_of(&out)
    };
    assert_eq!(cut("read s", &["sink s is printed up to 1", "--from 1 goes on"]).len(), 9000);
    let wanted = ["consumer me acknowledged what was printed, up to 1, and goes on there"];
    assert_eq!(cut("read s --consumer me", &wanted).len(), 9000);
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(1))]);
    assert_eq!(sums_of(&world.run("read s --consumer me").ok()).len(), 2, "it goes on there");
}

#[test]
fn a_parquet_file_that_was_interrupted_keeps_its_partial_name_unless_it_was_acknowledged() {
    for consumer in [false, true] {
        let world = World::new();
        world.changes("changes.csv", 0..2);
        world.load("changes.csv", "s", "").ok();
        let words = format!("read s --follow -o out.parquet{}", if consumer { " --consumer me" } else { "" });
        let mut running = world.spawn(&format!("{words} -vv"));
        running.until_said("piece=[1, 2)");
        signal_heard(&mut running, Signal::INT);
        let said = running.end().fails(130, &["interrupted: "]);
        let (there, absent, acknowledged) = match consumer {
            true => ("out.parquet", "out.parquet.partial", vec![("me".to_owned(), json!(2))]),
            false => ("out.parquet.partial", "out.parquet", vec![]),
        };
        assert!(said.contains(&format!("{there} holds 2 batches, up to 2, and is not whole")), "{said}");
        assert_eq!(said.contains("keep it"), consumer, "{said}");
        assert!(world.path(there).exists() && !world.path(absent).exists(), "{said}");
        assert_eq!(world.acknowledged("s"), acknowledged, "{said}");
        let roles = "--sink copy --time-column _time --diff-column _diff --sort --format parquet";
        world.run(&format!("load {there} {roles}")).ok();
        assert_eq!(world.sums("copy").len(), 5, "it can be read");
        if !consumer {
            world.run(&words).fails(1, &["out.parquet.partial is left of a read", "remove it"]);
        }
    }
}

#[test]
fn an_interrupted_follower_ends_between_two_batches() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.load("changes.csv", "s", "").ok();
    for more in ["", " --consumer me"] {
        let mut text = world.spawn(&format!("read --sink s --follow{more}"));
        text.until_progress();
        text.until_progress();
        signal_heard(&mut text, Signal::TERM);
        let ran = text.end();
        assert_eq!(ran.out, "", "{}", ran.err);
        ran.fails(130, &["up to 2"]);
    }
    assert_eq!(world.acknowledged("s"), [("me".to_owned(), json!(2))]);
    let mut file = world.spawn("read s --start earliest --follow -o out.ndjson");
    while !world.path("out.ndjson").exists() {
        std::thread::yield_now();
    }
    signal_heard(&mut file, Signal::TERM);
    file.end().fails(130, &["nothing was read"]);
    assert!(!world.path("out.ndjson").exists());
}
