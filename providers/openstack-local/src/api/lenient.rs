//! Deserializes fields that some releases or clients leave out or send as null.

use serde::{Deserialize, Deserializer};

/// Deserializes null as the default.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes null as `Some(None)`, to distinguish it from absence. The field also needs
/// `default`, for absence.
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
