//! What the process does while it does not lead, when it stops leading, and that nothing is written after that.

use ccm_core::runtime::manager::Exit;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use serde_json::Value;

use crate::world::{AGENT, World, is_initialized, secs};

/// Few requests a second, so that writes wait for their turn when the gate closes.
const FLAGS: [&str; 3] = ["--leader-elect=true", "--kube-api-qps=2", "--kube-api-burst=1"];

fn lease(world: &World) -> Value {
    let key = ("coordination.k8s.io", "leases");
    let object = world.server.store().get(key, "kube-system", "cloud-controller-manager");
    object.map_or(Value::Null, |object| object.value())
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_once_leadership_cannot_be_proved() {
    let refused = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    for (how, action) in [("refused", refused), ("lost", Action::Drop), ("hanging", Action::Delay(secs(3600)))] {
        let world = World::provisioned();
        let ccm = world.start(&FLAGS);
        world.join((0..100).map(|i| format!("n{i}"))).await;
        let leases = Match::resource("leases").user_agent(AGENT);
        world.until("it works", secs(60), || world.node_writes().len() > 20).await;
        world.server.faults().add(leases.clone(), action);
        let last_renewal = world.write_log(leases).last().unwrap().time;
        let exit = ccm.ended().await.unwrap();
        assert!(matches!(exit, Exit::LeadershipLost(_)), "{how}: {exit:?}");
        tokio::time::sleep(secs(120)).await;
        // The next renewal is due after 2 s and is tried for 10 s, as upstream; others may lead after 15 s.
        let age = |time: jiff::Timestamp| time.duration_since(last_renewal).as_secs_f64();
        let log = world.write_log(Match::any());
        let ours = log.iter().filter(|e| {
            let election = e.body["source"]["component"] == "cloud-controller-manager";
            ["nodes", "events"].contains(&e.request.resource.as_str()) && !election
        });
        let ages: Vec<f64> = ours.map(|entry| age(entry.time)).collect();
        assert!(ages.iter().any(|age| *age > 2.0), "{how}: it goes on while it is sure");
        assert!(ages.iter().all(|age| *age <= 12.0), "{how}: a write after {:?} s", ages.last());
        assert!((0..100).any(|i| !is_initialized(&world.node(&format!("n{i}")))), "{how}: there was work left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_asks_for_the_lease_and_for_nothing_else() {
    let world = World::provisioned();
    let leader = world.start(&["--leader-elect=true"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    drop(leader);
    // The lease of the one that crashed runs for 15 s more.
    world.server.log().clear();
    let calls = world.cloud.calls();
    let _standby = world.start(&["--leader-elect=true"]);
    tokio::time::sleep(secs(10)).await;
    let log = world.server.log().matching(&Match::any().user_agent(AGENT));
    let others: Vec<_> = log.iter().map(|e| &e.request).filter(|r| r.resource != "leases").map(|r| &r.path).collect();
    assert!(others.iter().all(|path| *path == "/healthz"), "{others:?}");
    assert!(log.len() > others.len());
    assert_eq!(world.cloud.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_stop_releases_the_lease_and_the_other_works_within_three_seconds() {
    let world = World::provisioned();
    let first = world.start(&["--leader-elect=true"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    let _second = world.start(&["--leader-elect=true"]);
    tokio::time::sleep(secs(30)).await;
    let holder = lease(&world)["spec"]["holderIdentity"].clone();
    assert_eq!(first.stop().await, Exit::Stopped);
    assert_ne!(lease(&world)["spec"]["holderIdentity"], holder);
    world.join(["b"]).await;
    let took = world.until_initialized(&["b"], secs(60)).await;
    assert!(took <= secs(3), "{took:?}");
}
