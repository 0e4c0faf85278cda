//! Runs changes of the state, and writes each one down before it is acknowledged.
