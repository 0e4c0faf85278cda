//! Listeners and their certificates.

use std::collections::BTreeSet;

use aws_sdk_elasticloadbalancingv2::{Client, types};

use super::attributes_and_tags;
use crate::{
    api::{
        Action, AwsError, Page, TargetGroupArn,
        elb::{
            AddListenerCertificates, Certificate, CreateListener, DeleteListener,
            DescribeListenerCertificates, DescribeListeners, ElbProtocol, Listener, ListenerSpec,
            ModifyListener, RemoveListenerCertificates,
        },
    },
    sdk::{
        convert::{count_or_zero, non_empty, non_empty_structures, required},
        error,
    },
};

pub(in crate::sdk) async fn describe(
    elb: &Client,
    call: DescribeListeners,
) -> Result<Page<Listener>, AwsError> {
    const ACTION: Action = Action::DescribeListeners;
    let request = elb
        .describe_listeners()
        .load_balancer_arn(&*call.load_balancer)
        .set_marker(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .listeners
        .unwrap_or_default()
        .into_iter()
        .map(|from| listener(ACTION, from));
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: non_empty(answer.next_marker),
    })
}

fn listener(action: Action, from: types::Listener) -> Result<Listener, AwsError> {
    let certificate = from.certificates.unwrap_or_default().into_iter().next();
    Ok(Listener {
        arn: required(action, from.listener_arn, "a listener's ARN")?,
        port: count_or_zero(from.port),
        protocol: from
            .protocol
            .and_then(|protocol| ElbProtocol::parse(protocol.as_str())),
        certificate: certificate.and_then(|certificate| non_empty(certificate.certificate_arn)),
        ssl_policy: non_empty(from.ssl_policy),
        alpn_policy: from
            .alpn_policy
            .unwrap_or_default()
            .into_iter()
            .next()
            .map(Into::into),
        target_group: forwards_to(from.default_actions.unwrap_or_default()),
    })
}

/// Returns the target group to which the default actions forward, if there is exactly one. AWS
/// returns it in up to two places; weighted target groups are only in the list.
fn forwards_to(actions: Vec<types::Action>) -> Option<TargetGroupArn> {
    let mut groups: BTreeSet<String> = BTreeSet::new();
    for action in actions {
        groups.extend(action.target_group_arn);
        let weighted = action
            .forward_config
            .and_then(|config| config.target_groups);
        for group in weighted.unwrap_or_default() {
            groups.extend(group.target_group_arn);
        }
    }
    let first = groups.pop_first();
    if groups.is_empty() {
        first.map(TargetGroupArn::from)
    } else {
        None
    }
}

/// Sets what requests to create and change a listener have in common.
macro_rules! with_spec {
    ($request:expr, $spec:expr) => {{
        let ListenerSpec {
            port,
            protocol,
            target_group,
            certificate,
            ssl_policy,
            alpn_policy,
        } = $spec;
        let forward = types::Action::builder()
            .r#type(types::ActionTypeEnum::Forward)
            .target_group_arn(&*target_group)
            .build();
        $request
            .port(port.get().into())
            .protocol(protocol.as_str().into())
            .default_actions(forward)
            .set_certificates(non_empty_structures(certificate, self::certificate))
            .set_ssl_policy(ssl_policy.map(String::from))
            .set_alpn_policy(alpn_policy.map(|policy| vec![policy.into()]))
    }};
}

fn certificate(arn: Box<str>) -> types::Certificate {
    types::Certificate::builder().certificate_arn(arn).build()
}

pub(in crate::sdk) async fn create(
    elb: &Client,
    call: CreateListener,
) -> Result<Listener, AwsError> {
    const ACTION: Action = Action::CreateListener;
    let request = elb
        .create_listener()
        .load_balancer_arn(&*call.load_balancer)
        .set_tags(attributes_and_tags::write(call.tags));
    let answer = with_spec!(request, call.spec)
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let made = answer.listeners.unwrap_or_default().into_iter().next();
    listener(ACTION, made.ok_or_else(|| error::unreadable(ACTION, "the listener is missing"))?)
}

pub(in crate::sdk) async fn modify(elb: &Client, call: ModifyListener) -> Result<(), AwsError> {
    let request = with_spec!(elb.modify_listener().listener_arn(&*call.arn), call.spec);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::ModifyListener, error))
}

pub(in crate::sdk) async fn delete(elb: &Client, call: DeleteListener) -> Result<(), AwsError> {
    let request = elb.delete_listener().listener_arn(&*call.arn);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteListener, error))
}

pub(in crate::sdk) async fn describe_certificates(
    elb: &Client,
    call: DescribeListenerCertificates,
) -> Result<Page<Certificate>, AwsError> {
    const ACTION: Action = Action::DescribeListenerCertificates;
    // A listener has at most 25 certificates, which fit on one page, so no marker is sent.
    let request = elb
        .describe_listener_certificates()
        .listener_arn(&*call.arn)
        .page_size(super::MAX_PAGE_SIZE);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .certificates
        .unwrap_or_default()
        .into_iter()
        .map(|from| {
            let arn = required(ACTION, from.certificate_arn, "a certificate's ARN")?;
            Ok(Certificate { arn, default: from.is_default == Some(true) })
        });
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: non_empty(answer.next_marker),
    })
}

pub(in crate::sdk) async fn add_certificates(
    elb: &Client,
    call: AddListenerCertificates,
) -> Result<(), AwsError> {
    let certificates = non_empty_structures(call.certificates, certificate);
    let request = elb
        .add_listener_certificates()
        .listener_arn(&*call.arn)
        .set_certificates(certificates);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::AddListenerCertificates, error))
}

pub(in crate::sdk) async fn remove_certificates(
    elb: &Client,
    call: RemoveListenerCertificates,
) -> Result<(), AwsError> {
    let certificates = non_empty_structures(call.certificates, certificate);
    let request = elb
        .remove_listener_certificates()
        .listener_arn(&*call.arn)
        .set_certificates(certificates);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::RemoveListenerCertificates, error))
}
