//! Parser for the INI dialect of `cloud.conf`: that of Go's gcfg, which is git's with a few
//! differences.
//!
//! A section may have a sub-section in quotes. A line is `name = value`, or a name alone. Parts of
//! a value may be quoted, with the escapes `\\`, `\"`, `\n` and `\t`. Outside quotes, a backslash
//! is allowed before a quote, or at the end of a line that continues on the next one. `;` and `#`
//! start a comment unless quoted. The meaning of the names is decided elsewhere.

use std::{fmt, path::Path};

/// A parsed file: its sections in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The sections with their entries. The same section may occur several times.
    pub sections: Vec<Section>,
    /// Syntax errors.
    pub issues: Vec<ConfigIssue>,
}

/// A section header and the entries below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// The line of the header, from 1.
    pub line: usize,
    /// Name as written.
    pub name: String,
    /// Sub-section, which is case-sensitive.
    pub sub: Option<String>,
    /// The entries of the section.
    pub entries: Vec<ConfigEntry>,
}

/// An entry of a section.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Line where it starts, from 1.
    pub line: usize,
    /// Name as written.
    pub key: String,
    /// Value; `None` where there is no `=`.
    pub value: Option<String>,
}

/// Decodes the bytes of a file.
///
/// # Errors
/// The line with the first byte that is not UTF-8.
pub fn decode(bytes: Vec<u8>) -> Result<String, ConfigIssue> {
    String::from_utf8(bytes).map_err(|error| {
        // Count the lines before the invalid bytes.
        let valid_len = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid_len]
            .split(|byte| *byte == b'\n')
            .count();
        ConfigIssue::syntax(line, "illegal UTF-8 encoding")
    })
}

/// Parses a text. After a syntax error it continues with the next line.
pub fn parse(text: &str) -> Document {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut scanner = Scanner { rest: text.chars().peekable(), line: 1 };
    let mut document = Document::default();
    // Whether the latest header is valid; entries below an invalid header are ignored.
    let mut below = SectionBody::Nothing;
    loop {
        scanner.skip_blanks();
        let line = scanner.line;
        let Some(&next) = scanner.rest.peek() else {
            return document;
        };
        let result = match next {
            '\n' | ';' | '#' => Ok(()),
            '[' => scanner.header().map(|(name, sub)| {
                document
                    .sections
                    .push(Section { line, name, sub, entries: Vec::new() });
                below = SectionBody::Header;
            }),
            letter if letter.is_alphabetic() => scanner.entry().and_then(|(key, value)| {
                match (below, document.sections.last_mut()) {
                    (SectionBody::Header, Some(section)) => {
                        section.entries.push(ConfigEntry { line, key, value });
                        Ok(())
                    }
                    (SectionBody::Invalid, _) => Ok(()),
                    _ => Err("expected section header".to_owned()),
                }
            }),
            other => Err(format!("illegal character {other:?}")),
        };
        if let Err(message) = result {
            if next == '[' {
                below = SectionBody::Invalid;
            }
            document.issues.push(ConfigIssue::syntax(line, message));
        }
        scanner.skip_line();
    }
}

/// One error in a configuration file. `Display` shows line, section and key, as far as they are
/// known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Line, from 1; 0 if the error belongs to no line.
    pub line: usize,
    /// Section and key, such as `[Global] Zone`; empty for a syntax error.
    pub location: Box<str>,
    /// The problem.
    pub message: Box<str>,
}

/// Formats one line per error, with the path of the file if there is one.
pub fn format_issues(file: Option<&Path>, issues: &[ConfigIssue]) -> String {
    let file = match file {
        Some(file) => format!(" {}", file.display()),
        None => String::new(),
    };
    let lines: Vec<String> = issues
        .iter()
        .map(|issue| format!("cloud config{file}: {issue}"))
        .collect();
    lines.join("\n")
}

impl ConfigIssue {
    /// Creates a syntax error.
    pub fn syntax(line: usize, message: impl Into<Box<str>>) -> Self {
        Self { line, location: "".into(), message: message.into() }
    }

    /// Creates an error about a section or a key.
    pub fn at(line: usize, place: impl Into<Box<str>>, message: impl Into<Box<str>>) -> Self {
        Self { line, location: place.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.location.is_empty() {
            write!(f, "{}: ", self.location)?;
        }
        f.write_str(&self.message)
    }
}

#[derive(Clone, Copy)]
enum SectionBody {
    Nothing,
    Header,
    Invalid,
}

struct Scanner<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
}

