//! The reference page of the mock cloud names everything that can be written somewhere.

use crate::{
    CloudConfig,
    cloud::{FaultError, Operation},
    provider::annotations,
};

const PAGE: &str = include_str!("../../../docs/reference/mock-cloud.md");

/// The keys that the parser would have taken where it met an unknown one.
fn expected_keys(text: &str) -> Vec<String> {
    let error = CloudConfig::parse("cloud.yaml", text)
        .unwrap_err()
        .to_string();
    let (_, list) = error
        .split_once("expected")
        .unwrap_or_else(|| panic!("no list of keys in {error:?}"));
    list.split([' ', ',', '`'])
        .filter(|word| !matches!(*word, "" | "one" | "of" | "or"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_key_of_the_config_is_described() {
    let top = expected_keys("nonsense: 1");
    assert!(top.len() >= 17, "{top:?}");
    for key in &top {
        assert!(PAGE.contains(&format!("`{key}")), "key {key} is missing");
    }
    for (parent, text) in [
        ("features", "features: {nonsense: 1}"),
        ("latency", "latency: {nonsense: 1}"),
        ("rateLimits", "rateLimits: {nonsense: 1}"),
    ] {
        let keys = expected_keys(text);
        assert!(keys.len() >= 3, "{keys:?}");
        for key in keys {
            let row = PAGE
                .lines()
                .filter(|line| line.contains(&format!("`{parent}.")));
            assert!(
                row.clone().any(|row| row.contains(&format!(".{key}`"))),
                "key {parent}.{key} is missing"
            );
        }
    }
}

#[test]
fn every_operation_error_and_annotation_is_described() {
    let operations = Operation::ALL
        .into_iter()
        .chain([Operation::EnsureLoadBalancer, Operation::Any]);
    let mut words: Vec<String> = operations
        .map(|operation| operation.as_str().to_owned())
        .collect();
    for error in FaultError::ALL {
        words.extend(
            serde_json::to_value(error)
                .unwrap()
                .as_str()
                .map(str::to_owned),
        );
    }
    let known = [
        annotations::BACKENDS,
        annotations::NODE_SELECTOR,
        annotations::SCHEME,
        annotations::IP_MODE,
        annotations::ACTIVATION_DELAY,
        annotations::LOAD_BALANCER_ID,
    ];
    words.extend(known.map(|key| key.trim_start_matches(annotations::PREFIX).to_owned()));
    for word in words {
        assert!(PAGE.contains(&format!("`{word}`")), "{word} is missing");
    }
}
