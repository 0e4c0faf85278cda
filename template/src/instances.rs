//! Instances: whether they exist, whether they run, and what they are.

use ccm_core::provider::prelude::*;

use crate::Acme;

#[async_trait]
impl Instances for Acme {
    /// Until this is written, every answer is an error: nodes stay as they are, and none is ever
    /// deleted.
    async fn describe(
        &self,
        _: &Op,
        asked: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        Err(CloudError::new(ErrorKind::NotImplemented, format!("describe {} instances: not written yet", asked.len())))
    }
}
