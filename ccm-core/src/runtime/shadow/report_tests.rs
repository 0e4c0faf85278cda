use super::*;

const SETTLE: Duration = Duration::from_secs(30);

fn difference(object: &str, would_be: &str) -> Difference {
    Difference {
        kind: ObjectKind::Node,
        object: object.to_owned(),
        part: "spec.providerID".to_owned(),
        controller: "cloud-node-controller",
        current: Some("none".to_owned()),
        desired: would_be.to_owned(),
        why: "it has none".to_owned(),
        defect: None,
    }
}

fn unknown(object: &str) -> NotCompared {
    let (object, why) = (object.to_owned(), "the cloud is down".to_owned());
    NotCompared {
        kind: ObjectKind::Service,
        object,
        controller: "service-lb-controller",
        why,
    }
}

/// A board whose time is told in seconds.
struct Case {
    board: ShadowReport,
    start: Instant,
}

impl Case {
    fn new() -> Self {
        Self { board: ShadowReport::new(SETTLE), start: Instant::now() }
    }

    fn at(
        &mut self,
        seconds: u64,
        differences: &[(&str, &str)],
        uncompared: &[&str],
        open: &[&str],
    ) -> Vec<String> {
        let at = self.start + Duration::from_secs(seconds);
        self.board.update(vec![
            DryRunFindings {
                compared: vec![("nodes", 2)],
                differences: differences
                    .iter()
                    .map(|(object, id)| (difference(object, id), at))
                    .collect(),
                uncompared: uncompared
                    .iter()
                    .map(|object| (unknown(object), at))
                    .collect(),
                unsettled: open
                    .iter()
                    .map(|node| (ObjectKind::Node, (*node).to_owned()))
                    .collect(),
                notices: Vec::new(),
            },
            DryRunFindings {
                compared: vec![("nodes", 3), ("services", 1)],
                ..DryRunFindings::default()
            },
        ])
    }
}

const LINE: &str =
    "Node n1: spec.providerID: none -> mock://1 (cloud-node-controller: it has none)";

#[test]
fn a_difference_is_told_when_it_has_stood_and_when_it_is_gone() {
    let mut case = Case::new();
    assert_eq!(case.at(0, &[("n1", "mock://1")], &[], &[]), Vec::<String>::new());
    assert_eq!(case.board.verdict(), None);
    assert_eq!(
        case.board.summary().to_string(),
        "no differences: 3 nodes, 1 service compared, 1 not settled yet"
    );
    assert_eq!(case.at(29, &[("n1", "mock://1")], &[], &[]), Vec::<String>::new());
    let told = case.at(30, &[("n1", "mock://1")], &[], &[]);
    assert_eq!(
        told,
        [format!("difference: {LINE}"), "1 difference: 3 nodes, 1 service compared".to_owned()]
    );
    assert_eq!(case.board.verdict(), Some(Verdict::Different));
    assert_eq!(case.at(31, &[("n1", "mock://1")], &[], &[]), Vec::<String>::new(), "once");
    let told = case.at(32, &[], &[], &[]);
    assert_eq!(
        told,
        [format!("resolved: {LINE}"), "no differences: 3 nodes, 1 service compared".to_owned()]
    );
    assert_eq!(case.board.verdict(), Some(Verdict::Same));
}

#[test]
fn what_does_not_stand_is_never_told() {
    let mut case = Case::new();
    assert_eq!(case.at(0, &[("n1", "a")], &[], &[]), Vec::<String>::new());
    assert_eq!(case.at(29, &[], &[], &[]), ["no differences: 3 nodes, 1 service compared"]);
    // From the start again.
    assert_eq!(case.at(40, &[("n1", "a")], &[], &[]), Vec::<String>::new());
    assert_eq!(case.at(69, &[("n1", "a")], &[], &[]), Vec::<String>::new());
    assert_eq!(case.at(70, &[("n1", "a")], &[], &[]).len(), 2);
}

#[test]
fn a_difference_that_changes_goes_on_standing_and_is_told_again() {
    let mut case = Case::new();
    case.at(0, &[("n1", "a")], &[], &[]);
    assert_eq!(case.at(30, &[("n1", "b")], &[], &[]).len(), 2);
    let told = case.at(31, &[("n1", "c")], &[], &[]);
    assert!(told[0].contains("none -> c"), "{told:?}");
}

#[test]
fn what_was_not_confirmed_does_not_settle_by_time_alone() {
    let mut case = Case::new();
    case.at(0, &[("n1", "a")], &[], &[]);
    let at = case.start;
    let stale = DryRunFindings {
        differences: vec![(difference("n1", "a"), at)],
        ..DryRunFindings::default()
    };
    for _ in 0..100 {
        let again = DryRunFindings {
            differences: stale.differences.clone(),
            ..DryRunFindings::default()
        };
        assert_eq!(case.board.update(vec![again]), Vec::<String>::new());
    }
    assert_eq!(case.board.verdict(), None);
}

