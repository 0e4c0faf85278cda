//! Parses `spec.providerID` of a Node, `aws:///<zone>/<instance>`, including every older form.

use std::fmt;

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind},
};

use crate::api::InstanceId;

/// Prefix of a provider ID.
pub const SCHEME: &str = "aws://";
/// Prefix of the ID of a Fargate node.
const FARGATE: &str = "fargate-";
/// Prefix of the ID of an instance.
const INSTANCE: &str = "i-";
/// Maximum number of parts of the path. These are the zone, a part that only Fargate writes, and
/// the ID.
const MAX_PARTS: usize = 3;

/// Parsed provider ID of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProviderId {
    /// An EC2 instance.
    Instance {
        /// Zone in the provider ID. It may be wrong; the actual zone is in AWS' answer.
        zone: Option<Box<str>>,
        /// Instance ID.
        id: InstanceId,
    },
    /// A Fargate node, which is a network interface and not an instance.
    Fargate {
        /// Last part of the path, such as `fargate-ip-10-0-55-27.us-west-2.compute.internal`.
        id: Box<str>,
    },
}

/// Error for a provider ID that is neither an instance's nor a Fargate node's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid format for AWS instance ({0})")]
pub struct InvalidProviderId(pub Box<str>);

impl From<InvalidProviderId> for CloudError {
    fn from(error: InvalidProviderId) -> Self {
        Self::new(ErrorKind::InvalidInput, error.to_string())
    }
}

impl ProviderId {
    /// Creates the provider ID of an instance in a zone.
    pub fn instance(zone: &str, id: InstanceId) -> Self {
        let zone = match zone {
            "" => None,
            zone => Some(zone.into()),
        };
        Self::Instance { zone, id }
    }

    /// Parses a provider ID. Text without the scheme is a bare ID. An account before the path is
    /// ignored.
    ///
    /// # Errors
    /// Returns an error if the scheme is another one, if the last part is neither an instance's nor
    /// a Fargate node's ID, or if there are too many parts.
    pub fn parse(text: &str) -> Result<Self, InvalidProviderId> {
        // Upstream ignores the scheme, and would take another cloud's `i-1` for an EC2 instance.
        let is_foreign = text.contains("://") && !text.starts_with(SCHEME);
        let parts: Vec<&str> = path(text).split('/').collect();
        if is_foreign || parts.len() > MAX_PARTS {
            return Err(InvalidProviderId(text.into()));
        }
        let (zone, id) = match parts[..] {
            [id] => ("", id),
            [zone, .., id] => (zone, id),
            [] => return Err(InvalidProviderId(text.into())),
        };
        if id.starts_with(FARGATE) {
            Ok(Self::Fargate { id: id.into() })
        } else if id.starts_with(INSTANCE) {
            Ok(Self::instance(zone, InstanceId::from(id)))
        } else {
            Err(InvalidProviderId(text.into()))
        }
    }

    /// Parses the provider ID of a Node. Returns `None` if the Node has none yet.
    ///
    /// # Errors
    /// Fails like [`parse`](Self::parse).
    pub fn of_node(node: &NodeView) -> Result<Option<Self>, InvalidProviderId> {
        node.provider_id.as_deref().map(Self::parse).transpose()
    }

    /// Returns the instance ID; `None` for Fargate.
    pub fn instance_id(&self) -> Option<&InstanceId> {
        match self {
            Self::Instance { id, .. } => Some(id),
            Self::Fargate { .. } => None,
        }
    }
}

/// Returns the zone in the provider ID of an instance or a Fargate node. It may be wrong, so it may
/// only be used to reject an answer.
pub fn zone_of(text: &str) -> Option<&str> {
    path(text).split_once('/').map(|(zone, _)| zone)
}

/// Returns the path of a provider ID, without scheme and account.
fn path(text: &str) -> &str {
    let path = match text.strip_prefix(SCHEME) {
        Some(account_and_path) => account_and_path
            .split_once('/')
            .map_or("", |(_account, path)| path),
        None => text,
    };
    path.trim_matches('/')
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance { zone: Some(zone), id } => write!(f, "{SCHEME}/{zone}/{id}"),
            Self::Instance { zone: None, id } => write!(f, "{SCHEME}/{id}"),
            Self::Fargate { id } => write!(f, "{SCHEME}/{id}"),
        }
    }
}

