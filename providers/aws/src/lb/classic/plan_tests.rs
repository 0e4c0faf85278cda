use super::*;
use crate::{
    api::{
        classic::{ClassicBackend, ClassicHealthCheck, ObservedClassicListener},
        elb::Scheme,
    },
    lb::{
        classic::model::ClassicGroups,
        model::{ServiceKey, SubnetChoice},
    },
};

fn listener(port: u16, protocol: &str) -> ClassicListener {
    let is_tls = ["SSL", "HTTPS"].contains(&protocol);
    ClassicListener {
        port,
        protocol: protocol.into(),
        instance_port: 30000 + port,
        instance_protocol: "TCP".into(),
        certificate: is_tls.then(|| "arn:C".into()),
    }
}

fn desired() -> DesiredClassic {
    DesiredClassic {
        owner: ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
        },
        name: "au".into(),
        scheme: Scheme::InternetFacing,
        subnets: SubnetChoice::Discover,
        listeners: vec![listener(80, "TCP"), listener(443, "SSL")],
        groups: ClassicGroups::default(),
        sources: vec!["0.0.0.0/0".parse().unwrap()],
        ports: vec![80, 443],
        proxy_protocol: false,
        tls_policy: None,
        health_check: ClassicHealthCheck {
            target: "TCP:30080".into(),
            interval: 10,
            timeout: 5,
            healthy: 2,
            unhealthy: 6,
        },
        attributes: ClassicAttributes {
            access_log: Some(ClassicAccessLog::default()),
            draining: Some(ClassicDraining::default()),
            idle_timeout: Some(60),
            cross_zone: Some(false),
        },
        extra_tags: Tags::new(),
        node_labels: Vec::new(),
    }
}

fn input() -> ClassicPlanInput {
    let zones = [("subnet-a", "a"), ("subnet-b", "b"), ("subnet-a2", "a"), ("subnet-c", "c")];
    ClassicPlanInput {
        groups: Some(vec!["sg-1".into(), "sg-2".into()]),
        subnets: vec!["subnet-a".into(), "subnet-b".into()],
        zones: zones
            .iter()
            .map(|(id, zone)| ((*id).into(), (*zone).into()))
            .collect(),
        removed_log_settings: ClassicAccessLog::default(),
    }
}

/// The load balancer as upstream leaves it, with AWS' defaults for what upstream does not name.
fn observed(desired: &DesiredClassic) -> ObservedClassic {
    let listeners = desired
        .listeners
        .iter()
        .map(|wanted| ObservedClassicListener {
            listener: ClassicListener {
                certificate: wanted
                    .certificate
                    .as_ref()
                    .map(|arn| arn.to_lowercase().into()),
                ..wanted.clone()
            },
            policies: match &wanted.certificate {
                Some(_) => vec!["ELBSecurityPolicy-2016-08".into()],
                None => Vec::new(),
            },
        });
    ObservedClassic {
        resource: ClassicLoadBalancer {
            name: desired.name.clone(),
            subnets: vec!["subnet-b".into(), "subnet-a".into()],
            security_groups: vec!["sg-2".into(), "sg-1".into()],
            listeners: listeners.collect(),
            policies: vec!["ELBSecurityPolicy-2016-08".into()],
            health_check: Some(desired.health_check.clone()),
            ..ClassicLoadBalancer::default()
        },
        tags: Some(desired.extra_tags.clone()),
        attributes: Some(ClassicAttributes {
            access_log: Some(ClassicAccessLog::default()),
            draining: Some(ClassicDraining { enabled: false, timeout: Some(300) }),
            idle_timeout: Some(60),
            cross_zone: Some(false),
        }),
    }
}

/// A change of the desired state.
type Change = fn(&mut DesiredClassic);

fn plan_after(change: Change) -> Vec<ClassicAction> {
    let before = desired();
    let mut wanted = before.clone();
    change(&mut wanted);
    changes(&wanted, &input(), &observed(&before))
}

