use std::time::Duration;

use parking_lot::Mutex;

use super::*;

/// A cloud that holds a number of things, and a provider that is to bring it to three.
struct Toy {
    /// Looks before it makes anything.
    careful: bool,
}

#[async_trait]
impl Scenario for Toy {
    fn name(&self) -> String {
        "toy".to_owned()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        !kind.is_past() && (kind != FaultKind::Busy || call.writes)
    }

    async fn run(&self, run: &Arc<ScenarioRun>) -> Result<String, String> {
        let things = Mutex::new(0);
        run.count(true);
        for _ in 0..10 {
            match run.alive(self.reconcile(run, &things)).await {
                Some(Ok(())) => return Ok(format!("{} things", *things.lock())),
                Some(Err(())) => tokio::time::sleep(Duration::from_secs(1)).await,
                None => {}
            }
        }
        Err("never done".to_owned())
    }
}

impl Toy {
    async fn reconcile(&self, run: &ScenarioRun, things: &Mutex<usize>) -> Result<(), ()> {
        let mut missing = 3;
        while missing > 0 {
            if self.careful {
                missing = call(run, false, || 3 - *things.lock()).await?;
            }
            if missing > 0 {
                call(run, true, || *things.lock() += 1).await?;
                missing -= 1;
            }
        }
        Ok(())
    }
}

async fn call<T>(run: &ScenarioRun, writes: bool, effect: impl FnOnce() -> T) -> Result<T, ()> {
    let fault = run.begin(Call { writes, what: "thing".to_owned() });
    match fault {
        None | Some(FaultKind::Delayed) => Ok(effect()),
        Some(FaultKind::DiesBefore) => match run.die().await {},
        Some(FaultKind::DiesAfter) => {
            effect();
            match run.die().await {}
        }
        Some(FaultKind::AnswerLost | FaultKind::CutShort) => {
            effect();
            Err(())
        }
        Some(_) => Err(()),
    }
}

