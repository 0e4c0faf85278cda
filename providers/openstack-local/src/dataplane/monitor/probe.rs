//! Single checks.

use std::io;

use tokio::net::TcpStream;

use super::Check;
use crate::dataplane::config::MonitorKind;

/// Checks once. The caller limits the time.
///
/// # Errors
/// What is wrong with the member.
pub(super) async fn probe(check: &Check) -> io::Result<()> {
    match &check.monitor.kind {
        MonitorKind::Tcp => TcpStream::connect(check.target).await.map(drop),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}
