//! A listing of the files below a folder, a batch at a time.
//!
//! One folder is open at a time, whatever the depth; what waits is a list of folder names. A folder or file
//! that vanishes meanwhile is passed over: it did not exist during the whole call. Names that can be no
//! segment of a key, symbolic links and special files are foreign; a foreign folder is one entry, as large as all files
//! below it that can be looked at.

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, openat, statat},
    io::Errno,
};
use stash_types::BlobKey;

use super::{
    failure::Failure,
    folder::{FOLDER, Root},
    temp,
};
use crate::{BlobEntry, BlobEntryKind};

/// How many directory entries one step of a walk looks at.
const BATCH_ENTRIES: usize = 1024;

/// Where a listing stands.
pub(super) struct Walk {
    waiting: Vec<String>,
    open: Option<(Dir, String)>,
}

impl Walk {
    /// A walk of everything below `folder` (empty, or with its closing slash).
    pub fn new(folder: String) -> Walk {
        Walk { waiting: vec![folder], open: None }
    }

    /// The next entries, or `None` at the end. An empty batch is not the end.
    pub fn step(&mut self, root: &Root) -> Result<Option<Vec<BlobEntry>>, Failure> {
        let mut batch = Vec::new();
        for _ in 0..BATCH_ENTRIES {
            let Some((dir, folder)) = &mut self.open else {
                let Some(folder) = self.waiting.pop() else {
                    return Ok((!batch.is_empty()).then_some(batch));
                };
                self.open = enter(root, &folder)?.map(|dir| (dir, folder));
                continue;
            };
            let entry = match dir.read() {
                Some(Ok(entry)) => entry,
                None | Some(Err(Errno::NOENT)) => {
                    self.open = None;
                    continue;
                }
                Some(Err(errno)) => return Err(Failure { at: root.path(folder), doing: "listing", errno }),
            };
            match look(root, dir, folder, entry.file_name().to_bytes())? {
                Found::Nothing => {}
                Found::Entry(entry) => batch.push(entry),
                Found::Folder(below) => self.waiting.push(below),
            }
        }
        Ok(Some(batch))
    }
}

/// The bytes of all files below the folder `name` in `fd`. What cannot be looked at, or vanishes, counts nothing: whose it
/// is, nobody here can tell.
fn bytes_below(fd: BorrowedFd<'_>, name: &[u8]) -> u64 {
    let opened = openat(fd, name, FOLDER, Mode::empty()).and_then(Dir::new);
    let mut waiting: Vec<Dir> = opened.into_iter().collect();
    let mut bytes = 0u64;
    while let Some(dir) = waiting.last_mut() {
        let Some(Ok(entry)) = dir.read() else {
            waiting.pop();
            continue;
        };
        let name = entry.file_name().to_bytes();
        let Ok(fd) = dir.fd() else { continue };
        let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => bytes = bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(0)),
            FileType::Directory if name != b"." && name != b".." => {
                let below = openat(fd, name, FOLDER, Mode::empty()).and_then(Dir::new);
                waiting.extend(below);
            }
            _ => {}
        }
    }
    bytes
}

enum Found {
    Nothing,
    Entry(BlobEntry),
    Folder(String),
}

fn enter(root: &Root, folder: &str) -> Result<Option<Dir>, Failure> {
    let chain = root.descend(folder.trim_end_matches('/'))?;
    if !chain.whole {
        return Ok(None);
    }
    match Dir::read_from(chain.fd()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Failure { at: root.path(folder), doing: "listing", errno }),
    }
}

fn look(root: &Root, dir: &Dir, folder: &str, name: &[u8]) -> Result<Found, Failure> {
    if name == b"." || name == b".." {
        return Ok(Found::Nothing);
    }
    let fd = dir.fd().map_err(|errno| Failure { at: root.path(folder), doing: "listing", errno })?;
    let path = format!("{folder}{}", String::from_utf8_lossy(name));
    let stat = match statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(errno) => return Err(Failure { at: root.path(&path), doing: "looking at", errno }),
    };
    // A name that is not UTF-8 became one with replacement characters, which no key holds.
    let key = path.parse::<BlobKey>().ok();
    let (kind, len) = match (FileType::from_raw_mode(stat.st_mode), key) {
        (FileType::Directory, Some(_)) => return Ok(Found::Folder(format!("{path}/"))),
        (FileType::Directory, None) => {
            return Ok(Found::Entry(BlobEntry {
                kind: BlobEntryKind::Foreign(format!("{path}/")),
                len: bytes_below(fd, name),
            }));
        }
        (FileType::RegularFile, Some(key)) => (BlobEntryKind::Object(key), stat.st_size),
        (FileType::RegularFile, None) => {
            let upload = std::str::from_utf8(name).ok().and_then(|name| temp::parse_temp(folder, name));
            let kind = match upload {
                Some((key, token)) => BlobEntryKind::Upload { key, token },
                None => BlobEntryKind::Foreign(path),
            };
            (kind, stat.st_size)
        }
        (_, _) => (BlobEntryKind::Foreign(path), 0),
    };
    Ok(Found::Entry(BlobEntry { kind, len: u64::try_from(len).unwrap_or(0) }))
}
