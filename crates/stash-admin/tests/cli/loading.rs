//! `load`: what goes in is what is accepted, whatever the cut.

use serde_json::json;

use crate::world::{World, load_words};

#[test]
fn what_is_loaded_is_what_is_read_however_batches_are_cut() {
    let world = World::new();
    let sums = world.changes("changes.csv", 5..40);
    for (sink, more) in [
        ("whole", "".to_owned()),
        ("each", "--batch-every 1".to_owned()),
        ("some", "--batch-every 7 --workers 3".to_owned()),
        ("one", "--workers 1 --sort".to_owned()),
        ("early", "--as-of 2".to_owned()),
    ] {
        world.load("changes.csv", sink, &more).ok();
        assert_eq!(world.sums(sink), sums, "{sink}");
        assert_eq!(world.upper(sink), 40, "{sink}");
    }
    let batches = |sink: &str| world.chain(sink)["batches"].as_array().expect("a list").len();
    assert_eq!((batches("whole"), batches("each"), batches("some"), batches("one")), (2, 35, 6, 2));
    world.at_rest();
}

#[test]
fn large_batches_become_parts_and_read_back_whole() {
    let world = World::new();
    let rows: String = (0..12_000).map(|id| format!("{id},{},{}\n", id * 7919 % 12_000, id / 6000)).collect();
    world.write("large.csv", &format!("id,other,t\n{rows}"));
    let words = "load large.csv --sink large --time-column t --workers 2 --json";
    let summary = world.run(words).json().remove(0);
    assert_eq!(summary["rows_read"], 12_000);
    assert_eq!(summary["updates_accepted"], 12_000);
    assert_eq!(summary["parts"], 2, "one part a batch, whatever the workers");
    assert_eq!(summary["puts"], 2);
    let sums = world.sums("large");
    assert_eq!(sums.len(), 12_000);
    assert_eq!(sums.get(&("{\"id\":7000,\"other\":5000}".to_owned(), 1)), Some(&1));
    world.at_rest();
}

#[test]
fn zero_diffs_are_dropped_and_counted_and_equal_rows_consolidate() {
    let world = World::new();
    world.write("changes.csv", "id,name,t,d\n1,a,3,1\n2,b,3,0\n1,a,3,4\n3,c,4,1\n3,c,4,-1\n4,d,4,0\n");
    let summary = world.load("changes.csv", "s", "--json").json().remove(0);
    assert_eq!(summary["rows_read"], 6);
    assert_eq!(summary["zero_diffs_dropped"], 2);
    let text = world.run("read --sink s").ok();
    assert_eq!(
        text,
        "{\"id\":1,\"name\":\"a\",\"_time\":3,\"_diff\":5}\n{\"_progress\": 4}\n{\"_progress\": 5}\n"
    );
    world.at_rest();
}

#[test]
fn without_a_diff_column_every_update_counts_one() {
    let world = World::new();
    world.write("words.ndjson", "{\"word\":\"x\",\"t\":0}\n{\"word\":\"x\",\"t\":0}\n");
    world.run("load words.ndjson --sink words --time-column t").ok();
    assert_eq!(
        world.run("read --sink words").ok(),
        "{\"word\":\"x\",\"_time\":0,\"_diff\":2}\n{\"_progress\": 1}\n"
    );
}

#[test]
fn unsorted_times_are_refused_by_line_and_accepted_with_sort() {
    let world = World::new();
    world.write("changes.csv", "id,name,t,d\n1,a,3,1\n2,b,9,1\n3,c,8,1\n4,d,3,1\n");
    world.load("changes.csv", "s", "").fails(1, &["changes.csv", "line 4", "time 8", "time 9", "--sort"]);
    assert!(!world.path("stash").exists(), "a refused file creates nothing");
    world.load("changes.csv", "s", "--sort").ok();
    let times: Vec<u64> = world.sums("s").into_keys().map(|(_, time)| time).collect();
    assert_eq!(times, [3, 9, 8, 3]);
    let bounds = |batch: &serde_json::Value| (batch["lower"].clone(), batch["upper"].clone());
    let chain = world.chain("s");
    let batches = chain["batches"].as_array().expect("a list");
    assert_eq!(batches.iter().map(bounds).collect::<Vec<_>>(), [(json!(3), json!(4)), (json!(4), json!(10))]);
    world.at_rest();
}

