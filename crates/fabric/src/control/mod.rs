//! Control messages over sockets, before there are links: length-prefixed, bounded, with deadlines, sealed if there is a
//! secret.

mod channel;
mod message;
mod reception;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use channel::Channel;
pub(crate) use message::MessageError;
pub use message::VERSION;
pub(crate) use reception::{Arrival, Event, Reception, has_left};

/// No attempt to connect takes longer: an address that swallows packets must not eat all the time there is.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);

/// Connections that may wait until we accept them; the kernel has its own bound (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listens at `address`; the IPv6 wildcard covers IPv4, too.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A job that starts right after another on the same port must not stumble over the connections of the first.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connects to `address`.
pub(crate) fn dial(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = TcpStream::connect_timeout(&address, left.min(ATTEMPT_MAX))?;
    // A port that nobody listens on may be the one that the kernel picks for us, and then we reach ourselves.
    if socket.local_addr()? == socket.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Waits until one of the descriptors is ready or the time has come. False at the deadline.
fn wait(descriptors: &mut [PollFd<'_>], until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(descriptors, Some(&timeout)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
