//! How the modules of a crate may depend on each other: no circles, and in the framework no
//! dependency on a higher floor.
//!
//! Modules are files. A module may use its parent and its children, so a folder counts as one thing
//! with several files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{
    Finding, cryptography,
    dependencies::Split,
    lexer::tokens,
    paths::{chain, use_tree},
};

/// The top-level modules of the framework, from the lowest floor to the highest. A module uses its
/// own floor and lower ones.
const FLOORS: [&[&str]; 10] = [
    &["crypto", "error", "k8s", "percent", "redact", "write_gate"],
    &["config"],
    &["telemetry"],
    &["provider"],
    &["runtime"],
    &["check", "controllers", "explain"],
    &["adoption"],
    &["manager"],
    &["app"],
    &["fuzz"],
];

/// The crate that has floors.
const FRAMEWORK: &str = "ccm-core";

/// Crates that are checked for circles. The local OpenStack is left out: the resources of its
/// services refer to each other, as they do in OpenStack.
const CRATES: [&str; 6] = [
    FRAMEWORK,
    "providers/aws",
    "providers/mock",
    "providers/openstack",
    "providers/openstack-api",
    "xtask",
];

/// What stands before the name of an item.
const ITEM_KEYWORDS: [&str; 8] =
    ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

/// Path of a module in its crate: `["runtime", "api"]`; empty for the crate's root.
type ModulePath = Vec<String>;

/// Something that a module names: the path in the crate, and the line.
#[derive(Debug)]
struct Use {
    path: ModulePath,
    line: usize,
}

/// One file.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    uses: Vec<Use>,
    /// What `use` gives a name here: the name, and the path that it stands for. A private import is
    /// a name for the children too.
    imports: BTreeMap<String, ModulePath>,
    /// Modules of which everything is imported.
    globs: Vec<ModulePath>,
    /// Names of the items that it declares.
    items: BTreeSet<String>,
}

/// The modules of one crate.
type Modules = BTreeMap<ModulePath, Module>;

/// Checks all crates; `files` are paths below the workspace's root.
pub(super) fn check(root: &Path, files: &[&Path]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for krate in CRATES {
        let folder = Path::new(krate).join("src");
        let mut texts = BTreeMap::new();
        for path in files
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        {
            if let Ok(below) = path.strip_prefix(&folder)
                && let Ok(text) = std::fs::read_to_string(root.join(path))
            {
                texts.insert(below.to_owned(), text);
            }
        }
        anyhow::ensure!(!texts.is_empty(), "{krate} has no sources");
        if cryptography::PROGRAMS.contains(&krate) {
            findings.extend(cryptography::check(&folder, &texts));
        }
        let modules = modules(&texts);
        let mut found = circles(&modules);
        if krate == FRAMEWORK {
            found.extend(upward(&modules));
        }
        findings.extend(
            found
                .into_iter()
                .map(|finding| Finding { path: folder.join(finding.path), ..finding }),
        );
    }
    Ok(findings)
}

/// Reads the modules of a crate that are not compiled for tests alone, by their paths below `src`.
fn modules(texts: &BTreeMap<PathBuf, String>) -> Modules {
    let split: BTreeMap<&PathBuf, Split> = texts
        .iter()
        .map(|(path, text)| (path, Split::of(path, text)))
        .collect();
    let of_tests: Vec<&PathBuf> = split.values().flat_map(|split| &split.modules).collect();
    let has_library = texts.contains_key(Path::new("lib.rs"));
    let is_program = |path: &Path| {
        let module = path.with_extension("");
        // The binary beside a library is a crate of its own, which the library cannot use.
        let is_other_crate = has_library && path == Path::new("main.rs");
        !is_other_crate && !of_tests.iter().any(|test| module.starts_with(test))
    };
    let files: Vec<(&PathBuf, &Split)> = split
        .iter()
        .filter(|(path, _)| is_program(path))
        .map(|(path, split)| (*path, split))
        .collect();
    let all: BTreeSet<ModulePath> = files.iter().map(|(path, _)| module_path(path)).collect();
    let read = |(path, split): (&PathBuf, &Split)| {
        let mut module = read_module(path, &split.program, &all);
        module
            .uses
            .extend(uses_in_attributes(&module_path(path), &texts[path], &split.program));
        (module_path(path), module)
    };
    files.into_iter().map(read).collect()
}

/// Reads the paths in attributes such as `#[serde(with = "crate::duration")]`. The second text is
/// the first one without literals and tests, line by line.
fn uses_in_attributes(own: &[String], text: &str, program: &str) -> Vec<Use> {
    let mut uses = Vec::new();
    for (number, (line, code)) in text.lines().zip(program.lines()).enumerate() {
        if !code.contains('=') {
            continue;
        }
        let Some((_, value)) = line.split_once("= \"") else {
            continue;
        };
        let Some((value, _)) = value.split_once('"') else {
            continue;
        };
        let path: Vec<&str> = value.split("::").collect();
        if let Some(path) = absolute(own, &path) {
            uses.push(Use { path, line: number + 1 });
        }
    }
    uses
}

