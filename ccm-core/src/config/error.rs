//! Errors of a command line.

use std::fmt::{self, Write as _};

use thiserror::Error;

/// One error on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The flag does not exist.
    #[error("unknown flag: {flag}")]
    UnknownFlag {
        /// As typed, without its value.
        flag: String,
    },
    /// There is no flag with this letter.
    #[error("unknown shorthand flag: {flag} in {argument}")]
    UnknownShorthand {
        /// The dash and the letter.
        flag: String,
        /// The whole argument.
        argument: String,
    },
    /// The last argument is a flag that needs a value.
    #[error("flag needs an argument: {flag}")]
    MissingValue {
        /// The flag.
        flag: String,
    },
    /// Dashes without a name, or too many of them.
    #[error("bad flag syntax: {argument}")]
    BadSyntax {
        /// As typed.
        argument: String,
    },
    /// An argument that is not UTF-8.
    #[error("argument is not valid UTF-8: {argument:?}")]
    NotUnicode {
        /// The part of it that can be shown.
        argument: String,
    },
    /// Arguments that belong to no flag.
    #[error("{binary:?} does not take any arguments, got {arguments:?}")]
    Positional {
        /// The program.
        binary: &'static str,
        /// The arguments.
        arguments: Vec<String>,
    },
    /// The text is not a value of the flag's type.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {reason}")]
    InvalidValue {
        /// The flag, without dashes.
        flag: &'static str,
        /// As typed.
        value: String,
        /// The problem with it.
        reason: String,
    },
    /// The value has the right type but cannot be used, alone or together with other values.
    #[error("--{flag}={value}: {reason}")]
    Rejected {
        /// The flag, without dashes.
        flag: &'static str,
        /// The effective value.
        value: String,
        /// The problem with it.
        reason: String,
    },
    /// No cloud provider was named.
    #[error("--cloud-provider cannot be empty")]
    NoCloudProvider,
    /// The cloud provider does not exist in this program.
    #[error("--cloud-provider: unknown cloud provider {name:?} (known: {})", known.join(", "))]
    UnknownCloudProvider {
        /// As typed.
        name: String,
        /// The providers of this program.
        known: Vec<&'static str>,
    },
    /// The controller does not exist.
    #[error("--controllers: {name:?} is not in the list of known controllers (known: {})", known.join(", "))]
    UnknownController {
        /// As typed, without a leading dash.
        name: String,
        /// The existing controllers.
        known: Vec<&'static str>,
    },
    /// The feature gate does not exist, or must not be set to this value.
    #[error("--feature-gates={name}={value}: {reason}")]
    FeatureGate {
        /// The gate.
        name: String,
        /// The requested value.
        value: bool,
        /// The problem with it.
        reason: String,
    },
}

/// All errors on a command line: syntax errors in the order of the arguments, or errors of the
/// checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Returns `Err` with all of `errors`, unless there are none.
    pub(super) fn check(errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self(errors))
        }
    }

    /// Returns the errors, one or more.
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one error per line. Line breaks and other control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            for c in error.to_string().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
