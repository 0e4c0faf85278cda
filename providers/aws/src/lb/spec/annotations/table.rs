//! The table of annotations: key, kind, default, effect, origin, errors. Each `AnnotationKey` also
//! has the function that parses it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::Ipv6Net;

use super::{Annotation, AnnotationKey, NOT_SENT, Origin, Parse, Section, ValueKind, parse};
use crate::{
    api::{
        AllocationId,
        elb::{HealthProtocol, IpAddressType, Scheme, SourceNatPrefix, TargetType},
    },
    config::AnnotationDialect,
};

/// Keys and values.
pub(in crate::lb) type Pairs = BTreeMap<Box<str>, Box<str>>;

impl<T> AnnotationKey<T> {
    const fn new(section: Section, name: &'static str, kind: ValueKind, parse: Parse<T>) -> Self {
        let definition = Annotation {
            name,
            port: "",
            section,
            kind,
            default: "",
            unit: "",
            effect: "",
            from: Origin::Both,
            upstream: "",
            errors: &[],
            without_effect: None,
        };
        Self { definition, parse }
    }

    const fn from(mut self, from: Origin) -> Self {
        self.definition.from = from;
        self
    }

    /// Sets how the dialect `upstream` reads it.
    const fn upstream(mut self, upstream: &'static str) -> Self {
        self.definition.upstream = upstream;
        self
    }

    const fn default(mut self, default: &'static str) -> Self {
        self.definition.default = default;
        self
    }

    const fn unit(mut self, unit: &'static str) -> Self {
        self.definition.unit = unit;
        self
    }

    const fn effect(mut self, effect: &'static str) -> Self {
        self.definition.effect = effect;
        self
    }

    const fn errors(mut self, errors: &'static [&'static str]) -> Self {
        self.definition.errors = errors;
        self
    }

    const fn port(mut self, port: &'static str) -> Self {
        self.definition.port = port;
        self
    }
}

const fn text(section: Section, name: &'static str) -> AnnotationKey<Box<str>> {
    AnnotationKey::new(section, name, ValueKind::Text, |_, text| Ok(text.into()))
}

/// A bool, with the error of the load balancer controller.
const fn boolean(section: Section, name: &'static str) -> AnnotationKey<bool> {
    AnnotationKey::new(section, name, ValueKind::Bool, |key, text| {
        parse::boolean(text)
            .ok_or_else(|| format!("error parsing service annotation: {key}={text}"))
    })
}

const fn integer(section: Section, name: &'static str) -> AnnotationKey<u32> {
    AnnotationKey::new(section, name, ValueKind::Integer, |key, text| {
        // Like Go's parser of 32-bit numbers, without negative ones.
        text.parse::<u32>()
            .ok()
            .filter(|number| i32::try_from(*number).is_ok())
            .ok_or_else(|| format!("failed to parse annotation {key}={text}"))
    })
}

const fn list(section: Section, name: &'static str) -> AnnotationKey<Vec<Box<str>>> {
    AnnotationKey::new(section, name, ValueKind::List, |_, text| Ok(parse::list(text)))
}

const fn key_values(section: Section, name: &'static str) -> AnnotationKey<Pairs> {
    AnnotationKey::new(section, name, ValueKind::KeyValues, |_, text| Ok(parse::key_values(text)))
}

const fn map(section: Section, name: &'static str) -> AnnotationKey<Pairs> {
    AnnotationKey::new(section, name, ValueKind::Map, |key, text| {
        parse::map(text)
            .ok_or_else(|| format!("failed to parse stringMap annotation, {key}: {text}"))
    })
}

const fn on_off(section: Section, name: &'static str, parse: Parse<bool>) -> AnnotationKey<bool> {
    AnnotationKey::new(section, name, ValueKind::OneOf(&["on", "off"]), parse).from(Origin::Lbc)
}

/// An annotation without effect here.
const fn ignored(
    name: &'static str,
    kind: ValueKind,
    from: Origin,
    reason: &'static str,
) -> Annotation {
    Annotation {
        without_effect: Some(reason),
        from,
        ..AnnotationKey::<()>::new(Section::WithoutEffect, name, kind, |_, _| Ok(())).definition
    }
}

