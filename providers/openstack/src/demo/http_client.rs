//! A minimal `curl`: one connection, one request, one answer.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests `/` on a new connection and returns the node that answers.
///
/// # Errors
/// Nobody listens, or the answer is not usable.
pub(super) async fn get(address: SocketAddr) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(REQUEST_TIMEOUT, exchange)
        .await
        .context("no answer in time")??;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "not a good answer: {answer:?}");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(body
        .split_whitespace()
        .next()
        .context("an empty answer")?
        .to_owned())
}

/// Returns true if somebody listens.
pub(super) async fn is_open(address: SocketAddr) -> bool {
    matches!(timeout(REQUEST_TIMEOUT, TcpStream::connect(address)).await, Ok(Ok(_)))
}
