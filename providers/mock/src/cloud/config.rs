//! The file of `--cloud-config`: YAML; all keys are optional, unknown keys are errors.

mod limits;

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    str::FromStr,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, de};

pub use self::limits::{Features, RateLimit, RateLimits};
use crate::cloud::{Family, FieldError, InstanceSpec};

/// Default region.
pub const DEFAULT_REGION: &str = "mock-region";
/// Default instance type.
pub const DEFAULT_INSTANCE_TYPE: &str = "mock.standard";
/// Default address pool of load balancers: the range for benchmarks (RFC 2544), which is not routed
/// on the Internet.
const DEFAULT_POOL: Ipv4Net = match Ipv4Net::new(Ipv4Addr::new(198, 18, 0, 0), 15) {
    Ok(net) => net,
    Err(_) => unreachable!(),
};
/// Default IPv6 address pool of load balancers: the range for benchmarks (RFC 5180).
const DEFAULT_POOL_V6: Ipv6Net = match Ipv6Net::new(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48)
{
    Ok(net) => net,
    Err(_) => unreachable!(),
};

/// Configuration of the mock cloud and of its provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CloudConfig {
    /// Region. Default: [`DEFAULT_REGION`], or the region of the cloud at `endpoint`.
    pub region: Option<String>,
    /// Zones, over which instances without a zone are spread. Default: one zone, `<region>a`.
    pub zones: Option<Vec<String>>,
    /// Instance type of instances that do not set one. Default: [`DEFAULT_INSTANCE_TYPE`].
    pub instance_type: Option<String>,
    /// Whether there is a running instance with stable generated addresses for every node name.
    /// Default: `false`.
    pub auto_provision: bool,
    /// Latency of provider calls. Default: none.
    pub latency: Latency,
    /// Instances that exist from the start.
    pub instances: Vec<InstanceEntry>,
    /// Rate limits of provider calls. Default: no limits.
    pub rate_limits: RateLimits,
    /// Network from which load balancers get their addresses. Default: 198.18.0.0/15. Its IP family
    /// is the default for load balancers that do not request a family.
    pub load_balancer_address_pool: Option<Cidr>,
    /// Network from which load balancers get their IPv6 addresses. Default: 2001:2::/48.
    #[serde(rename = "loadBalancerIPv6AddressPool")]
    pub load_balancer_ipv6_address_pool: Option<Cidr>,
    /// Time from the creation of a load balancer until it is active. Default: zero.
    #[serde(deserialize_with = "go_duration")]
    pub load_balancer_activation: Duration,
    /// Time from the delete request for a load balancer until it no longer exists. Default: zero.
    #[serde(deserialize_with = "go_duration")]
    pub load_balancer_deletion: Duration,
    /// Maximum number of load balancers. Default: no limit.
    pub load_balancer_quota: Option<usize>,
    /// Values of `spec.loadBalancerClass` that the provider serves, in addition to Services without
    /// a class. Default: none.
    pub load_balancer_classes: Vec<String>,
    /// The features that the provider declares.
    pub features: Features,
    /// Node labels, in addition to the framework's own, that the node selectors of Services may
    /// use; `*` for all. Caches keep these labels. Default: none.
    pub node_selector_labels: Vec<String>,
    /// Address at which the admin API listens; without a host the loopback address, with port 0 any
    /// free port. Default: the admin API is off.
    pub admin_address: Option<HostPort>,
    /// Address of the admin API of a mock cloud in another process, to use instead of one in this
    /// process.
    pub endpoint: Option<HostPort>,
}

/// Latency of provider calls: one sleep per call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Latency {
    /// Calls about instances.
    #[serde(deserialize_with = "go_duration")]
    pub instances: Duration,
    /// Calls about routes.
    #[serde(deserialize_with = "go_duration")]
    pub routes: Duration,
    /// Calls about load balancers.
    #[serde(deserialize_with = "go_duration")]
    pub load_balancers: Duration,
}

