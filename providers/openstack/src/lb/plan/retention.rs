//! Load balancers that were let go, and their adoption. Pure.
//!
//! A Service lets go of its load balancer by one update. It removes the Service's name and tag and
//! adds the tags `MARK`, `FORMER_UID` and `FORMER_NAME`. From then on no Service finds it by
//! name, and none may use it by its ID, except one that adopts it.
//!
//! An adoption begins with one update, the claim: it adds name and tag of the adopting Service, and
//! the tag `ADOPTER_UID`. Names are no proof, because Services of two clusters may have the same
//! one; the UID is. Then the children get the names and tags of the adopting Service and become what
//! it asks for. The last update removes the mark. Only `ADOPTER_UID` stays, until the load balancer
//! is let go again.

use ccm_core::{
    k8s::well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    provider::CloudError,
};
use openstack_api::octavia::{LoadBalancerUpdate, Patch};

use super::{ActionKind, PlanInput, PlannedAction};
use crate::{
    api::octavia::LoadBalancer,
    lb::{
        model::{DesiredLoadBalancer, ServiceKey},
        names,
        ownership::{ServiceOwnership, with_requested_tags},
        retention_tags::{
            ADOPTER_UID, FORMER_NAME, FORMER_UID, MARK, adopter_uid, adopter_uid_tag,
            former_name_tag, former_uid_tag, is_adopted_by, is_adopter_tag, is_retained,
        },
    },
};

/// Prefix of the name. With it no Service finds the load balancer by its name.
const NAME_PREFIX: &str = "retained_";

/// A load balancer whose Service asks to keep it, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct RetainInput<'a> {
    /// The load balancer.
    pub load_balancer: &'a LoadBalancer,
    /// Relation of the Service to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// UID of the Service.
    pub uid: &'a str,
    /// True if it is not in doubt that the load balancer is this Service's, and not a namesake's.
    pub is_proven: bool,
    /// True if listeners on it are other Services'.
    pub has_other_services: bool,
    /// True if Octavia supports tags.
    pub tags: bool,
}

/// Plans the update by which a Service lets go of its load balancer.
///
/// # Errors
/// Returns an error, and nothing is changed, if the load balancer is not certainly the Service's
/// alone, or if Octavia has no tags.
pub fn plan_retain(input: &RetainInput<'_>) -> Result<PlannedAction, CloudError> {
    let RetainInput { load_balancer, ownership, .. } = *input;
    let is_shared =
        input.has_other_services || ownership.other_service_tags(load_balancer).next().is_some();
    let reason = if !input.tags {
        Some("this cloud's load balancers have no tags to mark them by")
    } else if !ownership.owner {
        Some("it was not created for this Service")
    } else if is_shared {
        Some("other Services use it, too")
    } else if !input.is_proven {
        Some("it is not shown to be newer than the Service, which shows no address")
    } else {
        None
    };
    if let Some(reason) = reason {
        return Err(CloudError::invalid_input(format!(
            "load balancer {} cannot be kept, because {reason}; nothing is changed; remove the annotation \
             {ANNOTATION_RETAIN} to have the Service's part of it deleted",
            load_balancer.id
        )));
    }
    let former = ownership.former_names.as_ref().map(|former| &*former.name);
    let reason = "its Service lets go of it";
    Ok(let_go(load_balancer, &ownership.name, former, input.uid, reason))
}

/// Plans the update by which a Service gives up an adoption that has begun. The load balancer is kept
/// then as it is, and any Service may adopt it.
pub fn plan_return(load_balancer: &LoadBalancer, name: &str, uid: &str) -> PlannedAction {
    let reason = "the Service that was adopting it goes";
    let_go(load_balancer, name, None, uid, reason)
}

/// Plans the update after which a load balancer belongs to nobody. Its Service has this UID, and its
/// names are `name` and `former`.
fn let_go(
    load_balancer: &LoadBalancer,
    name: &str,
    former: Option<&str>,
    uid: &str,
    reason: &str,
) -> PlannedAction {
    let mut tags = load_balancer.tags.clone();
    tags.retain(|tag| !tag.starts_with(names::PREFIX) && !is_adopter_tag(tag));
    add_tag(&mut tags, MARK);
    add_tag(&mut tags, &former_uid_tag(uid));
    for name in [Some(name), former].into_iter().flatten() {
        add_tag(&mut tags, &former_name_tag(name));
    }
    let update = LoadBalancerUpdate {
        name: Patch::Set(names::truncate(&format!("{NAME_PREFIX}{name}")).into()),
        tags: Patch::Set(tags),
        ..LoadBalancerUpdate::default()
    };
    PlannedAction::new(ActionKind::UpdateLoadBalancer(update), &*load_balancer.name, reason)
}

/// The error for a Service that adopts a load balancer and has another one, which would be left behind.
pub fn has_another(adopted: &str, own: &str) -> CloudError {
    CloudError::invalid_input(format!(
        "the Service cannot adopt load balancer {adopted}, because it has load balancer {own}"
    ))
}

