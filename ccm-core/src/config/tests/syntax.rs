use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[test]
fn names_take_dashes_or_underscores() {
    for args in [
        "--node-monitor-period=7s",
        "--node_monitor_period=7s",
        "--node-monitor_period 7s",
        "--node-monitor-period=1s --node_monitor_period=7s",
    ] {
        assert_eq!(run(args).node_lifecycle.monitor_period, Duration::from_secs(7), "{args}");
    }
}

#[test]
fn switches_take_values_only_after_the_equals_sign() {
    for (args, on) in [
        ("--allow-untagged-cloud", true),
        ("--allow-untagged-cloud=1", true),
        ("--allow-untagged-cloud=T", true),
        ("--allow-untagged-cloud=TRUE", true),
        ("--allow-untagged-cloud=true", true),
        ("--allow-untagged-cloud=0", false),
        ("--allow-untagged-cloud=f", false),
        ("--allow-untagged-cloud=False", false),
        ("--allow-untagged-cloud --allow-untagged-cloud=false", false),
    ] {
        assert_eq!(run(args).generic.allow_untagged_cloud, on, "{args}");
    }
    assert_eq!(
        refused("--leader-elect false"),
        ["\"ccm-test\" does not take any arguments, got [\"false\"]"]
    );
    for value in ["yes", "on", "tRUE", ""] {
        let wrong = refused(&format!("--leader-elect={value}"));
        assert_eq!(
            wrong,
            [format!(
                "invalid argument {value:?} for \"--leader-elect\" flag: must be true or false"
            )]
        );
    }
}

#[test]
fn verbosity_takes_every_form_of_a_shorthand() {
    for args in ["-v=4", "-v4", "-v 4", "--v=4", "--v 4", "-v=2 --v=4", "-v=0x4", "-v=+4"] {
        assert_eq!(run(args).logging.verbosity, 4, "{args}");
    }
    assert_eq!(refused("-v"), ["flag needs an argument: --v"]);
    assert_eq!(
        refused("-v=x"),
        ["invalid argument \"x\" for \"--v\" flag: must be a whole number of at most 32 bits"]
    );
    assert_eq!(
        refused("-v="),
        ["invalid argument \"=\" for \"--v\" flag: must be a whole number of at most 32 bits"]
    );
    assert_eq!(refused("-x=1"), ["unknown shorthand flag: -x in -x=1"]);
}

#[test]
fn numbers_are_gos() {
    for (text, number) in [("7", 7), ("010", 8), ("0o10", 8), ("0b11", 3), ("0X1f", 31)] {
        assert_eq!(run(&format!("--kube-api-burst={text}")).kube_client.burst, number, "{text}");
    }
    for text in ["", "1.5", "1e3", "--1", "+-1", "08", "99999999999", "٣"] {
        assert_eq!(refused(&format!("--kube-api-burst={text}")).len(), 1, "{text}");
    }
}

#[test]
fn the_last_scalar_wins_but_each_is_read() {
    assert_eq!(
        run("--cluster-name=a --cluster-name b")
            .generic
            .cluster_name,
        "b"
    );
    assert_eq!(refused("--node-monitor-period=x --node-monitor-period=5s").len(), 1);
}

#[test]
fn lists_replace_the_default_and_then_add_up() {
    let paths = |args: &str| run(args).authorization.always_allow_paths;
    assert_eq!(paths(""), ["/healthz", "/readyz", "/livez"]);
    assert_eq!(
        paths("--authorization-always-allow-paths=/a,/b --authorization_always_allow_paths /c"),
        ["/a", "/b", "/c"]
    );
    assert!(paths("--authorization-always-allow-paths=").is_empty());
    assert_eq!(
        paths("--authorization-always-allow-paths=\"a,b\",c,\"d\"\"e\""),
        ["a,b", "c", "d\"e"]
    );
    for broken in ["\"a", "a\"b", "\"a\"b"] {
        assert_eq!(
            refused(&format!("--authorization-always-allow-paths={broken}")).len(),
            1,
            "{broken}"
        );
    }
    let gates = run("--feature-gates=AllAlpha=true,WatchList=false --feature-gates=WatchList=true")
        .feature_gates;
    assert!(gates.is_enabled("AllAlpha") && gates.is_enabled("WatchList"));
    assert_eq!(
        run("--tls-curve-preferences=23,24 --tls-curve-preferences=29")
            .serving
            .tls_curve_preferences,
        [23, 24, 29]
    );
}

