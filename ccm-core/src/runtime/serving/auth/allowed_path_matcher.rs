//! Paths that need no authorization.

use std::collections::BTreeSet;

/// The paths that anybody may read: exact ones, and prefixes from entries that end with `*`.
///
/// A leading slash is optional, as upstream. Paths are compared undecoded, which is also how they
/// are routed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::runtime::serving) struct AllowedPaths {
    exact: BTreeSet<String>,
    prefixes: Vec<String>,
}

impl AllowedPaths {
    /// Parses the entries of `--authorization-always-allow-paths`. The error is the first invalid
    /// entry.
    pub(in crate::runtime::serving) fn parse(entries: &[String]) -> Result<Self, String> {
        let mut paths = Self::default();
        for entry in entries {
            let path = entry.strip_prefix('/').unwrap_or(entry);
            match path.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') => return Err(entry.clone()),
                Some(prefix) => paths.prefixes.push(prefix.to_owned()),
                None if path.contains('*') => return Err(entry.clone()),
                None => {
                    paths.exact.insert(path.to_owned());
                }
            }
        }
        Ok(paths)
    }

    /// Returns true if a request path is always allowed. A path that could mean another one once it
    /// is decoded or resolved never matches a prefix.
    pub(in crate::runtime::serving) fn contains(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        self.exact.contains(path)
            || (is_plain(path) && self.prefixes.iter().any(|prefix| path.starts_with(prefix)))
    }
}

fn is_plain(path: &str) -> bool {
    !path.contains('%')
        && !path.contains('\\')
        && !path.split('/').any(|part| part == "." || part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(entries: &[&str]) -> Result<AllowedPaths, String> {
        AllowedPaths::parse(&entries.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn entries_are_exact_or_prefixes() {
        for (entries, path, want) in [
            (&["/healthz", "/readyz", "/livez"][..], "/healthz", true),
            (&["/healthz"], "/healthz/", false),
            (&["/healthz"], "/healthz/leaderElection", false),
            (&["/healthz"], "/healthzz", false),
            (&["/healthz"], "//healthz", false),
            (&["/healthz"], "/HEALTHZ", false),
            (&["/healthz"], "/%68ealthz", false),
            (&["healthz"], "/healthz", true),
            (&["/healthz/*"], "/healthz/etcd", true),
            (&["/healthz/*"], "/healthz", false),
            (&["/healthz*"], "/healthz", true),
            (&["/healthz*"], "/healthzz/a", true),
            (&["/healthz*"], "/healthz/../metrics", false),
            (&["/healthz*"], "/healthz/%2e%2e/metrics", false),
            (&["/healthz*"], "/healthz/./x", false),
            (&["/healthz*"], "/healthz\\..\\metrics", false),
            (&["*"], "/metrics", true),
            (&["/*"], "/metrics", true),
            (&["/"], "/", true),
            (&["/"], "/metrics", false),
            (&[""], "/", true),
            (&[], "/healthz", false),
        ] {
            assert_eq!(paths(entries).unwrap().contains(path), want, "{entries:?} {path}");
        }
    }

    #[test]
    fn a_star_elsewhere_is_an_error() {
        for entry in ["/a*b", "/*/b", "/a**", "**"] {
            assert_eq!(paths(&["/healthz", entry]), Err(entry.to_owned()));
        }
    }
}
