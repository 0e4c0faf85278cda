//! Security groups.

use aws_sdk_ec2::{Client, types};
use ipnet::IpNet;

use super::{filters, tags};
use crate::{
    api::{
        Action, AwsError, Page, SecurityGroupId,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, DeleteSecurityGroup,
            DescribeSecurityGroups, RevokeSecurityGroupIngress, Rule, RuleSource, SecurityGroup,
        },
    },
    sdk::{
        convert::{
            non_empty, non_empty_list, non_empty_structures, parsed, required, text_or_empty,
        },
        error,
    },
};

/// Maximum number of security groups per page.
const MAX_PAGE_SIZE: i32 = 1000;

pub(in crate::sdk) async fn describe(
    ec2: &Client,
    call: DescribeSecurityGroups,
) -> Result<Page<SecurityGroup>, AwsError> {
    let request = ec2
        .describe_security_groups()
        .set_max_results(call.ids.is_empty().then_some(MAX_PAGE_SIZE))
        .set_group_ids(non_empty_list(&call.ids))
        .set_filters(filters(call.filters))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeSecurityGroups, error))?;
    let items = answer
        .security_groups
        .unwrap_or_default()
        .into_iter()
        .map(security_group)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn security_group(from: types::SecurityGroup) -> Result<SecurityGroup, AwsError> {
    const ACTION: Action = Action::DescribeSecurityGroups;
    let permissions = from.ip_permissions.unwrap_or_default().into_iter();
    let ingress: Vec<_> = permissions
        .map(|permission| rules(ACTION, permission))
        .collect::<Result<_, _>>()?;
    Ok(SecurityGroup {
        id: required(ACTION, from.group_id, "a security group's ID")?,
        name: text_or_empty(from.group_name),
        description: text_or_empty(from.description),
        vpc: non_empty(from.vpc_id),
        ingress: ingress.into_iter().flatten().collect(),
        tags: tags::read(from.tags),
    })
}

/// Converts a permission to rules, one for each source.
fn rules(action: Action, from: types::IpPermission) -> Result<Vec<Rule>, AwsError> {
    let protocol = text_or_empty(from.ip_protocol);
    let ports = from.from_port.zip(from.to_port);
    let rule = |source, description| Rule {
        protocol: protocol.clone(),
        ports,
        source,
        description: text_or_empty(description),
    };
    let cidr = |cidr: Option<String>, description| {
        let cidr: String = required(action, cidr, "a rule's network")?;
        Ok(rule(RuleSource::Cidr(parsed(action, &cidr)?), description))
    };
    let mut rules = Vec::new();
    for range in from.ip_ranges.unwrap_or_default() {
        rules.push(cidr(range.cidr_ip, range.description)?);
    }
    for range in from.ipv6_ranges.unwrap_or_default() {
        rules.push(cidr(range.cidr_ipv6, range.description)?);
    }
    for pair in from.user_id_group_pairs.unwrap_or_default() {
        let group: SecurityGroupId = required(action, pair.group_id, "a rule's security group")?;
        rules.push(rule(RuleSource::Group(group, non_empty(pair.user_id)), pair.description));
    }
    for list in from.prefix_list_ids.unwrap_or_default() {
        rules.push(rule(
            RuleSource::PrefixList(text_or_empty(list.prefix_list_id)),
            list.description,
        ));
    }
    Ok(rules)
}

/// Converts a rule for a request.
fn permission(rule: Rule) -> types::IpPermission {
    let description = (!rule.description.is_empty()).then(|| String::from(rule.description));
    let permission = types::IpPermission::builder()
        .ip_protocol(rule.protocol)
        .set_from_port(rule.ports.map(|(first, _)| first))
        .set_to_port(rule.ports.map(|(_, last)| last));
    let permission = match rule.source {
        RuleSource::Cidr(IpNet::V4(cidr)) => permission.ip_ranges(
            types::IpRange::builder()
                .cidr_ip(cidr.to_string())
                .set_description(description)
                .build(),
        ),
        RuleSource::Cidr(IpNet::V6(cidr)) => permission.ipv6_ranges(
            types::Ipv6Range::builder()
                .cidr_ipv6(cidr.to_string())
                .set_description(description)
                .build(),
        ),
        RuleSource::Group(group, owner) => permission.user_id_group_pairs(
            types::UserIdGroupPair::builder()
                .group_id(&*group)
                .set_user_id(owner.map(String::from))
                .set_description(description)
                .build(),
        ),
        RuleSource::PrefixList(list) => permission.prefix_list_ids(
            types::PrefixListId::builder()
                .prefix_list_id(list)
                .set_description(description)
                .build(),
        ),
    };
    permission.build()
}

pub(in crate::sdk) async fn create(
    ec2: &Client,
    call: CreateSecurityGroup,
) -> Result<SecurityGroupId, AwsError> {
    const ACTION: Action = Action::CreateSecurityGroup;
    let tags = tags::write(call.tags).map(|tags| {
        let specification =
            types::TagSpecification::builder().resource_type(types::ResourceType::SecurityGroup);
        vec![specification.set_tags(Some(tags)).build()]
    });
    let request = ec2
        .create_security_group()
        .group_name(call.name)
        .description(call.description)
        .vpc_id(&*call.vpc)
        .set_tag_specifications(tags);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    required(ACTION, answer.group_id, "the new security group's ID")
}

pub(in crate::sdk) async fn delete(
    ec2: &Client,
    call: DeleteSecurityGroup,
) -> Result<(), AwsError> {
    let request = ec2.delete_security_group().group_id(&*call.id);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteSecurityGroup, error))
}

pub(in crate::sdk) async fn authorize(
    ec2: &Client,
    call: AuthorizeSecurityGroupIngress,
) -> Result<(), AwsError> {
    let request = ec2
        .authorize_security_group_ingress()
        .group_id(&*call.id)
        .set_ip_permissions(non_empty_structures(call.rules, permission));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::AuthorizeSecurityGroupIngress, error))
}

pub(in crate::sdk) async fn revoke(
    ec2: &Client,
    call: RevokeSecurityGroupIngress,
) -> Result<(), AwsError> {
    const ACTION: Action = Action::RevokeSecurityGroupIngress;
    let request = ec2
        .revoke_security_group_ingress()
        .group_id(&*call.id)
        .set_ip_permissions(non_empty_structures(call.rules, permission));
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    // Outside the default VPC, EC2 may answer with success and list the rules that it did not find.
    if answer
        .unknown_ip_permissions
        .is_some_and(|unknown| !unknown.is_empty())
    {
        return Err(AwsError::response(
            ACTION,
            200,
            "InvalidPermission.NotFound",
            "some rules are not there",
        ));
    }
    Ok(())
}
