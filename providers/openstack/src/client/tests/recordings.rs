//! Answers of OpenStack's own services and samples of their API references: read as they are, and with
//! every field in turn absent, null, with an unknown word, and of another type.

use std::{collections::BTreeSet, fmt::Debug};

use serde::{Serialize, de::DeserializeOwned};

use super::*;
use crate::{
    api::{
        from_json,
        keystone::Token,
        neutron::{Extension, FloatingIp, Port, Router, SecurityGroup, SecurityGroupRule, Subnet},
        nova::{Flavor, Server},
        octavia::{HealthMonitor, Listener, LoadBalancer, LoadBalancerTree, Member, Pool},
        version::VersionDocument,
    },
    client::body::{unwrap_list, unwrap_object},
};

macro_rules! recording {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../tests/fixtures/", $path, ".json")))
    };
}

const RECORDINGS: [(&str, &str); 9] = [
    recording!("openstack-2026.1/identity"),
    recording!("openstack-2026.1/nova"),
    recording!("openstack-2026.1/neutron"),
    recording!("openstack-2026.1/octavia"),
    recording!("openstack-2026.1/barbican"),
    recording!("api-references/identity"),
    recording!("api-references/nova"),
    recording!("api-references/neutron"),
    recording!("api-references/octavia"),
];

/// Returns each answer with the name of its recording and request.
fn answers() -> Vec<(String, Value)> {
    let mut answers = Vec::new();
    for (name, text) in RECORDINGS {
        let requests: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap();
        for (request, body) in requests {
            answers.push((format!("{name}: {request}"), body));
        }
    }
    answers
}

/// How a type is read.
struct Reading {
    /// Key of one object in its answer.
    one: &'static str,
    /// Key of a list of them.
    many: &'static str,
    /// Fields without which an object is nothing to the provider.
    required: &'static [&'static str],
    /// Fields of text that are parsed, such as an address. Others are kept whatever they say.
    parsed: &'static [&'static str],
}

impl Reading {
    /// Returns the objects of the recordings, by answer.
    fn recorded(&self) -> Vec<(String, Vec<Value>)> {
        let mut found = Vec::new();
        for (name, body) in answers() {
            if let Some(Value::Array(rows)) = body.get(self.many) {
                found.push((name, rows.clone()));
            } else if let Some(object @ Value::Object(_)) = body.get(self.one) {
                found.push((name, vec![object.clone()]));
            }
        }
        assert!(found.len() > 1, "{}", self.many);
        found
    }

    /// Reads a list, and then each of its rows alone, which must give the same. Returns `None` for a
    /// row that cannot be read.
    fn read<T: DeserializeOwned + PartialEq + Debug>(&self, rows: &[&Value]) -> Vec<Option<T>> {
        let body = json!({ self.many: rows }).to_string();
        let list = unwrap_list::<T>(body.as_bytes(), self.many, None);
        let list = list.unwrap_or_else(|error| panic!("the list is lost: {error}: {body}"));
        assert_eq!(list.value.len(), rows.len(), "no row is lost: {body}");
        let mut read = Vec::new();
        for (row, result) in rows.iter().zip(list.value) {
            let alone = json!({ self.one: row }).to_string();
            let alone = unwrap_object::<T>(alone.as_bytes(), self.one, None).ok();
            assert_eq!(result.as_ref().ok(), alone.as_ref(), "{row}");
            if let Err(bad) = &result {
                assert_eq!(bad.row, from_json::<Value>((*row).clone()).unwrap());
            }
            read.push(result.ok());
        }
        read
    }

