//! Features that the cloud's Octavia and its driver support.

use crate::client::OctaviaVersion;

/// Driver of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// OVN, which works on layer 4 only, keeps the clients' addresses, and applies changes at once.
    Ovn,
    /// Any other driver, in Octavia's spelling. The default is `amphora`.
    Other(Box<str>),
}

impl Driver {
    /// Parses the setting `lb-provider`.
    pub fn parse(text: &str) -> Self {
        match text {
            "ovn" => Self::Ovn,
            "" => Self::Other("amphora".into()),
            other => Self::Other(other.into()),
        }
    }

    /// Returns Octavia's spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ovn => "ovn",
            Self::Other(name) => name,
        }
    }

    /// Returns true if this is the driver with a name. `octavia` is an old name of `amphora`.
    pub fn is_same(&self, name: &str) -> bool {
        let current = |name: &str| match name {
            "octavia" => Self::parse("amphora"),
            other => Self::parse(other),
        };
        current(self.as_str()) == current(name)
    }

    /// Returns true if this is OVN.
    pub fn is_ovn(&self) -> bool {
        *self == Self::Ovn
    }
}

/// Features of Octavia that may be used. All except tags need a driver other than OVN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent capabilities, each named at its use"
)]
pub struct Features {
    /// Octavia's API version (major, minor).
    pub version: (u16, u16),
    /// Timeouts of listeners, since API version 2.1.
    pub timeouts: bool,
    /// Tags, since API version 2.5. Without them no load balancer can be shared.
    pub tags: bool,
    /// Flavors, since API version 2.6.
    pub flavors: bool,
    /// Restriction of a listener to client networks, since API version 2.12. Also if the version is
    /// unknown.
    pub allowed_cidrs: bool,
    /// Availability zones, since API version 2.14.
    pub availability_zones: bool,
    /// HTTP health checks for pools of UDP and SCTP, since API version 2.16.
    pub http_monitor_on_datagrams: bool,
    /// HTTP health checks at all.
    pub http_monitor: bool,
    /// A second address of a load balancer, since API version 2.26. OVN has it too, but would need
    /// members of both address families.
    pub additional_vips: bool,
    /// Minimum delay between health checks of UDP ports, in seconds; 0 if Octavia has named none.
    pub min_udp_monitor_delay: u32,
}

/// The API version that is assumed if Octavia does not allow its versions to be listed.
const OLDEST: (u16, u16) = (2, 0);

impl Features {
    const NONE: Self = Self {
        version: (0, 0),
        timeouts: false,
        tags: false,
        flavors: false,
        allowed_cidrs: false,
        availability_zones: false,
        http_monitor_on_datagrams: false,
        http_monitor: false,
        additional_vips: false,
        min_udp_monitor_delay: 0,
    };

    /// Returns the features that Octavia offers with a driver. `version` is the API version (major,
    /// minor).
    pub fn new(version: (u16, u16), driver: &Driver) -> Self {
        let tags = OctaviaVersion(version.0, version.1) >= OctaviaVersion::TAGS;
        if driver.is_ovn() {
            return Self { version, tags, ..Self::NONE };
        }
        Self {
            version,
            timeouts: version >= (2, 1),
            tags,
            flavors: version >= (2, 6),
            // Octavia may not let its versions be listed, and is then taken for the oldest one. A
            // listener without the networks would be open to all, so they are sent: an Octavia that
            // does not know them rejects the request.
            allowed_cidrs: version >= (2, 12) || version == OLDEST,
            availability_zones: version >= (2, 14),
            http_monitor_on_datagrams: version >= (2, 16),
            http_monitor: true,
            // It depends on the driver, and of those of others it is not known.
            additional_vips: version >= (2, 26) && driver.is_same("amphora"),
            min_udp_monitor_delay: 0,
        }
    }

    /// Returns the features of the same Octavia with another driver.
    #[must_use]
    pub fn with_driver(self, driver: &Driver) -> Self {
        Self {
            min_udp_monitor_delay: self.min_udp_monitor_delay,
            ..Self::new(self.version, driver)
        }
    }
}

/// Parses a version such as `v2.27`.
pub fn version(id: &str) -> Option<(u16, u16)> {
    let rest = id.strip_prefix('v')?;
    let (major, minor) = rest.split_once('.').unwrap_or((rest, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_begins_with_its_version_and_ovn_has_only_tags() {
        let amphora = Driver::parse("amphora");
        let counts = |version, driver: &Driver| {
            let f = Features::new(version, driver);
            [
                f.timeouts,
                f.tags,
                f.flavors,
                f.allowed_cidrs,
                f.availability_zones,
                f.http_monitor_on_datagrams,
                f.additional_vips,
            ]
        };
        assert_eq!(counts((2, 0), &amphora), [false, false, false, true, false, false, false]);
        assert_eq!(counts((2, 1), &amphora), [true, false, false, false, false, false, false]);
        assert_eq!(counts((2, 5), &amphora), [true, true, false, false, false, false, false]);
        assert_eq!(counts((2, 6), &amphora), [true, true, true, false, false, false, false]);
        assert_eq!(counts((2, 12), &amphora), [true, true, true, true, false, false, false]);
        assert_eq!(counts((2, 14), &amphora), [true, true, true, true, true, false, false]);
        assert_eq!(counts((2, 16), &amphora), [true, true, true, true, true, true, false]);
        assert_eq!(counts((2, 26), &amphora), [true; 7]);
        assert_eq!(
            counts((2, 30), &Driver::parse("f5")),
            [true, true, true, true, true, true, false]
        );
        assert_eq!(counts((2, 0), &Driver::Ovn), [false; 7]);
        assert_eq!(counts((2, 30), &Driver::Ovn), [false, true, false, false, false, false, false]);
    }

    #[test]
    fn versions_are_numbers_and_not_text() {
        assert_eq!(version("v2.27"), Some((2, 27)));
        assert_eq!(version("v2"), Some((2, 0)));
        assert!(version("v2.9") < version("v2.10"));
        for text in ["2.1", "v", "vx.1", ""] {
            assert_eq!(version(text), None, "{text:?}");
        }
    }
}
