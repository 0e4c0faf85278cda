//! Finds dependencies that nothing uses, or tests alone.
//!
//! The compiler says nothing of them, and tools that ask it need every crate to be built for them.
//! Here a crate's name is looked for in the sources, as something that a path begins with:
//! `name::`, `use name`, `name!`. A module of the same name hides a crate that is not used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

use super::{Finding, lexer};
use crate::process;

/// Packages with dependencies whose names their sources do not have.
const EXCEPTIONS: [(&str, &str); 9] = [
    // Features that some members bring and others do not: through the testkit whatever is built for
    // tests has all of them.
    ("ccm-testkit", "clap"),
    ("ccm-testkit", "digest"),
    ("ccm-testkit", "sha2"),
    ("ccm-testkit", "time"),
    // The same for the one crate that is tested without the testkit.
    ("ccm-core", "clap"),
    ("ccm-core", "time"),
    // The framework chooses no version of Kubernetes; a program does, by a feature.
    ("ccm-meadow", "k8s-openapi"),
    ("ccm-quarry", "k8s-openapi"),
    // Used by a file of ccm-e2e's tests, which is included by its path.
    ("ccm-realcluster", "pulldown-cmark"),
];

/// Packages whose library has another name.
const LIBRARIES: [(&str, &str); 1] = [("md-5", "md5")];

/// Where a manifest has a dependency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DependencySection {
    #[default]
    Normal,
    Dev,
    Build,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace, as cargo describes it.
#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
    kind: Option<DependencySection>,
}

impl Dependency {
    /// What the sources call it.
    fn library(&self) -> String {
        let name = self.rename.as_ref().unwrap_or(&self.name);
        let other = LIBRARIES.iter().find(|(package, _)| package == name);
        other.map_or_else(|| name.replace('-', "_"), |(_, library)| (*library).to_owned())
    }
}

/// The sources of a package, without comments and literals: what each kind of dependency is for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sources {
    pub(super) program: String,
    tests: String,
    build: String,
}

/// Looks at every member of the workspace. The paths of all files are given below the root.
pub(super) fn check(root: &Path, files: &[&Path]) -> anyhow::Result<Vec<Finding>> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let metadata: Metadata =
        serde_json::from_str(&process::output(&mut cargo)?).context("read cargo's metadata")?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let manifest = package
            .manifest_path
            .strip_prefix(root)
            .unwrap_or(&package.manifest_path);
        let folder = manifest.parent().unwrap_or(Path::new(""));
        let mut texts = BTreeMap::new();
        for file in files
            .iter()
            .filter_map(|path| path.strip_prefix(folder).ok())
        {
            let full = root.join(folder).join(file);
            if file.extension().is_some_and(|extension| extension == "rs") && full.is_file() {
                let text = std::fs::read_to_string(&full)
                    .with_context(|| format!("read {}", full.display()))?;
                texts.insert(file.to_owned(), text);
            }
        }
        let lines = std::fs::read_to_string(root.join(manifest)).context("read a manifest")?;
        for (dependency, message) in problems(package, &sources(&texts), &EXCEPTIONS) {
            let names = |line: &str| line.split(['.', '=', ' ']).next() == Some(dependency);
            let line = lines.lines().position(names).map_or(1, |at| at + 1);
            findings.push(Finding::new(manifest, line, message));
        }
        for (_, dependency) in EXCEPTIONS
            .iter()
            .filter(|(owner, _)| *owner == package.name)
        {
            if !package
                .dependencies
                .iter()
                .any(|known| known.name == *dependency)
            {
                let message = format!("an exception names `{dependency}`, which is no dependency");
                findings.push(Finding::new(manifest, 1, message));
            }
        }
    }
    Ok(findings)
}

/// The dependencies of a package that are wrong where they are, and why.
fn problems<'a>(
    package: &'a Package,
    sources: &Sources,
    exceptions: &[(&str, &str)],
) -> Vec<(&'a str, String)> {
    let mut found = Vec::new();
    for dependency in &package.dependencies {
        let name = &*dependency.name;
        let excepted = exceptions.contains(&(&*package.name, name));
        match misplaced(dependency, sources) {
            Some(message) if !excepted => found.push((name, message)),
            None if excepted => {
                found.push((name, format!("`{name}` is used, and needs no exception")));
            }
            _ => {}
        }
    }
    found
}

fn misplaced(dependency: &Dependency, sources: &Sources) -> Option<String> {
    let (name, library) = (&dependency.name, dependency.library());
    let [program, tests, build] =
        [&sources.program, &sources.tests, &sources.build].map(|text| is_used(text, &library));
    match dependency.kind.unwrap_or_default() {
        DependencySection::Normal if !program && tests => {
            Some(format!("`{name}` is used by tests alone: it is a dev-dependency"))
        }
        DependencySection::Normal if !program => Some(format!("`{name}` is not used")),
        // What the program uses has more features for tests.
        DependencySection::Dev if !tests && !program => {
            Some(format!("`{name}` is not used by tests"))
        }
        DependencySection::Build if !build => {
            Some(format!("`{name}` is not used by the build script"))
        }
        _ => None,
    }
}

