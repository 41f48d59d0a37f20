//! What a worker holds until it is written.
