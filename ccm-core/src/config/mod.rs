//! Parses command-line flags into a checked configuration.
//!
//! The flags are those of a Go cloud-controller-manager: same names, defaults and syntax, so that
//! an existing manifest works with only the image replaced. [`parse`] parses and checks them; it
//! opens no file, resolves no name, prints nothing and does not exit.
//!
//! ```
//! use ccm_core::config::{Invocation, Product, parse};
//!
//! let product = Product::new("ccm-example", "v1.2.3", &["example"]);
//! match parse(&product, ["--cloud-provider=example", "--node_monitor_period", "10s"]) {
//!     Ok(Invocation::Run(config)) => assert_eq!(config.node_lifecycle.monitor_period.as_secs(), 10),
//!     Ok(Invocation::Help(text) | Invocation::Version(text)) => unreachable!("not asked for: {text}"),
//!     Err(errors) => unreachable!("nothing is wrong: {errors}"),
//! }
//! ```

mod args;
pub(crate) mod boolean;
pub(crate) mod cipher_suites;
mod client_feature_gates;
mod configz;
pub mod controller_names;
pub(crate) mod duration;
mod error;
pub mod feature_gates;
mod flag_report;
mod flags;
pub mod gcfg;
pub mod gcfg_keys;
mod help;
pub mod kubeconfig;
pub mod leader_migration;
pub(crate) mod logging;
mod pod_networks;
mod shadow;
mod types;
mod validate;
mod value;
pub mod yaml_file;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

pub use client_feature_gates::ClientFeatureGates;
pub use controller_names::{ControllerInfo, ControllerSelection};
pub use duration::parse as parse_duration;
pub use error::{ConfigError, ConfigErrors};
pub use feature_gates::FeatureGates;
pub use flags::Flag;
pub use logging::{Format, LoggingConfig, ModuleVerbosity, StreamOptions, parse_vmodule};
pub use pod_networks::{InvalidBlocks, NodeIpamOptions, PodNetwork};
pub use shadow::{ReportFormat, ShadowConfig};
pub use types::*;

/// The program that parses the flags.
#[derive(Debug, Clone)]
pub struct Product {
    /// The name of the binary, as in help texts and user agents.
    pub binary: &'static str,
    /// Version, starting with `v`.
    pub version: &'static str,
    /// Source revision that it was built from, or `unknown`.
    pub commit: &'static str,
    /// The names of its cloud providers.
    pub providers: &'static [&'static str],
    /// The controllers that it can run.
    pub controllers: Vec<ControllerInfo>,
    /// The provider's own flags. A flag whose name the framework already uses is ignored.
    pub extra_flags: Vec<Flag>,
}

impl Product {
    /// Creates a product with the standard controllers and without additional flags.
    pub fn new(
        binary: &'static str,
        version: &'static str,
        providers: &'static [&'static str],
    ) -> Self {
        Self {
            binary,
            version,
            commit: "unknown",
            providers,
            controllers: controller_names::standard(),
            extra_flags: Vec::new(),
        }
    }
}

/// The action that the command line requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Invocation {
    /// Run with this configuration.
    Run(Box<Config>),
    /// Print this help and exit with code 0.
    Help(String),
    /// Print this version and exit with code 0.
    Version(String),
}

/// Parses a command line, without the program's name.
///
/// As in the Go program, syntax errors take precedence over `--help`, and `--help` over
/// `--version`. The values are checked against each other only when neither is given.
///
/// # Errors
///
/// All errors that can be found at once: those of the syntax, or, if there are none, those of the
/// checks.
pub fn parse<I, A>(product: &Product, args: I) -> Result<Invocation, ConfigErrors>
where
    I: IntoIterator<Item = A>,
    A: Into<OsString>,
{
    let mut args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let replaced = args
        .first()
        .and_then(|first| path_of_a_manager(first))
        .map(str::to_owned);
    if replaced.is_some() {
        args.remove(0);
    }
    let args::ParsedArgs { uses, positional, mut errors } =
        args::parse_args(flags::all(product), args);
    let mut config = defaults(product);
    let mut used = BTreeSet::new();
    for args::FlagUse { flag, text } in uses {
        let occurrence = if used.insert(flag.name) {
            value::Occurrence::First
        } else {
            value::Occurrence::Repeated
        };
        if let Err(reason) = flag.target.set(&mut config, flag.name, &text, occurrence) {
            errors.push(ConfigError::InvalidValue { flag: flag.name, value: text, reason });
        }
    }
    // The Go program accepts empty arguments.
    if positional.iter().any(|argument| !argument.is_empty()) {
        errors.push(ConfigError::Positional { binary: product.binary, arguments: positional });
    }
    ConfigErrors::check(errors)?;
    if config.raw.help {
        return Ok(Invocation::Help(help::help(product)));
    }
    match &config.raw.version {
        VersionRequest::Off => {}
        VersionRequest::Print => return Ok(Invocation::Version(help::version(product))),
        VersionRequest::Raw => return Ok(Invocation::Version(help::raw_version(product))),
        VersionRequest::Report(version) => config.reported_version = Some(version.clone()),
    }
    validate::check(product, &mut config, &used)?;
    flag_report::fill(product, &mut config, &used);
    if let Some(path) = replaced {
        let binary = product.binary;
        config.warnings.push(format!(
            "the first argument, {path}, is ignored: this image starts {binary} by itself"
        ));
    }
    Ok(Invocation::Run(Box::new(config)))
}

/// Returns the argument if it is the path of a cloud-controller-manager. Manifests of Go managers
/// have it before the flags, because their images have no entry point.
fn path_of_a_manager(argument: &OsStr) -> Option<&str> {
    let path = argument.to_str()?;
    let name = path.strip_prefix('/')?.rsplit('/').next()?;
    name.ends_with("cloud-controller-manager").then_some(path)
}

/// Creates a configuration with every flag at its default, not checked.
fn defaults(product: &Product) -> Config {
    let mut config = Config::unset();
    for flag in flags::all(product) {
        // Cannot fail for the framework's flags: a test sets every default. A provider's own
        // defaults are text, or `true` or `false` for a switch.
        if flag.default.is_empty() && !matches!(flag.target, value::FlagTarget::Extra { .. }) {
            continue;
        }
        let result =
            flag.target
                .set(&mut config, flag.name, flag.default, value::Occurrence::First);
        debug_assert_eq!(result, Ok(()), "default of --{}", flag.name);
    }
    config
}

#[cfg(test)]
mod tests;
