//! Corrects answers of moto that differ from those of AWS and would make a correct client fail, or a
//! wrong one pass.

use std::{collections::BTreeSet, io};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use ipnet::IpNet;

use super::{
    fault_proxy::{Recorded, forward, refusal},
    query_api::{self, Api, CLASSIC, EC2, ELB, QueryClient, WireError, elements},
};

/// Answers a request as AWS would: by moto as far as it can.
pub(super) async fn answer(
    to: &QueryClient,
    head: http::request::Parts,
    body: Bytes,
    request: &Recorded,
) -> io::Result<Response<Full<Bytes>>> {
    if request.version == EC2.version {
        return match &*request.action {
            "DescribeInstanceTopology" => topology(to, request).await,
            "DescribeInstances" => without_remains(forward(to, head, body).await?).await,
            "CreateRoute" => forward(to, head, canonical(request).unwrap_or(body)).await,
            _ => forward(to, head, body).await,
        };
    }
    if request.version == CLASSIC.version && request.action == "CreateLoadBalancer" {
        let answer = forward(to, head, body).await?;
        health_check(to, request).await?;
        return Ok(answer);
    }
    if request.version != ELB.version {
        return forward(to, head, body).await;
    }
    edited(balanced(to, head, body, request).await?, &HOST_NAME).await
}

/// moto gives network load balancers host names like those of classic ones; managers tell the two
/// apart by them.
const HOST_NAME: [&str; 2] = [".us-west-2.elb.amazonaws.com<", ".elb.us-west-2.amazonaws.com<"];

async fn balanced(
    to: &QueryClient,
    head: http::request::Parts,
    body: Bytes,
    request: &Recorded,
) -> io::Result<Response<Full<Bytes>>> {
    match &*request.action {
        "CreateLoadBalancer" => match existing_load_balancer(to, request).await? {
            Some(answer) => Ok(answer),
            None => forward(to, head, body).await,
        },
        "CreateTargetGroup" => match existing_target_group(to, request).await? {
            Some(answer) => Ok(answer),
            None => forward(to, head, timeout(request).unwrap_or(body)).await,
        },
        "CreateListener" => without_policies(forward(to, head, body).await?).await,
        // moto knows the protocols of application load balancers only, and would serve TLS as
        // HTTPS.
        "ModifyListener" => {
            let protocol = |value: &str| match value {
                "TLS" => Some("HTTPS".to_owned()),
                "UDP" | "TCP_UDP" => None,
                other => Some(other.to_owned()),
            };
            let changed = request.parameters.iter().filter_map(|(name, value)| {
                let value = if name == "Protocol" {
                    protocol(value)?
                } else {
                    value.clone()
                };
                Some((name.clone(), value))
            });
            let changed: Vec<_> = changed.collect();
            let form = query_api::form(
                &request.action,
                &request.version,
                changed.iter().map(|(n, v)| (&**n, &**v)),
            );
            let answer = edited(
                forward(to, head, form.into()).await?,
                &["<Protocol>HTTPS<", "<Protocol>TLS<"],
            )
            .await?;
            without_policies(answer).await
        }
        "DescribeListeners" => {
            let answer =
                edited(forward(to, head, body).await?, &["<Protocol>HTTPS<", "<Protocol>TLS<"])
                    .await?;
            without_policies(answer).await
        }
        "DescribeTargetGroups" if request.parameter("LoadBalancerArn").is_some() => {
            without_error(
                forward(to, head, body).await?,
                request,
                "TargetGroupNotFound",
                "<TargetGroups/>",
            )
            .await
        }
        "DescribeLoadBalancerAttributes" => {
            with_defaults(forward(to, head, body).await?, &BALANCER).await
        }
        "DescribeTargetGroupAttributes" => {
            with_defaults(forward(to, head, body).await?, &TARGET_GROUP).await
        }
        "DeleteTargetGroup" => {
            without_error(forward(to, head, body).await?, request, "TargetGroupNotFound", "").await
        }
        _ => forward(to, head, body).await,
    }
}

/// Attributes of network load balancers that moto does not know until they are set.
const BALANCER: [(&str, &str); 1] = [("access_logs.s3.enabled", "false")];
/// Attributes of their target groups that moto does not know until they are set; of groups of
/// instances.
const TARGET_GROUP: [(&str, &str); 2] =
    [("preserve_client_ip.enabled", "true"), ("proxy_protocol_v2.enabled", "false")];

/// Returns the answer with attributes that are not in it.
async fn with_defaults(
    answer: Response<Full<Bytes>>,
    defaults: &[(&str, &str)],
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = answer.into_parts();
    let text = text(body).await?;
    let known = elements(&text, "Key");
    let missing = defaults.iter().filter(|(key, _)| !known.contains(key));
    let members = missing
        .map(|(key, value)| format!("<member><Key>{key}</Key><Value>{value}</Value></member>"));
    let members: Vec<_> = members.collect();
    let text = text.replacen("<Attributes>", &format!("<Attributes>{}", members.concat()), 1);
    Ok(Response::from_parts(head, Full::from(text)))
}