fn module_path(file: &Path) -> ModulePath {
    let mut path: ModulePath = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if path
        .last()
        .is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main"))
    {
        path.pop();
    }
    path
}

/// Reads what a file names below its own crate: leaves of `use` trees, and paths that begin with
/// `crate`, `self`, `super`.
fn read_module(file: &Path, code: &str, all: &BTreeSet<ModulePath>) -> Module {
    let own = module_path(file);
    // `use child::Item` means the module of that name, which hides a crate.
    let full_path = |path: &[&str]| {
        let child: ModulePath = own
            .iter()
            .cloned()
            .chain(path.first().map(|name| (*name).to_owned()))
            .collect();
        if all.contains(&child) {
            absolute(&own, &[&["self"], path].concat())
        } else {
            absolute(&own, path)
        }
    };
    let tokens = tokens(code);
    let mut module = Module { file: file.to_owned(), ..Module::default() };
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        if token.text == "use" && tokens.get(at + 1).is_some_and(|next| next.text != "<") {
            let mut leaves = Vec::new();
            let end = use_tree(&tokens, at + 1, &[], &mut leaves);
            for leaf in leaves {
                let Some(mut path) = full_path(&leaf.path) else {
                    continue;
                };
                if leaf.name == "*" {
                    path.pop();
                    module.globs.push(path.clone());
                } else {
                    module.imports.insert(leaf.name.to_owned(), path.clone());
                }
                module.uses.push(Use { path, line: leaf.line });
            }
            at = end;
        } else if matches!(token.text, "crate" | "self" | "super")
            && tokens.get(at + 1).is_some_and(|t| t.text == "::")
        {
            let (path, after) = chain(&tokens, at);
            at = after;
            if let Some(path) = absolute(&own, &path) {
                module.uses.push(Use { path, line: token.line });
            }
        } else {
            if ITEM_KEYWORDS.contains(&token.text)
                && let Some(name) = tokens.get(at + 1)
            {
                module.items.insert(name.text.to_owned());
            }
            at += 1;
        }
    }
    module
}

