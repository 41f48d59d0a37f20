//! The suite over a file and over memory, and what only a file can do wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{ConnectOptions, Connection, SqliteConnection};
use stash_types::IdSource;
use tokio::task::JoinSet;

use super::SqliteCatalog;
use super::connection::{options, primary_code};
use crate::suite::{Setup, World};
use crate::testing::{ManualClock, SeededIds};
use crate::{Catalog, CatalogError};

async fn open_at(path: &Path, clock: &Arc<ManualClock>, seed: u64) -> Result<SqliteCatalog, CatalogError> {
    let clock = Arc::clone(clock);
    SqliteCatalog::open_with(path, clock, Arc::new(SeededIds::new(seed)), Duration::from_millis(200)).await
}

fn new_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("catalog.db");
    (folder, path)
}

async fn on_file() -> (Setup, tempfile::TempDir) {
    let (folder, path) = new_folder();
    let clock = Arc::new(ManualClock::at(1_000_000));
    let patient = |seed| {
        let (path, clock) = (path.clone(), Arc::clone(&clock));
        async move { SqliteCatalog::open(&path, clock, Arc::new(SeededIds::new(seed))).await.expect("opened") }
    };
    let (catalog, other) = (patient(1).await, patient(2).await);
    let setup =
        Setup { catalog: Arc::new(catalog), other: Arc::new(other), clock, ids: Arc::new(SeededIds::new(3)) };
    (setup, folder)
}

async fn in_memory() -> (Setup, ()) {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let (its_clock, its_ids) = (Arc::clone(&clock), Arc::new(SeededIds::new(1)));
    let catalog: Arc<dyn Catalog> =
        Arc::new(SqliteCatalog::in_memory(its_clock, its_ids).await.expect("opened"));
    (Setup { other: Arc::clone(&catalog), catalog, clock, ids: Arc::new(SeededIds::new(3)) }, ())
}

mod file {
    catalog_suite!(super::on_file);
}

mod memory {
    catalog_suite!(super::in_memory);
}

async fn raw(path: &Path) -> SqliteConnection {
    options(path, Duration::from_secs(5)).connect().await.expect("a bare connection")
}

async fn execute(path: &Path, sql: &'static str) {
    let mut connection = raw(path).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.expect("executed");
    connection.close().await.expect("closed");
}

async fn refusal(path: &Path) -> CatalogError {
    open_at(path, &Arc::new(ManualClock::at(0)), 1).await.map(drop).expect_err("refused")
}

#[tokio::test]
async fn looking_needs_no_lock_that_a_writer_holds() {
    let (_folder, path) = new_folder();
    let clock = Arc::new(ManualClock::at(0));
    open_at(&path, &clock, 1).await.expect("created").close().await;
    let mut writer = raw(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut writer).await.expect("locked");
    let catalog = open_at(&path, &clock, 2).await.expect("opened beside the writer");
    assert!(catalog.sinks(true).await.expect("read beside the writer").is_empty());
}

/// A catalog of one sink.
async fn declared(path: &Path) -> World {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let catalog: Arc<dyn Catalog> = Arc::new(open_at(path, &clock, 1).await.expect("opened"));
    let setup = Setup { other: Arc::clone(&catalog), catalog, clock, ids: Arc::new(SeededIds::new(3)) };
    World::new(&setup).await
}

/// A catalog of one sink with one batch of one part, closed again.
async fn written(path: &Path) -> World {
    let world = declared(path).await;
    let a = world.open("a").await.id;
    world.accept(a, crate::suite::span(0, 5), &[1]).await;
    world.setup.catalog.close().await;
    world
}

#[tokio::test]
async fn a_fixture_of_version_1_opens_and_reads() {
    let (_folder, path) = new_folder();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sqlite-v1.db");
    std::fs::copy(fixture, &path).expect("copied");
    let catalog = open_at(&path, &Arc::new(ManualClock::at(0)), 1).await.expect("opened");
    let sinks = catalog.sinks(false).await.expect("listed");
    let sink = sinks.first().expect("one sink").spec.id;
    let slice = catalog.chain(sink, stash_types::Frontier::MIN, 10).await.expect("a chain");
    let [first, second] = slice.batches.as_slice() else { panic!("two batches, not {:?}", slice.batches) };
    assert_eq!((first.parts.len(), first.inline.len(), first.extent.as_u64()), (2, 1, 9));
    assert_eq!((second.parts.len(), second.seq), (1, 2));
    assert_eq!(catalog.consumers(sink).await.expect("listed").len(), 1);
    assert_eq!(catalog.deletions_queued(None).await.expect("a count"), 1);
    assert_eq!(catalog.incarnations(sink, true).await.expect("listed").len(), 2);
    assert!(catalog.history(Default::default()).await.expect("history").len() > 5);
    catalog.close().await;
}

