//! The page about takeovers shows what the takeover from upstream's manager compares with.

#[path = "../tests/takeover/table.rs"]
mod table;

#[test]
fn the_page_shows_what_is_compared() {
    table::page().unwrap();
}
