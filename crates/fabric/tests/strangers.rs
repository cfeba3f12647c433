//! Who does not know the secret gets nothing, breaks nothing, and holds nobody up: at the rendezvous and at links.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::meeting::Place;
use common::{Random, Recorder, Want, data, payload, piece, resident_kib};
use paceline_fabric::environment::{Network, World};
use paceline_fabric::rendezvous::{HostIdentity, Member, Members, RendezvousError, meet};
use paceline_fabric::security::Secret;
use paceline_fabric::{
    CONTROL_VERSION, Link, TcpAcceptor, TcpConnectError, TcpConnectOptions, TcpConnected, connect_tcp,
};

/// Longer than anything takes here, unless it hangs.
const LONG: Duration = Duration::from_secs(30);

/// How long a connection may take over its handshake (the constant of the implementation).
const PATIENCE: Duration = Duration::from_secs(5);

/// Whoever waits for strangers to be through theirs takes longer; nobody else does, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(4500);

const SECRET: &str = "correct horse battery staple";

fn with_secret(secret: &str, encrypt: bool) -> Network {
    let secret = Some(Secret::from_text(secret, "a test").expect("long enough"));
    Network { secret, encrypt, ..Network::default() }
}

/// A port where ranks meet, that rank 0 will inherit.
struct Meeting {
    place: Place,
    job: &'static str,
    network: Network,
    timeout: Duration,
}

impl Meeting {
    fn new(job: &'static str, network: Network) -> Meeting {
        Meeting { place: Place::new(), job, network, timeout: LONG }
    }

    /// One of two ranks.
    fn start(&self, rank: u32) -> JoinHandle<Result<Members, RendezvousError>> {
        self.start_at(rank, self.place.port)
    }

    fn start_at(&self, rank: u32, port: u16) -> JoinHandle<Result<Members, RendezvousError>> {
        let world = World { job: self.job.into(), ..Place { port, ..self.place }.world(rank, 2) };
        let (network, timeout) = (self.network.clone(), self.timeout);
        thread::spawn(move || meet(&world, &network, timeout, Vec::new(), vec![7; 100]))
    }

    fn dial(&self) -> TcpStream {
        dial(([127, 0, 0, 1], self.place.port).into())
    }

    /// The genuine rank 1 comes, and both are content. What rank 0 noted.
    #[track_caller]
    fn complete(&self, zero: JoinHandle<Result<Members, RendezvousError>>) -> String {
        let start = Instant::now();
        self.start(1).join().expect("no panic").expect("it knows the secret");
        let members = zero.join().expect("no panic").expect("rank 1 came");
        assert!(start.elapsed() < AT_ONCE, "strangers held it up for {:?}", start.elapsed());
        members.notes.join("\n")
    }
}

/// Where rank 0 of two listens for the link of rank 1, and what both know.
struct LinkPort {
    address: SocketAddr,
    acceptor: Option<TcpAcceptor>,
    members: [Members; 2],
    options: TcpConnectOptions,
}

impl LinkPort {
    fn new(network: &Network) -> LinkPort {
        let acceptor = TcpAcceptor::open_local(network).expect("loopback");
        let address = acceptor.addresses()[0];
        let member = |rank| Member {
            rank,
            host: format!("host{rank}"),
            process: 100 + rank,
            identity: HostIdentity::here(),
            addresses: vec![address],
            seen_at: None,
            blob: Vec::new(),
        };
        let of = |rank| Members {
            rank,
            world_size: 2,
            job: "a job".into(),
            nonce: [9; 16],
            members: vec![member(0), member(1)],
            notes: Vec::new(),
        };
        let options = TcpConnectOptions { network: network.clone(), ..TcpConnectOptions::default() };
        LinkPort { address, acceptor: Some(acceptor), members: [of(0), of(1)], options }
    }

    fn accept(&mut self, timeout: Duration) -> JoinHandle<Result<TcpConnected, TcpConnectError>> {
        let (members, options) = (self.members[0].clone(), self.options.clone());
        let acceptor = self.acceptor.take().expect("it accepts once");
        thread::spawn(move || connect_tcp(&members, acceptor, &BTreeSet::from([1]), &options, Instant::now() + timeout))
    }

