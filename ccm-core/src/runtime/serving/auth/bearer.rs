//! The bearer token of a request.

use http::{HeaderMap, header};

/// Returns the bearer token of a request, parsed as upstream does. A request with several
/// credentials, or with one that is not text, is an error, because its intention is ambiguous.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("several Authorization headers");
    }
    let text = value
        .to_str()
        .map_err(|_| "the Authorization header is no text")?
        .trim();
    let Some((scheme, token)) = text.split_once(' ') else {
        return Ok(None);
    };
    // A token after more than one space is ignored, as upstream.
    if !scheme.eq_ignore_ascii_case("bearer") || token.starts_with(' ') {
        return Ok(None);
    }
    if token.contains(' ') {
        return Err("text behind the bearer token");
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_token_is_what_follows_bearer() {
        for (value, want) in [
            ("Bearer abc", Ok(Some("abc"))),
            ("bearer abc", Ok(Some("abc"))),
            ("  BEARER abc ", Ok(Some("abc"))),
            ("Bearer", Ok(None)),
            ("Bearer ", Ok(None)),
            ("Bearer  abc", Ok(None)),
            ("Basic abc", Ok(None)),
            ("Bearerabc", Ok(None)),
            ("", Ok(None)),
            ("Bearer abc def", Err("text behind the bearer token")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(token(&headers), want, "{value:?}");
        }
        assert_eq!(token(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn doubt_about_the_token_is_an_error() {
        let mut headers = HeaderMap::new();
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert!(token(&headers).is_err());
        headers.clear();
        headers.append(header::AUTHORIZATION, HeaderValue::from_bytes(b"Bearer \xff").unwrap());
        assert!(token(&headers).is_err());
    }
}
