//! What a body may contain: attributes, their types and ranges. Bodies are checked against this
//! table before anything else.

use std::{fmt, net::IpAddr};

use crate::api::octavia::{
    LbAlgorithm, ListenerProtocol, MonitorType, PersistenceType, PoolProtocol,
};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{invalid_input, missing_argument, unknown_attribute};
use crate::state::ApiError;

/// Attributes of an object.
pub type Schema = &'static [Field];

/// An attribute.
#[derive(Debug)]
pub struct Field {
    name: &'static str,
    kind: AttributeType,
    /// Minor version that introduced it.
    since: u8,
    required: bool,
}

/// Type and range of an attribute.
#[derive(Clone, Copy)]
enum AttributeType {
    /// Text with a maximum number of characters.
    Text(usize),
    /// Identifier.
    Uuid,
    /// Integer with minimum and maximum.
    Int(i64, i64),
    /// Boolean.
    Bool,
    /// 1.0 or 1.1.
    HttpVersion,
    /// One of several words.
    Word(fn() -> Vec<String>),
    /// Address.
    Ip,
    /// Path of a URL.
    Path,
    /// HTTP status codes: `200`, `200,202` or `200-204`.
    Codes,
    /// Cookie's name.
    Cookie,
    /// Object with text values.
    Headers,
    /// Object.
    Object(Schema),
    /// List.
    List(&'static AttributeType),
    /// Network.
    Cidr,
}

impl fmt::Debug for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kind")
    }
}

const fn field(name: &'static str, kind: AttributeType) -> Field {
    Field { name, kind, since: 0, required: false }
}

impl Field {
    const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    const fn since(self, minor: u8) -> Self {
        Self { since: minor, ..self }
    }
}

const NAME: AttributeType = AttributeType::Text(255);
const PORT: AttributeType = AttributeType::Int(1, 65535);
const TIMEOUT: AttributeType = AttributeType::Int(0, 2_073_600_000);
const RETRIES: AttributeType = AttributeType::Int(1, 10);
const SECONDS: AttributeType = AttributeType::Int(0, u32::MAX as i64);
const LIMIT: AttributeType = AttributeType::Int(-1, i32::MAX as i64);
const WEIGHT: AttributeType = AttributeType::Int(0, 256);
const TEXTS: AttributeType = AttributeType::List(&NAME);
const UUIDS: AttributeType = AttributeType::List(&AttributeType::Uuid);
const CIDRS: AttributeType = AttributeType::List(&AttributeType::Cidr);
const ALPN: AttributeType =
    AttributeType::List(&AttributeType::Word(|| words(&["h2", "http/1.1", "http/1.0"])));
const AUTHENTICATION: AttributeType =
    AttributeType::Word(|| words(&["NONE", "OPTIONAL", "MANDATORY"]));
