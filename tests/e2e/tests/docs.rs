//! The documentation names files and tests: each of them must exist.

use std::{
    collections::{BTreeMap, BTreeSet},
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

/// Collects the names of all tests: functions with a test attribute, and in the end-to-end suites and the main files of
/// providers' suites also functions over a scenario and strings that look like names, because suites with a main of their
/// own name their tests so.
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
                let suite = path.starts_with(root().join("providers")) && path.ends_with("main.rs");
                let suite = suite && path.components().any(|part| part.as_os_str() == "tests");
                collect(&read(&path)?, suite || path.starts_with(root().join("tests/e2e")), &mut names);
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
            let on_stage = ["(stage: &mut Stage<'_>) ->", "(stage: &mut Stage) ->"];
            let on_stage = before.starts_with("pub") && on_stage.iter().any(|signature| rest.contains(signature));
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
    check_tests("docs/catalogue-aws.md", 2, 90)?;
    check_tests("docs/catalogue-openstack.md", 2, 80)
}

/// Every code of the AWS catalogue: a part of it that loses its rows would be missed by nobody.
#[test]
fn the_catalogue_of_aws_has_every_case() -> anyhow::Result<()> {
    let have = codes_of_rows("docs/catalogue-aws.md", 1)?;
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
    let missing: Vec<_> = want.filter(|code| !have.contains_key(code)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    Ok(())
}

/// Returns what covers each code that the rows of a page begin with: `AB1`, `AB1–AB3`, with numbers of so many digits.
fn codes_of_rows(page: &str, digits: usize) -> anyhow::Result<BTreeMap<String, String>> {
    let text = read(page)?;
    let mut have = BTreeMap::new();
    for row in rows(&text, 2) {
        for code in row[0].split([' ', ',']).flat_map(|part| codes(part, digits)) {
            have.insert(code, row[1].to_owned());
        }
    }
    Ok(have)
}

/// Reads a code or a range of them; none where the text is something else.
fn codes(part: &str, digits: usize) -> Vec<String> {
    let number = |code: &str| code.trim_start_matches(|c: char| c.is_ascii_uppercase()).parse::<u32>();
    let kind = part.split(|c: char| !c.is_ascii_uppercase()).next().filter(|kind| !kind.is_empty());
    let (first, last) = part.split_once('–').unwrap_or((part, part));
    match (kind, number(first), number(last)) {
        (Some(kind), Ok(first), Ok(last)) => (first..=last).map(|number| format!("{kind}{number:0digits$}")).collect(),
        _ => Vec::new(),
    }
}

/// Every code of the OpenStack catalogue; and each that stands above a test leads to that test.
#[test]
fn the_catalogue_of_openstack_has_every_case_and_the_tests_that_claim_it() -> anyhow::Result<()> {
    let have = codes_of_rows("docs/catalogue-openstack.md", 2)?;
    let cases = [
        ("P", 11),
        ("S", 13),
        ("N", 7),
        ("R", 3),
        ("C", 17),
        ("M", 7),
        ("U", 5),
        ("L", 23),
        ("O", 7),
        ("B", 5),
        ("H", 4),
        ("X", 6),
        ("A", 26),
        ("D", 15),
        ("F", 6),
        ("I", 12),
        ("G", 7),
        ("E", 10),
        ("V", 5),
        ("Q", 11),
    ];
    let want = cases.iter().flat_map(|(kind, last)| (1..=*last).map(move |number| format!("{kind}{number:02}")));
    let missing: Vec<_> = want.filter(|code| !have.contains_key(code)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");

    let (mut claims, mut wrong) = (0, Vec::new());
    for (code, test) in claimed(&root().join("providers/openstack/src"))? {
        claims += 1;
        if !have.get(&code).is_some_and(|cell| quoted(cell).any(|name| name == test)) {
            wrong.push(format!("{test} says that it covers {code}, and the row of that names another"));
        }
    }
    assert!(claims >= 190, "only {claims} codes above tests: are they still read?");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Collects the codes in comments above tests, with the tests.
fn claimed(folder: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(claimed(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let mut above = Vec::new();
            for line in read(&path)?.lines().map(str::trim) {
                if let Some(comment) = line.strip_prefix("// ") {
                    let words = comment.split([' ', ',', '.', ':', ';']).filter(|word| !word.is_empty());
                    above.extend(words.map_while(|word| codes(word, 2).into_iter().next()));
                } else if let Some((_, rest)) = line.split_once("fn ") {
                    let name = rest.split('(').next().unwrap_or_default();
                    found.extend(above.drain(..).map(|code| (code, name.to_owned())));
                } else if !line.starts_with("#[") {
                    above.clear();
                }
            }
        }
    }
    Ok(found)
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
        "docs/catalogue-openstack.md",
        "docs/compare.md",
        "docs/provider-guide.md",
        "docs/providers/aws.md",
        "docs/providers/writing-a-provider.md",
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