/// Gives a new classic load balancer the health check that it has from the start.
async fn health_check(to: &QueryClient, request: &Recorded) -> io::Result<()> {
    let parameter = |name: &str| request.parameter(name).unwrap_or_default();
    let target = format!("TCP:{}", parameter("Listeners.member.1.InstancePort"));
    let wanted = [
        ("LoadBalancerName", parameter("LoadBalancerName")),
        ("HealthCheck.Target", &target),
        ("HealthCheck.Interval", "30"),
        ("HealthCheck.Timeout", "5"),
        ("HealthCheck.UnhealthyThreshold", "2"),
        ("HealthCheck.HealthyThreshold", "10"),
    ];
    match to.ask(CLASSIC, "ConfigureHealthCheck", wanted).await {
        // What was refused before has none.
        Ok(_) | Err(WireError::Refused { .. }) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Returns the request for a target group with the timeout that AWS would choose, where moto
/// chooses another one.
fn timeout(request: &Recorded) -> Option<Bytes> {
    let name = "HealthCheckTimeoutSeconds";
    if request.parameter(name).is_some() || request.parameter("HealthCheckProtocol") != Some("HTTP")
    {
        return None;
    }
    let parameters = request
        .parameters
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .chain([(name, "6")]);
    Some(query_api::form(&request.action, &request.version, parameters).into())
}

/// Returns the answer without security policies of listeners that do not speak TLS.
async fn without_policies(answer: Response<Full<Bytes>>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = answer.into_parts();
    let text = text(body).await?;
    // Each listener begins with its ARN.
    let listeners =
        text.split("<ListenerArn>")
            .map(|listener| match listener.split_once("<SslPolicy>") {
                Some((before, rest)) if !before.contains("<Protocol>TLS<") => {
                    let after = rest
                        .split_once("</SslPolicy>")
                        .map_or("", |(_, after)| after);
                    format!("{before}{after}")
                }
                _ => listener.to_owned(),
            });
    let text = listeners.collect::<Vec<_>>().join("<ListenerArn>");
    Ok(Response::from_parts(head, Full::from(text)))
}

/// Returns the request for a route without the bits of a host in its network, which moto would
/// keep.
fn canonical(request: &Recorded) -> Option<Bytes> {
    let network = |name: &str, value: &str| {
        let named = ["DestinationCidrBlock", "DestinationIpv6CidrBlock"].contains(&name);
        named
            .then(|| value.parse::<IpNet>().ok())
            .flatten()
            .map(|network| network.trunc().to_string())
    };
    let changed = request.parameters.iter().map(|(name, value)| {
        let value = network(name, value).unwrap_or_else(|| value.clone());
        (name.clone(), value)
    });
    let changed: Vec<_> = changed.collect();
    let parameters = changed.iter().map(|(name, value)| (&**name, &**value));
    (changed != request.parameters)
        .then(|| query_api::form(&request.action, &request.version, parameters).into())
}

/// Returns the answer with terminated instances that have no interface, no address and no name any
/// more.
async fn without_remains(answer: Response<Full<Bytes>>) -> io::Result<Response<Full<Bytes>>> {
    const INSTANCE: &str = "<item><architecture>";
    let (head, body) = answer.into_parts();
    let text = text(body).await?;
    let instances = text.split(INSTANCE).map(|instance| {
        let terminated = instance.contains("<name>terminated</name>");
        let remains =
            ["networkInterfaceSet", "privateDnsName", "privateIpAddress", "dnsName", "ipAddress"];
        let remains = remains.into_iter().filter(|_| terminated);
        remains.fold(instance.to_owned(), |instance, name| without(&instance, name))
    });
    let text = instances.collect::<Vec<_>>().join(INSTANCE);
    Ok(Response::from_parts(head, Full::from(text)))
}

/// Returns the text without the first element of this name.
fn without(text: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let cut = text
        .split_once(&open)
        .and_then(|(before, rest)| Some((before, rest.split_once(&close)?.1)));
    cut.map_or_else(|| text.to_owned(), |(before, after)| format!("{before}{after}"))
}

/// Returns three network nodes for each instance: of its region, its zone and its subnet.
async fn topology(to: &QueryClient, request: &Recorded) -> io::Result<Response<Full<Bytes>>> {
    let ids: Vec<_> = request
        .parameters
        .iter()
        .filter(|(name, _)| name.starts_with("InstanceId."))
        .collect();
    let ids = ids
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let found = match to.ask(EC2, "DescribeInstances", ids).await {
        Ok(found) => found,
        Err(WireError::Refused { body, .. }) => {
            let code = elements(&body, "Code")
                .first()
                .map_or("InternalError", |code| *code);
            return Ok(refusal(request, 400, code));
        }
        Err(error) => return Err(io::Error::other(error)),
    };
    let node = |of: &str| format!("<item>nn-{of}</item>");
    // Each instance of a fixture is a reservation of its own.
    let items = elements(&found.0, "instancesSet").into_iter().map(|reservation| {
        let first =
            |name: &str| elements(reservation, name).first().map_or_else(String::new, |text| (*text).to_owned());
        let (id, zone, subnet) = (first("instanceId"), first("availabilityZone"), first("subnetId"));
        let nodes = [node(query_api::REGION), node(&zone), node(&subnet)].concat();
        let nodes = format!("<networkNodeSet>{nodes}</networkNodeSet>");
        format!("<item><instanceId>{id}</instanceId>{nodes}<availabilityZone>{zone}</availabilityZone></item>")
    });
    let items: String = items.collect();
    let body = format!(
        "<DescribeInstanceTopologyResponse><instanceSet>{items}</instanceSet></DescribeInstanceTopologyResponse>"
    );
    Ok(Response::new(Full::from(body)))
}

/// Returns the answer for a name that is taken: the same load balancer again when nothing differs,
/// an error otherwise.
async fn existing_load_balancer(
    to: &QueryClient,
    request: &Recorded,
) -> io::Result<Option<Response<Full<Bytes>>>> {
    let name = request.parameter("Name").unwrap_or_default();
    let Some(found) = look_up(to, ELB, "DescribeLoadBalancers", name).await? else {
        return Ok(None);
    };
    let wanted = |parameter: &str, default: &'static str| {
        request.parameter(parameter).unwrap_or(default).to_owned()
    };
    let is = |element: &str, wanted: String| {
        elements(&found, element)
            .first()
            .is_some_and(|text| *text == wanted)
    };
    let subnets: BTreeSet<_> = request
        .parameters
        .iter()
        .filter(|(name, _)| name.ends_with(".SubnetId") || name.starts_with("Subnets."))
        .map(|(_, value)| value.as_str())
        .collect();
    let same = is("Scheme", wanted("Scheme", "internet-facing"))
        && is("IpAddressType", wanted("IpAddressType", "ipv4"))
        && subnets == elements(&found, "SubnetId").into_iter().collect();
    Ok(Some(taken(request, same, "LoadBalancers", &found, "DuplicateLoadBalancerName")))
}

/// Returns the answer for a name that is taken: the same target group again when nothing differs,
/// an error otherwise.
async fn existing_target_group(
    to: &QueryClient,
    request: &Recorded,
) -> io::Result<Option<Response<Full<Bytes>>>> {
    let name = request.parameter("Name").unwrap_or_default();
    let Some(found) = look_up(to, ELB, "DescribeTargetGroups", name).await? else {
        return Ok(None);
    };
    let names =
        ["Protocol", "Port", "VpcId", "TargetType", "HealthCheckProtocol", "HealthCheckPort"];
    let same = names.iter().all(|name| {
        let wanted = request.parameter(name);
        wanted.is_none() || elements(&found, name).first().copied() == wanted
    });
    Ok(Some(taken(request, same, "TargetGroups", &found, "DuplicateTargetGroupName")))
}

/// Returns the object of this name, if it exists.
async fn look_up(
    to: &QueryClient,
    api: Api,
    action: &str,
    name: &str,
) -> io::Result<Option<String>> {
    match to.ask(api, action, [("Names.member.1", name)]).await {
        Ok(found) => Ok(Some(found.0)),
        Err(WireError::Refused { .. }) => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn taken(
    request: &Recorded,
    same: bool,
    list: &str,
    found: &str,
    code: &str,
) -> Response<Full<Bytes>> {
    let Some(inside) = elements(found, list).into_iter().next().filter(|_| same) else {
        return refusal(request, 400, code);
    };
    success(request, &format!("<{list}>{inside}</{list}>"))
}

fn success(request: &Recorded, inside: &str) -> Response<Full<Bytes>> {
    let action = &request.action;
    let body =
        format!("<{action}Response><{action}Result>{inside}</{action}Result></{action}Response>");
    Response::new(Full::from(body))
}

/// Returns the answer with one text in place of another.
async fn edited(
    answer: Response<Full<Bytes>>,
    [from, to]: &[&str; 2],
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = answer.into_parts();
    let text = text(body).await?.replace(from, to);
    Ok(Response::from_parts(head, Full::from(text)))
}

/// Success with `inside` in place of an error that AWS does not give here.
async fn without_error(
    answer: Response<Full<Bytes>>,
    request: &Recorded,
    code: &str,
    inside: &str,
) -> io::Result<Response<Full<Bytes>>> {
    if answer.status() == StatusCode::OK {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let text = text(body).await?;
    if elements(&text, "Code").first() == Some(&code) {
        return Ok(success(request, inside));
    }
    Ok(Response::from_parts(head, Full::from(text)))
}

/// Returns a body as text.
pub(super) async fn text(body: Full<Bytes>) -> io::Result<String> {
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
