//! Tokens from an API server that keeps accounts, in virtual time.

use std::time::Duration;

use http::Response;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use super::*;

/// An API server that knows accounts, gives tokens `t1`, `t2`, … and takes those that it has not
/// revoked.
#[derive(Default)]
struct Server {
    accounts: Vec<String>,
    given: usize,
    revoked: Vec<String>,
    life: u64,
    /// Answers instead of its own, by the end of the path.
    refuse: Vec<(&'static str, u16)>,
    /// It answers no question about tokens.
    silent: bool,
    /// How long an answer to one takes.
    delay: Duration,
    /// Paths, each with the token it came with.
    seen: Vec<String>,
}

type Shared = Arc<Mutex<Server>>;

fn server(accounts: &[&str]) -> Shared {
    let accounts = accounts.iter().map(ToString::to_string).collect();
    Arc::new(Mutex::new(Server { accounts, life: 3600, ..Server::default() }))
}

impl Server {
    fn answer(&mut self, path: &str, authorization: &str, body: &Value) -> (u16, Value) {
        let token = authorization.trim_start_matches("Bearer ").to_owned();
        self.seen
            .push(format!("{path} {token}").trim_end().to_owned());
        if let Some((_, code)) = self.refuse.iter().find(|(end, _)| path.ends_with(end)) {
            let reason = if *code == 403 {
                "Forbidden"
            } else {
                "ServiceUnavailable"
            };
            return (
                *code,
                json!({"kind": "Status", "code": code, "reason": reason, "message": "because"}),
            );
        }
        if path.ends_with("/serviceaccounts") {
            self.accounts.push(
                body["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            );
            return (201, body.clone());
        }
        if let Some(name) = path
            .strip_suffix("/token")
            .and_then(|path| path.rsplit('/').next())
        {
            if !self.accounts.iter().any(|account| account == name) {
                return (
                    404,
                    json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": name}),
                );
            }
            self.given += 1;
            assert_eq!(body["spec"]["expirationSeconds"], 3600);
            return (
                201,
                json!({"spec": {"expirationSeconds": self.life}, "status": {"token": format!("t{}", self.given)}}),
            );
        }
        (
            if self.revoked.contains(&token) {
                401
            } else {
                200
            },
            json!({}),
        )
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen)
    }
}

fn connection(server: &Shared) -> kube::Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let authorization = parts
                .headers
                .get(header::AUTHORIZATION)
                .map(|value| value.to_str().unwrap());
            if parts.uri.path().ends_with("/token") {
                let delay = server.lock().delay;
                if server.lock().silent {
                    server.lock().seen.push(parts.uri.path().to_owned());
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(delay).await;
            }
            let (code, answer) =
                server
                    .lock()
                    .answer(parts.uri.path(), authorization.unwrap_or_default(), &body);
            Ok::<_, BoxError>(
                Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()))?,
            )
        }
    });
    kube::Client::new(service, "default")
}

fn client(server: &Shared) -> kube::Client {
    gated_client(server, &WriteGate::always_open())
}

fn gated_client(server: &Shared, gate: &WriteGate) -> kube::Client {
    let accounts =
        ServiceAccounts::new(connection(server), [("node-controller", connection(server))]);
    let credentials = accounts.credentials(gate);
    tokio::spawn(credentials.clone().run(CancellationToken::new()));
    credentials.client("node-controller", gate).unwrap()
}

/// Lets the process get on with what it does beside requests.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn ask(client: &kube::Client) -> Result<u16, String> {
    let request = Request::get("/api/v1/nodes").body(Body::empty()).unwrap();
    client
        .send(request)
        .await
        .map(|response| response.status().as_u16())
        .map_err(|error| crate::error::chain(&error))
}

const TOKEN: &str = "/api/v1/namespaces/kube-system/serviceaccounts/node-controller/token";
const NODES: &str = "/api/v1/nodes";

