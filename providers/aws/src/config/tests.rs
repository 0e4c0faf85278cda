use std::fmt::Write as _;

use super::*;
use crate::api::elb::TargetType;

/// Settings of a text that has no mistakes.
fn good(text: &str) -> Settings {
    parse(text).unwrap_or_else(|errors| panic!("{text}: {errors}"))
}

/// Settings of lines in `[Global]`, without their warnings.
fn global(lines: &str) -> Settings {
    Settings { warnings: Vec::new(), ..good(&format!("[Global]\n{lines}")) }
}

/// The mistakes of a text, each a line.
fn bad(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(settings) => panic!("{text}: accepted: {settings:?}"),
        Err(errors) => errors.issues().iter().map(ToString::to_string).collect(),
    }
}

fn warnings(text: &str) -> Vec<String> {
    good(text)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// An override section; `lines` come last and win.
fn section(name: &str, lines: &str) -> String {
    format!(
        "[ServiceOverride \"{name}\"]\nService = EC2\nRegion = r1\nURL = http://ec2.foo\nSigningRegion = s1\n{lines}\n"
    )
}

#[test]
fn nothing_is_every_default() {
    for text in ["", "\n; c\n", "[Global]", "[global]\nZone=\nVPC = \"\"\nRouteTableID=\n"] {
        assert_eq!(good(text), Settings::default(), "{text:?}");
    }
}

#[test]
fn defaults_of_the_table_are_the_defaults() {
    let mut text = "[Global]\n".to_owned();
    for key in Global::KEYS.iter().filter(|key| !key.default.is_empty()) {
        writeln!(text, "{} = \"{}\"", key.name, key.default.replace('\\', "\\\\")).unwrap();
    }
    assert_eq!(good(&text), Settings::default());
}

// length: one table of all keys
#[test]
fn every_key_has_its_effect() {
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let role = |source: Option<&str>| Role {
        arn: "arn:aws:iam::123456789876:role/a:b".into(),
        account: "123456789876".into(),
        source: source.map(Into::into),
    };
    let rate = |per_second, burst| Rate { per_second, burst };
    let cases = [
        ("Region = us-west-2", with(&|s| s.region = Some("us-west-2".into()))),
        ("VPC = vpc-1", with(&|s| s.vpc = Some("vpc-1".into()))),
        ("SubnetID = subnet-1", with(&|s| s.subnet = Some("subnet-1".into()))),
        ("RouteTableID = rtb-1", with(&|s| s.route_tables = vec!["rtb-1".into()])),
        (
            "RouteTableID=rtb-1\nRouteTableID=rtb-2",
            with(&|s| s.route_tables = vec!["rtb-1".into(), "rtb-2".into()]),
        ),
        ("RoleARN = arn:aws:iam::123456789876:role/a:b", with(&|s| s.role = Some(role(None)))),
        (
            "RoleARN = arn:aws:iam::123456789876:role/a:b\nSourceARN = arn:x",
            with(&|s| s.role = Some(role(Some("arn:x")))),
        ),
        ("KubernetesClusterID = c", with(&|s| s.cluster_id = Some("c".into()))),
        ("KubernetesClusterTag = c", with(&|s| s.cluster_tag = Some("c".into()))),
        ("DisableSecurityGroupIngress", with(&|s| s.disable_security_group_ingress = true)),
        ("ElbSecurityGroup = sg-1", with(&|s| s.protected_security_group = Some("sg-1".into()))),
        (
            "ClusterServiceLoadBalancerHealthProbeMode = Shared",
            with(&|s| {
                s.shared_health_probe =
                    Some(SharedProbe { port: 10256.try_into().unwrap(), path: "/healthz".into() });
            }),
        ),
        (
            "ClusterServiceLoadBalancerHealthProbeMode = Shared\nClusterServiceSharedLoadBalancerHealthProbePort = 0x50\n\
             ClusterServiceSharedLoadBalancerHealthProbePath = /x",
            with(&|s| {
                s.shared_health_probe =
                    Some(SharedProbe { port: 80.try_into().unwrap(), path: "/x".into() });
            }),
        ),
        ("ClusterServiceSharedLoadBalancerHealthProbePort = 80", Settings::default()),
        (
            "SupportedTopologyInstanceTypePattern = ^p5",
            with(&|s| s.topology_types = TypePattern::parse("^p5").unwrap()),
        ),
        ("NLBSecurityGroupMode = Managed", with(&|s| s.managed_security_groups = true)),
        ("DefaultLoadBalancerType = nlb", with(&|s| s.default_type = DefaultType::Nlb)),
        ("DefaultLoadBalancerType = none", with(&|s| s.default_type = DefaultType::None)),
        ("ClaimExternalLoadBalancers = yes", with(&|s| s.claim_external = true)),
        (
            "LoadBalancerClass = a/b\nLoadBalancerClass = c",
            with(&|s| s.classes = vec!["a/b".into(), "c".into()]),
        ),
        (
            "LoadBalancerClass = a\nLoadBalancerClass\nLoadBalancerClass = b",
            with(&|s| s.classes = vec!["b".into()]),
        ),
        ("RemoveDeletionProtection = true", with(&|s| s.remove_deletion_protection = true)),
        ("DefaultTargetType = ip", with(&|s| s.default_target_type = TargetType::Ip)),
        (
            "AnnotationDialect = extended",
            with(&|s| s.annotation_dialect = AnnotationDialect::Extended),
        ),
        ("AnnotationDialect = upstream", Settings::default()),
        (
            "EnableSharedBackendSecurityGroup = on",
            with(&|s| s.shared_backend_security_group = true),
        ),
        (
            "EnableSharedBackendSecurityGroup = 1\nBackendSecurityGroup = sg-2",
            with(&|s| {
                s.shared_backend_security_group = true;
                s.backend_security_group = Some("sg-2".into());
            }),
        ),
        (
            "DriftCheckInterval = 1m30s",
            with(&|s| s.drift_check_interval = Duration::from_secs(90)),
        ),
        ("EC2ReadQPS = 2.5\nEC2ReadBurst = 7", with(&|s| s.limits.ec2_read = rate(2.5, 7))),
        ("EC2WriteQPS = 2\nEC2WriteBurst = 7", with(&|s| s.limits.ec2_write = rate(2.0, 7))),
        ("EC2TopologyQPS = 2\nEC2TopologyBurst = 7", with(&|s| s.limits.topology = rate(2.0, 7))),
        ("ELBReadQPS = 2\nELBReadBurst = 7", with(&|s| s.limits.elb_read = rate(2.0, 7))),
        (
            "ELBRegisterQPS = 2\nELBRegisterBurst = 7",
            with(&|s| s.limits.elb_register = rate(2.0, 7)),
        ),
        ("ELBWriteQPS = 2\nELBWriteBurst = 7", with(&|s| s.limits.elb_write = rate(2.0, 7))),
    ];
    for (lines, expected) in cases {
        assert_eq!(global(lines), expected, "{lines}");
        assert_eq!(
            global(&lines.replace("Cluster", "cluster").replace("ID =", "id =")),
            expected,
            "case of {lines}"
        );
    }
}

#[test]
fn the_last_of_a_repeated_text_wins_and_sections_of_a_name_are_one() {
    assert_eq!(global("VPC = vpc-1\n[Other]\n[GLOBAL]\nvpc = vpc-2").vpc, Some("vpc-2".into()));
    let warned =
        warnings("[Global]\nVPC=vpc-1\n[Other]\nx=1\n[Global \"sub\"]\nVPC=vpc-9\n[Global]\nFoo=1");
    let expected = [
        "line 3: [Other]: unknown section, which has no effect",
        "line 5: [Global \"sub\"]: unknown section, which has no effect",
        "line 8: [Global] Foo: unknown key, which has no effect",
    ];
    assert_eq!(warned, expected);
}

#[test]
fn bools_have_the_forms_of_gcfg() {
    for (text, expected) in [("true", true), ("YES", true), ("On", true), ("1", true)]
        .into_iter()
        .chain([("False", false), ("no", false), ("off", false), ("0", false)])
    {
        assert_eq!(
            global(&format!("ClaimExternalLoadBalancers = {text}")).claim_external,
            expected,
            "{text}"
        );
    }
    assert!(global("ClaimExternalLoadBalancers ; on").claim_external, "a key alone is true");
    // A key with an empty value is git's false and nobody's intention; upstream refuses it as well.
    let words = "line 2: [Global] ClaimExternalLoadBalancers: failed to parse \"\" as bool: expected true, yes, on, 1, \
                 false, no, off or 0";
    assert_eq!(bad("[Global]\nclaimexternalloadbalancers ="), [words]);
}

// CF1 CF2 CF3
#[test]
fn node_ip_families_keep_their_order() {
    use IpFamily::{V4, V6};
    let cases = [
        ("NodeIPFamilies = ipv6", vec![V6]),
        ("NodeIPFamilies = ipv6\nNodeIPFamilies = ipv4", vec![V6, V4]),
        ("", vec![V4]),
        ("NodeIPFamilies = ipv4\nNodeIPFamilies = ipv4", vec![V4]),
    ];
    for (lines, expected) in cases {
        assert_eq!(global(lines).node_ip_families, expected, "{lines}");
    }
}

// CF14 CF16
#[test]
fn zone_gives_the_region_and_wins() {
    assert_eq!(global("zone = eu-west-1a").region.as_deref(), Some("eu-west-1"));
    assert_eq!(
        global("Region = us-east-1\nZone = eu-west-1a")
            .region
            .as_deref(),
        Some("eu-west-1")
    );
    assert_eq!(
        bad("[Global]\nZone = some-fake-zone"),
        ["line 2: [Global] Zone: invalid AZ: some-fake-zone"]
    );
}

// CF17
#[test]
fn nlb_security_group_mode_is_exact() {
    for (value, managed) in [("Managed", true), ("\"Managed\"", true), ("", false), ("\"\"", false)]
    {
        assert_eq!(
            global(&format!("NLBSecurityGroupMode = {value}")).managed_security_groups,
            managed,
            "{value}"
        );
    }
    let wrong = [
        "managed",
        "MANAGED",
        "MaNaGeD",
        "Disabled",
        "BYO",
        "random-value",
        "  ",
        " Managed ",
        "prefix-Managed",
    ];
    for value in wrong.into_iter().chain(["Managed-suffix"]) {
        let words = format!(
            "line 2: [Global] NLBSecurityGroupMode: invalid NLB security group mode: {value:?}. Expected: \"Managed\""
        );
        assert_eq!(bad(&format!("[Global]\nNLBSecurityGroupMode = {value:?}")), [words]);
    }
}

// CF19
#[test]
fn role_has_an_account() {
    let role = global("RoleARN = arn:aws:iam::123456789876:role/test-cluster")
        .role
        .unwrap();
    assert_eq!(&*role.account, "123456789876");
    for arn in ["arn:aws:iam::123456789876", "arn:aws:iam:::role/x", "role/x"] {
        let words = format!("line 2: [Global] RoleARN: incorrect ARN format for role {arn}");
        assert_eq!(bad(&format!("[Global]\nRoleARN = {arn}")), [words]);
    }
    let warned = warnings("[Global]\nSourceARN = arn:x");
    assert_eq!(warned, ["line 2: [Global] SourceARN: has no effect without RoleARN"]);
}

#[test]
fn what_upstream_finds_late_or_never_is_found_at_once() {
    let cases = [
        ("VPC = 1", "VPC: \"1\" is not an ID of the form vpc-…"),
        ("VPC = vpc-", "VPC: \"vpc-\" is not an ID of the form vpc-…"),
        ("SubnetID = vpc-1", "SubnetID: \"vpc-1\" is not an ID of the form subnet-…"),
        ("RouteTableID = a,b", "RouteTableID: \"a,b\" is not an ID of the form rtb-…"),
        (
            "ElbSecurityGroup = \"sg-1 \"",
            "ElbSecurityGroup: \"sg-1 \" is not an ID of the form sg-…",
        ),
        ("Region = us/west", "Region: \"us/west\" is not the name of a region"),
        ("Zone", "Zone: needs a value"),
        ("NodeIPFamilies = v4", "NodeIPFamilies: unknown IP family \"v4\": expected ipv4 or ipv6"),
        (
            "ClusterServiceLoadBalancerHealthProbeMode = shared",
            "ClusterServiceLoadBalancerHealthProbeMode: Unsupported ClusterServiceLoadBalancerHealthProbeMode shared",
        ),
        (
            "ClusterServiceSharedLoadBalancerHealthProbePort = 65536",
            "ClusterServiceSharedLoadBalancerHealthProbePort: must be between 1 and 65535",
        ),
        (
            "ClusterServiceSharedLoadBalancerHealthProbePort = 1x",
            "ClusterServiceSharedLoadBalancerHealthProbePort: failed to parse \"1x\" as integer",
        ),
        (
            "ClusterServiceSharedLoadBalancerHealthProbePort = -+1",
            "ClusterServiceSharedLoadBalancerHealthProbePort: failed to parse \"-+1\" as integer",
        ),
        (
            "ClusterServiceSharedLoadBalancerHealthProbePath = x",
            "ClusterServiceSharedLoadBalancerHealthProbePath: must begin with / and have at most 1024 characters",
        ),
        (
            "SupportedTopologyInstanceTypePattern = (",
            "SupportedTopologyInstanceTypePattern: is not a regular expression: unclosed group",
        ),
        (
            "DefaultLoadBalancerType = clb",
            "DefaultLoadBalancerType: unknown type \"clb\": expected nlb or none",
        ),
        (
            "DefaultTargetType = lambda",
            "DefaultTargetType: unknown target type \"lambda\": expected instance or ip",
        ),
        (
            "AnnotationDialect = both",
            "AnnotationDialect: unknown dialect \"both\": expected upstream or extended",
        ),
        ("LoadBalancerClass = ", "LoadBalancerClass: must not be empty"),
        ("BackendSecurityGroup = x", "BackendSecurityGroup: \"x\" is not an ID of the form sg-…"),
        ("DriftCheckInterval = 1", "DriftCheckInterval: time: invalid duration \"1\""),
        ("DriftCheckInterval = 0s", "DriftCheckInterval: must be more than 0"),
        ("EC2ReadQPS = 0", "EC2ReadQPS: must be between 0.001 and 1000"),
        ("EC2ReadQPS = NaN", "EC2ReadQPS: must be between 0.001 and 1000"),
        ("EC2ReadQPS = fast", "EC2ReadQPS: failed to parse \"fast\" as number"),
        ("EC2ReadBurst = 0", "EC2ReadBurst: must be between 1 and 10000"),
        ("EC2ReadBurst = -1", "EC2ReadBurst: failed to parse \"-1\" as count"),
    ];
    for (line, words) in cases {
        assert_eq!(
            bad(&format!("[Global]\n\n{line}")),
            [format!("line 3: [Global] {words}")],
            "{line}"
        );
    }
    let words =
        "line 3: [Global] KubernetesClusterTag: clusterID tags did not match: \"a\" vs \"b\"";
    assert_eq!(bad("[Global]\nKubernetesClusterID = a\nKubernetesClusterTag = b"), [words]);
    assert_eq!(
        global("KubernetesClusterID = a\nKubernetesClusterTag = a")
            .cluster_tag
            .as_deref(),
        Some("a")
    );
}

#[test]
fn all_mistakes_are_told_together_in_the_order_of_the_file() {
    let text = format!(
        "{}[Global]\nZone = x\na b\nClaimExternalLoadBalancers = maybe\n[",
        section("1", "URL = ftp://x")
    );
    let places: Vec<String> = bad(&text)
        .iter()
        .map(|words| words.split(": ").take(2).collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "line 6 [ServiceOverride \"1\"] URL",
        "line 8 [Global] Zone",
        "line 9 expected '=' after a",
        "line 10 [Global] ClaimExternalLoadBalancers",
        "line 11 expected section name",
    ];
    assert_eq!(places, expected);
}

// CF5 CF6 CF7 CF8
#[test]
fn override_names_everything_it_lacks() {
    let cases = [
        ("Service", "service name is missing [Service is \"\"] in override 1"),
        ("Region", "service region is missing [Region is \"\"] in override 1"),
        ("URL", "url is missing [URL is \"\"] in override 1"),
        ("SigningRegion", "signingRegion is missing [SigningRegion is \"\"] in override 1"),
    ];
    for (key, words) in cases {
        let found = bad(&section("1", &format!("{key} = \"  \"")));
        assert_eq!(found, [format!("line 6: [ServiceOverride \"1\"]: {words}")]);
    }
    let all: Vec<String> = cases
        .iter()
        .map(|(_, words)| format!("line 1: [ServiceOverride \"1\"]: {words}"))
        .collect();
    assert_eq!(bad("[ServiceOverride \"1\"]"), all);
}

// CF4 CF9 CF10 CF11 CF13
#[test]
fn overrides_are_trimmed_and_kept_in_order() {
    let full = section(
        "1",
        "Service = \" EC2 \"\nSigningMethod = v4\nSigningMethod = v4\nSigningName = \" n \"",
    );
    let one = ServiceOverride {
        service: OverriddenService::Ec2,
        region: "r1".into(),
        url: "http://ec2.foo".into(),
        signing_region: "s1".into(),
        signing_name: Some("n".into()),
    };
    assert_eq!(good(&full).overrides, [one.clone()]);
    let elsewhere = ServiceOverride { region: "r2".into(), signing_name: None, ..one.clone() };
    let elb = ServiceOverride { service: OverriddenService::Elb, ..elsewhere.clone() };
    let two = section("2", "Service = Elastic Load Balancing v2\nRegion = r2");
    assert_eq!(
        good(&format!("{full}{two}")).overrides,
        [one.clone(), elb],
        "two services, two regions"
    );
    let same = section("x", "Region = r2\nSigningName = ");
    let settings = good(&format!("{full}[Global]\nVPC = vpc-1\n{same}"));
    assert_eq!(
        (settings.overrides, settings.vpc),
        (vec![one, elsewhere], Some("vpc-1".into())),
        "one service, two regions"
    );
    assert_eq!(good("[Global]").overrides, []);
}

// CF12
#[test]
fn second_override_of_the_same_name_in_a_region_is_refused() {
    let text = format!("{}{}", section("1", ""), section("2", "Service = \" EC2\""));
    let words = "line 7: [ServiceOverride \"2\"]: duplicate entry found for service override [2] (EC2 in r1)";
    assert_eq!(bad(&text), [words]);
    let unused = format!("{}{}", section("1", "Service = s3"), section("2", "Service = s3"));
    assert_eq!(bad(&unused).len(), 1);
}

#[test]
fn of_several_overrides_of_a_service_the_exact_name_counts() {
    use OverriddenService::{Classic, Ec2, Elb, Imds, Other};
    // Names and regions of the sections; which of them count for which service; how many have no
    // effect.
    type Sections = &'static [(&'static str, &'static str)];
    type Counting = Vec<(usize, OverriddenService)>;
    let cases: [(Sections, Counting, usize); 9] = [
        (&[("ec2", "r1"), ("EC2", "r1")], vec![(1, Ec2)], 1),
        (&[("EC2", "r1"), ("ec2", "r1")], vec![(0, Ec2)], 1),
        (&[("ec2", "r1"), ("Ec2", "r1")], vec![(0, Ec2)], 1),
        (&[("ec2", "r1"), ("EC2", "r2")], vec![(0, Ec2), (1, Ec2)], 0),
        (&[("ec2metadata", "r1"), ("ec2imds", "r2"), ("imds", "r1")], vec![(1, Imds)], 2),
        (&[("ec2imds", "r1"), ("ec2imds", "r2")], vec![(0, Imds)], 1),
        (
            &[("elasticloadbalancing", "r1"), ("elbv2", "r1"), ("Elastic Load Balancing v2", "r1")],
            vec![(0, Classic), (2, Elb)],
            1,
        ),
        (
            &[
                ("elasticloadbalancing", "r1"),
                ("Elastic Load Balancing", "r1"),
                ("Elastic Load Balancing v2", "r1"),
            ],
            vec![(1, Classic), (2, Elb)],
            1,
        ),
        (
            &[("KMS", "r1"), ("kms", "r1")],
            vec![(0, Other("KMS".into())), (1, Other("kms".into()))],
            0,
        ),
    ];
    for (sections, expected, without_effect) in cases {
        let mut text = String::new();
        for (index, (service, region)) in sections.iter().enumerate() {
            let lines = format!("Service = {service}\nRegion = {region}\nURL = http://h{index}");
            text += &section(&index.to_string(), &lines);
        }
        let settings = good(&text);
        let found: Vec<_> = settings
            .overrides
            .into_iter()
            .map(|found| (found.url.trim_start_matches("http://h").parse().unwrap(), found.service))
            .collect();
        assert_eq!((found, settings.warnings.len()), (expected, without_effect), "{sections:?}");
    }
}

#[test]
fn an_invalid_url_matters_only_where_it_may_be_used() {
    // The region of the cluster; service and region of the section; whether it is an error.
    let cases = [
        ("", "EC2", "r1", true),
        ("Region = r1", "EC2", "r1", true),
        ("Region = r1", "ec2", "r1", true),
        ("Region = r2", "EC2", "r1", false),
        ("Region = r2", "elasticloadbalancing", "r1", false),
        ("Region = r2", "ec2imds", "r1", true),
        ("", "s3", "r1", false),
        ("", "KMS", "r1", false),
    ];
    for (global, service, region, is_error) in cases {
        let lines = format!("Service = {service}\nRegion = {region}\nURL = s3.foo");
        let text = format!("[Global]\n{global}\n{}", section("1", &lines));
        let found = if is_error {
            bad(&text)
        } else {
            assert_eq!(good(&text).overrides, []);
            warnings(&text)
        };
        assert!(
            found
                .iter()
                .any(|words| words.contains("[ServiceOverride \"1\"] URL: is not a URL")),
            "{global} {service} {region}: {found:?}"
        );
    }
}

#[test]
fn an_invalid_url_of_an_override_without_effect_is_a_warning() {
    // Service and validity of the URL of each section; the index of the one that is an error.
    let (good_url, bad_url) = ("http://x", "ec2.foo");
    let cases = [
        (("ec2", bad_url), ("EC2", good_url), None),
        (("EC2", good_url), ("ec2", bad_url), None),
        // An invalid URL does not make the other section count.
        (("ec2", good_url), ("EC2", bad_url), Some(2)),
        (("imds", bad_url), ("ec2imds", good_url), None),
        // This one still counts for classic load balancers.
        (("elasticloadbalancing", bad_url), ("Elastic Load Balancing v2", good_url), Some(1)),
    ];
    for (first, second, error) in cases {
        let lines = |(service, url): (&str, &str)| format!("Service = {service}\nURL = {url}");
        let text = section("1", &lines(first)) + &section("2", &lines(second));
        let found = match error {
            Some(_) => bad(&text),
            None => {
                assert_eq!(&*good(&text).overrides[0].url, good_url);
                assert_eq!(good(&text).overrides.len(), 1);
                warnings(&text)
            }
        };
        let index = error.unwrap_or(if first.1 == bad_url { 1 } else { 2 });
        let words = format!("[ServiceOverride \"{index}\"] URL: is not a URL");
        assert!(found.iter().any(|text| text.contains(&words)), "{first:?} {second:?}: {found:?}");
    }
}

#[test]
fn services_go_by_their_id_or_an_older_name_in_any_case() {
    use OverriddenService::{Classic, Ec2, Elb, Imds, Other, Sts};
    let cases = [
        ("EC2", vec![Ec2]),
        ("ec2", vec![Ec2]),
        ("elastic load balancing V2", vec![Elb]),
        ("elbv2", vec![Elb]),
        ("elasticloadbalancingv2", vec![Elb]),
        ("Elastic Load Balancing", vec![Classic]),
        ("elasticloadbalancing", vec![Elb, Classic]),
        ("sts", vec![Sts]),
        ("ec2imds", vec![Imds]),
        ("imds", vec![Imds]),
        ("ec2metadata", vec![Imds]),
        ("KMS", vec![Other("KMS".into())]),
    ];
    for (name, services) in cases {
        let settings = good(&section("1", &format!("Service = {name}")));
        let found: Vec<_> = settings
            .overrides
            .into_iter()
            .map(|found| found.service)
            .collect();
        assert_eq!((found, settings.warnings.len()), (services, 0), "{name}");
    }
    let warned = warnings(&section("1", "Service = s3"));
    assert!(warned[0].starts_with(
        "line 6: [ServiceOverride \"1\"] Service: this program has no client for \"s3\""
    ));
}

#[test]
fn the_name_of_both_balancers_gives_way_to_the_name_of_one() {
    let both = section("1", "Service = elasticloadbalancing\nURL = http://both");
    let one = section("2", "Service = Elastic Load Balancing v2\nURL = http://one");
    let settings = good(&format!("{both}{one}"));
    let found: Vec<_> = settings
        .overrides
        .iter()
        .map(|found| (&found.service, &*found.url))
        .collect();
    assert_eq!(
        found,
        [(&OverriddenService::Classic, "http://both"), (&OverriddenService::Elb, "http://one")]
    );
}

#[test]
fn url_must_be_one_and_is_not_repeated_in_the_message() {
    for url in
        ["ec2.foo", "http://", "http://:80", "https:///x", "http://a b", "ftp://user:secret@x"]
    {
        let words = "line 6: [ServiceOverride \"1\"] URL: is not a URL of the form http://host:port or https://host";
        assert_eq!(bad(&section("1", &format!("URL = \"{url}\""))), [words], "{url}");
    }
    for url in ["http://127.0.0.1:5000", "https://[::1]:80/x", "https://u:p@host/", "HTTPS://host/"]
    {
        assert_eq!(&*good(&section("1", &format!("URL = {url}"))).overrides[0].url, url);
    }
}

#[test]
fn files_are_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.conf");
    let name = file.display().to_string();
    let unreadable = load(&file).unwrap_err();
    assert_eq!(unreadable.to_string(), format!("cannot read cloud config {name}"));
    assert!(unreadable.issues().is_empty());
    std::fs::write(&file, b"[Global]\nZone = x\nVPC = y\n").unwrap();
    let expected = format!(
        "cloud config {name}: line 2: [Global] Zone: invalid AZ: x\n\
         cloud config {name}: line 3: [Global] VPC: \"y\" is not an ID of the form vpc-…"
    );
    assert_eq!(load(&file).unwrap_err().to_string(), expected);
    std::fs::write(&file, b"[Global]\nVPC = \xff\n").unwrap();
    assert_eq!(
        load(&file).unwrap_err().to_string(),
        format!("cloud config {name}: line 2: illegal UTF-8 encoding")
    );
    std::fs::write(&file, b"\xef\xbb\xbf[Global]\r\nVPC = vpc-1\r\n").unwrap();
    assert_eq!(load(&file).unwrap().vpc, Some("vpc-1".into()));
}

