//! Each planted bug is found, by a run with one fault at most.

use ccm_testkit::explore::{FaultKind, hunt};

use super::{instances, load_balancers, mutants::Bug, routes};

/// Names a bug, where it shows, with a fault of which kind, and how: each is a test.
macro_rules! planted {
    ($($name:ident: $bug:ident in $of:ident $scenario:literal, $kind:expr, $how:literal;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            let scenario = $of::planted($scenario, Bug::$bug);
            hunt(&*scenario, $kind, $how).await.unwrap();
        }
    )*};
}

planted! {
    planted_not_looked_for_is_found: NotLookedFor in load_balancers "create", Some(FaultKind::DiesAfter), "left behind";
    planted_other_cluster_is_found: OtherCluster in load_balancers "create", None, "somebody else's";
    planted_not_awaited_is_found: NotAwaited in load_balancers "delete", None, "left behind";
    planted_status_ignored_is_found: StatusIgnored in load_balancers "create", None, "is done but not ready";
    planted_tags_of_others_is_found: TagsOfOthers in load_balancers "create shared", None, "left behind";
    planted_members_cleared_is_found: MembersCleared in load_balancers "nodes", None, "does not lead to";
    planted_never_equal_is_found: NeverEqual in load_balancers "change settings", None, "left to do";
    planted_floating_ip_late_is_found: FloatingIpLate in load_balancers "create", Some(FaultKind::DiesAfter), "left behind";
    planted_proxy_as_absent_is_found: ProxyAsAbsent in load_balancers "delete", Some(FaultKind::StrangeAbsence), "left behind";
    planted_proxy_as_absent_is_found_of_nodes:
        ProxyAsAbsent in instances "follow few nodes", Some(FaultKind::StrangeAbsence), "is said to be";
    planted_refused_as_empty_is_found: RefusedAsEmpty in load_balancers "delete", Some(FaultKind::Throttled), "left behind";
    planted_first_page_is_found: FirstPage in instances "adopt page by page", None, "is said to";
    planted_unanswered_as_done_is_found: UnansweredAsDone in load_balancers "delete", Some(FaultKind::TimesOut), "left behind";
    planted_blind_retry_is_found: BlindRetry in load_balancers "create", Some(FaultKind::AnswerLost), "left behind";
    planted_port_forgotten_is_found: PortForgotten in load_balancers "nodes with groups", Some(FaultKind::Broken), "security_groups";
    planted_rule_stays_is_found: RuleStays in load_balancers "change with groups", Some(FaultKind::Broken), "rule";
    planted_unconditional_is_found_of_ports:
        Unconditional in load_balancers "nodes with groups", Some(FaultKind::Delayed), "security_groups";
    planted_unconditional_is_found_of_routes:
        Unconditional in routes "move as a whole", Some(FaultKind::Delayed), "route 10.98.0.0/24";
    planted_routes_of_others_is_found: RoutesOfOthers in routes "change as a whole", None, "left behind";
    planted_pair_stays_is_found: PairStays in routes "delete routes", None, "left behind";
}
