//! Tests of reading and checking `cloud.conf`.

use std::{fmt::Write as _, time::Duration};

use ccm_core::config::gcfg_keys::ConfigKey;

use super::*;

fn nowhere() -> Environment {
    Environment::default()
}

/// Settings of a text that has no mistakes.
fn good(text: &str) -> Settings {
    parse(text, &nowhere()).unwrap_or_else(|errors| panic!("{text}: {errors}"))
}

/// The mistakes of a text, each a line.
fn bad(text: &str) -> Vec<String> {
    match parse(text, &nowhere()) {
        Ok(settings) => panic!("{text}: accepted: {settings:?}"),
        Err(errors) => errors.issues().iter().map(ToString::to_string).collect(),
    }
}

/// `[Global]` with credentials that are enough, then other lines.
fn with(lines: &str) -> String {
    format!(
        "[Global]\nauth-url=https://keystone:5000/v3\nuser-id=u\npassword=p\ntenant-id=t\n{lines}"
    )
}

/// Credentials of lines in `[Global]`.
fn auth(lines: &str) -> Auth {
    good(&format!("[Global]\nauth-url=https://keystone:5000/v3\n{lines}"))
        .cloud
        .auth
}

/// Mistakes of lines in `[Global]`.
fn refused(lines: &str) -> Vec<String> {
    bad(&format!("[Global]\nauth-url=https://keystone:5000/v3\n{lines}"))
}