fn explorer(pairs: usize, replay: Option<&str>) -> Explorer {
    let replay = replay.map(|faults| ("toy".to_owned(), faults.parse().unwrap()));
    Explorer {
        effort: Effort::Full,
        seed: 7,
        pairs,
        replay,
        command: String::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_is_tried_at_every_call_that_it_can_hit() {
    let report = explorer(30, None).explore(&Toy { careful: true }).await;
    assert!(report.passed(), "{report}");
    // Three writes, and as many reads before them, which are never busy; the last write ends it.
    assert_eq!((report.points, report.singles, report.more), (6, 6 * 14 - 3, 30));
}

#[tokio::test(start_paused = true)]
async fn what_ends_otherwise_is_found_with_the_faults_that_show_it_again() {
    let report = explorer(0, None).explore(&Toy { careful: false }).await;
    assert!(!report.passed());
    let lost: Faults = "2/lost".parse().unwrap();
    let found = report
        .failures
        .iter()
        .find(|failure| failure.faults == lost)
        .unwrap();
    assert_eq!(found.seen, "the end is another one:\n-1 3 things\n+1 5 things");
    assert!(report.to_string().contains("CCM_EXPLORE_REPLAY='toy/"), "{report}");
    let again = explorer(0, Some(&lost.to_string()))
        .explore(&Toy { careful: false })
        .await;
    assert_eq!((again.singles, &again.failures[..]), (1, std::slice::from_ref(found)));
}

#[test]
fn faults_are_read_as_they_are_written() {
    let faults = Faults([(3, FaultKind::Busy), (12, FaultKind::DiesAfter)].into());
    assert_eq!(faults.to_string(), "3/status-409/12/crash-after");
    assert_eq!(faults.to_string().parse(), Ok(faults));
    for wrong in ["3", "x/status-409", "3/lazy", "3/lost/4"] {
        assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
    }
}

#[test]
fn kinds_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> = FaultKind::ALL.map(FaultKind::as_str).into();
    assert_eq!(names.len(), FaultKind::ALL.len());
}

/// Returns the single faults of an explorer: calls with a kind.
fn chosen(explorer: &Explorer, toy: &Toy, calls: &[Call]) -> Vec<(usize, FaultKind)> {
    explorer
        .single_faults(toy, calls)
        .into_iter()
        .map(|faults| faults.0.into_iter().next().unwrap())
        .collect()
}

#[test]
fn a_bounded_exploration_meets_every_call_and_has_every_kind_in_turn() {
    let bounded = Explorer { effort: Effort::Bounded, ..explorer(0, None) };
    let calls: Vec<_> = (0..20)
        .map(|n| Call { writes: n % 2 == 0, what: String::new() })
        .collect();
    let toy = Toy { careful: true };
    let chosen = chosen(&bounded, &toy, &calls);
    for call in 1..=20 {
        let at = chosen.iter().filter(|(at, _)| *at == call).count();
        assert!(at == IN_TURN || at == IN_TURN + 1, "{at} faults at call {call}");
        assert!(chosen.contains(&(call, ALWAYS)), "{call}");
    }
    for kind in FaultKind::ALL.into_iter().filter(|kind| !kind.is_past()) {
        assert!(chosen.iter().any(|(_, other)| *other == kind), "{kind:?}");
    }
}

#[test]
fn a_smoke_meets_each_third_call_with_two_kinds_and_has_every_kind_in_turn() {
    let smoke = Explorer { effort: Effort::Smoke, ..explorer(0, None) };
    let calls: Vec<_> = (0..60)
        .map(|_| Call { writes: true, what: String::new() })
        .collect();
    let toy = Toy { careful: true };
    let chosen = chosen(&smoke, &toy, &calls);
    for call in 1..=60 {
        let at: Vec<_> = chosen.iter().filter(|(at, _)| *at == call).collect();
        assert_eq!(at.len(), if call % APART == 1 { 2 } else { 0 }, "call {call}: {at:?}");
        assert_eq!(at.contains(&&(call, ALWAYS)), call % APART == 1, "call {call}: {at:?}");
    }
    for kind in FaultKind::ALL.into_iter().filter(|kind| !kind.is_past()) {
        assert!(chosen.iter().any(|(_, other)| *other == kind), "{kind:?}");
    }
    assert_eq!(chosen, self::chosen(&smoke, &toy, &calls), "another time");
}

#[test]
fn a_smoke_counts_the_calls_that_a_fault_can_hit() {
    let smoke = Explorer { effort: Effort::Smoke, ..explorer(0, None) };
    let calls: Vec<_> = (1..=9)
        .map(|n| Call { writes: n > 2, what: "thing".to_owned() })
        .collect();
    let points: Vec<usize> = smoke
        .single_faults(&Writes, &calls)
        .iter()
        .flat_map(|faults| faults.0.keys().copied())
        .collect();
    assert_eq!(points, [3, 6, 9]);
}

/// Only writes fail, and only for being busy.
struct Writes;

#[async_trait]
impl Scenario for Writes {
    fn name(&self) -> String {
        "writes".to_owned()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        kind == FaultKind::Busy && call.writes
    }

    async fn run(&self, run: &Arc<ScenarioRun>) -> Result<String, String> {
        run.count(true);
        run.begin(Call { writes: false, what: "thing".to_owned() });
        Ok(String::new())
    }
}

/// Does nothing, or counts nothing.
struct Idle;

#[async_trait]
impl Scenario for Idle {
    fn name(&self) -> String {
        "idle".to_owned()
    }

    async fn run(&self, run: &Arc<ScenarioRun>) -> Result<String, String> {
        run.begin(Call { writes: true, what: "thing".to_owned() });
        Ok(String::new())
    }
}

/// Makes fewer calls each time that it is run.
struct Fewer(std::sync::atomic::AtomicUsize);

#[async_trait]
impl Scenario for Fewer {
    fn name(&self) -> String {
        "fewer".to_owned()
    }

    async fn run(&self, run: &Arc<ScenarioRun>) -> Result<String, String> {
        run.count(true);
        if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            run.begin(Call { writes: true, what: "thing".to_owned() });
        }
        Ok(String::new())
    }
}

