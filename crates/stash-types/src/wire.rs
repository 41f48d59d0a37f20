//! The versioned wire form of what crosses a process border or rests in the catalog.
//!
//! A frame is a magic byte, a version byte and the body of that version. A reader refuses what it does
//! not know, bytes that are left over, and frames beyond [`FRAME_BYTES_MAX`]: a newer writer is an
//! error with a name, never a misreading.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{PartDescriptor, share::DisarmedShare};

/// The largest frame that is read or written: 16 MiB.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// The newest version of each frame this build writes.
const VERSION: u8 = 1;

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
    let frame = postcard::to_extend(value, vec![magic, VERSION])
        .map_err(|error| WireError::Damaged { kind, why: error.to_string() })?;
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
    match postcard::take_from_bytes::<T>(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(WireError::Damaged { kind, why: format!("{} bytes are left over", rest.len()) }),
        Err(error) => Err(WireError::Damaged { kind, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests;
