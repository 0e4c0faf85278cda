//! Links of Markdown files: where they are, where they lead, and other targets for them. What stands in code is no link.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};

/// A link, an image, or the definition of a reference, `[label]: target`.
#[derive(Debug)]
pub(crate) struct Link {
    /// Line where it begins, from 1.
    pub(crate) line: usize,
    /// File, address or anchor; not empty.
    pub(crate) target: String,
    /// Where it stands in the text.
    place: Range<usize>,
    /// Whether it is `[text](target)`, which has its target with it.
    is_inline: bool,
}

/// What [`rewrite`] makes of a link.
#[derive(Debug)]
pub(crate) enum NewLink {
    /// The same with this target.
    To(String),
    /// Its text alone.
    Text,
}

/// Returns the links of a text in their order.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let link = |target: &str, place: Range<usize>, is_inline| Link {
        line: text[..place.start].matches('\n').count() + 1,
        target: target.to_owned(),
        place,
        is_inline,
    };
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES);
    // First, the definitions of references. Links that use them are of no interest then.
    let mut links: Vec<_> = parser
        .reference_definitions()
        .iter()
        .map(|(_, definition)| link(&definition.dest, definition.span.clone(), false))
        .collect();
    // Next, all that have their own target.
    for (event, place) in parser.into_offset_iter() {
        let Event::Start(
            Tag::Link { link_type, dest_url, .. } | Tag::Image { link_type, dest_url, .. },
        ) = event
        else {
            continue;
        };
        match link_type {
            LinkType::Inline => links.push(link(&dest_url, place, true)),
            LinkType::Autolink => links.push(link(&dest_url, place, false)),
            _ => {}
        }
    }
    links.retain(|link| !link.target.is_empty());
    links.sort_by_key(|link| link.place.start);
    links
}

/// Returns the text with other links, where `new` returns one for a target.
pub(crate) fn rewrite(text: &str, new: impl Fn(&str) -> Option<NewLink>) -> String {
    // First, collect what is to be replaced. Parts of a link around an image do not overlap with those of the image.
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for link in links(text).into_iter().filter(|link| link.is_inline) {
        let source = &text[link.place.clone()];
        let Some(end_of_label) = source.rfind("](") else {
            continue;
        };
        let end_of_label = link.place.start + end_of_label;
        match new(&link.target) {
            None => {}
            Some(NewLink::To(target)) => {
                let start = end_of_label + "](".len();
                // Not so if it is written with escapes.
                if text[start..].starts_with(&link.target) {
                    edits.push((start..start + link.target.len(), target));
                }
            }
            Some(NewLink::Text) => {
                let start = link.place.start;
                edits.push((start..start + source.find('[').unwrap_or(0) + 1, String::new()));
                edits.push((end_of_label..link.place.end, String::new()));
            }
        }
    }
    // Then replace from the end, so that places before it stay where they are.
    edits.sort_by_key(|(place, _)| place.start);
    let mut out = text.to_owned();
    for (place, new) in edits.into_iter().rev() {
        out.replace_range(place, &new);
    }
    out
}

/// Returns whether a target is a file or an anchor, not an address elsewhere.
pub(crate) fn is_local(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:")
}

/// Returns the file to which a local target leads from a file, both relative to the root; for an anchor the file itself.
/// Returns `None` if it leads out of the tree, or begins at a root, which is not known before a site is published.
pub(crate) fn resolve(from: &Path, target: &str) -> Option<PathBuf> {
    let file = target.split(['#', '?']).next().unwrap_or_default();
    if file.is_empty() {
        return Some(from.to_owned());
    }
    let mut path = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        links(text)
            .into_iter()
            .map(|link| (link.line, link.target))
            .collect()
    }

    #[test]
    fn links_images_and_definitions_are_found_with_their_lines() {
        let text = "[a](b.md \"title\") and\n[two\nlines](c.md)\n\n![image](d.svg) <https://e.example>\n\n[f]: g.md\n";
        let wanted =
            [(1, "b.md"), (2, "c.md"), (5, "d.svg"), (5, "https://e.example"), (7, "g.md")];
        assert_eq!(found(text), wanted.map(|(line, target)| (line, target.to_owned())));
        assert_eq!(found("[![a](b.svg)](c.md)").len(), 2);
        assert_eq!(found("[a]() [b]"), [], "they have no target");
    }

    #[test]
    fn code_has_no_links() {
        for code in
            ["```\n[a](b.md)\n```\n", "~~~\n[a](b.md)\n~~~\n", "    [a](b.md)\n", "`[a](b.md)`"]
        {
            assert_eq!(found(code), [], "{code}");
            let rewritten = rewrite(code, |_| Some(NewLink::To("x".to_owned())));
            assert_eq!(rewritten, code);
        }
        assert_eq!(found("- item\n\n  [a](b.md)\n"), [(3, "b.md".to_owned())]);
    }

    #[test]
    fn links_get_other_targets_or_only_their_text() {
        let text = "[a](b.md#c) [![d](e.svg)](b.md) [`f`](g) [h](i)";
        let rewritten = rewrite(text, |target| match target {
            "e.svg" => Some(NewLink::To("longer/e.svg".to_owned())),
            "g" => Some(NewLink::Text),
            _ => target
                .strip_prefix("b.md")
                .map(|rest| NewLink::To(format!("x{rest}"))),
        });
        assert_eq!(rewritten, "[a](x#c) [![d](longer/e.svg)](x) `f` [h](i)");
    }

    #[test]
    fn targets_are_relative_to_their_file() {
        let resolve = |target| resolve(Path::new("docs/a.md"), target);
        assert_eq!(resolve("b.md#c"), Some("docs/b.md".into()));
        assert_eq!(resolve("./../b/./c.md?d"), Some("b/c.md".into()));
        assert_eq!(resolve("#c"), Some("docs/a.md".into()));
        assert_eq!(resolve("../../b.md"), None, "out of the tree");
        assert_eq!(resolve("/b.md"), None);
    }
}