#[tokio::test]
async fn an_exploration_without_a_call_fails() {
    for effort in [Effort::Smoke, Effort::Bounded, Effort::Full] {
        let report = Explorer { effort, ..explorer(3, None) }
            .explore(&Idle)
            .await;
        assert!(!report.passed() && report.failures.is_empty(), "{effort:?}: {report}");
        assert!(
            report
                .to_string()
                .contains("there is no call at which a fault can happen"),
            "{effort:?}: {report}"
        );
    }
}

#[tokio::test]
async fn an_exploration_without_a_fault_fails() {
    let report = explorer(3, None).explore(&Writes).await;
    assert_eq!((report.points, report.singles, report.more), (1, 0, 0));
    assert!(!report.passed() && report.to_string().contains("no fault was tried"), "{report}");
}

#[tokio::test]
async fn an_exploration_whose_faults_were_all_missed_fails() {
    let report = explorer(3, None).explore(&Fewer(0.into())).await;
    assert_eq!((report.points, report.missed), (1, report.singles + 3));
    assert!(
        !report.passed()
            && report
                .to_string()
                .contains("in no run did all its faults happen"),
        "{report}"
    );
}

#[tokio::test]
#[should_panic(expected = "idle: 0 calls")]
async fn a_check_fails_with_what_proves_nothing() {
    explorer(3, None).check([Idle]).await;
}

#[tokio::test]
#[should_panic(expected = "there is no scenario to explore")]
async fn a_check_without_scenarios_fails() {
    explorer(3, None).check([Idle; 0]).await;
}

