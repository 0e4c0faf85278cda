//! Load balancers of Services.

use ccm_testkit::apiserver::Match;
use serde_json::json;

use crate::world::{World, secs};

const SERVICE: [&str; 1] = ["--controllers=service"];

#[tokio::test(start_paused = true)]
async fn a_new_balancer_costs_two_writes_and_two_events() {
    let world = World::provisioned();
    let _ccm = world.start(&SERVICE);
    world.join(["a", "b"]).await;
    world.put_service("web", json!({"ports": [{"port": 80}]})).await;
    world.until("the service has an address", secs(60), || !world.ingress("web").is_empty()).await;
    tokio::time::sleep(secs(60)).await;
    let writes = world.write_log(Match::resource("services"));
    let writes: Vec<_> =
        writes.iter().map(|entry| format!("{} {}", entry.request.verb, entry.request.target())).collect();
    assert_eq!(writes, ["patch services/status", "patch services/status"]);
    assert_eq!(world.service_events(), [("EnsuringLoadBalancer".to_owned(), 1), ("EnsuredLoadBalancer".to_owned(), 1)]);
}
