//! What the operating system refused, at which path, and what to do about it.

use std::{path::PathBuf, sync::Arc};

use rustix::io::Errno;

use crate::BlobError;

/// A refused system call.
#[derive(Debug)]
pub(super) struct Failure {
    /// The file or folder.
    pub at: PathBuf,
    /// What was being done to it.
    pub doing: &'static str,
    /// The operating system's answer.
    pub errno: Errno,
}

impl Failure {
    /// The error of an operation that surely had no effect.
    pub fn determinate(self, op: &'static str, key: &str) -> BlobError {
        if matches!(self.errno, Errno::ACCESS | Errno::PERM) {
            let what = self.what("give this user access to it");
            return BlobError::Denied { op, key: key.to_owned(), what, source: self.source() };
        }
        let (advice, retry) = advice(self.errno);
        BlobError::Determinate {
            op,
            key: key.to_owned(),
            what: self.what(advice),
            retry,
            source: self.source(),
        }
    }

    /// The error of an operation that may have had its effect.
    pub fn indeterminate(self, op: &'static str, key: &str) -> BlobError {
        let (advice, _) = advice(self.errno);
        BlobError::Indeterminate { op, key: key.to_owned(), what: self.what(advice), source: self.source() }
    }

    fn what(&self, advice: &str) -> String {
        format!("{} {}: {advice}", self.doing, self.at.display())
    }

    fn source(&self) -> Option<Arc<dyn std::error::Error + Send + Sync>> {
        Some(Arc::new(std::io::Error::from(self.errno)))
    }
}

/// The errno of `error`, `EIO` where it carries none.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What it means and what to do; whether the same call may succeed later by itself.
fn advice(errno: Errno) -> (&'static str, bool) {
    match errno {
        Errno::NOSPC | Errno::DQUOT => ("disk full: free space or raise the quota, then try again", false),
        Errno::ACCESS | Errno::PERM => ("permission denied: give this user access to it", false),
        Errno::ROFS => ("the file system is read-only: remount it for writing", false),
        Errno::LOOP => {
            ("it is a symbolic link, and none is followed: put the real thing in its place", false)
        }
        Errno::NOTDIR => ("it is a file or symbolic link where a folder must be: move it away", false),
        Errno::ISDIR => ("it is a folder where a file must be: move it away", false),
        Errno::NOSTR => ("it is a pipe, a socket or a device where a file must be: move it away", false),
        Errno::NAMETOOLONG => ("the name is too long for this file system", false),
        Errno::MFILE | Errno::NFILE => ("too many open files: raise the limit", true),
        Errno::NOMEM => ("out of memory", true),
        Errno::INTR | Errno::AGAIN | Errno::BUSY => ("interrupted: try again", true),
        Errno::IO => ("the disk reports an error: check it", false),
        Errno::STALE => ("the folder is no longer there: was it unmounted?", false),
        Errno::NOENT => ("it is gone", false),
        _ => ("refused by the operating system", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_right_to_a_file_is_denied_it_as_by_any_store() {
        for (errno, denied) in [(Errno::ACCESS, true), (Errno::PERM, true), (Errno::IO, false)] {
            let failure = Failure { at: PathBuf::from("/b/k"), doing: "opening", errno };
            let error = failure.determinate("list", "k");
            assert_eq!(matches!(error, BlobError::Denied { .. }), denied, "{error}");
            assert!(error.to_string().contains("opening /b/k"), "{error}");
        }
    }
}
