//! The sink a file is loaded into: found and compared, or declared.

use arrow::datatypes::Schema;
use stash::{CatalogError, Error, Misuse, RowSchema, Sink, SinkName, SinkSpec, Stash};

use super::{Source, plan::Plan};
use crate::{
    cli::LoadArgs,
    duration,
    failure::Refusal,
    formats::SchemaSpec,
    session::{Address, Purpose, with_stash},
};

/// The columns of the sink `name`, if it exists and text files can have them. Creates nothing.
pub(super) async fn columns(at: &Address, name: &SinkName) -> anyhow::Result<Option<SchemaSpec>> {
    let looked = with_stash(at, Purpose::Look, async |stash| match stash.sink(name.as_str()).await {
        Ok(sink) => {
            Ok(SchemaSpec::of(sink.schema().declared_schema()).ok().map(|spec| spec.of_sink(name.as_str())))
        }
        Err(Error::Catalog(CatalogError::InvalidUsage(Misuse::NoSuchSink { .. }))) => Ok(None),
        Err(error) => Err(error.into()),
    })
    .await;
    looked.or_else(|error| match error.downcast_ref() {
        Some(Error::NoStash { .. }) => Ok(None),
        _ => Err(error),
    })
}

/// The sink, declared if there is none of its name; an error if the file does not fit it.
pub(super) async fn sink(
    stash: &Stash,
    args: &LoadArgs,
    source: &Source,
    plan: &Plan,
) -> anyhow::Result<Sink> {
    match stash.sink(args.sink.as_str()).await {
        Ok(sink) => {
            fits(&sink, args, source, plan).await?;
            Ok(sink)
        }
        Err(Error::Catalog(CatalogError::InvalidUsage(Misuse::NoSuchSink { .. }))) => {
            declare(stash, args, plan).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn declare(stash: &Stash, args: &LoadArgs, plan: &Plan) -> anyhow::Result<Sink> {
    let file = args.file.display();
    let as_of = match (args.as_of, plan.first) {
        (Some(as_of), Some((time, place))) if time < as_of => {
            return Err(Refusal::fix_call(format!(
                "{file}, {place}: time {time} is below --as-of {as_of}, the first time of the sink"
            ))
            .into());
        }
        (Some(u64::MAX), _) => {
            return Err(Refusal::usage(format!("--as-of {} is no time", u64::MAX)).into());
        }
        (Some(as_of), _) => as_of,
        (None, Some((time, _))) => time,
        (None, None) => {
            return Err(Refusal::fix_call(format!(
                "{file} holds no update, so it does not say where sink {} begins; pass --as-of",
                args.sink
            ))
            .into());
        }
    };
    let mut spec = SinkSpec::new(args.sink.as_str(), Schema::clone(&plan.schema))?.as_of(as_of).sealing();
    if let Some(kept) = args.retention {
        spec = spec.retention(kept);
    }
    if let Some(held) = args.absent_hold {
        spec = spec.absent_hold(held);
    }
    Ok(stash.declare_sink(spec).await?)
}

async fn fits(sink: &Sink, args: &LoadArgs, source: &Source, plan: &Plan) -> anyhow::Result<()> {
    let (name, spec) = (sink.name(), &sink.row().spec);
    same_columns(sink, source, plan)?;
    if let Some(as_of) = args.as_of.filter(|as_of| *as_of != spec.as_of) {
        return Err(Refusal::fix_call(format!(
            "sink {name} was declared to begin at {}, not at --as-of {as_of}; leave --as-of out",
            spec.as_of
        ))
        .into());
    }
    for (option, asked, standing) in [
        ("--retention", args.retention, spec.retention_ms),
        ("--absent-hold", args.absent_hold, spec.absent_hold_ms),
    ] {
        if let Some(asked) = asked.filter(|asked| standing != u64::try_from(asked.as_millis()).ok()) {
            let asked = duration::written(u64::try_from(asked.as_millis()).unwrap_or(u64::MAX));
            let standing = standing.map_or_else(
                || format!("without {option}"),
                |ms| format!("with {option} {}", duration::written(ms)),
            );
            return Err(Refusal::fix_call(format!(
                "sink {name} was declared {standing}, not with {option} {asked}; a sink never changes: leave \
                 {option} out, or load into another sink"
            ))
            .into());
        }
    }
    if args.complete && !spec.seals && spec.up_to.is_empty() {
        return Err(Refusal::fix_call(format!(
            "sink {name} was declared never to complete; leave --complete out, or load into another sink"
        ))
        .into());
    }
    let head = sink.head().await?;
    if head.upper.as_u64() > spec.as_of && !args.resume {
        return Err(Refusal::fix_call(format!(
            "sink {name} has accepted everything below {} already; pass --resume to go on from there \
             (updates below are skipped), or load into another sink",
            head.upper
        ))
        .into());
    }
    Ok(())
}

fn same_columns(sink: &Sink, source: &Source, plan: &Plan) -> anyhow::Result<()> {
    let ours = RowSchema::new(std::sync::Arc::clone(&plan.schema)).map_err(Error::from)?;
    if ours.fingerprint() == sink.schema().fingerprint() {
        return Ok(());
    }
    let what = difference(ours.row_schema(), sink.schema().row_schema());
    let hint = match SchemaSpec::of(sink.schema().row_schema()) {
        Ok(spec) => format!("the sink's columns are --schema '{spec}'"),
        Err(column) => format!("the sink's column {column:?} has a type that only Parquet files have"),
    };
    Err(Refusal::fix_call(format!(
        "{} does not fit sink {}: {what}; a sink's columns never change: use another sink, or {hint}",
        source.path.display(),
        sink.name()
    ))
    .into())
}

/// The first column in which two schemas differ, in words.
fn difference(file: &Schema, sink: &Schema) -> String {
    for (index, ours) in file.fields().iter().enumerate() {
        let Some(theirs) = sink.fields().get(index) else {
            return format!("it has a column {:?} more", ours.name());
        };
        if ours.name() != theirs.name() {
            return format!("column {} is {:?}, in the sink {:?}", index + 1, ours.name(), theirs.name());
        }
        if ours.data_type() != theirs.data_type() {
            let (name, ours, theirs) = (ours.name(), ours.data_type(), theirs.data_type());
            return format!("column {name:?} is {ours}, in the sink {theirs}");
        }
        if ours.is_nullable() != theirs.is_nullable() {
            let may = |yes| if yes { "may be null" } else { "is never null" };
            let (ours_may, theirs_may) = (may(ours.is_nullable()), may(theirs.is_nullable()));
            return format!("column {:?} {ours_may}, in the sink it {theirs_may}", ours.name());
        }
    }
    match sink.fields().get(file.fields().len()) {
        Some(missing) => format!("it lacks the column {:?}", missing.name()),
        None => "the columns differ".to_owned(),
    }
}
