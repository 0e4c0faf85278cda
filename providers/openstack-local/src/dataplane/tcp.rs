//! TCP: accepting, finding a member, carrying.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};

use super::{
    config::{PoolProtocol, Timeouts},
    front::{Ends, Front, Settings},
    pool::{Pool, Use},
    proxy,
    relay::{Silence, relay},
};

/// Connections that the kernel has set up and nobody has accepted yet; the system's own limit is usually this.
const BACKLOG: u32 = 4096;

/// After an accept that failed for want of descriptors or memory: long enough for some to end, short enough to go unseen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// While one member after the other fails, the search ends after this many times the limit for one of them.
pub(super) const SEARCH_FACTOR: u32 = 4;

/// Binds a listening socket.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of a listener that was here before may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until told to stop; the socket closes with the return.
pub(super) async fn accept<F, T>(listener: TcpListener, front: Arc<Front>, serve: F)
where
    F: Fn(TcpStream, Ends, Arc<Front>, Arc<Settings>) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    let accepting = async {
        let mut failing = false;
        loop {
            front.room().await;
            match listener.accept().await {
                Ok((stream, client)) => {
                    failing = false;
                    admit(stream, client, &front, &serve);
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "cannot accept connections for now");
                    }
                    failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    front.stop.run_until_cancelled(accepting).await;
}

/// Errors of a connection that ended before it was accepted.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn admit<F, T>(stream: TcpStream, client: SocketAddr, front: &Arc<Front>, serve: &F)
where
    F: Fn(TcpStream, Ends, Arc<Front>, Arc<Settings>) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    let settings = front.settings();
    if !settings.admits(client.ip()) {
        front.refuse();
        // Reset rather than closed: nothing of the client's is read, and nothing lingers here.
        let _ = stream.set_zero_linger();
        return;
    }
    let Ok(local) = stream.local_addr() else { return };
    // Small messages must not wait for acknowledgements. A socket that refuses is a socket that is gone.
    let _ = stream.set_nodelay(true);
    let open = front.open();
    let serving = serve(stream, Ends { client, local }, front.clone(), settings);
    let kill = front.kill.clone();
    front.tasks.spawn(async move {
        kill.run_until_cancelled(serving).await;
        drop(open);
    });
}

/// Carries a client's bytes to a member and back.
pub(super) async fn serve(mut client: TcpStream, ends: Ends, front: Arc<Front>, settings: Arc<Settings>) {
    let timeouts = settings.config.timeouts;
    let Some((mut member, used)) = connect(settings.pool.as_deref(), ends, timeouts).await else {
        front.error();
        return;
    };
    // A connection that serves does not hold on to what was asked of the listener.
    drop(settings);
    let silence = Silence { client: timeouts.client_data, member: timeouts.member_data };
    let relaying = relay(client.split(), member.split(), silence, &*front);
    // How a connection ends is between its two sides; there is nobody to tell.
    let _ = used.member.gone.run_until_cancelled(relaying).await;
}

/// Opens a connection to a member: the one chosen, or else the next. `None` when no member takes it.
pub(super) async fn connect(pool: Option<&Pool>, ends: Ends, timeouts: Timeouts) -> Option<(TcpStream, Use)> {
    let pool = pool?;
    let mut tried = Vec::new();
    let begin = Instant::now();
    while let Some(used) = pool.choose(ends.client, &mut tried) {
        match open(used.member.socket, pool.config.protocol, ends, timeouts.member_connect).await {
            Ok(stream) => return Some((stream, used)),
            Err(error) => tracing::debug!(member = %used.member.id, %error, "cannot connect to member"),
        }
        let limit = timeouts.member_connect * SEARCH_FACTOR;
        if !limit.is_zero() && begin.elapsed() >= limit {
            break;
        }
    }
    None
}

/// Opens a connection to one member and sends the header that its pool wants.
pub(super) async fn open(
    member: SocketAddr,
    protocol: PoolProtocol,
    ends: Ends,
    limit: Duration,
) -> io::Result<TcpStream> {
    let opening = async {
        let mut stream = TcpStream::connect(member).await?;
        stream.set_nodelay(true)?;
        if let Some(header) = proxy::header(protocol, Some(ends))? {
            stream.write_all(&header).await?;
        }
        Ok(stream)
    };
    if limit.is_zero() { opening.await } else { timeout(limit, opening).await? }
}
