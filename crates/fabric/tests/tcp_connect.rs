//! Links are opened between the members of a world, and only between them.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::{Recorder, Want, data, payload, piece};
use paceline_fabric::environment::Network;
use paceline_fabric::rendezvous::{HostIdentity, Member, Members};
use paceline_fabric::{
    AcceptorError, Link, TcpAcceptor, TcpConnectError, TcpConnectOptions, TcpConnected, connect_tcp,
};

type Outcome = Result<TcpConnected, TcpConnectError>;

/// What the rendezvous would say about ranks with these acceptors.
fn members(acceptors: &[TcpAcceptor]) -> Vec<Members> {
    let member = |(acceptor, rank): (&TcpAcceptor, u32)| Member {
        rank,
        host: format!("host{rank}"),
        process: 100 + rank,
        identity: HostIdentity::here(),
        addresses: acceptor.addresses().to_vec(),
        seen_at: None,
        blob: Vec::new(),
    };
    let all: Vec<Member> = acceptors.iter().zip(0..).map(member).collect();
    let world_size = all.len() as u32;
    let of = |rank| Members {
        rank,
        world_size,
        job: "a job".into(),
        nonce: [9; 16],
        members: all.clone(),
        notes: Vec::new(),
    };
    (0..world_size).map(of).collect()
}

fn acceptors(count: usize, network: &Network) -> Vec<TcpAcceptor> {
    (0..count).map(|_| TcpAcceptor::open(network).expect("loopback")).collect()
}

