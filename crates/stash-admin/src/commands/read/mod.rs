//! `read`: prints a sink's consolidated batches, each closed by its progress.
//!
//! Within a batch updates are in the order of their rows, so that loading them again takes `--sort`.
//!
//! - With a consumer, a batch is acknowledged only once it is out of our hands: flushed, and where it goes to a
//!   file, synced. For Parquet that is when the file is whole; until then nothing is acknowledged. A broken
//!   pipe or a full disk leaves the batch it happened in unacknowledged, and it is delivered again.
//! - An output file must not be there yet: what it held may have been acknowledged, and would be lost. Parquet is
//!   written beside it and takes its name when it is whole.
//!   What is no regular file, such as `/dev/null`, is written in place.
//! - Whoever reads without a consumer holds nothing, and may be overtaken by a deletion: the gap is named. Any other
//!   error says how far the consumer acknowledged and how far the output is good.
//! - Ctrl-C and SIGTERM end between two batches, with exit code 130 unless all was read by then. What is not whole does not
//!   look whole: a Parquet file is completed, so that it can be read, and stays beside its name. A consumer's takes its
//!   name all the same: what is in it is acknowledged, and may be nowhere else.

mod target;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::Arc,
};

use arrow::datatypes::{Schema, SchemaRef};
use serde_json::json;
use stash::{Absence, Bill, CatalogError, Delivery, Frontier, Misuse, Requests, Sink, Subscription, TryNext};

use self::target::{Naming, Target};
use crate::{
    cli::{ReadArgs, Start},
    failure::{Interrupted, Refusal},
    formats::Format,
    interrupt::Interrupt,
    output::{self, Output},
    session::{Address, Purpose, with_sink},
};

/// Runs the command.
pub async fn run(at: &Address, args: ReadArgs, out: Output) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let format = target::format(&args)?;
    let name = args.sink()?;
    if format == Format::Parquet && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Refusal::usage("Parquet is no text for a terminal: pass --output FILE").into());
    }
    let mut endpoint = args.metrics.listen()?;
    with_sink(at, Purpose::of(args.consumer.is_some()), name, async |sink| {
        endpoint.watch(sink.stash());
        let subscription = subscribe(sink, &args).await.map_err(|error| with_advice(error, sink, &args))?;
        let target = Target::open(args.output.clone(), format)?;
        Reading::new(sink, subscription, target, &args).run(&interrupt, out).await
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Says how to read on where the beginning is gone.
fn with_advice(error: anyhow::Error, sink: &Sink, args: &ReadArgs) -> anyhow::Error {
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
            sink.name()
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
        (None, Start::Earliest | Start::SkipExpired) => sink.read().await?,
        (None, Start::Now) => sink.read_from(sink.upper().await?),
    })
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
    /// Up to where the output is good.
    reached: Frontier,
    /// Up to where the consumer acknowledged, if there is one.
    acknowledged: Frontier,
}