    /// Checks all recorded objects, and what becomes of them.
    fn check<T: DeserializeOwned + Serialize + PartialEq + Debug>(&self) {
        let mut names = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut shapes = BTreeSet::new();
        let mut variants = 0;
        for (recording, rows) in self.recorded() {
            let all: Vec<&Value> = rows.iter().collect();
            for (row, read) in rows.iter().zip(self.read::<T>(&all)) {
                let read = read.unwrap_or_else(|| panic!("{recording}: not read: {row}"));
                let fields = fields(&read);
                for name in fields.keys() {
                    names.insert(name.clone());
                    if row.get(name).is_some() {
                        seen.insert(name.clone());
                    }
                }
                let fields = Value::Object(fields);
                assert!(is_read_from(row, &fields, ""), "{recording}:\n{row}\nread as\n{fields}");
            }
            for row in &rows {
                let original = fields(&self.read::<T>(&[row]).remove(0));
                let mut of_row = Variant::of_others(row, &original);
                for (name, value) in row.as_object().unwrap() {
                    let mut paths = vec![format!("/{}", escape(name))];
                    collect_paths(value, &paths[0].clone(), &mut paths);
                    // A field like one before shows nothing new.
                    if original.contains_key(name) && shapes.insert(shape(row, &paths)) {
                        of_row.extend(Variant::of(row, &paths));
                    }
                }
                variants += of_row.len();
                for variant in of_row {
                    self.check_variant::<T>(&recording, row, &original, &variant);
                }
            }
        }
        assert_eq!(names, seen, "{}: a field that no service sends", self.one);
        assert!(variants > 10, "{}: {variants}", self.one);
    }

    /// Checks a row in which something is not as recorded, beside one that is.
    fn check_variant<T: DeserializeOwned + Serialize + PartialEq + Debug>(
        &self,
        recording: &str,
        row: &Value,
        original: &serde_json::Map<String, Value>,
        variant: &Variant,
    ) {
        let about = format!("{recording}: {} {:?}", variant.path, variant.change);
        let mut read = self.read::<T>(&[&variant.row, row]);
        assert_eq!(&fields(&read[1]), original, "{about}: the other row is not read");
        let is_used = original.contains_key(&variant.field);
        let is_required = self.required.contains(&&*variant.field);
        let is_nested = variant.path.matches('/').count() > 1;
        let Some(read) = read.remove(0) else {
            // The row is lost, and its listing says so.
            assert!(is_used, "{about}: nobody needs the field, and the row cannot be read");
            let may_be_lost = match variant.change {
                Change::Removed | Change::Null => is_required || is_nested,
                Change::Word => self.parsed.contains(&&*variant.field) || is_nested,
                Change::OtherType => true,
            };
            assert!(may_be_lost, "{about}: the row cannot be read");
            return;
        };
        let is_absent = matches!(variant.change, Change::Removed | Change::Null);
        assert!(!(is_absent && is_required && !is_nested), "{about}: it is required");
        let read = fields(&read);
        for (name, value) in &read {
            if *name != variant.field {
                assert_eq!(value, &original[name], "{about}: {name} is read differently");
            }
        }
        let read = Value::Object(read);
        assert!(
            is_read_from(&variant.row, &read, ""),
            "{about}:\n{}\nread as\n{read}",
            variant.row
        );
    }
}

fn fields(read: &impl Serialize) -> serde_json::Map<String, Value> {
    match serde_json::to_value(read) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("{other:?}"),
    }
}

/// What is not as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Removed,
    Null,
    Word,
    OtherType,
}

/// A recorded row in which one value is not as recorded.
struct Variant {
    /// Field of the row that the value is in.
    field: String,
    /// JSON pointer to the value.
    path: String,
    change: Change,
    row: Value,
}

impl Variant {
    /// Returns a row with each of these values changed in each way.
    fn of(row: &Value, paths: &[String]) -> Vec<Self> {
        let mut variants = Vec::new();
        for path in paths {
            let replacements = match row.pointer(path).unwrap() {
                Value::String(_) => {
                    vec![(Change::Word, json!("SOMETHING_NEW")), (Change::OtherType, json!([7]))]
                }
                Value::Array(_) | Value::Object(_) => {
                    vec![(Change::OtherType, json!("odd")), (Change::OtherType, json!(7))]
                }
                _ => vec![
                    (Change::OtherType, json!({"odd": [1]})),
                    (Change::OtherType, json!("odd")),
                ],
            };
            for (change, value) in replacements
                .into_iter()
                .chain([(Change::Null, Value::Null)])
            {
                let mut changed = row.clone();
                *changed.pointer_mut(path).unwrap() = value;
                variants.push(Self::new(path, change, changed));
            }
            let (parent, last) = path.rsplit_once('/').unwrap();
            let mut changed = row.clone();
            match changed.pointer_mut(parent) {
                Some(Value::Object(fields)) => drop(fields.remove(&unescape(last))),
                Some(Value::Array(elements)) => drop(elements.remove(last.parse().unwrap())),
                other => panic!("{other:?}"),
            }
            variants.push(Self::new(path, Change::Removed, changed));
        }
        variants
    }

