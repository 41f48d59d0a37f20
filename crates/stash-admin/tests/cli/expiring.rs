//! Retention and absent consumers: declared by `load`, taken by `expire`, told by everything that looks.

use serde_json::{Value, json};

use crate::world::World;

/// A sink `s` that keeps nothing for longer than a millisecond, with a part at time 0 and inline runs at 1 to 3.
fn world() -> World {
    let world = World::new();
    let rows: String = (0..9000).map(|id| format!("{id},row {id},0,1\n")).collect();
    world.write("changes.csv", &format!("id,name,t,d\n{rows}1,x,1,1\n1,y,2,1\n1,z,3,1\n"));
    let declared = "--workers 1 --batch-every 1 --retention 1ms --absent-hold 1ms";
    world.load("changes.csv", "s", declared).ok();
    world
}

#[test]
fn a_dry_expiry_changes_nothing_and_commit_takes_what_nobody_holds() {
    let world = world();
    let before = (world.run("history s --json").json(), world.chain("s"), world.blobs());
    let text = world.run("expire s").ok();
    assert!(text.contains("would expire in sink s"), "{text}");
    assert!(text.contains("dry run: nothing was changed; pass --commit"), "{text}");
    let would = world.run("expire s --json").json().remove(0);
    assert_eq!((world.run("history s --json").json(), world.chain("s"), world.blobs()), before);
    let wanted = |committed: bool| {
        json!({
            "sink": "s", "incarnations_closed": [], "consumers_absent": [], "batches_unlinked": 4,
            "objects_deleted": 1, "deletes_deferred": 0, "earliest": 4, "committed": committed,
        })
    };
    assert_eq!(would, wanted(false));
    assert_eq!(world.run("expire s --commit --json").json().remove(0), wanted(true));
    assert_eq!(world.blobs(), Vec::<String>::new());
    let text = world.run("expire s --commit").ok();
    assert!(text.contains("the chain begins at") && !text.contains("dry run"), "{text}");
    let recorded = world.run("history s --json").json();
    assert_eq!(recorded.iter().filter(|row| row["event"] == "expired").count(), 4, "one for each batch");
    world.run("read s").fails(1, &["the beginning of sink s is gone", "--start earliest", "expired"]);
    world.at_rest();
    world.run("expire none").fails(1, &["no sink none"]);
}

#[test]
fn a_consumer_that_stayed_away_is_told_how_to_go_on() {
    let world = world();
    world.run("read s --consumer me --limit-batches 1 -o first.csv").ok();
    let taken = world.run("expire s --commit --json").json().remove(0);
    assert_eq!((&taken["consumers_absent"], &taken["earliest"]), (&json!(["me"]), &json!(4)));
    let listed = world.run("consumers s --json").json().remove(0);
    assert_eq!((&listed["acknowledged"], &listed["expired"]), (&json!(1), &Value::Bool(true)));
    assert!(world.run("consumers s").ok().contains("everything below 4 expired"));
    for start in ["", "--start earliest", "--start beginning"] {
        let ran = world.run(&format!("read s --consumer me {start}"));
        assert_eq!(ran.out, "", "never empty progress");
        ran.fails(1, &["me stands at 1, and everything below 4 expired", "--start skip-expired", "[1, 4)"]);
    }
    let error: Value = {
        let ran = world.run("read s --consumer me --json");
        serde_json::from_str(ran.err.trim_end()).expect("one JSON object")
    };
    assert_eq!(error["kind"], "absent", "{error}");
    world.write("more.csv", "id,name,t,d\n1,w,4,1\n");
    world.load("more.csv", "s", "--resume").ok();
    let read = world.run("read s --consumer me --start skip-expired").ok();
    assert!(read.contains("\"w\"") && !read.contains("\"z\""), "{read}");
    let listed = world.run("consumers s --json").json().remove(0);
    assert_eq!((&listed["acknowledged"], &listed["expired"]), (&json!(5), &Value::Bool(false)));
    world.at_rest();
}

#[test]
fn durations_are_declared_once_and_shown() {
    let world = World::new();
    world.changes("changes.csv", 0..3);
    let refused = world.load("changes.csv", "s", "--retention 7");
    refused.fails(2, &["--retention", "the unit is missing: write 7s, 7m, 7h or 7d"]);
    world.load("changes.csv", "s", "--absent-hold 0d").fails(2, &["--absent-hold", "for ever"]);
    assert!(!world.path("stash").exists(), "nothing was made");

    world.load("changes.csv", "s", "--retention 7d --absent-hold 36h").ok();
    let sink = world.run("sinks --json").json().remove(0);
    assert_eq!((&sink["retention_ms"], &sink["absent_hold_ms"]), (&json!(604_800_000), &json!(129_600_000)));
    let text = world.run("sinks").ok();
    assert!(text.contains("7d") && text.contains("36h"), "{text}");
    assert!(world.run("consumers s").ok().contains("is kept for 7d"));
    let refused = world.load("changes.csv", "s", "--resume --retention 8d");
    refused.fails(1, &["declared with --retention 7d, not with --retention 8d", "never changes"]);
    world.load("changes.csv", "s", "--resume --retention 168h").ok();

    world.load("changes.csv", "t", "").ok();
    let sink = world.run("sinks --json").json().remove(1);
    assert_eq!((&sink["retention_ms"], &sink["absent_hold_ms"]), (&Value::Null, &Value::Null));
    let refused = world.load("changes.csv", "t", "--resume --absent-hold 1d");
    refused.fails(1, &["declared without --absent-hold, not with --absent-hold 1d"]);
    assert!(world.run("sinks").ok().contains("for ever"));
}
