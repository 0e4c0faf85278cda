//! How fields are read that some release or some caller leaves out or sends as null.

use serde::{Deserialize, Deserializer};

/// Reads null as the default.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Keeps null apart from absence: null is `Some(None)`. The field needs `default`, for absence, as
/// well.
#[expect(
    clippy::option_option,
    reason = "null and absence mean different things"
)]
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}
