//! SIGKILL at every place.

use stash_crash::{Campaign, Report, Wanted};

/// Worlds that live at once.
const JOBS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_at_whatever_place_nothing_is_lost_doubled_or_left() {
    let campaign = Campaign { binary: crate::BINARY.into(), seed: 20_26, jobs: JOBS, verbose: false };
    let mut report = Report::default();
    campaign.cover(Wanted::all(), &mut report).await;
    println!("{report}");
    assert!(report.failures.is_empty(), "{report}");
    assert_eq!(report.never_hit(), Vec::<&str>::new(), "{report}");
    assert!(report.kills >= 100, "{report}");
    assert_eq!(report.by_kind.len(), 5, "each kind of process died: {report}");
    assert!(report.redelivered > 0, "no delivery came again: {report}");
    for outcome in ["accepted", "trimmed", "dropped"] {
        assert!(report.outcomes.contains_key(outcome), "nothing was {outcome}: {report}");
    }
}
