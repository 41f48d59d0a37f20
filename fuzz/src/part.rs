//! Target `part`: the bytes of a part, and the descriptor that travels with it, which may be forged.
//!
//! Input: the row schema, flags, the descriptor's wire body behind its length, the object. The flags give the fuzzer
//! what it cannot guess: fresh digests of row groups and of the tail, and the object's true length.
//!
//! - With the digests as given: an error, or exactly what the valid part of that descriptor holds (I22).
//! - With fresh ones, by a writer who lies: an error, or updates that are as declared, sorted, consolidated, and no
//!   larger than the descriptor lets its reader expect (I24).
//! - Pruning and cutting by time lose nothing: pieces below and from a time on are the whole.

use bytes::Bytes;
use stash_part::{PartError, PartLayout, RowSchema, Sorted, Updates, tail_range};
use stash_types::{Digest, Frontier, PartDescriptor, wire::Wire};

use crate::input::{Input, sealed};
use crate::rows::{honest, schemas};

/// Flag: row groups get fresh digests in the footer.
pub const FRESH_ROW_GROUPS: u8 = 1;
/// Flag: the tail gets a fresh digest in the descriptor.
pub const FRESH_TAIL: u8 = 2;
/// Flag: the descriptor gets the object's length.
pub const FRESH_LENGTH: u8 = 4;

/// What a reader lets a descriptor's claims cost: more is not tried, since nobody would reserve it.
const CLAIM_BYTES_MAX: u64 = 1 << 20;
/// How much larger than declared decoded columns may be: nulls that take no bytes in the file do in memory.
const GROWTH_MAX: u64 = 16;
/// What may come on top.
const GROWTH_SLACK: u64 = 256 << 10;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let schema = &schemas()[usize::from(input.u8()) % schemas().len()];
    let flags = input.u8();
    let Ok(mut part) = PartDescriptor::from_wire(&sealed(b'P', 1, input.stretch())) else { return };
    let mut object = input.rest().to_vec();
    if flags & FRESH_LENGTH != 0 {
        part.len = object.len() as u64;
    }
    let tail = tail_range(&part);
    let Some(tail) = usize::try_from(tail.start).ok().filter(|start| *start <= object.len()) else { return };
    if flags & FRESH_ROW_GROUPS != 0 {
        freshen(&mut object, tail);
    }
    if flags & FRESH_TAIL != 0 {
        part.tail_digest = Digest::of(&object[tail..]);
    }
    if part.piece_bytes > CLAIM_BYTES_MAX {
        return;
    }
    let object = Bytes::from(object);
    let Ok((layout, read)) = read(schema, &part, &object, Frontier::MIN, Frontier::EMPTY) else { return };
    check_claims(&layout, &part, &read);
    check_honest(&part, &read);
    check_cuts(schema, &part, &object, &read);
}

/// Reads what a reader would: the tail, then the row groups that may hold the times.
fn read(
    schema: &RowSchema,
    part: &PartDescriptor,
    object: &Bytes,
    lower: Frontier,
    upper: Frontier,
) -> Result<(PartLayout, Vec<Sorted>), PartError> {
    let slice = |range: std::ops::Range<u64>| {
        let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(object.len());
        object.slice(usize::try_from(range.start).unwrap_or(usize::MAX).min(end)..end)
    };
    let layout = PartLayout::parse(schema, part, slice(tail_range(part)))?;
    let read =
        |i: usize| layout.decode_row_group(i, slice(layout.row_groups()[i].range.clone()), lower, upper);
    let updates = layout.prune(lower, upper).into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok((layout, updates))
}

