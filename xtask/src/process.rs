//! Running other programs.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::root;

/// The cargo that runs us, in the repository's root.
///
/// It is not told of this package, as what cargo runs is: build scripts that depend on such
/// variables (ring's) would run again, and everything above them would be built again, each time
/// after cargo was called by hand.
pub(crate) fn cargo() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        }) {
            command.env_remove(name);
        }
    }
    command.current_dir(root()?);
    Ok(command)
}

/// Runs a program and fails when it does.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("run {}", name(command)))?;
    anyhow::ensure!(status.success(), "{} failed: {status}", name(command));
    Ok(())
}

/// Runs a program and returns what it printed; its messages go to ours.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    command.stderr(Stdio::inherit());
    let output = command
        .output()
        .with_context(|| format!("run {}", name(command)))?;
    anyhow::ensure!(output.status.success(), "{} failed: {}", name(command), output.status);
    String::from_utf8(output.stdout)
        .with_context(|| format!("read the output of {}", name(command)))
}

/// Writes text to a file, or to standard output when none is given.
pub(crate) fn write(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match path {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
        }
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

/// Whether a program is there and ends well; what it prints is not shown.
pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Program and first argument, such as `cargo test`.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    match command.get_args().next() {
        Some(first) => format!("`{program} {}`", first.to_string_lossy()),
        None => format!("`{program}`"),
    }
}
