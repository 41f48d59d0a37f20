//! Folders below the root, opened one component at a time without following a symbolic link.
//!
//! An open [`Chain`] holds every folder from the root to the one a key lives in. Paths are never resolved
//! by the kernel: each component is opened relative to its parent's descriptor with `O_NOFOLLOW`, so that
//! whatever anybody renames or links meanwhile, no operation leaves the root.
//!
//! Empty folders are removed by deletes, and made by PUTs, at the same time. What keeps this safe:
//!
//! - A folder is removed only by `rmdir`, which refuses one that holds anything, and only after it was synced.
//! - A file made in a folder pins it. In a folder that is already removed no file can be made (`ENOENT`);
//!   the PUT then opens its chain anew, at most [`TRIES_MAX`] times.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fstat, fsync, mkdirat, openat, statat, unlinkat},
    io::{Errno, retry_on_intr},
};

use stash_types::fault;

use super::{Step, failure::Failure};

/// How often a PUT opens its folders anew when deletes remove them under it.
pub(super) const TRIES_MAX: usize = 100;

pub(super) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The store's root folder, held open for the store's life.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    path: PathBuf,
    #[cfg(test)]
    pub probe: super::tests::Probe,
}

/// The folders from the root down to a key's own, or to the deepest that exists.
pub(super) struct Chain<'a> {
    root: &'a Root,
    below: Vec<(OwnedFd, &'a str)>,
    /// Whether every folder asked for is there.
    pub whole: bool,
}

impl Root {
    /// Opens `path`, creating it and durably entering it into its parents when absent. The path itself is
    /// the operator's and may lead over symbolic links; nothing below it may.
    pub fn open(path: &Path) -> Result<Root, Failure> {
        let fail = |at: &Path, doing, error: &std::io::Error| Failure {
            at: at.to_owned(),
            doing,
            errno: super::failure::errno_of(error),
        };
        let path = std::path::absolute(path).map_err(|error| fail(path, "resolving", &error))?;
        let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        let created = !missing.is_empty();
        while let Some(folder) = missing.pop() {
            match std::fs::create_dir(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(fail(folder, "creating", &error));
                }
                _ => sync_parent(folder).map_err(|(parent, error)| fail(&parent, "syncing", &error))?,
            }
        }
        if !created {
            // SUBTLE: another process may have made it a moment ago. The parent of an old root may be
            // closed to us, which is no reason to refuse.
            let _ = sync_parent(&path);
        }
        let real = path.canonicalize().map_err(|error| fail(&path, "opening", &error))?;
        let fd = retry_on_intr(|| openat(rustix::fs::CWD, &real, FOLDER, Mode::empty()))
            .map_err(|errno| Failure { at: real.clone(), doing: "opening", errno })?;
        Ok(Root {
            fd,
            path: real,
            #[cfg(test)]
            probe: super::tests::Probe::default(),
        })
    }

    /// The path of `name` below the root, for people.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the folders of `folder` (no closing slash; empty for the root) as deep as they exist.
    pub fn descend<'a>(&'a self, folder: &'a str) -> Result<Chain<'a>, Failure> {
        self.walk(folder, false)
    }

    /// Opens the folders of `folder`, creating those that are absent. They are durable after
    /// [`Chain::sync`].
    pub fn create<'a>(&'a self, folder: &'a str) -> Result<Chain<'a>, Failure> {
        for _ in 0..TRIES_MAX {
            let chain = self.walk(folder, true)?;
            if chain.whole {
                return Ok(chain);
            }
        }
        Err(Failure { at: self.path(folder), doing: "creating", errno: Errno::AGAIN })
    }

    fn walk<'a>(&'a self, folder: &'a str, create: bool) -> Result<Chain<'a>, Failure> {
        self.check_alive()?;
        let mut chain = Chain { root: self, below: Vec::new(), whole: true };
        for name in folder.split('/').filter(|name| !name.is_empty()) {
            let at = || self.path(&chain.path_of(name));
            if create {
                self.probe(Step::MakeFolder).map_err(|errno| Failure {
                    at: at(),
                    doing: "creating",
                    errno,
                })?;
                match mkdirat(chain.fd(), name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    // The parent was removed since it was opened.
                    Err(Errno::NOENT) => return Ok(Chain { whole: false, ..chain }),
                    Err(errno) => return Err(Failure { at: at(), doing: "creating", errno }),
                }
            }
            match retry_on_intr(|| openat(chain.fd(), name, FOLDER, Mode::empty())) {
                Ok(fd) => chain.below.push((fd, name)),
                Err(Errno::NOENT) => return Ok(Chain { whole: false, ..chain }),
                Err(errno) => return Err(Failure { at: at(), doing: "opening", errno }),
            }
        }
        Ok(chain)
    }

    /// Tests stop or disturb a call here.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests look at it")]
    pub fn probe(&self, _: Step) -> Result<(), Errno> {
        Ok(())
    }

    #[cfg(test)]
    pub fn probe(&self, step: Step) -> Result<(), Errno> {
        self.probe.pass(step)
    }

    /// SUBTLE: with the root folder removed every key would read as absent, and an absent blob reads as
    /// data already deleted; say so instead.
    fn check_alive(&self) -> Result<(), Failure> {
        match fstat(&self.fd) {
            Ok(stat) if stat.st_nlink > 0 => Ok(()),
            Ok(_) => Err(Failure { at: self.path.clone(), doing: "using", errno: Errno::STALE }),
            Err(errno) => Err(Failure { at: self.path.clone(), doing: "using", errno }),
        }
    }
}

