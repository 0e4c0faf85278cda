//! Where a program of ours may choose its cryptography: in one place, so that a build for FIPS has
//! no other.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Finding, dependencies::Split, lexer::tokens, paths};

/// Crates whose code is in programs that people run. The local OpenStack is none: it has no secrets.
pub(super) const PROGRAMS: [&str; 4] =
    ["ccm-core", "providers/aws", "providers/mock", "providers/openstack"];

/// Files that choose.
const CHOOSING: [&str; 2] = [
    "ccm-core/src/crypto.rs",
    // The SDK takes a library by name alone.
    "providers/aws/src/sdk/ca_bundle.rs",
];

/// Names of libraries, by themselves or in a path: `ring`, `rustls::crypto::ring`.
const LIBRARIES: [&str; 3] = ["ring", "aws_lc_rs", "CryptoMode"];

/// Functions of rustls that take the default of the process.
const BY_DEFAULT: [&[&str]; 5] = [
    &["ClientConfig", "builder"],
    &["ServerConfig", "builder"],
    &["WebPkiClientVerifier", "builder"],
    &["WebPkiServerVerifier", "builder"],
    &["CryptoProvider", "get_default"],
];

/// Checks the sources of one crate, by their paths below its `src`; `folder` is that one's path.
pub(super) fn check(folder: &Path, texts: &BTreeMap<PathBuf, String>) -> Vec<Finding> {
    let split: BTreeMap<&PathBuf, Split> = texts
        .iter()
        .map(|(path, text)| (path, Split::of(path, text)))
        .collect();
    let of_tests: Vec<&PathBuf> = split.values().flat_map(|split| &split.modules).collect();
    let mut findings = Vec::new();
    for (path, split) in &split {
        let module = path.with_extension("");
        let is_test = of_tests.iter().any(|test| module.starts_with(test));
        let full = folder.join(path);
        if !is_test && !CHOOSING.iter().any(|choosing| full == Path::new(choosing)) {
            findings.extend(uses(&full, &split.program));
        }
    }
    findings
}

fn uses(file: &Path, code: &str) -> Vec<Finding> {
    let tokens = tokens(code);
    let mut findings = Vec::new();
    for (path, line) in paths::all(&tokens) {
        let named = path.iter().any(|name| LIBRARIES.contains(name));
        let by_default = BY_DEFAULT.iter().any(|function| path.ends_with(function));
        if named || by_default {
            let message = format!(
                "`{}` chooses a library of cryptography; `ccm_core::crypto` does that, for builds with FIPS, too",
                path.join("::")
            );
            findings.push(Finding::new(file, line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
            .collect();
        check(Path::new("ccm-core/src"), &texts)
            .iter()
            .map(|finding| {
                let name = finding.message.split('`').nth(1).unwrap_or_default();
                format!("{}:{} {name}", finding.path.display(), finding.line)
            })
            .collect()
    }

    #[test]
    fn each_way_to_choose_is_found() {
        for code in [
            "use ring::digest;",
            "use ring as library;",
            "use rustls::crypto::{CryptoProvider, ring};",
            "fn f() { rustls::crypto::ring::default_provider(); }",
            "use rustls::crypto::aws_lc_rs as tls;",
            "fn f() { CryptoMode::Ring }",
            "fn f() { rustls::ClientConfig::builder() }",
            "fn f() { ServerConfig::builder() }",
            "fn f() { WebPkiServerVerifier::builder(roots) }",
            "fn f() { CryptoProvider::get_default() }",
        ] {
            assert_eq!(found(&[("a.rs", code)]).len(), 1, "{code}");
        }
        let two_lines = "use std::fmt;\nuse rustls::crypto::{\n    ring,\n};\n";
        assert_eq!(found(&[("a.rs", two_lines)]), ["ccm-core/src/a.rs:3 rustls::crypto::ring"]);
    }

    #[test]
    fn what_takes_the_one_choice_is_fine_and_so_are_tests() {
        let fine = "use rustls::crypto::CryptoProvider;\n\
                    fn f() { ClientConfig::builder_with_provider(crypto::provider()); ring(string); }\n\
                    #[cfg(test)]\nmod tests { use ring::digest; }\n#[cfg(test)]\nmod more;\n";
        let files = [
            ("a.rs", fine),
            ("a/more.rs", "use ring::digest;"),
            ("crypto.rs", "use ring as library;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
