//! Callers at the Unix socket of a rank that has a secret, who do not know it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::environment::Network;
use crate::security::{Credentials, Secret};
use crate::shm::arena::Arena;
use crate::shm::connect::{ShmHost, ShmOptions, call};
use crate::shm::doorbell::Doorbell;
use crate::shm::link::ShmLink;
use crate::shm::message::{Card, Message, VERSION, receive, send, send_bytes};
use crate::shm::talk::Talk;
use crate::tests::Random;

/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// For ranks that will not find each other: long enough for both to come, on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

const SECRET: &str = "correct horse battery staple";
const MEETING: [u8; 16] = [7; 16];

fn network(secret: Option<&str>, encrypt: bool) -> Network {
    let secret = secret.map(|text| Secret::from_text(text, "a test").expect("long enough"));
    Network { secret, encrypt, ..Network::default() }
}

fn host_with(network: &Network, job: &str, meeting: [u8; 16]) -> ShmHost {
    let options = ShmOptions { ring_bytes: 1, arena_bytes: Some(1 << 20), ..ShmOptions::default() };
    let mut host = ShmHost::new(options).expect("a host");
    host.authenticate(network, job, &meeting).expect("credentials");
    host
}

fn host() -> ShmHost {
    host_with(&network(Some(SECRET), false), "job", MEETING)
}

fn card(host: &ShmHost) -> Card {
    postcard::from_bytes(&host.blob()).expect("a card")
}

/// What ranks 0 and 1 get.
fn pair(hosts: &[ShmHost; 2], patience: Duration) -> [Result<ShmLink, String>; 2] {
    let deadline = Instant::now() + patience;
    let connect = |own: usize| {
        let peer = 1 - own as u32;
        let peers = [(peer, hosts[1 - own].blob())];
        hosts[own].connect(own as u32, &peers, deadline).expect("a host that works").remove(&peer).expect("a result")
    };
    thread::scope(|scope| {
        let zero = scope.spawn(|| connect(0));
        let one = connect(1);
        [zero.join().expect("no panic"), one]
    })
}

/// Calls until there is room.
fn calling(card: &Card) -> OwnedFd {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(socket) = call(card).expect("it listens") {
            return socket;
        }
        assert!(Instant::now() < deadline, "there is no room");
        thread::yield_now();
    }
}

/// A caller with memory of its own that says what it likes.
struct Caller {
    arena: Arc<Arena>,
    doorbell: Doorbell,
    socket: OwnedFd,
}

impl Caller {
    fn at(card: &Card) -> Caller {
        Caller::beside(calling(card))
    }

    fn beside(socket: OwnedFd) -> Caller {
        let arena = Arena::new(Some(1 << 20)).expect("an arena");
        Caller { arena, doorbell: Doorbell::new().expect("a doorbell"), socket }
    }

    fn hello(&self, rank: u32, secret: [u8; 16], handshake: Vec<u8>) -> Message {
        Message::Hello {
            version: VERSION,
            rank,
            secret,
            ring_bytes: 1 << 14,
            arena_bytes: self.arena.bytes() as u64,
            probe: 8,
            references: true,
            handshake,
        }
    }

    /// Greets as rank 1, knowing the card of the other side, and hears the answer.
    fn greet(&self, card: &Card, handshake: Vec<u8>) -> Result<Message, String> {
        let hello = self.hello(1, card.secret, handshake);
        send(self.socket.as_fd(), &hello, &[self.arena.file(), self.doorbell.bell()])?;
        receive(self.socket.as_fd(), Instant::now() + PATIENCE).map(|(message, _)| message)
    }
}

/// A genuine first message of rank 1 to rank 0.
fn opening() -> Vec<u8> {
    opening_of(1)
}

fn opening_of(rank: u32) -> Vec<u8> {
    let credentials =
        Credentials::for_shared_memory(&network(Some(SECRET), false), "job", &MEETING).expect("credentials");
    credentials.initiate(credentials.claim(rank, 0, 0)).expect("random").1
}

#[test]
fn ranks_with_one_secret_share_memory() {
    for encrypt in [false, true] {
        let network = network(Some(SECRET), encrypt);
        let hosts = [(); 2].map(|()| host_with(&network, "job", MEETING));
        for link in pair(&hosts, PATIENCE) {
            link.unwrap_or_else(|reason| panic!("encrypt {encrypt}: {reason}"));
        }
    }
}

