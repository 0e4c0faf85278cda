//! A cloud whose load balancers consist of a frontend, a listener for each port, and one set of
//! members. Each request changes one of them, and every request may fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    k8s::{LbStatus, NodeView, Protocol, ServicePort, ServiceView},
    provider::{
        BackendKind, Backends, CloudError, ErrorKind, FieldError, LbRef, LbSpec, LbSupport,
        Mutation, MutationResponse, Op, PlannedChange, ReadMode, SourceRanges,
        load_balancer_engine::{
            Executed, Goal, LoadBalancerDriver, ParsedService, ParsedSpec, Readiness, Target,
        },
    },
};

/// A port that is never valid.
pub(super) const INVALID_PORT: u16 = 666;
/// A member that cannot be added yet.
pub(super) const UNREADY_PORT: u16 = 999;

/// What exists in the cloud for the one Service of the tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Objects {
    pub(super) has_frontend: bool,
    pub(super) listeners: BTreeSet<u16>,
    pub(super) members: BTreeSet<String>,
}

/// State of the cloud, and its faults.
#[derive(Debug, Default)]
pub(super) struct Cloud {
    pub(super) objects: Objects,
    /// Requests so far: reads as `GET …`.
    pub(super) requests: Vec<String>,
    /// Index of the request that fails, with the error; it is carried out if the flag is true.
    pub(super) fault: Option<(usize, ErrorKind, bool)>,
    /// The next request that sets members is rejected by the provider's own rate limit.
    pub(super) is_rate_limited: bool,
    /// The frontend has no address yet.
    pub(super) lacks_address: bool,
    /// The frontend is being changed and accepts no request.
    pub(super) is_busy: bool,
}

#[derive(Clone, Default)]
pub(super) struct Shelf(pub(super) Arc<Mutex<Cloud>>);

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    CreateFrontend,
    CreateListener(u16),
    DeleteListener(u16),
    SetMembers(BTreeSet<String>),
    DeleteFrontend,
}

#[derive(Default)]
pub(super) struct Observed {
    objects: Option<Objects>,
    lacks_address: bool,
}

impl Shelf {
    /// Answers one request: `change` is applied unless the request fails before that.
    async fn request<T>(
        &self,
        name: String,
        change: impl FnOnce(&mut Cloud) -> T,
    ) -> Result<T, CloudError> {
        // A place where the caller may be dropped, before and after the request has its effect.
        tokio::task::yield_now().await;
        let answer = {
            let mut cloud = self.0.lock();
            let index = cloud.requests.len();
            cloud.requests.push(name);
            match cloud.fault {
                Some((at, kind, is_carried_out)) if at == index => {
                    if is_carried_out {
                        change(&mut cloud);
                    }
                    Err(CloudError::new(kind, "the cloud fails"))
                }
                _ => Ok(change(&mut cloud)),
            }
        };
        tokio::task::yield_now().await;
        answer
    }

    async fn change(&self, op: &Op, action: &Action) -> Result<(), CloudError> {
        let name = format!("{action:?}");
        let mutation = Mutation::new("change", name.clone());
        op.mutate(mutation, async {
            self.request(name, |cloud| apply(action, &mut cloud.objects))
                .await??;
            Ok(MutationResponse::new(()))
        })
        .await
    }
}

fn ports(service: &ServiceView) -> BTreeSet<u16> {
    service.ports.iter().map(|port| port.port.get()).collect()
}

#[async_trait]
impl LoadBalancerDriver for Shelf {
    type Desired = BTreeSet<u16>;
    type Members = BTreeSet<String>;
    type Observed = Observed;
    type Action = Action;
    /// How often members were set.
    type Memory = u32;

    fn supports(&self) -> LbSupport {
        LbSupport::default()
    }

    fn parse(&self, service: &ServiceView) -> ParsedService<BTreeSet<u16>> {
        let mut ports = ports(service);
        if !ports.remove(&INVALID_PORT) {
            return Ok(ports).into();
        }
        let error = FieldError::new("spec.ports", "this port is never valid");
        ParsedService {
            spec: ParsedSpec::Invalid(vec![error]),
            tolerant: Some(Arc::new(ports)),
            notices: Vec::new(),
        }
    }

    fn backend_kind(&self, _: &BTreeSet<u16>) -> BackendKind {
        BackendKind::Nodes(Vec::new())
    }

    async fn members(
        &self,
        _: &Op,
        _: &BTreeSet<u16>,
        backends: &Backends,
        _: ReadMode,
    ) -> Result<BTreeSet<String>, CloudError> {
        Ok(backends
            .nodes()
            .iter()
            .map(|node| node.name.to_string())
            .collect())
    }

    async fn observe(
        &self,
        op: &Op,
        _: &Target<'_, Self>,
        observed: &mut Observed,
        _: &u32,
    ) -> Result<Readiness, CloudError> {
        if observed.objects.is_none() {
            let (objects, lacks_address) = self
                .request("GET".into(), |cloud| (cloud.objects.clone(), cloud.lacks_address))
                .await?;
            *observed = Observed { objects: Some(objects), lacks_address };
        }
        if self.0.lock().is_busy {
            return Ok(Readiness::Busy { after: op.poll_interval(), reason: "it is busy".into() });
        }
        Ok(Readiness::Ready)
    }