impl Scanner<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn skip_blanks(&mut self) {
        while self
            .rest
            .next_if(|c| matches!(c, ' ' | '\t' | '\r'))
            .is_some()
        {}
    }

    /// Skips to the beginning of the next line.
    fn skip_line(&mut self) {
        while self.next().is_some_and(|c| c != '\n') {}
    }

    fn at_end_of_line(&mut self) -> bool {
        self.skip_blanks();
        matches!(self.rest.peek(), None | Some('\n' | ';' | '#'))
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '-') {
            name.push(c);
        }
        name
    }

    /// Parses `[name]` or `[name "sub"]`, the whole line.
    fn header(&mut self) -> Result<(String, Option<String>), String> {
        self.next();
        self.skip_blanks();
        if !self.rest.peek().is_some_and(|c| c.is_alphabetic()) {
            return Err("expected section name".to_owned());
        }
        let name = self.name();
        self.skip_blanks();
        let sub = match self.rest.next_if_eq(&'"') {
            Some(_) => Some(self.sub_section()?),
            None => None,
        };
        self.skip_blanks();
        if self.rest.next_if_eq(&']').is_none() {
            let expected = if sub.is_none() {
                "subsection name or right bracket"
            } else {
                "right bracket"
            };
            return Err(format!("expected {expected}"));
        }
        if self.at_end_of_line() {
            Ok((name, sub))
        } else {
            Err("expected the end of the line after a section header".to_owned())
        }
    }

    fn sub_section(&mut self) -> Result<String, String> {
        let mut sub = String::new();
        loop {
            match self.rest.next_if(|c| *c != '\n') {
                None => return Err("string not terminated".to_owned()),
                Some('"') if sub.is_empty() => return Err("empty subsection name".to_owned()),
                Some('"') => return Ok(sub),
                Some('\\') => match self.rest.next_if(|c| matches!(c, '\\' | '"')) {
                    Some(c) => sub.push(c),
                    None => return Err("unknown escape sequence".to_owned()),
                },
                Some(c) => sub.push(c),
            }
        }
    }

    /// Parses `name` or `name = value`, up to the end of the line or a comment.
    fn entry(&mut self) -> Result<(String, Option<String>), String> {
        let name = self.name();
        if self.at_end_of_line() {
            return Ok((name, None));
        }
        if self.rest.next_if_eq(&'=').is_none() {
            return Err(format!("expected '=' after {name}"));
        }
        self.skip_blanks();
        let value = self.value().map_err(|reason| format!("{name}: {reason}"))?;
        Ok((name, Some(value)))
    }

    fn value(&mut self) -> Result<String, &'static str> {
        let mut value = String::new();
        // Length of the value without trailing blanks; quoted blanks are kept.
        let mut kept = 0;
        let mut quoted = false;
        // The value ends with the line, or with a comment outside quotes.
        while let Some(c) = self
            .rest
            .next_if(|c| *c != '\n' && (quoted || !matches!(c, ';' | '#')))
        {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => value.push(self.escaped()?),
                '\\' => value.extend(self.after_backslash()?),
                // Part of a Windows line ending.
                '\r' => continue,
                '\0' => return Err("illegal character NUL"),
                c => value.push(c),
            }
            if quoted || !matches!(c, ' ' | '\t') {
                kept = value.len();
            }
        }
        value.truncate(kept);
        if quoted {
            Err("string not terminated")
        } else {
            Ok(value)
        }
    }

    fn escaped(&mut self) -> Result<char, &'static str> {
        match self.rest.next_if(|c| matches!(c, '\\' | '"' | 'n' | 't')) {
            Some('n') => Ok('\n'),
            Some('t') => Ok('\t'),
            Some(c) => Ok(c),
            None => Err("unknown escape sequence"),
        }
    }

    /// Parses what follows a backslash outside quotes: a quote, or a line break that continues the
    /// line.
    fn after_backslash(&mut self) -> Result<Option<char>, &'static str> {
        self.rest.next_if_eq(&'\r');
        match self.rest.peek() {
            Some('\n') => {
                self.next();
                Ok(None)
            }
            Some('"') => Ok(self.next()),
            _ => Err("unquoted '\\' must be followed by new line or double quote"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line as `section/sub.key=value`, and the mistakes.
    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let document = parse(text);
        let mut lines = Vec::new();
        for section in &document.sections {
            let sub = section
                .sub
                .as_deref()
                .map(|sub| format!("/{sub}"))
                .unwrap_or_default();
            lines.extend(section.entries.iter().map(|entry| {
                let value = entry
                    .value
                    .as_deref()
                    .map(|value| format!("={value}"))
                    .unwrap_or_default();
                format!("{}{sub}.{}{value}", section.name, entry.key)
            }));
        }
        (lines, document.issues.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_are_read_as_gcfg_reads_them() {
        let cases = [
            ("a=b", "b"),
            ("a =\tb ", "b"),
            ("a = b c  ; comment", "b c"),
            ("a = b#c", "b"),
            ("a = \"b # c\"", "b # c"),
            ("a = \" b \"", " b "),
            ("a = x\" y \"z", "x y z"),
            ("a = \"b\\\\c\\\"d\\te\\n\"", "b\\c\"d\te\n"),
            ("a = b\\\"c", "b\"c"),
            ("a = b\\\nc", "bc"),
            ("a = b \\\r\n  c\r\n", "b   c"),
            ("a = b=c", "b=c"),
            ("a = ", ""),
            ("a = \"\"", ""),
            ("a = b\r", "b"),
            ("a = ü", "ü"),
        ];
        for (line, value) in cases {
            let expected = (vec![format!("s.a={value}")], vec![]);
            assert_eq!(read(&format!("[s]\n{line}")), expected, "{line:?}");
        }
    }

    #[test]
    fn names_sections_and_comments_are_told_apart() {
        let text = "\u{feff}; one\r\n[Global] # two\r\nZone = a\r\n\tVPC\r\n\r\n[ServiceOverride \"1 \\\"x\\\"\"]\r\nURL=b\r\n[Global]\r\nzone-x=c";
        let lines =
            ["Global.Zone=a", "Global.VPC", "ServiceOverride/1 \"x\".URL=b", "Global.zone-x=c"];
        assert_eq!(read(text), (lines.map(str::to_owned).to_vec(), vec![]));
    }

    #[test]
    fn every_syntax_mistake_is_found_with_its_line() {
        let cases = [
            ("a = b", "line 1: expected section header"),
            ("[s]\na b", "line 2: expected '=' after a"),
            ("[s]\na_b = c", "line 2: expected '=' after a"),
            ("[s]\n= c", "line 2: illegal character '='"),
            ("[s]\na = \"b", "line 2: a: string not terminated"),
            ("[s]\na = \"b\nc\"", "line 2: a: string not terminated"),
            ("[s]\na = \"\\x\"", "line 2: a: unknown escape sequence"),
            (
                "[s]\na = b\\c",
                "line 2: a: unquoted '\\' must be followed by new line or double quote",
            ),
            (
                "[s]\na = b\\",
                "line 2: a: unquoted '\\' must be followed by new line or double quote",
            ),
            ("[s]\na = b\0", "line 2: a: illegal character NUL"),
            ("[]", "line 1: expected section name"),
            ("[s.t]", "line 1: expected subsection name or right bracket"),
            ("[s", "line 1: expected subsection name or right bracket"),
            ("[s \"\"]", "line 1: empty subsection name"),
            ("[s \"t]", "line 1: string not terminated"),
            ("[s \"\\t\"]", "line 1: unknown escape sequence"),
            ("[s \"t\" x]", "line 1: expected right bracket"),
            ("[s] a = b", "line 1: expected the end of the line after a section header"),
        ];
        for (text, mistake) in cases {
            let found = read(text).1;
            assert_eq!(found.first().map(String::as_str), Some(mistake), "{text:?}");
        }
    }

    #[test]
    fn reading_goes_on_after_a_mistake_and_counts_lines() {
        let text = "[s]\na = x\\\ny\nb c\nd = 1\n[t\ne = 2\n[u]\nf ?\ng = 3";
        let (lines, mistakes) = read(text);
        assert_eq!(
            lines,
            ["s.a=xy", "s.d=1", "u.g=3"],
            "what stands below a broken header belongs nowhere"
        );
        let expected = [
            "line 4: expected '=' after b",
            "line 6: expected subsection name or right bracket",
            "line 9: expected '=' after f",
        ];
        assert_eq!(mistakes, expected);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]a-b\"\\\\=;#\r\n \t\0é]{0,40}") {
            let document = parse(&text);
            for section in &document.sections {
                proptest::prop_assert!(section.line <= text.matches('\n').count() + 1);
            }
        }
    }
}
