//! The rules for routes, in the order in which they are checked.

mod cloud;
mod context;
mod failures_and_batches;
mod listing_and_changes;
mod slow_changes;

pub use cloud::{CloudRoute, RouteCloud};

use super::rule::{Rule, rule};

/// Ids that other rules refer to.
mod ids {
    pub(super) const LISTED: &str = "listed-as-made";
    pub(super) const DELETED: &str = "delete-exactly-listed";
    pub(super) const ANSWERS_IN_ORDER: &str = "answers-in-order";
    pub(super) const FAILURE_SPOILS_NOTHING: &str = "failure-spoils-nothing";
    pub(super) const RESUMABLE: &str = "apply-resumable";
    pub(super) const LIST_WHOLE: &str = "list-whole-or-error";
}

/// Every rule for routes.
pub const ROUTE_RULES: [Rule<dyn RouteCloud>; 26] = [
    rule!(
        ids::LISTED,
        listing_and_changes::listed_as_made,
        "a route that was created is in the cloud and is listed, with its node and canonical \
         destination"
    ),
    rule!(
        "both-families",
        listing_and_changes::both_families,
        "an IPv6 route is created and listed beside an IPv4 route"
    ),
    rule!(
        "create-existing",
        listing_and_changes::create_existing,
        "creating a route that exists succeeds and does not duplicate it"
    ),
    rule!(
        ids::DELETED,
        listing_and_changes::delete_exactly_listed,
        "deleting a listed route deletes that route and no other, in any process"
    ),
    rule!(
        "delete-missing",
        listing_and_changes::delete_missing,
        "deleting a route that does not exist succeeds"
    ),
    rule!(
        "delete-without-instance",
        listing_and_changes::delete_without_instance,
        "a listed route can be deleted after its instance was deleted"
    ),
    rule!(
        "blackhole-is-told",
        listing_and_changes::blackhole_is_told,
        "a route whose instance was deleted is listed as a black hole, listed without a node, or \
         not listed"
    ),
    rule!(
        "list-is-fresh",
        listing_and_changes::list_is_fresh,
        "a route that another process just created is listed, and one that it just deleted is not"
    ),
    rule!(
        "list-is-read-only",
        listing_and_changes::list_is_read_only,
        "list changes nothing in the cloud and works while the write gate is closed"
    ),
    rule!(
        ids::LIST_WHOLE,
        failures_and_batches::list_whole_or_error,
        "list fails if any of its calls fails; a successful listing is complete"
    ),
    rule!(
        ids::ANSWERS_IN_ORDER,
        failures_and_batches::answers_in_order,
        "apply returns one answer per change, and answer i belongs to change i"
    ),
    rule!(
        ids::FAILURE_SPOILS_NOTHING,
        failures_and_batches::failure_spoils_nothing,
        "a failed change does not keep the other changes of its batch from succeeding, whatever \
         its position"
    ),
    rule!(
        ids::RESUMABLE,
        failures_and_batches::apply_resumable,
        "after an error or a lost answer at any call, changes that were answered as done are \
         done, and the same batch succeeds when applied again, in the same process or a new one"
    ),
    rule!(
        "large-batch",
        failures_and_batches::large_batch,
        "as many routes as a large cluster has can be created, listed and deleted"
    ),
    rule!(
        "error-kinds",
        failures_and_batches::error_kinds,
        "each cloud error is mapped to the ErrorKind that tells the framework how to react"
    ),
    rule!(
        "retry-after",
        failures_and_batches::retry_after,
        "a throttling error carries the retry delay that the cloud asked for"
    ),
    rule!(
        "sleeps-briefly",
        failures_and_batches::sleeps_briefly,
        "no call sleeps longer than two seconds, even if it is throttled"
    ),
    rule!(
        "texts-presentable",
        failures_and_batches::texts_presentable,
        "error messages are not empty and contain no secret; an event reason, if set, is one word \
         in PascalCase"
    ),
    rule!(
        "changes-recorded",
        failures_and_batches::changes_recorded,
        "every change goes through Op::mutate or Op::mutate_batch, with an operation that \
         mutation_operations() lists"
    ),
    rule!(
        "no-write-without-leadership",
        failures_and_batches::no_write_without_leadership,
        "no writing call starts once leadership cannot be proved, and every answer is NotLeader"
    ),
    rule!(
        "cancellation",
        failures_and_batches::cancellation,
        "a batch that is dropped or cancelled at any await point ends promptly and can be applied \
         again"
    ),
    rule!(
        "clusters-apart",
        listing_and_changes::clusters_apart,
        "a cluster lists and deletes only its own routes"
    ),
    rule!(
        "foreign-untouched",
        listing_and_changes::foreign_untouched,
        "routes of other tables are neither listed nor changed"
    ),
    rule!(
        "concurrent-use",
        failures_and_batches::concurrent_use,
        "concurrent batches do not affect each other"
    ),
    rule!(
        "slow-change",
        slow_changes::slow_change,
        "a change that the cloud completes later is pending until then, neither done nor failed; \
         any process completes it"
    ),
    rule!(
        "late-failure",
        slow_changes::late_failure,
        "a change that the cloud accepts and that then fails is not answered as done, and \
         succeeds when it is repeated"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_names() {
        super::super::rule::check_table(&super::ROUTE_RULES);
    }
}
