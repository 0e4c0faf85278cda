//! Bodies: the object or the list in its envelope, and the link to the next page.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::Value;

/// A body with the requested value under a key, and `<key>_links` beside it.
#[derive(Debug)]
pub(super) struct Unwrapped<T> {
    pub value: T,
    /// The link to the next page.
    pub next: Option<String>,
}

/// An object as services send it. They send null for what an object does not have, also where their
/// references promise a value or a list of values: `"availability_zones": [null]` is the answer for
/// a router on an agent without a zone. So a field that is null counts as absent, and an element
/// that is null as none.
struct Object<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = without_nulls(Value::deserialize(deserializer)?);
        T::deserialize(value).map(Self).map_err(de::Error::custom)
    }
}

/// Removes all nulls inside a value.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Array(elements) => elements
            .into_iter()
            .filter(|element| !element.is_null())
            .map(without_nulls)
            .collect(),
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, field)| !field.is_null())
            .map(|(name, field)| (name, without_nulls(field)))
            .collect(),
        other => other,
    }
}

/// Parses a body with one object. Without a key the whole body is the object.
///
/// # Errors
/// It is not JSON, was cut short, lacks the key, or has something else under it.
pub(super) fn unwrap_object<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<T, serde_json::Error> {
    let Unwrapped { value: Object(object), .. } = unwrap_envelope(body, key)?;
    Ok(object)
}

/// Parses a body with a list of objects, one after the other.
///
/// # Errors
/// As for one object. One that cannot be parsed makes the list unusable: it would look deleted.
pub(super) fn unwrap_list<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<Unwrapped<Vec<T>>, serde_json::Error> {
    let Unwrapped { value, next } = unwrap_envelope::<Vec<Option<Object<T>>>>(body, key)?;
    let mut objects = Vec::new();
    for Object(object) in value.into_iter().flatten() {
        objects.push(object);
    }
    Ok(Unwrapped { value: objects, next })
}

