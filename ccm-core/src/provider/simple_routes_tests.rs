use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::write_gate::WriteGate;

/// A cloud whose routes exist at once, or after some listings.
#[derive(Default)]
struct FakeCloud {
    serial: bool,
    /// The answer to each change, if not "done".
    answer: Option<Result<Progress, CloudError>>,
    routes: Mutex<Vec<SimpleRoute>>,
    requests: Mutex<Vec<String>>,
}

#[async_trait]
impl SimpleRoutes for FakeCloud {
    fn concurrent_changes(&self) -> NonZeroUsize {
        NonZeroUsize::new(if self.serial { 1 } else { 4 }).unwrap()
    }

    fn target<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        match node.provider_id.as_deref() {
            Some("bad") => Err(CloudError::invalid_input("bad provider ID")),
            id => Ok(id),
        }
    }

    async fn list_routes(&self, _: &Op) -> Result<Vec<SimpleRoute>, CloudError> {
        Ok(self.routes.lock().clone())
    }

    async fn create_route(
        &self,
        _: &Op,
        _: Mutation,
        destination: IpNet,
        target: &str,
    ) -> Result<Progress, CloudError> {
        self.requests
            .lock()
            .push(format!("create {destination} to {target}"));
        self.answer.clone().unwrap_or(Ok(Progress::Done))
    }

    async fn delete_route(
        &self,
        _: &Op,
        _: Mutation,
        route: &SimpleRoute,
    ) -> Result<Progress, CloudError> {
        self.requests.lock().push(format!("delete {}", route.id));
        self.answer.clone().unwrap_or(Ok(Progress::Done))
    }
}

fn op() -> Op {
    Op::new("blue", CancellationToken::new(), WriteGate::always_open())
}

fn node(name: &str, id: Option<&str>) -> Arc<NodeView> {
    Arc::new(NodeView { provider_id: id.map(Into::into), ..NodeView::named(name) })
}

fn net(third: u8) -> IpNet {
    format!("10.0.{third}.0/24").parse().unwrap()
}

fn existing(id: &str, third: u8, target: &str) -> SimpleRoute {
    SimpleRoute {
        id: id.into(),
        destination: net(third),
        target: target.into(),
        broken: false,
    }
}

fn create(node: &Arc<NodeView>, third: u8) -> RouteChange {
    RouteChange::Create { node: node.clone(), destination: net(third) }
}

fn delete(id: &str, third: u8) -> RouteChange {
    RouteChange::Delete(Route {
        name: id.into(),
        node: None,
        node_addresses: None,
        destination: net(third),
        blackhole: false,
    })
}

fn busy(seconds: u64) -> Progress {
    let after = Duration::from_secs(seconds);
    Progress::Pending { after, reason: "it runs on".into() }
}

/// Writes results as words.
fn words(results: &[Result<Progress, CloudError>]) -> Vec<String> {
    results
        .iter()
        .map(|result| match result {
            Ok(Progress::Done) => "done".to_owned(),
            Ok(Progress::Pending { after, reason }) => format!("{}s: {reason}", after.as_secs()),
            Err(error) => error.to_string(),
        })
        .collect()
}

#[tokio::test]
async fn what_is_there_already_needs_no_request() {
    for serial in [false, true] {
        let cloud = FakeCloud { serial, ..FakeCloud::default() };
        *cloud.routes.lock() = vec![existing("r1", 1, "i-a"), existing("r2", 2, "i-b")];
        let (a, b) = (node("a", Some("i-a")), node("b", Some("i-b")));
        let changes = [
            create(&a, 1),
            create(&b, 1),
            delete("r2", 2),
            // Deleted already, and the ID of a route with another destination.
            delete("r3", 3),
            delete("r1", 9),
            create(&node("c", None), 4),
            create(&node("d", Some("bad")), 5),
        ];
        let results = cloud.apply(&op(), &changes).await;
        let expected = [
            "done",
            "done",
            "done",
            "done",
            "done",
            "1s: node c cannot be the target of a route yet",
            "bad provider ID",
        ];
        assert_eq!(words(&results), expected, "serial: {serial}");
        let mut requests = cloud.requests.lock().clone();
        requests.sort();
        assert_eq!(requests, ["create 10.0.1.0/24 to i-b", "delete r2"]);
    }
}