/// Puts the files of a package, by their paths in it, where they belong.
fn sources(texts: &BTreeMap<PathBuf, String>) -> Sources {
    let mut sources = Sources::default();
    let split: Vec<_> = texts
        .iter()
        .map(|(path, text)| (path, Split::of(path, text)))
        .collect();
    let of_tests: Vec<&PathBuf> = split.iter().flat_map(|(_, split)| &split.modules).collect();
    for (path, split) in &split {
        let module = path.with_extension("");
        let into = match path
            .components()
            .next()
            .and_then(|first| first.as_os_str().to_str())
        {
            Some("src") if !of_tests.iter().any(|test| module.starts_with(test)) => {
                &mut sources.program
            }
            Some("build.rs") => &mut sources.build,
            Some("src" | "tests" | "benches" | "examples") => &mut sources.tests,
            // Folders of other programs, with manifests of their own.
            _ => continue,
        };
        into.push_str(&without_groups(&split.program));
        sources.tests.push_str(&without_groups(&split.tests));
    }
    sources
}

/// A file, cut into what is always compiled and what is compiled for tests.
pub(super) struct Split {
    pub(super) program: String,
    tests: String,
    /// Modules in files of their own that are compiled for tests, as paths without extension.
    pub(super) modules: Vec<PathBuf>,
}

impl Split {
    pub(super) fn of(path: &Path, text: &str) -> Self {
        let (raw, code): (Vec<char>, Vec<char>) =
            (text.chars().collect(), lexer::blank_literals(text).chars().collect());
        let mut split = Self {
            program: String::new(),
            tests: String::new(),
            modules: Vec::new(),
        };
        let mut at = 0;
        while at < code.len() {
            if !["#[cfg(test)]", "#[cfg(all(test,"]
                .iter()
                .any(|attribute| starts_with(&code[at..], attribute))
            {
                split.program.push(code[at]);
                at += 1;
                continue;
            }
            let end = item_end(&code, at);
            let item: String = code[at..end].iter().collect();
            if let Some(name) = module(&item) {
                let attribute: String = raw[at..end].iter().collect();
                split.modules.push(file_of(path, name, &attribute));
            }
            split.tests.push_str(&item);
            // Lines stay where they are.
            split.program.extend(item.chars().filter(|c| *c == '\n'));
            at = end;
        }
        split
    }
}

fn starts_with(code: &[char], word: &str) -> bool {
    word.chars()
        .enumerate()
        .all(|(at, c)| code.get(at) == Some(&c))
}

/// Where the item with the attribute ends: after its block, or its semicolon.
fn item_end(code: &[char], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.iter().enumerate().skip(from) {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && matches!(c, '}' | ';') {
            return at + 1;
        }
    }
    code.len()
}

/// The name of the module that the item says is in a file of its own.
fn module(item: &str) -> Option<&str> {
    let (before, name) = item.strip_suffix(';')?.rsplit_once("mod ")?;
    let is_name = |text: &str| !text.is_empty() && text.chars().all(lexer::is_ident);
    (is_name(name) && before.ends_with([' ', '\n'])).then_some(name)
}

/// The file of a module, without extension.
fn file_of(path: &Path, name: &str, attribute: &str) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    let given = attribute
        .split_once("#[path = \"")
        .and_then(|(_, rest)| rest.split_once('"'));
    if let Some((given, _)) = given {
        return folder.join(given).with_extension("");
    }
    let stem = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    if matches!(stem, "lib" | "main" | "mod") {
        folder.join(name)
    } else {
        folder.join(stem).join(name)
    }
}

