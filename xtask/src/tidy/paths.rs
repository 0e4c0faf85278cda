//! Reads paths from the tokens of a source: `a::b::c` in code, and `use` trees.

use super::lexer::Token;

/// A leaf of a `use` tree.
#[derive(Debug)]
pub(super) struct Leaf<'a> {
    /// The path as written, without a new name.
    pub(super) path: Vec<&'a str>,
    /// The name that it has in the importing module.
    pub(super) name: &'a str,
    pub(super) line: usize,
}

/// Every path in the source with its line: each leaf of a `use` tree, and elsewhere every chain of
/// two names or more.
pub(super) fn all<'a>(tokens: &[Token<'a>]) -> Vec<(Vec<&'a str>, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        // `use<'a>` in a return type is not an import.
        if token.text == "use" && tokens.get(at + 1).is_some_and(|next| next.text != "<") {
            let mut leaves = Vec::new();
            at = use_tree(tokens, at + 1, &[], &mut leaves);
            found.extend(leaves.into_iter().map(|leaf| (leaf.path, leaf.line)));
        } else if token.is_word() {
            let (path, after) = chain(tokens, at);
            if path.len() > 1 {
                found.push((path, token.line));
            }
            at = after;
        } else {
            at += 1;
        }
    }
    found
}

/// Reads `a::b::c`; returns the names and the place after them.
pub(super) fn chain<'a>(tokens: &[Token<'a>], start: usize) -> (Vec<&'a str>, usize) {
    let mut path = vec![tokens[start].text];
    let mut at = start + 1;
    while let [colons, name, ..] = &tokens[at..]
        && colons.text == "::"
        && name.is_word()
    {
        path.push(name.text);
        at += 2;
    }
    (path, at)
}

/// Reads one branch of a `use` tree that continues `prefix`; returns the place after it.
pub(super) fn use_tree<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &[&'a str],
    leaves: &mut Vec<Leaf<'a>>,
) -> usize {
    let mut path = prefix.to_vec();
    let mut alias = None;
    let mut is_group = false;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" | "," | "}" => break,
            "::" => at += 1,
            // The new name is not part of the path.
            "as" => {
                alias = tokens.get(at + 1).map(|name| name.text);
                at += 2;
            }
            "{" => {
                is_group = true;
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at = use_tree(tokens, at, &path, leaves);
                    at += usize::from(tokens.get(at).is_some_and(|token| token.text == ","));
                    if tokens.get(at).is_some_and(|token| token.text == ";") {
                        return at;
                    }
                }
                at += 1;
            }
            text => {
                path.push(text);
                at += 1;
            }
        }
    }
    if !is_group && path.len() > prefix.len() {
        let line = tokens[at - 1].line;
        // `a::{self}` has the name `a` here.
        let own_name = path
            .iter()
            .rev()
            .copied()
            .find(|part| *part != "self")
            .unwrap_or("self");
        leaves.push(Leaf { name: alias.unwrap_or(own_name), path, line });
    }
    at
}
