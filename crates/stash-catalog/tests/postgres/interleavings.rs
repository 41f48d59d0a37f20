//! Two writes at once, stopped at chosen points: no order loses anything, and no snapshot is believed that is old.
//!
//! A bare connection holds the catalog's row: every write then stands with its head row taken and all else written,
//! and waits to raise the revision. A second write waits for the head row. That they wait is read from the server.

use std::future::Future;
use std::sync::Arc;

use sqlx::PgConnection;
use stash_catalog::suite::{World, at, span};
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, CommitRequest, Committed, DeletionReason, IncarnationState,
    Misuse, RegisterConsumer, Resolution, StartAt,
};
use stash_types::{CommitId, IdSource, PartKey, SessionId};
use tokio::task::JoinSet;

use crate::{Place, execute, fresh, number, other};

/// A write under way.
struct Running<T>(JoinSet<T>);

impl<T: Send + 'static> Running<T> {
    fn start(write: impl Future<Output = T> + Send + 'static) -> Running<T> {
        let mut set = JoinSet::new();
        set.spawn(write);
        Running(set)
    }

    async fn end(mut self) -> T {
        self.0.join_next().await.expect("one").expect("not cancelled")
    }
}

/// Holds back every write at its last step.
struct Gate<'p> {
    place: &'p Place,
    bare: PgConnection,
}

impl Gate<'_> {
    async fn shut(place: &Place) -> Gate<'_> {
        let mut bare = place.bare().await;
        execute(&mut bare, "BEGIN; SELECT one FROM catalog FOR UPDATE").await;
        Gate { place, bare }
    }

    /// Waits until so many sessions wait for a lock of this schema's tables.
    async fn waiting(&self, count: i64) {
        waiting(self.place, count).await;
    }

    async fn open(mut self) {
        execute(&mut self.bare, "COMMIT").await;
    }
}

/// Waits until so many sessions wait for a lock in this schema: of a row, which one waits for by its transaction, or of
/// a table.
pub(crate) async fn waiting(place: &Place, count: i64) {
    let mut look = place.bare().await;
    let sql = format!(
        "SELECT count(DISTINCT a.pid) FROM pg_stat_activity a JOIN pg_locks w ON w.pid = a.pid AND NOT w.granted
         WHERE EXISTS (SELECT FROM pg_locks t JOIN pg_class c ON c.oid = t.relation
                       JOIN pg_namespace n ON n.oid = c.relnamespace
                       WHERE t.pid = a.pid AND n.nspname = '{}')",
        place.schema
    );
    while number(&mut look, &sql).await != count {
        tokio::task::yield_now().await;
    }
}

fn commit(
    through: Arc<dyn Catalog>,
    request: CommitRequest,
) -> Running<Result<Cas<Committed>, CatalogError>> {
    Running::start(async move { through.commit(request).await })
}

async fn state(world: &World, key: PartKey) -> (bool, bool) {
    let states = world.catalog().key_states(world.sink, &[key]).await.expect("states");
    (states[0].referenced_by.is_some(), states[0].queued.is_some())
}

#[tokio::test]
async fn a_key_that_is_queued_while_its_commit_waits_is_not_linked() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    let key = world.key(a, span(0, 5), 1);
    let request = world.accepting(a, span(0, 5), &[1]).await;
    let gate = Gate::shut(&place).await;
    let (through, sink) = (other(&world), world.sink);
    let queued =
        Running::start(async move { through.enqueue(sink, &[key], DeletionReason::Surrendered).await });
    gate.waiting(1).await;
    // Its snapshot is taken before the key is queued, and the fence does not tell.
    let committed = commit(Arc::clone(&world.setup.catalog), request);
    gate.waiting(2).await;
    gate.open().await;
    assert_eq!(queued.end().await.expect("queued"), 1);
    let refused = committed.end().await.expect_err("refused");
    assert!(refused.to_string().contains("queued for deletion"), "{refused}");
    assert_eq!(state(&world, key).await, (false, true));
}

