//! Rows of any Arrow schema, for engines that learn their schemas at run time.
//!
//! A row is one value: its columns in the order-preserving encoding of Arrow's row format. Such rows can be compared,
//! arranged and exchanged without knowing their columns, and become columns again a chunk at a time.
//!
//! - Rows of one schema have one encoding, in every process.
//! - They compare as the stash orders rows: columns left to right, nulls first, floats by total order.
//! - Rows that were made together share memory, until they are exchanged or the last of them is dropped.

use std::sync::Arc;

use arrow::{
    array::ArrayRef,
    buffer::Buffer,
    datatypes::{Schema, SchemaRef},
    row::{RowConverter, SortField},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Encode, RowBuilder, RowError};

/// A row of columns that are known to its [`ArrowRows`] only.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ArrowRow(Bytes);

impl ArrowRow {
    /// Bytes of its encoding.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether its encoding has no bytes: it has no columns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Makes [`ArrowRow`]s of columns, and columns of them.
#[derive(Clone, Debug)]
pub struct ArrowRows {
    schema: SchemaRef,
    converter: Arc<RowConverter>,
}

impl ArrowRows {
    /// Rows with these columns. Refused is what the row format cannot hold.
    pub fn new(schema: SchemaRef) -> Result<ArrowRows, RowError> {
        let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        let converter = RowConverter::new(fields.collect()).map_err(refused)?;
        Ok(ArrowRows { schema, converter: Arc::new(converter) })
    }

    /// The rows of some columns, in order. Refused are columns of other types than the schema's.
    pub fn rows(&self, columns: &[ArrayRef]) -> Result<Vec<ArrowRow>, RowError> {
        let rows = self.converter.convert_columns(columns).map_err(refused)?;
        let ends = rows.lengths().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let ends = ends.collect::<Vec<usize>>();
        let (_, all, _) = rows.try_into_binary().map_err(refused)?.into_parts();
        // The allocation of all rows is shared by them, not copied.
        let all = Bytes::from_owner(Shared(all));
        let begins = std::iter::once(0).chain(ends.iter().copied());
        Ok(begins.zip(&ends).map(|(begin, end)| ArrowRow(all.slice(begin..*end))).collect())
    }
}

/// Arrow's memory as that of [`Bytes`].
struct Shared(Buffer);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Encode<ArrowRow> for ArrowRows {
    type Builder = ArrowRowBuilder;

    fn schema(&self) -> Result<Schema, RowError> {
        Ok(Schema::clone(&self.schema))
    }

    fn builder(&self) -> Result<ArrowRowBuilder, RowError> {
        Ok(ArrowRowBuilder { converter: Arc::clone(&self.converter), rows: Vec::new(), bytes: 0 })
    }

    const POINTS: bool = true;

    fn pieces(&self, row: &ArrowRow, look: &mut impl FnMut(&[u8])) {
        look(&row.0);
    }
}

/// Makes columns of [`ArrowRow`]s. It keeps the rows, which share memory, until it is finished.
#[derive(Debug)]
pub struct ArrowRowBuilder {
    converter: Arc<RowConverter>,
    rows: Vec<ArrowRow>,
    bytes: usize,
}

impl RowBuilder<ArrowRow> for ArrowRowBuilder {
    fn append(&mut self, row: &ArrowRow) -> Result<(), RowError> {
        self.bytes += row.len();
        self.rows.push(row.clone());
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError> {
        let (rows, parser) = (std::mem::take(&mut self.rows), self.converter.parser());
        self.bytes = 0;
        let parsed = rows.iter().map(|row| parser.parse(&row.0));
        self.converter.convert_rows(parsed).map_err(refused)
    }
}

fn refused(error: arrow::error::ArrowError) -> RowError {
    RowError::Format { what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{Array, AsArray, Int64Array, StringArray},
        datatypes::{DataType, Field, Int64Type},
    };

    use super::*;

    fn schema() -> SchemaRef {
        let name = Field::new("name", DataType::Utf8, true);
        Arc::new(Schema::new(vec![name, Field::new("number", DataType::Int64, false)]))
    }

    #[test]
    fn rows_become_the_columns_they_were_and_compare_as_the_stash_orders_them() {
        let rows = ArrowRows::new(schema()).expect("a schema");
        let names = StringArray::from(vec![Some("b"), None, Some("a"), Some("")]);
        let numbers = Int64Array::from(vec![1, -5, 7, i64::MIN]);
        let columns: Vec<ArrayRef> = vec![Arc::new(names.clone()), Arc::new(numbers.clone())];
        let made = rows.rows(&columns).expect("rows");
        let mut sorted = made.clone();
        sorted.sort();
        assert_eq!(sorted, [1, 3, 2, 0].map(|row: usize| made[row].clone()), "nulls first, then by name");
        let mut builder = rows.builder().expect("a builder");
        for row in &made {
            builder.append(row).expect("appended");
        }
        assert_eq!((builder.len(), builder.bytes() > 0), (4, true));
        let columns = builder.finish().expect("columns");
        assert_eq!(columns[0].as_string::<i32>(), &names);
        assert_eq!(columns[1].as_primitive::<Int64Type>(), &numbers);
        assert_eq!((builder.len(), builder.bytes()), (0, 0), "and it can be used again");
        assert_eq!(builder.finish().expect("no rows")[0].len(), 0);
    }

    #[test]
    fn columns_of_another_type_are_refused() {
        let rows = ArrowRows::new(schema()).expect("a schema");
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        assert!(rows.rows(&[Arc::clone(&numbers), numbers]).is_err());
    }
}
