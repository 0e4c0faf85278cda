//! Brings finalizer, status and annotations to the Service.

use std::collections::BTreeMap;

use super::{
    super::{
        ServiceController,
        metrics::{Outcome, Work},
        plan::{Sent, Written, has_finalizer, since_our_write},
        trouble::{Doing, Trouble},
        writes,
    },
    Look, Next, REST, Wanted,
};
use crate::{
    k8s::{LbStatus, ServiceView},
    runtime::api::{ApiError, ApiErrorKind},
    telemetry::controllers::Write,
};

impl ServiceController {
    /// Writes what somebody changed on the Service again.
    pub(super) async fn publish_again(&self, look: &mut Look, wanted: &Wanted) -> Result<Next, Trouble> {
        look.work = Work::Publish;
        look.known.repaired_at = Some(self.now());
        if !self.add_finalizer(look, &wanted.service).await? {
            return Ok(REST);
        }
        let (status, annotations) = (look.known.published.clone(), look.known.annotations.clone());
        self.publish(look, &wanted.service, status.as_ref(), &annotations).await?;
        (look.known.hold, look.known.told) = (None, None);
        self.metrics.count(Work::Publish, Outcome::Done);
        if look.known.unfinished {
            self.finish_announced(look, &wanted.service);
        }
        Ok(Next::Rest { until: look.known.applied.map(|applied| applied.verify_at), settled: true })
    }

    /// Adds the finalizer where it is missing; `false` when there is no such Service any more.
    pub(super) async fn add_finalizer(&self, look: &mut Look, service: &ServiceView) -> Result<bool, Trouble> {
        if has_finalizer(service, &look.known, self.now()) {
            self.cx.shared.saved(Write::ServiceFinalizer);
            return Ok(true);
        }
        match writes::add_finalizer(&self.cx.api, service).await {
            Ok(version) => {
                (look.known.written, look.known.sent) = (self.written(&version), Sent::default());
                Ok(true)
            }
            Err(error) if self.explains(&error, service).await => Ok(false),
            Err(error) => Err(Trouble::api(Doing::AddFinalizer, error)),
        }
    }

    /// Tells whether a write was refused because the Service is gone, goes away, or wants no balancer any more. The watch
    /// brings that, and then it is looked at again.
    async fn explains(&self, error: &ApiError, service: &ServiceView) -> bool {
        if !matches!(error.kind(), ApiErrorKind::Invalid(_)) {
            return error.is_not_found();
        }
        match self.cx.api.get_service(&service.namespace, &service.name, &self.fields).await {
            Ok(fresh) => fresh.uid != service.uid || fresh.deleting || !fresh.is_load_balancer,
            Err(error) => error.is_not_found(),
        }
    }

    pub(super) async fn publish(
        &self,
        look: &mut Look,
        service: &ServiceView,
        status: Option<&LbStatus>,
        annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
    ) -> Result<(), Trouble> {
        let since = since_our_write(service, &look.known, self.now());
        let patch = writes::publication(since.as_ref().unwrap_or(service), status, annotations);
        let Some(patch) = patch else {
            self.cx.shared.saved(Write::ServiceStatus);
            return Ok(());
        };
        match self.cx.api.patch_service_status(&service.namespace, &service.name, &patch).await {
            Ok(patched) => {
                look.known.written = self.written(&patched.resource_version);
                if since.is_none() {
                    look.known.sent = Sent::default();
                }
                look.known.sent.status = status.cloned().or(look.known.sent.status.take());
                look.known.sent.annotations.extend(annotations.clone());
                Ok(())
            }
            Err(error) if self.explains(&error, service).await => Ok(()),
            Err(error) => Err(Trouble::api(Doing::Publish, error)),
        }
    }

    /// Remembers a write until the cache shows it.
    fn written(&self, version: &str) -> Option<Written> {
        let version = version.parse().ok()?;
        Some(Written { version, finalizer: true, at: self.now() })
    }
}