    /// As rank 1, which looks for rank 0 at `address`.
    fn connect(&self, address: SocketAddr, timeout: Duration) -> Result<TcpConnected, TcpConnectError> {
        let mut members = self.members[1].clone();
        members.members[0].addresses = vec![address];
        let acceptor = TcpAcceptor::open_local(&self.options.network).expect("loopback");
        connect_tcp(&members, acceptor, &BTreeSet::from([0]), &self.options, Instant::now() + timeout)
    }

    /// The genuine rank 1 comes, and both are content. What rank 0 noted.
    #[track_caller]
    fn complete(&self, zero: JoinHandle<Result<TcpConnected, TcpConnectError>>) -> String {
        let start = Instant::now();
        let mut one = self.connect(self.address, LONG).unwrap_or_else(|error| panic!("{error}"));
        let mut zero = zero.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        assert!(start.elapsed() < AT_ONCE, "strangers held it up for {:?}", start.elapsed());
        exchange(&mut zero, &mut one, &payload(1, 300_000));
        zero.notes.join("\n")
    }
}

/// Rank 1 sends words to rank 0.
fn exchange(zero: &mut TcpConnected, one: &mut TcpConnected, words: &[u8]) {
    let (to, from) = (one.links.get_mut(&0).expect("a link"), zero.links.get_mut(&1).expect("a link"));
    // SAFETY: the words outlive the loop, which ends when they have been received.
    unsafe { to.enqueue(&data(1, words.len()), &[piece(words)], 0) };
    let mut recorder = Recorder::new(|_| Want::Memory);
    while recorder.frames.is_empty() {
        to.flush(&mut |_| ()).expect("a link that works");
        from.receive(&mut recorder).expect("a link that works");
    }
    assert!(recorder.frames[0].1 == words);
}

fn dial(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("somebody listens");
    socket.set_read_timeout(Some(LONG)).expect("a socket");
    socket
}

/// What somebody answers to these bytes and nothing more.
fn answer_to(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // It may have been turned away before it has said all.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    answer
}

/// Passes one connection on to `to`, and keeps what the dialling side has said.
fn eavesdrop(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&heard);
    thread::spawn(move || {
        let near = listener.accept().expect("somebody dials").0;
        let far = TcpStream::connect(to).expect("somebody listens");
        let pass = |mut from: TcpStream, mut to: TcpStream, keep: Option<Arc<Mutex<Vec<u8>>>>| {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if let Some(keep) = &keep {
                    keep.lock().expect("no panic").extend_from_slice(&bytes[..count]);
                }
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        };
        let clone = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
        let (near_too, far_too) = (clone(&near), clone(&far));
        thread::spawn(move || pass(far_too, near_too, None));
        pass(near, far, Some(keep));
    });
    (address, heard)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Of an answer: how it begins, and that nothing follows a refusal.
const ACCEPTANCE: &[u8] = b"PcLc\x05\0\x02\x01";
const REFUSAL: &[u8] = b"PcLc\x05\0\x03\x01\0\0\0\0";

