//! The control plane, without HTTP: bodies in, bodies out, the clock by hand.

mod bodies;
mod carry;
mod graph;
mod health;
mod http;
mod states;
mod vip;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    finish_due, listeners, load_balancers, members, monitors, pools, schema, settings::Settings,
};
use crate::{
    neutron::{networks, router_interfaces, routers, subnets},
    state::{ApiError, CloudState, RequestContext},
};

const PROJECT: &str = "e3cd678b11784734bc366148aa37580e";
/// How long a change takes.
const PENDING: SignedDuration = SignedDuration::from_millis(500);

/// A cloud with a subnet for addresses.
struct Cloud {
    state: CloudState,
    ctx: RequestContext,
    /// Subnet 127.1.0.0/24.
    subnet: String,
}

impl Cloud {
    fn new() -> Self {
        let ctx = RequestContext {
            now: Timestamp::UNIX_EPOCH,
            project: PROJECT.into(),
            user: "u".into(),
            admin: false,
        };
        let mut state = CloudState::default();
        let subnet = network(&mut state, "web", false, "127.1.0.0/24");
        let mut cloud = Self { state, ctx, subnet };
        cloud.commit();
        cloud
    }

    /// Makes an external network that a router joins to the subnet. Returns its identifier.
    fn external(&mut self) -> String {
        let subnet = network(&mut self.state, "public", true, "203.0.113.0/24");
        let network = self
            .state
            .neutron
            .subnets
            .get(&subnet)
            .expect("it is there")
            .network_id
            .clone();
        let request = json!({"name": "edge", "external_gateway_info": {"network_id": network}});
        let request = serde_json::from_value(request).expect("a router");
        let router = routers::create(&mut self.state, &self.ctx, request)
            .expect("created")
            .id;
        let request =
            serde_json::from_value(json!({"subnet_id": self.subnet})).expect("an interface");
        router_interfaces::add(&mut self.state, &self.ctx, &router, &request).expect("joined");
        self.commit();
        network
    }

    /// Does one request as the store does: what fails leaves nothing behind.
    fn run<T>(
        &mut self,
        request: impl FnOnce(&mut CloudState, &RequestContext) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        finish_due(&mut self.state, self.ctx.now);
        let result = request(&mut self.state, &self.ctx);
        for part in self.state.parts_mut() {
            if result.is_ok() {
                part.commit();
            } else {
                part.undo();
            }
        }
        result
    }

    fn settings(&mut self, change: impl FnOnce(&mut Settings)) {
        Settings::change(&mut self.state, change);
        self.commit();
    }

    fn commit(&mut self) {
        for part in self.state.parts_mut() {
            part.commit();
        }
    }

    /// Lets everything that is under way end.
    fn rest(&mut self) {
        self.ctx.now += PENDING;
        finish_due(&mut self.state, self.ctx.now);
    }

    fn minor(&self) -> u8 {
        Settings::of(&self.state).newest_minor
    }

    fn post_lb(&mut self, body: Value) -> Result<Value, ApiError> {
        let minor = self.minor();
        let body = with(body, &[("vip_subnet_id", self.subnet.clone().into())]);
        let create = schema::read(
            wrap("loadbalancer", body),
            "loadbalancer",
            schema::LOAD_BALANCER_CREATE,
            minor,
        )?;
        self.run(|state, ctx| load_balancers::create(state, ctx, create))
            .map(value)
    }

    fn post_listener(&mut self, body: Value) -> Result<Value, ApiError> {
        let create = schema::read(
            wrap("listener", body),
            "listener",
            schema::LISTENER_CREATE,
            self.minor(),
        )?;
        self.run(|state, ctx| listeners::create(state, ctx, create))
            .map(value)
    }

    fn post_pool(&mut self, body: Value) -> Result<Value, ApiError> {
        let create = schema::read(wrap("pool", body), "pool", schema::POOL_CREATE, self.minor())?;
        self.run(|state, ctx| pools::create(state, ctx, create))
            .map(value)
    }

    fn post_member(&mut self, pool: &str, body: Value) -> Result<Value, ApiError> {
        let create =
            schema::read(wrap("member", body), "member", schema::MEMBER_CREATE, self.minor())?;
        self.run(|state, ctx| members::create(state, ctx, pool, create))
            .map(value)
    }

    fn post_monitor(&mut self, body: Value) -> Result<Value, ApiError> {
        let minor = self.minor();
        let create = schema::read(
            wrap("healthmonitor", body),
            "healthmonitor",
            schema::MONITOR_CREATE,
            minor,
        )?;
        self.run(|state, ctx| monitors::create(state, ctx, create))
            .map(value)
    }

    fn batch(&mut self, pool: &str, members: Value, additive: bool) -> Result<(), ApiError> {
        let batch = schema::read_batch(wrap("members", members), self.minor())?;
        self.run(|state, ctx| members::batch(state, ctx, pool, batch, additive))
    }

    fn put_lb(&mut self, id: &str, body: Value) -> Result<Value, ApiError> {
        let minor = self.minor();
        let update = schema::read(
            wrap("loadbalancer", body),
            "loadbalancer",
            schema::LOAD_BALANCER_UPDATE,
            minor,
        )?;
        self.run(|state, ctx| load_balancers::update(state, ctx, id, update))
            .map(value)
    }

