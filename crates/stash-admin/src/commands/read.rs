//! `read`: prints a sink's consolidated batches, each closed by its progress.
//!
//! Within a batch updates are in the order of their rows, so that loading them again takes `--sort`.
//!
//! - With a consumer, a batch is acknowledged only once it is out of our hands: flushed, and where it goes to a
//!   file, synced. For Parquet that is when the file is whole; until then nothing is acknowledged. A broken
//!   pipe or a full disk leaves the batch it happened in unacknowledged, and it is delivered again.
//! - An output file must not be there yet: what it held may have been acknowledged, and would be lost. Parquet is
//!   written beside it and takes its name when it is whole.
//! - Ctrl-C ends between two batches, and completes a Parquet file.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use arrow::datatypes::{Schema, SchemaRef};
use serde_json::json;
use stash::{Absence, CatalogError, Delivery, Frontier, Misuse, Sink, Subscription, TryNext};

use crate::{
    cli::{ReadArgs, Start},
    failure::Refusal,
    formats::{BatchWriter, Format, batch_writer},
    interrupt::Interrupt,
    output::{self, Output},
    session::with_sink,
};

/// Runs the command.
pub async fn run(url: &Option<String>, args: ReadArgs, out: Output) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let by_name = args.output.as_deref().and_then(Format::of_path);
    let format = args.format.or(by_name).unwrap_or(Format::Ndjson);
    if format == Format::Parquet && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Refusal::usage("Parquet is no text for a terminal: pass --output FILE").into());
    }
    with_sink(url, &args.sink, async |sink| {
        let subscription = subscribe(sink, &args).await?;
        let target = Target::open(args.output.clone(), format)?;
        Reading::new(sink, subscription, target, &args).run(&interrupt, out).await
    })
    .await
    .map_err(|error| with_advice(error, &args))?;
    Ok(ExitCode::SUCCESS)
}

/// Says how to read on where the beginning is gone.
fn with_advice(error: anyhow::Error, args: &ReadArgs) -> anyhow::Error {
    let gone = matches!(
        error.downcast_ref(),
        Some(
            stash::Error::Absent(Absence::Acknowledged { .. } | Absence::Expired { .. })
                | stash::Error::Catalog(CatalogError::InvalidUsage(Misuse::BeginningGone { .. }))
        )
    );
    if gone && args.start == Start::Beginning {
        return error.context(format!(
            "the beginning of sink {} is gone; --start earliest reads what is still there",
            args.sink
        ));
    }
    error
}

async fn subscribe(sink: &Sink, args: &ReadArgs) -> anyhow::Result<Subscription> {
    if let Some(consumer) = &args.consumer {
        return Ok(sink.subscribe(consumer.as_str(), args.start.into()).await?);
    }
    Ok(match (args.from, args.start) {
        (Some(u64::MAX), _) => {
            return Err(Refusal::usage(format!("--from {} is no time", u64::MAX)).into());
        }
        (Some(from), _) => {
            let as_of = sink.row().spec.as_of;
            if from < as_of {
                return Err(Refusal::fix_call(format!(
                    "sink {} begins at {as_of}: pass --from {as_of} or later",
                    sink.name()
                ))
                .into());
            }
            sink.read_from(Frontier::at(from))
        }
        (None, Start::Beginning) => sink.read_from(Frontier::at(sink.row().spec.as_of)),
        (None, Start::Earliest) => sink.read().await?,
        (None, Start::Now) => sink.read_from(sink.upper().await?),
    })
}

/// Where batches are printed to.
struct Target {
    writer: Box<dyn BatchWriter>,
    format: Format,
    /// The file, and where it lies until it is whole.
    file: Option<(File, PathBuf, PathBuf)>,
    name: String,
    begun: bool,
}

impl Target {
    fn open(output: Option<PathBuf>, format: Format) -> anyhow::Result<Target> {
        let Some(path) = output else {
            let writer = batch_writer(format, io::stdout());
            return Ok(Target { writer, format, file: None, name: "stdout".to_owned(), begun: false });
        };
        let name = path.display().to_string();
        if path.symlink_metadata().is_ok() {
            return Err(Refusal::fix_call(format!(
                "{name} is there already, and what it holds may be the only copy; name another file"
            ))
            .into());
        }
        let at = match format {
            Format::Parquet => path.with_added_extension("partial"),
            Format::Csv | Format::Ndjson => path.clone(),
        };
        let file = (OpenOptions::new().write(true).create_new(true).open(&at))
            .with_context(|| format!("{} cannot be created", at.display()))?;
        let writer = batch_writer(format, file.try_clone().with_context(|| name.clone())?);
        Ok(Target { writer, format, file: Some((file, at, path)), name, begun: false })
    }

    fn doing<T>(&self, done: io::Result<T>) -> anyhow::Result<T> {
        done.with_context(|| format!("{} cannot be written", self.name))
    }

