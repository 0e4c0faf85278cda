//! Tags that a Service requests for its load balancer, listeners and pools.

use super::SpecReader;
use crate::lb::{annotations::Annotation, names};

/// Maximum length of a tag in Octavia.
const MAX_TAG_CHARS: usize = 255;

/// Reads a list of tags, sorted and each once. Without tags in Octavia there are none; `notices.rs`
/// reports that.
///
/// A tag that begins like those of Services is an error: it would make the load balancer look like
/// another Service's.
pub(super) fn read_tags(reader: &mut SpecReader<'_>, annotation: &Annotation) -> Vec<Box<str>> {
    let mut tags: Vec<Box<str>> = Vec::new();
    for tag in reader.annotations.text(annotation, "").split(',') {
        let tag = tag.trim();
        if tag.starts_with(names::PREFIX) {
            let message = format!("tags cannot begin with {}", names::PREFIX);
            reader.annotations.invalid_value(annotation, message);
        } else if tag.chars().count() > MAX_TAG_CHARS {
            let message = format!("a tag is longer than {MAX_TAG_CHARS} characters");
            reader.annotations.invalid_value(annotation, message);
        } else if !tag.is_empty() {
            tags.push(tag.into());
        }
    }
    if !reader.features.tags {
        return Vec::new();
    }
    tags.sort();
    tags.dedup();
    tags
}
