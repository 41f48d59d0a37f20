//! Opening: many at once, versions, rights, sessions, TLS; and being woken.

use std::sync::Arc;
use std::time::Duration;

use stash_catalog::suite::{World, declaration, span};
use stash_catalog::testing::SeededIds;
use stash_catalog::{Catalog, CatalogError, ClockSource, PostgresCatalog, PostgresOptions};
use stash_testkit::servers::PostgresServer;
use tokio::task::JoinSet;

use crate::{Place, execute, fresh, number, written};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn refusal(place: &Place) -> CatalogError {
    place.try_open(place.options(), 9).await.map(drop).expect_err("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_handles_open_a_fresh_schema_at_once_as_one_catalog() {
    for _ in 0..3 {
        let Some(place) = fresh().await else { return };
        let mut tasks = JoinSet::new();
        for seed in 0..8 {
            let place = place.clone();
            tasks.spawn(async move {
                let catalog = place.open(seed).await;
                let id = catalog.id();
                catalog.close().await;
                id
            });
        }
        let ids = tasks.join_all().await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

#[tokio::test]
async fn who_only_looks_makes_no_catalog() {
    let Some(place) = fresh().await else { return };
    let look = || {
        PostgresCatalog::open_existing(place.options(), ClockSource::Database, Arc::new(SeededIds::new(3)))
    };
    assert!(look().await.expect("answers").is_none());
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = current_setting('search_path')";
    assert_eq!(number(&mut place.bare().await, schemas).await, 0, "looking made the schema");
    let made = place.open(1).await;
    let found = look().await.expect("answers").expect("it is there now");
    assert_eq!(found.id(), made.id());
}

#[tokio::test]
async fn two_schemas_of_a_database_are_two_catalogs() {
    let (Some(one), Some(two)) = (fresh().await, fresh().await) else { return };
    let (first, second) = (one.open(1).await, two.open(2).await);
    assert_ne!(first.id(), second.id());
    World::new(&one.setup().await).await;
    assert_eq!(first.sinks(true).await.expect("listed").len(), 1);
    assert_eq!(second.sinks(true).await.expect("listed").len(), 0);
}

#[tokio::test]
async fn a_newer_version_is_refused_by_name() {
    let Some(place) = fresh().await else { return };
    written(&place).await;
    let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
               VALUES (99, 'later', true, '\\x00', 0)";
    execute(&mut place.bare().await, sql).await;
    match refusal(&place).await {
        CatalogError::Newer { found, known, .. } => assert_eq!((found, known), (99, 1)),
        other => panic!("another refusal: {other}"),
    }
}

#[tokio::test]
async fn a_migration_that_was_edited_is_refused() {
    let Some(place) = fresh().await else { return };
    written(&place).await;
    execute(&mut place.bare().await, "UPDATE _sqlx_migrations SET checksum = '\\x0011'").await;
    let refused = refusal(&place).await;
    assert!(matches!(refused, CatalogError::Determinate { retry: false, .. }), "{refused:?}");
    assert!(refused.to_string().contains("migration 1"), "{refused}");
}

#[tokio::test]
async fn a_schema_of_something_else_is_refused() {
    let Some(place) = fresh().await else { return };
    let schema = &place.schema;
    execute(&mut place.bare().await, &format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.notes (n INT)"))
        .await;
    let refused = refusal(&place).await;
    assert!(refused.to_string().contains("something else"), "{refused}");
    assert_eq!(number(&mut place.bare().await, "SELECT count(*) FROM notes").await, 0);
}

#[tokio::test]
async fn a_catalog_that_stands_is_opened_without_the_right_to_make_tables() {
    let Some(place) = fresh().await else { return };
    let world = written(&place).await;
    let (schema, role) = (&place.schema, format!("user_{}", place.schema));
    let sql = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    );
    execute(&mut place.bare().await, &sql).await;
    let url = format!("postgres://{role}:secret@127.0.0.1:{}/postgres?schema={schema}", place.server.port());
    let options = PostgresOptions::from_url(&url).expect("a URL");
    let catalog = place.try_open(options.clone(), 5).await.expect("opened");
    catalog.drop_sink(world.sink, true).await.expect("dropped");
    execute(&mut place.bare().await, &format!("REVOKE INSERT ON history FROM {role}")).await;
    let refused = catalog.declare_sink(declaration(&world.setup, "more")).await.expect_err("no right");
    assert!(refused.to_string().contains("privilege"), "{refused}");
}

#[tokio::test]
async fn a_server_that_cannot_be_written_to_is_refused_by_name() {
    let Some(place) = fresh().await else { return };
    let database = place.server.new_database_name("reads").await;
    let url = place.server.url_of(&database, place.server.port());
    let options = PostgresOptions::from_url(&url).expect("a URL");
    place.try_open(options.clone(), 1).await.expect("opened").close().await;
    place
        .server
        .query("postgres", &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"))
        .await;
    let refused = place.try_open(options, 1).await.map(drop).expect_err("refused");
    assert!(refused.to_string().contains("default_transaction_read_only"), "{refused}");
}

#[tokio::test]
async fn sessions_are_durable_whatever_the_database_has_as_its_default() {
    let Some(place) = fresh().await else { return };
    let database = place.server.new_database_name("lax").await;
    place.server.query("postgres", &format!("ALTER DATABASE {database} SET synchronous_commit = off")).await;
    let url = place.server.url_of(&database, place.server.port());
    let options = PostgresOptions::from_url(&url).expect("a URL");
    place.try_open(options, 1).await.expect("its sessions have it on").close().await;
}

#[tokio::test]
async fn what_cannot_be_reached_is_named_without_the_password() {
    let Some(place) = fresh().await else { return };
    let port = place.server.port();
    for (url, named) in [
        (format!("postgres://stash:canary4711@127.0.0.1:{port}/postgres"), "password"),
        (format!("postgres://stash:canary4711@127.0.0.1:{port}/postgres?sslmode=require"), "TLS"),
        ("postgres://stash:canary4711@127.0.0.1:1/postgres".to_owned(), "127.0.0.1:1"),
    ] {
        let options = PostgresOptions::from_url(&url).expect("a URL");
        let refused = place.try_open(options, 1).await.map(drop).expect_err("refused");
        assert!(refused.to_string().contains(named), "{refused}");
        let mut printed = format!("{refused:?} {refused}");
        let mut cause = std::error::Error::source(&refused);
        while let Some(error) = cause {
            printed += &format!(" {error:?} {error}");
            cause = error.source();
        }
        assert!(!printed.contains("canary4711"), "{printed}");
    }
}

#[tokio::test]
async fn with_tls_the_server_proves_who_it_is() {
    let options = stash_testkit::servers::PostgresOptions { tls: true, ..Default::default() };
    let Some(server) = PostgresServer::start(options).await else { return };
    let authority = server.authority().expect("an authority");
    let open = async |more: &str| {
        let url = format!("{}?sslmode=verify-full{more}", server.url());
        let options = PostgresOptions::from_url(&url).expect("a URL");
        PostgresCatalog::open(options, ClockSource::Database, Arc::new(SeededIds::new(1))).await
    };
    let catalog = open(&format!("&sslrootcert={}", authority.display())).await.expect("opened");
    catalog.sinks(true).await.expect("listed");
    catalog.close().await;
    let refused = open("").await.map(drop).expect_err("an authority that nobody knows");
    assert!(refused.to_string().contains("TLS"), "{refused}");
}

#[tokio::test]
async fn an_older_copy_under_a_session_is_noticed() {
    let Some(place) = fresh().await else { return };
    let world = written(&place).await;
    let catalog = &world.setup.catalog;
    let view = catalog.incarnations(world.sink, true).await.expect("listed");
    let commit = world.accepting(view[0].id, span(5, 9), &[2]).await;
    let saw = catalog.revision().await.expect("a revision");
    execute(&mut place.bare().await, "UPDATE catalog SET revision = revision - 2").await;
    let behind = |error: CatalogError| match error {
        CatalogError::CatalogBehind { saw, found, .. } => (saw, found),
        other => panic!("another error: {other}"),
    };
    assert_eq!(behind(catalog.revision().await.expect_err("noticed")), (saw, saw - 2));
    let answer = catalog.changed(saw, Duration::from_secs(30)).await;
    assert_eq!(behind(answer.expect_err("noticed")), (saw, saw - 2));
    let answer = catalog.commit(commit).await;
    assert_eq!(behind(answer.expect_err("noticed before it writes")), (saw, saw - 2));
    let answer = catalog.drop_sink(world.sink, true).await;
    assert_eq!(behind(answer.expect_err("noticed before it writes")), (saw, saw - 2));
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
}

#[tokio::test]
async fn a_closed_handle_says_so() {
    let Some(place) = fresh().await else { return };
    let world = written(&place).await;
    let commit = world.accepting(world.open("b").await.id, span(5, 9), &[]).await;
    world.setup.catalog.close().await;
    for answer in [
        world.setup.catalog.head(world.sink).await.map(drop),
        world.setup.catalog.drop_sink(world.sink, true).await.map(drop),
        world.setup.catalog.commit(commit).await.map(drop),
    ] {
        let refused = answer.expect_err("refused");
        assert!(refused.to_string().contains("open the catalog again"), "{refused}");
    }
}

#[tokio::test]
async fn text_that_cannot_be_stored_as_it_is_does_not_stop_a_write() {
    let Some(place) = fresh().await else { return };
    let world = written(&place).await;
    let a = world.open("a").await.id;
    assert!(world.setup.catalog.close_incarnation(world.sink, a, "a\0b").await.expect("closed"));
    let state = world.setup.catalog.view(world.sink, a).await.expect("a view").incarnation.state;
    let reason = "a\u{fffd}b".to_owned();
    assert_eq!(state, stash_catalog::IncarnationState::Closed { reason });
}

#[tokio::test]
async fn leases_are_judged_by_the_database_s_own_clock() {
    let Some(place) = fresh().await else { return };
    let ids = || Arc::new(SeededIds::new(1));
    let catalog = PostgresCatalog::open(place.options(), ClockSource::Database, ids()).await.expect("opened");
    let (catalog, other) = (catalog, place.open(2).await);
    let world = World::new(&place.setup_of(catalog, other)).await;
    let a = world.open("a").await;
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let now = number(&mut place.bare().await, now).await;
    let opened = i64::try_from(a.opened.0).expect("a moment");
    assert!(opened <= now && now - opened < 600_000, "opened at {opened}, and it is {now}");
    // The clock of the test stands in 1970: by that nothing has run out.
    world.setup.catalog.renew_lease(world.sink, a.id, 0).await.expect("renewed");
    assert_eq!(world.setup.other.expire(world.sink, false).await.expect("looked").closed, []);
    assert_eq!(world.setup.catalog.expire(world.sink, true).await.expect("expired").closed, [a.id]);
    let b = world.open("b").await.id;
    world.accept(b, span(0, 5), &[1]).await;
    let accepted = i64::try_from(world.chain(0).await[0].accepted.0).expect("a moment");
    assert!(accepted >= now, "accepted at {accepted}, after {now}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_told_and_a_listener_that_was_lost_comes_back() {
    let Some(place) = fresh().await else { return };
    let mut options = place.options();
    // Whoever is not woken waits for an hour.
    options.poll_interval = Duration::from_secs(3600);
    let waiter: Arc<dyn Catalog> = Arc::new(place.try_open(options, 1).await.expect("opened"));
    let setup = place.setup().await;
    let mut bare = place.bare().await;
    for round in 0..3 {
        let seen = waiter.revision().await.expect("a revision");
        let mut waits = JoinSet::new();
        let waiting = Arc::clone(&waiter);
        waits.spawn(async move { waiting.changed(seen, Duration::from_secs(3600)).await });
        if round == 1 {
            // Every listener goes: what is written before it is back is noticed when it is.
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
            number(&mut bare, sql).await;
        }
        setup.catalog.declare_sink(declaration(&setup, &format!("sink-{round}"))).await.expect("declared");
        let found = tokio::time::timeout(PATIENCE, waits.join_all()).await.expect("woken");
        assert_eq!(found[0].as_ref().copied().expect("changed"), seen + 1);
    }
}
