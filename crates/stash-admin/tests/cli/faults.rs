//! Bad input is a clear error that names what is at fault, and loses nothing.

use std::{fs, os::unix::fs::PermissionsExt, str::FromStr};

use sqlx::{ConnectOptions, Connection, sqlite::SqliteConnectOptions};

use crate::world::World;

#[test]
fn a_bad_file_names_line_and_column_and_creates_nothing() {
    let roles = "--time-column t --diff-column d";
    let seven = "id,t,d\n1,1,1\n2,1,1\n3,1,1\n4,1,1\n5,1,1\n6,1\n7,1,1\n";
    for (name, content, more, wanted) in [
        ("short.csv", seven, roles, &["short.csv", "line 7", "2 fields", "3"][..]),
        (
            "huge.csv",
            "id,t,d\n1,1,1\n2,18446744073709551616,1\n",
            roles,
            &["huge.csv", "line 3", "\"t\"", "18446744073709551616"],
        ),
        ("max.csv", "id,t,d\n1,18446744073709551615,1\n", roles, &["line 2", "\"t\"", "too large"]),
        ("text.csv", "id,t,d\n1,1,one\n", roles, &["line 2", "\"d\"", "\"one\" cannot be a diff"]),
        ("reserved.csv", "id,_x,t,d\n1,2,3,4\n", roles, &["line 1", "\"_x\"", "reserved"]),
        ("missing.csv", "id,time,d\n1,2,3\n", roles, &["\"t\"", "--time-column", "\"time\""]),
        (
            "null.ndjson",
            "{\"id\":1,\"t\":1,\"d\":1}\n{\"id\":1,\"d\":1}\n",
            roles,
            &["line 2", "\"t\"", "no time"],
        ),
        ("broken.ndjson", "{\"id\":1,\"t\":1,\"d\":1}\n{\"id\":\n", roles, &["line 2", "not a JSON object"]),
        ("semi.csv", "id;t;d\n1;1;1\n", roles, &["semi.csv", "separated by semicolons", "only commas"]),
        ("tab.csv", "id\tt\td\n1\t1\t1\n", roles, &["separated by tabs"]),
        ("empty.csv", "", roles, &["empty.csv", "is empty"]),
        ("no.parquet", "PAR1 but not really PAR1", roles, &["no.parquet", "is not a Parquet file"]),
        ("odd.txt", "id,t,d\n", roles, &["odd.txt", "--format csv, ndjson or parquet"]),
        (
            "typed.csv",
            "id,t,d\nx,1,1\n",
            "--time-column t --diff-column d --schema id:int64",
            &["line 2", "\"id\"", "int64"],
        ),
        (
            "spec.csv",
            "id,t,d\nx,1,1\n",
            "--time-column t --diff-column d --schema id:int65",
            &["--schema", "character 4", "int65"],
        ),
    ] {
        let world = World::new();
        world.write(name, content);
        let ran = world.run(&format!("load {name} --sink s {more}"));
        let code = if name == "odd.txt" { 2 } else { 1 };
        let error = ran.fails(code, wanted);
        assert_eq!(error.matches("error:").count(), 1, "{error}");
        assert!(!world.path("stash").exists(), "{name} created a stash");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let world = World::new();
    fs::create_dir(world.path("folder.csv")).expect("made");
    world.load("folder.csv", "s", "").fails(1, &["folder.csv", "is a directory"]);
    world.load("absent.csv", "s", "").fails(1, &["absent.csv", "cannot be read", "No such file"]);
    world.load("/dev/null", "s", "--format csv").fails(2, &["/dev/null", "not a regular file"]);
    let words = "--stash memory:// load absent.csv --sink s --time-column t";
    world.run(words).fails(2, &["memory://", "nothing would be kept"]);
    assert!(!world.path("stash").exists());
}

#[test]
fn names_that_cannot_be_used_are_refused_before_anything() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.load("changes.csv", "a/b", "").fails(2, &["--sink", "\"a/b\" holds '/'"]);
    world.load("changes.csv", "s", "--replica ../x").fails(2, &["--replica", "\"../x\""]);
    world.load("changes.csv", "s", "--workers 0").fails(2, &["--workers"]);
    world.run("read --sink s --consumer .me").fails(2, &["--consumer", "\".me\""]);
    assert!(!world.path("stash").exists());
}

