//! Provider IDs of Nodes, which whoever registers a Node chooses.

use ccm_aws::provider_id as aws;
use ccm_core::provider::{CloudError, ErrorKind};
use ccm_mock::cloud as mock;
use ccm_openstack::provider_id as openstack;

use crate::input::text_of;

/// Words of provider IDs.
pub const WORDS: &[&str] = &[
    "aws://",
    "openstack://",
    "mock://",
    "://",
    "/",
    "i-0123456789abcdef0",
    "fargate-ip-10-0-0-1.eu-west-1.compute.internal",
    "eu-west-1a",
    "7b9cf879-7146-417c-abfd-cb4272f0c935",
    "RegionOne",
    " ",
];

/// Reads the bytes as each cloud's provider ID.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let foreign_to = |scheme: &str| text.contains("://") && !text.starts_with(scheme);
    if let Ok(id) = text.parse::<mock::ProviderId>() {
        assert_eq!(id.to_string(), text);
        assert!(!foreign_to("mock://"));
    }
    match aws::ProviderId::parse(&text) {
        Ok(id) => {
            assert!(!foreign_to(aws::SCHEME), "a foreign provider ID is {id:?}");
            assert_eq!(aws::ProviderId::parse(&id.to_string()).as_ref(), Ok(&id));
            assert!(id.instance_id().is_none_or(|id| text.contains(&**id)), "{id:?} is not in it");
        }
        Err(error) => refused(&error.into(), &text),
    }
    let _ = aws::zone_of(&text);
    match openstack::ProviderId::parse(&text) {
        Ok(id) => {
            assert!(
                !foreign_to(openstack::SCHEME) && !openstack::is_foreign(&text),
                "a foreign provider ID is {id:?}"
            );
            let written = id.to_string();
            assert_eq!(openstack::ProviderId::parse(&written).as_ref(), Ok(&id));
            assert!(!text.starts_with(openstack::SCHEME) || written == text, "{written}");
        }
        Err(error) => refused(&error.into(), &text),
    }
}

/// A provider ID is refused as bad input, with its text.
fn refused(error: &CloudError, text: &str) {
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let told = error.to_string();
    assert!(told.contains(text) || told.contains(&format!("{text:?}")), "{told}");
}
