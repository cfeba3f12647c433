//! What the tests of links share: frames, a sink that remembers, pairs of links, meeting points, random numbers from a seed.
#![allow(dead_code, reason = "each test program uses some of it")]

pub mod filter;
pub mod meeting;
pub mod random;
pub mod shm;

use std::collections::{BTreeSet, HashMap};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use paceline_engine::frame::{Header, Kind};
use paceline_fabric::emulation::{Ports, ShapedLink};
use paceline_fabric::environment::Network;
use paceline_fabric::rendezvous::{HostIdentity, Member, Members};
use paceline_fabric::security::Secret;
use paceline_fabric::shm::ShmOptions;
use paceline_fabric::{
    Descriptor, Link, LinkError, Piece, Sink, Target, TcpAcceptor, TcpConnectOptions, TcpLink, TcpOptions, connect_tcp,
};
use paceline_plan::{Emulation, Hosts, OperationKey};
pub use random::Random;
use rustix::event::{PollFd, PollFlags, poll};

/// A data frame with this name and payload.
pub fn data(id: u32, bytes: usize) -> Header {
    let bytes = bytes as u32;
    Header { tile: id, message_bytes: bytes, payload_bytes: bytes, ..control(Kind::Data, id) }
}

/// A frame without payload.
pub fn control(kind: Kind, id: u32) -> Header {
    Header { tile: id, ..Header::new(kind, OperationKey { operation: u64::from(id), ..OperationKey::default() }) }
}

/// What frame `id` carries.
pub fn payload(id: u32, bytes: usize) -> Vec<u8> {
    let mut random = Random(u64::from(id));
    let pattern = random.bytes(251.min(bytes));
    pattern.iter().cycle().take(bytes).copied().collect()
}

/// The whole of `bytes` as a piece.
pub fn piece(bytes: &[u8]) -> Piece {
    Piece { start: bytes.as_ptr(), bytes: bytes.len() }
}

/// How a [`Recorder`] wants payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Memory,
    Slices(usize),
    Discard,
}

/// Remembers what arrives and checks the order of the calls. Frames of different connections may interleave.
pub struct Recorder {
    pub frames: Vec<(Header, Vec<u8>)>,
    pub want: Box<dyn FnMut(&Header) -> Want>,
    open: HashMap<u32, (Want, Vec<u8>, usize)>,
}

impl Recorder {
    pub fn new(want: impl FnMut(&Header) -> Want + 'static) -> Recorder {
        Recorder { frames: Vec::new(), want: Box::new(want), open: HashMap::new() }
    }

    pub fn unfinished(&self) -> usize {
        self.open.len()
    }

    pub fn kinds(&self) -> Vec<Kind> {
        self.frames.iter().filter_map(|(header, _)| header.kind()).collect()
    }
}

impl Sink for Recorder {
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError> {
        let want = (self.want)(header);
        let mut memory = vec![0; header.wire_payload_bytes() as usize];
        let target = match want {
            Want::Memory => Target::Memory(memory.as_mut_ptr()),
            Want::Slices(granularity) => Target::Slices(granularity),
            Want::Discard => Target::Discard,
        };
        assert!(self.open.insert(header.tile, (want, memory, 0)).is_none(), "frame {} begins twice", header.tile);
        Ok(target)
    }

    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError> {
        let (want, memory, done) = self.open.get_mut(&header.tile).expect("bytes of a frame that has begun");
        let Want::Slices(granularity) = *want else { panic!("slices for a sink that wanted {want:?}") };
        assert_eq!(offset, *done, "a slice is missing or out of order");
        assert!(!slice.is_empty() && slice.len() <= 128 << 10, "a slice of {} bytes", slice.len());
        memory[offset..offset + slice.len()].copy_from_slice(slice);
        *done += slice.len();
        assert!(
            *done == memory.len() || slice.len().is_multiple_of(granularity),
            "{} bytes split an element",
            slice.len()
        );
        Ok(())
    }

    fn end(&mut self, header: &Header) -> Result<(), LinkError> {
        let (want, memory, done) = self.open.remove(&header.tile).expect("the end of a frame that has begun");
        if matches!(want, Want::Slices(_)) {
            assert_eq!(done, memory.len(), "frame {} ends before its payload does", header.tile);
        }
        self.frames.push((*header, memory));
        Ok(())
    }
}

/// A connected pair of sockets.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let dialled = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    (dialled, listener.accept().expect("the other end").0)
}

