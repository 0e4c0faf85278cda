//! Types of flag values: where each value is stored and how its text is parsed, by pflag's types.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::boolean::parse_bool;
use super::duration;
use super::types::{CertificatePair, Config, FlagEnum, VersionRequest};

/// Where a flag's value is stored in [`Config`], and its type.
#[derive(Clone, Copy)]
pub(crate) enum FlagTarget {
    /// On or off. Together with [`FlagTarget::Version`] and switches of a provider, the only types
    /// whose value may be omitted.
    Bool(fn(&mut Config) -> &mut bool),
    /// A whole number, for Go's `int32` and `int` flags.
    Int(fn(&mut Config) -> &mut i32),
    /// A number with a fraction.
    Float(fn(&mut Config) -> &mut f32),
    /// A Go duration.
    Duration(fn(&mut Config) -> &mut Duration),
    /// Free text.
    Text(fn(&mut Config) -> &mut String),
    /// A path; an empty one is `None`.
    Path(fn(&mut Config) -> &mut Option<PathBuf>),
    /// An IP address.
    Ip(fn(&mut Config) -> &mut IpAddr),
    /// Networks, separated by commas. If the flag is repeated, the last list applies, as for any
    /// scalar.
    Networks(fn(&mut Config) -> &mut Vec<IpNet>),
    /// A comma-separated list (pflag's `StringSlice`): the first use replaces the default, further
    /// uses append.
    List(fn(&mut Config) -> &mut Vec<String>),
    /// A comma-separated list of numbers.
    Numbers(fn(&mut Config) -> &mut Vec<i32>),
    /// Comma-separated `name=bool` pairs; repeated uses accumulate.
    Switches(fn(&mut Config) -> &mut BTreeMap<String, bool>),
    /// `certificate,key[:names]`, one for each use.
    Certificates(fn(&mut Config) -> &mut Vec<CertificatePair>),
    /// An enum of this program.
    Choice(fn(&mut Config) -> &mut dyn FlagEnum),
    /// `--version`: on, off, `raw`, or a version to report.
    Version(fn(&mut Config) -> &mut VersionRequest),
    /// A provider's own flag, stored as text under its name.
    Extra {
        /// True for a switch, whose value may be omitted.
        switch: bool,
    },
    /// A provider's own flag that may be repeated. Each value is stored unchanged (pflag's
    /// `StringArray`).
    ExtraList,
}

impl FlagTarget {
    /// Returns the value of a flag that is given without one, for the types that allow it (pflag's
    /// `NoOptDefVal`).
    pub(crate) fn default_when_bare(self) -> Option<&'static str> {
        match self {
            Self::Bool(_) | Self::Version(_) | Self::Extra { switch: true } => Some("true"),
            _ => None,
        }
    }

    /// Returns the type's name in help texts, as pflag prints it.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Bool(_) | Self::Extra { switch: true } => "",
            Self::Int(_) => "int",
            Self::Float(_) => "float32",
            Self::Duration(_) => "duration",
            Self::Text(_)
            | Self::Path(_)
            | Self::Networks(_)
            | Self::Choice(_)
            | Self::Extra { switch: false } => "string",
            Self::Ip(_) => "ip",
            Self::List(_) => "strings",
            Self::Numbers(_) => "ints",
            Self::Switches(_) => "mapStringBool",
            Self::Certificates(_) => "namedCertKey",
            Self::ExtraList => "stringArray",
            Self::Version(_) => "version[=true]",
        }
    }

    /// Parses and stores one use of the flag.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong with `text`; the caller adds the flag and the text.
    pub(crate) fn set(
        self,
        config: &mut Config,
        name: &'static str,
        text: &str,
        occurrence: Occurrence,
    ) -> Result<(), String> {
        match self {
            Self::Bool(field) => *field(config) = parse_bool(text)?,
            Self::Int(field) => *field(config) = parse_int(text)?,
            Self::Float(field) => *field(config) = parse_float(text)?,
            Self::Duration(field) => *field(config) = duration::parse(text)?,
            Self::Text(field) => text.clone_into(field(config)),
            Self::Path(field) => *field(config) = (!text.is_empty()).then(|| PathBuf::from(text)),
            Self::Ip(field) => {
                *field(config) = text
                    .trim()
                    .parse()
                    .map_err(|_| format!("failed to parse IP: {text:?}"))?;
            }
            Self::Networks(field) => *field(config) = parse_networks(text)?,
            Self::List(field) => extend(field(config), parse_list(text)?, occurrence),
            Self::Numbers(field) => {
                let numbers: Result<Vec<i32>, String> =
                    parse_list(text)?.iter().map(|n| parse_int(n)).collect();
                extend(field(config), numbers?, occurrence);
            }
            Self::Switches(field) => {
                let switches = parse_switches(text)?;
                let field = field(config);
                if occurrence == Occurrence::First {
                    field.clear();
                }
                field.extend(switches);
            }
            Self::Certificates(field) => {
                extend(field(config), vec![parse_certificates(text)?], occurrence);
            }
            Self::Choice(field) => field(config).assign(text)?,
            Self::Version(field) => *field(config) = parse_version(text)?,
            Self::Extra { switch } => {
                let value = if switch {
                    parse_bool(text)?.to_string()
                } else {
                    text.to_owned()
                };
                config.extra.insert(name, value);
            }
            Self::ExtraList => config
                .extra_lists
                .entry(name)
                .or_default()
                .push(text.to_owned()),
        }
        Ok(())
    }

    /// Returns the current value as text, in the flag's own format.
    pub(crate) fn render(self, config: &mut Config, name: &str) -> String {
        match self {
            Self::Bool(field) => field(config).to_string(),
            Self::Int(field) => field(config).to_string(),
            Self::Float(field) => field(config).to_string(),
            Self::Duration(field) => duration::format(*field(config)),
            Self::Text(field) => field(config).clone(),
            Self::Path(field) => field(config)
                .as_ref()
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            Self::Ip(field) => field(config).to_string(),
            Self::Networks(field) => join(field(config)),
            Self::List(field) => join(field(config).iter().map(|value| quote(value))),
            Self::Numbers(field) => join(field(config)),
            Self::Switches(field) => join(
                field(config)
                    .iter()
                    .map(|(gate, on)| format!("{gate}={on}")),
            ),
            Self::Certificates(field) => field(config)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(";"),
            Self::Choice(field) => field(config).text(),
            Self::Version(field) => field(config).to_string(),
            Self::Extra { .. } => config.extra.get(name).cloned().unwrap_or_default(),
            Self::ExtraList => join(
                config
                    .extra_lists
                    .get(name)
                    .into_iter()
                    .flatten()
                    .map(|value| quote(value)),
            ),
        }
    }
}

