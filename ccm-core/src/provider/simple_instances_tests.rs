use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{provider::MetadataScope, write_gate::WriteGate};

/// A cloud with instances `i1`, `i2`, … of nodes `n1`, `n2`, …
#[derive(Default)]
struct Cloud {
    instances: Vec<SimpleInstance>,
    /// The IDs that the listing of all instances lacks.
    unlisted: BTreeSet<&'static str>,
    /// The IDs about which the cloud returns an error.
    errors: Vec<(&'static str, ErrorKind)>,
    listing_fails: bool,
    requests: Mutex<Vec<String>>,
    in_flight: Mutex<(usize, usize)>,
}

fn instance(id: &str, name: &str, power_state: PowerState) -> SimpleInstance {
    let meta = InstanceMetadata {
        provider_id: Some(format!("shelf://{id}").into()),
        ..InstanceMetadata::default()
    };
    SimpleInstance { id: id.into(), name: name.into(), power_state, meta }
}

impl Cloud {
    fn with(count: usize) -> Self {
        let of = |i| instance(&format!("i{i}"), &format!("n{i}"), PowerState::Running);
        Self { instances: (1..=count).map(of).collect(), ..Self::default() }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }
}

#[async_trait]
impl SimpleInstances for Cloud {
    fn id_of<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        node.id_in("shelf", |id| id.starts_with('i'))
    }

    async fn list_instances(
        &self,
        _: &Op,
        name: Option<&str>,
    ) -> Result<Vec<SimpleInstance>, CloudError> {
        self.requests
            .lock()
            .push(format!("list {}", name.unwrap_or("all")));
        if self.listing_fails {
            return Err(CloudError::transient("no page 2"));
        }
        let listed = self
            .instances
            .iter()
            .filter(|one| name.is_some() || !self.unlisted.contains(&*one.id))
            .filter(|one| name.is_none_or(|name| one.name.starts_with(name)));
        Ok(listed.cloned().collect())
    }

