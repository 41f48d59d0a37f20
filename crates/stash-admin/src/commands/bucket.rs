//! `bucket check` and `bucket init`: whether a bucket is set up for a stash, and setting it up.
//!
//! `check` changes nothing; exit code 1 if a stash would lose data there or cannot use it. `init` is a dry run unless
//! `--commit`; exit code 1 if a setting could not be set. What a store does not have is said, and no failure.

use std::process::ExitCode;

use stash::s3::{
    Aspect, BucketPlan, BucketReport, S3Config, Standing, StepOutcome, check_bucket, init_bucket,
};

use super::probe::{config, place};
use crate::{
    cli::{BucketArgs, BucketCommand},
    output::{self, Output},
};

/// Runs the command.
pub async fn run(stash: &Option<String>, args: BucketArgs, out: Output) -> anyhow::Result<ExitCode> {
    match args.what {
        BucketCommand::Check(bucket) => check(&config(stash, bucket.url)?, out).await,
        BucketCommand::Init(args) => init(&config(stash, args.bucket.url)?, args.commit, out).await,
    }
}

async fn check(config: &S3Config, out: Output) -> anyhow::Result<ExitCode> {
    let report = check_bucket(config).await;
    if out.is_json() {
        let mut document = serde_json::to_value(&report)?;
        document["ok"] = report.is_sound().into();
        out.document(&document)?;
    } else {
        out.line(check_text(&report))?;
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_text(report: &BucketReport) -> String {
    let mut table = output::table(&["looked at", "is", "seen"], &[]);
    for item in &report.items {
        table.add_row([item.what.words(), standing(item.standing), &output::cut(&item.detail)]);
    }
    let mut lines = vec![place(&report.location, &report.endpoint, &None), String::new(), table.trim_fmt()];
    let advised: Vec<_> =
        report.items.iter().filter_map(|item| Some((item.what, item.advice.as_ref()?))).collect();
    if !advised.is_empty() {
        lines.push("\nwhat to do:".to_owned());
        lines.extend(advised.iter().map(|(what, advice)| format!("  - {}: {advice}", what.words())));
    }
    if !report.is_sound() {
        lines.push("\nno stash should live here as it is".to_owned());
    }
    lines.join("\n")
}

/// How an aspect stands, in one word.
fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Good => "good",
        Standing::Warn => "warning",
        Standing::Bad => "BAD",
        Standing::NotOffered => "not there",
        Standing::Unknown => "unknown",
    }
}

async fn init(config: &S3Config, commit: bool, out: Output) -> anyhow::Result<ExitCode> {
    let plan = init_bucket(config, commit).await.map_err(stash::Error::from)?;
    if out.is_json() {
        let mut document = serde_json::to_value(&plan)?;
        document["ok"] = plan.is_done().into();
        out.document(&document)?;
    } else {
        out.line(init_text(&plan))?;
    }
    Ok(if plan.is_done() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn init_text(plan: &BucketPlan) -> String {
    let mut table = output::table(&["setting", "outcome", "what"], &[]);
    for step in &plan.steps {
        table.add_row([setting(step.what), outcome(step.outcome), step.detail.as_str()]);
    }
    let mut lines = vec![place(&plan.location, &plan.endpoint, &None), String::new(), table.trim_fmt()];
    if !plan.committed {
        lines.push("\ndry run: nothing was changed; pass --commit".to_owned());
    }
    lines.join("\n")
}

fn setting(what: Aspect) -> &'static str {
    match what {
        Aspect::AbortsUploads => "lifecycle",
        Aspect::PublicAccess => "public access",
        Aspect::Encryption => "encryption",
        other => other.words(),
    }
}

fn outcome(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::AlreadySo => "is so",
        StepOutcome::Would => "would set",
        StepOutcome::Done => "set",
        StepOutcome::NotOffered => "not there",
        StepOutcome::Failed => "FAILED",
    }
}
