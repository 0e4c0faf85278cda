//! Bugs in what is said to be owned.

use async_trait::async_trait;
use ccm_core::provider::{CloudError, CloudProvider, Inventory, Op, OwnedObject, Progress};
use tokio_util::sync::CancellationToken;

use super::{Bug, MutantProvider, WriteGate};

#[async_trait]
impl Inventory for MutantProvider {
    fn cluster_id(&self, op: &Op) -> Box<str> {
        match self.bug {
            Bug::CallsClustersAlike => "kubernetes".into(),
            _ => self.inner.inventory().unwrap().cluster_id(op),
        }
    }

    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let real = self.inner.inventory().unwrap();
        if self.bug == Bug::ListNeedsLeadership {
            op.may_write()?;
        }
        let listed = real.list_owned(op).await;
        match self.bug {
            Bug::InventoryHangs => std::future::pending().await,
            Bug::ListsNothing => listed.map(|_| Vec::new()),
            Bug::ListsFirstPage => listed.map(|owned| owned.into_iter().take(20).collect()),
            Bug::ListsNothingOnError => Ok(listed.unwrap_or_default()),
            Bug::ListsOtherClusters => {
                let mut listed = listed?;
                for cluster in self
                    .cloud()
                    .load_balancers()
                    .into_iter()
                    .map(|balancer| balancer.cluster)
                {
                    if cluster != op.cluster_name() {
                        let there =
                            Op::new(cluster, CancellationToken::new(), WriteGate::always_open());
                        listed.extend(real.list_owned(&there).await?);
                    }
                }
                Ok(listed)
            }
            _ => listed,
        }
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        match self.bug {
            Bug::DeletesNothingOwned => op.may_write().map(|()| Progress::Done),
            Bug::DeletesOwnedOfAnybody => {
                op.may_write()?;
                self.cloud().remove_load_balancer(&object.id);
                Ok(Progress::Done)
            }
            _ => {
                self.inner
                    .inventory()
                    .unwrap()
                    .delete_owned(op, object)
                    .await
            }
        }
    }
}
