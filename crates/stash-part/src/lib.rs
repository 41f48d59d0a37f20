//! Parquet bytes to updates and back: sort, consolidate, encode, decode, merge.
