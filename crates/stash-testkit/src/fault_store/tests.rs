use std::collections::BTreeSet;

use futures::TryStreamExt;
use stash_blob::{BlobEntryKind, ClaimError, FORMAT, ObjectBlobs, StashMarker, claim, suite::Subject};
use tokio::task::JoinSet;

use super::*;
use crate::FaultRates;

mod without_faults_over_memory {
    use super::*;
    stash_blob::blob_suite!(Subject::new(Arc::new(memory())));
}

fn memory() -> FaultStore<ObjectBlobs> {
    FaultStore::new(ObjectBlobs::memory())
}

fn key(n: u32) -> BlobKey {
    format!("shard/part-{n}").parse().expect("a key")
}

fn chunk() -> Vec<Bytes> {
    vec![Bytes::from_static(b"chunk")]
}

async fn keys(store: &dyn BlobStore) -> Result<BTreeSet<BlobKey>, BlobError> {
    let entries: Vec<_> = store.list(BlobPrefix::All).try_collect().await?;
    let key = |entry: BlobEntry| match entry.kind {
        BlobEntryKind::Object(key) => key,
        other => panic!("{other:?}"),
    };
    Ok(entries.into_iter().map(key).collect())
}

/// The fault, whether the operation happens, and whether its report is (ok, determinate).
const CASES: [(Option<Fault>, bool, bool, bool); 6] = [
    (None, true, true, false),
    (Some(Fault::LostReply), true, false, false),
    (Some(Fault::Refused { retry: false }), false, false, true),
    (Some(Fault::Denied), false, false, true),
    (Some(Fault::TimedOut), false, false, false),
    (Some(Fault::Lie), false, true, false),
];

fn check<T: fmt::Debug>(report: &Result<T, BlobError>, ok: bool, determinate: bool, fault: Option<Fault>) {
    match report {
        Ok(_) => assert!(ok, "{fault:?}: {report:?}"),
        Err(BlobError::Determinate { .. } | BlobError::Denied { .. }) => {
            assert!(!ok && determinate, "{fault:?}: {report:?}")
        }
        Err(_) => assert!(!ok && !determinate, "{fault:?}: {report:?}"),
    }
}

#[tokio::test]
async fn puts_and_deletes_meet_every_case_of_happened_and_reported() {
    for (fault, happens, ok, determinate) in CASES {
        let store = memory();
        let plan = |op| fault.map_or(FaultPlan::none(), |fault| FaultPlan::none().always(op, fault));
        store.set_plan(plan(Op::Put));
        check(&store.put_new(&key(1), chunk()).await, ok, determinate, fault);
        assert_eq!(store.inner().head(&key(1)).await.expect("a HEAD").is_some(), happens, "{fault:?}");

        store.heal();
        store.put_new(&key(1), chunk()).await.expect("a PUT");
        store.set_plan(plan(Op::Delete));
        check(&store.delete(&[key(1)]).await.remove(0).outcome, ok, determinate, fault);
        assert_eq!(store.inner().head(&key(1)).await.expect("a HEAD").is_none(), happens, "{fault:?}");
    }
}

#[tokio::test]
async fn reads_fail_by_type_and_lie_by_one_bit() {
    for (fault, _, ok, determinate) in CASES {
        let Some(fault) = fault else { continue };
        let store = memory();
        store.put_new(&key(1), chunk()).await.expect("a PUT");
        store.set_plan(Op::ALL.into_iter().fold(FaultPlan::none(), |plan, op| plan.always(op, fault)));
        for read in [store.get(&key(1), 10).await, store.get_range(&key(1), 0..5).await] {
            check(&read, ok, determinate, Some(fault));
            if let Ok(bytes) = read {
                let flipped: u32 = bytes.iter().zip(b"chunk").map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!((bytes.len(), flipped), (5, 1));
            }
        }
        let head = store.head(&key(1)).await;
        check(&head, ok, determinate, Some(fault));
        assert!(!matches!(head, Ok(Some(_))));
        let listing = keys(&store).await;
        check(&listing, ok, determinate, Some(fault));
        assert!(listing.unwrap_or_default().is_empty());
        assert_eq!(store.counts().faults, 4);
    }
}

#[tokio::test]
async fn a_bulk_delete_fails_for_some_of_its_keys_and_answers_in_order() {
    let store = memory();
    let all: Vec<BlobKey> = (0..5).map(key).collect();
    for key in &all {
        store.put_new(key, chunk()).await.expect("a PUT");
    }
    let plan = FaultPlan::none()
        .on_key(Op::Delete, &all[1], Fault::TimedOut)
        .on_key(Op::Delete, &all[2], Fault::LostReply)
        .at(Op::Delete, 3, Fault::Refused { retry: true });
    store.set_plan(plan);
    let deleted = store.delete(&all).await;
    assert!(deleted.iter().map(|deleted| &deleted.key).eq(&all));
    let ok: Vec<bool> = deleted.iter().map(|deleted| deleted.outcome.is_ok()).collect();
    assert_eq!(ok, [true, false, false, false, true]);
    assert_eq!(keys(store.inner()).await.expect("a listing"), BTreeSet::from([key(1), key(3)]));
}

