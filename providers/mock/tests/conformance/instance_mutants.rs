//! The mock provider with one bug each, of the sorts that real providers have had.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::{
        BatchLimits, CloudError, CloudProvider, ErrorKind, InstanceMetadata, InstanceQuery,
        InstanceStatus, Instances, MetadataScope, NodeOwnership, Op, PowerState, ProviderContext,
    },
    write_gate::WriteGate,
};
use ccm_mock::{
    MockProvider,
    cloud::{InstanceSpec, PowerState as CloudPowerState},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::scripted::SECRET;

type DescribeResult = Result<InstanceStatus, CloudError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    AnswersBackwards,
    DropsLastEntry,
    RefusesFullBatches,
    NeedsProviderId,
    AbsentIsAnError,
    AbsentByIdIsAnError,
    AbsentOnError,
    OldAnswerOnError,
    StoppedRuns,
    StoppedIsAbsent,
    TerminatedRuns,
    DeniedIsTransient,
    ForgetsRetryAfter,
    MalformedIsAbsent,
    MalformedFailsTheBatch,
    ChangesProviderIds,
    OtherScheme,
    ClaimsForeignNodes,
    DisownsItsNodes,
    NoAddresses,
    SameAddressTwice,
    HostnameAsIp,
    BadLabelKey,
    EmptyZone,
    AddressesOnlyAtFirst,
    RemembersForEver,
    WritesWhileReading,
    NeedsLeadership,
    IgnoresCancellation,
    CancelledIsAbsent,
    BrokenByCancellation,
    SharedScratch,
    AnswersEachOnce,
    FirstPageOnly,
    SleepsWhenThrottled,
    TellsSecrets,
    SaysNothing,
    BrokenByDrop,
    StartWaitsForCloud,
    StartFails,
    StartFailsForGood,
    StartTellsSecrets,
    StartRegistersAgain,
    StartRemembersFailure,
    StartMakesAnother,
    StartWritesInShadow,
    StartNeedsLeadership,
    StartLeavesLoop,
}

impl Bug {
    /// Every bug with the rules that it breaks, in their order.
    pub(crate) const ALL: [(Self, &[&str]); 48] = [
        (Self::AnswersBackwards, &["answers-in-order"]),
        (Self::DropsLastEntry, &["one-answer-per-query"]),
        (Self::RefusesFullBatches, &["one-answer-per-query"]),
        (Self::NeedsProviderId, &["found-by-name"]),
        (Self::AbsentIsAnError, &["not-found-if-never-existed", "not-found-if-deleted"]),
        (Self::AbsentByIdIsAnError, &["not-found-if-deleted"]),
        (Self::AbsentOnError, &["no-absence-on-error"]),
        (Self::OldAnswerOnError, &["doubt-is-an-error"]),
        (Self::StoppedRuns, &["stopped-exists"]),
        (Self::StoppedIsAbsent, &["stopped-exists"]),
        (Self::TerminatedRuns, &["terminated-is-gone"]),
        (Self::DeniedIsTransient, &["error-kinds"]),
        (Self::ForgetsRetryAfter, &["retry-after"]),
        (Self::MalformedIsAbsent, &["malformed-provider-id"]),
        (Self::MalformedFailsTheBatch, &["malformed-provider-id"]),
        (Self::ChangesProviderIds, &["provider-id-round-trip"]),
        (Self::OtherScheme, &["provider-id-scheme"]),
        (Self::ClaimsForeignNodes, &["foreign-nodes-left-alone"]),
        (Self::DisownsItsNodes, &["foreign-nodes-left-alone"]),
        (Self::NoAddresses, &["addresses-valid"]),
        (Self::SameAddressTwice, &["addresses-valid"]),
        (Self::HostnameAsIp, &["addresses-valid"]),
        (Self::BadLabelKey, &["labels-valid"]),
        (Self::EmptyZone, &["labels-valid"]),
        (Self::AddressesOnlyAtFirst, &["every-need-answered"]),
        (Self::RemembersForEver, &["fresh-when-asked"]),
        (Self::WritesWhileReading, &["read-only"]),
        (Self::NeedsLeadership, &["read-only"]),
        (Self::IgnoresCancellation, &["cancellation"]),
        (Self::CancelledIsAbsent, &["cancellation"]),
        (Self::BrokenByCancellation, &["cancellation"]),
        (Self::SharedScratch, &["concurrent-use"]),
        (Self::AnswersEachOnce, &["answers-in-order"]),
        (Self::FirstPageOnly, &["all-of-many"]),
        (Self::SleepsWhenThrottled, &["sleeps-briefly"]),
        (Self::TellsSecrets, &["texts-presentable"]),
        (Self::SaysNothing, &["texts-presentable"]),
        (Self::BrokenByDrop, &["cancellation"]),
        (Self::StartWaitsForCloud, &["start-ends"]),
        (Self::StartFails, &["start-ends"]),
        (Self::StartFailsForGood, &["start-error-kinds"]),
        (Self::StartTellsSecrets, &["texts-presentable"]),
        (Self::StartRegistersAgain, &["start-again"]),
        (Self::StartRemembersFailure, &["start-again"]),
        (Self::StartMakesAnother, &["start-idempotent"]),
        (Self::StartWritesInShadow, &["start-without-leadership"]),
        (Self::StartNeedsLeadership, &["start-without-leadership"]),
        (Self::StartLeavesLoop, &["start-stops"]),
    ];
}