#[test]
fn what_was_heard_at_the_rendezvous_says_nothing_and_opens_nothing() {
    let meeting = Meeting::new("a job", with_secret(SECRET, false));
    let zero = meeting.start(0);
    let (address, heard) = eavesdrop(([127, 0, 0, 1], meeting.place.port).into());
    meeting.start_at(1, address.port()).join().expect("no panic").expect("it knows the secret");
    zero.join().expect("no panic").expect("rank 1 came");
    let heard = heard.lock().expect("no panic").clone();
    assert!(heard.len() > 200 && !contains(&heard, &[7; 20]), "the blob can be read");
    let opening = 12 + usize::from(heard[8]);

    // The same job once more: the opening is accepted, since it is genuine, and the rest is worth nothing.
    let again = Meeting::new("a job", with_secret(SECRET, false));
    let zero = again.start(0);
    let answer = answer_to(again.dial(), &heard);
    assert!(answer.starts_with(ACCEPTANCE) && answer.ends_with(REFUSAL), "{answer:?}");
    for bytes in (0..opening).step_by(3) {
        assert!(answer_to(again.dial(), &heard[..bytes]).is_empty(), "cut to {bytes}");
    }
    let notes = again.complete(zero);
    assert!(notes.contains("its handshake does not fit") && notes.contains("closed the connection"), "{notes}");

    // Another job, another secret, another version, another rank: refused at once.
    for (job, secret) in [("b job", SECRET), ("a job", "another secret of ours")] {
        let other = Meeting::new(job, with_secret(secret, false));
        let zero = other.start(0);
        assert_eq!(answer_to(other.dial(), &heard), REFUSAL);
        let mut version = heard[..opening].to_vec();
        version[4] = 9;
        assert_eq!(answer_to(other.dial(), &version), REFUSAL);
        let mut to_another = heard[..opening].to_vec();
        to_another[14] = 1;
        assert_eq!(answer_to(other.dial(), &to_another), REFUSAL);
        let notes = other.complete(zero);
        for part in ["does not fit", "version 9", "it means rank 1, this is rank 0"] {
            assert!(notes.contains(part), "{part} is not in {notes}");
        }
    }
}

#[test]
fn what_was_heard_on_a_link_opens_no_link_and_says_nothing_if_encrypted() {
    for encrypt in [true, false] {
        let mut port = LinkPort::new(&with_secret(SECRET, encrypt));
        let zero = port.accept(LONG);
        let (address, heard) = eavesdrop(port.address);
        let mut one = port.connect(address, LONG).unwrap_or_else(|error| panic!("{error}"));
        let mut zero = zero.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"));
        let words = b"attack at dawn ".repeat(10_000);
        exchange(&mut zero, &mut one, &words);
        drop((zero, one));
        let heard = heard.lock().expect("no panic").clone();
        assert!(heard.len() > words.len());
        assert_eq!(contains(&heard, b"attack at dawn"), !encrypt);

        let mut again = LinkPort::new(&with_secret(SECRET, encrypt));
        let zero = again.accept(LONG);
        let answer = answer_to(dial(again.address), &heard[..1000]);
        let mode = if encrypt { 2 } else { 1 };
        assert!(answer.starts_with(&[&ACCEPTANCE[..7], &[mode]].concat()), "{answer:?}");
        let notes = again.complete(zero);
        assert!(notes.contains("its handshake does not fit"), "{notes}");
    }
}

#[test]
fn links_of_ranks_with_different_secrets_stay_closed() {
    let theirs = LinkPort::new(&with_secret("another secret of ours", false));
    for (network, reason) in [
        (with_secret(SECRET, false), "refuses our handshake"),
        (with_secret(SECRET, true), "it encrypts and this rank does not"),
        (Network::default(), "it has no shared secret and this rank has one"),
    ] {
        let mut port = LinkPort::new(&network);
        // It calls again and again until its time is over: once at least it is answered.
        let zero = port.accept(Duration::from_secs(3));
        let error = theirs.connect(port.address, Duration::from_millis(1500)).err().expect("no link").to_string();
        let expected = format!("no TCP link to rank 0 (host host0, process 100): {}: ", port.address);
        assert!(error.starts_with(&expected) && error.contains(reason), "{reason}: {error}");
        let error = zero.join().expect("no panic").err().expect("no link").to_string();
        assert!(error.starts_with("rank 1 did not open a TCP link in time; turned away 127.0.0.1:"), "{error}");
    }
}

/// Connections that stall at every stage of a handshake. Each is dropped at its deadline, and until then nobody waits
/// for it.
fn stalled(dial: impl Fn() -> TcpStream, opening: &[u8]) -> Vec<TcpStream> {
    let stages = [0, 1, 11, 12, 30, opening.len() - 1, opening.len()];
    let stall = |bytes: usize| {
        let mut socket = dial();
        socket.write_all(&opening[..bytes]).expect("room");
        socket
    };
    stages.into_iter().map(stall).collect()
}