/// The position of a flag among its occurrences on the command line. The first occurrence of a list
/// replaces its default, and further occurrences add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occurrence {
    First,
    Repeated,
}

fn extend<T>(list: &mut Vec<T>, values: Vec<T>, occurrence: Occurrence) {
    if occurrence == Occurrence::First {
        list.clear();
    }
    list.extend(values);
}

fn join<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    values
        .into_iter()
        .map(|value| value.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// Quotes a value so that [`parse_list`] can parse it.
fn quote(value: &str) -> Cow<'_, str> {
    if value.contains([',', '"']) {
        format!("\"{}\"", value.replace('"', "\"\"")).into()
    } else {
        value.into()
    }
}

const NO_INTEGER: &str = "must be a whole number of at most 32 bits";

/// Parses as Go's `ParseInt` with base 0: a sign, then decimal, or `0x`, `0o`, `0b`, or a leading
/// zero for octal.
fn parse_int(text: &str) -> Result<i32, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    // The standard parser would accept a second sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(NO_INTEGER.to_owned());
    }
    let magnitude = i64::from_str_radix(digits, radix).map_err(|_| NO_INTEGER.to_owned())?;
    i32::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| NO_INTEGER.to_owned())
}

fn parse_float(text: &str) -> Result<f32, String> {
    text.parse::<f32>()
        .ok()
        .filter(|value| value.is_finite())
        .ok_or_else(|| "must be a number".to_owned())
}

/// Parses comma-separated networks. Bits after the prefix are cleared, as in Go's `ParseCIDR`.
pub(super) fn parse_networks(text: &str) -> Result<Vec<IpNet>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|cidr| {
            let cidr = cidr.trim();
            cidr.parse::<IpNet>()
                .map(|net| net.trunc())
                .map_err(|_| format!("invalid CIDR address: {cidr}"))
        })
        .collect()
}

/// Parses one line of comma-separated values. A value may be quoted with `"`; a quote inside is
/// doubled.
fn parse_list(text: &str) -> Result<Vec<String>, String> {
    let mut values = Vec::new();
    let mut rest = text;
    if rest.is_empty() {
        return Ok(values);
    }
    loop {
        let (value, after) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted_field(quoted)?
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (value, after) = rest.split_at(end);
            if value.contains('"') {
                return Err("has a quote inside an unquoted value".to_owned());
            }
            (value.to_owned(), after)
        };
        values.push(value);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(values),
        }
    }
}

/// Returns the value after an opening quote, and what follows its closing quote: nothing, or a
/// comma.
fn quoted_field(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest
            .find('"')
            .ok_or_else(|| "has a quote that is not closed".to_owned())?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                value.push('"');
                rest = next;
            }
            None if rest.is_empty() || rest.starts_with(',') => return Ok((value, rest)),
            None => return Err("has text after a closing quote".to_owned()),
        }
    }
}

fn parse_switches(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let mut switches = BTreeMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("missing bool value for {pair}"))?;
        let name = name.trim();
        let value = value.trim();
        let value = parse_bool(value)
            .map_err(|reason| format!("invalid value of {name}={value}: {reason}"))?;
        switches.insert(name.to_owned(), value);
    }
    Ok(switches)
}

fn parse_certificates(text: &str) -> Result<CertificatePair, String> {
    let (files, names) = match text.split_once(':') {
        Some((files, names)) => (files, names.split(',').map(str::to_owned).collect()),
        None => (text, Vec::new()),
    };
    match files.split_once(',') {
        Some((certificate, key))
            if !certificate.is_empty() && !key.is_empty() && !key.contains(',') =>
        {
            Ok(CertificatePair { certificate: certificate.into(), key: key.into(), names })
        }
        _ => Err("expected comma separated certificate and key file paths".to_owned()),
    }
}

fn parse_version(text: &str) -> Result<VersionRequest, String> {
    if text == "raw" {
        return Ok(VersionRequest::Raw);
    }
    if text.starts_with('v') {
        return if is_semantic_version(text) {
            Ok(VersionRequest::Report(text.to_owned()))
        } else {
            Err("must be a semantic version such as v1.2.3".to_owned())
        };
    }
    Ok(if parse_bool(text)? {
        VersionRequest::Print
    } else {
        VersionRequest::Off
    })
}

/// Returns true if the text is `vX.Y.Z`, with optional pre-release and build parts.
fn is_semantic_version(text: &str) -> bool {
    let Some(text) = text.strip_prefix('v') else {
        return false;
    };
    let core_end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, suffix) = text.split_at(core_end);
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers
            .iter()
            .all(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
        && (suffix.is_empty() || suffix[1..].split(['.', '+']).all(is_version_part))
}

/// Returns true if the text can be one of the parts after the numbers of a version.
fn is_version_part(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}
