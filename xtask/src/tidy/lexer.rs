//! Just enough of Rust's lexical grammar: where comments and literals are, and what the rest is
//! made of.

/// The source with comments and the insides of literals replaced by spaces; lines stay where they
/// are.
pub(super) fn blank_literals(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at).unwrap_or(at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// The end of the comment or literal that starts at `at`, if one does.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at)),
        'r' if !continues_word(chars, at) => raw_string_end(chars, at),
        '\'' => char_end(chars, at),
        _ => None,
    }
}

/// Whether the character before belongs to the same word, so that an `r` here starts nothing; `br`
/// and `cr` do.
fn continues_word(chars: &[char], at: usize) -> bool {
    let is_word = |at: usize| chars.get(at).is_some_and(|&c| is_ident(c));
    match at.checked_sub(1) {
        Some(before) if matches!(chars[before], 'b' | 'c') => {
            before.checked_sub(1).is_some_and(is_word)
        }
        Some(before) => is_word(before),
        None => false,
    }
}

fn find(chars: &[char], from: usize, fits: impl Fn(char) -> bool) -> usize {
    (from..chars.len())
        .find(|&at| fits(chars[at]))
        .unwrap_or(chars.len())
}

/// Block comments nest.
fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut at) = (1, at + 2);
    while at < chars.len() && depth > 0 {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at.min(chars.len())
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `r"…"`, `r#"…"#`; not `r#name`.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at + 1, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at - 1;
    let closes = |end: &usize| {
        chars[*end] == '"' && chars[end + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    Some(
        (quote + 1..chars.len())
            .find(closes)
            .map_or(chars.len(), |end| end + 1 + hashes),
    )
}

/// A character literal; a quote that starts a lifetime is none.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match chars.get(at + 1)? {
        '\\' => Some((find(chars, at + 3, |c| c == '\'') + 1).min(chars.len())),
        _ => (chars.get(at + 2) == Some(&'\'')).then_some(at + 3),
    }
}

/// Whether the character may stand in a name.
pub(super) fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A piece of blanked source with its line number, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// A word, `::`, or one other character.
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl Token<'_> {
    /// Whether it is a name or keyword.
    pub(super) fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| is_ident(c) && !c.is_numeric())
    }
}

/// The tokens of blanked source.
pub(super) fn tokens(blanked: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, mut rest) in blanked.lines().enumerate() {
        while let Some(first) = rest.chars().next() {
            let length = if is_ident(first) {
                rest.find(|c| !is_ident(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            if !first.is_whitespace() {
                tokens.push(Token { text, line: number + 1 });
            }
            rest = after;
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_lines_stay() {
        let source = "a // {\nb /* { /* } */ { */ c\n\"{\\\"{\n\" d r#\"{\"{\"# e b\"{\" '{' '\\'' '\\n' &'x f br\"{\" r#g";
        let blanked = blank_literals(source);
        assert_eq!(blanked.lines().count(), source.lines().count());
        let words: Vec<_> = tokens(&blanked)
            .into_iter()
            .map(|token| token.text)
            .collect();
        assert_eq!(words, ["a", "b", "c", "d", "e", "b", "&", "'", "x", "f", "b", "r", "#", "g"]);
    }

    #[test]
    fn what_never_ends_is_blank_to_the_end() {
        for source in ["x \"{", "x /* {", "x r#\"{\"", "x '\\"] {
            assert_eq!(blank_literals(source).trim(), "x", "{source}");
        }
    }
}
