//! What all resources share: revisions and tags.

use crate::api::neutron::Standard;

use super::common::{bad_request, invalid, touch};
use crate::state::{ApiError, CloudState, RequestContext};

/// Maximum length of a tag.
const MAX_TAG: usize = 255;
/// Maximum number of tags of a resource.
const MAX_TAGS: usize = 50;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A network.
    Network,
    /// A subnet.
    Subnet,
    /// A port.
    Port,
    /// A router.
    Router,
    /// A floating IP.
    FloatingIp,
    /// A security group.
    SecurityGroup,
    /// A rule of a security group.
    SecurityGroupRule,
    /// A trunk.
    Trunk,
}

/// Runs an expression on the table of a kind.
macro_rules! on_table {
    ($state:expr, $kind:expr, $table:ident => $run:expr) => {
        match $kind {
            Resource::Network => {
                let $table = &mut $state.neutron.networks;
                $run
            }
            Resource::Subnet => {
                let $table = &mut $state.neutron.subnets;
                $run
            }
            Resource::Port => {
                let $table = &mut $state.neutron.ports;
                $run
            }
            Resource::Router => {
                let $table = &mut $state.neutron.routers;
                $run
            }
            Resource::FloatingIp => {
                let $table = &mut $state.neutron.floating_ips;
                $run
            }
            Resource::SecurityGroup => {
                let $table = &mut $state.neutron.security_groups;
                $run
            }
            Resource::SecurityGroupRule => {
                let $table = &mut $state.neutron.security_group_rules;
                $run
            }
            Resource::Trunk => {
                let $table = &mut $state.neutron.trunks;
                $run
            }
        }
    };
}

impl Resource {
    /// Returns the kind whose collection has this name in paths, such as `security-groups`.
    pub fn by_collection(collection: &str) -> Option<Self> {
        Some(match collection {
            "networks" => Self::Network,
            "subnets" => Self::Subnet,
            "ports" => Self::Port,
            "routers" => Self::Router,
            "floatingips" => Self::FloatingIp,
            "security-groups" => Self::SecurityGroup,
            "security-group-rules" => Self::SecurityGroupRule,
            "trunks" => Self::Trunk,
            _ => return None,
        })
    }

    /// Returns the error for a resource that does not exist.
    pub fn not_found(self, id: &str) -> ApiError {
        let (kind, message) = match self {
            Self::Network => ("NetworkNotFound", format!("Network {id} could not be found.")),
            Self::Subnet => ("SubnetNotFound", format!("Subnet {id} could not be found.")),
            Self::Port => ("PortNotFound", format!("Port {id} could not be found.")),
            Self::Router => ("RouterNotFound", format!("Router {id} could not be found")),
            Self::FloatingIp => {
                ("FloatingIPNotFound", format!("Floating IP {id} could not be found"))
            }
            Self::SecurityGroup => {
                ("SecurityGroupNotFound", format!("Security group {id} does not exist"))
            }
            Self::SecurityGroupRule => {
                ("SecurityGroupRuleNotFound", format!("Security group rule {id} does not exist"))
            }
            Self::Trunk => ("TrunkNotFound", format!("Trunk {id} could not be found.")),
        };
        ApiError::not_found(kind, message)
    }

