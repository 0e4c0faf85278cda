//! Secrets of a text, which nothing may show.

/// A text that is long enough, and nowhere else in the input, so that to find it is to find the
/// secret.
pub(super) fn is_telling(secret: &str, input: &str) -> bool {
    secret.len() >= 8
        && secret.chars().all(|c| c.is_ascii_alphanumeric())
        && input.matches(secret).count() == 1
}

/// None of the secrets is shown in any of the texts.
pub(super) fn are_hidden<'a>(secrets: impl IntoIterator<Item = &'a str>, shown: &[String]) {
    for secret in secrets {
        for text in shown {
            assert!(!text.contains(secret), "{secret:?} is shown in {text}");
        }
    }
}
