//! An unmodified kubectl against the embedded server, over TLS on loopback.
//!
//! kubectl exercises what no client of ours does: discovery in both forms, tables, field validation
//! by `OpenAPI`, client-side apply, strategic merge patches, watches of tables. Without kubectl on
//! `PATH` these cases are ignored.

mod harness;
mod reading;
mod watching;
mod writing;

pub(crate) use harness::find;

use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = reading::cases();
    cases.extend(watching::cases());
    cases.extend(writing::cases());
    needing(find().err(), cases)
}