#[test]
fn what_cannot_be_compared_is_told_and_makes_the_verdict_incomplete() {
    let mut case = Case::new();
    case.at(0, &[], &["default/web"], &[]);
    assert_eq!(case.board.verdict(), None);
    let told = case.at(30, &[], &["default/web"], &[]);
    assert_eq!(
        told[0],
        "not compared: Service default/web (service-lb-controller: the cloud is down)"
    );
    assert_eq!(told[1], "no differences: 3 nodes, 1 service compared, 1 not compared");
    assert_eq!(case.board.verdict(), Some(Verdict::Incomplete));
    assert!(case.at(31, &[], &[], &[])[0].starts_with("compared again: Service default/web"));
}

#[test]
fn what_is_being_found_out_delays_the_verdict() {
    let mut case = Case::new();
    assert_eq!(ShadowReport::new(SETTLE).verdict(), None, "nothing was looked at");
    assert_eq!(case.at(0, &[], &[], &["n1"]), Vec::<String>::new());
    assert_eq!(case.board.verdict(), None);
    assert_eq!(case.at(5, &[], &[], &[]), ["no differences: 3 nodes, 1 service compared"]);
    assert_eq!(case.board.verdict(), Some(Verdict::Same));
}

#[test]
fn what_appears_later_is_not_waited_for() {
    let mut case = Case::new();
    case.at(0, &[("n1", "a")], &[], &["n2"]);
    // From now on there is always a node that has just joined.
    for seconds in (5..30).step_by(5) {
        case.at(
            seconds,
            &[("n1", "a"), (&format!("new{seconds}"), "x")],
            &[],
            &[&format!("newer{seconds}")],
        );
        assert_eq!(case.board.verdict(), None, "what was there first has not stood yet");
    }
    case.at(30, &[("n1", "a"), ("new30", "x")], &[], &["newer30"]);
    assert_eq!(case.board.verdict(), Some(Verdict::Different));
    assert!(case.board.summary().settling > 0);
}

#[test]
fn a_doubt_that_turns_into_a_difference_is_waited_for() {
    let mut case = Case::new();
    case.at(0, &[], &[], &["n1"]);
    case.at(60, &[("n1", "a")], &[], &[]);
    assert_eq!(case.board.verdict(), None);
    case.at(90, &[("n1", "a")], &[], &[]);
    assert_eq!(case.board.verdict(), Some(Verdict::Different));
}

#[test]
fn what_comes_to_light_after_a_whole_kind_could_not_be_compared_is_waited_for() {
    let mut case = Case::new();
    case.at(0, &[], &[""], &[]);
    case.at(10, &[("n1", "a")], &[], &[]);
    assert_eq!(case.board.verdict(), None);
    case.at(40, &[("n1", "a")], &[], &[]);
    assert_eq!(case.board.verdict(), Some(Verdict::Different));
}

#[test]
fn nothing_compared_is_no_agreement() {
    let mut board = ShadowReport::new(SETTLE);
    assert_eq!(board.update(vec![]), ["no differences: nothing compared"]);
    assert_eq!(board.verdict(), Some(Verdict::Incomplete));
    let nodes = DryRunFindings { compared: vec![("nodes", 0)], ..DryRunFindings::default() };
    board.update(vec![nodes]);
    assert_eq!(
        (board.verdict(), board.summary().to_string()),
        (Some(Verdict::Same), "no differences: 0 nodes compared".to_owned())
    );
}

#[test]
fn lines_are_in_order() {
    let mut case = Case::new();
    for seconds in [0, 30] {
        case.at(seconds, &[("n2", "b"), ("n1", "a")], &["default/web"], &[]);
    }
    let starts: Vec<String> = case
        .board
        .lines()
        .iter()
        .map(|line| line.chars().take(23).collect())
        .collect();
    assert_eq!(
        starts,
        [
            "difference: Node n1: sp",
            "difference: Node n2: sp",
            "not compared: Service d",
            "2 differences: 3 nodes,"
        ]
    );
}

#[test]
fn a_notice_is_told_once_and_is_no_difference() {
    let mut board = ShadowReport::new(SETTLE);
    let notice = Notice {
        kind: ObjectKind::Service,
        object: "shop/web".to_owned(),
        reason: "DormantAnnotations",
        note: "they are ignored".to_owned(),
    };
    let findings = || DryRunFindings {
        compared: vec![("services", 1)],
        notices: vec![notice.clone()],
        ..DryRunFindings::default()
    };
    let line = "notice: Service shop/web: DormantAnnotations: they are ignored";
    let summary = "no differences: 1 service compared";
    assert_eq!(board.update(vec![findings()]), [line, summary]);
    assert_eq!(board.update(vec![findings()]), [""; 0]);
    assert_eq!(board.verdict(), Some(Verdict::Same));
    assert_eq!(board.lines(), [line, summary]);
}
