//! A sync fails with EIO, injected into the system call of a replica. Either the call is told as failed, by type, or
//! a later try succeeds; what was accepted is not lost, and nothing is left.
//!
//! The tracer counts for each thread by itself, and a catalog connection that failed is made anew, with a new thread.
//! So where the first sync is to fail the disk is broken for good: after a while the process is killed, and started
//! again on a disk that works.

use std::process::Command;

use stash_crash::{Setup, What, Who, World, message::Event, plan::live};

const HURT: Who = Who::Replica(0, 0);
/// So many failures in a row, and somebody puts in another disk.
const PATIENCE: usize = 25;

/// Whether the machine has a tracer that may inject errors.
fn can_inject() -> bool {
    let tried = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "true"])
        .output();
    tried.is_ok_and(|done| done.status.success())
}

/// What came of it: errors injected, and failures that were told.
#[derive(Debug, Default)]
struct Seen {
    injected: usize,
    told: Vec<(String, String)>,
}

async fn hurt(when: &str) -> anyhow::Result<Seen> {
    let mut setup = Setup::new(crate::BINARY, 99);
    (setup.errors_allowed, setup.deletes_refused, setup.keeper) = (true, true, true);
    // The trace lies outside the world, which ends with the test.
    let trace = tempfile::NamedTempFile::new()?;
    let words = [
        "strace",
        "-f",
        "-qq",
        "-o",
        &trace.path().display().to_string(),
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        &format!("inject=fsync,fdatasync:error=EIO:when={when}"),
    ];
    setup.wraps.insert(HURT, words.iter().map(|word| (*word).to_owned()).collect());
    let mut world = World::start(setup).await?;
    let mut seen = Seen::default();
    while !world.is_over() {
        let happening = world.step().await?;
        match happening.what {
            What::Told(Event::Stuck { kind, error } | Event::Ended { kind, error, .. }) => {
                seen.told.push((kind, error));
                if happening.who == HURT && seen.told.len() == PATIENCE {
                    world.kill(HURT)?;
                }
            }
            What::Failed(words) => seen.told.push(("exit".to_owned(), words)),
            _ => {}
        }
    }
    live(&mut world).await?;
    let trace = std::fs::read_to_string(trace.path())?;
    seen.injected = trace.lines().filter(|line| line.contains("(INJECTED)")).count();
    Ok(seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_fails_is_told_or_tried_again_and_nothing_accepted_is_lost() {
    if !can_inject() {
        return crate::skip("failing syncs: there is no strace here that may inject errors");
    }
    let (mut injected, mut told) = (0, 0);
    for when in ["1", "2", "3", "5", "8", "13", "21", "2+7", "1+3"] {
        let seen = crate::within_deadline(async {
            hurt(when).await.map_err(|error| error.context(format!("when={when}")))
        })
        .await;
        println!("when={when}: {seen:?}");
        injected += seen.injected;
        told += seen.told.len();
        for (kind, error) in &seen.told {
            assert!(["Retry", "Reopen", "exit"].contains(&kind.as_str()), "{kind}: {error}");
            assert!(!error.contains("panicked"), "{error}");
        }
    }
    assert!(injected >= 20, "only {injected} syncs failed");
    assert!(told > 0, "no failed sync was told by anybody");
}
