//! What differs between two tallies, in words.
//!
//! Compared are, for each table, what every time changes, and the content at every time. One wrong update makes the
//! content wrong from its time on: so a stretch of times with wrong content is one mismatch, not one per time.

use std::{collections::BTreeSet, fmt};

use super::{Content, Kept, Moment, TableTally, Tally};

/// How many rows a mismatch names at most.
const EXAMPLES_MAX: usize = 3;

/// A row of which too many or too few were delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The row: `name=value` for each column.
    pub row: String,
    /// The sum of its diffs at that time in the oracle.
    pub expected: i128,
    /// The sum of its diffs at that time as delivered.
    pub delivered: i128,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The updates of one time.
    Change,
    /// The content, from this time on and up to `until`, or for good.
    Content {
        /// The first later time at which the content is right again.
        until: Option<u64>,
    },
    /// The tallies are not of the same tables.
    Tables,
}

/// One difference between what was expected and what was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The table's name.
    pub table: String,
    /// The time, or the first of them.
    pub time: u64,
    /// What is wrong.
    pub what: What,
    /// What the oracle says: the change at `time`, or the content.
    pub expected: Content,
    /// What was delivered.
    pub delivered: Content,
    /// How many rows differ, where both sides have kept all of theirs.
    pub rows_differing: Option<usize>,
    /// Some of the rows that differ.
    pub examples: Vec<Example>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { table, time, what, expected, delivered, rows_differing, examples } = self;
        match what {
            What::Tables => return write!(f, "{table}: the delivered tables are not the expected ones"),
            What::Change => write!(f, "{table}, changes at time {time}: ")?,
            What::Content { until: Some(until) } => {
                write!(f, "{table}, content from time {time} until {until}: ")?
            }
            What::Content { until: None } => write!(f, "{table}, content from time {time} on: ")?,
        }
        if expected.rows == delivered.rows {
            write!(f, "the number of rows is right ({:+}), but the rows differ", expected.rows)?;
        } else {
            write!(f, "expected {} rows, delivered {}", expected.rows, delivered.rows)?;
        }
        write!(f, " (digest {:016x}, delivered {:016x})", expected.digest >> 64, delivered.digest >> 64)?;
        if let Some(rows) = rows_differing {
            write!(f, "; {rows} distinct rows are wrong")?;
        }
        for Example { row, expected, delivered } in examples {
            write!(f, "\n    expected {expected:+}, delivered {delivered:+}: {row}")?;
        }
        if rows_differing.is_some_and(|rows| rows > examples.len()) {
            f.write_str("\n    …")?;
        }
        Ok(())
    }
}

/// All that differs between the oracle and what was delivered: nothing if all is well.
pub fn compare(expected: &Tally, delivered: &Tally) -> Vec<Mismatch> {
    let names = |tally: &Tally| tally.tables.iter().map(|tally| tally.table.name.clone()).collect::<Vec<_>>();
    if !expected.tables.iter().map(|tally| &tally.table).eq(delivered.tables.iter().map(|tally| &tally.table))
    {
        return vec![Mismatch {
            table: format!("{:?} and {:?}", names(expected), names(delivered)),
            time: 0,
            what: What::Tables,
            expected: Content::default(),
            delivered: Content::default(),
            rows_differing: None,
            examples: Vec::new(),
        }];
    }
    let tables = expected.tables.iter().zip(&delivered.tables);
    tables.flat_map(|(expected, delivered)| compare_table(expected, delivered)).collect()
}

fn compare_table(expected: &TableTally, delivered: &TableTally) -> Vec<Mismatch> {
    let times: BTreeSet<u64> = expected.moments.keys().chain(delivered.moments.keys()).copied().collect();
    let none = Moment::default();
    let mut found = Vec::new();
    let (mut content_expected, mut content_delivered) = (Content::default(), Content::default());
    // The place in `found` of the stretch of wrong content that is not over.
    let mut open: Option<usize> = None;
    for time in times {
        let ours = expected.moments.get(&time).unwrap_or(&none);
        let theirs = delivered.moments.get(&time).unwrap_or(&none);
        if ours.change != theirs.change {
            let (rows_differing, examples) = differing(expected, ours, theirs);
            found.push(Mismatch {
                table: expected.table.name.clone(),
                time,
                what: What::Change,
                expected: ours.change,
                delivered: theirs.change,
                rows_differing,
                examples,
            });
        }
        content_expected = content_expected.and(ours.change);
        content_delivered = content_delivered.and(theirs.change);
        match (open, content_expected == content_delivered) {
            (Some(place), true) => {
                found[place].what = What::Content { until: Some(time) };
                open = None;
            }
            (None, false) => {
                open = Some(found.len());
                found.push(Mismatch {
                    table: expected.table.name.clone(),
                    time,
                    what: What::Content { until: None },
                    expected: content_expected,
                    delivered: content_delivered,
                    rows_differing: None,
                    examples: Vec::new(),
                });
            }
            (Some(_), false) | (None, true) => {}
        }
    }
    found
}

/// How many rows differ between two moments, unless either has been thinned, and some of them.
fn differing(table: &TableTally, ours: &Moment, theirs: &Moment) -> (Option<usize>, Vec<Example>) {
    // Of two thinned moments, both know the rows that the more thinned one would keep.
    let zeros = ours.zeros.max(theirs.zeros);
    let known = |hash: &u128| hash.leading_zeros() >= zeros;
    let diff = |kept: Option<&Kept>| kept.map_or(0, |kept| kept.diff);
    let expected =
        ours.exact.iter().map(|(hash, kept)| (hash, kept, kept.diff, diff(theirs.exact.get(hash))));
    let extra = theirs.exact.iter().filter(|(hash, _)| !ours.exact.contains_key(hash));
    let extra = extra.map(|(hash, kept)| (hash, kept, 0, kept.diff));
    let wrong = expected.chain(extra).filter(|(hash, _, ours, theirs)| known(hash) && ours != theirs);
    let mut wrong: Vec<_> = wrong.map(|(_, kept, ours, theirs)| (kept, ours, theirs)).collect();
    let count = (zeros == 0).then_some(wrong.len());
    wrong.sort_by(|(a, ..), (b, ..)| a.row.cmp(&b.row));
    wrong.truncate(EXAMPLES_MAX);
    let example = |(kept, expected, delivered): (&Kept, i128, i128)| Example {
        row: table.show(&kept.row),
        expected,
        delivered,
    };
    (count, wrong.into_iter().map(example).collect())
}
