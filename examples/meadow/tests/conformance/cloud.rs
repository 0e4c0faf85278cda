//! Meadow itself: its REST API over a world in memory. For the provider it is a server like any
//! other; the kit's adapter looks at the world behind it.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /v1/instances`, `/v1/routes`, `/v1/balancers` | `{"items": [...], "next": "v1/..."}`, one page; further parameters but `after` must be equal to labels |
//! | `GET /v1/instances/{id}` | 200 and the instance |
//! | `POST /v1/routes`, `POST /v1/balancers` | 201 and what was made; 409 when the network has the destination, or the project the name |
//! | `PATCH /v1/balancers/{id}` | 200 and the balancer with what was in the body; 409 unless it is ready |
//! | `DELETE /v1/routes/{id}`, `DELETE /v1/balancers/{id}` | 204; a balancer may be listed for a while as `deleting` |
//!
//! Errors are `{"code": "...", "message": "..."}` with a fitting status.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ccm_testkit::conformance::{InjectedFault, SimulatedApi, json_response};
use http::{HeaderValue, Request, Response, header};
use ipnet::IpNet;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) const TOKEN: &str = "meadow-token";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: &'static str,
    size: &'static str,
    zone: &'static str,
    region: &'static str,
    pub(crate) private_address: IpAddr,
    public_address: Option<IpAddr>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Route {
    #[serde(skip_deserializing)]
    pub(crate) id: String,
    /// Label.
    pub(crate) cluster: Option<String>,
    pub(crate) destination: IpNet,
    pub(crate) instance: String,
    #[serde(skip_deserializing)]
    broken: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadBalancer {
    name: String,
    labels: BTreeMap<String, String>,
    size: String,
    pub(crate) listeners: BTreeSet<String>,
    pub(crate) sources: BTreeSet<IpNet>,
    health_port: Option<NonZeroU16>,
    pub(crate) members: BTreeSet<String>,
}

/// A balancer with what the cloud adds.
#[derive(Clone, Debug)]
pub(crate) struct StoredLoadBalancer {
    pub(crate) is: LoadBalancer,
    pub(crate) address: IpAddr,
    ready_at: Instant,
    gone_at: Option<Instant>,
}

impl StoredLoadBalancer {
    fn json(&self, id: &str) -> Value {
        let state = match self.gone_at {
            Some(_) => "deleting",
            None if self.ready_at > Instant::now() => "building",
            None => "ready",
        };
        let mut json = serde_json::to_value(&self.is).unwrap();
        let more = json!({"id": id, "state": state, "address": self.address, "created": "2026-01-02T03:04:05Z"});
        json.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json
    }
}

#[derive(Debug, Default)]
pub(crate) struct MeadowState {
    pub(crate) instances: BTreeMap<u32, Instance>,
    pub(crate) routes: BTreeMap<String, Route>,
    pub(crate) balancers: BTreeMap<String, StoredLoadBalancer>,
    /// How long balancers take to be ready and, half of it, to be gone.
    pub(crate) activation: Duration,
    pub(crate) last: u32,
}

/// The cloud. Clones share it.
#[derive(Clone)]
pub(crate) struct Cloud {
    pub(crate) world: Arc<Mutex<MeadowState>>,
    page: usize,
}

/// Status, code and message of a request that fails.
type ApiRejection = (u16, &'static str, String);

impl SimulatedApi for Cloud {
    fn respond(&self, request: &Request<Bytes>) -> Response<Bytes> {
        match self.carry_out(request) {
            Ok((status, body)) => response(status, &body),
            Err(rejection) => error(rejection),
        }
    }

    fn fault_response(&self, fault: InjectedFault) -> Response<Bytes> {
        let (status, code) = match fault {
            InjectedFault::Denied => (403, "forbidden"),
            InjectedFault::Invalid => (422, "invalid"),
            InjectedFault::Transient => (500, "internal"),
            InjectedFault::Throttled(_) => (429, "throttled"),
        };
        let mut response = error((status, code, "as the script says".to_owned()));
        if let InjectedFault::Throttled(after) = fault {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, after.as_secs().into());
        }
        response
    }
}

impl Cloud {
    /// Makes an empty cloud that lists this many things on a page.
    pub(crate) fn new(page: usize) -> Self {
        Self { world: Arc::default(), page }
    }

    fn carry_out(&self, request: &Request<Bytes>) -> Result<(u16, Value), ApiRejection> {
        let token = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        if token != Some(&format!("Bearer {TOKEN}")) {
            return Err((401, "unauthenticated", "the token is not known".to_owned()));
        }
        let mut world = self.world.lock();
        let world = &mut *world;
        world
            .balancers
            .retain(|_, built| built.gone_at.is_none_or(|at| at > Instant::now()));
        let path = request.uri().path();
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let query = request.uri().query().unwrap_or_default();
        match (request.method().as_str(), &segments[..]) {
            ("GET", ["v1", what]) => {
                let all = world.list(what).ok_or_else(|| unknown(path))?;
                Ok((200, page(&all, path, query, self.page)))
            }
            ("GET", ["v1", "instances", id]) => world
                .instances
                .values()
                .find(|instance| instance.id == *id)
                .map(|instance| (200, serde_json::to_value(instance).unwrap()))
                .ok_or_else(|| absent("instance", id)),
            ("POST", ["v1", "routes"]) => world.add_route(body(request)?),
            ("DELETE", ["v1", "routes", id]) => world
                .routes
                .remove(*id)
                .map(|_| (204, Value::Null))
                .ok_or_else(|| absent("route", id)),
            ("POST", ["v1", "balancers"]) => world.add_balancer(body(request)?),
            ("PATCH", ["v1", "balancers", id]) => world.change_balancer(id, &body(request)?),
            ("DELETE", ["v1", "balancers", id]) => {
                let gone_at = Instant::now() + world.activation / 2;
                world
                    .balancers
                    .get_mut(*id)
                    .ok_or_else(|| absent("balancer", id))?
                    .gone_at
                    .get_or_insert(gone_at);
                Ok((204, Value::Null))
            }
            _ => Err(unknown(path)),
        }
    }
}

impl MeadowState {
    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Creates a running instance.
    pub(crate) fn add_instance(&mut self, name: &str) -> Instance {
        let number = self.number();
        let [_, a, b, c] = number.to_be_bytes();
        let (size, zone, region) = ("m2", "north-1", "north");
        let instance = Instance {
            id: format!("ins-{number}"),
            name: name.to_owned(),
            state: "running",
            size,
            zone,
            region,
            private_address: Ipv4Addr::new(10, a, b, c).into(),
            public_address: number
                .is_multiple_of(2)
                .then(|| Ipv4Addr::new(203, 0, 113, c).into()),
        };
        self.instances.insert(number, instance.clone());
        instance
    }

    pub(crate) fn instance(&mut self, name: &str) -> Option<&mut Instance> {
        self.instances
            .values_mut()
            .find(|instance| instance.name == name)
    }

    /// Returns the name of an instance that is there.
    pub(crate) fn name_of(&self, id: &str) -> Option<String> {
        self.instances
            .values()
            .find(|instance| instance.id == id)
            .map(|instance| instance.name.clone())
    }

    fn list(&self, what: &str) -> Option<Vec<Value>> {
        let instances = || {
            self.instances
                .values()
                .map(|instance| serde_json::to_value(instance).unwrap())
                .collect()
        };
        let route = |route: &Route| {
            let broken = self.name_of(&route.instance).is_none();
            serde_json::to_value(Route { broken, ..route.clone() }).unwrap()
        };
        match what {
            "instances" => Some(instances()),
            "routes" => Some(self.routes.values().map(route).collect()),
            "balancers" => Some(
                self.balancers
                    .iter()
                    .map(|(id, built)| built.json(id))
                    .collect(),
            ),
            _ => None,
        }
    }

    pub(crate) fn add_route(&mut self, route: Route) -> Result<(u16, Value), ApiRejection> {
        if self.name_of(&route.instance).is_none() {
            return Err((422, "invalid", format!("there is no instance {}", route.instance)));
        }
        if route.destination != route.destination.trunc() {
            return Err((422, "invalid", format!("{} is no network", route.destination)));
        }
        if self
            .routes
            .values()
            .any(|other| other.destination == route.destination)
        {
            return Err((409, "conflict", format!("there is a route to {}", route.destination)));
        }
        // Of equal length, so that their order is that of their numbers.
        let id = format!("rt-{:08}", self.number());
        let route = Route { id: id.clone(), ..route };
        self.routes.insert(id, route.clone());
        Ok((201, serde_json::to_value(route).unwrap()))
    }

    pub(crate) fn add_balancer(&mut self, is: LoadBalancer) -> Result<(u16, Value), ApiRejection> {
        check(&is)?;
        if self
            .balancers
            .values()
            .any(|other| other.is.name == is.name)
        {
            return Err((409, "conflict", format!("there is a balancer {}", is.name)));
        }
        let number = self.number();
        let id = format!("lb-{number:08}");
        let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number).into();
        let built = StoredLoadBalancer {
            is,
            address,
            ready_at: Instant::now() + self.activation,
            gone_at: None,
        };
        let json = built.json(&id);
        self.balancers.insert(id, built);
        Ok((201, json))
    }

    fn change_balancer(&mut self, id: &str, change: &Value) -> Result<(u16, Value), ApiRejection> {
        let built = self
            .balancers
            .get_mut(id)
            .ok_or_else(|| absent("balancer", id))?;
        if built.json(id)["state"] != "ready" {
            return Err((409, "conflict", format!("balancer {id} is busy")));
        }
        let mut json = serde_json::to_value(&built.is).unwrap();
        let fields = change.as_object().ok_or_else(|| invalid("no object"))?;
        json.as_object_mut().unwrap().extend(fields.clone());
        let is = serde_json::from_value(json).map_err(|error| invalid(error.to_string()))?;
        check(&is)?;
        built.is = is;
        Ok((200, built.json(id)))
    }
}

