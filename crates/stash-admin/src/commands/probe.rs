//! `probe`: what a store really does, and whether a stash can live in it.
//!
//! Exit code 1 if it cannot, or if something of the probe is left in the bucket. A first Ctrl-C lets the requests under
//! way end and takes everything away.

use std::{io::IsTerminal, process::ExitCode};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stash::{
    SystemIds,
    s3::{Answer, Check, Finding, Latency, Probe, ProbeReport, S3Config, Verdict},
};

use crate::{
    cli::ProbeArgs,
    failure::{Interrupted, Refusal},
    interrupt::Interrupt,
    output::{self, Output},
};

/// Names of what is left that are printed for people; the JSON has all.
const LEFT_SHOWN: usize = 20;

/// The bucket that is meant: by the verb's own URL, else the stash's.
pub(super) fn config(stash: &Option<String>, url: Option<String>) -> Result<S3Config, Refusal> {
    let url = url.or_else(|| stash.clone());
    let url = url.ok_or_else(|| {
        Refusal::usage("no bucket is named: write s3://BUCKET/PREFIX, or set STASH_URL to one")
    })?;
    if !url.starts_with("s3:") {
        return Err(Refusal::usage(format!(
            "{url:?} is no bucket: this looks at stores that speak S3, s3://BUCKET/PREFIX; of a folder or memory there is \
             nothing to find out"
        )));
    }
    S3Config::from_url(&url).map_err(|error| Refusal::usage(error.to_string()))
}

