//! Objects and operations for the sketches' assertions.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{NodeView, Protocol, ServicePort, ServiceView},
    provider::{BackendSet, Backends, Claim, LbRef, LbSpec, LoadBalancers, Need, NodeQuery, Op, SourceRanges},
    runtime::gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

pub(crate) fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

/// An operation of a process that lost its lease.
pub(crate) fn op_of_a_loser() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::closed().0)
}

pub(crate) fn node(name: &str, provider_id: Option<&str>) -> NodeView {
    NodeView { provider_id: provider_id.map(Arc::from), ..NodeView::named(name) }
}

pub(crate) fn query(node: NodeView) -> NodeQuery {
    NodeQuery { node: Arc::new(node), need: Need::Initialize, max_age: Duration::ZERO }
}

pub(crate) fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("tests use real ports")
}

pub(crate) fn service_port(protocol: Protocol, number: u16) -> ServicePort {
    ServicePort {
        name: Arc::from(format!("p{number}")),
        protocol,
        port: port(number),
        node_port: Some(port(30_000 + number)),
        target_port: Arc::from("8080"),
        app_protocol: None,
    }
}

/// A Service of type LoadBalancer with one TCP port, 80.
pub(crate) fn service(annotations: &[(&str, &str)]) -> ServiceView {
    ServiceView {
        uid: Box::from("5e1f0a52-7d0c-4f4c-9d4e-2b8f3c1a9d77"),
        annotations: annotations.iter().map(|(k, v)| (Arc::from(*k), Arc::from(*v))).collect(),
        ports: Box::new([service_port(Protocol::Tcp, 80)]),
        ..ServiceView::named("shop", "web")
    }
}

pub(crate) fn spec(service: ServiceView, nodes: Vec<NodeView>) -> LbSpec {
    LbSpec {
        cluster: Arc::from("kubernetes"),
        sources: SourceRanges::of(&service).expect("the test's ranges are networks"),
        service: Arc::new(service),
        backends: BackendSet::Nodes(nodes.into_iter().map(Arc::new).collect()),
    }
}

pub(crate) fn lb_ref(service: &ServiceView) -> LbRef {
    LbRef {
        uid: service.uid.clone(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        class: service.class.clone(),
        annotations: service.annotations.clone(),
        status: service.status.clone(),
        last_seen: None,
    }
}

/// The backends that `provider` asks for, or a failed assertion.
pub(crate) fn claimed(provider: &dyn LoadBalancers, service: &ServiceView) -> Backends {
    match provider.interpret(service) {
        Claim::Ours { backends, .. } => backends,
        other => panic!("expected a claim, got {other:?}"),
    }
}