fn addresses<T>(
    what: &str,
    version: &str,
    text: &str,
    pick: fn(IpAddr) -> Option<T>,
) -> Result<Vec<T>, String> {
    let mut addresses = Vec::new();
    for item in parse::list(text) {
        let Ok(ip) = item.parse::<IpAddr>() else {
            return Err(format!("{what} must be valid IP address: {item}"));
        };
        let Some(address) = pick(ip) else {
            return Err(format!("{what} must be valid {version} address: {item}"));
        };
        addresses.push(address);
    }
    Ok(addresses)
}

use Section::{Addresses, Attributes, General, Health, Listeners, Security, Targets};

pub(in crate::lb) static TYPE: AnnotationKey<Box<str>> = text(General, "type")
    .default("`DefaultLoadBalancerType` of cloud.conf; a classic load balancer without that")
    .effect(
        "`nlb`: a Network Load Balancer. `external`, `nlb-ip`: the AWS load balancer controller's, served here only with \
         `ClaimExternalLoadBalancers`. Anything else: a classic load balancer in the dialect `upstream`, refused in `extended`. \
         Cannot be changed later.",
    )
    .upstream("the same; any other text means a classic load balancer")
    .errors(&[
        "load balancer type \"x\" is not supported; use \"nlb\"",
        "cannot update Load Balancer Type annotation \"…\" after creation for Classic Load Balancer",
    ]);

pub(in crate::lb) static MOVE_TO: AnnotationKey<()> =
    AnnotationKey::new(General, "move-to", ValueKind::OneOf(&["nlb"]), |_, text| match text {
        "nlb" => Ok(()),
        _ => Err(format!("cannot move to {text:?}; use \"nlb\"")),
    })
    .from(Origin::Ours)
    .effect(
        "Moves a Service that requests a Network Load Balancer and has a classic one, while both serve. Taken away before the \
         classic one is deleted, it moves the Service back.",
    )
    .errors(&[
        "cannot move to \"x\"; use \"nlb\"",
        "a Service whose targets are pods cannot be moved, because a classic load balancer has nodes: …",
    ]);

pub(in crate::lb) static MOVE_DRAIN: AnnotationKey<u32> = integer(General, "move-drain-seconds")
    .from(Origin::Ours)
    .default("600")
    .unit("seconds, 60 to 604800")
    .effect("How long both load balancers of a move serve after the status has changed from one to the other.");

pub(in crate::lb) static MOVE_STATE: AnnotationKey<Box<str>> =
    text(General, "move-state").from(Origin::Ours).effect(
        "Written while a Service moves, and removed at the end: do not set, change or remove it.",
    );

pub(in crate::lb) static DIALECT: AnnotationKey<AnnotationDialect> = AnnotationKey::new(
    General,
    "annotation-dialect",
    ValueKind::OneOf(&AnnotationDialect::NAMES),
    |_, text| {
        AnnotationDialect::parse(text)
            .ok_or_else(|| format!("{text:?} is neither upstream nor extended"))
    },
)
.from(Origin::Ours)
.default("`AnnotationDialect` of cloud.conf (`upstream`)")
.effect(
    "How all other annotations are read. Any other value makes a warning. Services of a class or type of the load balancer \
     controller are always read as `extended`.",
);

pub(in crate::lb) static TARGET_TYPE: AnnotationKey<TargetType> = AnnotationKey::new(
    General,
    "nlb-target-type",
    ValueKind::OneOf(&["instance", "ip"]),
    |_, text| TargetType::parse(text).ok_or_else(|| format!("unknown target type: {text}")),
)
.from(Origin::Lbc)
.default("`DefaultTargetType` of cloud.conf (`instance`); `ip` for type `nlb-ip`")
.effect("Whether nodes (by node port) or pods (by address) are targets.")
.errors(&[
    "unknown target type: x",
    "unable to support instance target type with an unallocated NodePort",
]);

pub(in crate::lb) static NAME: AnnotationKey<Box<str>> = text(General, "name")
    .from(Origin::Lbc)
    .default("`a` and the UID; the load balancer controller's name for what is claimed from it")
    .effect("Name of the load balancer; counts when it is made, and has no effect later.")
    .errors(&[
        "load balancer name cannot be longer than 32 characters",
        "load balancer name must consist of letters, digits and inner hyphens, and not begin with internal-",
    ]);

pub(in crate::lb) static TAGS: AnnotationKey<Pairs> = key_values(General, "additional-resource-tags")
    .upstream(
        "new objects get them; objects that exist keep their tags",
    )
    .effect(
        "Tags of the load balancer, its listeners, target groups and managed security group. The tags of cluster and \
         Service cannot be set with it. A classic load balancer also gets them later, in both dialects, and keeps those that \
         are taken out.",
    )
    .errors(&["tag \"k\" is not possible in AWS: …"]);