    fn put_listener(&mut self, id: &str, body: Value) -> Result<Value, ApiError> {
        let update = schema::read(
            wrap("listener", body),
            "listener",
            schema::LISTENER_UPDATE,
            self.minor(),
        )?;
        self.run(|state, ctx| listeners::update(state, ctx, id, update))
            .map(value)
    }

    fn put_pool(&mut self, id: &str, body: Value) -> Result<Value, ApiError> {
        let update = schema::read(wrap("pool", body), "pool", schema::POOL_UPDATE, self.minor())?;
        self.run(|state, ctx| pools::update(state, ctx, id, update))
            .map(value)
    }

    fn put_member(&mut self, pool: &str, id: &str, body: Value) -> Result<Value, ApiError> {
        let update =
            schema::read(wrap("member", body), "member", schema::MEMBER_UPDATE, self.minor())?;
        self.run(|state, ctx| members::update(state, ctx, pool, id, update))
            .map(value)
    }

    fn put_monitor(&mut self, id: &str, body: Value) -> Result<Value, ApiError> {
        let minor = self.minor();
        let update = schema::read(
            wrap("healthmonitor", body),
            "healthmonitor",
            schema::MONITOR_UPDATE,
            minor,
        )?;
        self.run(|state, ctx| monitors::update(state, ctx, id, update))
            .map(value)
    }

    fn lb(&mut self, id: &str) -> Value {
        self.run(|state, ctx| load_balancers::show(state, ctx, id))
            .map(value)
            .expect("it is there")
    }

    fn listener(&mut self, id: &str) -> Value {
        self.run(|state, ctx| listeners::show(state, ctx, id))
            .map(value)
            .expect("it is there")
    }

    fn pool(&mut self, id: &str) -> Value {
        self.run(|state, ctx| pools::show(state, ctx, id))
            .map(value)
            .expect("it is there")
    }

    fn members(&mut self, pool: &str) -> Vec<Value> {
        let members = self
            .run(|state, ctx| members::list(state, ctx, pool))
            .expect("the pool is there");
        let mut members: Vec<Value> = members.into_iter().map(value).collect();
        members.sort_by_key(|member| member["address"].to_string());
        members
    }

    /// Makes a load balancer with a listener on port 80, its pool, and two members; all at rest.
    fn web(&mut self) -> Web {
        let lb = self
            .post_lb(json!({"name": "web", "listeners": [listener(80)]}))
            .expect("created");
        self.rest();
        Web {
            lb: id(&lb),
            listener: id(&lb["listeners"][0]),
            pool: id(&lb["pools"][0]),
        }
    }
}

/// Makes a network with one subnet, and returns the subnet's identifier.
fn network(state: &mut CloudState, name: &str, external: bool, cidr: &str) -> String {
    let ctx = RequestContext {
        now: Timestamp::UNIX_EPOCH,
        project: PROJECT.into(),
        user: "u".into(),
        admin: true,
    };
    let request = serde_json::from_value(json!({"name": name, "router:external": external}))
        .expect("a network");
    let network_id = networks::create(state, &ctx, request).expect("created").id;
    let request = json!({"network_id": network_id, "ip_version": 4, "cidr": cidr});
    let request = serde_json::from_value(request).expect("a subnet");
    subnets::create(state, &ctx, request).expect("created").id
}

/// Identifiers of [`Cloud::web`].
struct Web {
    lb: String,
    listener: String,
    pool: String,
}

/// A TCP listener with a pool of two members.
fn listener(port: u16) -> Value {
    json!({
        "name": format!("listener_{port}"), "protocol": "TCP", "protocol_port": port,
        "default_pool": {
            "name": format!("pool_{port}"), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
            "members": [member(1), member(2)],
        },
    })
}

fn member(number: u8) -> Value {
    json!({"name": format!("node-{number}"), "address": format!("127.0.1.{number}"), "protocol_port": 30080})
}

fn monitor(pool: &str) -> Value {
    json!({"pool_id": pool, "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1})
}

fn value(body: impl Serialize) -> Value {
    serde_json::to_value(body).expect("a body is JSON")
}

fn id(body: &Value) -> String {
    body["id"].as_str().expect("an identifier").to_owned()
}

/// Puts a body into its envelope.
fn wrap(name: &str, body: Value) -> Value {
    Value::Object([(name.to_owned(), body)].into_iter().collect())
}

/// Adds fields that are not there yet.
fn with(mut body: Value, fields: &[(&str, Value)]) -> Value {
    let object = body.as_object_mut().expect("an object");
    for (name, value) in fields {
        object.entry(*name).or_insert_with(|| value.clone());
    }
    body
}

/// Sets fields; null takes one away.
fn set(mut body: Value, fields: Value) -> Value {
    let (object, Value::Object(fields)) = (body.as_object_mut().expect("an object"), fields) else {
        panic!("an object")
    };
    for (name, value) in fields {
        if value.is_null() {
            object.remove(&name)
        } else {
            object.insert(name, value)
        };
    }
    body
}

/// Status and text of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, ApiError>) -> (u16, String) {
    let error = result.expect_err("it is refused");
    (error.status.as_u16(), error.message)
}
