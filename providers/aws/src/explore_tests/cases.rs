//! What is there, and what is to be then.

use ccm_core::k8s::{Protocol, ServiceView};

use super::service_driver::{DriverCall, ServiceInput};
use crate::{
    config::Settings,
    fake::FakeOptions,
    lb::tests::fixture::{service, with},
};

/// Nodes of most cases.
const NODES: &[usize] = &[0, 1, 2];
/// What the accounts of all cases give out.
const ADDRESSES: &str =
    "eipalloc-00000000000000001,eipalloc-00000000000000002,eipalloc-00000000000000003";
const CERTIFICATE: &str =
    "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000001";
const OTHER_CERTIFICATE: &str =
    "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000002";

/// What is there, and what is to be then.
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent switches"
)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) settings: fn() -> Settings,
    pub(super) knobs: fn(&mut FakeOptions),
    pub(super) before: Option<ServiceInput>,
    pub(super) then: Vec<DriverCall>,
    /// Services beside it, which stay.
    pub(super) others: Vec<ServiceInput>,
    /// Connections have to break, since a listener cannot become what it is to be.
    pub(super) breaks: bool,
    /// What all balancers share stays when the last of them goes.
    pub(super) leaves: bool,
    /// Another process goes on.
    pub(super) restarts: bool,
    /// That something has to go is known to the process alone that put it there.
    pub(super) remembered: bool,
}

impl Case {
    fn new(name: &'static str, before: Option<ServiceView>, then: Vec<DriverCall>) -> Self {
        Self {
            name,
            settings: Settings::default,
            knobs: |_| {},
            before: before.map(on),
            then,
            others: Vec::new(),
            breaks: false,
            leaves: false,
            restarts: false,
            remembered: false,
        }
    }

    fn create(name: &'static str, service: ServiceView) -> Self {
        Self::new(name, None, vec![DriverCall::Ensure(on(service))])
    }

    fn change(name: &'static str, before: ServiceView, then: ServiceView) -> Self {
        Self::new(name, Some(before), vec![DriverCall::Ensure(on(then))])
    }

    fn delete(name: &'static str, service: ServiceView) -> Self {
        Self::new(name, Some(service.clone()), vec![DriverCall::Delete(on(service))])
    }

    /// Asked for once, and deleted, whatever came of it.
    fn give_up(name: &'static str, service: ServiceView) -> Self {
        Self::new(
            name,
            None,
            vec![DriverCall::GivenUp(on(service.clone())), DriverCall::Delete(on(service))],
        )
    }

    /// Only backends change.
    fn nodes(
        name: &'static str,
        service: &ServiceView,
        before: &'static [usize],
        then: &'static [usize],
    ) -> Self {
        let act = DriverCall::Update(ServiceInput { service: service.clone(), backends: then });
        let before = ServiceInput { service: service.clone(), backends: before };
        Self { before: Some(before), ..Self::new(name, None, vec![act]) }
    }

    fn settings(self, settings: fn() -> Settings) -> Self {
        Self { settings, ..self }
    }

    /// On an AWS that takes its time, as on a usual day.
    fn slow(self) -> Self {
        Self { knobs: |knobs| *knobs = FakeOptions::realistic(), ..self }
    }

    fn beside(self, others: impl IntoIterator<Item = ServiceView>) -> Self {
        Self { others: others.into_iter().map(on).collect(), ..self }
    }

    fn breaks(self) -> Self {
        Self { breaks: true, ..self }
    }

    fn leaves(self) -> Self {
        Self { leaves: true, ..self }
    }
}

fn on(service: ServiceView) -> ServiceInput {
    ServiceInput { service, backends: NODES }
}

fn web(ports: &[u16]) -> ServiceView {
    service("web", ports)
}

fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

fn without_rules() -> Settings {
    Settings { disable_security_group_ingress: true, ..Settings::default() }
}

fn shared() -> Settings {
    Settings { shared_backend_security_group: true, ..managed() }
}

/// Several ports, one of them with TLS, a fixed address in each zone.
fn rich() -> ServiceView {
    let web =
        with(web(&[80, 443, 8443]), "ssl-cert", &format!("{CERTIFICATE},{OTHER_CERTIFICATE}"));
    let web = with(with(web, "ssl-ports", "443"), "eip-allocations", ADDRESSES);
    with(
        with(web, "attributes", "load_balancing.cross_zone.enabled=true"),
        "additional-resource-tags",
        "team=a",
    )
}

fn limited(service: ServiceView, ranges: &[&str]) -> ServiceView {
    ServiceView {
        source_ranges: ranges.iter().map(|range| (*range).into()).collect(),
        ..service
    }
}

fn pods(service: ServiceView) -> ServiceView {
    with(service, "nlb-target-type", "ip")
}

fn tuned(service: ServiceView) -> ServiceView {
    let service = with(with(service, "healthcheck-interval", "20"), "healthcheck-port", "30999");
    let service = with(service, "target-group-attributes", "proxy_protocol_v2.enabled=true");
    let service = with(service, "attributes", "load_balancing.cross_zone.enabled=true");
    with(service, "additional-resource-tags", "team=b")
}

fn udp(mut service: ServiceView) -> ServiceView {
    service.ports[0].protocol = Protocol::Udp;
    service
}

fn moved(mut service: ServiceView) -> ServiceView {
    service.ports[0].node_port = 31111.try_into().ok();
    service
}

/// Somebody else looks after the rules by which pods are reached.
fn unmanaged(service: ServiceView) -> ServiceView {
    with(service, "manage-backend-security-group-rules", "false")
}

fn reserved(service: ServiceView, units: u32) -> ServiceView {
    with(service, "minimum-load-balancer-capacity", &format!("CapacityUnits={units}"))
}

