//! The rules for load balancers, in the order in which they are checked.

mod backends_and_deletion;
mod cloud;
mod context;
mod ensure;
mod interpret;
pub(super) mod interruptions;
mod inventory;
mod ownership;
mod reporting;
mod service_driver;

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
pub const LOAD_BALANCER_RULES: [Rule<dyn LoadBalancerCloud>; 44] = [
    rule!(
        ids::CLAIMED,
        interpret::claims_its_services,
        "a Service with one TCP port is valid and supported, without a class and with each of the \
         provider's classes"
    ),
    rule!(
        "interpret-is-pure",
        interpret::interpret_is_pure,
        "interpret returns the same result for the same Service, every time and in every provider \
         of a process, without a cloud call"
    ),
    rule!(
        "digest-ignores-noise",
        interpret::digest_ignores_noise,
        "the digest ignores status, resource version, finalizers, labels and annotations that the \
         provider does not read, and annotations that ensure asked to write"
    ),
    rule!(
        "digest-sees-changes",
        interpret::digest_sees_changes,
        "the digest changes with ports, source ranges and everything else that makes ensure \
         change the cloud"
    ),
    rule!(
        "invalid-input-refused",
        interpret::invalid_input_refused,
        "an annotation that cannot be met makes the Service invalid, with the annotation's key \
         and value, without a cloud call"
    ),
    rule!(
        "endpoints-announced",
        interpret::endpoints_announced,
        "a Service has endpoints as backends only if supports_endpoint_backends returns true"
    ),
    rule!(
        ids::ENSURED,
        ensure::ensure_makes_one,
        "ensure finishes and has created exactly one load balancer, with the desired ports and \
         members"
    ),
    rule!(
        "status-usable",
        ensure::status_usable,
        "after ensure, the published status has valid addresses or hostnames of the load \
         balancer, each once"
    ),
    rule!(
        "ensure-is-idempotent",
        ensure::ensure_is_idempotent,
        "a repeated ensure writes nothing and returns the same result, in each ReadMode and in a \
         new process"
    ),
    rule!(
        "changes-arrive",
        ensure::changes_arrive,
        "ensure applies changed ports and nodes to the load balancer and keeps its published \
         status"
    ),
    rule!(
        "verify-repairs",
        ensure::verify_repairs,
        "ensure with ReadMode::Fresh repairs changes that were made by hand"
    ),
    rule!(
        "support-is-kept",
        interpret::support_is_kept,
        "a Service that uses a supported feature is valid, is served, and gets that feature; one with IPv6 alone gets an IPv6 address or a host name"
    ),
    rule!(
        "both-families-served",
        interpret::both_families_served,
        "if dual stack is supported, a Service that requires it is served on addresses of both \
         families"
    ),
    rule!(
        "never-more-open",
        ensure::never_more_open,
        "clients outside the source ranges cannot connect, not even after an error at any call; \
         clients inside can connect once ensure has finished"
    ),
    rule!(
        "waits-outside",
        ensure::waits_outside,
        "no call sleeps longer than two seconds; until the load balancer serves, calls return \
         Progress::Pending with a delay and a reason"
    ),
    rule!(
        "update-members-only",
        backends_and_deletion::update_members_only,
        "update_backends updates the members and changes nothing else"
    ),
    rule!(
        "update-while-refused",
        backends_and_deletion::update_while_refused,
        "while the cloud rejects the desired state, update_backends still updates the members of \
         the existing load balancer, and changes nothing else"
    ),
    rule!(
        "update-on-nothing",
        backends_and_deletion::update_on_nothing,
        "update_backends of a load balancer that does not exist returns NotFound and creates \
         nothing"
    ),
    rule!(
        ids::DELETED,
        backends_and_deletion::delete_removes_everything,
        "delete removes everything that ensure created, in the same process and in a new one"
    ),
    rule!(
        "delete-on-nothing",
        backends_and_deletion::delete_on_nothing,
        "delete of a load balancer that does not exist succeeds and writes nothing"
    ),
    rule!(
        "delete-without-service",
        backends_and_deletion::delete_without_service,
        "delete works without the Service, without a status and with invalid annotations"
    ),
    rule!(
        "served-again",
        backends_and_deletion::served_again,
        "a Service whose type changes from LoadBalancer and back is served again once the \
         annotations in stale_annotations are removed; none of these is the user's"
    ),
    rule!(
        "ensure-resumable",
        interruptions::ensure_resumable,
        "after an error or a lost answer at any call, ensure still ends with exactly one load \
         balancer in the desired state, in the same process or a new one"
    ),
    rule!(
        "update-resumable",
        interruptions::update_resumable,
        "after an error or a lost answer at any call, update_backends still reaches the desired \
         members, in the same process or a new one"
    ),
    rule!(
        "delete-resumable",
        interruptions::delete_resumable,
        "after an error or a lost answer at any call, delete still removes everything, in the \
         same process or a new one"
    ),
    rule!(
        "cancellation",
        interruptions::cancellation,
        "a call that is dropped or cancelled at any await point ends promptly, and the next call \
         can finish or delete what it left behind"
    ),
    rule!(
        "no-write-without-leadership",
        interruptions::no_write_without_leadership,
        "no writing call starts once leadership cannot be proved, and the result is NotLeader"
    ),
    rule!(
        ids::ERROR_KINDS,
        interruptions::error_kinds,
        "a cloud error at any call is mapped to the ErrorKind that tells the framework how to \
         react; a denied call that the provider can do without need not be an error"
    ),
    rule!(
        "retry-after",
        interruptions::retry_after,
        "a throttling error carries the retry delay that the cloud asked for"
    ),
    rule!(
        "texts-presentable",
        reporting::texts_presentable,
        "errors, events and notices are not empty and contain no secret; an event reason is one \
         word in PascalCase, a note has at most 1 kB"
    ),
    rule!(
        "changes-recorded",
        reporting::changes_recorded,
        "every change goes through Op::mutate or Op::mutate_batch, with an operation that \
         mutation_operations() lists"
    ),
    rule!(
        "clusters-apart",
        ownership::clusters_apart,
        "Services of the same name in two clusters have separate load balancers, and neither \
         cluster can change the other's"
    ),
    rule!(
        "services-apart",
        ownership::services_apart,
        "two Services whose names differ only by namespace have separate load balancers, and \
         neither can change the other's"
    ),
    rule!(
        "long-names",
        ownership::long_names,
        "Services with namespaces and names of maximum length that differ in the last letter have \
         separate load balancers"
    ),
    rule!(
        "foreign-untouched",
        ownership::foreign_untouched,
        "a load balancer that was created by hand is not changed, even if it has the name that \
         the provider would choose"
    ),
    rule!(
        "concurrent-use",
        ownership::concurrent_use,
        "concurrent calls for different Services do not affect each other"
    ),
    rule!(
        ids::INVENTORY,
        inventory::owned_is_listed,
        "the inventory has a distinct ID per cluster and lists what each Service of this cluster \
         owns, and nothing of other clusters; it lists everything or fails, and changes nothing"
    ),
    rule!(
        "many-are-listed",
        inventory::many_are_listed,
        "every load balancer is listed, even if there are more than fit on one page of a listing"
    ),
    rule!(
        ids::DELETES_OWNED,
        inventory::only_owned_is_deleted,
        "delete_owned deletes listed objects, succeeds if they are already deleted, and keeps \
         objects of other clusters"
    ),
    rule!(
        "plan-is-read-only",
        backends_and_deletion::plan_is_read_only,
        "plan changes nothing in the cloud"
    ),
    rule!(
        "plan-empty-after-ensure",
        backends_and_deletion::plan_empty_after_ensure,
        "the plan is empty if there is nothing to do"
    ),
    rule!(
        ids::PLAN_NAMES,
        backends_and_deletion::plan_names_changes,
        "the plan lists what ensure would change, with operation, object and reason"
    ),
    rule!(
        "slow-change",
        ensure::slow_change,
        "a change that the cloud completes later is pending until then, neither done nor failed; \
         any process completes it"
    ),
    rule!(
        "late-failure",
        ensure::late_failure,
        "a change that the cloud accepts and that then fails is not answered as done, and \
         succeeds when it is repeated"
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_fit_into_names() {
        super::super::rule::check_table(&super::LOAD_BALANCER_RULES);
    }
}
