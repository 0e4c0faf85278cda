//! moto's server, an AWS emulator, with tools around it: requests without an SDK ([`query_api`]),
//! objects for the environment of tests ([`fixture`]), and a proxy that records requests, injects
//! faults and corrects answers ([`fault_proxy`], `response_fixes`).
//!
//! [`PROGRAM_VARIABLE`] names the program; `cargo xtask test --full` sets it. If it is set and the
//! program does not work, tests fail instead of being ignored.

pub mod fault_proxy;
pub mod fixture;
mod instance_protocols;
pub mod query_api;
mod response_fixes;

use std::{ffi::OsString, io, path::PathBuf, time::Duration};

use self::{
    fault_proxy::FaultProxy,
    query_api::{QueryClient, WireError},
};
use crate::supervised::{CommandLine, Supervised, free_port};

/// Names moto's server: the program `moto_server`.
pub const PROGRAM_VARIABLE: &str = "CCM_MOTO_SERVER";

/// Time that the server has to start. It takes a second; test machines are busy.
const START: Duration = Duration::from_secs(60);

/// Public machine images, which nobody here asks for, take moto a quarter of a second after each
/// reset.
const WITHOUT_IMAGES: &str = "MOTO_EC2_LOAD_DEFAULT_AMIS=false";

/// Another program may take a free port before the server does.
const ATTEMPTS: usize = 3;

/// Finds moto's server.
///
/// # Errors
/// [`PROGRAM_VARIABLE`] does not name it: how to get it.
pub fn find() -> Result<PathBuf, String> {
    let program = std::env::var_os(PROGRAM_VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    program.ok_or_else(|| {
        format!("{PROGRAM_VARIABLE} does not name moto_server; `cargo xtask test --full` installs it, it needs Python")
    })
}

/// Reason why moto's server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A directory, port or process could not be made.
    #[error("prepare moto's server")]
    Io(#[from] io::Error),
    /// The program ended or did not answer in time.
    #[error("moto's server does not answer; what it printed:\n{log}")]
    Silent {
        /// Output of the server.
        log: String,
    },
}

/// A running server with an overlay in front of it. Dropping it ends both.
#[derive(Debug)]
pub struct Moto {
    wire: QueryClient,
    overlay: FaultProxy,
    server: Supervised,
    _directory: tempfile::TempDir,
}

impl Moto {
    /// Starts the server on a free port and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Cancellation
    /// Dropping the future kills what was started.
    pub async fn start(program: PathBuf) -> Result<Self, StartError> {
        let directory = tempfile::tempdir()?;
        let log = directory.path().join("log");
        for attempt in 1.. {
            let port = free_port()?;
            let mut args: Vec<OsString> = vec![WITHOUT_IMAGES.into(), program.clone().into()];
            args.extend(["-H", "127.0.0.1", "-p", &port.to_string()].map(OsString::from));
            let command = CommandLine { name: "moto_server", program: "/usr/bin/env".into(), args };
            let mut server = Supervised::spawn(&command, &log).await?;
            let wire = QueryClient::new(format!("http://127.0.0.1:{port}"));
            if answers(&wire, &mut server).await? {
                let overlay = FaultProxy::start(wire.clone()).await?;
                return Ok(Self { wire, overlay, server, _directory: directory });
            }
            if attempt == ATTEMPTS {
                return Err(StartError::Silent { log: server.log() });
            }
        }
        unreachable!("the loop returns")
    }

    /// Returns the URL of the overlay, for the client under test.
    pub fn url(&self) -> &str {
        self.overlay.url()
    }

    /// Returns the overlay.
    pub fn overlay(&self) -> &FaultProxy {
        &self.overlay
    }

    /// Returns the way around the overlay, for fixtures and for looking at the result.
    pub fn direct(&self) -> &QueryClient {
        &self.wire
    }

    /// Returns the output of the server.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Removes everything from the server, and records and faults from the overlay.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn reset(&self) -> Result<(), WireError> {
        self.wire.post("/moto-api/reset").await?;
        self.overlay.reset();
        Ok(())
    }
}

/// Waits until the server answers; false when it ended instead, or took too long.
async fn answers(wire: &QueryClient, server: &mut Supervised) -> io::Result<bool> {
    let deadline = tokio::time::Instant::now() + START;
    while tokio::time::Instant::now() < deadline {
        if server.exited()?.is_some() {
            return Ok(false);
        }
        if wire.post("/moto-api/reset").await.is_ok() {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(false)
}
