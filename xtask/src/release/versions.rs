//! Where the project's version is written: manifests, the lock file, the chart, and files that name
//! images, the chart or crates.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use super::git;
use crate::process;

const MANIFEST: &str = "Cargo.toml";
const LOCK: &str = "Cargo.lock";
const CHART: &str = "charts/cloud-controller-manager/Chart.yaml";
/// The page that says which Kubernetes each release is for.
const COMPATIBILITY: &str = "docs/compatibility.md";

/// What stands directly before a version of ours.
const MARKERS: [&str; 7] = [
    "ccm-aws:",
    "ccm-mock:",
    "ccm-openstack:",
    "helm.sh/chart: cloud-controller-manager-",
    "app.kubernetes.io/version: ",
    "cloud-controller-manager --version ",
    "placeholder: ccm-openstack v",
];

/// What stands directly before the series that users of a crate ask for.
const SERIES_MARKERS: [&str; 2] = ["ccm-core = { version = ", "ccm-testkit = "];

/// Files that markers are looked for in: git's patterns.
const PAGES: [&str; 10] = [
    ".github/",
    "README.md",
    "SECURITY.md",
    "ccm-core/",
    "charts/",
    "docs/",
    "images/",
    "providers/",
    "rbac/",
    "tests/",
];

/// A file of the repository.
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A member of the workspace.
#[derive(Deserialize)]
pub(super) struct Package {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// Reads what has a version in it.
pub(super) fn files(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let mut git = git(root);
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        MANIFEST,
        LOCK,
    ])
    .args(PAGES);
    let list = process::output(&mut git)?;
    let mut files = Vec::new();
    // A deleted page is listed until the deletion is committed.
    let pages = list.split_terminator('\0');
    for path in pages.filter(|path| root.join(path).is_file()) {
        let bytes = std::fs::read(root.join(path)).with_context(|| format!("read {path}"))?;
        // A picture has no version.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path: path.into(), text });
        }
    }
    Ok(files)
}

/// The members as cargo sees them, with the version that each has in the end.
pub(super) fn packages() -> anyhow::Result<Vec<Package>> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Metadata =
        serde_json::from_str(&process::output(&mut cargo)?).context("read cargo's metadata")?;
    Ok(metadata.packages)
}

/// Says where another version is written, or none.
pub(super) fn findings(version: &str, files: &[SourceFile], packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    let text = |path: &str| {
        let file = files.iter().find(|file| file.path == Path::new(path));
        file.map_or("", |file| &*file.text)
    };
    for package in packages {
        if package.version != version {
            findings.push(format!("{} has version {}", package.name, package.version));
        }
        let locked = format!("name = \"{}\"\nversion = \"{version}\"\n", package.name);
        if !text(LOCK).contains(&locked) {
            findings.push(format!("{LOCK} does not have {} {version}", package.name));
        }
    }
    for (name, required) in path_dependencies(text(MANIFEST)) {
        if required != version {
            findings.push(format!("{MANIFEST} asks for {name} {required}"));
        }
    }
    for key in ["version", "appVersion"] {
        let found = chart_value(text(CHART), key);
        if found != Some(version) {
            findings.push(format!("{CHART} has {key} {}", found.unwrap_or("nowhere")));
        }
    }
    let minor = series(version).unwrap_or(version);
    if !text(COMPATIBILITY).contains(&format!("\n| {minor} |")) {
        findings.push(format!("{COMPATIBILITY} has no row for {minor}"));
    }
    findings.extend(files.iter().flat_map(|file| named_elsewhere(version, file)));
    findings
}

/// Major and minor number of a version.
fn series(version: &str) -> Option<&str> {
    let (major, rest) = version.split_once('.')?;
    let (minor, _) = rest.split_once('.')?;
    version.get(..major.len() + 1 + minor.len())
}

/// Members that others depend on by path and, for a registry, by version.
fn path_dependencies(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    manifest.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = {")?;
        rest.contains(" path = \"").then_some(())?;
        let (_, version) = rest.split_once(" version = \"")?;
        Some((name, version.split('"').next()?))
    })
}

fn chart_value<'a>(chart: &'a str, key: &str) -> Option<&'a str> {
    let value = chart
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))?;
    Some(value.trim_matches('"'))
}

/// Says where a page names another version behind a marker.
fn named_elsewhere(version: &str, file: &SourceFile) -> Vec<String> {
    let mut findings = Vec::new();
    let minor = series(version).unwrap_or(version);
    let whole = MARKERS.map(|marker| (marker, version));
    let markers: Vec<_> = whole
        .into_iter()
        .chain(SERIES_MARKERS.map(|marker| (marker, minor)))
        .collect();
    for (number, line) in file.text.lines().enumerate() {
        for &(marker, wanted) in &markers {
            let named = line
                .match_indices(marker)
                .filter_map(|(at, _)| named_version(&line[at + marker.len()..]));
            findings.extend(named.filter(|named| *named != wanted).map(|named| {
                format!("{}:{}: names {marker}{named}", file.path.display(), number + 1)
            }));
        }
    }
    findings
}

