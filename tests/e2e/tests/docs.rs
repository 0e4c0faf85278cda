//! The documentation names files and tests: each of them must exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// Placeholder for what is not filled in yet.
const OPEN: &str = "PENDING";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> anyhow::Result<String> {
    let path = root().join(path);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Returns the cells of every row of every table with `columns` columns, headers left out.
fn rows(text: &str, columns: usize) -> Vec<Vec<&str>> {
    let lines: Vec<_> = text.lines().collect();
    let is_rule = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("|---"));
    let is_row = |at: usize| lines[at].starts_with('|') && !is_rule(at) && !is_rule(at + 1);
    let table = (0..lines.len()).filter(|at| is_row(*at));
    table.map(|at| cells(lines[at])).filter(|cells| cells.len() == columns).collect()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns what stands in back-ticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn is_test_name(text: &str) -> bool {
    text.contains('_') && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Collects the names of all tests: functions with a test attribute, and in the end-to-end suites also functions over a
/// scenario and strings that look like names, because suites with a main of their own name their tests so.
fn tests_in_the_tree() -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && name != "docs.rs" {
                collect(&read(&path)?, path.starts_with(root().join("tests/e2e")), &mut names);
            }
        }
    }
    Ok(names)
}

fn collect(source: &str, strings: bool, names: &mut BTreeSet<String>) {
    let mut has_attribute = false;
    for line in source.lines().map(str::trim) {
        let function =
            line.split_once("fn ").filter(|(before, _)| matches!(*before, "" | "async " | "pub(crate) async "));
        if line.starts_with("#[") {
            has_attribute |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some((before, rest)) = function {
            // A case of a suite with a main of its own; unused ones would be a warning.
            let alone = |word: &str| rest.contains(&format!("({word}: &Scenario) ->"));
            let on_stage = before.starts_with("pub") && rest.contains("(stage: &mut Stage<'_>) ->");
            let is_case = strings && (alone("s") || alone("scenario")) || on_stage;
            if has_attribute || is_case {
                names.extend(rest.split('(').next().map(str::to_owned));
            }
            has_attribute = false;
        } else if !line.starts_with("//") {
            has_attribute = false;
        }
        if strings {
            names.extend(line.split('"').skip(1).step_by(2).filter(|text| is_test_name(text)).map(str::to_owned));
        }
    }
}

/// Checks the last column of a page: names of tests that exist, or a reason why there is none.
fn check_tests(page: &str, columns: usize, at_least: usize) -> anyhow::Result<()> {
    let text = read(page)?;
    let rows = rows(&text, columns);
    assert!(rows.len() >= at_least, "{page} has {} rows only: is its table still read?", rows.len());
    let known = tests_in_the_tree()?;
    let mut wrong = Vec::new();
    for row in rows {
        let cell = row[columns - 1];
        let excused = cell.starts_with("does not apply") || cell.contains(OPEN);
        if !excused && quoted(cell).next().is_none() {
            wrong.push(format!("{:?} names no test", row[0]));
        }
        let names = quoted(cell).filter(|name| !excused || is_test_name(name));
        wrong.extend(names.filter(|name| !known.contains(*name)).map(|name| format!("there is no test {name}")));
    }
    assert!(wrong.is_empty(), "{page}:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn files_in_the_architecture_table_exist() -> anyhow::Result<()> {
    let text = read("docs/architecture.md")?;
    let rows = rows(&text, 2);
    assert!(rows.len() >= 40, "only {} rows: is the table still read?", rows.len());
    let wrong: Vec<_> = rows
        .iter()
        .filter(|row| !row[1].contains(OPEN))
        .filter(|row| quoted(row[1]).next().is_none_or(|path| !root().join(path).exists()))
        .map(|row| row.join(": "))
        .collect();
    assert!(wrong.is_empty(), "these files do not exist:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn tests_in_the_comparison_exist_and_every_weakness_has_its_row() -> anyhow::Result<()> {
    check_tests("docs/compare.md", 4, 14)?;
    let text = read("docs/compare.md")?;
    let have: Vec<_> = rows(&text, 4).into_iter().map(|row| row[0].to_owned()).collect();
    let plain = |numbers: std::ops::RangeInclusive<u32>| numbers.map(|n| format!("W{n}"));
    // The seventeenth are eight.
    let lettered = ('a'..='h').map(|letter| format!("W17{letter}"));
    let want: Vec<_> = plain(1..=16).chain(lettered).chain(plain(18..=40)).collect();
    assert_eq!(have, want);
    Ok(())
}

#[test]
fn tests_in_the_catalogue_exist() -> anyhow::Result<()> {
    check_tests("docs/catalogue.md", 2, 60)?;
    check_tests("docs/catalogue-aws.md", 2, 90)
}

/// Every code of the AWS catalogue: a part of it that loses its rows would be missed by nobody.
#[test]
fn the_catalogue_of_aws_has_every_case() -> anyhow::Result<()> {
    let text = read("docs/catalogue-aws.md")?;
    let mut have = BTreeSet::new();
    for row in rows(&text, 2) {
        for part in row[0].split([' ', ',']).filter(|part| part.starts_with(|c: char| c.is_ascii_uppercase())) {
            let number = |code: &str| code.trim_start_matches(|c: char| c.is_ascii_uppercase()).parse::<u32>();
            let kind =
                part.trim_end_matches(|c: char| !c.is_ascii_uppercase()).split(|c: char| c.is_ascii_digit()).next();
            let (first, last) = part.split_once('–').unwrap_or((part, part));
            if let (Some(kind), Ok(first), Ok(last)) = (kind, number(first), number(last)) {
                have.extend((first..=last).map(|number| format!("{kind}{number}")));
            }
        }
    }
    let cases = [
        ("CF", 21),
        ("IN", 21),
        ("TO", 2),
        ("ZO", 1),
        ("RE", 4),
        ("ME", 1),
        ("NA", 4),
        ("VA", 8),
        ("SU", 5),
        ("SG", 9),
        ("HC", 2),
        ("TG", 5),
        ("EN", 2),
        ("TA", 4),
        ("TC", 2),
        ("E", 8),
        ("LB", 12),
        ("OU", 9),
    ];
    let want = cases.iter().flat_map(|(kind, last)| (1..=*last).map(move |number| format!("{kind}{number}")));
    let missing: Vec<_> = want.filter(|code| !have.contains(code)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    Ok(())
}

#[test]
fn tests_are_recognised_by_their_attribute_as_a_string_or_by_their_scenario() {
    let source = "#[test]\nfn in_a() {}\nfn not_b() {}\n#[tokio::test(start_paused = true)]\n/// Doc.\nasync fn in_c() {\n\
                  Trial::test(\"in_d\", run)\n#[derive(Debug)]\nfn not_e() {}\n\
                  async fn in_f(s: &Scenario) -> Result {}\nasync fn not_g(s: &Scenario, n: &str) -> Result {}\n\
                  pub(crate) async fn in_h(stage: &mut Stage<'_>) -> Result {}\n\
                  async fn not_i(stage: &mut Stage<'_>) -> Result {}";
    for (strings, want) in [(true, &["in_a", "in_c", "in_d", "in_f", "in_h"][..]), (false, &["in_a", "in_c", "in_h"])] {
        let mut names = BTreeSet::new();
        collect(source, strings, &mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), want);
    }
}

#[test]
fn nothing_in_the_documentation_is_pending() -> anyhow::Result<()> {
    let pages = [
        "README.md",
        "docs/architecture.md",
        "docs/catalogue.md",
        "docs/catalogue-aws.md",
        "docs/compare.md",
        "docs/provider-guide.md",
        "docs/providers/aws.md",
    ];
    let mut open = Vec::new();
    for page in pages {
        let text = read(page)?;
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains(OPEN));
        open.extend(lines.map(|(at, line)| format!("{page}:{}: {line}", at + 1)));
    }
    assert!(open.is_empty(), "still to be filled in:\n{}", open.join("\n"));
    Ok(())
}
