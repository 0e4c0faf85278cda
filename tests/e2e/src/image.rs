//! What a container is to the process in it, without a container engine: a root file system with
//! the binary and the libraries of the base image, what is mounted into it, user, groups and
//! environment. Needs Linux, and root or user namespaces that everybody may make.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Program that makes containers; [`Container::arguments`] are for it.
pub const RUNTIME: &str = "unshare";

/// `$1` is the root file system, `$2` a list of what is mounted where, `$3` whether the root is
/// read-only; then what `env` is told. Everything is in a mount namespace that ends with the
/// process.
const SCRIPT: &str = r#"
set -eu
root=$1 mounts=$2 readonly=$3
shift 3
mount --bind "$root" "$root"
while read -r from to; do
  mount --bind "$from" "$root$to"
  mount -o remount,bind,ro "$root$to"
done <"$mounts"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
if [ "$readonly" = true ]; then
  mount -o remount,bind,ro "$root"
fi
exec setpriv --no-new-privs env -i "$@"
"#;

/// What of the script and of [`ContainerMethod::enter`] a machine may forbid.
const TRY: &str = r#"
set -eu
mount --bind /usr /usr
mount -o remount,bind,ro /usr
exec setpriv --no-new-privs "$@" true
"#;

/// What a machine without [`ContainerMethod`] lacks.
const NEEDS: &str = "no container can be made: that needs root, or user namespaces that everybody may make, and mounts";

/// What lets this machine's user make containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerMethod {
    /// The user is root and may mount.
    Root,
    /// The user may be root in a user namespace. Inside, user and group are the container's; for
    /// everybody else the process is the user's, with the user's further groups.
    UserNamespace,
}

impl ContainerMethod {
    /// Those that work here, the best first.
    ///
    /// # Errors
    /// There are none: what this machine lacks.
    pub fn find() -> Result<Vec<Self>, &'static str> {
        Self::choose(Self::works)
    }

    fn choose(works: impl Fn(Self) -> bool) -> Result<Vec<Self>, &'static str> {
        let found: Vec<_> = [Self::Root, Self::UserNamespace]
            .into_iter()
            .filter(|means| works(*means))
            .collect();
        if found.is_empty() {
            Err(NEEDS)
        } else {
            Ok(found)
        }
    }

    fn works(self) -> bool {
        let Ok(enter) = self.enter(Path::new("/"), 65532, 65532, None) else {
            return false;
        };
        let tried = Command::new(RUNTIME)
            .args(self.namespaces())
            .args(["sh", "-c", TRY, "sh"])
            .args(enter)
            .output();
        tried.is_ok_and(|output| output.status.success())
    }

    /// Arguments of [`RUNTIME`] for the namespaces in which mounts are made.
    fn namespaces(self) -> &'static [&'static str] {
        match self {
            Self::Root => &["--mount"],
            Self::UserNamespace => &["--user", "--map-root-user", "--mount"],
        }
    }

    /// A command that goes to another root and becomes another user, and runs what follows. By its
    /// path, since the environment is the container's already.
    fn enter(
        self,
        root: &Path,
        user: i64,
        group: i64,
        extra: Option<i64>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut command: Vec<OsString> = Vec::new();
        match self {
            Self::Root => {
                command.push(tool("chroot")?.into());
                command.push(format!("--userspec={user}:{group}").into());
                command.push(
                    format!("--groups={}", extra.map(|g| g.to_string()).unwrap_or_default()).into(),
                );
                command.push(root.into());
            }
            // A namespace of the container's only user: the one around it has nobody but root.
            Self::UserNamespace => {
                command.extend([tool(RUNTIME)?.into(), "--user".into()]);
                command.push(format!("--map-user={user}").into());
                command.push(format!("--map-group={group}").into());
                command.extend(["--root".into(), root.into(), "--wd".into(), "/".into()]);
            }
        }
        Ok(command)
    }
}

/// A container that is being prepared.
#[derive(Debug)]
pub struct Container {
    means: ContainerMethod,
    directory: PathBuf,
    mounts: Vec<(PathBuf, String)>,
    /// User that the process runs as.
    pub user: i64,
    /// Its group.
    pub group: i64,
    /// Its further group.
    pub extra_group: Option<i64>,
    /// Whether it cannot write to its root.
    pub read_only: bool,
    /// All of its environment.
    pub environment: BTreeMap<String, String>,
}

