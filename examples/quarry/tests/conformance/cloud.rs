//! Quarry itself: its REST API over a world in memory. For the provider it is a server like any
//! other; the kit's adapter looks at the world behind it. API.md describes it.
//!
//! Every change is an action that takes effect when it is completed. Until then its network or load
//! balancer is locked.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ccm_testkit::conformance::{InjectedFault, SimulatedApi, json_response};
use http::{Request, Response};
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) const TOKEN: &str = "quarry-token";

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) status: &'static str,
    pub(crate) private_ip: Ipv4Addr,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) destination: Ipv4Net,
    pub(crate) gateway: Ipv4Addr,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    pub(crate) listen_port: NonZeroU16,
    destination_port: NonZeroU16,
    proxy_protocol: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct LoadBalancer {
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
    kind: String,
    pub(crate) services: BTreeMap<NonZeroU16, Service>,
    pub(crate) targets: BTreeSet<u64>,
    pub(crate) address: Ipv4Addr,
}

/// The effect of an action.
#[derive(Clone, Debug)]
enum Effect {
    Nothing,
    AddRoute(Route),
    DeleteRoute(Route),
    ChangeType(String),
    SetService(Service),
    DeleteService(NonZeroU16),
    AddTarget(u64),
    RemoveTarget(u64),
}

#[derive(Clone, Debug)]
struct Action {
    /// The network or load balancer that is locked.
    resource: u64,
    done_at: Instant,
    /// `None` once it has ended.
    effect: Option<Effect>,
    fails: bool,
}

#[derive(Debug, Default)]
pub(crate) struct QuarryState {
    pub(crate) servers: BTreeMap<u64, Server>,
    pub(crate) networks: BTreeMap<u64, BTreeSet<Route>>,
    pub(crate) load_balancers: BTreeMap<u64, LoadBalancer>,
    actions: BTreeMap<u64, Action>,
    /// The time that an action takes.
    pub(crate) completion: Duration,
    pub(crate) next_fails: bool,
    last: u64,
}

/// The cloud. Clones share it.
#[derive(Clone)]
pub(crate) struct Cloud {
    world: Arc<Mutex<QuarryState>>,
    page: usize,
}