/// Says that a call was dropped before its end.
pub(crate) struct Dropped<'a>(pub(crate) &'a AtomicBool, pub(crate) bool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

pub(crate) struct MutantProvider {
    pub(crate) inner: MockProvider,
    pub(crate) bug: Bug,
    count: AtomicUsize,
    pub(crate) broken: AtomicBool,
    remembered: Mutex<HashMap<(String, Option<String>), InstanceStatus>>,
    scratch: Mutex<Vec<InstanceQuery>>,
}

impl MutantProvider {
    pub(crate) fn new(inner: MockProvider, bug: Bug) -> Self {
        Self {
            inner,
            bug,
            count: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            remembered: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    pub(crate) fn real(&self) -> &dyn Instances {
        self.inner.instances().unwrap()
    }

    /// Bugs that change the call as a whole.
    // length: one arm for each bug
    async fn ask(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<DescribeResult>, CloudError> {
        match self.bug {
            Bug::IgnoresCancellation => {
                let deaf =
                    Op::new("conformance", CancellationToken::new(), WriteGate::always_open());
                self.real().describe(&deaf, queries).await
            }
            Bug::CancelledIsAbsent => match self.real().describe(op, queries).await {
                Err(error) if error.kind() == ErrorKind::Canceled => Ok(queries
                    .iter()
                    .map(|_| Ok(InstanceStatus::NotFound))
                    .collect()),
                other => other,
            },
            Bug::BrokenByCancellation => {
                if self.broken.load(Ordering::Relaxed) {
                    return Err(CloudError::transient("broken"));
                }
                let answers = self.real().describe(op, queries).await;
                self.broken.store(op.is_cancelled(), Ordering::Relaxed);
                answers
            }
            Bug::SharedScratch => {
                *self.scratch.lock() = queries.to_vec();
                tokio::time::sleep(Duration::from_millis(1)).await;
                let shared = self.scratch.lock().clone();
                self.real().describe(op, &shared).await
            }
            Bug::BrokenByDrop if self.broken.load(Ordering::Relaxed) => {
                Err(CloudError::transient("broken"))
            }
            Bug::BrokenByDrop => {
                let mut guard = Dropped(&self.broken, false);
                let answers = self.real().describe(op, queries).await;
                guard.1 = true;
                answers
            }
            Bug::SleepsWhenThrottled => {
                let answers = self.real().describe(op, queries).await;
                let throttled = |error: &CloudError| error.kind() == ErrorKind::Throttled;
                let one = match &answers {
                    Ok(answers) => answers
                        .iter()
                        .filter_map(|answer| answer.as_ref().err())
                        .find(|e| throttled(e)),
                    Err(error) => Some(error).filter(|error| throttled(error)),
                };
                match one {
                    Some(error) => {
                        tokio::time::sleep(error.retry_after().unwrap_or_default()).await;
                        self.real().describe(op, queries).await
                    }
                    None => answers,
                }
            }
            Bug::AnswersEachOnce => self.real().describe(op, queries).await.map(|mut answers| {
                for (index, query) in queries.iter().enumerate() {
                    if queries[..index]
                        .iter()
                        .any(|before| before.node.name == query.node.name)
                    {
                        answers[index] = Err(CloudError::transient("answered already"));
                    }
                }
                answers
            }),
            Bug::FirstPageOnly => self.real().describe(op, queries).await.map(|mut answers| {
                let page: Vec<_> = self
                    .inner
                    .cloud()
                    .unwrap()
                    .instances()
                    .into_iter()
                    .take(100)
                    .collect();
                for answer in &mut answers {
                    let listed = match answer {
                        Ok(InstanceStatus::Found { meta, .. }) => page.iter().any(|instance| {
                            meta.provider_id.as_deref() == Some(&*instance.provider_id)
                        }),
                        _ => true,
                    };
                    if !listed {
                        *answer = Ok(InstanceStatus::NotFound);
                    }
                }
                answers
            }),
            Bug::NeedsLeadership => {
                op.may_write()?;
                self.real().describe(op, queries).await
            }
            Bug::WritesWhileReading => {
                let node = &queries.first().map_or("node", |query| &query.node.name);
                let spec = InstanceSpec {
                    zone: Some("elsewhere".to_owned()),
                    ..InstanceSpec::default()
                };
                let cloud = self.inner.cloud().unwrap();
                if cloud
                    .instance(node)
                    .is_some_and(|instance| instance.power_state == CloudPowerState::Running)
                {
                    cloud.put_instance(node, spec).unwrap();
                }
                self.real().describe(op, queries).await
            }
            Bug::MalformedFailsTheBatch => {
                let answers = self.real().describe(op, queries).await?;
                match answers
                    .iter()
                    .filter_map(|a| a.as_ref().err())
                    .find(|e| e.kind() == ErrorKind::InvalidInput)
                {
                    Some(error) => Err(error.clone()),
                    None => Ok(answers),
                }
            }
            Bug::RefusesFullBatches if queries.len() >= self.limits().max_batch.get() => {
                Err(CloudError::invalid_input("too many"))
            }
            Bug::AnswersBackwards => self.real().describe(op, queries).await.map(|mut answers| {
                answers.reverse();
                answers
            }),
            Bug::DropsLastEntry => self.real().describe(op, queries).await.map(|mut answers| {
                answers.truncate(answers.len().saturating_sub(1).max(1));
                answers
            }),
            _ => self.real().describe(op, queries).await,
        }
    }

    /// Bugs that change single answers.
    fn alter_result(&self, query: &InstanceQuery, answer: DescribeResult) -> DescribeResult {
        let by_id = query.node.provider_id.as_deref();
        match answer {
            Err(error) => self.spoil_error(query, error),
            Ok(InstanceStatus::NotFound) => match self.bug {
                Bug::AbsentIsAnError => Err(CloudError::transient("perhaps not there")),
                Bug::AbsentByIdIsAnError if by_id.is_some() => {
                    Err(CloudError::transient("perhaps not there"))
                }
                _ => Ok(InstanceStatus::NotFound),
            },
            Ok(InstanceStatus::Found { power_state: power, meta }) => {
                if self.bug == Bug::NeedsProviderId && by_id.is_none() {
                    return Err(CloudError::invalid_input("no provider ID"));
                }
                Ok(self.spoil_found(query, power, meta))
            }
        }
    }

    fn spoil_error(&self, query: &InstanceQuery, error: CloudError) -> DescribeResult {
        let malformed = query.node.provider_id.is_some() && error.kind() == ErrorKind::InvalidInput;
        let told = |text: &str| CloudError::new(error.kind(), text);
        match self.bug {
            Bug::TellsSecrets if !malformed => Err(told(&format!("login with {SECRET} failed"))
                .with_retry_after(error.retry_after().unwrap_or_default())),
            Bug::SaysNothing if !malformed => {
                Err(told("").with_retry_after(error.retry_after().unwrap_or_default()))
            }
            Bug::AbsentOnError if !malformed => Ok(InstanceStatus::NotFound),
            Bug::MalformedIsAbsent if malformed => Ok(InstanceStatus::NotFound),
            Bug::OldAnswerOnError => self
                .remembered
                .lock()
                .get(&key(query))
                .cloned()
                .ok_or(error),
            Bug::DeniedIsTransient if error.kind() == ErrorKind::Denied => {
                Err(CloudError::transient("failed"))
            }
            Bug::ForgetsRetryAfter => Err(CloudError::new(error.kind(), error.chain())),
            _ => Err(error),
        }
    }

    fn spoil_found(
        &self,
        query: &InstanceQuery,
        mut power: PowerState,
        mut meta: InstanceMetadata,
    ) -> InstanceStatus {
        match self.bug {
            Bug::StoppedRuns if power == PowerState::Stopped => power = PowerState::Running,
            Bug::StoppedIsAbsent if power == PowerState::Stopped => {
                return InstanceStatus::NotFound;
            }
            Bug::TerminatedRuns if power == PowerState::Terminated => power = PowerState::Running,
            Bug::ChangesProviderIds => {
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                meta.provider_id = meta.provider_id.map(|id| format!("{id}-{count}").into());
            }
            Bug::NoAddresses => meta.addresses.clear(),
            Bug::SameAddressTwice => meta.addresses.push(meta.addresses[0].clone()),
            Bug::HostnameAsIp => {
                meta.addresses
                    .push(NodeAddress::new(AddressType::InternalIp, &*query.node.name));
            }
            Bug::BadLabelKey => drop(
                meta.additional_labels
                    .insert("rack number".into(), "1".into()),
            ),
            Bug::EmptyZone => meta.zone = Some("".into()),
            Bug::AddressesOnlyAtFirst if query.scope != MetadataScope::All => {
                meta.addresses.clear();
            }
            _ => {}
        }
        InstanceStatus::Found { power_state: power, meta }
    }
}

fn key(query: &InstanceQuery) -> (String, Option<String>) {
    (query.node.name.to_string(), query.node.provider_id.as_deref().map(str::to_owned))
}

#[async_trait]
impl Instances for MutantProvider {
    fn limits(&self) -> BatchLimits {
        self.real().limits()
    }

    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<DescribeResult>, CloudError> {
        let mut answers = self.ask(op, queries).await?;
        for (query, answer) in queries.iter().zip(&mut answers) {
            let given = std::mem::replace(answer, Ok(InstanceStatus::NotFound));
            *answer = self.alter_result(query, given);
            let mut remembered = self.remembered.lock();
            match (self.bug, remembered.get(&key(query))) {
                (Bug::RemembersForEver, Some(old)) => *answer = Ok(old.clone()),
                _ => {
                    if let Ok(presence) = answer {
                        remembered.insert(key(query), presence.clone());
                    }
                }
            }
        }
        Ok(answers)
    }
}

#[async_trait]
impl CloudProvider for MutantProvider {
    fn name(&self) -> &str {
        if self.bug == Bug::OtherScheme {
            "other"
        } else {
            self.inner.name()
        }
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        match self.bug {
            Bug::ClaimsForeignNodes => NodeOwnership::Ours,
            Bug::DisownsItsNodes => NodeOwnership::Foreign,
            _ => self.inner.node_ownership(node),
        }
    }

    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.begin(ctx).await
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

// Shared between overlapping calls, as the framework does it.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<MutantProvider>>();
};
