//! The fields of every served type, as in the `OpenAPI` documents of kube-apiserver 1.36.

use super::{Field, Merge, Ty, Type};

macro_rules! types {
    ($($id:ident = $name:literal { $($field:ident $([$required:ident])? : $ty:expr),* $(,)? })*) => {
        $(pub(crate) static $id: Type = Type {
            name: $name,
            fields: &[$(Field {
                name: stringify!($field),
                ty: $ty,
                required: types!(@flag $($required)?),
            }),*],
        };)*
        /// Every type of the table.
        pub(crate) static TYPES: &[&Type] = &[$(&$id),*];
    };
    (@flag required) => { true };
    (@flag) => { false };
}

const TEXT: Ty = Ty::Text;
const BOOL: Ty = Ty::Bool;
const INT32: Ty = Ty::Int32;
const INT64: Ty = Ty::Int64;
const TIME: Ty = Ty::Time;
const MICRO_TIME: Ty = Ty::MicroTime;
const STRING_MAP: Ty = Ty::Map(&TEXT);
const BYTES_MAP: Ty = Ty::Map(&Ty::Bytes);
const LISTS_MAP: Ty = Ty::Map(&TEXTS);
const QUANTITIES: Ty = Ty::Map(&Ty::Quantity);
const TEXTS: Ty = Ty::List(&TEXT, Merge::Atomic);
const TEXT_SET: Ty = Ty::List(&TEXT, Merge::Set);
const META: Ty = Ty::Object(&OBJECT_META);

const fn object(of: &'static Type) -> Ty {
    Ty::Object(of)
}

const fn list(of: &'static Ty) -> Ty {
    Ty::List(of, Merge::Atomic)
}

/// A list that strategic merge patches merge by `key`, and whose items are unique by `keys`.
const fn merged(of: &'static Ty, key: &'static str, keys: &'static [&'static str]) -> Ty {
    Ty::List(of, Merge::Key(key, keys))
}

