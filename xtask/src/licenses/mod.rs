//! Checks what would be built on this machine against `deny.toml`, without a network: licences,
//! sources and bans.

mod deny;
mod expression;

use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::{process, root};
use deny::Deny;

/// The part of cargo's metadata that is looked at.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Absent for a package in a folder.
    source: Option<String>,
}

/// Checks all packages.
pub(crate) fn run() -> anyhow::Result<()> {
    let deny = std::fs::read_to_string(root()?.join("deny.toml")).context("read deny.toml")?;
    let deny = Deny::parse(&deny)?;
    let mut cargo = process::cargo()?;
    // Offline, cargo can only tell about packages that were downloaded: those for this machine.
    cargo.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--offline",
        "--all-features",
        "--filter-platform",
    ]);
    cargo.arg(host()?);
    let metadata = process::output(&mut cargo)
        .context("cargo cannot list the packages; `cargo fetch` helps")?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("read cargo's metadata")?;
    let findings = check(&metadata, &deny);
    for finding in &findings {
        eprintln!("{finding}");
    }
    anyhow::ensure!(
        findings.is_empty(),
        "{} packages break the rules of deny.toml",
        findings.len()
    );
    println!("licenses: {} packages are fine", metadata.packages.len());
    Ok(())
}

/// This machine's target triple.
pub(crate) fn host() -> anyhow::Result<String> {
    let version = process::output(Command::new("rustc").current_dir(root()?).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

fn check(metadata: &Metadata, deny: &Deny) -> Vec<String> {
    let problems = |package: &Package| {
        let license = match package.license.as_deref() {
            None => Some("has no licence expression".to_owned()),
            Some(license) => match expression::is_allowed(license, &deny.licenses) {
                Ok(true) => None,
                Ok(false) => Some(format!("has the licence `{license}`, which is not allowed")),
                Err(why) => {
                    Some(format!("has the licence `{license}`, which cannot be read: {why}"))
                }
            },
        };
        let source = match package.source.as_deref() {
            None => (!metadata.workspace_members.contains(&package.id))
                .then(|| "is in a folder and not a member of the workspace".to_owned()),
            Some(source) => {
                let allowed = source
                    .strip_prefix("registry+")
                    .is_some_and(|url| deny.registries.iter().any(|r| r == url));
                (!allowed).then(|| format!("comes from `{source}`"))
            }
        };
        let banned = deny
            .banned
            .contains(&package.name)
            .then(|| "is banned".to_owned());
        [license, source, banned].into_iter().flatten()
    };
    let named = |package: &Package| {
        let name = format!("{} {}", package.name, package.version);
        problems(package)
            .map(move |problem| format!("{name} {problem}"))
            .collect::<Vec<_>>()
    };
    metadata.packages.iter().flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_can_fail() {
        let metadata = r#"{
            "workspace_members": ["ours"],
            "packages": [
                {"id": "ours", "name": "ours", "version": "1.0.0", "license": "MIT", "source": null},
                {"id": "1", "name": "good", "version": "1.0.0", "license": "MIT OR GPL-3.0", "source": "registry+index"},
                {"id": "2", "name": "copyleft", "version": "1.0.0", "license": "GPL-3.0", "source": "registry+index"},
                {"id": "3", "name": "bare", "version": "1.0.0", "license": null, "source": "registry+index"},
                {"id": "4", "name": "odd", "version": "1.0.0", "license": "MIT OR", "source": "registry+index"},
                {"id": "5", "name": "foreign", "version": "1.0.0", "license": "MIT", "source": "git+index"},
                {"id": "6", "name": "beside", "version": "1.0.0", "license": "MIT", "source": null},
                {"id": "7", "name": "bad", "version": "1.0.0", "license": "MIT", "source": "registry+index"}
            ]
        }"#;
        let deny = Deny {
            licenses: vec!["MIT".to_owned()],
            banned: vec!["bad".to_owned()],
            registries: vec!["index".to_owned()],
        };
        let expected = [
            "copyleft 1.0.0 has the licence `GPL-3.0`, which is not allowed",
            "bare 1.0.0 has no licence expression",
            "odd 1.0.0 has the licence `MIT OR`, which cannot be read: it ends too early",
            "foreign 1.0.0 comes from `git+index`",
            "beside 1.0.0 is in a folder and not a member of the workspace",
            "bad 1.0.0 is banned",
        ];
        assert_eq!(check(&serde_json::from_str(metadata).unwrap(), &deny), expected);
    }
}
