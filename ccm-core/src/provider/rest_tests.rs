use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::write_gate::WriteGate;

/// A cloud that has one answer, and keeps what it was asked.
struct Canned {
    answer: (u16, Vec<(&'static str, &'static str)>, &'static str),
    asked: Mutex<Vec<Request<Bytes>>>,
}

#[async_trait]
impl Transport for Canned {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        self.asked.lock().push(request);
        let (status, headers, body) = &self.answer;
        let mut response = Response::builder().status(*status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        Ok(response.body(Bytes::from_static(body.as_bytes())).unwrap())
    }
}

fn cloud(
    status: u16,
    headers: &[(&'static str, &'static str)],
    body: &'static str,
) -> (RestClient, Arc<Canned>) {
    let canned = Arc::new(Canned {
        answer: (status, headers.to_vec(), body),
        asked: Mutex::default(),
    });
    let fault = |response: &Response<Bytes>| {
        let text = std::str::from_utf8(response.body())
            .ok()?
            .strip_prefix("gone: ")?;
        Some(ErrorResponse {
            kind: Some(ErrorKind::NotFound),
            message: text.to_owned(),
            ..ErrorResponse::default()
        })
    };
    let rest = RestClient::new("https://cloud.example/api/", canned.clone())
        .unwrap()
        .with_token("s3cret")
        .unwrap();
    (rest.with_error_parser(fault), canned)
}

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

async fn get(
    status: u16,
    headers: &[(&'static str, &'static str)],
    body: &'static str,
) -> Result<u32, CloudError> {
    cloud(status, headers, body).0.get(&op(), "v1/x").await
}

#[tokio::test]
async fn a_request_has_address_token_and_body_and_its_answer_is_read() {
    let (rest, canned) = cloud(200, &[], "[1,2]");
    let read: Vec<u32> = rest
        .get(&op(), &path("v1/disks", &["a/b"], &[("after", "x&y"), ("none", "")]))
        .await
        .unwrap();
    let made: Vec<u32> = rest
        .mutate(&op(), Mutation::new("create", "x"), Method::POST, "v1/disks", &["n"])
        .await
        .unwrap();
    rest.delete(&op(), Mutation::new("delete", "x"), "v1/disks")
        .await
        .unwrap();
    assert_eq!((read, made), (vec![1, 2], vec![1, 2]));
    let asked = canned.asked.lock();
    let line = |request: &Request<Bytes>| {
        format!("{} {} {:?}", request.method(), request.uri(), request.body())
    };
    assert_eq!(
        asked.iter().map(line).collect::<Vec<_>>(),
        [
            r#"GET https://cloud.example/api/v1/disks/a%2Fb?after=x%26y b"""#,
            r#"POST https://cloud.example/api/v1/disks b"[\"n\"]""#,
            r#"DELETE https://cloud.example/api/v1/disks b"""#,
        ]
    );
    let header = |request: &Request<Bytes>, name| {
        request
            .headers()
            .get(name)
            .map(|v| v.to_str().unwrap().to_owned())
    };
    assert!(
        asked
            .iter()
            .all(|request| header(request, header::AUTHORIZATION).as_deref()
                == Some("Bearer s3cret"))
    );
    assert_eq!(header(&asked[1], header::CONTENT_TYPE).as_deref(), Some("application/json"));
    assert_eq!(header(&asked[2], header::CONTENT_TYPE), None);
}

#[tokio::test]
async fn an_empty_answer_is_nothing_and_a_strange_one_is_doubt() {
    let (rest, _) = cloud(204, &[], "");
    rest.get::<()>(&op(), "v1/x").await.unwrap();
    for body in ["", "<html>", "{}", "[1"] {
        let error = get(200, &[], body).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{body:?}: {error}");
        assert!(error.to_string().contains("GET v1/x"), "{error}");
    }
}

#[tokio::test]
async fn errors_say_what_was_attempted_why_and_when_to_come_again() {
    let error = get(429, &[("retry-after", "7"), ("x-request-id", "r-1")], "slow")
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "GET v1/x: 429 Too Many Requests");
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::Throttled, Some(Duration::from_secs(7)))
    );
    assert_eq!(error.request_id(), Some("r-1"));
    let error = get(404, &[], "gone: no disk 7").await.unwrap_err();
    assert_eq!(
        (error.kind(), &*error.to_string()),
        (ErrorKind::NotFound, "GET v1/x: 404 Not Found: no disk 7")
    );
    // A proxy's, or a wrong path.
    assert_eq!(get(404, &[], "<html>").await.unwrap_err().kind(), ErrorKind::Transient);
}

