//! Cookies by which a client stays with its member, in requests and answers. Pure.

use hyper::{
    HeaderMap,
    header::{self, HeaderValue},
};

/// The cookie that identifies the member; its name is that of Octavia's own driver.
const OURS: &[u8] = b"SRV";

/// Returns the values of a cookie in a request.
pub(super) fn asked<'a>(headers: &'a HeaderMap, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    pairs(headers.get_all(header::COOKIE).iter())
        .filter(move |(given, _)| *given == name)
        .map(|(_, value)| value)
}

/// Removes our cookie from a request, and returns the member in it.
pub(super) fn take_ours(headers: &mut HeaderMap) -> Option<String> {
    let ours = asked(headers, OURS)
        .next()
        .map(|value| String::from_utf8_lossy(value).into_owned())?;
    let rest: Vec<HeaderValue> = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(without_ours)
        .collect();
    headers.remove(header::COOKIE);
    for value in rest {
        headers.append(header::COOKIE, value);
    }
    Some(ours)
}

fn without_ours(field: &HeaderValue) -> Option<HeaderValue> {
    let parts = field
        .as_bytes()
        .split(|byte| *byte == b';')
        .map(<[u8]>::trim_ascii);
    let parts: Vec<&[u8]> = parts
        .filter(|part| !part.is_empty() && pair(part).0 != OURS)
        .collect();
    // A part of a valid header value is valid too.
    if parts.is_empty() {
        None
    } else {
        HeaderValue::from_bytes(&parts.join(&b"; "[..])).ok()
    }
}

/// Sets our cookie, and marks the answer as private to this client for caches.
pub(super) fn set_ours(headers: &mut HeaderMap, member: &str) {
    let ours = String::from_utf8_lossy(OURS);
    if let Ok(value) = HeaderValue::try_from(format!("{ours}={member}; path=/")) {
        headers.append(header::SET_COOKIE, value);
        headers.append(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    }
}

/// Returns the value that an answer sets for a cookie.
pub(super) fn given<'a>(headers: &'a HeaderMap, name: &[u8]) -> Option<&'a [u8]> {
    let fields = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .map(HeaderValue::as_bytes);
    let first = fields
        .filter_map(|field| field.split(|byte| *byte == b';').next())
        .map(pair);
    first
        .filter(|(given, _)| *given == name)
        .map(|(_, value)| value)
        .next_back()
}

fn pairs<'a>(
    fields: impl Iterator<Item = &'a HeaderValue>,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    fields
        .flat_map(|field| field.as_bytes().split(|byte| *byte == b';'))
        .map(pair)
}

fn pair(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii();
    match text.iter().position(|byte| *byte == b'=') {
        Some(at) => (text[..at].trim_ascii_end(), text[at + 1..].trim_ascii_start()),
        None => (text, b""),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn headers(name: &HeaderName, fields: &[&str]) -> HeaderMap {
        fields
            .iter()
            .map(|field| (name.clone(), HeaderValue::from_str(field).unwrap()))
            .collect()
    }

    #[test]
    fn our_cookie_is_taken_out_of_a_request_and_the_others_stay() {
        for (fields, ours, rest) in [
            (&["a=1; SRV=m; b=2"][..], Some("m"), &["a=1; b=2"][..]),
            (&["SRV=m"], Some("m"), &[]),
            (&["a=1;SRV=m", " SRV = n ", "b"], Some("m"), &["a=1", "b"]),
            (&["SRVX=m; xSRV=n"], None, &["SRVX=m; xSRV=n"]),
            (&["a=SRV=m"], None, &["a=SRV=m"]),
            (&[], None, &[]),
        ] {
            let mut headers = headers(&header::COOKIE, fields);
            assert_eq!(take_ours(&mut headers).as_deref(), ours, "{fields:?}");
            let left: Vec<_> = headers
                .get_all(header::COOKIE)
                .iter()
                .map(|value| value.to_str().unwrap())
                .collect();
            assert_eq!(left, rest, "{fields:?}");
        }
    }

    #[test]
    fn an_applications_cookie_is_found_on_both_ways() {
        let request = headers(&header::COOKIE, &["a=1; id=x=y; id=z"]);
        assert_eq!(asked(&request, b"id").collect::<Vec<_>>(), [&b"x=y"[..], b"z"]);
        let answer = headers(&header::SET_COOKIE, &["a=1; path=/; id=no", "id=x; secure", "id=y"]);
        assert_eq!(given(&answer, b"id"), Some(&b"y"[..]));
        assert_eq!(given(&answer, b"path"), None);
    }

    #[test]
    fn our_cookie_is_set_beside_others_and_not_for_caches() {
        let mut answer = headers(&header::SET_COOKIE, &["a=1"]);
        set_ours(&mut answer, "m");
        let set: Vec<_> = answer.get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(set, ["a=1", "SRV=m; path=/"]);
        assert_eq!(answer[header::CACHE_CONTROL], "private");
    }
}