types! {
    OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
        annotations: STRING_MAP, creationTimestamp: TIME, deletionGracePeriodSeconds: INT64, deletionTimestamp: TIME,
        finalizers: TEXT_SET, generateName: TEXT, generation: INT64, labels: STRING_MAP,
        managedFields: list(&Ty::Object(&MANAGED_FIELDS)), name: TEXT, namespace: TEXT,
        ownerReferences: merged(&Ty::Object(&OWNER_REFERENCE), "uid", &["uid"]), resourceVersion: TEXT, selfLink: TEXT,
        uid: TEXT,
    }
    MANAGED_FIELDS = "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry" {
        apiVersion: TEXT, fieldsType: TEXT, fieldsV1: Ty::Any, manager: TEXT, operation: TEXT, subresource: TEXT, time: TIME,
    }
    OWNER_REFERENCE = "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference" {
        apiVersion[required]: TEXT, blockOwnerDeletion: BOOL, controller: BOOL, kind[required]: TEXT,
        name[required]: TEXT, uid[required]: TEXT,
    }
    CONDITION = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition" {
        lastTransitionTime[required]: TIME, message[required]: TEXT, observedGeneration: INT64, reason[required]: TEXT,
        status[required]: TEXT, type[required]: TEXT,
    }
    SELECTOR_REQUIREMENT = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement" {
        key[required]: TEXT, operator[required]: TEXT, values: TEXTS,
    }
    FIELD_REQUIREMENT = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldSelectorRequirement" {
        key[required]: TEXT, operator[required]: TEXT, values: TEXTS,
    }

    NODE = "io.k8s.api.core.v1.Node" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec: object(&NODE_SPEC), status: object(&NODE_STATUS),
    }
    NODE_SPEC = "io.k8s.api.core.v1.NodeSpec" {
        configSource: Ty::Any, externalID: TEXT, podCIDR: TEXT, podCIDRs: TEXT_SET, providerID: TEXT,
        taints: list(&Ty::Object(&TAINT)), unschedulable: BOOL,
    }
    TAINT = "io.k8s.api.core.v1.Taint" {
        effect[required]: TEXT, key[required]: TEXT, timeAdded: TIME, value: TEXT,
    }
    NODE_STATUS = "io.k8s.api.core.v1.NodeStatus" {
        addresses: merged(&Ty::Object(&NODE_ADDRESS), "type", &["type"]), allocatable: QUANTITIES, capacity: QUANTITIES,
        conditions: merged(&Ty::Object(&NODE_CONDITION), "type", &["type"]), config: Ty::Any,
        daemonEndpoints: object(&NODE_DAEMON_ENDPOINTS), declaredFeatures: TEXTS, features: object(&NODE_FEATURES),
        images: list(&Ty::Object(&CONTAINER_IMAGE)), nodeInfo: object(&NODE_SYSTEM_INFO), phase: TEXT,
        runtimeHandlers: list(&Ty::Object(&NODE_RUNTIME_HANDLER)), volumesAttached: list(&Ty::Object(&ATTACHED_VOLUME)),
        volumesInUse: TEXTS,
    }
    NODE_ADDRESS = "io.k8s.api.core.v1.NodeAddress" { address[required]: TEXT, type[required]: TEXT }
    NODE_CONDITION = "io.k8s.api.core.v1.NodeCondition" {
        lastHeartbeatTime: TIME, lastTransitionTime: TIME, message: TEXT, reason: TEXT, status[required]: TEXT,
        type[required]: TEXT,
    }
    NODE_DAEMON_ENDPOINTS = "io.k8s.api.core.v1.NodeDaemonEndpoints" { kubeletEndpoint: object(&DAEMON_ENDPOINT) }
    DAEMON_ENDPOINT = "io.k8s.api.core.v1.DaemonEndpoint" { Port[required]: INT32 }
    NODE_FEATURES = "io.k8s.api.core.v1.NodeFeatures" { supplementalGroupsPolicy: BOOL }
    CONTAINER_IMAGE = "io.k8s.api.core.v1.ContainerImage" { names: TEXTS, sizeBytes: INT64 }
    NODE_SYSTEM_INFO = "io.k8s.api.core.v1.NodeSystemInfo" {
        architecture[required]: TEXT, bootID[required]: TEXT, containerRuntimeVersion[required]: TEXT,
        kernelVersion[required]: TEXT, kubeProxyVersion[required]: TEXT, kubeletVersion[required]: TEXT,
        machineID[required]: TEXT, operatingSystem[required]: TEXT, osImage[required]: TEXT,
        swap: object(&NODE_SWAP_STATUS), systemUUID[required]: TEXT,
    }
    NODE_SWAP_STATUS = "io.k8s.api.core.v1.NodeSwapStatus" { capacity: INT64 }
    NODE_RUNTIME_HANDLER = "io.k8s.api.core.v1.NodeRuntimeHandler" {
        features: object(&NODE_RUNTIME_HANDLER_FEATURES), name: TEXT,
    }
    NODE_RUNTIME_HANDLER_FEATURES = "io.k8s.api.core.v1.NodeRuntimeHandlerFeatures" {
        recursiveReadOnlyMounts: BOOL, userNamespaces: BOOL,
    }
    ATTACHED_VOLUME = "io.k8s.api.core.v1.AttachedVolume" { devicePath[required]: TEXT, name[required]: TEXT }

    SERVICE = "io.k8s.api.core.v1.Service" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec: object(&SERVICE_SPEC), status: object(&SERVICE_STATUS),
    }
    SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec" {
        allocateLoadBalancerNodePorts: BOOL, clusterIP: TEXT, clusterIPs: TEXTS, externalIPs: TEXTS, externalName: TEXT,
        externalTrafficPolicy: TEXT, healthCheckNodePort: INT32, internalTrafficPolicy: TEXT, ipFamilies: TEXTS,
        ipFamilyPolicy: TEXT, loadBalancerClass: TEXT, loadBalancerIP: TEXT, loadBalancerSourceRanges: TEXTS,
        ports: merged(&Ty::Object(&SERVICE_PORT), "port", &["port", "protocol"]), publishNotReadyAddresses: BOOL,
        selector: STRING_MAP, sessionAffinity: TEXT, sessionAffinityConfig: object(&SESSION_AFFINITY_CONFIG),
        trafficDistribution: TEXT, type: TEXT,
    }
    SERVICE_PORT = "io.k8s.api.core.v1.ServicePort" {
        appProtocol: TEXT, name: TEXT, nodePort: INT32, port[required]: INT32, protocol: TEXT, targetPort: Ty::IntOrString,
    }
    SESSION_AFFINITY_CONFIG = "io.k8s.api.core.v1.SessionAffinityConfig" { clientIP: object(&CLIENT_IP_CONFIG) }
    CLIENT_IP_CONFIG = "io.k8s.api.core.v1.ClientIPConfig" { timeoutSeconds: INT32 }
    SERVICE_STATUS = "io.k8s.api.core.v1.ServiceStatus" {
        conditions: merged(&Ty::Object(&CONDITION), "type", &["type"]), loadBalancer: object(&LOAD_BALANCER_STATUS),
    }
    LOAD_BALANCER_STATUS = "io.k8s.api.core.v1.LoadBalancerStatus" { ingress: list(&Ty::Object(&LOAD_BALANCER_INGRESS)) }
    LOAD_BALANCER_INGRESS = "io.k8s.api.core.v1.LoadBalancerIngress" {
        hostname: TEXT, ip: TEXT, ipMode: TEXT, ports: list(&Ty::Object(&PORT_STATUS)),
    }
    PORT_STATUS = "io.k8s.api.core.v1.PortStatus" { error: TEXT, port[required]: INT32, protocol[required]: TEXT }

    EVENT = "io.k8s.api.core.v1.Event" {
        action: TEXT, apiVersion: TEXT, count: INT32, eventTime: MICRO_TIME, firstTimestamp: TIME,
        involvedObject[required]: object(&OBJECT_REFERENCE), kind: TEXT, lastTimestamp: TIME, message: TEXT,
        metadata[required]: META, reason: TEXT, related: object(&OBJECT_REFERENCE), reportingComponent: TEXT,
        reportingInstance: TEXT, series: object(&CORE_EVENT_SERIES), source: object(&EVENT_SOURCE), type: TEXT,
    }
    OBJECT_REFERENCE = "io.k8s.api.core.v1.ObjectReference" {
        apiVersion: TEXT, fieldPath: TEXT, kind: TEXT, name: TEXT, namespace: TEXT, resourceVersion: TEXT, uid: TEXT,
    }
    CORE_EVENT_SERIES = "io.k8s.api.core.v1.EventSeries" { count: INT32, lastObservedTime: MICRO_TIME }
    EVENT_SOURCE = "io.k8s.api.core.v1.EventSource" { component: TEXT, host: TEXT }
    EVENTS_EVENT = "io.k8s.api.events.v1.Event" {
        action: TEXT, apiVersion: TEXT, deprecatedCount: INT32, deprecatedFirstTimestamp: TIME,
        deprecatedLastTimestamp: TIME, deprecatedSource: object(&EVENT_SOURCE), eventTime[required]: MICRO_TIME, kind: TEXT,
        metadata: META, note: TEXT, reason: TEXT, regarding: object(&OBJECT_REFERENCE), related: object(&OBJECT_REFERENCE),
        reportingController: TEXT, reportingInstance: TEXT, series: object(&EVENT_SERIES), type: TEXT,
    }
    EVENT_SERIES = "io.k8s.api.events.v1.EventSeries" { count[required]: INT32, lastObservedTime[required]: MICRO_TIME }

    NAMESPACE = "io.k8s.api.core.v1.Namespace" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec: object(&NAMESPACE_SPEC), status: object(&NAMESPACE_STATUS),
    }
    NAMESPACE_SPEC = "io.k8s.api.core.v1.NamespaceSpec" { finalizers: TEXTS }
    NAMESPACE_STATUS = "io.k8s.api.core.v1.NamespaceStatus" {
        conditions: merged(&Ty::Object(&NAMESPACE_CONDITION), "type", &["type"]), phase: TEXT,
    }
    NAMESPACE_CONDITION = "io.k8s.api.core.v1.NamespaceCondition" {
        lastTransitionTime: TIME, message: TEXT, reason: TEXT, status[required]: TEXT, type[required]: TEXT,
    }
    CONFIG_MAP = "io.k8s.api.core.v1.ConfigMap" {
        apiVersion: TEXT, binaryData: BYTES_MAP, data: STRING_MAP, immutable: BOOL, kind: TEXT, metadata: META,
    }
    SECRET = "io.k8s.api.core.v1.Secret" {
        apiVersion: TEXT, data: BYTES_MAP, immutable: BOOL, kind: TEXT, metadata: META, stringData: STRING_MAP, type: TEXT,
    }
    SERVICE_ACCOUNT = "io.k8s.api.core.v1.ServiceAccount" {
        apiVersion: TEXT, automountServiceAccountToken: BOOL, imagePullSecrets: list(&Ty::Object(&LOCAL_REFERENCE)),
        kind: TEXT, metadata: META, secrets: merged(&Ty::Object(&OBJECT_REFERENCE), "name", &["name"]),
    }
    LOCAL_REFERENCE = "io.k8s.api.core.v1.LocalObjectReference" { name: TEXT }
    ENDPOINTS = "io.k8s.api.core.v1.Endpoints" {
        apiVersion: TEXT, kind: TEXT, metadata: META, subsets: list(&Ty::Object(&ENDPOINT_SUBSET)),
    }
    ENDPOINT_SUBSET = "io.k8s.api.core.v1.EndpointSubset" {
        addresses: list(&Ty::Object(&ENDPOINT_ADDRESS)), notReadyAddresses: list(&Ty::Object(&ENDPOINT_ADDRESS)),
        ports: list(&Ty::Object(&CORE_ENDPOINT_PORT)),
    }
    ENDPOINT_ADDRESS = "io.k8s.api.core.v1.EndpointAddress" {
        hostname: TEXT, ip[required]: TEXT, nodeName: TEXT, targetRef: object(&OBJECT_REFERENCE),
    }
    CORE_ENDPOINT_PORT = "io.k8s.api.core.v1.EndpointPort" {
        appProtocol: TEXT, name: TEXT, port[required]: INT32, protocol: TEXT,
    }
    POD = "io.k8s.api.core.v1.Pod" { apiVersion: TEXT, kind: TEXT, metadata: META, spec: Ty::Any, status: Ty::Any }

    LEASE = "io.k8s.api.coordination.v1.Lease" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec: object(&LEASE_SPEC),
    }
    LEASE_SPEC = "io.k8s.api.coordination.v1.LeaseSpec" {
        acquireTime: MICRO_TIME, holderIdentity: TEXT, leaseDurationSeconds: INT32, leaseTransitions: INT32,
        preferredHolder: TEXT, renewTime: MICRO_TIME, strategy: TEXT,
    }
    ENDPOINT_SLICE = "io.k8s.api.discovery.v1.EndpointSlice" {
        addressType[required]: TEXT, apiVersion: TEXT, endpoints: list(&Ty::Object(&ENDPOINT)), kind: TEXT, metadata: META,
        ports: list(&Ty::Object(&ENDPOINT_PORT)),
    }
    ENDPOINT = "io.k8s.api.discovery.v1.Endpoint" {
        addresses[required]: TEXTS, conditions: object(&ENDPOINT_CONDITIONS), deprecatedTopology: STRING_MAP,
        hints: object(&ENDPOINT_HINTS), hostname: TEXT, nodeName: TEXT, targetRef: object(&OBJECT_REFERENCE), zone: TEXT,
    }
    ENDPOINT_CONDITIONS = "io.k8s.api.discovery.v1.EndpointConditions" { ready: BOOL, serving: BOOL, terminating: BOOL }
    ENDPOINT_HINTS = "io.k8s.api.discovery.v1.EndpointHints" {
        forNodes: list(&Ty::Object(&FOR_NODE)), forZones: list(&Ty::Object(&FOR_ZONE)),
    }
    FOR_NODE = "io.k8s.api.discovery.v1.ForNode" { name[required]: TEXT }
    FOR_ZONE = "io.k8s.api.discovery.v1.ForZone" { name[required]: TEXT }
    ENDPOINT_PORT = "io.k8s.api.discovery.v1.EndpointPort" { appProtocol: TEXT, name: TEXT, port: INT32, protocol: TEXT }

    TOKEN_REQUEST = "io.k8s.api.authentication.v1.TokenRequest" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec[required]: object(&TOKEN_REQUEST_SPEC),
        status: object(&TOKEN_REQUEST_STATUS),
    }
    TOKEN_REQUEST_SPEC = "io.k8s.api.authentication.v1.TokenRequestSpec" {
        audiences[required]: TEXTS, boundObjectRef: object(&BOUND_REFERENCE), expirationSeconds: INT64,
    }
    TOKEN_REQUEST_STATUS = "io.k8s.api.authentication.v1.TokenRequestStatus" {
        expirationTimestamp[required]: TIME, token[required]: TEXT,
    }
    BOUND_REFERENCE = "io.k8s.api.authentication.v1.BoundObjectReference" {
        apiVersion: TEXT, kind: TEXT, name: TEXT, uid: TEXT,
    }
    TOKEN_REVIEW = "io.k8s.api.authentication.v1.TokenReview" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec[required]: object(&TOKEN_REVIEW_SPEC),
        status: object(&TOKEN_REVIEW_STATUS),
    }
    TOKEN_REVIEW_SPEC = "io.k8s.api.authentication.v1.TokenReviewSpec" { audiences: TEXTS, token: TEXT }
    TOKEN_REVIEW_STATUS = "io.k8s.api.authentication.v1.TokenReviewStatus" {
        audiences: TEXTS, authenticated: BOOL, error: TEXT, user: object(&USER_INFO),
    }
    USER_INFO = "io.k8s.api.authentication.v1.UserInfo" { extra: LISTS_MAP, groups: TEXTS, uid: TEXT, username: TEXT }
    ACCESS_REVIEW = "io.k8s.api.authorization.v1.SubjectAccessReview" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec[required]: object(&ACCESS_REVIEW_SPEC),
        status: object(&ACCESS_REVIEW_STATUS),
    }
    ACCESS_REVIEW_SPEC = "io.k8s.api.authorization.v1.SubjectAccessReviewSpec" {
        extra: LISTS_MAP, groups: TEXTS, nonResourceAttributes: object(&NON_RESOURCE_ATTRIBUTES),
        resourceAttributes: object(&RESOURCE_ATTRIBUTES), uid: TEXT, user: TEXT,
    }
    ACCESS_REVIEW_STATUS = "io.k8s.api.authorization.v1.SubjectAccessReviewStatus" {
        allowed[required]: BOOL, denied: BOOL, evaluationError: TEXT, reason: TEXT,
    }
    SELF_ACCESS_REVIEW = "io.k8s.api.authorization.v1.SelfSubjectAccessReview" {
        apiVersion: TEXT, kind: TEXT, metadata: META, spec[required]: object(&SELF_ACCESS_REVIEW_SPEC),
        status: object(&ACCESS_REVIEW_STATUS),
    }
    SELF_ACCESS_REVIEW_SPEC = "io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec" {
        nonResourceAttributes: object(&NON_RESOURCE_ATTRIBUTES), resourceAttributes: object(&RESOURCE_ATTRIBUTES),
    }
    NON_RESOURCE_ATTRIBUTES = "io.k8s.api.authorization.v1.NonResourceAttributes" { path: TEXT, verb: TEXT }
    RESOURCE_ATTRIBUTES = "io.k8s.api.authorization.v1.ResourceAttributes" {
        fieldSelector: object(&FIELD_SELECTOR), group: TEXT, labelSelector: object(&LABEL_SELECTOR), name: TEXT,
        namespace: TEXT, resource: TEXT, subresource: TEXT, verb: TEXT, version: TEXT,
    }
    FIELD_SELECTOR = "io.k8s.api.authorization.v1.FieldSelectorAttributes" {
        rawSelector: TEXT, requirements: list(&Ty::Object(&FIELD_REQUIREMENT)),
    }
    LABEL_SELECTOR = "io.k8s.api.authorization.v1.LabelSelectorAttributes" {
        rawSelector: TEXT, requirements: list(&Ty::Object(&SELECTOR_REQUIREMENT)),
    }
}