    /// Returns a row with all fields that are not read changed in each way, at once.
    fn of_others(row: &Value, read: &serde_json::Map<String, Value>) -> Vec<Self> {
        let is_other = |name: &String| !read.contains_key(name);
        let mut variants = Vec::new();
        for (change, value) in [
            (Change::Removed, None),
            (Change::Null, Some(Value::Null)),
            (Change::Word, Some(json!("SOMETHING_NEW"))),
            (Change::OtherType, Some(json!([7, {"odd": [1]}]))),
        ] {
            let mut changed = row.as_object().unwrap().clone();
            match value {
                None => changed.retain(|name, _| !is_other(name)),
                Some(value) => changed
                    .iter_mut()
                    .filter(|(name, _)| is_other(name))
                    .for_each(|(_, field)| *field = value.clone()),
            }
            variants.push(Self::new("/(what is not read)", change, changed.into()));
        }
        variants
    }

    fn new(path: &str, change: Change, row: Value) -> Self {
        let field = path.split('/').nth(1).unwrap();
        Self { field: unescape(field), path: path.to_owned(), change, row }
    }
}

fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

fn escape(part: &str) -> String {
    part.replace('~', "~0").replace('/', "~1")
}

/// Collects the pointers to all values inside a value; in lists to the first two elements.
fn collect_paths(value: &Value, path: &str, paths: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            fields.map(|(name, field)| (escape(name), field)).collect()
        }
        Value::Array(elements) => {
            let elements = elements.iter().take(2).enumerate();
            elements
                .map(|(at, element)| (at.to_string(), element))
                .collect()
        }
        _ => return,
    };
    for (part, value) in inner {
        let inner = format!("{path}/{part}");
        collect_paths(value, &inner, paths);
        paths.push(inner);
    }
}

/// Describes the values at some paths: where they are, and of which type.
fn shape(row: &Value, paths: &[String]) -> String {
    let kind = |path: &String| match row.pointer(path) {
        None | Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "bool",
        Some(Value::Number(_)) => "number",
        Some(Value::String(_)) => "text",
        Some(Value::Array(_)) => "list",
        Some(Value::Object(_)) => "object",
    };
    let lines: Vec<String> = paths
        .iter()
        .map(|path| format!("{path} {}", kind(path)))
        .collect();
    lines.join("\n")
}

/// Lists of which elements that cannot be read are left out.
const CHOICES: [&str; 2] = ["catalog", "endpoints"];
/// What counts where a service shows nothing.
const DEFAULTS: [(&str, i64); 2] = [("connection_limit", -1), ("weight", 1)];

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
    }
}

/// Returns true if everything that was read is in the answer, and everything that was absent or null
/// in the answer is nothing, or the default, in what was read.
fn is_read_from(answer: &Value, read: &Value, name: &str) -> bool {
    match (answer, read) {
        (Value::Null, read) => {
            is_nothing(read)
                || DEFAULTS
                    .iter()
                    .any(|(field, value)| *field == name && read == value)
        }
        (Value::Object(answer), Value::Object(read)) => read
            .iter()
            .all(|(name, read)| is_read_from(answer.get(name).unwrap_or(&Value::Null), read, name)),
        (Value::Array(answer), Value::Array(read)) => {
            let answer: Vec<&Value> = answer.iter().filter(|element| !element.is_null()).collect();
            let mut rest = answer.iter();
            let in_order = read
                .iter()
                .all(|read| rest.any(|answer| is_read_from(answer, read, name)));
            in_order && (answer.len() == read.len() || CHOICES.contains(&name))
        }
        (Value::String(answer), Value::String(read)) => {
            let address = |text: &str| text.parse::<std::net::IpAddr>().ok();
            answer == read || (address(answer).is_some() && address(answer) == address(read))
        }
        // Where text is read, a number or a boolean becomes text.
        (answer, Value::String(read)) => read.parse::<Value>().is_ok_and(|read| read == *answer),
        (answer, read) => answer == read,
    }
}

