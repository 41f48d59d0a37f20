//! The write operator behind a channel that is late: what the mint operator hears of, this worker does not have yet.

use std::sync::{
    Arc, Barrier,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use differential_dataflow::{input::Input, operators::arrange::arrangement::arrange_core};
use timely::{
    Config,
    container::CapacityContainerBuilder,
    dataflow::operators::{Inspect, generic::Operator},
};

use super::*;
use crate::rows::OfType;

type Faults = Vec<(String, u64, i64)>;

/// Keeps what comes, and its capability, until told.
fn late<'scope>(stream: Stream<'scope, u64, Faults>, told: &Arc<AtomicBool>) -> Stream<'scope, u64, Faults> {
    let (told, scope) = (Arc::clone(told), stream.scope());
    stream.unary_frontier::<CapacityContainerBuilder<Faults>, _, _, _>(
        Pipeline,
        "Late",
        |capability, info| {
            let activator = scope.activator_for(info.address);
            let (mut capability, mut kept) = (Some(capability), Faults::new());
            move |(input, frontier), output| {
                input.for_each(|_, faults| kept.append(faults));
                if !told.load(Ordering::Acquire) {
                    activator.activate();
                } else if let Some(held) = &capability {
                    output.session(held).give_iterator(kept.drain(..));
                    if frontier.is_empty() {
                        capability = None;
                    } else if let Some(time) = frontier.frontier().first() {
                        capability = Some(held.delayed(time));
                    }
                }
            }
        },
    )
}

/// Over TCP an update may come to a worker after the word that a description was minted which it belongs to.
#[test]
fn a_worker_writes_no_description_that_its_own_frontier_has_not_reached() {
    let (runtime, connection) = testing::two_workers();
    let (told, minted, given) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), connection.clone());
    let seen = Arc::new(Barrier::new(2));
    let workers = timely::execute(Config::process(2), move |worker| {
        let (index, heard) = (worker.index(), Arc::clone(&minted));
        let (mut rows, mut faults, token) = worker.dataflow::<u64, _, _>(|scope| {
            let (rows, numbers) = scope.new_collection::<u64, i64>();
            let (faults, errors) = scope.new_collection::<String, i64>();
            let keyed = numbers.map(|row| (row, ())).inner;
            let updates = arrange_core::<_, _, OrdKeyBatcher<u64, u64, i64>, KeySpine<u64, i64>>(
                keyed,
                Pipeline,
                "StashArrange",
                OrdKeyBatcher::new,
            )
            .stream;
            let shares = given.writer(u32::try_from(index).expect("it fits")).expect("a writer");
            let chain = (index == given.minting_worker()).then(|| given.chain().expect("a chain"));
            let state = Arc::new(WorkerState::default());
            let (inbox, control) = mint(&scope, updates.clone(), errors.inner.clone(), &given, chain);
            let control = control.broadcast().inspect(move |control| {
                if matches!(control, Control::Mint { upper: 10, .. }) {
                    heard.fetch_add(1, Ordering::AcqRel);
                }
            });
            let scans = KeyRows { encode: OfType, row: PhantomData::<fn() -> u64> };
            let errors = late(errors.inner, &told);
            let (token, reports) = write(&scope, updates, errors, control, &given, shares, scans, &state);
            merge(&scope, reports, &given, inbox);
            (rows, faults, token)
        });
        if index == 0 {
            rows.update_at(7, 3, 1);
            faults.update_at("it broke".to_owned(), 5, 1);
        }
        rows.advance_to(10);
        faults.advance_to(10);
        rows.flush();
        faults.flush();
        while minted.load(Ordering::Acquire) < 2 {
            worker.step();
        }
        // Both workers were told to write. One that does so now, does it in the same step.
        for _ in 0..100 {
            worker.step();
        }
        // SUBTLE: judged below. Who failed here would leave the other at the barrier for ever.
        let written = token.upper();
        // Not before the other worker has seen the same.
        seen.wait();
        told.store(true, Ordering::Release);
        while token.status() == crate::SinkStatus::Running && token.upper() < Frontier::at(10) {
            worker.step_or_park(Some(Duration::from_millis(1)));
        }
        let status = token.status();
        token.detach();
        (written, status)
    });
    let poisoned = crate::SinkStatus::Stopped(Stop::Poisoned { at: 5, message: "it broke".to_owned() });
    for ended in workers.expect("workers").join() {
        let (written, status) = ended.expect("no panic");
        assert_eq!(written, Frontier::MIN, "nothing was written before all of it was there");
        assert_eq!(status, poisoned);
    }
    runtime.block_on(connection.idle());
}