    fn begin(&mut self, schema: &SchemaRef) -> anyhow::Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        let begun = self.writer.begin(schema);
        self.doing(begun)
    }

    /// Prints a batch and its progress, and hands them over. Whether they are safe there.
    async fn deliver(&mut self, delivery: &Delivery) -> anyhow::Result<(u64, bool)> {
        let mut reader = delivery.read();
        self.begin(&reader.schema())?;
        let mut updates = 0;
        while let Some(batch) = reader.next().await.map_err(stash::Error::from)? {
            updates += output::len(batch.num_rows());
            let printed = self.writer.batch(&batch);
            self.doing(printed)?;
        }
        let closed = self.writer.progress(delivery.upper().time());
        self.doing(closed)?;
        if self.format == Format::Parquet {
            return Ok((updates, false));
        }
        let flushed = self.writer.flush();
        self.doing(flushed)?;
        if let Some((file, _, _)) = &self.file {
            self.doing(file.sync_data())?;
        }
        Ok((updates, true))
    }

    /// Completes the output and makes it durable.
    fn finish(&mut self) -> anyhow::Result<()> {
        let finished = self.writer.finish();
        self.doing(finished)?;
        let Some((file, at, path)) = self.file.take() else { return Ok(()) };
        self.doing(file.sync_all())?;
        if at != path {
            // SUBTLE: a link never replaces anything, so a file that somebody made meanwhile is not lost.
            self.doing(std::fs::hard_link(&at, &path))?;
            self.doing(std::fs::remove_file(&at))?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        self.doing(synced)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Half a Parquet file is of no use, and was acknowledged to nobody.
        if let Some((_, at, path)) = &self.file
            && at != path
        {
            drop(std::fs::remove_file(at));
        }
    }
}

/// One run of the command.
struct Reading<'a> {
    sink: &'a Sink,
    subscription: Subscription,
    target: Target,
    args: &'a ReadArgs,
    batches: u64,
    updates: u64,
    delivered: Option<Frontier>,
}

impl<'a> Reading<'a> {
    fn new(sink: &'a Sink, subscription: Subscription, target: Target, args: &'a ReadArgs) -> Reading<'a> {
        Reading { sink, subscription, target, args, batches: 0, updates: 0, delivered: None }
    }

    async fn run(mut self, interrupt: &Interrupt, out: Output) -> anyhow::Result<()> {
        let target = self.sink.upper().await?;
        while !interrupt.came() && self.args.limit_batches.is_none_or(|limit| self.batches < limit.get()) {
            let next = if self.args.follow {
                tokio::select! {
                    next = self.subscription.next() => next?,
                    () = interrupt.wait() => break,
                }
            } else {
                self.next_present(target).await?
            };
            let Some(delivery) = next else { break };
            let (updates, safe) = self.target.deliver(&delivery).await?;
            self.updates += updates;
            self.batches += 1;
            self.delivered = Some(delivery.upper());
            if safe {
                self.acknowledge().await?;
            }
        }
        self.target.begin(&full_schema(self.sink))?;
        self.target.finish()?;
        self.acknowledge().await?;
        self.say(out)
    }

    /// The next batch below `target`, where the chain stood at first.
    async fn next_present(&mut self, target: Frontier) -> anyhow::Result<Option<Delivery>> {
        loop {
            match self.subscription.try_next().await? {
                TryNext::Delivery(delivery) => return Ok(Some(*delivery)),
                TryNext::End => return Ok(None),
                TryNext::Pending if self.subscription.position() >= target => return Ok(None),
                TryNext::Pending => tokio::task::yield_now().await,
            }
        }
    }

    /// Acknowledges what was delivered since the last time, if somebody reads by name.
    async fn acknowledge(&mut self) -> anyhow::Result<()> {
        if self.args.consumer.is_some()
            && let Some(upper) = self.delivered.take()
        {
            self.subscription.acknowledge(upper).await?;
        }
        Ok(())
    }

    /// Says what was read, where the updates themselves do not stand on the same terminal or pipe.
    fn say(&self, out: Output) -> anyhow::Result<()> {
        let Reading { batches, updates, .. } = self;
        let upper = self.subscription.position();
        let acknowledged = self.args.consumer.is_some() && *batches > 0;
        match &self.args.output {
            Some(file) if out.is_json() => out.document(&json!({
                "sink": self.sink.name().as_str(),
                "output": file.display().to_string(),
                "batches": batches,
                "updates": updates,
                "upper": output::frontier(upper),
                "acknowledged": acknowledged,
            }))?,
            Some(_) => out.line(self.sentence(upper, acknowledged))?,
            None if !out.is_json() && io::stderr().is_terminal() => {
                eprintln!("{}", self.sentence(upper, acknowledged));
            }
            None => {}
        }
        Ok(())
    }

    fn sentence(&self, upper: Frontier, acknowledged: bool) -> String {
        let updates = output::counted(self.updates, "update", "updates");
        let batches = output::counted(self.batches, "batch", "batches");
        let acknowledged = if acknowledged { ", acknowledged" } else { "" };
        let upper = if upper.is_empty() { "the end".to_owned() } else { upper.to_string() };
        format!("{updates} in {batches}, up to {upper}{acknowledged}")
    }
}

/// The columns that are printed, for when no batch says so.
fn full_schema(sink: &Sink) -> SchemaRef {
    let (declared, full) = (sink.schema().declared_schema(), sink.schema().full_schema());
    let roles = full.fields().iter().skip(sink.schema().columns());
    let fields = declared.fields().iter().chain(roles).cloned();
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
