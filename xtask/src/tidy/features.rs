//! Looks whether every command builds the same dependencies: a crate with other features is another
//! build, and so is everything above it.

use std::collections::{BTreeMap, BTreeSet};

use crate::process;

/// What people build: arguments for cargo. The first is what tests build; `normal` are those of a
/// program without tests.
const BUILDS: [&[&str]; 15] = [
    &["--workspace"],
    &["--package", "ccm-aws", "--features", "sdk"],
    &["--package", "ccm-aws"],
    &["--package", "ccm-core"],
    &["--package", "ccm-e2e"],
    &["--package", "ccm-explore"],
    &["--package", "ccm-fuzz"],
    &["--package", "ccm-meadow"],
    &["--package", "ccm-mock"],
    &["--package", "ccm-openstack"],
    &["--package", "ccm-quarry"],
    &["--package", "ccm-testkit"],
    &["--package", "openstack-local"],
    // The demos.
    &["--package", "ccm-mock", "--edges", "normal,build"],
    &["--package", "ccm-openstack", "--edges", "normal,build"],
];

/// Crates that only builds with the feature `fips` have: they need a C tool chain, cmake and Go.
const FIPS_ONLY: [&str; 3] = ["aws-lc-fips-sys", "aws-lc-rs", "aws-lc-sys"];

/// Crates, and with which sets of features they are built. One crate may have two: for build
/// scripts and macros too.
type Features = BTreeMap<String, BTreeSet<String>>;

/// One line for each crate that some command builds otherwise than tests do.
pub(super) fn check() -> anyhow::Result<Vec<String>> {
    let [first, others @ ..] = &BUILDS;
    let tests = features(first)?;
    let mut findings = fips_only(first, &tests);
    for build in others {
        let features = features(build)?;
        findings.extend(fips_only(build, &features));
        let differing = differing(&tests, &features);
        findings.extend(
            differing
                .into_iter()
                .map(|crates| format!("cargo … {}: {crates}", build.join(" "))),
        );
    }
    Ok(findings)
}

fn features(build: &[&str]) -> anyhow::Result<Features> {
    let mut cargo = process::cargo()?;
    cargo.args(["tree", "--offline", "--prefix", "none", "--format", "{p}|{f}"]);
    if !build.contains(&"--edges") {
        cargo.args(["--edges", "all"]);
    }
    Ok(parse(&process::output(cargo.args(build))?))
}

fn parse(tree: &str) -> Features {
    let mut features = Features::new();
    for line in tree.lines() {
        let Some((name, set)) = line.trim_end_matches(" (*)").split_once('|') else {
            continue;
        };
        // It has two sets of features on purpose.
        if !name.starts_with("ccm-aws ") {
            features
                .entry(name.replace(" (proc-macro)", ""))
                .or_default()
                .insert(set.to_owned());
        }
    }
    features
}

fn differing(tests: &Features, build: &Features) -> Vec<String> {
    let known = build
        .iter()
        .filter_map(|(name, sets)| Some((name, sets, tests.get(name)?)));
    let others = known.filter(|(_, sets, tests)| !sets.is_subset(tests));
    others
        .map(|(name, sets, tests)| {
            format!("{name} has the features {sets:?}, with tests {tests:?}")
        })
        .collect()
}

/// Finds crates that a build without the feature `fips` must not have.
fn fips_only(build: &[&str], features: &Features) -> Vec<String> {
    let found = features.keys().filter(|package| {
        let name = package.split(' ').next().unwrap_or_default();
        FIPS_ONLY.contains(&name)
    });
    found
        .map(|package| {
            format!("cargo … {}: has {package}, which only a FIPS build has", build.join(" "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_with_other_features_is_found() {
        let tests = parse(
            "a v1.0.0|std,x\nb v1.0.0 (proc-macro)|\nccm-aws v0.1.0 (/r)|\na v1.0.0|std,x (*)\na v1.0.0|std\n",
        );
        let same = parse("a v1.0.0|std\nb v1.0.0|\nccm-aws v0.1.0 (/r)|sdk\nc v1.0.0|only-here\n");
        assert_eq!(differing(&tests, &same), Vec::<String>::new());
        let other = parse("a v1.0.0|\n");
        assert_eq!(differing(&tests, &other).len(), 1);
    }

    #[test]
    fn a_build_with_the_cryptography_of_fips_is_found() {
        let with = parse("a v1.0.0|std\naws-lc-rs v1.0.0|fips\naws-lc-rsx v1.0.0|\n");
        assert_eq!(
            fips_only(&["--workspace"], &with),
            ["cargo … --workspace: has aws-lc-rs v1.0.0, which only a FIPS build has"]
        );
    }
}