fn unwrap_envelope<T: DeserializeOwned>(
    body: &[u8],
    key: &'static str,
) -> Result<Unwrapped<T>, serde_json::Error> {
    if key.is_empty() {
        return Ok(Unwrapped { value: serde_json::from_slice(body)?, next: None });
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let opened = Envelope { key, value: PhantomData }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(opened)
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    rel: String,
    #[serde(default)]
    href: String,
}

struct Envelope<T> {
    key: &'static str,
    value: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Envelope<T> {
    type Value = Unwrapped<T>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Envelope<T> {
    type Value = Unwrapped<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with `{}`", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let links = format!("{}_links", self.key);
        let mut value = None;
        let mut next = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                value = Some(map.next_value()?);
            } else if key == links {
                let links: Option<Vec<Link>> = map.next_value()?;
                next = links
                    .into_iter()
                    .flatten()
                    .find(|link| link.rel == "next")
                    .map(|link| link.href);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        let value = value.ok_or_else(|| de::Error::missing_field(self.key))?;
        Ok(Unwrapped { value, next })
    }
}

/// A body to send, in its envelope; without a key, as it is.
pub(super) struct Wrapped<'a, B> {
    pub key: &'static str,
    pub body: &'a B,
}

impl<B: Serialize> Serialize for Wrapped<'_, B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.key.is_empty() {
            return self.body.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.key, self.body)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ids(body: &str) -> Result<(Vec<u32>, Option<String>), String> {
        unwrap_list::<u32>(body.as_bytes(), "ids")
            .map(|o| (o.value, o.next))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn lists_come_with_the_link_to_the_next_page() {
        let link = r#"{"ids_links":[{"rel":"previous","href":"a"},{"rel":"next","href":"b"}],"x":{},"ids":[1,2]}"#;
        assert_eq!(ids(link), Ok((vec![1, 2], Some("b".to_owned()))));
        for last in
            [r#"{"ids":[]}"#, r#"{"ids":[],"ids_links":[]}"#, r#"{"ids":[],"ids_links":null}"#]
        {
            assert_eq!(ids(last), Ok((vec![], None)), "{last}");
        }
    }

    /// In the form of Neutron 2026.1, with what it answers for an L3 agent without a zone.
    const ROUTER: &str = r#"{"router": {
        "id": "0a4ffd0e-9d0f-4b6c-a2ec-7d8a1ee5a0a2", "name": "nodes", "status": "ACTIVE",
        "admin_state_up": true, "tenant_id": "9d0e", "project_id": "9d0e", "description": "",
        "external_gateway_info": {"network_id": "f1", "external_fixed_ips":
            [{"subnet_id": "f2", "ip_address": "203.0.113.7"}], "enable_snat": true},
        "availability_zone_hints": [], "availability_zones": [null], "flavor_id": null,
        "routes": [{"destination": "10.244.1.0/24", "nexthop": "10.0.0.11"}],
        "tags": [], "created_at": "2026-11-02T08:00:00Z", "updated_at": "2026-11-02T08:00:09Z",
        "revision_number": 4}}"#;

    #[test]
    fn a_router_on_an_agent_without_a_zone_is_read() {
        let router: openstack_api::neutron::Router =
            unwrap_object(ROUTER.as_bytes(), "router").unwrap();
        assert_eq!(router.routes[0].destination, "10.244.1.0/24");
        assert_eq!(router.availability_zones, [""; 0]);
    }

    #[test]
    fn a_null_is_as_good_as_absent_in_every_type_that_is_read() {
        use openstack_api::{
            neutron::{FloatingIp, Network, Port, Router, SecurityGroup, Subnet},
            nova::{Flavor, Server},
            octavia::{HealthMonitor, Listener, LoadBalancer, Member, Pool},
        };

        /// Parses an object in which every field but the required ones is null, then one in which
        /// they are lists of null.
        fn check<T: DeserializeOwned + Serialize>(required: &Value) {
            let parsed: T = serde_json::from_value(required.clone()).unwrap();
            let complete = serde_json::to_value(&parsed).unwrap();
            let required = required.as_object().unwrap();
            for null in [Value::Null, json!([null])] {
                let mut fields = complete.as_object().unwrap().clone();
                for (name, field) in &mut fields {
                    if required.contains_key(name) {
                        continue;
                    }
                    *field = if field.is_array() {
                        null.clone()
                    } else {
                        Value::Null
                    };
                }
                let body = json!({ "rows": [null, fields] }).to_string();
                let list = unwrap_list::<T>(body.as_bytes(), "rows");
                let list = list.unwrap_or_else(|error| panic!("{error}: {body}"));
                assert_eq!(list.value.len(), 1, "{body}");
            }
        }

        let id = json!({"id": "1"});
        check::<Router>(&id);
        check::<Server>(&id);
        check::<Network>(&id);
        check::<Subnet>(&id);
        check::<Port>(&id);
        check::<FloatingIp>(&id);
        check::<SecurityGroup>(&id);
        check::<Flavor>(&json!({"id": "1", "name": "small"}));
        let with = |more: Value| {
            let mut object =
                json!({"id": "1", "provisioning_status": "ACTIVE", "operating_status": "ONLINE"});
            let fields = object.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            object
        };
        check::<LoadBalancer>(&with(json!({})));
        check::<Listener>(&with(json!({"protocol": "TCP", "protocol_port": 80})));
        check::<Pool>(&with(json!({"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"})));
        check::<Member>(&with(json!({"address": "10.0.0.1", "protocol_port": 80})));
        let health = json!({"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1});
        check::<HealthMonitor>(&with(health));
    }

    #[test]
    fn a_list_with_an_object_that_cannot_be_parsed_is_an_error() {
        assert!(ids(r#"{"ids":[1,"two"]}"#).is_err());
        assert_eq!(ids(r#"{"ids":[1,null,2]}"#), Ok((vec![1, 2], None)));
    }

    #[test]
    fn what_proves_nothing_is_an_error_and_no_empty_list() {
        let bodies = [
            "",
            "{}",
            "[]",
            r#"{"ids":null}"#,
            r#"{"others":[]}"#,
            r#"{"ids":[1,"#,
            r#"{"ids":[1]}}"#,
            "<html>",
        ];
        for body in bodies {
            assert!(ids(body).is_err(), "{body}");
        }
    }

    #[test]
    fn bodies_are_sent_in_their_envelope() {
        let text = |key| serde_json::to_string(&Wrapped { key, body: &[1] }).unwrap();
        assert_eq!((text("ids"), text("")), (r#"{"ids":[1]}"#.to_owned(), "[1]".to_owned()));
    }
}
