//! Ledger, deleter and chain: every key that was entered ends deleted or referenced, once, and nothing that is
//! referenced is deleted, whoever gives up, settles, drains and closes when (I14, I15, I16).

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use shuttle::future::{block_on, spawn};
use stash_catalog::DeletionReason;
use stash_part::{EncodedPart, PartEncoder, PartMeta, Updates};
use stash_testkit::{Polled, poll_times};
use stash_types::{Description, PartDescriptor};

use super::{
    below, explore,
    fake::SINK,
    percent,
    sharing::{World, description, schema},
};
use crate::{OwnedParts, sync::pause};

/// A small part, encoded once: what it holds does not matter here.
fn part() -> &'static EncodedPart {
    static PART: OnceLock<EncodedPart> = OnceLock::new();
    PART.get_or_init(|| {
        let column: ArrayRef = Arc::new(UInt64Array::from(vec![1]));
        let diff: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let columns = vec![Arc::clone(&column), column, diff];
        let batch = RecordBatch::try_new(Arc::clone(schema().full_schema()), columns).expect("the columns");
        let meta = PartMeta {
            sink: SINK.parse().expect("an id"),
            description: description(1),
            group: 0,
            run: 0,
            ordinal: 0,
        };
        let mut encoder = PartEncoder::new(schema(), meta, Default::default()).expect("an encoder");
        let updates = Updates::new(schema(), batch).expect("sound");
        encoder.write(&stash_part::consolidate(updates).expect("sorted")).expect("written");
        encoder.finish().expect("encoded")
    })
}

/// What an owner does with the part it wrote.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is offered, and settled if it was accepted.
    Offered,
    /// It is given up.
    GivenUp,
    /// It crosses to another process, is armed there and offered; its frame may come twice, or not at all.
    Crosses,
    /// Its upload is cancelled.
    Cancelled,
}

/// Writes one part for `at`, and brings it to its end.
async fn own(world: World, at: u64) {
    let fate = match below(5) {
        0 => Fate::GivenUp,
        1 => Fate::Crosses,
        2 => Fate::Cancelled,
        _ => Fate::Offered,
    };
    let of = description(at);
    let polls = match fate {
        Fate::Cancelled => usize::try_from(below(4)).expect("small"),
        _ => usize::MAX,
    };
    let written = poll_times(world.writer.put(of, part()), polls).await;
    // The store refused it, or the process closed meanwhile, or nobody waits any more.
    let Polled::Ready(Ok(parts)) = written else { return };
    match fate {
        Fate::Offered => offer(&world, of, parts).await,
        Fate::GivenUp | Fate::Cancelled => parts.discard(),
        Fate::Crosses => {
            let frame = parts.disarm();
            for _ in 0..below(3) {
                pause().await;
                offer(&world, of, arm(&world, of, frame.clone())).await;
            }
        }
    }
}

fn arm(world: &World, of: Description, frame: Vec<PartDescriptor>) -> OwnedParts {
    world.writer.owned(of, frame)
}

async fn offer(world: &World, of: Description, parts: OwnedParts) {
    let keys: Vec<_> = parts.keys().collect();
    let accepted = world.fake.commit(of, &keys).await;
    pause().await;
    if accepted { parts.settle() } else { parts.discard() }
}

#[test]
fn every_key_ends_deleted_or_referenced_and_nothing_referenced_is_deleted() {
    explore("every_key_ends", 150, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 20);
            // Several owners write for one description: one of them can be accepted. A later one covers the earlier.
            let owners: Vec<_> = (0..5).map(|n| spawn(own(world.clone(), n % 3))).collect();
            let drain = spawn({
                let process = world.process.clone();
                async move { process.drain().await.expect("it deletes") }
            });
            for owner in owners {
                owner.await.expect("it ends");
            }
            drain.await.expect("it ends");
            world.close().await;
        });
    });
}

#[test]
fn closing_waits_for_what_is_under_way_and_nothing_follows_it() {
    explore("closing_waits", 150, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 0);
            let owners: Vec<_> = (0..3).map(|n| spawn(own(world.clone(), n))).collect();
            if percent(50) {
                pause().await;
            }
            world.process.close().await.expect("it closes");
            {
                let mut truth = world.fake.truth();
                truth.ended = true;
                assert!(truth.queued.is_empty(), "what was queued is deleted: {:?}", truth.queued);
                let listed: Vec<_> = truth.objects.keys().collect();
                let referenced: Vec<_> = truth.referenced.iter().collect();
                assert_eq!(listed, referenced, "what is listed is what is referenced (I17)");
            }
            for owner in owners {
                owner.await.expect("it ends");
            }
        });
    });
}

#[test]
fn who_wakes_the_deleter_waits_for_no_timer() {
    explore("who_wakes_the_deleter", 20, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 0);
            let of = description(0);
            let parts = world.writer.put(of, part()).await.expect("written");
            let keys: Vec<_> = parts.keys().collect();
            assert!(world.fake.commit(of, &keys).await, "nobody else commits");
            parts.settle();
            // As an acknowledgement does, of this process or another.
            {
                let mut truth = world.fake.truth();
                truth.referenced.clear();
                truth.queued.extend(keys.iter().map(|key| (*key, DeletionReason::Released)));
            }
            world.process.wake_deleter();
            world.fake.emptied.notified().await;
            world.close().await;
        });
    });
}
