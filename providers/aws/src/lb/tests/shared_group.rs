//! The security group that all load balancers share, turned on and off.

use super::fixture::{Fixture, published, service};
use crate::{
    api::ec2::RuleSource,
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
        let mut web = service("web", &[80]);
        let status = rig.settle(&web).await;
        web = published(&web, &status);
        let own = rig.aws.rules(&rig.world.node_group);

        let rig = rig.restart_with(|settings| settings.shared_backend_security_group = true);
        rig.settle(&web).await;
        let groups = rig.aws.load_balancers().remove(0).security_groups;
        assert_eq!(groups.len(), 2, "{dialect:?}");
        let shared = rig.aws.rules(&rig.world.node_group);
        let refers = |source: &RuleSource| match source {
            RuleSource::Group(group, ..) => groups.contains(group),
            _ => false,
        };
        assert!(!shared.is_empty() && shared.iter().all(|rule| refers(&rule.source)), "{shared:?}");

        let rig = rig.restart_with(|settings| settings.shared_backend_security_group = false);
        rig.settle(&web).await;
        let groups = rig.aws.load_balancers().remove(0).security_groups;
        assert_eq!(groups.len(), 1, "{dialect:?}");
        let rules = rig.aws.rules(&rig.world.node_group);
        for rule in own.iter().chain(&shared) {
            assert!(rules.contains(rule), "{rule:?} is not in {rules:?}");
        }
    }
}