#[tokio::test]
async fn what_is_gone_is_deleted_and_doubt_is_not_that() {
    let delete = async |status, body| {
        cloud(status, &[], body)
            .0
            .delete(&op(), Mutation::new("delete", "x"), "v1/x")
            .await
            .map_err(|error| error.kind())
    };
    assert_eq!(delete(204, "").await, Ok(()));
    assert_eq!(delete(200, r#"{"id": 1}"#).await, Ok(()));
    assert_eq!(delete(404, "gone: no disk").await, Ok(()));
    assert_eq!(delete(404, "<html>").await, Err(ErrorKind::Transient));
    assert_eq!(delete(200, "<html>").await, Err(ErrorKind::Transient));
    let (gate, _keeper) = WriteGate::closed();
    let (rest, canned) = cloud(204, &[], "");
    let closed = Op::new("kubernetes", CancellationToken::new(), gate);
    let error = rest
        .delete(&closed, Mutation::new("delete", "x"), "v1/x")
        .await
        .unwrap_err();
    assert_eq!((error.kind(), canned.asked.lock().len()), (ErrorKind::NotLeader, 0));
}

#[tokio::test]
async fn an_object_is_missing_only_if_the_cloud_says_so() {
    let get = async |status, body| {
        let found = cloud(status, &[], body)
            .0
            .get_if_exists::<u32>(&op(), "v1/x")
            .await;
        found.map_err(|error| error.kind())
    };
    assert_eq!(get(200, "7").await, Ok(Some(7)));
    assert_eq!(get(404, "gone: no disk").await, Ok(None));
    assert_eq!(get(404, "<html>").await, Err(ErrorKind::Transient));
    assert_eq!(get(403, "").await, Err(ErrorKind::Denied));
    assert_eq!(get(200, "null").await, Err(ErrorKind::Transient));
}

#[tokio::test]
async fn the_parser_of_errors_sees_status_headers_and_body() {
    let (rest, _) = cloud(402, &[("x-pause", "3"), ("retry-after", "9")], "no credit");
    let rest = rest.with_error_parser(|response| {
        let pause = response.headers().get("x-pause")?.to_str().ok()?;
        Some(ErrorResponse {
            kind: (response.status() == 402).then_some(ErrorKind::Denied),
            message: String::from_utf8(response.body().to_vec()).ok()?,
            retry_after: pause.parse().ok().map(Duration::from_secs),
        })
    });
    let error = rest.get::<u32>(&op(), "v1/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(error.to_string(), "GET v1/x: 402 Payment Required: no credit");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)), "the parser's takes precedence");
}

#[tokio::test]
async fn a_reset_header_delays_only_what_was_throttled() {
    const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:00 GMT");
    let delay = async |status, headers: &[(&'static str, &'static str)]| {
        let (rest, _) = cloud(status, headers, "");
        let rest = rest.with_reset_header("RateLimit-Reset");
        let error = rest.get::<u32>(&op(), "v1/x").await.unwrap_err();
        error.retry_after().map(|after| after.as_secs())
    };
    assert_eq!(delay(429, &[("ratelimit-reset", "5")]).await, Some(5));
    // 784111740 is 08:49:00 by the cloud's own clock, and too small for a Unix time of our days.
    let later = ("ratelimit-reset", "1700000030");
    let date = ("date", "Tue, 14 Nov 2023 22:13:20 GMT");
    assert_eq!(delay(429, &[later, date]).await, Some(30));
    assert_eq!(delay(429, &[later, date, ("retry-after", "2")]).await, Some(2));
    assert_eq!(delay(429, &[DATE]).await, None);
    for status in [403, 404, 409, 500] {
        assert_eq!(delay(status, &[("ratelimit-reset", "5")]).await, None, "{status}");
        assert_eq!(delay(status, &[("retry-after", "5")]).await, Some(5), "{status}");
    }
}

/// Answers page by page; the page after the second fails where it should.
struct Pages(Option<u16>);

#[async_trait]
impl Transport for Pages {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let body = match request.uri().path() {
            "/p1" => r#"[[1, 2], "p2"]"#,
            "/p2" => r#"[[3], "p3"]"#,
            "/loop" => r#"[[1], "loop"]"#,
            _ => r"[[], null]",
        };
        let status = self
            .0
            .filter(|_| request.uri().path() == "/p3")
            .unwrap_or(200);
        Ok(Response::builder()
            .status(status)
            .body(Bytes::from(body))
            .unwrap())
    }
}

#[tokio::test]
async fn a_list_is_every_page_or_an_error() {
    type Page = (Vec<u32>, Option<String>);
    let list = async |fails, path| {
        let rest = RestClient::new("https://cloud.example", Arc::new(Pages(fails))).unwrap();
        rest.list(&op(), path, |page: Page| page)
            .await
            .map_err(|error| error.kind())
    };
    assert_eq!(list(None, "p1").await, Ok(vec![1, 2, 3]));
    assert_eq!(list(Some(403), "p1").await, Err(ErrorKind::Denied));
    assert_eq!(list(None, "loop").await, Err(ErrorKind::Transient));
}

#[test]
fn paths_are_encoded() {
    assert_eq!(path("v1/a", &[], &[]), "v1/a");
    assert_eq!(
        path("v1", &["..", "ä b", "a.b-c_d~"], &[("q", "a=b"), ("r", "1")]),
        "v1/%2E%2E/%C3%A4%20b/a.b-c_d~?q=a%3Db&r=1"
    );
}

/// The address may name a password by mistake, and the token never belongs into a message.
#[test]
fn mistakes_of_the_configuration_are_named_without_secrets() {
    let canned = || Arc::new(Canned { answer: (200, Vec::new(), ""), asked: Mutex::default() });
    for base in [
        "",
        "cloud.example",
        "ftp://cloud.example",
        "https://",
        "https://u:hunter2@cloud.example",
        "http://c?x=hunter2",
    ] {
        let error = RestClient::new(base, canned()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{base}");
        assert!(!error.chain().contains("hunter2"), "{error}");
    }
    for token in ["", " ", "s3cret\n"] {
        let error = RestClient::new("https://cloud.example", canned())
            .unwrap()
            .with_token(token)
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && !error.chain().contains("s3cret"),
            "{error}"
        );
    }
    let (rest, _) = cloud(200, &[], "");
    assert!(!format!("{rest:?}").contains("s3cret"));
}
