//! The first reading of a text file without schema: which columns there are, and of which types.
//!
//! Times and diffs are judged here too, so that whoever loads a file learns of a fault in it before the first
//! update is written.

use std::{collections::HashMap, path::Path, sync::Arc};

use arrow::datatypes::{Field, Schema, SchemaRef};

use super::{
    cell::Entry,
    changes::{ColumnRoles, Progress},
    fault::{Fault, InputError},
    infer::Evidence,
    input::COLUMNS_MAX,
    text::{Records, Slot},
};

/// How many records go by between two reports of progress.
const WATCH_EVERY: u64 = 4096;

/// A column while its type is being found.
#[derive(Debug)]
struct Found {
    slot: Slot,
    evidence: Evidence,
    last_line: u64,
}

/// The columns found so far, in the order of their first field.
#[derive(Debug)]
struct Discovery<'r> {
    roles: &'r ColumnRoles,
    is_csv: bool,
    names: Vec<String>,
    columns: Vec<Found>,
    by_name: HashMap<String, usize>,
    /// The line whose record last had a time, and a diff.
    last_time: u64,
    last_diff: u64,
}

impl Discovery<'_> {
    /// Adds a column; returns its index.
    fn add(&mut self, name: &str) -> Result<usize, Fault> {
        let index = self.columns.len();
        let slot = match self.roles.is_row(name)? {
            true => Slot::Row(index),
            false if self.roles.time == name => Slot::Time,
            false => Slot::Diff,
        };
        if index >= COLUMNS_MAX {
            return Err(Fault::TooManyColumns { max: COLUMNS_MAX });
        }
        self.names.push(name.to_owned());
        self.columns.push(Found { slot, evidence: Evidence::default(), last_line: 0 });
        self.by_name.insert(name.to_owned(), index);
        Ok(index)
    }

    /// Takes in a field.
    fn see(&mut self, entry: Entry<'_>) -> Result<(), Fault> {
        let Entry { line, index, name, cell } = entry;
        // Fields mostly come in the order of the record before: the map is asked only when they do not.
        let index = match self.names.get(index) {
            Some(there) if there == name => index,
            _ => match self.by_name.get(name) {
                Some(index) => *index,
                None => self.add(name)?,
            },
        };
        let Some(column) = self.columns.get_mut(index) else { return Ok(()) };
        if column.last_line == line {
            return Err(Fault::Duplicate);
        }
        column.last_line = line;
        match column.slot {
            Slot::Time => self.last_time = cell.time().map(|_| line)?,
            Slot::Diff => self.last_diff = cell.diff().map(|_| line)?,
            Slot::Row(_) if self.is_csv => column.evidence.see_csv(cell, line),
            Slot::Row(_) => column.evidence.see_json(cell, line)?,
        }
        Ok(())
    }

    fn row_schema(&self) -> SchemaRef {
        let columns = self.names.iter().zip(&self.columns);
        let row = columns.filter(|(_, column)| matches!(column.slot, Slot::Row(_)));
        let fields = row.map(|(name, column)| Field::new(name, column.evidence.data_type(), true));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }
}

/// Reads the whole file for the names to expect and the row schema.
pub(super) fn discover(
    path: &Path,
    records: &mut Records,
    roles: &ColumnRoles,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Vec<String>, SchemaRef), InputError> {
    let mut discovery = Discovery {
        roles,
        is_csv: matches!(records, Records::Csv(_)),
        names: Vec::new(),
        columns: Vec::new(),
        by_name: HashMap::new(),
        last_time: 0,
        last_diff: 0,
    };
    if let Records::Csv(csv) = records {
        for name in csv.names() {
            let refuse = |fault| InputError::line(path, csv.header_line(), fault).of(&name);
            discovery.add(&name).map_err(refuse)?;
        }
    }
    // A role that no line has is a wrong name; one that some line lacks is a null there.
    let mut lacking = None;
    let mut seen = 0_u64;
    while let Some(line) = records.next(&mut |entry| discovery.see(entry))? {
        if lacking.is_none() && discovery.last_time != line {
            lacking = Some(InputError::line(path, line, Fault::NullTime).of(&roles.time));
        }
        if let (None, Some(diff)) = (&lacking, &roles.diff)
            && discovery.last_diff != line
        {
            lacking = Some(InputError::line(path, line, Fault::NullDiff).of(diff));
        }
        seen += 1;
        if seen.is_multiple_of(WATCH_EVERY) {
            watch(records.progress());
        }
    }
    watch(records.progress());
    if discovery.names.is_empty() {
        return Err(InputError::whole(path, Fault::Empty("no line of it holds an update")));
    }
    roles.are_among(&discovery.names).map_err(|(name, fault)| InputError::whole(path, fault).of(name))?;
    match lacking {
        Some(error) => Err(error),
        None => {
            let schema = discovery.row_schema();
            Ok((discovery.names, schema))
        }
    }
}
