//! The rules of pflag, the defaults, the checks, and argument lists of well-known manifests.

mod checks;
mod ipam;
mod manifests;
mod syntax;

use super::*;

/// A product that knows the clouds of the tests.
fn product() -> Product {
    Product::new("ccm-test", "v1.2.3", &["mock", "aws", "openstack", "hcloud", "vsphere"])
}

/// Parses arguments separated by spaces, with a provider in front.
fn run(args: &str) -> Config {
    match parse(&product(), arguments(args)) {
        Ok(Invocation::Run(config)) => *config,
        other => panic!("{args}: {other:?}"),
    }
}

/// The messages of arguments that must be refused.
fn refused(args: &str) -> Vec<String> {
    match parse(&product(), arguments(args)) {
        Err(errors) => errors.errors().iter().map(ToString::to_string).collect(),
        Ok(other) => panic!("{args}: accepted: {other:?}"),
    }
}

fn arguments(args: &str) -> Vec<String> {
    std::iter::once("--cloud-provider=mock")
        .chain(args.split_whitespace())
        .map(str::to_owned)
        .collect()
}

/// The page in docs/reference is this one; `CCM_UPDATE_REFERENCE=1` writes it anew.
#[test]
fn reference_page_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/flags.md");
    // Any one provider, and every controller: the page is about the framework's flags.
    let page = help::reference(&Product::new("ccm", "v0", &[]));
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/flags.md is out of date: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page"
    );
}
