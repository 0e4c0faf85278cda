//! Files and functions that are too long to be one idea.
//!
//! Lines of code count: those with a name, a keyword or a number. Comments, blank lines, texts and closing brackets are free,
//! so that nobody saves lines by leaving out comments or by packing a statement into one line.

use std::{collections::BTreeSet, path::Path};

use super::Finding;
use super::lexer::{Token, blank_literals, is_ident, tokens};

/// Most lines of code of a file.
const FILE: usize = 600;
/// Most lines of code of a function, from its `fn` to its closing brace.
const FUNCTION: usize = 60;
/// Starts the comment that allows more; a reason has to follow.
const REASON: &str = "// length:";

/// What is too long in the file.
pub(super) fn check(path: &Path, source: &str) -> Vec<Finding> {
    let lines: Vec<&str> = source.lines().collect();
    let blanked = blank_literals(source);
    let tokens = tokens(&blanked);
    let code: BTreeSet<usize> = tokens
        .iter()
        .filter(|token| token.text.starts_with(is_ident))
        .map(|token| token.line)
        .collect();
    let mut findings = Vec::new();
    let has_file_reason = lines
        .iter()
        .take_while(|line| is_comment_or_blank(line))
        .any(|line| has_reason(line));
    if code.len() > FILE && !has_file_reason {
        let message = format!(
            "{} lines of code, more than {FILE}: split it, or begin it with `{REASON} <reason>`",
            code.len()
        );
        findings.push(Finding::new(path, 1, message));
    }
    for Function { name, first, last } in functions(&tokens) {
        let length = code.range(first..=last).count();
        if length > FUNCTION && !is_excused(&lines, first) {
            let message = format!(
                "`{name}` has {length} lines of code, more than {FUNCTION}: split it, or write `{REASON} <reason>` above it"
            );
            findings.push(Finding::new(path, first, message));
        }
    }
    findings
}

/// Whether the comment stands on the function's first line, or in the comments and attributes above it.
fn is_excused(lines: &[&str], first: usize) -> bool {
    let above = lines[..first - 1].iter().rev().take_while(|line| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("#[")
    });
    above
        .chain([&lines[first - 1]])
        .any(|line| has_reason(line))
}

fn has_reason(line: &str) -> bool {
    line.split_once(REASON)
        .is_some_and(|(_, reason)| !reason.trim().is_empty())
}

fn is_comment_or_blank(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with("//")
}

/// A function with a body: its name and its first and last line.
struct Function<'a> {
    name: &'a str,
    first: usize,
    last: usize,
}

fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let starts = tokens
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0].text == "fn" && pair[1].is_word());
    starts
        .filter_map(|(at, pair)| {
            let last = body_end(&tokens[at + 2..])?;
            Some(Function { name: pair[1].text, first: pair[0].line, last })
        })
        .collect()
}

/// The line of the brace that closes the first body; `None` when the declaration ends without one.
fn body_end(tokens: &[Token<'_>]) -> Option<usize> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    for token in tokens {
        match token.text {
            "(" | "[" if braces == 0 => brackets += 1,
            ")" | "]" if braces == 0 => brackets = brackets.saturating_sub(1),
            ";" if braces == 0 && brackets == 0 => return None,
            // A brace inside brackets belongs to a constant in the signature.
            "{" if brackets == 0 => braces += 1,
            "}" if brackets == 0 => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return Some(token.line);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, String)> {
        check(Path::new("a.rs"), source)
            .into_iter()
            .map(|finding| (finding.line, finding.message))
            .collect()
    }

    /// A function of that many lines of code.
    fn function(lines: usize) -> String {
        format!(
            "fn f(a: [u8; {{ 3 }}]) -> u8 {{\n    // Free.\n\n{}}}\n",
            "    g(\"}\");\n".repeat(lines - 1)
        )
    }

    #[test]
    fn a_long_function_is_found() {
        assert_eq!(found(&function(60)), []);
        let long = found(&format!("\n{}", function(61)));
        assert_eq!(long.len(), 1);
        assert_eq!(long[0].0, 2);
        assert!(long[0].1.starts_with("`f` has 61 lines of code"), "{long:?}");
    }

    #[test]
    fn a_reason_excuses_it_and_an_empty_one_does_not() {
        for excused in ["// length: a table\n", "/// Doc.\n// length: a table\n#[test]\n"] {
            assert_eq!(found(&format!("{excused}{}", function(61))), [], "{excused}");
        }
        for not in ["// length:\n", "// length: elsewhere\n\n", "// length: elsewhere\nstruct S;\n"]
        {
            assert_eq!(found(&format!("{not}{}", function(61))).len(), 1, "{not}");
        }
    }

    #[test]
    fn declarations_and_pointers_are_no_functions() {
        let source = format!(
            "trait T {{ fn f(); }}\ntype P = fn(u8);\nstruct S {{\n{}}}\n",
            "    a: u8,\n".repeat(70)
        );
        assert_eq!(found(&source), []);
    }

    #[test]
    fn a_long_file_is_found_unless_it_begins_with_a_reason() {
        let lines = |count| "const A: u8 = 0;\n".repeat(count);
        assert_eq!(found(&lines(600)), []);
        assert_eq!(found(&lines(601)).len(), 1);
        assert_eq!(found(&format!("//! Doc.\n\n// length: generated\n{}", lines(700))), []);
        assert_eq!(found(&format!("{}// length: too late\n", lines(700))).len(), 1);
    }
}
