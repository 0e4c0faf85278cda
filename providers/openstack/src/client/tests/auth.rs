//! Tokens, catalog, versions.

use openstack_local::server::CatalogForm;
use parking_lot::Mutex;

use super::*;
use crate::config::{Auth, Domain, Identity, Interface, Scope, Settings, User};

fn tokens(cloud: &LocalCloud) -> usize {
    cloud
        .cloud()
        .journal
        .count("POST", "/identity/v3/auth/tokens")
}

async fn connect(cloud: &LocalCloud, auth: Auth) -> Result<Client, OpenStackError> {
    let mut settings = settings(cloud);
    settings.cloud.auth = auth;
    Client::connect(&settings, InProcess::new(cloud)).await
}

#[tokio::test(start_paused = true)]
async fn one_token_serves_many_requests_at_once() {
    let cloud = cloud();
    let client = client(&cloud).await;
    let asked = futures::future::join_all((0..10).map(|_| networks(&client))).await;
    assert!(asked.iter().all(Result::is_ok));
    assert_eq!(
        (tokens(&cloud), client.count(Call::TokenCreate), client.count(Call::NetworkList)),
        (1, 1, 10)
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_before_it_ends() {
    let cloud = cloud();
    let client = client(&cloud).await;
    tokio::time::advance(Duration::from_secs(3600 - 301)).await;
    networks(&client).await.unwrap();
    assert_eq!(tokens(&cloud), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    let asked = futures::future::join_all((0..5).map(|_| networks(&client))).await;
    assert!(asked.iter().all(Result::is_ok));
    assert_eq!(tokens(&cloud), 2, "by one of them");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_renewed_yet_is_used_to_its_end() {
    let cloud = cloud();
    let client = client(&cloud).await;
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/identity", status(503, None)));
    tokio::time::advance(Duration::from_secs(3400)).await;
    networks(&client).await.unwrap();
    for _ in 0..10 {
        networks(&client).await.unwrap();
    }
    assert_eq!(tokens(&cloud), 2, "one attempt, then a pause");
    tokio::time::advance(Duration::from_secs(201)).await;
    let error = networks(&client).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient);
    assert!(
        chain(&error).contains("authentication at http://cloud.test/identity/v3/auth/tokens"),
        "{}",
        chain(&error)
    );
}

/// A token that ended early, in the middle of work.
#[tokio::test(start_paused = true)]
async fn a_refused_token_is_replaced_once_for_all_and_the_request_replayed() {
    let cloud = cloud();
    let client = client(&cloud).await;
    cloud.cloud().clock.advance(Duration::from_secs(4000));
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", FaultKind::Latency { ms: 100 }));
    let asked = futures::future::join_all((0..5).map(|_| networks(&client))).await;
    assert!(asked.iter().all(Result::is_ok), "{asked:?}");
    assert_eq!((tokens(&cloud), client.count(Call::NetworkList)), (2, 10));
    cloud.cloud().clock.advance(Duration::from_secs(4000));
    create(&client, &op())
        .await
        .expect("a change is replayed too: it was not made");
    assert_eq!((tokens(&cloud), client.count(Call::SecurityGroupCreate)), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_refuses_every_token_is_no_reason_for_ever_more_tokens() {
    let cloud = cloud();
    let client = client(&cloud).await;
    cloud
        .cloud()
        .faults
        .add(Trouble::new("/network", status(401, None)));
    for _ in 0..20 {
        let error = networks(&client).await.unwrap_err();
        assert_eq!(CloudError::from(error).kind(), ErrorKind::Denied);
    }
    assert_eq!(tokens(&cloud), 2);
    tokio::time::advance(Duration::from_secs(11)).await;
    networks(&client).await.unwrap_err();
    assert_eq!(tokens(&cloud), 3);
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_are_told_and_not_tried_again_at_once() {
    let cloud = cloud();
    let mut wrong = auth(&cloud, "demo");
    let Identity::Password { password, .. } = &mut wrong.identity else {
        panic!("a password")
    };
    *password = "hunter2".into();
    let mut settings = settings(&cloud);
    settings.cloud.auth = wrong.clone();
    let client = Client::new(&settings, Arc::new(wrong), InProcess::new(&cloud));
    for _ in 0..5 {
        let error = client.session().authenticate().await.unwrap_err();
        let text = chain(&error);
        assert!(text.contains("requires authentication") && text.contains("401"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        let error = CloudError::from(error);
        assert_eq!((error.kind(), error.reason()), (ErrorKind::Denied, Some(reason::PERMISSION)));
    }
    assert_eq!(tokens(&cloud), 1, "many wrong attempts lock a user out");
    tokio::time::advance(Duration::from_secs(31)).await;
    client.session().authenticate().await.unwrap_err();
    assert_eq!(tokens(&cloud), 2);
}

/// Credentials that somebody changes.
struct Rotated(Mutex<(u64, Auth)>);

impl Credentials for Rotated {
    fn read(&self) -> Result<Auth, Box<str>> {
        Ok(self.0.lock().1.clone())
    }

    fn file_version(&self) -> u64 {
        self.0.lock().0
    }
}

#[tokio::test(start_paused = true)]
async fn changed_credentials_are_tried_at_once() {
    let cloud = cloud();
    let mut wrong = auth(&cloud, "demo");
    let Identity::Password { password, .. } = &mut wrong.identity else {
        panic!("a password")
    };
    *password = "old".into();
    let rotated = Arc::new(Rotated(Mutex::new((1, wrong))));
    let client = Client::new(&settings(&cloud), rotated.clone(), InProcess::new(&cloud));
    client.session().authenticate().await.unwrap_err();
    *rotated.0.lock() = (2, auth(&cloud, "demo"));
    networks(&client).await.expect("no pause and no restart");
}

/// In another project the cluster's servers and load balancers do not exist, which would look like
/// proof that they were deleted.
#[tokio::test(start_paused = true)]
async fn changed_credentials_of_another_project_are_not_used() {
    let cloud = cloud();
    let rotated = Arc::new(Rotated(Mutex::new((1, auth(&cloud, "demo")))));
    let client = Client::new(&settings(&cloud), rotated.clone(), InProcess::new(&cloud));
    let project = client
        .session()
        .project()
        .await
        .unwrap()
        .expect("a project");
    *rotated.0.lock() = (2, auth(&cloud, "admin"));
    tokio::time::advance(Duration::from_secs(3400)).await;
    networks(&client)
        .await
        .expect("the old token is still good");
    tokio::time::advance(Duration::from_secs(201)).await;
    let error = networks(&client).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied);
    let text = chain(&error);
    assert!(text.contains(&format!("began with those of project {project}")), "{text}");
    *rotated.0.lock() = (3, auth(&cloud, "demo"));
    networks(&client).await.expect("no pause and no restart");
    assert_eq!(client.session().project().await.unwrap(), Some(project));
}

#[tokio::test(start_paused = true)]
async fn keystone_without_a_version_is_asked_for_its_versions_once() {
    let cloud = cloud();
    for (url, lists) in [("identity", 1), ("identity/", 1), ("identity/v3/", 0), ("identity/v3", 0)]
    {
        cloud.cloud().journal.clear();
        let mut own = auth(&cloud, "demo");
        own.url = format!("http://{HOST}/{url}").parse().unwrap();
        let client = connect(&cloud, own).await.unwrap();
        tokio::time::advance(Duration::from_secs(3400)).await;
        networks(&client).await.unwrap();
        assert_eq!((tokens(&cloud), client.count(Call::IdentityVersionList)), (2, lists), "{url}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_exchanged_for_tokens_of_a_project() {
    let cloud = cloud();
    let own = auth(&cloud, "demo");
    let user = |identity, scope| Auth { url: own.url.clone(), identity, scope };
    let domain = Scope::Domain(Domain::Id("default".into()));
    let unscoped = connect(&cloud, user(own.identity.clone(), Scope::Default))
        .await
        .unwrap();
    let error = networks(&unscoped).await.unwrap_err();
    assert!(
        chain(&error).contains("the catalog has no public endpoint of network"),
        "{}",
        chain(&error)
    );
    let error = connect(&cloud, user(own.identity.clone(), domain))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied, "no role in the domain: {}", chain(&error));
    let token = unscoped
        .session()
        .current()
        .await
        .unwrap()
        .token()
        .to_str()
        .unwrap()
        .to_owned();
    let scoped = connect(&cloud, user(Identity::Token(token.into()), own.scope.clone()))
        .await
        .unwrap();
    networks(&scoped).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_form_of_the_catalog_leads_to_the_services() {
    let cloud = cloud();
    for form in [CatalogForm::Usual, CatalogForm::Versioned, CatalogForm::Unversioned] {
        cloud.cloud().set(|settings| settings.catalog = form);
        let client = client(&cloud).await;
        networks(&client)
            .await
            .unwrap_or_else(|error| panic!("{form:?}: {}", chain(&error)));
        let list = Request::new(Call::LoadBalancerList, &["loadbalancers"]);
        let balancers: Result<Vec<Value>, _> = client.get_all(&op(), &list).await;
        balancers.unwrap_or_else(|error| panic!("{form:?}: {}", chain(&error)));
        assert_eq!(client.session().octavia().await.unwrap(), OctaviaVersion(2, 30), "{form:?}");
        let missing = Request::new(Call::SecretGet, &["secrets", "x"]);
        let error = client.get::<Value>(&op(), &missing).await.unwrap_err();
        assert_eq!(error.status(), Some(StatusCode::NOT_FOUND), "{form:?}: {error}");
        assert_eq!(error.target.as_ref(), "GET http://cloud.test/key-manager/v1/secrets/x");
    }
}

#[tokio::test(start_paused = true)]
async fn octavia_is_asked_for_its_versions_once() {
    let cloud =
        LocalCloud::in_memory(CloudSettings { octavia_minor: 13, ..CloudSettings::default() });
    let client = client(&cloud).await;
    for _ in 0..3 {
        assert_eq!(client.session().octavia().await.unwrap(), OctaviaVersion(2, 13));
    }
    assert_eq!(client.count(Call::VersionList), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_there_is_told_with_what_is_there() {
    let cloud = cloud();
    cloud
        .cloud()
        .set(|settings| settings.without = ["load-balancer".to_owned()].into());
    let told = async |settings: &Settings, service| {
        let client = Client::connect(settings, InProcess::new(&cloud))
            .await
            .unwrap();
        chain(&client.session().endpoint(service).await.unwrap_err())
    };
    let mut settings = settings(&cloud);
    let missing = told(&settings, Service::LoadBalancer).await;
    let expected = "the catalog has no public endpoint of load-balancer in region \"RegionOne\"; services in it: compute, ";
    assert!(missing.contains(expected) && missing.ends_with(", network"), "{missing}");
    settings.cloud.region = "Elsewhere".into();
    settings.cloud.interface = Interface::Internal;
    let elsewhere = told(&settings, Service::Network).await;
    let expected = "the catalog has no internal endpoint of network in region \"Elsewhere\"; it has: admin in \"RegionOne\", \
                    internal in \"RegionOne\", public in \"RegionOne\"";
    assert!(elsewhere.ends_with(expected), "{elsewhere}");
}

/// Requests that say who they are from, by what Keystone was told.
#[test]
fn users_by_id_send_no_domain() {
    let identity = Identity::Password { user: User::Id("u".into()), password: "p".into() };
    let auth = Auth {
        url: "http://k/v3".parse().unwrap(),
        identity,
        scope: Scope::Trust("tr".into()),
    };
    let body = serde_json::to_value(session::keystone::request(&auth)).unwrap();
    let expected = json!({"auth": {
        "identity": {"methods": ["password"], "password": {"user": {"id": "u", "password": "p"}}},
        "scope": {"OS-TRUST:trust": {"id": "tr"}}}});
    assert_eq!(body, expected);
}
