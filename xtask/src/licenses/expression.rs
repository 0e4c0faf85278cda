//! SPDX licence expressions, as far as crates use them: `AND`, `OR`, `WITH`, brackets, and the old
//! `/` for `OR`.

/// Whether somebody who accepts only the `allowed` licences may use what carries this one. `Err`
/// says what cannot be read.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let verdict = parser.any()?;
    match parser.words {
        [] => Ok(verdict),
        [word, ..] => Err(format!("unexpected `{word}`")),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Parser<'_> {
    /// Takes the next word when it is this one.
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        self.words = &self.words[usize::from(is_next)..];
        is_next
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.takes("OR") {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.takes("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.takes("(") {
            let verdict = self.any()?;
            return if self.takes(")") {
                Ok(verdict)
            } else {
                Err("a bracket is not closed".to_owned())
            };
        }
        let mut name = self.name()?;
        if self.takes("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&name))
    }

    fn name(&mut self) -> Result<String, String> {
        let (first, rest) = self.words.split_first().ok_or("it ends too early")?;
        if ["OR", "AND", "WITH", "(", ")"].contains(first) {
            return Err(format!("unexpected `{first}`"));
        }
        self.words = rest;
        Ok((*first).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_judged_by_their_parts() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(String::from);
        for (expression, expected) in [
            ("MIT", Ok(true)),
            ("GPL-3.0", Ok(false)),
            ("GPL-3.0 OR MIT", Ok(true)),
            ("GPL-3.0/MIT", Ok(true)),
            ("GPL-3.0 AND MIT", Ok(false)),
            ("MIT AND Apache-2.0", Ok(true)),
            // AND binds closer than OR.
            ("MIT OR GPL-3.0 AND Zlib", Ok(true)),
            ("(MIT OR GPL-3.0) AND Zlib", Ok(false)),
            ("(MIT OR GPL-3.0) AND (Zlib OR Apache-2.0)", Ok(true)),
            ("Apache-2.0 WITH LLVM-exception", Ok(true)),
            ("MIT WITH LLVM-exception", Ok(false)),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
        for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT Apache-2.0", "AND MIT"] {
            assert!(is_allowed(broken, &allowed).is_err(), "{broken}");
        }
    }
}
