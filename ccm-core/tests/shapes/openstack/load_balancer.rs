//! Octavia load balancers, which are locked as a whole while they change: waiting is most of the work.

use std::{net::IpAddr, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, LbIngress, LbStatus, Protocol, ServiceView},
    provider::{
        BackendSet, Backends, Claim, CloudError, Depth, Digest, ErrorKind, InvalidInput, Inventory, LabelRequirement,
        LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers, Op, OwnedObject, Owner, PlannedChange, Progress,
    },
};

use super::{
    OpenStack,
    api::{Balancer, Member},
};

const PREFIX: &str = "loadbalancer.openstack.org/";
const ID: &str = "loadbalancer.openstack.org/load-balancer-id";
const ADDRESS: &str = "loadbalancer.openstack.org/load-balancer-address";

/// The annotations of a Service, parsed. Those that the provider writes are not among them.
#[derive(Debug, Hash, PartialEq, Eq)]
struct Options {
    proxy_protocol: bool,
    hostname: Option<Box<str>>,
    selector: Vec<LabelRequirement>,
}

fn read(service: &ServiceView) -> Result<Options, Vec<InvalidInput>> {
    let get = |suffix: &str| service.annotations.get(format!("{PREFIX}{suffix}").as_str()).map(|v| &**v);
    let proxy_protocol = matches!(get("proxy-protocol"), Some("true" | "v1" | "v2"));
    if proxy_protocol && get("x-forwarded-for") == Some("true") {
        let field = format!("{PREFIX}x-forwarded-for");
        return Err(vec![InvalidInput::new(field, "excludes proxy-protocol")]);
    }
    let requirement = |item: &str| match item.trim().split_once('=') {
        Some((key, value)) => LabelRequirement::Equals(key.into(), value.into()),
        None => LabelRequirement::Exists(item.trim().into()),
    };
    let selector = get("node-selector").filter(|text| !text.is_empty());
    Ok(Options {
        proxy_protocol,
        hostname: get("hostname").filter(|h| !h.is_empty()).map(Into::into),
        selector: selector.map(|text| text.split(',').map(requirement).collect()).unwrap_or_default(),
    })
}

fn lb_name(cluster: &str, namespace: &str, name: &str) -> String {
    format!("kube_service_{cluster}_{namespace}_{name}").chars().take(255).collect()
}

fn members(want: &LbSpec) -> Vec<Member> {
    let BackendSet::Nodes(nodes) = &want.backends else { return Vec::new() };
    let mut members = Vec::new();
    for node in nodes {
        let internal = node.addresses.iter().find(|a| a.kind == AddressType::InternalIp);
        // A node without an address is left out.
        let Some(address) = internal.and_then(|a| a.address.parse::<IpAddr>().ok()) else { continue };
        let ports = want.service.ports.iter().filter_map(|p| p.node_port);
        members.extend(ports.map(|p| Member { name: node.name.to_string(), address, port: p.get() }));
    }
    members.sort();
    members
}

/// One change, specific enough to be applied without a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Create(Balancer),
    /// Replaces one that was born broken; user traffic never reached it.
    DeleteBroken(String),
    SetMembers(String, Vec<Member>),
}

/// The next step. One at a time, because each locks the balancer: the next call goes on from what it then observes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Wait(&'static str),
    Apply(Action),
    /// It carries traffic, or may: only a person decides about it.
    Broken,
    Done,
}

fn plan(wanted: &Balancer, have: Option<&Balancer>, served: bool) -> Step {
    let Some(have) = have else { return Step::Apply(Action::Create(wanted.clone())) };
    match have.status {
        "ACTIVE" if have.members != wanted.members => {
            Step::Apply(Action::SetMembers(have.id.clone(), wanted.members.clone()))
        }
        "ACTIVE" => Step::Done,
        // Born broken: our own, and no status was ever published for it.
        "ERROR" if !served && have.name == wanted.name => Step::Apply(Action::DeleteBroken(have.id.clone())),
        "ERROR" => Step::Broken,
        other => Step::Wait(other),
    }
}

