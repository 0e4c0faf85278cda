//! Installs moto's server, a stand-in for AWS, into a virtual environment of Python.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::{process, root};

/// Names the server for tests; who sets it wants tests without it to fail.
pub(crate) const PROGRAM_VARIABLE: &str = "CCM_MOTO_SERVER";

const REQUIREMENTS: &str = "tests/moto/requirements.txt";

/// Finds or installs the server; without Python, says what that means.
pub(crate) fn prepare() -> anyhow::Result<Option<PathBuf>> {
    if let Some(given) = std::env::var_os(PROGRAM_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(Some(given.into()));
    }
    let environment = environment(&version()?, |name| std::env::var_os(name).map(PathBuf::from))
        .context("no place for moto: set XDG_CACHE_HOME or HOME")?;
    let program = environment.join("bin/moto_server");
    if program.is_file() {
        println!("moto: there in {}", environment.display());
        return Ok(Some(program));
    }
    if !python_is_there() {
        eprintln!(
            "warning: NO MOTO: there is no Python to run it with, and {PROGRAM_VARIABLE} names none.\n\
             warning: SKIPPED are all tests of the AWS provider against moto; each says so when it is its turn."
        );
        return Ok(None);
    }
    install(&environment)?;
    anyhow::ensure!(program.is_file(), "{} is not there after installing it", program.display());
    Ok(Some(program))
}

fn version() -> anyhow::Result<String> {
    let path = root()?.join(REQUIREMENTS);
    let requirements = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    pinned(&requirements).with_context(|| format!("{} pins no moto", path.display()))
}

fn pinned(requirements: &str) -> Option<String> {
    let version = requirements.lines().find_map(|line| line.strip_prefix("moto[server]=="))?;
    Some(version.trim().to_owned())
}

/// The virtual environment for this version, in the user's cache directory.
fn environment(version: &str, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification says that a relative XDG_CACHE_HOME is to be ignored.
    let cache = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = cache.or_else(|| Some(variable("HOME").filter(|home| !home.as_os_str().is_empty())?.join(".cache")))?;
    Some(cache.join("ccm-moto").join(version))
}

fn python_is_there() -> bool {
    let mut python = Command::new("python3");
    let status = python.args(["-m", "venv", "--help"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn install(environment: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    println!("moto: installing it, this may take a minute");
    // An environment cannot be moved, since its programs name it. It is made beside, and has its name, a link, only when
    // it is whole; two that are made at once do not meet.
    let mut beside = environment.as_os_str().to_owned();
    beside.push(format!("-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let installed = process::run(Command::new("python3").args(["-m", "venv"]).arg(&beside)).and_then(|()| {
        let mut pip = Command::new(beside.join("bin/python3"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        process::run(pip.arg(root()?.join(REQUIREMENTS)))
    });
    if installed.is_err() {
        // Nothing to remove when nothing was made.
        let _ = std::fs::remove_dir_all(&beside);
    }
    installed.context("install moto")?;
    let link = beside.with_extension("link");
    std::os::unix::fs::symlink(&beside, &link).with_context(|| format!("make {}", link.display()))?;
    std::fs::rename(&link, environment).with_context(|| format!("make {}", environment.display()))?;
    println!("moto: installed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_requirement() {
        assert_eq!(pinned("# moto[server]==1\nflask==3\nmoto[server]==5.2.5 \n").as_deref(), Some("5.2.5"));
        assert_eq!(pinned("moto==5.2.5"), None);
        assert!(version().is_ok());
    }

    #[test]
    fn it_lies_in_the_cache_directory() {
        let only = |set: &'static str, value: &'static str| {
            environment("1.2", move |name| (name == set).then(|| PathBuf::from(value)))
        };
        assert_eq!(only("XDG_CACHE_HOME", "/c"), Some("/c/ccm-moto/1.2".into()));
        assert_eq!(only("HOME", "/h"), Some("/h/.cache/ccm-moto/1.2".into()));
        assert_eq!(only("XDG_CACHE_HOME", "c"), None);
        assert_eq!(only("HOME", ""), None);
    }
}
