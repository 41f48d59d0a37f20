//! A seed replays: the same history, to the last event and its time.

use stash_sim::{hash_of, run};

#[test]
fn the_same_seed_gives_the_same_history_and_another_gives_another() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in [3, 13, 17, 44] {
        // One after the other, and beside another run: neither what ran before nor other threads may matter.
        let first = run(seed);
        let beside = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(seed + 1));
            let again = run(seed);
            other.join().expect("the other run");
            again
        });
        let differ = first.history.iter().zip(&beside.history).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed} goes another way here");
        assert_eq!(first.history.len(), beside.history.len());
        assert_eq!((&first.hash, hash_of(&first.history)), (&beside.hash, beside.hash.clone()));
        assert_eq!((first.faults, first.counts), (beside.faults, beside.counts));
        hashes.insert(first.hash);
    }
    assert_eq!(hashes.len(), 4, "seeds differ");
}
