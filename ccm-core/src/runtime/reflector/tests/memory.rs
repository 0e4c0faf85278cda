//! What a cached object costs.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    k8s::{NodeFields, NodeView, ServiceFields, ServiceView, TaintEffect, well_known},
    runtime::{
        cache::{Cache, ListSnapshot},
        encoding::{CachedObject, Decoder, Encoding},
    },
};

/// Counts bytes, each shared string once.
#[derive(Default)]
struct DeepSize {
    seen: HashSet<*const u8>,
    /// Asked of the allocator.
    bytes: usize,
    /// Taken from the system by glibc's allocator for that.
    allocated: usize,
}

impl DeepSize {
    fn heap(&mut self, bytes: usize) {
        if bytes > 0 {
            self.bytes += bytes;
            // A header of one word, whole lines of 16 bytes, never less than 32.
            self.allocated += (bytes + size_of::<usize>()).next_multiple_of(16).max(32);
        }
    }

    /// A table at half load, which is what doubling leads to on average and worse.
    fn table(&mut self, entries: usize, entry: usize) {
        self.bytes += 2 * entries * (entry + 1);
        self.allocated += 2 * entries * (entry + 1);
    }

    fn shared(&mut self, text: &Arc<str>) {
        if self.seen.insert(text.as_ptr()) {
            // Two counters precede the text.
            self.heap(text.len() + 2 * size_of::<usize>());
        }
    }

    fn map(&mut self, map: &crate::k8s::LabelMap) {
        self.heap(map.len() * size_of::<(Arc<str>, Arc<str>)>());
        for (key, value) in map.iter() {
            for text in [key, value] {
                if self.seen.insert(text.as_ptr()) {
                    self.heap(text.len() + 2 * size_of::<usize>());
                }
            }
        }
    }

    /// One leaf of a B-tree, which has room for eleven entries, two lengths and a parent.
    fn tree(&mut self, tree: &BTreeMap<Arc<str>, Arc<str>>) {
        assert!(tree.len() <= 11, "more than one leaf");
        if !tree.is_empty() {
            self.heap(11 * size_of::<(Arc<str>, Arc<str>)>() + 2 * size_of::<usize>());
        }
        for (key, value) in tree {
            self.shared(key);
            self.shared(value);
        }
    }

    fn service(&mut self, service: &ServiceView) {
        self.heap(size_of::<ServiceView>() + 2 * size_of::<usize>());
        self.table(1, size_of::<(Arc<str>, Arc<ServiceView>)>());
        self.shared(&CachedObject::key(service));
        self.shared(&service.namespace);
        self.shared(&service.name);
        self.heap(service.uid.len());
        self.heap(service.resource_version.len());
        self.tree(&service.labels);
        self.tree(&service.annotations);
        self.heap(size_of_val(&*service.finalizers));
        service.finalizers.iter().for_each(|f| self.shared(f));
        service.class.iter().for_each(|class| self.shared(class));
        self.heap(size_of_val(&*service.ports));
        for port in &service.ports {
            self.shared(&port.name);
            self.shared(&port.target_port);
            port.app_protocol.iter().for_each(|p| self.shared(p));
        }
        for list in [&service.external_ips, &service.source_ranges] {
            self.heap(size_of_val(&**list));
            list.iter().for_each(|text| self.heap(text.len()));
        }
        self.heap(service.load_balancer_ip.as_ref().map_or(0, |ip| ip.len()));
        self.heap(size_of_val(&*service.ip_families));
        service
            .ip_family_policy
            .iter()
            .for_each(|policy| self.shared(policy));
        self.heap(service.status.ingress.capacity() * size_of::<crate::k8s::LbIngress>());
        for ingress in &service.status.ingress {
            assert!(ingress.ports.capacity() == 0, "not counted");
            self.heap(ingress.hostname.as_ref().map_or(0, |name| name.len()));
            self.heap(ingress.ip_mode.as_ref().map_or(0, |mode| mode.len()));
        }
    }

    fn node(&mut self, node: &NodeView) {
        // The node behind its own counters, and its entry in the cache.
        self.heap(size_of::<NodeView>() + 2 * size_of::<usize>());
        self.table(1, size_of::<(Arc<str>, Arc<NodeView>)>());
        self.shared(&node.name);
        self.heap(node.uid.len());
        self.heap(node.resource_version.len());
        self.map(&node.labels);
        self.map(&node.annotations);
        node.provider_id.iter().for_each(|id| self.shared(id));
        self.heap(size_of_val(&*node.taints));
        for taint in &node.taints {
            self.shared(&taint.key);
            self.shared(&taint.value);
            if let TaintEffect::Other(text) = &taint.effect {
                self.shared(text);
            }
        }
        self.heap(size_of_val(&*node.pod_cidrs));
        node.pod_cidrs.iter().for_each(|cidr| self.shared(cidr));
        self.heap(size_of_val(&*node.addresses));
        node.addresses
            .iter()
            .for_each(|a| self.heap(a.address.len()));
        for condition in [&node.ready, &node.network_unavailable]
            .into_iter()
            .flatten()
        {
            self.shared(&condition.reason);
        }
        self.heap(node.system_uuid.as_ref().map_or(0, |id| id.len()));
    }
}

