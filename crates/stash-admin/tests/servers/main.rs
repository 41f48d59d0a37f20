//! The demo over real servers: an object store and a database that run on this machine, started by these tests.
//!
//! `STASH_DEMO_RUNS` says how often in a row each test plays it; once if absent. Seeds follow from the run, and are
//! printed.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use serde_json::Value;
use stash_testkit::{
    proxy::{FaultProxy, Scenario},
    servers::{PostgresServer, S3Server, postgres, radosgw},
};

/// How often in a row.
fn runs() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "how long a test runs is the environment's to say")]
    let runs = std::env::var("STASH_DEMO_RUNS");
    runs.map_or(1, |runs| runs.parse().expect("STASH_DEMO_RUNS is a number"))
}

/// Both servers, or nothing where one is missing; that was reported.
async fn servers() -> Option<(&'static S3Server, &'static PostgresServer)> {
    Some((radosgw().await?, postgres().await?))
}

/// Plays the demo over `bucket` behind `endpoint`, and checks what it says of itself.
async fn play(server: &S3Server, endpoint: &str, database: &PostgresServer, seed: u64) {
    let bucket = server.new_bucket("demo").await;
    let stash = format!("s3://{bucket}/some/prefix?endpoint={endpoint}&region={}", server.region());
    let catalog = database.new_database("demo").await;
    println!("seed {seed}, {stash}");
    let output = tokio::task::spawn_blocking({
        let keys = [server.access_key(), server.secret_key()].map(str::to_owned);
        let stash = stash.clone();
        move || {
            Command::new(env!("CARGO_BIN_EXE_stash-admin"))
                .args([
                    "--json",
                    "demo",
                    "--scale",
                    "0.01",
                    "--memory-mib",
                    "64",
                    "--seed",
                    &seed.to_string(),
                ])
                .args(["--stash", &stash])
                .env("STASH_CATALOG", catalog)
                .env("AWS_ACCESS_KEY_ID", &keys[0])
                .env("AWS_SECRET_ACCESS_KEY", &keys[1])
                .env("AWS_EC2_METADATA_DISABLED", "true")
                .stdin(Stdio::null())
                .output()
                .expect("the binary runs")
        }
    })
    .await
    .expect("the demo's thread");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "seed {seed}: {}\n{out}\n{err}", output.status);
    let summary: BTreeMap<String, Value> = serde_json::from_str(&out).expect("the summary is JSON");
    for none in ["mismatches", "violations", "blobs_left"] {
        assert_eq!(summary[none].as_array().map(Vec::len), Some(0), "seed {seed}: {none}: {out}");
    }
    assert!(summary["updates_delivered"].as_u64() > Some(0), "{out}");
    assert!(summary["puts"].as_u64() > Some(0), "the snapshot went to the bucket: {out}");
    let (keys, uploads) = server.contents(&bucket).await;
    assert_eq!(keys, ["some/prefix/stash.json"], "seed {seed}: the mark of the stash alone is left");
    assert_eq!(uploads, Vec::<String>::new(), "seed {seed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_die_make_one_chain_of_a_bucket_and_a_database() {
    let Some((server, database)) = servers().await else { return };
    for run in 0..runs() {
        play(server, &server.endpoint(), database, 1 + run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_says_slow_down_costs_time_and_nothing_else() {
    let Some((server, database)) = servers().await else { return };
    for run in 0..runs() {
        let seed = 1 + run;
        let proxy = FaultProxy::start(server).expect("a proxy on the loopback");
        proxy.set(Scenario::SlowDown { percent: 30 }, seed);
        play(server, &proxy.endpoint(), database, seed).await;
        let tallies = proxy.tallies();
        assert!(tallies.values().any(|tally| tally.faults > 0), "nothing was slowed: {tallies:?}");
    }
}