pub(in crate::lb) static NODE_LABELS: AnnotationKey<Pairs> = key_values(General, "target-node-labels")
    .default("every node")
    .effect("Which nodes are targets: those that have all of these labels; `k` and `k=` mean any value. Not for `ip` targets.");

pub(in crate::lb) static INTERNAL: AnnotationKey<bool> =
    AnnotationKey::new(Addresses, "internal", ValueKind::Flag, |_, text| Ok(text != "false"))
        .default("internet-facing; internal for what is claimed from the load balancer controller")
        .upstream("the same; a change after the load balancer is made has no effect")
        .effect("Scheme. Any text but `false` means internal. Cannot be changed later.");

pub(in crate::lb) static SCHEME: AnnotationKey<Scheme> = AnnotationKey::new(
    Addresses,
    "scheme",
    ValueKind::OneOf(&["internal", "internet-facing"]),
    |_, text| Scheme::parse(text).ok_or_else(|| format!("unknown scheme: {text}")),
)
.from(Origin::Lbc)
.default("as `internal` says")
.effect("Scheme; wins over `internal`. Cannot be changed later.")
.errors(&["unknown scheme: x"]);

pub(in crate::lb) static IP_ADDRESS_TYPE: AnnotationKey<IpAddressType> = AnnotationKey::new(
    Addresses,
    "ip-address-type",
    ValueKind::OneOf(&["ipv4", "dualstack"]),
    |_, text| {
        let known = IpAddressType::parse(text).filter(|found| *found != IpAddressType::Ipv6);
        known.ok_or_else(|| format!("unknown IPAddressType: {text}"))
    },
)
.from(Origin::Lbc)
.default("`ipv4`")
.effect("Address families that clients reach.")
.errors(&["unknown IPAddressType: x", "unsupported IPv6 configuration, lb not dual-stack"]);

pub(in crate::lb) static SUBNETS: AnnotationKey<Vec<Box<str>>> = list(Addresses, "subnets")
    .default("one per zone, by tags; what a load balancer has, it keeps")
    .upstream("count when the load balancer is made, and have no effect later")
    .effect("Subnets, by ID or tag `Name`. Those of a classic load balancer follow the annotation, or the tags, as long as it exists.")
    .errors(&["unable to resolve empty subnet slice", "expected to find n, but found m subnets"]);

pub(in crate::lb) static ALLOCATIONS: AnnotationKey<Vec<AllocationId>> =
    AnnotationKey::new(Addresses, "eip-allocations", ValueKind::List, |_, text| {
        Ok(parse::list(text)
            .iter()
            .map(|id| AllocationId::from(&**id))
            .collect())
    })
    .upstream("count when the load balancer is made, and have no effect later")
    .effect("Elastic IP addresses, by ID, one per subnet in the order of the subnets.")
    .errors(&[
        "EIP allocations can only be set for internet facing load balancers",
        "count of EIP allocations (n) and subnets (m) must match",
    ]);

pub(in crate::lb) static PRIVATE_IPV4: AnnotationKey<Vec<Ipv4Addr>> =
    AnnotationKey::new(Addresses, "private-ipv4-addresses", ValueKind::List, |_, text| {
        addresses("private IPv4 addresses", "IPv4", text, |ip| match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })
    })
    .upstream("count when the load balancer is made, and have no effect later")
    .effect("Private IPv4 addresses, one per subnet, in any order.")
    .errors(&[
        "private IPv4 addresses can only be set for internal load balancers",
        "count of private IPv4 addresses (n) and subnets (m) must match",
        "private IPv4 addresses must be valid IP address: x",
        "private IPv4 addresses must be valid IPv4 address: x",
        "expect one private IPv4 address configured for subnet: s",
    ]);

