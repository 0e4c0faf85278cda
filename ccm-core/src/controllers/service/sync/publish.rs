//! Brings finalizer, status and annotations to the Service.

use std::collections::BTreeMap;

use super::{
    super::{
        ServiceController,
        metrics::{Outcome, Work},
        plan::{Written, has_finalizer},
        trouble::{Doing, Trouble},
        writes,
    },
    Look, Next, REST, Wanted,
};
use crate::k8s::{LbStatus, ServiceView};

impl ServiceController {
    /// Writes what somebody changed on the Service again.
    pub(super) async fn publish_again(&self, look: &mut Look, wanted: &Wanted) -> Result<Next, Trouble> {
        look.work = Work::Publish;
        look.known.repaired_at = Some(self.now());
        if !self.add_finalizer(look, &wanted.service).await? {
            return Ok(REST);
        }
        let status: Option<LbStatus> = look.known.published.clone();
        self.publish(look, &wanted.service, status.as_ref(), &BTreeMap::default()).await?;
        (look.known.hold, look.known.told) = (None, None);
        self.metrics.count(Work::Publish, Outcome::Done);
        if look.known.unfinished {
            self.finish_announced(look, &wanted.service);
        }
        Ok(Next::Rest { until: look.known.applied.map(|applied| applied.verify_at), settled: true })
    }

    /// Adds the finalizer where it is missing; `false` when there is no such Service any more.
    pub(super) async fn add_finalizer(&self, look: &mut Look, service: &ServiceView) -> Result<bool, Trouble> {
        if has_finalizer(service, &look.known) {
            return Ok(true);
        }
        match writes::add_finalizer(&self.cx.api, service).await {
            Ok(version) => {
                look.known.written = version.parse().ok().map(|version| Written { version, finalizer: true });
                Ok(true)
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(Trouble::api(Doing::AddFinalizer, error)),
        }
    }

    pub(super) async fn publish(
        &self,
        look: &mut Look,
        service: &ServiceView,
        status: Option<&LbStatus>,
        annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
    ) -> Result<(), Trouble> {
        let Some(patch) = writes::publication(service, status, annotations) else { return Ok(()) };
        match self.cx.api.patch_service_status(&service.namespace, &service.name, &patch).await {
            Ok(patched) => {
                let version = patched.resource_version.parse().ok();
                look.known.written = version.map(|version| Written { version, finalizer: true });
                Ok(())
            }
            // Its deletion is on the way to us.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(Trouble::api(Doing::Publish, error)),
        }
    }
}
