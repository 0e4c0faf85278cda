//! The table of values in the chart's README, from the comments in `values.yaml`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::{CHART, GeneratedFile, read};

const BEGIN: &str = "<!-- The values: made by `cargo xtask chart` from values.yaml. -->\n";
const END: &str = "<!-- The end of the values. -->\n";

pub(super) fn make(root: &Path) -> anyhow::Result<GeneratedFile> {
    let chart = root.join(CHART);
    let path = chart.join("README.md");
    let text = read(&path)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .with_context(|| format!("no line {BEGIN:?} in the chart's README"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("no line {END:?} in the chart's README"))?;
    let tables = tables(&read(&chart.join("values.yaml"))?)?;
    Ok(GeneratedFile {
        path,
        content: format!("{before}{BEGIN}{tables}\n{END}{after}"),
    })
}

/// A heading and a table for each part of the file.
fn tables(values: &str) -> anyhow::Result<String> {
    let mut tables = String::new();
    for item in items(values)? {
        match item {
            Item::Part(name) => {
                write!(tables, "\n### {name}\n\n| Value | Default | Meaning |\n|---|---|---|\n")?;
            }
            Item::Value(Value { path, default, meaning }) => {
                let meaning = meaning.replace('|', "\\|");
                writeln!(
                    tables,
                    "| `{path}` | {} | {meaning} |",
                    default.as_deref().unwrap_or("see `values.yaml`")
                )?;
            }
        }
    }
    Ok(tables)
}

#[derive(Debug, PartialEq)]
enum Item {
    /// `## …`
    Part(String),
    Value(Value),
}

#[derive(Debug, PartialEq)]
struct Value {
    /// Names with dots between them.
    path: String,
    /// As written; `None` when it is longer than a line.
    default: Option<String>,
    meaning: String,
}

/// Reads the part of YAML that `values.yaml` is written in: block mappings, whose leaves have a
/// comment above them. A block with a comment is one value, whatever is in it.
fn items(values: &str) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    // Indentation and name of the mappings that we are in.
    let mut above: Vec<(usize, &str)> = Vec::new();
    // Indentation of the documented block that we are in.
    let mut inside: Option<usize> = None;
    for (number, line) in values.lines().enumerate() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if inside.is_some_and(|block| text.is_empty() || indent > block) {
            continue;
        }
        inside = None;
        if let Some(part) = text.strip_prefix("## ") {
            items.push(Item::Part(part.to_owned()));
        } else if let Some(more) = text.strip_prefix("# ") {
            comment.push(more);
        } else if text.is_empty() {
            // A comment that belongs to no key.
            comment.clear();
        } else {
            let (name, default) = text
                .split_once(':')
                .with_context(|| format!("values.yaml:{}: no key: {text}", number + 1))?;
            above.retain(|(outer, _)| *outer < indent);
            above.push((indent, name));
            let path = above
                .iter()
                .map(|(_, name)| *name)
                .collect::<Vec<_>>()
                .join(".");
            let default = default.trim();
            if comment.is_empty() {
                if !default.is_empty() {
                    bail!("values.yaml:{}: {path} has no comment above it", number + 1);
                }
                continue;
            }
            inside = default.is_empty().then_some(indent);
            let default = (!default.is_empty()).then(|| format!("`{default}`"));
            items.push(Item::Value(Value {
                path,
                default,
                meaning: std::mem::take(&mut comment).join(" "),
            }));
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(path: &str, default: Option<&str>, meaning: &str) -> Item {
        let (default, meaning) = (default.map(str::to_owned), meaning.to_owned());
        Item::Value(Value { path: path.to_owned(), default, meaning })
    }

    #[test]
    fn leaves_and_documented_blocks_are_values() {
        let text = "# About the file.\n\n## First\n\n# One\n# line.\na: 1\nb:\n  # Deep.\n  c: \"\"\n  d:\n    # Deeper.\n    e: []\n# A block.\nf:\n  - key: x\n    # not a value\n    other: y\n# Last.\ng: z\n";
        assert_eq!(
            items(text).unwrap(),
            [
                Item::Part("First".to_owned()),
                value("a", Some("`1`"), "One line."),
                value("b.c", Some("`\"\"`"), "Deep."),
                value("b.d.e", Some("`[]`"), "Deeper."),
                value("f", None, "A block."),
                value("g", Some("`z`"), "Last."),
            ]
        );
    }

    #[test]
    fn a_value_without_a_comment_is_a_mistake() {
        let error = items("# X.\na: 1\nb:\n  c: 2\n").unwrap_err().to_string();
        assert_eq!(error, "values.yaml:4: b.c has no comment above it");
    }
}
