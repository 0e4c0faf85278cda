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

/// How often the provider ID is asked for.
const ROUNDS: usize = 3;

pub(super) async fn provider_id_round_trip(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let first = bench.meta(&name).await?;
    let Some(id) = first.provider_id else {
        return Err(Problem::Failed("no provider ID for a node without one".to_owned()));
    };
    let shared = bench.provider().await?;
    for _ in 0..ROUNDS {
        for query in [bench.query(&name), bench.query_by_id(&name, &id)] {
            let by = if query.node.provider_id.is_some() {
                "provider ID"
            } else {
                "name"
            };
            let mut answers = bench.ask(&shared, std::slice::from_ref(&query)).await?;
            answers.push(bench.ask_one(query).await?);
            for answer in answers {
                let Ok(InstanceStatus::Found { meta, .. }) = &answer else {
                    return Err(Problem::Failed(format!("{id}, by {by}: {}", show(&answer))));
                };
                // None means: the node's own, which the query has.
                let same = meta.provider_id.as_ref().is_none_or(|seen| *seen == id);
                expect(same, || format!("{id}, by {by}: {}", show(&answer)))?;
                expect(meta.addresses == first.addresses, || {
                    format!("{id}, by {by}: another instance")
                })?;
            }
        }
    }
    let other = bench.create().await?;
    let distinct = bench.meta(&other).await?.provider_id != Some(id.clone());
    expect(distinct, || format!("two instances have provider ID {id}"))
}

pub(super) async fn provider_id_scheme(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let meta = bench.meta(&name).await?;
    let provider = bench.provider().await?;
    // A missing one is judged by the round trip.
    let id = meta.provider_id.unwrap_or_default();
    let rest = id
        .strip_prefix(provider.name())
        .and_then(|rest| rest.strip_prefix("://"));
    expect(id.is_empty() || rest.is_some_and(|rest| !rest.is_empty()), || {
        format!("provider {:?}, provider ID {id:?}", provider.name())
    })
}

pub(super) async fn foreign_nodes_left_alone(
    bench: &RuleContext<'_, dyn InstanceCloud>,
) -> Verdict {
    let name = bench.create().await?;
    let own = bench.meta(&name).await?.provider_id;
    let provider = bench.provider().await?;
    let before = bench.cloud.calls().await?;
    let mut wrong = Vec::new();
    for id in bench.cloud.foreign_provider_ids() {
        let node = NodeView {
            provider_id: Some(id.as_str().into()),
            ..bench.cloud.node(&name)
        };
        if provider.node_ownership(&node) != NodeOwnership::Foreign {
            wrong.push(format!("claims {id:?}"));
        }
    }
    for id in [None, own.as_deref()] {
        let node = NodeView { provider_id: id.map(Into::into), ..bench.cloud.node(&name) };
        if provider.node_ownership(&node) != NodeOwnership::Ours {
            wrong.push(format!("does not claim its own node with provider ID {id:?}"));
        }
    }
    let made = bench.cloud.calls().await?.saturating_sub(before);
    if made > 0 {
        wrong.push(format!("made {made} cloud calls"));
    }
    expect(wrong.is_empty(), || wrong.join("; "))
}

pub(super) async fn addresses_valid(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let meta = bench.meta(&name).await?;
    syntax::addresses(&meta.addresses).map_err(Problem::Failed)
}

pub(super) async fn labels_valid(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let meta = bench.meta(&name).await?;
    let mut wrong = BTreeSet::new();
    for (what, value) in
        [("zone", &meta.zone), ("region", &meta.region), ("instance type", &meta.instance_type)]
    {
        match value.as_deref() {
            // Nothing known is None, which makes no label.
            Some("") => drop(wrong.insert(format!("{what} is empty"))),
            Some(value) => wrong.extend(
                syntax::label_value(value)
                    .err()
                    .map(|why| format!("{what}: {why}")),
            ),
            None => {}
        }
    }
    for (key, value) in &meta.additional_labels {
        wrong.extend(syntax::label_key(key).err());
        wrong.extend(syntax::label_value(value).err());
    }
    expect(wrong.is_empty(), || wrong.into_iter().collect::<Vec<_>>().join("; "))
}

pub(super) async fn every_need_answered(bench: &RuleContext<'_, dyn InstanceCloud>) -> Verdict {
    let name = bench.create().await?;
    let full = bench.meta(&name).await?;
    for need in [MetadataScope::PowerState, MetadataScope::Addresses, MetadataScope::All] {
        let answer = bench
            .ask_one(InstanceQuery { scope: need, ..bench.query(&name) })
            .await?;
        let right = match &answer {
            Ok(InstanceStatus::Found { meta, .. }) => {
                need == MetadataScope::PowerState || meta.addresses == full.addresses
            }
            _ => false,
        };
        expect(right, || format!("need {need:?}: {}", show(&answer)))?;
        let answer = bench
            .ask_one(InstanceQuery { scope: need, ..bench.query(&bench.name()) })
            .await?;
        let found = matches!(answer, Ok(InstanceStatus::Found { .. }));
        expect(!found, || format!("need {need:?}, absent: {}", show(&answer)))?;
    }
    Ok(())
}