#[tokio::test]
async fn a_key_that_is_linked_while_it_is_surrendered_is_not_queued() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    let key = world.key(a, span(0, 5), 1);
    let request = world.accepting(a, span(0, 5), &[1]).await;
    let gate = Gate::shut(&place).await;
    let committed = commit(Arc::clone(&world.setup.catalog), request);
    gate.waiting(1).await;
    let (through, sink) = (other(&world), world.sink);
    let queued =
        Running::start(async move { through.enqueue(sink, &[key], DeletionReason::Surrendered).await });
    gate.waiting(2).await;
    gate.open().await;
    assert!(matches!(committed.end().await, Ok(Cas::Done(_))));
    assert_eq!(queued.end().await.expect("looked"), 0);
    assert_eq!(state(&world, key).await, (true, false));
}

#[tokio::test]
async fn of_two_commits_against_one_head_the_second_finds_another() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let (first, second) =
        (world.accepting(a, span(0, 5), &[1]).await, world.accepting(b, span(0, 9), &[1]).await);
    let gate = Gate::shut(&place).await;
    let first = commit(Arc::clone(&world.setup.catalog), first);
    gate.waiting(1).await;
    let second = commit(other(&world), second);
    gate.waiting(2).await;
    gate.open().await;
    assert!(matches!(first.end().await, Ok(Cas::Done(Committed { seq: Some(1), .. }))));
    match second.end().await.expect("answered") {
        Cas::Conflict(head) => assert_eq!(head.upper, at(5)),
        done => panic!("{done:?}"),
    }
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
}

#[tokio::test]
async fn a_closing_fences_the_commit_that_waits_behind_it() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    let request = world.accepting(a, span(0, 5), &[1]).await;
    let gate = Gate::shut(&place).await;
    let (through, sink) = (other(&world), world.sink);
    let closed = Running::start(async move { through.close_incarnation(sink, a, "gone").await });
    gate.waiting(1).await;
    let committed = commit(Arc::clone(&world.setup.catalog), request);
    gate.waiting(2).await;
    gate.open().await;
    assert!(closed.end().await.expect("closed"));
    let refused = committed.end().await.expect_err("refused");
    assert!(matches!(refused, CatalogError::IncarnationClosed { .. }), "{refused:?}");
    assert_eq!(world.upper().await, at(0));
}

#[tokio::test]
async fn the_same_commit_behind_itself_is_answered_as_the_first_time() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    // A drop moves neither upper nor fence: only the offer's own row says that it was resolved.
    let unlink = vec![world.name(b, span(0, 5), 7)];
    let drop = world.request(b, span(0, 5), Resolution::Drop { unlink }).await;
    let accept = world.accepting(a, span(5, 9), &[2]).await;
    for request in [drop, accept] {
        let gate = Gate::shut(&place).await;
        let first = commit(Arc::clone(&world.setup.catalog), request.clone());
        gate.waiting(1).await;
        let again = commit(other(&world), request.clone());
        gate.waiting(2).await;
        gate.open().await;
        let (first, again) = (first.end().await.expect("done"), again.end().await.expect("done"));
        assert!(matches!(first, Cas::Done(_)), "{first:?}");
        assert_eq!(first, again);
    }
    assert_eq!(world.queued().await, 1);
}

#[tokio::test]
async fn a_drop_decided_anew_behind_itself_finds_the_offer_resolved() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let first = world.request(b, span(0, 5), Resolution::Drop { unlink: vec![] }).await;
    let again = CommitRequest { commit: CommitId::from_uuid(world.setup.ids.random()), ..first.clone() };
    let gate = Gate::shut(&place).await;
    let first = commit(Arc::clone(&world.setup.catalog), first);
    gate.waiting(1).await;
    let again = commit(other(&world), again);
    gate.waiting(2).await;
    gate.open().await;
    assert!(matches!(first.end().await, Ok(Cas::Done(_))));
    assert!(matches!(again.end().await, Ok(Cas::Conflict(_))));
}

fn acknowledging(
    world: &World,
    consumer: &str,
    session: SessionId,
    upper: u64,
) -> Running<Result<Acknowledged, CatalogError>> {
    let (through, sink) = (Arc::clone(&world.setup.catalog), world.sink);
    let consumer = consumer.parse().expect("a name");
    Running::start(async move { through.acknowledge(sink, &consumer, session, at(upper)).await })
}