/// Runs the command.
pub async fn run(stash: &Option<String>, args: ProbeArgs, out: Output) -> anyhow::Result<ExitCode> {
    let config = config(stash, args.bucket.url)?;
    let interrupt = Interrupt::listen()?;
    let probe = Probe::new(&config, &SystemIds);
    if !out.is_json() {
        eprintln!("probing below {}; what is put there is taken away again", probe.place());
    }
    let bar = (!out.is_json() && std::io::stderr().is_terminal()).then(bar);
    let mut tell = |finding: &Finding| {
        if let Some(bar) = &bar {
            bar.inc(1);
            bar.set_message(finding.what.words());
        }
    };
    let report = probe.run(move || interrupt.came(), &mut tell).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if out.is_json() {
        out.document(&document(&report)?)?;
    } else {
        out.line(text(&report))?;
    }
    if report.stopped {
        let left =
            if report.left.is_empty() { "nothing of the probe is left" } else { "the probe left objects" };
        return Err(Interrupted(Some(left.to_owned())).into());
    }
    let good = report.verdict.is_fit() && report.left.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(output::len(Check::ALL.len()));
    if let Ok(style) = ProgressStyle::with_template("probing {bar:24} {pos}/{len} {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// An answer in one word.
fn word(answer: &Answer) -> &'static str {
    match answer {
        Answer::Yes => "yes",
        Answer::No => "no",
        Answer::Unknown(_) => "unknown",
    }
}

fn seen(finding: &Finding) -> &str {
    match &finding.result {
        Answer::Unknown(why) => why,
        Answer::Yes | Answer::No => &finding.detail,
    }
}

fn document(report: &ProbeReport) -> serde_json::Result<Value> {
    let findings = report.findings.iter().map(|finding| {
        json!({
            "what": finding.what,
            "question": finding.what.words(),
            "answer": word(&finding.result),
            "seen": seen(finding),
        })
    });
    let verdict = match report.verdict {
        Verdict::Fit => "fit",
        Verdict::FitWith(_) => "fit-with",
        Verdict::Unfit(_) => "unfit",
    };
    Ok(json!({
        "location": report.location,
        "endpoint": report.endpoint,
        "region": report.region,
        "server": report.server,
        "folder": report.folder,
        "verdict": verdict,
        "consequences": serde_json::to_value(report.verdict.consequences())?,
        "findings": findings.collect::<Vec<_>>(),
        "put": report.put,
        "get": report.get,
        "requests": report.requests,
        "millis": report.millis,
        "stopped": report.stopped,
        "left": report.left,
    }))
}

fn text(report: &ProbeReport) -> String {
    let mut table = output::table(&["question", "answer", "seen"], &[]);
    for finding in &report.findings {
        table.add_row([finding.what.words(), word(&finding.result), &output::cut(seen(finding))]);
    }
    let mut lines = vec![place(&report.location, &report.endpoint, &report.region), String::new()];
    lines.push(table.trim_fmt());
    lines.push(String::new());
    if let (Some(put), Some(get)) = (report.put, report.get) {
        lines.push(format!("1 KiB: PUT {}, GET {}", latency(put), latency(get)));
    }
    lines.push(format!(
        "{} in {}.{} s",
        output::counted(report.requests, "request", "requests"),
        report.millis / 1000,
        report.millis % 1000 / 100
    ));
    lines.extend(left(&report.left));
    lines.push(String::new());
    lines.extend(verdict(&report.verdict));
    lines.join("\n")
}

/// Where a bucket is, in one line.
pub(super) fn place(location: &str, endpoint: &Option<String>, region: &Option<String>) -> String {
    let endpoint = endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
    let region = region.as_ref().map(|region| format!(" ({region})")).unwrap_or_default();
    format!("{location}{endpoint}{region}")
}

fn latency(of: Latency) -> String {
    let millis = |us: u64| format!("{}.{} ms", us / 1000, us % 1000 / 100);
    format!("{} (slowest {})", millis(of.median_us), millis(of.slowest_us))
}

fn left(left: &[String]) -> Vec<String> {
    if left.is_empty() {
        return vec!["nothing of the probe is left in the bucket".to_owned()];
    }
    let mut lines = vec![format!(
        "LEFT in the bucket, delete by hand: {}",
        output::counted(output::len(left.len()), "object", "objects")
    )];
    lines.extend(left.iter().take(LEFT_SHOWN).map(|name| format!("  {name}")));
    if left.len() > LEFT_SHOWN {
        lines.push(format!("  and {} more; --json names all", left.len() - LEFT_SHOWN));
    }
    lines
}

fn verdict(verdict: &Verdict) -> Vec<String> {
    let first = match verdict {
        Verdict::Fit => "FIT: a stash can live here",
        Verdict::FitWith(_) => "FIT, with these fallbacks:",
        Verdict::Unfit(_) => "UNFIT, because:",
    };
    let each = verdict.consequences().iter().map(|one| format!("  - {}", one.text));
    std::iter::once(first.to_owned()).chain(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_named_by_the_verb_or_by_the_stash() {
        let named = |stash: Option<&str>, url: Option<&str>| {
            config(&stash.map(str::to_owned), url.map(str::to_owned)).map(|config| config.bucket)
        };
        assert_eq!(named(Some("s3://a"), Some("s3://b/p")).expect("a bucket"), "b");
        assert_eq!(named(Some("s3://a"), None).expect("a bucket"), "a");
        let why = |stash, url| named(stash, url).expect_err("no bucket").to_string();
        assert!(why(None, None).contains("s3://BUCKET/PREFIX"));
        assert!(why(None, Some("file:///srv/x")).contains("no bucket"));
        assert!(why(None, Some("s3:///x")).contains("names no bucket"));
    }

    #[test]
    fn times_are_in_milliseconds_with_one_digit() {
        assert_eq!(latency(Latency { median_us: 2935, slowest_us: 40_012 }), "2.9 ms (slowest 40.0 ms)");
    }

    #[test]
    fn what_is_left_is_named_and_long_lists_are_cut() {
        let many: Vec<String> = (0..25).map(|number| format!("k{number}")).collect();
        let lines = left(&many);
        assert_eq!(lines.len(), 22);
        assert!(lines[0].contains("25 objects") && lines[1].contains("k0") && lines[21].contains("5 more"));
    }
}
