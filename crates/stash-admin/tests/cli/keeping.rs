//! Accounting for every byte, deleting by plan, and reading what is left when the catalog is lost.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::world::{Sums, World, sums_of};

/// A sink `s` with one part of 9,000 rows at time 0 and an inline run at time 1.
pub fn world() -> (World, String) {
    let world = World::new();
    let rows: String = (0..9000).map(|id| format!("{id},row {id},0,1\n")).collect();
    world.write("changes.csv", &format!("id,name,t,d\n{rows}1,x,1,1\n"));
    world.load("changes.csv", "s", "--workers 1").ok();
    let key = world.blobs().pop().expect("a part");
    (world, key)
}

/// Puts `count` objects beside the part that nobody owns.
pub fn orphans(world: &World, key: &str, count: u64) -> Vec<String> {
    let named = (0..count).map(|n| key.replace("-0-0.parquet", &format!("-0-{}.parquet", 70 + n)));
    named.inspect(|name| drop(fs::write(world.path("stash/blobs").join(name), "orphan"))).collect()
}

fn files(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.insert(path.display().to_string(), fs::read(&path).expect("readable"));
        }
    }
}

pub fn all_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    files(folder, &mut found);
    found
}

#[test]
fn audit_accounts_for_every_byte_and_names_what_is_lost() {
    let (world, key) = world();
    orphans(&world, &key, 2);
    let blobs = world.path("stash/blobs");
    fs::write(blobs.join("notes.txt"), "hello").expect("written");
    let on_disk: usize = all_files(&blobs).values().map(Vec::len).sum();
    let report = world.run("audit --json").json().remove(0);
    assert_eq!(report["listed"], json!({ "entries": 5, "bytes": on_disk }));
    assert_eq!(report["accounted"], report["listed"]);
    assert_eq!(report["ok"], true);
    let classes = report["classes"].as_array().expect("a list");
    let class = |name: &str| {
        let found = classes.iter().find(|line| line["class"] == name);
        found.map(|line| (line["sink"].clone(), line["entries"].clone(), line["reason"].clone()))
    };
    assert_eq!(class("referenced"), Some((json!("s"), json!(1), Value::Null)));
    assert_eq!(class("garbage"), Some((json!("s"), json!(2), json!("incarnation_closed"))));
    assert_eq!(class("own"), Some((Value::Null, json!(1), Value::Null)));
    assert_eq!(class("foreign"), Some((Value::Null, json!(1), json!("not_of_stash"))));
    let text = world.run("audit").ok();
    for wanted in
        ["accounted for 5 of", "notes.txt", "its incarnation is closed", "lost: nothing", "the stash's own"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(world.run("audit s --json").json()[0]["listed"]["entries"], 3);

    fs::remove_file(blobs.join(&key)).expect("removed");
    let ran = world.run("audit");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains("LOST: 1 object") && ran.out.contains(&key), "{}", ran.out);
    let ran = world.run("audit --json");
    let report = crate::world::parse_lines(&ran.out).remove(0);
    assert_eq!((ran.code, &report["ok"]), (1, &json!(false)));
    assert_eq!(report["lost"]["first"][0]["key"], key);
}

