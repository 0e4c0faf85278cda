//! Electors against a Lease store that keeps state, in virtual time.

mod scenarios;
mod store;
