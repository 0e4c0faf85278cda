//! A bill of materials of one program: what is linked into it or runs while it is built, from the
//! lock file.
//!
//! CycloneDX 1.6 in JSON, the same bytes for the same lock file.
//! <https://cyclonedx.org/docs/1.6/json/>

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{licenses, process, root};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Package whose program it is
    #[arg(long, default_value = "ccm-aws")]
    package: String,
    /// Features, as for `cargo build`; the images have `--no-default-features`, and that of AWS
    /// `--features sdk`
    #[arg(long, value_delimiter = ',')]
    features: Vec<String>,
    /// Leaves out the package's default features
    #[arg(long)]
    no_default_features: bool,
    /// Target triple; this machine's unless given
    #[arg(long)]
    target: Option<String>,
    /// Where it is written; standard output unless given
    #[arg(long)]
    output: Option<PathBuf>,
}

/// The part of cargo's metadata that is looked at.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    repository: Option<String>,
    /// Absent for a package in a folder.
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    /// Tells whether it runs within the compiler.
    fn is_macro(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `dev`, `build`, or nothing for what is linked.
    kind: Option<String>,
}

/// Writes the bill of materials.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut cargo = process::cargo()?;
    // From the package's folder, since features are those of the package that is worked on.
    let manifest = manifest_of(&arguments.package)?;
    cargo
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--manifest-path"])
        .arg(manifest);
    let target = arguments.target.clone().map_or_else(licenses::host, Ok)?;
    cargo.args(["--filter-platform", &target]);
    if arguments.no_default_features {
        cargo.arg("--no-default-features");
    }
    if !arguments.features.is_empty() {
        cargo.arg("--features").arg(arguments.features.join(","));
    }
    let metadata = process::output(&mut cargo)
        .context("cargo cannot list the packages; `cargo fetch` helps")?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("read cargo's metadata")?;
    let lock = std::fs::read_to_string(root()?.join("Cargo.lock")).context("read Cargo.lock")?;
    let bill = bill(&metadata, &checksums(&lock), &arguments.package)?;
    let text = format!("{bill:#}\n");
    match &arguments.output {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
        }
        None => {
            print!("{text}");
            Ok(())
        }
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

/// Reads the SHA-256 of each package's archive, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let mut lines = block.lines();
        let value = lines.find_map(|line| {
            line.strip_prefix(key)?
                .strip_prefix(" = \"")?
                .strip_suffix('"')
        });
        value.map(str::to_owned)
    };
    let package = |block| {
        Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
    };
    lock.split("[[package]]")
        .skip(1)
        .filter_map(package)
        .collect()
}

/// What a package is linked with or built by, all the way down: its ID, and whether it is linked.
fn parts<'a>(metadata: &'a Metadata, start: &'a str) -> BTreeMap<&'a str, bool> {
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

fn bill(
    metadata: &Metadata,
    checksums: &BTreeMap<(String, String), String>,
    name: &str,
) -> anyhow::Result<Value> {
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|found| (&*found.id, found))
        .collect();
    let main = metadata
        .packages
        .iter()
        .find(|package| package.name == name && package.source.is_none());
    let main =
        main.with_context(|| format!("--package {name}: no such package in the workspace"))?;
    let parts = parts(metadata, &main.id);
    let mut components = Vec::new();
    for (id, linked) in parts.iter().filter(|(id, _)| **id != main.id) {
        let package = packages
            .get(id)
            .with_context(|| format!("cargo does not describe {id}"))?;
        components.push(component(package, *linked, checksums)?);
    }
    components.sort_by_key(|component| component["bom-ref"].as_str().map(str::to_owned));
    let dependencies: Vec<_> = dependencies(metadata, &packages, &parts)?
        .iter()
        .map(|(of, on)| json!({"ref": of, "dependsOn": on}))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": purl(main),
            "name": main.name,
            "version": main.version,
            "purl": purl(main),
            "licenses": [{"expression": main.license}],
        }},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns what each part depends on, other than for tests, by package URLs in order.
fn dependencies(
    metadata: &Metadata,
    packages: &BTreeMap<&str, &Package>,
    parts: &BTreeMap<&str, bool>,
) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let mut dependencies = Vec::new();
    for node in &metadata.resolve.nodes {
        if !parts.contains_key(&*node.id) {
            continue;
        }
        let mut on = BTreeSet::new();
        for dependency in &node.deps {
            let is_only_for_tests = dependency
                .dep_kinds
                .iter()
                .all(|kind| kind.kind.as_deref() == Some("dev"));
            if is_only_for_tests || !parts.contains_key(&*dependency.pkg) {
                continue;
            }
            if let Some(package) = packages.get(&*dependency.pkg) {
                on.insert(purl(package));
            }
        }
        let package = packages
            .get(&*node.id)
            .with_context(|| format!("cargo does not describe {}", node.id))?;
        dependencies.push((purl(package), on));
    }
    dependencies.sort();
    Ok(dependencies)
}

