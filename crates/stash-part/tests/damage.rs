//! Damaged bytes are an error or the same updates, never other ones: see `flips`.

mod flips;

/// As many as a change has time for; the example `flips` runs more.
const CASES: u64 = 5_000;

#[test]
fn no_flip_cut_or_swap_yields_other_updates() {
    let tally = flips::run(0..CASES);
    let refused = |what: &str| -> u64 {
        tally.iter().filter(|((_, came), _)| *came == what).map(|(_, count)| count).sum()
    };
    // Each guard was tried, else the cases miss something.
    for guard in ["tail digest", "row group digest", "inline digest", "length", "schema fingerprint"] {
        assert!(refused(&format!("refused: {guard}")) > 20, "{guard}: {tally:#?}");
    }
    assert_eq!(tally.values().sum::<u64>(), CASES);
}
