//! Commands that look, and the two that change only with `--commit`.

use std::fs;

use serde_json::{Value, json};

use crate::world::{World, finish};

/// A sink `s` with one part of 9,000 rows at time 0 and an inline run at time 1.
fn world() -> World {
    let world = World::new();
    let rows: String = (0..9000).map(|id| format!("{id},row {id},0,1\n")).collect();
    world.write("changes.csv", &format!("id,name,t,d\n{rows}1,x,1,1\n"));
    // One worker, so that nothing of a batch travels beside its part.
    world.load("changes.csv", "s", "--workers 1").ok();
    world
}

fn key(world: &World) -> String {
    let blobs = world.blobs();
    assert_eq!(blobs.len(), 1, "{blobs:?}");
    blobs.into_iter().next().expect("one")
}

#[test]
fn looking_creates_nothing() {
    let world = World::new();
    for words in [
        "sinks",
        "chain s",
        "verify",
        "audit",
        "sweep --plan a.plan",
        "read --sink s",
        "drop s --commit",
        "consumers s",
        "history s",
    ] {
        world.run(words).fails(1, &["no stash at", "catalog.sqlite"]);
        assert!(!world.path("stash").exists(), "{words}");
    }
}

#[test]
fn every_command_prints_json_that_parses() {
    let world = world();
    world.run("read --sink s --consumer me --limit-batches 1 --output first.csv").ok();
    world.write("more.csv", "id,name,t,d\n1,y,2,1\n");
    let key = "s00000000-0000-0000-0000-000000000001/i00000000-0000-0000-0000-000000000002/\
               0000000000000000-0000000000000001-0-0.parquet";
    for words in [
        "load more.csv --sink s --time-column t --diff-column d --resume",
        "sinks",
        "sinks --dropped",
        "chain s",
        "parts s",
        "read --sink s --start earliest",
        "read --sink s --start earliest --output second.csv",
        "verify",
        "verify s",
        "audit",
        "audit s",
        "sweep --plan a.plan",
        "sweep --plan a.plan --commit",
        "salvage --blobs stash",
        "consumers s",
        "consumers s --forget me",
        "history s",
        "drop s",
        "drop s --commit",
    ] {
        let documents = world.run(&format!("{words} --json")).json();
        assert!(documents.iter().all(Value::is_object), "{words}");
        assert!(!documents.is_empty() || words == "parts s", "{words}");
    }
    for (words, code, kind) in [
        ("chain s".to_owned(), 1, "fix_call"),
        ("chain a/b".to_owned(), 2, "usage"),
        (format!("explain {key}"), 1, "fix_call"),
        ("load none.csv --sink s --time-column t".to_owned(), 1, "input"),
        ("frob".to_owned(), 2, "usage"),
    ] {
        let ran = world.run(&format!("{words} --json"));
        assert_eq!(ran.code, code, "{words}: {}", ran.err);
        let error: Value = serde_json::from_str(ran.err.trim_end()).expect("one JSON object");
        assert_eq!(error["kind"], kind, "{words}: {error}");
        assert!(error["error"].as_str().is_some_and(|text| !text.is_empty()), "{words}: {error}");
    }
}

#[test]
fn a_stash_whose_updates_all_lie_in_the_catalog_is_walked_to_its_end() {
    let world = World::new();
    world.changes("changes.csv", 0..3);
    world.load("changes.csv", "s", "").ok();
    assert_eq!(world.blobs(), Vec::<String>::new());
    for words in ["verify", "audit"] {
        world.run(words).ok();
    }
}