fn operations(actions: &[ClassicAction]) -> Vec<&'static str> {
    actions.iter().map(ClassicAction::operation).collect()
}

#[test]
fn what_upstream_left_needs_no_change() {
    assert_eq!(plan_after(|_| {}), []);
    // Upstream writes protocols in lower case, and AWS shows them in capitals.
    let lower = plan_after(|it| {
        for listener in &mut it.listeners {
            listener.protocol = listener.protocol.to_lowercase().into();
        }
        it.health_check.target = "tcp:30080".into();
    });
    assert_eq!(lower, []);
}

#[test]
fn each_difference_has_its_own_request() {
    let cases: [(&str, Change, &[&str]); 14] = [
        ("check", |it| it.health_check.interval = 30, &["ConfigureHealthCheck"]),
        ("target", |it| it.health_check.target = "HTTP:1/x".into(), &["ConfigureHealthCheck"]),
        ("idle", |it| it.attributes.idle_timeout = Some(61), &["ModifyLoadBalancerAttributes"]),
        ("zones", |it| it.attributes.cross_zone = Some(true), &["ModifyLoadBalancerAttributes"]),
        (
            "draining",
            |it| it.attributes.draining = Some(ClassicDraining { enabled: true, timeout: None }),
            &["ModifyLoadBalancerAttributes"],
        ),
        // Upstream's timeout without draining has no effect in AWS.
        (
            "timeout alone",
            |it| {
                it.attributes.draining = Some(ClassicDraining { enabled: false, timeout: Some(9) });
            },
            &[],
        ),
        ("tags", |it| drop(it.extra_tags.insert("a".into(), "b".into())), &["AddTags"]),
        (
            "port more",
            |it| it.listeners.push(listener(81, "TCP")),
            &["CreateLoadBalancerListeners"],
        ),
        ("port less", |it| drop(it.listeners.remove(0)), &["DeleteLoadBalancerListeners"]),
        (
            "protocol",
            |it| it.listeners[0].protocol = "HTTP".into(),
            &["DeleteLoadBalancerListeners", "CreateLoadBalancerListeners"],
        ),
        (
            "certificate",
            |it| it.listeners[1].certificate = Some("arn:d".into()),
            &["DeleteLoadBalancerListeners", "CreateLoadBalancerListeners"],
        ),
        (
            "port for port",
            |it| it.listeners[0] = listener(81, "TCP"),
            &["CreateLoadBalancerListeners", "DeleteLoadBalancerListeners"],
        ),
        (
            "proxy",
            |it| it.proxy_protocol = true,
            &[
                "CreateLoadBalancerPolicy",
                "SetLoadBalancerPoliciesForBackendServer",
                "SetLoadBalancerPoliciesForBackendServer",
            ],
        ),
        (
            "policy",
            |it| it.tls_policy = Some("ELBSecurityPolicy-TLS-1-2-2017-01".into()),
            &["CreateLoadBalancerPolicy", "SetLoadBalancerPoliciesOfListener"],
        ),
    ];
    for (name, change, expected) in cases {
        assert_eq!(operations(&plan_after(change)), expected, "{name}");
    }
}

#[test]
fn only_attributes_that_differ_are_sent() {
    let actions = plan_after(|it| it.attributes.idle_timeout = Some(120));
    let [ClassicAction::ModifyAttributes(modify)] = &actions[..] else {
        panic!("{actions:?}")
    };
    let expected = ClassicAttributes { idle_timeout: Some(120), ..ClassicAttributes::default() };
    assert_eq!(modify.attributes, expected);
}

