//! What a column's values say of its type. See the module above for the rules.

use arrow::datatypes::DataType;

use super::{
    cell::{Cell, Shape},
    fault::Fault,
};

/// What was seen in one column: for each kind the first line that had it, and what narrows the numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    text: Option<u64>,
    boolean: Option<u64>,
    number: Option<u64>,
    special: Option<u64>,
    negative: bool,
    unsigned: bool,
    inexact: bool,
    fraction: bool,
    beyond: bool,
}

impl Evidence {
    /// Takes in a cell of CSV, whose kind is a guess.
    pub(super) fn see_csv(&mut self, cell: Cell<'_>, line: u64) {
        if let Some(text) = cell.text() {
            self.see(Shape::of(text), line);
        }
    }

    /// Takes in a value of JSON, whose kind is said.
    pub(super) fn see_json(&mut self, cell: Cell<'_>, line: u64) -> Result<(), Fault> {
        let shape = match cell {
            Cell::Null | Cell::Blank => return Ok(()),
            Cell::Bool(_) => Shape::Bool,
            Cell::Number(text) => Shape::of(text),
            Cell::Text(text) if Shape::of(text) == Shape::Special => Shape::Special,
            Cell::Text(_) => Shape::Text,
            Cell::Nested(text) => {
                let kind = if text.starts_with('{') { "an object" } else { "a list" };
                return Err(Fault::Nested { kind });
            }
        };
        self.see(shape, line);
        // A special text among texts is a text; among numbers it is a float.
        let kinds = [("a string", self.text), ("a bool", self.boolean), ("a number", self.number)];
        let seen = || kinds.iter().filter_map(|(kind, at)| at.map(|at| (*kind, at)));
        let this = seen().find(|(_, at)| *at == line);
        let other = seen().find(|(_, at)| *at < line);
        match (this, other) {
            (Some((this, _)), Some((other, other_line))) => {
                Err(Fault::MixedKinds { this, other, other_line })
            }
            _ => match (self.boolean, self.special) {
                (Some(b), Some(s)) if b != s => {
                    let (this, other) =
                        if b == line { ("a bool", "a string") } else { ("a string", "a bool") };
                    Err(Fault::MixedKinds { this, other, other_line: b.min(s) })
                }
                _ => Ok(()),
            },
        }
    }

    fn see(&mut self, shape: Shape, line: u64) {
        let kind = match shape {
            Shape::Bool => &mut self.boolean,
            Shape::Text => &mut self.text,
            Shape::Special => &mut self.special,
            Shape::Int { .. } | Shape::Unsigned | Shape::Fraction | Shape::Beyond => &mut self.number,
        };
        kind.get_or_insert(line);
        match shape {
            Shape::Int { negative, exact } => {
                self.negative |= negative;
                self.inexact |= !exact;
            }
            Shape::Unsigned => {
                self.unsigned = true;
                self.inexact = true;
            }
            Shape::Fraction => self.fraction = true,
            Shape::Beyond => self.beyond = true,
            Shape::Bool | Shape::Special | Shape::Text => {}
        }
    }

    /// The narrowest type that holds everything seen; text when in doubt.
    pub(super) fn data_type(&self) -> DataType {
        if self.text.is_some() || self.beyond {
            return DataType::Utf8;
        }
        match (self.boolean, self.number) {
            (Some(_), None) if self.special.is_none() => DataType::Boolean,
            (None, Some(_)) if self.fraction || self.special.is_some() => {
                if self.inexact {
                    DataType::Utf8
                } else {
                    DataType::Float64
                }
            }
            (None, Some(_)) if self.unsigned => {
                if self.negative {
                    DataType::Utf8
                } else {
                    DataType::UInt64
                }
            }
            (None, Some(_)) => DataType::Int64,
            _ => DataType::Utf8,
        }
    }
}
