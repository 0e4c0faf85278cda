//! What of the Helm chart is made from something else: its rules from `rbac/`, the table of its
//! values from `values.yaml`.

mod readme;
mod rules;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::root;

/// Folder of the chart.
const CHART: &str = "charts/cloud-controller-manager";

/// Arguments of `cargo xtask chart`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Changes nothing, and fails when something is not as it would be made
    #[arg(long)]
    check: bool,
}

/// A file with the content that it should have.
struct GeneratedFile {
    path: PathBuf,
    content: String,
}

/// Writes the files, or compares them.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = root()?;
    let stale = stale(&root)?;
    for made in &stale {
        let path = made
            .path
            .strip_prefix(&root)
            .unwrap_or(&made.path)
            .display();
        if arguments.check {
            eprintln!("{path} is not what `cargo xtask chart` makes");
        } else {
            std::fs::create_dir_all(made.path.parent().unwrap_or(&root))?;
            std::fs::write(&made.path, &made.content).with_context(|| format!("write {path}"))?;
            println!("{path}: written");
        }
    }
    anyhow::ensure!(!arguments.check || stale.is_empty(), "{} files are not current", stale.len());
    Ok(())
}

/// The files that have another content, or are not there.
fn stale(root: &Path) -> anyhow::Result<Vec<GeneratedFile>> {
    let mut all = rules::make(root)?;
    all.push(readme::make(root)?);
    all.retain(|made| std::fs::read_to_string(&made.path).ok().as_ref() != Some(&made.content));
    Ok(all)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_is_current() {
        let stale = stale(&root().unwrap()).unwrap();
        let paths: Vec<_> = stale
            .iter()
            .map(|made| made.path.display().to_string())
            .collect();
        assert!(paths.is_empty(), "`cargo xtask chart` writes them anew: {paths:?}");
    }
}
