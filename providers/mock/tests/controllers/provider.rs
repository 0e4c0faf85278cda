//! A provider around the mock's that notes what it is asked, and answers as a test wants.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{
        BatchLimits, CloudError, CloudProvider, InstanceQuery, InstanceStatus, Instances,
        MetadataScope, NodeOwnership, Op, ProviderContext,
    },
};
use ccm_mock::{MockCloud, MockProvider};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Answers to one batch, as the trait has them.
pub(crate) type Answers = Result<Vec<Result<InstanceStatus, CloudError>>, CloudError>;
type Script = Box<dyn Fn(&[InstanceQuery]) -> Option<Answers> + Send + Sync>;

/// One batch that was asked.
#[derive(Clone, Debug)]
pub(crate) struct DescribeCall {
    pub(crate) at: Instant,
    pub(crate) nodes: Vec<String>,
    /// What was needed, without repetitions.
    pub(crate) needs: Vec<MetadataScope>,
    pub(crate) max_age: Duration,
}

/// The provider. Without a script it answers as the mock does.
pub(crate) struct Scripted {
    inner: MockProvider,
    asked: Mutex<Vec<DescribeCall>>,
    script: Mutex<Option<Script>>,
    starts: Mutex<u32>,
}

impl Scripted {
    pub(crate) fn over(cloud: &MockCloud) -> Arc<Self> {
        let inner = MockProvider::new_in_process(cloud.clone());
        Arc::new(Self {
            inner,
            asked: Mutex::default(),
            script: Mutex::default(),
            starts: Mutex::default(),
        })
    }

    /// How often it was started.
    pub(crate) fn starts(&self) -> u32 {
        *self.starts.lock()
    }

    /// Answers batches from now on by `script`; those for which it returns `None` as the mock does.
    pub(crate) fn answer(
        &self,
        script: impl Fn(&[InstanceQuery]) -> Option<Answers> + Send + Sync + 'static,
    ) {
        *self.script.lock() = Some(Box::new(script));
    }

    /// Takes what was asked since the last time.
    pub(crate) fn take_asked(&self) -> Vec<DescribeCall> {
        std::mem::take(&mut self.asked.lock())
    }
}

#[async_trait]
impl CloudProvider for Scripted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        self.inner.node_ownership(node)
    }

    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        *self.starts.lock() += 1;
        self.inner.start(ctx).await
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

#[async_trait]
impl Instances for Scripted {
    fn limits(&self) -> BatchLimits {
        Instances::limits(&self.inner)
    }

    async fn describe(&self, op: &Op, queries: &[InstanceQuery]) -> Answers {
        let mut needs: Vec<MetadataScope> = queries.iter().map(|query| query.scope).collect();
        needs.sort_unstable();
        needs.dedup();
        self.asked.lock().push(DescribeCall {
            at: Instant::now(),
            nodes: queries
                .iter()
                .map(|query| query.node.name.to_string())
                .collect(),
            needs,
            max_age: queries
                .iter()
                .map(|query| query.max_age)
                .min()
                .unwrap_or_default(),
        });
        let scripted = self
            .script
            .lock()
            .as_ref()
            .and_then(|script| script(queries));
        match scripted {
            Some(answers) => answers,
            None => self.inner.describe(op, queries).await,
        }
    }
}
