//! The table of annotations: name, kind, default, effect.

use super::{Annotation, ValueKind};

const fn row(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    effect: &'static str,
) -> Annotation {
    Annotation { name, kind, default, effect, applies_to_existing: "yes" }
}

impl Annotation {
    const fn live(mut self, live: &'static str) -> Self {
        self.applies_to_existing = live;
        self
    }
}

use ValueKind::{Bool, Integer, Text};

macro_rules! annotations {
    ($($name:ident = $row:expr;)*) => {
        $(pub(in crate::lb) static $name: Annotation = $row;)*
        /// Every annotation.
        pub(in crate::lb) static ALL: &[&Annotation] = &[$(&$name),*];
    };
}

annotations! {
    INTERNAL = row(
        "service.beta.kubernetes.io/openstack-internal-load-balancer", Bool, "`internal-lb`",
        "no floating IP; `internal-lb=true` cannot be undone",
    );
    FLOATING_NETWORK = row("floating-network-id", Text, "`floating-network-id`", "external network of the floating IP")
        .live("when a floating IP is made");
    FLOATING_SUBNET_ID = row("floating-subnet-id", Text, "`floating-subnet-id`", "subnet of the floating IP")
        .live("when a floating IP is made");
    FLOATING_SUBNET = row(
        "floating-subnet", Text, "`floating-subnet`",
        "pattern of subnet names: a glob, or `~` and a regular expression; `!` negates",
    ).live("when a floating IP is made");
    FLOATING_SUBNET_TAGS = row(
        "floating-subnet-tags", Text, "`floating-subnet-tags`", "tags of subnets: any, or after `&` all; `!` negates",
    ).live("when a floating IP is made");
    CLASS = row(
        "class", Text, "none", "section `[LoadBalancerClass]` of cloud.conf",
    ).live("as the annotations that it stands for");
    SUBNET = row("subnet-id", Text, "`subnet-id`", "subnet of the VIP").live("no");
    NETWORK = row("network-id", Text, "`network-id`", "network of the VIP").live("no");
    PORT = row("port-id", Text, "none", "port of the VIP, in place of subnet and network").live("no");
    ADDITIONAL_SUBNET = row(
        "additional-subnet-id", Text, "the only one in the network of the VIP",
        "subnet of the second address of a Service with two address families",
    ).live("no");
    MEMBER_SUBNET = row("member-subnet-id", Text, "`member-subnet-id`", "subnet of members");
    KEEP_FLOATING_IP = row("keep-floatingip", Bool, "false", "the floating IP stays when the Service goes");
    CONNECTION_LIMIT = row(
        "connection-limit", Integer, "-1", "maximum of connections of each listener; -1 for no limit",
    );
    METHOD = row("lb-method", Text, "`lb-method`", "algorithm of pools");
    PROXY_PROTOCOL = row(
        "proxy-protocol", Text, "false", "`true` or `v1` for PROXY, `v2` for PROXYV2; not with x-forwarded-for",
    );
    X_FORWARDED_FOR = row("x-forwarded-for", Bool, "false", "HTTP listeners, which pass the client's address on");
    TIMEOUT_CLIENT_DATA = row(
        "timeout-client-data", Integer, "50000", "milliseconds until an idle connection of a client is closed",
    );
    TIMEOUT_MEMBER_CONNECT = row(
        "timeout-member-connect", Integer, "5000", "milliseconds for a connection to a member",
    );
    TIMEOUT_MEMBER_DATA = row(
        "timeout-member-data", Integer, "50000", "milliseconds until an idle connection to a member is closed",
    );
    TIMEOUT_TCP_INSPECT = row("timeout-tcp-inspect", Integer, "0", "milliseconds to wait for more of a request");
    MONITOR = row("enable-health-monitor", Bool, "`create-monitor`", "members are checked");
    MONITOR_DELAY = row("health-monitor-delay", Integer, "`monitor-delay`", "seconds between checks");
    MONITOR_TIMEOUT = row("health-monitor-timeout", Integer, "`monitor-timeout`", "seconds for an answer");
    MONITOR_RETRIES = row(
        "health-monitor-max-retries", Integer, "`monitor-max-retries`", "successes to serve, 1 to 10",
    );
    MONITOR_RETRIES_DOWN = row(
        "health-monitor-max-retries-down", Integer, "`monitor-max-retries-down`", "failures to serve no more, 1 to 10",
    );
    PROVIDER = row(
        "lb-provider", Text, "`lb-provider`", "Octavia's provider driver; a Service with a load balancer of another driver is rejected",
    ).live("no");
    LOAD_BALANCER_TAGS = row(
        "load-balancer-tags", Text, "none",
        "tags of the load balancer, separated by commas, beside our own; a tag that is removed here stays in the cloud",
    );
    LISTENER_TAGS = row("listener-tags", Text, "none", "tags of listeners; otherwise as load-balancer-tags");
    POOL_TAGS = row("pool-tags", Text, "none", "tags of pools; otherwise as load-balancer-tags");
    FLAVOR = row("flavor-id", Text, "`flavor-id`", "Octavia flavor of the load balancer").live("no");
    AVAILABILITY_ZONE = row(
        "availability-zone", Text, "`availability-zone`", "Octavia availability zone of the load balancer",
    ).live("no");
    TLS_CONTAINER = row(
        "default-tls-container-ref", Text, "`default-tls-container-ref`", "certificate; listeners end TLS",
    );
    LOAD_BALANCER_ID = row(
        "load-balancer-id", Text, "none", "written once there is a load balancer; if it is set before, that load balancer is shared",
    ).live("no");
    LOAD_BALANCER_ADDRESS = row(
        "load-balancer-address", Text, "none", "written: the address of the load balancer",
    ).live("no");
    HOSTNAME = row("hostname", Text, "none", "host name in the status, in place of the address");
    NODE_SELECTOR = row("node-selector", Text, "`node-selector`", "nodes that are members: `key=value,key`");
}
