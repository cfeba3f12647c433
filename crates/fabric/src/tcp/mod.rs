//! Links over TCP.

mod acceptor;
mod congestion;
mod connect;
mod inbox;
mod outbox;
mod pace;
mod queue;
#[cfg(test)]
mod tests;
mod wire;

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use paceline_engine::frame::{Header, Kind, split_lanes};
use socket2::{SockRef, TcpKeepalive};

use crate::{Descriptor, Link, LinkError, Piece, Sink, Transport};
pub use acceptor::{AcceptorError, TcpAcceptor};
pub use congestion::{CongestionControl, CongestionControlName};
pub use connect::{TcpConnectError, TcpConnectOptions, TcpConnected, connect_tcp};
use inbox::Inbox;
use outbox::{Outbox, Written};
use pace::Pace;
use queue::Queue;
use wire::Wire;

/// Bytes that one call of `receive` takes in before it returns.
const RECEIVE_BYTES_MAX: usize = 1 << 20;

/// Bytes that `close` and `settled` read and forget at once: more than a receive buffer usually holds.
const CLOSE_BYTES_MAX: usize = 16 << 20;

/// How long after one connection the others of a link end, if their peer has gone.
const OTHERS_END: Duration = Duration::from_millis(30);

/// How a [`TcpLink`] trades urgency against throughput.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Frames wait in the caller's memory once so many bytes are unsent: those are what an urgent frame can't overtake.
    /// It is what goes out in half a millisecond, as measured, but at least 32 KiB; this is the most on a fast connection.
    pub unsent_bytes_max: usize,
    /// The same as long as nothing was measured.
    pub unsent_bytes_unmeasured: usize,
    /// So many bytes that the kernel has accepted and not sent come on top (`TCP_NOTSENT_LOWAT`, tcp(7)).
    pub kernel_unsent_bytes_max: u32,
    /// Data frames with at least so many bytes of payload are bulk; all others are urgent.
    pub bulk_bytes_min: usize,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            unsent_bytes_max: 1 << 20,
            unsent_bytes_unmeasured: 256 << 10,
            kernel_unsent_bytes_max: 128 << 10,
            bulk_bytes_min: 16 << 10,
        }
    }
}

/// A link over one or more TCP connections to the same peer.
///
/// With one connection all frames keep their order. With more, the first carries the urgent frames and the others share
/// the bulk; frames name what they belong to, so their order matters only for `Goodbye`, which therefore travels on all
/// connections and is handed on when the last has brought it; its ticket comes back when nothing at all is unsent.
pub struct TcpLink {
    streams: Vec<Stream>,
    options: TcpOptions,
    goodbyes_handed_on: usize,
    /// Tickets of goodbyes that are not out on every connection yet.
    goodbye_tickets: Vec<u64>,
    /// What the peer said made no sense or was refused: nothing more of it is heard, but it can be told why.
    deaf: bool,
    /// After any other error there is nothing left to say or to hear.
    failed: bool,
    /// Since when a connection has been at its end before its time.
    lost_since: Option<Instant>,
}

/// An idle connection is probed after 5 s, and lost when 5 probes, 1 s apart, were not answered.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1)).with_retries(5);

struct Stream {
    wire: Wire,
    outbox: Outbox,
    pace: Pace,
    /// None where nothing queues: within a host.
    queue: Option<Queue>,
    inbox: Inbox,
    /// The peer takes no more bytes; what it said before may still be here to read.
    write_broken: bool,
}

impl Stream {
    /// Bytes that the kernel has not taken yet.
    fn unsent_bytes(&self) -> usize {
        self.outbox.unsent_bytes() + self.wire.unsent_bytes()
    }

    /// Of the connection's rate, from a write before which so many bytes were unsent.
    fn learn(&mut self, before: usize, options: &TcpOptions) {
        let left = self.unsent_bytes();
        if left == 0 && self.pace.is_full() {
            self.pace.drained(before, Instant::now(), options);
        } else if left == 0 {
            self.pace.took_all(before, options);
        } else if left < before || !self.pace.is_full() {
            let link = self.pace.full(before.saturating_sub(left), Instant::now());
            if let Some((bytes_per_s, queue)) = link.zip(self.queue.as_mut()) {
                queue.adapt(self.wire.socket(), bytes_per_s);
            }
        }
    }

    fn forget_unsent(&mut self) {
        self.outbox.clear();
        self.wire.forget_unsent();
    }
}

