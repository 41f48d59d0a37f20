//! Runs a command beside a radosgw and a PostgreSQL of its own, which end with it.
//!
//! ```text
//! cargo run -p stash-testkit --example with_servers -- [OPTIONS] COMMAND [ARGUMENTS…]
//!   --scenario NAME   what goes wrong between the command and radosgw: slow-down-50, mixed-25, …; default healthy
//!   --seed N          of the scenario; default 1
//!   --times N         runs it so often, each time over an empty bucket and an empty database; default once
//!   --store NAME      radosgw or ministack; default radosgw
//! ```
//!
//! The command gets `STASH_URL` and `STASH_CATALOG`, the credentials in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and in its
//! arguments `{stash}` and `{catalog}` are replaced by the two URLs. Afterwards it is printed what was asked of the store, and what
//! is left in the bucket. The exit code is that of the first command that failed.

use std::process::{Command, ExitCode};

use stash_testkit::{
    FaultProxy,
    proxy::Scenario,
    servers::{self, PostgresServer, S3Server},
};

struct Options {
    scenario: Scenario,
    seed: u64,
    times: u64,
    store: String,
    command: Vec<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            scenario: Scenario::Healthy,
            seed: 1,
            times: 1,
            store: "radosgw".to_owned(),
            command: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
            match argument.as_str() {
                "--scenario" => options.scenario = value()?.parse().map_err(|error| format!("{error}"))?,
                "--seed" => options.seed = number(value()?)?,
                "--times" => options.times = number(value()?)?,
                "--store" => options.store = value()?,
                "--" => options.command.extend(arguments.by_ref()),
                _ => {
                    options.command.push(argument);
                    options.command.extend(arguments.by_ref());
                }
            }
        }
        if options.command.is_empty() {
            return Err("name a command; --scenario, --seed, --times and --store stand before it".to_owned());
        }
        Ok(options)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("with_servers: {why}");
            return ExitCode::from(2);
        }
    };
    let store = match options.store.as_str() {
        "radosgw" => servers::radosgw().await,
        "ministack" => servers::ministack().await,
        other => {
            eprintln!("with_servers: {other} is neither radosgw nor ministack");
            return ExitCode::from(2);
        }
    };
    let (Some(store), Some(postgres)) = (store, servers::postgres().await) else {
        return ExitCode::from(3);
    };
    for time in 1..=options.times {
        let code = run(&options, store, postgres, time).await;
        if code != 0 {
            return ExitCode::from(code);
        }
    }
    ExitCode::SUCCESS
}

async fn run(options: &Options, store: &S3Server, postgres: &PostgresServer, time: u64) -> u8 {
    let proxy = match FaultProxy::start(store) {
        Ok(proxy) => proxy,
        Err(error) => {
            eprintln!("with_servers: no proxy: {error}");
            return 3;
        }
    };
    let bucket = store.new_bucket("run").await;
    let catalog = postgres.new_database("run").await;
    let stash = format!(
        "s3://{bucket}/stash?endpoint={}&path_style=true&region={}",
        proxy.endpoint(),
        store.region()
    );
    proxy.set(options.scenario, options.seed.wrapping_add(time - 1));
    let mut words =
        options.command.iter().map(|word| word.replace("{stash}", &stash).replace("{catalog}", &catalog));
    let mut command = Command::new(words.next().unwrap_or_default());
    command
        .args(words)
        .env("STASH_URL", &stash)
        .env("STASH_CATALOG", &catalog)
        .env("AWS_ACCESS_KEY_ID", store.access_key())
        .env("AWS_SECRET_ACCESS_KEY", store.secret_key())
        .env("AWS_REGION", store.region());
    let code = match tokio::task::spawn_blocking(move || command.status()).await {
        // A command that a signal ended has no code.
        Ok(Ok(status)) => status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)),
        Ok(Err(error)) => {
            eprintln!("with_servers: the command does not start: {error}");
            127
        }
        Err(_) => 1,
    };
    for (call, tally) in proxy.tallies() {
        println!(
            "with_servers: {call}: {} requests, {} succeeded, {} went wrong by plan, {} repeated, {} bytes in, {} bytes out",
            tally.requests, tally.succeeded, tally.faults, tally.repeated, tally.bytes_in, tally.bytes_out
        );
    }
    let (keys, uploads) = store.contents(&bucket).await;
    println!(
        "with_servers: run {time} of {} ended with {code}; left: {keys:?}, uploads {uploads:?}",
        options.times
    );
    code
}