fn warnings(text: &str) -> Vec<String> {
    good(text)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn user(name: &str, domain: Domain) -> User {
    User::Name { name: name.into(), domain }
}

fn id(id: &str) -> Domain {
    Domain::Id(id.into())
}

fn name(name: &str) -> Domain {
    Domain::Name(name.into())
}

// C01
#[test]
fn a_config_is_mandatory() {
    assert_eq!(
        load(None, &nowhere()).unwrap_err().to_string(),
        "a cloud config is needed: --cloud-config names none"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.conf");
    let error = load(Some(&file), &nowhere()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot read cloud config {}", file.display()));
}

// C02
#[test]
fn every_value_is_as_given() {
    let text = "[Global]\nauth-url=http://auth.url\nuser-id=user\npassword=mypass\ntenant-name=demo\n\
        tenant-domain-name=Default\nregion=RegionOne\n[LoadBalancer]\ncreate-monitor=yes\nmonitor-delay=1m\n\
        monitor-timeout=30s\nmonitor-max-retries=1\nmonitor-max-retries-down=3\n[Metadata]\n\
        search-order=configDrive, metadataService";
    let settings = good(text);
    let balancers = settings.load_balancer.clone().unwrap();
    assert_eq!(
        (balancers.create_monitor, balancers.monitor_delay),
        (true, Duration::from_secs(60))
    );
    assert_eq!(balancers.monitor_timeout, Duration::from_secs(30));
    assert_eq!((balancers.monitor_max_retries, balancers.monitor_max_retries_down), (1, 3));
    assert_eq!(
        (&*settings.cloud.region, settings.cloud.auth.url.as_str()),
        ("RegionOne", "http://auth.url/")
    );
    assert_eq!(
        settings.cloud.auth.identity,
        Identity::Password { user: User::Id("user".into()), password: "mypass".into() }
    );
    let scope = Scope::ProjectName { name: "demo".into(), domain: name("Default") };
    assert_eq!((settings.cloud.auth.scope, settings.warnings), (scope, vec![]));
}

#[test]
fn an_empty_rest_is_every_default() {
    let settings = good(&with(""));
    let expected = Settings::new(Cloud::new(settings.cloud.auth.clone()));
    assert_eq!(settings, expected);
}

/// Gives each section's keys a value that is not the default.
#[test]
fn every_key_of_load_balancers_is_read() {
    let lines = "[LoadBalancer]\nlb-version=v2\nlb-provider=ovn\nlb-method=SOURCE_IP_PORT\nsubnet-id=s\nnetwork-id=n\n\
        member-subnet-id=m\nfloating-network-id=f\nfloating-subnet-id=fi\nfloating-subnet=fp\nfloating-subnet-tags=ft\n\
        create-monitor\nmonitor-delay=7500ms\nmonitor-timeout=4s\nmonitor-max-retries=0x2\nmonitor-max-retries-down=4\n\
        manage-security-groups=1\ninternal-lb=on\nnode-selector=a=b\ncascade-delete=no\nflavor-id=fl\n\
        availability-zone=z\nenable-ingress-hostname=true\ningress-hostname-suffix=sslip.io\nmax-shared-lb=5\n\
        default-tls-container-ref=ref\ncontainer-store=external\nprovider-requires-serial-api-calls=true\n\
        allow-unenforced-source-ranges=true\nfailover-on-error=true\n";
    let text = |text: &str| Some(text.into());
    let expected = LoadBalancer {
        provider: "ovn".into(),
        method: "SOURCE_IP_PORT".into(),
        network: LbNetwork {
            floating_network: text("f"),
            floating_subnet_id: text("fi"),
            floating_subnet: text("fp"),
            floating_subnet_tags: text("ft"),
            network: text("n"),
            subnet: text("s"),
            member_subnet: text("m"),
        },
        create_monitor: true,
        monitor_delay: Duration::from_secs(7),
        monitor_timeout: Duration::from_secs(4),
        monitor_max_retries: 2,
        monitor_max_retries_down: 4,
        manage_security_groups: true,
        internal: true,
        node_selector: parse_selector("a=b"),
        cascade_delete: false,
        flavor: text("fl"),
        availability_zone: text("z"),
        ingress_hostname: true,
        ingress_hostname_suffix: "sslip.io".into(),
        max_shared: 5,
        tls_container: text("ref"),
        container_store: ContainerStore::External,
        serial_calls: true,
        allow_unenforced_source_ranges: true,
        failover_on_error: true,
        wait_steps: 23,
        classes: BTreeMap::new(),
    };
    let settings = good(&with(lines));
    assert_eq!((settings.load_balancer, settings.warnings), (Some(expected), vec![]));
    assert_eq!(good(&with("[loadbalancer]\nENABLED=false\n")).load_balancer, None);
}

#[test]
fn the_other_sections_are_read() {
    let settings = good(&with(
        "os-endpoint-type=internal\nca-file=/ca\ncert-file=/c\nkey-file=/k\ntls-insecure=false\n[Networking]\n\
         ipv6-support-disabled=true\npublic-network-name=a\npublic-network-name\npublic-network-name=b\n\
         internal-network-name=c\ninternal-network-name=d\naddress-sort-order=10.0.0.0/8, 2001:db8::/32\n[Route]\n\
         router-id=r\n[Metadata]\nrequest-timeout=1m30s\n[BlockStorage]\nbs-version=v3\n[Requests]\nread-qps=1.5\n\
         write-burst=7\nmax-in-flight=3\n",
    ));
    let client = ClientPair { cert: "/c".into(), key: "/k".into() };
    assert_eq!(
        settings.cloud.tls,
        Tls {
            ca_file: Some("/ca".into()),
            client: Some(client),
            insecure: false
        }
    );
    assert_eq!(
        (settings.cloud.interface, settings.cloud.request_timeout),
        (Interface::Internal, Duration::from_secs(90))
    );
    let sort_order = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let expected = Networking {
        ipv6_disabled: true,
        public_networks: vec!["b".into()],
        internal_networks: vec!["c".into(), "d".into()],
        sort_order,
    };
    assert_eq!((settings.networking, settings.router.as_deref()), (expected, Some("r")));
    let limits = Limits {
        read: Rate { per_second: 1.5, burst: 200 },
        write: Rate { per_second: 20.0, burst: 7 },
        in_flight: 3,
    };
    assert_eq!((settings.limits, settings.warnings), (limits, vec![]));
}

#[test]
fn classes_take_what_they_leave_out_from_the_default_one() {
    let settings = good(&with(
        "[LoadBalancerClass \"Gold\"]\nsubnet-id=s1\n[LoadBalancerClass \"default-LoadBalancerClass\"]\nsubnet-id=s0\n\
         network-id=n0\n[LoadBalancerClass \"gold\"]\nfloating-network-id=f\n",
    ));
    let of = |subnet: &str, floating: Option<&str>| LbNetwork {
        subnet: Some(subnet.into()),
        network: Some("n0".into()),
        floating_network: floating.map(Into::into),
        ..LbNetwork::default()
    };
    let expected = [("Gold".into(), of("s1", None)), ("gold".into(), of("s0", Some("f")))];
    assert_eq!(
        settings.load_balancer.unwrap().classes,
        expected.into(),
        "names of classes have case"
    );
}

// C04, C05
#[test]
fn a_domain_alone_is_the_scope() {
    let by_name = auth("username=user\npassword=p\ndomain-name=local");
    let password = |who| Identity::Password { user: who, password: "p".into() };
    assert_eq!(by_name.identity, password(user("user", name("local"))));
    assert_eq!(by_name.scope, Scope::Domain(name("local")));
    let both = auth("username=user\npassword=p\ndomain-name=local\ndomain-id=default");
    assert_eq!(
        (both.identity, both.scope),
        (password(user("user", id("default"))), Scope::Domain(id("default")))
    );
    let by_id = auth("user-id=u\npassword=p\ndomain-id=default");
    assert_eq!(
        (by_id.identity, by_id.scope),
        (password(User::Id("u".into())), Scope::Domain(id("default")))
    );
}

// C06, C07, C08, C09
#[test]
fn projects_have_the_domain_that_is_nearest() {
    let general = "username=u\npassword=p\ndomain-name=general\n";
    let scope = |lines: &str| auth(&format!("{general}{lines}")).scope;
    let project = |domain| Scope::ProjectName { name: "demo".into(), domain };
    assert_eq!(scope("tenant-name=demo\ntenant-domain-name=Default"), project(name("Default")));
    assert_eq!(
        auth(&format!("{general}tenant-name=demo\ntenant-domain-name=Default")).identity,
        Identity::Password { user: user("u", name("general")), password: "p".into() }
    );
    assert_eq!(scope("tenant-name=demo"), project(name("general")));
    assert_eq!(scope("domain-id=g\ntenant-name=demo"), project(id("g")));
    assert_eq!(
        scope("tenant-name=demo\ntenant-domain-id=d\ntenant-domain-name=D"),
        project(id("d"))
    );
    assert_eq!(scope("tenant-id=t\ntenant-name=x\ntenant-domain-id=d"), Scope::Project("t".into()));
}

#[test]
fn the_method_follows_from_the_keys() {
    let credential = auth(
        "application-credential-id=c\napplication-credential-secret=s\ntenant-id=t\nusername=u",
    );
    assert_eq!(credential.identity, Identity::Credential { id: "c".into(), secret: "s".into() });
    assert_eq!(credential.scope, Scope::Default, "it has its own project");
    let named = auth(
        "application-credential-name=c\napplication-credential-secret=s\nusername=u\nuser-domain-id=d",
    );
    let expected = Identity::NamedCredential {
        name: "c".into(),
        user: user("u", id("d")),
        secret: "s".into(),
    };
    assert_eq!(named.identity, expected);
    let token = auth("token=abc\nusername=u\npassword=p\ntenant-id=t");
    assert_eq!(
        (token.identity, token.scope),
        (Identity::Token("abc".into()), Scope::Project("t".into()))
    );
    let trust =
        auth("trust-id=tr\ntrustee-id=te\ntrustee-password=tp\nuser-id=u\npassword=p\ntenant-id=t");
    let expected = Identity::Password { user: User::Id("te".into()), password: "tp".into() };
    assert_eq!((trust.identity, trust.scope), (expected, Scope::Trust("tr".into())));
    let trust = auth("trust-id=tr\nuser-id=u\npassword=p");
    assert_eq!(
        trust.identity,
        Identity::Password { user: User::Id("u".into()), password: "p".into() }
    );
}

#[test]
fn credentials_that_cannot_work_are_refused() {
    let cases = [
        ("", "[Global] username: is missing: exactly one of username and user-id is needed"),
        (
            "user-id=u\npassword=p\nusername=v",
            "line 5: [Global] username: must not be set together with user-id",
        ),
        (
            "user-id=u\ntenant-id=t",
            "[Global] password: is missing: there is no password, application credential or token",
        ),
        (
            "username=u\npassword=p\ntenant-id=t",
            "line 3: [Global] username: needs a domain: user-domain-id, user-domain-name, domain-id or domain-name",
        ),
        (
            "user-id=u\npassword=p\nuser-domain-id=d",
            "line 5: [Global] user-domain-id: must not be set together with user-id, which needs no domain",
        ),
        (
            "username=u\npassword=p\nuser-domain-id=d\nuser-domain-name=D",
            "line 6: [Global] user-domain-name: must not be set together with user-domain-id",
        ),
        (
            "user-id=u\npassword=p\ntenant-name=t",
            "line 5: [Global] tenant-name: needs a domain: tenant-domain-id, tenant-domain-name, domain-id or domain-name",
        ),
        (
            "token=abc",
            "line 3: [Global] token: needs a project or a domain: a bare token cannot be renewed",
        ),
        (
            "application-credential-id=a",
            "[Global] application-credential-secret: is missing: an application credential needs its secret",
        ),
        (
            "application-credential-secret=a",
            "[Global] application-credential-id: is missing: an application credential needs its ID, or its name and user",
        ),
        (
            "trust-id=a\ntrustee-id=b",
            "[Global] trustee-password: is missing: trustee-id needs a password",
        ),
    ];
    for (lines, expected) in cases {
        let found = refused(lines);
        assert!(found.iter().any(|mistake| mistake == expected), "{lines}: {found:?}");
    }
}

// M03, M04, M05, M06; nothing here reads metadata of an instance.
#[test]
fn the_search_order_has_one_or_two_known_elements() {
    let order = |value: &str| with(&format!("[Metadata]\nsearch-order={value}"));
    for value in ["configDrive", "metadataService", " configDrive , metadataService "] {
        assert_eq!(warnings(&order(value)), [""; 0], "{value}");
    }
    let cases = [
        ("", "must not be empty"),
        ("configDrive, metadataService, configDrive", "has 3 elements: at most 2 are allowed"),
        ("value1", "unknown element \"value1\": supported are configDrive and metadataService"),
    ];
    for (value, expected) in cases {
        assert_eq!(bad(&order(value)), [format!("line 7: [Metadata] search-order: {expected}")]);
    }
}

// U01, U02, U03, U04, U05
#[test]
fn selectors_are_pairs() {
    let cases: [(&str, &[(&str, &str)]); 7] = [
        ("k1=v1,k2=v2", &[("k1", "v1"), ("k2", "v2")]),
        ("k1=v1,k2=v2=true", &[("k1", "v1"), ("k2", "v2=true")]),
        ("k1,k2", &[("k1", ""), ("k2", "")]),
        (" k1=v1, k2 ", &[("k1", "v1"), ("k2", "")]),
        ("k3=v3,=emptykey", &[("k3", "v3"), ("", "emptykey")]),
        ("", &[]),
        (" ", &[]),
    ];
    for (text, expected) in cases {
        let expected: BTreeMap<Box<str>, Box<str>> = expected
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        assert_eq!(parse_selector(text), expected, "{text:?}");
    }
}

#[test]
fn all_mistakes_are_told_together_with_line_and_key() {
    let text = "[Global]\nauth-url = ftp://x\nos-endpoint-type = publicURL\nuse-clouds = maybe\n[LoadBalancer]\n\
        lb-version = v1\nmonitor-delay = 5\nmonitor-timeout = 500ms\nmonitor-max-retries = 11\nmax-shared-lb = -1\n\
        lb-method = RANDOM\n[Metadata]\nrequest-timeout = 0s\n[Requests]\nread-qps = 0\n[Route\nx = y\n";
    let found = bad(text);
    let expected = [
        "[Global] username: is missing",
        "[Global] password: is missing",
        "line 2: [Global] auth-url: is not a URL of the form https://host:port/v3",
        "line 3: [Global] os-endpoint-type: unknown type of endpoints \"publicURL\"",
        "line 4: [Global] use-clouds: failed to parse \"maybe\" as bool",
        "line 6: [LoadBalancer] lb-version: \"v1\" is not supported",
        "line 7: [LoadBalancer] monitor-delay: ",
        "line 8: [LoadBalancer] monitor-timeout: must be at least a second",
        "line 9: [LoadBalancer] monitor-max-retries: must be between 1 and 10",
        "line 10: [LoadBalancer] max-shared-lb: must be between 0 and 1000",
        "line 11: [LoadBalancer] lb-method: unknown method \"RANDOM\"",
        "line 13: [Metadata] request-timeout: must be more than 0",
        "line 15: [Requests] read-qps: must be between 0.001 and 1000",
        "line 16: expected subsection name or right bracket",
    ];
    for line in expected {
        assert!(
            found.iter().any(|mistake| mistake.starts_with(line)),
            "{line} is not in {found:#?}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let text = with(
        "tls-insecure=TRUE\nsecret=x\ncert-file=/c\n[LoadBalancer]\nlb-provider=mine\ncontainer-store=vault\n\
         monitor-delay=2s\n[Networking]\naddress-sort-order=10.0.0.0/8,nonsense\n[Nonsense]\na=b\n[Global \"x\"]\n",
    );
    let expected = [
        "line 6: [Global] tls-insecure: has no effect: only `true`, spelled so, turns the checks off",
        "line 7: [Global] secret: unknown key, which has no effect",
        "line 8: [Global] cert-file: has no effect without key-file",
        "line 10: [LoadBalancer] lb-provider: unknown provider \"mine\", which is passed on",
        "line 11: [LoadBalancer] container-store: unknown store \"vault\": references are not checked",
        "line 12: [LoadBalancer] monitor-delay: is less than 3 s, Octavia's default minimum for health checks of UDP \
         ports: those ports get the minimum",
        "line 14: [Networking] address-sort-order: \"nonsense\" is no network and has no effect",
        "line 15: [Nonsense]: unknown section, which has no effect",
        "line 17: [Global \"x\"]: unknown section, which has no effect",
    ];
    assert_eq!(warnings(&text), expected);
    let settings = good(&text);
    assert!(!settings.cloud.tls.insecure);
    assert_eq!(settings.networking.sort_order, ["10.0.0.0/8".parse().unwrap()]);
}

#[test]
fn variables_choose_the_form_of_ids_and_the_patience() {
    let of = |regional: &str, steps: &str| {
        let variables = [("OS_CCM_REGIONAL", regional), ("OCCM_WAIT_LB_ACTIVE_STEPS", steps)];
        let variables = variables
            .map(|(name, value)| (name, value.to_owned()))
            .into();
        parse(&with(""), &Environment { variables, folder: None })
    };
    let found = |regional, steps| {
        of(regional, steps).map(|s| (s.regional_ids, s.load_balancer.unwrap().wait_steps))
    };
    assert_eq!(found("true", "").unwrap(), (true, 23));
    assert_eq!(found("True", "0").unwrap(), (false, 0));
    let error = found("", "-1").unwrap_err().to_string();
    assert_eq!(
        error,
        "cloud config: OCCM_WAIT_LB_ACTIVE_STEPS: \"-1\" is not a number of steps: expected an integer of at least 0"
    );
}

#[test]
fn no_secret_is_shown() {
    let text = "[Global]\nauth-url=https://keystone/v3\nuser-id=u\npassword=hunter2\ntrust-id=t\ntrustee-password=hunter2\n";
    let settings = good(text);
    settings.log();
    let shown = format!("{settings:?} {:?}", settings.effective());
    assert!(!shown.contains("hunter2"), "{shown}");
    let mistakes = bad(
        "[Global]\nauth-url=https://u:hunter2@keystone/v3\npassword=\"hunter2\ntoken=hunter2\nuse-clouds=\n",
    );
    assert!(!mistakes.concat().contains("hunter2"), "{mistakes:?}");
    let mut report = ValidationReport::default();
    let raw = read_raw("[Global]\npassword=hunter2\n", &nowhere(), &mut report);
    assert!(!format!("{raw:?}").contains("hunter2"));
}

/// The page in docs/reference is this one; `CCM_UPDATE_REFERENCE=1` writes it anew.
#[test]
fn reference_page_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openstack-cloud-conf.md");
    let page = reference();
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/openstack-cloud-conf.md is out of date: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-openstack reference_page"
    );
}

/// What the table says is what the settings have.
#[test]
fn defaults_of_the_page_are_those_of_the_settings() {
    let settings = good(&with(""));
    let shown: BTreeMap<String, String> = settings.effective().into_iter().collect();
    let keys = LoadBalancerKeys::KEYS
        .iter()
        .map(|key| ("LoadBalancer", key.name, key.default));
    let keys = keys.chain(
        Requests::KEYS
            .iter()
            .map(|key| ("Requests", key.name, key.default)),
    );
    let keys = keys.filter(|(_, name, _)| *name != "lb-version");
    for (section, name, default) in keys {
        assert_eq!(
            shown
                .get(&format!("[{section}] {name}"))
                .map(String::as_str),
            Some(default),
            "{name}"
        );
    }
}

fn reference() -> String {
    let mut page = include_str!("reference-head.md").to_owned();
    table(&mut page, "[Global]", Global::KEYS);
    table(&mut page, "[Networking]", NetworkingKeys::KEYS);
    table(&mut page, "[Route]", Route::KEYS);
    table(&mut page, "[Metadata]", Metadata::KEYS);
    table(&mut page, "[LoadBalancer]", LoadBalancerKeys::KEYS);
    table(&mut page, "[LoadBalancerClass \"name\"]", Class::KEYS);
    page.push_str(include_str!("reference-classes.md"));
    table(&mut page, "[Requests] *", Requests::KEYS);
    page.push_str(include_str!("reference-variables.md"));
    page
}

fn table<T>(page: &mut String, title: &str, keys: &[ConfigKey<T>]) {
    write!(page, "\n## {title}\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n")
        .unwrap();
    for key in keys {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", key.default)
        };
        let ours = if key.upstream { "" } else { " *" };
        writeln!(page, "| `{}`{ours} | {} | {default} | {} |", key.name, key.kind, key.meaning)
            .unwrap();
    }
}

mod clouds;

/// Every key whose value is a secret, in everything that holds it on the way from the file to the
/// request for a token.
#[test]
fn debug_shows_no_secret_of_any_key() {
    let keys: Vec<_> = Global::KEYS
        .iter()
        .filter(|key| key.kind == "secret")
        .map(|key| key.name)
        .collect();
    assert_eq!(keys, ["password", "trustee-password", "application-credential-secret", "token"]);
    let secret = |key: &str| format!("s3cret-{key}");
    let lines: Vec<String> = keys
        .iter()
        .map(|key| format!("{key} = {}\n", secret(key)))
        .collect();
    let lines = lines.concat();
    let raw = read_raw(&with(&lines), &nowhere(), &mut ValidationReport::default());
    let mut shown = vec![format!("{raw:?}")];
    for (name, more) in [
        ("password", "password = s3cret-password\n"),
        (
            "trustee-password",
            "trust-id = t\ntrustee-id = u\ntrustee-password = s3cret-trustee-password\n",
        ),
        (
            "application-credential-secret",
            "application-credential-id = i\napplication-credential-secret = s3cret-application-credential-secret\n",
        ),
        ("token", "token = s3cret-token\n"),
    ] {
        let settings = good(&with(more));
        let identity = match &settings.cloud.auth.identity {
            Identity::Password { password, .. } => password,
            Identity::Credential { secret, .. } | Identity::NamedCredential { secret, .. } => {
                secret
            }
            Identity::Token(token) => token,
        };
        // It is there, so that it could be shown.
        assert_eq!(identity.expose(), secret(name));
        shown.push(format!(
            "{settings:?} {:?} {:?} {identity:?}",
            settings.effective(),
            settings.cloud.auth
        ));
    }
    let errors = parse(&with(&format!("{lines}[LoadBalancer]\nmonitor-delay = x\n")), &nowhere())
        .unwrap_err();
    shown.push(format!("{errors:?} {errors}"));
    for text in shown {
        assert!(!text.contains("s3cret"), "{text}");
    }
}