/// An entry of `instances`: `name`, and the keys of [`InstanceSpec`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceEntry {
    /// Name of the node. Required.
    pub name: String,
    /// Provider ID; see [`InstanceSpec::provider_id`].
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    /// Instance type; see [`InstanceSpec::instance_type`].
    pub instance_type: Option<String>,
    /// Zone; see [`InstanceSpec::zone`].
    pub zone: Option<String>,
    /// Region; see [`InstanceSpec::region`].
    pub region: Option<String>,
    /// Addresses; see [`InstanceSpec::addresses`].
    pub addresses: Option<Vec<crate::cloud::Address>>,
    /// Power state; see [`InstanceSpec::power_state`].
    pub power_state: Option<crate::cloud::PowerState>,
    /// Labels; see [`InstanceSpec::additional_labels`].
    pub additional_labels: Option<std::collections::BTreeMap<String, String>>,
}

impl InstanceEntry {
    /// Returns the entry without its name.
    pub fn spec(&self) -> InstanceSpec {
        InstanceSpec {
            provider_id: self.provider_id.clone(),
            instance_type: self.instance_type.clone(),
            zone: self.zone.clone(),
            region: self.region.clone(),
            addresses: self.addresses.clone(),
            power_state: self.power_state,
            additional_labels: self.additional_labels.clone(),
        }
    }
}

/// Error of reading a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read cloud config {file}")]
    Unreadable {
        /// Path of the file, as given.
        file: String,
        /// Error of the read.
        #[source]
        cause: std::io::Error,
    },
    /// The text is not a cloud config. Display names file, line and key.
    #[error("cloud config {file}{}{}: {message}", line_suffix(*.line), key_suffix(.key))]
    Invalid {
        /// Path of the file, as given.
        file: String,
        /// Line, counted from 1, if known.
        line: Option<u64>,
        /// Invalid key; empty if the document as a whole is invalid.
        key: String,
        /// Description of the error.
        message: String,
    },
}

fn line_suffix(line: Option<u64>) -> String {
    match line {
        Some(line) => format!(", line {line}"),
        None => String::new(),
    }
}

fn key_suffix(key: &str) -> String {
    if key.is_empty() {
        String::new()
    } else {
        format!(", key {key}")
    }
}