#[test]
fn a_second_load_needs_resume_and_changes_nothing_that_was_accepted() {
    let world = World::new();
    let first = world.changes("first.csv", 5..20);
    world.load("first.csv", "s", "").ok();
    let before = world.chain("s");
    world.load("first.csv", "s", "").fails(1, &["sink s", "below 20", "--resume"]);
    assert_eq!(world.chain("s"), before);
    let again = world.load("first.csv", "s", "--resume --json").json().remove(0);
    assert_eq!((&again["refused_below_upper"], &again["batches_accepted"]), (&again["rows_read"], &json!(0)));
    assert_eq!(world.chain("s"), before, "nothing was even opened");

    // A longer file: what is below the upper is refused though it says otherwise now.
    let longer = world.changes("longer.csv", 18..25);
    let summary = world.load("longer.csv", "s", "--resume --batch-every 2 --json").json().remove(0);
    assert_eq!(summary["refused_below_upper"], 7);
    assert_eq!(summary["upper"], 25);
    let expected = first.into_iter().chain(longer.into_iter().filter(|((_, time), _)| *time >= 20)).collect();
    assert_eq!(world.sums("s"), expected);
    let old = before["batches"].as_array().expect("a list").len();
    let after = world.chain("s");
    assert_eq!(
        after["batches"].as_array().expect("a list").get(..old),
        before["batches"].as_array().map(|b| &b[..])
    );
    world.at_rest();
}

#[test]
fn an_unsorted_file_goes_on_where_the_chain_stands() {
    let world = World::new();
    world.write("first.csv", "id,name,t,d\n1,a,3,1\n2,b,5,1\n");
    world.write("second.csv", "id,name,t,d\n9,z,8,1\n2,b,5,7\n8,y,6,1\n1,a,3,7\n");
    world.load("first.csv", "s", "").ok();
    let summary = world.load("second.csv", "s", "--sort --resume --json").json().remove(0);
    assert_eq!((&summary["refused_below_upper"], &summary["updates_accepted"]), (&json!(2), &json!(2)));
    let diffs: Vec<i64> = world.sums("s").into_values().collect();
    assert_eq!(diffs, [1, 1, 1, 1]);
    assert_eq!(world.upper("s"), 9);
}

#[test]
fn only_complete_seals_the_sink() {
    let world = World::new();
    let first = world.changes("first.csv", 0..3);
    let second = world.changes("second.csv", 3..5);
    world.load("first.csv", "s", "").ok();
    assert_eq!((world.upper("s"), world.chain("s")["status"].clone()), (json!(3), json!("open")));
    let sealed = world.load("second.csv", "s", "--resume --complete").ok();
    assert!(sealed.contains("the sink is complete"), "{sealed}");
    assert_eq!((world.upper("s"), world.chain("s")["status"].clone()), (json!("end"), json!("complete")));
    let text = world.run("read --sink s --follow").ok();
    assert!(text.ends_with("{\"_progress\": \"end\"}\n"), "{text}");

    // A load that died after it sealed is run again: all is there.
    let again = world.load("second.csv", "s", "--resume --complete --json").json().remove(0);
    assert_eq!(again["refused_below_upper"], again["rows_read"]);
    let sums: usize = world.sums("s").len();
    assert!(sums >= first.len() && sums <= first.len() + second.len());
    world.load("second.csv", "s", "--complete").fails(1, &["sink s", "--resume"]);
}

#[test]
fn the_last_time_there_is_needs_complete() {
    let world = World::new();
    world.write("changes.csv", "id,name,t,d\n1,a,3,1\n2,b,18446744073709551614,1\n");
    world
        .load("changes.csv", "s", "")
        .fails(1, &["changes.csv", "line 3", "18446744073709551614", "--complete"]);
    assert!(!world.path("stash").exists());
    world.load("changes.csv", "s", "--complete").ok();
    assert_eq!(world.sums("s").len(), 2);
}

#[test]
fn every_format_that_read_prints_load_reads() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..6);
    world.load("changes.csv", "first", "").ok();
    for format in ["csv", "ndjson", "parquet"] {
        world.run(&format!("read --sink first --output back.{format}")).ok();
        // Within a batch rows are in the order of the rows.
        let roles = "--time-column _time --diff-column _diff --sort";
        world.run(&format!("load back.{format} --sink {format} {roles}")).ok();
        assert_eq!(world.sums(format), sums, "{format}");
    }
    world.at_rest();
}

#[test]
fn a_schema_that_is_given_is_kept() {
    let world = World::new();
    world.changes("changes.csv", 0..3);
    world.load("changes.csv", "s", "--schema id:uint32,name:utf8?").ok();
    let chain = world.chain("s");
    assert_eq!(
        chain["columns"],
        json!([
            { "name": "id", "type": "UInt32", "nullable": false },
            { "name": "name", "type": "Utf8", "nullable": true }
        ])
    );
    // Without it the sink's own columns hold; another one does not fit, and the error says what would.
    world.load("changes.csv", "s", "--resume").ok();
    world.load("changes.csv", "s", "--resume --schema id:int64,name:utf8?").fails(
        1,
        &["changes.csv", "sink s", "column \"id\" is Int64", "UInt32", "--schema 'id:uint32,name:utf8?'"],
    );
    world.load("changes.csv", "s", "--resume --schema id:UInt32,name:Utf8?").ok();
}

