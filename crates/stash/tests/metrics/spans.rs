//! What is traced: each operation is a span that names its sink, decisions are events, and no row is ever said.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use stash::{Frontier, Launch, StartAt};
use stash_testkit::{Fault, FaultPlan, Op};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use crate::scene::{Scene, offer, render, spec};

/// Notes every span and event with its fields.
#[derive(Clone, Default)]
struct Notes {
    said: Arc<Mutex<Vec<Said>>>,
    spans: Arc<AtomicU64>,
}

/// A span by its name, or an event by its message.
#[derive(Clone, Debug)]
struct Said {
    what: String,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}").trim_matches('"').to_owned();
        if field.name() == "message" {
            self.what = text
        } else {
            drop(self.fields.insert(field.name(), text))
        }
    }
}

impl Notes {
    fn note(&self, said: Said) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("stash")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut said = Said { what: span.metadata().name().to_owned(), fields: BTreeMap::new() };
        span.record(&mut said);
        self.note(said);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut said = Said { what: String::new(), fields: BTreeMap::new() };
        event.record(&mut said);
        self.note(said);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn story() {
    let scene = Scene::new().await;
    let stash = scene.open().await;
    let sink = stash.declare_sink(spec("told")).await.expect("it is declared");
    let incarnation = render(&sink, "a").await;
    offer(&incarnation, &[1], 1).await;
    drop(incarnation);
    scene.store.set_plan(FaultPlan::none().at(Op::Put, 0, Fault::Refused { retry: true }));
    let incarnation = render(&sink, "a").await;
    offer(&incarnation, &[1, 2], 1_000).await;
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("it subscribes");
    while subscription.position() < Frontier::at(2) {
        let delivery = subscription.next().await.expect("it is there").expect("not the end");
        let mut reader = delivery.read();
        while reader.next().await.expect("it is read").is_some() {}
        subscription.acknowledge(delivery.upper()).await.expect("it is acknowledged");
    }
    stash.drain_deletions().await.expect("it is deleted");
    incarnation.close("the story ends").await.expect("it closes");
    let failing = Launch::single("a", 1).expect("a launch");
    let failing =
        sink.open_incarnation(failing).await.expect("it opens").render().expect("something to write");
    let mut chain = failing.chain().expect("the chain");
    let minted = chain.mint(Frontier::at(9)).expect("it mints").minted().expect("a description");
    let failed = failing.worker(0).expect("the worker").share(minted).expect("it opens").fail("no more");
    chain.report(failed).await.expect_err("it ends");
    stash.close().await.expect("it closes");
}

#[test]
fn operations_are_spans_that_name_their_sink_and_decisions_are_events() {
    let notes = Notes::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // SUBTLE: a second one. While there is but one, a place that another test's thread comes to first is asked of that
    // thread's subscriber, which is none, and is silent from then on in this thread, too.
    let _second = tracing::Dispatch::new(notes.clone());
    tracing::subscriber::with_default(notes.clone(), || runtime.block_on(story()));
    let said = notes.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let names: BTreeSet<&str> = said.iter().map(|said| said.what.as_str()).collect();
    let wanted = [
        // Spans.
        "open_incarnation",
        "write",
        "upload",
        "offer",
        "read",
        "acknowledge",
        "sweep",
        "delete",
        "close",
        // Decisions.
        "opened",
        "minted",
        "offer resolved",
        "delivered",
        "acknowledged",
        "closed",
        "put failed, trying again",
        "share failed",
        "the incarnation is given up",
    ];
    let missing: Vec<&&str> = wanted.iter().filter(|name| !names.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {names:?}");
    let fields = |what: &str| &said.iter().find(|said| said.what == what).expect("it was said").fields;
    for what in [
        "open_incarnation",
        "write",
        "upload",
        "offer",
        "read",
        "acknowledge",
        "sweep",
        "minted",
        "delivered",
    ] {
        assert_eq!(fields(what).get("sink").map(String::as_str), Some("told"), "{what}");
    }
    for what in ["write", "offer", "read"] {
        assert!(fields(what)["incarnation"].starts_with('i'), "{what}");
    }
    assert_eq!(fields("write")["description"], "[0, 1)");
    assert!(fields("upload")["key"].ends_with(".parquet"));
    let outcomes: BTreeSet<&str> = said
        .iter()
        .filter(|said| said.what == "offer resolved")
        .map(|said| said.fields["outcome"].as_str())
        .collect();
    assert_eq!(outcomes, BTreeSet::from(["accepted", "dropped"]));
    // The second of the rows, with its bits in reverse.
    let row = 1_u32.reverse_bits().to_string();
    assert!(
        said.iter().flat_map(|said| said.fields.values()).all(|value| !value.contains(&row)),
        "a row was said"
    );
}
