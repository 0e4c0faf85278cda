//! Checks that a release can be tagged: its version is the same everywhere, the changelog has its
//! section, no document says that nothing was published, and nothing is uncommitted. Changes
//! nothing.

mod changelog;
pub(crate) mod crates;
mod git;
mod statements;
mod versions;

pub(crate) use git::git;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::root;

/// The list of changes, from which release notes are cut.
const CHANGELOG: &str = "CHANGELOG.md";

/// Arguments of `cargo xtask release`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Version to be released, such as 1.2.3 or 1.2.3-rc.1, without a leading `v`
    version: String,
    /// Writes the version's section of the changelog to this file, for the release's page
    #[arg(long)]
    notes: Option<PathBuf>,
    /// Address of the files at the tag, for links in the notes
    #[arg(long, default_value = ".")]
    files: String,
    /// Also compares the public API of the crates that can be published with the last release; needs
    /// cargo-semver-checks
    #[arg(long)]
    api: bool,
}

/// Says everything that keeps the version from being tagged, or how to tag it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let version = &arguments.version;
    anyhow::ensure!(is_version(version), "{version} is no version like 1.2.3 or 1.2.3-rc.1");
    let root = root()?;
    let changelog = read(&root, CHANGELOG)?;
    let files = versions::files(&root)?;
    let mut findings = versions::findings(version, &files, &versions::packages()?);
    findings.extend(statements::findings(&files));
    findings.extend(changelog::findings(&changelog, version));
    findings.extend(changelog::older_than(&changelog, version, &git::last_date(&root)?));
    findings.extend(git::findings(&root, version)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    anyhow::ensure!(findings.is_empty(), "{version} cannot be released yet");
    if let Some(path) = &arguments.notes {
        let notes = changelog::notes(&changelog, version, &arguments.files)
            .context("the section has no text")?;
        std::fs::write(path, notes).with_context(|| format!("write {}", path.display()))?;
    }
    if arguments.api && !crates::compare(&root, version)? {
        println!("no release to compare the public API with");
    }
    println!("{version} can be released: git tag --sign --message 'Release {version}' v{version}");
    Ok(())
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"))
}

/// Whether it is three numbers, and perhaps what makes it a pre-release. Build metadata has no
/// place in the tag of an image.
fn is_version(text: &str) -> bool {
    let (numbers, suffix) = match text.split_once('-') {
        Some((numbers, suffix)) => (numbers, Some(suffix)),
        None => (text, None),
    };
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_identifier = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && suffix.is_none_or(|suffix| suffix.split('.').all(is_identifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers_and_perhaps_a_suffix() {
        for good in ["0.1.0", "1.20.3", "1.2.3-rc.1", "1.2.3-alpha-2"] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "",
            "v1.2.3",
            "1.2",
            "1.2.3.4",
            "01.2.3",
            "1.2.x",
            "1.2.3-",
            "1.2.3-rc..1",
            "1.2.3+5",
            "1..3",
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
