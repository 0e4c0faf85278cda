//! The rules for instances, in the order in which they are checked.

mod answers;
mod behaviour;
mod context;
mod errors;
mod metadata;
mod start;

use super::{
    InstanceCloud,
    rule::{Rule, rule},
};

/// Ids that other rules refer to.
pub(super) mod ids {
    pub(in super::super) const ONE_ANSWER_PER_QUERY: &str = "one-answer-per-query";
    pub(in super::super) const FOUND_BY_NAME: &str = "found-by-name";
    pub(in super::super) const PROVIDER_ID_ROUND_TRIP: &str = "provider-id-round-trip";
    pub(in super::super) const NO_ABSENCE_ON_ERROR: &str = "no-absence-on-error";
    pub(in super::super) const ANSWERS_IN_ORDER: &str = "answers-in-order";
    pub(in super::super) const FRESH_WHEN_ASKED: &str = "fresh-when-asked";
    pub(in super::super) const DOUBT_IS_AN_ERROR: &str = "doubt-is-an-error";
    pub(in super::super) const START_ENDS: &str = "start-ends";
}

/// Every rule for instances.
pub const INSTANCE_RULES: [Rule<dyn InstanceCloud>; 31] = [
    rule!(
        ids::ONE_ANSWER_PER_QUERY,
        answers::one_answer_per_query,
        "a batch of zero, one, two or max_batch queries gets exactly one answer per query"
    ),
    rule!(
        ids::FOUND_BY_NAME,
        answers::found_by_name,
        "a running instance is found and reported as running when its node has no provider ID"
    ),
    rule!(
        ids::ANSWERS_IN_ORDER,
        answers::answers_in_order,
        "answer i belongs to query i, even if a batch contains the same query twice"
    ),
    rule!(
        "all-of-many",
        answers::all_of_many,
        "every instance is found, even if there are more than fit on one page of a listing"
    ),
    rule!(
        "not-found-if-never-existed",
        answers::not_found_if_never_existed,
        "an instance that never existed is reported as NotFound"
    ),
    rule!(
        "not-found-if-deleted",
        answers::not_found_if_deleted,
        "a deleted instance is reported as NotFound, by name and by provider ID"
    ),
    rule!(
        "stopped-exists",
        answers::stopped_exists,
        "a stopped instance is found as stopped, and as running once it is started again"
    ),
    rule!(
        "terminated-is-gone",
        answers::terminated_is_gone,
        "a terminated instance is NotFound, or found as terminated"
    ),
    rule!(
        ids::NO_ABSENCE_ON_ERROR,
        errors::no_absence_on_error,
        "no instance is reported as NotFound while the cloud returns errors"
    ),
    rule!(
        ids::DOUBT_IS_AN_ERROR,
        errors::doubt_is_an_error,
        "no instance is reported as found while the cloud returns errors, not even one that was \
         found before"
    ),
    rule!(
        "error-kinds",
        errors::error_kinds,
        "each cloud error is mapped to the ErrorKind that tells the framework how to react"
    ),
    rule!(
        "retry-after",
        errors::retry_after,
        "a throttling error carries the retry delay that the cloud asked for"
    ),
    rule!(
        "sleeps-briefly",
        errors::sleeps_briefly,
        "no call sleeps longer than two seconds, even if it is throttled"
    ),
    rule!(
        "texts-presentable",
        errors::texts_presentable,
        "error messages are not empty and contain no secret; an event reason, if set, is one word \
         in PascalCase"
    ),
    rule!(
        "malformed-provider-id",
        errors::malformed_provider_id,
        "a malformed provider ID is an InvalidInput error that quotes the value; other nodes of \
         the batch are still answered"
    ),
    rule!(
        ids::PROVIDER_ID_ROUND_TRIP,
        metadata::provider_id_round_trip,
        "an instance has the same provider ID in every answer, and a query by that ID finds it"
    ),
    rule!(
        "provider-id-scheme",
        metadata::provider_id_scheme,
        "provider IDs have the form <name of the provider>://<something>"
    ),
    rule!(
        "foreign-nodes-left-alone",
        metadata::foreign_nodes_left_alone,
        "node_ownership reports nodes with another cloud's provider ID as foreign and its own nodes \
         as ours, without a cloud call"
    ),
    rule!(
        "addresses-valid",
        metadata::addresses_valid,
        "an instance has at least one address; each is valid for its type and listed once"
    ),
    rule!(
        "labels-valid",
        metadata::labels_valid,
        "zone, region, instance type and labels are valid for the Kubernetes API"
    ),
    rule!(
        "every-need-answered",
        metadata::every_need_answered,
        "every answer has existence and power state, whatever the scope; addresses are present if \
         the scope includes them"
    ),
    rule!(
        ids::FRESH_WHEN_ASKED,
        behaviour::fresh_when_asked,
        "with max_age zero, a provider that has answered before answers like a new one"
    ),
    rule!(
        "read-only",
        behaviour::read_only,
        "describe changes nothing in the cloud and works while the write gate is closed"
    ),
    rule!(
        "cancellation",
        behaviour::cancellation,
        "a cancelled call promptly returns Canceled, and the provider stays usable after a \
         cancelled or dropped call"
    ),
    rule!(
        "concurrent-use",
        behaviour::concurrent_use,
        "concurrent calls each get their own answers"
    ),
    rule!(
        ids::START_ENDS,
        start::start_ends,
        "start succeeds, and returns within a minute even if the cloud is slow"
    ),
    rule!(
        "start-error-kinds",
        start::start_error_kinds,
        "if a cloud error makes start fail, the ErrorKind says whether to retry or to exit"
    ),
    rule!(
        "start-again",
        start::start_again,
        "after a failed start, start succeeds in the same process once the cloud has recovered"
    ),
    rule!(
        "start-idempotent",
        start::start_idempotent,
        "start in the next process changes nothing in the cloud"
    ),
    rule!(
        "start-without-leadership",
        start::start_without_leadership,
        "with a write gate that never opens, start succeeds and changes nothing in the cloud or \
         the cluster"
    ),
    rule!(
        "start-stops",
        start::start_stops,
        "tasks that start spawned make no more cloud calls after their context is cancelled"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_node_names() {
        super::super::rule::check_table(&super::INSTANCE_RULES);
    }
}
