//! Defaults, checks and warnings. The health handler, leader migration's file and filter, and the
//! configuration's JSON form (`/configz`) have their tests beside them.

use std::path::Path;
use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Every flag with its documented default, written out a second time on purpose: the table may not
/// drift.
const DEFAULTS: &[(&str, &str)] = &[
    ("allocate-node-cidrs", "false"),
    ("allow-untagged-cloud", "false"),
    ("authentication-kubeconfig", ""),
    ("authentication-skip-lookup", "false"),
    ("authentication-token-webhook-cache-ttl", "10s"),
    ("authentication-tolerate-lookup-failure", "false"),
    ("authorization-always-allow-paths", "/healthz,/readyz,/livez"),
    ("authorization-kubeconfig", ""),
    ("authorization-webhook-cache-authorized-ttl", "10s"),
    ("authorization-webhook-cache-unauthorized-ttl", "10s"),
    ("bind-address", "0.0.0.0"),
    ("cert-dir", ""),
    ("cidr-allocator-type", "RangeAllocator"),
    ("client-ca-file", ""),
    ("cloud-config", ""),
    ("cloud-provider", "mock"),
    ("cluster-cidr", ""),
    ("cluster-name", "kubernetes"),
    ("collect-orphans", "false"),
    ("collect-orphans-confirm", ""),
    ("concurrent-node-lifecycle-syncs", "1"),
    ("concurrent-node-status-updates", "0"),
    ("concurrent-node-syncs", "1"),
    ("concurrent-service-syncs", "1"),
    ("configure-cloud-routes", "true"),
    ("contention-profiling", "false"),
    ("controller-start-interval", "0s"),
    ("controllers", "*"),
    ("disable-http2-serving", "false"),
    ("enable-leader-migration", "false"),
    ("external-cloud-volume-plugin", ""),
    ("feature-gates", ""),
    ("help", "false"),
    ("http2-max-streams-per-connection", "0"),
    ("kube-api-burst", "30"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf"),
    ("kube-api-qps", "20"),
    ("kubeconfig", ""),
    ("leader-elect", "true"),
    ("leader-elect-lease-duration", "15s"),
    ("leader-elect-renew-deadline", "10s"),
    ("leader-elect-resource-lock", "leases"),
    ("leader-elect-resource-name", "cloud-controller-manager"),
    ("leader-elect-resource-namespace", "kube-system"),
    ("leader-elect-retry-period", "2s"),
    ("leader-migration-config", ""),
    ("load-balancer-verify-period", "1h0m0s"),
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("logging-format", "text"),
    ("master", ""),
    ("min-resync-period", "12h0m0s"),
    ("node-cidr-mask-size", "0"),
    ("node-cidr-mask-size-ipv4", "0"),
    ("node-cidr-mask-size-ipv6", "0"),
    ("node-deletion-safety", "strict"),
    ("node-monitor-period", "5s"),
    ("node-status-update-frequency", "5m0s"),
    ("node-sync-period", "0s"),
    ("orphan-minimum-age", "1h0m0s"),
    ("orphan-report-period", "24h0m0s"),
    ("out-of-service-after", "0s"),
    ("permit-address-sharing", "false"),
    ("permit-port-sharing", "false"),
    ("profiling", "true"),
    ("report", "none"),
    ("requestheader-allowed-names", ""),
    ("requestheader-client-ca-file", ""),
    ("requestheader-extra-headers-prefix", "x-remote-extra-"),
    ("requestheader-group-headers", "x-remote-group"),
    ("requestheader-uid-headers", ""),
    ("requestheader-username-headers", "x-remote-user"),
    ("route-reconciliation-period", "10s"),
    ("secure-port", "10258"),
    ("service-cluster-ip-range", ""),
    ("service-conditions", "false"),
    ("shadow", "false"),
    ("shadow-once", "false"),
    ("shadow-settle", "30s"),
    ("tls-cert-file", ""),
    ("tls-cipher-suites", ""),
    ("tls-curve-preferences", ""),
    ("tls-min-version", ""),
    ("tls-private-key-file", ""),
    ("tls-sni-cert-key", ""),
    ("tracing-config-file", ""),
    ("use-service-account-credentials", "false"),
    ("v", "0"),
    ("version", "false"),
    ("vmodule", ""),
    ("webhook-bind-address", "0.0.0.0"),
    ("webhook-cert-dir", ""),
    ("webhook-disable-http2-serving", "false"),
    ("webhook-secure-port", "10260"),
    ("webhook-tls-cert-file", ""),
    ("webhook-tls-cipher-suites", ""),
    ("webhook-tls-curve-preferences", ""),
    ("webhook-tls-min-version", ""),
    ("webhook-tls-private-key-file", ""),
    ("webhook-tls-sni-cert-key", ""),
    ("webhooks", ""),
];

#[test]
fn defaults_are_upstreams() {
    let config = run("");
    let values: Vec<(&str, &str)> = config
        .flags()
        .iter()
        .map(|flag| (flag.name, flag.value.as_str()))
        .collect();
    assert_eq!(values, DEFAULTS);
    assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    let changed: Vec<&str> = config
        .flags()
        .iter()
        .filter(|flag| flag.changed)
        .map(|flag| flag.name)
        .collect();
    assert_eq!(changed, ["cloud-provider"]);
}

/// Another value for every flag, each in a run of its own.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("allocate-node-cidrs", "true"),
    ("allow-untagged-cloud", "true"),
    ("authentication-kubeconfig", "/a"),
    ("authentication-skip-lookup", "true"),
    ("authentication-token-webhook-cache-ttl", "1s"),
    ("authentication-tolerate-lookup-failure", "true"),
    ("authorization-always-allow-paths", "/a"),
    ("authorization-kubeconfig", "/a"),
    ("authorization-webhook-cache-authorized-ttl", "1s"),
    ("authorization-webhook-cache-unauthorized-ttl", "1s"),
    ("bind-address", "::1"),
    ("cert-dir", "/a"),
    ("cidr-allocator-type", "CloudAllocator"),
    ("client-ca-file", "/a"),
    ("cloud-config", "/a"),
    ("cloud-provider", "aws"),
    ("cluster-cidr", "10.0.0.0/8,fd00::/48"),
    ("cluster-name", "a"),
    ("collect-orphans", "true"),
    ("collect-orphans-confirm", "a"),
    ("concurrent-node-lifecycle-syncs", "2"),
    ("concurrent-node-status-updates", "2"),
    ("concurrent-node-syncs", "2"),
    ("concurrent-service-syncs", "2"),
    ("configure-cloud-routes", "false"),
    ("contention-profiling", "true"),
    ("controller-start-interval", "1s"),
    ("controllers", "*,-route"),
    ("disable-http2-serving", "true"),
    ("enable-leader-migration", "true"),
    ("external-cloud-volume-plugin", "a"),
    ("feature-gates", "WatchList=false"),
    ("http2-max-streams-per-connection", "1"),
    ("kube-api-burst", "31"),
    ("kube-api-content-type", "application/json"),
    ("kube-api-qps", "20.5"),
    ("kubeconfig", "/a"),
    ("leader-elect", "false"),
    ("leader-elect-lease-duration", "16s"),
    ("leader-elect-renew-deadline", "11s"),
    ("leader-elect-resource-name", "a"),
    ("leader-elect-resource-namespace", "a"),
    ("leader-elect-retry-period", "3s"),
    ("leader-migration-config", "/a"),
    ("load-balancer-verify-period", "30m0s"),
    ("log-flush-frequency", "1s"),
    ("logging-format", "json"),
    ("master", "https://a"),
    ("min-resync-period", "1s"),
    ("node-cidr-mask-size", "25"),
    ("node-cidr-mask-size-ipv4", "25"),
    ("node-cidr-mask-size-ipv6", "65"),
    ("node-deletion-safety", "upstream"),
    ("node-monitor-period", "1s"),
    ("node-status-update-frequency", "1s"),
    ("node-sync-period", "1s"),
    ("orphan-minimum-age", "2h0m0s"),
    ("orphan-report-period", "1h0m0s"),
    ("out-of-service-after", "1s"),
    ("permit-address-sharing", "true"),
    ("permit-port-sharing", "true"),
    ("profiling", "false"),
    ("requestheader-allowed-names", "a"),
    ("requestheader-client-ca-file", "/a"),
    ("requestheader-extra-headers-prefix", "a"),
    ("requestheader-group-headers", "a"),
    ("requestheader-uid-headers", "X-Remote-Uid"),
    ("requestheader-username-headers", "a"),
    ("route-reconciliation-period", "1s"),
    ("secure-port", "0"),
    ("service-cluster-ip-range", "10.96.0.0/12"),
    ("service-conditions", "true"),
    ("shadow", "true"),
    ("shadow-once", "true"),
    ("shadow-settle", "1m0s"),
    ("tls-cipher-suites", "TLS_AES_128_GCM_SHA256"),
    ("tls-curve-preferences", "29"),
    ("tls-min-version", "VersionTLS13"),
    ("tls-sni-cert-key", "a,b"),
    ("tracing-config-file", "/a"),
    ("use-service-account-credentials", "true"),
    ("v", "2"),
    ("version", "v1.2.3"),
    ("vmodule", "a=1"),
    ("webhook-bind-address", "::1"),
    ("webhook-cert-dir", "/a"),
    ("webhook-disable-http2-serving", "true"),
    ("webhook-secure-port", "0"),
    ("webhook-tls-cipher-suites", "TLS_AES_128_GCM_SHA256"),
    ("webhook-tls-curve-preferences", "29"),
    ("webhook-tls-min-version", "VersionTLS12"),
    ("webhook-tls-sni-cert-key", "a,b"),
];

