//! Crash tests: real processes that die at named places.
