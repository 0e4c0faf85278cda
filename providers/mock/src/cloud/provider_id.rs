//! Provider IDs of the mock cloud.

use std::{fmt, str::FromStr};

/// Scheme of the mock cloud's provider IDs.
pub const SCHEME: &str = "mock";

/// Provider ID of the mock cloud: `mock://<region>/<node>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId {
    /// Region of the cloud.
    pub region: String,
    /// Name of the node, which is also the name of the instance.
    pub node: String,
}

/// Error for a provider ID that is not of the form `mock://<region>/<node>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider ID {0:?} is not of the form mock://<region>/<node>")]
pub struct MalformedProviderId(String);

/// Returns the scheme of a provider ID of any cloud, or `None` if it has none.
pub fn scheme_of(provider_id: &str) -> Option<&str> {
    provider_id.split_once("://").map(|(scheme, _)| scheme)
}

impl FromStr for ProviderId {
    type Err = MalformedProviderId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("mock://")
            && let Some((region, node)) = path.split_once('/')
            && is_valid_part(region)
            && is_valid_part(node)
        {
            return Ok(Self { region: region.to_owned(), node: node.to_owned() });
        }
        Err(MalformedProviderId(text.to_owned()))
    }
}

fn is_valid_part(part: &str) -> bool {
    !part.is_empty() && !part.contains(|c: char| c == '/' || c.is_whitespace())
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}/{}", self.region, self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_parse_and_round_trip_or_are_refused() {
        let good =
            [("mock://r/n", "r", "n"), ("mock://eu-1/node-1.example", "eu-1", "node-1.example")];
        for (text, region, node) in good {
            let id: ProviderId = text.parse().unwrap();
            assert_eq!((&*id.region, &*id.node, id.to_string()), (region, node, text.to_owned()));
        }
        let bad = [
            "",
            "mock",
            "mock://",
            "mock:///n",
            "mock://r",
            "mock://r/",
            "mock://r/n/x",
            "mock://r/n ",
            "aws://r/n",
        ];
        for text in bad {
            assert_eq!(text.parse::<ProviderId>(), Err(MalformedProviderId(text.to_owned())));
        }
    }
}
