//! `consumers`: who reads a sink and how far, or to forget one.

use std::process::ExitCode;

use serde_json::json;
use stash::{ConsumerName, Sink};

use super::deletions::{Deletions, refused};
use crate::{
    cli::ConsumersArgs,
    duration,
    failure::Refusal,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: ConsumersArgs, out: Output) -> anyhow::Result<ExitCode> {
    with_sink(at, Purpose::of(args.commit), &args.sink, async |sink| match &args.forget {
        Some(consumer) => forget(sink, consumer, args.commit, out).await,
        None => list(sink, out).await,
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn list(sink: &Sink, out: Output) -> anyhow::Result<()> {
    let (head, consumers) = (sink.head().await?, sink.consumers().await?);
    let (upper, retention) = (head.upper, sink.row().spec.retention_ms);
    if out.is_json() {
        for row in &consumers {
            out.document(&json!({
                "consumer": row.name.as_str(),
                "acknowledged": output::frontier(row.acked),
                "up_to_date": row.acked == upper,
                "expired": row.acked < head.expired,
                "session": row.session.to_string(),
                "seen_ms": row.seen.0,
            }))?;
        }
        return Ok(());
    }
    if consumers.is_empty() {
        let kept = retention.map_or_else(
            || "is kept".to_owned(),
            |ms| format!("is kept for {} after each batch was accepted, or", duration::written(ms)),
        );
        out.line(format!(
            "no consumers: the chain of sink {} {kept} until somebody reads by name",
            sink.name()
        ))?;
        return Ok(());
    }
    let mut table = output::table(&["consumer", "acknowledged", "state", "seen"], &["acknowledged"]);
    for row in &consumers {
        let state = if row.acked == upper {
            "up to date".to_owned()
        } else if row.acked < head.expired {
            format!("everything below {} expired; the chain is at {upper}", head.expired)
        } else {
            format!("the chain is at {upper}")
        };
        table.add_row([row.name.to_string(), row.acked.to_string(), state, output::moment(row.seen)]);
    }
    out.line(table.trim_fmt())?;
    Ok(())
}

async fn forget(sink: &Sink, consumer: &ConsumerName, commit: bool, out: Output) -> anyhow::Result<()> {
    let consumers = sink.consumers().await?;
    let Some(row) = consumers.iter().find(|row| row.name == *consumer) else {
        return Err(Refusal::absent(format!(
            "sink {} has no consumer {consumer}; `stash-admin consumers {}` lists them",
            sink.name(),
            sink.name()
        ))
        .into());
    };
    let deferred = match commit {
        true => {
            sink.unregister_consumer(consumer.as_str()).await?;
            Deletions::settle(sink, 0).await?.deferred
        }
        false => 0,
    };
    if out.is_json() {
        out.document(&json!({
            "sink": sink.name().as_str(),
            "forget": consumer.as_str(),
            "acknowledged": output::frontier(row.acked),
            "others": consumers.len().saturating_sub(1),
            "deletes_deferred": deferred,
            "committed": commit,
        }))?;
        return Ok(());
    }
    let others = output::counted(output::len(consumers.len().saturating_sub(1)), "consumer", "consumers");
    if commit {
        out.line(format!("forgot consumer {consumer} of sink {}; {others} left", sink.name()))?;
        refused(deferred).iter().try_for_each(|line| out.line(line))?;
    } else {
        out.line(format!(
            "would forget consumer {consumer} of sink {}, which acknowledged everything below {}; {others} would \
             be left, and what they all acknowledged would be deleted",
            sink.name(),
            row.acked
        ))?;
        out.line("dry run: nothing was changed; pass --commit")?;
    }
    Ok(())
}