#[test]
fn times_before_the_sink_begins_are_refused_by_line() {
    let world = World::new();
    world.changes("changes.csv", 4..8);
    world.load("changes.csv", "s", "--as-of 5").fails(1, &["changes.csv", "line 2", "time 4", "--as-of 5"]);
    world.load("changes.csv", "s", "--as-of 4").ok();
    world.load("changes.csv", "s", "--resume --as-of 3").fails(1, &["sink s", "begin at 4", "--as-of 3"]);
    world.write("none.csv", "id,name,t,d\n1,a,5,0\n");
    world.load("none.csv", "other", "").fails(1, &["none.csv", "no update", "--as-of"]);
    let summary = world.load("none.csv", "other", "--as-of 1 --complete --json").json().remove(0);
    assert_eq!((&summary["complete"], &summary["zero_diffs_dropped"]), (&json!(true), &json!(1)));
}

#[test]
fn help_and_a_missing_stash_say_what_to_do() {
    let world = World::new();
    let help = world.run("--help").ok();
    for verb in ["load", "read", "chain", "verify", "explain", "STASH_URL"] {
        assert!(help.contains(verb), "{verb}");
    }
    world.changes("changes.csv", 0..2);
    let mut command = world.command(&load_words("changes.csv", "s", ""));
    command.env_remove("STASH_URL");
    crate::world::finish(command).fails(2, &["STASH_URL", "--stash"]);
}

#[test]
fn rows_without_columns_and_rows_with_missing_keys_load_too() {
    let world = World::new();
    world.write("bare.csv", "t,d\n1,2\n1,3\n2,-1\n");
    world.load("bare.csv", "bare", "").ok();
    let bare = world.run("read --sink bare").ok();
    assert_eq!(
        bare,
        "{\"_time\":1,\"_diff\":5}\n{\"_progress\": 2}\n{\"_time\":2,\"_diff\":-1}\n{\"_progress\": 3}\n"
    );
    world.write("gaps.ndjson", "{\"a\":1,\"t\":1,\"d\":1}\n{\"t\":2,\"d\":1,\"b\":\"x\"}\n");
    world.load("gaps.ndjson", "gaps", "").ok();
    let gaps = world.run("read --sink gaps --from 2").ok();
    assert!(gaps.starts_with("{\"a\":null,\"b\":\"x\",\"_time\":2,\"_diff\":1}\n"), "{gaps}");
    world.at_rest();
}

#[test]
fn a_later_file_is_read_by_the_columns_of_its_sink() {
    let world = World::new();
    world.write("first.csv", "id,price,name,t,d\n1,1.5,a,1,1\n");
    world.load("first.csv", "s", "").ok();
    // Inferred alone these would be an integer, text and an integer; and the columns come in another order.
    world.write("second.csv", "name,id,price,t,d\n7,,1,2,1\n");
    world.load("second.csv", "s", "--resume").ok();
    world.write("third.ndjson", "{\"t\":3,\"d\":1,\"price\":2,\"id\":4}\n");
    world.load("third.ndjson", "s", "--resume").ok();
    assert_eq!(
        world.run("read --sink s --from 2").ok(),
        "{\"id\":null,\"price\":1.0,\"name\":\"7\",\"_time\":2,\"_diff\":1}\n{\"_progress\": 3}\n\
         {\"id\":4,\"price\":2.0,\"name\":null,\"_time\":3,\"_diff\":1}\n{\"_progress\": 4}\n"
    );
    world.write("more.ndjson", "{\"t\":4,\"d\":1,\"colour\":\"red\"}\n");
    world
        .load("more.ndjson", "s", "--resume")
        .fails(1, &["line 1", "\"colour\"", "sink s has no such column"]);
    world.at_rest();
}

#[test]
fn a_load_that_may_not_list_leaves_what_another_left_to_the_sweep() {
    let world = World::new();
    let rows = |time: u64| (0..6000).map(move |id| format!("{id},{},{time}\n", id * 7919 % 6000));
    let file = |times: &[u64]| {
        format!("id,other,t\n{}", times.iter().flat_map(|time| rows(*time)).collect::<String>())
    };
    world.write("one.csv", &file(&[0]));
    world.write("more.csv", &file(&[0, 1]));
    world.write("most.csv", &file(&[0, 1, 2]));
    world.run("load one.csv --sink s --time-column t").ok();
    let part = world.run("parts s --json").json().remove(0)["key"].as_str().expect("a key").to_owned();
    let stray = part.replace("-0-0.parquet", "-0-7.parquet");
    let [part, stray] = [part, stray].map(|key| world.path("stash/blobs").join(key));
    std::fs::copy(&part, &stray).expect("as if a load had died before it told of it");

    world.run("load more.csv --sink s --time-column t --resume --no-sweep").ok();
    assert!(stray.exists(), "nothing was listed");
    world.run("load most.csv --sink s --time-column t --resume").ok();
    assert!(!stray.exists(), "it was found and deleted");
    world.at_rest();
}
