//! Just enough of Thrift's compact protocol to look before leaping: is a footer well-formed, and what do
//! the page headers claim?
//!
//! The Parquet reader trusts counts and sizes; a list of a billion elements in a footer of ninety bytes is
//! allocated before it is read. A walk over the same bytes costs little and refuses it first.

use crate::error::PartError;

/// How deep structs may nest; Parquet's own footers stay below ten.
const DEPTH_MAX: usize = 24;
/// How long a list may be; row groups and columns stay far below.
const LIST_MAX: u64 = 65_536;

/// Where a number stands: the field ids from the outermost struct inwards.
pub(crate) type Path<'a> = &'a [i16];

/// Walks one struct at the start of `bytes`, gives every integer in it with its path, and returns how many
/// bytes it took. Elements of lists have no path and are only checked.
pub(crate) fn walk(bytes: &[u8], visit: &mut dyn FnMut(Path<'_>, i64)) -> Result<usize, PartError> {
    let mut walker = Walker { bytes, at: 0, path: Vec::new() };
    walker.walk_struct(0, Some(visit))?;
    Ok(walker.at)
}

/// How deep the tree of a footer's columns is, at most `max`: Parquet's reader builds it by recursion, and one that is as
/// deep as a list may be long would take the stack with it.
pub(crate) fn check_schema_depth(footer: &[u8], max: usize) -> Result<(), PartError> {
    /// `FileMetaData.schema`, and `SchemaElement.num_children`.
    const SCHEMA: i16 = 2;
    const CHILDREN: i16 = 5;
    let mut walker = Walker { bytes: footer, at: 0, path: Vec::new() };
    let mut id = 0;
    while let Some(kind) = walker.field(&mut id)? {
        walker.path.push(id);
        if (id, kind) == (SCHEMA, 9) {
            let (count, kind) = walker.list_head()?;
            // What is still to come at each level above the next column.
            let mut open: Vec<i64> = Vec::new();
            for _ in 0..count {
                let mut children = 0;
                let mut visit = |path: Path<'_>, value| {
                    if path == [SCHEMA, CHILDREN] {
                        children = value;
                    }
                };
                match kind {
                    12 => walker.walk_struct(1, Some(&mut visit))?,
                    _ => return damaged("has columns that are none"),
                }
                if children > 0 {
                    open.push(children);
                    if open.len() > max {
                        return damaged("nests its columns too deeply");
                    }
                    continue;
                }
                while let Some(left) = open.last_mut() {
                    *left -= 1;
                    if *left > 0 {
                        break;
                    }
                    open.pop();
                }
            }
        } else {
            walker.walk_value(kind, 0, None)?;
        }
        walker.path.pop();
    }
    Ok(())
}

struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    path: Vec<i16>,
}

