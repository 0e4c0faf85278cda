use super::*;

const FORMAT: ErrorFormat = ErrorFormat {
    code: "/error/code",
    message: "/error/message",
    kinds: &[
        ("not_found", ErrorKind::NotFound),
        ("limit", ErrorKind::QuotaExceeded),
        ("7", ErrorKind::Conflict),
    ],
};

fn parse(status: u16, body: &'static str) -> Option<ErrorResponse> {
    let response = Response::builder()
        .status(status)
        .body(Bytes::from_static(body.as_bytes()))
        .unwrap();
    FORMAT.parse(&response)
}

fn error(kind: Option<ErrorKind>, message: &str) -> ErrorResponse {
    ErrorResponse { kind, message: message.to_owned(), retry_after: None }
}

#[test]
fn a_code_has_the_kind_of_the_table_or_that_of_the_status() {
    let cases = [
        (
            403,
            r#"{"error": {"code": "limit", "message": "m"}}"#,
            Some(ErrorKind::QuotaExceeded),
            "m",
        ),
        (500, r#"{"error": {"code": "limit"}}"#, Some(ErrorKind::QuotaExceeded), "limit"),
        (400, r#"{"error": {"code": 7, "message": null}}"#, Some(ErrorKind::Conflict), "7"),
        (403, r#"{"error": {"code": "new", "message": "m"}}"#, None, "m"),
    ];
    for (status, body, kind, message) in cases {
        assert_eq!(parse(status, body), Some(error(kind, message)), "{status} {body}");
    }
    for body in ["", "<html>", "{}", r#"{"error": "limit"}"#, r#"{"error": {"code": null}}"#] {
        assert_eq!(parse(403, body), None, "{body}");
    }
}

/// A code does not prove absence if the status says something else.
#[test]
fn a_code_proves_absence_only_with_a_status_that_says_so() {
    const BODY: &str = r#"{"error": {"code": "not_found", "message": "m"}}"#;
    for status in 400..=599 {
        let expected = matches!(status, 404 | 410).then_some(ErrorKind::NotFound);
        assert_eq!(parse(status, BODY), Some(error(expected, "m")), "{status}");
    }
    assert_eq!(FORMAT.of_code("not_found", "m"), error(None, "m"));
    assert_eq!(FORMAT.of_code("limit", ""), error(Some(ErrorKind::QuotaExceeded), "limit"));
    assert_eq!(FORMAT.of_code("new", "m"), error(None, "m"));
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
    let reset = |text| parse_reset(text, now).map(|delay| delay.as_secs());
    assert_eq!(
        [reset("0"), reset(" 3600"), reset("999999999")],
        [Some(0), Some(3600), Some(999_999_999)]
    );
    let now: Timestamp = "2023-11-14T22:13:20Z".parse().unwrap();
    let reset = |text| parse_reset(text, now).map(|delay| delay.as_secs());
    assert_eq!(
        [reset("1700000030"), reset("1700000000"), reset("1000000000")],
        [Some(30), Some(0), Some(0)]
    );
    for text in ["", "soon", "-1", "1.5", "18446744073709551615"] {
        assert_eq!(reset(text), None, "{text}");
    }
}
