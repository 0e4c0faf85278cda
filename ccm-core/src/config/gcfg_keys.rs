//! Tables of the keys of a configuration file in the dialect of [`gcfg`](super::gcfg). Parsing, a
//! reference page and a log of the effective settings are all made from one table, which is written
//! with [`config_keys!`](crate::config_keys).
//!
//! ```
//! use ccm_core::config::gcfg_keys::ConfigValue;
//!
//! ccm_core::config_keys! {
//!     /// Section `[Global]`.
//!     Global {
//!         upstream zone: String = "Zone" "" "Zone."
//!         ours strict: bool = "Strict" "false" "Warnings are errors."
//!     }
//! }
//!
//! let mut global = Global::default();
//! let key = Global::KEYS.iter().find(|key| key.name.eq_ignore_ascii_case("strict")).unwrap();
//! key.apply(&mut global, 7, None).unwrap();
//! assert!(matches!(global.strict, ConfigValue { line: Some(7), value: true, .. }));
//! assert!(key.apply(&mut global, 8, Some("perhaps")).unwrap_err().contains("failed to parse"));
//! ```

use std::{fmt::Display, ops::RangeInclusive, str::FromStr, time::Duration};

/// Parsed value of a key, and its position.
#[derive(Clone, Debug)]
pub struct ConfigValue<T> {
    /// The name of the key.
    pub key: &'static str,
    /// Line; `None` if the key is not set.
    pub line: Option<usize>,
    /// The value; the type's own default if the key is not set.
    pub value: T,
}

/// A type of configuration values.
pub trait ConfigType: Default {
    /// The name of the type for documentation and error messages.
    const NAME: &str;

    /// Sets the value from text; `None` is a key without `=`.
    ///
    /// # Errors
    /// The problem with it.
    fn set(&mut self, value: Option<&str>) -> Result<(), String>;
}

/// Returns the value of a key that requires one.
///
/// # Errors
/// The key has no value.
pub fn required(value: Option<&str>) -> Result<&str, String> {
    value.ok_or_else(|| "needs a value".to_owned())
}

fn parse_error<K: ConfigType>(value: &str, reason: &str) -> String {
    format!("failed to parse {value:?} as {}{reason}", K::NAME)
}

impl ConfigType for String {
    const NAME: &str = "text";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        required(value)?.clone_into(self);
        Ok(())
    }
}

impl ConfigType for Vec<String> {
    const NAME: &str = "list";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        match value {
            Some(value) => self.push(value.to_owned()),
            // As in gcfg: removes all previous values of the list.
            None => self.clear(),
        }
        Ok(())
    }
}

impl ConfigType for bool {
    const NAME: &str = "bool";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        let Some(value) = value else {
            *self = true;
            return Ok(());
        };
        *self = match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => true,
            "false" | "no" | "off" | "0" => false,
            _ => {
                return Err(parse_error::<Self>(
                    value,
                    ": expected true, yes, on, 1, false, no, off or 0",
                ));
            }
        };
        Ok(())
    }
}

/// An optional switch.
impl ConfigType for Option<bool> {
    const NAME: &str = "bool";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        self.get_or_insert_default().set(value)
    }
}

/// Parses a number: decimal, or hexadecimal after `0x`.
fn integer<K: ConfigType, N: TryFrom<i64>>(value: Option<&str>) -> Result<N, String> {
    let value = required(value)?.trim();
    let (sign, digits) = match value.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", value.strip_prefix('+').unwrap_or(value)),
    };
    let hex_digits = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match hex_digits {
        Some(hex_digits) => (hex_digits, 16),
        None => (digits, 10),
    };
    // `from_str_radix` would accept a second sign.
    if digits.starts_with(['+', '-']) {
        return Err(parse_error::<K>(value, ""));
    }
    i64::from_str_radix(&format!("{sign}{digits}"), radix)
        .ok()
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| parse_error::<K>(value, ""))
}

/// A number: decimal, or hexadecimal after `0x`.
impl ConfigType for i32 {
    const NAME: &str = "integer";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = integer::<Self, Self>(value)?;
        Ok(())
    }
}

/// An optional number: decimal, or hexadecimal after `0x`.
impl ConfigType for Option<i64> {
    const NAME: &str = "integer";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = Some(integer::<Self, i64>(value)?);
        Ok(())
    }
}

/// An optional Go duration: a number with a unit, more than 0.
impl ConfigType for Option<Duration> {
    const NAME: &str = "duration";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        let duration = super::parse_duration(required(value)?)?;
        if duration.is_zero() {
            return Err("must be more than 0".to_owned());
        }
        *self = Some(duration);
        Ok(())
    }
}

/// Parses a decimal number within a range.
fn number_in<K, N>(value: Option<&str>, range: RangeInclusive<N>) -> Result<N, String>
where
    K: ConfigType,
    N: FromStr + PartialOrd + Display,
{
    let value = required(value)?;
    let number = value
        .trim()
        .parse()
        .map_err(|_| parse_error::<K>(value, ""))?;
    if !range.contains(&number) {
        return Err(format!("must be between {} and {}", range.start(), range.end()));
    }
    Ok(number)
}

