//! Elections on one Lease with Go's client in both directions, and a leader that slept past its
//! lease.

mod history;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::scenario::{SOON, Scenario, neighbour, user};
use ccm_e2e::server::{ServerKind, Write};
use ccm_mock::cloud::{Calls, Operation};
use ccm_testkit::control_plane::GoProgram;

use self::history::{Handover, History};
use crate::call_breakpoint::{At, CallBreakpoint};
use crate::case;
use crate::run::{Case, Need};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            needs: GO,
            ..case!("elect", REAL, the_lease_passes_between_ours_and_gos_in_both_directions)
        },
        Case {
            needs: GO,
            ..case!("three", REAL, of_two_of_ours_and_one_of_gos_one_leads_at_a_time)
        },
        case!(
            "asleep",
            REAL,
            a_leader_that_slept_past_its_lease_changes_nothing_in_cluster_and_cloud
        ),
    ]
}

const REAL: &[ServerKind] = &[ServerKind::Real];
const GO: &[Need] = &[Need::Go(GoProgram::Elector)];

/// A lease that runs out soon.
const LEASE: Duration = Duration::from_secs(5);
const SHORT_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];
const GOS_SHORT_LEASE: [&str; 3] =
    ["--lease-duration=5s", "--renew-deadline=3s", "--retry-period=500ms"];
/// From the end of a leader that gave nothing back to the next one: the lease, a try, a slow
/// machine.
const EXPIRY: Duration = Duration::from_secs(20);

/// Starts electors of Go for a scenario's Lease.
struct Electors {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Electors {
    fn find() -> anyhow::Result<Self> {
        let program = GoProgram::Elector.find().map_err(anyhow::Error::msg)?;
        Ok(Self { program, directory: tempfile::tempdir()? })
    }