type Visit<'v> = Option<&'v mut dyn FnMut(Path<'_>, i64)>;

fn damaged<T>(why: &str) -> Result<T, PartError> {
    Err(PartError::corrupt(format!("metadata {why}")))
}

impl Walker<'_> {
    fn byte(&mut self) -> Result<u8, PartError> {
        let Some(byte) = self.bytes.get(self.at) else { return damaged("ends early") };
        self.at += 1;
        Ok(*byte)
    }

    fn skip(&mut self, len: u64) -> Result<(), PartError> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return damaged("ends early");
        }
        self.at += len as usize;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, PartError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        damaged("holds a number of more than 64 bits")
    }

    fn zigzag(&mut self) -> Result<i64, PartError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn walk_struct(&mut self, depth: usize, mut visit: Visit<'_>) -> Result<(), PartError> {
        if depth > DEPTH_MAX {
            return damaged("nests too deeply");
        }
        let mut id = 0i16;
        while let Some(kind) = self.field(&mut id)? {
            self.path.push(id);
            let visit = visit.as_mut().map(|visit| &mut **visit as &mut dyn FnMut(Path<'_>, i64));
            self.walk_value(kind, depth, visit)?;
            self.path.pop();
        }
        Ok(())
    }

    /// The next field's type, its id in `id`; `None` at the end of the struct.
    fn field(&mut self, id: &mut i16) -> Result<Option<u8>, PartError> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *id = match i16::from(head >> 4) {
            0 => i16::try_from(self.zigzag()?).or_else(|_| damaged("has a field id beyond 16 bits"))?,
            delta => id.checked_add(delta).map_or_else(|| damaged("has a field id beyond 16 bits"), Ok)?,
        };
        Ok(Some(head & 0x0f))
    }

    /// How many elements a list has, and their type.
    fn list_head(&mut self) -> Result<(u64, u8), PartError> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        self.check_count(count)?;
        Ok((count, head & 0x0f))
    }

    fn walk_value(&mut self, kind: u8, depth: usize, visit: Visit<'_>) -> Result<(), PartError> {
        match kind {
            1 | 2 => Ok(()),
            3 => self.skip(1),
            4..=6 => {
                let value = self.zigzag()?;
                if let Some(visit) = visit {
                    visit(&self.path, value);
                }
                Ok(())
            }
            7 => self.skip(8),
            8 => {
                let len = self.varint()?;
                self.skip(len)
            }
            9 | 10 => {
                let (count, kind) = self.list_head()?;
                (0..count).try_for_each(|_| self.walk_element(kind, depth))
            }
            11 => {
                let count = self.varint()?;
                self.check_count(count)?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.walk_element(kinds >> 4, depth)?;
                    self.walk_element(kinds & 0x0f, depth)
                })
            }
            12 => self.walk_struct(depth + 1, visit),
            13 => self.skip(16),
            _ => damaged("holds a value of unknown type"),
        }
    }

    fn walk_element(&mut self, kind: u8, depth: usize) -> Result<(), PartError> {
        match kind {
            // Outside of fields, a truth value is a byte of its own.
            1 | 2 => self.skip(1),
            9..=11 if depth >= DEPTH_MAX => damaged("nests too deeply"),
            kind => self.walk_value(kind, depth + 1, None),
        }
    }

    fn check_count(&self, count: u64) -> Result<(), PartError> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left || count > LIST_MAX {
            return damaged("claims more elements than it can hold");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_gives_every_number_with_its_path_and_where_it_ended() {
        // { 1: i32 = -3, 5: { 1: i32 = 7, 2: "ab" }, 6: [i32; 2] } and a byte that is not part of it.
        let bytes = [0x15, 5, 0x4c, 0x15, 14, 0x18, 2, b'a', b'b', 0, 0x19, 0x25, 2, 4, 0, 99];
        let mut seen = Vec::new();
        let end = walk(&bytes, &mut |path, value| seen.push((path.to_vec(), value))).unwrap();
        assert_eq!(end, bytes.len() - 1);
        assert_eq!(seen, [(vec![1], -3), (vec![5, 1], 7)]);
        for cut in 0..end {
            assert!(walk(&bytes[..cut], &mut |_, _| {}).is_err(), "cut to {cut} bytes");
        }
    }

    /// A footer of nothing but columns, each with so many children.
    fn footer(children: &[i64]) -> Vec<u8> {
        let mut bytes = vec![0x29, 0xfc];
        let varint = |mut value: u64, bytes: &mut Vec<u8>| {
            while value > 0x7f {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
        };
        varint(children.len() as u64, &mut bytes);
        for count in children {
            bytes.push(0x55);
            varint((*count as u64) << 1, &mut bytes);
            bytes.push(0);
        }
        bytes.push(0);
        bytes
    }

    #[test]
    fn columns_that_nest_too_deeply_are_refused_and_wide_ones_are_not() {
        let wide: Vec<i64> = [3000].into_iter().chain([2, 0, 0].repeat(3000)).collect();
        assert_eq!(check_schema_depth(&footer(&wide), 2), Ok(()));
        assert_eq!(check_schema_depth(&footer(&[1, 1, 0]), 2), Ok(()));
        for deep in [vec![1, 1, 1, 0], vec![1; 60_000], vec![2, 0, 1, 1, 0]] {
            let error = check_schema_depth(&footer(&deep), 2).unwrap_err().to_string();
            assert!(error.contains("too deeply"), "{error}");
        }
    }

    #[test]
    fn a_list_longer_than_the_bytes_left_is_refused() {
        let bomb = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0];
        assert!(walk(&bomb, &mut |_, _| {}).unwrap_err().to_string().contains("more elements"));
        let deep = [0x1c].repeat(4000);
        assert!(walk(&deep, &mut |_, _| {}).unwrap_err().to_string().contains("deeply"));
    }
}