pub(in crate::lb) static IPV6: AnnotationKey<Vec<Ipv6Addr>> =
    AnnotationKey::new(Addresses, "ipv6-addresses", ValueKind::List, |_, text| {
        addresses("IPv6 addresses", "IPv6", text, |ip| match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    })
    .from(Origin::Lbc)
    .effect("IPv6 addresses, one per subnet, in any order.")
    .errors(&[
        "IPv6 addresses can only be set for dualstack load balancers",
        "count of IPv6 addresses (n) and subnets (m) must match",
        "IPv6 addresses must be valid IP address: x",
        "IPv6 addresses must be valid IPv6 address: x",
        "expect one IPv6 address configured for subnet: s",
    ]);

pub(in crate::lb) static SOURCE_NAT: AnnotationKey<bool> =
    on_off(Addresses, "enable-prefix-for-ipv6-source-nat", |_, text| match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("Invalid enable-prefix-for-ipv6-source-nat value: {text}. Valid values are ['on', 'off'].")),
    })
    .default("left alone")
    .effect("Source NAT with IPv6 prefixes, which UDP takes on a dual-stack load balancer.")
    .errors(&[
        "Invalid enable-prefix-for-ipv6-source-nat value: x. Valid values are ['on', 'off'].",
        "enable-prefix-for-ipv6-source-nat annotation is only applicable to Network Load Balancers using Dualstack IP \
         address type.",
        "UDP on a dualstack load balancer takes enable-prefix-for-ipv6-source-nat: on",
    ]);

pub(in crate::lb) static SOURCE_NAT_PREFIXES: AnnotationKey<Vec<SourceNatPrefix>> =
    AnnotationKey::new(Addresses, "source-nat-ipv6-prefixes", ValueKind::List, |_, text| {
        parse::list(text)
            .iter()
            .map(|item| source_nat_prefix(item))
            .collect()
    })
    .from(Origin::Lbc)
    .default("AWS chooses the prefixes, and keeps them")
    .effect(
        "IPv6 prefixes with 80 bits for source NAT, or `auto_assigned`: one per subnet in the order of the annotation `subnets`. \
         AWS changes none while the load balancer has a UDP listener. `auto_assigned` keeps a prefix that is there.",
    )
    .errors(&[
        "source-nat-ipv6-prefixes annotation can only be set for Network Load Balancers using Dualstack IP address type.",
        "source-nat-ipv6-prefixes annotation is only applicable if enable-prefix-for-ipv6-source-nat annotation is set to on.",
        "source-nat-ipv6-prefixes annotation needs the subnets annotation, whose order it follows",
        "Number of values in source-nat-ipv6-prefixes (n) must match the number of subnets (m).",
        "Invalid value in source-nat-ipv6-prefixes: x. Prefix length must be 80, but n is specified.",
        "Invalid value in source-nat-ipv6-prefixes: x. Value must be a valid IPv6 CIDR.",
        "Invalid value in source-nat-ipv6-prefixes: x. Value must be within subnet CIDR range: […].",
        "source-nat-ipv6-prefixes: the prefix of load balancer l in subnet s cannot be changed while it has UDP listeners",
    ]);

/// Number of bits of an IPv6 prefix for source NAT (AWS).
const SOURCE_NAT_PREFIX_LENGTH: u8 = 80;

fn source_nat_prefix(text: &str) -> Result<SourceNatPrefix, String> {
    if text == SourceNatPrefix::AUTO_ASSIGNED {
        return Ok(SourceNatPrefix::AutoAssigned);
    }
    let invalid = |what: &str| format!("Invalid value in source-nat-ipv6-prefixes: {text}. {what}");
    let network: Ipv6Net = text
        .parse()
        .map_err(|_| invalid("Value must be a valid IPv6 CIDR."))?;
    if network.prefix_len() != SOURCE_NAT_PREFIX_LENGTH {
        let length = network.prefix_len();
        return Err(invalid(&format!("Prefix length must be 80, but {length} is specified.")));
    }
    Ok(SourceNatPrefix::Network(network.trunc()))
}

pub(in crate::lb) static SOURCE_RANGES: AnnotationKey<Vec<Box<str>>> =
    list(Security, "service.beta.kubernetes.io/load-balancer-source-ranges")
        .default("`0.0.0.0/0`, and `::/0` with `dualstack`")
        .effect("Which clients may connect; `spec.loadBalancerSourceRanges` wins.")
        .errors(&[
            "\"x\" is not a network in CIDR form",
            "unsupported v6 cidr c when lb is not dualstack",
        ]);

pub(in crate::lb) static SECURITY_GROUPS: AnnotationKey<Vec<Box<str>>> = list(Security, "security-groups")
    .default("by `NLBSecurityGroupMode` of cloud.conf: none, or a managed one")
    .effect(
        "Security groups of the load balancer, by ID or tag `Name`, whose rules are left alone. Counts with \
         `NLBSecurityGroupMode=Managed`, and for what is claimed from the load balancer controller.",
    );

