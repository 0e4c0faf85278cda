//! Network load balancers: options, desired state, plan, apply; and the inventory of what is tagged as ours.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, Protocol, ServiceView},
    provider::{
        BackendSet, Backends, Claim, CloudError, Depth, Digest, ErrorKind, EventKind, InvalidInput, Inventory,
        LabelRequirement, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers, Op, OwnedObject, Owner, PlannedChange,
        Progress, Remark,
    },
};

use super::{
    Aws, ProviderId,
    api::{Balancer, Listener, Target},
};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// The annotations of a Service, parsed.
#[derive(Debug, Hash, PartialEq, Eq)]
struct Options {
    internal: bool,
    ip_targets: bool,
    node_labels: Vec<LabelRequirement>,
}

/// What the annotations make of a Service.
enum Reading {
    Ours(Options),
    Elsewhere,
    Refused(Vec<InvalidInput>),
}

fn annotation<'a>(service: &'a ServiceView, suffix: &str) -> Option<&'a str> {
    service.annotations.get(format!("{PREFIX}{suffix}").as_str()).map(|v| &**v)
}

fn read(service: &ServiceView) -> Reading {
    // The class is the framework's business: it never asks about one that the configuration does not claim.
    match annotation(service, "type") {
        None | Some("" | "nlb") => {}
        Some("external" | "nlb-ip") => return Reading::Elsewhere,
        Some(other) => {
            let message = format!("load balancer type {other:?} is not supported; use \"nlb\"");
            return Reading::Refused(vec![InvalidInput::new(format!("{PREFIX}type"), message)]);
        }
    }
    let mut invalid = Vec::new();
    let ip_targets = match annotation(service, "nlb-target-type") {
        None | Some("instance") => false,
        Some("ip") => true,
        Some(other) => {
            let field = format!("{PREFIX}nlb-target-type");
            invalid.push(InvalidInput::new(field, format!("unknown target type {other:?}")));
            false
        }
    };
    if !ip_targets && service.ports.iter().any(|p| p.node_port.is_none()) {
        let message = "unable to support instance target type with an unallocated NodePort";
        invalid.push(InvalidInput::new("spec.ports", message));
    }
    if service.status.ingress.iter().any(|i| is_classic(i.hostname.as_deref())) {
        let message = "service has a classic load balancer; delete and recreate the Service";
        invalid.push(InvalidInput::new("status.loadBalancer", message));
    }
    let node_labels = annotation(service, "target-node-labels").unwrap_or_default();
    let options = Options {
        internal: annotation(service, "internal").is_some_and(|v| !matches!(v, "" | "false")),
        ip_targets,
        node_labels: node_labels.split(',').filter_map(requirement).collect(),
    };
    if invalid.is_empty() { Reading::Ours(options) } else { Reading::Refused(invalid) }
}

/// Reads `key=value` or `key`.
fn requirement(item: &str) -> Option<LabelRequirement> {
    match item.trim().split_once('=') {
        _ if item.trim().is_empty() => None,
        Some((key, value)) => Some(LabelRequirement::Equals(key.into(), value.into())),
        None => Some(LabelRequirement::Exists(item.trim().into())),
    }
}

/// A classic balancer's name has no `elb` label before the region.
fn is_classic(hostname: Option<&str>) -> bool {
    hostname.is_some_and(|h| h.ends_with(".elb.amazonaws.com"))
}

fn lb_name(uid: &str) -> String {
    format!("a{}", uid.replace('-', "")).chars().take(32).collect()
}

/// One change, specific enough to be applied without a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    CreateBalancer(Balancer),
    Register(Vec<Target>),
    CreateListener(Listener),
    DeleteListener(u16),
    Deregister(Vec<Target>),
}

