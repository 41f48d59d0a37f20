//! The bytes of a text file: read ahead, counted, the byte order mark left out.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek},
    path::Path,
};

use super::{
    changes::Progress,
    fault::{Fault, InputError},
};

/// A record longer than this is a missing quote or newline, not a record.
pub(super) const RECORD_BYTES_MAX: usize = 64 << 20;

/// More columns than this are values that became keys.
pub(super) const COLUMNS_MAX: usize = 10_000;

const BUFFER_BYTES: usize = 256 << 10;

/// An open file and how far it was read.
#[derive(Debug)]
pub(super) struct Input {
    reader: BufReader<File>,
    read: u64,
    total: Option<u64>,
}

/// Opens `path`; refuses directories and files without a byte.
pub(super) fn open(path: &Path, empty: &'static str) -> Result<(File, Option<u64>), InputError> {
    let unreadable = |source| InputError::whole(path, Fault::Unreadable(source));
    // The kind is asked first: opening a directory succeeds, and reading it then says little.
    let kind = std::fs::metadata(path).map_err(unreadable)?;
    if kind.is_dir() {
        return Err(InputError::whole(path, Fault::Directory));
    }
    let file = File::open(path).map_err(unreadable)?;
    if !kind.is_file() {
        return Ok((file, None));
    }
    match file.metadata().map_err(unreadable)?.len() {
        0 => Err(InputError::whole(path, Fault::Empty(empty))),
        len => Ok((file, Some(len))),
    }
}

impl Input {
    /// Reads `file` from its present position on.
    pub(super) fn new(file: File, total: Option<u64>) -> io::Result<Input> {
        let mut input = Input { reader: BufReader::with_capacity(BUFFER_BYTES, file), read: 0, total };
        if input.fill()?.starts_with(b"\xEF\xBB\xBF") {
            input.consume(3);
        }
        Ok(input)
    }

    /// The bytes at hand, some unless the file is at its end.
    pub(super) fn fill(&mut self) -> io::Result<&[u8]> {
        loop {
            match self.reader.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Asked twice because a borrow returned from within the loop would last for the loop; the buffer answers.
        self.reader.fill_buf()
    }

    /// Marks `count` of the bytes at hand as read.
    pub(super) fn consume(&mut self, count: usize) {
        self.reader.consume(count);
        self.read += u64::try_from(count).unwrap_or(u64::MAX);
    }

    /// How far it was read.
    pub(super) fn progress(&self) -> Progress {
        Progress { read: self.read, total: self.total }
    }

    /// Starts anew.
    pub(super) fn rewind(self) -> io::Result<Input> {
        let Input { reader, total, .. } = self;
        let mut file = reader.into_inner();
        file.rewind()?;
        Input::new(file, total)
    }
}
