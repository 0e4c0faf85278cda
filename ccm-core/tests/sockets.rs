//! What the HTTPS server listens on. Apart from the other tests, because a machine may lack an
//! address family: then a case is ignored, and says so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use ccm_core::{
    config::{Invocation, Product, parse},
    runtime::serving::Server,
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use socket2::{Domain, Socket, Type};

fn main() {
    libtest_mimic::run(&Arguments::from_args(), cases()).exit();
}

/// Every address of the machine, in whichever family it is written, is reached by both.
fn cases() -> Vec<Trial> {
    let (v4, v6) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    [
        case("every_ipv4_address_is_reached_by_ipv4", v4, Ipv4Addr::LOCALHOST.into()),
        case("every_ipv4_address_is_reached_by_ipv6", v4, Ipv6Addr::LOCALHOST.into()),
        case("every_ipv6_address_is_reached_by_ipv4", v6, Ipv4Addr::LOCALHOST.into()),
        case("every_ipv6_address_is_reached_by_ipv6", v6, Ipv6Addr::LOCALHOST.into()),
    ]
    .into()
}

fn case(name: &str, bound: IpAddr, client: IpAddr) -> Trial {
    let needed = if bound.is_ipv6() {
        Ipv6Addr::LOCALHOST.into()
    } else {
        client
    };
    match TcpListener::bind((needed, 0)) {
        Ok(_) => Trial::test(name, move || is_reached(bound, client)),
        Err(error) => {
            let reason = format!("this machine cannot listen on {needed}: {error}");
            Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
        }
    }
}

fn is_reached(bound: IpAddr, client: IpAddr) -> Result<(), Failed> {
    // Has the port, so that nobody else gets it, and does not listen.
    let domain = if bound.is_ipv6() {
        Domain::IPV6
    } else {
        Domain::IPV4
    };
    let holder = Socket::new(domain, Type::STREAM, None)?;
    holder.set_reuse_port(true)?;
    holder.bind(&SocketAddr::new(bound, 0).into())?;
    let port = holder
        .local_addr()?
        .as_socket()
        .ok_or("the socket has no port")?
        .port();

    let flags = [
        "--cloud-provider=mock",
        "--permit-port-sharing=true",
        &format!("--bind-address={bound}"),
        &format!("--secure-port={port}"),
    ];
    let Invocation::Run(config) = parse(&Product::new("ccm-test", "v1.2.3", &["mock"]), flags)?
    else {
        return Err("the flags ask for help".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let server = Server::bind(&config.serving)?.ok_or("there is no server")?;
    // The kernel takes the connection as long as somebody listens.
    TcpStream::connect((client, port))
        .map_err(|error| format!("{} is not reached: {error}", server.address()))?;
    Ok(())
}
