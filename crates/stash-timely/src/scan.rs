//! One range scan over held batches.
