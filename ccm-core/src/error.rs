//! Printing errors and panics.

use std::{any::Any, error::Error, fmt::Write};

use crate::secrets::hide_credentials;

/// Returns an error and its causes in one line, for logs and events, without credentials that servers repeat.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries print their cause themselves.
        if !text.ends_with(&cause_text) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {cause_text}");
        }
        next = cause.source();
    }
    match hide_credentials(&text) {
        std::borrow::Cow::Borrowed(_) => text,
        std::borrow::Cow::Owned(hidden) => hidden,
    }
}

/// Returns what a panic said, as `catch_unwind` or a joined task hands it over.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