#[test]
fn ranks_with_different_secrets_share_nothing_and_both_say_why() {
    let others = [
        ("another secret", Some("correct horse battery stable"), false, "job", MEETING, "its handshake does not fit"),
        ("another mode", Some(SECRET), true, "job", MEETING, "its handshake does not fit"),
        ("another job", Some(SECRET), false, "bob", MEETING, "its handshake does not fit"),
        ("another meeting", Some(SECRET), false, "job", [8; 16], "its handshake does not fit"),
        ("no secret", None, false, "job", MEETING, "it has no shared secret and this rank has one"),
    ];
    let refused = |what, hosts: &[ShmHost; 2], expected| {
        let [lower, higher] = pair(hosts, SHORT).map(|link| link.err().unwrap_or_else(|| panic!("{what}: a link")));
        assert!(lower.contains("who called was refused: ") && lower.contains(expected), "{what}: {lower}");
        assert!(higher.contains("the other side refuses: ") && higher.contains(expected), "{what}: {higher}");
    };
    thread::scope(|scope| {
        for (what, secret, encrypt, job, meeting, expected) in others {
            let hosts = [host(), host_with(&network(secret, encrypt), job, meeting)];
            scope.spawn(move || refused(what, &hosts, expected));
        }
        let hosts = [host_with(&network(None, false), "job", MEETING), host()];
        refused("no secret at the lower rank", &hosts, "it has a shared secret and this rank has none");
    });
}

/// Even one that knows what only ranks are told at the rendezvous.
#[test]
fn whoever_cannot_open_the_handshake_does_not_keep_the_rank_out() {
    let hosts = [host(), host()];
    let (genuine, card) = (opening(), card(&hosts[0]));
    let peers = |rank: usize| [(rank as u32, hosts[rank].blob())];
    let deadline = Instant::now() + PATIENCE;
    let [lower, higher] = thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let cut = (0..genuine.len()).map(|bytes| genuine[..bytes].to_vec());
            let changed = (0..genuine.len() * 8).map(|bit| {
                let mut changed = genuine.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                changed
            });
            let credentials = Credentials::for_links(&network(Some(SECRET), false), "job", &MEETING).expect("a secret");
            let for_tcp = credentials.initiate(credentials.claim(1, 0, 0)).expect("random").1;
            let of_another_rank = opening_of(2);
            for handshake in cut.chain(changed).chain([for_tcp, of_another_rank]) {
                let bytes = handshake.len();
                let answer = Caller::at(&card).greet(&card, handshake).expect_err("a refusal");
                assert!(answer.starts_with("the other side refuses: "), "{bytes} bytes: {answer}");
            }
        });
        let lower = scope.spawn(|| hosts[0].connect(0, &peers(1), deadline).expect("works").remove(&1));
        strangers.join().expect("no panic");
        let higher = hosts[1].connect(1, &peers(0), deadline).expect("works").remove(&0);
        [lower.join().expect("no panic"), higher]
    });
    assert!(lower.expect("a result").is_ok() && higher.expect("a result").is_ok());
}