/// Flags whose other value only stands together with another flag's; they have tests of their own.
const IN_COMPANY: &[&str] = &[
    "help",
    "leader-elect-resource-lock",
    "log-json-info-buffer-size",
    "log-json-split-stream",
    "log-text-info-buffer-size",
    "log-text-split-stream",
    "report",
    "tls-cert-file",
    "tls-private-key-file",
    "webhook-tls-cert-file",
    "webhook-tls-private-key-file",
    "webhooks",
];

#[test]
fn each_flag_changes_its_own_value_and_warns_as_the_table_says() {
    let product = product();
    let covered: BTreeSet<&str> = OTHERS
        .iter()
        .map(|(name, _)| *name)
        .chain(IN_COMPANY.iter().copied())
        .collect();
    assert_eq!(covered, flags::all(&product).map(Flag::name).collect());
    for (name, value) in OTHERS {
        let config = run(&format!("--{name}={value}"));
        let changed: Vec<&FlagValue> = config
            .flags()
            .iter()
            .filter(|f| f.changed && f.name != "cloud-provider")
            .collect();
        if *name != "cloud-provider" {
            assert_eq!(changed.len(), 1, "{name}: {changed:?}");
            assert_eq!((changed[0].name, changed[0].value.as_str()), (*name, *value));
        }
        let flag = flags::all(&product)
            .find(|flag| flag.name == *name)
            .unwrap();
        let expected = usize::from(flag.support != flags::FlagSupport::Supported)
            + usize::from(flag.deprecated.is_some())
            + usize::from(matches!(
                *name,
                "allocate-node-cidrs" | "feature-gates" | "leader-migration-config"
            ));
        assert_eq!(config.warnings().len(), expected, "{name}: {:?}", config.warnings());
        assert!(
            config
                .warnings()
                .iter()
                .all(|warning| warning.contains(name)),
            "{name}: {:?}",
            config.warnings()
        );
    }
}

