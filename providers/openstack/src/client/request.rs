//! A request before it has a method, a body and a URL.

use url::Url;

use super::{Call, ErrorCause, OpenStackError};

/// A request: its kind, path and query, and the reason for a change.
///
/// ```
/// # use ccm_openstack::client::{Call, Request};
/// let request = Request::new(Call::PortUpdate, &["ports", "0b1c"]).if_revision(7).with_detail("node left");
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub(super) call: Call,
    pub(super) path: &'a [&'a str],
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) revision: Option<u64>,
    pub(super) object: Option<&'a str>,
    pub(super) detail: &'a str,
}

impl<'a> Request<'a> {
    /// Creates a request. The path is below the service's version, in segments such as `["pools",
    /// id, "members"]`. Each is escaped, so that what users write into annotations cannot lead to
    /// another path.
    pub fn new(call: Call, path: &'a [&'a str]) -> Self {
        Self {
            call,
            path,
            query: &[],
            revision: None,
            object: None,
            detail: "",
        }
    }

    /// Sets the query; names may be repeated.
    #[must_use]
    pub fn query(mut self, query: &'a [(&'a str, &'a str)]) -> Self {
        self.query = query;
        self
    }

    /// Makes a change fail (412) unless the object has this `revision_number` (`If-Match`,
    /// Neutron).
    #[must_use]
    pub fn if_revision(mut self, revision: u64) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Sets the object's name in the record of the change; the default is the path.
    #[must_use]
    pub fn object(mut self, object: &'a str) -> Self {
        self.object = Some(object);
        self
    }

    /// Adds the reason of a change, which only the caller knows.
    #[must_use]
    pub fn with_detail(mut self, reason: &'a str) -> Self {
        self.detail = reason;
        self
    }

    pub(super) fn object_name(&self) -> String {
        self.object
            .map_or_else(|| self.path.join("/"), str::to_owned)
    }

    /// Returns the URL below a service's base.
    ///
    /// # Errors
    /// A segment would lead to another path: empty, or dots.
    pub(super) fn url(&self, base: &Url) -> Result<Url, OpenStackError> {
        if let Some(bad) = self
            .path
            .iter()
            .find(|segment| segment.is_empty() || matches!(**segment, "." | ".."))
        {
            let message = format!("{bad:?} cannot be part of the path {}", self.path.join("/"));
            return Err(OpenStackError::new(self.call, ErrorCause::Input(message.into())));
        }
        let mut url = base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(self.path),
            Err(()) => {
                return Err(OpenStackError::new(
                    self.call,
                    ErrorCause::Input(format!("{base} has no path").into()),
                ));
            }
        };
        url.set_query(None);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(self.query);
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(path: &[&str], query: &[(&str, &str)]) -> Result<String, String> {
        let base = Url::parse("https://cloud:9696/network/v2.0/").unwrap();
        let url = Request::new(Call::PortList, path).query(query).url(&base);
        url.map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn segments_and_values_are_escaped() {
        let own = "https://cloud:9696/network/v2.0/";
        assert_eq!(url(&["ports"], &[]), Ok(format!("{own}ports")));
        let cases = [
            ("a/b", "a%2Fb"),
            ("a?b=c", "a%3Fb=c"),
            ("a#b", "a%23b"),
            ("a b%", "a%20b%25"),
            ("..a", "..a"),
        ];
        for (segment, escaped) in cases {
            assert_eq!(url(&["ports", segment], &[]), Ok(format!("{own}ports/{escaped}")));
        }
        let query =
            [("device_id", "a"), ("device_id", "b&c"), ("fixed_ips", "ip_address=10.0.0.1")];
        let expected = "ports?device_id=a&device_id=b%26c&fixed_ips=ip_address%3D10.0.0.1";
        assert_eq!(url(&["ports"], &query), Ok(format!("{own}{expected}")));
    }

    #[test]
    fn no_segment_leads_elsewhere() {
        for bad in ["", ".", ".."] {
            let error = url(&["ports", bad], &[]).unwrap_err();
            assert!(error.contains(&format!("{bad:?} cannot be part of the path")), "{error}");
        }
    }
}