/// All of them end, when their time is over and not before.
fn assert_dropped(sockets: Vec<TcpStream>, since: Instant) {
    for mut socket in sockets {
        let mut answer = Vec::new();
        // A connection with unread bytes ends with a reset.
        let _ = socket.read_to_end(&mut answer);
        assert!(since.elapsed() > PATIENCE - Duration::from_millis(500), "dropped after {:?}", since.elapsed());
        assert!(since.elapsed() < LONG - PATIENCE, "dropped after {:?}", since.elapsed());
    }
}

/// The opening of a genuine rank 1: whoever listens at this port hears it.
fn opening_at(listener: &TcpListener) -> Vec<u8> {
    let mut socket = listener.accept().expect("rank 1 dials").0;
    let mut opening = vec![0; 12];
    socket.read_exact(&mut opening).expect("a header");
    opening.resize(12 + usize::from(opening[8]), 0);
    socket.read_exact(&mut opening[12..]).expect("a body");
    opening
}

/// A genuine opening for the rendezvous, and one for a link.
fn openings(network: &Network) -> [Vec<u8>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let mut meeting = Meeting::new("a job", network.clone());
    meeting.timeout = Duration::from_secs(1);
    let one = meeting.start_at(1, address.port());
    let rendezvous = opening_at(&listener);
    assert!(one.join().expect("no panic").is_err(), "nobody answers");
    let port = LinkPort::new(network);
    let link = thread::scope(|scope| {
        scope.spawn(|| port.connect(address, Duration::from_secs(1)));
        // The first may still be a call of the rendezvous that was not accepted.
        std::iter::from_fn(|| Some(opening_at(&listener))).find(|opening| opening[12] == 1).expect("one of them")
    });
    [rendezvous, link]
}

#[test]
fn connections_that_stall_hold_nobody_up_and_are_dropped() {
    let network = with_secret(SECRET, false);
    let [opening, link_opening] = openings(&network);
    let meeting = Meeting::new("a job", network.clone());
    let waiting = Meeting::new("a job", network.clone());
    let (mut port, mut waiting_port) = (LinkPort::new(&network), LinkPort::new(&network));
    let (zero, zero_waiting) = (meeting.start(0), waiting.start(0));
    let (accepting, accepting_waiting) = (port.accept(LONG), waiting_port.accept(LONG));
    let begun = Instant::now();
    let sockets = [
        stalled(|| meeting.dial(), &opening),
        stalled(|| waiting.dial(), &opening),
        stalled(|| dial(port.address), &link_opening),
        stalled(|| dial(waiting_port.address), &link_opening),
    ];
    thread::sleep(Duration::from_millis(100));
    // The genuine ranks come while all of them stall …
    meeting.complete(zero);
    port.complete(accepting);
    // … and elsewhere the strangers are dropped while rank 0 waits on.
    let [_, at_meeting, _, at_port] = sockets;
    assert_dropped(at_meeting.into_iter().chain(at_port).collect(), begun);
    let notes = [waiting.complete(zero_waiting), waiting_port.complete(accepting_waiting)];
    assert!(notes.iter().all(|notes| notes.contains("it says nothing")), "{notes:?}");
}

#[test]
fn idle_strangers_use_up_neither_descriptors_nor_patience() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map_or(Some(8192), |most| Some(most.min(8192)));
    setrlimit(Resource::Nofile, limit).expect("the soft limit may rise to the hard one");
    let open = || std::fs::read_dir("/proc/self/fd").expect("it is there").count();
    let network = with_secret(SECRET, false);
    let meeting = Meeting::new("a job", network.clone());
    let mut port = LinkPort::new(&network);
    let (zero, accepting) = (meeting.start(0), port.accept(LONG));
    let before = open();
    let idle: Vec<TcpStream> = (0..1500).flat_map(|_| [meeting.dial(), dial(port.address)]).collect();
    thread::sleep(Duration::from_millis(200));
    // 512 on each side, and what other tests of this process have open.
    let held = open().saturating_sub(before + idle.len());
    assert!(held <= 2 * 512 + 300, "{held} descriptors for strangers");
    let notes = [meeting.complete(zero), port.complete(accepting)];
    assert!(notes.iter().all(|notes| notes.contains("too many others are waiting")), "{notes:?}");
    drop(idle);
}