/// Status, code and message of a request that fails.
type ApiRejection = (u16, &'static str, String);
type ApiResult = Result<(u16, Value), ApiRejection>;

impl SimulatedApi for Cloud {
    fn respond(&self, request: &Request<Bytes>) -> Response<Bytes> {
        match self.carry_out(request) {
            Ok((status, body)) => json_response(status, &body).unwrap(),
            Err(rejection) => error(rejection),
        }
    }

    fn fault_response(&self, fault: InjectedFault) -> Response<Bytes> {
        let (status, code) = match fault {
            InjectedFault::Denied => (403, "forbidden"),
            InjectedFault::Invalid => (422, "invalid_input"),
            InjectedFault::Transient => (503, "unavailable"),
            InjectedFault::Throttled(_) => (429, "rate_limit_exceeded"),
        };
        let mut response = error((status, code, "scripted".to_owned()));
        if let InjectedFault::Throttled(after) = fault {
            response
                .headers_mut()
                .insert("RateLimit-Reset", after.as_secs().into());
        }
        response
    }
}

impl Cloud {
    /// Makes an empty cloud that lists this many things on a page.
    pub(crate) fn new(page: usize) -> Self {
        Self { world: Arc::default(), page }
    }

    /// Looks at the world, or changes it.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut QuarryState) -> T) -> T {
        let mut world = self.world.lock();
        world.complete_actions();
        look(&mut world)
    }

    fn carry_out(&self, request: &Request<Bytes>) -> ApiResult {
        let token = request
            .headers()
            .get(http::header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        if token != Some(&format!("Bearer {TOKEN}")) {
            return Err((401, "unauthorized", "the token is not known".to_owned()));
        }
        let path = request.uri().path().trim_start_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        self.with(|world| match (request.method().as_str(), &segments[..]) {
            ("GET", ["v1", "servers"]) => {
                Ok((200, page("servers", &world.list_servers(&query), &query, self.page)))
            }
            ("GET", ["v1", "servers", id]) => {
                let id = number(id)?;
                let server = world.servers.get(&id).ok_or_else(|| absent("server", id))?;
                Ok((200, json!({"server": server_json(id, server)})))
            }
            ("GET", ["v1", "networks", id]) => {
                let id = number(id)?;
                let routes = world
                    .networks
                    .get(&id)
                    .ok_or_else(|| absent("network", id))?;
                Ok((200, json!({"network": {"id": id, "routes": routes}})))
            }
            ("GET", ["v1", "actions", id]) => {
                let id = number(id)?;
                let action = world.actions.get(&id).ok_or_else(|| absent("action", id))?;
                Ok((200, json!({"action": action_json(id, action)})))
            }
            ("GET", ["v1", "load_balancers"]) => {
                let all = world.list_load_balancers(&query);
                Ok((200, page("load_balancers", &all, &query, self.page)))
            }
            ("POST", ["v1", "load_balancers"]) => world.add_load_balancer(body(request)?),
            ("DELETE", ["v1", "load_balancers", id]) => {
                let id = number(id)?;
                world.lock(id)?;
                let deleted = world.load_balancers.remove(&id);
                deleted
                    .map(|_| (204, Value::Null))
                    .ok_or_else(|| absent("load balancer", id))
            }
            ("POST", ["v1", "networks", id, "actions", what]) => {
                let id = number(id)?;
                if !world.networks.contains_key(&id) {
                    return Err(absent("network", id));
                }
                let effect = world.route_effect(id, what, body(request)?)?;
                world.start_action(id, effect)
            }
            ("POST", ["v1", "load_balancers", id, "actions", what]) => {
                let id = number(id)?;
                let effect = world.load_balancer_effect(id, what, request)?;
                world.start_action(id, effect)
            }
            _ => Err((404, "no_such_path", format!("{path} is no path of this API"))),
        })
    }
}

impl QuarryState {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Completes the actions whose time is over.
    fn complete_actions(&mut self) {
        let now = Instant::now();
        for action in self.actions.values_mut() {
            if action.done_at > now {
                continue;
            }
            let Some(effect) = action.effect.take() else {
                continue;
            };
            if action.fails {
                continue;
            }
            let id = action.resource;
            if let Some(routes) = self.networks.get_mut(&id) {
                match effect {
                    Effect::AddRoute(route) => drop(routes.insert(route)),
                    Effect::DeleteRoute(route) => drop(routes.remove(&route)),
                    _ => {}
                }
            } else if let Some(balancer) = self.load_balancers.get_mut(&id) {
                balancer.apply(effect);
            }
        }
    }

    fn is_locked(&self, resource: u64) -> bool {
        let runs = |action: &Action| action.resource == resource && action.effect.is_some();
        self.actions.values().any(runs)
    }

    fn lock(&self, resource: u64) -> Result<(), ApiRejection> {
        if self.is_locked(resource) {
            return Err((423, "locked", format!("an action changes {resource}")));
        }
        Ok(())
    }

    fn start_action(&mut self, resource: u64, effect: Effect) -> ApiResult {
        self.lock(resource)?;
        let id = self.number();
        let action = Action {
            resource,
            done_at: Instant::now() + self.completion,
            effect: Some(effect),
            fails: std::mem::take(&mut self.next_fails),
        };
        let json = action_json(id, &action);
        self.actions.insert(id, action);
        Ok((201, json!({"action": json})))
    }

    /// Creates a running server.
    pub(crate) fn add_server(&mut self, name: &str) -> u64 {
        let id = self.number();
        let private_ip = address_in(Ipv4Addr::new(172, 16, 0, 0), id);
        self.servers
            .insert(id, Server { name: name.to_owned(), status: "running", private_ip });
        id
    }

    pub(crate) fn server(&mut self, name: &str) -> Option<&mut Server> {
        self.servers.values_mut().find(|server| server.name == name)
    }

    fn list_servers(&self, query: &Query) -> Vec<Value> {
        let name = query.get("name");
        self.servers
            .iter()
            .filter(|(_, server)| name.is_none_or(|name| server.name == name))
            .map(|(id, server)| server_json(*id, server))
            .collect()
    }

    fn route_effect(&self, network: u64, what: &str, route: Route) -> Result<Effect, ApiRejection> {
        let routes = &self.networks[&network];
        let has_server = self
            .servers
            .values()
            .any(|server| server.private_ip == route.gateway);
        match what {
            _ if route.destination != route.destination.trunc() => {
                Err(invalid(format!("{} is no network", route.destination)))
            }
            "add_route" if !has_server => {
                Err(invalid(format!("no server of the network has the address {}", route.gateway)))
            }
            "add_route"
                if routes
                    .iter()
                    .any(|other| other.destination == route.destination) =>
            {
                Err((409, "uniqueness_error", format!("{} has a route", route.destination)))
            }
            "add_route" => Ok(Effect::AddRoute(route)),
            "delete_route" if routes.contains(&route) => Ok(Effect::DeleteRoute(route)),
            "delete_route" => Err((404, "not_found", "there is no such route".to_owned())),
            _ => Err((404, "no_such_path", what.to_owned())),
        }
    }

    fn list_load_balancers(&self, query: &Query) -> Vec<Value> {
        let selector = query.get("label_selector").unwrap_or_default();
        let wanted: Vec<_> = selector
            .split(',')
            .filter_map(|term| term.split_once('='))
            .collect();
        let fits = |balancer: &LoadBalancer| {
            wanted
                .iter()
                .all(|(key, value)| balancer.labels.get(*key).map(String::as_str) == Some(*value))
        };
        self.load_balancers
            .iter()
            .filter(|(_, balancer)| fits(balancer))
            .map(|(id, balancer)| self.load_balancer_json(*id, balancer))
            .collect()
    }

    fn load_balancer_json(&self, id: u64, balancer: &LoadBalancer) -> Value {
        let targets: Vec<_> = balancer
            .targets
            .iter()
            .map(|id| json!({"type": "server", "server": {"id": id}}))
            .collect();
        let services: Vec<_> = balancer.services.values().collect();
        json!({
            "id": id, "name": balancer.name, "labels": balancer.labels,
            "load_balancer_type": {"name": balancer.kind}, "services": services,
            "targets": targets, "locked": self.is_locked(id),
            "public_net": {"ipv4": {"ip": balancer.address}}, "created": "2026-01-02T03:04:05Z",
        })
    }

    pub(crate) fn add_load_balancer(&mut self, new: NewLoadBalancer) -> ApiResult {
        let is_label = |text: &String| {
            text.len() <= 63
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if let Some(label) = new.labels.values().find(|label| !is_label(label)) {
            return Err(invalid(format!("{label:?} is no value of a label")));
        }
        if self
            .load_balancers
            .values()
            .any(|other| other.name == new.name)
        {
            return Err((409, "uniqueness_error", format!("{} is in use", new.name)));
        }
        check_type(&new.load_balancer_type)?;
        let id = self.number();
        let address = address_in(Ipv4Addr::new(198, 18, 0, 0), id);
        let balancer = LoadBalancer {
            name: new.name,
            labels: new.labels,
            kind: new.load_balancer_type,
            services: BTreeMap::new(),
            targets: BTreeSet::new(),
            address,
        };
        self.load_balancers.insert(id, balancer.clone());
        let (_, answer) = self.start_action(id, Effect::Nothing)?;
        let json = self.load_balancer_json(id, &balancer);
        Ok((201, json!({"load_balancer": json, "action": answer["action"]})))
    }

    fn load_balancer_effect(
        &self,
        id: u64,
        what: &str,
        request: &Request<Bytes>,
    ) -> Result<Effect, ApiRejection> {
        let balancer = self
            .load_balancers
            .get(&id)
            .ok_or_else(|| absent("load balancer", id))?;
        match what {
            "change_type" => {
                let ChangeType { load_balancer_type } = body(request)?;
                check_type(&load_balancer_type)?;
                Ok(Effect::ChangeType(load_balancer_type))
            }
            "add_service" | "update_service" => {
                let service: Service = body(request)?;
                let port = service.listen_port;
                match (what, balancer.services.contains_key(&port)) {
                    ("add_service", true) => {
                        Err((409, "uniqueness_error", format!("port {port} is in use")))
                    }
                    ("update_service", false) => Err(absent("service", port.get().into())),
                    _ => Ok(Effect::SetService(service)),
                }
            }
            "delete_service" => {
                let DeleteService { listen_port } = body(request)?;
                match balancer.services.contains_key(&listen_port) {
                    true => Ok(Effect::DeleteService(listen_port)),
                    false => Err(absent("service", listen_port.get().into())),
                }
            }
            "add_target" | "remove_target" => {
                let Target { server: ServerRef { id: server }, .. } = body(request)?;
                let is_target = balancer.targets.contains(&server);
                match what {
                    "add_target" if !self.servers.contains_key(&server) => {
                        Err(invalid(format!("there is no server {server}")))
                    }
                    "add_target" if is_target => {
                        Err((409, "target_already_defined", format!("server {server}")))
                    }
                    "add_target" => Ok(Effect::AddTarget(server)),
                    _ if is_target => Ok(Effect::RemoveTarget(server)),
                    _ => Err(absent("target", server)),
                }
            }
            _ => Err((404, "no_such_path", what.to_owned())),
        }
    }
}

impl LoadBalancer {
    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::ChangeType(kind) => self.kind = kind,
            Effect::SetService(service) => {
                self.services.insert(service.listen_port, service);
            }
            Effect::DeleteService(port) => drop(self.services.remove(&port)),
            Effect::AddTarget(id) => drop(self.targets.insert(id)),
            Effect::RemoveTarget(id) => drop(self.targets.remove(&id)),
            Effect::Nothing | Effect::AddRoute(_) | Effect::DeleteRoute(_) => {}
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLoadBalancer {
    name: String,
    labels: BTreeMap<String, String>,
    load_balancer_type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeType {
    load_balancer_type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteService {
    listen_port: NonZeroU16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    #[serde(rename = "type")]
    _kind: ServerKind,
    server: ServerRef,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServerKind {
    Server,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerRef {
    id: u64,
}

/// Returns the address with this number in a network.
fn address_in(network: Ipv4Addr, number: u64) -> Ipv4Addr {
    Ipv4Addr::from_bits(network.to_bits() + u32::try_from(number).unwrap())
}

fn check_type(name: &str) -> Result<(), ApiRejection> {
    match name {
        "small" | "large" => Ok(()),
        _ => Err(invalid(format!("there is no load balancer type {name:?}"))),
    }
}

fn server_json(id: u64, server: &Server) -> Value {
    json!({
        "id": id, "name": server.name, "status": server.status,
        "server_type": {"name": "q2"},
        "datacenter": {"name": "north-dc1", "location": {"name": "north"}},
        "private_net": [{"ip": server.private_ip}],
        "public_net": {"ipv4": null},
    })
}

fn action_json(id: u64, action: &Action) -> Value {
    match (&action.effect, action.fails) {
        (Some(_), _) => json!({"id": id, "status": "running", "error": null}),
        (None, false) => json!({"id": id, "status": "success", "error": null}),
        (None, true) => {
            let error = json!({"code": "action_failed", "message": "the hypervisor is gone"});
            json!({"id": id, "status": "error", "error": error})
        }
    }
}

/// Parameters of a request.
struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(text: &str) -> Self {
        let decode = |text: &str| {
            text.replace("%2C", ",")
                .replace("%3D", "=")
                .replace("%2F", "/")
        };
        Self(
            text.split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (decode(key), decode(value)))
                .collect(),
        )
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// One page, by its number.
fn page(what: &str, all: &[Value], query: &Query, size: usize) -> Value {
    let number: usize = query
        .get("page")
        .and_then(|page| page.parse().ok())
        .unwrap_or(1);
    let items: Vec<_> = all
        .iter()
        .skip((number - 1) * size)
        .take(size)
        .cloned()
        .collect();
    let next = (number * size < all.len()).then_some(number + 1);
    json!({what: items, "meta": {"pagination": {"page": number, "next_page": next}}})
}

fn body<T: DeserializeOwned>(request: &Request<Bytes>) -> Result<T, ApiRejection> {
    serde_json::from_slice(request.body()).map_err(|error| invalid(error.to_string()))
}

fn number(text: &str) -> Result<u64, ApiRejection> {
    text.parse()
        .map_err(|_| invalid(format!("{text} is no ID")))
}

fn invalid(why: impl Into<String>) -> ApiRejection {
    (422, "invalid_input", why.into())
}

fn absent(what: &str, id: u64) -> ApiRejection {
    (404, "not_found", format!("there is no {what} {id}"))
}

fn error((status, code, message): ApiRejection) -> Response<Bytes> {
    let body = json!({"error": {"code": code, "message": message}});
    json_response(status, &body).unwrap()
}
