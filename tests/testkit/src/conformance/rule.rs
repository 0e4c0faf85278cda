use std::fmt;

use futures::future::BoxFuture;

use super::{context::RuleContext, report::Verdict};

/// A rule of the kit that is checked with an adapter of type `C`.
pub struct Rule<C: ?Sized + 'static> {
    /// Stable id in kebab case, unique in its suite.
    pub id: &'static str,
    /// Expected behaviour of the provider, as a statement.
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
            check: |ctx| Box::pin($check(ctx)),
        }
    };
}

pub(super) use rule;

/// Checks that the ids of rules are distinct, and short and plain enough for the names of objects
/// that the rules create.
#[cfg(test)]
pub(super) fn check_table<C: ?Sized>(rules: &[Rule<C>]) {
    let ids: std::collections::BTreeSet<_> = rules.iter().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), rules.len());
    assert!(
        ids.iter()
            .all(|id| id.len() < 40 && id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
    );
}
