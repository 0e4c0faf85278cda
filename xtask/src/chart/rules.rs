//! Rules of roles, taken from the plain manifests with their comments.

use std::path::Path;

use anyhow::Context as _;

use super::{CHART, GeneratedFile, read};

/// Name in the chart, and the manifest that has the rules of one role.
const SOURCES: [(&str, &str); 10] = [
    ("node", "20-node.yaml"),
    ("lifecycle", "21-lifecycle.yaml"),
    ("route", "22-route.yaml"),
    ("service", "23-service.yaml"),
    ("ipam", "24-ipam.yaml"),
    ("serving", "25-serving.yaml"),
    ("leader-election", "40-leader-election.yaml"),
    ("endpoints", "optional/endpoints.yaml"),
    ("caches", "service-account-credentials/20-caches.yaml"),
    ("service-account-credentials", "service-account-credentials/21-tokens.yaml"),
];

/// One file of rules for each role.
pub(super) fn make(root: &Path) -> anyhow::Result<Vec<GeneratedFile>> {
    let folder = root.join(CHART).join("files/generated-rules");
    let make = |(name, source): (&str, &str)| {
        let manifest = read(&root.join("rbac").join(source))?;
        let rules = of(&manifest)
            .with_context(|| format!("rbac/{source} has no rules, or several lists of them"))?;
        let content = format!("# Made by `cargo xtask chart` from rbac/{source}.\n{rules}");
        Ok(GeneratedFile { path: folder.join(format!("{name}.yaml")), content })
    };
    SOURCES.into_iter().map(make).collect()
}

/// The only list of rules in the manifest, without its indentation.
fn of(manifest: &str) -> Option<String> {
    let mut lists = manifest.split("\nrules:\n").skip(1);
    let (list, more) = (lists.next()?, lists.next());
    let lines = list.lines().map_while(|line| line.strip_prefix("  "));
    let rules: String = lines.flat_map(|line| [line, "\n"]).collect();
    (more.is_none() && !rules.is_empty()).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_one_role_are_taken_with_their_comments() {
        let manifest = "kind: Role\nrules:\n  # why\n  - apiGroups: [x]\n    verbs: [get]\n---\nkind: RoleBinding\n";
        assert_eq!(of(manifest).unwrap(), "# why\n- apiGroups: [x]\n  verbs: [get]\n");
        assert_eq!(of("kind: RoleBinding\n"), None);
        assert_eq!(
            of("a: b\nrules:\n  - x\n---\na: b\nrules:\n  - y\n"),
            None,
            "one of them would be lost"
        );
        assert_eq!(of("a: b\nrules:\nc: d\n"), None);
    }
}
