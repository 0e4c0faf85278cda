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
    let fault = |body: &[u8]| {
        let text = std::str::from_utf8(body).ok()?.strip_prefix("gone: ")?;
        Some(ErrorResponse { kind: Some(ErrorKind::NotFound), message: text.to_owned() })
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
fn every_status_has_a_kind_and_doubt_is_none_of_absence() {
    let cases = [
        (400, ErrorKind::InvalidInput),
        (401, ErrorKind::Denied),
        (403, ErrorKind::Denied),
        (404, ErrorKind::Transient),
        (409, ErrorKind::Conflict),
        (410, ErrorKind::Transient),
        (422, ErrorKind::InvalidInput),
        (429, ErrorKind::Throttled),
        (501, ErrorKind::NotImplemented),
        (503, ErrorKind::Transient),
    ];
    for (status, kind) in cases {
        assert_eq!(ErrorKind::of_status(status), kind, "{status}");
    }
    assert!((0..=999).all(|status| ErrorKind::of_status(status) != ErrorKind::NotFound));
}

#[test]
fn a_pause_is_seconds_or_a_date() {
    let now: Timestamp = "1994-11-06T08:49:00Z".parse().unwrap();
    let seconds = |text| parse_retry_after(text, now).map(|pause| pause.as_secs());
    assert_eq!(seconds(" 120 "), Some(120));
    assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(37));
    assert_eq!(seconds("Sun, 06 Nov 1994 08:48:37 GMT"), Some(0));
    for text in ["", "soon", "-1", "1.5"] {
        assert_eq!(seconds(text), None, "{text}");
    }
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
