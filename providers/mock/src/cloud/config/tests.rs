use proptest::prelude::*;

use super::*;
use crate::cloud::PowerState;

fn parse(text: &str) -> Result<CloudConfig, String> {
    CloudConfig::parse("cloud.yaml", text).map_err(|error| error.to_string())
}

#[test]
fn nothing_is_required() {
    for text in ["", "# only a comment\n", "---\n", "{}", "latency: {}"] {
        assert_eq!(parse(text), Ok(CloudConfig::default()), "{text:?}");
    }
}

#[test]
fn every_key_is_read() {
    let config = parse(
        "region: eu\nzones: [eu-1, eu-2]\ninstanceType: big\nautoProvision: true\n\
         latency: {instances: 20ms, routes: 1m30s, loadBalancers: 0s}\n\
         instances:\n- name: n1\n  providerID: mock://eu/n1\n  instanceType: small\n  zone: eu-2\n  region: eu\n  \
         addresses:\n  - {type: InternalIP, address: 10.0.0.1}\n  powerState: stopped\n  additionalLabels: {a: b}\n\
         - name: n2\nloadBalancerAddressPool: 192.0.2.0/28\nadminAddress: 127.0.0.1:0\n",
    )
    .unwrap();
    assert_eq!(
        (config.region(), config.zones(), config.instance_type()),
        ("eu", vec!["eu-1".into(), "eu-2".into()], "big")
    );
    assert!(config.auto_provision);
    assert_eq!(config.latency.instances, Duration::from_millis(20));
    assert_eq!(config.latency.routes, Duration::from_secs(90));
    assert_eq!(config.latency.load_balancers, Duration::ZERO);
    assert_eq!(config.instances[0].spec().power_state, Some(PowerState::Stopped));
    assert_eq!(config.instances[1].name, "n2");
    assert_eq!(config.address_networks().v4.to_string(), "192.0.2.0/28");
    assert_eq!(config.admin_address.unwrap().to_string(), "127.0.0.1:0");
}

#[test]
fn every_key_about_load_balancers_and_limits_is_read() {
    let config = parse(
        "rateLimits:\n  instances: {perSecond: 20, burst: 40}\n  routes: {perSecond: 2.5}\n\
         loadBalancerIPv6AddressPool: 2001:db8::/64\nloadBalancerActivation: 30s\nloadBalancerDeletion: 1m\n\
         loadBalancerQuota: 3\nloadBalancerClasses: [a.example/b]\nnodeSelectorLabels: [pool, '*']\n\
         features: {dualStack: false, endpoints: true, routeNodeAddresses: true}\n",
    )
    .unwrap();
    let burst = |limit: &Option<RateLimit>| limit.as_ref().map(RateLimit::burst);
    let limits = &config.rate_limits;
    assert_eq!(
        (burst(&limits.instances), burst(&limits.routes), burst(&limits.load_balancers)),
        (Some(40), Some(3), None)
    );
    let AddressNetworks { v4, v6, default_family } = config.address_networks();
    assert_eq!(
        (v4.to_string(), v6.to_string(), default_family),
        ("198.18.0.0/15".into(), "2001:db8::/64".into(), Family::V4)
    );
    assert_eq!(config.load_balancer_activation, Duration::from_secs(30));
    assert_eq!(config.load_balancer_deletion, Duration::from_secs(60));
    assert_eq!(
        (config.load_balancer_quota, &*config.load_balancer_classes),
        (Some(3), &["a.example/b".to_owned()][..])
    );
    assert_eq!(config.node_selector_labels, ["pool", "*"]);
    let features = Features {
        dual_stack: false,
        endpoints: true,
        route_node_addresses: true,
        ..Features::default()
    };
    assert_eq!(config.features, features);
    assert!(Features::default().dual_stack && !Features::default().endpoints);
}

