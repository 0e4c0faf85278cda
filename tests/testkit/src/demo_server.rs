//! The HTTPS server of a demo: everybody on this machine may read what its manager explains.

use std::io;

use ccm_core::{
    config::{Config, Product},
    error::BoxError,
    manager::Observability,
    runtime::serving::{AuthFilter, Handlers, Server},
    telemetry::logging,
};
use tokio_util::sync::CancellationToken;

use crate::supervised::free_port;

/// Where a demo serves its explanations, on a free port of loopback.
#[derive(Clone, Copy, Debug)]
pub struct DemoAddress(u16);

impl DemoAddress {
    /// Chooses a free port.
    ///
    /// # Errors
    /// None is free.
    pub fn choose() -> io::Result<Self> {
        free_port().map(Self)
    }

    /// Returns the address of the page.
    pub fn page(self) -> String {
        format!("https://127.0.0.1:{}/explain/", self.0)
    }

    /// Returns the manager's flags for this address. A demo has no users and no secrets, so that
    /// nobody has to authenticate.
    pub fn flags(self) -> [String; 3] {
        [
            format!("--secure-port={}", self.0),
            "--bind-address=127.0.0.1".to_owned(),
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/explain,/explain/*"
                .to_owned(),
        ]
    }
}

/// A server that listens, and what its manager is to be observed with.
#[derive(Debug)]
pub struct DemoServer {
    server: Server,
    handlers: Handlers,
    filter: AuthFilter,
    config: Config,
    observability: Observability,
}

impl DemoServer {
    /// Starts to listen where the configuration says.
    ///
    /// # Errors
    /// The address is taken, or the configuration has none.
    pub fn bind(product: &Product, config: &Config) -> Result<Self, BoxError> {
        let server = Server::bind(&config.serving)?.ok_or("the demo has no --secure-port")?;
        let observability = Observability::new(config);
        let filter = AuthFilter::new(&config.authorization.always_allow_paths)?;
        let (_, verbosity) = logging::dispatch(&config.logging, io::sink);
        let handlers = Handlers::new(
            product.clone(),
            config.clone(),
            observability.registry.clone(),
            observability.health.clone(),
            verbosity,
        );
        Ok(Self {
            server,
            handlers,
            filter,
            config: config.clone(),
            observability,
        })
    }

    /// Returns what the manager is to be observed with.
    pub fn observability(&self) -> Observability {
        self.observability.clone()
    }

    /// Serves while `work` runs, and returns its result.
    ///
    /// # Errors
    /// The handlers cannot be made.
    pub async fn serve_during<T>(self, work: impl Future<Output = T>) -> Result<T, BoxError> {
        let routes = self.observability.routes(&self.config);
        let router = self.handlers.router(self.filter, routes)?;
        let stop = CancellationToken::new();
        let work = async {
            let result = work.await;
            stop.cancel();
            result
        };
        let (result, ()) = tokio::join!(work, self.server.run(router, stop.clone()));
        Ok(result)
    }
}
