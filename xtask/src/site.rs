//! Builds the documentation site with mdBook, and checks that its links lead somewhere.
//!
//! Pages stay where contributors read them. They are copied, in the same directories, to where
//! mdBook reads them, so that relative links keep their meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::markdown::{self, NewLink};
use crate::{control_plane, process, root};

/// Version of mdBook.
const VERSION: &str = "0.5.4";
/// Its configuration, and its table of contents with links relative to this directory.
const SOURCE: &str = "site";

/// Builds the site in `target/site/book`.
pub(crate) fn run() -> anyhow::Result<()> {
    let mdbook = install()?;
    let root = root()?;
    let stage = control_plane::target()?.join("site");
    let pages = stage_pages(&root, &stage)?;
    process::run(Command::new(mdbook).arg("build").arg(&stage))?;
    let book = stage.join("book");
    let broken = broken_links(&read_pages(&book)?, |path| book.join(path).is_file());
    anyhow::ensure!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    println!("site: {pages} pages in {}", book.display());
    Ok(())
}

/// Installs mdBook, without its server, into the target directory.
fn install() -> anyhow::Result<PathBuf> {
    let tools = control_plane::target()?
        .join("tools")
        .join(format!("mdbook-{VERSION}"));
    let program = tools.join("bin/mdbook");
    if !program.is_file() {
        println!("building mdBook {VERSION}; this takes some minutes, once");
        let mut cargo = process::cargo()?;
        cargo.args(["install", "mdbook", "--version", VERSION, "--locked", "--quiet"]);
        cargo.args(["--no-default-features", "--features", "search", "--root"]);
        // It builds some dozens of pages: that need not be fast.
        cargo
            .arg(&tools)
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        process::run(&mut cargo)?;
    }
    Ok(program)
}

/// Copies the pages of the table of contents, and other files that they link to. Returns the number
/// of pages.
fn stage_pages(root: &Path, stage: &Path) -> anyhow::Result<usize> {
    if stage.exists() {
        std::fs::remove_dir_all(stage).with_context(|| format!("clear {}", stage.display()))?;
    }
    let source = root.join(SOURCE);
    let contents = read(&source.join("SUMMARY.md"))?;
    let pages = pages_of(&contents);
    let missing = missing_pages(root, &pages)?;
    anyhow::ensure!(missing.is_empty(), "not in {SOURCE}/SUMMARY.md: {}", missing.join(", "));
    write(&stage.join("book.toml"), &read(&source.join("book.toml"))?)?;
    write(&stage.join("src/SUMMARY.md"), contents.replace("](../", "]("))?;
    for page in &pages {
        let text = read(&root.join(page))?;
        for file in linked_files(page, &text) {
            let is_other_file = root.join(&file).is_file() && !pages.contains(&file);
            if is_other_file {
                // It may be a picture, so it is not read as text.
                let source = root.join(&file);
                let content =
                    std::fs::read(&source).with_context(|| format!("read {}", source.display()))?;
                write(&stage.join("src").join(&file), content)?;
            }
        }
        let text = without_directories(root, page, &text);
        write(&stage.join("src").join(page), with_index_pages(&text))?;
    }
    Ok(pages.len())
}

/// Returns the pages that the table of contents names, relative to the root.
fn pages_of(contents: &str) -> BTreeSet<PathBuf> {
    linked_files(&Path::new(SOURCE).join("SUMMARY.md"), contents)
}

/// Returns the pages in `docs` that the table of contents does not name.
fn missing_pages(root: &Path, pages: &BTreeSet<PathBuf>) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "docs/*.md"]);
    let tracked = process::output(&mut git)?;
    Ok(tracked
        .lines()
        .filter(|page| !pages.contains(Path::new(page)))
        .map(str::to_owned)
        .collect())
}

/// Returns the files to which a page links, relative to the root.
fn linked_files(page: &Path, text: &str) -> BTreeSet<PathBuf> {
    markdown::links(text)
        .iter()
        .filter(|link| is_file(&link.target))
        .filter_map(|link| markdown::resolve(page, &link.target))
        .collect()
}

/// Replaces links to directories without a page by their text: a site cannot show them.
fn without_directories(root: &Path, page: &Path, text: &str) -> String {
    markdown::rewrite(text, |link| {
        if !is_file(link) {
            return None;
        }
        let target = root.join(markdown::resolve(page, link)?);
        if !target.is_dir() {
            return None;
        }
        if target.join("README.md").is_file() {
            Some(NewLink::To(format!("{}/README.md", link.trim_end_matches('/'))))
        } else {
            Some(NewLink::Text)
        }
    })
}