/// A dual-stack load balancer with these prefixes in two subnets.
fn source_nat(service: ServiceView, prefixes: &str) -> ServiceView {
    let service = with(service, "ip-address-type", "dualstack");
    let service = with(service, "enable-prefix-for-ipv6-source-nat", "on");
    let service = with(service, "subnets", "subnet-00000000000000001,subnet-00000000000000002");
    with(service, "source-nat-ipv6-prefixes", prefixes)
}

fn internal(service: ServiceView) -> ServiceView {
    with(service, "scheme", "internal")
}

pub(super) fn created() -> Vec<Case> {
    vec![
        Case::create("create", web(&[80])),
        Case::create("create slowly", web(&[80])).slow(),
        Case::create("create with everything", rich()).settings(managed),
        Case::create("create with the shared group", web(&[80, 443]))
            .settings(shared)
            .leaves(),
        Case::create("create with reserved capacity", reserved(web(&[80]), 3000)).slow(),
        Case::create("create for pods", pods(web(&[80]))),
        Case::give_up("give up", web(&[80, 443])).settings(without_rules),
        Case::give_up("give up with groups", web(&[80, 443])).settings(managed),
        Case::give_up("give up pods with groups", pods(web(&[80]))).settings(managed),
        Case::create("create beside others", web(&[80]))
            .beside([service("api1", &[80]), service("dns2", &[53])]),
        Case::create("create beside others with the shared group", web(&[80]))
            .settings(shared)
            .beside([service("api1", &[80])])
            .leaves(),
    ]
}

pub(super) fn changed() -> Vec<Case> {
    let two = || web(&[80, 443]);
    let v4 =
        |service| with(service, "subnets", "subnet-00000000000000001,subnet-00000000000000002");
    vec![
        Case::change("change ports", two(), web(&[443, 8443])),
        Case::change("change ports with groups", two(), web(&[443, 8443])).settings(managed),
        Case::change("change settings", two(), tuned(two())),
        Case {
            restarts: true,
            ..Case::change("change by a new process", two(), tuned(web(&[443, 8443])))
        },
        Case::change(
            "change settings back",
            tuned(two()),
            with(two(), "additional-resource-tags", "team=c"),
        ),
        Case {
            remembered: true,
            ..Case::change("drop tags", with(two(), "additional-resource-tags", "team=a"), two())
        },
        Case::change("change node port", two(), moved(two())),
        Case::change("change node port without rules", two(), moved(two())).settings(without_rules),
        Case::change(
            "change sources",
            limited(two(), &["198.51.100.0/24", "203.0.113.0/24"]),
            limited(two(), &["203.0.113.0/24"]),
        ),
        Case::change("change sources with groups", two(), limited(two(), &["203.0.113.0/24"]))
            .settings(managed),
        Case::change("change to pods", two(), pods(two())).breaks(),
        Case::change("change from pods", pods(two()), two()).breaks(),
        Case::change("change to pods with groups", two(), unmanaged(pods(two())))
            .settings(managed)
            .breaks(),
        Case::change("change from pods with groups", pods(two()), two())
            .settings(managed)
            .breaks(),
        Case::change("change protocol", two(), udp(two())).breaks(),
        Case::change("change subnets", two(), v4(two())),
        Case::change(
            "change reserved capacity",
            reserved(two(), 4000),
            reserved(web(&[443]), 3000),
        ),
        Case::change(
            "change source NAT prefixes",
            source_nat(web(&[80]), "auto_assigned,auto_assigned"),
            source_nat(two(), "2001:db8:0:0:1::/80,2001:db8:0:1:1::/80"),
        ),
        Case::change("change families", two(), with(two(), "ip-address-type", "dualstack")),
        Case::change("change ports beside others", two(), web(&[443]))
            .beside([service("api1", &[80])]),
        replaced(),
    ]
}

/// A scheme cannot be changed: the balancer has to be another one.
fn replaced() -> Case {
    let refused = DriverCall::Refused(on(internal(web(&[80]))), "scheme cannot be changed");
    let then = vec![
        refused,
        DriverCall::Delete(on(web(&[80]))),
        DriverCall::Ensure(on(internal(web(&[80])))),
    ];
    Case::new("change scheme", Some(web(&[80])), then).settings(managed)
}

pub(super) fn updated() -> Vec<Case> {
    let two = || web(&[80, 443]);
    vec![
        Case::nodes("nodes", &two(), &[0, 1], &[1, 2]),
        Case::nodes("nodes with groups", &two(), &[0, 1], &[1, 2]).settings(managed),
        Case::nodes("pods", &pods(web(&[80])), &[0, 1], &[1, 2]),
        Case::nodes("more nodes", &web(&[80]), &[0], &[0, 1, 2, 3]),
    ]
}

pub(super) fn deleted() -> Vec<Case> {
    let two = || web(&[80, 443]);
    vec![
        Case::delete("delete", two()),
        Case {
            restarts: true,
            ..Case::delete("delete by a new process", two()).settings(managed)
        },
        Case::delete("delete slowly", two())
            .settings(managed)
            .slow(),
        Case::delete("delete everything", rich()).settings(managed),
        Case::delete("delete with the shared group", two())
            .settings(shared)
            .leaves(),
        Case::delete("delete pods", pods(two())),
        Case::delete("delete beside others", two())
            .beside([service("api1", &[80]), service("dns2", &[53])]),
        Case::delete("delete beside others with the shared group", two())
            .settings(shared)
            .beside([service("api1", &[80])])
            .leaves(),
    ]
}

/// Finds a case by its name.
pub(super) fn case(name: &str) -> Case {
    let all = [created(), changed(), updated(), deleted()]
        .into_iter()
        .flatten();
    all.into_iter()
        .find(|case| case.name == name)
        .expect("there is such a case")
}
