//! `spec.providerID` of a Node: `openstack:///<server>`, or `openstack://<region>/<server>`.

use std::fmt;

use ccm_core::provider::{CloudError, ErrorKind};

/// Prefix of a provider ID.
pub const SCHEME: &str = "openstack://";

/// A Nova server, as a Node refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId {
    /// Region, if there is one.
    pub region: Option<Box<str>>,
    /// ID of the server.
    pub server: Box<str>,
}

/// A provider ID that is not of a known form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ProviderID {0:?} didn't match expected format \"openstack://region/InstanceID\"")]
pub struct InvalidProviderId(pub Box<str>);

impl From<InvalidProviderId> for CloudError {
    fn from(error: InvalidProviderId) -> Self {
        Self::new(ErrorKind::InvalidInput, error.to_string())
    }
}

impl ProviderId {
    /// Parses a provider ID. If it has no scheme at all, ours is assumed, as in upstream.
    ///
    /// # Errors
    /// It has another scheme, no slash before the ID, or more than one.
    pub fn parse(text: &str) -> Result<Self, InvalidProviderId> {
        Self::parse_path(text).ok_or_else(|| InvalidProviderId(text.into()))
    }

    fn parse_path(text: &str) -> Option<Self> {
        let path = if text.contains("://") {
            text.strip_prefix(SCHEME)?
        } else {
            text
        };
        let (region, server) = path.split_once('/')?;
        if server.is_empty() || server.contains('/') {
            return None;
        }
        let region = if region.is_empty() {
            None
        } else {
            Some(region.into())
        };
        Some(Self { region, server: server.into() })
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.region.as_deref().unwrap_or_default(), self.server)
    }
}

/// Returns true if a Node with this provider ID belongs to another cloud. A malformed ID of ours
/// does not count as foreign: it is reported to its owner.
pub fn is_foreign(text: &str) -> bool {
    text.contains("://") && !text.starts_with(SCHEME)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "7b9cf879-7146-417c-abfd-cb4272f0c935";

    fn read(text: &str) -> (String, String) {
        let id = ProviderId::parse(text).unwrap();
        (id.region.map(String::from).unwrap_or_default(), id.server.into())
    }

    fn is(region: &str, server: &str) -> (String, String) {
        (region.to_owned(), server.to_owned())
    }

    // P01, P02, P04, P05, P06, P07, P08
    #[test]
    fn every_form_that_upstream_reads_is_read() {
        assert_eq!(read("openstack://us-east-1/testInstanceID"), is("us-east-1", "testInstanceID"));
        assert_eq!(read("/testInstanceID"), is("", "testInstanceID"));
        assert_eq!(read("openstack:///testInstanceID"), is("", "testInstanceID"));
        assert_eq!(read("us-east-1/testInstanceID"), is("us-east-1", "testInstanceID"));
        assert_eq!(read(&format!("openstack:///{UUID}")), is("", UUID));
        assert_eq!(read(&format!("openstack://RegionOne/{UUID}")), is("RegionOne", UUID));
        assert_eq!(read(&format!("/{UUID}")), is("", UUID));
    }

    // P03, P09, P10, P11
    #[test]
    fn what_names_no_server_is_refused_and_quoted() {
        let wrong = [
            "openstack://us-east-1-testInstanceID",
            &format!("openstack://{UUID}"),
            UUID,
            "other-provider:///x",
            "",
        ];
        let wrong = wrong.into_iter().chain([
            "openstack:///",
            "openstack:///a/b",
            "openstack://r/a/b",
            "OPENSTACK:///a",
        ]);
        for text in wrong {
            let error = ProviderId::parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(error.contains("openstack://region/InstanceID"), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [format!("openstack:///{UUID}"), format!("openstack://RegionOne/{UUID}")] {
            assert_eq!(ProviderId::parse(&text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn only_another_scheme_makes_a_node_foreign() {
        assert!(is_foreign("aws:///eu-west-1a/i-1"));
        assert!(!is_foreign("openstack:///a"));
        assert!(!is_foreign("not-even-wrong"));
    }
}