impl Container {
    /// A container below `directory`, with `program` as `entrypoint` and the libraries that it is
    /// linked with.
    ///
    /// # Errors
    /// A file cannot be made, or a library is missing.
    pub fn new(
        means: ContainerMethod,
        directory: &Path,
        program: &Path,
        entrypoint: &str,
    ) -> anyhow::Result<Self> {
        let mut container = Self {
            means,
            directory: directory.to_owned(),
            mounts: Vec::new(),
            user: 65532,
            group: 65532,
            extra_group: None,
            read_only: true,
            environment: BTreeMap::new(),
        };
        for folder in ["proc", "dev"] {
            std::fs::create_dir_all(container.root().join(folder))?;
        }
        std::fs::set_permissions(container.root(), std::fs::Permissions::from_mode(0o755))?;
        container.mount_file(program, entrypoint)?;
        for library in shared_libraries(program)? {
            let path = library.to_str().context("a library's path is text")?;
            container.mount_file(&library.canonicalize()?, path)?;
        }
        Ok(container)
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Shows a file of the machine in the container, read-only.
    ///
    /// # Errors
    /// Its place cannot be made.
    pub fn mount_file(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        let place = self.root().join(to.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().context("no file at the root")?)?;
        std::fs::write(place, "")?;
        self.mounts.push((from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// Shows a folder of the machine in the container, read-only.
    ///
    /// # Errors
    /// Its place cannot be made.
    pub fn mount_folder(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(self.root().join(to.trim_start_matches('/')))?;
        self.mounts.push((from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// Arguments of [`RUNTIME`] that start `command` in the container. The process has no
    /// capabilities and cannot get any.
    ///
    /// # Errors
    /// The list of mounts cannot be written.
    pub fn arguments(&self, command: &[String]) -> anyhow::Result<Vec<OsString>> {
        let list = self.directory.join("mounts");
        let lines = self
            .mounts
            .iter()
            .map(|(from, to)| format!("{} {to}\n", from.display()));
        std::fs::write(&list, lines.collect::<String>())?;
        let script = ["sh", "-c", SCRIPT, "sh"];
        let mut arguments: Vec<_> = self
            .means
            .namespaces()
            .iter()
            .chain(&script)
            .map(OsString::from)
            .collect();
        arguments.extend([self.root().into(), list.into(), self.read_only.to_string().into()]);
        arguments.extend(
            self.environment
                .iter()
                .map(|(name, value)| format!("{name}={value}").into()),
        );
        arguments.extend(self.means.enter(
            &self.root(),
            self.user,
            self.group,
            self.extra_group,
        )?);
        arguments.extend(command.iter().map(OsString::from));
        Ok(arguments)
    }
}

/// A program of the machine, which is not everywhere in the same place.
fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let places =
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|folder| Path::new(folder).join(name));
    places
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("no {name}"))
}

/// Files of the shared libraries that a program is linked with, the loader among them.
///
/// # Errors
/// There is no `ldd`, or a library is not found.
pub fn shared_libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("run ldd")?;
    let text = String::from_utf8(output.stdout)?;
    anyhow::ensure!(
        output.status.success(),
        "ldd says nothing about {}: {text}",
        program.display()
    );
    libraries(&text)
}

/// Reads `name => file (address)` and `file (address)`; the kernel's own has no file.
fn libraries(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, file) = line.split_once(" => ").unwrap_or((line, line));
        anyhow::ensure!(file != "not found", "{name} is not found");
        if let Some(path) = file
            .split_whitespace()
            .next()
            .filter(|path| path.starts_with('/'))
        {
            files.push(path.into());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_tried_and_the_best_is_the_first() {
        let choose =
            |works: &[ContainerMethod]| ContainerMethod::choose(|means| works.contains(&means));
        assert_eq!(
            choose(&[ContainerMethod::UserNamespace]).unwrap(),
            [ContainerMethod::UserNamespace]
        );
        assert_eq!(
            choose(&[ContainerMethod::UserNamespace, ContainerMethod::Root]).unwrap(),
            [ContainerMethod::Root, ContainerMethod::UserNamespace]
        );
        assert!(
            choose(&[])
                .unwrap_err()
                .contains("root, or user namespaces")
        );
    }

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            libraries(text).unwrap(),
            [PathBuf::from("/lib/x/libc.so.6"), PathBuf::from("/lib64/ld-linux-x86-64.so.2")]
        );
        assert!(libraries("\tlibz.so.1 => not found\n").is_err());
    }
}