impl CloudConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or its content is invalid. The error names the
    /// file and, for invalid content, the line and the key.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ConfigError::Unreadable { file: file.clone(), cause })?;
        Self::parse(&file, &text)
    }

    /// Parses and checks the text of a cloud config. `file` is only used in errors.
    ///
    /// # Errors
    /// Fails like [`from_file`](Self::from_file).
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        // A file without values, for example with comments only, means the defaults.
        let parsed: Result<Option<Self>, _> = serde_saphyr::from_str(text);
        let config = parsed
            .map_err(|error| invalid(file, text, &error))?
            .unwrap_or_default();
        config
            .check()
            .map_err(|FieldError { field, message }| ConfigError::Invalid {
                file: file.to_owned(),
                line: line_of(text, &field),
                key: field,
                message,
            })?;
        Ok(config)
    }

    /// Checks the values for errors that their types do not exclude.
    fn check(&self) -> Result<(), FieldError> {
        // First, check the addresses of the admin API, the region and the instance type.
        if self.endpoint.is_some() && self.admin_address.is_some() {
            let message =
                "cannot be combined with endpoint: the cloud at the endpoint has its own admin API";
            return Err(FieldError::new("adminAddress", message));
        }
        for (key, value) in [("region", &self.region), ("instanceType", &self.instance_type)] {
            if value.as_deref() == Some("") {
                return Err(FieldError::new(
                    key,
                    "must not be empty; leave it out for the default",
                ));
            }
        }
        if let Some(region) = &self.region
            && region.contains(|c: char| c == '/' || c.is_whitespace())
        {
            return Err(FieldError::new(
                "region",
                "must not contain slashes or blanks: it is a part of provider IDs",
            ));
        }
        // Then check the address pools, the rate limits and the lists.
        match self.load_balancer_ipv6_address_pool {
            Some(Cidr(IpNet::V4(_))) => {
                return Err(FieldError::new(
                    "loadBalancerIPv6AddressPool",
                    "is not an IPv6 network",
                ));
            }
            Some(Cidr(IpNet::V6(_))) if self.is_default_pool_ipv6() => {
                let message = "must not be set, because loadBalancerAddressPool is an IPv6 network";
                return Err(FieldError::new("loadBalancerIPv6AddressPool", message));
            }
            _ => {}
        }
        self.rate_limits.check()?;
        for (key, texts) in [
            ("loadBalancerClasses", &self.load_balancer_classes),
            ("nodeSelectorLabels", &self.node_selector_labels),
        ] {
            if texts.iter().any(String::is_empty) {
                return Err(FieldError::new(key, "must not contain an empty text"));
            }
        }
        // Finally, build the cloud once, which checks the instances.
        crate::cloud::MockCloud::new(self).map(drop)
    }

    /// Returns the keys that are set but have no effect, because the cloud runs in another process.
    pub fn ignored_keys(&self) -> Vec<&'static str> {
        if self.endpoint.is_none() {
            return Vec::new();
        }
        let keys = [
            ("zones", self.zones.is_some()),
            ("instanceType", self.instance_type.is_some()),
            ("autoProvision", self.auto_provision),
            ("latency", self.latency != Latency::default()),
            ("instances", !self.instances.is_empty()),
            ("rateLimits", self.rate_limits != RateLimits::default()),
            ("loadBalancerAddressPool", self.load_balancer_address_pool.is_some()),
            ("loadBalancerIPv6AddressPool", self.load_balancer_ipv6_address_pool.is_some()),
            ("loadBalancerActivation", !self.load_balancer_activation.is_zero()),
            ("loadBalancerDeletion", !self.load_balancer_deletion.is_zero()),
            ("loadBalancerQuota", self.load_balancer_quota.is_some()),
        ];
        let mut ignored = Vec::new();
        for (key, is_set) in keys {
            if is_set {
                ignored.push(key);
            }
        }
        ignored
    }

    fn is_default_pool_ipv6(&self) -> bool {
        matches!(self.load_balancer_address_pool, Some(Cidr(IpNet::V6(_))))
    }

    pub(crate) fn region(&self) -> &str {
        self.region.as_deref().unwrap_or(DEFAULT_REGION)
    }

    pub(crate) fn instance_type(&self) -> &str {
        self.instance_type
            .as_deref()
            .unwrap_or(DEFAULT_INSTANCE_TYPE)
    }

    pub(crate) fn zones(&self) -> Vec<String> {
        match &self.zones {
            Some(zones) => zones.clone(),
            None => vec![format!("{}a", self.region())],
        }
    }

    /// Returns the networks from which load balancers get their addresses.
    pub(crate) fn address_networks(&self) -> AddressNetworks {
        let mut networks = AddressNetworks {
            v4: IpNet::V4(DEFAULT_POOL),
            v6: IpNet::V6(DEFAULT_POOL_V6),
            default_family: Family::V4,
        };
        if let Some(Cidr(network)) = self.load_balancer_ipv6_address_pool {
            networks.v6 = network;
        }
        match self.load_balancer_address_pool {
            None => {}
            Some(Cidr(network @ IpNet::V4(_))) => networks.v4 = network,
            Some(Cidr(network @ IpNet::V6(_))) => {
                networks.v6 = network;
                networks.default_family = Family::V6;
            }
        }
        networks
    }
}

/// Networks from which load balancers get their addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressNetworks {
    pub(crate) v4: IpNet,
    pub(crate) v6: IpNet,
    /// Family of load balancers that do not request one.
    pub(crate) default_family: Family,
}

/// Converts an error of the YAML parser.
fn invalid(file: &str, text: &str, error: &serde_saphyr::Error) -> ConfigError {
    let mut line = None;
    let mut key = String::new();
    if let Some(location) = error.location() {
        if location.line() > 0 {
            line = Some(location.line());
        }
        key = key_at(text, location.line(), location.column());
    }
    ConfigError::Invalid {
        file: file.to_owned(),
        line,
        key,
        message: bare_message(error),
    }
}

/// Returns the parser's message without the quoted text and the position, which the error reports
/// separately.
fn bare_message(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let first_line = message.lines().next().unwrap_or_default();
    let end = first_line.rfind(" at line ").unwrap_or(first_line.len());
    first_line[..end]
        .trim_end_matches([',', ':', ' '])
        .trim_start_matches("error: ")
        .to_owned()
}