    /// Returns the common part of one that the user may see.
    ///
    /// # Errors
    /// It does not exist.
    pub fn standard<'s>(
        self,
        state: &'s CloudState,
        ctx: &RequestContext,
        id: &str,
    ) -> Result<&'s Standard, ApiError> {
        let neutron = &state.neutron;
        let standard = match self {
            Self::Network => return super::networks::get(state, ctx, id).map(|row| &row.standard),
            Self::Subnet => return super::subnets::get(state, ctx, id).map(|row| &row.standard),
            Self::Port => neutron.ports.get(id).map(|row| &row.standard),
            Self::Router => neutron.routers.get(id).map(|row| &row.standard),
            Self::FloatingIp => neutron.floating_ips.get(id).map(|row| &row.standard),
            Self::SecurityGroup => neutron.security_groups.get(id).map(|row| &row.standard),
            Self::SecurityGroupRule => neutron
                .security_group_rules
                .get(id)
                .map(|row| &row.standard),
            Self::Trunk => neutron.trunks.get(id).map(|row| &row.standard),
        };
        standard
            .filter(|standard| ctx.sees(&standard.project_id))
            .ok_or_else(|| self.not_found(id))
    }

    /// Returns the common part of one that the user may change.
    ///
    /// # Errors
    /// It does not exist, or it belongs to somebody else.
    pub fn writable<'s>(
        self,
        state: &'s CloudState,
        ctx: &RequestContext,
        id: &str,
    ) -> Result<&'s Standard, ApiError> {
        let standard = self.standard(state, ctx, id)?;
        if ctx.sees(&standard.project_id) {
            return Ok(standard);
        }
        Err(ApiError::forbidden(
            "PolicyNotAuthorized",
            format!("rule:update {id} is disallowed by policy"),
        ))
    }

    /// Rejects a change that was meant for another revision (`If-Match`).
    ///
    /// # Errors
    /// 412 when the revision differs; the resource does not exist.
    pub fn check_revision(
        self,
        state: &CloudState,
        ctx: &RequestContext,
        id: &str,
        expected: Option<u64>,
    ) -> Result<(), ApiError> {
        let Some(expected) = expected else {
            return Ok(());
        };
        let standard = self.standard(state, ctx, id)?;
        if standard.revision_number == expected {
            return Ok(());
        }
        Err(ApiError::new(
            http::StatusCode::PRECONDITION_FAILED,
            "RevisionNumberConstraintFailed",
            format!(
                "Constrained to {expected}, but current revision is {}",
                standard.revision_number
            ),
        ))
    }

    /// Records a change of one.
    pub(super) fn touch(self, state: &mut CloudState, ctx: &RequestContext, id: &str) {
        on_table!(state, self, table => table.update(id, |row| touch(ctx, &mut row.standard)));
    }

    /// Changes the tags of one, and returns them.
    ///
    /// # Errors
    /// It does not exist, it belongs to somebody else, or a tag is too long.
    pub fn change_tags(
        self,
        state: &mut CloudState,
        ctx: &RequestContext,
        id: &str,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<Vec<String>, ApiError> {
        let before = self.writable(state, ctx, id)?.tags.clone();
        let mut tags = before.clone();
        change(&mut tags);
        tags.sort();
        tags.dedup();
        if let Some(tag) = tags
            .iter()
            .find(|tag| tag.is_empty() || tag.chars().count() > MAX_TAG)
        {
            return Err(invalid(
                "tags",
                format!("'{tag}' has not between 1 and {MAX_TAG} characters"),
            ));
        }
        if tags.len() > MAX_TAGS {
            return Err(bad_request(
                "tag",
                format!("the number of tags exceed the per-resource limit of {MAX_TAGS}"),
            ));
        }
        if tags != before {
            on_table!(state, self, table => table.update(id, |row| {
                row.standard.tags.clone_from(&tags);
                touch(ctx, &mut row.standard);
            }));
        }
        Ok(tags)
    }

    /// Deletes one tag.
    ///
    /// # Errors
    /// The resource does not exist, or does not have the tag.
    pub fn remove_tag(
        self,
        state: &mut CloudState,
        ctx: &RequestContext,
        id: &str,
        tag: &str,
    ) -> Result<(), ApiError> {
        if !self.writable(state, ctx, id)?.tags.iter().any(|t| t == tag) {
            return Err(ApiError::not_found(
                "TagNotFound",
                format!("Tag {tag} could not be found."),
            ));
        }
        self.change_tags(state, ctx, id, |tags| tags.retain(|t| t != tag))
            .map(drop)
    }
}

/// Parses the value of `If-Match`.
///
/// # Errors
/// It is not `revision_number=<number>`.
pub fn parse_if_match(value: &str) -> Result<u64, ApiError> {
    value
        .trim()
        .strip_prefix("revision_number=")
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| {
            bad_request(
                "If-Match",
                format!("'{value}' is not of the form revision_number=<number>"),
            )
        })
}
