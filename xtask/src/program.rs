//! One program as it is built: its package, features and target, and the packages that are linked
//! into it or run while it is built, from the lock file.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::{licenses, process};

/// A program and how it is built.
#[derive(clap::Args)]
pub(crate) struct Program {
    /// Package whose program it is
    #[arg(long, default_value = "ccm-aws")]
    pub(crate) package: String,
    /// Features, as for `cargo build`; the images have `--no-default-features`, and that of AWS
    /// `--features sdk`
    #[arg(long, value_delimiter = ',')]
    pub(crate) features: Vec<String>,
    /// Leaves out the package's default features
    #[arg(long)]
    pub(crate) no_default_features: bool,
    /// Target triple; this machine's unless given
    #[arg(long)]
    pub(crate) target: Option<String>,
}

impl Program {
    /// Asks cargo for the packages, offline.
    pub(crate) fn metadata(&self) -> anyhow::Result<Metadata> {
        let mut cargo = process::cargo()?;
        // From the package's folder, since features are those of the package that is worked on.
        let manifest = manifest_of(&self.package)?;
        cargo
            .args(["metadata", "--format-version=1", "--locked", "--offline", "--manifest-path"])
            .arg(manifest);
        let target = self.target.clone().map_or_else(licenses::host, Ok)?;
        cargo.args(["--filter-platform", &target]);
        if self.no_default_features {
            cargo.arg("--no-default-features");
        }
        if !self.features.is_empty() {
            cargo.arg("--features").arg(self.features.join(","));
        }
        let metadata = process::output(&mut cargo)
            .context("cargo cannot list the packages; `cargo fetch` helps")?;
        serde_json::from_str(&metadata).context("read cargo's metadata")
    }
}

/// The part of cargo's metadata that is looked at.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) resolve: Resolve,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) repository: Option<String>,
    #[serde(default)]
    pub(crate) authors: Vec<String>,
    /// File with the licence, relative to the manifest, where the manifest names one.
    #[serde(default)]
    pub(crate) license_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    /// Absent for a package in a folder.
    pub(crate) source: Option<String>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
}

impl Package {
    /// Tells whether it runs within the compiler.
    pub(crate) fn is_macro(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

#[derive(Deserialize)]
pub(crate) struct Resolve {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Deserialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) deps: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) pkg: String,
    pub(crate) dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
pub(crate) struct DependencyKind {
    /// `dev`, `build`, or nothing for what is linked.
    pub(crate) kind: Option<String>,
}

impl Metadata {
    /// Returns the package of the workspace with this name.
    pub(crate) fn member(&self, name: &str) -> anyhow::Result<&Package> {
        let mut packages = self.packages.iter();
        packages
            .find(|package| package.name == name && package.source.is_none())
            .with_context(|| format!("--package {name}: no such package in the workspace"))
    }
}

/// Finds the manifest of a member of the workspace.
fn manifest_of(package: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"]);
    let metadata: Value =
        serde_json::from_str(&process::output(&mut cargo)?).context("read cargo's metadata")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages
        .filter(|found| found["name"] == package)
        .find_map(|found| found["manifest_path"].as_str());
    Ok(found
        .with_context(|| format!("--package {package}: no such package in the workspace"))?
        .into())
}

/// What a package is linked with or built by, all the way down: its ID, and whether it is linked.
pub(crate) fn parts<'a>(metadata: &'a Metadata, start: &'a str) -> BTreeMap<&'a str, bool> {
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (&*node.id, node))
        .collect();
    let macros: BTreeSet<&str> = metadata
        .packages
        .iter()
        .filter(|p| p.is_macro())
        .map(|p| &*p.id)
        .collect();
    let mut parts = BTreeMap::new();
    let mut todo = vec![(start, true)];
    while let Some((id, linked)) = todo.pop() {
        let linked = linked && !macros.contains(id);
        // Looked at again when it turns out to be linked after all.
        if parts.get(id).is_some_and(|known| *known >= linked) {
            continue;
        }
        parts.insert(id, linked);
        for dependency in nodes.get(id).into_iter().flat_map(|node| &node.deps) {
            let kinds: BTreeSet<_> = dependency
                .dep_kinds
                .iter()
                .map(|kind| kind.kind.as_deref())
                .collect();
            match (kinds.contains(&None), kinds.contains(&Some("build"))) {
                (true, _) => todo.push((&dependency.pkg, linked)),
                (false, true) => todo.push((&dependency.pkg, false)),
                (false, false) => {}
            }
        }
    }
    parts
}
