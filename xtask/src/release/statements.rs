//! Statements that are true until something is published, and that a release makes false. The list
//! in CONTRIBUTING.md has those, too, that no phrase gives away.

use std::path::Path;

use super::versions::SourceFile;

/// File and phrase. A phrase may be broken into lines, also those of a comment.
const UNTIL_PUBLISHED: [(&str, &str); 13] = [
    ("docs/adoption.md", "written, never built by a container engine"),
    ("docs/adoption.md", "workflow written and linted, never run"),
    ("docs/adoption.md", "published by the first release"),
    ("docs/start/aws.md", "No image is published yet"),
    ("docs/start/openstack.md", "No image is published yet"),
    ("README.md", "There is no published image yet"),
    ("docs/adoption.md", "Nothing has been published"),
    ("docs/install.md", "None are published"),
    ("docs/compatibility.md", "| in preparation |"),
    ("charts/cloud-controller-manager/README.md", "**Images** are not published"),
    ("charts/cloud-controller-manager/README.md", "Required for `aws` and `openstack`"),
    ("charts/cloud-controller-manager/values.yaml", "Required for `aws` and `openstack`"),
    (
        "charts/cloud-controller-manager/templates/_validate.tpl",
        "since no images are published",
    ),
];

/// Says which of the statements still stand.
pub(super) fn findings(files: &[SourceFile]) -> Vec<String> {
    let stands = |path: &str, phrase: &str| {
        let file = files.iter().find(|file| file.path == Path::new(path));
        file.is_some_and(|file| flowing(&file.text).contains(phrase))
    };
    UNTIL_PUBLISHED
        .iter()
        .filter(|(path, phrase)| stands(path, phrase))
        .map(|(path, phrase)| format!("{path}: a release makes this false: {phrase}"))
        .collect()
}

/// The text without line breaks and without the marks of comments.
fn flowing(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| *word != "#");
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::versions;
    use super::*;
    use crate::root;

    #[test]
    fn a_statement_is_found_across_lines_of_a_comment() {
        let file = |text: &str| SourceFile {
            path: "charts/cloud-controller-manager/values.yaml".into(),
            text: text.to_owned(),
        };
        let finding = "charts/cloud-controller-manager/values.yaml: a release makes this false: \
                       Required for `aws` and `openstack`";
        let broken = file("  # Registry. Required for `aws` and\n  # `openstack`, unless\n");
        assert_eq!(findings(&[broken]), [finding]);
        assert_eq!(findings(&[file("  # Registry.\n")]), Vec::<String>::new());
    }

    /// Otherwise a phrase was reworded, and a release would not find it.
    #[test]
    fn the_repository_makes_all_statements_or_none() {
        let found = findings(&versions::files(&root().unwrap()).unwrap());
        assert!(found.is_empty() || found.len() == UNTIL_PUBLISHED.len(), "{found:?}");
    }
}
