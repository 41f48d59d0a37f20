//! Damages parts and inline runs as often as told, and prints what became of it; ends with an error at the first
//! that is read as other updates: `cargo run --release -p stash-part --example flips -- 200000 [FIRST]`.

#[path = "../tests/flips/mod.rs"]
mod flips;

fn main() -> Result<(), std::num::ParseIntError> {
    let mut words = std::env::args().skip(1);
    let cases: u64 = words.next().map_or(Ok(200_000), |word| word.parse())?;
    let first: u64 = words.next().map_or(Ok(0), |word| word.parse())?;
    // A panic of a decoder is caught and is an error like others; a case that fails still says so.
    std::panic::set_hook(Box::new(|panic| {
        if panic.location().is_some_and(|place| place.file().starts_with("crates/")) {
            eprintln!("{panic}");
        }
    }));
    let tally = flips::run(first..first.saturating_add(cases));
    for ((damage, came), count) in &tally {
        println!("{count:>8}  {damage}: {came}");
    }
    println!("{:>8}  in all, 0 silently wrong", tally.values().sum::<u64>());
    Ok(())
}
