//! Upload, coalescing, consolidated reads and owned handles of Stash.
