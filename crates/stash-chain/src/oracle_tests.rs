//! Property tests against a single-replica oracle.