#[test]
fn answers_of_keystone_and_nova_are_read_whatever_they_lack() {
    let id: &[&str] = &["id"];
    Reading { one: "token", many: "tokens", required: &[], parsed: &[] }.check::<Token>();
    Reading { one: "server", many: "servers", required: id, parsed: &[] }.check::<Server>();
    Reading {
        one: "flavor",
        many: "flavors",
        required: &["name"],
        parsed: &[],
    }
    .check::<Flavor>();
}

#[test]
fn answers_of_neutron_are_read_whatever_they_lack() {
    let id: &[&str] = &["id"];
    let named = &["id", "name"];
    let address = &["floating_ip_address"];
    Reading {
        one: "extension",
        many: "extensions",
        required: &["alias"],
        parsed: &[],
    }
    .check::<Extension>();
    Reading {
        one: "router",
        many: "routers",
        required: &["routes"],
        parsed: &[],
    }
    .check::<Router>();
    Reading { one: "network", many: "networks", required: id, parsed: &[] }.check::<Network>();
    Reading { one: "subnet", many: "subnets", required: id, parsed: &[] }.check::<Subnet>();
    Reading {
        one: "port",
        many: "ports",
        required: &["id", "device_id", "status", "fixed_ips"],
        parsed: &[],
    }
    .check::<Port>();
    Reading {
        one: "floatingip",
        many: "floatingips",
        required: id,
        parsed: address,
    }
    .check::<FloatingIp>();
    Reading {
        one: "security_group",
        many: "security_groups",
        required: named,
        parsed: &[],
    }
    .check::<SecurityGroup>();
    Reading {
        one: "security_group_rule",
        many: "security_group_rules",
        required: id,
        parsed: &[],
    }
    .check::<SecurityGroupRule>();
}

#[test]
fn answers_of_octavia_are_read_whatever_they_lack() {
    let (named, listener) =
        (&["id", "name", "provisioning_status"], &["id", "protocol", "protocol_port"]);
    Reading {
        one: "loadbalancer",
        many: "loadbalancers",
        required: named,
        parsed: &[],
    }
    .check::<LoadBalancer>();
    Reading {
        one: "listener",
        many: "listeners",
        required: listener,
        parsed: &[],
    }
    .check::<Listener>();
    Reading {
        one: "pool",
        many: "pools",
        required: &["id", "protocol"],
        parsed: &[],
    }
    .check::<Pool>();
    let member = &["id", "address", "protocol_port"];
    Reading {
        one: "member",
        many: "members",
        required: member,
        parsed: &[],
    }
    .check::<Member>();
    Reading {
        one: "healthmonitor",
        many: "healthmonitors",
        required: &["id", "type"],
        parsed: &[],
    }
    .check::<HealthMonitor>();
}

