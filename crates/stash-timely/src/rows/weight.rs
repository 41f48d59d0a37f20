//! How many bytes of columns a value that serde writes will take, about: one more serialization that keeps
//! nothing.
//!
//! Counted are fixed widths, texts and bytes with an offset each, an offset for each list and a byte for each
//! option. What an absent nested struct leaves in its own columns is not: it can be more than this says by
//! their fixed widths.

use std::fmt;

use serde::ser::{self, Serialize, Serializer};

const OFFSET: usize = size_of::<i32>();

/// About how many bytes `value` takes in columns. The error is the value's own: it refuses to be written.
pub(super) fn weigh<T: Serialize + ?Sized>(value: &T) -> Result<usize, fmt::Error> {
    let mut scales = Scales(0);
    value.serialize(&mut scales)?;
    Ok(scales.0)
}

struct Scales(usize);

impl Scales {
    fn add(&mut self, bytes: usize) -> Result<(), fmt::Error> {
        self.0 = self.0.saturating_add(bytes);
        Ok(())
    }
}

macro_rules! fixed {
    ($($method:ident $number:ty),+ $(,)?) => {$(
        fn $method(self, _: $number) -> Result<(), fmt::Error> {
            self.add(size_of::<$number>())
        }
    )+};
}

impl<'a> Serializer for &'a mut Scales {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = &'a mut Scales;
    type SerializeTuple = &'a mut Scales;
    type SerializeTupleStruct = &'a mut Scales;
    type SerializeTupleVariant = &'a mut Scales;
    type SerializeMap = &'a mut Scales;
    type SerializeStruct = &'a mut Scales;
    type SerializeStructVariant = &'a mut Scales;

    fixed!(
        serialize_bool bool,
        serialize_i8 i8,
        serialize_i16 i16,
        serialize_i32 i32,
        serialize_i64 i64,
        serialize_i128 i128,
        serialize_u8 u8,
        serialize_u16 u16,
        serialize_u32 u32,
        serialize_u64 u64,
        serialize_u128 u128,
        serialize_f32 f32,
        serialize_f64 f64,
        serialize_char char,
    );

    fn serialize_str(self, text: &str) -> Result<(), fmt::Error> {
        self.add(OFFSET + text.len())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), fmt::Error> {
        self.add(OFFSET + bytes.len())
    }

    fn serialize_none(self) -> Result<(), fmt::Error> {
        self.add(1 + OFFSET)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), fmt::Error> {
        self.add(1)?;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), fmt::Error> {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), fmt::Error> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), fmt::Error> {
        self.add(OFFSET + variant.len())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), fmt::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), fmt::Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, fmt::Error> {
        self.add(OFFSET)?;
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, fmt::Error> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, fmt::Error> {
        self.add(OFFSET)?;
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, fmt::Error> {
        Ok(self)
    }
}

macro_rules! items {
    ($($compound:ident $method:ident),+ $(,)?) => {$(
        impl ser::$compound for &mut Scales {
            type Ok = ();
            type Error = fmt::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), fmt::Error> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), fmt::Error> {
                Ok(())
            }
        }
    )+};
}

items!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field,
);

macro_rules! fields {
    ($($compound:ident),+) => {$(
        impl ser::$compound for &mut Scales {
            type Ok = ();
            type Error = fmt::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Result<(), fmt::Error> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), fmt::Error> {
                Ok(())
            }
        }
    )+};
}

fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for &mut Scales {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), fmt::Error> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), fmt::Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), fmt::Error> {
        Ok(())
    }
}
