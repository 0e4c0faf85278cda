//! The fields of every served type, as in the `OpenAPI` documents of kube-apiserver 1.36, with
//! their numbers in protobuf messages (`generated.proto` in k8s.io/api and k8s.io/apimachinery; 0
//! where the field is not in the message).

use super::{Field, Merge, Ty, Type};

macro_rules! types {
    ($($id:ident = $name:literal { $($field:ident = $number:literal $([$required:ident])? : $ty:expr),* $(,)? })*) => {
        $(pub(crate) static $id: Type = Type {
            name: $name,
            fields: &[$(Field {
                name: stringify!($field),
                number: $number,
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

/// Returns a list that strategic merge patches merge by `key`, and whose items are unique by
/// `keys`.
const fn merged(of: &'static Ty, key: &'static str, keys: &'static [&'static str]) -> Ty {
    Ty::List(of, Merge::Key(key, keys))
}

types! {
    OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
        annotations = 12: STRING_MAP, creationTimestamp = 8: TIME, deletionGracePeriodSeconds = 10: INT64,
        deletionTimestamp = 9: TIME, finalizers = 14: TEXT_SET, generateName = 2: TEXT, generation = 7: INT64,
        labels = 11: STRING_MAP, managedFields = 17: list(&Ty::Object(&MANAGED_FIELDS)), name = 1: TEXT,
        namespace = 3: TEXT, ownerReferences = 13: merged(&Ty::Object(&OWNER_REFERENCE), "uid", &["uid"]),
        resourceVersion = 6: TEXT, selfLink = 4: TEXT, uid = 5: TEXT,
    }
    MANAGED_FIELDS = "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry" {
        apiVersion = 3: TEXT, fieldsType = 6: TEXT, fieldsV1 = 7: Ty::Any, manager = 1: TEXT, operation = 2: TEXT,
        subresource = 8: TEXT, time = 4: TIME,
    }
    OWNER_REFERENCE = "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference" {
        apiVersion = 5[required]: TEXT, blockOwnerDeletion = 7: BOOL, controller = 6: BOOL, kind = 1[required]: TEXT,
        name = 3[required]: TEXT, uid = 4[required]: TEXT,
    }
    CONDITION = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition" {
        lastTransitionTime = 4[required]: TIME, message = 6[required]: TEXT, observedGeneration = 3: INT64,
        reason = 5[required]: TEXT, status = 2[required]: TEXT, type = 1[required]: TEXT,
    }
    SELECTOR_REQUIREMENT = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement" {
        key = 1[required]: TEXT, operator = 2[required]: TEXT, values = 3: TEXTS,
    }
    FIELD_REQUIREMENT = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldSelectorRequirement" {
        key = 1[required]: TEXT, operator = 2[required]: TEXT, values = 3: TEXTS,
    }
    DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions" {
        apiVersion = 0: TEXT, dryRun = 5: TEXTS, gracePeriodSeconds = 1: INT64, kind = 0: TEXT, orphanDependents = 3: BOOL,
        preconditions = 2: object(&PRECONDITIONS), propagationPolicy = 4: TEXT,
    }
    PRECONDITIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.Preconditions" { resourceVersion = 2: TEXT, uid = 1: TEXT }

    NODE = "io.k8s.api.core.v1.Node" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2: object(&NODE_SPEC),
        status = 3: object(&NODE_STATUS),
    }
    NODE_SPEC = "io.k8s.api.core.v1.NodeSpec" {
        configSource = 6: Ty::Any, externalID = 2: TEXT, podCIDR = 1: TEXT, podCIDRs = 7: TEXT_SET,
        providerID = 3: TEXT, taints = 5: list(&Ty::Object(&TAINT)), unschedulable = 4: BOOL,
    }
    TAINT = "io.k8s.api.core.v1.Taint" {
        effect = 3[required]: TEXT, key = 1[required]: TEXT, timeAdded = 4: TIME, value = 2: TEXT,
    }
    NODE_STATUS = "io.k8s.api.core.v1.NodeStatus" {
        addresses = 5: merged(&Ty::Object(&NODE_ADDRESS), "type", &["type"]), allocatable = 2: QUANTITIES,
        capacity = 1: QUANTITIES, conditions = 4: merged(&Ty::Object(&NODE_CONDITION), "type", &["type"]),
        config = 11: Ty::Any, daemonEndpoints = 6: object(&NODE_DAEMON_ENDPOINTS), declaredFeatures = 14: TEXTS,
        features = 13: object(&NODE_FEATURES), images = 8: list(&Ty::Object(&CONTAINER_IMAGE)),
        nodeInfo = 7: object(&NODE_SYSTEM_INFO), phase = 3: TEXT,
        runtimeHandlers = 12: list(&Ty::Object(&NODE_RUNTIME_HANDLER)),
        volumesAttached = 10: list(&Ty::Object(&ATTACHED_VOLUME)), volumesInUse = 9: TEXTS,
    }
    NODE_ADDRESS = "io.k8s.api.core.v1.NodeAddress" { address = 2[required]: TEXT, type = 1[required]: TEXT }
    NODE_CONDITION = "io.k8s.api.core.v1.NodeCondition" {
        lastHeartbeatTime = 3: TIME, lastTransitionTime = 4: TIME, message = 6: TEXT, reason = 5: TEXT,
        status = 2[required]: TEXT, type = 1[required]: TEXT,
    }
    NODE_DAEMON_ENDPOINTS = "io.k8s.api.core.v1.NodeDaemonEndpoints" { kubeletEndpoint = 1: object(&DAEMON_ENDPOINT) }
    DAEMON_ENDPOINT = "io.k8s.api.core.v1.DaemonEndpoint" { Port = 1[required]: INT32 }
    NODE_FEATURES = "io.k8s.api.core.v1.NodeFeatures" { supplementalGroupsPolicy = 1: BOOL }
    CONTAINER_IMAGE = "io.k8s.api.core.v1.ContainerImage" { names = 1: TEXTS, sizeBytes = 2: INT64 }
    NODE_SYSTEM_INFO = "io.k8s.api.core.v1.NodeSystemInfo" {
        architecture = 10[required]: TEXT, bootID = 3[required]: TEXT, containerRuntimeVersion = 6[required]: TEXT,
        kernelVersion = 4[required]: TEXT, kubeProxyVersion = 8[required]: TEXT, kubeletVersion = 7[required]: TEXT,
        machineID = 1[required]: TEXT, operatingSystem = 9[required]: TEXT, osImage = 5[required]: TEXT,
        swap = 11: object(&NODE_SWAP_STATUS), systemUUID = 2[required]: TEXT,
    }
    NODE_SWAP_STATUS = "io.k8s.api.core.v1.NodeSwapStatus" { capacity = 1: INT64 }
    NODE_RUNTIME_HANDLER = "io.k8s.api.core.v1.NodeRuntimeHandler" {
        features = 2: object(&NODE_RUNTIME_HANDLER_FEATURES), name = 1: TEXT,
    }
    NODE_RUNTIME_HANDLER_FEATURES = "io.k8s.api.core.v1.NodeRuntimeHandlerFeatures" {
        recursiveReadOnlyMounts = 1: BOOL, userNamespaces = 2: BOOL,
    }
    ATTACHED_VOLUME = "io.k8s.api.core.v1.AttachedVolume" { devicePath = 2[required]: TEXT, name = 1[required]: TEXT }

    SERVICE = "io.k8s.api.core.v1.Service" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2: object(&SERVICE_SPEC),
        status = 3: object(&SERVICE_STATUS),
    }
    SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec" {
        allocateLoadBalancerNodePorts = 20: BOOL, clusterIP = 3: TEXT, clusterIPs = 18: TEXTS, externalIPs = 5: TEXTS,
        externalName = 10: TEXT, externalTrafficPolicy = 11: TEXT, healthCheckNodePort = 12: INT32,
        internalTrafficPolicy = 22: TEXT, ipFamilies = 19: TEXTS, ipFamilyPolicy = 17: TEXT,
        loadBalancerClass = 21: TEXT, loadBalancerIP = 8: TEXT, loadBalancerSourceRanges = 9: TEXTS,
        ports = 1: merged(&Ty::Object(&SERVICE_PORT), "port", &["port", "protocol"]),
        publishNotReadyAddresses = 13: BOOL, selector = 2: STRING_MAP, sessionAffinity = 7: TEXT,
        sessionAffinityConfig = 14: object(&SESSION_AFFINITY_CONFIG), trafficDistribution = 23: TEXT, type = 4: TEXT,
    }
    SERVICE_PORT = "io.k8s.api.core.v1.ServicePort" {
        appProtocol = 6: TEXT, name = 1: TEXT, nodePort = 5: INT32, port = 3[required]: INT32, protocol = 2: TEXT,
        targetPort = 4: Ty::IntOrString,
    }
    SESSION_AFFINITY_CONFIG = "io.k8s.api.core.v1.SessionAffinityConfig" { clientIP = 1: object(&CLIENT_IP_CONFIG) }
    CLIENT_IP_CONFIG = "io.k8s.api.core.v1.ClientIPConfig" { timeoutSeconds = 1: INT32 }
    SERVICE_STATUS = "io.k8s.api.core.v1.ServiceStatus" {
        conditions = 2: merged(&Ty::Object(&CONDITION), "type", &["type"]),
        loadBalancer = 1: object(&LOAD_BALANCER_STATUS),
    }
    LOAD_BALANCER_STATUS = "io.k8s.api.core.v1.LoadBalancerStatus" {
        ingress = 1: list(&Ty::Object(&LOAD_BALANCER_INGRESS)),
    }
    LOAD_BALANCER_INGRESS = "io.k8s.api.core.v1.LoadBalancerIngress" {
        hostname = 2: TEXT, ip = 1: TEXT, ipMode = 3: TEXT, ports = 4: list(&Ty::Object(&PORT_STATUS)),
    }
    PORT_STATUS = "io.k8s.api.core.v1.PortStatus" {
        error = 3: TEXT, port = 1[required]: INT32, protocol = 2[required]: TEXT,
    }

    EVENT = "io.k8s.api.core.v1.Event" {
        action = 12: TEXT, apiVersion = 0: TEXT, count = 8: INT32, eventTime = 10: MICRO_TIME, firstTimestamp = 6: TIME,
        involvedObject = 2[required]: object(&OBJECT_REFERENCE), kind = 0: TEXT, lastTimestamp = 7: TIME,
        message = 4: TEXT, metadata = 1[required]: META, reason = 3: TEXT, related = 13: object(&OBJECT_REFERENCE),
        reportingComponent = 14: TEXT, reportingInstance = 15: TEXT, series = 11: object(&CORE_EVENT_SERIES),
        source = 5: object(&EVENT_SOURCE), type = 9: TEXT,
    }
    OBJECT_REFERENCE = "io.k8s.api.core.v1.ObjectReference" {
        apiVersion = 5: TEXT, fieldPath = 7: TEXT, kind = 1: TEXT, name = 3: TEXT, namespace = 2: TEXT,
        resourceVersion = 6: TEXT, uid = 4: TEXT,
    }
    CORE_EVENT_SERIES = "io.k8s.api.core.v1.EventSeries" { count = 1: INT32, lastObservedTime = 2: MICRO_TIME }
    EVENT_SOURCE = "io.k8s.api.core.v1.EventSource" { component = 1: TEXT, host = 2: TEXT }
    EVENTS_EVENT = "io.k8s.api.events.v1.Event" {
        action = 6: TEXT, apiVersion = 0: TEXT, deprecatedCount = 15: INT32, deprecatedFirstTimestamp = 13: TIME,
        deprecatedLastTimestamp = 14: TIME, deprecatedSource = 12: object(&EVENT_SOURCE),
        eventTime = 2[required]: MICRO_TIME, kind = 0: TEXT, metadata = 1: META, note = 10: TEXT, reason = 7: TEXT,
        regarding = 8: object(&OBJECT_REFERENCE), related = 9: object(&OBJECT_REFERENCE), reportingController = 4: TEXT,
        reportingInstance = 5: TEXT, series = 3: object(&EVENT_SERIES), type = 11: TEXT,
    }
    EVENT_SERIES = "io.k8s.api.events.v1.EventSeries" {
        count = 1[required]: INT32, lastObservedTime = 2[required]: MICRO_TIME,
    }

    NAMESPACE = "io.k8s.api.core.v1.Namespace" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2: object(&NAMESPACE_SPEC),
        status = 3: object(&NAMESPACE_STATUS),
    }
    NAMESPACE_SPEC = "io.k8s.api.core.v1.NamespaceSpec" { finalizers = 1: TEXTS }
    NAMESPACE_STATUS = "io.k8s.api.core.v1.NamespaceStatus" {
        conditions = 2: merged(&Ty::Object(&NAMESPACE_CONDITION), "type", &["type"]), phase = 1: TEXT,
    }
    NAMESPACE_CONDITION = "io.k8s.api.core.v1.NamespaceCondition" {
        lastTransitionTime = 4: TIME, message = 6: TEXT, reason = 5: TEXT, status = 2[required]: TEXT,
        type = 1[required]: TEXT,
    }
    CONFIG_MAP = "io.k8s.api.core.v1.ConfigMap" {
        apiVersion = 0: TEXT, binaryData = 3: BYTES_MAP, data = 2: STRING_MAP, immutable = 4: BOOL, kind = 0: TEXT,
        metadata = 1: META,
    }
    SECRET = "io.k8s.api.core.v1.Secret" {
        apiVersion = 0: TEXT, data = 2: BYTES_MAP, immutable = 5: BOOL, kind = 0: TEXT, metadata = 1: META,
        stringData = 4: STRING_MAP, type = 3: TEXT,
    }
    SERVICE_ACCOUNT = "io.k8s.api.core.v1.ServiceAccount" {
        apiVersion = 0: TEXT, automountServiceAccountToken = 4: BOOL,
        imagePullSecrets = 3: list(&Ty::Object(&LOCAL_REFERENCE)), kind = 0: TEXT, metadata = 1: META,
        secrets = 2: merged(&Ty::Object(&OBJECT_REFERENCE), "name", &["name"]),
    }
    LOCAL_REFERENCE = "io.k8s.api.core.v1.LocalObjectReference" { name = 1: TEXT }
    ENDPOINTS = "io.k8s.api.core.v1.Endpoints" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, subsets = 2: list(&Ty::Object(&ENDPOINT_SUBSET)),
    }
    ENDPOINT_SUBSET = "io.k8s.api.core.v1.EndpointSubset" {
        addresses = 1: list(&Ty::Object(&ENDPOINT_ADDRESS)),
        notReadyAddresses = 2: list(&Ty::Object(&ENDPOINT_ADDRESS)), ports = 3: list(&Ty::Object(&CORE_ENDPOINT_PORT)),
    }
    ENDPOINT_ADDRESS = "io.k8s.api.core.v1.EndpointAddress" {
        hostname = 3: TEXT, ip = 1[required]: TEXT, nodeName = 4: TEXT, targetRef = 2: object(&OBJECT_REFERENCE),
    }
    CORE_ENDPOINT_PORT = "io.k8s.api.core.v1.EndpointPort" {
        appProtocol = 4: TEXT, name = 1: TEXT, port = 2[required]: INT32, protocol = 3: TEXT,
    }
    POD = "io.k8s.api.core.v1.Pod" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2: Ty::Any, status = 3: Ty::Any,
    }

    LEASE = "io.k8s.api.coordination.v1.Lease" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2: object(&LEASE_SPEC),
    }
    LEASE_SPEC = "io.k8s.api.coordination.v1.LeaseSpec" {
        acquireTime = 3: MICRO_TIME, holderIdentity = 1: TEXT, leaseDurationSeconds = 2: INT32,
        leaseTransitions = 5: INT32, preferredHolder = 7: TEXT, renewTime = 4: MICRO_TIME, strategy = 6: TEXT,
    }
    ENDPOINT_SLICE = "io.k8s.api.discovery.v1.EndpointSlice" {
        addressType = 4[required]: TEXT, apiVersion = 0: TEXT, endpoints = 2: list(&Ty::Object(&ENDPOINT)),
        kind = 0: TEXT, metadata = 1: META, ports = 3: list(&Ty::Object(&ENDPOINT_PORT)),
    }
    ENDPOINT = "io.k8s.api.discovery.v1.Endpoint" {
        addresses = 1[required]: TEXTS, conditions = 2: object(&ENDPOINT_CONDITIONS),
        deprecatedTopology = 5: STRING_MAP, hints = 8: object(&ENDPOINT_HINTS), hostname = 3: TEXT, nodeName = 6: TEXT,
        targetRef = 4: object(&OBJECT_REFERENCE), zone = 7: TEXT,
    }
    ENDPOINT_CONDITIONS = "io.k8s.api.discovery.v1.EndpointConditions" {
        ready = 1: BOOL, serving = 2: BOOL, terminating = 3: BOOL,
    }
    ENDPOINT_HINTS = "io.k8s.api.discovery.v1.EndpointHints" {
        forNodes = 2: list(&Ty::Object(&FOR_NODE)), forZones = 1: list(&Ty::Object(&FOR_ZONE)),
    }
    FOR_NODE = "io.k8s.api.discovery.v1.ForNode" { name = 1[required]: TEXT }
    FOR_ZONE = "io.k8s.api.discovery.v1.ForZone" { name = 1[required]: TEXT }
    ENDPOINT_PORT = "io.k8s.api.discovery.v1.EndpointPort" {
        appProtocol = 4: TEXT, name = 1: TEXT, port = 3: INT32, protocol = 2: TEXT,
    }

    TOKEN_REQUEST = "io.k8s.api.authentication.v1.TokenRequest" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2[required]: object(&TOKEN_REQUEST_SPEC),
        status = 3: object(&TOKEN_REQUEST_STATUS),
    }
    TOKEN_REQUEST_SPEC = "io.k8s.api.authentication.v1.TokenRequestSpec" {
        audiences = 1[required]: TEXTS, boundObjectRef = 3: object(&BOUND_REFERENCE), expirationSeconds = 4: INT64,
    }
    TOKEN_REQUEST_STATUS = "io.k8s.api.authentication.v1.TokenRequestStatus" {
        expirationTimestamp = 2[required]: TIME, token = 1[required]: TEXT,
    }
    BOUND_REFERENCE = "io.k8s.api.authentication.v1.BoundObjectReference" {
        apiVersion = 2: TEXT, kind = 1: TEXT, name = 3: TEXT, uid = 4: TEXT,
    }
    TOKEN_REVIEW = "io.k8s.api.authentication.v1.TokenReview" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2[required]: object(&TOKEN_REVIEW_SPEC),
        status = 3: object(&TOKEN_REVIEW_STATUS),
    }
    TOKEN_REVIEW_SPEC = "io.k8s.api.authentication.v1.TokenReviewSpec" { audiences = 2: TEXTS, token = 1[required]: TEXT }
    TOKEN_REVIEW_STATUS = "io.k8s.api.authentication.v1.TokenReviewStatus" {
        audiences = 4: TEXTS, authenticated = 1: BOOL, error = 3: TEXT, user = 2: object(&USER_INFO),
    }
    USER_INFO = "io.k8s.api.authentication.v1.UserInfo" {
        extra = 4: LISTS_MAP, groups = 3: TEXTS, uid = 2: TEXT, username = 1: TEXT,
    }
    ACCESS_REVIEW = "io.k8s.api.authorization.v1.SubjectAccessReview" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2[required]: object(&ACCESS_REVIEW_SPEC),
        status = 3: object(&ACCESS_REVIEW_STATUS),
    }
    ACCESS_REVIEW_SPEC = "io.k8s.api.authorization.v1.SubjectAccessReviewSpec" {
        extra = 5: LISTS_MAP, groups = 4: TEXTS, nonResourceAttributes = 2: object(&NON_RESOURCE_ATTRIBUTES),
        resourceAttributes = 1: object(&RESOURCE_ATTRIBUTES), uid = 6: TEXT, user = 3: TEXT,
    }
    ACCESS_REVIEW_STATUS = "io.k8s.api.authorization.v1.SubjectAccessReviewStatus" {
        allowed = 1[required]: BOOL, denied = 4: BOOL, evaluationError = 3: TEXT, reason = 2: TEXT,
    }
    SELF_ACCESS_REVIEW = "io.k8s.api.authorization.v1.SelfSubjectAccessReview" {
        apiVersion = 0: TEXT, kind = 0: TEXT, metadata = 1: META, spec = 2[required]: object(&SELF_ACCESS_REVIEW_SPEC),
        status = 3: object(&ACCESS_REVIEW_STATUS),
    }
    SELF_ACCESS_REVIEW_SPEC = "io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec" {
        nonResourceAttributes = 2: object(&NON_RESOURCE_ATTRIBUTES),
        resourceAttributes = 1: object(&RESOURCE_ATTRIBUTES),
    }
    NON_RESOURCE_ATTRIBUTES = "io.k8s.api.authorization.v1.NonResourceAttributes" { path = 1: TEXT, verb = 2: TEXT }
    RESOURCE_ATTRIBUTES = "io.k8s.api.authorization.v1.ResourceAttributes" {
        fieldSelector = 8: object(&FIELD_SELECTOR), group = 3: TEXT, labelSelector = 9: object(&LABEL_SELECTOR),
        name = 7: TEXT, namespace = 1: TEXT, resource = 5: TEXT, subresource = 6: TEXT, verb = 2: TEXT,
        version = 4: TEXT,
    }
    FIELD_SELECTOR = "io.k8s.api.authorization.v1.FieldSelectorAttributes" {
        rawSelector = 1: TEXT, requirements = 2: list(&Ty::Object(&FIELD_REQUIREMENT)),
    }
    LABEL_SELECTOR = "io.k8s.api.authorization.v1.LabelSelectorAttributes" {
        rawSelector = 1: TEXT, requirements = 2: list(&Ty::Object(&SELECTOR_REQUIREMENT)),
    }
}