    async fn get_instance(&self, _: &Op, id: &str) -> Result<Option<SimpleInstance>, CloudError> {
        self.requests.lock().push(format!("get {id}"));
        {
            let mut in_flight = self.in_flight.lock();
            in_flight.0 += 1;
            in_flight.1 = in_flight.0.max(in_flight.1);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.in_flight.lock().0 -= 1;
        if let Some((_, kind)) = self.errors.iter().find(|(failing, _)| *failing == id) {
            return Err(CloudError::new(*kind, format!("get {id}")));
        }
        Ok(self.instances.iter().find(|one| *one.id == *id).cloned())
    }
}

/// Queries by provider ID (`i1`, or a malformed one with `:`) or by name (`n1`).
async fn describe(cloud: &Cloud, asked: &[&str]) -> Result<Vec<String>, CloudError> {
    let query = |text: &&str| {
        let mut node = NodeView::named(text);
        if !text.starts_with('n') {
            node.provider_id = Some(format!("shelf://{text}").into());
        }
        InstanceQuery {
            node: Arc::new(node),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        }
    };
    let queries: Vec<_> = asked.iter().map(query).collect();
    let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
    let answers = cloud.describe(&op, &queries).await?;
    let shown = |answer: Result<InstanceStatus, CloudError>| match answer {
        Ok(InstanceStatus::NotFound) => "not found".to_owned(),
        Ok(InstanceStatus::Found { power_state, meta }) => {
            let id = meta.provider_id.unwrap();
            match power_state {
                PowerState::Running => id.trim_start_matches("shelf://").to_owned(),
                other => format!("{id} {other:?}"),
            }
        }
        Err(error) => error.kind().to_string(),
    };
    Ok(answers.into_iter().map(shown).collect())
}

#[tokio::test(start_paused = true)]
async fn a_few_queries_are_answered_singly_and_many_by_one_listing() {
    let cloud = Cloud::with(6);
    let answers = describe(&cloud, &["i2", "n1", "i9", "n9"]).await.unwrap();
    assert_eq!(answers, ["i2", "i1", "not found", "not found"]);
    assert_eq!(cloud.requests(), ["get i2", "list n1", "get i9", "list n9"]);
    let answers = describe(&cloud, &["i2", "n1", "i6", "n4", "i2"])
        .await
        .unwrap();
    assert_eq!(answers, ["i2", "i1", "i6", "i4", "i2"]);
    assert_eq!(cloud.requests(), ["list all"]);
    assert_eq!(describe(&cloud, &[]).await.unwrap(), [""; 0]);
    assert!(cloud.requests().is_empty());
}

/// An instance that moved to a page that was already read is missing from the listing, and runs.
#[tokio::test(start_paused = true)]
async fn a_listing_does_not_prove_absence() {
    let cloud = Cloud { unlisted: ["i1", "i2"].into(), ..Cloud::with(5) };
    let answers = describe(&cloud, &["i1", "i3", "n2", "i9", "n9"])
        .await
        .unwrap();
    assert_eq!(answers, ["i1", "i3", "i2", "not found", "not found"]);
    assert_eq!(cloud.requests(), ["list all", "get i1", "list n2", "get i9", "list n9"]);
}

#[tokio::test(start_paused = true)]
async fn an_error_is_never_absence() {
    let kinds = [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Transient];
    let errors = ["i7", "i8", "i9"].into_iter().zip(kinds).collect();
    let cloud = Cloud { errors, ..Cloud::with(5) };
    let asked = ["i7", "i8", "i9", "x1", "i1"];
    let answers = describe(&cloud, &asked).await.unwrap();
    assert_eq!(answers, ["not_found", "denied", "transient", "invalid_input", "i1"]);
    let cloud = Cloud { listing_fails: true, ..Cloud::with(5) };
    assert_eq!(describe(&cloud, &asked).await.unwrap_err().kind(), ErrorKind::Transient);
    assert_eq!(describe(&cloud, &["n1", "i1"]).await.unwrap(), ["transient", "i1"]);
}

/// A cloud that takes an ID for a number, and answers about `i01` whatever the zeros.
struct Lenient(Cloud);
#[async_trait]
impl SimpleInstances for Lenient {
    fn id_of<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        self.0.id_of(node)
    }
    async fn list_instances(
        &self,
        op: &Op,
        name: Option<&str>,
    ) -> Result<Vec<SimpleInstance>, CloudError> {
        self.0.list_instances(op, name).await
    }
    async fn get_instance(&self, op: &Op, _: &str) -> Result<Option<SimpleInstance>, CloudError> {
        self.0.get_instance(op, "i01").await
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_another_instance_is_an_error() {
    let mut cloud = Cloud::with(1);
    cloud.instances[0].id = "i01".into();
    let node = NodeView {
        provider_id: Some("shelf://i1".into()),
        ..NodeView::named("n1")
    };
    let query = InstanceQuery {
        node: Arc::new(node),
        scope: MetadataScope::All,
        max_age: Duration::ZERO,
    };
    let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
    let answers = Lenient(cloud).describe(&op, &[query]).await.unwrap();
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.to_string(), "the cloud returned instance i01 instead of i1");
}

/// A name is used again after its instance was terminated.
#[tokio::test(start_paused = true)]
async fn a_name_means_the_one_instance_that_exists() {
    let mut cloud = Cloud::with(5);
    let add = |cloud: &mut Cloud, id, name, power| cloud.instances.push(instance(id, name, power));
    add(&mut cloud, "i6", "n1", PowerState::Terminated);
    add(&mut cloud, "i7", "n2", PowerState::Stopped);
    add(&mut cloud, "i8", "n8", PowerState::Terminated);
    add(&mut cloud, "i9", "n9", PowerState::Terminated);
    add(&mut cloud, "i10", "n9", PowerState::Running);
    // Listed twice, because pages overlap.
    add(&mut cloud, "i3", "n3", PowerState::Running);
    cloud.unlisted.insert("i10");
    let expected = ["i1", "conflict", "i3", "shelf://i8 Terminated", "i10"];
    for asked in [&["n1", "n2", "n3", "n8", "n9"][..], &["n1", "n2"], &["n3", "n8", "n9"]] {
        let answers = describe(&cloud, asked).await.unwrap();
        let at = |name: &&str| {
            ["n1", "n2", "n3", "n8", "n9"]
                .iter()
                .position(|n| n == name)
        };
        let expected: Vec<_> = asked
            .iter()
            .map(|name| expected[at(name).unwrap()])
            .collect();
        assert_eq!(answers, expected, "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn single_requests_are_limited_and_end_when_the_cloud_throttles() {
    let asked: Vec<String> = (1..=40).map(|i| format!("i{i}")).collect();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let cloud = Cloud::with(0);
    assert_eq!(describe(&cloud, &asked).await.unwrap(), ["not found"; 40]);
    assert_eq!((cloud.in_flight.lock().1, cloud.requests().len()), (MAX_IN_FLIGHT, 41));

    let cloud = Cloud { errors: vec![("i2", ErrorKind::Throttled)], ..Cloud::with(0) };
    let answers = describe(&cloud, &asked).await.unwrap();
    assert_eq!((answers.len(), &*answers[0]), (40, "not found"));
    assert!(answers[1..].iter().all(|answer| answer == "throttled"), "{answers:?}");
    let requests = cloud.requests().len();
    assert!(requests <= 2 + MAX_IN_FLIGHT + 1, "{requests} requests");

    // What the listing has needs no request.
    let cloud = Cloud {
        errors: vec![("i41", ErrorKind::Throttled)],
        ..Cloud::with(40)
    };
    let asked: Vec<&str> = std::iter::once("i41").chain(asked).collect();
    let answers = describe(&cloud, &asked).await.unwrap();
    assert_eq!(&*answers[0], "throttled");
    assert!(answers[1..].iter().all(|answer| answer != "throttled"), "{answers:?}");
}

#[test]
fn an_id_is_read_from_the_provider_id_of_this_scheme() {
    let id = |provider_id: Option<&str>| {
        let node = NodeView {
            provider_id: provider_id.map(Into::into),
            ..NodeView::named("n")
        };
        let id = node.id_in("shelf", |id| id == "7" || id == "a/b");
        id.map(|id| id.map(str::to_owned))
    };
    assert_eq!(id(None).unwrap(), None);
    assert_eq!(id(Some("shelf://7")).unwrap().as_deref(), Some("7"));
    assert_eq!(id(Some("shelf://a/b")).unwrap().as_deref(), Some("a/b"));
    for malformed in ["shelf://", "shelf:7", "shelf://07", "shelf2://7", "SHELF://7", "7"] {
        let error = id(Some(malformed)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{malformed}");
        assert!(error.to_string().contains(malformed), "{error}");
    }
}

#[test]
fn a_number_has_one_spelling() {
    use crate::provider::is_canonical_number;
    for number in ["0", "7", "18446744073709551615"] {
        assert!(is_canonical_number(number), "{number}");
    }
    for other in ["", "07", "00", "+7", "-7", " 7", "7x", "0x7", "18446744073709551616", "٧"] {
        assert!(!is_canonical_number(other), "{other:?}");
    }
}
