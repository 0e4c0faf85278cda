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
use serde_json::{Value, json};

use crate::program::{Metadata, Package, Program, parts};
use crate::{process, root};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    program: Program,
    /// Where it is written; standard output unless given
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Writes the bill of materials.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let bill = make(&arguments.program)?;
    process::write(arguments.output.as_deref(), &format!("{bill:#}\n"))
}

/// Makes the bill of materials.
pub(crate) fn make(program: &Program) -> anyhow::Result<Value> {
    let metadata = program.metadata()?;
    let lock = std::fs::read_to_string(root()?.join("Cargo.lock")).context("read Cargo.lock")?;
    bill(&metadata, &checksums(&lock), &program.package)
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
    let main = metadata.member(name)?;
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
