//! The binary, end to end: moto in the place of AWS, a real control plane or the embedded API
//! server, simulated kubelets.
//!
//! All cases share one API server of a kind, which is emptied before each. What can be shown on a
//! real control plane is shown there; on the embedded API server are those about what the process
//! prints.

mod adoption;
mod check;
pub(crate) mod crash;
pub(crate) mod fixture;
mod mistakes;
mod moves;
mod nodes;
mod orphans;
pub(crate) mod rights;
mod secrets;
mod services;

use ccm_e2e::server::ServerKind;
use futures::future::LocalBoxFuture;

use self::fixture::{ClusterFixture, SharedServers};

/// What a case does.
pub(crate) type Body =
    for<'a, 'b> fn(&'a mut ClusterFixture<'b>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A list of cases, by kind of server and their functions' names.
macro_rules! cases {
    ($($kind:ident $module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            ServerKind::$kind,
            concat!(stringify!($module), "::", stringify!($name)),
            (|stage| Box::pin($module::$name(stage))) as Body,
        )),*),*]
    };
}

/// All cases but those that take long.
#[rustfmt::skip]
pub(crate) fn cases() -> Vec<(ServerKind, &'static str, Body)> {
    cases! {
        Real nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_instances, families_come_in_the_order_of_the_configuration,
            pod_networks_get_routes_and_instances_tags,
        }
        Real services {
            each_annotation_has_its_effect, security_groups_follow_the_annotations, classic_load_balancers_follow_the_annotations,
        }
        Real mistakes {
            mistakes_are_told_together, what_is_not_there_is_told, refusals_of_aws_are_told_and_heal, what_cannot_change_stays,
        }
        Real moves { a_service_moves_and_another_goes_back }
        Real orphans { what_was_leaked_is_found_and_deleted }
        Real crash { a_kill_at_some_changes_leads_to_the_same_end }
        Embedded adoption { a_healthy_cluster_needs_no_change_and_has_no_defects }
        Embedded check {
            a_healthy_cluster_is_green_and_mistakes_have_their_lines, each_planted_mistake_has_its_line,
        }
        Embedded mistakes { no_credential_is_shown_at_any_verbosity }
        Embedded secrets {
            keys_that_aws_repeats_are_not_shown, no_web_identity_and_nothing_it_gives_is_shown, no_role_is_shown,
            no_token_of_a_pod_identity_is_shown, no_token_of_an_instance_and_nothing_it_gives_is_shown,
            no_token_that_a_metadata_service_repeats_is_shown, a_file_with_keys_that_cannot_be_read_is_not_shown,
        }
    }
}

/// Runs a case on a cluster of its own; a credential that the process printed is a failure too.
pub(crate) async fn run(house: &SharedServers, kind: ServerKind, body: Body) -> anyhow::Result<()> {
    let mut stage = ClusterFixture::new(house, kind).await?;
    let done = body(&mut stage).await.and_then(|()| stage.check_logs());
    stage.take_requests();
    if done.is_ok() {
        house.note_success();
    }
    done
}