#[tokio::test]
async fn a_newer_version_is_refused_by_name_and_left_as_it_is() {
    let (_folder, path) = new_folder();
    written(&path).await;
    execute(
        &path,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (99, 'later', 1, x'00', 0)",
    )
    .await;
    let before = std::fs::read(&path).expect("read");
    match refusal(&path).await {
        CatalogError::Newer { found, known, .. } => assert_eq!((found, known), (99, 1)),
        other => panic!("another refusal: {other}"),
    }
    assert_eq!(std::fs::read(&path).expect("read"), before);
}

#[tokio::test]
async fn a_migration_that_was_edited_is_refused() {
    let (_folder, path) = new_folder();
    written(&path).await;
    execute(&path, "UPDATE _sqlx_migrations SET checksum = x'0011' WHERE version = 1").await;
    let refused = refusal(&path).await;
    assert!(matches!(refused, CatalogError::Determinate { retry: false, .. }), "{refused:?}");
    assert!(refused.to_string().contains("migration 1"), "{refused}");
}

#[tokio::test]
async fn a_database_of_something_else_is_refused() {
    let (_folder, path) = new_folder();
    let mut other = options(&path, Duration::ZERO).create_if_missing(true).connect().await.expect("made");
    sqlx::raw_sql("CREATE TABLE notes (text TEXT)").execute(&mut other).await.expect("executed");
    other.close().await.expect("closed");
    let refused = refusal(&path).await;
    assert!(refused.to_string().contains("something else"), "{refused}");
    std::fs::write(&path, b"this is no database at all, but it is long enough to be looked at as one")
        .expect("written");
    let refused = refusal(&path).await;
    assert!(matches!(refused, CatalogError::Damaged { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let (folder, _) = new_folder();
    let refused = refusal(&folder.path().join("nowhere/catalog.db")).await;
    assert!(refused.to_string().contains("nowhere"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_handles_open_a_fresh_file_at_once_as_one_catalog() {
    for _ in 0..3 {
        let (_folder, path) = new_folder();
        let mut tasks = JoinSet::new();
        for seed in 0..8 {
            let path = path.clone();
            tasks.spawn(async move {
                let catalog =
                    SqliteCatalog::open(&path, Arc::new(ManualClock::at(0)), Arc::new(SeededIds::new(seed)));
                let catalog = catalog.await.expect("opened");
                let id = catalog.id();
                catalog.close().await;
                id
            });
        }
        let ids = tasks.join_all().await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

/// What a child process of the next test does, in a folder that says so.
#[tokio::test]
#[ignore = "runs as a child of four_processes_open_a_fresh_file_and_each_writes"]
async fn child_that_opens_and_declares() {
    let Ok(seed) = std::fs::read_to_string("seed") else { return };
    let seed = seed.parse().expect("a seed");
    let path = Path::new("../catalog.db");
    let ids = Arc::new(SeededIds::new(seed));
    let catalog: Arc<dyn Catalog> = Arc::new(
        SqliteCatalog::open(path, Arc::new(ManualClock::at(0)), Arc::clone(&ids) as Arc<dyn IdSource>)
            .await
            .expect("opened"),
    );
    let setup = Setup { other: Arc::clone(&catalog), catalog, clock: Arc::new(ManualClock::at(0)), ids };
    for n in 0..5 {
        let spec = crate::suite::declaration(&setup, &format!("sink-{seed}-{n}"));
        setup.catalog.declare_sink(spec).await.expect("declared");
    }
    setup.catalog.close().await;
}

#[tokio::test]
async fn four_processes_open_a_fresh_file_and_each_writes() {
    let (folder, path) = new_folder();
    let children: Vec<_> = (0..4)
        .map(|seed| {
            let inside = folder.path().join(format!("child-{seed}"));
            std::fs::create_dir(&inside).expect("made");
            std::fs::write(inside.join("seed"), seed.to_string()).expect("written");
            std::process::Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "sqlite::tests::child_that_opens_and_declares", "--ignored"])
                .current_dir(inside)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("started")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let catalog = open_at(&path, &Arc::new(ManualClock::at(0)), 9).await.expect("opened");
    assert_eq!(catalog.sinks(false).await.expect("listed").len(), 20);
    assert_eq!(catalog.revision().await.expect("a revision"), 20);
}

#[tokio::test]
async fn a_write_lock_held_elsewhere_is_a_retry_and_names_the_file() {
    let (_folder, path) = new_folder();
    let world = written(&path).await;
    let catalog = open_at(&path, &world.setup.clock, 5).await.expect("opened");
    let mut other = raw(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.expect("locked");
    match catalog.drop_sink(world.sink, true).await {
        Err(error @ CatalogError::Determinate { retry: true, .. }) => {
            let text = error.to_string();
            assert!(text.contains("catalog.db") && text.contains("another process"), "{text}");
            let CatalogError::Determinate { source: Some(source), .. } = error else { panic!("a cause") };
            assert_eq!(source.downcast_ref::<sqlx::Error>().and_then(primary_code), Some(5));
        }
        answer => panic!("not refused: {answer:?}"),
    }
    assert_eq!(catalog.head(world.sink).await.expect("reading goes on").next_seq, 2);
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.expect("let go");
    catalog.drop_sink(world.sink, true).await.expect("dropped");
    catalog.close().await;
}

#[tokio::test]
async fn an_older_copy_under_a_session_is_noticed() {
    let (_folder, path) = new_folder();
    let world = written(&path).await;
    let catalog = open_at(&path, &world.setup.clock, 5).await.expect("opened");
    let saw = catalog.revision().await.expect("a revision");
    execute(&path, "UPDATE catalog SET revision = revision - 2").await;
    let behind = |error: CatalogError| match error {
        CatalogError::CatalogBehind { saw, found, .. } => (saw, found),
        other => panic!("another error: {other}"),
    };
    assert_eq!(behind(catalog.revision().await.expect_err("noticed")), (saw, saw - 2));
    let answer = catalog.changed(saw, Duration::from_secs(30)).await;
    assert_eq!(behind(answer.expect_err("noticed")), (saw, saw - 2));
    let answer = catalog.drop_sink(world.sink, true).await;
    assert_eq!(behind(answer.expect_err("noticed before it writes")), (saw, saw - 2));
    catalog.close().await;
}

#[tokio::test]
async fn a_damaged_row_is_named_by_table_row_and_column() {
    for (table, sql) in [
        ("chains", "PRAGMA ignore_check_constraints = ON; UPDATE chains SET upper = x'00'"),
        ("batches", "UPDATE batches SET facts = x'63'"),
        ("batches", "UPDATE batches SET facts = CAST(facts || x'00' AS BLOB)"),
        ("parts", "UPDATE parts SET key = 'nonsense'"),
        ("parts", "UPDATE parts SET descriptor = x'0102'"),
        ("inline_runs", "UPDATE inline_runs SET payload = x'00'"),
        ("batches", "UPDATE batches SET extent = x'00000000000000ff'"),
    ] {
        let (_folder, path) = new_folder();
        let world = written(&path).await;
        execute(&path, sql).await;
        let catalog = open_at(&path, &world.setup.clock, 5).await.expect("opened");
        match catalog.chain(world.sink, stash_types::Frontier::MIN, 10).await {
            Err(CatalogError::Damaged { what, .. }) => assert!(what.contains(table), "{sql}: {what}"),
            answer => panic!("{sql}: not noticed: {answer:?}"),
        }
        catalog.close().await;
    }
}

#[tokio::test]
async fn history_keeps_the_newest_rows() {
    let (_folder, path) = new_folder();
    let world = written(&path).await;
    execute(
        &path,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100300)
         INSERT INTO history (at, sink, event, detail) SELECT 0, id, 'filler', '' FROM n, sinks",
    )
    .await;
    let catalog = open_at(&path, &world.setup.clock, 5).await.expect("opened");
    let key =
        world.key(stash_types::IncarnationId::from_uuid(uuid::Uuid::nil()), crate::suite::span(0, 1), 1);
    let keys: Vec<_> = (0..300)
        .map(|n| {
            let mut key = key;
            key.name.n = n;
            key
        })
        .collect();
    catalog.enqueue(world.sink, &keys, crate::DeletionReason::Surrendered).await.expect("queued");
    let rows = catalog.history(Default::default()).await.expect("history");
    assert_eq!(rows.len(), 100_000);
    assert_eq!(rows.last().map(|row| row.event.as_str()), Some("queued"));
    catalog.close().await;
}

#[tokio::test]
async fn a_closed_handle_says_so() {
    let (_folder, path) = new_folder();
    let world = written(&path).await;
    let answer = world.setup.catalog.head(world.sink).await;
    assert!(matches!(answer, Err(CatalogError::Closed { .. })), "{answer:?}");
    let answer = world.setup.catalog.drop_sink(world.sink, true).await;
    assert!(answer.expect_err("refused").to_string().contains("open the catalog again"));
    assert!(!path.with_file_name("catalog.db-wal").exists(), "the last connection checkpoints the log");
}

#[tokio::test]
async fn the_row_of_a_released_batch_stays_until_its_last_key_is_gone() {
    let (_folder, path) = new_folder();
    let mut world = written(&path).await;
    world.setup.catalog = Arc::new(open_at(&path, &world.setup.clock, 5).await.expect("opened"));
    let (_, session) = world.register("c", crate::StartAt::Beginning).await.expect("registered");
    let mut look = raw(&path).await;
    let mut rows = async || -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM batches").fetch_one(&mut look).await.expect("counted")
    };
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    assert_eq!(rows().await, 1);
    let due = world.catalog().deletions_due(9).await.expect("due");
    world.catalog().dequeue(&[due[0].key]).await.expect("dequeued");
    assert_eq!(rows().await, 0);
    world.setup.catalog.close().await;
}

#[tokio::test]
async fn the_row_of_a_released_batch_goes_with_the_last_of_its_keys() {
    let (_folder, path) = new_folder();
    let world = declared(&path).await;
    let (a, offered) = (world.open("a").await.id, crate::suite::span(0, 5));
    world.accept(a, offered, &[1, 2]).await;
    let (_, session) = world.register("c", crate::StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    let rows = async || {
        let mut connection = raw(&path).await;
        let sql = "SELECT count(*) FROM batches WHERE sink = $1";
        let count: i64 = sqlx::query_scalar(sql)
            .bind(world.sink.to_string())
            .fetch_one(&mut connection)
            .await
            .expect("counted");
        connection.close().await.expect("closed");
        count
    };
    for (n, left) in [(1, 1), (2, 0)] {
        assert_eq!(rows().await, 1, "a key is left");
        world.setup.catalog.dequeue(&[world.key(a, offered, n)]).await.expect("dequeued");
        assert_eq!(rows().await, left);
    }
    world.setup.catalog.close().await;
}

#[tokio::test]
async fn an_insert_that_fails_is_not_taken_for_one_that_was_made_before() {
    let (_folder, path) = new_folder();
    let world = declared(&path).await;
    let a = world.open("a").await.id;
    for (table, sql) in [
        ("batches", "CREATE TRIGGER b BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'no room'); END"),
        (
            "parts",
            "DROP TRIGGER b; CREATE TRIGGER p BEFORE INSERT ON parts BEGIN SELECT RAISE(ABORT, 'no room'); END",
        ),
    ] {
        execute(&path, sql).await;
        match world.setup.catalog.commit(world.accepting(a, crate::suite::span(0, 5), &[1]).await).await {
            Err(CatalogError::InvalidUsage(misuse)) => panic!("{table}: the caller is blamed: {misuse}"),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                assert!(cause.is_some_and(|cause| cause.contains("no room")), "{table}: {error}");
            }
            Ok(done) => panic!("{table}: {done:?}"),
        }
    }
    execute(&path, "DROP TRIGGER p").await;
    world.accept(a, crate::suite::span(0, 5), &[1]).await;
    world.setup.catalog.close().await;
}
