//! An agent's part: what its host has, and what the paths to another host carry.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use paceline_fabric::interfaces;
use serde::{Deserialize, Serialize};

use super::{Finding, checks};

/// A path is measured with so many bytes at most,
const BYTES_MAX: u64 = 64 << 20;
/// and for so long at most.
const SENDING: Duration = Duration::from_secs(1);
/// How long an address may take to answer, and a stranger to say nothing.
const CONNECTING: Duration = Duration::from_secs(1);
/// How long what the kernel has queued may take to arrive.
const ARRIVING: Duration = Duration::from_secs(5);
/// No path takes longer.
pub const PATH_MAX: Duration = Duration::from_secs(8);

/// How a host stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Examination {
    /// Processes with the same one share their network.
    pub network: String,
    /// In the order in which other ranks try them; no loopback.
    pub nics: Vec<Nic>,
    /// What was looked at.
    pub findings: Vec<Finding>,
}

/// An address of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Nic {
    /// As `ip link` calls it.
    pub name: String,
    /// Its first address.
    pub address: IpAddr,
    /// What its driver says, in Mbit/s.
    pub speed: Option<u64>,
}

/// What a path to an address carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Path {
    /// Of the other host.
    pub address: IpAddr,
    /// The NIC that leads there; none if it is not known.
    pub nic: Option<Nic>,
    /// Bits per second that have arrived; or why there are none.
    pub rate: Result<f64, String>,
}

/// Looks at this host, on which so many ranks are to run.
pub fn examine(ranks: usize, interface: Option<&str>) -> Examination {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    Examination {
        network: format!("{} {}", boot.trim(), namespace.display()),
        nics: nics(),
        findings: checks::all(ranks, interface),
    }
}

fn nics() -> Vec<Nic> {
    let mut nics: Vec<Nic> = Vec::new();
    for interface in interfaces().unwrap_or_default() {
        if !interface.address.is_loopback() && nics.iter().all(|nic| nic.name != interface.name) {
            let speed = checks::stated_speed(&interface.name);
            nics.push(Nic { name: interface.name, address: interface.address, speed });
        }
    }
    nics
}

/// Takes what comes from whoever knows the token, and says when all of it is there. Ends with the process.
pub fn receive(listener: &TcpListener, token: &[u8; 16]) {
    for socket in listener.incoming() {
        // Whoever fails is told by its own end of the connection.
        let _ = socket.and_then(|socket| drain(socket, token));
    }
}

fn drain(mut socket: TcpStream, token: &[u8; 16]) -> io::Result<()> {
    socket.set_read_timeout(Some(CONNECTING))?;
    let mut claim = [0; 16];
    socket.read_exact(&mut claim)?;
    if claim != *token {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let (mut piece, mut bytes, deadline) = (vec![0; 256 << 10], 0_u64, Instant::now() + PATH_MAX);
    loop {
        match socket.read(&mut piece)? {
            0 => return socket.write_all(&bytes.to_le_bytes()),
            count => bytes += count as u64,
        }
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// Measures the paths to these addresses, one after another.
pub fn measure(addresses: &[SocketAddr], token: &[u8; 16]) -> Vec<Path> {
    let nics = nics();
    addresses.iter().map(|address| path(*address, token, &nics)).collect()
}

fn path(address: SocketAddr, token: &[u8; 16], nics: &[Nic]) -> Path {
    let ip = address.ip();
    let socket = match TcpStream::connect_timeout(&address, CONNECTING) {
        Ok(socket) => socket,
        Err(error) => return Path { address: ip, nic: None, rate: Err(error.to_string()) },
    };
    let local = socket.local_addr().ok().map(|local| local.ip().to_canonical());
    // The NIC may have several addresses, of which its first stands here.
    let name = interfaces().unwrap_or_default().into_iter().find(|interface| Some(interface.address) == local);
    let nic = name.and_then(|interface| nics.iter().find(|nic| nic.name == interface.name).cloned());
    Path { address: ip, nic, rate: send(socket, token).map_err(|error| error.to_string()) }
}

/// Bits per second.
fn send(mut socket: TcpStream, token: &[u8; 16]) -> io::Result<f64> {
    socket.set_write_timeout(Some(SENDING))?;
    socket.set_read_timeout(Some(ARRIVING))?;
    socket.write_all(token)?;
    let (piece, mut bytes, start) = (vec![0; 256 << 10], 0_u64, Instant::now());
    while bytes < BYTES_MAX && start.elapsed() < SENDING {
        match socket.write(&piece) {
            Ok(count) => bytes += count as u64,
            // Nothing has left for a second; what is queued may still arrive.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    socket.shutdown(Shutdown::Write)?;
    let mut arrived = [0; 8];
    socket.read_exact(&mut arrived)?;
    Ok(u64::from_le_bytes(arrived) as f64 * 8.0 / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    #[test]
    fn a_path_is_measured_strangers_are_turned_away_and_deaf_addresses_say_why() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || receive(&listener, &[7; 16]));
        let deaf = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|deaf| deaf.local_addr()).expect("loopback");
        let paths = measure(&[deaf, address], &[7; 16]);
        assert!(paths[0].rate.as_ref().is_err_and(|why| why.contains("refused")), "{paths:?}");
        assert!(paths[1].rate.as_ref().is_ok_and(|rate| *rate > 1e6), "{paths:?}");
        assert!(measure(&[address], &[8; 16])[0].rate.is_err());
    }
}