    /// Starts one as the user of a process. `more` are flags.
    async fn start(
        &self,
        s: &Scenario,
        user: &str,
        identity: &str,
        more: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.directory.path().join(format!("{identity}.kubeconfig"));
        s.server.write_kubeconfig(&kubeconfig, user).await?;
        let mut args: Vec<OsString> = GOS_SHORT_LEASE
            .iter()
            .chain(more)
            .map(OsString::from)
            .collect();
        args.extend([
            format!("--name={}", s.lease()).into(),
            format!("--identity={identity}").into(),
        ]);
        args.extend(["--kubeconfig".into(), kubeconfig.into()]);
        Ccm::start(&self.program, self.directory.path(), identity, args).await
    }
}

/// What an elector of Go prints once it leads, and once it sees a leader.
const ACQUIRED: &str = r#""event":"acquired""#;
const SEES_A_LEADER: &str = r#""event":"leader""#;
/// What ours logs then.
const BECAME_LEADER: &str = "became leader";
const WAITS: &str = "another process leads";

async fn the_lease_passes_between_ours_and_gos_in_both_directions(
    s: &Scenario,
) -> anyhow::Result<()> {
    let electors = Electors::find()?;
    let (us, them) = (s.user("a"), s.user("b"));
    let history = History::follow(s.server.client(), &s.lease()).await;

    // Go leads, and ours waits: for longer than the lease lasts, since Go renews it.
    let mut first = electors.start(s, &them, "go-1", &[]).await?;
    first.logged(ACQUIRED, SOON).await?;
    let mut ours = s.start("a", &SHORT_LEASE).await?;
    ours.logged(WAITS, SOON).await?;
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    anyhow::ensure!(!ours.log().contains(BECAME_LEADER), "both lead");
    // Go ends without a word: ours takes over when the lease has run out.
    first.signal(Signal::Kill).await?;
    ours.logged(BECAME_LEADER, EXPIRY).await?;

    // Ours ends in order: Go takes over at once.
    let mut second = electors.start(s, &them, "go-2", &["--release"]).await?;
    second.logged(SEES_A_LEADER, SOON).await?;
    anyhow::ensure!(!second.log().contains(ACQUIRED), "both lead");
    ours.terminate().await?;
    second.logged(ACQUIRED, EXPIRY).await?;

    // Go gives the lease back: ours takes over at once.
    let mut ours = s.start("a", &SHORT_LEASE).await?;
    ours.logged(WAITS, SOON).await?;
    second.signal(Signal::Term).await?;
    ours.logged(BECAME_LEADER, EXPIRY).await?;

    // Ours ends without a word: Go takes over when the lease has run out.
    let mut third = electors.start(s, &them, "go-3", &[]).await?;
    third.logged(SEES_A_LEADER, SOON).await?;
    ours.signal(Signal::Kill).await?;
    third.logged(ACQUIRED, EXPIRY).await?;

    let terms = history.terms(LEASE)?;
    let handovers: Vec<_> = terms.iter().map(|term| term.handover).collect();
    use Handover::{Expired, First, Released};
    anyhow::ensure!(handovers == [First, Expired, Released, Released, Expired], "{terms:?}");
    let gos: Vec<_> = terms
        .iter()
        .map(|term| term.holder.as_str())
        .filter(|holder| holder.starts_with("go-"))
        .collect();
    anyhow::ensure!(gos == ["go-1", "go-2", "go-3"], "{terms:?}");
    wrote_in_turn(s, &[&them, &us, &them, &us, &them]).await
}

async fn of_two_of_ours_and_one_of_gos_one_leads_at_a_time(s: &Scenario) -> anyhow::Result<()> {
    let electors = Electors::find()?;
    let gos = user(&neighbour(s.region()), "a");
    let history = History::follow(s.server.client(), &s.lease()).await;
    let mut waiting = vec![
        (s.user("a"), BECAME_LEADER, s.start("a", &SHORT_LEASE).await?),
        (s.user("b"), BECAME_LEADER, s.start("b", &SHORT_LEASE).await?),
        (gos.clone(), ACQUIRED, electors.start(s, &gos, "go-1", &[]).await?),
    ];
    let mut led = Vec::new();
    // The leader ends without a word, until nobody is left.
    while !waiting.is_empty() {
        let leader = history
            .until_held(led.len() + 1, EXPIRY, &waiting, |(_, says, party)| {
                party.log().contains(says)
            })
            .await?;
        let (user, _, mut party) = waiting.remove(leader);
        let others: Vec<_> = waiting
            .iter()
            .filter(|(_, says, party)| party.log().contains(says))
            .collect();
        anyhow::ensure!(
            others.is_empty(),
            "{user} leads, and so do {:?}",
            others.iter().map(|other| &other.0)
        );
        party.signal(Signal::Kill).await?;
        led.push(user);
    }
    let terms = history.terms(LEASE)?;
    let expired = terms
        .iter()
        .skip(1)
        .all(|term| term.handover == Handover::Expired);
    anyhow::ensure!(terms.len() == 3 && expired, "{terms:?}");
    wrote_in_turn(s, &led.iter().collect::<Vec<_>>()).await
}

/// Judges from the audit log that these users wrote the Lease one after the other, none between
/// another's writes.
async fn wrote_in_turn(s: &Scenario, users: &[&String]) -> anyhow::Result<()> {
    let lease = s.lease();
    let log = s.server.audit_log().await?.filter(|event| {
        // A creation has no name in the log.
        let ours = event.name == lease || (event.name.is_empty() && users.contains(&&event.user));
        event.resource == "leases"
            && ours
            && event.code < 300
            && matches!(event.verb.as_str(), "create" | "update")
    });
    let mut writers: Vec<_> = log.events.iter().map(|event| &event.user).collect();
    writers.dedup();
    anyhow::ensure!(writers == users, "the lease was written by {writers:?}, not by {users:?}");
    Ok(())
}

/// Of the node alone, on both servers: `nodes/replicas.rs`.
async fn a_leader_that_slept_past_its_lease_changes_nothing_in_cluster_and_cloud(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, service) = (s.names(2), vec![s.name(7)]);
    let mut sleeper = s.start("a", &SHORT_LEASE).await?;
    sleeper.logged(BECAME_LEADER, SOON).await?;
    s.register_initialized(&nodes[..1]).await?;
    let mut standby = s.start("b", &SHORT_LEASE).await?;
    standby.logged(WAITS, SOON).await?;
    // It is about to make a balancer when it falls asleep: it has asked whether there is one.
    let gate = CallBreakpoint::shut(s, Operation::GetLoadBalancer, At::Answer);
    s.create_all(&service).await?;
    gate.holds().await?;
    // The event about that is written: half of a request would be sent on later.
    s.event_about("Service", &service[0], "EnsuringLoadBalancer", SOON)
        .await?;
    sleeper.signal(Signal::Stop).await?;
    gate.open();
    standby.logged(BECAME_LEADER, EXPIRY).await?;
    s.register(&nodes[1..]).await?;
    s.initialized(&nodes, SOON).await?;
    s.served(&service, SOON).await?;

    let (asked, written) = (changes(&s.cloud.calls()), s.server.writes(&s.user("a")).await?);
    sleeper.signal(Signal::Continue).await?;
    let status = sleeper.exit(SOON).await?;
    anyhow::ensure!(status.code() == Some(1), "ended with {status}");
    let after = s.server.writes(&s.user("a")).await?;
    let late: Vec<_> = after[written.len()..]
        .iter()
        .filter(|write| !of_the_election(s, write))
        .collect();
    anyhow::ensure!(late.is_empty(), "written after the takeover: {late:?}");
    let made = changes(&s.cloud.calls()) - asked;
    anyhow::ensure!(made == 0, "{made} changes of the cloud after the takeover");
    s.served(&service, SOON).await?;
    standby.terminate().await
}

/// It may try to renew, and be told that the Lease has changed; and it says that it stopped
/// leading.
fn of_the_election(s: &Scenario, write: &Write) -> bool {
    match write.resource.as_str() {
        "leases" => !write.succeeded(),
        "events" => write.name.starts_with(&format!("{}.", s.lease())),
        _ => false,
    }
}

/// Calls that change the cloud.
fn changes(calls: &Calls) -> u64 {
    calls.create_load_balancer
        + calls.modify_load_balancer
        + calls.update_load_balancer
        + calls.delete_load_balancer
        + calls.create_route
        + calls.delete_route
}