#[test]
fn orphans_are_collected_only_where_they_are_looked_for() {
    assert!(!run("--orphan-report-period=0").orphans.collect);
    let error = refused("--orphan-report-period=0 --collect-orphans").join("\n");
    assert!(
        error.contains("--collect-orphans") && error.contains("--orphan-report-period"),
        "{error}"
    );
}

#[test]
fn a_shadow_takes_no_lease_and_minds_no_setting_of_one() {
    for flag in ["--shadow", "--shadow-once"] {
        let config = run(&format!(
            "{flag} --leader-elect=true --leader-elect-lease-duration=1s --leader-elect-retry-period=0"
        ));
        assert!(config.shadow.is_on());
        let named = |name: &str| {
            config
                .warnings()
                .iter()
                .any(|w| w.starts_with(&format!("--{name}=")) && w.contains("no lease"))
        };
        assert!(
            named("leader-elect") && named("leader-elect-lease-duration"),
            "{:?}",
            config.warnings()
        );
        assert_eq!(config.warnings().len(), 3, "{:?}", config.warnings());
    }
    assert!(!run("").shadow.is_on() && run("--shadow").warnings().is_empty());
}

#[test]
fn a_comparison_has_the_report_that_was_asked_for() {
    assert_eq!(run("--shadow-once").shadow.report, ReportFormat::None);
    for (name, format) in [("markdown", ReportFormat::Markdown), ("json", ReportFormat::Json)] {
        let config = run(&format!("--shadow-once --report={name}"));
        assert_eq!(config.shadow.report, format);
    }
}

