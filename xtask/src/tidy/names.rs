//! Names that say nothing, and home-made words for what the field has a word for; see
//! `docs/glossary.md`.

use std::path::Path;

use super::Finding;
use super::lexer::{blank_literals, tokens};

/// Names that no type, trait, function, constant or module may have by itself, and what to use
/// instead.
const RETIRED: [(&str, &str); 36] = [
    ("Bringing", "Reconcile…"),
    ("Footing", "InterfaceGroups, or what it is"),
    ("Standing", "ownership"),
    ("Backing", "backends, targets"),
    ("Surroundings", "ConnectOptions, or what it is"),
    ("Doomed", "orphan"),
    ("strays", "unmanaged"),
    ("Strays", "unmanaged"),
    ("News", "…Changes"),
    ("Door", "authentication"),
    ("Board", "Report"),
    ("Pile", "Batch"),
    ("Lanes", "ConcurrencyLimit"),
    ("lanes", "concurrency"),
    ("Trouble", "…Error"),
    ("Sweep", "Listing"),
    ("Known", "…State"),
    ("Look", "…Sync"),
    ("Wanted", "Desired…"),
    ("Twin", "what it is a copy of"),
    ("Rights", "Permissions"),
    ("Claim", "ServiceInterpretation, NodeOwnership"),
    ("Remark", "ServiceNotice"),
    ("Mistakes", "ValidationErrors"),
    ("Presence", "InstanceStatus"),
    ("Power", "PowerState"),
    ("Picture", "Observed…, working state"),
    ("book", "cache"),
    ("sweep", "listing"),
    ("backing", "resolved targets"),
    ("bring", "reconcile"),
    ("surroundings", "options, or what it is"),
    ("standing", "ownership"),
    ("doomed", "orphan, or what is deleted"),
    ("look", "sync, read, compare"),
    ("told", "reported"),
];

/// What a name follows where it is given.
const DEFINES: [&str; 8] = ["struct", "enum", "trait", "type", "fn", "mod", "const", "static"];

/// Retired names that this source gives to something.
pub(super) fn check(path: &Path, source: &str) -> Vec<Finding> {
    let blanked = blank_literals(source);
    let tokens = tokens(&blanked);
    let mut findings = Vec::new();
    for pair in tokens.windows(2) {
        if !DEFINES.contains(&pair[0].text) {
            continue;
        }
        if let Some((name, instead)) = RETIRED.iter().find(|(name, _)| *name == pair[1].text) {
            let message = format!("`{name}` is retired, use {instead} (docs/glossary.md)");
            findings.push(Finding::new(path, pair[1].line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_name_is_found_where_it_is_given_and_nowhere_else() {
        let source = "struct Known;\nfn f(known: Known) { let trouble = \"fn trouble\"; }\n// fn lanes()\nmod lanes;\n";
        let found: Vec<_> = check(Path::new("a.rs"), source)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "a.rs:1: `Known` is retired, use …State (docs/glossary.md)",
                "a.rs:4: `lanes` is retired, use concurrency (docs/glossary.md)"
            ]
        );
    }
}
