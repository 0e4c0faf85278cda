//! The rules for routes, in the order in which they are checked.

mod bench;
mod cloud;
mod failures_and_batches;
mod listing_and_changes;

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
pub const ROUTE_RULES: [Rule<dyn RouteCloud>; 24] = [
    rule!(
        ids::LISTED,
        listing_and_changes::listed,
        "a route that was made is in the cloud and listed, with its node and canonical destination"
    ),
    rule!(
        "both-families",
        listing_and_changes::both_families,
        "an IPv6 route is made and listed beside an IPv4 one"
    ),
    rule!(
        "create-existing",
        listing_and_changes::create_again,
        "creating a route that is there succeeds and makes no second one"
    ),
    rule!(
        ids::DELETED,
        listing_and_changes::delete_exactly,
        "deleting a listed route takes that one and no other, in any process"
    ),
    rule!(
        "delete-missing",
        listing_and_changes::delete_again,
        "deleting a route that is not there succeeds"
    ),
    rule!(
        "delete-without-instance",
        listing_and_changes::lost_instance_deleted,
        "a route as listed can be deleted when its instance is gone"
    ),
    rule!(
        "blackhole-is-told",
        listing_and_changes::blackhole,
        "a route whose instance is gone is listed as black hole, without node, or not at all"
    ),
    rule!(
        "list-is-fresh",
        listing_and_changes::list_is_fresh,
        "what another process just made or deleted is listed, or is not"
    ),
    rule!(
        "list-is-read-only",
        listing_and_changes::list_is_read_only,
        "listing changes nothing and needs no right to write"
    ),
    rule!(
        ids::LIST_WHOLE,
        failures_and_batches::list_whole,
        "when any call of a listing fails, the listing fails; what is listed is complete"
    ),
    rule!(
        ids::ANSWERS_IN_ORDER,
        failures_and_batches::answers_in_order,
        "one answer per change, and answer i is about change i"
    ),
    rule!(
        ids::FAILURE_SPOILS_NOTHING,
        failures_and_batches::failure_spoils_nothing,
        "a change that fails, wherever it stands, leaves the others to succeed"
    ),
    rule!(
        ids::RESUMABLE,
        failures_and_batches::resumable,
        "after an error at any call, or a lost answer, what was answered as done is done, and the same changes succeed in \
         the same process or a new one"
    ),
    rule!(
        "large-batch",
        failures_and_batches::large_batch,
        "as many routes as a large cluster has are made, listed and deleted"
    ),
    rule!(
        "error-kinds",
        failures_and_batches::error_kinds,
        "each error of the cloud has the kind that says what to do about it"
    ),
    rule!(
        "retry-after",
        failures_and_batches::retry_after,
        "a throttled answer hands on when the cloud wants to be asked again"
    ),
    rule!(
        "sleeps-briefly",
        failures_and_batches::sleeps_briefly,
        "no call sleeps longer than two seconds, not even when throttled"
    ),
    rule!(
        "texts-presentable",
        failures_and_batches::texts_presentable,
        "errors say something, hold no secret, and name an event reason, if any, that is one word in PascalCase"
    ),
    rule!(
        "changes-recorded",
        failures_and_batches::changes_recorded,
        "every change goes through Op::mutate or Op::mutate_batch, by an operation that mutation_operations() names"
    ),
    rule!(
        "no-write-without-leadership",
        failures_and_batches::no_write_without_leadership,
        "no writing call is begun once leadership cannot be proved, and the answers are NotLeader"
    ),
    rule!(
        "cancellation",
        failures_and_batches::cancellation,
        "a batch that is dropped or cancelled at any await point ends promptly and can be applied again"
    ),
    rule!(
        "clusters-apart",
        listing_and_changes::clusters_apart,
        "a cluster lists and deletes its own routes alone"
    ),
    rule!(
        "foreign-untouched",
        listing_and_changes::foreign_untouched,
        "routes of other tables are neither listed nor touched"
    ),
    rule!(
        "concurrent-use",
        failures_and_batches::concurrent_use,
        "batches that overlap do not disturb each other"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_names() {
        super::super::rule::check_table(&super::ROUTE_RULES);
    }
}