#[test]
fn values_land_in_their_groups() {
    let config = run(
        "--cluster-cidr=10.1.2.3/16,fd00::1/48 --cloud-config=/etc/cloud --tls-min-version=VersionTLS13 \
         --webhook-tls-cipher-suites=A,B --webhook-tls-min-version=VersionTLS12 --webhook-tls-sni-cert-key=a,b \
         --tls-cert-file=/c --tls-private-key-file=/k --secure-port=0 --node-deletion-safety=upstream",
    );
    assert_eq!(
        config.generic.cluster_cidrs,
        ["10.1.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()]
    );
    assert_eq!(config.generic.cloud_config.as_deref(), Some(Path::new("/etc/cloud")));
    assert_eq!(config.serving.tls_min_version, TlsVersion::Tls13);
    assert_eq!(config.serving.tls_cert_file.as_deref(), Some(Path::new("/c")));
    assert_eq!(config.serving.port, None);
    assert!(
        config.serving.tls_cipher_suites.is_empty()
            && config.serving.tls_sni_certificates.is_empty()
    );
    assert_eq!(config.webhook.serving.tls_cipher_suites, ["A", "B"]);
    assert_eq!(config.webhook.serving.tls_min_version, TlsVersion::Tls12);
    assert_eq!(config.webhook.serving.tls_sni_certificates.len(), 1);
    assert_eq!(config.webhook.serving.port.map(u16::from), Some(10260));
    assert_eq!(config.node_lifecycle.deletion_safety, DeletionSafety::Upstream);
    assert_eq!(run("").node_lifecycle.deletion_safety, DeletionSafety::Strict);
}

#[test]
fn status_workers_follow_the_syncs_unless_set() {
    for (args, syncs, updates) in [
        ("", 1, 1),
        ("--concurrent-node-syncs=5", 5, 5),
        ("--concurrent-node-syncs=5 --concurrent-node-status-updates=2", 5, 2),
        ("--concurrent-node-status-updates=0", 1, 1),
    ] {
        let node = run(args).node;
        assert_eq!(
            (node.concurrent_syncs.get(), node.concurrent_status_updates.get()),
            (syncs, updates),
            "{args}"
        );
    }
}

#[test]
fn service_workers_are_eight_unless_the_flag_is_given() {
    for (args, flag, workers) in [
        ("", 1, 8),
        ("--concurrent-service-syncs=1", 1, 1),
        ("--concurrent-service-syncs=30", 30, 30),
    ] {
        let service = run(args).service;
        assert_eq!((service.concurrent_syncs.get(), service.workers), (flag, workers), "{args}");
    }
}

/// Arguments, and the one message they get.
const REFUSALS: &[(&str, &str)] = &[
    ("--cloud-provider=", "--cloud-provider cannot be empty"),
    (
        "--cloud-provider=nimbus",
        "--cloud-provider: unknown cloud provider \"nimbus\" (known: mock, aws, openstack, hcloud, vsphere)",
    ),
    ("--concurrent-node-syncs=0", "--concurrent-node-syncs=0: must be a positive number"),
    ("--concurrent-node-syncs=-3", "--concurrent-node-syncs=-3: must be a positive number"),
    (
        "--concurrent-node-status-updates=-1",
        "--concurrent-node-status-updates=-1: cannot be a negative number",
    ),
    (
        "--concurrent-node-lifecycle-syncs=0",
        "--concurrent-node-lifecycle-syncs=0: must be a positive number",
    ),
    (
        "--concurrent-service-syncs=0",
        "--concurrent-service-syncs=0: must be a positive number",
    ),
    ("--node-monitor-period=0", "--node-monitor-period=0s: must be greater than zero"),
    (
        "--node-monitor-period=-5s",
        "invalid argument \"-5s\" for \"--node-monitor-period\" flag: must not be negative",
    ),
    (
        "--leader-elect-resource-lock=configmapsleases",
        "--leader-elect-resource-lock=configmapsleases: resourceLock value must be \"leases\"",
    ),
    (
        "--leader-elect-resource-name=",
        "--leader-elect-resource-name=: cannot be empty when leader election is on",
    ),
    (
        "--leader-elect-lease-duration=10s",
        "--leader-elect-lease-duration=10s: must be greater than --leader-elect-renew-deadline=10s",
    ),
    (
        "--leader-elect-renew-deadline=2400ms",
        "--leader-elect-renew-deadline=2.4s: must be greater than 1.2 times --leader-elect-retry-period=2s",
    ),
    (
        "--leader-elect-retry-period=0",
        "--leader-elect-retry-period=0s: must be greater than zero",
    ),
    (
        "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
        "--cluster-cidr=10.0.0.0/8,11.0.0.0/8: two networks must be of different families, one IPv4 and one IPv6",
    ),
    (
        "--cluster-cidr=10.0.0.0/8,fd00::/8,11.0.0.0/8",
        "--cluster-cidr=10.0.0.0/8,fd00::/8,11.0.0.0/8: at most two networks are possible, one IPv4 and one IPv6",
    ),
    (
        "--cluster-cidr=10.0.0.0",
        "invalid argument \"10.0.0.0\" for \"--cluster-cidr\" flag: invalid CIDR address: 10.0.0.0",
    ),
    ("--master=ftp://a", "--master=ftp://a: must be an http or https address"),
    ("--master=https://u:password@a", "--master=<redacted>@a: must not contain credentials"),
    ("--kube-api-burst=-1", "--kube-api-burst=-1: cannot be a negative number"),
    (
        "--secure-port=70000",
        "--secure-port=70000: must be between 0 and 65535, inclusive; 0 turns the server off",
    ),
    (
        "--webhook-secure-port=10258",
        "--webhook-secure-port=10258: must differ from --secure-port=10258",
    ),
    ("--tls-cert-file=/a", "--tls-cert-file=/a: needs --tls-private-key-file, too"),
    (
        "--requestheader-group-headers=a,,b",
        "--requestheader-group-headers=a,,b: must not have blank entries",
    ),
    (
        "--requestheader-allowed-names=a,",
        "--requestheader-allowed-names=a,: must not have blank entries",
    ),
    (
        "--authorization-always-allow-paths=/healthz,/a*b",
        "--authorization-always-allow-paths=/a*b: may have a * at its end only",
    ),
    (
        "--requestheader-uid-headers=X-Uid",
        "--requestheader-uid-headers=X-Uid: must contain X-Remote-Uid",
    ),
    ("--webhooks=a,-b", "--webhooks=a,-b: admission webhooks are not supported"),
    ("--webhooks=*", "--webhooks=*: admission webhooks are not supported"),
    (
        "--tls-curve-preferences=29,29",
        "--tls-curve-preferences=29,29: duplicate curve preference 29",
    ),
    ("--v=-1", "--v=-1: cannot be a negative number"),
    ("--vmodule=node", "--vmodule=node: \"node\" is not of the form pattern=N"),
    (
        "--vmodule=a=1 --logging-format=json",
        "--vmodule=a=1: only works with --logging-format=text",
    ),
    ("--feature-gates=Nope=true", "--feature-gates=Nope=true: unrecognized feature gate"),
    (
        "--log-text-split-stream",
        "--log-text-split-stream=true: needs --feature-gates=LoggingAlphaOptions=true",
    ),
    (
        "--report=html --shadow-once",
        "invalid argument \"html\" for \"--report\" flag: must be one of: \"none\" \"markdown\" \"json\"",
    ),
    (
        "--report=markdown --shadow",
        "--report=markdown: only works with --shadow-once, because the report is printed at its end",
    ),
    (
        "--node-deletion-safety=maybe",
        "invalid argument \"maybe\" for \"--node-deletion-safety\" flag: must be one of: \"strict\" \"upstream\"",
    ),
    (
        "--bind-address=here",
        "invalid argument \"here\" for \"--bind-address\" flag: failed to parse IP: \"here\"",
    ),
    (
        "--feature-gates=WatchList",
        "invalid argument \"WatchList\" for \"--feature-gates\" flag: missing bool value for WatchList",
    ),
];

#[test]
fn values_that_cannot_be_used_are_refused_by_name() {
    for (args, message) in REFUSALS {
        assert_eq!(refused(args), [*message], "{args}");
    }
}

#[test]
fn all_checks_are_reported_together() {
    let wrong = refused(
        "--cloud-provider= --controllers=nope --concurrent-node-syncs=0 --leader-elect-resource-lock=endpoints",
    );
    assert_eq!(wrong.len(), 4, "{wrong:?}");
}

#[test]
fn election_flags_are_not_checked_when_there_is_no_election() {
    let config = run(
        "--leader-elect=false --leader-elect-lease-duration=1s --leader-elect-resource-lock=endpoints",
    );
    assert_eq!(config.leader_election.lease_duration, SECOND);
    assert!(!config.leader_election.enabled);
}

#[test]
fn alpha_logging_flags_pass_with_their_gate() {
    let config = run(
        "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream --log-json-info-buffer-size=64Ki",
    );
    assert!(config.logging.json.split_stream);
    assert_eq!(config.warnings().len(), 2, "{:?}", config.warnings());
}

#[test]
fn a_cipher_suite_is_known_weak_or_a_mistake() {
    let config = run(
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA",
    );
    let weak = "--tls-cipher-suites: TLS_RSA_WITH_AES_128_CBC_SHA left out: weak, and not served by this program";
    assert_eq!(config.warnings(), [weak]);
    let wrong = refused("--tls-cipher-suites=TLS_FOO,TLS_AES_128_GCM_SHA256");
    let begin = "--tls-cipher-suites=TLS_FOO,TLS_AES_128_GCM_SHA256: cipher suite TLS_FOO does not exist; known are";
    assert!(wrong.len() == 1 && wrong[0].starts_with(begin), "{wrong:?}");
}

#[test]
fn a_mistake_is_one_line_whatever_was_typed() {
    let errors = parse(&product(), ["--bo\ngus=1", "--v=x\r\ny", "\x1b[2J"]).unwrap_err();
    let text = errors.to_string();
    assert_eq!(text.lines().count(), errors.errors().len());
    assert!(text.lines().all(|line| !line.contains(char::is_control)), "{text:?}");
    assert!(text.starts_with("unknown flag: --bo\\ngus\n"), "{text}");
}
