//! The minting worker's dataflow is dropped between the minder's last word and the step that would pass it on.

use std::sync::Barrier;

use differential_dataflow::input::Input;
use timely::Config;

use super::*;
use crate::SinkStatus;

fn drop_all(worker: &mut timely::worker::Worker) {
    worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
}

/// Named for what was found: the word lay in a queue, and the other workers of the process saw the sink run for ever.
#[test]
fn a_stop_that_the_minting_worker_drops_unread_is_seen_by_the_others_of_its_process() {
    let (runtime, connection) = testing::two_workers();
    let stop = Stop::Reopen("for a test".to_owned());
    let (given, said, handle) = (connection.clone(), stop.clone(), runtime.handle().clone());
    let met = Arc::new(Barrier::new(2));
    let workers = timely::execute(Config::process(2), move |worker| {
        let (_rows, token) = worker.dataflow::<u64, _, _>(|scope| {
            let (rows, numbers) = scope.new_collection::<u64, i64>();
            (rows, stash_sink(numbers, no_errors(scope), &given).expect("rendered"))
        });
        // Both have rendered, and neither has stepped.
        met.wait();
        if worker.index() == given.minting_worker() {
            given.abandon(said.clone());
            handle.block_on(given.stopped());
            drop_all(worker);
        }
        met.wait();
        let status = token.status();
        token.detach();
        // Else the other worker would wait for one that takes no part any more, whatever it saw.
        drop_all(worker);
        status
    });
    for ended in workers.expect("workers").join() {
        assert_eq!(ended.expect("no panic"), SinkStatus::Stopped(stop.clone()));
    }
    runtime.block_on(connection.idle());
}