#[test]
fn what_is_lost_is_found_whatever_stands_in_its_place() {
    let (world, key) = world();
    let part = world.path("stash/blobs").join(&key);
    fs::rename(&part, world.path("part")).expect("moved");
    for in_its_place in ["a folder", "a link"] {
        match in_its_place {
            "a folder" => fs::create_dir(&part).expect("made"),
            _ => std::os::unix::fs::symlink(world.path("part"), &part).expect("linked"),
        }
        let ran = world.run("audit");
        assert_eq!(ran.code, 1, "{in_its_place}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("LOST: 1 object") && ran.out.contains(&key), "{in_its_place}: {}", ran.out);
        let ran = world.run(&format!("explain {key}"));
        assert_eq!(ran.code, 1, "{in_its_place}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("not in the store"), "{in_its_place}: {}", ran.out);
        fs::remove_dir(&part).or_else(|_| fs::remove_file(&part)).expect("removed");
    }
    fs::rename(world.path("part"), &part).expect("put back");
    world.at_rest();
}

#[test]
fn an_exchanged_part_is_an_alarm_and_no_stranger() {
    let (world, key) = world();
    let blobs = world.path("stash/blobs");
    let accepted = fs::read(blobs.join(&key)).expect("the part").len();
    fs::write(blobs.join("notes.txt"), "hello").expect("written");
    fs::write(blobs.join(&key), "something else").expect("exchanged");

    let ran = world.run("audit");
    assert_eq!(ran.code, 1, "{}", ran.out);
    let (before, after) = ran.out.split_once("which Stash never deletes:").expect("a stranger");
    assert!(before.contains("foreign: 1 entry,") && after.contains("  notes.txt  "), "{}", ran.out);
    let (strangers, exchanged) = after.split_once("EXCHANGED: 1 object").expect("an exchanged one");
    assert!(!strangers.contains(&key) && exchanged.contains(&format!("  {key}  (14 B in")), "{}", ran.out);

    let told = world.run("verify s").out;
    assert!(told.contains("the store has 14 bytes under it: it was exchanged from outside"), "{told}");
    let ran = world.run(&format!("explain {key}"));
    let wanted = format!("of 14 bytes where {accepted} were accepted");
    let told = ran.out.replace(',', "");
    assert!(
        ran.code == 1 && told.contains("ALARM: batch 1 of sink s") && told.contains(&wanted),
        "{}",
        ran.out
    );
    let ran = world.run(&format!("explain {key} --json"));
    let told = crate::world::parse_lines(&ran.out).remove(0);
    let bytes = (&told["store_bytes"], &told["accepted_bytes"]);
    assert_eq!((ran.code, bytes), (1, (&json!(14), &json!(accepted))), "{told}");
}

#[test]
fn names_of_others_end_no_line_and_say_nothing_to_the_terminal() {
    let (world, key) = world();
    let folder = world.path("stash/blobs").join(&key).parent().expect("a folder").to_owned();
    for name in ["x\nlost: nothing is missing", "\u{1b}[2J\u{1b}[Hall is well"] {
        fs::write(folder.join(name), "hello").expect("written");
    }
    for words in ["audit", "sweep", "verify s", "salvage --blobs stash"] {
        let text = world.run(words).out;
        assert!(text.contains("/x\\nlost: nothing is missing"), "{words}: {text:?}");
        assert!(text.contains("\\u{1b}[2J\\u{1b}[Hall is well"), "{words}: {text:?}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{words}: {text:?}");
    }
    let audited = world.run("audit --json").json().remove(0);
    let named = audited["foreign"]["first"].as_array().expect("a list").iter();
    let raw = |one: &&Value| one["name"].as_str().is_some_and(|name| name.ends_with("\u{1b}[Hall is well"));
    assert_eq!(named.filter(raw).count(), 1, "{audited}");
}

#[test]
fn a_verdict_stays_when_nobody_reads_what_is_printed() {
    let (world, key) = world();
    let commands = ["audit", "audit --json", "verify", "verify --json", "salvage --blobs stash"];
    let explain = [format!("explain {key}"), format!("explain {key} --json")];
    let quiet = |words: &str, code: i32| {
        let ran = world.run_unread(words);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""), "{words}");
    };
    let file = world.path("stash/blobs").join(&key);
    let mut bytes = fs::read(&file).expect("the part");
    commands.into_iter().for_each(|words| quiet(words, 0));
    explain.iter().for_each(|words| quiet(words, 0));
    quiet(&format!("cat {key}"), 0);
    bytes[100] ^= 1;
    fs::write(&file, bytes).expect("damaged");
    ["verify", "salvage --blobs stash"].into_iter().for_each(|words| quiet(words, 1));
    fs::remove_file(&file).expect("removed");
    commands.into_iter().take(4).for_each(|words| quiet(words, 1));
    explain.iter().for_each(|words| quiet(words, 1));
}