#[tokio::test]
async fn what_was_not_asked_for_does_not_fail() {
    let report = explorer(0, Some("1/lost")).explore(&Idle).await;
    assert!(report.passed(), "{report}");
    assert_eq!(report.to_string(), "idle: not asked for");
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_did_not_happen_is_counted() {
    let report = explorer(0, Some("99/lost"))
        .explore(&Toy { careful: true })
        .await;
    assert_eq!((report.singles, report.missed), (1, 1));
    assert!(
        report
            .to_string()
            .contains("in 1 runs a fault did not happen"),
        "{report}"
    );
    assert!(!report.passed(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_smoke_finds_what_each_death_shows() {
    let smoke = |careful| async move {
        let smoke = Explorer { effort: Effort::Smoke, ..explorer(1, None) };
        smoke.explore(&Toy { careful }).await
    };
    let (careful, careless) = (smoke(true).await, smoke(false).await);
    assert!(careful.passed(), "{careful}");
    assert_eq!((careful.points, careful.singles, careful.more), (6, 4, 1));
    assert!(!careless.failures.is_empty(), "{careless}");
}

#[test]
fn the_environment_is_read_and_what_cannot_be_is_named() {
    let of = |pairs: &[(&str, &str)]| {
        let pairs: BTreeMap<_, _> = pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Environment::of(|name| pairs.get(name).cloned())
    };
    let bounded = Environment { effort: Effort::Bounded, seed: 1, pairs: None, replay: None };
    assert_eq!(of(&[("CCM_EXPLORE", "bounded")]).unwrap(), bounded);
    assert_eq!(
        of(&[("CCM_EXPLORE", "smoke")]).unwrap(),
        Environment { effort: Effort::Smoke, ..bounded.clone() }
    );
    let seven = [("CCM_EXPLORE", "bounded"), ("CCM_EXPLORE_SEED", "7")];
    assert_eq!(of(&seven).unwrap(), Environment { seed: 7, ..bounded });
    let full = [
        ("CCM_EXPLORE", "full"),
        ("CCM_EXPLORE_PAIRS", "3"),
        ("CCM_EXPLORE_REPLAY", "toy/2/lost"),
    ];
    let full = of(&full).unwrap();
    assert_eq!((full.effort, full.pairs), (Effort::Full, Some(3)));
    assert_eq!(
        Explorer::of(&full).unwrap().replay,
        Some(("toy".to_owned(), "2/lost".parse().unwrap()))
    );
    for (name, wrong) in [
        ("CCM_EXPLORE", "all"),
        ("CCM_TEST_TIER", "all"),
        ("CCM_EXPLORE_SEED", "x"),
        ("CCM_EXPLORE_PAIRS", "-1"),
    ] {
        assert!(of(&[(name, wrong)]).unwrap_err().to_string().contains(name));
    }
    let nothing = Environment { replay: Some("toy".to_owned()), ..full };
    assert!(
        Explorer::of(&nothing)
            .unwrap_err()
            .to_string()
            .contains("CCM_EXPLORE_REPLAY")
    );
}

#[test]
fn the_tier_says_how_much_is_explored_where_nothing_else_does() {
    let of = |explore: &str, tier: &str| {
        Environment::of(|name| match name {
            "CCM_EXPLORE" => Some(explore.to_owned()),
            "CCM_TEST_TIER" => Some(tier.to_owned()),
            _ => None,
        })
        .unwrap()
    };
    for (tier, effort) in [
        ("", Effort::Smoke),
        ("quick", Effort::Smoke),
        ("full", Effort::Bounded),
        ("nightly", Effort::Full),
    ] {
        assert_eq!(of("", tier).effort, effort, "{tier:?}");
        assert_eq!(of("bounded", tier).effort, Effort::Bounded, "{tier:?}");
    }
    assert_eq!((of("", "").seed, of("", "full").seed), (1, 1));
    assert_ne!(of("", "nightly").seed, of("", "nightly").seed);
}

#[test]
fn a_smoke_has_one_pair() {
    let pairs = |effort, pairs| {
        let environment = Environment { effort, seed: 1, pairs, replay: None };
        Explorer::of(&environment).unwrap().pairs
    };
    assert_eq!(
        (pairs(Effort::Smoke, None), pairs(Effort::Bounded, None), pairs(Effort::Full, None)),
        (1, 10, 50)
    );
    assert_eq!(pairs(Effort::Smoke, Some(4)), 4);
}

#[test]
fn a_seed_gives_the_same_pairs() {
    let calls: [Call; 5] =
        std::array::from_fn(|_| Call { writes: false, what: "thing".to_owned() });
    let pairs =
        |seed| Explorer { seed, ..explorer(50, None) }.random_pairs(&Toy { careful: true }, &calls);
    assert_eq!(pairs(7), pairs(7));
    assert_ne!(pairs(7), pairs(8));
    let kinds: Vec<FaultKind> = pairs(7)
        .into_iter()
        .flat_map(|faults| faults.0.into_values())
        .collect();
    assert!(
        kinds
            .iter()
            .all(|kind| !kind.is_past() && *kind != FaultKind::Busy),
        "{kinds:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_planted_bug_is_hunted_down_from_call_to_call() {
    let (careful, blind) = (Toy { careful: true }, Toy { careful: false });
    assert_eq!(hunt(&blind, Some(FaultKind::AnswerLost), "4 things").await, Ok(()));
    // At the first call nothing is there yet that would be made twice; at the third two things are.
    assert_eq!(hunt(&blind, Some(FaultKind::DiesBefore), "5 things").await, Ok(()));
    let seen = hunt(&careful, Some(FaultKind::AnswerLost), "4 things")
        .await
        .unwrap_err();
    assert!(seen.starts_with("it is not found as \"4 things\": toy: 6 calls"), "{seen}");
    assert!(hunt(&blind, None, "4 things").await.is_err());
}