/// Returns the path in the crate; `None` for other crates.
fn absolute(own: &[String], path: &[&str]) -> Option<ModulePath> {
    let mut base = own.to_vec();
    let mut rest = path;
    match *path.first()? {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first() == Some(&"super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        _ => return None,
    }
    // `a::{self}` is `a`.
    base.extend(
        rest.iter()
            .filter(|part| **part != "self")
            .map(|part| (*part).to_owned()),
    );
    Some(base)
}

/// Returns the module in which a path ends, through what modules import.
fn resolve(modules: &Modules, path: &[String]) -> Option<ModulePath> {
    let mut path = path.to_vec();
    // A chain of imports is short; a circle of them would not compile.
    for _ in 0..8 {
        let length = (0..=path.len())
            .rev()
            .find(|length| modules.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let Some(name) = rest.first() else {
            return Some(module.to_vec());
        };
        match imported(modules, &modules[module], name) {
            Some(target) if target != path => {
                path = target.iter().chain(&rest[1..]).cloned().collect();
            }
            _ => return Some(module.to_vec()),
        }
    }
    None
}

/// Returns the path that a name stands for in a module that imports it, by itself or with
/// everything of another module.
fn imported(modules: &Modules, module: &Module, name: &str) -> Option<ModulePath> {
    let from_glob = || {
        let source = module.globs.iter().find(|glob| {
            modules
                .get(*glob)
                .is_some_and(|source| source.items.contains(name))
        })?;
        Some(source.iter().cloned().chain([name.to_owned()]).collect())
    };
    module.imports.get(name).cloned().or_else(from_glob)
}

/// Whether one of the modules contains the other.
fn are_relatives(a: &[String], b: &[String]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Which modules each module uses, other than its parents and children, with the line of the first
/// use.
fn edges(modules: &Modules) -> BTreeMap<&ModulePath, BTreeMap<ModulePath, usize>> {
    let mut edges = BTreeMap::new();
    for (path, module) in modules {
        let mut used = BTreeMap::new();
        for one in &module.uses {
            if let Some(target) =
                resolve(modules, &one.path).filter(|target| !are_relatives(path, target))
            {
                used.entry(target).or_insert(one.line);
            }
        }
        edges.insert(path, used);
    }
    edges
}

/// Modules that use each other, directly or around a corner.
fn circles(modules: &Modules) -> Vec<Finding> {
    let edges = edges(modules);
    let mut findings = Vec::new();
    for (from, used) in &edges {
        for (to, line) in used {
            let mut seen = BTreeSet::new();
            let mut open = vec![to];
            while let Some(next) = open.pop() {
                if seen.insert(next) {
                    open.extend(edges[next].keys());
                }
            }
            if seen.contains(from) {
                let message = format!(
                    "`{}` uses `{}`, which uses it again: move what both need below them",
                    from.join("::"),
                    to.join("::")
                );
                findings.push(Finding::new(&modules[*from].file, *line, message));
            }
        }
    }
    findings
}

/// Modules of the framework that use a higher floor.
fn upward(modules: &Modules) -> Vec<Finding> {
    let floor = |path: &[String]| {
        let top = path.first()?;
        FLOORS
            .iter()
            .position(|floor| floor.contains(&top.as_str()))
    };
    let mut findings = Vec::new();
    for (path, module) in modules.iter().filter(|(path, _)| !path.is_empty()) {
        let Some(own) = floor(path) else {
            let message = format!("`{}` is on no floor: add it to FLOORS", path.join("::"));
            findings.push(Finding::new(&module.file, 1, message));
            continue;
        };
        for one in &module.uses {
            let Some(target) = resolve(modules, &one.path) else {
                continue;
            };
            if floor(&target).is_some_and(|floor| floor > own) {
                let message = format!(
                    "`{}` may not use `{}`, which is on a higher floor",
                    path.join("::"),
                    target.join("::")
                );
                findings.push(Finding::new(&module.file, one.line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Modules {
        modules(
            &files
                .iter()
                .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
                .collect(),
        )
    }

    fn said(findings: &[Finding]) -> Vec<String> {
        findings
            .iter()
            .map(|finding| format!("{}:{}", finding.path.display(), finding.line))
            .collect()
    }

    #[test]
    fn a_circle_is_found_wherever_it_is_closed() {
        let closed = [
            ("direct", "use super::b::B;", "use crate::a::A;"),
            ("in a tree", "use crate::{b::{B, C}, x};", "use super::{a, y};"),
            ("in code", "fn f() { crate::b::f() }", "fn f() { super::a::f() }"),
            ("through a re-export", "use crate::Other;", "use crate::a::A;"),
            ("under another name", "use super::b as other;", "use super::a::{self as it};"),
            ("in an attribute", "#[serde(with = \"crate::b::B\")] struct X;", "use crate::a::A;"),
            ("through a plain re-export", "use crate::Unused;", "use crate::a::A;"),
            ("through a glob", "use crate::B;", "use crate::a::A; pub struct B;"),
            ("through a private import", "use super::Private;", "use crate::a::A;"),
        ];
        for (name, a, b) in closed {
            let lib = "pub mod a;\npub mod b;\npub use b::B as Unused;\npub use self::b::B as Other;\nuse b::B as Private;\npub use b::*;\n";
            let modules =
                of(&[("lib.rs", lib), ("main.rs", "mod a;"), ("a.rs", a), ("b/mod.rs", b)]);
            assert_eq!(said(&circles(&modules)), ["a.rs:1", "b/mod.rs:1"], "{name}");
        }
        let around = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "#[cfg(test)]\nuse crate::c::C;\nuse crate::c::C;"),
            ("c.rs", "use crate::a::A;"),
        ];
        assert_eq!(said(&circles(&of(&around))), ["a.rs:1", "b.rs:3", "c.rs:1"]);
    }

    #[test]
    fn relatives_tests_and_other_crates_are_no_circle() {
        for (a, b) in [
            ("use super::b::B;", "use other::a::A;"),
            ("use super::b::B;", "// use super::a;\nfn f() { \"crate::a::f\" }"),
            (
                "use super::b::B;",
                "#[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod more;",
            ),
        ] {
            let modules =
                of(&[("lib.rs", ""), ("a.rs", a), ("b.rs", b), ("b_tests.rs", "use crate::a::A;")]);
            assert_eq!(said(&circles(&modules)), [""; 0], "{b}");
        }
        let family = [
            ("a/mod.rs", "use self::b::B;"),
            ("a/b.rs", "use super::A;"),
            ("a/b/c.rs", "use crate::a::A;"),
        ];
        assert_eq!(said(&circles(&of(&family))), [""; 0]);
    }

    #[test]
    fn an_arrow_to_a_higher_floor_is_found() {
        let modules = of(&[
            ("lib.rs", ""),
            ("provider/mod.rs", "use crate::k8s::Node;\nuse crate::runtime::api::Api;"),
            ("runtime/api.rs", "use crate::{provider::Error, manager};"),
            ("k8s.rs", "fn f(x: crate::config::Config) {}"),
            ("attic.rs", ""),
        ]);
        let modules_of_all = of(&[
            ("lib.rs", ""),
            ("config.rs", ""),
            ("manager.rs", ""),
            ("provider/mod.rs", "use crate::k8s::Node;\nuse crate::runtime::api::Api;"),
            ("runtime/mod.rs", ""),
            ("runtime/api.rs", "use crate::{provider::Error, manager};"),
            ("k8s.rs", "fn f(x: crate::config::Config) {}"),
        ]);
        assert_eq!(said(&upward(&modules)), ["attic.rs:1", "provider/mod.rs:2"]);
        assert_eq!(
            said(&upward(&modules_of_all)),
            ["k8s.rs:1", "provider/mod.rs:2", "runtime/api.rs:1"]
        );
    }
}
