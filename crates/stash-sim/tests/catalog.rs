//! The model catalog is a catalog: it runs the conformance suite, and answers random requests as SQLite does, and as
//! PostgreSQL does, where one is installed.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use stash_catalog::suite::{Setup, at, declaration};
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{
    Catalog, CatalogError, ChainSlice, ClockSource, CommitRequest, DeletionReason, HeadRow, HeadStatus,
    HistoryFilter, IncarnationState, NewBatch, OpenIncarnation, OutcomeKind, PartRow, PostgresCatalog,
    PostgresOptions, RegisterConsumer, Resolution, SqliteCatalog, StartAt,
};
use stash_sim::catalog::ModelCatalog;
use stash_types::{
    BatchId, Clock, CommitId, ConsumerName, DataflowError, Description, Digest, Frontier, IdSource,
    IncarnationId, InlineRun, LaunchToken, PartDescriptor, PartKey, PartName, ReplicaName, RunFacts,
    SchemaFingerprint, SessionId, ShardId, SinkId,
};

async fn model() -> (Setup, ()) {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let its_clock: Arc<ManualClock> = Arc::clone(&clock);
    let catalog = ModelCatalog::new(its_clock, Arc::new(SeededIds::new(1)));
    let other = Arc::new(catalog.clone());
    (Setup { catalog: Arc::new(catalog), other, clock, ids: Arc::new(SeededIds::new(3)) }, ())
}

mod suite {
    stash_catalog::catalog_suite!(super::model);
}

