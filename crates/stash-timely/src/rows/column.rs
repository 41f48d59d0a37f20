//! Fields of a row: which Arrow column a value belongs to, and how it goes in and comes out.
//!
//! A [`Value`] is never nothing. A [`Column`] is a value, or an option of one, which makes the column nullable. An
//! option of an option is no column: the two kinds of nothing would come back as one.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, BinaryArray, BinaryBuilder, BooleanArray, BooleanBuilder, FixedSizeBinaryArray,
    FixedSizeBinaryBuilder, PrimitiveArray, PrimitiveBuilder, StringArray, StringBuilder,
};
use arrow::datatypes::{
    DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

/// Bytes of an offset of a text or of binary.
const OFFSET: usize = size_of::<i32>();

/// A value that an Arrow column holds one of a row.
///
/// - [`Value::at`] of what [`Value::append_to`] appended is an equal value.
/// - [`Value::data_type`] is the type of [`Value::Array`] and of what [`Value::Builder`] builds, always.
pub trait Value: Sized + 'static {
    /// The builder of its column.
    type Builder: ArrayBuilder;
    /// The column.
    type Array: Array + 'static;

    /// The column's type.
    fn data_type() -> DataType;

    /// An empty builder.
    fn column_builder() -> Self::Builder;

    /// Appends the value. Never called where the column would exceed 2 GiB.
    fn append_to(&self, builder: &mut Self::Builder);

    /// Appends nothing.
    fn append_null_to(builder: &mut Self::Builder);

    /// About how many bytes the value takes in its column; at least those of a text or binary.
    fn column_bytes(&self) -> usize;

    /// The value at `index`, which is within the column and not null.
    fn at(array: &Self::Array, index: usize) -> Self;

    /// [`Row::POINTS`](super::Row::POINTS) of the value.
    const POINTS: bool = false;

    /// [`Row::pieces`](super::Row::pieces) of the value.
    #[inline]
    fn pieces(&self, _look: &mut impl FnMut(&[u8])) {}
}

/// A field of a row: a [`Value`], or an option of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a column of a stash",
    note = "integers, `bool`, `String`, `Vec<u8>`, `[u8; N]` and options of these are columns",
    note = "`newtype_column!` makes one of a struct around one of them; `serde_row!` takes nested types"
)]
pub trait Column: Sized + 'static {
    /// The value.
    type Value: Value;
    /// Whether the column may hold nulls.
    const NULLABLE: bool;

    /// Appends the field.
    fn append(&self, builder: &mut <Self::Value as Value>::Builder);

    /// About how many bytes the field takes in its column.
    fn bytes(&self) -> usize;

    /// The field at `index`, which is within the column and null only where that is allowed.
    fn get(array: &<Self::Value as Value>::Array, index: usize) -> Self;

    /// [`Row::POINTS`](super::Row::POINTS) of the field.
    const POINTS: bool = <Self::Value as Value>::POINTS;

    /// [`Row::pieces`](super::Row::pieces) of the field.
    fn pieces(&self, look: &mut impl FnMut(&[u8]));
}

impl<V: Value> Column for V {
    type Value = V;
    const NULLABLE: bool = false;

    fn append(&self, builder: &mut V::Builder) {
        self.append_to(builder);
    }

    fn bytes(&self) -> usize {
        self.column_bytes()
    }

    fn get(array: &V::Array, index: usize) -> V {
        V::at(array, index)
    }

    #[inline]
    fn pieces(&self, look: &mut impl FnMut(&[u8])) {
        Value::pieces(self, look);
    }
}

impl<V: Value> Column for Option<V> {
    type Value = V;
    const NULLABLE: bool = true;

    fn append(&self, builder: &mut V::Builder) {
        match self {
            Some(value) => value.append_to(builder),
            None => V::append_null_to(builder),
        }
    }

    fn bytes(&self) -> usize {
        // The bit of validity is counted as a byte, the slot of nothing as an offset.
        1 + self.as_ref().map_or(OFFSET, Value::column_bytes)
    }

    fn get(array: &V::Array, index: usize) -> Option<V> {
        (!array.is_null(index)).then(|| V::at(array, index))
    }

    #[inline]
    fn pieces(&self, look: &mut impl FnMut(&[u8])) {
        if let Some(value) = self {
            Value::pieces(value, look);
        }
    }
}

macro_rules! integer {
    ($($integer:ty => $arrow:ident $type:ident),+ $(,)?) => {$(
        impl Value for $integer {
            type Builder = PrimitiveBuilder<$arrow>;
            type Array = PrimitiveArray<$arrow>;

            fn data_type() -> DataType {
                DataType::$type
            }

            fn column_builder() -> Self::Builder {
                PrimitiveBuilder::new()
            }

            fn append_to(&self, builder: &mut Self::Builder) {
                builder.append_value(*self);
            }

            fn append_null_to(builder: &mut Self::Builder) {
                builder.append_null();
            }

            fn column_bytes(&self) -> usize {
                size_of::<$integer>()
            }

            fn at(array: &Self::Array, index: usize) -> $integer {
                array.value(index)
            }
        }
    )+};
}