#[test]
fn a_plan_is_written_looked_at_and_applied_and_nothing_foreign_goes() {
    let (world, key) = world();
    let orphans = orphans(&world, &key, 3);
    let blobs = world.path("stash/blobs");
    fs::write(blobs.join("notes.txt"), "hello").expect("written");
    let before = all_files(&blobs);
    let there = || orphans.iter().filter(|name| blobs.join(name).exists()).count();

    let text = world.run("sweep").ok();
    let path = text.lines().find_map(|line| line.strip_prefix("plan: ")).unwrap_or_else(|| panic!("{text}"));
    assert!(world.text(path).lines().count() == 5 && text.contains("nothing was changed"), "{text}");
    let planned = world.run("sweep s --plan a.plan --json").json().remove(0);
    assert_eq!(planned["garbage"], json!({ "entries": 3, "bytes": 18 }));
    let written = world.text("a.plan");
    world.run("sweep s --plan a.plan").fails(1, &["a.plan is there already"]);
    world.run("sweep --commit").fails(2, &["--plan"]);
    world.run("sweep --plan a.plan --max-deletes 0").fails(2, &["--max-deletes", "must be at least 1"]);
    world.run("sweep s --plan a.plan --commit").fails(2, &["--commit"]);
    world.run("sweep --plan none.plan --commit").fails(1, &["none.plan cannot be read"]);
    let text = world.run("sweep --plan a.plan").ok();
    assert!(text.contains("would apply") && text.contains("3 objects, 18 B"), "{text}");
    assert!(text.contains("dry run: nothing was changed"), "{text}");
    assert_eq!((all_files(&blobs), world.text("a.plan")), (before, written), "nothing was changed");

    let text = world.run("sweep --plan a.plan --commit --max-deletes 2").ok();
    assert!(text.contains("stopped after --max-deletes 2") && text.contains("for the 1 left"), "{text}");
    assert_eq!(there(), 1);
    let done = world.run("sweep --plan a.plan --commit --max-deletes 2 --json").json().remove(0);
    assert_eq!(
        (&done["objects_deleted"]["entries"], &done["done_already"]["entries"], &done["left"]["entries"]),
        (&json!(1), &json!(2), &json!(0))
    );
    assert_eq!(there(), 0);
    assert!(blobs.join("notes.txt").exists(), "what is foreign stays");
    let history = world.run("history s --json").json();
    let events = |event: &str| history.iter().filter(|row| row["event"] == event).count();
    assert_eq!((events("queued"), events("deleted")), (3, 3));
    fs::remove_file(blobs.join("notes.txt")).expect("removed");
    world.at_rest();
}

#[test]
fn what_a_dropped_sink_left_is_swept_by_plan_too() {
    let (world, key) = world();
    let file = world.path("stash/blobs").join(&key);
    let bytes = fs::read(&file).expect("the part");
    world.run("drop s --commit").ok();
    fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    fs::write(&file, bytes).expect("a PUT that landed late");
    let report = world.run("audit --json").json().remove(0);
    let garbage =
        report["classes"].as_array().expect("a list").iter().find(|line| line["class"] == "garbage");
    assert_eq!(garbage.map(|line| &line["reason"]), Some(&json!("sink_dropped")), "{report}");
    world.run("sweep --plan a.plan").ok();
    world.run("sweep --plan a.plan --commit").ok();
    assert_eq!(world.blobs(), Vec::<String>::new());
    world.run("verify").ok();
}

#[test]
fn a_plan_of_another_stash_a_newer_or_a_damaged_one_is_refused() {
    let (world, key) = world();
    let orphan = orphans(&world, &key, 1).remove(0);
    world.run("sweep --plan a.plan").ok();
    let plan = world.text("a.plan");
    let (other, _) = self::world();
    other.write("a.plan", &plan);
    other.run("sweep --plan a.plan --commit").fails(1, &["a.plan cannot be used", "was made for catalog"]);
    for (name, text, wanted) in [
        ("newer", plan.replace("\"format\":1", "\"format\":2"), "upgrade"),
        ("cut", plan.lines().take(2).map(|line| format!("{line}\n")).collect(), "cut short"),
        ("more", plan.replace("\"reason\"", "\"force\":true,\"reason\""), "line 2 of the plan"),
        (
            "counts",
            plan.replace("\"entries\":1", "\"entries\":2"),
            "it counts 2 objects of 6 bytes and 0 uploads",
        ),
        ("text", "hello\n".to_owned(), "line 1 of the plan"),
        ("empty", String::new(), "cut short"),
        ("shard", plan.replace(&key[..10], "s00000000-"), "of no sink of this catalog"),
    ] {
        world.write(name, &text);
        for words in [format!("sweep --plan {name} --commit"), format!("sweep --plan {name}")] {
            world.run(&words).fails(1, &[name, "cannot be used", wanted]);
        }
        let ran = world.run(&format!("sweep --plan {name} --commit --json"));
        let error: Value = serde_json::from_str(ran.err.trim_end()).expect("one JSON object");
        assert_eq!(error["kind"], "fix_call", "{name}: {error}");
    }
    assert!(world.path("stash/blobs").join(orphan).exists(), "nothing was deleted");
}