#[tokio::test(start_paused = true)]
async fn one_token_serves_until_four_fifths_of_its_life() {
    let server = server(&["node-controller"]);
    let client = client(&server);
    for _ in 0..2 {
        assert_eq!(ask(&client).await, Ok(200));
    }
    assert_eq!(
        server.lock().take(),
        [TOKEN.to_owned(), format!("{NODES} t1"), format!("{NODES} t1")]
    );
    advance(Duration::from_secs(2879)).await;
    ask(&client).await.unwrap();
    advance(Duration::from_secs(1)).await;
    ask(&client).await.unwrap();
    settle().await;
    ask(&client).await.unwrap();
    let mut seen = server.lock().take();
    // The request that finds it old does not wait for another.
    seen[1..3].sort();
    assert_eq!(
        seen,
        [format!("{NODES} t1"), TOKEN.to_owned(), format!("{NODES} t1"), format!("{NODES} t2")]
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_still_good_is_used_at_once_while_nobody_answers() {
    let server = server(&["node-controller"]);
    let client = client(&server);
    ask(&client).await.unwrap();
    server.lock().silent = true;
    advance(Duration::from_secs(3000)).await;
    let begin = Instant::now();
    // Each is given up before a question about a token would be.
    for _ in 0..100 {
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(1), ask(&client))
                .await
                .unwrap(),
            Ok(200)
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(501), "{:?}", begin.elapsed());
    let asked = server
        .lock()
        .take()
        .iter()
        .filter(|line| line.as_str() == TOKEN)
        .count();
    assert!((20..200).contains(&asked), "{asked} questions: it goes on, with pauses");
    server.lock().silent = false;
    tokio::time::sleep(Duration::from_secs(20)).await;
    ask(&client).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    ask(&client).await.unwrap();
    assert_eq!(server.lock().take().last().map(String::as_str), Some("/api/v1/nodes t2"));
}

#[tokio::test(start_paused = true)]
async fn requests_learn_in_time_that_there_is_no_token() {
    let server = server(&["node-controller"]);
    server.lock().silent = true;
    let client = client(&server);
    let begin = Instant::now();
    let error = ask(&client).await.unwrap_err();
    assert!(
        error.contains("kube-system/node-controller") && error.contains("no answer in time"),
        "{error}"
    );
    assert!(begin.elapsed() <= Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_does_not_take_the_question_with_it() {
    let server = server(&["node-controller"]);
    server.lock().delay = Duration::from_secs(2);
    let client = client(&server);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), ask(&client))
            .await
            .is_err()
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ask(&client).await, Ok(200));
    assert_eq!(server.lock().given, 1);
}

