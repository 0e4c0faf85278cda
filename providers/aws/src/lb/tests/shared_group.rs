//! The security group that all load balancers share, turned on and off.

use ccm_core::{
    k8s::ServiceView,
    provider::{ErrorKind, ReadMode},
};

use super::fixture::{Fixture, published, service, with};
use crate::{
    api::{Action, ec2::RuleSource},
    config::{AnnotationDialect, Settings},
};

/// Turned on, one rule takes the place of the Services' own. Turned off, these come back, and the shared
/// group with its rule is left for a person to delete.
#[tokio::test(start_paused = true)]
async fn the_shared_group_comes_and_goes_with_its_key() {
    for dialect in [AnnotationDialect::Upstream, AnnotationDialect::Extended] {
        let settings = Settings {
            managed_security_groups: true,
            annotation_dialect: dialect,
            ..Settings::default()
        };
        let rig = Fixture::with(1, settings);
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let own = rig.aws.rules(&rig.world.node_group);

        let rig = rig.restart_with(|settings| settings.shared_backend_security_group = true);
        rig.aws.reset_calls();
        rig.settle(&web).await;
        // The nodes admit it at any time.
        let changes = order(&rig);
        assert_eq!(
            changes,
            [
                Action::SetSecurityGroups,
                Action::AuthorizeSecurityGroupIngress,
                Action::RevokeSecurityGroupIngress
            ]
        );
        let groups = rig.aws.load_balancers().remove(0).security_groups;
        assert_eq!(groups.len(), 2, "{dialect:?}");
        let shared = rig.aws.rules(&rig.world.node_group);
        let refers = |source: &RuleSource| match source {
            RuleSource::Group(group, ..) => groups.contains(group),
            _ => false,
        };
        assert!(!shared.is_empty() && shared.iter().all(|rule| refers(&rule.source)), "{shared:?}");

        let rig = rig.restart_with(|settings| settings.shared_backend_security_group = false);
        rig.aws.reset_calls();
        rig.settle(&web).await;
        let changes = order(&rig);
        assert_eq!(changes, [Action::AuthorizeSecurityGroupIngress, Action::SetSecurityGroups]);
        let groups = rig.aws.load_balancers().remove(0).security_groups;
        assert_eq!(groups.len(), 1, "{dialect:?}");
        let rules = rig.aws.rules(&rig.world.node_group);
        for rule in own.iter().chain(&shared) {
            assert!(rules.contains(rule), "{rule:?} is not in {rules:?}");
        }
    }
}

/// Without room for the Services' own rules, the load balancer keeps the shared group.
#[tokio::test(start_paused = true)]
async fn the_shared_group_stays_as_long_as_nodes_would_not_admit_the_load_balancer() {
    let settings = Settings {
        managed_security_groups: true,
        shared_backend_security_group: true,
        ..Settings::default()
    };
    let rig = Fixture::with(1, settings);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let groups = rig.aws.load_balancers().remove(0).security_groups;
    assert_eq!(groups.len(), 2);

    let full = rig.aws.rules(&rig.world.node_group).len();
    rig.aws
        .quotas(|quotas| quotas.rules_per_security_group = full);
    let rig = rig.restart_with(|settings| settings.shared_backend_security_group = false);
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert_eq!(rig.aws.load_balancers().remove(0).security_groups, groups);
}

/// Rules with networks admit the load balancer whatever its groups are. Then these change first, as
/// everything that rules depend on.
#[tokio::test(start_paused = true)]
async fn a_group_to_which_no_rule_refers_goes_before_rules_are_added() {
    let settings = Settings { managed_security_groups: true, ..Settings::default() };
    let rig = Fixture::with(1, settings);
    let tags = [("kubernetes.io/cluster/other", "owned")];
    let groups = ["one", "two"].map(|name| {
        rig.aws
            .security_group(&rig.world.vpc, name, &tags)
            .to_string()
    });
    let web = with(service("web", &[80]), "security-groups", &groups.join(","));
    let web = published(&web, &rig.settle(&web).await);
    let ports = service("web", &[80, 443]).ports;
    let less = ServiceView { ports, ..with(web, "security-groups", &groups[1]) };
    rig.aws.reset_calls();
    rig.settle(&less).await;
    assert_eq!(order(&rig), [Action::SetSecurityGroups, Action::AuthorizeSecurityGroupIngress]);
}

/// The changes of rules and of the load balancer's groups, in order.
fn order(rig: &Fixture) -> Vec<Action> {
    let actions = rig.aws.actions().into_iter();
    actions
        .filter(|action| {
            matches!(
                action,
                Action::AuthorizeSecurityGroupIngress
                    | Action::RevokeSecurityGroupIngress
                    | Action::SetSecurityGroups
            )
        })
        .collect()
}