/// A node as a kubelet on a cloud writes it: 25 labels, 50 images, about 15 KB of JSON.
fn kubelet_node(name: &str, i: usize, addresses: &Value) -> Value {
    let mut labels: serde_json::Map<String, Value> = (0..17)
        .map(|l| (format!("example.com/label-number-{l}"), json!(format!("value-{l}-of-{i}"))))
        .collect();
    for key in well_known::FRAMEWORK_LABELS {
        labels.insert(key.to_owned(), json!(format!("eu-central-1{}", ["a", "b", "c"][i % 3])));
    }
    labels.remove(well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS);
    labels.insert(well_known::LABEL_HOSTNAME.to_owned(), json!(name));
    labels.insert("kubernetes.io/os".to_owned(), json!("linux"));
    let digest = "0123456789abcdef".repeat(4);
    let image = |n: usize| {
        json!({"names": [format!("registry.example.com/team/image-{n}@sha256:{digest}"),
                         format!("registry.example.com/team/image-{n}:v1.2.{n}")], "sizeBytes": 123_456_789})
    };
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "kubelet has a long story to tell about it",
               "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "metadata": {"name": name, "uid": format!("01234567-89ab-cdef-0123-{i:012}"), "resourceVersion": format!("{}", 100_000 + i),
                     "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels,
                     "annotations": {"alpha.kubernetes.io/provided-node-ip": format!("10.0.{}.{}", i / 250, i % 250),
                                     "volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "spec": {"providerID": format!("aws:///eu-central-1a/i-{i:017}"), "podCIDR": format!("10.{}.{}.0/24", i / 250, i % 250),
                 "podCIDRs": [format!("10.{}.{}.0/24", i / 250, i % 250)]},
        "status": {
            "addresses": addresses,
            "conditions": [condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                           condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                           condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                           condition("Ready", "True", "KubeletReady"),
                           condition("NetworkUnavailable", "False", "RouteCreated")],
            "images": (0..50).map(image).collect::<Vec<_>>(),
            "nodeInfo": {"systemUUID": format!("ec2{i:029}"), "kubeletVersion": "v1.36.3"},
        },
    })
}

const NODES: usize = 500;

/// Returns what each of many nodes takes, everything that the cache holds for it included: asked
/// for, and allocated.
fn bytes_each(shape: fn(usize) -> Value) -> (usize, usize) {
    let decoder = Decoder::<NodeView>::new(NodeFields::default());
    let decode = |i: usize| {
        let json = shape(i).to_string();
        assert!((10_000..20_000).contains(&json.len()), "not kubelet-shaped: {}", json.len());
        decoder.object(Encoding::Json, &json.into()).unwrap()
    };
    let nodes: Vec<NodeView> = (0..NODES).map(decode).collect();
    let mut size = DeepSize::default();
    for node in &nodes {
        size.node(node);
    }
    size.table(decoder.interner.len(), size_of::<Arc<str>>());
    (size.bytes / NODES, size.allocated / NODES)
}

#[test]
fn an_initialised_node_takes_at_most_one_kibibyte() {
    let (each, allocated) = bytes_each(|i| {
        let name = format!("pool-a-worker-{i:04}");
        let addresses = json!([
            {"type": "InternalIP", "address": format!("10.0.{}.{}", i / 250, i % 250)},
            {"type": "ExternalIP", "address": format!("198.51.{}.{}", i / 250, i % 250)},
            {"type": "Hostname", "address": name},
        ]);
        kubelet_node(&name, i, &addresses)
    });
    assert!(each <= 1024, "{each} bytes a node");
    assert!(each > 500, "{each} bytes a node: does this still measure?");
    assert!(allocated <= 1152, "{allocated} bytes a node with the allocator's share");
}

