//! Notices of the packages that are linked into a program: every licence and notice that they
//! carry, each text once.
//!
//! Licences that only ask for their notice to be kept ask for it in copies of the program, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::program::{Metadata, Package, Program, parts};
use crate::{process, root};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    program: Program,
    /// Where they are written; standard output unless given
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Beginnings of the names of files with licences and notices, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];
/// Endings of files that are something else, whatever they are called.
const OTHER_ENDINGS: [&str; 8] = ["c", "go", "h", "json", "py", "rs", "sh", "toml"];
/// Folders whose files are not linked.
const OTHER_FOLDERS: [&str; 4] = ["benches", "examples", "target", "tests"];

/// The MIT licence without its first lines, which name the authors.
const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the \"Software\"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
";

/// Writes the notices.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    process::write(arguments.output.as_deref(), &make(&arguments.program)?)
}

/// Makes the notices of a program, in Markdown.
pub(crate) fn make(program: &Program) -> anyhow::Result<String> {
    let metadata = program.metadata()?;
    let apache = std::fs::read_to_string(root()?.join("LICENSE")).context("read LICENSE")?;
    let linked = linked(&metadata, &program.package)?;
    let mut texts = Texts::default();
    let mut rows = String::new();
    for package in &linked {
        rows += &row(package, &mut texts, &apache)?;
    }
    let main = metadata.member(&program.package)?;
    let mut page = format!(
        "# Third-party notices of {} {}\n\n\
         The packages that are linked into this program, with the licences and notices that each of them carries. The \
         numbers lead to the texts below. Where a package carries no text, a star stands at that of the licence which its \
         manifest names.\n\n\
         | Package | Licence | Authors, as the manifest names them | Texts |\n|---|---|---|---|\n{rows}",
        main.name, main.version
    );
    page += &texts.sections();
    Ok(page)
}

/// Returns the packages of others that are linked into the program, by name and version.
fn linked<'a>(metadata: &'a Metadata, name: &str) -> anyhow::Result<Vec<&'a Package>> {
    let parts = parts(metadata, &metadata.member(name)?.id);
    let mut linked: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some() && parts.get(&*package.id) == Some(&true))
        .collect();
    linked.sort_by_key(|package| (&package.name, &package.version));
    Ok(linked)
}

/// Describes a package in a row of the table.
fn row(package: &Package, texts: &mut Texts, apache: &str) -> anyhow::Result<String> {
    let name = format!("{} {}", package.name, package.version);
    let license = package.license.as_deref().unwrap_or_default();
    let mut numbers = BTreeSet::new();
    for file in files(package)? {
        let text = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        numbers.insert(texts.number(&String::from_utf8_lossy(&text), &name));
    }
    let mut numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    if numbers.is_empty() {
        let text = standard(license, apache).with_context(|| {
            format!("{name} carries no licence text, and none is known for `{license}`")
        })?;
        numbers.push(format!("{}*", texts.number(text, &name)));
    }
    let authors = package.authors.join(", ").replace('|', "\\|");
    Ok(format!("| {name} | {license} | {authors} | {} |\n", numbers.join(", ")))
}

/// Returns the text of a licence for packages without one.
fn standard<'a>(expression: &str, apache: &'a str) -> Option<&'a str> {
    let offers = |name| {
        expression
            .split([' ', '/', '(', ')'])
            .any(|word| word == name)
    };
    let is_choice = expression.contains(" OR ") || expression.contains('/');
    match (offers("Apache-2.0"), offers("MIT")) {
        // What must be kept together has no single text.
        _ if !is_choice && expression.contains(' ') => None,
        (true, _) => Some(apache),
        (false, true) => Some(MIT),
        (false, false) => None,
    }
}

/// Finds the licences and notices of a package, in order.
fn files(package: &Package) -> anyhow::Result<BTreeSet<PathBuf>> {
    let folder = package
        .manifest_path
        .parent()
        .context("a manifest is in a folder")?;
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("list {}; `cargo fetch` helps", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_lowercase();
            if path.is_dir() {
                folders.extend((!OTHER_FOLDERS.contains(&&*name)).then_some(path));
            } else if is_notice(&name) {
                found.insert(path);
            }
        }
    }
    found.extend(package.license_file.as_ref().map(|file| folder.join(file)));
    Ok(found)
}

