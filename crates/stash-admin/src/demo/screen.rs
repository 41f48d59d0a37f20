//! What a person sees while the demo runs: three bars on a terminal, and a line for everything that happens.

use std::{io::IsTerminal, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::events::ReplicaEvent;

/// The screen of a demo run.
pub struct Screen {
    tables: Vec<String>,
    all: MultiProgress,
    bars: Vec<(&'static str, ProgressBar)>,
    quiet: bool,
    color: bool,
}

impl Screen {
    /// A screen for these tables; `times` is how far each bar goes. A quiet one shows nothing.
    pub fn new(tables: Vec<String>, times: u64, quiet: bool) -> Screen {
        let all = MultiProgress::new();
        if quiet || !std::io::stderr().is_terminal() {
            all.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix:>10} {bar:32} {percent:>3}%  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bars = ["a", "b", "reader"].map(|name| {
            let bar = all.add(ProgressBar::new(times.max(1)).with_style(style.clone()));
            bar.set_prefix(if name == "reader" { name.to_owned() } else { format!("replica {name}") });
            bar.enable_steady_tick(Duration::from_millis(200));
            (name, bar)
        });
        Screen { tables, all, bars: bars.into(), quiet, color: std::io::stdout().is_terminal() }
    }

    fn table(&self, table: usize) -> &str {
        self.tables.get(table).map_or("?", String::as_str)
    }

    fn say(&self, who: &str, color: &str, what: &str) {
        if self.quiet {
            return;
        }
        let line = format!("{who:>6}  {what}");
        self.all.suspend(|| {
            if self.color && !color.is_empty() {
                println!("\u{1b}[{color}m{line}\u{1b}[0m");
            } else {
                println!("{line}");
            }
        });
    }

    fn bar(&self, who: &str) -> Option<&ProgressBar> {
        self.bars.iter().find(|(name, _)| *name == who).map(|(_, bar)| bar)
    }

    /// How far someone came.
    pub fn at(&self, who: &str, times: u64) {
        if let Some(bar) = self.bar(who) {
            bar.set_position(times);
        }
    }

    fn state(&self, who: &str, state: &'static str) {
        if let Some(bar) = self.bar(who) {
            bar.set_message(state);
        }
    }

    /// A replica opened an incarnation.
    pub fn opened(&self, who: &str, table: usize, incarnation: &str, as_of: u64, floor: u64) {
        self.state(who, "");
        let covered = match floor {
            floor if floor > as_of => format!("everything below {floor} is accepted already"),
            _ => "nothing is accepted yet: the snapshot is to be written".to_owned(),
        };
        let table = self.table(table);
        self.say(who, "36", &format!("{table:<10} opens {incarnation} at as-of {as_of}; {covered}"));
    }

    /// A replica's incarnation ended, and it opens another.
    pub fn reopening(&self, who: &str, table: usize, reason: &str) {
        let table = self.table(table);
        self.say(who, "33", &format!("{table:<10} renders anew: {reason}"));
    }

    /// An offer has its outcome.
    pub fn resolved(&self, who: &str, event: &ReplicaEvent) {
        let ReplicaEvent::Resolved { table, lower, upper, outcome, from, updates, parts, inline, .. } = event
        else {
            return;
        };
        let upper = if *upper == u64::MAX { "end".to_owned() } else { upper.to_string() };
        let how = match (parts, inline) {
            (0, 0) => "empty".to_owned(),
            (0, _) => "inline".to_owned(),
            (1, 0) => "1 part".to_owned(),
            (parts, 0) => format!("{parts} parts"),
            (parts, _) => format!("{parts} parts + inline"),
        };
        let (outcome, color) = match (outcome.as_str(), from) {
            ("trimmed", Some(from)) => (format!("trimmed: accepted from {from} on"), "32"),
            ("dropped", _) => ("dropped: covered already".to_owned(), "90"),
            (other, _) => (other.to_owned(), "32"),
        };
        let table = self.table(*table);
        let times = format!("[{lower}, {upper})");
        self.say(who, color, &format!("{table:<10} {times:<12} {updates:>9} updates  {how:<17} {outcome}"));
    }

    /// A process was killed.
    pub fn killed(&self, who: &str, when: &str) {
        self.state(who, "killed");
        self.say(who, "1;31", &format!("KILLED (SIGKILL) {when}"));
    }

    /// A process is back.
    pub fn back(&self, who: &str, how: &str) {
        self.state(who, "");
        self.say(who, "1;36", &format!("is back, {how}"));
    }

    /// A process was stopped.
    pub fn paused(&self, who: &str) {
        self.state(who, "paused");
        self.say(who, "1;33", "PAUSED (SIGSTOP)");
    }

    /// A process goes on.
    pub fn resumed(&self, who: &str, why: &str) {
        self.state(who, "");
        self.say(who, "1;36", &format!("goes on (SIGCONT): {why}"));
    }

    /// Someone is through.
    pub fn done(&self, who: &str) {
        if let Some(bar) = self.bar(who) {
            bar.finish_with_message("done");
        }
    }

    /// Takes the bars off.
    pub fn finish(&self) {
        let _ = self.all.clear();
    }
}
