//! CSV and NDJSON as batches: columns are found, then filled.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::datatypes::{Schema, SchemaRef};

use super::{
    cell::{Cell, Entry, Visit},
    changes::{BATCH_BYTES_MAX, BATCH_ROWS_MAX, ChangeBatch, ColumnRoles, Format, Progress, with_roles},
    column::Column,
    csv::CsvRecords,
    discover::discover,
    fault::{Fault, InputError},
    input::{self, Input},
    ndjson::NdjsonRecords,
    spec::{Owner, SchemaSpec},
};

/// The records of either format.
#[derive(Debug)]
pub(super) enum Records {
    Csv(CsvRecords),
    Ndjson(NdjsonRecords),
}

impl Records {
    fn open(path: &Path, format: Format, rereads: bool) -> Result<Records, InputError> {
        let empty = match format {
            Format::Csv => "a CSV file begins with a header that names its columns",
            Format::Ndjson | Format::Parquet => "an NDJSON file has one JSON object a line",
        };
        let (file, total) = input::open(path, empty)?;
        if rereads && total.is_none() {
            return Err(InputError::whole(path, Fault::NotRegular));
        }
        let input =
            Input::new(file, total).map_err(|source| InputError::whole(path, Fault::Unreadable(source)))?;
        Ok(match format {
            Format::Csv => Records::Csv(CsvRecords::new(path.to_owned(), input)?),
            Format::Ndjson | Format::Parquet => Records::Ndjson(NdjsonRecords::new(path.to_owned(), input)),
        })
    }

    pub(super) fn next(&mut self, visit: Visit<'_>) -> Result<Option<u64>, InputError> {
        match self {
            Records::Csv(records) => records.next(visit),
            Records::Ndjson(records) => records.next(visit),
        }
    }

    fn rewind(self) -> Result<Records, InputError> {
        Ok(match self {
            Records::Csv(records) => Records::Csv(records.rewind()?),
            Records::Ndjson(records) => Records::Ndjson(records.rewind()?),
        })
    }

    pub(super) fn progress(&self) -> Progress {
        match self {
            Records::Csv(records) => records.input().progress(),
            Records::Ndjson(records) => records.input().progress(),
        }
    }
}

/// What a column of the file is to an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Time,
    Diff,
    Row(usize),
}

/// The columns of the file by name, in the order their fields are expected in.
#[derive(Debug, Default)]
struct Layout {
    slots: Vec<(String, Slot)>,
    by_name: HashMap<String, usize>,
}

impl Layout {
    fn new(names: Vec<String>, schema: &Schema, roles: &ColumnRoles) -> Layout {
        let row: HashMap<&str, usize> =
            schema.fields().iter().enumerate().map(|(index, field)| (field.name().as_str(), index)).collect();
        let slot = |name: &String| match row.get(name.as_str()) {
            Some(index) => Some(Slot::Row(*index)),
            None if *name == roles.time => Some(Slot::Time),
            None => (roles.diff.as_ref() == Some(name)).then_some(Slot::Diff),
        };
        let slots: Vec<(String, Slot)> =
            names.into_iter().filter_map(|name| slot(&name).map(|slot| (name, slot))).collect();
        let by_name = slots.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect();
        Layout { slots, by_name }
    }

    /// The slot of `name`, looked up only when it is not where it was expected.
    fn find(&self, expected: usize, name: &str) -> Option<Slot> {
        match self.slots.get(expected) {
            Some((there, slot)) if there == name => Some(*slot),
            _ => self.by_name.get(name).and_then(|index| self.slots.get(*index)).map(|(_, slot)| *slot),
        }
    }
}

/// A CSV or NDJSON file whose columns are known.
#[derive(Debug)]
pub(super) struct TextChanges {
    path: PathBuf,
    records: Records,
    roles: ColumnRoles,
    layout: Layout,
    row_schema: SchemaRef,
    batch_schema: SchemaRef,
    columns: Vec<Column>,
    owner: Owner,
    /// Until the first record was read: a role it lacks is then a wrong name rather than a null.
    at_start: bool,
}