pub(in crate::lb) static EXTRA_SECURITY_GROUPS: AnnotationKey<Vec<Box<str>>> = list(Security, "extra-security-groups")
    .from(Origin::Classic)
    .effect("Security groups of a classic load balancer besides the others. Refused for Network Load Balancers.")
    .errors(&[
        "BYO extra security group annotation \"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups\" is not \
         supported by NLB",
    ]);

pub(in crate::lb) static DISABLE_SECURITY_GROUP: AnnotationKey<bool> =
    boolean(Security, "disable-nlb-sg")
        .from(Origin::Lbc)
        .default("`false`")
        .effect("The load balancer gets no security group.")
        .errors(&["conflicting security groups configuration"]);

pub(in crate::lb) static MANAGE_BACKEND_RULES: AnnotationKey<bool> =
    boolean(Security, "manage-backend-security-group-rules")
        .from(Origin::Lbc)
        .default("`false` with `security-groups` for a class or type of the load balancer controller, else `true`")
        .effect("Whether rules of the security groups of nodes and pods are looked after.")
        .errors(&[
            "backendSG feature is required to manage worker node SG rules when frontendSG is manually specified",
        ]);

pub(in crate::lb) static PRIVATE_LINK_RULES: AnnotationKey<bool> =
    on_off(Security, "inbound-sg-rules-on-private-link-traffic", |_, text| match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!(
            "Invalid value for securityGroupsInboundRulesOnPrivateLink status: {text}, value must be one of [on, off]"
        )),
    })
    .default("left alone")
    .effect("Whether the security groups' rules hold for traffic from PrivateLink.")
    .errors(&["Invalid value for securityGroupsInboundRulesOnPrivateLink status: x, value must be one of [on, off]"]);

pub(in crate::lb) static PREFIX_LISTS: AnnotationKey<Vec<Box<str>>> = list(Security, "security-group-prefix-lists")
    .from(Origin::Lbc)
    .effect(
        "Prefix lists (`pl-…`) that may connect, in a managed security group. Alone they replace the default ranges.",
    )
    .errors(&["prefix lists need a managed security group (NLBSecurityGroupMode=Managed)"]);

pub(in crate::lb) static CERTIFICATES: AnnotationKey<Vec<Box<str>>> = list(Listeners, "ssl-cert")
    .upstream("the whole text is one ARN; certificates for SNI stay as they are")
    .effect("ARNs of certificates: the default one, then those for SNI. Makes listeners of TCP ports TLS.");

pub(in crate::lb) static TLS_PORTS: AnnotationKey<Vec<Box<str>>> = list(Listeners, "ssl-ports")
    .default("`*`")
    .upstream("`*` only alone; spaces belong to the entries, so that `443, 8443` does not name port 8443")
    .effect(
        "Which ports are TLS with `ssl-cert`: numbers, names, or `*` for all. One that is no port makes a warning.",
    );

pub(in crate::lb) static TLS_POLICY: AnnotationKey<Box<str>> =
    text(Listeners, "ssl-negotiation-policy")
        .default("AWS' own")
        .effect("Security policy of TLS listeners.");

pub(in crate::lb) static BACKEND_PROTOCOL: AnnotationKey<Box<str>> =
    text(Listeners, "backend-protocol").default("TCP").effect(
        "`ssl`: targets of TLS listeners are spoken to with TLS. Any other value: with TCP. Listeners of a classic load balancer \
         take `http`, `https`, `ssl` and `tcp`, and with a certificate nothing else.",
    );

/// Values of `alpn-policy`.
const ALPN: &[&str] = &["None", "HTTP1Only", "HTTP2Only", "HTTP2Optional", "HTTP2Preferred"];

pub(in crate::lb) static ALPN_POLICY: AnnotationKey<Box<str>> =
    AnnotationKey::new(Listeners, "alpn-policy", ValueKind::OneOf(ALPN), |_, text| {
        let known = ALPN.contains(&text).then(|| text.into());
        known.ok_or_else(|| format!("invalid ALPN policy {text}, policy must be one of [{}]", ALPN.join(", ")))
    })
    .from(Origin::Lbc)
    .default("left alone")
    .effect("ALPN policy of TLS listeners.")
    .errors(&[
        "invalid ALPN policy x, policy must be one of [None, HTTP1Only, HTTP2Only, HTTP2Optional, HTTP2Preferred]",
    ]);