/// The version that a text begins with, quoted or not; none where a template or a placeholder
/// stands.
fn named_version(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('"');
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let named = text[..end].trim_end_matches('.');
    named
        .trim_start_matches('v')
        .starts_with(|c: char| c.is_ascii_digit())
        .then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::{Release, Versions};
    use crate::root;

    fn good() -> Vec<SourceFile> {
        let files = [
            (
                MANIFEST,
                "[workspace.dependencies]\na = { path = \"a\", version = \"0.1.0\" }\nb = { path = \"b\" }\n\
                 other = { version = \"3.0.0\" }\n",
            ),
            (LOCK, "[[package]]\nname = \"a\"\nversion = \"0.1.0\"\n"),
            (CHART, "apiVersion: v2\nversion: 0.1.0\nappVersion: \"0.1.0\"\n"),
            (COMPATIBILITY, "| Release | Kubernetes |\n|---|---|\n| 0.1 | 1.30 |\n"),
            (
                "docs/install.md",
                "image: infra/ccm-mock:0.1.0, or ccm-aws:<tag>\nccm-openstack:0.1.0.\n    app.kubernetes.io/version: \"0.1.0\"\n\
                 helm.sh/chart: cloud-controller-manager-{{ .Chart.Version }}\n",
            ),
            ("ccm-core/README.md", "ccm-core = { version = \"0.1\" }\n"),
        ];
        let file = |(path, text): (&str, &str)| SourceFile { path: path.into(), text: text.into() };
        files.into_iter().map(file).collect()
    }

    fn package(version: &str) -> Package {
        Package { name: "a".to_owned(), version: version.to_owned() }
    }

    #[test]
    fn versions_that_agree_are_fine() {
        assert_eq!(findings("0.1.0", &good(), &[package("0.1.0")]), Vec::<String>::new());
    }

    #[test]
    fn each_place_with_another_version_is_found_alone() {
        let cases = [
            (
                MANIFEST,
                "path = \"a\", version = \"0.1.0\"",
                "path = \"a\", version = \"0.0.9\"",
                "Cargo.toml asks for a 0.0.9",
            ),
            (LOCK, "0.1.0", "0.0.9", "Cargo.lock does not have a 0.1.0"),
            (
                CHART,
                "\nversion: 0.1.0",
                "\nversion: 0.1.1",
                "charts/cloud-controller-manager/Chart.yaml has version 0.1.1",
            ),
            (
                CHART,
                "appVersion: \"0.1.0\"",
                "",
                "charts/cloud-controller-manager/Chart.yaml has appVersion nowhere",
            ),
            (COMPATIBILITY, "| 0.1 |", "| 0.0 |", "docs/compatibility.md has no row for 0.1"),
            (
                "docs/install.md",
                "mock:0.1.0",
                "mock:0.0.9",
                "docs/install.md:1: names ccm-mock:0.0.9",
            ),
            (
                "docs/install.md",
                "mock:0.1.0",
                "mock:v0.1.0",
                "docs/install.md:1: names ccm-mock:v0.1.0",
            ),
            (
                "docs/install.md",
                "openstack:0.1.0",
                "openstack:0.1.0-rc.1",
                "docs/install.md:2: names ccm-openstack:0.1.0-rc.1",
            ),
            (
                "docs/install.md",
                "version: \"0.1.0\"",
                "version: \"0.2.0\"",
                "docs/install.md:3: names app.kubernetes.io/version: 0.2.0",
            ),
            (
                "ccm-core/README.md",
                "\"0.1\"",
                "\"0.0\"",
                "ccm-core/README.md:1: names ccm-core = { version = 0.0",
            ),
        ];
        for (path, from, to, finding) in cases {
            let mut files = good();
            let file = files
                .iter_mut()
                .find(|file| file.path == Path::new(path))
                .unwrap();
            assert!(file.text.contains(from), "{from}");
            file.text = file.text.replacen(from, to, 1);
            assert_eq!(findings("0.1.0", &files, &[package("0.1.0")]), [finding]);
        }
        let other = findings("0.1.0", &good(), &[package("0.2.0")]);
        assert_eq!(other, ["a has version 0.2.0"]);
    }

    #[test]
    fn the_series_is_major_and_minor() {
        assert_eq!(series("1.20.3-rc.1"), Some("1.20"));
        assert_eq!(series("1.20"), None);
    }

    /// So that a release finds nothing to mend but its own changelog.
    #[test]
    fn the_repository_agrees_on_its_version() {
        let files = files(&root().unwrap()).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(findings(version, &files, &packages().unwrap()), Vec::<String>::new());
        let marked = files.iter().filter(|file| {
            MARKERS
                .iter()
                .any(|marker| file.text.contains(&format!("{marker}{version}")))
        });
        assert!(marked.count() >= 3, "are the pages still read?");
    }

    #[test]
    fn the_compatibility_page_names_what_tests_run_on_and_what_the_chart_takes() {
        let files = files(&root().unwrap()).unwrap();
        let text = |path: &str| {
            let file = files.iter().find(|file| file.path == Path::new(path));
            file.map(|file| file.text.clone()).unwrap()
        };
        let page = text(COMPATIBILITY);
        for release in [Release::Current, Release::Older] {
            let tested = Versions::of(release).kubernetes;
            assert!(page.contains(&tested), "{tested}");
        }
        let chart = text(CHART);
        let oldest = chart_value(&chart, "kubeVersion").unwrap();
        let oldest = oldest.trim_start_matches(">=");
        let oldest = series(oldest).unwrap();
        assert!(page.contains(&format!("\n| {oldest} |")), "no row for {oldest}");
    }
}
