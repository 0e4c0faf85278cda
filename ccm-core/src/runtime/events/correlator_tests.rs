use super::*;

const START: &str = "2026-01-01T00:00:00Z";

/// A correlator with its own time.
struct Run {
    correlator: Correlator,
    zero: Instant,
    second: u64,
}

impl Run {
    fn new() -> Self {
        Self {
            correlator: Correlator::new(),
            zero: Instant::now(),
            second: 0,
        }
    }

    fn at(&mut self, second: u64) -> &mut Self {
        self.second = second;
        self
    }

    fn record(
        &mut self,
        node: &str,
        kind: EventType,
        reason: &'static str,
        note: &str,
    ) -> Option<CorrelatedEvent> {
        let occurrence = RecordedEvent {
            object: ObjectRef::node(node, "uid"),
            kind,
            reason,
            note: note.to_owned(),
            at: wall(self.second),
        };
        self.correlator
            .correlate(occurrence, self.zero + Duration::from_secs(self.second))
    }

    fn warn(&mut self, note: &str) -> Option<CorrelatedEvent> {
        self.record("n1", EventType::Warning, "Broken", note)
    }
}

fn wall(second: u64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + Duration::from_secs(second)
}

#[test]
fn the_same_again_counts_up_one_event() {
    let mut run = Run::new();
    let first = run.warn("disk full").unwrap();
    assert_eq!((first.count, &*first.name), (1, "n1.18867251edfa0000"));
    let second = run.at(700).warn("disk full").unwrap();
    assert_eq!(second, CorrelatedEvent { count: 2, is_new: false, last: wall(700), ..first });
}

#[test]
fn what_repeats_an_event_that_is_not_written_yet_is_written_with_it() {
    let mut run = Run::new();
    let first = run.warn("disk full").unwrap();
    let mut event = first.clone();
    event.repeat(run.at(1).warn("disk full").unwrap());
    event.repeat(run.at(3).warn("disk full").unwrap());
    assert_eq!(event, CorrelatedEvent { count: 3, is_new: true, last: wall(3), ..first });
    let mut later = run.at(5).warn("disk full").unwrap();
    later.repeat(run.at(6).warn("disk full").unwrap());
    assert_eq!((later.count, later.is_new, later.first, later.last), (5, false, wall(0), wall(6)));

    let mut similar = (0..11)
        .filter_map(|pod| run.warn(&format!("pod {pod} failed")))
        .skip(9);
    let (mut event, last) = (similar.next().unwrap(), similar.next().unwrap());
    event.repeat(last);
    assert_eq!((event.count, &*event.note), (3, "(combined from similar events): pod 10 failed"));
}

#[test]
fn events_of_one_moment_have_names_of_their_own() {
    let mut run = Run::new();
    let (first, second) = (run.warn("disk full").unwrap(), run.warn("disk empty").unwrap());
    assert_ne!(
        first.name, second.name,
        "the server would take the second for the first, sent again"
    );
}

#[test]
fn what_differs_in_anything_is_an_event_of_its_own() {
    let mut run = Run::new();
    run.warn("disk full").unwrap();
    let others = [
        run.record("n1", EventType::Warning, "Broken", "disk empty"),
        run.record("n1", EventType::Warning, "Cracked", "disk full"),
        run.record("n1", EventType::Normal, "Broken", "disk full"),
        run.record("n2", EventType::Warning, "Broken", "disk full"),
    ];
    assert!(others.iter().all(|o| o.as_ref().unwrap().count == 1), "{others:?}");
}

#[test]
fn many_similar_ones_are_combined_into_one() {
    let mut run = Run::new();
    for i in 0..9 {
        assert_eq!(run.warn(&format!("try {i}")).unwrap().note, format!("try {i}"));
    }
    // The tenth distinct note, as in client-go.
    let combined = run.at(1).warn("try 9").unwrap();
    assert_eq!(
        (combined.note.as_str(), combined.count),
        ("(combined from similar events): try 9", 1)
    );
    let next = run.at(601).warn("try 10").unwrap();
    assert_eq!((next.note.as_str(), next.count), ("(combined from similar events): try 10", 2));
    assert_eq!((next.name, next.first, next.last), (combined.name, wall(1), wall(601)));
    let after_a_quiet_time = run.at(1202).warn("try 11").unwrap();
    assert_eq!((after_a_quiet_time.note.as_str(), after_a_quiet_time.count), ("try 11", 1));
}

#[test]
fn an_object_may_have_25_at_once_and_one_more_every_five_minutes() {
    let mut run = Run::new();
    let written = (0..40).filter(|_| run.warn("again").is_some()).count();
    assert_eq!(written, 25);
    assert!(run.record("n1", EventType::Normal, "Fine", "x").is_some(), "types are counted apart");
    assert!(
        run.record("n2", EventType::Warning, "Broken", "x")
            .is_some(),
        "objects are counted apart"
    );
    assert!(run.at(299).warn("again").is_none());
    let next = run.at(300).warn("again").unwrap();
    assert_eq!(next.count, 42, "what was dropped is in the count");
    assert!(run.at(301).warn("again").is_none());
    let burst = (0..40)
        .filter(|_| run.at(100_000).warn("again").is_some())
        .count();
    assert_eq!(burst, 25, "never more than the burst");
}

#[test]
fn notes_are_cut_between_characters() {
    let mut run = Run::new();
    let note = run.warn(&"ä".repeat(600)).unwrap().note;
    assert_eq!((note.len(), note.chars().count()), (1022, 511));
    for i in 0..9 {
        run.warn(&format!("{i}"));
    }
    let combined = run.warn(&"x".repeat(2000)).unwrap().note;
    assert!(combined.starts_with(COMBINED) && combined.len() == 1023);
}

#[test]
fn names_are_valid_whatever_the_object_is_called() {
    let at = wall(0);
    assert_eq!(
        event_name("ip-10-0-0-1.internal", at.as_nanosecond()),
        "ip-10-0-0-1.internal.18867251edfa0000"
    );
    for odd in ["UPPER", "a_b", "", &"x".repeat(250), "-a"] {
        let name = event_name(odd, at.as_nanosecond());
        assert_eq!((name.len(), name.matches('-').count()), (36, 4), "{odd}: {name}");
    }
}

#[test]
fn memory_is_bounded() {
    let mut run = Run::new();
    run.record("first", EventType::Normal, "R", "n").unwrap();
    for i in 0..CACHE {
        run.record(&format!("n{i}"), EventType::Normal, "R", "n")
            .unwrap();
    }
    assert_eq!(
        run.record("first", EventType::Normal, "R", "n")
            .unwrap()
            .count,
        1,
        "forgotten"
    );
    let last = format!("n{}", CACHE - 1);
    assert_eq!(
        run.record(&last, EventType::Normal, "R", "n")
            .unwrap()
            .count,
        2,
        "remembered"
    );
}
