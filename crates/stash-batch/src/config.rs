//! The knobs of writing and reading, each with its unit, default and reason.

use serde::{Deserialize, Serialize};

use crate::BatchError;

/// How a process writes and reads batches. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// Memory of the process for batches, reading and writing together. Default 512 MiB: two workers sort
    /// and encode a full part each while a reader merges sixteen runs.
    pub memory_bytes: u64,
    /// Encoded bytes at which a part is closed. Default 128 MiB, lowered to an eighth of the memory: large
    /// enough that requests cost little, small enough that a part is one PUT.
    pub part_bytes: u64,
    /// Updates of all workers of a description together that travel inside their shares. Default 64 KiB:
    /// below that a PUT costs more than the bytes. Each share gets its W-th part.
    pub inline_batch_bytes_max: u64,
    /// Rows of a row group at most. Default 131,072: what is decoded at once.
    pub row_group_rows_max: usize,
    /// Bytes of a row group at most, as columns in memory. Default 8 MiB, lowered with the memory.
    pub row_group_bytes_max: u64,
    /// Runs of one worker that a share may have; more are merged again. Default 16: the fan-in a reader can
    /// be expected to afford.
    pub runs_max: usize,
    /// Unsorted updates that are sorted at once. Default 4 MiB: about what a core's cache holds.
    pub chunk_bytes: u64,
    /// Tries of one PUT or GET before it counts as failed. Default 5, with waits from 50 ms doubling.
    pub attempts_max: u32,
}

impl Default for BatchConfig {
    fn default() -> BatchConfig {
        BatchConfig {
            memory_bytes: 512 << 20,
            part_bytes: 128 << 20,
            inline_batch_bytes_max: 64 << 10,
            row_group_rows_max: 128 << 10,
            row_group_bytes_max: 8 << 20,
            runs_max: 16,
            chunk_bytes: 4 << 20,
            attempts_max: 5,
        }
    }
}

impl BatchConfig {
    /// The smallest memory a process can work with: 16 MiB.
    pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

    /// The largest row that is taken: a sixteenth of the memory, so that two runs of such rows can always be
    /// merged, each with one row in the merge and one on its way, beside what is being written.
    pub fn row_bytes_max(&self) -> u64 {
        self.memory_bytes / 16
    }

    /// The same with every size brought within the memory, or what cannot be.
    pub fn checked(mut self) -> Result<BatchConfig, BatchError> {
        if self.memory_bytes < Self::MEMORY_BYTES_MIN {
            return Err(BatchError::InvalidUsage {
                what: format!(
                    "memory_bytes is {}; a process needs at least {}",
                    self.memory_bytes,
                    Self::MEMORY_BYTES_MIN
                ),
            });
        }
        if self.runs_max < 2 || self.attempts_max == 0 || self.row_group_rows_max == 0 {
            return Err(BatchError::InvalidUsage {
                what: "runs_max must be at least 2, attempts_max and row_group_rows_max at least 1"
                    .to_owned(),
            });
        }
        self.part_bytes = self.part_bytes.clamp(1, self.memory_bytes / 8);
        self.chunk_bytes = self.chunk_bytes.clamp(1, self.memory_bytes / 16);
        self.row_group_bytes_max = self.row_group_bytes_max.clamp(1, self.memory_bytes / 64);
        Ok(self)
    }
}
