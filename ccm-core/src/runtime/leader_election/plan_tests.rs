use super::*;

const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};
const NOW: &str = "2026-01-01T00:00:00.000000Z";

fn wall() -> Timestamp {
    NOW.parse().unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn held_by(holder: &str) -> LeaseRecord {
    LeaseRecord {
        holder: holder.into(),
        duration_seconds: Some(15),
        acquire_time: Some("then".into()),
        renew_time: Some("just now".into()),
        transitions: 4,
    }
}

fn ours(acquire_time: &str, transitions: i32) -> LeaseRecord {
    LeaseRecord {
        holder: "me".into(),
        duration_seconds: Some(15),
        acquire_time: Some(acquire_time.into()),
        renew_time: Some(NOW.into()),
        transitions,
    }
}

/// Observes each record (or absence) at its second, then decides at the last one given.
fn decide(observations: &[(u64, Option<LeaseRecord>)], at: u64) -> (Instant, Decision) {
    let zero = Instant::now();
    let mut candidate = ElectionState::new("me", TIMING);
    for (second, record) in observations {
        candidate.observe(record.clone(), zero + seconds(*second));
    }
    (zero, candidate.decide(zero + seconds(at), wall()))
}

/// Name, records by second, second of the decision, and the decision or the second until which
/// `other` is waited for.
type Case = (&'static str, Vec<(u64, Option<LeaseRecord>)>, u64, Result<Decision, u64>);

#[test]
fn what_is_seen_decides() {
    let other = || Some(held_by("other"));
    let renewed = || Some(LeaseRecord { renew_time: Some("later".into()), ..held_by("other") });
    let take = |transitions| Decision::Update { record: ours(NOW, transitions), renewal: false };
    let free = Some(LeaseRecord {
        holder: String::new(),
        duration_seconds: Some(1),
        ..held_by("")
    });
    let short = Some(LeaseRecord { duration_seconds: Some(3), ..held_by("other") });
    let odd = Some(LeaseRecord { duration_seconds: None, ..held_by("other") });
    let cases: Vec<Case> = vec![
        ("no lease", vec![(0, None)], 0, Ok(Decision::Create(ours(NOW, 0)))),
        ("free lease", vec![(0, free.clone())], 0, Ok(take(5))),
        ("held, just seen", vec![(0, other())], 0, Err(15)),
        ("held, last moment", vec![(0, other()), (14, other())], 14, Err(15)),
        ("held, unchanged for its duration", vec![(0, other()), (15, other())], 15, Ok(take(5))),
        ("renewed at the last moment", vec![(0, other()), (14, renewed())], 28, Err(29)),
        ("its own duration counts", vec![(0, short)], 3, Ok(take(5))),
        ("no duration: ours counts", vec![(0, odd)], 14, Err(15)),
        (
            "ours",
            vec![(0, Some(ours("then", 4)))],
            0,
            Ok(Decision::Update { record: ours("then", 4), renewal: true }),
        ),
        (
            "ours, older than its duration",
            vec![(0, Some(ours("then", 4)))],
            99,
            Ok(Decision::Update { record: ours("then", 4), renewal: true }),
        ),
        ("deleted under its holder", vec![(0, other()), (5, None)], 14, Err(15)),
        (
            "deleted, its holder's time is over",
            vec![(0, other()), (5, None)],
            15,
            Ok(Decision::Create(ours(NOW, 0))),
        ),
        (
            "deleted after release",
            vec![(0, free), (5, None)],
            5,
            Ok(Decision::Create(ours(NOW, 0))),
        ),
        (
            "ours was deleted",
            vec![(0, Some(ours("then", 4))), (5, None)],
            5,
            Ok(Decision::Create(ours("then", 4))),
        ),
    ];
    for (name, observations, at, want) in cases {
        let (zero, got) = decide(&observations, at);
        let want = want.unwrap_or_else(|until| Decision::Wait {
            holder: "other".into(),
            until: zero + seconds(until),
        });
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn a_release_keeps_the_count_of_transitions() {
    let mut candidate = ElectionState::new("me", TIMING);
    candidate.observe(Some(ours("then", 4)), Instant::now());
    let want = LeaseRecord {
        holder: String::new(),
        duration_seconds: Some(1),
        acquire_time: Some(NOW.into()),
        renew_time: Some(NOW.into()),
        transitions: 4,
    };
    assert_eq!(candidate.release_record(wall()), want);
}

#[test]
fn a_renewal_is_a_change_at_the_precision_of_a_second_whatever_the_clock_does() {
    let at = |text: &str| -> Timestamp { text.parse().unwrap() };
    let cases = [
        ("the clock goes on", "2026-01-01T00:00:02Z", "2026-01-01T00:00:02Z"),
        ("within the second", "2026-01-01T00:00:00.7Z", "2026-01-01T00:00:00.7Z"),
        ("stands still", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:01.5Z"),
        ("a little back", "2026-01-01T00:00:00.4Z", "2026-01-01T00:00:01.5Z"),
        ("an hour back", "2025-12-31T23:00:00Z", "2025-12-31T23:00:00Z"),
    ];
    let mut candidate = ElectionState::new("me", TIMING);
    assert_eq!(candidate.next_renew_time(wall()), wall());
    candidate.record_own_write(ours("then", 0), at("2026-01-01T00:00:00.5Z"), Instant::now());
    for (name, clock, want) in cases {
        assert_eq!(candidate.next_renew_time(at(clock)), at(want), "{name}");
    }
}

#[test]
fn the_gate_counts_from_before_the_write_and_keeps_a_margin() {
    let zero = Instant::now();
    let mut tenure = LeadershipTerm::new(TIMING, zero, zero + seconds(3));
    assert_eq!(tenure.gate_until(), zero + seconds(14));
    assert_eq!(tenure.next_attempt(), zero + seconds(5));
    assert_eq!(tenure.give_up_at(), zero + seconds(14), "not 15: never later than the gate");
    tenure.record_failure(zero + seconds(6));
    assert_eq!(tenure.next_attempt(), zero + seconds(8));
    assert_eq!(tenure.give_up_at(), zero + seconds(14), "failures buy no time");
    tenure.record_renewal(zero + seconds(8), zero + seconds(8));
    assert_eq!(
        (tenure.next_attempt(), tenure.give_up_at()),
        (zero + seconds(10), zero + seconds(20))
    );
}

#[test]
fn times_follow_from_the_settings() {
    let timing = |lease: u64, renew: u64| Timing {
        lease_duration: Duration::from_millis(lease),
        renew_deadline: Duration::from_millis(renew),
        ..TIMING
    };
    assert_eq!(timing(15_900, 10_000).gate_time(), seconds(14), "the lease holds whole seconds");
    assert_eq!(timing(2_000, 1_500).gate_time(), Duration::from_millis(1_500));
    assert_eq!(timing(15_000, 10_000).request_timeout(), seconds(5));
    assert_eq!(timing(2_000, 1_500).request_timeout(), seconds(1));
    assert_eq!(TIMING.error_delay(0.0), seconds(2));
    assert_eq!(TIMING.error_delay(1.0), Duration::from_millis(4_400));
    assert_eq!(TIMING.standby_delay(), seconds(1));
}