fn check_claims(layout: &PartLayout, part: &PartDescriptor, read: &[Sorted]) {
    assert_eq!(read.len(), layout.row_groups().len(), "all times are read from all row groups");
    let rows: usize = read.iter().map(|updates| updates.num_rows()).sum();
    assert_eq!(rows as u64, part.facts.update_count, "more or fewer updates than declared");
    for (span, updates) in layout.row_groups().iter().zip(read) {
        let times = updates.times();
        assert_eq!(times.iter().min(), Some(&span.min_time), "a time below the declared ones");
        assert_eq!(times.iter().max(), Some(&span.max_time), "a time above the declared ones");
        assert!(span.uncompressed_bytes <= part.piece_bytes, "a row group above what its reader reserved");
        assert!(!updates.diffs().contains(&0), "a diff of zero");
        let held = updates.memory_bytes() as u64;
        let max = span.uncompressed_bytes * GROWTH_MAX + GROWTH_SLACK;
        assert!(
            held <= max,
            "{held} bytes came out of a row group that declares {}",
            span.uncompressed_bytes
        );
    }
}

/// Whoever has a valid part's tail digest gets that part's updates.
fn check_honest(part: &PartDescriptor, read: &[Sorted]) {
    let Some(honest) = honest().iter().find(|honest| honest.part.tail_digest == part.tail_digest) else {
        return;
    };
    let pieces: Vec<Updates> = read.iter().map(|updates| updates.updates().clone()).collect();
    let read = Updates::concat(honest.updates.schema(), &pieces).expect("the pieces have its schema");
    assert_eq!(read.batch(), honest.updates.batch(), "a valid tail, and other updates");
}

/// Below and from each time on is the whole.
fn check_cuts(schema: &RowSchema, part: &PartDescriptor, object: &Bytes, whole: &[Sorted]) {
    let RowsAndTimes { rows, .. } = RowsAndTimes::of(whole);
    let (min, max) = (part.facts.min_time, part.facts.max_time);
    for at in [min, min / 2 + max / 2, max] {
        let at = Frontier::at(at);
        let (_, below) = read(schema, part, object, Frontier::MIN, at).expect("what was read is read again");
        let (_, above) =
            read(schema, part, object, at, Frontier::EMPTY).expect("what was read is read again");
        let (below, above) = (RowsAndTimes::of(&below), RowsAndTimes::of(&above));
        assert_eq!(below.rows + above.rows, rows, "a cut at {at} loses updates");
        assert!(below.max.is_none_or(|time| time < at.as_u64()), "a time of {at} or later stayed");
        assert!(above.min.is_none_or(|time| time >= at.as_u64()), "a time before {at} stayed");
    }
}

struct RowsAndTimes {
    rows: usize,
    min: Option<u64>,
    max: Option<u64>,
}

impl RowsAndTimes {
    fn of(pieces: &[Sorted]) -> RowsAndTimes {
        let times = || pieces.iter().flat_map(|piece| piece.times().iter().copied());
        RowsAndTimes { rows: times().count(), min: times().min(), max: times().max() }
    }
}

/// Writes the digests of the row groups, as far as they can be found in the footer's text, over those there.
pub fn freshen(object: &mut [u8], tail: usize) {
    let (row_groups, tail) = object.split_at_mut(tail);
    let (mut at, mut start) = (0, 0);
    while let Some((end, digits, next)) = next_row_group(tail, at) {
        if let Some(segment) = row_groups.get(start..end) {
            tail[digits..digits + 64].copy_from_slice(Digest::of(segment).to_string().as_bytes());
        }
        (at, start) = (next, end);
    }
}

/// The next row group in the footer's JSON from `at` on: where it ends, where its digest's digits stand, and
/// where the one after it may begin. Keys are in the order of their names.
fn next_row_group(tail: &[u8], at: usize) -> Option<(usize, usize, usize)> {
    const DIGEST: &[u8] = b"\"digest\":\"";
    const END: &[u8] = b"\"end\":";
    let find = |from: usize, what: &[u8]| {
        let rest = tail.get(from..)?;
        rest.windows(what.len()).position(|window| window == what).map(|found| from + found + what.len())
    };
    let digits = find(at, DIGEST)?;
    let number = find(digits, END)?;
    let text: String =
        tail.get(number..)?.iter().take_while(|byte| byte.is_ascii_digit()).map(|b| char::from(*b)).collect();
    let end = text.parse().ok()?;
    (digits + 64 <= tail.len()).then_some((end, digits, number))
}
