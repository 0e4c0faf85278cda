use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    provider::{ErrorKind, rest::Transport},
    write_gate::WriteGate,
};

/// A cloud with two pages of numbers.
struct Cloud;

#[async_trait]
impl Transport for Cloud {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let body = match request.uri().path_and_query().unwrap().as_str() {
            "/n" | "/n?a=b" => r#"{"numbers": [1, 2], "meta": {"next": 2}}"#,
            "/n?page=2" | "/n?a=b&page=2" => r#"{"numbers": [3], "meta": {"next": null}}"#,
            "/loop" | "/loop?page=2" => r#"{"numbers": [], "meta": {"next": 2}}"#,
            "/no-next" => r#"{"numbers": [1], "meta": {}}"#,
            "/text" => r#"{"numbers": [1], "meta": {"next": "2"}}"#,
            "/no-items" => r#"{"meta": {"next": null}}"#,
            "/other-items" => r#"{"numbers": ["x"], "meta": {"next": null}}"#,
            _ => return Ok(Response::builder().status(403).body(Bytes::new()).unwrap()),
        };
        Ok(Response::new(Bytes::from_static(body.as_bytes())))
    }
}

#[tokio::test]
async fn a_numbered_list_is_every_page_or_an_error() {
    let rest = RestClient::new("https://cloud.example", Arc::new(Cloud)).unwrap();
    let op = Op::new("blue", CancellationToken::new(), WriteGate::always_open());
    let format = PageFormat { parameter: "page", next: "/meta/next" };
    let list = async |path| {
        let listed = rest.list_numbered::<u8>(&op, path, "/numbers", format);
        listed.await.map_err(|error| error.kind())
    };
    assert_eq!(list("n").await, Ok(vec![1, 2, 3]));
    assert_eq!(list("n?a=b").await, Ok(vec![1, 2, 3]));
    for path in ["loop", "no-next", "text", "no-items", "other-items"] {
        assert_eq!(list(path).await, Err(ErrorKind::Transient), "{path}");
    }
    assert_eq!(list("denied").await, Err(ErrorKind::Denied));
}