pub(in crate::lb) static LISTENER_ATTRIBUTES: AnnotationKey<Pairs> = map(Listeners, "listener-attributes.")
    .port("${protocol}-${port}")
    .from(Origin::Lbc)
    .effect("Attributes of that listener, such as `tcp.idle_timeout.seconds=400` (60 to 6000); others are left alone.")
    .errors(&["tcp.idle_timeout.seconds must be a number from 60 to 6000, not x"]);

pub(in crate::lb) static TCP_UDP: AnnotationKey<bool> = boolean(Listeners, "enable-tcp-udp-listener")
    .from(Origin::Lbc)
    .default("`true`")
    .effect("TCP and UDP on one port make one TCP_UDP listener. Both take the same node port, or target port.")
    .errors(&[
        "can only merge two ports, not n (…)",
        "protocols can't match for merging: p",
        "TCP and UDP on port n take one listener for both, which this turns off",
        "TCP and UDP on port n need the same node port, but have a and b",
    ]);

pub(in crate::lb) static PROXY_PROTOCOL: AnnotationKey<()> = AnnotationKey::new(Targets, "proxy-protocol", ValueKind::OneOf(&["*"]), |_, text| {
    let message = || {
        format!(
            "invalid value {text} for Load Balancer proxy protocol v2 annotation, only value currently supported is *"
        )
    };
    if text == "*" { Ok(()) } else { Err(message()) }
})
.from(Origin::Lbc)
.default("off")
.effect("Proxy protocol v2 towards all targets; wins over the other ways to ask for it.")
    .errors(&["invalid value x for Load Balancer proxy protocol v2 annotation, only value currently supported is *"]);

pub(in crate::lb) static PROXY_PROTOCOL_PORTS: AnnotationKey<Vec<Box<str>>> =
    list(Targets, "proxy-protocol-per-target-group")
        .from(Origin::Lbc)
        .effect("Service ports whose targets get proxy protocol v2; the others' do not.")
        .errors(&["invalid port number in proxy-protocol-per-target-group: x"]);

/// Errors in attributes of target groups.
const TARGET_ERRORS: &[&str] = &[
    "error validating target group attributes: attribute value is empty for \"k\"",
    "error validating target group attributes: invalid attribute value for \"k\": v",
    "error validating target group attributes: client IP preservation can't be disabled for UDP ports",
    "error validating target group attributes: stickiness is not possible for TLS ports",
    "error validating target group attributes: stickiness contradicts spec.sessionAffinity: ClientIP",
    "error validating target group attributes: the attribute \"k\" is not supported by the controller or is invalid",
];

pub(in crate::lb) static TARGET_ATTRIBUTES: AnnotationKey<Pairs> = key_values(Targets, "target-group-attributes")
    .upstream("only `preserve_client_ip.enabled` and `proxy_protocol_v2.enabled`; others are refused")
    .effect(
        "Attributes of target groups, such as `preserve_client_ip.enabled=false`; others are left alone. One that is taken \
         off the list keeps its last value.",
    )
    .errors(TARGET_ERRORS);

pub(in crate::lb) static PORT_TARGET_ATTRIBUTES: AnnotationKey<Pairs> = key_values(Targets, "target-group-attributes.")
    .port("${port}")
    .from(Origin::Lbc)
    .effect("The same for the target group of one Service port; adds to the general ones and wins over them.")
    .errors(TARGET_ERRORS);

pub(in crate::lb) static MULTI_CLUSTER: AnnotationKey<bool> =
    boolean(Targets, "multi-cluster-target-group")
        .from(Origin::Lbc)
        .default("`false`")
        .effect("Only `false`: target groups belong to one cluster here.")
        .errors(&["target groups of several clusters are not supported"]);

pub(in crate::lb) static HEALTH_PROTOCOL: AnnotationKey<HealthProtocol> = AnnotationKey::new(
    Health,
    "healthcheck-protocol",
    ValueKind::OneOf(&["TCP", "HTTP", "HTTPS"]),
    |_, text| {
        let upper = text.to_ascii_uppercase();
        HealthProtocol::parse(&upper)
            .ok_or_else(|| format!("Unsupported health check protocol {upper}"))
    },
)
.default("`TCP`; `HTTP` for instances with `externalTrafficPolicy: Local`")
.effect("Protocol, in any case.")
.errors(&["Unsupported health check protocol X"]);