/// A genuine opening can be said again by who has heard it; what follows, only by who has made it. Nobody waits for what
/// such callers say next, and the rank that they claim to be still has its link.
#[test]
fn an_opening_that_is_said_again_neither_gives_a_link_nor_costs_one() {
    let then = [
        (Message::Proof { seen: [0; 16], probed: Err(1), arena_mapped: true }, "its handshake does not fit"),
        (Message::Sealed(vec![0; 40]), "its handshake does not fit"),
        (Message::Sealed(Vec::new()), "its handshake does not fit"),
        (Message::refusal("as anybody can say"), "as anybody can say"),
    ];
    let hosts = [host(), host()];
    let (card, start) = (card(&hosts[0]), Instant::now());
    let peers = |rank: usize| [(rank as u32, hosts[rank].blob())];
    let claim = || {
        let caller = Caller::at(&card);
        let answer = caller.greet(&card, opening()).expect("an opening that looks genuine");
        assert!(matches!(answer, Message::Hello { rank: 0, .. }), "{answer:?}");
        caller
    };
    let links = thread::scope(|scope| {
        let lower = scope.spawn(|| hosts[0].connect(0, &peers(1), start + PATIENCE).expect("works").remove(&1));
        for (next, told) in then {
            let caller = claim();
            send(caller.socket.as_fd(), &next, &[]).expect("it listens");
            let refusal = receive(caller.socket.as_fd(), Instant::now() + PATIENCE).expect_err("a refusal");
            assert!(refusal.starts_with("the other side refuses: ") && refusal.contains(told), "{refusal}");
        }
        // More than are kept, and they say nothing more.
        let silent: Vec<Caller> = (0..20).map(|_| claim()).collect();
        let oldest = receive(silent[0].socket.as_fd(), Instant::now() + PATIENCE).expect_err("it has to go");
        assert!(oldest.contains("closed the Unix socket"), "{oldest}");
        let higher = hosts[1].connect(1, &peers(0), start + PATIENCE).expect("works").remove(&0);
        [lower.join().expect("no panic"), higher]
    });
    for link in links {
        link.expect("a result").unwrap_or_else(|reason| panic!("{reason}"));
    }
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

/// What is sealed is its own: nobody waits for another one then.
#[test]
fn a_rank_that_refuses_the_link_itself_is_believed_at_once() {
    let (ours, absent) = (host(), host());
    let (card, peers, start) = (card(&ours), [(1, absent.blob())], Instant::now());
    let credentials =
        Credentials::for_shared_memory(&network(Some(SECRET), false), "job", &MEETING).expect("credentials");
    let link = thread::scope(|scope| {
        let link = scope.spawn(|| ours.connect(0, &peers, start + PATIENCE).expect("works").remove(&1));
        let (initiator, opening) = credentials.initiate(credentials.claim(1, 0, 0)).expect("random");
        let caller = Caller::at(&card);
        let answer = caller.greet(&card, opening).expect("a genuine opening");
        let Message::Hello { handshake, .. } = answer else { panic!("{answer:?}") };
        let cipher = Some(initiator.finish(&handshake).expect("it fits"));
        Talk { cipher, ..Talk::new(caller.socket.as_fd()) }.refuse("it cannot map the rings");
        link.join().expect("no panic")
    });
    let reason = link.expect("a result").expect_err("no link");
    assert_eq!(reason, "the other side refuses: it cannot map the rings");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

/// One that does not know the secret, and listens where a rank should.
#[test]
fn whoever_cannot_answer_the_handshake_is_not_believed() {
    for handshake in [vec![0; 48], Vec::new(), opening()] {
        let (impostor, ours) = (host(), host());
        let own_secret = card(&ours).secret;
        let reason = thread::scope(|scope| {
            let link = scope.spawn(|| {
                let peers = [(0, impostor.blob())];
                ours.connect(1, &peers, Instant::now() + PATIENCE).expect("works").remove(&0).expect("a result")
            });
            let caller = impostor.accepted(Instant::now() + PATIENCE);
            receive(caller.as_fd(), Instant::now() + PATIENCE).expect("a greeting");
            let memory = Caller::beside(caller);
            let hello = memory.hello(0, own_secret, handshake);
            send(memory.socket.as_fd(), &hello, &[memory.arena.file(), memory.doorbell.bell()]).expect("it listens");
            link.join().expect("no panic").expect_err("no link")
        });
        assert!(reason.contains("its handshake does not fit"), "{reason}");
    }
}

/// Callers that come and go for ever hold a rank up no longer than until its deadline.
#[test]
fn a_flood_of_callers_ends_with_the_deadline() {
    let (ours, absent) = (host(), host());
    let (card, peers) = (card(&ours), [(1, absent.blob())]);
    let ended = AtomicBool::new(false);
    let (elapsed, reason) = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                drop(call(&card));
            }
        });
        let start = Instant::now();
        let link = ours.connect(0, &peers, start + SHORT).expect("works").remove(&1).expect("a result");
        ended.store(true, Ordering::Relaxed);
        (start.elapsed(), link.expect_err("nobody is there"))
    });
    assert!(elapsed < PATIENCE / 2, "{elapsed:?}");
    assert!(reason.contains("did not call within the time"), "{reason}");
}

/// Random and changed messages, each over a connection of its own, while a rank waits for its peer.
#[test]
fn noise_at_the_socket_is_dropped() {
    let messages = if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 100_000 } else { 3_000 };
    let mut random = Random::new();
    let mut random = |below: usize| random.below(below);
    let hosts = [host(), host()];
    let (genuine, card) = (opening(), card(&hosts[0]));
    let (arena, doorbell) = (Arena::new(Some(1 << 20)).expect("an arena"), Doorbell::new().expect("a doorbell"));
    let peers = |rank: usize| [(rank as u32, hosts[rank].blob())];
    let deadline = Instant::now() + 10 * PATIENCE;
    let [lower, higher] = thread::scope(|scope| {
        let lower = scope.spawn(|| hosts[0].connect(0, &peers(1), deadline).expect("works").remove(&1));
        for _ in 0..messages {
            let hello = Message::Hello {
                version: VERSION,
                rank: random(3) as u32,
                secret: card.secret,
                ring_bytes: 1 << random(64),
                arena_bytes: 1 << random(64),
                probe: 8,
                references: true,
                handshake: genuine[..random(genuine.len())].to_vec(),
            };
            let mut bytes = postcard::to_stdvec(&hello).expect("short");
            if random(2) == 0 {
                bytes = (0..1 + random(1500)).map(|_| random(256) as u8).collect();
            }
            for _ in 0..random(4) {
                let bit = random(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let socket = calling(&card);
            let _ = send_bytes(socket.as_fd(), &bytes, &[arena.file(), doorbell.bell()][..random(3)]);
        }
        let higher = hosts[1].connect(1, &peers(0), deadline).expect("works").remove(&0);
        [lower.join().expect("no panic"), higher]
    });
    for link in [lower, higher] {
        link.expect("a result").unwrap_or_else(|reason| panic!("{reason}"));
    }
}
