//! Arrangement batches that can be sent between threads.