#[tokio::test]
async fn a_broken_route_is_created_anew() {
    let cloud = FakeCloud::default();
    *cloud.routes.lock() = vec![SimpleRoute { broken: true, ..existing("r1", 1, "i-a") }];
    cloud
        .apply(&op(), &[create(&node("a", Some("i-a")), 1)])
        .await;
    assert_eq!(cloud.requests.lock().len(), 1);
}

#[tokio::test]
async fn a_cloud_with_one_lock_gets_one_change_at_a_time() {
    let locked = CloudError::new(ErrorKind::Conflict, "locked");
    let answers = [
        (Ok(busy(3)), "3s: it runs on", "3s: it waits for an earlier change: it runs on"),
        (
            Err(locked.clone().with_retry_after(Duration::from_secs(7))),
            "7s: locked",
            "7s: it waits for an earlier change: locked",
        ),
        (Err(locked), "1s: locked", "1s: it waits for an earlier change: locked"),
    ];
    for (answer, first, later) in answers {
        let cloud = FakeCloud { serial: true, answer: Some(answer), ..FakeCloud::default() };
        *cloud.routes.lock() = vec![existing("r1", 1, "i-a")];
        let a = node("a", Some("i-a"));
        let changes = [create(&a, 2), create(&a, 1), create(&a, 3), delete("r1", 1)];
        let existing = cloud.routes.lock().clone();
        let results = apply_serially(&cloud, &op(), &existing, &changes, 0).await;
        assert_eq!(words(&results), [first, "done", later, later]);
        assert_eq!(cloud.requests.lock().len(), 1);
        // Another call begins elsewhere, so that this one does not block them for ever.
        let results = apply_serially(&cloud, &op(), &existing, &changes, 2).await;
        assert_eq!(words(&results), [later, "done", first, later]);
        assert_eq!(cloud.requests.lock()[1], "create 10.0.3.0/24 to i-a");
    }
    // Another error does not stop the others.
    let cloud = FakeCloud {
        serial: true,
        answer: Some(Err(CloudError::transient("no"))),
        ..FakeCloud::default()
    };
    let a = node("a", Some("i-a"));
    let results = cloud.apply(&op(), &[create(&a, 2), create(&a, 3)]).await;
    assert_eq!(words(&results), ["no", "no"]);
    assert_eq!(cloud.requests.lock().len(), 2);
}

/// Two nodes with the same pod network must not keep the other nodes from their routes.
#[tokio::test]
async fn a_conflict_with_an_existing_route_is_no_lock() {
    let taken = CloudError::new(ErrorKind::Conflict, "10.0.1.0/24 has a route");
    let cloud = FakeCloud {
        serial: true,
        answer: Some(Err(taken)),
        ..FakeCloud::default()
    };
    *cloud.routes.lock() = vec![existing("r1", 1, "i-a")];
    let b = node("b", Some("i-b"));
    let changes = [create(&b, 1), create(&b, 2), create(&b, 3)];
    let existing = cloud.routes.lock().clone();
    let results = apply_serially(&cloud, &op(), &existing, &changes, 0).await;
    let first = "1s: 10.0.1.0/24 has a route";
    let later = "1s: it waits for an earlier change: 10.0.1.0/24 has a route";
    assert_eq!(words(&results), [first, first, later]);
    assert_eq!(cloud.requests.lock().len(), 2);
}

#[tokio::test]
async fn routes_are_listed_with_the_nodes_to_which_they_lead() {
    let cloud = FakeCloud::default();
    *cloud.routes.lock() = vec![
        SimpleRoute {
            destination: "10.0.1.7/24".parse().unwrap(),
            ..existing("r1", 1, "i-a")
        },
        SimpleRoute { broken: true, ..existing("r2", 2, "i-gone") },
    ];
    let nodes = [node("a", Some("i-a")), node("b", None), node("c", Some("bad"))];
    let listed = cloud.list(&op(), &nodes).await.unwrap();
    let route = |name: &str, node: Option<&str>, third, blackhole| Route {
        name: name.into(),
        node: node.map(Into::into),
        node_addresses: None,
        destination: net(third),
        blackhole,
    };
    assert_eq!(listed, [route("r1", Some("a"), 1, false), route("r2", None, 2, true)]);
}
