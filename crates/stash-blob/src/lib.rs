//! Blob stores of Stash: memory and durable local files, behind one boundary.