const METHOD: AttributeType = AttributeType::Word(|| {
    words(&["GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "PATCH", "CONNECT"])
});

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

macro_rules! all_of {
    ($words:ty) => {
        AttributeType::Word(|| <$words>::ALL.iter().map(ToString::to_string).collect())
    };
}

/// Load balancer to create.
pub const LOAD_BALANCER_CREATE: Schema = &[
    field("name", NAME),
    field("description", NAME),
    field("admin_state_up", AttributeType::Bool),
    field("vip_address", AttributeType::Ip),
    field("vip_port_id", AttributeType::Uuid),
    field("vip_subnet_id", AttributeType::Uuid),
    field("vip_network_id", AttributeType::Uuid),
    field("vip_qos_policy_id", AttributeType::Uuid),
    field("vip_sg_ids", UUIDS).since(29),
    field("additional_vips", AttributeType::List(&AttributeType::Object(ADDITIONAL_VIP))).since(26),
    field("project_id", NAME),
    field("tenant_id", NAME),
    field("listeners", AttributeType::List(&AttributeType::Object(LISTENER_NESTED))),
    field("pools", AttributeType::List(&AttributeType::Object(POOL_NESTED))),
    field("provider", AttributeType::Text(64)),
    field("tags", TEXTS).since(5),
    field("flavor_id", AttributeType::Uuid).since(6),
    field("availability_zone", NAME).since(14),
];

const ADDITIONAL_VIP: Schema = &[
    field("subnet_id", AttributeType::Uuid).required(),
    field("ip_address", AttributeType::Ip),
    field("port_id", AttributeType::Uuid),
];

/// Change of a load balancer.
pub const LOAD_BALANCER_UPDATE: Schema = &[
    field("name", NAME),
    field("description", NAME),
    field("admin_state_up", AttributeType::Bool),
    field("vip_qos_policy_id", AttributeType::Uuid),
    field("vip_sg_ids", UUIDS).since(29),
    field("tags", TEXTS).since(5),
];

macro_rules! listener {
    ($($more:expr),* $(,)?) => {
        &[
            $($more,)*
            field("name", NAME),
            field("description", NAME),
            field("admin_state_up", AttributeType::Bool),
            field("connection_limit", LIMIT),
            field("default_tls_container_ref", NAME),
            field("sni_container_refs", TEXTS),
            field("default_pool_id", AttributeType::Uuid),
            field("insert_headers", AttributeType::Headers),
            field("timeout_client_data", TIMEOUT).since(1),
            field("timeout_member_connect", TIMEOUT).since(1),
            field("timeout_member_data", TIMEOUT).since(1),
            field("timeout_tcp_inspect", TIMEOUT).since(1),
            field("tags", TEXTS).since(5),
            field("client_ca_tls_container_ref", NAME).since(8),
            field("client_authentication", AUTHENTICATION).since(8),
            field("client_crl_container_ref", NAME).since(8),
            field("allowed_cidrs", CIDRS).since(12),
            field("tls_ciphers", AttributeType::Text(2048)).since(15),
            field("tls_versions", AttributeType::List(&AttributeType::Text(32))).since(17),
            field("alpn_protocols", ALPN).since(20),
            field("hsts_max_age", SECONDS).since(27),
            field("hsts_include_subdomains", AttributeType::Bool).since(27),
            field("hsts_preload", AttributeType::Bool).since(27),
        ]
    };
}

/// Listener to create.
pub const LISTENER_CREATE: Schema = listener![
    field("loadbalancer_id", AttributeType::Uuid).required(),
    field("protocol", all_of!(ListenerProtocol)).required(),
    field("protocol_port", PORT).required(),
    field("default_pool", AttributeType::Object(POOL_NESTED)),
    field("l7policies", AttributeType::List(&AttributeType::Object(&[]))),
    field("project_id", NAME),
    field("tenant_id", NAME),
];

const LISTENER_NESTED: Schema = listener![
    field("protocol", all_of!(ListenerProtocol)).required(),
    field("protocol_port", PORT).required(),
    field("default_pool", AttributeType::Object(POOL_NESTED)),
    field("l7policies", AttributeType::List(&AttributeType::Object(&[]))),
];

/// Change of a listener.
pub const LISTENER_UPDATE: Schema = listener![];

macro_rules! pool {
    ($($more:expr),* $(,)?) => {
        &[
            $($more,)*
            field("name", NAME),
            field("description", NAME),
            field("admin_state_up", AttributeType::Bool),
            field("session_persistence", AttributeType::Object(PERSISTENCE)),
            field("tags", TEXTS).since(5),
            field("tls_container_ref", NAME).since(8),
            field("ca_tls_container_ref", NAME).since(8),
            field("crl_container_ref", NAME).since(8),
            field("tls_enabled", AttributeType::Bool).since(8),
            field("tls_ciphers", AttributeType::Text(2048)).since(15),
            field("tls_versions", AttributeType::List(&AttributeType::Text(32))).since(18),
            field("alpn_protocols", ALPN).since(24),
        ]
    };
}

/// Pool to create.
pub const POOL_CREATE: Schema = pool![
    field("listener_id", AttributeType::Uuid),
    field("loadbalancer_id", AttributeType::Uuid),
    field("protocol", all_of!(PoolProtocol)).required(),
    field("lb_algorithm", all_of!(LbAlgorithm)).required(),
    field("healthmonitor", AttributeType::Object(MONITOR_NESTED)),
    field("members", AttributeType::List(&AttributeType::Object(MEMBER_CREATE))),
    field("project_id", NAME),
    field("tenant_id", NAME),
];

const POOL_NESTED: Schema = pool![
    field("protocol", all_of!(PoolProtocol)),
    field("lb_algorithm", all_of!(LbAlgorithm)),
    field("healthmonitor", AttributeType::Object(MONITOR_NESTED)),
    field("members", AttributeType::List(&AttributeType::Object(MEMBER_CREATE))),
];

/// Change of a pool.
pub const POOL_UPDATE: Schema = pool![field("lb_algorithm", all_of!(LbAlgorithm))];

const PERSISTENCE: Schema = &[
    field("type", all_of!(PersistenceType)).required(),
    field("cookie_name", AttributeType::Cookie),
    field("persistence_timeout", SECONDS),
    field("persistence_granularity", AttributeType::Ip),
];

/// Member to create.
pub const MEMBER_CREATE: Schema = &[
    field("name", NAME),
    field("admin_state_up", AttributeType::Bool),
    field("address", AttributeType::Ip).required(),
    field("protocol_port", PORT).required(),
    field("weight", WEIGHT),
    field("backup", AttributeType::Bool).since(1),
    field("subnet_id", AttributeType::Uuid),
    field("project_id", NAME),
    field("tenant_id", NAME),
    field("monitor_port", PORT),
    field("monitor_address", AttributeType::Ip),
    field("tags", TEXTS).since(5),
    field("request_sriov", AttributeType::Bool).since(30),
];

/// Change of a member.
pub const MEMBER_UPDATE: Schema = &[
    field("name", NAME),
    field("admin_state_up", AttributeType::Bool),
    field("weight", WEIGHT),
    field("backup", AttributeType::Bool).since(1),
    field("monitor_port", PORT),
    field("monitor_address", AttributeType::Ip),
    field("tags", TEXTS).since(5),
];

macro_rules! monitor {
    ($($more:expr),* $(,)?) => {
        &[
            $($more,)*
            field("name", NAME),
            field("max_retries_down", RETRIES),
            field("http_method", METHOD),
            field("url_path", AttributeType::Path),
            field("expected_codes", AttributeType::Codes),
            field("admin_state_up", AttributeType::Bool),
            field("tags", TEXTS).since(5),
            field("http_version", AttributeType::HttpVersion).since(10),
            field("domain_name", NAME).since(10),
        ]
    };
}

/// Health monitor to create.
pub const MONITOR_CREATE: Schema = monitor![
    field("pool_id", AttributeType::Uuid).required(),
    field("type", all_of!(MonitorType)).required(),
    field("delay", SECONDS).required(),
    field("timeout", SECONDS).required(),
    field("max_retries", RETRIES).required(),
    field("project_id", NAME),
    field("tenant_id", NAME),
];

const MONITOR_NESTED: Schema = monitor![
    field("type", all_of!(MonitorType)).required(),
    field("delay", SECONDS).required(),
    field("timeout", SECONDS).required(),
    field("max_retries", RETRIES).required(),
];

/// Change of a health monitor.
pub const MONITOR_UPDATE: Schema =
    monitor![field("delay", SECONDS), field("timeout", SECONDS), field("max_retries", RETRIES)];

/// Change of a quota.
pub const QUOTA_UPDATE: Schema = &[
    field("loadbalancer", LIMIT),
    field("load_balancer", LIMIT),
    field("listener", LIMIT),
    field("member", LIMIT),
    field("pool", LIMIT),
    field("healthmonitor", LIMIT),
    field("health_monitor", LIMIT),
    field("l7policy", LIMIT).since(19),
    field("l7rule", LIMIT).since(19),
];

macro_rules! profile {
    ($data:literal) => {
        [field("name", NAME), field("provider_name", NAME), field($data, DATA)]
    };
}

macro_rules! required {
    ($fields:expr) => {{
        let [one, two, three] = $fields;
        &[one.required(), two.required(), three.required()]
    }};
}

const DATA: AttributeType = AttributeType::Text(4096);

/// Flavor profile to create.
pub const FLAVOR_PROFILE_CREATE: Schema = required!(profile!("flavor_data"));

/// Change of a flavor profile.
pub const FLAVOR_PROFILE_UPDATE: Schema = &profile!("flavor_data");

/// Availability zone profile to create.
pub const ZONE_PROFILE_CREATE: Schema = required!(profile!("availability_zone_data"));

/// Change of an availability zone profile.
pub const ZONE_PROFILE_UPDATE: Schema = &profile!("availability_zone_data");

/// Flavor to create.
pub const FLAVOR_CREATE: Schema = &[
    field("name", NAME).required(),
    field("description", NAME),
    field("enabled", AttributeType::Bool),
    field("flavor_profile_id", AttributeType::Uuid).required(),
];

/// Change of a flavor.
pub const FLAVOR_UPDATE: Schema =
    &[field("name", NAME), field("description", NAME), field("enabled", AttributeType::Bool)];

/// Availability zone to create.
pub const ZONE_CREATE: Schema = &[
    field("name", NAME).required(),
    field("description", NAME),
    field("enabled", AttributeType::Bool),
    field("availability_zone_profile_id", AttributeType::Uuid).required(),
];

/// Change of an availability zone.
pub const ZONE_UPDATE: Schema =
    &[field("description", NAME), field("enabled", AttributeType::Bool)];

/// Batch of members: the list itself is the envelope.
pub const MEMBER_BATCH: Schema =
    &[field("members", AttributeType::List(&AttributeType::Object(MEMBER_CREATE))).required()];

/// Parses the body `{"<envelope>": {…}}` of a request, for a server whose newest version is
/// 2.`minor`.
///
/// # Errors
/// 400 for the first attribute that is unknown, missing or invalid, with Octavia's message.
pub fn read<T: DeserializeOwned>(
    body: Value,
    envelope: &str,
    schema: Schema,
    minor: u8,
) -> Result<T, ApiError> {
    let Value::Object(mut outer) = body else {
        return Err(missing_argument(envelope));
    };
    let Some(object) = outer.remove(envelope) else {
        return Err(missing_argument(envelope));
    };
    if let Some(field) = outer.keys().next() {
        return Err(unknown_attribute(envelope, field));
    }
    read_object(object, envelope, schema, minor)
}

/// Parses the body of a batch of members.
///
/// # Errors
/// As [`read`].
pub fn read_batch<T: DeserializeOwned>(body: Value, minor: u8) -> Result<T, ApiError> {
    read_object(body, "members", MEMBER_BATCH, minor)
}

fn read_object<T: DeserializeOwned>(
    object: Value,
    name: &str,
    schema: Schema,
    minor: u8,
) -> Result<T, ApiError> {
    let object = checked_object(name, object, schema, minor)?;
    // The type accepts whatever the table accepts; a difference between them is reported as an
    // error, and nothing changes.
    serde_json::from_value(object).map_err(|error| invalid_input(name, "", error))
}

fn checked_object(name: &str, value: Value, schema: Schema, minor: u8) -> Result<Value, ApiError> {
    let Value::Object(object) = value else {
        return Err(invalid_input(name, shown(&value), "Wrong type. Expected an object"));
    };
    let mut checked = Map::new();
    for (key, value) in object {
        let Some(field) = schema
            .iter()
            .find(|field| field.name == key && field.since <= minor)
        else {
            return Err(unknown_attribute(name, &key));
        };
        let value = if value.is_null() {
            value
        } else {
            checked_value(&key, value, field.kind, minor)?
        };
        checked.insert(key, value);
    }
    match schema
        .iter()
        .find(|field| field.required && checked.get(field.name).is_none_or(Value::is_null))
    {
        Some(field) => Err(invalid_input(field.name, "None", "Mandatory field missing.")),
        None => Ok(checked.into()),
    }
}

fn checked_value(
    name: &str,
    value: Value,
    kind: AttributeType,
    minor: u8,
) -> Result<Value, ApiError> {
    let refuse = |value: &Value, message: &str| Err(invalid_input(name, shown(value), message));
    match kind {
        AttributeType::Int(least, most) => integer(name, &value, least, most),
        AttributeType::Bool => boolean(&value)
            .map_or_else(|| refuse(&value, "Wrong type. Expected a boolean"), |b| Ok(b.into())),
        AttributeType::HttpVersion => match number(&value) {
            Some(version) if [1.0, 1.1].contains(&version) => Ok(version.into()),
            _ => refuse(&value, "Value should be one of: 1.0, 1.1"),
        },
        AttributeType::Object(schema) => checked_object(name, value, schema, minor),
        AttributeType::List(&kind) => {
            let Value::Array(values) = value else {
                return refuse(&value, "Wrong type. Expected a list");
            };
            let values = values
                .into_iter()
                .map(|value| checked_value(name, value, kind, minor));
            Ok(Value::Array(values.collect::<Result<_, _>>()?))
        }
        AttributeType::Headers => match &value {
            Value::Object(headers)
                if headers
                    .values()
                    .all(|value| value.is_string() || value.is_boolean()) =>
            {
                let texts = headers
                    .iter()
                    .map(|(name, value)| (name.clone(), shown(value).into()));
                Ok(Value::Object(texts.collect()))
            }
            _ => refuse(&value, "Wrong type. Expected an object of texts"),
        },
        AttributeType::Text(_)
        | AttributeType::Uuid
        | AttributeType::Word(_)
        | AttributeType::Ip
        | AttributeType::Path
        | AttributeType::Codes
        | AttributeType::Cookie
        | AttributeType::Cidr => {
            let Value::String(text) = &value else {
                return refuse(&value, "Wrong type. Expected a text");
            };
            match text_fault(text, kind) {
                Some(fault) => refuse(&value, &fault),
                None => Ok(value),
            }
        }
    }
}

/// Returns what is wrong with a text, if anything is.
fn text_fault(text: &str, kind: AttributeType) -> Option<String> {
    let unless = |good: bool, message: &str| (!good).then(|| message.to_owned());
    match kind {
        AttributeType::Text(most) => (text.chars().count() > most)
            .then(|| format!("Value should have a maximum character requirement of {most}")),
        AttributeType::Uuid => {
            unless(uuid::Uuid::try_parse(text).is_ok(), "Value should be UUID format")
        }
        AttributeType::Word(words) => {
            let words = words();
            (!words.iter().any(|word| word == text))
                .then(|| format!("Value should be one of: {}", words.join(", ")))
        }
        AttributeType::Ip => {
            unless(text.parse::<IpAddr>().is_ok(), "Value should be IPv4 or IPv6 format")
        }
        AttributeType::Cidr => unless(
            text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok(),
            "Value should be IPv4 or IPv6 CIDR format",
        ),
        AttributeType::Path => unless(
            text.starts_with('/') && !text.contains(|c: char| c.is_whitespace() || c.is_control()),
            "Value must be a valid URL Path string",
        ),
        AttributeType::Codes => {
            unless(are_codes(text), "Value should match the pattern of status codes")
        }
        AttributeType::Cookie => unless(
            !text.is_empty()
                && text.len() <= 255
                && !text.contains(|c: char| c.is_whitespace() || ",;\\".contains(c)),
            "Value should match the pattern ^[^\\s,;\\\\]+$",
        ),
        _ => None,
    }
}

/// Returns whether a text is `200`, `200,202` or `200-204`.
fn are_codes(text: &str) -> bool {
    let code = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
    match text.split_once('-') {
        Some((from, to)) => code(from) && code(to),
        None => text.split(',').all(|part| code(part.trim())),
    }
}

/// Checks an integer, which may be written as a text.
fn integer(name: &str, value: &Value, least: i64, most: i64) -> Result<Value, ApiError> {
    let number = match value {
        Value::Number(number) => number
            .as_i64()
            .or_else(|| number.is_u64().then_some(i64::MAX)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    match number {
        None => Err(invalid_input(name, shown(value), "Wrong type. Expected an integer")),
        Some(number) if number < least => Err(invalid_input(
            name,
            number,
            format_args!("Value should be greater or equal to {least}"),
        )),
        Some(number) if number > most => Err(invalid_input(
            name,
            shown(value),
            format_args!("Value should be lower or equal to {most}"),
        )),
        Some(number) => Ok(number.into()),
    }
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        Value::Number(number) => match number.as_i64() {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        },
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Returns a value as messages show it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
