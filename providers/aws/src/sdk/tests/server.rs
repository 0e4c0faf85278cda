//! A server on loopback that records what it is asked.

use std::{collections::BTreeMap, io, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};

/// A request.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceivedRequest {
    /// Method and path.
    pub(super) line: String,
    /// Headers, with names in small letters.
    pub(super) headers: BTreeMap<String, String>,
    /// Body.
    pub(super) body: String,
}

impl ReceivedRequest {
    /// Whose key signed it, and for what: `key/date/region/service`, without the date.
    pub(super) fn scope(&self) -> (String, String, String) {
        let signed = self
            .headers
            .get("authorization")
            .expect("the request is signed");
        let scope = signed
            .split_once("Credential=")
            .expect("a scope")
            .1
            .split('/')
            .collect::<Vec<_>>();
        (scope[0].to_owned(), scope[2].to_owned(), scope[3].to_owned())
    }
}

/// Status and body for a request.
pub(super) type Responder = Box<dyn Fn(&ReceivedRequest) -> (u16, String) + Send + Sync>;

/// A running server. Dropping it ends it.
pub(super) struct Server {
    pub(super) port: u16,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(super) async fn start(
        answer: impl Fn(&ReceivedRequest) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(answer, None).await
    }

    pub(super) async fn start_with(
        answer: impl Fn(&ReceivedRequest) -> (u16, String) + Send + Sync + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (record, answer): (_, Arc<Responder>) = (Arc::clone(&seen), Arc::new(Box::new(answer)));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (record, answer, tls) = (Arc::clone(&record), Arc::clone(&answer), tls.clone());
                connections.spawn(async move {
                    // A client may go away, or refuse the certificate.
                    let _ = match tls {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &record, &answer).await,
                            Err(error) => Err(error),
                        },
                        None => serve(stream, &record, &answer).await,
                    };
                });
            }
        });
        Self { port, seen, task }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Takes what was recorded so far.
    pub(super) fn take(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.seen.lock())
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    record: &Mutex<Vec<ReceivedRequest>>,
    answer: &Responder,
) -> io::Result<()> {
    let mut read = Vec::new();
    loop {
        let (seen, rest) = loop {
            if let Some(whole) = request(&read) {
                break whole;
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        read = rest;
        record.lock().push(seen.clone());
        let (status, body) = answer(&seen);
        // The outermost element is named after the action.
        let action = seen.body.split(['=', '&']).nth(1).unwrap_or_default();
        let body = body
            .replace("<R>", &format!("<{action}Response>"))
            .replace("</R>", &format!("</{action}Response>"));
        let token = if seen.line.ends_with("/latest/api/token") {
            "x-aws-ec2-metadata-token-ttl-seconds: 600\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nx-amzn-requestid: id-1\r\n{token}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
    }
}

/// The first request in what was read, and the rest; `None` while it is not whole.
fn request(read: &[u8]) -> Option<(ReceivedRequest, Vec<u8>)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let mut lines = head.lines();
    let line = lines.next()?.rsplit_once(' ')?.0.to_owned();
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let body = read.get(end + 4..end + 4 + length)?;
    let body = String::from_utf8_lossy(body).into_owned();
    Some((ReceivedRequest { line, headers, body }, read[end + 4 + length..].to_vec()))
}
