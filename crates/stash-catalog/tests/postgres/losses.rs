//! Answers that are lost, statements that arrive late, servers that die.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use stash_catalog::suite::{World, at, span};
use stash_catalog::testing::SeededIds;
use stash_catalog::{Cas, CatalogError, ClockSource, Committed, PostgresCatalog, PostgresOptions, StartAt};
use stash_testkit::servers::PostgresServer;
use tokio::task::JoinSet;

use crate::interleavings::waiting;
use crate::proxy::{Cut, Proxy};
use crate::{Place, execute, fresh, number};

/// A world whose first handle goes by a proxy.
async fn by_proxy() -> Option<(Place, Proxy, World)> {
    let place = fresh().await?;
    let proxy = Proxy::start(place.server.port()).await;
    let options = PostgresOptions::from_url(&place.url_at(proxy.port())).expect("a URL");
    let catalog = place.try_open(options, 1).await.expect("opened");
    let world = World::new(&place.setup_of(catalog, place.open(2).await)).await;
    Some((place, proxy, world))
}

fn unknown<T: std::fmt::Debug>(answer: Result<T, CatalogError>) {
    assert!(matches!(answer, Err(CatalogError::Indeterminate { .. })), "{answer:?}");
}

#[tokio::test]
async fn from_a_view_to_an_accepted_batch_are_two_statements() {
    let Some((_place, proxy, world)) = by_proxy().await else { return };
    let a = world.open("a").await.id;
    // The first of each kind is prepared.
    world.accept(a, span(0, 1), &[1]).await;
    for time in 1..10 {
        let mut request = world.accepting(a, span(time, time + 1), &[1, 2, 3]).await;
        let before = proxy.bound();
        let view = world.setup.catalog.view(world.sink, a).await.expect("a view");
        request.expected_fence = view.head.fence;
        assert!(matches!(world.setup.catalog.commit(request).await, Ok(Cas::Done(_))));
        assert_eq!(proxy.bound() - before, 2);
    }
    // A lost race is one statement that writes nothing, and one that reads why.
    let lost = world.accepting(a, span(10, 11), &[1]).await;
    world.accept(a, span(10, 12), &[1]).await;
    let before = proxy.bound();
    assert!(matches!(world.setup.catalog.commit(lost).await, Ok(Cas::Conflict(_))));
    assert_eq!(proxy.bound() - before, 2);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_read_back_and_made_once() {
    let Some((_place, proxy, world)) = by_proxy().await else { return };
    let a = world.open("a").await.id;
    for (lower, upper) in [(0, 5), (5, 9)] {
        let request = world.accepting(a, span(lower, upper), &[1]).await;
        proxy.cut(Cut::Answer, &request.commit.to_string());
        unknown(world.setup.catalog.commit(request.clone()).await);
        proxy.settled().await;
        let committed = world.setup.catalog.read_back(world.sink, request.commit).await.expect("read back");
        let committed = committed.expect("it was made");
        assert_eq!((committed.upper, world.upper().await), (at(upper), at(upper)));
        assert_eq!(world.setup.catalog.commit(request).await.expect("answered"), Cas::Done(committed));
    }
    assert_eq!(world.spans(0).await, [(0, 5, 5), (5, 9, 9)]);
}

#[tokio::test]
async fn a_commit_that_was_said_not_to_be_made_never_is_although_it_arrives_later() {
    let Some((_place, proxy, world)) = by_proxy().await else { return };
    let a = world.open("a").await.id;
    let request = world.accepting(a, span(0, 5), &[1]).await;
    proxy.cut(Cut::Late, &request.commit.to_string());
    unknown(world.setup.catalog.commit(request.clone()).await);
    let head = world.setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!((head.upper, head.fence), (request.expected_upper, request.expected_fence), "it would fit");
    assert_eq!(world.setup.catalog.read_back(world.sink, request.commit).await.expect("read back"), None);
    proxy.release().await;
    assert_eq!(world.upper().await, at(0));
    // Decided again, it is made.
    world.accept(a, span(0, 5), &[1]).await;
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
}

#[tokio::test]
async fn reading_back_waits_for_a_commit_that_still_runs() {
    let Some((place, proxy, world)) = by_proxy().await else { return };
    let a = world.open("a").await.id;
    let request = world.accepting(a, span(0, 5), &[1]).await;
    let mut bare = place.bare().await;
    execute(&mut bare, "BEGIN; SELECT one FROM catalog FOR UPDATE").await;
    proxy.cut(Cut::Answer, &request.commit.to_string());
    unknown(world.setup.catalog.commit(request.clone()).await);
    waiting(&place, 1).await;
    let (through, sink) = (Arc::clone(&world.setup.other), world.sink);
    let mut asked = JoinSet::new();
    asked.spawn(async move { through.read_back(sink, request.commit).await });
    waiting(&place, 2).await;
    execute(&mut bare, "COMMIT").await;
    let committed = asked.join_next().await.expect("one").expect("joined").expect("read back");
    assert_eq!(committed.map(|committed: Committed| committed.upper), Some(at(5)));
}

#[tokio::test]
async fn an_acknowledgement_whose_answer_was_lost_is_asked_again() {
    let Some((_place, proxy, world)) = by_proxy().await else { return };
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    // The connection goes at its first statement, before anything is committed: tried again by itself.
    proxy.cut(Cut::Answer, &world.sink.to_string());
    assert_eq!(world.acknowledge("c", session, 5).await.expect("acknowledged"), (1, 1));
}

#[tokio::test]
async fn a_session_that_the_server_ends_is_replaced() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    let mut bare = place.bare().await;
    for time in 0..3 {
        // All of this process but this one: those in the pool of a handle are found dead when they are used.
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'stash' AND state = 'idle' AND query LIKE '%' || $$SCHEMA$$ || '%'";
        number(&mut bare, &sql.replace("SCHEMA", &world.sink.to_string())).await;
        let request = world.accepting(a, span(time, time + 1), &[1]).await;
        match world.setup.catalog.commit(request.clone()).await {
            Ok(Cas::Done(_)) => {}
            Err(CatalogError::Indeterminate { .. }) => {
                let read =
                    world.setup.catalog.read_back(world.sink, request.commit).await.expect("read back");
                if read.is_none() {
                    world.accept(a, span(time, time + 1), &[1]).await;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.spans(0).await, [(0, 1, 1), (1, 2, 2), (2, 3, 3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_keeps_what_was_done_and_nothing_else() {
    let Some(server) = PostgresServer::start_private().await else { return };
    let options = PostgresOptions::from_url(&server.url()).expect("a URL");
    let open = async |seed| {
        let ids = Arc::new(SeededIds::new(seed));
        PostgresCatalog::open(options.clone(), ClockSource::Database, ids).await.expect("opened")
    };
    let clock = Arc::new(stash_catalog::testing::ManualClock::at(0));
    let setup = stash_catalog::suite::Setup {
        catalog: Arc::new(open(1).await),
        other: Arc::new(open(2).await),
        clock,
        ids: Arc::new(SeededIds::new(3)),
    };
    let world = World::new(&setup).await;
    let mut done = 0;
    for round in 0..3u64 {
        let incarnation = open_patiently(&world).await;
        let (through, sink) = (Arc::clone(&setup.catalog), world.sink);
        let first = world.upper().await.as_u64();
        let mut writing = JoinSet::new();
        let (started, mut counts) = tokio::sync::watch::channel(0u64);
        let writer = world.clone();
        writing.spawn(async move {
            let mut time = first;
            loop {
                let head = match through.head(sink).await {
                    Ok(head) => head,
                    Err(_) => return (time, None),
                };
                let mut request = writer_request(&writer, incarnation, time, &head).await;
                request.expected_fence = head.fence;
                let commit = request.commit;
                match through.commit(request).await {
                    Ok(Cas::Done(_)) => time += 1,
                    Err(CatalogError::Indeterminate { .. }) => return (time, Some(commit)),
                    Err(CatalogError::Determinate { .. }) => return (time, None),
                    other => panic!("{other:?}"),
                }
                started.send_replace(time - first);
            }
        });
        counts.wait_for(|count| *count >= 10 + round * 7).await.expect("it commits");
        server.kill().await;
        let (time, asked) = writing.join_next().await.expect("one").expect("joined");
        server.restart().await;
        let read = match asked {
            Some(commit) => patiently(async || setup.catalog.read_back(world.sink, commit).await).await,
            None => None,
        };
        let upper = patiently(async || setup.catalog.head(world.sink).await).await.upper.as_u64();
        assert_eq!(upper, time + u64::from(read.is_some()), "round {round}");
        assert!(time > done);
        done = time;
    }
    let chain = patiently(async || setup.other.chain(world.sink, at(0), 10_000).await).await;
    assert_eq!(chain.batches.last().map(|batch| batch.upper), Some(chain.head.upper));
}

async fn writer_request(
    world: &World,
    incarnation: stash_types::IncarnationId,
    time: u64,
    head: &stash_catalog::HeadRow,
) -> stash_catalog::CommitRequest {
    use stash_types::IdSource;
    let description = span(time, time + 1);
    let part = world.part(world.name(incarnation, description, time));
    stash_catalog::CommitRequest {
        commit: stash_types::CommitId::from_uuid(world.setup.ids.random()),
        sink: world.sink,
        incarnation,
        expected_upper: head.upper,
        expected_fence: head.fence,
        description,
        outcome: stash_catalog::OutcomeKind::Accepted,
        resolution: stash_catalog::Resolution::Accept {
            batch: stash_catalog::NewBatch {
                id: stash_types::BatchId::from_uuid(world.setup.ids.random()),
                lower: head.upper,
                upper: description.upper(),
                facts: part.descriptor.facts,
                parts: vec![part],
                inline: vec![],
            },
            unlink: vec![],
        },
        status: head.status.clone(),
    }
}

/// Asks until the server is back: what may be tried again is.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, CatalogError>) -> T {
    for _ in 0..1000 {
        match ask().await {
            Ok(answer) => return answer,
            Err(CatalogError::Determinate { retry: true, .. } | CatalogError::Indeterminate { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the server did not come back");
}

async fn open_patiently(world: &World) -> stash_types::IncarnationId {
    patiently(async || world.setup.catalog.head(world.sink).await).await;
    world.open("a").await.id
}

/// Lets `work` be woken until it was polled `polls` times, and drops it there.
async fn dropped_after(polls: u32, work: impl Future) {
    let mut work = std::pin::pin!(work);
    let mut polled = 0;
    poll_fn(|context| {
        polled += 1;
        match work.as_mut().poll(context) {
            Poll::Pending if polled < polls => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_answered_is_durable_whatever_was_cancelled_on_the_connection_before() {
    let Some(place) = fresh().await else { return };
    // One connection, so that each operation gets the one that the last left behind.
    let mut options = place.options();
    options.connections_max = 1;
    let catalog = place.try_open(options, 1).await.expect("opened");
    let world = World::new(&place.setup_of(catalog, place.open(2).await)).await;
    let a = world.open("a").await.id;
    // At which poll a transaction begins follows from what the pool is about, so there are many tries.
    for time in 0..256 {
        let catalog = &world.setup.catalog;
        let polls = u32::try_from(1 + time / 2 % 4).expect("small");
        match time % 2 {
            0 => dropped_after(polls, catalog.chain(world.sink, at(0), 10)).await,
            _ => dropped_after(polls, catalog.renew_lease(world.sink, a, 1_000)).await,
        }
        world.accept(a, span(time, time + 1), &[1]).await;
        let head = world.setup.other.head(world.sink).await.expect("a head");
        assert_eq!(head.upper, at(time + 1), "accepted, and nobody else sees it; dropped at poll {polls}");
    }
}
