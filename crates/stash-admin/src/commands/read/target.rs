//! Where `read` prints to: stdout, a file that it makes, or something that is there and is no file.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use arrow::datatypes::SchemaRef;
use stash::{Delivery, Frontier};

use crate::{
    cli::ReadArgs,
    failure::Refusal,
    formats::{BatchWriter, Format, batch_writer},
    output::{self, Stream},
};

/// What a file is called at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// As was asked for.
    Whole,
    /// As while it was written: it does not hold all that it was to hold.
    CutShort,
}

/// Whether `path` is there and is neither file nor folder: a device or a pipe, which nothing is lost from.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|kind| !kind.is_file() && !kind.is_dir())
}

/// The format to print in: as said, else as the output's name tells, else NDJSON where no name could tell.
pub(super) fn format(args: &ReadArgs) -> anyhow::Result<Format> {
    let Some(path) = &args.output else { return Ok(args.format.unwrap_or(Format::Ndjson)) };
    let special = || is_special(path).then_some(Format::Ndjson);
    args.format.or_else(|| Format::of_path(path)).or_else(special).ok_or_else(|| {
        Refusal::usage(format!(
            "{}: the name does not tell the format; pass --format csv, ndjson or parquet",
            path.display()
        ))
        .into()
    })
}

/// Where batches are printed to.
pub(super) struct Target {
    writer: Box<dyn BatchWriter>,
    format: Format,
    /// The file, and where it lies until it is whole.
    file: Option<(File, PathBuf, PathBuf)>,
    name: String,
    begun: bool,
}

impl Target {
    pub(super) fn open(output: Option<PathBuf>, format: Format) -> anyhow::Result<Target> {
        let Some(path) = output else {
            let writer = batch_writer(format, Stream(io::stdout()));
            return Ok(Target { writer, format, file: None, name: "stdout".to_owned(), begun: false });
        };
        let name = path.display().to_string();
        if is_special(&path) {
            let opened = OpenOptions::new().write(true).open(&path);
            let file = opened.with_context(|| format!("{name} cannot be opened"))?;
            let writer = batch_writer(format, Stream(file));
            return Ok(Target { writer, format, file: None, name, begun: false });
        }
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
        if at != path && at.symlink_metadata().is_ok() {
            return Err(Refusal::fix_call(format!(
                "{} is left of a read that was interrupted or died; move or remove it, or name another file",
                at.display()
            ))
            .into());
        }
        let file = (OpenOptions::new().write(true).create_new(true).open(&at))
            .with_context(|| format!("{} cannot be created", at.display()))?;
        let writer = batch_writer(format, file.try_clone().with_context(|| name.clone())?);
        Ok(Target { writer, format, file: Some((file, at, path)), name, begun: false })
    }

    /// What of the output is good, where reading stopped at `reached` after `batches`.
    pub(super) fn state(&self, reached: Frontier, batches: u64) -> String {
        let name = match &self.file {
            Some((_, _, path)) => path.display().to_string(),
            None => "the output".to_owned(),
        };
        match (self.format, batches) {
            (Format::Parquet, _) => format!("{name} is not whole and nothing of it is kept"),
            (_, 0) => format!("{name} holds no complete batch"),
            _ => format!("{name} is partial, and good up to its last _progress, {reached}"),
        }
    }

    fn doing<T>(&self, done: io::Result<T>) -> anyhow::Result<T> {
        done.with_context(|| format!("{} cannot be written", self.name))
    }

    pub(super) fn begin(&mut self, schema: &SchemaRef) -> anyhow::Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        let begun = self.writer.begin(schema);
        self.doing(begun)
    }

    /// Prints a batch and its progress, and hands them over. Whether they are safe there.
    pub(super) async fn deliver(&mut self, delivery: &Delivery) -> anyhow::Result<(u64, bool)> {
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

    /// Completes the output and makes it durable. Gives the file as it is called now, if it is one.
    pub(super) fn finish(&mut self, naming: Naming) -> anyhow::Result<Option<PathBuf>> {
        let finished = self.writer.finish();
        self.doing(finished)?;
        let Some((file, at, path)) = self.file.take() else { return Ok(None) };
        self.doing(file.sync_all())?;
        if naming == Naming::Whole && at != path {
            // SUBTLE: a link never replaces anything, so a file that somebody made meanwhile is not lost.
            self.doing(std::fs::hard_link(&at, &path))?;
            self.doing(std::fs::remove_file(&at))?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        self.doing(synced)?;
        Ok(Some(if naming == Naming::Whole { path } else { at }))
    }

    /// Takes away a file that nothing was printed into.
    pub(super) fn discard(&mut self) -> anyhow::Result<()> {
        let Some((_, at, _)) = self.file.take() else { return Ok(()) };
        self.doing(std::fs::remove_file(at))
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