fn served(want: &LbSpec) -> bool {
    !want.service.status.ingress.is_empty()
}

fn broken() -> CloudError {
    CloudError::new(ErrorKind::Conflict, "load balancer is in provisioning status ERROR: fail it over or delete it")
        .with_reason("LoadBalancerBroken")
}

/// How long to wait, by how long it has been waited: one second at first, at most thirty.
fn wait(op: &Op) -> Duration {
    (op.pending_for() / 4).clamp(Duration::from_secs(1), Duration::from_secs(30))
}

#[async_trait]
impl LoadBalancers for OpenStack {
    fn supports(&self) -> LbSupport {
        LbSupport {
            // Upstream serves such a Service to everybody on an old Octavia; here it is refused.
            source_ranges: self.features.allowed_cidrs,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            load_balancer_ip: true,
            client_ip_affinity: true,
            ..LbSupport::default()
        }
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        match read(service) {
            Err(invalid) => Claim::Refused(invalid),
            Ok(options) => {
                let ports: Vec<_> = service.ports.iter().map(|p| (p.protocol, p.port, p.node_port)).collect();
                let digest = Digest::of(&(&options, ports, &service.source_ranges, &service.load_balancer_ip));
                Claim::Ours { backends: Backends::Nodes(options.selector), digest }
            }
        }
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, _depth: Depth) -> LbOutcome {
        match op.run(self.step(op, want)).await {
            Ok(outcome) => outcome,
            Err(error) => error.into(),
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let update = async {
            let have = self.find(balancer_id(&want.service), &Self::wanted(want).name).await?;
            let have = have.ok_or_else(|| CloudError::new(ErrorKind::NotFound, "load balancer not found"))?;
            match plan(&Self::wanted(want), Some(&have), true) {
                Step::Broken => Err(broken()),
                Step::Done => Ok(Progress::Done),
                Step::Wait(why) => Ok(Progress::Pending { after: wait(op), why: why.into() }),
                Step::Apply(action) => self.apply_action(op, action).await.map(|_| Progress::Done),
            }
        };
        LbOutcome { status: None, annotations: [].into(), result: op.run(update).await }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let name = lb_name(op.cluster_name(), &lb.namespace, &lb.name);
        let id = lb.annotations.get(ID).map(|id| &**id);
        let Some(have) = self.find(id, &name).await? else { return Ok(Progress::Done) };
        if have.name != name {
            // Somebody else's, lent to this Service by the annotation.
            return Ok(Progress::Done);
        }
        match have.status {
            "ACTIVE" | "ERROR" => {
                self.writer(op)?.delete_balancer(&have.id).await?;
                Ok(Progress::Pending { after: wait(op), why: "load balancer is being deleted".into() })
            }
            other => Ok(Progress::Pending { after: wait(op), why: format!("load balancer is {other}").into() }),
        }
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        // The id stays, since the user may have chosen it; one whose balancer is gone is passed over.
        lb.annotations.contains_key(ADDRESS).then(|| ADDRESS.into()).into_iter().collect()
    }

    async fn plan(&self, _op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let wanted = Self::wanted(want);
        let have = self.find(balancer_id(&want.service), &wanted.name).await?;
        let Step::Apply(action) = plan(&wanted, have.as_ref(), served(want)) else { return Ok(Vec::new()) };
        let operation = match &action {
            Action::Create(_) => "POST /v2.0/lbaas/loadbalancers",
            Action::DeleteBroken(_) => "DELETE /v2.0/lbaas/loadbalancers",
            Action::SetMembers(..) => "PUT /v2.0/lbaas/pools/members",
        };
        let reason = format!("{action:?}").into();
        Ok(vec![PlannedChange { operation: operation.into(), object: wanted.name.into(), reason }])
    }
}

/// Returns the balancer that the Service names as its own.
fn balancer_id(service: &ServiceView) -> Option<&str> {
    service.annotations.get(ID).map(|id| &**id).filter(|id| !id.is_empty())
}

impl OpenStack {
    fn wanted(want: &LbSpec) -> Balancer {
        let service = &want.service;
        let protocol = |p| match p {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        Balancer {
            id: String::new(),
            name: lb_name(&want.cluster, &service.namespace, &service.name),
            status: "ACTIVE",
            vip: IpAddr::from([192, 0, 2, 10]),
            listeners: service.ports.iter().map(|p| (protocol(p.protocol), p.port.get())).collect(),
            members: members(want),
        }
    }

    /// Does the next step and says what is left.
    async fn step(&self, op: &Op, want: &LbSpec) -> Result<LbOutcome, CloudError> {
        let wanted = Self::wanted(want);
        let options = read(&want.service).map_err(|all| CloudError::invalid_input(format!("{all:?}")))?;
        let have = self.find(balancer_id(&want.service), &wanted.name).await?;
        let (have, waits) = match plan(&wanted, have.as_ref(), served(want)) {
            Step::Broken => return Err(broken()),
            Step::Done => (have, None),
            Step::Wait(status) => (have, Some(status)),
            Step::Apply(action) => (self.apply_action(op, action).await?.or(have), Some("PENDING_UPDATE")),
        };
        let Some(have) = have else { return Ok(LbOutcome::pending(wait(op), "load balancer is being replaced")) };
        let outcome = match waits {
            Some(status) => LbOutcome::pending(wait(op), format!("load balancer is {status}")),
            None => LbOutcome::done(status(&have, &options)),
        };
        // The id is kept from the first moment, so that a crash does not lose the balancer.
        Ok(outcome.with_annotation(ID, have.id).with_annotation(ADDRESS, have.vip.to_string()))
    }

    async fn find(&self, id: Option<&str>, name: &str) -> Result<Option<Balancer>, CloudError> {
        if let Some(id) = id {
            return match self.api.balancer(id).await.map_err(CloudError::from) {
                Ok(balancer) => Ok(Some(balancer)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        }
        Ok(self.api.balancers().await?.into_iter().find(|b| b.name == name))
    }

    async fn apply_action(&self, op: &Op, action: Action) -> Result<Option<Balancer>, CloudError> {
        let api = self.writer(op)?;
        match action {
            Action::Create(balancer) => return Ok(Some(api.create_balancer(balancer).await?)),
            Action::DeleteBroken(id) => api.delete_balancer(&id).await?,
            Action::SetMembers(id, members) => api.set_members(&id, &members).await?,
        }
        Ok(None)
    }
}

fn status(have: &Balancer, options: &Options) -> LbStatus {
    let ingress = match &options.hostname {
        Some(hostname) => LbIngress { hostname: Some(hostname.clone()), ..LbIngress::default() },
        None => {
            let mode = if options.proxy_protocol { "Proxy" } else { "VIP" };
            LbIngress { ip: Some(have.vip), ip_mode: Some(mode.into()), ..LbIngress::default() }
        }
    };
    LbStatus { ingress: vec![ingress] }
}

#[async_trait]
impl Inventory for OpenStack {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let prefix = format!("kube_service_{}_", op.cluster_name());
        let all = op.run(async { Ok(self.api.balancers().await?) }).await?;
        let owned = all.into_iter().filter_map(|balancer| {
            // Names of namespaces and Services hold no underscore.
            let (namespace, name) = balancer.name.strip_prefix(&prefix)?.split_once('_')?;
            let owner = Owner::Service { namespace: namespace.into(), name: name.into(), uid: None };
            Some(OwnedObject { kind: "load balancer".into(), id: balancer.id.into(), owner, created: None })
        });
        Ok(owned.collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        if !self.list_owned(op).await?.contains(object) {
            return Ok(Progress::Done);
        }
        self.writer(op)?.delete_balancer(&object.id).await?;
        Ok(Progress::Pending { after: wait(op), why: "load balancer is being deleted".into() })
    }
}