impl TcpLink {
    /// A link over these connections, in the same order on both sides, which carry what they are given as it is.
    ///
    /// # Errors
    /// If a socket refuses its options: it must be a connected stream socket of a family that has TCP.
    ///
    /// # Panics
    /// If there is no connection.
    pub fn new(connections: Vec<TcpStream>, options: TcpOptions) -> Result<TcpLink, LinkError> {
        let wires = connections.into_iter().map(Wire::Plain).collect();
        TcpLink::over(wires, options, CongestionControl::default())
    }

    fn over(
        wires: Vec<Wire>,
        options: TcpOptions,
        congestion_control: CongestionControl,
    ) -> Result<TcpLink, LinkError> {
        assert!(!wires.is_empty(), "a TCP link has at least one connection");
        let prepare = |wire: Wire| {
            let socket = wire.socket();
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let options_of = SockRef::from(socket);
            options_of.set_tcp_notsent_lowat(options.kernel_unsent_bytes_max)?;
            // A host that vanishes says nothing. (No user timeout: it would also end the link to a rank that is held by
            // a debugger.)
            options_of.set_tcp_keepalive(&KEEPALIVE)?;
            congestion_control.prepare(socket)?;
            let within_host = is_within_host(socket);
            Ok(Stream {
                wire,
                outbox: Outbox::default(),
                pace: Pace::default(),
                queue: (!within_host).then(Queue::default),
                inbox: Inbox::new(),
                write_broken: false,
            })
        };
        let streams = wires
            .into_iter()
            .map(prepare)
            .collect::<std::io::Result<_>>()
            .map_err(|source| LinkError::Io { doing: "preparing the connection", source })?;
        Ok(TcpLink {
            streams,
            options,
            goodbyes_handed_on: 0,
            goodbye_tickets: Vec::new(),
            deaf: false,
            failed: false,
            lost_since: None,
        })
    }

    /// How many connections the link has.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The bulk stream that has least to send, of those that a frame may take ([`Header::lanes`]). The first stream of the
    /// link is a bulk stream only if it is the only one.
    fn bulk_stream(&self, lanes: u16) -> usize {
        let urgent = self.streams.len().min(2) - 1;
        let bulk = self.streams.len() - urgent;
        let (count, first) = match split_lanes(lanes) {
            (0, _) => (bulk, 0),
            (count, first) => (count.min(bulk), first),
        };
        let candidates = (first..first + count).map(|number| urgent + number % bulk);
        candidates.min_by_key(|&index| self.streams[index].unsent_bytes()).unwrap_or(0)
    }

    fn try_flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        let mut moved = false;
        for stream in &mut self.streams {
            let before = stream.unsent_bytes();
            let written = stream.outbox.write(&mut stream.wire, sent);
            stream.learn(before, &self.options);
            match written {
                Ok(Written::Nothing) => {}
                Ok(Written::Some) => moved = true,
                // `receive` tells: the peer may have said why before it went.
                Ok(Written::Broken) => {
                    stream.write_broken = true;
                    stream.forget_unsent();
                }
                Err(source) => return Err(LinkError::Io { doing: "writing to the connection", source }),
            }
        }
        if self.streams.iter().all(|stream| stream.unsent_bytes() == 0) {
            self.goodbye_tickets.drain(..).for_each(sent);
        }
        Ok(moved)
    }

    fn try_receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        let budget = RECEIVE_BYTES_MAX / self.streams.len();
        let mut read = 0;
        for stream in &mut self.streams {
            read += stream.inbox.read(&mut stream.wire, budget, sink)?;
        }
        let goodbyes = self.streams.iter().map(|stream| stream.inbox.goodbyes()).min().unwrap_or(0);
        while self.goodbyes_handed_on < goodbyes {
            self.goodbyes_handed_on += 1;
            let goodbye = self.streams[0].inbox.goodbye();
            sink.begin(&goodbye)?;
            sink.end(&goodbye)?;
        }
        if read == 0 && self.is_over() {
            return Err(LinkError::Closed);
        }
        Ok(read > 0)
    }

    /// Has the peer gone? It closes its connections one after the other, and its last words may be on one that is still
    /// open here: where one has ended, the others get [`OTHERS_END`] to do so, too.
    fn is_over(&mut self) -> bool {
        let lost = |stream: &Stream| stream.write_broken || (stream.inbox.at_end() && stream.inbox.goodbyes() == 0);
        if self.streams.iter().all(|stream| stream.inbox.at_end()) {
            return true;
        }
        if !self.streams.iter().any(lost) {
            return false;
        }
        self.lost_since.get_or_insert_with(Instant::now).elapsed() >= OTHERS_END
    }

    /// Passes an error on and makes the link useless.
    fn or_fail<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if result.is_err() {
            self.failed = true;
            for stream in &mut self.streams {
                stream.forget_unsent();
                // Fails if the connection is gone already.
                let _ = stream.wire.socket().shutdown(Shutdown::Both);
            }
        }
        result
    }
}

