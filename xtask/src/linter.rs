//! Programs of others that find mistakes in files which nothing here can run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

/// A linter. It reads the files that its arguments name, or standard input for `-`.
#[derive(Debug)]
pub(crate) struct Linter {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Where it is.
    pub(crate) program: PathBuf,
    /// Arguments before those that name files.
    pub(crate) options: &'static [&'static str],
    /// A file with mistakes: who finds none reads nothing.
    pub(crate) broken: &'static str,
    /// What is said of each of them.
    pub(crate) broken_findings: &'static [&'static str],
}

impl Linter {
    /// Sees it reject the broken file, and has it check ours; without names, those that it finds in the folder.
    pub(crate) fn check(&self, folder: &Path, files: &[&str]) -> anyhow::Result<()> {
        self.ensure_rejected(&self.run(folder, &["-"], Some(self.broken))?)?;
        let (accepted, text) = self.run(folder, files, None)?;
        anyhow::ensure!(accepted, "{} finds mistakes:\n{text}", self.name);
        Ok(())
    }

    /// Says whether a run on the broken file found everything.
    fn ensure_rejected(&self, (accepted, text): &(bool, String)) -> anyhow::Result<()> {
        let overlooked = self
            .broken_findings
            .iter()
            .find(|finding| !text.contains(**finding));
        anyhow::ensure!(
            !accepted && overlooked.is_none(),
            "{} overlooks mistakes in a broken file ({}):\n{text}",
            self.name,
            overlooked.unwrap_or(&"its exit code is 0")
        );
        Ok(())
    }

    /// Runs it. Returns whether it accepts what it read, and what it says.
    fn run(
        &self,
        folder: &Path,
        files: &[&str],
        input: Option<&str>,
    ) -> anyhow::Result<(bool, String)> {
        let mut linter = Command::new(&self.program);
        linter
            .current_dir(folder)
            .args(self.options)
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = linter
            .spawn()
            .with_context(|| format!("run {}", self.name))?;
        if let (Some(mut stdin), Some(text)) = (child.stdin.take(), input) {
            std::io::Write::write_all(&mut stdin, text.as_bytes())
                .with_context(|| format!("write to {}", self.name))?;
        }
        let output = child
            .wait_with_output()
            .with_context(|| format!("wait for {}", self.name))?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linter_that_overlooks_mistakes_is_not_believed() {
        let linter = Linter {
            name: "it",
            program: PathBuf::new(),
            options: &[],
            broken: "",
            broken_findings: &["first", "second"],
        };
        let judge = |text: &str, accepted| {
            linter
                .ensure_rejected(&(accepted, text.to_owned()))
                .map_err(|error| error.to_string())
        };
        judge("first and second", false).unwrap();
        let accepted = judge("first and second", true).unwrap_err();
        assert!(accepted.contains("its exit code is 0"), "{accepted}");
        let overlooked = judge("first alone", false).unwrap_err();
        assert!(overlooked.contains("(second)"), "{overlooked}");
    }
}