/// Two TCP links over `streams` connections; small send buffers make every write partial.
pub fn tcp_pair(streams: usize, options: TcpOptions, send_buffer_bytes: Option<usize>) -> (TcpLink, TcpLink) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..streams {
        let (a, b) = sockets();
        for socket in [&a, &b] {
            if let Some(bytes) = send_buffer_bytes {
                socket2::SockRef::from(socket).set_send_buffer_size(bytes).expect("a send buffer");
            }
        }
        left.push(a);
        right.push(b);
    }
    (TcpLink::new(left, options).expect("a link"), TcpLink::new(right, options).expect("a link"))
}

/// Two TCP links that encrypt, opened as ranks open them.
pub fn encrypted_pair(streams: u32) -> (TcpLink, TcpLink) {
    let network = Network { secret: Secret::generate().ok(), encrypt: true, ..Network::default() };
    let options = TcpConnectOptions { streams, network, ..TcpConnectOptions::default() };
    let acceptors = [(); 2].map(|()| TcpAcceptor::open_local(&options.network).expect("loopback"));
    let member = |(rank, acceptor): (usize, &TcpAcceptor)| Member {
        rank: rank as u32,
        host: "here".into(),
        process: std::process::id(),
        identity: HostIdentity::here(),
        addresses: acceptor.addresses().to_vec(),
        seen_at: None,
        blob: Vec::new(),
    };
    let members: Vec<Member> = acceptors.iter().enumerate().map(member).collect();
    let connect = |rank: u32, acceptor| {
        let members = members.clone();
        let members = Members { rank, world_size: 2, job: String::new(), nonce: [1; 16], members, notes: Vec::new() };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let connected = connect_tcp(&members, acceptor, &BTreeSet::from([1 - rank]), &options, deadline);
        connected.unwrap_or_else(|error| panic!("{error}")).links.pop_first().expect("a link").1
    };
    let [zero, one] = acceptors;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| connect(1, one));
        (connect(0, zero), one.join().expect("no panic"))
    })
}

/// Resident memory in KiB.
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Sleeps until a descriptor of the link wakes, at most so long. True if one did.
pub fn wait(link: &dyn Link, timeout: Duration) -> bool {
    let mut descriptors = Vec::new();
    link.descriptors(&mut descriptors);
    let wait = |descriptor: &Descriptor| {
        let write = if descriptor.write { PollFlags::OUT } else { PollFlags::empty() };
        // SAFETY: the descriptor belongs to the link, which outlives the wait.
        PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(descriptor.fd) }, PollFlags::IN | write)
    };
    let mut waits: Vec<PollFd<'_>> = descriptors.iter().map(wait).collect();
    let time = rustix::event::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    poll(&mut waits, Some(&time)).expect("poll") > 0
}

/// Both ends of a link, named.
pub type Pair = (&'static str, Box<dyn Link>, Box<dyn Link>);

/// Every kind of pair.
pub fn pairs() -> Vec<Pair> {
    fn boxed<L: Link + 'static>(name: &'static str, (a, b): (L, L)) -> Pair {
        (name, Box::new(a), Box::new(b))
    }
    let options = TcpOptions::default();
    vec![
        boxed("memory", paceline_fabric::memory_pair()),
        boxed("shm", shm::shm_pair(ShmOptions::default())),
        boxed("shm with tiny rings", shm::shm_pair(shm::tiny())),
        boxed("tcp", tcp_pair(1, options, None)),
        boxed("tcp with small send buffers", tcp_pair(1, options, Some(4 << 10))),
        boxed("tcp, 2 streams", tcp_pair(2, options, None)),
        boxed("tcp, encrypted", encrypted_pair(1)),
        boxed("tcp, 3 streams, encrypted", encrypted_pair(3)),
        boxed("tcp, 4 streams with small send buffers", tcp_pair(4, options, Some(16 << 10))),
        boxed("shaped memory", shaped_pair(paceline_fabric::memory_pair())),
        boxed("shaped shm with tiny rings", shaped_pair(shm::shm_pair(shm::tiny()))),
    ]
}

/// A pair on an emulated network that is faster than this machine, but not without latency.
pub fn shaped_pair<L: Link + 'static>((one, other): (L, L)) -> (ShapedLink, ShapedLink) {
    let network = "alpha=30us,overhead=1us,beta=0.1ns".parse().expect("a network");
    let emulation = Emulation { network, hosts: Hosts::regular(2, 1), dilation: 1.0 };
    let ports = Ports::create(&emulation).expect("memory");
    let shape = |link: L, from, to| ShapedLink::new(Box::new(link), ports.clone(), &emulation, from, to);
    (shape(one, 0, 1), shape(other, 1, 0))
}