pub(in crate::lb) static HEALTH_PORT: AnnotationKey<Box<str>> = text(Health, "healthcheck-port")
    .default("`traffic-port`; the health-check node port for instances with `externalTrafficPolicy: Local`")
    .upstream("a name is refused; no effect on Services without `externalTrafficPolicy: Local` in mode `Shared`")
    .effect("`traffic-port`, a number, or the name of a Service port.")
    .errors(&[
        "Invalid health check port 'x'",
        "failed to resolve healthCheckPort: unable to find port x on service s",
        "cannot use named healthCheckPort for IP TargetType when service's targetPort is a named port",
    ]);

pub(in crate::lb) static HEALTH_PATH: AnnotationKey<Box<str>> = text(Health, "healthcheck-path")
    .default("`/`; `/healthz` for instances with `externalTrafficPolicy: Local`")
    .effect("Path; not for TCP.");

pub(in crate::lb) static HEALTH_INTERVAL: AnnotationKey<u32> = integer(Health, "healthcheck-interval")
    .default("30; 10 for instances with `externalTrafficPolicy: Local`, and for what is claimed from the load balancer controller")
    .unit("seconds, 5 to 300")
    .effect("Time between two checks.");

pub(in crate::lb) static HEALTH_TIMEOUT: AnnotationKey<u32> =
    integer(Health, "healthcheck-timeout")
        .upstream(NOT_SENT)
        .default("10; 6 for HTTP; never more than the interval")
        .unit("seconds, 2 to 120")
        .effect("Time for an answer.")
        .errors(&["health check timeout (t) must not exceed the interval (i)"]);

pub(in crate::lb) static HEALTHY_THRESHOLD: AnnotationKey<u32> =
    integer(Health, "healthcheck-healthy-threshold")
        .default("3; 2 for instances with `externalTrafficPolicy: Local`")
        .unit("checks, 2 to 10")
        .effect("Good checks until a target is healthy.");

pub(in crate::lb) static UNHEALTHY_THRESHOLD: AnnotationKey<u32> =
    integer(Health, "healthcheck-unhealthy-threshold")
        .default("3; 2 for instances with `externalTrafficPolicy: Local`")
        .unit("checks, 2 to 10")
        .upstream("of an existing target group, changes only together with the healthy threshold")
        .effect("Bad checks until a target is unhealthy.");

pub(in crate::lb) static SUCCESS_CODES: AnnotationKey<Box<str>> =
    text(Health, "healthcheck-success-codes")
        .from(Origin::Lbc)
        .default("AWS' own; `200-399` for what is claimed from the load balancer controller")
        .effect("Status codes of a good check; not for TCP.");

pub(in crate::lb) static CROSS_ZONE: AnnotationKey<bool> =
    boolean(Attributes, "cross-zone-load-balancing-enabled")
        .default("`false`")
        .effect("`load_balancing.cross_zone.enabled`.");

pub(in crate::lb) static ACCESS_LOG: AnnotationKey<bool> =
    boolean(Attributes, "access-log-enabled")
        .default("`false`")
        .effect("`access_logs.s3.enabled`.");

pub(in crate::lb) static ACCESS_LOG_BUCKET: AnnotationKey<Box<str>> =
    text(Attributes, "access-log-s3-bucket-name")
        .effect("`access_logs.s3.bucket`, with access logs on.");

pub(in crate::lb) static ACCESS_LOG_PREFIX: AnnotationKey<Box<str>> =
    text(Attributes, "access-log-s3-bucket-prefix")
        .effect("`access_logs.s3.prefix`, with access logs on.");

pub(in crate::lb) static ATTRIBUTES: AnnotationKey<Pairs> = map(Attributes, "attributes")
    .from(Origin::Lbc)
    .effect(
        "Attributes of the load balancer; the annotations above win, others are left alone. With \
         `deletion_protection.enabled=true` the Service cannot be deleted. With `…=false` it can, \
         even if the protection was enabled by hand, unless its type or class was changed.",
    )
    .errors(&[
        "failed to parse attribute k=v",
        "invalid dns_record.client_routing_policy set in annotation …: got 'x' expected one of […]",
    ]);

