//! `load`: writes a change file through the whole path, from minting to the chain.
//!
//! The file is read twice, and once more before that where its types are to be found. The first pass ([`plan`])
//! finds every fault, the times, and where batches are to end; nothing is created before it is through. The
//! second ([`mod@write`]) mints each description, streams its updates to the workers as they are read, and offers
//! the batch; no batch is ever held as a whole.
//!
//! - The sink's first time stands alone, as the snapshot. After it a batch ends every `--batch-every` distinct
//!   times, or at the first new time after 65,536 updates. Where more than 65,536 batches would come of it,
//!   neighbours are joined.
//! - `--sort` makes one batch of all that follows the first time, since only the whole file shows which times
//!   are complete.
//! - At the end of the file the frontier stands just above its last time, so that everything in it is accepted.
//!   Only `--complete` moves it to the end and seals the sink. Sinks are declared so that they can be sealed.
//! - `--resume` goes on at the chain's upper: updates below are counted and skipped, whatever they say.
//! - A sink that exists says what the columns of a CSV or NDJSON file are, by name, unless `--schema` does: what a
//!   later file happens to hold never decides a type that was decided before.

mod ended;
mod plan;
mod summary;
mod target;
mod write;

use std::{process::ExitCode, time::Instant};

use stash::{Launch, Opened, Requests, Sink, Stash};

use self::{plan::Plan, summary::Summary};
use crate::{
    cli::LoadArgs,
    failure::{self, Interrupted, Refusal},
    formats::{ColumnRoles, Format, SchemaSpec},
    interrupt::Interrupt,
    output::Output,
    session::{Address, Purpose, with_stash},
};

/// What is read and how; the same for both passes.
#[derive(Clone, Debug)]
struct Source {
    path: std::path::PathBuf,
    format: Format,
    roles: ColumnRoles,
    schema: Option<SchemaSpec>,
}

impl Source {
    fn of(args: &LoadArgs) -> anyhow::Result<Source> {
        let path = args.file.clone();
        let format = args.format.or_else(|| Format::of_path(&path)).ok_or_else(|| {
            Refusal::usage(format!(
                "{}: the name does not tell the format; pass --format csv, ndjson or parquet",
                path.display()
            ))
        })?;
        // Other faults of the path are better said by whoever opens it.
        if std::fs::metadata(&path).is_ok_and(|kind| !kind.is_file() && !kind.is_dir()) {
            return Err(Refusal::usage(format!(
                "{} is not a regular file, and a load reads it more than once; write it to a file first",
                path.display()
            ))
            .into());
        }
        let roles = ColumnRoles { time: args.time_column.clone(), diff: args.diff_column.clone() };
        let schema = args.schema.as_deref().map(SchemaSpec::from_arg).transpose()?;
        Ok(Source { path, format, roles, schema })
    }
}

impl Source {
    /// The same with the types that the first pass found, so that they are not looked for again.
    fn typed(mut self, plan: &Plan) -> Source {
        if self.format != Format::Parquet && self.schema.is_none() {
            self.schema = SchemaSpec::of(&plan.schema).ok();
        }
        self
    }
}

/// Runs the command.
pub async fn run(at: &Address, args: LoadArgs, out: Output) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let at = &Address { no_sweep: args.no_sweep, ..at.clone() };
    let interrupt = Interrupt::listen()?;
    // Said before a large file is read.
    at.options()?.check()?;
    if at.stash.as_ref().is_some_and(|url| url.starts_with("memory:")) {
        let what =
            "memory:// ends with this command, so nothing would be kept: name a folder, file:///folder";
        return Err(Refusal::usage(what).into());
    }
    let mut source = Source::of(&args)?;
    if source.schema.is_none() && source.format != Format::Parquet {
        source.schema = target::columns(at, &args.sink).await?;
    }
    let plan = tokio::select! {
        plan = plan::scan(source.clone(), &args, out) => plan?,
        () = interrupt.wait() => return Err(Interrupted(Some("nothing was written".to_owned())).into()),
    };
    if source.schema.is_none() && source.format != Format::Parquet && !out.is_json() {
        SchemaSpec::of(&plan.schema).iter().for_each(|spec| eprintln!("columns inferred: {spec}"));
    }
    let mut endpoint = args.metrics.listen()?;
    let summary = with_stash(at, Purpose::Create, async |stash| {
        endpoint.watch(stash);
        let sink = target::sink(stash, &args, &source, &plan).await?;
        let loaded = load(&sink, &args, source, plan, &interrupt, out).await;
        let mut summary = loaded.map_err(|error| failure::named(error, &sink))?;
        let counters = stash.counters();
        (summary.puts, summary.put_bytes) = (counters.puts, counters.put_bytes);
        summary.requests = sum(stash);
        Ok(summary)
    })
    .await?;
    summary.print(out, &args.metrics.prices(), began.elapsed())?;
    Ok(ExitCode::SUCCESS)
}

/// All that was asked of the store.
fn sum(stash: &Stash) -> Requests {
    stash.requests().into_values().fold(Requests::default(), Requests::and)
}

async fn load(
    sink: &Sink,
    args: &LoadArgs,
    source: Source,
    plan: Plan,
    interrupt: &Interrupt,
    out: Output,
) -> anyhow::Result<Summary> {
    let mut summary = Summary::of(sink.name(), &plan);
    let head = sink.head().await?;
    let end = plan.end(args.complete);
    if head.upper >= end.unwrap_or(head.upper) {
        // Everything in the file is covered already; what a load that died has left is cleared away all the same.
        sink.clear_after(&args.replica).await?;
        summary.refused = plan.updates;
        summary.upper = head.upper;
        return Ok(summary);
    }
    let launch = Launch::single(args.replica.as_str(), args.workers.get())?;
    let incarnation = match sink.open_incarnation(launch).await? {
        Opened::Render(incarnation) => incarnation,
        other => return Err(other.render().err().map_or_else(|| unreachable_opened(sink), Into::into)),
    };
    let written = tokio::select! {
        written = write::write(&incarnation, source.typed(&plan), &plan, args, &mut summary, out) => written,
        () = interrupt.wait() => Err(Interrupted(None).into()),
    };
    let reason = match &written {
        Ok(()) => "the load is done".to_owned(),
        Err(error) => format!("the load ended: {error}"),
    };
    let closed = incarnation.close(&reason).await;
    match written {
        Ok(()) => closed?,
        Err(error) if error.is::<Interrupted>() => {
            let upper = sink.upper().await?;
            let what = format!("what was accepted below {upper} stands; go on with --resume");
            return Err(Interrupted(Some(what)).into());
        }
        Err(error) => return Err(ended::explained(error, sink, args, sink.upper().await?)),
    }
    summary.upper = sink.upper().await?;
    Ok(summary)
}

fn unreachable_opened(sink: &Sink) -> anyhow::Error {
    Refusal::fix_call(format!("sink {} changed while it was opened; try again", sink.name())).into()
}