/// An optional rate.
impl ConfigType for Option<f64> {
    const NAME: &str = "number";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = Some(number_in::<Self, f64>(value, 0.001..=1000.0)?);
        Ok(())
    }
}

/// An optional number of concurrent operations, between 1 and 10,000.
impl ConfigType for Option<u32> {
    const NAME: &str = "count";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = Some(number_in::<Self, u32>(value, 1..=10_000)?);
        Ok(())
    }
}

/// The description of a key.
pub struct ConfigKey<T> {
    /// Name; case does not matter.
    pub name: &'static str,
    /// The type of the value.
    pub kind: &'static str,
    /// Default, as written in the file.
    pub default: &'static str,
    /// True if upstream has the key too.
    pub upstream: bool,
    /// Meaning of the key, in Markdown.
    pub meaning: &'static str,
    /// Sets the field of the key from the value and its line.
    pub set: fn(&mut T, usize, Option<&str>) -> Result<(), String>,
}

impl<T> ConfigKey<T> {
    /// Sets the field of the key in a section from the value and its line. An error leaves the
    /// field unchanged.
    ///
    /// # Errors
    /// The problem with the value.
    pub fn apply(&self, section: &mut T, line: usize, value: Option<&str>) -> Result<(), String> {
        (self.set)(section, line, value)
    }
}

impl<T> std::fmt::Debug for ConfigKey<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigKey")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Creates the struct of a section and its table, `KEYS`, from lines of: `upstream` or `ours`,
/// field, type ([`ConfigType`]), name, default as written, meaning in Markdown.
#[macro_export]
macro_rules! config_keys {
    ($(#[$doc:meta])* $raw:ident { $($from:ident $field:ident: $kind:ty = $name:literal $default:literal $meaning:literal)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $raw {
            $(#[doc = $meaning] pub(crate) $field: $crate::config::gcfg_keys::ConfigValue<$kind>,)*
        }

        impl Default for $raw {
            fn default() -> Self {
                Self {
                    $($field: $crate::config::gcfg_keys::ConfigValue { key: $name, line: None, value: <$kind>::default() },)*
                }
            }
        }

        impl $raw {
            /// The table of all keys.
            pub(crate) const KEYS: &[$crate::config::gcfg_keys::ConfigKey<Self>] = &[$($crate::config::gcfg_keys::ConfigKey {
                name: $name,
                kind: <$kind as $crate::config::gcfg_keys::ConfigType>::NAME,
                default: $default,
                upstream: $crate::config_keys!(@$from),
                meaning: $meaning,
                set: |raw, line, value| {
                    let mut parsed = raw.$field.value.clone();
                    <$kind as $crate::config::gcfg_keys::ConfigType>::set(&mut parsed, value)?;
                    raw.$field.line = Some(line);
                    raw.$field.value = parsed;
                    Ok(())
                },
            },)*];
        }
    };
    (@upstream) => { true };
    (@ours) => { false };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    crate::config_keys! {
        /// A section with keys of several types.
        Section {
            ours name: String = "Name" "" "A text."
            ours enabled: Option<bool> = "Enabled" "" "A switch."
            ours timeout: Option<Duration> = "Timeout" "" "A duration."
        }
    }

    fn apply(
        section: &mut Section,
        name: &str,
        line: usize,
        value: Option<&str>,
    ) -> Result<(), String> {
        let key = Section::KEYS.iter().find(|key| key.name == name).unwrap();
        key.apply(section, line, value)
    }

    #[test]
    fn an_invalid_value_leaves_the_key_unset() {
        let mut section = Section::default();
        apply(&mut section, "Name", 1, None).unwrap_err();
        apply(&mut section, "Enabled", 2, Some("perhaps")).unwrap_err();
        apply(&mut section, "Timeout", 3, Some("0s")).unwrap_err();
        assert_eq!((section.name.line, section.name.value.as_str()), (None, ""));
        assert_eq!((section.enabled.line, section.enabled.value), (None, None));
        assert_eq!((section.timeout.line, section.timeout.value), (None, None));
    }

    #[test]
    fn an_invalid_value_keeps_an_earlier_one() {
        let mut section = Section::default();
        apply(&mut section, "Enabled", 1, Some("yes")).unwrap();
        apply(&mut section, "Enabled", 2, Some("perhaps")).unwrap_err();
        apply(&mut section, "Timeout", 3, Some("5s")).unwrap();
        apply(&mut section, "Timeout", 4, Some("0s")).unwrap_err();
        assert_eq!((section.enabled.line, section.enabled.value), (Some(1), Some(true)));
        let five_seconds = Some(Duration::from_secs(5));
        assert_eq!((section.timeout.line, section.timeout.value), (Some(3), five_seconds));
    }
}
