//! Each planted bug is found, by a run with one fault at most.

use ccm_testkit::explore::{Kind, hunt};

use super::{balancers, instances, planted::Bug, routes};

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
    planted_not_looked_for_is_found: NotLookedFor in balancers "create", Some(Kind::DiesAfter), "left behind";
    planted_other_cluster_is_found: OtherCluster in balancers "create", None, "somebody else's";
    planted_not_awaited_is_found: NotAwaited in balancers "delete", None, "left behind";
    planted_status_ignored_is_found: StatusIgnored in balancers "create", None, "is done but not ready";
    planted_tags_of_others_is_found: TagsOfOthers in balancers "create shared", None, "left behind";
    planted_members_cleared_is_found: MembersCleared in balancers "nodes", None, "does not lead to";
    planted_never_equal_is_found: NeverEqual in balancers "change settings", None, "left to do";
    planted_floating_ip_late_is_found: FloatingIpLate in balancers "create", Some(Kind::DiesAfter), "left behind";
    planted_proxy_as_absent_is_found: ProxyAsAbsent in balancers "delete", Some(Kind::StrangeAbsence), "left behind";
    planted_proxy_as_absent_is_found_of_nodes:
        ProxyAsAbsent in instances "follow few nodes", Some(Kind::StrangeAbsence), "is said to be";
    planted_refused_as_empty_is_found: RefusedAsEmpty in balancers "delete", Some(Kind::Throttled), "left behind";
    planted_first_page_is_found: FirstPage in instances "adopt page by page", None, "is said to";
    planted_unanswered_as_done_is_found: UnansweredAsDone in balancers "delete", Some(Kind::TimesOut), "left behind";
    planted_blind_retry_is_found: BlindRetry in balancers "create", Some(Kind::AnswerLost), "left behind";
    planted_port_forgotten_is_found: PortForgotten in balancers "nodes with groups", Some(Kind::Broken), "security_groups";
    planted_rule_stays_is_found: RuleStays in balancers "change with groups", Some(Kind::Broken), "rule";
    planted_unconditional_is_found_of_ports:
        Unconditional in balancers "nodes with groups", Some(Kind::Delayed), "security_groups";
    planted_unconditional_is_found_of_routes:
        Unconditional in routes "move as a whole", Some(Kind::Delayed), "route 10.98.0.0/24";
    planted_routes_of_others_is_found: RoutesOfOthers in routes "change as a whole", None, "left behind";
    planted_pair_stays_is_found: PairStays in routes "delete routes", None, "left behind";
}