/// Whether a file with this name, in lower case, has a licence or a notice.
fn is_notice(name: &str) -> bool {
    let ending = Path::new(name).extension().unwrap_or_default();
    NAMES.iter().any(|start| name.starts_with(start))
        && !OTHER_ENDINGS.iter().any(|other| ending == *other)
}

/// Texts in the order of their first use, each once, however its lines are broken.
#[derive(Default)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    /// The text, and the packages that carry it.
    texts: Vec<(String, BTreeSet<String>)>,
}

impl Texts {
    /// Returns the number of a text, which this package carries.
    fn number(&mut self, text: &str, package: &str) -> usize {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let number = *self.numbers.entry(words).or_insert_with(|| {
            self.texts.push((text.to_owned(), BTreeSet::new()));
            self.texts.len()
        });
        if let Some((_, packages)) = self.texts.get_mut(number - 1) {
            packages.insert(package.to_owned());
        }
        number
    }

    /// Returns a section for each text.
    fn sections(&self) -> String {
        let mut page = String::new();
        for (at, (text, packages)) in self.texts.iter().enumerate() {
            let packages: Vec<_> = packages.iter().map(String::as_str).collect();
            // Writing to a string cannot fail.
            let _ = write!(page, "\n## Text {}\n\n{}\n\n", at + 1, packages.join(", "));
            for line in text.trim_matches('\n').lines() {
                page += format!("    {line}").trim_end();
                page.push('\n');
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Makes a package with these files in a folder of `root`.
    fn package(root: &Path, name: &str, license: &str, files: &[(&str, &str)]) -> Package {
        let folder = root.join(name);
        std::fs::create_dir(&folder).unwrap();
        for (file, text) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        serde_json::from_value(json!({
            "id": name, "name": name, "version": "1.0.0", "license": license, "targets": [], "source": "registry",
            "authors": ["Ann | Bob"], "manifest_path": folder.join("Cargo.toml"),
        }))
        .unwrap()
    }

    #[test]
    fn each_text_is_there_once_and_each_package_leads_to_all_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("LICENSE-MIT", "Copyright A\nbe free"),
            ("NOTICE", "by A"),
            ("third_party/b/COPYING", "Copyright B"),
            ("src/license.rs", "wrong"),
            ("tests/LICENSE", "wrong"),
            ("README.md", "wrong"),
        ];
        let a = package(root.path(), "a", "MIT", &files);
        let b = package(root.path(), "b", "MIT", &[("license.md", "\nCopyright A be\nfree\n")]);
        let mut texts = Texts::default();
        let rows = [row(&a, &mut texts, "apache").unwrap(), row(&b, &mut texts, "apache").unwrap()];
        assert_eq!(
            rows,
            [
                "| a 1.0.0 | MIT | Ann \\| Bob | 1, 2, 3 |\n",
                "| b 1.0.0 | MIT | Ann \\| Bob | 1 |\n"
            ]
        );
        assert_eq!(
            texts.sections(),
            "\n## Text 1\n\na 1.0.0, b 1.0.0\n\n    Copyright A\n    be free\n\
             \n## Text 2\n\na 1.0.0\n\n    by A\n\
             \n## Text 3\n\na 1.0.0\n\n    Copyright B\n"
        );
    }

    #[test]
    fn a_package_without_a_text_gets_that_of_its_licence_or_is_an_error() {
        for (license, expected) in [
            ("Apache-2.0", Some("apache")),
            ("MIT", Some(MIT)),
            ("MIT/Apache-2.0", Some("apache")),
            ("MIT OR Zlib", Some(MIT)),
            ("MIT AND Zlib", None),
            ("Apache-2.0 WITH LLVM-exception", None),
            ("Zlib", None),
            ("", None),
        ] {
            assert_eq!(standard(license, "apache"), expected, "{license}");
        }
        let root = tempfile::tempdir().unwrap();
        let mut texts = Texts::default();
        let bare = package(root.path(), "bare", "MIT", &[("README.md", "")]);
        assert!(
            row(&bare, &mut texts, "apache")
                .unwrap()
                .ends_with("| 1* |\n")
        );
        let odd = package(root.path(), "odd", "Zlib", &[]);
        let error = row(&odd, &mut texts, "apache").unwrap_err().to_string();
        assert_eq!(error, "odd 1.0.0 carries no licence text, and none is known for `Zlib`");
    }
}
