//! Metrics at an address, health without one, and what requests cost.

use std::{
    io::{BufRead, Read, Write},
    net::{TcpListener, TcpStream},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::world::{Running, World};

/// A port that was free a moment ago.
fn free() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has one").port()
}

/// What stands at the address that a command says it tells its metrics at.
fn scrape(running: &mut Running) -> String {
    let mut line = String::new();
    running.err.read_line(&mut line).expect("readable");
    let address = line.trim().strip_prefix("metrics: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("no address: {line}"));
    let mut answer = String::new();
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    stream.read_to_string(&mut answer).expect("readable");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The value of the one line that begins so.
fn value(metrics: &str, series: &str) -> f64 {
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
    let value = lines.next().unwrap_or_else(|| panic!("{series} is not in {metrics}"));
    assert_eq!(lines.next(), None, "{series} stands twice");
    value.trim().parse().expect("a number")
}

#[test]
fn a_reader_that_follows_tells_what_it_read() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..5);
    world.load("changes.csv", "s", "--batch-every 1").ok();
    let mut running =
        world.spawn(&format!("read s --follow --consumer me --metrics-listen 127.0.0.1:{}", free()));
    for _ in 0..5 {
        running.until_progress();
    }
    let metrics = scrape(&mut running);
    assert!(value(&metrics, "stash_deliveries_total{sink=\"s\"}") >= 5.0);
    assert!(
        value(&metrics, "stash_read_updates_total{sink=\"s\"}")
            >= f64::from(u32::try_from(sums.len()).expect("few"))
    );
    assert!(metrics.contains("# HELP stash_deliveries_total Batches handed to readers"), "{metrics}");
    assert!(
        metrics.contains("stash_catalog_request_duration_seconds_bucket{statement=\"chain\",le="),
        "{metrics}"
    );
    for secret in [world.url(), world.path("stash").display().to_string(), "row 10".to_owned()] {
        assert!(!metrics.contains(&secret), "{secret} is in {metrics}");
    }
    kill_process(Pid::from_child(&running.child), Signal::INT).expect("sent");
    running.end();
    world.at_rest();
}

#[test]
fn a_port_that_is_taken_is_refused_before_anything_is_done() {
    let world = World::new();
    world.changes("changes.csv", 0..3);
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = held.local_addr().expect("it has one");
    world
        .load("changes.csv", "s", &format!("--metrics-listen {address}"))
        .fails(1, &[&address.to_string(), "--metrics-listen", "name another"]);
    assert!(!world.path("stash").exists(), "nothing was created");
    let below = address.port().checked_sub(2).expect("ports are large");
    world
        .run(&format!("demo --scale 0.01 --metrics-listen 127.0.0.1:{below}"))
        .fails(1, &[&address.to_string(), "name another"]);
}

#[test]
fn health_tells_how_far_a_consumer_is_behind_until_it_has_read() {
    let world = World::new();
    world.changes("changes.csv", 0..4);
    world.load("changes.csv", "s", "--batch-every 1 --absent-hold 1h").ok();
    world.run("read s --consumer me --limit-batches 1").ok();
    let rows = world.run("health --json").json();
    let (sink, queue) = (&rows[0], &rows[1]);
    assert_eq!(
        (&sink["sink"], &sink["status"], &sink["incarnations_open"]),
        (&"s".into(), &"open".into(), &0.into())
    );
    let me = &sink["consumers"][0];
    assert_eq!((&me["behind_batches"], &me["behind_times"]), (&3.into(), &3.into()), "{sink}");
    assert!(me["headroom_ms"].as_u64().is_some_and(|left| left > 3_500_000 && left <= 3_600_000), "{me}");
    assert_eq!(queue["queue_keys"], 0);
    let text = world.run("health s").ok();
    assert!(text.contains("me") && text.contains("0 keys to delete"), "{text}");
    world.run("read s --consumer me").ok();
    assert_eq!(world.run("health s --json").json()[0]["consumers"][0]["behind_batches"], 0);
    world.run("health nothing").fails(1, &["no sink nothing"]);
    world.at_rest();
}

#[test]
fn a_load_says_what_its_requests_would_cost_at_the_prices_given() {
    let world = World::new();
    world.changes("changes.csv", 0..3);
    let loaded = world.load("changes.csv", "s", "--json --price put=1000,get=0").json().remove(0);
    let (puts, lists) = (&loaded["requests"]["puts"], &loaded["requests"]["lists"]);
    let paid = puts.as_f64().expect("a number") + lists.as_f64().expect("a number");
    assert!(paid >= 1.0, "{loaded}");
    assert_eq!(loaded["cost"].as_f64(), Some(paid), "{loaded}");
    let text = world.load("changes.csv", "other", "").ok();
    assert!(text.contains("requests") && text.contains("about $"), "{text}");
    world.load("changes.csv", "third", "--price put=cheap").fails(2, &["put=cheap", "no number"]);
    world.at_rest();
}
