//! Who may still write for an incarnation.
//!
//! An open shared batch keeps its [`IncarnationWriter`], and the process keeps the batch. So what tells that nobody will
//! write any more are the handles outside: with the last one, what was pushed and never reported is given up, its
//! memory is free, and its parts go.

use std::{ops::Deref, sync::Arc};

use stash_types::{Description, Frontier, WorkerIndex};

use crate::{
    BatchError, IncarnationSpec, IncarnationWriter, Process,
    share::{ShareBuilder, ShareSpec},
};

/// What a process writes for an incarnation, for whoever writes: shared by its workers, their open shares, and the one
/// who minds the chain. When the last of them drops it, what is still open is given up, as by
/// [`IncarnationWriter::abandon`].
#[derive(Debug)]
pub struct WriterHandle {
    writer: Arc<IncarnationWriter>,
}

impl WriterHandle {
    /// For a registered incarnation (register before PUT). One per process and incarnation: the numbers of its parts
    /// never reset (I19).
    pub fn open(process: Process, spec: IncarnationSpec) -> Result<Arc<WriterHandle>, BatchError> {
        Ok(Arc::new(WriterHandle { writer: Arc::new(IncarnationWriter::new(process, spec)?) }))
    }

    /// Opens `worker`'s share of a minted description. Every local worker opens one, also with no updates.
    pub fn share(
        self: &Arc<Self>,
        worker: WorkerIndex,
        description: Description,
        floor: Frontier,
    ) -> Result<ShareBuilder, BatchError> {
        self.writer.check_open()?;
        ShareBuilder::open(self, ShareSpec { worker, description, floor })
    }

    /// What the open shares share.
    pub(crate) fn writer(&self) -> &Arc<IncarnationWriter> {
        &self.writer
    }
}

impl Deref for WriterHandle {
    type Target = IncarnationWriter;

    fn deref(&self) -> &IncarnationWriter {
        &self.writer
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.writer.abandon();
    }
}