/// Connects all with all, each as its own thread.
fn connect_all(
    acceptors: Vec<TcpAcceptor>,
    options: impl Fn(u32) -> TcpConnectOptions + Sync,
    adjust: impl Fn(&mut Members) + Sync,
    timeout: Duration,
) -> Vec<Outcome> {
    let deadline = Instant::now() + timeout;
    let members = members(&acceptors);
    thread::scope(|scope| {
        let threads: Vec<_> = acceptors
            .into_iter()
            .zip(members)
            .map(|(acceptor, mut members)| {
                let (options, adjust) = (&options, &adjust);
                scope.spawn(move || {
                    adjust(&mut members);
                    let peers: BTreeSet<u32> = (0..members.world_size).filter(|&peer| peer != members.rank).collect();
                    connect_tcp(&members, acceptor, &peers, &options(members.rank), deadline)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn all_ranks_link_with_all_over_any_number_of_streams_and_either_family() {
    for (interface, insecure) in [(None, false), (Some("lo"), false), (Some("127.0.0.1"), false), (None, true)] {
        for streams in [1, 3] {
            let network = Network { interface: interface.map(String::from), insecure, ..Network::default() };
            let options = TcpConnectOptions { streams, network: network.clone(), ..TcpConnectOptions::default() };
            let outcomes = connect_all(acceptors(4, &network), |_| options.clone(), |_| (), LONG);
            check_mesh(outcomes, streams);
        }
    }
    // IPv6 by itself, where the host has it.
    if TcpStream::connect("[::1]:1").is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
        let network = Network { interface: Some("::1".into()), ..Network::default() };
        let acceptors = acceptors(2, &network);
        assert!(acceptors.iter().flat_map(TcpAcceptor::addresses).all(|address| address.is_ipv6()));
        check_mesh(connect_all(acceptors, |_| TcpConnectOptions::default(), |_| (), LONG), 1);
    }
}

/// Every pair has a link, and each link leads to whom it says.
fn check_mesh(outcomes: Vec<Outcome>, streams: u32) {
    let mut links: Vec<_> =
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|error| panic!("{error}")).links).collect();
    let words: Vec<Vec<u8>> = (0..links.len() as u32).map(|rank| payload(rank, 50_000)).collect();
    for (rank, links) in (0..).zip(&mut links) {
        for link in links.values_mut() {
            assert_eq!(link.streams(), streams as usize);
            // SAFETY: the words outlive the links.
            unsafe { link.enqueue(&data(rank, 50_000), &[piece(&words[rank as usize])], 0) };
            while !link.flush(&mut |_| ()).expect("a link that works") {}
        }
    }
    let count = links.len();
    for (rank, links) in (0..).zip(&mut links) {
        assert_eq!(links.len(), count - 1);
        for (&peer, link) in links {
            let mut recorder = Recorder::new(|_| Want::Memory);
            while recorder.frames.is_empty() {
                link.receive(&mut recorder).expect("a link that works");
            }
            assert_eq!(recorder.frames[0].0.tile, peer, "rank {rank} reached somebody else");
            assert!(recorder.frames[0].1 == words[peer as usize]);
        }
    }
}

#[test]
fn strangers_get_no_link_and_hold_nobody_up() {
    let acceptors = acceptors(2, &Network::default());
    let address = acceptors[0].addresses()[0];
    let silent: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(address).expect("rank 0 listens")).collect();
    let mut loud = TcpStream::connect(address).expect("rank 0 listens");
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("rank 0 reads");
    // One that knows the protocol and not the nonce: the preamble of rank 1.
    let preamble = postcard::to_stdvec(&([8u8; 16], 1u32, 0u32, 0u32, 1u32)).expect("a message");
    let mut cunning = TcpStream::connect(address).expect("rank 0 listens");
    let frame = [b"PcLc\x05\0\0\0", &(preamble.len() as u32).to_le_bytes()[..], &preamble].concat();
    cunning.write_all(&frame).expect("rank 0 reads");

    let start = Instant::now();
    let mut outcomes = connect_all(acceptors, |_| TcpConnectOptions::default(), |_| (), LONG);
    assert!(start.elapsed() < Duration::from_secs(4), "somebody waited for a stranger");
    let notes = outcomes[0].as_ref().expect("a link").notes.join("\n");
    assert!(notes.contains("begins with \"GET \"") && notes.contains("it belongs to another job"), "{notes}");
    let notes = outcomes[1].as_ref().expect("a link").notes.join("\n");
    assert!(notes.contains(&format!("rank 0: TCP to {address}")), "{notes}");
    check_mesh(std::mem::take(&mut outcomes), 1);
    drop((silent, loud, cunning));
}

#[test]
fn a_peer_that_never_dials_or_never_answers_is_named() {
    let timeout = Duration::from_secs(1);
    // Below those that the kernel gives to listeners that name none: where rank 0 was, nobody else listens later.
    let first = 30_100 + (std::process::id() % 1000) as u16;
    let mut acceptors = acceptors(3, &Network { ports: Some(first..=first + 99), ..Network::default() });
    let all = members(&acceptors);
    let deadline = Instant::now() + timeout;
    // Rank 1 of three: rank 0 listens and never answers, rank 2 never dials.
    let acceptor = acceptors.remove(1);
    let error = connect_tcp(&all[1], acceptor, &BTreeSet::from([2]), &TcpConnectOptions::default(), deadline).err();
    let error = error.expect("no link");
    assert_eq!(error.culprit(), Some((2, "host2")));
    let message = error.to_string();
    let expected = "rank 2 did not open a TCP link in time; look at the output of rank 2 (host host2, process 102), or";
    assert!(message.starts_with(expected) && message.ends_with(&error.next_step()), "{message}");
    let acceptor = TcpAcceptor::open(&Network::default()).expect("loopback");
    let deadline = Instant::now() + timeout;
    let error = connect_tcp(&all[1], acceptor, &BTreeSet::from([0]), &TcpConnectOptions::default(), deadline).err();
    let expected =
        format!("no TCP link to rank 0 (host host0, process 100): {}: it says nothing", acceptors[0].addresses()[0]);
    let error = error.expect("no link");
    assert_eq!(
        (error.culprit(), error.to_string()),
        (Some((0, "host0")), format!("{expected}; {}", error.next_step()))
    );
    assert!(error.next_step().contains("PACELINE_INTERFACE"), "{error}");
    // Rank 0 is gone.
    drop(acceptors);
    let acceptor = TcpAcceptor::open(&Network::default()).expect("loopback");
    let deadline = Instant::now() + timeout;
    let error = connect_tcp(&all[1], acceptor, &BTreeSet::from([0]), &TcpConnectOptions::default(), deadline).err();
    let message = error.expect("no link").to_string();
    assert!(message.contains("rank 0 (host host0, process 100)") && message.contains("refused"), "{message}");
}

#[test]
fn ranks_that_were_told_different_things_say_so() {
    let streams = |rank| TcpConnectOptions { streams: 1 + rank, ..TcpConnectOptions::default() };
    let start = Instant::now();
    let outcomes = connect_all(acceptors(2, &Network::default()), streams, |_| (), LONG);
    let messages: Vec<String> =
        outcomes.into_iter().map(|outcome| outcome.err().expect("no link").to_string()).collect();
    assert_eq!(
        messages[0],
        "rank 1 (host host1, process 101) opens 2 connections per link, this rank 1: give all ranks the same options"
    );
    assert_eq!(
        messages[1],
        "no TCP link to rank 0 (host host0, process 100): it refuses: rank 1 opens 2 connections per link, rank 0 1; \
         give all ranks the same options"
    );
    assert!(start.elapsed() < LONG / 2, "an error of one side waits for the other");

    // Rank 0 wants no link with rank 1, which wants one.
    let mut acceptors = acceptors(2, &Network::default());
    let all = members(&acceptors);
    let deadline = Instant::now() + Duration::from_millis(500);
    let (one, zero) = (acceptors.pop().expect("two"), acceptors.pop().expect("two"));
    let options = TcpConnectOptions::default();
    thread::scope(|scope| {
        scope.spawn(|| connect_tcp(&all[0], zero, &BTreeSet::from([]), &options, deadline));
        let error = connect_tcp(&all[1], one, &BTreeSet::from([0]), &options, deadline).err().expect("no link");
        assert!(error.to_string().starts_with("no TCP link to rank 0"), "{error}");
    });
}

#[test]
fn other_hosts_are_refused_with_the_reason() {
    // A peer on another host that listens on a documentation address (RFC 5737).
    let elsewhere = |members: &mut Members| {
        members.members[0].identity = HostIdentity { boot: "another".into(), network_namespace: 1 };
        members.members[0].addresses = vec!["203.0.113.7:4000".parse().expect("an address")];
    };
    let acceptors = acceptors(2, &Network::default());
    let mut members = members(&acceptors).remove(1);
    elsewhere(&mut members);
    let connect = |members: &Members| {
        let acceptor = TcpAcceptor::open(&Network::default()).expect("loopback");
        let deadline = Instant::now() + LONG;
        let outcome = connect_tcp(members, acceptor, &BTreeSet::from([0]), &TcpConnectOptions::default(), deadline);
        outcome.err().expect("no link").to_string()
    };
    let message = connect(&members);
    assert!(
        message.starts_with("no TCP link to rank 0 (host host0, process 100): 203.0.113.7 is another host"),
        "{message}"
    );
    assert!(message.contains("PACELINE_INSECURE=1"), "{message}");
    // One that listens on its own loopback only.
    members.members[0].addresses = vec!["127.0.0.1:4000".parse().expect("an address")];
    let message = connect(&members);
    assert!(message.contains("(127.0.0.1:4000): it has no shared secret"), "{message}");
    assert!(message.contains("PACELINE_SECRET_FILE") && message.contains("PACELINE_INSECURE=1"), "{message}");
}

#[test]
fn the_interface_and_the_ports_can_be_named() {
    let network = Network { interface: Some("no-such-interface".into()), ..Network::default() };
    let error = TcpAcceptor::open(&network).err().expect("no such interface").to_string();
    assert!(error.starts_with("PACELINE_INTERFACE=no-such-interface: ") && error.contains("lo (127.0.0.1)"), "{error}");

    // Below those that the kernel gives to callers: no other test takes it while it is free.
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (10_000 + (std::process::id() % 20_000) as u16..).find(is_free).expect("a free port");
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    let network = Network { ports: Some(port..=port), ..Network::default() };
    let error = TcpAcceptor::open(&network).err().expect("the port is taken");
    assert!(matches!(error, AcceptorError::NoPort { .. }));
    assert!(error.to_string().contains(&format!("PACELINE_PORT_RANGE={port}-{port}: ")), "{error}");
    drop(taken);
    let acceptor = TcpAcceptor::open(&network).expect("the port is free");
    assert_eq!(acceptor.addresses()[0].port(), port);
    let note = &acceptor.notes()[0];
    assert!(note.starts_with(&format!("listening for TCP links on 127.0.0.1:{port} (")), "{note}");
}