#[test]
fn policies_that_exist_are_used_and_those_of_others_stay() {
    let mut wanted = desired();
    wanted.proxy_protocol = true;
    wanted.tls_policy = Some("X".into());
    let mut there = observed(&wanted);
    there.resource.policies = vec![PROXY_POLICY.into(), "k8s-SSLNegotiationPolicy-X".into()];
    there.resource.listeners[1].policies = vec!["k8s-SSLNegotiationPolicy-X".into()];
    let backend = |port: u16, policies: &[&str]| ClassicBackend {
        instance_port: port,
        policies: policies.iter().map(|policy| (*policy).into()).collect(),
    };
    there.resource.backends =
        vec![backend(30080, &["theirs"]), backend(30443, &[PROXY_POLICY]), backend(1, &["old"])];
    let actions = changes(&wanted, &input(), &there);
    let expected = [(1, vec![]), (30080, vec!["theirs".into(), PROXY_POLICY.into()])];
    let expected = expected.map(|(instance_port, policies)| {
        let name = "au".into();
        ClassicAction::SetBackendPolicies(SetClassicBackendPolicies {
            name,
            instance_port,
            policies,
        })
    });
    assert_eq!(actions, expected);
    // Without proxy protocol, the policy goes from each port, and the others stay.
    wanted.proxy_protocol = false;
    there.resource.backends = vec![backend(30080, &["theirs", PROXY_POLICY])];
    let actions = changes(&wanted, &input(), &there);
    let [ClassicAction::SetBackendPolicies(set)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*set.policies, [Box::<str>::from("theirs")]);
}

const ATTACH: &str = "AttachLoadBalancerToSubnets";
const DETACH: &str = "DetachLoadBalancerFromSubnets";

#[test]
fn subnets_change_so_that_no_zone_has_two_and_one_stays() {
    let (wanted, there) = (desired(), observed(&desired()));
    let plan = |subnets: &[&str]| {
        let subnets = subnets.iter().map(|id| (*id).into()).collect();
        let input = ClassicPlanInput { subnets, ..input() };
        operations(&changes(&wanted, &input, &there))
    };
    assert_eq!(plan(&["subnet-a", "subnet-b", "subnet-c"]), [ATTACH]);
    assert_eq!(plan(&["subnet-b"]), [DETACH]);
    assert_eq!(plan(&["subnet-c"]), [ATTACH, DETACH]);
    assert_eq!(plan(&["subnet-a2", "subnet-b"]), [DETACH, ATTACH]);
    assert_eq!(plan(&["subnet-a2", "subnet-c"]), [ATTACH, DETACH, ATTACH]);
}

#[test]
fn what_cannot_be_read_is_not_compared() {
    let mut wanted = desired();
    wanted.attributes.idle_timeout = Some(120);
    wanted.extra_tags.insert("a".into(), "b".into());
    let there = ObservedClassic { tags: None, attributes: None, ..observed(&desired()) };
    assert_eq!(changes(&wanted, &input(), &there), []);
    let input = ClassicPlanInput { groups: Some(vec!["sg-3".into()]), ..input() };
    let actions = changes(&wanted, &input, &there);
    assert_eq!(operations(&actions), ["ApplySecurityGroupsToLoadBalancer"]);
    assert_eq!(changes(&wanted, &ClassicPlanInput { groups: None, ..input }, &there), []);
}

#[test]
fn a_new_load_balancer_gets_the_rest_afterwards() {
    let mut wanted = desired();
    wanted.attributes.cross_zone = Some(true);
    let cluster = Cluster::new("c", false);
    let request = creation(&wanted, &cluster, &["sg-1".into()], &["subnet-a".into()]);
    let tags: Vec<_> = request
        .tags
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let expected =
        [("kubernetes.io/cluster/c", "owned"), ("kubernetes.io/service-name", "default/web")];
    assert_eq!(tags, expected);
    let made = created(&request, "dns".into());
    let input = ClassicPlanInput {
        groups: Some(request.security_groups.clone()),
        subnets: request.subnets.clone(),
        ..input()
    };
    assert_eq!(
        operations(&changes(&wanted, &input, &made)),
        ["ConfigureHealthCheck", "ModifyLoadBalancerAttributes"]
    );
}