#[test]
fn certificates_for_names_are_one_a_use() {
    let pairs =
        run("--tls-sni-cert-key=a.crt,a.key --tls-sni-cert-key b.crt,b.key:*.b.example,b.example")
            .serving
            .tls_sni_certificates;
    assert_eq!(pairs.len(), 2);
    assert_eq!(pairs[1].names, ["*.b.example", "b.example"]);
    assert_eq!(pairs[1].to_string(), "b.crt,b.key:*.b.example,b.example");
    for broken in ["a.crt", "a,b,c", ",a", "a,"] {
        assert_eq!(refused(&format!("--tls-sni-cert-key={broken}")).len(), 1, "{broken}");
    }
}

#[test]
fn values_may_look_like_flags() {
    assert_eq!(run("--cluster-name --v=3").generic.cluster_name, "--v=3");
    assert_eq!(run("--cluster-name=a=b").generic.cluster_name, "a=b");
}

#[test]
fn what_is_no_flag_is_refused() {
    assert_eq!(refused("extra"), ["\"ccm-test\" does not take any arguments, got [\"extra\"]"]);
    assert_eq!(refused("-- --v=3"), ["\"ccm-test\" does not take any arguments, got [\"--v=3\"]"]);
    assert_eq!(refused("-"), ["\"ccm-test\" does not take any arguments, got [\"-\"]"]);
    assert_eq!(refused("--=3"), ["bad flag syntax: --=3"]);
    assert_eq!(refused("---v=3"), ["bad flag syntax: ---v=3"]);
    assert_eq!(refused("--cluster-name"), ["flag needs an argument: --cluster-name"]);
    assert!(parse(&product(), ["--cloud-provider=mock", ""]).is_ok(), "as the Go program");
}

#[test]
fn every_mistake_is_reported_once() {
    let wrong = refused("--bogus=1 --node-monitor-period=5 --no_such thing --v");
    assert_eq!(
        wrong,
        [
            "unknown flag: --bogus",
            "unknown flag: --no_such",
            "flag needs an argument: --v",
            "invalid argument \"5\" for \"--node-monitor-period\" flag: time: invalid duration \"5\"",
        ]
    );
}

#[test]
fn arguments_that_are_not_unicode_are_refused() {
    let broken = OsString::from_vec(b"--cluster-name=\xff".to_vec());
    let errors = parse(&product(), [broken]).unwrap_err();
    assert!(matches!(errors.errors(), [ConfigError::NotUnicode { .. }]), "{errors}");
}

