//! How far long work is: a bar on a terminal, else a line every few seconds; nothing for machines.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{self, Output};

/// Between two lines of a log.
const LINES_APART: Duration = Duration::from_secs(5);
/// A bar is not drawn more often than this.
const DRAWS_APART: Duration = Duration::from_millis(100);

/// Tells how far one piece of work is. Dropping it takes the bar away.
#[derive(Debug)]
pub struct Meter {
    what: &'static str,
    bar: Option<ProgressBar>,
    quiet: bool,
    told: Instant,
    began: Instant,
}

impl Meter {
    /// Work on `total` bytes, if that is known.
    pub fn new(out: Output, what: &'static str, total: Option<u64>) -> Meter {
        let bar = (!out.is_json() && std::io::stderr().is_terminal()).then(|| bar(what, total));
        let now = Instant::now();
        Meter { what, bar, quiet: out.is_json(), told: now, began: now }
    }

    /// `done` bytes of `total` are done; `note` says what else there is to say.
    pub fn at(&mut self, done: u64, total: Option<u64>, note: impl FnOnce() -> String) {
        if self.quiet {
            return;
        }
        let apart = if self.bar.is_some() { DRAWS_APART } else { LINES_APART };
        if self.told.elapsed() < apart {
            return;
        }
        self.told = Instant::now();
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(note());
            }
            None => {
                let of = total.map(|total| format!(" of {}", output::bytes(total))).unwrap_or_default();
                let (secs, note) = (self.began.elapsed().as_secs(), note());
                let note = if note.is_empty() { note } else { format!(", {note}") };
                eprintln!("{}: {}{of}{note}, {secs} s", self.what, output::bytes(done));
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => {
            "{prefix:<9} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {wide_msg}"
        }
        None => "{prefix:<9} {spinner} {binary_bytes} {binary_bytes_per_sec}, {wide_msg}",
    };
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.set_style(style.progress_chars("=> ")),
        Err(error) => debug_assert!(false, "{error}"),
    }
    bar.set_prefix(what);
    bar
}
