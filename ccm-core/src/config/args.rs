//! Parses command-line arguments into uses of flags, by pflag's rules.
//!
//! No argument parser of the Rust ecosystem supports these rules (`_` for `-`, a value of a switch
//! only after `=`, values that start with `-`, `-v2`, lists that accumulate over uses), so the
//! arguments are parsed here with a short loop.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::ConfigError;
use super::flags::Flag;

/// One use of a flag on the command line.
#[derive(Debug)]
pub(super) struct FlagUse<'a> {
    pub(super) flag: &'a Flag,
    pub(super) text: String,
}

/// Uses of flags, positional arguments, and errors.
#[derive(Debug, Default)]
pub(super) struct ParsedArgs<'a> {
    pub(super) uses: Vec<FlagUse<'a>>,
    pub(super) positional: Vec<String>,
    pub(super) errors: Vec<ConfigError>,
}

/// Parses the arguments after the program's name.
pub(super) fn parse_args<'a>(
    flags: impl Iterator<Item = &'a Flag> + Clone,
    args: Vec<OsString>,
) -> ParsedArgs<'a> {
    let mut scanner = Scanner {
        by_name: flags.clone().map(|flag| (flag.name, flag)).collect(),
        by_letter: flags.filter_map(|flag| Some((flag.short?, flag))).collect(),
        scan: ParsedArgs::default(),
    };
    let mut args = Arguments { rest: args.into_iter() };
    while let Some(argument) = args.next() {
        match argument {
            Err(lossy) => scanner
                .scan
                .errors
                .push(ConfigError::NotUnicode { argument: lossy }),
            Ok(text) if text == "--" => {
                for rest in args.by_ref() {
                    scanner
                        .scan
                        .positional
                        .push(rest.unwrap_or_else(|lossy| lossy));
                }
            }
            Ok(text) => match text.strip_prefix("--") {
                Some(long) => scanner.long(long, &mut args),
                None => match text.strip_prefix('-') {
                    Some(letters) if !letters.is_empty() => scanner.letters(letters, &mut args),
                    _ => scanner.scan.positional.push(text),
                },
            },
        }
    }
    scanner.scan
}

/// The remaining arguments. One that is not UTF-8 is returned as an error with its readable part.
struct Arguments {
    rest: std::vec::IntoIter<OsString>,
}

impl Iterator for Arguments {
    type Item = Result<String, String>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(
            self.rest
                .next()?
                .into_string()
                .map_err(|raw| raw.to_string_lossy().into_owned()),
        )
    }
}

impl Arguments {
    /// Drops the next argument if it looks like the value of an unknown flag. Otherwise it would be
    /// reported as well.
    fn skip_value(&mut self) {
        if self
            .rest
            .as_slice()
            .first()
            .is_some_and(|next| !next.to_string_lossy().starts_with('-'))
        {
            self.rest.next();
        }
    }
}

struct Scanner<'a> {
    by_name: BTreeMap<&'static str, &'a Flag>,
    by_letter: BTreeMap<char, &'a Flag>,
    scan: ParsedArgs<'a>,
}

impl<'a> Scanner<'a> {
    /// Parses `--name`, `--name=value` or `--name value`; the two dashes are already removed.
    fn long(&mut self, argument: &str, args: &mut Arguments) {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        };
        if name.is_empty() || name.starts_with('-') {
            self.scan
                .errors
                .push(ConfigError::BadSyntax { argument: format!("--{argument}") });
            return;
        }
        let Some(flag) = self.by_name.get(name.replace('_', "-").as_str()).copied() else {
            self.scan
                .errors
                .push(ConfigError::UnknownFlag { flag: format!("--{name}") });
            if value.is_none() {
                args.skip_value();
            }
            return;
        };
        match value.or_else(|| flag.target.default_when_bare()) {
            Some(value) => self.add(flag, value),
            None => self.add_next(flag, args),
        }
    }

    /// Parses `-v`, `-v=2`, `-v2`, `-v 2`, or several letters in one argument; the dash is already
    /// removed.
    fn letters(&mut self, argument: &str, args: &mut Arguments) {
        let mut rest = argument;
        while let Some(letter) = rest.chars().next() {
            let after = &rest[letter.len_utf8()..];
            let Some(flag) = self.by_letter.get(&letter).copied() else {
                let flag = format!("-{letter}");
                self.scan
                    .errors
                    .push(ConfigError::UnknownShorthand { flag, argument: format!("-{argument}") });
                if !argument.contains('=') {
                    args.skip_value();
                }
                return;
            };
            // As pflag: for `-v=` alone the value is the equals sign itself, which is not a number.
            if let Some(value) = after.strip_prefix('=').filter(|value| !value.is_empty()) {
                return self.add(flag, value);
            }
            match flag.target.default_when_bare() {
                Some(value) => self.add(flag, value),
                None if after.is_empty() => return self.add_next(flag, args),
                None => return self.add(flag, after),
            }
            rest = after;
        }
    }

    fn add(&mut self, flag: &'a Flag, value: &str) {
        self.scan
            .uses
            .push(FlagUse { flag, text: value.to_owned() });
    }

    /// Takes the next argument as the value, even if it starts with a dash.
    fn add_next(&mut self, flag: &'a Flag, args: &mut Arguments) {
        match args.next() {
            Some(Ok(value)) => self.add(flag, &value),
            Some(Err(lossy)) => self
                .scan
                .errors
                .push(ConfigError::NotUnicode { argument: lossy }),
            None => self
                .scan
                .errors
                .push(ConfigError::MissingValue { flag: format!("--{}", flag.name) }),
        }
    }
}
