//! The fast way: one typed builder a field.
//!
//! [`columns_row!`](crate::columns_row) writes [`Row`] for a struct; this file has what it is written with, and
//! rows that need no struct: a [`Column`] by itself, tuples, and `()`.

use std::marker::PhantomData;

use arrow::array::{Array, ArrayBuilder, ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};

use super::{
    Column, Row, RowBuilder, RowError, Value,
    refusal::{tell, told_type},
};

/// More than this a builder does not take: texts and binary end at offsets of 32 bits.
const BYTES_MAX: usize = 0x7fff_ffff;

/// How full a builder is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fill {
    rows: usize,
    bytes: usize,
}

impl Fill {
    /// Counts a row of about so many bytes, or refuses it where the columns would grow beyond what an offset of
    /// 32 bits can tell. Asked before any column is appended to.
    pub fn admit(&mut self, bytes: usize) -> Result<(), RowError> {
        let sum = self.bytes.saturating_add(bytes);
        if sum > BYTES_MAX {
            return Err(RowError::Full { bytes, held: self.bytes, max: BYTES_MAX });
        }
        *self = Fill { rows: self.rows + 1, bytes: sum };
        Ok(())
    }

    /// The rows counted.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Their bytes, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The column's name of a field: an identifier as it is written, without the `r#` of a raw one.
pub fn column_name(identifier: &str) -> &str {
    identifier.strip_prefix("r#").unwrap_or(identifier)
}

/// The column that fields of this type have under a name.
pub fn column_of<C: Column>(name: &str) -> Field {
    Field::new(name, C::Value::data_type(), C::NULLABLE)
}

/// The typed column at `index` of a batch.
fn typed<'a, C: Column>(
    batch: &'a RecordBatch,
    index: usize,
    name: &str,
) -> Result<&'a <C::Value as Value>::Array, RowError> {
    let other = |found| RowError::OtherColumn {
        column: name.to_owned(),
        wanted: told_type(&C::Value::data_type(), C::NULLABLE),
        found,
    };
    let schema = batch.schema_ref();
    let (Some(array), Some(field)) = (batch.columns().get(index), schema.fields().get(index)) else {
        return Err(other("no column".to_owned()));
    };
    if field.name() != name || *array.data_type() != C::Value::data_type() {
        return Err(other(tell(field)));
    }
    if !C::NULLABLE && array.null_count() > 0 {
        return Err(RowError::Null { column: name.to_owned() });
    }
    array.as_any().downcast_ref().ok_or_else(|| other(tell(field)))
}

/// Takes the typed columns of a batch one after the other, in the schema's order.
pub fn columns_of(batch: &RecordBatch, wanted: usize) -> Result<Columns<'_>, RowError> {
    let found = batch.num_columns();
    if found != wanted {
        return Err(RowError::OtherCount { wanted, found });
    }
    Ok(Columns { batch, next: 0 })
}

/// The columns of a batch that were not taken yet.
#[derive(Debug)]
pub struct Columns<'a> {
    batch: &'a RecordBatch,
    next: usize,
}

impl<'a> Columns<'a> {
    /// The next column, which must have this name and the type of such fields.
    pub fn take<C: Column>(&mut self, name: &str) -> Result<&'a <C::Value as Value>::Array, RowError> {
        let index = self.next;
        self.next += 1;
        typed::<C>(self.batch, index, name)
    }
}

