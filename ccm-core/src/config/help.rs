//! Texts that are made from the table of flags: help, version, the reference page.

use std::fmt::Write as _;

use super::Product;
use super::feature_gates;
use super::flags::{self, Flag, FlagSupport, Group};
use crate::crypto;

/// Line width of help texts.
const WIDTH: usize = 110;
const INDENT: &str = "                ";
/// What the program can do besides running the controllers: the arguments in front of the flags, and
/// what for.
const SUBCOMMANDS: [(&str, &str); 3] = [
    ("check", "say what would not work with these flags, and change nothing"),
    ("explain node NAME | service NAMESPACE/NAME | routes", "ask the leader why it is so"),
    ("orphans", "list what the cloud has and nothing in the cluster needs"),
];

/// Returns the text of `--help`, in upstream's groups.
pub(super) fn help(product: &Product) -> String {
    let mut text = format!(
        "{} runs the controllers that join a Kubernetes cluster to its cloud.\n\nUsage:\n  {} [flags]\n",
        product.binary, product.binary
    );
    for (words, purpose) in SUBCOMMANDS {
        let _ = writeln!(text, "  {} {words} [flags]", product.binary);
        wrap(&mut text, purpose);
    }
    text.push_str(
        "\nEach takes the flags of the controllers too; `--help` behind it shows its own.\n",
    );
    for group in Group::ALL {
        let flags = sorted(product, group);
        if flags.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{} flags:\n\n", group.title());
        for flag in flags {
            help_entry(&mut text, flag);
        }
    }
    text
}

fn sorted(product: &Product, group: Group) -> Vec<&Flag> {
    let mut flags: Vec<&Flag> = flags::all(product)
        .filter(|flag| flag.group == group)
        .collect();
    flags.sort_by_key(|flag| flag.name);
    flags
}

fn help_entry(text: &mut String, flag: &Flag) {
    let short = flag
        .short
        .map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    let separator =
        if flag.target.type_name().is_empty() || flag.target.type_name().starts_with("version") {
            ""
        } else {
            " "
        };
    let type_name = flag.target.type_name().trim_start_matches("version");
    let _ = writeln!(text, "  {short}--{}{separator}{type_name}", flag.name);
    let mut words = flag.help.to_owned();
    if !matches!(flag.default, "" | "false" | "0" | "0s") {
        let _ = write!(words, " (default {})", flag.default);
    }
    if let Some(note) = support_note(flag) {
        let _ = write!(words, " ({note})");
    }
    wrap(text, &words);
    if flag.name == "feature-gates" {
        wrap(text, "Options are:");
        for option in feature_gates::options() {
            wrap(text, &option);
        }
    }
}

/// Returns a note for a flag that has no effect or is deprecated.
fn support_note(flag: &Flag) -> Option<String> {
    let support = match flag.support {
        FlagSupport::Supported => None,
        FlagSupport::NoEffect(reason) => Some(format!("no effect: {reason}")),
    };
    let deprecated = flag
        .deprecated
        .map(|advice| format!("DEPRECATED: {advice}"));
    match (deprecated, support) {
        (Some(deprecated), Some(support)) => Some(format!("{deprecated}; {support}")),
        (deprecated, support) => deprecated.or(support),
    }
}

fn wrap(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if column == 0 {
            text.push_str(INDENT);
            column = INDENT.len();
        } else if column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(INDENT);
            column = INDENT.len();
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

/// Returns the text of `--version`.
pub(super) fn version(product: &Product) -> String {
    format!("{} {}\n", product.binary, product.version)
}

/// Returns the text of `--version=raw`.
pub(super) fn raw_version(product: &Product) -> String {
    format!(
        "{} {}\ncommit: {}\nplatform: {}/{}\ncryptography: {}\n",
        product.binary,
        product.version,
        product.commit,
        std::env::consts::OS,
        std::env::consts::ARCH,
        crypto::LIBRARY
    )
}

/// Returns the reference page, in Markdown.
#[cfg(test)]
pub(super) fn reference(product: &Product) -> String {
    let mut page = String::from(
        "# Flags\n\nGenerated from the table in `ccm-core/src/config/flags/`; refresh with \
         `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page`.\n\n\
         Names, defaults and syntax are those of Kubernetes' Go cloud-controller-managers, version 1.37. `-` and `_` in \
         names mean the same. `--flag=value` and `--flag value` both work, except for switches (type bool), whose value \
         needs the `=`. The last use of a flag wins; uses of lists add up. Durations are Go's (`1h2m3.5s`).\n\n\
         A flag without effect is read and checked, and makes one warning at start if it is set to other than its default.\n",
    );
    for group in Group::ALL {
        let flags = sorted(product, group);
        if flags.is_empty() {
            continue;
        }
        let _ = write!(
            page,
            "\n## {}\n\n| Flag | Type | Default | Supported | Meaning |\n|---|---|---|---|---|\n",
            group.title()
        );
        for flag in flags {
            reference_row(&mut page, flag);
        }
    }
    page
}

#[cfg(test)]
fn reference_row(page: &mut String, flag: &Flag) {
    let short = flag
        .short
        .map(|letter| format!("`-{letter}`, "))
        .unwrap_or_default();
    let kind = match flag.target.type_name() {
        "" => "bool",
        other => other.trim_end_matches("[=true]"),
    };
    let default = if flag.default.is_empty() {
        String::new()
    } else {
        format!("`{}`", flag.default)
    };
    let supported = match flag.support {
        FlagSupport::Supported => "yes".to_owned(),
        FlagSupport::NoEffect(reason) => format!("no effect: {reason}"),
    };
    let deprecated = flag
        .deprecated
        .map(|advice| format!(" *Deprecated: {advice}.*"))
        .unwrap_or_default();
    let _ = writeln!(
        page,
        "| {short}`--{}` | {kind} | {default} | {supported} | {}{deprecated} |",
        flag.name, flag.help
    );
}
