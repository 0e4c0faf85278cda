//! What of an image can be judged without a container engine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

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
