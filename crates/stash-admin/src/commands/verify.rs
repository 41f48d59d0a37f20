//! `verify`: what the catalog promises, compared with what the store holds.
//!
//! Exit code 1 if anything does not hold. Without a sink every sink is verified, and what lies in the prefix
//! beside them.

use std::process::ExitCode;

use serde_json::json;
use stash::{SinkName, Stash, VerifyReport, Violation, invariants::Invariant};

use crate::{
    cli::VerifyArgs,
    output::{self, Output},
    progress::Meter,
    session::{Address, Purpose, with_stash},
};

/// Runs the command.
pub async fn run(at: &Address, args: VerifyArgs, out: Output) -> anyhow::Result<ExitCode> {
    let broken = with_stash(at, Purpose::Look, async |stash| {
        let mut broken = 0;
        match &args.sink {
            Some(name) => broken += verify(stash, name, out).await?,
            None => {
                for row in stash.sinks(false).await? {
                    broken += verify(stash, &row.spec.name, out).await?;
                }
                let strays = stash.strays().await?;
                broken += output::len(strays.len());
                say_strays(stash, &strays, out)?;
            }
        }
        say_scope(out)?;
        Ok(broken)
    })
    .await?;
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn verify(stash: &Stash, name: &SinkName, out: Output) -> anyhow::Result<u64> {
    let sink = stash.sink(name.as_str()).await?;
    let total =
        sink.batches().await?.iter().flat_map(|batch| &batch.parts).map(|part| part.descriptor.len).sum();
    let mut meter = Meter::new(out, "verifying", Some(total));
    let report = sink
        .verify(|report: &VerifyReport| {
            meter.at(report.bytes, Some(total), || {
                format!("{name}: {}", output::counted(report.batches, "batch", "batches"))
            });
        })
        .await?;
    drop(meter);
    say(name, &report, out)?;
    Ok(output::len(report.violations.len()))
}

fn say(name: &SinkName, report: &VerifyReport, out: Output) -> anyhow::Result<()> {
    let VerifyReport { batches, parts, bytes, being_written, queued, violations } = report;
    if out.is_json() {
        out.document(&json!({
            "sink": name.as_str(),
            "ok": violations.is_empty(),
            "batches": batches,
            "parts": parts,
            "bytes": bytes,
            "being_written": being_written,
            "queued": queued,
            "violations": violations,
            "checked": names(VerifyReport::CHECKED),
            "not_visible": names(VerifyReport::unseen()),
        }))?;
        return Ok(());
    }
    let mut line = format!(
        "sink {name}: {}, {} read, {}",
        output::counted(*batches, "batch", "batches"),
        output::counted(*parts, "part", "parts"),
        output::bytes(*bytes)
    );
    if *being_written > 0 {
        line = format!("{line}, {} being written", output::count(*being_written));
    }
    if *queued > 0 {
        line = format!("{line}, {} waiting for deletion", output::count(*queued));
    }
    let verdict = match violations.len() {
        0 => "whole: gapless (I4), every object owned once (I14), there with its digest (I15), nothing left over \
              (I17), every row readable (I22)"
            .to_owned(),
        broken => output::counted(output::len(broken), "violation", "violations"),
    };
    out.line(format!("{line}: {verdict}"))?;
    violations.iter().try_for_each(|violation| out.line(violation_text(violation)))?;
    Ok(())
}

/// Names of invariants.
fn names(invariants: impl IntoIterator<Item = Invariant>) -> Vec<&'static str> {
    invariants.into_iter().map(Invariant::name).collect()
}

/// Which invariants were checked, and which nobody can see from outside.
fn say_scope(out: Output) -> anyhow::Result<()> {
    if !out.is_json() {
        out.line(format!(
            "checked: {}; not to be seen from outside: {}",
            names(VerifyReport::CHECKED).join(" "),
            names(VerifyReport::unseen()).join(" ")
        ))?;
    }
    Ok(())
}

fn say_strays(stash: &Stash, strays: &[Violation], out: Output) -> anyhow::Result<()> {
    if out.is_json() {
        out.document(&json!({ "prefix": stash.url(), "ok": strays.is_empty(), "violations": strays }))?;
        return Ok(());
    }
    let verdict = match strays.len() {
        0 => "nothing that belongs to no sink".to_owned(),
        strays => output::counted(output::len(strays), "violation", "violations"),
    };
    out.line(format!("prefix {}: {verdict}", stash.url()))?;
    strays.iter().try_for_each(|violation| out.line(violation_text(violation)))?;
    Ok(())
}

fn violation_text(violation: &Violation) -> String {
    format!("  {}  {}", violation.invariant, output::visible(&violation.what))
}
