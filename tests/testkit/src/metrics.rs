//! Parses the reference page of metrics and a scrape into one form, and compares them.

use std::collections::{BTreeMap, BTreeSet};

/// A metric family as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Names of its labels.
    pub labels: BTreeSet<String>,
}

/// Parses the tables of `docs/reference/metrics.md`.
///
/// # Panics
/// Panics if a row does not have the form of the table.
pub fn documented(page: &str) -> BTreeMap<String, Family> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 8, "{row}");
        let label = |text: &str| {
            text.split(':')
                .next()
                .unwrap_or_default()
                .trim()
                .trim_matches('`')
                .to_owned()
        };
        let labels = cells[3]
            .split(';')
            .map(label)
            .filter(|label| !label.is_empty())
            .collect();
        (cells[1].trim_matches('`').to_owned(), Family { kind: cells[2].to_owned(), labels })
    })
    .collect()
}

/// Parses a scrape in Prometheus' text format.
pub fn scraped(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            families
                .insert(name.to_owned(), Family { kind: kind.to_owned(), labels: BTreeSet::new() });
        } else if let Some((series, labels)) =
            line.split_once('{').filter(|_| !line.starts_with('#'))
        {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| series.strip_suffix(suffix));
            let name = base.filter(|base| {
                families
                    .get(*base)
                    .is_some_and(|family| family.kind == "histogram")
            });
            if let Some(family) = families.get_mut(name.unwrap_or(series)) {
                family
                    .labels
                    .extend(names_of(labels).filter(|label| label != "le"));
            }
        }
    }
    families
}

/// Returns the label names in `a="x",b="y"} 1`; values may contain any character.
fn names_of(labels: &str) -> impl Iterator<Item = String> {
    let mut names = Vec::new();
    let (mut name, mut quoted, mut escaped) = (String::new(), false, false);
    for c in labels.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '=' => names.push(std::mem::take(&mut name)),
            '}' => break,
            ',' => {}
            c => name.push(c),
        }
    }
    names.into_iter()
}

/// Describes the differences between the documented families and those of a scrape. Families that
/// begin with one of `absent` may be missing from the scrape.
pub fn differences(
    documented: &BTreeMap<String, Family>,
    scraped: &BTreeMap<String, Family>,
    absent: &[&str],
) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, family) in documented {
        match scraped.get(name) {
            Some(seen) if seen != family => {
                differences.push(format!("{name} is {seen:?}, documented as {family:?}"));
            }
            None if !absent.iter().any(|prefix| name.starts_with(prefix)) => {
                differences.push(format!("{name} is missing"));
            }
            _ => {}
        }
    }
    let undocumented = scraped
        .keys()
        .filter(|name| !documented.contains_key(*name));
    differences.extend(undocumented.map(|name| format!("{name} is not documented")));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| Name | Type | Labels | Buckets | Meaning | Upstream's |
|---|---|---|---|---|---|
| `a_total` | counter | `x`: `1`, `2`; `y` |  | Things. | no |
| `b` | gauge |  |  | A thing. | yes |
| `c_seconds` | histogram | `x` | 1, 2 | Time. | yes |
";
    const SCRAPE: &str = "\
# HELP a_total Things.
# TYPE a_total counter
a_total{x=\"1\",y=\"=,{}\\\"z=\"} 1
# TYPE b gauge
b 2
# TYPE c_seconds histogram
c_seconds_bucket{x=\"1\",le=\"1\"} 0
c_seconds_sum{x=\"1\"} 0
c_seconds_count{x=\"1\"} 0
";

    #[test]
    fn a_page_and_its_scrape_agree() {
        let (page, scrape) = (documented(PAGE), scraped(SCRAPE));
        assert_eq!(page, scrape);
        assert_eq!(differences(&page, &scrape, &[]), [""; 0]);
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let page = documented(PAGE);
        for (from, to, said) in [
            ("b 2", "b{x=\"1\"} 2", "b is Family"),
            ("# TYPE b gauge", "# TYPE b counter", "b is Family"),
            ("# TYPE b gauge", "# TYPE d gauge", "b is missing; d is not documented"),
            ("c_seconds_sum{x=", "c_seconds_sum{z=", "c_seconds is Family"),
        ] {
            let found = differences(&page, &scraped(&SCRAPE.replace(from, to)), &[]).join("; ");
            assert!(found.starts_with(said), "{to}: {found}");
        }
        let without = scraped(&SCRAPE.replace("# TYPE b gauge", ""));
        assert_eq!(differences(&page, &without, &["b"]), [""; 0]);
    }
}