/// Replaces links to a `README.md`, from which mdBook makes the page `index.html`.
fn with_index_pages(text: &str) -> String {
    markdown::rewrite(text, |link| {
        if !is_file(link) {
            return None;
        }
        let (file, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
        let directory = file.strip_suffix("README.md")?;
        Some(NewLink::To(format!("{directory}index.md{anchor}")))
    })
}

/// Returns whether a link leads to a file beside the page that has it.
fn is_file(link: &str) -> bool {
    markdown::is_local(link) && !link.starts_with('#')
}

/// Reads the pages of a built site, by path relative to its root.
fn read_pages(book: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    let mut directories = vec![book.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(&directory)
            .with_context(|| format!("list {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "html")
            {
                let text = read(&path)?;
                pages.insert(path.strip_prefix(book)?.to_owned(), text);
            }
        }
    }
    anyhow::ensure!(!pages.is_empty(), "no pages in {}", book.display());
    Ok(pages)
}

/// Returns the relative links of pages to files and anchors that do not exist.
fn broken_links(pages: &BTreeMap<PathBuf, String>, is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (page, text) in pages {
        // These have all pages in one, and links relative to those.
        if page == Path::new("print.html") || page == Path::new("404.html") {
            continue;
        }
        let hrefs = text
            .split(" href=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        for link in hrefs.filter(|link| markdown::is_local(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let found = match markdown::resolve(page, file) {
                None => false,
                Some(target) if anchor.is_empty() => is_file(&target),
                Some(target) => pages
                    .get(&target)
                    .is_some_and(|text| text.contains(&format!("id=\"{anchor}\""))),
            };
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    broken
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("create {}", directory.display()))?;
    }
    std::fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_names_every_page_of_the_documentation() {
        let root = root().unwrap();
        let contents = read(&root.join(SOURCE).join("SUMMARY.md")).unwrap();
        let pages = pages_of(&contents);
        assert_eq!(missing_pages(&root, &pages).unwrap(), [""; 0]);
        for page in &pages {
            assert!(root.join(page).is_file(), "{} does not exist", page.display());
        }
        let without: BTreeSet<_> = pages.iter().skip(20).cloned().collect();
        assert!(!missing_pages(&root, &without).unwrap().is_empty());
    }

    #[test]
    fn links_to_directories_become_links_to_their_page_or_text() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["docs", "rbac", "examples"] {
            std::fs::create_dir(root.path().join(directory)).unwrap();
        }
        std::fs::write(root.path().join("rbac/README.md"), "x").unwrap();
        let text = "[a](../rbac/) [`b`](../examples) [c](../examples) [d](e.md)";
        assert_eq!(
            without_directories(root.path(), Path::new("docs/a.md"), text),
            "[a](../rbac/README.md) `b` c [d](e.md)"
        );
    }

    #[test]
    fn links_to_a_readme_become_links_to_the_index() {
        let text = "[a](README.md) [b](../x/README.md#top) [c](https://example.org/README.md)\n\n    [d](README.md)";
        assert_eq!(
            with_index_pages(text),
            "[a](index.md) [b](../x/index.md#top) [c](https://example.org/README.md)\n\n    [d](README.md)"
        );
    }

    #[test]
    fn broken_links_and_anchors_are_found() {
        let page = |text: &str| text.to_owned();
        let pages = BTreeMap::from([
            (PathBuf::from("index.html"), page("<h2 id=\"top\"><a href=\"#top\"><a href=\"#no\">")),
            (
                PathBuf::from("docs/a.html"),
                page(
                    "<a href=\"../index.html#top\"><a href=\"../index.html#gone\">\
                     <a href=\"b.yaml\"><a href=\"c.html\"><a href=\"https://example.org/x\">\
                     <a href=\"../../outside.html\">",
                ),
            ),
        ]);
        assert_eq!(
            broken_links(&pages, |path| path == Path::new("docs/b.yaml")),
            [
                "docs/a.html: ../index.html#gone",
                "docs/a.html: c.html",
                "docs/a.html: ../../outside.html",
                "index.html: #no"
            ]
        );
    }
}