/// Describes a package. What is from a registry must have a checksum: a bill without one could not
/// be checked.
fn component(
    package: &Package,
    linked: bool,
    checksums: &BTreeMap<(String, String), String>,
) -> anyhow::Result<Value> {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
        // What only runs while the program is built is not in it.
        "scope": if linked { "required" } else { "excluded" },
    });
    if let Some(license) = &package.license {
        // SPDX has no slash; old manifests do.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.trim());
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    if package.source.is_some() {
        let key = (package.name.clone(), package.version.clone());
        let checksum = checksums.get(&key);
        let checksum = checksum
            .with_context(|| format!("Cargo.lock has no checksum of {} {}", key.0, key.1))?;
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    Ok(component)
}

/// Package URL. <https://github.com/package-url/purl-spec>
fn purl(package: &Package) -> String {
    // A plus sign has a meaning of its own there.
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0+x\"\nsource = \"registry+r\"\nchecksum = \
                        \"aa\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\nsource = \"registry+r\"\nchecksum = \
                        \"bb\"\ndependencies = [\n \"a\",\n]\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n[[package]]\nname \
                        = \"m\"\nversion = \"1.0.0\"\nsource = \"registry+r\"\nchecksum = \"mm\"\n";

    /// `ours` links b, is expanded by m, built with a, and tested with t; b links a if `linked`.
    fn metadata(linked: bool) -> Metadata {
        let package = |id: &str, name: &str, version: &str, source: Value| {
            let targets = json!([{"kind": [if name == "m" { "proc-macro" } else { "lib" }]}]);
            let license = "MIT/Apache-2.0";
            json!({"id": id, "name": name, "version": version, "license": license, "source": source, "targets": targets})
        };
        let on = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let below = if linked {
            vec![on("a", Value::Null)]
        } else {
            Vec::new()
        };
        let metadata = json!({
            "packages": [
                package("o", "ours", "0.1.0", Value::Null),
                package("a", "a", "1.0.0+x", json!("registry+r")),
                package("b", "b", "2.0.0", json!("registry+r")),
                package("m", "m", "1.0.0", json!("registry+r")),
                package("t", "t", "3.0.0", json!("registry+r")),
            ],
            "resolve": {"nodes": [
                {"id": "o", "deps": [
                    on("a", json!("build")), on("b", Value::Null), on("m", Value::Null), on("t", json!("dev")),
                ]},
                {"id": "m", "deps": [on("a", Value::Null)]},
                {"id": "b", "deps": below},
                {"id": "a", "deps": []},
                {"id": "t", "deps": []},
            ]},
        });
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn what_is_linked_or_builds_it_is_listed_with_its_checksum() {
        let bill = bill(&metadata(false), &checksums(LOCK), "ours").unwrap();
        let parts: Vec<_> = bill["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (&c["purl"], &c["scope"]))
            .collect();
        assert_eq!(
            parts,
            [
                (&json!("pkg:cargo/a@1.0.0%2Bx"), &json!("excluded")),
                (&json!("pkg:cargo/b@2.0.0"), &json!("required")),
                (&json!("pkg:cargo/m@1.0.0"), &json!("excluded")),
            ]
        );
        assert_eq!(bill["components"][1]["hashes"][0]["content"], "bb");
        assert_eq!(bill["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["metadata"]["component"]["name"], "ours");
        let ours = bill["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .find(|d| d["ref"] == "pkg:cargo/ours@0.1.0");
        assert_eq!(
            ours.unwrap()["dependsOn"],
            json!(["pkg:cargo/a@1.0.0%2Bx", "pkg:cargo/b@2.0.0", "pkg:cargo/m@1.0.0"])
        );
    }

    #[test]
    fn what_is_linked_somewhere_is_linked() {
        let bill = bill(&metadata(true), &checksums(LOCK), "ours").unwrap();
        assert!(
            bill["components"]
                .as_array()
                .unwrap()
                .iter()
                .all(|part| (part["scope"] == "required") != (part["name"] == "m")),
            "{bill:#}"
        );
    }

    #[test]
    fn a_part_without_a_checksum_and_an_unknown_package_are_errors() {
        let mut checksums = checksums(LOCK);
        let error = bill(&metadata(true), &checksums, "theirs")
            .unwrap_err()
            .to_string();
        assert!(error.contains("--package theirs"), "{error}");
        checksums.retain(|(name, _), _| name != "b");
        let error = bill(&metadata(true), &checksums, "ours")
            .unwrap_err()
            .to_string();
        assert!(error.contains("b 2.0.0"), "{error}");
    }
}
