//! Microversions of Nova.

use super::*;

fn version(id: &str, newest: &str) -> Value {
    json!({"id": id, "status": "CURRENT", "version": newest, "min_version": if newest.is_empty() { "" } else { "2.1" },
        "links": []})
}

/// A Nova at an address, with a newest microversion: answers with the headers that it was asked
/// with.
struct Nova {
    at: &'static str,
    newest: Mutex<&'static str>,
    /// True if nobody may read the versions.
    hides_versions: Mutex<bool>,
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Transport for Nova {
    async fn send(&self, request: http::Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let path = request.uri().path();
        if path.ends_with("/auth/tokens") {
            return Ok(token(
                &json!([{"type": "compute", "endpoints": [endpoint("public", "RegionOne", self.at)]}]),
            ));
        }
        self.asked.lock().push(path.to_owned());
        let newest = *self.newest.lock();
        let header = |name| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let both = format!(
            "{}|{}",
            header("openstack-api-version"),
            header("x-openstack-nova-api-version")
        );
        let asked_for = header("x-openstack-nova-api-version");
        let minor = |version: &str| version.trim_start_matches("2.").parse::<u16>().unwrap_or(1);
        if minor(asked_for) > minor(newest) {
            let message = format!(
                "Version {asked_for} is not supported by the API. Minimum is 2.1 and maximum is {newest}."
            );
            let fault = json!({"computeFault": {"code": 406, "message": message}});
            return Ok(answer(406, fault.to_string()));
        }
        if path.ends_with('/') && *self.hides_versions.lock() {
            return Ok(answer(403, "<html>no</html>"));
        }
        Ok(match path {
            "/compute/v2.1/servers/1"
            | "/compute/v2.1/project/servers/1"
            | "/compute/v2/project/servers/1" => answer(200, json!({"server": both}).to_string()),
            "/compute/v2.1/" => {
                answer(200, json!({"version": version("v2.1", newest)}).to_string())
            }
            "/compute/v2/" => answer(200, json!({"version": version("v2.0", "")}).to_string()),
            "/compute/" => {
                let versions = [version("v2.0", ""), version("v2.1", newest)];
                answer(300, json!({"versions": versions}).to_string())
            }
            _ => answer(404, "nothing here"),
        })
    }
}

async fn asked(at: &'static str, newest: &'static str) -> (String, Microversion, Vec<String>) {
    let nova = Arc::new(Nova {
        at,
        newest: Mutex::new(newest),
        hides_versions: Mutex::default(),
        asked: Mutex::default(),
    });
    let local = cloud();
    let client = Client::connect(&settings(&local), nova.clone())
        .await
        .unwrap();
    let request = Request::new(Call::ServerGet, &["servers", "1"]);
    let headers = client
        .get(&op(), &request)
        .await
        .unwrap_or_else(|error| panic!("{at}: {}", chain(&error)));
    client.get::<String>(&op(), &request).await.unwrap();
    let asked = nova.asked.lock().clone();
    (headers, client.session().microversion().await.unwrap(), asked)
}

#[tokio::test(start_paused = true)]
async fn servers_are_read_in_the_oldest_version_that_shows_enough() {
    let cases = [
        ("2.1", "|", Microversion(2, 1)),
        ("2.46", "|", Microversion(2, 1)),
        ("2.47", "compute 2.47|2.47", Microversion(2, 47)),
        ("2.68", "compute 2.47|2.47", Microversion(2, 47)),
        ("2.69", "compute 2.69|2.69", Microversion(2, 69)),
        ("2.89", "compute 2.69|2.69", Microversion(2, 69)),
        ("2.90", "compute 2.90|2.90", Microversion(2, 90)),
        ("2.100", "compute 2.90|2.90", Microversion(2, 90)),
        ("", "|", Microversion(2, 1)),
    ];
    for (newest, headers, version) in cases {
        let found = asked("https://cloud.test/compute/v2.1", newest).await;
        assert_eq!((&*found.0, found.1), (headers, version), "{newest}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_form_of_the_address_is_asked_once_for_its_versions() {
    let server = "/compute/v2.1/servers/1";
    let own = "/compute/v2.1/project/servers/1";
    let cases = [
        ("https://cloud.test/compute", "/compute/", server),
        ("https://cloud.test/compute/", "/compute/", server),
        ("https://cloud.test/compute/v2.1/", "/compute/v2.1/", server),
        ("https://cloud.test/compute/v2.1/project", "/compute/v2.1/", own),
    ];
    for (at, document, path) in cases {
        let (_, _, asked) = asked(at, "2.96").await;
        assert_eq!(asked, [document, path, path], "{at}");
    }
}

/// The legacy URL, which old installations have in their catalog.
#[tokio::test(start_paused = true)]
async fn the_legacy_address_is_used_as_it_is_and_without_a_microversion() {
    let (headers, version, asked) = asked("https://cloud.test/compute/v2/project", "2.96").await;
    assert_eq!((&*headers, version), ("|", Microversion::BASE));
    let own = "/compute/v2/project/servers/1";
    assert_eq!(asked, ["/compute/v2/", own, own]);
}

#[tokio::test(start_paused = true)]
async fn a_nova_without_versions_is_an_error() {
    let nova = Arc::new(Nova {
        at: "https://cloud.test/elsewhere",
        newest: Mutex::new("2.96"),
        hides_versions: Mutex::default(),
        asked: Mutex::default(),
    });
    let local = cloud();
    let client = Client::connect(&settings(&local), nova).await.unwrap();
    let error = client
        .get::<Value>(&op(), &Request::new(Call::ServerGet, &["servers", "1"]))
        .await
        .unwrap_err();
    assert!(!error.is_not_found(), "nothing is said about the server: {error}");
}

/// As in an upgrade that is taken back.
#[tokio::test(start_paused = true)]
async fn a_nova_that_returns_to_an_older_release_is_asked_again_for_its_versions() {
    let nova = Arc::new(Nova {
        at: "https://cloud.test/compute/v2.1",
        newest: Mutex::new("2.96"),
        hides_versions: Mutex::default(),
        asked: Mutex::default(),
    });
    let local = cloud();
    let client = Client::connect(&settings(&local), nova.clone())
        .await
        .unwrap();
    let request = Request::new(Call::ServerGet, &["servers", "1"]);
    let (document, server) = ("/compute/v2.1/", "/compute/v2.1/servers/1");
    let cases: [(&str, &str, &[&str]); 4] = [
        ("2.96", "compute 2.90|2.90", &[document, server]),
        ("2.79", "compute 2.69|2.69", &[server, document, server]),
        ("2.79", "compute 2.69|2.69", &[server]),
        // It stays, although a newer one would be possible.
        ("2.96", "compute 2.69|2.69", &[server]),
    ];
    for (newest, headers, requests) in cases {
        *nova.newest.lock() = newest;
        nova.asked.lock().clear();
        let found: String = client.get(&op(), &request).await.unwrap();
        assert_eq!(found, headers, "{newest}");
        assert_eq!(*nova.asked.lock(), requests, "{newest}");
    }
}

/// Connects to a Nova with this newest microversion.
async fn nova(newest: &'static str) -> (Arc<Nova>, Client) {
    let nova = Arc::new(Nova {
        at: "https://cloud.test/compute/v2.1",
        newest: Mutex::new(newest),
        hides_versions: Mutex::default(),
        asked: Mutex::default(),
    });
    let client = Client::connect(&settings(&cloud()), nova.clone())
        .await
        .unwrap();
    (nova, client)
}

#[tokio::test(start_paused = true)]
async fn a_rejected_microversion_is_not_replaced_by_the_oldest_one_unseen() {
    let (nova, client) = nova("2.96").await;
    let request = Request::new(Call::ServerGet, &["servers", "1"]);
    client.get::<String>(&op(), &request).await.unwrap();
    *nova.newest.lock() = "2.79";
    *nova.hides_versions.lock() = true;
    for _ in 0..2 {
        let error = client.get::<String>(&op(), &request).await.unwrap_err();
        assert!(!error.is_not_found() && chain(&error).contains("2.90"), "{error}");
    }
    // Nothing of that was kept.
    *nova.hides_versions.lock() = false;
    let found: String = client.get(&op(), &request).await.unwrap();
    assert_eq!(found, "compute 2.69|2.69");
}

#[tokio::test(start_paused = true)]
async fn only_the_microversion_that_was_rejected_is_forgotten() {
    let (nova, client) = nova("2.96").await;
    let request = Request::new(Call::ServerGet, &["servers", "1"]);
    client.get::<String>(&op(), &request).await.unwrap();
    nova.asked.lock().clear();
    // Another request was rejected, and the version was discovered again since.
    client.session().forget_microversion(Microversion(2, 69));
    client.get::<String>(&op(), &request).await.unwrap();
    assert_eq!(*nova.asked.lock(), ["/compute/v2.1/servers/1"]);
    client.session().forget_microversion(Microversion(2, 90));
    client.get::<String>(&op(), &request).await.unwrap();
    assert_eq!(nova.asked.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn lists_have_lost_cells_that_are_down_only_if_they_had_them() {
    for (before, after, has_lost) in [
        ("2.96", "2.68", true),
        ("2.69", "2.47", true),
        ("2.96", "2.69", false),
        ("2.68", "2.40", false),
    ] {
        let (nova, client) = nova(before).await;
        let request = Request::new(Call::ServerGet, &["servers", "1"]);
        client.get::<String>(&op(), &request).await.unwrap();
        assert!(!client.session().has_lost_down_cells().await.unwrap(), "{before}");
        *nova.newest.lock() = after;
        client.get::<String>(&op(), &request).await.unwrap();
        let lost = client.session().has_lost_down_cells().await.unwrap();
        assert_eq!(lost, has_lost, "{before} {after}");
    }
}