pub(in crate::lb) static CAPACITY: AnnotationKey<u32> =
    AnnotationKey::new(Attributes, "minimum-load-balancer-capacity", ValueKind::Map, |key, text| {
        let pairs = parse::map(text)
            .ok_or_else(|| format!("failed to parse stringMap annotation, {key}: {text}"))?;
        if let Some(other) = pairs.keys().find(|key| &***key != CAPACITY_UNITS) {
            return Err(format!("invalid key to set the capacity: {other}, Expected key: {CAPACITY_UNITS}"));
        }
        let value = pairs.get(CAPACITY_UNITS).map_or("", |value| value);
        let units = value.parse::<u32>().ok();
        let units = units.filter(|units| i32::try_from(*units).is_ok());
        units.ok_or_else(|| format!("invalid value to set the capacity: {value}"))
    })
    .from(Origin::Lbc)
    .default("neither read nor changed")
    .effect(
        "`CapacityUnits=n`: the load balancer's capacity never falls below n units, which AWS charges for. `CapacityUnits=0` ends \
         that. Without the annotation a reservation stays: set 0 first. AWS reserves nothing for load balancers with TLS \
         listeners.",
    )
    .errors(&[
        "invalid key to set the capacity: x, Expected key: CapacityUnits",
        "invalid value to set the capacity: x",
    ]);

/// The only key of the annotation for reserved capacity.
const CAPACITY_UNITS: &str = "CapacityUnits";

const CLASSIC: &str = "for classic load balancers only";
const NOT_HERE: &str = "not supported here";

/// All rows. An annotation in a row counts as known, whether or not it has an effect.
pub(in crate::lb) static ALL: [&Annotation; 58] = [
    &TYPE.definition,
    &MOVE_TO.definition,
    &MOVE_DRAIN.definition,
    &MOVE_STATE.definition,
    &DIALECT.definition,
    &TARGET_TYPE.definition,
    &NAME.definition,
    &TAGS.definition,
    &NODE_LABELS.definition,
    &INTERNAL.definition,
    &SCHEME.definition,
    &IP_ADDRESS_TYPE.definition,
    &SUBNETS.definition,
    &ALLOCATIONS.definition,
    &PRIVATE_IPV4.definition,
    &IPV6.definition,
    &SOURCE_NAT.definition,
    &SOURCE_NAT_PREFIXES.definition,
    &SOURCE_RANGES.definition,
    &SECURITY_GROUPS.definition,
    &EXTRA_SECURITY_GROUPS.definition,
    &DISABLE_SECURITY_GROUP.definition,
    &MANAGE_BACKEND_RULES.definition,
    &PRIVATE_LINK_RULES.definition,
    &PREFIX_LISTS.definition,
    &CERTIFICATES.definition,
    &TLS_PORTS.definition,
    &TLS_POLICY.definition,
    &BACKEND_PROTOCOL.definition,
    &ALPN_POLICY.definition,
    &LISTENER_ATTRIBUTES.definition,
    &TCP_UDP.definition,
    &PROXY_PROTOCOL.definition,
    &PROXY_PROTOCOL_PORTS.definition,
    &TARGET_ATTRIBUTES.definition,
    &PORT_TARGET_ATTRIBUTES.definition,
    &MULTI_CLUSTER.definition,
    &HEALTH_PROTOCOL.definition,
    &HEALTH_PORT.definition,
    &HEALTH_PATH.definition,
    &HEALTH_INTERVAL.definition,
    &HEALTH_TIMEOUT.definition,
    &HEALTHY_THRESHOLD.definition,
    &UNHEALTHY_THRESHOLD.definition,
    &SUCCESS_CODES.definition,
    &CROSS_ZONE.definition,
    &ACCESS_LOG.definition,
    &ACCESS_LOG_BUCKET.definition,
    &ACCESS_LOG_PREFIX.definition,
    &ATTRIBUTES.definition,
    &CAPACITY.definition,
    &ignored("access-log-emit-interval", ValueKind::Integer, Origin::Classic, CLASSIC),
    &ignored("connection-draining-enabled", ValueKind::Bool, Origin::Classic, CLASSIC),
    &ignored("connection-draining-timeout", ValueKind::Integer, Origin::Classic, CLASSIC),
    &ignored("connection-idle-timeout", ValueKind::Integer, Origin::Classic, CLASSIC),
    &ignored(
        "enable-icmp-for-path-mtu-discovery",
        ValueKind::OneOf(&["on"]),
        Origin::Lbc,
        "managed security groups always let in what path MTU discovery needs",
    ),
    &ignored("quic-enabled-ports", ValueKind::List, Origin::Lbc, NOT_HERE),
    &Annotation {
        port: "${protocol}-${port}",
        ..ignored("service.beta.kubernetes.io/actions.", ValueKind::Text, Origin::Lbc, NOT_HERE)
    },
];