/// Makes rows of an existing struct: a column for each field, in the order given, with the field's name.
///
/// All fields must be given, with their types. Names that begin with `_` are refused when a sink is declared.
///
/// ```
/// use stash_timely::{columns_row, rows::{Row, RowBuilder}};
/// use stash::arrow::{array::RecordBatch, datatypes::Schema};
///
/// #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
/// struct Order {
///     id: u64,
///     customer: String,
///     note: Option<String>,
/// }
/// columns_row!(Order { id: u64, customer: String, note: Option<String> });
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let order = Order { id: 7, customer: "Ada".to_owned(), note: None };
/// let mut builder = Order::builder()?;
/// builder.append(&order)?;
/// let batch = RecordBatch::try_new(Order::schema()?.into(), builder.finish()?)?;
/// assert_eq!(Order::read(&batch)?, [order]);
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! columns_row {
    ($row:ident { $($field:ident: $column:ty),+ $(,)? }) => {
        // Full paths, and names nobody has: the fields' types are named in here as well.
        const _: () = {
            #[doc(hidden)]
            pub struct StashRowBuilder {
                fill: $crate::rows::Fill,
                columns: StashRowColumns,
            }

            struct StashRowColumns {
                $($field: <<$column as $crate::rows::Column>::Value as $crate::rows::Value>::Builder,)+
            }

            impl $crate::rows::RowBuilder<$row> for StashRowBuilder {
                fn append(&mut self, row: &$row) -> ::core::result::Result<(), $crate::rows::RowError> {
                    self.fill.admit(0 $(+ <$column as $crate::rows::Column>::bytes(&row.$field))+)?;
                    $(<$column as $crate::rows::Column>::append(&row.$field, &mut self.columns.$field);)+
                    ::core::result::Result::Ok(())
                }

                fn bytes(&self) -> usize {
                    self.fill.bytes()
                }

                fn len(&self) -> usize {
                    self.fill.rows()
                }

                fn finish(
                    &mut self,
                ) -> ::core::result::Result<
                    ::std::vec::Vec<$crate::arrow::array::ArrayRef>,
                    $crate::rows::RowError,
                > {
                    self.fill = ::core::default::Default::default();
                    ::core::result::Result::Ok(::std::vec![
                        $($crate::arrow::array::ArrayBuilder::finish(&mut self.columns.$field)),+
                    ])
                }
            }

            impl $crate::rows::Row for $row {
                type Builder = StashRowBuilder;

                fn schema()
                -> ::core::result::Result<$crate::arrow::datatypes::Schema, $crate::rows::RowError> {
                    ::core::result::Result::Ok($crate::arrow::datatypes::Schema::new(::std::vec![
                        $($crate::rows::column_of::<$column>(
                            $crate::rows::column_name(stringify!($field)),
                        )),+
                    ]))
                }

                fn builder() -> ::core::result::Result<StashRowBuilder, $crate::rows::RowError> {
                    let columns = StashRowColumns {
                        $($field: <
                            <$column as $crate::rows::Column>::Value as $crate::rows::Value
                        >::column_builder(),)+
                    };
                    let fill = ::core::default::Default::default();
                    ::core::result::Result::Ok(StashRowBuilder { fill, columns })
                }

                fn read(
                    batch: &$crate::arrow::array::RecordBatch,
                ) -> ::core::result::Result<::std::vec::Vec<$row>, $crate::rows::RowError> {
                    const COUNT: usize = [$(stringify!($field)),+].len();
                    let mut columns = $crate::rows::columns_of(batch, COUNT)?;
                    $(let $field = columns.take::<$column>($crate::rows::column_name(stringify!($field)))?;)+
                    let row = |at: usize| $row {
                        $($field: <$column as $crate::rows::Column>::get($field, at),)+
                    };
                    ::core::result::Result::Ok((0..batch.num_rows()).map(row).collect())
                }

                const POINTS: bool = false $(|| <$column as $crate::rows::Column>::POINTS)+;

                fn pieces(&self, look: &mut impl ::core::ops::FnMut(&[u8])) {
                    $(<$column as $crate::rows::Column>::pieces(&self.$field, look);)+
                }
            }
        };
    };
}

/// Builders of rows without a struct: a tuple of column builders.
#[derive(Debug)]
pub struct TupleBuilder<R, B> {
    fill: Fill,
    columns: B,
    row: PhantomData<fn(R)>,
}

