//! Electors against a Lease store that keeps state, in virtual time.

mod exclusion;
mod scenarios;
mod store;
