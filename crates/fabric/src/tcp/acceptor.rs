use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;

use crate::control::listen;
use crate::environment::Network;
use crate::interfaces::{Interface, interfaces};
use crate::system::next_step_after;
use crate::text::list;

/// Where this rank listens for links over TCP, before it tells the others.
pub struct TcpAcceptor {
    pub(super) listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    notes: Vec<String>,
}

/// Why a rank cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// The named interface is not there.
    #[error(
        "PACELINE_INTERFACE={name}: there is no such interface with an address, there are {}; {}",
        list(.there), self.next_step()
    )]
    NoInterface {
        /// What was asked for.
        name: String,
        /// What there is, with addresses.
        there: Vec<String>,
    },
    /// All ports of the range are taken.
    #[error(
        "PACELINE_PORT_RANGE={}-{}: all these ports of {address} are in use; {}",
        .ports.start(), .ports.end(), self.next_step()
    )]
    NoPort {
        /// Where.
        address: IpAddr,
        /// What was allowed.
        ports: RangeInclusive<u16>,
    },
    /// The operating system refused.
    #[error("listening for TCP links, {doing}: {source}; {}", self.next_step())]
    Io {
        /// What was tried.
        doing: String,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

impl AcceptorError {
    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> String {
        match self {
            AcceptorError::NoInterface { .. } => "name one of them".into(),
            AcceptorError::NoPort { .. } => "name more".into(),
            AcceptorError::Io { source, .. } => next_step_after(source),
        }
    }
}

impl TcpAcceptor {
    /// Listens on the named interface; else on all if other hosts are admitted, and only on loopback if they are not.
    ///
    /// # Errors
    /// If the interface or the ports that were named are not to be had.
    pub fn open(network: &Network) -> Result<TcpAcceptor, AcceptorError> {
        TcpAcceptor::reachable_from(network, network.admits_others())
    }

    /// The same for a world whose ranks are all on this host: a secret alone lets no other host reach this rank.
    ///
    /// # Errors
    /// As [`TcpAcceptor::open`].
    pub fn open_local(network: &Network) -> Result<TcpAcceptor, AcceptorError> {
        TcpAcceptor::reachable_from(network, network.insecure)
    }

    fn reachable_from(network: &Network, other_hosts: bool) -> Result<TcpAcceptor, AcceptorError> {
        let all = interfaces()
            .map_err(|source| AcceptorError::Io { doing: "listing the network interfaces".into(), source })?;
        match &network.interface {
            Some(name) => TcpAcceptor::on_interface(name, &all, network),
            None if other_hosts => TcpAcceptor::everywhere(&all, network),
            None => TcpAcceptor::on_loopback(network),
        }
    }

    /// What to tell the other ranks.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What was chosen, and why: worth a line in a log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn on_interface(name: &str, all: &[Interface], network: &Network) -> Result<TcpAcceptor, AcceptorError> {
        let by_address: Option<IpAddr> = name.parse().ok();
        let chosen = all.iter().filter(|interface| interface.name == name || by_address == Some(interface.address));
        let listeners = chosen.map(|interface| listen_in(interface.address, network)).collect::<Result<Vec<_>, _>>()?;
        if listeners.is_empty() {
            let there = all.iter().map(|interface| format!("{} ({})", interface.name, interface.address)).collect();
            return Err(AcceptorError::NoInterface { name: name.to_owned(), there });
        }
        let addresses = listeners.iter().map(|(_, address)| *address).collect();
        let why = format!("PACELINE_INTERFACE={name}");
        Ok(TcpAcceptor::new(listeners.into_iter().map(|(listener, _)| listener).collect(), addresses, &why))
    }

    fn everywhere(all: &[Interface], network: &Network) -> Result<TcpAcceptor, AcceptorError> {
        let (listener, bound) = listen_in(Ipv6Addr::UNSPECIFIED.into(), network).or_else(|error| {
            if is_busy(&error) { Err(error) } else { listen_in(Ipv4Addr::UNSPECIFIED.into(), network) }
        })?;
        let reachable = all.iter().map(|interface| interface.address).filter(|own| bound.is_ipv6() || own.is_ipv4());
        let mut addresses: Vec<SocketAddr> = reachable.map(|own| SocketAddr::new(own, bound.port())).collect();
        // Others see a member's first 256 addresses at most; nobody has so many that matter.
        addresses.truncate(256);
        Ok(TcpAcceptor::new(vec![listener], addresses, "all interfaces; PACELINE_INTERFACE names one"))
    }

    fn on_loopback(network: &Network) -> Result<TcpAcceptor, AcceptorError> {
        let (listener, address) = listen_in(Ipv4Addr::LOCALHOST.into(), network).or_else(|error| {
            if is_busy(&error) { Err(error) } else { listen_in(Ipv6Addr::LOCALHOST.into(), network) }
        })?;
        let why = match network.secret {
            Some(_) => "all ranks are on this host",
            None => "without a secret only this host is admitted; PACELINE_SECRET_FILE admits others",
        };
        Ok(TcpAcceptor::new(vec![listener], vec![address], why))
    }

    fn new(listeners: Vec<TcpListener>, addresses: Vec<SocketAddr>, why: &str) -> TcpAcceptor {
        let notes = vec![format!("listening for TCP links on {} ({why})", list(&addresses))];
        TcpAcceptor { listeners, addresses, notes }
    }
}

fn is_busy(error: &AcceptorError) -> bool {
    matches!(error, AcceptorError::NoPort { .. })
}

/// Listens at a free port: one of the range, if there is one.
fn listen_in(address: IpAddr, network: &Network) -> Result<(TcpListener, SocketAddr), AcceptorError> {
    let io = |source| AcceptorError::Io { doing: format!("binding {address}"), source };
    for port in network.ports.clone().unwrap_or(0..=0) {
        match listen(SocketAddr::new(address, port)) {
            Ok(listener) => {
                let bound = listener.local_addr().map_err(io)?;
                return Ok((listener, bound));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && network.ports.is_some() => {}
            Err(error) => return Err(io(error)),
        }
    }
    Err(AcceptorError::NoPort { address, ports: network.ports.clone().unwrap_or(0..=0) })
}
