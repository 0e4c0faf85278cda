//! Elastic Load Balancing, v2 and classic.

pub(super) mod attributes_and_tags;
pub(super) mod balancers;
pub(super) mod classic;
pub(super) mod listeners;
pub(super) mod targets;

/// Most objects of a page.
const PAGE: i32 = 400;

/// A switch that AWS spells `on` and `off`.
fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Reads a switch that AWS spells `on` and `off`.
fn is_on(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}