#[test]
fn log_shows_what_is_set_and_no_secrets() {
    let mut settings = global("ClusterServiceLoadBalancerHealthProbeMode = Shared");
    let shown = settings.effective();
    for key in Global::KEYS.iter().filter(|key| key.name != "Zone") {
        assert!(shown.iter().any(|(name, _)| *name == key.name), "{} is not shown", key.name);
    }
    for key in Global::KEYS
        .iter()
        .filter(|key| !key.default.is_empty() && key.kind != "duration")
    {
        let expected = if key.name.ends_with("ProbeMode") {
            "Shared"
        } else {
            key.default
        };
        assert!(shown.contains(&(key.name, expected.to_owned())), "{}", key.name);
    }
    settings = good(&section("1", "URL = https://user:secret@host:1/p?token=secret"));
    let debug = format!("{settings:?}");
    assert!(debug.contains("https://host:1/p") && !debug.contains("secret"), "{debug}");
    let shown = format!("{:?}", settings.effective());
    assert!(shown.contains("(\"ServiceOverride\", \"EC2 in r1: https://host:1/p\")"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}

/// The page in docs/reference is this one; `CCM_UPDATE_REFERENCE=1` writes it anew.
#[test]
fn reference_page_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/aws-cloud-conf.md");
    let page = reference();
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/aws-cloud-conf.md is out of date: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws reference_page"
    );
}

fn reference() -> String {
    let mut page = include_str!("reference-head.md").to_owned();
    table(&mut page, "[Global]", Global::KEYS);
    page.push_str("\nKeys with * are not upstream's.\n");
    table(&mut page, "[ServiceOverride \"N\"]", Override::KEYS);
    page.push_str(include_str!("reference-overrides.md"));
    page
}

fn table<T>(page: &mut String, title: &str, keys: &[ConfigKey<T>]) {
    write!(page, "\n## {title}\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n")
        .unwrap();
    for key in keys {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", key.default.replace('|', "\\|"))
        };
        let ours = if key.upstream { "" } else { " *" };
        writeln!(page, "| `{}`{ours} | {} | {default} | {} |", key.name, key.kind, key.meaning)
            .unwrap();
    }
}