#[test]
fn deletions_that_the_store_refuses_are_said_and_not_counted_as_done() {
    let refused = "1 delete was refused for now; the deletion queue keeps them";
    for words in ["drop s --commit", "expire s --commit"] {
        for json in [false, true] {
            let world = World::new();
            let rows: String = (0..9000).map(|id| format!("{id},row {id},0,1\n")).collect();
            world.write("changes.csv", &format!("id,name,t,d\n{rows}1,x,1,1\n"));
            world.load("changes.csv", "s", "--workers 1 --retention 1ms").ok();
            let key = world.blobs().pop().expect("a part");
            let folder = world.path("stash/blobs").join(&key).parent().expect("a folder").to_owned();
            let words = format!("{words}{}", if json { " --json" } else { "" });
            let Some(ran) = world.run_barred(&words, &[folder]) else { return };
            assert_eq!(world.blobs(), [key], "it is still there");
            if json {
                let said = ran.json().remove(0);
                let (deleted, deferred) = (&said["objects_deleted"], &said["deletes_deferred"]);
                assert_eq!((deleted, deferred), (&json!(0), &json!(1)), "{words}");
            } else {
                let text = ran.ok();
                let none = |line: &str| line.contains("objects deleted") && line.ends_with(" 0");
                assert!(text.contains(refused) && text.lines().any(none), "{words}: {text}");
            }
        }
    }

    let (world, key) = world();
    // It registered, and acknowledged nothing.
    world.run_unread("read s --consumer slow");
    world.run("read s --consumer fast -o fast.csv").ok();
    let folder = world.path("stash/blobs").join(&key).parent().expect("a folder").to_owned();
    let Some(ran) = world.run_barred("consumers s --forget slow --commit", std::slice::from_ref(&folder))
    else {
        return;
    };
    let text = ran.ok();
    assert!(text.contains("forgot consumer slow") && text.contains(refused), "{text}");
    assert_eq!(world.blobs(), [key.as_str()]);

    let orphan = orphans(&world, &key, 1).remove(0);
    world.run("sweep --plan a.plan").ok();
    let Some(ran) = world.run_barred("sweep --plan a.plan --commit", &[folder]) else { return };
    let text = ran.ok();
    // Of the part before and of this.
    assert!(
        text.contains("2 deletes were refused for now") && text.contains("objects queued for deletion"),
        "{text}"
    );
    assert!(world.blobs().contains(&orphan));
}

#[test]
fn what_a_plan_names_twice_is_refused_and_what_is_gone_is_not_done_again() {
    let (world, key) = world();
    let orphans = orphans(&world, &key, 2);
    let (folder, name) = key.rsplit_once('/').expect("a folder");
    let uploads = ["abc", "abd"].map(|token| {
        let upload = world.path("stash/blobs").join(folder).join(format!(".{name}.{token}.tmp"));
        fs::write(&upload, "left over").expect("written");
        upload
    });
    world.run("sweep --plan a.plan").ok();
    let plan = world.text("a.plan");
    for (what, first, second) in
        [("garbage", orphans[0].as_str(), orphans[1].as_str()), ("left_over_upload", "abc", "abd")]
    {
        let line = |of: &str| {
            let begin = format!("{{\"{what}\":{{");
            plan.lines().find(|line| line.starts_with(&begin) && line.contains(of)).expect("planned")
        };
        // Both are of one length, so that the plan's end counts them right.
        world.write("twice.plan", &plan.replace(line(second), line(first)));
        for words in ["sweep --plan twice.plan", "sweep --plan twice.plan --commit"] {
            let error = world.run(words).fails(1, &["twice.plan cannot be used", "the plan names", first]);
            assert!(error.contains("twice: it is not as it was written"), "{error}");
        }
    }
    let mut files = orphans.iter().map(|orphan| world.path("stash/blobs").join(orphan)).chain(uploads);
    assert!(files.all(|file| file.exists()), "nothing was touched");

    let counts = |done: &Value| {
        ["objects_deleted", "uploads_aborted", "done_already"].map(|what| done[what]["entries"].clone())
    };
    let done = world.run("sweep --plan a.plan --commit --json").json().remove(0);
    assert_eq!(counts(&done), [2, 2, 0].map(|count| json!(count)), "{done}");
    for words in ["sweep --plan a.plan --json", "sweep --plan a.plan --commit --json"] {
        let again = world.run(words).json().remove(0);
        assert_eq!(counts(&again), [0, 0, 4].map(|count| json!(count)), "{again}");
        assert_eq!(again["done_already"]["bytes"], 30, "{again}");
    }
    world.at_rest();
}