#[test]
fn chain_and_parts_tell_what_is_there() {
    let world = world();
    let chain = world.chain("s");
    assert_eq!((&chain["as_of"], &chain["upper"], &chain["seals"]), (&json!(0), &json!(2), &json!(true)));
    let batch = |index: usize, field: &str| chain["batches"][index][field].clone();
    assert_eq!(
        (batch(0, "updates"), batch(0, "parts"), batch(0, "inline_runs")),
        (json!(9000), json!(1), json!(0))
    );
    assert_eq!(
        (batch(1, "updates"), batch(1, "parts"), batch(1, "inline_runs")),
        (json!(1), json!(0), json!(1))
    );
    assert_eq!(chain["incarnations"][0]["replica"], "load");
    assert_eq!(chain["incarnations"][0]["open"], false);
    let text = world.run("chain s").ok();
    for wanted in ["[0, 1)", "[1, 2)", "9,000", "load", "closed: the load is done", "2: every time below"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let parts = world.run("parts s --json").json();
    assert_eq!(parts[0]["key"], key(&world));
    assert!(world.run("parts s").ok().contains(&key(&world)));
    let sinks = world.run("sinks").ok();
    assert!(sinks.contains("open") && sinks.contains('s'), "{sinks}");
    let history = world.run("history s --json").json();
    let events: Vec<&str> = history.iter().filter_map(|row| row["event"].as_str()).collect();
    assert_eq!(events, ["declared", "opened", "accepted", "accepted", "closed"]);
}

#[test]
fn cat_prints_a_part_and_believes_no_byte_of_a_damaged_one() {
    let world = world();
    let key = key(&world);
    let path = world.path("stash/blobs").join(&key);
    for name in [key.clone(), path.display().to_string()] {
        let rows = world.run(&format!("cat {name}")).json();
        assert_eq!(rows.len(), 9000);
        assert_eq!(rows[1], json!({ "id": 1, "name": "row 1", "_time": 0, "_diff": 1 }));
    }
    let csv = world.run(&format!("cat {key} --format csv")).ok();
    assert!(csv.starts_with("id,name,_time,_diff"), "{}", csv.lines().next().unwrap_or_default());
    flip(&path);
    let ran = world.run(&format!("cat {key}"));
    assert_eq!(ran.out, "", "no row of it was printed");
    ran.fails(1, &[&key]);
}

#[test]
fn explain_and_cat_tell_what_became_of_a_key() {
    let world = world();
    let key = key(&world);
    let text = world.run(&format!("explain {key}")).ok();
    for wanted in
        ["sink", "s (k", "[0, 1)", "replica load", "batch 1 of the chain references it", "in the store"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    world.run("read --sink s --consumer me").ok();
    let text = world.run(&format!("explain {key}")).ok();
    assert!(text.contains("not in the store") && text.contains("gone from the store"), "{text}");
    let told = world.run(&format!("explain {key} --json")).json().remove(0);
    assert_eq!(
        (&told["sink"], &told["store_bytes"], &told["fate"]),
        (&json!("s"), &Value::Null, &json!("gone"))
    );
    assert!(!told["history"].as_array().expect("a list").is_empty(), "{told}");
    world.run(&format!("cat {key}")).fails(1, &[&key, "sink s", "not referenced", "gone from the store"]);

    let foreign = key.replace(&key[..10], "s00000000-");
    world.run(&format!("explain {foreign}")).fails(1, &["another stash"]);
    world.run("explain notes.txt").fails(1, &["notes.txt", "is not a part key"]);
}

fn flip(path: &std::path::Path) {
    let mut bytes = fs::read(path).expect("readable");
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1;
    }
    fs::remove_file(path).expect("removed");
    fs::write(path, bytes).expect("written");
}

#[test]
fn verify_passes_a_whole_stash_and_reads_every_byte_of_it() {
    let world = world();
    let reports = world.run("verify --json").json();
    let len = fs::metadata(world.path("stash/blobs").join(key(&world))).expect("there").len();
    assert_eq!(
        (&reports[0]["sink"], &reports[0]["parts"], &reports[0]["bytes"]),
        (&json!("s"), &json!(1), &json!(len))
    );
    let text = world.run("verify s").ok();
    assert!(text.contains("2 batches, 1 part read") && text.contains("whole"), "{text}");
}

#[test]
fn verify_finds_a_flipped_byte() {
    let world = world();
    flip(&world.path("stash/blobs").join(key(&world)));
    violated(&world, "I22", &key(&world));
    world.run("read --sink s").fails(1, &[&key(&world), "does not hold what was written"]);
}

#[test]
fn verify_finds_a_deleted_blob() {
    let world = world();
    let key = key(&world);
    fs::remove_file(world.path("stash/blobs").join(&key)).expect("removed");
    violated(&world, "I15", &key);
    let told = world.run("verify s").out;
    assert!(told.contains("the store does not have it: it was deleted from outside"), "{told}");
    let ran = world.run(&format!("explain {key}"));
    assert!(ran.code == 1 && ran.out.contains("ALARM: batch 1 of sink s"), "{}", ran.out);
    let never = key.replace("-0-0.parquet", "-0-9.parquet");
    assert!(world.run(&format!("explain {never}")).ok().contains("no such object was ever recorded"));
    world.run("read --sink s").fails(1, &[&key, "missing in the store"]);
}

#[test]
fn verify_finds_what_nobody_owns() {
    let world = world();
    let key = key(&world);
    let copy = key.replace("-0-0.parquet", "-0-77.parquet");
    let blobs = world.path("stash/blobs");
    fs::copy(blobs.join(&key), blobs.join(&copy)).expect("copied");
    violated(&world, "I17", &copy);
    fs::remove_file(blobs.join(&copy)).expect("removed");
    let shard = key.split('/').next().expect("a folder");
    fs::write(blobs.join(shard).join("notes.txt"), "hello").expect("written");
    violated(&world, "I17", "notes.txt");
    fs::remove_file(blobs.join(shard).join("notes.txt")).expect("removed");

    // Beside the sinks only the verification of the whole prefix looks.
    fs::write(blobs.join("stray.bin"), "hello").expect("written");
    world.run("verify s").ok();
    let ran = world.run("verify");
    assert!(ran.out.contains("I17") && ran.out.contains("stray.bin"), "{}", ran.out);
    assert_eq!(ran.code, 1);
    fs::remove_file(blobs.join("stray.bin")).expect("removed");
    world.at_rest();
}

fn violated(world: &World, invariant: &str, key: &str) {
    let ran = world.run("verify s");
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let line = ran.out.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("{}", ran.out));
    assert!(line.contains(invariant), "{line}");
    let ran = world.run("verify --json");
    assert_eq!(ran.code, 1);
    let reports = crate::world::parse_lines(&ran.out);
    assert_eq!(reports[0]["ok"], false);
    let found = reports[0]["violations"].as_array().expect("a list");
    assert!(found.iter().any(|violation| violation["invariant"] == invariant), "{found:?}");
}