#[test]
fn another_file_under_one_name_names_the_column() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.load("changes.csv", "s", "").ok();
    let before = world.chain("s");
    world.write("other.csv", "id,title,t,d\n1,x,5,1\n");
    world
        .load("other.csv", "s", "--resume")
        .fails(1, &["other.csv", "line 1", "\"name\"", "sink s has this column", "\"title\""]);
    world.write("wider.csv", "id,name,more,t,d\n1,x,y,5,1\n");
    world
        .load("wider.csv", "s", "--resume")
        .fails(1, &["wider.csv", "\"more\"", "sink s has no such column"]);
    world.write("narrower.csv", "id,t,d\n1,5,1\n");
    world
        .load("narrower.csv", "s", "--resume")
        .fails(1, &["narrower.csv", "\"name\"", "sink s has this column"]);
    world.write("typed.csv", "id,name,t,d\nx,y,5,1\n");
    world
        .load("typed.csv", "s", "--resume")
        .fails(1, &["typed.csv", "line 2", "\"id\"", "\"x\" is not int64", "in sink s"]);
    assert_eq!(world.chain("s"), before);
}

#[test]
fn the_prefix_of_another_catalog_is_refused() {
    let (world, other) = (World::new(), World::new());
    for world in [&world, &other] {
        world.changes("changes.csv", 0..2);
        world.load("changes.csv", "s", "").ok();
    }
    let mark = |world: &World| world.path("stash/blobs/stash.json");
    fs::copy(mark(&other), mark(&world)).expect("copied");
    world.run("sinks").fails(1, &["belongs to catalog c", "not to c"]);
    fs::write(mark(&world), "{\"format\":2}").expect("written");
    world.run("sinks").fails(1, &["has format 2", "upgrade it"]);
    fs::write(mark(&world), "hello").expect("written");
    world.run("sinks").fails(1, &["stash.json", "did not write"]);
}

#[test]
fn a_folder_that_may_not_be_used_is_named() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.write("stash", "a file where the folder would be");
    world.load("changes.csv", "s", "").fails(1, &["stash"]);
    fs::remove_file(world.path("stash")).expect("removed");
    fs::create_dir(world.path("stash")).expect("made");
    fs::set_permissions(world.path("stash"), fs::Permissions::from_mode(0o000)).expect("set");
    // Who may do everything is not stopped by permissions.
    if fs::read_dir(world.path("stash")).is_err() {
        world.load("changes.csv", "s", "").fails(1, &["stash", "permission denied"]);
    }
    fs::set_permissions(world.path("stash"), fs::Permissions::from_mode(0o700)).expect("set");
}

fn on_catalog<T>(world: &World, work: impl AsyncFnOnce(&mut sqlx::SqliteConnection) -> T) -> T {
    let url = format!("sqlite://{}", world.path("stash/catalog.sqlite").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection =
            SqliteConnectOptions::from_str(&url).expect("a URL").connect().await.expect("open");
        let done = work(&mut connection).await;
        connection.close().await.expect("closed");
        done
    })
}

#[test]
fn a_catalog_of_a_newer_version_is_refused_and_left_alone() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.load("changes.csv", "s", "").ok();
    on_catalog(&world, async |catalog| {
        let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (9999, 'later', 1, x'00', 0)";
        sqlx::query(newer).execute(catalog).await.expect("inserted");
    });
    for words in ["sinks", "verify", "read --sink s"] {
        world.run(words).fails(1, &["catalog.sqlite", "version 9999", "upgrade it"]);
    }
    on_catalog(&world, async |catalog| {
        sqlx::query("DELETE FROM _sqlx_migrations WHERE version = 9999")
            .execute(catalog)
            .await
            .expect("gone");
    });
    world.at_rest();
}

#[test]
fn a_write_lock_that_another_process_holds_is_waited_for_and_then_named() {
    let world = World::new();
    let first = world.changes("first.csv", 0..2);
    world.changes("second.csv", 2..4);
    world.load("first.csv", "s", "").ok();
    on_catalog(&world, async |catalog| {
        sqlx::query("BEGIN IMMEDIATE").execute(&mut *catalog).await.expect("locked");
        world.load("second.csv", "s", "--resume").fails(1, &["catalog.sqlite", "lock"]);
        sqlx::query("ROLLBACK").execute(&mut *catalog).await.expect("unlocked");
    });
    assert_eq!(world.sums("s"), first);
    world.load("second.csv", "s", "--resume").ok();
    world.at_rest();
}

#[test]
fn diffs_that_sum_beyond_64_bits_are_told_as_a_fault_of_the_file() {
    let world = World::new();
    let max = i64::MAX;
    world.write("changes.csv", &format!("id,t,d\n1,1,1\n2,5,{max}\n2,5,{max}\n"));
    let error = world.load("changes.csv", "s", "").fails(
        1,
        &["changes.csv into sink s, times [2, 6)", "at time 5", "beyond i64", "correct the file", "accepted"],
    );
    assert!(!error.contains("new incarnation") && !error.contains("sink k"), "{error}");
    world.at_rest();
}
