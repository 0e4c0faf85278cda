use serde::{Deserialize, Serialize};

/// Makes the types of quotas, which have the same fields.
macro_rules! quotas {
    ($($(#[$doc:meta])* $field:ident = $default:literal,)*) => {
        /// Quotas of a project; -1 for no limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Quota { $($(#[$doc])* pub $field: i64,)* }

        impl Default for Quota {
            /// Default of the quota.
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// Changes quotas; what is absent stays.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct QuotaUpdate {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<i64>,)*
        }

        impl Quota {
            /// Takes the changes over.
            pub fn apply(&mut self, update: &QuotaUpdate) {
                $(if let Some(limit) = update.$field { self.$field = limit; })*
            }
        }

        /// Quotas with their use.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct QuotaDetails { $($(#[$doc])* pub $field: QuotaDetail,)* }
    };
}

quotas! {
    /// Networks.
    network = 100,
    /// Subnets.
    subnet = 100,
    /// Pools of subnets.
    subnetpool = -1,
    /// Ports.
    port = 500,
    /// Routers.
    router = 10,
    /// Floating IPs.
    floatingip = 50,
    /// Security groups.
    security_group = 10,
    /// Rules of security groups.
    security_group_rule = 100,
    /// Policies for other projects.
    rbac_policy = 10,
    /// Trunks.
    trunk = -1,
}

/// A quota with its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDetail {
    /// Maximum number; -1 for no limit.
    pub limit: i64,
    /// Number in use.
    pub used: i64,
    /// Number reserved.
    #[serde(default)]
    pub reserved: i64,
}

/// `{"quota": …}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaEnvelope<T = Quota> {
    /// The quotas.
    pub quota: T,
}

/// `{"quota": …}`, of `details.json`.
pub type QuotaDetailEnvelope = QuotaEnvelope<QuotaDetails>;
