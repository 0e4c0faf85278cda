//! Sends requests in AWS' query protocol over plain HTTP, and extracts the few XML elements that
//! fixtures need.

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Service and version of the API of EC2.
pub const EC2: Api = Api { service: "ec2", version: "2016-11-15" };
/// Service and version of the API of Elastic Load Balancing v2.
pub const ELB: Api = Api { service: "elasticloadbalancing", version: "2015-12-01" };
/// Service and version of the API of classic Elastic Load Balancing.
pub const CLASSIC: Api = Api { service: "elasticloadbalancing", version: "2012-06-01" };

/// Region of the requests.
pub const REGION: &str = "us-west-2";

/// An API of the query protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api {
    /// Service in the scope of a signature.
    pub service: &'static str,
    /// Version.
    pub version: &'static str,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The request could not be made.
    #[error("make the request")]
    Request(#[from] http::Error),
    /// There is no answer.
    #[error("no answer")]
    NoAnswer(#[from] hyper_util::client::legacy::Error),
    /// The answer broke off.
    #[error("the answer broke off")]
    Body(#[from] hyper::Error),
    /// The answer is an error.
    #[error("{action}: {status}: {body}")]
    Refused {
        /// Action of the request.
        action: String,
        /// HTTP status.
        status: StatusCode,
        /// The answer.
        body: String,
    },
    /// The answer lacks what is looked for.
    #[error("{element} is not in {body}")]
    Missing {
        /// Element.
        element: String,
        /// The answer.
        body: String,
    },
}

/// A server that speaks the query protocol and checks no signatures. Cheap to clone.
#[derive(Debug, Clone)]
pub struct QueryClient {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl QueryClient {
    /// Creates a client for the server at a URL such as `http://127.0.0.1:5000`.
    pub fn new(url: String) -> Self {
        Self {
            url,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends one request of the query protocol.
    ///
    /// # Errors
    /// There is no answer, or it is no success.
    pub async fn ask<'a>(
        &self,
        api: Api,
        action: &str,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<XmlResponse, WireError> {
        let request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::AUTHORIZATION, scope(api.service))
            .body(Full::from(form(action, api.version, parameters)))?;
        self.answer(action, request).await
    }

    /// Sends one request of the JSON protocol, such as `CertificateManager.RequestCertificate` of
    /// `acm`.
    ///
    /// # Errors
    /// There is no answer, or it is no success.
    pub async fn ask_json(
        &self,
        service: &str,
        target: &str,
        body: String,
    ) -> Result<XmlResponse, WireError> {
        let request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/x-amz-json-1.1")
            .header(header::AUTHORIZATION, scope(service))
            .header("x-amz-target", target)
            .body(Full::from(body))?;
        self.answer(target, request).await
    }

    /// Posts nothing to a path.
    ///
    /// # Errors
    /// There is no answer, or it is no success.
    pub async fn post(&self, path: &str) -> Result<XmlResponse, WireError> {
        self.answer(path, Request::post(format!("{}{path}", self.url)).body(Full::default())?)
            .await
    }

    /// Sends a request as it is.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn forward(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<Bytes>, WireError> {
        let (head, body) = self.client.request(request).await?.into_parts();
        Ok(http::Response::from_parts(head, body.collect().await?.to_bytes()))
    }

    async fn answer(
        &self,
        action: &str,
        request: Request<Full<Bytes>>,
    ) -> Result<XmlResponse, WireError> {
        let answer = self.forward(request).await?;
        let status = answer.status();
        let body = String::from_utf8_lossy(answer.body()).into_owned();
        if status.is_success() {
            Ok(XmlResponse(body))
        } else {
            Err(WireError::Refused { action: action.to_owned(), status, body })
        }
    }
}

/// An answer: XML, with a few looks into it.
#[derive(Debug, Clone)]
pub struct XmlResponse(pub String);

impl XmlResponse {
    /// Returns the text of the first element of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn text(&self, element: &str) -> Result<String, WireError> {
        let missing = || WireError::Missing { element: element.to_owned(), body: self.0.clone() };
        self.texts(element).into_iter().next().ok_or_else(missing)
    }

    /// Texts of all elements of this name, in order.
    pub fn texts(&self, element: &str) -> Vec<String> {
        elements(&self.0, element)
            .into_iter()
            .map(|text| unescape(text.trim()))
            .collect()
    }
}

/// Returns the contents of all elements of this name, in order. Nested elements of the same name are
/// not distinguished.
pub fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let after = xml.split(&open).skip(1);
    after
        .filter_map(|rest| rest.split_once(&close).map(|(inside, _)| inside))
        .collect()
}

/// Returns the scope of a signature, which tells the server the service and the region, even
/// if it does not check the signature.
fn scope(service: &str) -> String {
    let scope = format!("fixture/20260101/{REGION}/{service}/aws4_request");
    format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none")
}

/// Returns the form of a request.
pub(super) fn form<'a>(
    action: &str,
    version: &str,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut form = format!("Action={action}&Version={version}");
    for (name, value) in parameters {
        form = format!("{form}&{}={}", escape(name), escape(value));
    }
    form
}

/// Returns the name and value of each parameter of a form.
pub fn parameters(form: &str) -> Vec<(String, String)> {
    let pairs = form.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(n, v)| (unquote(n), unquote(v)))
        .collect()
}

fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

fn unquote(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = bytes
            .get(at + 1..at + 3)
            .filter(|_| *byte == b'%')
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => {
                plain.push(decoded);
                at += 3;
            }
            None => {
                plain.push(if *byte == b'+' { b' ' } else { *byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_they_are_written() {
        let text = "a b&c=d%e+ä/.";
        let form = format!("x={}&y&z=1+2", escape(text));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(parameters(&form), [pair("x", text), pair("y", ""), pair("z", "1 2")]);
    }

    #[test]
    fn elements_are_found_in_order() {
        let answer = XmlResponse("<a><b>1</b><c>x</c><b> 2 &amp; 3 </b></a>".to_owned());
        assert_eq!(answer.texts("b"), ["1", "2 & 3"]);
        assert_eq!(answer.text("c").unwrap(), "x");
        assert!(
            answer
                .text("d")
                .unwrap_err()
                .to_string()
                .starts_with("d is not in")
        );
    }
}