/// Refuses what a balancer cannot be.
fn check(balancer: &LoadBalancer) -> Result<(), ApiRejection> {
    for listener in &balancer.listeners {
        let port = |text: &str| text.parse::<NonZeroU16>().is_ok();
        let right = |(ports, protocol): (&str, &str)| {
            matches!(protocol, "tcp" | "udp")
                && ports
                    .split_once(':')
                    .is_some_and(|(a, b)| port(a) && port(b))
        };
        if !listener.split_once('/').is_some_and(right) {
            return Err(invalid(format!("listener {listener}")));
        }
    }
    match (&*balancer.size, balancer.name.len()) {
        ("small" | "large", 1..=63) => Ok(()),
        _ => Err(invalid(format!("size {} or the length of the name", balancer.size))),
    }
}

fn body<T: DeserializeOwned>(request: &Request<Bytes>) -> Result<T, ApiRejection> {
    serde_json::from_slice(request.body()).map_err(|error| invalid(error.to_string()))
}

fn invalid(why: impl Into<String>) -> ApiRejection {
    (422, "invalid", why.into())
}

fn absent(what: &str, id: &str) -> ApiRejection {
    (404, "not_found", format!("there is no {what} {id}"))
}

fn unknown(path: &str) -> ApiRejection {
    (404, "no_such_path", format!("{path} is no path of this API"))
}

