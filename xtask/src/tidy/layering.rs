//! What a plan may not name: `plan.rs` and the files of a `plan` folder are pure.

use std::path::Path;

use super::Finding;
use super::lexer::{blank_literals, tokens};
use super::paths;

/// Paths a plan may not use, and why.
const FORBIDDEN: [(&[&str], &str); 22] = [
    (&["tokio"], "the runtime"),
    (&["tokio_util"], "the runtime"),
    (&["futures"], "asynchronous code"),
    (&["kube", "Client"], "a client"),
    (&["kube", "Api"], "a client"),
    (&["kube", "client"], "a client"),
    (&["kube", "api"], "a client"),
    (&["kube", "runtime"], "a client"),
    (&["kube", "config"], "a client"),
    (&["kube", "discovery"], "a client"),
    (&["kube_client"], "a client"),
    (&["kube_runtime"], "a client"),
    (&["reqwest"], "a client"),
    (&["hyper"], "a client"),
    (&["hyper_util"], "a client"),
    (&["tower"], "a client"),
    (&["std", "env"], "the environment"),
    (&["rand"], "randomness"),
    (&["prometheus"], "metrics"),
    (&["tracing"], "logging: return reasons as data"),
    (&["log"], "logging: return reasons as data"),
    (&["governor"], "a clock"),
];

/// Crates of cloud SDKs start like this.
const SDK_PREFIXES: [&str; 3] = ["aws_sdk_", "aws_config", "aws_smithy"];

/// Calls a plan may not make, whatever stands before them, and why.
const FORBIDDEN_CALLS: [(&[&str], &str); 6] = [
    (&["Instant", "now"], "a clock: take `now` as an argument"),
    (&["SystemTime", "now"], "a clock: take `now` as an argument"),
    (&["Timestamp", "now"], "a clock: take `now` as an argument"),
    (&["Zoned", "now"], "a clock: take `now` as an argument"),
    (&["Utc", "now"], "a clock: take `now` as an argument"),
    (&["Uuid", "new_v4"], "randomness"),
];

/// Whether the file is (part of) a plan.
pub(super) fn is_plan(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
        && (path.file_stem().is_some_and(|stem| stem == "plan")
            || path
                .parent()
                .is_some_and(|parent| parent.components().any(|part| part.as_os_str() == "plan")))
}

/// Forbidden paths in a plan's source.
pub(super) fn check(path: &Path, source: &str) -> Vec<Finding> {
    let blanked = blank_literals(source);
    let tokens = tokens(&blanked);
    let paths = paths::all(&tokens);
    let finding = |(path_used, line): &(Vec<&str>, usize)| {
        let why = forbidden(path_used)?;
        Some(Finding::new(
            path,
            *line,
            format!("a plan is pure and may not use `{}`, {why}", path_used.join("::")),
        ))
    };
    paths.iter().filter_map(finding).collect()
}

fn forbidden(used: &[&str]) -> Option<&'static str> {
    let by_start = FORBIDDEN
        .iter()
        .find(|(start, _)| used.starts_with(start))
        .map(|(_, why)| *why);
    let by_sdk = || {
        SDK_PREFIXES
            .iter()
            .any(|prefix| used[0].starts_with(prefix))
            .then_some("a cloud's SDK")
    };
    let by_call = || {
        FORBIDDEN_CALLS
            .iter()
            .find(|(call, _)| used.ends_with(call))
            .map(|(_, why)| *why)
    };
    by_start.or_else(by_sdk).or_else(by_call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        check(Path::new("plan.rs"), source)
            .into_iter()
            .map(|finding| {
                format!("{}: {}", finding.line, finding.message.split('`').nth(1).unwrap())
            })
            .collect()
    }

    #[test]
    fn plans_are_found_by_name_and_by_folder() {
        for plan in ["a/plan.rs", "a/plan/tests.rs", "plan/deep/x.rs"] {
            assert!(is_plan(Path::new(plan)), "{plan}");
        }
        for other in ["a/planet.rs", "a/plan.md", "a/apply.rs", "explan/x.rs"] {
            assert!(!is_plan(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn every_forbidden_thing_is_found() {
        for (path, _) in FORBIDDEN {
            let path = path.join("::");
            assert_eq!(found(&format!("use {path};")), [format!("1: {path}")]);
        }
        for (call, _) in FORBIDDEN_CALLS {
            let call = call.join("::");
            assert_eq!(found(&format!("fn f() {{\n    {call}();\n}}")), [format!("2: {call}")]);
        }
        assert_eq!(found("use aws_sdk_ec2::types::Instance;"), ["1: aws_sdk_ec2::types::Instance"]);
    }

    #[test]
    fn groups_renames_and_full_paths_do_not_hide_it() {
        assert_eq!(
            found("use std::{collections::{BTreeMap, BTreeSet}, env as e, fmt};"),
            ["1: std::env"]
        );
        assert_eq!(found("use kube::{\n    Resource,\n    Client,\n};"), ["3: kube::Client"]);
        assert_eq!(found("use ::tokio::sync as s;"), ["1: tokio::sync"]);
        assert_eq!(found("pub use {rand, crate::x};"), ["1: rand"]);
        assert_eq!(found("fn f() -> impl X + use<> { a(tokio::spawn); }"), ["1: tokio::spawn"]);
        assert_eq!(found("fn f() { std::time::Instant::now(); tracing::info!(\"x\"); }").len(), 2);
    }

    #[test]
    fn pure_code_passes() {
        let source = "
            use std::time::{Duration, Instant};
            use kube::ResourceExt;
            // use tokio::sync;
            fn f(now: Instant, rand: u8) -> &'static str { let _ = rand; \"std::env\" }
            use crate::tokio::x;
        ";
        assert_eq!(found(source), Vec::<String>::new());
    }
}