/// The code without what stands in braces after `::`: in `std::{time::Duration}` no crate `time` is
/// meant.
fn without_groups(code: &str) -> String {
    let (mut out, mut depth) = (String::with_capacity(code.len()), 0_usize);
    for c in code.chars() {
        match c {
            '{' if depth > 0 || out.ends_with("::") => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

/// Whether a path in the code begins with the crate, or a macro of that name is called.
fn is_used(code: &str, library: &str) -> bool {
    code.match_indices(library).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + library.len()..]);
        let begins = match before.strip_suffix("::") {
            // `::name` is the crate, `other::name` is not.
            Some(other) => !other.ends_with(|c: char| lexer::is_ident(c) || c == '>'),
            None => !before.ends_with(lexer::is_ident),
        };
        let imported = before.ends_with("use ") || before.ends_with("extern crate ");
        begins
            && (after.starts_with("::")
                || after.starts_with('!')
                || imported && after.starts_with([';', ' ']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(dependencies: &[(&str, DependencySection)]) -> Package {
        let dependency = |(name, kind): &(&str, DependencySection)| Dependency {
            name: (*name).to_owned(),
            rename: None,
            kind: Some(*kind),
        };
        let dependencies = dependencies.iter().map(dependency).collect();
        Package {
            name: "it".to_owned(),
            manifest_path: PathBuf::new(),
            dependencies,
        }
    }

    fn of(files: &[(&str, &str)]) -> Sources {
        sources(
            &files
                .iter()
                .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn a_crate_is_used_where_a_path_begins_with_it() {
        let used = [
            "use url;",
            "use url::Url;",
            "use {url::Url};",
            "::url::parse()",
            "#[url::test]",
            "url!(1)",
        ];
        for code in used.into_iter().chain([
            "extern crate url;",
            "use url as other;",
            "fn f() -> url::Url {}",
        ]) {
            assert!(is_used(code, "url"), "{code}");
        }
        for code in [
            "use curl::Url;",
            "use urls::Url;",
            "crate::url::Url",
            "let url = 1;",
            "x.url",
            "<A>::url::b",
        ] {
            assert!(!is_used(code, "url"), "{code}");
        }
    }

    #[test]
    fn what_is_imported_from_elsewhere_is_no_crate() {
        let code = "use std::{time::Duration, sync::{http::A}};\nuse {tower::B, kube::{hyper::C}};\nfn f() { url::d() }";
        let flat = without_groups(code);
        for (name, used) in [
            ("std", true),
            ("time", false),
            ("http", false),
            ("tower", true),
            ("hyper", false),
            ("url", true),
        ] {
            assert_eq!(is_used(&flat, name), used, "{name} in {flat}");
        }
    }

    #[test]
    fn what_is_not_used_and_what_tests_alone_use_is_found() {
        let files = [
            (
                "src/lib.rs",
                "use http::Uri; // governor::x\n#[cfg(test)]\nmod tests { use time_x::Now; }",
            ),
            ("tests/it.rs", "use tempfile::tempdir; use http::Uri;"),
            ("other/src/lib.rs", "use governor::Quota;"),
            ("build.rs", "use cc::Build;"),
        ];
        let package = package(&[
            ("http", DependencySection::Normal),
            ("governor", DependencySection::Normal),
            ("time-x", DependencySection::Normal),
            ("tempfile", DependencySection::Dev),
            ("proptest", DependencySection::Dev),
            ("http", DependencySection::Dev),
            ("cc", DependencySection::Build),
            ("http", DependencySection::Build),
        ]);
        let found: Vec<String> = problems(&package, &of(&files), &[])
            .into_iter()
            .map(|(_, message)| message)
            .collect();
        let wanted = [
            "`governor` is not used",
            "`time-x` is used by tests alone: it is a dev-dependency",
            "`proptest` is not used by tests",
            "`http` is not used by the build script",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_exception_is_for_what_is_not_used() {
        let package =
            package(&[("http", DependencySection::Normal), ("url", DependencySection::Normal)]);
        let sources = of(&[("src/lib.rs", "use http::Uri;")]);
        assert_eq!(problems(&package, &sources, &[("it", "url")]), []);
        let found = problems(&package, &sources, &[("it", "url"), ("it", "http")]);
        assert_eq!(found, [("http", "`http` is used, and needs no exception".to_owned())]);
        assert_eq!(problems(&package, &sources, &[("another", "url")]).len(), 1);
    }

    #[test]
    fn modules_for_tests_alone_are_followed_into_their_files() {
        let sources = of(&[
            ("src/lib.rs", "#[cfg(test)]\nmod fake;\nmod a;\n"),
            ("src/fake.rs", "use one::A;"),
            ("src/fake/deep.rs", "use two::A;"),
            ("src/fakes.rs", "use three::A;"),
            (
                "src/a.rs",
                "#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;\n#[cfg(test)]\nmod more;\n",
            ),
            ("src/a_tests.rs", "use four::A;"),
            ("src/a/more.rs", "use five::A;"),
            (
                "src/a/less.rs",
                "#[cfg(test)]\nfn f() { six::a(); }\nuse seven::A;\n#[cfg(test)]\nuse eight::{A};\n",
            ),
        ]);
        for (name, program) in [
            ("one", false),
            ("two", false),
            ("three", true),
            ("four", false),
            ("five", false),
            ("six", false),
            ("seven", true),
            ("eight", false),
        ] {
            assert_eq!(
                (is_used(&sources.program, name), is_used(&sources.tests, name)),
                (program, !program),
                "{name}"
            );
        }
    }
}
