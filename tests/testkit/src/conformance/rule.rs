use std::fmt;

use futures::future::BoxFuture;

use super::{context::RuleContext, report::Verdict};

/// A rule of the kit, checked against a cloud of kind `C`.
pub struct Rule<C: ?Sized + 'static> {
    /// Stable id, kebab case, unique in its suite.
    pub id: &'static str,
    /// What is expected of the provider.
    pub expected: &'static str,
    pub(super) check: for<'a> fn(&'a RuleContext<'a, C>) -> BoxFuture<'a, Verdict>,
}

impl<C: ?Sized> fmt::Debug for Rule<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

macro_rules! rule {
    ($id:expr, $check:path, $expected:literal) => {
        Rule {
            id: $id,
            expected: $expected,
            check: |bench| Box::pin($check(bench)),
        }
    };
}

pub(super) use rule;

/// Checks what tables of rules must keep: distinct ids that fit into the names of the things that
/// rules make.
#[cfg(test)]
pub(super) fn check_table<C: ?Sized>(rules: &[Rule<C>]) {
    let ids: std::collections::BTreeSet<_> = rules.iter().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), rules.len());
    assert!(
        ids.iter()
            .all(|id| id.len() < 40 && id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
    );
}