/// What the Service wants, in the cloud's own terms.
fn desired(want: &LbSpec, options: &Options) -> Result<Balancer, CloudError> {
    let mut targets = Vec::new();
    for port in &want.service.ports {
        match &want.backends {
            BackendSet::Nodes(nodes) => {
                for node in nodes {
                    // Fargate nodes, and nodes of other clouds, are never instance targets.
                    let Some(Ok(ProviderId::Instance(id))) = node.provider_id.as_deref().map(ProviderId::parse) else {
                        continue;
                    };
                    targets.extend(port.node_port.map(|node_port| Target { id, port: node_port.get() }));
                }
            }
            BackendSet::Endpoints(slices) => {
                for slice in slices {
                    let numbers = slice.ports.iter().filter(|p| p.name == port.name).filter_map(|p| p.port);
                    for number in numbers {
                        let ready = slice.endpoints.iter().filter(|e| e.ready && !e.terminating);
                        targets.extend(
                            ready
                                .flat_map(|e| e.addresses.iter())
                                .map(|ip| Target { id: ip.to_string().into(), port: number.get() }),
                        );
                    }
                }
            }
        }
    }
    targets.sort();
    let listener = |port: &ccm_core::k8s::ServicePort| match port.protocol {
        Protocol::Tcp => Ok(Listener { port: port.port.get(), protocol: "TCP" }),
        Protocol::Udp => Ok(Listener { port: port.port.get(), protocol: "UDP" }),
        Protocol::Sctp => Err(CloudError::invalid_input("protocol SCTP is not supported by network load balancers")),
    };
    Ok(Balancer {
        name: lb_name(&want.service.uid),
        service: format!("{}/{}", want.service.namespace, want.service.name),
        internal: options.internal,
        state: "provisioning",
        listeners: want.service.ports.iter().map(listener).collect::<Result<_, _>>()?,
        targets,
    })
}

/// Computes the changes: create before use, delete last.
fn plan(want: &Balancer, have: Option<&Balancer>) -> Vec<Action> {
    let mut actions = Vec::new();
    let empty = Balancer { listeners: Vec::new(), targets: Vec::new(), ..want.clone() };
    let have = have.unwrap_or_else(|| {
        actions.push(Action::CreateBalancer(empty.clone()));
        &empty
    });
    let (new, old) = targets(want, have);
    actions.extend(new.map(Action::Register));
    let surplus = have.listeners.iter().filter(|l| !want.listeners.contains(l));
    let missing = want.listeners.iter().filter(|l| !have.listeners.contains(l));
    actions.extend(surplus.map(|l| Action::DeleteListener(l.port)));
    actions.extend(missing.map(|l| Action::CreateListener(l.clone())));
    actions.extend(old.map(Action::Deregister));
    actions
}

/// Computes the targets to register and to deregister.
fn targets(want: &Balancer, have: &Balancer) -> (Option<Vec<Target>>, Option<Vec<Target>>) {
    let set = |b: &Balancer| b.targets.iter().cloned().collect::<BTreeSet<_>>();
    let (want, have) = (set(want), set(have));
    let some = |set: Vec<Target>| (!set.is_empty()).then_some(set);
    (some(want.difference(&have).cloned().collect()), some(have.difference(&want).cloned().collect()))
}

#[async_trait]
impl LoadBalancers for Aws {
    fn supports(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            mixed_protocols: true,
            dual_stack: true,
            no_node_ports: true,
            ..LbSupport::default()
        }
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        match read(service) {
            Reading::Elsewhere => Claim::Elsewhere,
            Reading::Refused(invalid) => Claim::Refused(invalid),
            Reading::Ours(options) => {
                let ports: Vec<_> = service.ports.iter().map(|p| (p.protocol, p.port, p.node_port)).collect();
                Claim::Ours {
                    digest: Digest::of(&(&options, ports, &service.source_ranges)),
                    backends: if options.ip_targets {
                        Backends::Endpoints
                    } else {
                        Backends::Nodes(options.node_labels)
                    },
                }
            }
        }
    }

    fn remarks(&self, service: &ServiceView) -> Vec<Remark> {
        let idle = annotation(service, "connection-idle-timeout");
        let note = format!("annotation {PREFIX}connection-idle-timeout has no effect on a network load balancer");
        let remark = Remark { kind: EventKind::Warning, reason: "AnnotationIgnored", note: note.into() };
        idle.map(|_| remark).into_iter().collect()
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, _depth: Depth) -> LbOutcome {
        // This sketch keeps no memory, so it always verifies.
        match op.run(self.ensure_balancer(op, want)).await {
            Ok(status) => LbOutcome::done(status),
            Err(error) => error.into(),
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let update = async {
            let (wanted, have) = self.both(want).await?;
            let have = have.ok_or_else(|| CloudError::new(ErrorKind::NotFound, "load balancer not found"))?;
            let (new, old) = targets(&wanted, &have);
            let actions = new.map(Action::Register).into_iter().chain(old.map(Action::Deregister)).collect();
            self.apply_actions(op, &wanted.name, actions).await
        };
        let result = op.run(update).await.map(|()| Progress::Done);
        LbOutcome { status: None, annotations: [].into(), result }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        // Found by its name and its tag, whatever the annotations say by now.
        let name = lb_name(&lb.uid);
        let service = format!("{}/{}", lb.namespace, lb.name);
        if self.find(&name).await?.is_some_and(|b| b.service != service) {
            return Err(CloudError::invalid_input(format!("load balancer {name} belongs to another service")));
        }
        self.writer(op)?.delete_balancer(&name).await?;
        match self.writer(op)?.delete_security_group(&name).await.map_err(CloudError::from) {
            Ok(()) => Ok(Progress::Done),
            // The interfaces of a deleted balancer hold its group for minutes.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let after = (op.pending_for() / 2).clamp(Duration::from_secs(5), Duration::from_secs(60));
                Ok(Progress::Pending { after, why: "security group is still in use".into() })
            }
            Err(error) => Err(error),
        }
    }

    async fn plan(&self, _op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let (wanted, have) = self.both(want).await?;
        let change = |action: Action| PlannedChange {
            operation: action.operation().into(),
            object: wanted.name.as_str().into(),
            reason: format!("{action:?}").into(),
        };
        Ok(plan(&wanted, have.as_ref()).into_iter().map(change).collect())
    }
}