/// Returns the instance in a Node's provider ID. Returns `None` for a Node without provider ID, for
/// a Fargate node, and for another cloud's Node.
pub fn instance_of(node: &NodeView) -> Option<InstanceId> {
    match ProviderId::of_node(node) {
        Ok(Some(ProviderId::Instance { id, .. })) => Some(id),
        _ => None,
    }
}

/// Returns the instances of those Nodes that have one, in their order. Fargate nodes and Nodes
/// without provider ID are skipped; Nodes with an invalid provider ID are skipped and logged.
pub fn instance_ids<'a>(nodes: impl IntoIterator<Item = &'a NodeView>) -> Vec<InstanceId> {
    let mut ids = Vec::new();
    for node in nodes {
        match ProviderId::of_node(node) {
            Ok(Some(ProviderId::Instance { id, .. })) => ids.push(id),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(node = %node.name, error = %error, "skipping a node with an invalid provider ID");
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, provider_id: &str) -> NodeView {
        NodeView {
            provider_id: (!provider_id.is_empty()).then(|| provider_id.into()),
            ..NodeView::named(name)
        }
    }

    // IN1
    #[test]
    fn every_form_ever_written_is_read_by_its_last_part() {
        let instances = [
            ("aws:///us-east-1a/i-12345678", Some("us-east-1a"), "i-12345678"),
            ("aws:////i-12345678", None, "i-12345678"),
            ("i-12345678", None, "i-12345678"),
            ("aws:///us-east-1a/i-12345678abcdef01", Some("us-east-1a"), "i-12345678abcdef01"),
            ("aws:////i-12345678abcdef01", None, "i-12345678abcdef01"),
            ("i-12345678abcdef01", None, "i-12345678abcdef01"),
            ("aws://account/us-east-1a/i-12345678", Some("us-east-1a"), "i-12345678"),
        ];
        for (text, zone, id) in instances {
            let expected = ProviderId::Instance { zone: zone.map(Into::into), id: id.into() };
            assert_eq!(ProviderId::parse(text), Ok(expected), "{text}");
        }
        for id in ["fargate-ip-192-168-164-88.internal", "fargate-192.168.164.88"] {
            let text = format!("aws:///us-west-2c/1abc-2def/{id}");
            assert_eq!(ProviderId::parse(&text), Ok(ProviderId::Fargate { id: id.into() }));
        }
    }

    // IN2
    #[test]
    fn what_is_no_instance_is_refused_with_its_text() {
        for text in [
            "vol-123456789",
            "aws:///us-east-1a/vol-12345678abcdef01",
            "aws://accountid/us-east-1a/vol-12345678abcdef01",
            "aws:///us-east-1a/vol-12345678abcdef01/suffix",
            "aws:///us-east-1a/i-12345678/suffix",
            "aws:///a/b/c/i-12345678",
            "aws://i-12345678",
            "foo://com-2351",
            "foo://i-12345678",
            "openstack://us-east-1a/i-12345678",
            "aws://",
            "",
        ] {
            let error = ProviderId::parse(text).unwrap_err();
            assert_eq!(error.to_string(), format!("Invalid format for AWS instance ({text})"));
        }
    }

    // IN2
    #[test]
    fn a_node_without_an_instance_is_left_out() {
        let nodes = [node("good", "aws:///a/i-1"), node("bad", "aws:///a/vol-1"), node("none", "")];
        assert_eq!(instance_ids(&nodes), [InstanceId::from("i-1")]);
        assert!(instance_ids(&nodes[1..]).is_empty());
        assert!(instance_ids([&node("f", "aws:///a/x/fargate-10.0.0.1")]).is_empty());
    }

    // IN3
    #[test]
    fn nodes_of_other_clouds_have_no_instance_and_no_error() {
        assert_eq!(instance_of(&node("a", "foo://com-2351")), None);
        assert_eq!(
            instance_of(&node("a", "aws:////i-12345678abcdef01")),
            Some("i-12345678abcdef01".into())
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(zone in "[a-z0-9-]{0,8}", id in "(i-|fargate-)[a-z0-9.-]{0,12}", account in "[a-z0-9]{0,4}") {
            let parsed = ProviderId::parse(&format!("aws://{account}/{zone}/{id}")).unwrap();
            prop_assert_eq!(ProviderId::parse(&parsed.to_string()), Ok(parsed));
        }

        #[test]
        fn no_text_is_too_odd_to_be_refused(text in ".{0,40}") {
            let _ = ProviderId::parse(&text);
        }
    }
}
