//! What this process changed so recently that AWS may not show it yet.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::provider::CloudError;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::LoadBalancerArn;

/// Time for which AWS may not show what this process created or changed.
pub(super) const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// Load balancers that this process let go of so recently that reads may still show the tags of their
/// owner.
#[derive(Debug, Default)]
pub(super) struct RecentlyLetGo(Mutex<BTreeMap<LoadBalancerArn, Instant>>);

impl RecentlyLetGo {
    /// Records that this process lets go of a load balancer.
    pub(super) fn add(&self, arn: &LoadBalancerArn) {
        let mut arns = self.0.lock();
        arns.retain(|_, at| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
        arns.insert(arn.clone(), Instant::now());
    }

    /// Removes a load balancer, because a Service adopts it.
    pub(super) fn forget(&self, arn: &LoadBalancerArn) {
        self.0.lock().remove(arn);
    }

    /// Checks that reads show whether a load balancer was let go of.
    ///
    /// # Errors
    /// It was a moment ago, so that what is read of it is not to be believed.
    pub(super) fn check(&self, arn: &LoadBalancerArn) -> Result<(), CloudError> {
        match self.uncertain_for(arn) {
            Some(after) => {
                let message = format!("load balancer {arn} was let go of a moment ago");
                Err(CloudError::transient(message).with_retry_after(after))
            }
            None => Ok(()),
        }
    }

    /// Returns the time after which reads show that a load balancer was let go of; `None` if they do.
    fn uncertain_for(&self, arn: &LoadBalancerArn) -> Option<Duration> {
        let age = self.0.lock().get(arn)?.elapsed();
        EVENTUAL_CONSISTENCY_WINDOW
            .checked_sub(age)
            .filter(|left| !left.is_zero())
    }
}
