//! Version documents that are not open to everybody.

use super::*;

/// Nova and Octavia behind something that answers requests for versions with a status, always or only
/// without a token.
struct Guarded {
    code: u16,
    opens_with_token: bool,
    /// Paths that were requested, with a mark for those with a token.
    requests: Mutex<Vec<String>>,
}

#[async_trait]
impl Transport for Guarded {
    async fn send(&self, request: http::Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let path = request.uri().path();
        if path.ends_with("/auth/tokens") {
            self.requests.lock().push("token".into());
            let catalog = |kind: &str, url: &str| json!({"type": kind, "endpoints": [endpoint("public", "RegionOne", url)]});
            return Ok(token(&json!([
                catalog("compute", "https://cloud.test/compute"),
                catalog("load-balancer", "https://cloud.test/lb"),
            ])));
        }
        let has_token = request.headers().contains_key("x-auth-token");
        let mark = if has_token { " with token" } else { "" };
        self.requests.lock().push(format!("{path}{mark}"));
        if path.ends_with("/servers/1") {
            return Ok(answer(200, json!({"server": "one"}).to_string()));
        }
        if !(has_token && self.opens_with_token) {
            return Ok(answer(self.code, "<html>no</html>"));
        }
        let version = |id: &str, newest: &str| json!({"id": id, "status": "CURRENT", "version": newest, "min_version": "2.1", "links": []});
        let versions = match path {
            "/compute/" => [version("v2.0", ""), version("v2.1", "2.96")],
            "/lb/" => [version("v2.0", ""), version("v2.27", "")],
            _ => return Ok(answer(404, "nothing here")),
        };
        Ok(answer(200, json!({"versions": versions}).to_string()))
    }
}

async fn guarded(code: u16, opens_with_token: bool) -> (Arc<Guarded>, Client) {
    let guarded = Arc::new(Guarded { code, opens_with_token, requests: Mutex::default() });
    let local = cloud();
    let client = Client::connect(&settings(&local), guarded.clone())
        .await
        .expect("a token");
    (guarded, client)
}

#[tokio::test(start_paused = true)]
async fn versions_that_need_a_token_are_asked_for_with_one() {
    for code in [401, 403] {
        let (guarded, client) = guarded(code, true).await;
        assert_eq!(client.session().microversion().await.unwrap(), Microversion(2, 90), "{code}");
        assert_eq!(client.session().octavia().await.unwrap(), OctaviaVersion(2, 27), "{code}");
        let expected = ["token", "/compute/", "/compute/ with token", "/lb/", "/lb/ with token"];
        assert_eq!(*guarded.requests.lock(), expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_versions_the_oldest_ones_are_used() {
    for code in [401, 403] {
        let (guarded, client) = guarded(code, false).await;
        assert_eq!(client.session().octavia().await.unwrap(), OctaviaVersion::BASE, "{code}");
        let request = Request::new(Call::ServerGet, &["servers", "1"]);
        for _ in 0..2 {
            assert_eq!(client.get::<String>(&op(), &request).await.unwrap(), "one", "{code}");
        }
        assert_eq!(client.session().microversion().await.unwrap(), Microversion::BASE, "{code}");
        let requests = guarded.requests.lock();
        let server = "/compute/v2.1/servers/1 with token";
        assert_eq!(
            requests
                .iter()
                .filter(|request| **request == server)
                .count(),
            2
        );
        // Each is asked without a token, with one, and with a new one, and never again.
        for document in ["/compute/", "/lb/"] {
            let asked = requests
                .iter()
                .filter(|request| request.starts_with(&format!("{document} ")));
            assert_eq!(asked.count(), 2, "{code} {requests:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_no_refusal() {
    for code in [404, 500, 503] {
        let (_, client) = guarded(code, false).await;
        client.session().octavia().await.unwrap_err();
        client.session().microversion().await.unwrap_err();
    }
}