integer!(
    i8 => Int8Type Int8,
    i16 => Int16Type Int16,
    i32 => Int32Type Int32,
    i64 => Int64Type Int64,
    u8 => UInt8Type UInt8,
    u16 => UInt16Type UInt16,
    u32 => UInt32Type UInt32,
    u64 => UInt64Type UInt64,
);

impl Value for bool {
    type Builder = BooleanBuilder;
    type Array = BooleanArray;

    fn data_type() -> DataType {
        DataType::Boolean
    }

    fn column_builder() -> BooleanBuilder {
        BooleanBuilder::new()
    }

    fn append_to(&self, builder: &mut BooleanBuilder) {
        builder.append_value(*self);
    }

    fn append_null_to(builder: &mut BooleanBuilder) {
        builder.append_null();
    }

    fn column_bytes(&self) -> usize {
        1
    }

    fn at(array: &BooleanArray, index: usize) -> bool {
        array.value(index)
    }
}

macro_rules! text {
    ($($text:ty),+) => {$(
        impl Value for $text {
            type Builder = StringBuilder;
            type Array = StringArray;

            fn data_type() -> DataType {
                DataType::Utf8
            }

            fn column_builder() -> StringBuilder {
                StringBuilder::new()
            }

            fn append_to(&self, builder: &mut StringBuilder) {
                builder.append_value(self);
            }

            fn append_null_to(builder: &mut StringBuilder) {
                builder.append_null();
            }

            fn column_bytes(&self) -> usize {
                OFFSET + self.len()
            }

            fn at(array: &StringArray, index: usize) -> $text {
                array.value(index).into()
            }

            const POINTS: bool = true;

            #[inline]
            fn pieces(&self, look: &mut impl FnMut(&[u8])) {
                look(self.as_bytes());
            }
        }
    )+};
}

text!(String, Box<str>, Arc<str>);

impl Value for Vec<u8> {
    type Builder = BinaryBuilder;
    type Array = BinaryArray;

    fn data_type() -> DataType {
        DataType::Binary
    }

    fn column_builder() -> BinaryBuilder {
        BinaryBuilder::new()
    }

    fn append_to(&self, builder: &mut BinaryBuilder) {
        builder.append_value(self);
    }

    fn append_null_to(builder: &mut BinaryBuilder) {
        builder.append_null();
    }

    fn column_bytes(&self) -> usize {
        OFFSET + self.len()
    }

    fn at(array: &BinaryArray, index: usize) -> Vec<u8> {
        array.value(index).to_vec()
    }

    const POINTS: bool = true;

    #[inline]
    fn pieces(&self, look: &mut impl FnMut(&[u8])) {
        look(self);
    }
}

/// How wide a byte array's column is. One of no bytes, or above 2 GiB, does not compile.
const fn width<const N: usize>() -> i32 {
    assert!(N > 0 && N <= 0x7fff_ffff, "a column of byte arrays needs at least one byte, and at most 2 GiB");
    #[expect(clippy::as_conversions, reason = "it was compared above")]
    let width = N as i32;
    width
}

impl<const N: usize> Value for [u8; N] {
    type Builder = FixedSizeBinaryBuilder;
    type Array = FixedSizeBinaryArray;

    fn data_type() -> DataType {
        DataType::FixedSizeBinary(const { width::<N>() })
    }

    fn column_builder() -> FixedSizeBinaryBuilder {
        FixedSizeBinaryBuilder::new(const { width::<N>() })
    }

    fn append_to(&self, builder: &mut FixedSizeBinaryBuilder) {
        let appended = builder.append_value(self);
        debug_assert!(appended.is_ok(), "the builder is as wide as the array");
    }

    fn append_null_to(builder: &mut FixedSizeBinaryBuilder) {
        builder.append_null();
    }

    fn column_bytes(&self) -> usize {
        N
    }

    fn at(array: &FixedSizeBinaryArray, index: usize) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(array.value(index));
        value
    }
}

/// Makes a column of a struct around one value: an id, a name.
///
/// ```
/// #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
/// struct OrderId(u64);
/// stash_timely::newtype_column!(OrderId(u64));
/// ```
#[macro_export]
macro_rules! newtype_column {
    ($newtype:ident($value:ty)) => {
        impl $crate::rows::Value for $newtype {
            type Builder = <$value as $crate::rows::Value>::Builder;
            type Array = <$value as $crate::rows::Value>::Array;

            fn data_type() -> $crate::arrow::datatypes::DataType {
                <$value as $crate::rows::Value>::data_type()
            }

            fn column_builder() -> Self::Builder {
                <$value as $crate::rows::Value>::column_builder()
            }

            fn append_to(&self, builder: &mut Self::Builder) {
                $crate::rows::Value::append_to(&self.0, builder);
            }

            fn append_null_to(builder: &mut Self::Builder) {
                <$value as $crate::rows::Value>::append_null_to(builder);
            }

            fn column_bytes(&self) -> usize {
                $crate::rows::Value::column_bytes(&self.0)
            }

            fn at(array: &Self::Array, index: usize) -> Self {
                $newtype(<$value as $crate::rows::Value>::at(array, index))
            }

            const POINTS: bool = <$value as $crate::rows::Value>::POINTS;

            fn pieces(&self, look: &mut impl ::core::ops::FnMut(&[u8])) {
                $crate::rows::Value::pieces(&self.0, look);
            }
        }
    };
}
