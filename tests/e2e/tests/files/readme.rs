//! The first page, and the page for those who decide: short, true to what was measured, and complete.

use anyhow::Context as _;

use crate::cases;
use crate::docs::{read, rows};
use crate::plain::Case;

/// Two screens.
const LINES: usize = 90;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_readme_is_two_screens_long_at_most,
        figures_of_the_readme_are_those_of_the_benchmarks,
        what_is_there_for_adopters_has_a_place_and_a_state,
    ]
}

fn the_readme_is_two_screens_long_at_most() -> anyhow::Result<()> {
    let lines = read("README.md")?.lines().count();
    assert!(lines <= LINES, "{lines} lines");
    Ok(())
}

/// Each pair of figures stands in one row of the benchmarks, so that new measurements reach the first page.
fn figures_of_the_readme_are_those_of_the_benchmarks() -> anyhow::Result<()> {
    let (readme, benchmarks) = (read("README.md")?, read("docs/benchmarks.md")?);
    let measured: Vec<Vec<&str>> = benchmarks
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.split('|').filter_map(figure).collect())
        .collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for row in rows(&readme, 3) {
        let (Some(ours), Some(theirs)) = (figure(row[1]), figure(row[2])) else {
            continue;
        };
        compared += 1;
        if !measured
            .iter()
            .any(|row| row.contains(&ours) && row.contains(&theirs))
        {
            wrong.push(format!("{}: {ours} and {theirs}", row[0]));
        }
    }
    assert!(compared >= 6, "only {compared} rows with figures: is the table still read?");
    assert!(wrong.is_empty(), "in no row of docs/benchmarks.md:\n{}", wrong.join("\n"));
    Ok(())
}

/// The number that a cell begins with, as it is written.
fn figure(cell: &str) -> Option<&str> {
    let first = cell.split_whitespace().next()?;
    first
        .starts_with(|c: char| c.is_ascii_digit())
        .then_some(first)
}

fn what_is_there_for_adopters_has_a_place_and_a_state() -> anyhow::Result<()> {
    let page = read("docs/adoption.md")?;
    let rows = rows(&page, 3);
    let wanted = [
        "Quick start",
        "Documentation site",
        "Images",
        "Helm chart",
        "Signatures, provenance, SBOM",
        "Compatibility",
        "Support, deprecation",
        "Upgrades",
        "Security policy",
    ];
    for what in wanted {
        rows.iter()
            .find(|row| row[0] == what)
            .with_context(|| format!("no row {what}"))?;
    }
    let open: Vec<_> = rows
        .iter()
        .filter(|row| row.iter().any(|cell| cell.is_empty() || *cell == "–"))
        .map(|row| row[0])
        .collect();
    assert!(open.is_empty(), "with an empty cell: {open:?}");
    Ok(())
}
