//! Whose a Service is.

use super::*;

const NETWORK: &str = "a0f1-123456.elb.us-west-2.amazonaws.com";
const CLASSIC: &str = "a0f1-123456.us-west-2.elb.amazonaws.com";
const FLIP: &str = "cannot update Load Balancer Type annotation \"service.beta.kubernetes.io/aws-load-balancer-type\" \
                    after creation for Classic Load Balancer";

fn untyped(default: DefaultType) -> Case {
    nlb()
        .without("type")
        .set(|settings| settings.default_type = default)
}

// VA6
#[test]
fn only_the_exact_type_is_a_network_load_balancer() {
    assert!(matches!(nlb().read().spec, ServiceSpec::Nlb(_)));
    for other in ["clb", "classic", "elb", "alb", "NLB", " nlb", "nlb ", "External"] {
        let message = format!("load balancer type \"{other}\" is not supported; use \"nlb\"");
        assert_eq!(nlb().says("type", other).mistakes(), [message]);
        // Upstream takes it for a classic load balancer.
        let upstream = nlb().says("type", other).upstream();
        assert!(matches!(upstream.read().spec, ServiceSpec::Classic(_)), "{other}");
    }
}

// VA6 LB2
#[test]
fn what_another_controller_serves_is_left_to_it_unless_claimed() {
    for kind in ["external", "nlb-ip"] {
        let case = nlb().says("type", kind);
        let left = ParsedService {
            spec: ServiceSpec::ImplementedElsewhere,
            status_looks_classic: false,
            classic: None,
            tolerant: None,
            notices: Vec::new(),
        };
        assert_eq!(case.read(), left);
        // Whatever else is wrong is nobody's business here.
        assert_eq!(case.clone().says("scheme", "nonsense").read(), left);
        assert!(matches!(
            case.set(|settings| settings.claim_external = true)
                .read()
                .spec,
            ServiceSpec::Nlb(_)
        ));
    }
}

// LB2
#[test]
fn classes_are_served_when_configured() {
    assert!(matches!(claimed().read().spec, ServiceSpec::Nlb(_)));
    assert_eq!(
        claimed()
            .set(|settings| settings.classes.clear())
            .read()
            .spec,
        ServiceSpec::ImplementedElsewhere
    );
    let other = claimed().spec(|service| service.class = Some("".into()));
    assert_eq!(
        other.says("type", "nlb").read().spec,
        ServiceSpec::ImplementedElsewhere,
        "the class counts, not the annotation"
    );
}

#[test]
fn without_a_type_the_configuration_decides() {
    for case in [untyped(DefaultType::Nlb), untyped(DefaultType::Nlb).says("type", "")] {
        assert!(matches!(case.read().spec, ServiceSpec::Nlb(_)));
        let none = case
            .clone()
            .set(|settings| settings.default_type = DefaultType::None)
            .read();
        assert_eq!(none.spec, ServiceSpec::ImplementedElsewhere);
        assert_eq!(none.notices.len(), 1);
        assert_eq!(none.notices[0].kind, EventType::Normal);
        // As upstream, in both dialects.
        let unset = case.set(|settings| settings.default_type = DefaultType::Unset);
        assert!(matches!(unset.read().spec, ServiceSpec::Classic(_)));
        assert!(matches!(unset.upstream().read().spec, ServiceSpec::Classic(_)));
    }
}

// VA4
#[test]
fn the_status_decides_nothing_but_is_told() {
    let cases = [
        (None, false),
        (Some(NETWORK), false),
        (Some("a.elb.cn-north-1.amazonaws.com.cn"), false),
        (Some(CLASSIC), true),
        (Some("A.US-WEST-2.ELB.AMAZONAWS.COM"), true),
        (Some("a.cn-north-1.elb.amazonaws.com.cn"), true),
        (Some("dualstack.a.us-west-2.elb.amazonaws.com"), true),
        (Some("a.region-1.elb.partition.example"), true),
        (Some("a.elb.region-1.partition.example"), false),
        (Some("elsewhere.example.org"), false),
    ];
    for (host, classic) in cases {
        let case = host.map_or_else(nlb, |host| nlb().host(host));
        assert_eq!(case.read().status_looks_classic, classic, "{host:?}");
        assert_eq!(case.wanted(), nlb().wanted(), "{host:?}");
        let untyped = case
            .without("type")
            .set(|settings| settings.default_type = DefaultType::Nlb);
        assert_eq!(untyped.wanted(), nlb().wanted(), "{host:?}");
    }
}

// VA4
#[test]
fn the_type_of_a_network_load_balancer_cannot_change() {
    let unsupported = "load balancer type \"clb\" is not supported; use \"nlb\"".to_owned();
    assert_eq!(
        nlb().host(NETWORK).says("type", "clb").mistakes(),
        [unsupported.clone(), FLIP.to_owned()]
    );
    assert_eq!(nlb().host(CLASSIC).says("type", "clb").mistakes(), [unsupported.clone()]);
    assert_eq!(
        nlb()
            .host("a.elb.cn-north-1.amazonaws.com.cn")
            .says("type", "clb")
            .mistakes()
            .len(),
        2
    );
    let untyped = untyped(DefaultType::Unset).host(NETWORK);
    assert_eq!(untyped.mistakes(), [FLIP.to_owned()]);
    assert!(untyped.read().tolerant.is_some(), "its targets still follow the nodes");
    let upstream = nlb().host(NETWORK).says("type", "clb").upstream();
    assert_eq!(upstream.mistakes(), [FLIP.to_owned()]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let case = nlb()
        .says("scheme", "x")
        .says("healthcheck-interval", "often")
        .says("access-log-enabled", "perhaps")
        .says("extra-security-groups", "sg-1")
        .spec(|service| {
            service.load_balancer_ip = Some("192.0.2.1".into());
            service.source_ranges = Box::from(["nonsense".into()]);
        });
    let mistakes: Vec<_> = case.refused().iter().map(ToString::to_string).collect();
    let wanted = [
        "service.beta.kubernetes.io/aws-load-balancer-extra-security-groups: BYO extra security group annotation \
         \"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups\" is not supported by NLB",
        "spec.loadBalancerIP: LoadBalancerIP cannot be specified for AWS ELB",
        "service.beta.kubernetes.io/aws-load-balancer-scheme: unknown scheme: x",
        "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval: failed to parse annotation \
         service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval=often",
        "spec.loadBalancerSourceRanges: \"nonsense\" is not a network in CIDR form",
        "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled: error parsing service annotation: \
         service.beta.kubernetes.io/aws-load-balancer-access-log-enabled=perhaps",
    ];
    assert_eq!(mistakes, wanted);
}

#[test]
fn annotations_without_effect_make_one_remark() {
    let case = nlb()
        .says("connection-idle-timeout", "60")
        .says("foo", "bar")
        .says("quic-enabled-ports", "443");
    let remarks = case.read().notices;
    assert_eq!(remarks.len(), 1);
    assert_eq!(
        (remarks[0].kind, remarks[0].reason),
        (EventType::Normal, "AnnotationsWithoutEffect")
    );
    for part in ["connection-idle-timeout (for classic", "foo (unknown)", "quic-enabled-ports (not"]
    {
        assert!(remarks[0].note.contains(part), "{}", remarks[0].note);
    }
    assert_eq!(case.wanted(), nlb().wanted());
    let many = (0..100).fold(nlb(), |case, number| case.says(&format!("unknown-{number}"), ""));
    assert!(many.read().notices[0].note.len() < 1000);
    assert_eq!(nlb().read().notices, []);
}