#[tokio::test(start_paused = true)]
async fn no_write_is_sent_when_leadership_ran_out_while_it_waited_for_a_token() {
    let server = server(&["node-controller"]);
    server.lock().delay = Duration::from_secs(4);
    let (gate, keeper) = WriteGate::closed();
    let api = |gate: &WriteGate| {
        let metrics =
            crate::runtime::api::ApiMetrics::register(&prometheus::Registry::new()).unwrap();
        let options =
            crate::runtime::api::ApiClientOptions::new("test", "test", metrics, gate.clone());
        crate::runtime::api::ApiClient::new(gated_client(&server, gate), options)
    };
    keeper.open_until(Instant::now() + Duration::from_secs(3));
    let api = api(&gate);
    let delete = crate::runtime::api::ApiRequest::delete("/api/v1/nodes/a");
    let error = api.send(delete).await.unwrap_err();
    assert_eq!(*error.kind(), crate::runtime::api::ApiErrorKind::NotLeader, "{error:?}");
    assert_eq!(server.lock().take(), [TOKEN], "the token came, and nothing was sent with it");
    // What only reads may go.
    let get = crate::runtime::api::ApiRequest::get("/api/v1/nodes/a");
    api.send(get).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_life_is_what_the_server_says() {
    let server = server(&["node-controller"]);
    server.lock().life = 600;
    let client = client(&server);
    ask(&client).await.unwrap();
    advance(Duration::from_secs(480)).await;
    ask(&client).await.unwrap();
    settle().await;
    assert_eq!(server.lock().given, 2);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_missing_is_made() {
    let server = server(&[]);
    assert_eq!(ask(&client(&server)).await, Ok(200));
    let accounts = TOKEN.strip_suffix("/node-controller/token").unwrap();
    assert_eq!(server.lock().take(), [TOKEN, accounts, TOKEN, "/api/v1/nodes t1"]);
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_share_one_token() {
    let server = server(&["node-controller"]);
    let client = client(&server);
    let all = join_all((0..8).map(|_| ask(&client))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(server.lock().given, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_replaced() {
    let server = server(&["node-controller"]);
    let client = client(&server);
    ask(&client).await.unwrap();
    server.lock().revoked.push("t1".to_owned());
    assert_eq!(ask(&client).await, Ok(401));
    assert_eq!(ask(&client).await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named_at_once() {
    for (refused, resource, accounts) in [
        ("/token", "serviceaccounts/token", vec!["node-controller"]),
        ("/serviceaccounts", "serviceaccounts", vec![]),
    ] {
        let server = server(&accounts);
        server.lock().refuse.push((refused, 403));
        let begin = Instant::now();
        let error = ask(&client(&server)).await.unwrap_err();
        for word in [
            "kube-system/node-controller",
            &format!("missing permission to create {resource} "),
            "because",
        ] {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_and_an_old_token_is_used_meanwhile() {
    let server = server(&["node-controller"]);
    let client = client(&server);
    ask(&client).await.unwrap();
    server.lock().refuse.push(("/token", 503));
    advance(Duration::from_secs(3000)).await;
    server.lock().take();
    let begin = Instant::now();
    assert_eq!(ask(&client).await, Ok(200));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    // 0.5 + 1 + 2 s between four tries.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let seen = server.lock().take();
    assert_eq!(seen.iter().filter(|line| line.as_str() == TOKEN).count(), 4, "{seen:?}");
    ask(&client).await.unwrap();
    settle().await;
    assert_eq!(server.lock().take(), ["/api/v1/nodes t1"], "nobody tries again within seconds");
    advance(Duration::from_secs(600)).await;
    assert!(ask(&client).await.unwrap_err().contains("because"), "the old token has run out");
    server.lock().refuse.clear();
    advance(Duration::from_secs(5)).await;
    assert_eq!(ask(&client).await, Ok(200));
}

#[tokio::test(start_paused = true)]
async fn no_token_is_asked_for_without_leadership() {
    let server = server(&["node-controller"]);
    let (gate, keeper) = WriteGate::closed();
    let client = gated_client(&server, &gate);
    assert!(
        ask(&client)
            .await
            .unwrap_err()
            .contains("leadership cannot be proved")
    );
    assert_eq!(server.lock().take(), Vec::<String>::new());
    keeper.open_until(Instant::now() + Duration::from_secs(60));
    advance(Duration::from_secs(5)).await;
    assert_eq!(ask(&client).await, Ok(200));
}

/// Nothing of an answer that cannot be read, and nothing that a refusal repeats, is logged at any
/// verbosity.
#[tokio::test(start_paused = true)]
async fn answers_are_not_repeated_in_the_log() {
    let server = tower::service_fn(|request: Request<Body>| async move {
        let (code, answer) = match request.uri().path().contains("/node-controller/") {
            true => (
                201,
                json!({"spec": "none", "status": {"token": "t0ken-in-an-answer"}}).to_string(),
            ),
            false => (500, "something else: t0ken-in-a-page".to_owned()),
        };
        Ok::<_, BoxError>(
            Response::builder()
                .status(code)
                .body(Body::from(answer.into_bytes()))?,
        )
    });
    let connection = || kube::Client::new(server, "default");
    let log = crate::telemetry::log_capture::LogCapture::default();
    let writer = log.clone();
    let config = crate::config::LoggingConfig { verbosity: 10, ..Default::default() };
    let (dispatch, _) = crate::telemetry::logging::dispatch(&config, move || writer.clone());
    let _guard = tracing::dispatcher::set_default(&dispatch);
    let gate = WriteGate::always_open();
    let names = ["node-controller", "route-controller"];
    let accounts = ServiceAccounts::new(connection(), names.map(|name| (name, connection())));
    let credentials = accounts.credentials(&gate);
    tokio::spawn(credentials.clone().run(CancellationToken::new()));
    for name in names {
        ask(&credentials.client(name, &gate).unwrap())
            .await
            .unwrap_err();
    }
    let text = log.text();
    assert!(text.contains("retrying") && !text.contains("t0ken-in-an-answer"), "{text}");
    // What the page says is told once, where it is handled.
    assert_eq!(text.matches("t0ken-in-a-page").count(), 1, "{text}");
}

#[test]
fn tokens_are_not_shown() {
    let mut header = http::HeaderValue::from_static("Bearer secret");
    header.set_sensitive(true);
    assert!(!format!("{header:?}").contains("secret"));
    assert_eq!(user("route-controller"), "system:serviceaccount:kube-system:route-controller");
}
