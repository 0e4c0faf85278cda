//! What a container is to the process in it, without a container engine: a root file system with the binary and the
//! libraries of the base image, what is mounted into it, user, groups and environment. Needs Linux and root.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Program that makes containers; [`Container::arguments`] are for it.
pub const RUNTIME: &str = "unshare";

/// `$1` is the root file system, `$2` a list of what is mounted where, `$3` whether the root is read-only; then what `env`
/// is told. Everything is in a mount namespace that ends with the process.
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

/// Whether mount namespaces can be made; otherwise says on the real standard error that `what` is skipped.
pub fn can_mount_or_say_skipped(what: &str) -> bool {
    let tried = Command::new(RUNTIME).args(["--mount", "mount", "--bind", "/tmp", "/tmp"]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        // Nothing better can be done when standard error is closed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: needs root, to mount what a container has");
    }
    can
}

/// A container that is being prepared.
#[derive(Debug)]
pub struct Container {
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
    /// A container below `directory`, with `program` as `entrypoint` and the libraries that it is linked with.
    ///
    /// # Errors
    /// A file cannot be made, or a library is missing.
    pub fn new(directory: &Path, program: &Path, entrypoint: &str) -> anyhow::Result<Self> {
        let mut container = Self {
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

    /// Arguments of [`RUNTIME`] that start `command` in the container. The process has no capabilities and cannot get any.
    ///
    /// # Errors
    /// The list of mounts cannot be written.
    pub fn arguments(&self, command: &[String]) -> anyhow::Result<Vec<OsString>> {
        let list = self.directory.join("mounts");
        let lines = self.mounts.iter().map(|(from, to)| format!("{} {to}\n", from.display()));
        std::fs::write(&list, lines.collect::<String>())?;
        let mut arguments: Vec<OsString> = ["--mount", "sh", "-c", SCRIPT, "sh"].map(OsString::from).to_vec();
        arguments.extend([self.root().into(), list.into(), self.read_only.to_string().into()]);
        arguments.extend(self.environment.iter().map(|(name, value)| format!("{name}={value}").into()));
        // By its path, since the environment is the container's already.
        arguments.push(chroot()?.into());
        arguments.push(format!("--userspec={}:{}", self.user, self.group).into());
        arguments.push(format!("--groups={}", self.extra_group.map(|g| g.to_string()).unwrap_or_default()).into());
        arguments.push(self.root().into());
        arguments.extend(command.iter().map(OsString::from));
        Ok(arguments)
    }
}

/// The machine's `chroot`, which is not everywhere in the same place.
fn chroot() -> anyhow::Result<PathBuf> {
    let places = ["/usr/sbin/chroot", "/usr/bin/chroot", "/sbin/chroot", "/bin/chroot"].map(PathBuf::from);
    places.into_iter().find(|path| path.is_file()).context("no chroot")
}

/// Files of the shared libraries that a program is linked with, the loader among them.
///
/// # Errors
/// There is no `ldd`, or a library is not found.
pub fn shared_libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8(output.stdout)?;
    anyhow::ensure!(output.status.success(), "ldd says nothing about {}: {text}", program.display());
    libraries(&text)
}

/// Reads `name => file (address)` and `file (address)`; the kernel's own has no file.
fn libraries(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, file) = line.split_once(" => ").unwrap_or((line, line));
        anyhow::ensure!(file != "not found", "{name} is not found");
        if let Some(path) = file.split_whitespace().next().filter(|path| path.starts_with('/')) {
            files.push(path.into());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text =
            "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            libraries(text).unwrap(),
            [PathBuf::from("/lib/x/libc.so.6"), PathBuf::from("/lib64/ld-linux-x86-64.so.2")]
        );
        assert!(libraries("\tlibz.so.1 => not found\n").is_err());
    }
}
