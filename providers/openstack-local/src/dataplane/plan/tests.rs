use std::net::SocketAddr;

use super::*;

#[derive(Clone)]
struct Member {
    name: &'static str,
    weight: u16,
    backup: bool,
    available: bool,
    active: u64,
}

impl Candidate for Member {
    fn weight(&self) -> u16 {
        self.weight
    }
    fn backup(&self) -> bool {
        self.backup
    }
    fn available(&self) -> bool {
        self.available
    }
    fn active(&self) -> u64 {
        self.active
    }
    fn seed(&self) -> u64 {
        hash(self.name.as_bytes())
    }
}

/// `a`, `b3` of weight 3, `c!` out, `d+` backup, `e=2` with two connections.
fn members(words: &[&'static str]) -> Vec<Member> {
    let member = |word: &&'static str| {
        let rest = &word[1..];
        Member {
            name: &word[..1],
            weight: rest.parse().unwrap_or(1),
            backup: rest.contains('+'),
            available: !rest.contains('!'),
            active: rest
                .strip_prefix('=')
                .map_or(0, |active| active.parse().unwrap()),
        }
    };
    words.iter().map(member).collect()
}

fn turns(algorithm: Algorithm, members: &[Member], count: usize) -> String {
    let mut rotation = Rotation::default();
    let turn = |_| {
        choose(algorithm, None, members, &[], &mut rotation)
            .map_or("-", |index| members[index].name)
    };
    (0..count).map(turn).collect()
}

#[test]
fn round_robin_goes_by_weight_and_skips_who_is_out() {
    for (words, expected) in [
        (&["a", "b", "c"][..], "abcabc"),
        (&["a", "b!", "c"], "acacac"),
        (&["a2", "b1"], "abaaba"),
        (&["a5", "b1", "c1"], "aabacaaa"),
        (&["a0", "b"], "bb"),
        (&["a", "b+"], "aa"),
        (&["a!", "b+", "c+"], "bcbc"),
        (&["a0", "b+"], "bb"),
        (&["a!", "b!"], "-"),
        (&[], "-"),
    ] {
        assert_eq!(
            turns(Algorithm::RoundRobin, &members(words), expected.len()),
            expected,
            "{words:?}"
        );
    }
}

#[test]
fn least_connections_counts_by_weight_and_equals_take_turns() {
    for (words, expected) in
        [(&["a=2", "b=1", "c=3"][..], "bbb"), (&["a", "b", "c"], "abcabc"), (&["a", "b4"], "bb")]
    {
        assert_eq!(
            turns(Algorithm::LeastConnections, &members(words), expected.len()),
            expected,
            "{words:?}"
        );
    }
}

#[test]
fn a_member_that_failed_is_not_tried_again_and_a_backup_comes_last() {
    for algorithm in [Algorithm::RoundRobin, Algorithm::LeastConnections, Algorithm::SourceIp] {
        let members = members(&["a", "b", "c+", "d!"]);
        let key = key(algorithm, None, client(1));
        let (mut tried, mut rotation) = (Vec::new(), Rotation::default());
        while let Some(index) = choose(algorithm, key, &members, &tried, &mut rotation) {
            tried.push(index);
        }
        assert_eq!(tried.len(), 3, "{algorithm:?}");
        assert_eq!(tried[2], 2, "{algorithm:?}");
    }
}

fn client(number: u32) -> SocketAddr {
    SocketAddr::new(
        std::net::Ipv4Addr::from(0x0a00_0000 + number / 3).into(),
        1000 + u16::try_from(number % 60_000).unwrap(),
    )
}

fn by_client(members: &[Member], count: u32) -> Vec<&'static str> {
    let member = |number| {
        let key = key(Algorithm::SourceIpPort, None, client(number));
        members
            [choose(Algorithm::SourceIpPort, key, members, &[], &mut Rotation::default()).unwrap()]
        .name
    };
    (0..count).map(member).collect()
}

#[test]
fn shares_by_source_follow_weights() {
    let chosen = by_client(&members(&["a", "b2", "c"]), 20_000);
    let share = |name| chosen.iter().filter(|chosen| **chosen == name).count();
    for (name, expected) in [("a", 5_000), ("b", 10_000), ("c", 5_000)] {
        assert!(share(name).abs_diff(expected) < 400, "{name}: {}", share(name));
    }
}

#[test]
fn a_change_of_members_moves_only_clients_of_what_changed() {
    let before = by_client(&members(&["a", "b", "c", "d"]), 5_000);
    let without = by_client(&members(&["a", "b!", "c", "d"]), 5_000);
    let with = by_client(&members(&["e", "a", "b", "c", "d"]), 5_000);
    for ((before, without), with) in before.iter().zip(without).zip(with) {
        assert!(*before == without || *before == "b");
        assert!(*before == with || with == "e");
    }
}

#[test]
fn a_source_is_its_address_and_with_the_port_only_where_asked_for() {
    let (one, two): (SocketAddr, SocketAddr) =
        ("10.0.0.1:1".parse().unwrap(), "10.0.0.1:2".parse().unwrap());
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:7".parse().unwrap();
    assert_eq!(key(Algorithm::SourceIp, None, one), key(Algorithm::SourceIp, None, two));
    assert_eq!(key(Algorithm::SourceIp, None, one), key(Algorithm::SourceIp, None, mapped));
    assert_ne!(key(Algorithm::SourceIpPort, None, one), key(Algorithm::SourceIpPort, None, two));
    let persistent = key(Algorithm::RoundRobin, Some(&Persistence::SourceIp), one);
    assert_eq!(persistent, key(Algorithm::SourceIp, None, two));
    assert_eq!(key(Algorithm::RoundRobin, None, one), None);
    assert_eq!(key(Algorithm::LeastConnections, None, one), None);
    // Cookies say nothing of who is new.
    assert_eq!(key(Algorithm::RoundRobin, Some(&Persistence::HttpCookie), one), None);
}

#[test]
fn checks_in_a_row_take_a_member_out_and_back() {
    let run = |known, rise, fall, checks: &str| -> String {
        let mut streak = Streak::new(known, rise, fall);
        let word = |check| match streak.record(check == '+') {
            Health::Up => 'U',
            Health::Down => 'D',
            Health::Unchecked => '?',
            Health::Unmonitored => '!',
        };
        checks.chars().map(word).collect()
    };
    // The first check decides alone.
    assert_eq!(run(Health::Unmonitored, 2, 3, "+---++"), "UUUDDU");
    assert_eq!(run(Health::Unchecked, 2, 3, "-+++"), "DDUU");
    // A check that agrees breaks the row.
    assert_eq!(run(Health::Up, 1, 3, "--+--+---+"), "UUUUUUUUDU");
    // What was known before the monitor changed stays known.
    assert_eq!(run(Health::Down, 2, 3, "+++"), "DUU");
}

#[test]
fn a_connection_changes_threads_only_where_that_evens_out_much() {
    // The load of the thread that accepted it, that of the least busy one, whether it is handed
    // over.
    for (own, least, handed) in [
        (0, 0, false),
        (1, 0, false),
        (2, 0, true),
        (3, 2, false),
        (4, 2, true),
        (10, 8, false),
        (11, 8, true),
        (1100, 1000, false),
        (1200, 1000, true),
    ] {
        assert_eq!(
            choose_worker(3, own, 5, least),
            if handed { 5 } else { 3 },
            "{own} and {least}"
        );
    }
}