impl TextChanges {
    pub(super) fn open(
        path: &Path,
        format: Format,
        roles: ColumnRoles,
        spec: Option<SchemaSpec>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<TextChanges, InputError> {
        let mut records = Records::open(path, format, spec.is_none())?;
        if let Records::Csv(csv) = &records {
            check_header(path, csv, &roles)?;
        }
        let owner = spec.as_ref().map(SchemaSpec::owner).unwrap_or_default();
        let (names, row_schema) = match spec {
            Some(spec) => declared(path, &records, &roles, &spec)?,
            None => {
                let found = discover(path, &mut records, &roles, watch)?;
                records = records.rewind()?;
                found
            }
        };
        let layout = Layout::new(names, &row_schema, &roles);
        let columns = row_schema.fields().iter();
        let columns = columns.map(|field| Column::new(Arc::clone(field), owner.clone())).collect();
        let batch_schema = with_roles(&row_schema);
        let path = path.to_owned();
        Ok(TextChanges {
            path,
            records,
            roles,
            layout,
            row_schema,
            batch_schema,
            columns,
            owner,
            at_start: true,
        })
    }

    pub(super) fn row_schema(&self) -> SchemaRef {
        Arc::clone(&self.row_schema)
    }

    pub(super) fn progress(&self) -> Progress {
        self.records.progress()
    }

    /// The next updates, or `None` at the end of the file.
    pub(super) fn next_batch(&mut self) -> Result<Option<ChangeBatch>, InputError> {
        let (mut times, mut diffs, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while lines.len() < BATCH_ROWS_MAX && bytes < BATCH_BYTES_MAX {
            let Some((line, time, diff)) = self.read_update(lines.len(), &mut bytes)? else { break };
            times.push(time);
            diffs.push(diff);
            lines.push(line);
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let mut arrays = Vec::with_capacity(self.columns.len() + 2);
        let mut refused: Option<(usize, String, Fault)> = None;
        for column in &mut self.columns {
            match column.finish() {
                Ok(array) => arrays.push(array),
                // The first in the file is reported, in whichever column it is.
                Err((row, fault)) if refused.as_ref().is_none_or(|(before, ..)| row < *before) => {
                    refused = Some((row, column.name().to_owned(), fault));
                }
                Err(_) => {}
            }
        }
        if let Some((row, column, fault)) = refused {
            let line = lines.get(row).copied().unwrap_or(0);
            return Err(InputError::line(&self.path, line, fault).of(column));
        }
        ChangeBatch::new(&self.batch_schema, arrays, times, diffs, lines, false).map(Some).map_err(|error| {
            // Columns of one length and of their schema's types were just built; this is for a fault of ours.
            let source = std::io::Error::other(error);
            InputError::whole(&self.path, Fault::Unreadable(source))
        })
    }

    /// Reads one record into the columns, which hold `row` fields each; returns its line, time and diff.
    fn read_update(&mut self, row: usize, bytes: &mut usize) -> Result<Option<(u64, u64, i64)>, InputError> {
        let TextChanges { path, records, roles, layout, columns, owner, at_start, .. } = self;
        let (mut time, mut diff) = (None, None);
        let mut names = Vec::new();
        let mut visit = |entry: Entry<'_>| {
            if *at_start {
                names.push(entry.name.to_owned());
            }
            match layout.find(entry.index, entry.name) {
                Some(Slot::Time) if time.is_none() => time = Some(entry.cell.time()?),
                Some(Slot::Diff) if diff.is_none() => diff = Some(entry.cell.diff()?),
                Some(Slot::Row(index)) => match columns.get_mut(index) {
                    Some(column) if column.len() == row => {
                        *bytes += entry.cell.text().map_or(1, str::len);
                        column.push(entry.cell)?;
                    }
                    _ => return Err(Fault::Duplicate),
                },
                Some(_) => return Err(Fault::Duplicate),
                None => {
                    roles.is_row(entry.name)?;
                    return Err(Fault::NotInSchema(owner.clone()));
                }
            }
            Ok(())
        };
        let Some(line) = records.next(&mut visit)? else { return Ok(None) };
        let refuse = |fault| InputError::line(path, line, fault);
        if *at_start {
            roles.are_among(&names).map_err(|(name, fault)| refuse(fault).of(name))?;
            *at_start = false;
        }
        let time = time.ok_or_else(|| refuse(Fault::NullTime).of(&roles.time))?;
        let diff = match (&roles.diff, diff) {
            (_, Some(diff)) => diff,
            (Some(name), None) => return Err(refuse(Fault::NullDiff).of(name)),
            (None, None) => 1,
        };
        for column in columns.iter_mut().filter(|column| column.len() == row) {
            *bytes += 1;
            let name = column.name().to_owned();
            column.push(Cell::Null).map_err(|fault| refuse(fault).of(name))?;
        }
        Ok(Some((line, time, diff)))
    }
}

/// Judges a CSV header: roles present, no reserved names.
fn check_header(path: &Path, csv: &CsvRecords, roles: &ColumnRoles) -> Result<(), InputError> {
    let refuse = |fault| InputError::line(path, csv.header_line(), fault);
    let names = csv.names();
    if let [header] = names.as_slice()
        && let Some((_, by)) =
            [(';', "semicolons"), ('\t', "tabs")].iter().find(|(mark, _)| header.contains(*mark))
    {
        return Err(refuse(Fault::OtherSeparator { header: super::fault::cut(header), by }));
    }
    roles.are_among(&names).map_err(|(name, fault)| refuse(fault).of(name))?;
    for name in &names {
        roles.is_row(name).map_err(|fault| refuse(fault).of(name))?;
    }
    Ok(())
}

/// The names to expect and the row schema, as `spec` declares it.
fn declared(
    path: &Path,
    records: &Records,
    roles: &ColumnRoles,
    spec: &SchemaSpec,
) -> Result<(Vec<String>, SchemaRef), InputError> {
    let schema = spec.schema();
    for role in std::iter::once(&roles.time).chain(&roles.diff) {
        if schema.column_with_name(role).is_some() {
            return Err(InputError::whole(path, Fault::RoleInSchema(spec.owner())).of(role));
        }
    }
    let Records::Csv(csv) = records else {
        let row = schema.fields().iter().map(|field| field.name().clone());
        let names = row.chain([roles.time.clone()]).chain(roles.diff.clone()).collect();
        return Ok((names, schema));
    };
    let names = csv.names();
    let refuse = |fault| InputError::line(path, csv.header_line(), fault);
    if let Some(field) = schema.fields().iter().find(|field| !names.contains(field.name())) {
        return Err(refuse(Fault::NotInFile { owner: spec.owner(), columns: names }).of(field.name()));
    }
    let extra = |name: &&String| {
        **name != roles.time && roles.diff.as_ref() != Some(*name) && schema.column_with_name(name).is_none()
    };
    if let Some(name) = names.iter().find(extra) {
        return Err(refuse(Fault::NotInSchema(spec.owner())).of(name));
    }
    Ok((names, schema))
}
