//! An unmodified kubectl against the embedded server, over TLS on loopback.
//!
//! kubectl exercises what no client of ours does: discovery in both forms, tables, field validation by `OpenAPI`,
//! client-side apply, strategic merge patches, watches of tables. Without kubectl on `PATH` each test says that it was
//! skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod kubectl {
    pub(crate) mod harness;
    mod reading;
    mod watching;
    mod writing;
}
