use std::collections::BTreeSet;

use ccm_core::{
    k8s::NodeView,
    provider::{InstanceQuery, InstanceStatus, MetadataScope, NodeOwnership},
};

use super::{
    super::{
        InstanceCloud,
        context::RuleContext,
        report::{Problem, Verdict, expect},
        syntax,
    },
    context::show,
};

/// Number of queries for the same provider ID.
const ROUNDS: usize = 3;

pub(super) async fn provider_id_round_trip(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let first = ctx.metadata(&name).await?;
    let Some(id) = first.provider_id else {
        return Err(Problem::Failed(
            "no provider ID was returned for a node without one".to_owned(),
        ));
    };
    let shared = ctx.provider().await?;
    for _ in 0..ROUNDS {
        for query in [ctx.query(&name), ctx.query_by_id(&name, &id)] {
            let by = if query.node.provider_id.is_some() {
                "provider ID"
            } else {
                "name"
            };
            let mut answers = ctx.describe(&shared, std::slice::from_ref(&query)).await?;
            answers.push(ctx.describe_one(query).await?);
            for answer in answers {
                let Ok(InstanceStatus::Found { meta, .. }) = &answer else {
                    return Err(Problem::Failed(format!("{id}, by {by}: {}", show(&answer))));
                };
                // None means the provider ID of the queried node.
                let same = meta
                    .provider_id
                    .as_ref()
                    .is_none_or(|observed| *observed == id);
                expect(same, || format!("{id}, by {by}: {}", show(&answer)))?;
                expect(meta.addresses == first.addresses, || {
                    format!("{id}, by {by}: another instance")
                })?;
            }
        }
    }
    let other = ctx.create().await?;
    let distinct = ctx.metadata(&other).await?.provider_id != Some(id.clone());
    expect(distinct, || format!("two instances have provider ID {id}"))
}

pub(super) async fn provider_id_scheme(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let meta = ctx.metadata(&name).await?;
    let provider = ctx.provider().await?;
    // Another rule judges whether there is a provider ID.
    let id = meta.provider_id.unwrap_or_default();
    let rest = id
        .strip_prefix(provider.name())
        .and_then(|rest| rest.strip_prefix("://"));
    expect(id.is_empty() || rest.is_some_and(|rest| !rest.is_empty()), || {
        format!("provider {:?}, provider ID {id:?}", provider.name())
    })
}

pub(super) async fn foreign_nodes_left_alone(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let own = ctx.metadata(&name).await?.provider_id;
    let provider = ctx.provider().await?;
    let before = ctx.cloud.calls().await?;
    let mut wrong = Vec::new();
    for id in ctx.cloud.foreign_provider_ids() {
        let node = NodeView {
            provider_id: Some(id.as_str().into()),
            ..ctx.cloud.node(&name)
        };
        if provider.node_ownership(&node) != NodeOwnership::Foreign {
            wrong.push(format!("claims {id:?}"));
        }
    }
    for id in [None, own.as_deref()] {
        let node = NodeView { provider_id: id.map(Into::into), ..ctx.cloud.node(&name) };
        if provider.node_ownership(&node) != NodeOwnership::Ours {
            wrong.push(format!("does not claim its own node with provider ID {id:?}"));
        }
    }
    let made = ctx.cloud.calls().await?.saturating_sub(before);
    if made > 0 {
        wrong.push(format!("made {made} cloud calls"));
    }
    expect(wrong.is_empty(), || wrong.join("; "))
}

pub(super) async fn addresses_valid(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let meta = ctx.metadata(&name).await?;
    syntax::check_addresses(&meta.addresses).map_err(Problem::Failed)
}

pub(super) async fn labels_valid(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let meta = ctx.metadata(&name).await?;
    let mut wrong = BTreeSet::new();
    for (what, value) in
        [("zone", &meta.zone), ("region", &meta.region), ("instance type", &meta.instance_type)]
    {
        match value.as_deref() {
            // An unknown value must be None, for which no label is set.
            Some("") => drop(wrong.insert(format!("{what} is empty"))),
            Some(value) => wrong.extend(
                syntax::check_label_value(value)
                    .err()
                    .map(|error| format!("{what}: {error}")),
            ),
            None => {}
        }
    }
    for (key, value) in &meta.additional_labels {
        wrong.extend(syntax::check_label_key(key).err());
        wrong.extend(syntax::check_label_value(value).err());
    }
    expect(wrong.is_empty(), || wrong.into_iter().collect::<Vec<_>>().join("; "))
}

pub(super) async fn every_need_answered(ctx: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = ctx.create().await?;
    let full = ctx.metadata(&name).await?;
    for scope in [MetadataScope::PowerState, MetadataScope::Addresses, MetadataScope::All] {
        let answer = ctx
            .describe_one(InstanceQuery { scope, ..ctx.query(&name) })
            .await?;
        let is_expected = match &answer {
            Ok(InstanceStatus::Found { meta, .. }) => {
                scope == MetadataScope::PowerState || meta.addresses == full.addresses
            }
            _ => false,
        };
        expect(is_expected, || format!("scope {scope:?}: {}", show(&answer)))?;
        let answer = ctx
            .describe_one(InstanceQuery { scope, ..ctx.query(&ctx.name()) })
            .await?;
        let found = matches!(answer, Ok(InstanceStatus::Found { .. }));
        expect(!found, || format!("scope {scope:?}, nonexistent instance: {}", show(&answer)))?;
    }
    Ok(())
}