impl Link for TcpLink {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn has_room(&self) -> bool {
        self.has_room_on(0)
    }

    fn has_room_on(&self, lanes: u16) -> bool {
        let room = |stream: &Stream| stream.unsent_bytes() < stream.pace.bytes(&self.options);
        room(&self.streams[0]) && room(&self.streams[self.bulk_stream(lanes)])
    }

    fn frame_bytes(&self, lanes: u16) -> usize {
        self.streams[self.bulk_stream(lanes)].pace.bytes(&self.options)
    }

    fn is_flushed(&self) -> bool {
        self.goodbye_tickets.is_empty() && self.streams.iter().all(|stream| stream.unsent_bytes() == 0)
    }

    unsafe fn enqueue(&mut self, header: &Header, payload: &[Piece], ticket: u64) {
        let bytes = payload.iter().map(|piece| piece.bytes).sum::<usize>();
        assert_eq!(bytes, header.wire_payload_bytes() as usize, "pieces that do not fit their header");
        let bulk = header.kind == Kind::Data as u8 && bytes >= self.options.bulk_bytes_min;
        let goodbye = header.kind == Kind::Goodbye as u8;
        if goodbye {
            self.goodbye_tickets.push(ticket);
        }
        let first = if bulk { self.bulk_stream(header.lanes) } else { 0 };
        let last = if goodbye { self.streams.len() - 1 } else { first };
        for stream in &mut self.streams[first..=last] {
            if !self.failed && !stream.write_broken {
                // SAFETY: the caller's promise is the one that `push` asks for.
                unsafe { stream.outbox.push(header, payload, (!goodbye).then_some(ticket)) };
            }
        }
    }

    fn flush(&mut self, sent: &mut dyn FnMut(u64)) -> Result<bool, LinkError> {
        let result = self.try_flush(sent);
        self.or_fail(result)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if self.failed || self.deaf {
            return Err(LinkError::Closed);
        }
        match self.try_receive(sink) {
            Err(error @ LinkError::Protocol { .. }) => {
                // No frame after it can be trusted. The other direction stays open for the reason.
                self.deaf = true;
                Err(error)
            }
            result => self.or_fail(result),
        }
    }

    fn descriptors(&self, into: &mut Vec<Descriptor>) {
        // A connection at its end is readable forever.
        let awake = self.streams.iter().filter(|stream| !stream.inbox.at_end());
        into.extend(
            awake.map(|stream| Descriptor { fd: stream.wire.socket().as_raw_fd(), write: stream.unsent_bytes() > 0 }),
        );
    }

    fn abandon(&mut self) {
        self.goodbye_tickets.clear();
        for stream in &mut self.streams {
            stream.outbox.abandon();
            stream.inbox.abandon();
        }
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        // If it fails, the peer learns from the closed connection what it would have learnt from the rest.
        let _ = self.try_flush(&mut |_| ());
        for stream in &mut self.streams {
            stream.forget_unsent();
            let _ = stream.wire.socket().shutdown(Shutdown::Write);
            stream.inbox.discard(stream.wire.socket(), CLOSE_BYTES_MAX);
        }
    }

    /// Dropping a socket that has unread bytes resets the connection (RFC 2525, 2.17), and what the peer's side has not
    /// acknowledged by then is lost: so all that comes is read, until the peer has closed, too, or has everything.
    fn settled(&mut self) -> bool {
        self.streams.iter_mut().all(|stream| {
            let socket = stream.wire.socket();
            stream.inbox.discard(socket, CLOSE_BYTES_MAX);
            let all_said =
                stream.outbox.unsent_bytes() + stream.wire.unsent_bytes() + unacknowledged_bytes(socket) == 0;
            all_said || stream.inbox.at_end()
        })
    }
}

/// Do both ends of a connection have the same address?
fn is_within_host(socket: &TcpStream) -> bool {
    let (here, there) = (socket.local_addr(), socket.peer_addr());
    here.is_ok_and(|here| there.is_ok_and(|there| here.ip() == there.ip() || there.ip().is_loopback()))
}

/// Bytes (and the end of the stream, which counts as one) that the peer's side does not have yet.
fn unacknowledged_bytes(socket: &TcpStream) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the request (SIOCOUTQ, tcp(7)) writes one integer there.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes.unsigned_abs() as usize } else { 0 }
}