#[tokio::test]
async fn an_operation_is_held_before_its_effect_or_after_it() {
    for (point, there) in [(Point::Before, false), (Point::After, true)] {
        let store = Arc::new(memory());
        let gate = store.hold_key(Op::Put, point, &key(1));
        let mut tasks = JoinSet::new();
        let writer = Arc::clone(&store);
        tasks.spawn(async move { writer.put_new(&key(1), chunk()).await });
        gate.wait_held(1).await;
        store.put_new(&key(2), chunk()).await.expect("another key passes");
        assert_eq!(store.inner().head(&key(1)).await.expect("a HEAD").is_some(), there, "{point:?}");
        gate.release();
        let outcome = tasks.join_next().await.expect("one task").expect("no panic");
        assert_eq!(outcome.expect("a PUT"), PutOutcome::Created);
        assert!(store.inner().head(&key(1)).await.expect("a HEAD").is_some());
    }
}

#[tokio::test]
async fn a_cancelled_operation_leaves_its_gate_and_a_dropped_gate_is_open() {
    let store = Arc::new(memory());
    let gate = store.hold(Op::Put, Point::Before);
    let mut tasks = JoinSet::new();
    let writer = Arc::clone(&store);
    tasks.spawn(async move { writer.put_new(&key(1), chunk()).await.map(drop) });
    gate.wait_held(1).await;
    tasks.shutdown().await;
    assert_eq!(gate.held(), 0);
    assert!(keys(store.inner()).await.expect("a listing").is_empty());
    drop(gate);
    store.put_new(&key(1), chunk()).await.expect("not held");
}

#[tokio::test]
async fn listings_are_held_too() {
    let store = Arc::new(memory());
    store.put_new(&key(1), chunk()).await.expect("a PUT");
    for point in [Point::Before, Point::After] {
        let gate = store.hold(Op::List, point);
        let mut tasks = JoinSet::new();
        let lister = Arc::clone(&store);
        tasks.spawn(async move { keys(&*lister).await });
        gate.wait_held(1).await;
        gate.release();
        let listing = tasks.join_next().await.expect("one task").expect("no panic");
        assert_eq!(listing.expect("a listing").len(), 1);
    }
}

#[tokio::test]
async fn everything_asked_is_counted() {
    let store = memory();
    store.set_plan(FaultPlan::none().at(Op::Put, 1, Fault::TimedOut));
    store.put_new(&key(1), chunk()).await.expect("a PUT");
    store.put_new(&key(2), chunk()).await.expect_err("by plan");
    store.get_range(&key(1), 1..3).await.expect("a range");
    store.head(&key(1)).await.expect("a HEAD");
    keys(&store).await.expect("a listing");
    store.abort_upload(&key(1), "1-1").await.expect_err("memory has no uploads");
    store.delete(&[key(1), key(2)]).await;
    let counts = Counts {
        puts: 2,
        gets: 1,
        heads: 1,
        deletes: 1,
        keys_deleted: 2,
        lists: 1,
        aborts: 1,
        bytes_put: 10,
        bytes_got: 2,
        faults: 1,
    };
    assert_eq!(store.reset_counts(), counts);
    assert_eq!(store.counts(), Counts::default());
}

#[tokio::test]
async fn read_back_settles_every_unknown_put_whatever_the_seed() {
    for seed in 0..50 {
        let store = memory();
        store.set_plan(FaultPlan::seeded(seed, FaultRates::honest(150)));
        let mut written = BTreeSet::new();
        for n in 0..20 {
            let mut tries = 0;
            loop {
                tries += 1;
                assert!(tries < 100, "seed {seed}: tries of one key must differ");
                match store.put_new(&key(n), chunk()).await {
                    Ok(_) => break,
                    Err(BlobError::Determinate { retry, .. }) => assert!(retry, "seed {seed}"),
                    Err(_) => {}
                }
            }
            written.insert(key(n));
        }
        assert_eq!(keys(store.inner()).await.expect("a listing"), written, "seed {seed}");
        assert_eq!(store.counts().bytes_put, 5 * store.counts().puts);
    }
}

#[tokio::test]
async fn a_claim_survives_every_honest_fault() {
    let catalog = |n: u32| format!("c00000000-0000-4000-8000-{n:012}").parse().expect("an id");
    let marker = |n| StashMarker { format: FORMAT, catalog: catalog(n) };
    for (fault, claimed) in
        [(Fault::LostReply, true), (Fault::TimedOut, false), (Fault::Refused { retry: true }, false)]
    {
        let store = memory();
        store.set_plan(FaultPlan::none().at(Op::Put, 0, fault));
        let first = claim(&store, &marker(1)).await;
        assert_eq!(first.is_ok(), claimed, "{fault:?}: {first:?}");
        assert!(matches!(first, Ok(()) | Err(ClaimError::Store { .. })), "{fault:?}: {first:?}");
        claim(&store, &marker(1)).await.expect("claiming again is safe");
        claim(&store, &marker(2)).await.expect_err("it is taken");
    }
}
