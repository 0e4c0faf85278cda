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

    fn applies(&self, kind: Kind, call: &Call) -> bool {
        !kind.is_past() && (kind != Kind::Busy || call.writes)
    }

    async fn run(&self, journey: &Arc<Journey>) -> Result<String, String> {
        let things = Mutex::new(0);
        journey.count(true);
        for _ in 0..10 {
            match journey.alive(self.bring(journey, &things)).await {
                Some(Ok(())) => return Ok(format!("{} things", *things.lock())),
                Some(Err(())) => tokio::time::sleep(Duration::from_secs(1)).await,
                None => {}
            }
        }
        Err("never done".to_owned())
    }
}

impl Toy {
    async fn bring(&self, journey: &Journey, things: &Mutex<usize>) -> Result<(), ()> {
        let mut missing = 3;
        while missing > 0 {
            if self.careful {
                missing = call(journey, false, || 3 - *things.lock()).await?;
            }
            if missing > 0 {
                call(journey, true, || *things.lock() += 1).await?;
                missing -= 1;
            }
        }
        Ok(())
    }
}

async fn call<T>(journey: &Journey, writes: bool, effect: impl FnOnce() -> T) -> Result<T, ()> {
    let fault = journey.begin(Call { writes, what: "thing".to_owned() });
    match fault {
        None | Some(Kind::Delayed) => Ok(effect()),
        Some(Kind::DiesBefore) => match journey.die().await {},
        Some(Kind::DiesAfter) => {
            effect();
            match journey.die().await {}
        }
        Some(Kind::AnswerLost | Kind::CutShort) => {
            effect();
            Err(())
        }
        Some(_) => Err(()),
    }
}

fn explorer(pairs: usize, replay: Option<&str>) -> Explorer {
    let replay = replay.map(|faults| ("toy".to_owned(), faults.parse().unwrap()));
    Explorer { seed: 7, pairs, replay }
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
    let lost: Faults = "2=AnswerLost".parse().unwrap();
    let found = report.failures.iter().find(|failure| failure.faults == lost).unwrap();
    assert_eq!(found.seen, "the end is another one:\n-1 3 things\n+1 5 things");
    assert!(report.to_string().contains("EXPLORE_REPLAY='toy:"), "{report}");
    let again = explorer(0, Some(&lost.to_string())).explore(&Toy { careful: false }).await;
    assert_eq!((again.singles, &again.failures[..]), (1, std::slice::from_ref(found)));
}

#[test]
fn faults_are_read_as_they_are_written() {
    let faults = Faults([(3, Kind::Busy), (12, Kind::DiesAfter)].into());
    assert_eq!(faults.to_string(), "3=Busy,12=DiesAfter");
    assert_eq!(faults.to_string().parse(), Ok(faults));
    for wrong in ["3", "x=Busy", "3=Lazy"] {
        assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
    }
}

#[test]
fn a_seed_gives_the_same_pairs() {
    let calls: [Call; 5] = std::array::from_fn(|_| Call { writes: false, what: "thing".to_owned() });
    let pairs = |seed| Explorer { seed, ..explorer(50, None) }.pairs(&Toy { careful: true }, &calls);
    assert_eq!(pairs(7), pairs(7));
    assert_ne!(pairs(7), pairs(8));
    let kinds: Vec<Kind> = pairs(7).into_iter().flat_map(|faults| faults.0.into_values()).collect();
    assert!(kinds.iter().all(|kind| !kind.is_past() && *kind != Kind::Busy), "{kinds:?}");
}