/// A load balancer that was found for a Service, and what decides whether the Service may use it.
#[derive(Clone, Copy, Debug)]
pub struct UseInput<'a> {
    /// The load balancer.
    pub load_balancer: &'a LoadBalancer,
    /// Relation of the Service to the load balancer.
    pub ownership: &'a ServiceOwnership,
    /// The Service.
    pub service: &'a ServiceKey,
    /// ID of the load balancer that the Service adopts; `None` if it adopts none, or if that does not
    /// matter.
    pub adopted: Option<&'a str>,
    /// True if the Service's status shows an address, which is not part of a copy of the Service.
    pub shows_address: bool,
    /// True if Octavia supports tags.
    pub tags: bool,
}

/// Checks that a Service may use the load balancer that was found for it.
///
/// # Errors
/// Returns an error for a load balancer that was let go and that the Service does not adopt, for one
/// that another Service adopts or has adopted, and for one that the Service adopts and that nobody has
/// let go.
pub fn check_use(input: &UseInput<'_>) -> Result<(), CloudError> {
    let UseInput { load_balancer, ownership, service, .. } = *input;
    let LoadBalancer { id, name, .. } = load_balancer;
    let is_adopted = input.adopted == Some(&**id);
    let is_marked = is_retained(load_balancer);
    let is_own = is_adopted_by(load_balancer, &service.uid);
    let has_it = is_own || (ownership.owner && input.shows_address);
    let problem = if let Some(adopter) = adopter_uid(load_balancer)
        && !is_own
    {
        let with_name = format!("another Service, with UID {adopter} and the name {name}");
        if is_marked {
            format!("is being adopted by {with_name}")
        } else if is_adopted {
            format!("cannot be adopted, because {with_name}, has adopted it")
        } else if **name == *ownership.name {
            format!(
                "was adopted by {with_name}; give each cluster of the project its own --cluster-name, or, if that \
                 Service does not exist any more, remove the tag {ADOPTER_UID}{adopter}"
            )
        } else {
            // Services may share a load balancer that another one has adopted.
            return Ok(());
        }
    } else if is_marked && !is_adopted {
        let whose = if is_own {
            "is being adopted by this Service"
        } else {
            "was let go by its Service, and belongs to nobody"
        };
        format!("{whose}; the annotation {ANNOTATION_ADOPT}: {id} adopts it")
    } else if is_marked && !input.tags {
        "cannot be adopted, because this cloud's load balancers have no tags".to_owned()
    } else if is_adopted && !is_marked && !has_it {
        format!(
            "cannot be adopted, because no Service has let go of it: it is {name}; annotate that Service with \
             {ANNOTATION_RETAIN}: true and delete it"
        )
    } else {
        return Ok(());
    };
    Err(CloudError::invalid_input(format!("load balancer {id} {problem}")))
}

/// Plans the claim: the Service that adopts a load balancer puts its name and UID on it, so that no
/// other Service adopts it at the same time. Returns `None` if it has, or if there is no mark.
pub fn plan_claim(input: &PlanInput<'_>, desired: &DesiredLoadBalancer) -> Option<PlannedAction> {
    let load_balancer = &input.observed.load_balancer;
    if !is_retained(load_balancer) {
        return None;
    }
    let mut tags = load_balancer.tags.clone();
    let adopter = adopter_uid_tag(&desired.owner.uid);
    tags.retain(|tag| {
        *tag == adopter
            || *tag == *input.name
            || !(is_adopter_tag(tag) || tag.starts_with(names::PREFIX))
    });
    // The name is also a former one from now on. If the adoption is given up, or the cluster is renamed
    // meanwhile, listeners have it.
    for tag in [&*adopter, input.name, &former_name_tag(input.name)] {
        add_tag(&mut tags, tag);
    }
    let tags = with_requested_tags(tags, &desired.tags);
    if *load_balancer.name == *input.name && tags == load_balancer.tags {
        return None;
    }
    let update = LoadBalancerUpdate {
        name: Patch::Set(input.name.to_owned()),
        description: Patch::Set(desired.description.to_string()),
        tags: Patch::Set(tags),
        ..LoadBalancerUpdate::default()
    };
    let reason = "it is adopted by the Service";
    Some(PlannedAction::new(ActionKind::UpdateLoadBalancer(update), &*load_balancer.name, reason))
}

/// Plans the end of an adoption, which removes the mark. Everything else must be done before. Returns
/// `None` if there is no mark.
pub fn plan_completion(load_balancer: &LoadBalancer) -> Option<PlannedAction> {
    if !is_retained(load_balancer) {
        return None;
    }
    let mut tags = load_balancer.tags.clone();
    tags.retain(|tag| tag != MARK && !tag.starts_with(FORMER_UID) && !tag.starts_with(FORMER_NAME));
    let update = LoadBalancerUpdate { tags: Patch::Set(tags), ..LoadBalancerUpdate::default() };
    Some(PlannedAction::new(
        ActionKind::UpdateLoadBalancer(update),
        &*load_balancer.name,
        "the Service has adopted it",
    ))
}

fn add_tag(tags: &mut Vec<String>, tag: &str) {
    if !tags.iter().any(|existing| existing == tag) {
        tags.push(tag.to_owned());
    }
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