impl Chain<'_> {
    /// The deepest folder that is open.
    pub fn fd(&self) -> &OwnedFd {
        self.below.last().map_or(&self.root.fd, |(fd, _)| fd)
    }

    fn path_of(&self, name: &str) -> String {
        let folders = self.below.iter().map(|(_, folder)| format!("{folder}/")).collect::<String>();
        folders + name
    }

    /// What stands under `name` in the deepest folder: its type and bytes.
    pub fn stat(&self, name: &str) -> Result<Option<(FileType, u64)>, Failure> {
        match statat(self.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                Ok(Some((FileType::from_raw_mode(stat.st_mode), u64::try_from(stat.st_size).unwrap_or(0))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failure(name, "looking at", errno)),
        }
    }

    /// A refusal that concerns `name` in the deepest folder.
    pub fn failure(&self, name: &str, doing: &'static str, errno: Errno) -> Failure {
        Failure { at: self.root.path(&self.path_of(name)), doing, errno }
    }

    /// Makes the entries of the deepest folder durable.
    pub fn sync_deepest(&self) -> Result<(), Failure> {
        sync(self.fd()).map_err(|errno| self.failure("", "syncing", errno))
    }

    /// Makes the entries of every folder durable, the deepest first.
    ///
    /// SUBTLE: also those this call did not create. Another process may have made one a moment ago and died
    /// before it synced the parent; our object would go with it.
    pub fn sync(&self) -> Result<(), Failure> {
        let all = self.below.iter().rev().map(|(fd, _)| fd).chain([&self.root.fd]);
        for fd in all {
            sync(fd).map_err(|errno| self.failure("", "syncing", errno))?;
        }
        Ok(())
    }

    /// Syncs the deepest folder, then removes the folders that are empty, from the deepest up, and syncs
    /// the one that remains. The root stays.
    ///
    /// SUBTLE: the folder is synced before it is removed, so an absent folder proves that what was deleted
    /// from it is durably gone. One that somebody else removed first is treated like our own removal: its
    /// parent is synced, because our unlink may have come after their sync.
    pub fn sync_and_prune(mut self) -> Result<(), Failure> {
        self.sync_deepest()?;
        fault::place("blob.delete_synced");
        let mut removed = false;
        while let Some((fd, name)) = self.below.pop() {
            match unlinkat(self.fd(), name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {
                    fault::place("blob.folder_removed");
                    removed = true;
                }
                // Not empty, or not ours to remove: it stays, which harms nobody.
                Err(_) => {
                    self.below.push((fd, name));
                    break;
                }
            }
        }
        if removed { self.sync_deepest() } else { Ok(()) }
    }
}

fn sync_parent(folder: &Path) -> Result<(), (PathBuf, std::io::Error)> {
    let parent = folder.parent().unwrap_or(Path::new("/"));
    let synced = std::fs::File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(|error| (parent.to_owned(), error))
}

fn sync(fd: &OwnedFd) -> Result<(), Errno> {
    retry_on_intr(|| fsync(fd))
}
