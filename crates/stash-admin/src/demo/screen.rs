//! What a person sees while the demo runs: three bars on a terminal, and a line for everything that happens.

use std::{collections::BTreeMap, io::IsTerminal, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::events::ReplicaEvent;

/// The screen of a demo run.
pub struct Screen {
    tables: Vec<String>,
    all: MultiProgress,
    bars: Vec<(&'static str, ProgressBar)>,
    quiet: bool,
    color: bool,
    covered: BTreeMap<(&'static str, usize), Covered>,
}

/// Batches in a row that were covered already: one line for all of them.
#[derive(Clone, Copy, Debug)]
struct Covered {
    lower: u64,
    upper: u64,
    batches: u64,
    updates: u64,
    parts: usize,
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
        let color = std::io::stdout().is_terminal();
        Screen { tables, all, bars: bars.into(), quiet, color, covered: BTreeMap::new() }
    }

    /// A table's name, as wide as the longest.
    fn table(&self, table: usize) -> String {
        let width = self.tables.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        format!("{:<width$}", self.tables.get(table).map_or("?", String::as_str))
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
        self.say(who, "36", &format!("{table} opens {incarnation} at as-of {as_of}; {covered}"));
    }

    /// A replica found a chain complete.
    pub fn complete(&self, who: &str, table: usize) {
        self.state(who, "");
        let table = self.table(table);
        self.say(who, "36", &format!("{table} is complete: nothing is left to write"));
    }

    /// A replica's incarnation ended, and it opens another.
    pub fn reopening(&self, who: &str, table: usize, reason: &str) {
        let table = self.table(table);
        self.say(who, "33", &format!("{table} renders anew: {reason}"));
    }

    /// An offer has its outcome.
    pub fn resolved(&mut self, who: &'static str, event: &ReplicaEvent) {
        let ReplicaEvent::Resolved { table, lower, upper, outcome, from, updates, parts, inline, .. } = event
        else {
            return;
        };
        if outcome == "dropped" {
            let covered = self.covered.entry((who, *table)).or_insert(Covered {
                lower: *lower,
                upper: *upper,
                batches: 0,
                updates: 0,
                parts: 0,
            });
            covered.upper = *upper;
            covered.batches += 1;
            covered.updates += updates;
            covered.parts += parts;
            return;
        }
        self.tell_covered(who, *table);
        let outcome = match from {
            Some(from) => format!("trimmed: accepted from {from} on"),
            None => outcome.clone(),
        };
        let how = how(*parts, *inline);
        self.batch(who, "32", *table, (*lower, *upper), *updates, &how, &outcome);
    }

    /// Tells of the batches in a row that were covered already.
    fn tell_covered(&mut self, who: &'static str, table: usize) {
        let Some(covered) = self.covered.remove(&(who, table)) else { return };
        let outcome = match covered.batches {
            1 => "dropped: covered already".to_owned(),
            batches => format!("dropped: {batches} batches, covered already"),
        };
        let (times, updates) = ((covered.lower, covered.upper), covered.updates);
        self.batch(
            who,
            "90",
            table,
            times,
            updates,
            &how(covered.parts, usize::from(updates > 0 && covered.parts == 0)),
            &outcome,
        );
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of one line")]
    fn batch(
        &self,
        who: &str,
        color: &str,
        table: usize,
        (lower, upper): (u64, u64),
        updates: u64,
        how: &str,
        outcome: &str,
    ) {
        let upper = if upper == u64::MAX { "end".to_owned() } else { upper.to_string() };
        let (table, times) = (self.table(table), format!("[{lower}, {upper})"));
        self.say(who, color, &format!("{table} {times:<12} {updates:>9} updates  {how:<17} {outcome}"));
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
    pub fn done(&mut self, who: &'static str) {
        for table in 0..self.tables.len() {
            self.tell_covered(who, table);
        }
        if let Some(bar) = self.bar(who) {
            bar.finish_with_message("done");
        }
    }

    /// Takes the bars off.
    pub fn finish(&self) {
        let _ = self.all.clear();
    }
}

fn how(parts: usize, inline: usize) -> String {
    match (parts, inline) {
        (0, 0) => "empty".to_owned(),
        (0, _) => "inline".to_owned(),
        (1, 0) => "1 part".to_owned(),
        (1, _) => "1 part + inline".to_owned(),
        (parts, 0) => format!("{parts} parts"),
        (parts, _) => format!("{parts} parts + inline"),
    }
}