/// Every address type and the longest names in use: four copies of a long host name.
#[test]
fn a_node_with_every_address_type_stays_near_it() {
    let (each, allocated) = bytes_each(|i| {
        let name = format!("ip-10-0-{}-{}.eu-central-1.compute.internal", i / 250, i % 250);
        let public = format!("ec2-198-51-{}-{}.eu-central-1.compute.example.com", i / 250, i % 250);
        let addresses = json!([
            {"type": "InternalIP", "address": format!("10.0.{}.{}", i / 250, i % 250)},
            {"type": "ExternalIP", "address": format!("198.51.{}.{}", i / 250, i % 250)},
            {"type": "InternalDNS", "address": name},
            {"type": "Hostname", "address": name},
            {"type": "ExternalDNS", "address": public},
        ]);
        kubelet_node(&name, i, &addresses)
    });
    assert!(each <= 1200, "{each} bytes a node");
    assert!(allocated <= 1400, "{allocated} bytes a node with the allocator's share");
}

/// A Service as a chart installs it and kubectl applies it: 6 labels, 6 annotations and kubectl's
/// own, 2 ports.
fn applied_service(i: usize, kind: &str) -> Value {
    let name = format!("shop-frontend-{i:04}");
    let own = json!({"f:metadata": {"f:annotations": {"f:a": {}, "f:b": {}}, "f:labels": {}}, "f:spec": {"f:ports": {}}});
    let ports = json!([
        {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30_000 + i},
        {"name": "https", "protocol": "TCP", "port": 443, "targetPort": "https", "nodePort": 31_000 + i},
    ]);
    json!({
        "metadata": {
            "namespace": format!("team-{}", i % 20), "name": name, "uid": format!("01234567-89ab-cdef-0123-{i:012}"),
            "resourceVersion": format!("{}", 100_000 + i), "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": if kind == "LoadBalancer" { json!([well_known::FINALIZER_LOAD_BALANCER]) } else { Value::Null },
            "labels": {"app.kubernetes.io/name": "frontend", "app.kubernetes.io/instance": name,
                       "app.kubernetes.io/version": "1.2.3", "app.kubernetes.io/component": "web",
                       "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "frontend-4.5.6"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": json!({"spec": {"ports": ports}, "more": own}).to_string(),
                "service.beta.kubernetes.io/aws-load-balancer-type": "external",
                "service.beta.kubernetes.io/aws-load-balancer-scheme": "internet-facing",
                "service.beta.kubernetes.io/aws-load-balancer-ssl-cert": format!("arn:aws:acm:eu-central-1:123456789012:certificate/{i:036}"),
                "service.beta.kubernetes.io/aws-load-balancer-ssl-ports": "443",
                "meta.helm.sh/release-name": name,
                "meta.helm.sh/release-namespace": format!("team-{}", i % 20),
            },
            "managedFields": (0..4).map(|m| json!({"manager": format!("m{m}"), "operation": "Update", "fieldsV1": own})).collect::<Vec<_>>(),
        },
        "spec": {"type": kind, "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "selector": {"app.kubernetes.io/name": "frontend"},
                 "ports": ports, "sessionAffinity": "None", "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
                 "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "allocateLoadBalancerNodePorts": true},
        "status": {"loadBalancer": {"ingress": [{"hostname": format!("{name}-0123456789abcdef.elb.eu-central-1.example.com")}]}},
    })
}

const SERVICES: usize = 500;

#[test]
fn a_load_balancer_takes_at_most_two_kibibytes() {
    let decoder = Decoder::<ServiceView>::new(ServiceFields::default());
    let decode = |i| {
        let json = applied_service(i, "LoadBalancer").to_string();
        assert!((2_400..5_000).contains(&json.len()), "not as applied: {}", json.len());
        decoder.object(Encoding::Json, &json.into()).unwrap()
    };
    let services: Vec<_> = (0..SERVICES).map(decode).collect();
    assert!(
        services
            .iter()
            .all(|s| s.ports.len() == 2 && s.annotations.len() == 6)
    );
    let mut size = DeepSize::default();
    for service in &services {
        size.service(service);
    }
    size.table(decoder.interner.len(), size_of::<Arc<str>>());
    let (each, allocated) = (size.bytes / SERVICES, size.allocated / SERVICES);
    assert!(each <= 2048, "{each} bytes a service");
    assert!(each > 1500, "{each} bytes a service: does this still measure?");
    assert!(allocated <= 2400, "{allocated} bytes a service with the allocator's share");
}

#[test]
fn services_of_other_types_take_nothing() {
    let cache = Cache::<ServiceView>::new(ServiceFields::default());
    let mut list = ListSnapshot::new();
    for i in 0..SERVICES {
        let json = applied_service(i, ["ClusterIP", "NodePort", "ExternalName"][i % 3]).to_string();
        list.upsert(
            cache
                .decoder()
                .object(Encoding::Json, &json.into())
                .unwrap(),
        );
    }
    cache.replace(list);
    assert!(cache.is_empty() && cache.decoder().interner.is_empty());
}