#[test]
fn a_tree_of_every_release_is_read() {
    let mut trees = 0;
    for (name, body) in answers() {
        if !name.ends_with("POST /v2/lbaas/loadbalancers (full)") {
            continue;
        }
        let answer = body.to_string();
        let tree: LoadBalancerTree =
            unwrap_object(answer.as_bytes(), "loadbalancer", None).unwrap();
        let expected = &body["loadbalancer"];
        assert_eq!(tree.load_balancer.id, expected["id"]);
        let ids = |list: &Value| -> Vec<Value> {
            let list = list.as_array().unwrap();
            list.iter().map(|object| object["id"].clone()).collect()
        };
        let listeners: Vec<_> = tree
            .listeners
            .iter()
            .map(|listener| json!(listener.id))
            .collect();
        assert_eq!(listeners, ids(&expected["listeners"]), "{name}");
        let pools: Vec<_> = tree.pools.iter().map(|pool| json!(pool.pool.id)).collect();
        assert_eq!(pools, ids(&expected["pools"]), "{name}");
        for (pool, expected) in tree.pools.iter().zip(expected["pools"].as_array().unwrap()) {
            let members: Vec<_> = pool.members.iter().map(|member| json!(member.id)).collect();
            assert_eq!(members, ids(&expected["members"]), "{name}");
            let monitor = pool.monitor.as_ref().map(|monitor| &*monitor.id);
            assert_eq!(monitor, expected["healthmonitor"]["id"].as_str(), "{name}");
        }
        trees += 1;
    }
    assert!(trees > 2, "{trees}");
}

#[test]
fn versions_of_every_release_are_read() {
    let mut documents = 0;
    for (name, body) in answers() {
        if body.get("version").is_none() && body.get("versions").is_none() {
            continue;
        }
        documents += 1;
        let read = |body: &Value| {
            from_json::<VersionDocument>(body.clone()).map(VersionDocument::into_versions)
        };
        let versions = read(&body).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(versions.iter().all(|version| version.number().is_some()), "{name}: {versions:?}");
        assert!(
            versions.iter().any(|version| version.self_link().is_some()),
            "{name}: {versions:?}"
        );
        // A field that is odd costs its version, and never more.
        let mut paths = Vec::new();
        collect_paths(&body, "", &mut paths);
        for variant in Variant::of(&body, &paths) {
            if variant.path.matches('/').count() < 3 {
                continue;
            }
            let read = read(&variant.row);
            let count = read.map(|versions| versions.len()).unwrap_or_default();
            let is_alone = versions.len() == 1;
            assert!(is_alone || count + 1 >= versions.len(), "{name}: {}", variant.path);
        }
    }
    assert!(documents > 5, "{documents}");
}

#[test]
fn every_answer_is_read_by_a_test_or_by_nobody() {
    let read = [
        "token",
        "server",
        "flavor",
        "extension",
        "router",
        "network",
        "subnet",
        "port",
        "floatingip",
        "security_group",
        "security_group_rule",
        "loadbalancer",
        "listener",
        "pool",
        "member",
        "healthmonitor",
        "version",
    ];
    let unread = ["interfaceAttachments", "statuses", "containers"];
    for (name, body) in answers() {
        let is_known =
            |key: &&str| body.get(*key).is_some() || body.get(format!("{key}s")).is_some();
        assert!(read.iter().any(is_known) || unread.iter().any(is_known), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_every_service_are_understood() {
    let text = include_str!("../../../tests/fixtures/openstack-2026.1/errors.json");
    let refusals: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap();
    let expected = [
        ("failover is the administrator's", Call::LoadBalancerFailover, ErrorClass::Denied),
        ("no such load balancer", Call::LoadBalancerGet, ErrorClass::NotFound),
        ("no such port", Call::PortGet, ErrorClass::NotFound),
        ("no such router", Call::RouterGet, ErrorClass::NotFound),
        ("no such server", Call::ServerGet, ErrorClass::NotFound),
        ("no such subnet", Call::LoadBalancerCreate, ErrorClass::Invalid),
    ];
    let names: Vec<&str> = expected.iter().map(|(name, ..)| *name).collect();
    assert_eq!(refusals.keys().collect::<Vec<_>>(), names);
    for (name, call, class) in expected {
        let refusal = &refusals[name];
        let status = StatusCode::from_u16(refusal["status"].as_u64().unwrap().try_into().unwrap());
        let body = refusal["body"].to_string();
        let error = OpenStackError::from_response(
            call,
            &name.into(),
            status.unwrap(),
            &http::HeaderMap::new(),
            &Bytes::from(body),
            &[],
        );
        assert_eq!(error.class(), class, "{name}: {error}");
        assert_eq!(error.is_not_found(), class == ErrorClass::NotFound, "{name}: {error}");
    }
}
