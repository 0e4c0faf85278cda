//! Runs the program of an image as a container engine would, without one: on the image's own root
//! file system, read-only, as its user, with its environment, without privileges.
//!
//! Needs Linux, and root or user namespaces that everybody may make.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::Context as _;
use flate2::read::GzDecoder;
use serde_json::Value;

use super::oci;

/// `$1` is the root file system; then a command.
const SCRIPT: &str = r#"
set -eu
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
shift
exec setpriv --no-new-privs "$@"
"#;

/// What lets this machine's user make a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Root,
    UserNamespace,
}

impl Method {
    fn find() -> anyhow::Result<Self> {
        let works = |method: &Self| {
            let mut command = method.command(Path::new("/usr"));
            let tried = match method {
                Self::Root => command.arg("true"),
                Self::UserNamespace => {
                    command.args(["unshare", "--user", "--map-user=65532", "true"])
                }
            };
            tried.output().is_ok_and(|output| output.status.success())
        };
        [Self::Root, Self::UserNamespace].into_iter().find(works).context(
            "no container can be made: that needs root, or user namespaces that everybody may make, and mounts",
        )
    }

    /// Starts a command that sees `root` read-only.
    fn command(self, root: &Path) -> Command {
        let mut command = Command::new("unshare");
        if self == Self::UserNamespace {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args(["--mount", "sh", "-c", SCRIPT, "sh"])
            .arg(root);
        command
    }
}

/// Runs the program of an archive.
pub(super) fn run(archive: &[u8], arguments: &[&str]) -> anyhow::Result<Output> {
    let method = Method::find()?;
    let image = oci::read(archive)?;
    let folder = tempfile::tempdir().context("make a temporary folder")?;
    let root = folder.path().join("root");
    std::fs::create_dir(&root)?;
    for layer in &image.layers {
        let mut layer = tar::Archive::new(GzDecoder::new(&**layer));
        layer.set_preserve_permissions(true);
        layer.set_preserve_ownerships(method == Method::Root);
        layer.unpack(&root).context("unpack a layer")?;
    }
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let config = &image.config["config"];
    let user = config["User"].as_str().context("the image has no user")?;
    let (user, group) = user.split_once(':').context("the image has no group")?;
    let mut command = method.command(&root);
    command.args(["env", "-i"]).args(texts(&config["Env"]));
    match method {
        Method::Root => {
            command
                .arg("chroot")
                .arg(format!("--userspec={user}:{group}"))
                .arg("--groups=");
            command.arg(&root)
        }
        // A namespace of the container's only user: the one around it has nobody but root.
        Method::UserNamespace => {
            command
                .args(["unshare", "--user"])
                .arg(format!("--map-user={user}"));
            command
                .arg(format!("--map-group={group}"))
                .arg("--root")
                .arg(&root)
                .arg("--wd=/")
        }
    };
    command.args(texts(&config["Entrypoint"])).args(arguments);
    command.output().context("run unshare")
}
