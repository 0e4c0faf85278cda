//! The adapter between the kit and the cloud behind the provider: an emulator, a test account, or a
//! stand-in in this process. What it looks at and changes it does by itself, never through the
//! provider.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use bytes::Bytes;
use ccm_acme::{Acme, Config};
use ccm_core::provider::prelude::*;
use ccm_testkit::conformance::{InjectedFault, InstanceCloud};
use http::{Request, Response};

/// What the kit needs to know of the cloud.
#[derive(Clone, Copy)]
pub(crate) struct AcmeAdapter;

impl AcmeAdapter {
    /// Makes a provider that remembers nothing.
    pub(crate) fn provider(self) -> anyhow::Result<Arc<dyn CloudProvider>> {
        let config = Config { url: "https://api.acme.example".to_owned(), token: "token".to_owned() };
        Ok(Arc::new(Acme::new(&config, Arc::new(Self))?))
    }
}

#[async_trait]
impl Transport for AcmeAdapter {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        let message = format!("{} {}: the way to the cloud is not written yet", request.method(), request.uri());
        Err(CloudError::new(ErrorKind::NotImplemented, message))
    }
}

#[async_trait]
impl InstanceCloud for AcmeAdapter {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        bail!("create an instance for {node}: not written yet")
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        bail!("stop the instance of {node}: not written yet")
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        bail!("start the instance of {node}: not written yet")
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        bail!("terminate the instance of {node}: not written yet")
    }

    async fn delete(&self, _: &str) -> anyhow::Result<()> {
        // Nothing was made: nothing is left.
        Ok(())
    }

    async fn inject(&self, _: InjectedFault) -> anyhow::Result<bool> {
        Ok(false)
    }

    async fn slow_down(&self, _: Duration) -> anyhow::Result<bool> {
        Ok(false)
    }

    async fn restore(&self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        bail!("count the requests: not written yet")
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        bail!("look at the cloud: not written yet")
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        Vec::new()
    }
}