/// What salvaged NDJSON files sum up to.
fn salvaged(world: &World, folder: &str, report: &Value) -> Sums {
    let mut all = Sums::new();
    for sink in report["sinks"].as_array().expect("a list") {
        for batch in sink["batches"].as_array().expect("a list") {
            let file = batch["file"].as_str().expect("a file");
            for (update, diff) in sums_of(&world.text(&format!("{folder}/{file}"))) {
                *all.entry(update).or_insert(0) += diff;
            }
        }
    }
    all
}

#[test]
fn salvage_reads_what_was_written_when_the_catalog_is_deleted() {
    let (world, key) = world();
    let mut wanted = world.sums("s");
    wanted.retain(|(_, time), _| *time == 0);
    assert_eq!(wanted.len(), 9000);
    for file in ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"] {
        fs::remove_file(world.path("stash").join(file)).unwrap_or_default();
    }
    world.run("sinks").fails(1, &["no stash at"]);
    let before = all_files(&world.path("stash"));
    let words = "salvage --blobs stash/blobs --output out --format ndjson --json";
    let report = world.run(words).json().remove(0);
    assert_eq!((&report["ok"], &report["listed"]["entries"]), (&json!(true), &json!(2)));
    assert_eq!(salvaged(&world, "out", &report), wanted);
    let written: Value = serde_json::from_str(&world.text("out/salvage.json")).expect("JSON");
    assert_eq!(written, report);
    let text = world.run(&format!("salvage --blobs {}", world.url())).ok();
    for wanted in ["9,000", "[0, 1)", "inline", "accepted", "trims", "nothing was written: pass --output"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    world.run("salvage --blobs stash --output out").fails(1, &["out holds something already"]);
    std::os::unix::fs::symlink(world.path("stash"), world.path("link")).expect("linked");
    for (blobs, folder) in [
        ("stash".to_owned(), "stash/blobs/new/out"),
        ("stash/blobs".to_owned(), "stash/blobs/out"),
        ("stash/blobs".to_owned(), "link/blobs"),
        (world.url(), "out/../link/out"),
    ] {
        let words = format!("salvage --blobs {blobs} --output {folder}");
        world.run(&words).fails(1, &[folder, "lies within", "name a folder outside"]);
    }
    fs::remove_file(world.path("link")).expect("removed");
    assert_eq!(all_files(&world.path("stash")), before, "nothing in the store was changed");
    world.run("salvage --blobs nowhere").fails(1, &["nowhere", "no such folder"]);
    world.run("salvage --blobs stash --sink-shard x").fails(2, &["not a shard id"]);
    assert!(!world.path("nowhere").exists());

    // As Parquet it can be loaded anew.
    world.run("salvage --blobs stash --output again").ok();
    let report: Value = serde_json::from_str(&world.text("again/salvage.json")).expect("JSON");
    let file = report["sinks"][0]["batches"][0]["file"].as_str().expect("a file").to_owned();
    assert_eq!(all_files(&world.path("stash")), before, "nothing in the store was changed");
    let load = format!("load again/{file} --sink s --time-column _time --diff-column _diff --sort");
    world.run(&format!("{load} --stash ./anew")).ok();
    assert_eq!(sums_of(&world.run("read --sink s --stash ./anew").ok()), wanted);

    let path = world.path("stash/blobs").join(&key);
    let mut bytes = fs::read(&path).expect("readable");
    bytes[100] ^= 1;
    fs::write(&path, bytes).expect("written");
    let ran = world.run("salvage --blobs stash --output third");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains("DAMAGED: 1 part") && ran.out.contains(&key), "{}", ran.out);
}