#[tokio::test]
async fn a_closed_handle_answers_nothing_and_its_clones_do() {
    let (setup, ()) = model().await;
    setup.catalog.close().await;
    let refused = setup.catalog.sinks(true).await;
    assert!(matches!(refused, Err(CatalogError::Closed { .. })), "{refused:?}");
    assert_eq!(setup.other.sinks(true).await.expect("listed"), []);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_woken_by_a_write_and_by_the_end_of_patience_under_a_paused_clock() {
    let (setup, ()) = model().await;
    let patience = std::time::Duration::from_secs(600);
    let begun = tokio::time::Instant::now();
    assert_eq!(setup.catalog.changed(0, patience).await.expect("waited"), 0);
    assert_eq!(begun.elapsed(), patience);
    let spec = declaration(&setup, "orders");
    let write = async { setup.other.declare_sink(spec).await.expect("declared") };
    let (found, _) = tokio::join!(setup.catalog.changed(0, patience), write);
    assert_eq!((found.expect("woken"), begun.elapsed()), (1, patience));
}

const SEQUENCES: u64 = 200;
const STEPS: u64 = 60;
/// As many as take a few seconds: each request is there and back.
const SEQUENCES_FAR: u64 = 12;

#[tokio::test]
async fn agree_on_random_requests() {
    let mut expired = 0;
    for seed in 0..SEQUENCES {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let its_clock: Arc<ManualClock> = Arc::clone(&clock);
        let sql = SqliteCatalog::in_memory(its_clock, Arc::new(SeededIds::new(seed))).await.expect("opened");
        expired += Pair::new(seed, clock, Arc::new(sql), false).run().await;
    }
    assert!(expired > SEQUENCES / 4, "only {expired} batches expired: the draws are off");
}

#[tokio::test]
async fn agree_on_random_requests_with_a_server() {
    let Some(server) = stash_testkit::servers::postgres().await else { return };
    let mut expired = 0;
    for seed in 0..SEQUENCES_FAR {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let its_clock = ClockSource::Given(Arc::clone(&clock) as Arc<dyn Clock>);
        let options =
            PostgresOptions::from_url(&format!("{}?schema=agree_{seed}", server.url())).expect("a URL");
        let ids = Arc::new(SeededIds::new(seed));
        let sql = Arc::new(PostgresCatalog::open(options, its_clock, ids).await.expect("opened"));
        expired += Pair::new(seed, clock, Arc::clone(&sql) as Arc<dyn Catalog>, true).run().await;
        sql.close().await;
    }
    assert!(expired > SEQUENCES_FAR / 4, "only {expired} batches expired: the draws are off");
}

/// Two catalogs that are asked the same, and what was seen of them.
struct Pair {
    sql: Arc<dyn Catalog>,
    /// Whether it is in another process. Such a one draws ids of its own for rows that are empty, and fences what it says
    /// was not committed.
    far: bool,
    model: ModelCatalog,
    clock: Arc<ManualClock>,
    draws: SeededIds,
    seed: u64,
    /// What the present step asks.
    doing: String,
    /// The sink that the present step is about.
    touched: Option<SinkId>,
    sinks: Vec<SinkId>,
    /// Heads as they once were.
    heads: Vec<HeadRow>,
    openings: Vec<OpenIncarnation>,
    commits: Vec<CommitRequest>,
    sessions: Vec<SessionId>,
    keys: Vec<PartKey>,
    parts: u64,
    /// Batches that expired: a run in which none did compares nothing of it.
    expired: u64,
}

impl Pair {
    fn new(seed: u64, clock: Arc<ManualClock>, sql: Arc<dyn Catalog>, far: bool) -> Pair {
        let its_clock: Arc<ManualClock> = Arc::clone(&clock);
        let model = ModelCatalog::new(its_clock, Arc::new(SeededIds::new(seed)));
        assert_eq!(sql.id(), model.id());
        Pair {
            sql,
            far,
            model,
            clock,
            draws: SeededIds::new(seed + 1_000_000),
            seed,
            doing: String::new(),
            touched: None,
            sinks: vec![],
            heads: vec![],
            openings: vec![],
            commits: vec![],
            sessions: vec![],
            keys: vec![],
            parts: 0,
            expired: 0,
        }
    }

    /// A whole sequence; returns how many batches expired in it.
    async fn run(mut self) -> u64 {
        let seed = self.seed;
        for step in 0..STEPS {
            self.step().await;
            let doing = format!("seed {seed}, step {step}: {}", self.doing);
            self.compare_touched(&doing).await;
        }
        self.compare_all(&format!("seed {seed}, at the end")).await;
        self.expired
    }

    fn draw(&self, below: u64) -> u64 {
        self.draws.random().as_u64_pair().0 % below
    }

    /// Once in `times`.
    fn once_in(&self, times: u64) -> bool {
        self.draw(times) == 0
    }

    fn pick<T: Clone>(&self, from: &[T]) -> Option<T> {
        let len = u64::try_from(from.len()).expect("a count");
        (len > 0).then(|| from[usize::try_from(self.draw(len)).expect("a place")].clone())
    }

    /// Asks both, and insists on equal answers, refusals included.
    async fn ask<T: Debug>(
        &mut self,
        what: String,
        question: impl AsyncFn(&dyn Catalog) -> Result<T, CatalogError>,
    ) -> Option<T> {
        self.doing = what;
        let (of_sql, of_model) = (question(&*self.sql).await, question(&self.model).await);
        assert_eq!(format!("{of_sql:?}"), format!("{of_model:?}"), "seed {}: {}", self.seed, self.doing);
        if let Err(CatalogError::Damaged { .. } | CatalogError::Determinate { .. }) = &of_sql {
            panic!("seed {}: {}: {of_sql:?}", self.seed, self.doing);
        }
        of_model.ok()
    }

    async fn compare_touched(&self, doing: &str) {
        if let Some(sink) = self.touched {
            let (of_sql, of_model) = (self.rows(&*self.sql, sink).await, self.rows(&self.model, sink).await);
            assert_eq!(of_sql, of_model, "{doing}");
        }
    }

    async fn compare_all(&self, doing: &str) {
        for sink in &self.sinks {
            assert_eq!(
                self.rows(&*self.sql, *sink).await,
                self.rows(&self.model, *sink).await,
                "{doing}: sink {sink}"
            );
            let referenced = self.model.referenced(*sink).await.expect("keys");
            assert_eq!(self.sql.referenced(*sink).await.expect("keys"), referenced, "{doing}: sink {sink}");
        }
        let sinks = self.model.sinks(true).await.expect("listed");
        assert_eq!(self.sql.sinks(true).await.expect("listed"), sinks, "{doing}: sinks");
        let queued = self.model.deletions_queued(None).await.expect("a count");
        assert_eq!(self.sql.deletions_queued(None).await.expect("a count"), queued, "{doing}: queue");
        let (of_sql, of_model) = (history(&*self.sql).await, history(&self.model).await);
        assert_eq!(of_sql, of_model, "{doing}: history");
    }

    /// A slice, without the ids that the catalogs drew for empty rows where those cannot be equal.
    fn nameless(&self, mut slice: Result<ChainSlice, CatalogError>) -> Result<ChainSlice, CatalogError> {
        if let (true, Ok(slice)) = (self.far, &mut slice) {
            for batch in &mut slice.batches {
                if batch.parts.is_empty() && batch.inline.is_empty() {
                    batch.id = BatchId::from_uuid(uuid::Uuid::nil());
                }
            }
        }
        slice
    }

    /// All that can be read of a sink, and of the catalog beside it.
    async fn rows(&self, catalog: &dyn Catalog, sink: SinkId) -> Vec<String> {
        let keys: Vec<_> = match catalog.sink(sink).await {
            Ok(row) => self.keys.iter().filter(|key| key.shard == row.shard).copied().collect(),
            Err(_) => vec![],
        };
        vec![
            format!("{:?}", self.nameless(catalog.chain(sink, Frontier::MIN, 1000).await)),
            format!("{:?}", catalog.incarnations(sink, true).await),
            format!("{:?}", catalog.incarnations(sink, false).await),
            format!("{:?}", catalog.consumers(sink).await),
            format!("{:?}", catalog.key_states(sink, &keys).await),
            format!("{:?}", catalog.deletions_due(1000).await),
            format!("{:?}", catalog.revision().await),
        ]
    }

    async fn step(&mut self) {
        self.touched = self.pick(&self.sinks);
        let Some(sink) = self.touched else { return self.declare().await };
        let head = self.model.head(sink).await.expect("a head");
        self.heads.push(head.clone());
        let open = !self.model.incarnations(sink, false).await.expect("listed").is_empty();
        let ended = head.status == HeadStatus::Dropped;
        match self.draw(100) {
            0..4 => self.declare().await,
            4 => self.drop_sink(sink).await,
            _ if ended && !self.once_in(5) => self.declare().await,
            5..12 => self.open(head).await,
            12..70 if !open => self.open(head).await,
            12..18 => self.mind_incarnations(sink).await,
            18..53 => self.commit(head).await,
            53..56 => self.expire(sink).await,
            56..60 => self.read_back(sink).await,
            60..65 => self.register(sink).await,
            65..67 => self.unregister(sink).await,
            67..80 => self.acknowledge(head).await,
            80..86 => self.enqueue(sink).await,
            86..93 => self.delete().await,
            93..95 => self.read(sink).await,
            _ if self.once_in(8) => self.clock.go_back(self.draw(4_000)),
            _ => self.clock.advance(self.draw(2_000)),
        }
    }

    async fn declare(&mut self) {
        let name = ["orders", "items", "parts"][usize::try_from(self.draw(3)).expect("a place")];
        let ids = Arc::new(SeededIds::new(self.seed + 2_000_000 + self.draw(1_000_000)));
        let (catalog, other) = (Arc::new(self.model.clone()), Arc::new(self.model.clone()));
        let mut spec = declaration(&Setup { catalog, other, clock: Arc::clone(&self.clock), ids }, name);
        (spec.retention_ms, spec.absent_hold_ms) = match name {
            "orders" => (None, Some(400)),
            "items" => (Some(600), Some(500)),
            _ => (Some(300), None),
        };
        match self.draw(13) {
            12 => spec.absent_hold_ms = Some(0),
            0 => spec.as_of = 3,
            1 => spec.seals = true,
            2 => (spec.as_of, spec.up_to) = (5, at(5)),
            3 => spec.id = self.pick(&self.sinks).unwrap_or(spec.id),
            4 => spec.retention_ms = Some(u64::MAX),
            _ => {}
        }
        let declared =
            self.ask(format!("declare {spec:?}"), async |c| c.declare_sink(spec.clone()).await).await;
        self.sinks.extend(declared.filter(|declared| declared.created).map(|declared| declared.sink.spec.id));
    }

    async fn drop_sink(&mut self, sink: SinkId) {
        let commit = self.once_in(2);
        self.ask(format!("drop {sink}, {commit}"), async |c| c.drop_sink(sink, commit).await).await;
    }

    async fn open(&mut self, head: HeadRow) {
        let replica: ReplicaName =
            ["a", "b", "c"][usize::try_from(self.draw(3)).expect("a place")].parse().expect("a name");
        let head = if self.once_in(8) { self.pick(&self.heads).unwrap_or(head) } else { head };
        let mut request = OpenIncarnation {
            sink: self.touched.unwrap_or(head.sink),
            replica,
            launch: LaunchToken::from_uuid(self.draws.random()),
            id: IncarnationId::from_uuid(self.draws.ordered()),
            as_of: head.upper.as_u64().saturating_sub(1),
            expected_upper: head.upper,
            expected_fence: head.fence,
            lease_ms: self.draw(10_000),
        };
        if let Some(before) = self.pick(&self.openings) {
            match self.draw(10) {
                0 => request.launch = before.launch,
                1 => request.id = before.id,
                2 => request = before,
                3 => request.as_of = u64::MAX,
                _ => {}
            }
        }
        self.openings.push(request.clone());
        self.ask(format!("{request:?}"), async |c| c.open_incarnation(request.clone()).await).await;
        let launch = format!("launched {} {}", request.sink, request.launch);
        self.ask(launch, async |c| c.launched(request.sink, request.launch).await).await;
    }

    /// Mostly an open incarnation of the sink, else a closed one, one of another sink, or none at all.
    async fn some_incarnation(&self, sink: SinkId) -> IncarnationId {
        let own = self.model.incarnations(sink, true).await.expect("listed");
        let open: Vec<_> = own.iter().filter(|row| row.state == IncarnationState::Open).collect();
        let strange = IncarnationId::from_uuid(self.draws.ordered());
        match self.draw(30) {
            0 => strange,
            1 => self.pick(&self.openings).map_or(strange, |opening| opening.id),
            2..4 => self.pick(&own).map_or(strange, |row| row.id),
            _ => self.pick(&open).map_or(strange, |row| row.id),
        }
    }

    async fn mind_incarnations(&mut self, sink: SinkId) {
        let id = self.some_incarnation(sink).await;
        match self.draw(4) {
            0 => drop(
                self.ask(format!("close {id}"), async |c| c.close_incarnation(sink, id, "why").await).await,
            ),
            1 => self.expire(sink).await,
            2 => drop(self.ask(format!("view {id}"), async |c| c.view(sink, id).await).await),
            _ => {
                let lease = self.draw(5_000);
                self.ask(format!("renew {id}"), async |c| c.renew_lease(sink, id, lease).await).await;
            }
        }
    }

    async fn commit(&mut self, head: HeadRow) {
        let request = match self.pick(&self.commits) {
            Some(before) if self.once_in(8) => before,
            _ => self.commit_request(head).await,
        };
        self.touched = Some(request.sink);
        self.commits.push(request.clone());
        self.ask(format!("{request:?}"), async |c| c.commit(request.clone()).await).await;
    }

    /// A request that fits the head, unless it is bent.
    async fn commit_request(&mut self, head: HeadRow) -> CommitRequest {
        let head = if self.once_in(10) { self.pick(&self.heads).unwrap_or(head) } else { head };
        let incarnation = self.some_incarnation(head.sink).await;
        let resolved = match self.model.view(head.sink, incarnation).await {
            Ok(view) => view.incarnation.resolved,
            Err(_) => head.upper,
        };
        let (upper, lower) = (head.upper.as_u64(), resolved.as_u64().min(head.upper.as_u64()));
        let end = upper.saturating_add(self.draw(4)).max(lower.saturating_add(1));
        let end = if self.once_in(60) { u64::MAX } else { end };
        let description = Description::new(at(lower.min(end - 1)), at(end)).expect("it covers a time");
        let shard = ShardId::derive(self.model.id(), head.sink);
        let name = |n| PartName { incarnation, description, process: 0, n };
        let drawn: Vec<_> = (0..self.draw(3)).map(|_| name(self.next_part())).collect();
        let unlink: Vec<_> = (0..self.draw(3)).map(|_| name(self.next_part())).collect();
        self.keys.extend(drawn.iter().chain(&unlink).map(|name| name.under(shard)));
        let error =
            DataflowError { at: upper.saturating_add(self.draw(2)), message: "division by zero".to_owned() };
        let (resolution, mut status) = match self.draw(10) {
            _ if end <= upper => (Resolution::Drop { unlink }, head.status.clone()),
            0..5 => {
                (Resolution::Accept { batch: self.batch(&head, at(end), &drawn), unlink }, HeadStatus::Open)
            }
            5 if self.once_in(4) => {
                (Resolution::Extend { upper: head.upper, unlink }, HeadStatus::Poisoned(error))
            }
            6 if self.once_in(6) => {
                let piece = at(error.at.max(upper.saturating_add(1)).min(end));
                (
                    Resolution::Accept { batch: self.batch(&head, piece, &drawn), unlink },
                    HeadStatus::Poisoned(error),
                )
            }
            _ => (Resolution::Extend { upper: at(end), unlink }, HeadStatus::Open),
        };
        if end == u64::MAX && status == HeadStatus::Open {
            status = HeadStatus::Complete;
        }
        let outcome = match &resolution {
            Resolution::Drop { .. } => OutcomeKind::Dropped,
            Resolution::Extend { upper, .. } if *upper == head.upper => OutcomeKind::Dropped,
            _ if description.lower() < head.upper => OutcomeKind::Trimmed { from: head.upper },
            _ => OutcomeKind::Accepted,
        };
        let commit = CommitId::from_uuid(self.draws.random());
        let (sink, expected_upper, expected_fence) = (head.sink, head.upper, head.fence);
        let request = CommitRequest {
            commit,
            sink,
            incarnation,
            expected_upper,
            expected_fence,
            description,
            outcome,
            resolution,
            status,
        };
        if self.once_in(4) { self.bent(request) } else { request }
    }

    fn next_part(&self) -> u64 {
        // Mostly new, now and then one that was drawn before.
        if self.once_in(25) { self.draw(self.parts.max(1)) } else { self.draw(1 << 40) }
    }

    fn batch(&self, head: &HeadRow, upper: Frontier, names: &[PartName]) -> NewBatch {
        let facts = |n: u64| RunFacts {
            update_count: n % 7,
            diff_sum: -3,
            min_time: 1,
            max_time: 2,
            uncompressed_bytes: 96,
        };
        let schema = SchemaFingerprint(Digest::of(b"schema"));
        let part = |name: &PartName| {
            let digest = Digest::of(&name.n.to_be_bytes());
            let (process, n) = (name.process, name.n);
            let (group, run, ordinal, len, tail_len, piece_bytes) = (0, 1, 2, 4096, 512, 96);
            let descriptor = PartDescriptor {
                process,
                n,
                group,
                run,
                ordinal,
                len,
                tail_len,
                tail_digest: digest,
                digest,
                facts: facts(n),
                piece_bytes,
                schema,
            };
            PartRow { name: *name, descriptor }
        };
        let run = |n: u64| {
            let payload = Bytes::copy_from_slice(&n.to_be_bytes());
            InlineRun { group: 1, digest: Digest::of(&payload), payload, facts: facts(n), schema }
        };
        NewBatch {
            id: BatchId::from_uuid(self.draws.random()),
            lower: head.upper,
            upper,
            parts: names.iter().map(part).collect(),
            inline: (0..self.draw(2)).map(run).collect(),
            facts: facts(self.draw(7)),
        }
    }

    /// The request with one thing of it changed.
    fn bent(&self, mut request: CommitRequest) -> CommitRequest {
        let known: Vec<_> =
            self.keys.iter().filter(|key| key.name.incarnation == request.incarnation).collect();
        let known = self.pick(&known).map(|key| key.name);
        let upper = request.expected_upper.as_u64();
        match (&mut request.resolution, self.draw(12)) {
            (_, 0) => request.outcome = OutcomeKind::Dropped,
            (_, 1) => request.status = HeadStatus::Dropped,
            (_, 2) => request.status = HeadStatus::Complete,
            (_, 3) => request.expected_fence += 1,
            (_, 4) => request.expected_upper = at(upper.saturating_add(1)),
            (_, 5) => {
                let own = |before: &&CommitRequest| before.incarnation == request.incarnation;
                let before = self.commits.iter().rev().find(own);
                request.commit = before.map_or(request.commit, |before| before.commit);
            }
            (Resolution::Accept { batch, .. }, 6) => batch.lower = at(upper.saturating_add(1)),
            (Resolution::Accept { batch, .. }, 7) => batch.upper = at(upper.saturating_add(9)),
            (Resolution::Accept { batch, .. }, 8) => {
                let mut ids = self.commits.iter().filter_map(|before| match &before.resolution {
                    Resolution::Accept { batch, .. } => Some(batch.id),
                    _ => None,
                });
                batch.id = ids.next_back().unwrap_or(batch.id);
            }
            (Resolution::Accept { batch, .. }, 9) => {
                batch.parts.iter_mut().for_each(|part| part.descriptor.n += 1);
                batch.inline.iter_mut().for_each(|run| run.payload = Bytes::from_static(b"altered"));
            }
            (Resolution::Accept { batch, .. }, _) => {
                if let (Some(part), Some(name)) = (batch.parts.first_mut(), known) {
                    (part.name, part.descriptor.process, part.descriptor.n) = (name, name.process, name.n);
                }
            }
            (Resolution::Extend { unlink, .. } | Resolution::Drop { unlink }, 6..9) => unlink.extend(known),
            (Resolution::Extend { upper, .. }, _) => *upper = request.expected_upper,
            (Resolution::Drop { unlink }, _) => unlink.extend(self.pick(&self.keys).map(|key| key.name)),
        }
        request
    }

    async fn read_back(&mut self, sink: SinkId) {
        let Some(before) = self.pick(&self.commits) else { return };
        let sink = if self.once_in(4) { sink } else { before.sink };
        let commit = before.commit;
        if self.far && matches!(self.model.read_back(sink, commit).await, Ok(None)) {
            return;
        }
        self.ask(format!("read back {commit}"), async |c| c.read_back(sink, commit).await).await;
    }

    fn some_consumer(&self) -> ConsumerName {
        ["x", "y", "z"][usize::try_from(self.draw(3)).expect("a place")].parse().expect("a name")
    }

    async fn register(&mut self, sink: SinkId) {
        let session = SessionId::from_uuid(self.draws.random());
        self.sessions.push(session);
        let start = [StartAt::Beginning, StartAt::Earliest, StartAt::Now, StartAt::SkipExpired]
            [usize::try_from(self.draw(4)).expect("a place")];
        let request = RegisterConsumer { sink, consumer: self.some_consumer(), session, start };
        self.ask(format!("{request:?}"), async |c| c.register_consumer(request.clone()).await).await;
    }

    async fn expire(&mut self, sink: SinkId) {
        self.clock.advance(self.draw(1_000));
        let dry = self.ask("expire, dry".to_owned(), async |c| c.expire(sink, false).await).await;
        let done = self.ask("expire".to_owned(), async |c| c.expire(sink, true).await).await;
        assert_eq!(dry, done, "seed {}: a dry run tells what is done", self.seed);
        self.expired += done.map_or(0, |done| done.batches);
    }

    async fn unregister(&mut self, sink: SinkId) {
        let name = self.some_consumer();
        self.ask(format!("unregister {name}"), async |c| c.unregister_consumer(sink, &name).await).await;
    }

    async fn acknowledge(&mut self, head: HeadRow) {
        let sink = head.sink;
        let mut name = self.some_consumer();
        let consumers = self.model.consumers(sink).await.expect("listed");
        if consumers.is_empty() && !self.once_in(8) {
            return self.register(sink).await;
        }
        let known = self.pick(&consumers);
        let mut session = self.pick(&self.sessions).unwrap_or(SessionId::from_uuid(self.draws.random()));
        let mut acked = head.released;
        if let Some(known) = known.filter(|_| !self.once_in(8)) {
            (name, session, acked) = (known.name, known.session, known.acked);
        }
        if self.once_in(3) {
            self.ask(format!("renew {name}"), async |c| c.renew_session(sink, &name, session).await).await;
            return;
        }
        let batches = self.model.chain(sink, acked, 3).await.expect("a slice").batches;
        let upper = match (self.pick(&batches), self.draw(6)) {
            (Some(batch), 0 | 1) => batch.upper,
            (Some(batch), 2) => batch.extent,
            (Some(batch), 3) => batch.lower,
            (_, 4) => at(acked.as_u64().saturating_add(self.draw(6))),
            _ => head.upper,
        };
        self.ask(format!("acknowledge {name} {upper}"), async |c| {
            c.acknowledge(sink, &name, session, upper).await
        })
        .await;
    }

    /// Some keys, mostly of the sink, now and then one twice.
    fn some_keys(&self, sink: SinkId) -> Vec<PartKey> {
        let shard = ShardId::derive(self.model.id(), sink);
        let own: Vec<_> = self.keys.iter().filter(|key| key.shard == shard).copied().collect();
        let mut keys: Vec<_> = (0..self.draw(5)).filter_map(|_| self.pick(&own)).collect();
        if self.once_in(20) {
            keys.extend(self.pick(&self.keys));
        }
        keys
    }

    async fn enqueue(&mut self, sink: SinkId) {
        let keys = self.some_keys(sink);
        let reason = if self.once_in(2) { DeletionReason::Swept } else { DeletionReason::Surrendered };
        self.ask(format!("enqueue {keys:?} {reason:?}"), async |c| c.enqueue(sink, &keys, reason).await)
            .await;
    }

    async fn delete(&mut self) {
        let limit = u32::try_from(self.draw(4)).expect("a count");
        let due =
            self.ask("due".to_owned(), async |c| c.deletions_due(limit).await).await.unwrap_or_default();
        let mut keys: Vec<_> = due.iter().map(|row| row.key).collect();
        keys.extend(self.pick(&self.keys).filter(|_| self.once_in(6)));
        match self.draw(3) {
            0 => {
                for _ in 0..=self.draw(5) {
                    self.ask(format!("defer {keys:?}"), async |c| c.defer(&keys).await).await;
                }
                // Long enough for some of them to be due again, and not for others.
                self.clock.advance(if self.once_in(4) { self.draw(40_000) } else { 0 });
            }
            _ => drop(self.ask(format!("dequeue {keys:?}"), async |c| c.dequeue(&keys).await).await),
        }
    }

    async fn read(&mut self, sink: SinkId) {
        let keys = self.some_keys(sink);
        self.ask(format!("states {keys:?}"), async |c| c.key_states(sink, &keys).await).await;
        let (from, limit) = (at(self.draw(40)), u32::try_from(self.draw(5)).expect("a count"));
        let far = self.far;
        self.ask(format!("chain from {from}, {limit}"), async |c| {
            let slice = c.chain(sink, from, limit).await;
            if far {
                slice.map(|slice| format!("{} batches", slice.batches.len()))
            } else {
                slice.map(|slice| format!("{slice:?}"))
            }
        })
        .await;
        let known = self.pick(&self.keys);
        let filter = HistoryFilter { sink: Some(sink), key: known, ..HistoryFilter::default() };
        self.ask(format!("{filter:?}"), async |c| c.history(filter.clone()).await).await;
        let name = "orders".parse().expect("a name");
        self.ask("named".to_owned(), async |c| c.sink_named(&name).await).await;
        self.ask("live".to_owned(), async |c| c.sinks(false).await).await;
    }
}

/// The history, with what one statement writes of several keys in order of the keys: SQL promises none.
async fn history(catalog: &dyn Catalog) -> Vec<String> {
    let rows = catalog.history(HistoryFilter::default()).await.expect("history");
    let mut rows: Vec<_> = rows.into_iter().map(|row| format!("{row:?}")).collect();
    rows.sort();
    rows
}
