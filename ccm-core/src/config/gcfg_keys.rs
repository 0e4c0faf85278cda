//! Tables of keys of a configuration file in the dialect of [`gcfg`](super::gcfg): parsing, a reference page and a log of
//! effective settings can be made from one table, written with [`config_keys!`](crate::config_keys).
//!
//! ```
//! use ccm_core::config::gcfg_keys::ConfigValue;
//!
//! ccm_core::config_keys! {
//!     /// Section `[Global]`.
//!     Global {
//!         upstream zone: String = "Zone" "" "Zone."
//!         ours strict: bool = "Strict" "false" "Mistakes count."
//!     }
//! }
//!
//! let mut global = Global::default();
//! let key = Global::KEYS.iter().find(|key| key.name.eq_ignore_ascii_case("strict")).unwrap();
//! key.apply(&mut global, 7, None).unwrap();
//! assert!(matches!(global.strict, ConfigValue { line: Some(7), value: true, .. }));
//! assert!(key.apply(&mut global, 8, Some("perhaps")).unwrap_err().contains("failed to parse"));
//! ```

use std::time::Duration;

/// The value of a key as written, of the right type, and where it stands.
#[derive(Clone, Debug)]
pub struct ConfigValue<T> {
    /// Name of the key.
    pub key: &'static str,
    /// Line; `None` when the key is not there.
    pub line: Option<usize>,
    /// The value; the type's own default when the key is not there.
    pub value: T,
}

/// A type of values.
pub trait ConfigType: Default {
    /// Name for people.
    const NAME: &str;

    /// Takes a value; `None` is a key without `=`.
    ///
    /// # Errors
    /// What is wrong with it.
    fn set(&mut self, value: Option<&str>) -> Result<(), String>;
}

/// Takes the value of a key that needs one.
///
/// # Errors
/// There is none.
pub fn required(value: Option<&str>) -> Result<&str, String> {
    value.ok_or_else(|| "needs a value".to_owned())
}

fn parse_error<K: ConfigType>(value: &str, why: &str) -> String {
    format!("failed to parse {value:?} as {}{why}", K::NAME)
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
            // As in gcfg: forgets what the list had.
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
            _ => return Err(parse_error::<Self>(value, ": expected true, yes, on, 1, false, no, off or 0")),
        };
        Ok(())
    }
}

/// A switch that may be left alone.
impl ConfigType for Option<bool> {
    const NAME: &str = "bool";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        self.get_or_insert_default().set(value)
    }
}

/// Reads a number: decimal, or hexadecimal after `0x`.
fn integer<K: ConfigType, N: TryFrom<i64>>(value: Option<&str>) -> Result<N, String> {
    let value = required(value)?.trim();
    let (sign, digits) = match value.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", value.strip_prefix('+').unwrap_or(value)),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((digits, 10), |digits| (digits, 16));
    // The number parser would take a second sign.
    let signed = digits.starts_with(['+', '-']);
    let number = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok().filter(|_| !signed);
    number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| parse_error::<K>(value, ""))
}

/// A number: decimal, or hexadecimal after `0x`.
impl ConfigType for i32 {
    const NAME: &str = "integer";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = integer::<Self, Self>(value)?;
        Ok(())
    }
}

/// A number that may be left alone: decimal, or hexadecimal after `0x`.
impl ConfigType for Option<i64> {
    const NAME: &str = "integer";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        *self = Some(integer::<Self, i64>(value)?);
        Ok(())
    }
}

/// A duration of Go that may be left alone: a number with a unit, more than 0.
impl ConfigType for Option<Duration> {
    const NAME: &str = "duration";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        let parsed = super::parse_duration(required(value)?)?;
        *self = Some(parsed).filter(|duration| !duration.is_zero());
        self.map(drop).ok_or_else(|| "must be more than 0".to_owned())
    }
}

/// A rate that may be left alone.
impl ConfigType for Option<f64> {
    const NAME: &str = "number";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        let value = required(value)?;
        let number = value.trim().parse().map_err(|_| parse_error::<Self>(value, ""))?;
        if !(0.001..=1000.0).contains(&number) {
            return Err("must be between 0.001 and 1000".to_owned());
        }
        *self = Some(number);
        Ok(())
    }
}

/// How many at once, between 1 and 10,000; may be left alone.
impl ConfigType for Option<u32> {
    const NAME: &str = "count";

    fn set(&mut self, value: Option<&str>) -> Result<(), String> {
        let value = required(value)?;
        let number = value.trim().parse().map_err(|_| parse_error::<Self>(value, ""))?;
        if !(1..=10_000).contains(&number) {
            return Err("must be between 1 and 10000".to_owned());
        }
        *self = Some(number);
        Ok(())
    }
}

/// A key as the documentation knows it.
pub struct ConfigKey<T> {
    /// Name; case does not matter.
    pub name: &'static str,
    /// Type of the value.
    pub kind: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// Whether upstream has it too.
    pub upstream: bool,
    /// What it means, in Markdown.
    pub meaning: &'static str,
    /// Puts a value from a line where it belongs.
    pub set: fn(&mut T, usize, Option<&str>) -> Result<(), String>,
}

impl<T> ConfigKey<T> {
    /// Puts a value from a line where it belongs. A bad one counts as not there.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn apply(&self, into: &mut T, line: usize, value: Option<&str>) -> Result<(), String> {
        (self.set)(into, line, value)
    }
}

impl<T> std::fmt::Debug for ConfigKey<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigKey").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Makes the struct of a section and its table, `KEYS`, from lines of: `upstream` or `ours`, field, type
/// ([`Kind`](crate::config::gcfg_keys::Kind)), name, default as written, meaning in Markdown.
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
            /// The table.
            pub(crate) const KEYS: &[$crate::config::gcfg_keys::ConfigKey<Self>] = &[$($crate::config::gcfg_keys::ConfigKey {
                name: $name,
                kind: <$kind as $crate::config::gcfg_keys::ConfigType>::NAME,
                default: $default,
                upstream: $crate::config_keys!(@$from),
                meaning: $meaning,
                set: |raw, line, value| {
                    raw.$field.line = Some(line);
                    <$kind as $crate::config::gcfg_keys::ConfigType>::set(&mut raw.$field.value, value)
                },
            },)*];
        }
    };
    (@upstream) => { true };
    (@ours) => { false };
}