macro_rules! tuple {
    ($count:literal: $($part:ident $index:tt $name:literal),+) => {
        impl<$($part: Column),+> RowBuilder<($($part,)+)>
            for TupleBuilder<($($part,)+), ($(<$part::Value as Value>::Builder,)+)>
        {
            fn append(&mut self, row: &($($part,)+)) -> Result<(), RowError> {
                self.fill.admit(0 $(+ row.$index.bytes())+)?;
                $(row.$index.append(&mut self.columns.$index);)+
                Ok(())
            }

            fn bytes(&self) -> usize {
                self.fill.bytes()
            }

            fn len(&self) -> usize {
                self.fill.rows()
            }

            fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError> {
                self.fill = Fill::default();
                Ok(vec![$(ArrayBuilder::finish(&mut self.columns.$index)),+])
            }
        }

        impl<$($part: Column),+> Row for ($($part,)+) {
            type Builder = TupleBuilder<Self, ($(<$part::Value as Value>::Builder,)+)>;

            fn schema() -> Result<Schema, RowError> {
                Ok(Schema::new(vec![$(column_of::<$part>($name)),+]))
            }

            fn builder() -> Result<Self::Builder, RowError> {
                let columns = ($($part::Value::column_builder(),)+);
                Ok(TupleBuilder { fill: Fill::default(), columns, row: PhantomData })
            }

            fn read(batch: &RecordBatch) -> Result<Vec<Self>, RowError> {
                let mut columns = columns_of(batch, $count)?;
                let taken = ($(columns.take::<$part>($name)?,)+);
                Ok((0..batch.num_rows()).map(|at| ($($part::get(taken.$index, at),)+)).collect())
            }

            const POINTS: bool = false $(|| $part::POINTS)+;

            fn pieces(&self, look: &mut impl FnMut(&[u8])) {
                $(Column::pieces(&self.$index, look);)+
            }
        }
    };
}

tuple!(1: A 0 "c0");
tuple!(2: A 0 "c0", B 1 "c1");
tuple!(3: A 0 "c0", B 1 "c1", C 2 "c2");
tuple!(4: A 0 "c0", B 1 "c1", C 2 "c2", D 3 "c3");
tuple!(5: A 0 "c0", B 1 "c1", C 2 "c2", D 3 "c3", E 4 "c4");
tuple!(6: A 0 "c0", B 1 "c1", C 2 "c2", D 3 "c3", E 4 "c4", F 5 "c5");
tuple!(7: A 0 "c0", B 1 "c1", C 2 "c2", D 3 "c3", E 4 "c4", F 5 "c5", G 6 "c6");
tuple!(8: A 0 "c0", B 1 "c1", C 2 "c2", D 3 "c3", E 4 "c4", F 5 "c5", G 6 "c6", H 7 "c7");

/// The builder of a row that is one column.
pub struct ColumnBuilder<C: Column> {
    fill: Fill,
    column: <C::Value as Value>::Builder,
}

impl<C: Column> RowBuilder<C> for ColumnBuilder<C> {
    fn append(&mut self, row: &C) -> Result<(), RowError> {
        self.fill.admit(row.bytes())?;
        row.append(&mut self.column);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.fill.bytes()
    }

    fn len(&self) -> usize {
        self.fill.rows()
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError> {
        self.fill = Fill::default();
        Ok(vec![ArrayBuilder::finish(&mut self.column)])
    }
}

impl<C: Column> Row for C {
    type Builder = ColumnBuilder<C>;

    fn schema() -> Result<Schema, RowError> {
        Ok(Schema::new(vec![column_of::<C>("c0")]))
    }

    fn builder() -> Result<Self::Builder, RowError> {
        Ok(ColumnBuilder { fill: Fill::default(), column: C::Value::column_builder() })
    }

    fn read(batch: &RecordBatch) -> Result<Vec<C>, RowError> {
        let column = columns_of(batch, 1)?.take::<C>("c0")?;
        Ok((0..batch.num_rows()).map(|at| C::get(column, at)).collect())
    }

    const POINTS: bool = <C as Column>::POINTS;

    fn pieces(&self, look: &mut impl FnMut(&[u8])) {
        Column::pieces(self, look);
    }
}

impl RowBuilder<()> for Fill {
    fn append(&mut self, (): &()) -> Result<(), RowError> {
        self.admit(0)
    }

    fn bytes(&self) -> usize {
        Fill::bytes(self)
    }

    fn len(&self) -> usize {
        self.rows
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, RowError> {
        *self = Fill::default();
        Ok(Vec::new())
    }
}

impl Row for () {
    type Builder = Fill;

    fn schema() -> Result<Schema, RowError> {
        Ok(Schema::empty())
    }

    fn builder() -> Result<Fill, RowError> {
        Ok(Fill::default())
    }

    fn read(batch: &RecordBatch) -> Result<Vec<()>, RowError> {
        columns_of(batch, 0)?;
        Ok(vec![(); batch.num_rows()])
    }
}