/// One page of what fits the labels, after the one with the id that is asked for.
fn page(all: &[Value], path: &str, query: &str, size: usize) -> Value {
    let pairs: Vec<_> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let (after, labels): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(key, _)| *key == "after");
    let label = |item: &Value, key: &str| {
        item["labels"][key]
            .as_str()
            .or(item[key].as_str())
            .map(str::to_owned)
    };
    let fits = |item: &&Value| {
        labels
            .iter()
            .all(|(key, value)| label(item, key).as_deref() == Some(*value))
    };
    let id = |item: &Value| item["id"].as_str().unwrap_or_default().to_owned();
    let start = after
        .first()
        .and_then(|(_, after)| all.iter().position(|item| id(item) == *after))
        .map_or(0, |at| at + 1);
    let mut rest = all[start..].iter().filter(fits);
    let items: Vec<_> = rest.by_ref().take(size).cloned().collect();
    let more = rest.next().and(items.last()).map(|last| {
        let kept: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("&{key}={value}"))
            .collect();
        format!("{}?after={}{}", path.trim_start_matches('/'), id(last), kept.concat())
    });
    json!({"items": items, "next": more})
}

fn error((status, code, message): ApiRejection) -> Response<Bytes> {
    response(status, &json!({"code": code, "message": message}))
}

fn response(status: u16, body: &Value) -> Response<Bytes> {
    let mut response = json_response(status, body).unwrap();
    let id = HeaderValue::from_static("req-1");
    response.headers_mut().insert("x-request-id", id);
    response
}