    fn exists(&self, observed: &Observed) -> bool {
        observed
            .objects
            .as_ref()
            .is_some_and(|objects| objects.has_frontend)
    }

    fn plan(
        &self,
        target: &Target<'_, Self>,
        observed: &Observed,
        _: &u32,
    ) -> Result<Vec<Action>, CloudError> {
        let objects = observed.objects.clone().unwrap_or_default();
        let mut actions = Vec::new();
        match target.goal {
            Goal::Ensure { desired, members } => {
                if !objects.has_frontend {
                    actions.push(Action::CreateFrontend);
                }
                let missing = desired.difference(&objects.listeners);
                actions.extend(missing.map(|port| Action::CreateListener(*port)));
                let surplus = objects.listeners.difference(desired);
                actions.extend(surplus.map(|port| Action::DeleteListener(*port)));
                if objects.members != *members {
                    actions.push(Action::SetMembers(members.clone()));
                }
            }
            Goal::UpdateMembers { members, .. } => {
                if objects.members != *members {
                    actions.push(Action::SetMembers(members.clone()));
                }
            }
            Goal::Delete { .. } => {
                let listeners = objects.listeners.iter();
                actions.extend(listeners.map(|port| Action::DeleteListener(*port)));
                if objects.has_frontend {
                    actions.push(Action::DeleteFrontend);
                }
            }
        }
        Ok(actions)
    }

    async fn execute(
        &self,
        op: &Op,
        _: &Target<'_, Self>,
        action: &Action,
        observed: &mut Observed,
        memory: &mut u32,
    ) -> Result<Executed, CloudError> {
        if *action == Action::CreateListener(UNREADY_PORT) {
            let reason = "the port is not ready".into();
            return Ok(Executed::Deferred { after: Duration::from_secs(7), reason });
        }
        if matches!(action, Action::SetMembers(_)) {
            if self.0.lock().is_rate_limited {
                return Err(CloudError::new(ErrorKind::Throttled, "own rate limit"));
            }
            *memory += 1;
        }
        self.change(op, action).await?;
        if let Some(objects) = &mut observed.objects {
            apply(action, objects)?;
        }
        Ok(Executed::Done)
    }

    fn describe(&self, target: &Target<'_, Self>, action: &Action) -> PlannedChange {
        PlannedChange {
            operation: format!("{action:?}").into(),
            object: target.service.key().into(),
            reason: "it differs".into(),
        }
    }

    fn status(
        &self,
        _: &Target<'_, Self>,
        observed: &Observed,
    ) -> Result<Option<LbStatus>, CloudError> {
        Ok((self.exists(observed) && !observed.lacks_address).then(status))
    }

    fn annotations(
        &self,
        _: &Target<'_, Self>,
        observed: &Observed,
    ) -> BTreeMap<Box<str>, Option<Box<str>>> {
        let exists = self.exists(observed);
        BTreeMap::from([("shelf/exists".into(), Some(exists.to_string().into()))])
    }

    fn rate_limit_delay(&self, error: &CloudError) -> Option<Duration> {
        (error.kind() == ErrorKind::Throttled).then(|| Duration::from_secs(3))
    }
}

/// Changes the objects. Like most clouds, this one rejects the creation of what exists and the
/// deletion of what does not.
fn apply(action: &Action, objects: &mut Objects) -> Result<(), CloudError> {
    let is_applied = match action {
        Action::CreateFrontend => !std::mem::replace(&mut objects.has_frontend, true),
        Action::CreateListener(port) => objects.listeners.insert(*port),
        Action::DeleteListener(port) => objects.listeners.remove(port),
        Action::SetMembers(members) => {
            objects.members.clone_from(members);
            objects.has_frontend
        }
        Action::DeleteFrontend => std::mem::take(objects).has_frontend,
    };
    if is_applied {
        return Ok(());
    }
    Err(CloudError::new(ErrorKind::Conflict, format!("{action:?} is impossible")))
}

/// The status of each load balancer.
pub(super) fn status() -> LbStatus {
    LbStatus::of_addresses([IpAddr::V4(Ipv4Addr::LOCALHOST)])
}

pub(super) fn spec(ports: &[u16], members: &[&str]) -> LbSpec {
    let port = |port: &u16| ServicePort {
        name: Arc::from(""),
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(*port).unwrap(),
        node_port: None,
        target_port: Arc::from("1"),
        app_protocol: None,
    };
    let service = ServiceView {
        uid: "u1".into(),
        ports: ports.iter().map(port).collect(),
        ..ServiceView::named("shop", "web")
    };
    let nodes = members.iter().map(|name| Arc::new(NodeView::named(name)));
    LbSpec {
        cluster: "kubernetes".into(),
        service: Arc::new(service),
        sources: SourceRanges::Unset,
        backends: Backends::Nodes(nodes.collect()),
    }
}

pub(super) fn reference() -> LbRef {
    let service = spec(&[80], &[]).service;
    LbRef {
        uid: service.uid.clone(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        class: None,
        annotations: BTreeMap::new(),
        status: LbStatus::default(),
        last_observed: Some(service),
    }
}
