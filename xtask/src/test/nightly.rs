//! What takes long.

use std::path::PathBuf;

use clap::ValueEnum as _;

use super::programs::Program;
use super::result::SuiteResult;
use super::tools::Tools;
use super::{Run, suites};
use crate::assets::Release;
use crate::image::{self, Provider};
use crate::release::crates;
use crate::tier::Tier;
use crate::{control_plane, process};

/// Names the program of an image for the suite that looks into it.
const IMAGE_VARIABLE: &str = "CCM_IMAGE_PROGRAM";
/// Names the folder of these programs for the suite that makes images of them.
const RELEASES_VARIABLE: &str = "CCM_RELEASE_PROGRAMS";

/// The folder with these programs in the target directory, and the mock's.
const RELEASES: &str = "release";
const MOCK: &str = "release/ccm-mock";

/// Reasons for which advisories and the image may go unchecked: neither can be had everywhere.
pub(super) const OPTIONAL: [&str; 4] = [
    "cargo-deny is not installed",
    "the database of advisories cannot be fetched",
    image::NO_DEBIAN,
    image::NEWER_DEBIAN,
];

/// Runs the long cases, those of the real API server on the older Kubernetes, properties with other
/// values, and builds what is shipped.
pub(super) fn run(
    all: &mut Run,
    quick: &[Program],
    aws: &[Program],
    tools: &Tools,
) -> anyhow::Result<()> {
    all.head("building what images hold");
    let mut variables = tools.variables(Tier::Nightly);
    variables.extend(release(Provider::value_variants())?);
    all.head("long tests");
    let jobs = suites::ALL
        .iter()
        .filter_map(|suite| suite.jobs(quick, " (nightly)", suite.nightly));
    let with_sdk = suites::SDK
        .iter()
        .filter_map(|suite| suite.jobs(aws, " (nightly)", suite.nightly));
    all.pool(jobs.chain(with_sdk).collect(), &variables)?;
    all.head("properties, with values by chance");
    // The same programs as before, without the seed that makes them repeatable. The explorations
    // have their own.
    let jobs = suites::ALL.iter().filter(|suite| suite.target == "lib");
    let jobs =
        jobs.filter_map(|suite| suite.jobs(quick, " (by chance)", Some(&["--skip", "explore"])));
    let mut by_chance = Tools::default().variables(Tier::Full);
    by_chance.push(("PROPTEST_RNG_SEED".to_owned(), seed()));
    all.pool(jobs.collect(), &by_chance)?;
    if control_plane::go_is_there() {
        all.head("the older Kubernetes");
        control_plane::build(Release::Older)?;
        let mut variables = tools.variables(Tier::Full);
        variables.push(("CCM_KUBERNETES".to_owned(), "older".to_owned()));
        let jobs = suites::ALL.iter().filter(|suite| suite.on_older_kubernetes);
        all.pool(
            jobs.filter_map(|suite| suite.jobs(quick, " (older)", suite.full))
                .collect(),
            &variables,
        )?;
    }
    all.head("an image");
    image(all, control_plane::target()?.join(MOCK))?;
    all.head("crates as packages");
    crates::package()?;
    all.head("advisories");
    advisories(all)
}

/// Makes an image of the mock's program, and runs it as a container would.
fn image(all: &mut Run, program: PathBuf) -> anyhow::Result<()> {
    let Some(missing) = image::missing()? else {
        return image::make_and_try(program);
    };
    println!("not made: {missing}");
    all.outcomes.push(SuiteResult::not_run(
        "image".to_owned(),
        "an image that is made without an engine runs",
        missing,
    ));
    Ok(())
}

/// Checks the lock file against the database of advisories, where that can be had.
fn advisories(all: &mut Run) -> anyhow::Result<()> {
    let missing = if !process::runs("cargo", &["deny", "--version"]) {
        OPTIONAL[0]
    } else if !process::runs("cargo", &["deny", "fetch", "db"]) {
        OPTIONAL[1]
    } else {
        return process::run(process::cargo()?.args(["deny", "--offline", "check", "advisories"]));
    };
    println!("not checked: {missing}");
    all.outcomes.push(SuiteResult::not_run(
        "advisories".to_owned(),
        "known vulnerabilities of dependencies",
        missing,
    ));
    Ok(())
}

/// Builds the programs of images, and returns what tells tests where they are.
fn release(providers: &[Provider]) -> anyhow::Result<Vec<(String, String)>> {
    for provider in providers {
        let package = provider.package();
        let mut cargo = process::cargo()?;
        cargo.args([
            "build",
            "--release",
            "--no-default-features",
            "--package",
            package,
            "--bin",
            package,
        ]);
        for feature in provider.features() {
            cargo.args(["--features", feature]);
        }
        process::run(&mut cargo)?;
    }
    let target = control_plane::target()?;
    let places = [(IMAGE_VARIABLE, target.join(MOCK)), (RELEASES_VARIABLE, target.join(RELEASES))];
    Ok(places
        .map(|(name, path)| (name.to_owned(), path.to_string_lossy().into_owned()))
        .into())
}

/// Builds what the suites that are run by hand want of the programs of images, unless the
/// environment names other ones.
pub(super) fn release_by_hand(arguments: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let is_named = |suite: &str| arguments.iter().any(|argument| argument.contains(suite));
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if is_named("ccm-realcluster") && !is_set(RELEASES_VARIABLE) {
        return release(Provider::value_variants());
    }
    if is_named("ccm-e2e") && !is_set(IMAGE_VARIABLE) {
        return release(&[Provider::Mock]);
    }
    Ok(Vec::new())
}

/// Another one each time; it is in the log of what failed.
fn seed() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = now.map_or(1, |now| now.as_secs());
    println!("PROPTEST_RNG_SEED={seed}");
    seed.to_string()
}