#[test]
fn mistakes_name_file_line_and_key() {
    let cases = [
        ("region: eu\nautoProvison: true\n", 2, "autoProvison", "unknown field"),
        ("region: eu\nautoProvision: maybe\n", 2, "autoProvision", "bool"),
        ("latency:\n  instances: fast\n", 2, "instances", "invalid duration \"fast\""),
        ("latency: {instances: 1s, routes: 5}\n", 1, "routes", "invalid duration"),
        ("latency:\n  instances: -1s\n", 2, "instances", "must not be negative"),
        ("latency:\n  volumes: 1s\n", 2, "volumes", "unknown field"),
        ("loadBalancerAddressPool: 10.0.0.0/33\n", 1, "loadBalancerAddressPool", "CIDR"),
        ("region: eu\n\nadminAddress: localhost\n", 3, "adminAddress", "host:port"),
        ("endpoint: localhost:http\n", 1, "endpoint", "host:port"),
        ("endpoint: localhost:1\nadminAddress: :0\n", 2, "adminAddress", "cannot be combined"),
        ("region: a/b\n", 1, "region", "slashes"),
        ("instances:\n- name: n1\n  powerState: asleep\n", 3, "powerState", "unknown variant"),
        ("instances:\n- name: n1\n- name: n1\n", 1, "instances[1].name", "twice"),
        (
            "instances:\n- name: n1\n  providerID: aws:///i-1\n",
            1,
            "instances[0].providerID",
            "mock://",
        ),
        (
            "instances:\n- name: n1\n  addresses:\n  - {type: Internal, address: x}\n",
            4,
            "type",
            "unknown node address",
        ),
        (
            "loadBalancerIPv6AddressPool: 10.0.0.0/8\n",
            1,
            "loadBalancerIPv6AddressPool",
            "not an IPv6 network",
        ),
        (
            "loadBalancerAddressPool: 2001:db8::/64\nloadBalancerIPv6AddressPool: 2001:db8:1::/64\n",
            2,
            "loadBalancerIPv6AddressPool",
            "must not be set",
        ),
        ("rateLimits:\n  volumes: {perSecond: 1}\n", 2, "volumes", "unknown field"),
        ("rateLimits:\n  routes: {burst: 1}\n", 2, "burst", "missing field `perSecond`"),
        (
            "rateLimits: {routes: {perSecond: 0}}\n",
            1,
            "rateLimits.routes.perSecond",
            "more than 0",
        ),
        (
            "rateLimits: {instances: {perSecond: .inf}}\n",
            1,
            "rateLimits.instances.perSecond",
            "more than 0",
        ),
        (
            "rateLimits: {loadBalancers: {perSecond: 1, burst: 0}}\n",
            1,
            "rateLimits.loadBalancers.burst",
            "at least 1",
        ),
        ("loadBalancerActivation: soon\n", 1, "loadBalancerActivation", "invalid duration"),
        ("loadBalancerQuota: -1\n", 1, "loadBalancerQuota", ""),
        ("loadBalancerClasses: ['']\n", 1, "loadBalancerClasses", "empty"),
        ("features: {teleport: true}\n", 1, "teleport", "unknown field"),
        ("zones: one\n", 1, "zones", "sequence"),
        ("region: eu\nregion: us\n", 2, "region", "duplicate"),
    ];
    let mut wrong = Vec::new();
    for (text, line, key, message) in cases {
        let error = parse(text).unwrap_err();
        let prefix = format!("cloud config cloud.yaml, line {line}, key {key}: ");
        if !(error.starts_with(&prefix) && error.contains(message)) {
            wrong.push(format!("{text:?}\n   want {prefix}…{message}…\n   seen {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = CloudConfig::from_file(Path::new("no/such/file.yaml")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read cloud config no/such/file.yaml");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn keys_of_a_cloud_elsewhere_are_ignored_by_name() {
    let config = parse(
        "endpoint: http://127.0.0.1:1/\nregion: eu\nautoProvision: true\nlatency: {routes: 1s}\n",
    )
    .unwrap();
    assert_eq!(config.ignored_keys(), ["autoProvision", "latency"]);
    assert_eq!(config.endpoint.unwrap().to_string(), "127.0.0.1:1");
    assert!(
        parse("autoProvision: true")
            .unwrap()
            .ignored_keys()
            .is_empty()
    );
    let all = "endpoint: :1\nrateLimits: {routes: {perSecond: 1}}\nloadBalancerIPv6AddressPool: ::/0\n\
               loadBalancerActivation: 1s\nloadBalancerDeletion: 1s\nloadBalancerQuota: 1\n";
    assert_eq!(parse(all).unwrap().ignored_keys().len(), 5);
    let provider =
        "endpoint: :1\nfeatures: {udp: false}\nloadBalancerClasses: [a]\nnodeSelectorLabels: [b]\n";
    assert!(
        parse(provider).unwrap().ignored_keys().is_empty(),
        "what concerns the provider counts with an endpoint too"
    );
}

#[test]
fn addresses_parse_or_are_refused() {
    let good = [
        ("127.0.0.1:80", "127.0.0.1:80"),
        (":8080", "127.0.0.1:8080"),
        ("[::1]:1", "[::1]:1"),
        ("cloud.test:65535", "cloud.test:65535"),
    ];
    for (text, shown) in good {
        assert_eq!(text.parse::<HostPort>().unwrap().to_string(), shown);
    }
    for text in [
        "",
        ":",
        "host",
        "host:",
        "host:65536",
        "host:+1",
        "::1:80",
        "[::1]",
        "[x]:1",
        "ho st:1",
        "http://",
    ] {
        assert!(text.parse::<HostPort>().is_err(), "{text:?}");
    }
}

#[test]
fn durations_that_would_upset_the_parser_are_refused() {
    for text in [
        "",
        "5",
        "5s-3s",
        "+-5s",
        "-",
        "99999999999h",
        "1e9h",
        "9".repeat(400).as_str(),
        "1.s.",
        "½s",
        "inf",
        "s",
    ] {
        assert!(parse_duration(text).is_err(), "{text:?}");
    }
    for (text, millis) in
        [("1.5s", 1500), ("0s", 0), ("-0s", 0), ("+2m", 120_000), ("1h0m0.5s", 3_600_500)]
    {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_duration_panics(text in "[-+0-9.a-zµ½ ]{0,40}") {
        let _ = parse_duration(&text);
    }

    #[test]
    fn no_text_panics_the_parser(text in any::<String>()) {
        let _ = parse(&text);
    }

    #[test]
    fn no_document_of_our_keys_panics(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "region", "zones", "latency", "instances", "- name", "  instances", "  addresses", "endpoint",
                    "adminAddress", "loadBalancerAddressPool", "autoProvision", "  - {type", "é",
                ]),
                "[ -~é]{0,12}",
            ),
            0..8,
        )
    ) {
        let text = lines.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join("\n");
        let _ = parse(&text);
    }
}