impl<'a> Reading<'a> {
    fn new(sink: &'a Sink, subscription: Subscription, target: Target, args: &'a ReadArgs) -> Reading<'a> {
        let at = subscription.position();
        let (batches, updates, delivered, reached, acknowledged) = (0, 0, None, at, at);
        Reading { sink, subscription, target, args, batches, updates, delivered, reached, acknowledged }
    }

    async fn run(mut self, interrupt: &Interrupt, out: Output) -> anyhow::Result<()> {
        match self.read(interrupt).await {
            Ok(()) => self.say(out),
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => Err(self.stopped(error)),
        }
    }

    async fn read(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let target = self.sink.upper().await?;
        while self.args.limit_batches.is_none_or(|limit| self.batches < limit.get()) {
            if interrupt.came() && !self.has_all_below(target) {
                return Err(self.interrupted().await?.into());
            }
            let next = if self.args.follow {
                tokio::select! {
                    next = self.subscription.next() => next?,
                    () = interrupt.wait() => continue,
                }
            } else {
                self.next_present(target).await?
            };
            let Some(delivery) = next else { break };
            let (updates, safe) = self.target.deliver(&delivery).await?;
            self.updates += updates;
            self.batches += 1;
            self.delivered = Some(delivery.upper());
            self.reached = delivery.upper();
            if safe {
                self.acknowledge().await?;
            }
        }
        self.target.begin(&full_schema(self.sink))?;
        self.target.finish(Naming::Whole)?;
        self.acknowledge().await
    }

    /// Whether all that was asked for is read, if the chain stood at `target` when that began.
    fn has_all_below(&self, target: Frontier) -> bool {
        let at = self.subscription.position();
        at.is_empty() || (!self.args.follow && at >= target)
    }

    /// Ends where a signal came, and says how far it got and where that is.
    ///
    /// SUBTLE: what a consumer acknowledges is deleted from the store. Its file is complete, has its name and is durable
    /// before that, as it would be at the end.
    async fn interrupted(&mut self) -> anyhow::Result<Interrupted> {
        if self.batches == 0 {
            self.target.discard()?;
            return Ok(Interrupted(Some("nothing was read".to_owned())));
        }
        let consumer = self.args.consumer.as_ref();
        let file = self.target.finish(consumer.map_or(Naming::CutShort, |_| Naming::Whole))?;
        self.acknowledge().await?;
        let (name, reached) = (self.sink.name(), self.reached);
        let holds = file.map(|file| {
            let batches = output::counted(self.batches, "batch", "batches");
            format!("{} holds {batches}, up to {reached}, and is not whole", file.display())
        });
        Ok(Interrupted(Some(match (consumer, holds) {
            (None, None) => format!("sink {name} is printed up to {reached}; --from {reached} goes on there"),
            (None, Some(holds)) => format!("{holds}; --from {reached} goes on there, into another file"),
            (Some(consumer), None) => {
                format!(
                    "consumer {consumer} acknowledged what was printed, up to {reached}, and goes on there"
                )
            }
            (Some(consumer), Some(holds)) => format!(
                "{holds}; keep it: consumer {consumer} acknowledged what it holds, which may be nowhere else, and \
                 goes on at {reached}, into another file"
            ),
        })))
    }

    /// Says how far this got before `error`, and what of it is good.
    fn stopped(&self, error: anyhow::Error) -> anyhow::Error {
        let (name, reached, output) =
            (self.sink.name(), self.reached, self.target.state(self.reached, self.batches));
        let from_now = self.args.follow && self.args.start == Start::Now;
        if self.batches == 0 && !from_now && self.args.consumer.is_none() {
            return with_advice(error, self.sink, self.args);
        }
        let gone = match error.downcast_ref() {
            Some(stash::Error::Absent(Absence::Acknowledged { released, .. })) => {
                Some((*released, "was acknowledged and deleted"))
            }
            Some(stash::Error::Absent(Absence::Expired { earliest, .. })) => Some((*earliest, "expired")),
            _ => None,
        };
        match (&self.args.consumer, gone) {
            (None, Some((earliest, how))) => Refusal::absent(format!(
                "sink {name}: overtaken at {reached}: everything below {earliest} {how}; the gap is [{reached}, \
                 {earliest}); read as a consumer (--consumer NAME) to hold batches; {output}"
            ))
            .into(),
            (None, None) => error.context(format!("reading sink {name} stopped at {reached}; {output}")),
            (Some(consumer), Some((earliest, "expired"))) => {
                let stands = self.subscription.position();
                error.context(format!(
                    "reading sink {name} stopped; consumer {consumer} stands at {stands}, and everything below \
                     {earliest} expired; if it can do without [{stands}, {earliest}), --start skip-expired goes on \
                     at {earliest}; {output}"
                ))
            }
            (Some(consumer), _) => error.context(format!(
                "reading sink {name} stopped; consumer {consumer} acknowledged everything below {}, and goes on \
                 there; {output}",
                self.acknowledged
            )),
        }
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
            self.acknowledged = upper;
        }
        Ok(())
    }

    /// Says what was read, where the updates themselves do not stand on the same terminal or pipe.
    fn say(&self, out: Output) -> anyhow::Result<()> {
        let Reading { batches, updates, .. } = self;
        let upper = self.subscription.position();
        let acknowledged = self.args.consumer.is_some() && *batches > 0;
        if let (Some(consumer), 0, false) = (&self.args.consumer, *batches, out.is_json()) {
            match upper.time() {
                Some(upper) => eprintln!("nothing new: {consumer} has read up to {upper}"),
                None => eprintln!("nothing new: {consumer} has read all, and the sink is complete"),
            }
        }
        match &self.args.output {
            Some(file) if out.is_json() => out.document(&json!({
                "sink": self.sink.name().as_str(),
                "output": file.display().to_string(),
                "batches": batches,
                "updates": updates,
                "upper": output::frontier(upper),
                "acknowledged": acknowledged,
                "requests": self.requests(),
                "cost": self.args.metrics.prices().of(&self.requests()).total(),
            }))?,
            Some(_) => out.line(self.sentence(upper, acknowledged))?,
            None if !out.is_json() && io::stderr().is_terminal() => {
                eprintln!("{}", self.sentence(upper, acknowledged));
            }
            None => {}
        }
        Ok(())
    }

    /// All that was asked of the store.
    fn requests(&self) -> Requests {
        self.sink.stash().requests().into_values().fold(Requests::default(), Requests::and)
    }

    fn sentence(&self, upper: Frontier, acknowledged: bool) -> String {
        let requests = self.requests();
        let bill = Bill { requests: &requests, prices: &self.args.metrics.prices() }.to_string();
        let updates = output::counted(self.updates, "update", "updates");
        let batches = output::counted(self.batches, "batch", "batches");
        let acknowledged = if acknowledged { ", acknowledged" } else { "" };
        let upper = if upper.is_empty() { "the end".to_owned() } else { upper.to_string() };
        format!("{updates} in {batches}, up to {upper}{acknowledged}; {bill}")
    }
}

/// The columns that are printed, for when no batch says so.
fn full_schema(sink: &Sink) -> SchemaRef {
    let (declared, full) = (sink.schema().declared_schema(), sink.schema().full_schema());
    let roles = full.fields().iter().skip(sink.schema().columns());
    let fields = declared.fields().iter().chain(roles).cloned();
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
