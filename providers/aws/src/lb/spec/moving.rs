//! The annotations by which a Service moves from a classic to a Network Load Balancer.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{EventType, ServiceNotice},
};

use super::{
    DefaultsSource, SpecReader,
    annotations::{self as a, Annotation},
    dialect,
    health::read_in_range,
    parse_managed,
};
use crate::{
    api::elb::TargetType,
    config::Settings,
    lb::{
        model::DesiredLoadBalancer,
        moving::{MoveRequest, MoveState},
    },
    ownership_tags::Cluster,
};

/// The time for which both load balancers serve after a switch, unless the Service says otherwise.
/// Resolvers and clients keep a host name for longer than the 60 seconds that AWS allows them.
const DEFAULT_DRAIN_TIME: Duration = Duration::from_mins(10);
/// Bounds of that time in seconds: from AWS' own time to live of a host name to a week.
const DRAIN_SECONDS: std::ops::RangeInclusive<u32> = 60..=604_800;

/// Returns what a Service says about its move, even if it is invalid: one that asks for the move with a
/// value that does not exist still does not ask for the way back.
pub(in crate::lb) fn move_request(service: &ServiceView) -> MoveRequest {
    let text = |annotation: &Annotation| {
        let found = service.annotations.get(&*annotation.key());
        found.map_or("", |text| &**text)
    };
    let drain_seconds = text(&a::MOVE_DRAIN.definition).parse();
    let drain = match drain_seconds {
        Ok(seconds) if DRAIN_SECONDS.contains(&seconds) => Duration::from_secs(seconds.into()),
        _ => DEFAULT_DRAIN_TIME,
    };
    let state = text(&a::MOVE_STATE.definition);
    MoveRequest {
        is_requested: !text(&a::MOVE_TO.definition).is_empty(),
        drain,
        state: (!state.is_empty()).then(|| MoveState::parse(state)),
    }
}

/// Checks the annotations of a Service that requests a Network Load Balancer.
pub(super) fn check(reader: &mut SpecReader<'_>) {
    read_in_range(reader, &a::MOVE_DRAIN, DRAIN_SECONDS);
    let is_requested = reader.annotations.get(&a::MOVE_TO).is_some();
    if is_requested && reader.target_type == TargetType::Ip {
        let message = "a Service whose targets are pods cannot be moved, because a classic load balancer has nodes: \
                       move it with instance targets first, and take this annotation away afterwards";
        reader
            .annotations
            .invalid_value(&a::MOVE_TO.definition, message);
    }
}

/// Returns the Warning for a Service that asks for the move and requests a classic load balancer.
pub(super) fn unused_notice(service: &ServiceView) -> Option<ServiceNotice> {
    if !move_request(service).is_requested {
        return None;
    }
    let note = format!(
        "{} has no effect, because the Service requests a classic load balancer: set {}: nlb",
        a::MOVE_TO.definition.key(),
        a::TYPE.definition.key()
    );
    Some(ServiceNotice {
        kind: EventType::Warning,
        reason: "UnusedAnnotation",
        note: note.into(),
    })
}

/// Returns the Network Load Balancer that a Service on its way back to a classic one may still have.
/// Only its targets follow.
pub(super) fn network_beside_classic(
    service: &ServiceView,
    settings: &Settings,
    cluster: &Cluster,
) -> Option<Box<DesiredLoadBalancer>> {
    move_request(service).state?;
    let source = DefaultsSource::CloudProviderAws;
    let dialect = dialect::of(service, settings, source);
    parse_managed(service, settings, cluster, source, dialect).desired
}