/// The header of a control message.
fn head(kind: u8, mode: u8, length: u32) -> Vec<u8> {
    [b"PcLc", &CONTROL_VERSION.to_le_bytes()[..], &[kind, mode], &length.to_le_bytes()].concat()
}

/// What a stranger might say: nothing but noise, or something genuine with a few changes.
fn frame(random: &mut Random, genuine: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = match random.below(4) {
        0 => {
            let count = random.below(600);
            random.bytes(count)
        }
        1 => {
            // Our version, and whatever follows.
            let count = random.below(300);
            let length = [count, random.below(1 << 20), usize::MAX][random.below(3)] as u32;
            [head(random.below(5) as u8, random.below(4) as u8, length), random.bytes(count)].concat()
        }
        _ => genuine[random.below(genuine.len())].clone(),
    };
    random.damage(&mut bytes);
    bytes
}

/// What is said of a header only if its version is ours: another kind, mode or length is due.
const BEYOND_THE_VERSION: [&str; 5] =
    ["it sends kind", "it has a mode of", "it announces a message", "shared secret and this rank", "encrypts and "];

/// Sends frames, each on a connection of its own, several at a time. Every connection must end.
fn bombard(dial: impl Fn() -> TcpStream, frames: usize, random: &mut Random, genuine: &[Vec<u8>]) {
    for batch in 0..frames.div_ceil(50) {
        let say = |_| {
            let mut socket = dial();
            let _ = socket.write_all(&frame(random, genuine));
            let _ = socket.shutdown(Shutdown::Write);
            socket
        };
        let sockets: Vec<TcpStream> = (0..50.min(frames - batch * 50)).map(say).collect();
        for mut socket in sockets {
            let _ = socket.read_to_end(&mut Vec::new());
        }
    }
}

#[test]
fn random_and_changed_frames_at_the_ports_break_nothing() {
    let long = std::env::var_os("PACELINE_LONG_TESTS").is_some();
    // Four ports: a million in all.
    let frames = if long { 250_000 } else { 2_000 };
    let mut random = Random::new();
    let mut notes = String::new();
    let hello = |job: &str| {
        let alone =
            meet(&Meeting::new("", Network::default()).world_of_one(), &Network::default(), LONG, vec![], vec![]);
        let mut member = alone.expect("a world of one").own().clone();
        member.rank = 1;
        let body = postcard::to_stdvec(&(job, 2u32, "", member)).expect("a message");
        [head(0, 0, body.len() as u32), body].concat()
    };
    for network in [Network::default(), with_secret(SECRET, false)] {
        let [opening, link_opening] = match network.secret {
            // Not of this job: without a secret, who knows the job can end it.
            None => [hello("another job"), hello("x")],
            Some(_) => openings(&network),
        };
        let mut meeting = Meeting::new("a job", network.clone());
        // Longer than all strangers together, however slow the machine is.
        meeting.timeout = Duration::from_secs(3600);
        let mut port = LinkPort::new(&network);
        let (zero, accepting) = (meeting.start(0), port.accept(meeting.timeout));
        let genuine = [opening, link_opening];
        let mut bombard_both = |frames| {
            bombard(|| meeting.dial(), frames, &mut random, &genuine);
            bombard(|| dial(port.address), frames, &mut random, &genuine);
        };
        bombard_both(frames / 10);
        let before = resident_kib();
        bombard_both(frames - frames / 10);
        let grown = resident_kib().saturating_sub(before);
        // Other tests of this process may run at the same time; a leak of 64 bytes a frame would show when it is long.
        assert!(grown < 24 << 10, "{grown} KiB more after {frames} frames");
        notes += &[meeting.complete(zero), port.complete(accepting), String::new()].join("\n");
    }
    // Each port notes the first 32 that it turns away, and about every fifth is one of these.
    let beyond = notes.lines().filter(|note| BEYOND_THE_VERSION.iter().any(|words| note.contains(words))).count();
    assert!(beyond >= 4, "the version stops all that come with another kind, mode or length: {notes}");
}

impl Meeting {
    fn world_of_one(&self) -> World {
        World { job: self.job.into(), meeting_point: None, listener: None, ..self.place.world(0, 1) }
    }
}
