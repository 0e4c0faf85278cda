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
        "as many answers as queries, in batches of none, one, two and as many as the limits allow"
    ),
    rule!(
        ids::FOUND_BY_NAME,
        answers::found_by_name,
        "a running instance is found, and runs, when its node has no provider ID"
    ),
    rule!(
        ids::ANSWERS_IN_ORDER,
        answers::answers_in_order,
        "answer i is about query i, also when one is asked twice"
    ),
    rule!(
        "all-of-many",
        answers::all_of_many,
        "of more instances than a page of a listing has, each is found"
    ),
    rule!(
        "not-found-if-never-existed",
        answers::not_found_if_never_existed,
        "an instance that never existed is proved absent"
    ),
    rule!(
        "not-found-if-deleted",
        answers::not_found_if_deleted,
        "a deleted instance is proved absent, by name and by provider ID"
    ),
    rule!(
        "stopped-exists",
        answers::stopped_exists,
        "a stopped instance is found and stopped, and runs when started"
    ),
    rule!(
        "terminated-is-gone",
        answers::terminated_is_gone,
        "a terminated instance is not found, or found and terminated"
    ),
    rule!(
        ids::NO_ABSENCE_ON_ERROR,
        errors::no_absence_on_error,
        "no instance is reported absent while the cloud answers with an error"
    ),
    rule!(
        ids::DOUBT_IS_AN_ERROR,
        errors::doubt_is_an_error,
        "no instance is reported found while the cloud answers with an error, not even one that was found before"
    ),
    rule!(
        "error-kinds",
        errors::error_kinds,
        "each error of the cloud has the kind that says what to do about it"
    ),
    rule!(
        "retry-after",
        errors::retry_after,
        "a throttled answer hands on when the cloud wants to be asked again"
    ),
    rule!(
        "sleeps-briefly",
        errors::sleeps_briefly,
        "no call sleeps longer than two seconds, not even when throttled"
    ),
    rule!(
        "texts-presentable",
        errors::texts_presentable,
        "errors say something, hold no secret, and name an event reason, if any, that is one word in PascalCase"
    ),
    rule!(
        "malformed-provider-id",
        errors::malformed_provider_id,
        "a malformed provider ID is invalid input, and names the value, while other nodes are answered"
    ),
    rule!(
        ids::PROVIDER_ID_ROUND_TRIP,
        metadata::provider_id_round_trip,
        "the provider ID of an instance is the same in every answer and finds the instance again"
    ),
    rule!(
        "provider-id-scheme",
        metadata::provider_id_scheme,
        "provider IDs have the form <name of the provider>://<something>"
    ),
    rule!(
        "foreign-nodes-left-alone",
        metadata::foreign_nodes_left_alone,
        "nodes with provider IDs of other clouds are foreign, own ones are not, and no cloud call is made to tell"
    ),
    rule!(
        "addresses-valid",
        metadata::addresses_valid,
        "at least one address, each valid for its type, none twice"
    ),
    rule!(
        "labels-valid",
        metadata::labels_valid,
        "zone, region, type and labels are valid for the Kubernetes API"
    ),
    rule!(
        "every-need-answered",
        metadata::every_need_answered,
        "existence and power are answered whatever is needed, addresses where they are needed"
    ),
    rule!(
        ids::FRESH_WHEN_ASKED,
        behaviour::fresh_when_asked,
        "with max_age zero, a provider that was asked before answers as one that was not"
    ),
    rule!(
        "read-only",
        behaviour::read_only,
        "describing changes nothing in the cloud and works without the right to write"
    ),
    rule!(
        "cancellation",
        behaviour::cancellation,
        "a cancelled call ends promptly, as canceled, and leaves the provider usable, as one that is dropped does"
    ),
    rule!("concurrent-use", behaviour::concurrent_use, "calls that overlap get their own answers"),
    rule!(
        ids::START_ENDS,
        start::ends,
        "start succeeds, and ends within a minute however slow the cloud is"
    ),
    rule!(
        "start-error-kinds",
        start::error_kinds,
        "when start fails for an error of the cloud, its kind says whether to wait or to end"
    ),
    rule!(
        "start-again",
        start::again,
        "a start that failed succeeds, in the same process, when the cloud is back"
    ),
    rule!(
        "start-idempotent",
        start::idempotent,
        "the start of the next process changes nothing in the cloud"
    ),
    rule!(
        "start-without-leadership",
        start::without_leadership,
        "with a gate that never opens, start succeeds and changes nothing in cloud and cluster"
    ),
    rule!(
        "start-stops",
        start::stops,
        "what start began makes no call any more once its context is cancelled"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_node_names() {
        super::super::rule::check_table(&super::INSTANCE_RULES);
    }
}
