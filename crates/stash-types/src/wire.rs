//! The versioned wire form of what crosses a process border or rests in the catalog.
//!
//! A frame is a magic byte, a version byte, the first eight bytes of the body's BLAKE3, and the body of that
//! version. A reader refuses what it does not know, bytes that differ or are left over, and frames beyond
//! [`FRAME_BYTES_MAX`]: a newer writer is an error with a name, and a damaged frame is never another share.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{PartDescriptor, share::DisarmedShare};

/// The largest frame that is read or written: 16 MiB.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// The newest version of each frame this build writes.
const VERSION: u8 = 1;
/// Bytes of the body's digest in a frame: enough to notice damage. It is no proof against forgers, and need not
/// be one: a forged frame reaches nothing outside its receiver's own sink.
const SEAL_BYTES: usize = 8;
/// Bytes before the body.
const HEAD_BYTES: usize = 2 + SEAL_BYTES;

fn seal(body: &[u8]) -> [u8; SEAL_BYTES] {
    let digest = blake3::hash(body);
    let mut seal = [0; SEAL_BYTES];
    seal.iter_mut().zip(digest.as_bytes()).for_each(|(to, from)| *to = *from);
    seal
}

/// A frame that cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame is not one of the wanted kind.
    #[error("not a {kind} frame")]
    Kind {
        /// What was wanted.
        kind: &'static str,
    },
    /// The frame's version is not known to this build.
    #[error(
        "{kind} frame has version {version}; this build reads up to {VERSION}: upgrade this process first"
    )]
    Version {
        /// What was wanted.
        kind: &'static str,
        /// The version found.
        version: u8,
    },
    /// The body is damaged.
    #[error("{kind} frame is damaged: {why}")]
    Damaged {
        /// What was wanted.
        kind: &'static str,
        /// How it is damaged.
        why: String,
    },
    /// The frame is too large.
    #[error("{kind} frame has {bytes} bytes, more than {FRAME_BYTES_MAX}")]
    TooLarge {
        /// What was wanted.
        kind: &'static str,
        /// Its size.
        bytes: usize,
    },
}

/// A noun that has a wire form.
pub trait Wire: Sized {
    /// Encodes it into one frame.
    fn to_wire(&self) -> Result<Bytes, WireError>;
    /// Reads it from exactly one frame.
    fn from_wire(frame: &[u8]) -> Result<Self, WireError>;
}

impl Wire for DisarmedShare {
    fn to_wire(&self) -> Result<Bytes, WireError> {
        encode("share", b'S', self)
    }
    fn from_wire(frame: &[u8]) -> Result<Self, WireError> {
        decode("share", b'S', frame)
    }
}

impl Wire for PartDescriptor {
    fn to_wire(&self) -> Result<Bytes, WireError> {
        encode("part descriptor", b'P', self)
    }
    fn from_wire(frame: &[u8]) -> Result<Self, WireError> {
        decode("part descriptor", b'P', frame)
    }
}

fn encode<T: Serialize>(kind: &'static str, magic: u8, value: &T) -> Result<Bytes, WireError> {
    let mut frame = postcard::to_extend(value, vec![0; HEAD_BYTES])
        .map_err(|error| WireError::Damaged { kind, why: error.to_string() })?;
    if let Some((head, body)) = frame.split_at_mut_checked(HEAD_BYTES) {
        let seal = seal(body);
        head.iter_mut().zip([magic, VERSION].into_iter().chain(seal)).for_each(|(byte, value)| *byte = value);
    }
    if frame.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLarge { kind, bytes: frame.len() });
    }
    Ok(frame.into())
}

fn decode<T: DeserializeOwned>(kind: &'static str, magic: u8, frame: &[u8]) -> Result<T, WireError> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(WireError::TooLarge { kind, bytes: frame.len() });
    }
    let [found, version, body @ ..] = frame else { return Err(WireError::Kind { kind }) };
    if *found != magic {
        return Err(WireError::Kind { kind });
    }
    if *version != VERSION {
        return Err(WireError::Version { kind, version: *version });
    }
    let Some((sealed, body)) = body.split_at_checked(SEAL_BYTES) else {
        return Err(WireError::Damaged { kind, why: "it ends too early".to_owned() });
    };
    if sealed != seal(body) {
        return Err(WireError::Damaged { kind, why: "its bytes are not those that were sent".to_owned() });
    }
    match postcard::take_from_bytes::<T>(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(WireError::Damaged { kind, why: format!("{} bytes are left over", rest.len()) }),
        Err(error) => Err(WireError::Damaged { kind, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests;
