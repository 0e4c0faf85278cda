//! What can be wrong with a command line.

use std::fmt::{self, Write as _};

use thiserror::Error;

/// One mistake on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such flag.
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
    /// The last argument is a flag that wants a value.
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
        /// What of it can be shown.
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
    /// The text is no value of the flag's type.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {reason}")]
    InvalidValue {
        /// The flag, without dashes.
        flag: &'static str,
        /// As typed.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The value is of the right type but cannot be used, alone or together with others.
    #[error("--{flag}={value}: {reason}")]
    Rejected {
        /// The flag, without dashes.
        flag: &'static str,
        /// The value in force.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No cloud provider was named.
    #[error("--cloud-provider cannot be empty")]
    NoCloudProvider,
    /// A cloud provider that this program does not have.
    #[error("--cloud-provider: unknown cloud provider {name:?} (known: {})", known.join(", "))]
    UnknownCloudProvider {
        /// As typed.
        name: String,
        /// Those it has.
        known: Vec<&'static str>,
    },
    /// A controller that does not exist.
    #[error("--controllers: {name:?} is not in the list of known controllers (known: {})", known.join(", "))]
    UnknownController {
        /// As typed, without the dash in front.
        name: String,
        /// Those there are.
        known: Vec<&'static str>,
    },
    /// A feature gate that does not exist, or may not be set this way.
    #[error("--feature-gates={name}={value}: {reason}")]
    FeatureGate {
        /// The gate.
        name: String,
        /// The value wanted.
        value: bool,
        /// What is wrong with it.
        reason: String,
    },
}

/// Every mistake on a command line, in the order of the arguments first and of the checks afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// `Err` with all of `errors`, unless there are none.
    pub(super) fn check(errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }

    /// The mistakes, one or more.
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// One mistake a line; line breaks and other control characters in what was typed are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            for c in error.to_string().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