/// Returns the key at a position. If there is a value at the position, returns the key before it.
fn key_at(text: &str, line: u64, column: u64) -> String {
    let line_index = index_of(line);
    let lines: Vec<&str> = text.lines().take(line_index.saturating_add(1)).collect();
    let Some(line) = lines.get(line_index) else {
        return String::new();
    };
    let chars: Vec<char> = line.chars().collect();
    let position = index_of(column).min(chars.len());
    let after: String = chars[position..].iter().collect();
    let key: String = after.chars().take_while(|c| is_key_char(*c)).collect();
    if !key.is_empty() && starts_with_key_colon(after[key.len()..].trim_start()) {
        return key;
    }
    // There is a value at the position. Its key may be on an earlier line.
    let before: String = chars[..position].iter().collect();
    std::iter::once(&*before)
        .chain(lines.iter().rev().skip(1).copied())
        .find_map(last_key)
        .unwrap_or_default()
}

/// Converts a number that counts from 1 to an index.
fn index_of(number: u64) -> usize {
    usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX)
}

/// Returns the last key in a line, if it contains one.
fn last_key(line: &str) -> Option<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut colons = line.match_indices(':').map(|(at, _)| at);
    let end = colons.rfind(|at| starts_with_key_colon(&line[*at..]))?;

    let key = line[..end].rsplit(|c: char| !is_key_char(c)).next()?;
    if key.is_empty() {
        None
    } else {
        Some(key.to_owned())
    }
}

/// Returns true if a text starts with the colon after a key. Unlike a colon inside a value, it is
/// followed by a blank or the end of the line.
fn starts_with_key_colon(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|after_colon| after_colon.is_empty() || after_colon.starts_with([' ', '\t']))
}

fn is_key_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Returns the line of the top-level key in a field path such as `instances[0].name`.
fn line_of(text: &str, field: &str) -> Option<u64> {
    let key = field.split(['.', '[']).next()?;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(after_key) = line.strip_prefix(key)
            && after_key.trim_start().starts_with(':')
        {
            return Some(number);
        }
    }
    None
}

/// Deserializes a duration in Go's format (`300ms`, `1m30s`).
fn go_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .map_err(|reason| de::Error::custom(format!("invalid duration {text:?}: {reason}")))
}

/// Parses a duration in Go's format. Rejects negative durations.
///
/// # Errors
/// Returns a description of the error.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    // Check the text first, because kube's parser panics if a number overflows or if there is a
    // sign between the parts.
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !unsigned.starts_with(is_digit_or_point)
        || !unsigned
            .chars()
            .all(|c| is_digit_or_point(c) || c.is_alphabetic())
    {
        return Err("expected a number with a unit, such as 20ms or 1m30s".to_owned());
    }
    let has_large_number = text
        .split(|c| !is_digit_or_point(c))
        .any(|number| number.find('.').unwrap_or(number.len()) > 9);
    if text.len() > 32 || has_large_number {
        return Err("too large".to_owned());
    }
    let parsed: kube::core::Duration = text.parse().map_err(|error| format!("{error}"))?;
    let duration = Duration::from(parsed);
    if parsed.is_negative() && !duration.is_zero() {
        Err("must not be negative".to_owned())
    } else {
        Ok(duration)
    }
}

fn is_digit_or_point(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(pub IpNet);

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse() {
            Ok(net) => Ok(Self(net)),
            Err(_) => Err(de::Error::custom(format!("{text:?} is not a network in CIDR notation"))),
        }
    }
}

/// Host and port at which to listen, or to which to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Host name or IP address, without the brackets of an IPv6 address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Error for a text that is not of the form `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form host:port")]
pub struct InvalidHostPort(String);

impl FromStr for HostPort {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| InvalidHostPort(text.to_owned()))
    }
}

impl HostPort {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let (host, port) = text.rsplit_once(':')?;
        // Digits only: the number parser would also accept a sign.
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Self { host: parse_host(host)?, port: port.parse().ok()? })
    }
}

/// Parses a host name or an IP address. An IPv6 address must be in brackets. Empty text means the
/// loopback address.
fn parse_host(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some(Ipv4Addr::LOCALHOST.to_string());
    }
    if let Some(after_bracket) = text.strip_prefix('[')
        && let Some(address) = after_bracket.strip_suffix(']')
    {
        return Some(address.parse::<Ipv6Addr>().ok()?.to_string());
    }
    let is_name = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    if is_name { Some(text.to_owned()) } else { None }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