fn registering(world: &World, start: StartAt) -> Running<Result<stash_catalog::ConsumerRow, CatalogError>> {
    let session = SessionId::from_uuid(world.setup.ids.random());
    let consumer = "late".parse().expect("a name");
    let request = RegisterConsumer { sink: world.sink, consumer, session, start };
    let through = other(world);
    Running::start(async move { through.register_consumer(request).await })
}

#[tokio::test]
async fn a_registration_behind_a_release_finds_the_beginning_gone() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let (_, session) = world.register("first", StartAt::Beginning).await.expect("registered");
    let gate = Gate::shut(&place).await;
    let acknowledged = acknowledging(&world, "first", session, 5);
    gate.waiting(1).await;
    let registered = registering(&world, StartAt::Beginning);
    gate.waiting(2).await;
    gate.open().await;
    assert_eq!(acknowledged.end().await.expect("acknowledged").released, 1);
    let refused = registered.end().await.expect_err("refused");
    assert!(matches!(refused, CatalogError::InvalidUsage(Misuse::BeginningGone { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_release_behind_a_registration_keeps_what_that_holds() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let (_, session) = world.register("first", StartAt::Beginning).await.expect("registered");
    let gate = Gate::shut(&place).await;
    let registered = registering(&world, StartAt::Beginning);
    gate.waiting(1).await;
    let acknowledged = acknowledging(&world, "first", session, 5);
    gate.waiting(2).await;
    gate.open().await;
    assert_eq!(registered.end().await.expect("registered").acked, at(0));
    assert_eq!(acknowledged.end().await.expect("acknowledged").released, 0);
    assert_eq!(world.spans(0).await, [(0, 5, 5)], "the late one holds it");
}

#[tokio::test]
async fn an_acknowledgement_that_releases_nothing_costs_a_commit_no_decision() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    world.register("slow", StartAt::Beginning).await.expect("registered");
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    let request = world.accepting(a, span(5, 9), &[2]).await;
    let gate = Gate::shut(&place).await;
    let acknowledged = acknowledging(&world, "fast", fast, 5);
    gate.waiting(1).await;
    let committed = commit(other(&world), request);
    gate.waiting(2).await;
    gate.open().await;
    acknowledged.end().await.expect("acknowledged");
    assert!(matches!(committed.end().await, Ok(Cas::Done(_))), "its snapshot was old, the head as expected");
    assert_eq!(world.spans(0).await, [(0, 5, 5), (5, 9, 9)]);
}

#[tokio::test]
async fn the_sweep_judges_by_one_moment_although_a_commit_comes_between_its_reads() {
    let Some(place) = fresh().await else { return };
    let world = World::new(&place.setup().await).await;
    let a = world.open("a").await.id;
    let key = world.key(a, span(0, 5), 1);
    let mut bare = place.bare().await;
    // The sweep has read who references what, and is held back before it reads the incarnations.
    execute(&mut bare, "BEGIN; LOCK TABLE incarnations IN ACCESS EXCLUSIVE MODE").await;
    let (through, sink) = (other(&world), world.sink);
    let judged = Running::start(async move { through.key_states(sink, &[key]).await });
    waiting(&place, 1).await;
    let sql = format!(
        "UPDATE incarnations SET resolved = '\\x0000000000000005' WHERE id = '{a}';
         INSERT INTO batches SELECT '{sink}', 1, 'b', '\\x0000000000000000', '\\x0000000000000005',
            '\\x0000000000000005', '\\x0000000000000000', '\\x0000000000000005', '{a}', '', 'updates', 1, 0;
         INSERT INTO parts VALUES ('{key}', '{sink}', 1, 0, '');
         COMMIT"
    );
    execute(&mut bare, &sql).await;
    let states = judged.end().await.expect("states");
    // Not referenced and not resolved: on its way. Not referenced and resolved would be garbage, and it is neither.
    assert_eq!(states[0].referenced_by, None);
    assert_eq!(states[0].incarnation, Some((IncarnationState::Open, at(0))));
    assert_eq!(state(&world, key).await, (true, false));
}
