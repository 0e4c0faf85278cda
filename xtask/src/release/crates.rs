//! The crates that can be published: that they are whole as packages, and what became of their API.

use std::path::Path;
use std::process::Command;

use super::git;
use crate::{process, root};

/// Crates that authors of providers use, in the order in which they would be published.
pub(crate) const PUBLISHED: [&str; 3] = ["openstack-api", "ccm-core", "ccm-testkit"];

/// Packages them, and builds each from its package: one that needs a file of the repository fails.
pub(crate) fn package() -> anyhow::Result<()> {
    let mut cargo = process::cargo()?;
    // Also before a commit.
    cargo.args(["package", "--allow-dirty"]);
    process::run(with_packages(&mut cargo))
}

/// Compares their public API with that of the last release, whatever its version, or says that there is none.
pub(crate) fn compare_api() -> anyhow::Result<()> {
    if !compare(&root()?, "")? {
        println!("no release to compare the public API with");
    }
    Ok(())
}

/// Compares their public API with that of the last release but `version`: a change that breaks users needs a version that says so.
/// Returns `false` if nothing was released before.
pub(super) fn compare(root: &Path, version: &str) -> anyhow::Result<bool> {
    let Some(tag) = last_release(root, version)? else {
        return Ok(false);
    };
    let mut cargo = process::cargo()?;
    cargo.args(["semver-checks", "--baseline-rev", &tag]);
    process::run(with_packages(&mut cargo))?;
    Ok(true)
}

fn with_packages(cargo: &mut Command) -> &mut Command {
    PUBLISHED
        .iter()
        .fold(cargo, |cargo, package| cargo.args(["--package", package]))
}

/// The tag of the newest release before this commit, other than that of this version.
fn last_release(root: &Path, version: &str) -> anyhow::Result<Option<String>> {
    let mut git = git(root);
    git.args(["tag", "--merged", "HEAD", "--sort=-version:refname", "--list", "v*"]);
    let tags = process::output(&mut git)?;
    let is_other = |tag: &&str| {
        tag.strip_prefix('v')
            .is_some_and(|name| name != version && super::is_version(name))
    };
    Ok(tags.lines().find(is_other).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_that_before_this_version() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let run = |arguments: &[&str]| {
            let identity = [
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.org",
                "-c",
                "commit.gpgsign=false",
            ];
            process::output(git(root).args(identity).args(arguments)).unwrap();
        };
        run(&["init", "--quiet"]);
        run(&["commit", "--quiet", "--allow-empty", "--message", "one"]);
        assert_eq!(last_release(root, "0.1.0").unwrap(), None);
        for tag in ["v0.9.0", "v0.10.0", "vendored"] {
            run(&["-c", "tag.gpgsign=false", "tag", tag]);
        }
        run(&["checkout", "--quiet", "-b", "other"]);
        run(&["commit", "--quiet", "--allow-empty", "--message", "two"]);
        run(&["tag", "v0.11.0"]);
        assert_eq!(last_release(root, "0.11.0").unwrap().as_deref(), Some("v0.10.0"));
        assert_eq!(last_release(root, "").unwrap().as_deref(), Some("v0.11.0"), "of any version");
        run(&["checkout", "--quiet", "-"]);
        assert_eq!(
            last_release(root, "0.12.0").unwrap().as_deref(),
            Some("v0.10.0"),
            "v0.11.0 is elsewhere"
        );
    }

    /// Cargo packages together only crates that may be published.
    #[test]
    fn exactly_these_crates_may_be_published() {
        let mut cargo = process::cargo().unwrap();
        let metadata = process::output(cargo.args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version=1",
        ]));
        let metadata: serde_json::Value = serde_json::from_str(&metadata.unwrap()).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let mut names: Vec<_> = packages
            .iter()
            .filter(|package| package["publish"].is_null())
            .map(|package| package["name"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        let mut published = PUBLISHED;
        published.sort_unstable();
        assert_eq!(names, published);
    }
}
