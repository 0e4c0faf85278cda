//! Changes to the headers of requests and answers. Pure.

use hyper::{
    HeaderMap, Uri, Version,
    header::{self, HeaderName, HeaderValue},
    http::request,
};

use crate::dataplane::{config::InsertHeaders, frontend::Endpoints};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of a single connection (RFC 9110 7.6.1). `Expect` is answered here, because our client
/// waits for that.
const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::CONNECTION,
    header::EXPECT,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Returns the protocol that the message requests or confirms a switch to.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| wanted).cloned()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Removes the headers of the connection that the message came on.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_options(headers)
        .filter_map(|option| option.parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Turns a client's request into the one for a member. `scheme` is what the client uses.
pub(super) fn forward(
    parts: &mut request::Parts,
    insert: InsertHeaders,
    ends: Endpoints,
    scheme: &'static str,
) {
    let upgrade = upgrade(&parts.headers);
    strip(&mut parts.headers);
    if let Some(protocol) = upgrade {
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
    }
    let authority = parts.uri.authority().map(ToString::to_string);
    // A request to a proxy names the server twice, and the request line takes precedence; one of
    // HTTP/1.0 may not name it at all.
    let host = authority
        .or_else(|| (!parts.headers.contains_key(header::HOST)).then(|| ends.local.to_string()));
    if let Some(host) = host.and_then(|host| HeaderValue::try_from(host).ok()) {
        parts.headers.insert(header::HOST, host);
    }
    parts.uri = parts
        .uri
        .path_and_query()
        .cloned()
        .map_or_else(Uri::default, Uri::from);
    parts.version = Version::HTTP_11;
    if insert.x_forwarded_for {
        add_client(&mut parts.headers, ends);
    }
    if insert.x_forwarded_port {
        parts
            .headers
            .insert(FORWARDED_PORT, HeaderValue::from(ends.local.port()));
    }
    if insert.x_forwarded_proto {
        parts
            .headers
            .insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
}

/// Adds the client after those that the request already has, in one header: some members read only
/// the first one.
fn add_client(headers: &mut HeaderMap, ends: Endpoints) {
    let client = ends.client.ip().to_canonical().to_string();
    let mut list = Vec::new();
    for earlier in headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(earlier.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(client.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(FORWARDED_FOR, value);
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn forwarded(
        uri: &str,
        headers: &[(&str, &str)],
        insert: InsertHeaders,
    ) -> (String, Vec<(String, String)>) {
        let mut request = Request::builder().uri(uri).version(Version::HTTP_10);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        let ends = Endpoints {
            client: "10.0.0.9:7".parse().unwrap(),
            local: "127.7.0.1:80".parse().unwrap(),
        };
        forward(&mut parts, insert, ends, "https");
        assert_eq!(parts.version, Version::HTTP_11);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut fields: Vec<_> = parts
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        fields.sort();
        (parts.uri.to_string(), fields)
    }

    fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn what_belongs_to_one_connection_stays_there() {
        let came = [
            ("accept", "text/plain"),
            ("connection", "close, X-Secret"),
            ("host", "a"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-secret", "1"),
        ];
        let (uri, got) = forwarded("/x?y=1", &came, InsertHeaders::default());
        assert_eq!(uri, "/x?y=1");
        assert_eq!(got, fields(&[("accept", "text/plain"), ("host", "a")]));
    }

    #[test]
    fn a_wish_for_another_protocol_is_passed_on() {
        let came = [("connection", "keep-alive, Upgrade"), ("host", "a"), ("upgrade", "websocket")];
        let (_, got) = forwarded("/", &came, InsertHeaders::default());
        assert_eq!(
            got,
            fields(&[("connection", "upgrade"), ("host", "a"), ("upgrade", "websocket")])
        );
    }

    #[test]
    fn a_member_always_learns_which_host_is_meant() {
        let host = |uri, came| forwarded(uri, came, InsertHeaders::default());
        assert_eq!(host("/", &[]), ("/".to_owned(), fields(&[("host", "127.7.0.1:80")])));
        assert_eq!(
            host("http://b/x", &[("host", "a")]),
            ("/x".to_owned(), fields(&[("host", "b")]))
        );
        assert_eq!(host("*", &[("host", "a")]), ("*".to_owned(), fields(&[("host", "a")])));
    }

    #[test]
    fn the_client_is_added_after_earlier_ones_and_the_rest_is_replaced() {
        let insert = InsertHeaders {
            x_forwarded_for: true,
            x_forwarded_port: true,
            x_forwarded_proto: true,
        };
        let ours = [
            ("host", "a"),
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-port", "80"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(forwarded("/", &[("host", "a")], insert).1, fields(&ours));
        let came = [
            ("host", "a"),
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
            ("x-forwarded-for", "3.3.3.3"),
            ("x-forwarded-port", "1"),
            ("x-forwarded-proto", "gopher"),
        ];
        let mut expected = ours;
        expected[1].1 = "1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9";
        assert_eq!(forwarded("/", &came, insert).1, fields(&expected));
        assert_eq!(
            forwarded("/", &came, InsertHeaders::default()).1,
            fields(&came),
            "left alone unless asked for"
        );
    }
}
