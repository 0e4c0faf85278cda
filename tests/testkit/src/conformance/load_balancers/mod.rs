//! The rules for load balancers, in the order in which they are checked.

mod backends_and_deletion;
mod cloud;
mod context;
mod ensure;
mod interpret;
mod inventory;
mod ownership;
mod reporting;
mod service_driver;
pub(super) mod trouble;

pub use cloud::{AllowedSources, CloudLoadBalancer, LoadBalancerCloud};

use super::rule::{Rule, rule};

/// Ids that other rules refer to.
mod ids {
    pub(super) const CLAIMED: &str = "claims-its-services";
    pub(super) const ENSURED: &str = "ensure-makes-one";
    pub(super) const DELETED: &str = "delete-removes-everything";
    pub(super) const ERROR_KINDS: &str = "error-kinds";
    pub(super) const INVENTORY: &str = "owned-is-listed";
    pub(super) const DELETES_OWNED: &str = "only-owned-is-deleted";
    pub(super) const PLAN_NAMES: &str = "plan-names-changes";
}

/// Every rule for load balancers.
pub const LOAD_BALANCER_RULES: [Rule<dyn LoadBalancerCloud>; 42] = [
    rule!(
        ids::CLAIMED,
        interpret::claimed,
        "a Service with one TCP port is ours, without class or with one of the provider's, and within what is supported"
    ),
    rule!(
        "interpret-is-pure",
        interpret::pure,
        "the same Service has the same claim, every time and in every provider of a process, without a cloud call"
    ),
    rule!(
        "digest-ignores-noise",
        interpret::digest_ignores_noise,
        "status, resource version, finalizers, labels and annotations that are not read, and annotations that ensure \
         asked to be written leave the digest as it is"
    ),
    rule!(
        "digest-sees-changes",
        interpret::digest_sees_changes,
        "ports, source ranges and whatever else makes ensure change the cloud change the digest"
    ),
    rule!(
        "invalid-input-refused",
        interpret::invalid_input_refused,
        "an annotation that cannot be met is refused by its key and value, without a cloud call"
    ),
    rule!(
        "endpoints-announced",
        interpret::endpoints_announced,
        "a Service is given endpoints as backends only if supports_endpoint_backends says so"
    ),
    rule!(
        ids::ENSURED,
        ensure::ensured,
        "ensure is done in the end, and has made one load balancer with the ports and the members asked for"
    ),
    rule!(
        "status-usable",
        ensure::status_usable,
        "what is published when ensure is done are valid addresses or names of the load balancer, each once"
    ),
    rule!(
        "ensure-is-idempotent",
        ensure::idempotent,
        "ensure of what is there writes nothing, at any depth and in a new process, and answers as before"
    ),
    rule!(
        "changes-arrive",
        ensure::changes_arrive,
        "ensure after a change of ports and nodes changes the load balancer, and keeps its entry point"
    ),
    rule!(
        "verify-repairs",
        ensure::repairs,
        "ensure with ReadMode::Fresh repairs what was changed by hand"
    ),
    rule!(
        "support-is-kept",
        interpret::support_is_kept,
        "a Service that uses what is supported is claimed, served, and gets what it asked for"
    ),
    rule!(
        "both-families-served",
        interpret::both_families_served,
        "a Service that requires two address families, where these are supported, is found at addresses of both"
    ),
    rule!(
        "never-more-open",
        ensure::never_more_open,
        "no client outside the source ranges can connect, after an error at any call and in the end, and those inside can"
    ),
    rule!(
        "waits-outside",
        ensure::waits_outside,
        "no call sleeps longer than two seconds: waiting is Progress::Pending, with a pause and a reason, until the load \
         balancer serves"
    ),
    rule!(
        "update-members-only",
        backends_and_deletion::update_members_only,
        "update_backends updates the members and changes nothing else"
    ),
    rule!(
        "update-while-refused",
        backends_and_deletion::update_while_refused,
        "while the cloud rejects the desired state, update_backends still updates the members of the existing load balancer, \
         and changes nothing else"
    ),
    rule!(
        "update-on-nothing",
        backends_and_deletion::update_on_nothing,
        "update_backends of a load balancer that is not there is NotFound and makes nothing"
    ),
    rule!(
        ids::DELETED,
        backends_and_deletion::deleted,
        "delete removes everything that ensure made, also in a new process"
    ),
    rule!(
        "delete-on-nothing",
        backends_and_deletion::delete_on_nothing,
        "delete of what is not there is done and writes nothing"
    ),
    rule!(
        "delete-without-service",
        backends_and_deletion::delete_without_service,
        "delete needs neither Service, status nor valid annotations"
    ),
    rule!(
        "served-again",
        backends_and_deletion::served_again,
        "a Service whose type was another meanwhile is served anew, with what stale_annotations names taken off, and \
         nothing of the user's is named"
    ),
    rule!(
        "ensure-resumable",
        trouble::ensure_resumable,
        "after an error at any of its calls, or a lost answer, ensure goes on to the one load balancer asked for, in the \
         same process or a new one"
    ),
    rule!("update-resumable", trouble::update_resumable, "the same for update_backends"),
    rule!(
        "delete-resumable",
        trouble::delete_resumable,
        "the same for delete, which leaves nothing behind"
    ),
    rule!(
        "cancellation",
        trouble::cancellation,
        "a call that is dropped or cancelled at any await point ends promptly and leaves what the next one can finish or \
         delete"
    ),
    rule!(
        "no-write-without-leadership",
        trouble::no_write_without_leadership,
        "no writing call is begun once leadership cannot be proved, and the answer is NotLeader"
    ),
    rule!(
        ids::ERROR_KINDS,
        trouble::error_kinds,
        "each error of the cloud, at any call, has the kind that says what to do about it"
    ),
    rule!(
        "retry-after",
        trouble::retry_after,
        "a throttled answer hands on when the cloud wants to be asked again"
    ),
    rule!(
        "texts-presentable",
        reporting::texts_presentable,
        "errors, events and remarks say something and hold no secret; an event reason is one word in PascalCase, a note has \
         at most 1 kB"
    ),
    rule!(
        "changes-recorded",
        reporting::changes_recorded,
        "every change goes through Op::mutate or Op::mutate_batch, by an operation that mutation_operations() names"
    ),
    rule!(
        "clusters-apart",
        ownership::clusters_apart,
        "two clusters' Services of the same name have a load balancer each, and neither can touch the other's"
    ),
    rule!(
        "services-apart",
        ownership::services_apart,
        "two Services whose names differ only by namespace have a load balancer each, and neither can touch the other's"
    ),
    rule!(
        "long-names",
        ownership::long_names,
        "Services whose namespaces and names are as long as may be, and differ in the last letter, have a load balancer each"
    ),
    rule!(
        "foreign-untouched",
        ownership::foreign_untouched,
        "a load balancer that was made by hand is not changed, even if it has the very name"
    ),
    rule!(
        "concurrent-use",
        ownership::concurrent_use,
        "calls about different Services that overlap do not disturb each other"
    ),
    rule!(
        ids::INVENTORY,
        inventory::complete,
        "the inventory tells the clusters apart by name, and lists what each Service of this one owns, and of no other; all \
         of it or an error; read-only"
    ),
    rule!(
        "many-are-listed",
        inventory::many,
        "of more load balancers than a page of a listing has, each is listed"
    ),
    rule!(
        ids::DELETES_OWNED,
        inventory::deletes_only_owned,
        "delete_owned deletes what is listed, succeeds when it is gone, and leaves other clusters' things"
    ),
    rule!("plan-is-read-only", backends_and_deletion::plan_is_read_only, "plan changes nothing"),
    rule!(
        "plan-empty-after-ensure",
        backends_and_deletion::plan_empty,
        "nothing is planned when nothing is to be done"
    ),
    rule!(
        ids::PLAN_NAMES,
        backends_and_deletion::plan_names_changes,
        "what ensure would change is planned, with operation, object and reason"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_names() {
        super::super::rule::check_table(&super::LOAD_BALANCER_RULES);
    }
}