impl Action {
    fn operation(&self) -> &'static str {
        match self {
            Self::CreateBalancer(_) => "CreateLoadBalancer",
            Self::Register(_) => "RegisterTargets",
            Self::CreateListener(_) => "CreateListener",
            Self::DeleteListener(_) => "DeleteListener",
            Self::Deregister(_) => "DeregisterTargets",
        }
    }
}

impl Aws {
    async fn ensure_balancer(&self, op: &Op, want: &LbSpec) -> Result<LbStatus, CloudError> {
        let (wanted, have) = self.both(want).await?;
        self.apply_actions(op, &wanted.name, plan(&wanted, have.as_ref())).await?;
        // A balancer serves its name while it is provisioned; nothing waits for `active`.
        let hostname = format!("{}.elb.{}.amazonaws.com", wanted.name, self.region);
        Ok(LbStatus { ingress: vec![LbIngress { hostname: Some(hostname.into()), ..LbIngress::default() }] })
    }

    /// Returns desired and observed state.
    async fn both(&self, want: &LbSpec) -> Result<(Balancer, Option<Balancer>), CloudError> {
        let Reading::Ours(options) = read(&want.service) else {
            return Err(CloudError::new(ErrorKind::ImplementedElsewhere, "service is not served by this provider"));
        };
        let wanted = desired(want, &options)?;
        let have = self.find(&wanted.name).await?;
        Ok((wanted, have))
    }

    async fn find(&self, name: &str) -> Result<Option<Balancer>, CloudError> {
        Ok(self.api.describe_balancers().await?.into_iter().find(|b| b.name == name))
    }

    async fn apply_actions(&self, op: &Op, name: &str, actions: Vec<Action>) -> Result<(), CloudError> {
        for action in actions {
            let api = self.writer(op)?;
            match action {
                Action::CreateBalancer(balancer) => api.create_balancer(balancer).await?,
                Action::Register(targets) => api.register(name, &targets).await?,
                Action::CreateListener(listener) => api.create_listener(name, listener).await?,
                Action::DeleteListener(port) => api.delete_listener(name, port).await?,
                Action::Deregister(targets) => api.deregister(name, &targets).await?,
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Inventory for Aws {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let all = op.run(async { Ok(self.api.describe_balancers().await?) }).await?;
        let owned = all.into_iter().map(|balancer| {
            let owner = match balancer.service.split_once('/') {
                // The tag holds no UID.
                Some((ns, name)) => Owner::Service { namespace: ns.into(), name: name.into(), uid: None },
                None => Owner::Cluster,
            };
            OwnedObject { kind: "load balancer".into(), id: balancer.name.into(), owner, created: None }
        });
        Ok(owned.collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        if self.list_owned(op).await?.contains(object) {
            self.writer(op)?.delete_balancer(&object.id).await?;
        }
        Ok(Progress::Done)
    }
}
