//! `cloud.conf` of AWS.

use ccm_aws::config::{ConfigErrors, parse};

use super::gcfg;
use crate::input::text_of;

/// Words of the file.
pub const WORDS: &[&str] = &[
    "Zone = eu-west-1a\n",
    "Region = eu-west-1\n",
    "VPC = vpc-1\n",
    "SubnetID = subnet-1\n",
    "RouteTableID = rtb-1\n",
    "RoleARN = arn:aws:iam::1:role/a\n",
    "KubernetesClusterID = c\n",
    "NodeIPFamilies = ipv6\n",
    "ElbSecurityGroup = sg-1\n",
    "SupportedTopologyInstanceTypePattern = ^p\n",
    "NLBSecurityGroupMode = Managed\n",
    "DefaultLoadBalancerType = nlb\n",
    "AnnotationDialect = extended\n",
    "DriftCheckInterval = 1h\n",
    "ELBReadQPS = 1.5\n",
    "ELBReadBurst = 10\n",
    "[ServiceOverride \"1\"]\n",
    "Service = ec2\n",
    "URL = https://ec2.example\n",
    "SigningRegion = eu-west-1\n",
    "SigningMethod = v4\n",
    "[Global]\n",
    "\"",
    "\\",
    "\n",
    " = ",
    ";",
    "NaN",
    "1e400",
    "(((",
];

/// Reads the bytes as the file.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    gcfg::check(&text);
    match parse(&text) {
        Ok(settings) => {
            gcfg::in_order(&settings.warnings, &text);
            assert!(settings.effective().iter().all(|(key, _)| !key.is_empty()));
            let again =
                |text: &str| parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(again(&format!("{text}\n; a comment\n")), settings, "a comment counts");
            if !text.contains('\r') {
                assert_eq!(again(&text.replace('\n', "\r\n")), settings, "line ends count");
            }
        }
        Err(error) => {
            gcfg::in_order(error.issues(), &text);
            assert!(
                matches!(&error, ConfigErrors::Invalid { issues, .. } if !issues.is_empty()),
                "{error:?}"
            );
            assert_eq!(error.to_string().lines().count(), error.issues().len(), "{error}");
        }
    }
}
