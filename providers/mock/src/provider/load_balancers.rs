use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, ServiceView, well_known as wk},
    provider::{
        BackendSet, Backends, Claim, CloudError, Depth, Digest, ErrorKind, InvalidInput, LbOutcome, LbRef, LbSpec,
        LbSupport, LoadBalancers, Op, PlannedChange, Progress, SourceRanges,
    },
};
use ipnet::IpNet;

use super::MockProvider;
use crate::cloud::{LoadBalancer, LoadBalancerKey, LoadBalancerSpec};

#[async_trait]
impl LoadBalancers for MockProvider {
    /// Everything that takes no more than remembering; no second address family and no chosen address.
    fn supports(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            dual_stack: false,
            no_node_ports: true,
            load_balancer_ip: false,
            client_ip_affinity: true,
        }
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        let mistakes = mistakes(service);
        if !mistakes.is_empty() {
            return Claim::Refused(mistakes);
        }
        let mut hasher = DefaultHasher::new();
        (&service.uid, &service.namespace, &service.name, ports(service), source_texts(service)).hash(&mut hasher);
        Claim::Ours { backends: Backends::Nodes(Vec::new()), digest: Digest(hasher.finish()) }
    }

    /// One cloud call at either depth: the cloud compares and repairs by itself.
    async fn ensure(&self, op: &Op, want: &LbSpec, _: Depth) -> LbOutcome {
        let ensure = async {
            let want = desired(want)?;
            Self::check_write(op)?;
            op.run(self.api.ensure_load_balancer(&want)).await
        };
        outcome(ensure.await)
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let update = async {
            let want = desired(want)?;
            let key = LoadBalancerKey { cluster: want.cluster, name: want.name, service: want.service };
            Self::check_write(op)?;
            op.run(self.api.update_load_balancer(&key, &want.nodes)).await
        };
        outcome(update.await)
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let key = LoadBalancerKey {
            cluster: op.cluster_name().to_owned(),
            name: balancer_name(&lb.uid),
            service: format!("{}/{}", lb.namespace, lb.name),
        };
        self.delete_balancer(op, &key).await
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let want = desired(want)?;
        let key =
            LoadBalancerKey { cluster: want.cluster.clone(), name: want.name.clone(), service: want.service.clone() };
        let seen = op.run(self.api.get_load_balancer(&key)).await?;
        Ok(plan_balancer(seen.as_ref(), &want))
    }
}

impl MockProvider {
    /// Deletes a balancer; one that is not there is deleted.
    pub(super) async fn delete_balancer(&self, op: &Op, key: &LoadBalancerKey) -> Result<Progress, CloudError> {
        Self::check_write(op)?;
        match op.run(self.api.delete_load_balancer(key)).await {
            Ok(()) => Ok(Progress::Done),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }
}

fn outcome(result: Result<LoadBalancer, CloudError>) -> LbOutcome {
    match result {
        Ok(balancer) => {
            let ingress = LbIngress { ip: Some(balancer.address), ..LbIngress::default() };
            LbOutcome::done(LbStatus { ingress: vec![ingress] })
        }
        Err(error) => error.into(),
    }
}

/// Says what `ensure_load_balancer` would change.
fn plan_balancer(seen: Option<&LoadBalancer>, want: &LoadBalancerSpec) -> Vec<PlannedChange> {
    let change = |operation: &str, reason: String| PlannedChange {
        operation: operation.into(),
        object: want.name.clone().into(),
        reason: reason.into(),
    };
    let Some(seen) = seen else {
        return vec![change("ensure_load_balancer", format!("service {} has no load balancer", want.service))];
    };
    let mut changes = Vec::new();
    if seen.ports != want.ports {
        changes.push(change("ensure_load_balancer", format!("ports {:?} become {:?}", seen.ports, want.ports)));
    }
    if seen.source_ranges != want.source_ranges {
        let reason = format!("source ranges {:?} become {:?}", seen.source_ranges, want.source_ranges);
        changes.push(change("ensure_load_balancer", reason));
    }
    if seen.nodes != want.nodes {
        changes.push(change("update_load_balancer", format!("nodes {:?} become {:?}", seen.nodes, want.nodes)));
    }
    changes
}

fn desired(want: &LbSpec) -> Result<LoadBalancerSpec, CloudError> {
    let service = &want.service;
    let name = format!("{}/{}", service.namespace, service.name);
    if service.uid.is_empty() {
        return Err(CloudError::invalid_input(format!("service {name} has no UID")));
    }
    let BackendSet::Nodes(nodes) = &want.backends else {
        return Err(CloudError::new(ErrorKind::NotImplemented, format!("service {name}: only nodes can be backends")));
    };
    let mut nodes: Vec<String> = nodes.iter().map(|node| node.name.to_string()).collect();
    nodes.sort();
    nodes.dedup();
    let source_ranges = match &want.sources {
        SourceRanges::Unset => Vec::new(),
        // No source at all is not "everybody", which is what an empty list says to the cloud.
        SourceRanges::Only(ranges) if ranges.is_empty() => {
            return Err(CloudError::invalid_input(format!("service {name} admits no source range")));
        }
        SourceRanges::Only(ranges) => ranges.iter().map(IpNet::to_string).collect(),
    };
    Ok(LoadBalancerSpec {
        cluster: want.cluster.to_string(),
        uid: service.uid.to_string(),
        name: balancer_name(&service.uid),
        service: name,
        ports: ports(service),
        nodes,
        source_ranges,
    })
}

/// Returns the name of a Service's balancer: upstream's default, `a` and the UID without dashes, at most 32 characters.
fn balancer_name(uid: &str) -> String {
    std::iter::once('a').chain(uid.chars().filter(|c| *c != '-')).take(32).collect()
}

fn ports(service: &ServiceView) -> Vec<u16> {
    service.ports.iter().map(|port| port.port.get()).collect()
}

/// Returns the source ranges as written: the field, or the annotation when the field is empty.
fn source_texts(service: &ServiceView) -> Vec<&str> {
    if !service.source_ranges.is_empty() {
        return service.source_ranges.iter().map(|range| range.trim()).collect();
    }
    let annotation = service.annotations.get(wk::ANNOTATION_SOURCE_RANGES).map(|text| text.trim());
    annotation.filter(|text| !text.is_empty()).map(|text| text.split(',').map(str::trim).collect()).unwrap_or_default()
}

fn mistakes(service: &ServiceView) -> Vec<InvalidInput> {
    let mut mistakes = Vec::new();
    if service.ports.is_empty() {
        mistakes.push(InvalidInput { field: "spec.ports".into(), message: "is empty".into() });
    }
    let field = match service.source_ranges.is_empty() {
        true => wk::ANNOTATION_SOURCE_RANGES,
        false => "spec.loadBalancerSourceRanges",
    };
    for text in source_texts(service).into_iter().filter(|text| text.parse::<IpNet>().is_err()) {
        let message = format!("{text:?} is not a network in CIDR notation").into();
        mistakes.push(InvalidInput { field: field.into(), message });
    }
    mistakes
}