#[test]
fn a_dry_run_changes_nothing_and_commit_does_it() {
    let world = world();
    world.run("read --sink s --consumer me --limit-batches 1").ok();
    world.run("read --sink s --consumer other --start earliest --limit-batches 1 -o other.csv").ok();
    let before = (world.run("history s --json").json(), world.chain("s"), world.blobs());
    let text = world.run("drop s").ok();
    assert!(text.contains("dry run: nothing was changed; pass --commit"), "{text}");
    assert!(text.contains("1: me (has read up to 1)"), "{text}");
    assert!(world.run("history s").ok().contains("0-1-0-0"), "an object is named");
    let text = world.run("consumers s --forget me").ok();
    assert!(text.contains("dry run: nothing was changed; pass --commit"), "{text}");
    assert_eq!((world.run("history s --json").json(), world.chain("s"), world.blobs()), before);
    world.run("consumers s --commit").fails(2, &["--forget"]);
    world.run("consumers s --forget nobody").fails(1, &["no consumer nobody"]);

    world.run("consumers s --forget me --commit").ok();
    assert_eq!(world.acknowledged("s").len(), 1);
    world.run("drop s --commit").ok();
    assert_eq!(world.blobs(), Vec::<String>::new());
    assert_eq!(world.run("sinks --json").ok(), "");
    assert_eq!(world.run("sinks --dropped --json").json()[0]["status"], "dropped");
    let of_chain = world.run("chain s").err;
    assert_eq!(world.run("health s").fails(1, &["no sink s"]), of_chain);
    world.at_rest();
    world.run("read --sink s").fails(1, &["no sink s"]);
    let recorded = world.run("history s --json").json();
    assert_eq!(recorded.iter().filter(|row| row["event"] == "sink-dropped").count(), 1, "{recorded:?}");
    world.run("history t").fails(1, &["no sink t"]);
}

#[test]
fn a_late_part_of_a_dropped_sink_goes_when_it_is_dropped_once_more() {
    let world = world();
    let key = world.blobs().into_iter().find(|key| key.ends_with(".parquet")).expect("a part");
    let file = world.path("stash").join("blobs").join(&key);
    let bytes = std::fs::read(&file).expect("the part");
    world.run("drop s --commit").ok();
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    std::fs::write(&file, bytes).expect("a PUT that landed late");
    let ran = world.run("verify");
    assert!(ran.code == 1 && ran.out.contains("I17") && ran.out.contains("drop it once more"), "{}", ran.out);
    world.run("drop s --commit").ok();
    assert_eq!(world.blobs(), Vec::<String>::new());
    world.run("verify").ok();
}

#[test]
fn a_drop_deletes_the_blobs_of_that_sink_only() {
    let world = world();
    world.load("changes.csv", "kept", "--workers 1").ok();
    assert_eq!(world.blobs().len(), 2);
    let text = world.run("drop s").ok();
    assert!(
        text.contains("batches unlinked        2") && text.contains("objects deleted         1"),
        "{text}"
    );
    world.run("drop s --commit").ok();
    assert_eq!(world.blobs().len(), 1);
    assert_eq!(world.sums("kept").len(), 9001);
    world.at_rest();
}

#[test]
fn a_closed_pipe_ends_any_listing_quietly() {
    let ran = world().run_unread("history s");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn the_stash_can_be_named_by_a_flag() {
    let world = world();
    let mut command = world.command(&format!("--stash {} sinks --json", world.url()));
    command.env("STASH_URL", "file:///nowhere");
    assert_eq!(finish(command).json().len(), 1);
    let mut command = world.command("sinks");
    command.env("STASH_URL", "ftp://host/x");
    finish(command).fails(1, &["ftp://host/x", "is no usable URL of a stash"]);
}
