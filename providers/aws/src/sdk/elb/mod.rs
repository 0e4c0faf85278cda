//! Elastic Load Balancing, v2 and classic.

pub(super) mod attributes_and_tags;
pub(super) mod balancers;
pub(super) mod capacity;
pub(super) mod classic;
pub(super) mod classic_changes;
pub(super) mod listeners;
pub(super) mod targets;

/// Maximum number of objects per page.
const MAX_PAGE_SIZE: i32 = 400;

/// Converts a boolean to AWS' `on` or `off`.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Parses AWS' `on` or `off`.
fn is_on(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}