#[test]
fn help_has_every_flag_under_its_group() {
    for args in ["--help", "-h", "--help=true --cloud-provider=", "--help --version"] {
        let Ok(Invocation::Help(text)) = parse(&product(), arguments(args)) else {
            panic!("{args}")
        };
        for flag in flags::all(&product()) {
            assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        let lifecycle = text
            .split("Cloud-node-lifecycle-controller flags:")
            .nth(1)
            .unwrap();
        let lifecycle = lifecycle.split(" flags:").next().unwrap();
        assert!(
            lifecycle.contains("--node-deletion-safety string")
                && lifecycle.contains("--node-monitor-period duration")
        );
    }
    assert_eq!(refused("--help --bogus"), ["unknown flag: --bogus"]);
    assert!(matches!(
        parse(&product(), ["--help=false", "--cloud-provider=mock"]),
        Ok(Invocation::Run(_))
    ));
}

#[test]
fn version_prints_or_is_reported() {
    for args in ["--version", "--version=true", "--version=1 --cloud-provider="] {
        assert_eq!(
            parse(&product(), arguments(args)),
            Ok(Invocation::Version("ccm-test v1.2.3\n".to_owned())),
            "{args}"
        );
    }
    let Ok(Invocation::Version(raw)) = parse(&product(), ["--version=raw"]) else {
        panic!()
    };
    assert!(raw.contains("commit: unknown"), "{raw}");
    assert_eq!(
        run("--version=v1.30.1-rc.0+abc")
            .reported_version
            .as_deref(),
        Some("v1.30.1-rc.0+abc")
    );
    assert_eq!(run("--version=false").reported_version, None);
    for text in ["v1", "v1.2", "v1.2.x", "v1.2.3-", "vx", "maybe"] {
        assert_eq!(refused(&format!("--version={text}")).len(), 1, "{text}");
    }
}

#[test]
fn a_provider_may_add_flags_but_not_replace_any() {
    let mut product = product();
    product.extra_flags = vec![
        Flag::provider("mock-endpoint", "none", "Where the cloud is."),
        Flag::provider_switch("mock-strict", "Whether to be strict."),
        Flag::provider("v", "", "Taken."),
    ];
    let extra = |args: &str| match parse(&product, arguments(args)) {
        Ok(Invocation::Run(config)) => config.extra,
        other => panic!("{other:?}"),
    };
    assert_eq!(extra("")["mock-endpoint"], "none");
    assert_eq!(extra("")["mock-strict"], "false");
    assert_eq!(extra("--mock_endpoint here --mock-strict -v=2")["mock-endpoint"], "here");
    assert_eq!(extra("--mock-strict")["mock-strict"], "true");
    assert!(!extra("--v=2").contains_key("v"));
    let errors = parse(&product, arguments("--mock-strict=maybe")).unwrap_err();
    assert!(errors.to_string().contains("--mock-strict"), "{errors}");
}

/// Pieces from which arguments that nearly make sense are put together.
fn argument() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = flags::all(&product()).map(Flag::name).collect();
    let name = proptest::sample::select(names);
    let value = prop_oneof![
        Just(String::new()),
        any::<i64>().prop_map(|n| n.to_string()),
        "[-+.0-9a-zµ\"=,:/*{} ]{0,16}",
        any::<String>(),
    ];
    prop_oneof![
        (name.clone(), value.clone()).prop_map(|(name, value)| format!("--{name}={value}")),
        name.prop_map(|name| format!("--{name}")),
        value.prop_map(|value| format!("-v{value}")),
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn no_arguments_make_it_panic(args in proptest::collection::vec(argument(), 0..6)) {
        if let Err(errors) = parse(&product(), args) {
            prop_assert!(!errors.errors().is_empty());
            prop_assert!(errors.errors().iter().all(|error| !error.to_string().is_empty()));
        }
    }

    #[test]
    fn values_in_force_read_back_as_themselves(
        others in proptest::sample::subsequence(checks::OTHERS, 0..checks::OTHERS.len()),
        paths in proptest::collection::vec("[a-z/,\"*]{1,8}", 1..4),
    ) {
        let quoted = paths.iter().map(|path| format!("\"{}\"", path.replace('"', "\"\"")));
        let args = others.iter().map(|(name, value)| format!("--{name}={value}"));
        let args = args.chain(quoted.map(|path| format!("--authorization-always-allow-paths={path}")));
        let args = std::iter::once("--cloud-provider=mock".to_owned()).chain(args);
        // Some of these values exclude each other.
        let Ok(Invocation::Run(config)) = parse(&product(), args) else { return Ok(()) };
        let given = |flag: &&FlagValue| flag.changed;
        let again = config.flags().iter().filter(given).map(|flag| format!("--{}={}", flag.name, flag.value));
        prop_assert_eq!(parse(&product(), again), Ok(Invocation::Run(config)));
    }
}
