//! Target `frame`: wire frames.
//!
//! Input: a byte that says which kind of frame and whether it is sealed for the fuzzer, then the frame or its body.
//!
//! - What is read can be written and read again, and is the same (`decode ∘ encode`).
//! - A frame that is read is the only one with its seal: with any bit flipped, cut or extended it is refused.
//! - What is read is no larger than the frame: nothing is unpacked.

use std::fmt::Debug;

use stash_types::{DisarmedShare, PartDescriptor, Share, wire::Wire};

use crate::input::{Input, sealed};

/// The least bytes of a descriptor on the wire: eleven numbers and three digests.
const DESCRIPTOR_BYTES_MIN: usize = 11 + 3 * 32;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let bytes = input.rest();
    match kind % 4 {
        0 => drop(read::<DisarmedShare>(bytes)),
        1 => read::<DisarmedShare>(&sealed(b'S', 1, bytes)).iter().for_each(|share| fits(share, bytes.len())),
        2 => drop(read::<PartDescriptor>(bytes)),
        _ => drop(read::<PartDescriptor>(&sealed(b'P', 1, bytes))),
    }
}

fn read<T: Wire + PartialEq + Debug>(frame: &[u8]) -> Option<T> {
    let value = match T::from_wire(frame) {
        Ok(value) => value,
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "an error is one line: {error}");
            return None;
        }
    };
    let written = value.to_wire().expect("what was read can be written");
    assert_eq!(T::from_wire(&written).as_ref(), Ok(&value), "written and read again it is another value");
    let mut damaged = frame.to_vec();
    // Which bit follows from the frame, so that an input replays.
    let bit = frame.iter().fold(frame.len(), |sum, byte| sum.wrapping_mul(31) ^ usize::from(*byte));
    let bit = bit % (damaged.len() * 8);
    damaged[bit / 8] ^= 1 << (bit % 8);
    assert!(T::from_wire(&damaged).is_err(), "bit {bit} was flipped, and nobody noticed");
    assert!(T::from_wire(&frame[..frame.len() - 1]).is_err(), "a cut frame was read");
    assert!(T::from_wire(&[frame, &[0]].concat()).is_err(), "an extended frame was read");
    Some(value)
}

fn fits(share: &DisarmedShare, body: usize) {
    let held = match &share.share {
        Share::Stashed(parts) => parts.len() * DESCRIPTOR_BYTES_MIN,
        Share::Inline(run) => run.payload.len(),
        Share::Failed { reason } => reason.len(),
        Share::Empty | Share::Dropped => 0,
    };
    assert!(held <= body, "a share of {held} bytes came out of {body}");
    assert!(share.description.lower() < share.description.upper(), "a description covers no time");
}
