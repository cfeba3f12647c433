//! A world that does not form says so on every rank that can know it: in a type, with whom it blames, and in a sentence
//! that ends with what to do.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;

use std::io::Write;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use meeting::{Place, listener, port};
use paceline_comm::{CommError, Communicator, Config, ConnectCause, ConnectError, Transport, TransportChoice};
use paceline_fabric::CONTROL_VERSION;
use paceline_fabric::environment::{Environment, Network, World};
use paceline_fabric::rendezvous::{Refusal, RendezvousError};
use paceline_plan::Shape;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LONG: Duration = Duration::from_secs(30);
/// Long enough for all that come to have come, on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

/// A rank that finds no world.
fn start(world: World, timeout: Duration) -> JoinHandle<CommError> {
    start_on(Shape::Flat, world, timeout)
}

/// The same, told how its hosts are wired.
fn start_on(topology: Shape, world: World, timeout: Duration) -> JoinHandle<CommError> {
    thread::spawn(move || {
        let plain = Config::from_environment().expect("nothing launched this test");
        let network = Network::default();
        let environment = Environment { world: Some(world), network, timeout, heartbeat: None, stall: None, topology };
        let config = Config { environment, transport: TransportChoice::Tcp, ..plain };
        Communicator::connect(config).map(|_| ()).expect_err("no world")
    })
}

fn here() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What a rank says is complete. Gives why, and whom it blames.
#[track_caller]
fn said(thread: JoinHandle<CommError>, reporting: usize) -> (ConnectCause, Option<(usize, String)>, String) {
    let error = thread.join().expect("no panic");
    let text = error.to_string();
    let CommError::Connect { rank, host, cause, culprit, error, next_step } = error else { panic!("{text}") };
    assert_eq!((rank, &host, error.cause()), (Some(reporting), &here(), cause), "{text}");
    assert!(text.starts_with(&format!("rank {reporting} on {host}: ")), "{text}");
    assert!(next_step.len() > 10 && text.ends_with(&next_step), "{text}");
    assert_eq!(text.matches(&next_step).count(), 1, "{text}");
    (cause, culprit.map(|culprit| (culprit.rank, culprit.host)), text)
}

#[test]
fn two_processes_of_one_rank_are_told_to_all() {
    let place = Place::new();
    let ranks = [0, 1, 1].map(|rank| (start(place.world(rank, 3), LONG), rank));
    for (thread, rank) in ranks {
        let (cause, culprit, text) = said(thread, rank as usize);
        assert_eq!((cause, culprit), (ConnectCause::Duplicate, Some((1, here()))), "{text}");
    }
}

#[test]
fn different_world_sizes_are_told_to_both_with_both() {
    let place = Place::new();
    let ranks = [(0, 2), (1, 3)].map(|(rank, world_size)| start(place.world(rank, world_size), LONG));
    for (rank, thread) in ranks.into_iter().enumerate() {
        let (cause, culprit, text) = said(thread, rank);
        assert_eq!((cause, culprit), (ConnectCause::WorldSize, Some((1, here()))), "{text}");
        assert!(text.contains("3 ranks, rank 0 says 2"), "{text}");
    }
}

#[test]
fn different_topologies_are_told_to_both_with_both() {
    let place = Place::new();
    let torus = Shape::Torus { x: 2, y: 1 };
    let ranks = [(0, torus), (1, Shape::Flat)].map(|(rank, shape)| start_on(shape, place.world(rank, 2), LONG));
    for (rank, thread) in ranks.into_iter().enumerate() {
        let (cause, culprit, text) = said(thread, rank);
        assert_eq!((cause, culprit), (ConnectCause::Options, Some((1, here()))), "{text}");
        let both = "comes to connect as it is, rank 0 to connect on the topology torus:2x1 (--topology, ";
        assert!(text.contains(both), "{text}");
    }
}

#[test]
fn a_topology_with_more_places_than_hosts_is_refused_by_all() {
    let place = Place::new();
    let cube = Shape::BCube { ports: 2, levels: 1 };
    let ranks = [0, 1].map(|rank| start_on(cube, place.world(rank, 2), LONG));
    for (rank, thread) in ranks.into_iter().enumerate() {
        let (cause, culprit, text) = said(thread, rank);
        assert_eq!((cause, culprit), (ConnectCause::Options, None), "{text}");
        let places = "the topology bcube:2:1 has room for 2 hosts, exactly, and the cluster has 1; give --topology (";
        assert!(text.contains(places), "{text}");
    }
}

#[test]
fn a_rank_of_another_job_knows_it_and_rank_zero_misses_its_own() {
    let place = Place::new();
    let zero = start(place.world(0, 2), SHORT);
    let (cause, culprit, text) = said(start(World { job: "another".into(), ..place.world(1, 2) }, LONG), 1);
    assert_eq!((cause, culprit), (ConnectCause::Job, Some((1, here()))), "{text}");
    let zero = zero.join().expect("no panic");
    let CommError::Connect { cause: ConnectCause::Missing, culprit: Some(culprit), error, .. } = &zero else {
        panic!("{zero}")
    };
    // Where a rank would have been that never came, nobody knows.
    assert_eq!((culprit.rank, &*culprit.host), (1, ""));
    let ConnectError::Rendezvous(RendezvousError::Ended(reason)) = &**error else { panic!("{zero}") };
    let Refusal::Missing { missing, turned_away, .. } = &**reason else { panic!("{zero}") };
    assert_eq!((&missing[..], turned_away.len()), (&[1][..], 1), "{zero}");
    assert!(turned_away[0].contains(") belongs to job \"another\""), "{zero}");
}

#[test]
fn a_rank_zero_of_another_version_and_one_that_is_not_there_are_told_apart() {
    let listener = listener();
    let place = Place { port: port(&listener), listener: -1 };
    let one = start(place.world(1, 2), LONG);
    let mut socket = listener.accept().expect("rank 1 dials").0;
    let refusal = [&b"PcLc"[..], &(CONTROL_VERSION + 1).to_le_bytes(), &[3, 0, 0, 0, 0, 0]].concat();
    socket.write_all(&refusal).expect("rank 1 reads");
    let zero = Some((0, "127.0.0.1".to_owned()));
    let (cause, culprit, text) = said(one, 1);
    assert_eq!((cause, &culprit), (ConnectCause::Version, &zero), "{text}");
    assert!(text.contains(&format!("version {} of", CONTROL_VERSION + 1)), "{text}");
    drop((socket, listener));
    let (cause, culprit, text) = said(start(place.world(1, 2), Duration::from_millis(300)), 1);
    assert_eq!((cause, &culprit), (ConnectCause::Unreachable, &zero), "{text}");
}

#[test]
fn whoever_asks_for_a_world_that_there_cannot_be_is_told_what_can() {
    let error = Communicator::threads(0).map(|_| ()).expect_err("no world");
    let CommError::Connect { rank: None, cause: ConnectCause::Options, culprit: None, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(error.to_string(), format!("on {}: a world has at least one rank, not 0; ask for one or more", here()));
}

/// In a process of its own, which has more and more descriptors.
#[test]
fn too_few_descriptors_are_told_with_the_limit() {
    const ALONE: &str = "PACELINE_TEST_PART";
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this test");
        let mut alone = Command::new(program);
        alone.args(["--exact", "too_few_descriptors_are_told_with_the_limit"]).env(ALONE, "descriptors");
        let outcome = alone.output().expect("it runs");
        assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stdout));
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |descriptors| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).expect("a lower limit");
    };
    let says_the_limit = |error: &CommError, descriptors: u64| {
        let text = error.to_string();
        let is_typed = matches!(error, CommError::Connect { cause: ConnectCause::Descriptors, .. });
        let is_said =
            text.contains(&format!("limit on open files is {descriptors}: ")) && text.ends_with("`ulimit -n`");
        assert!(is_typed && is_said, "{descriptors}: {error:?}");
    };
    // A rank that cannot even listen.
    let place = Place { port: 1, listener: -1 };
    limit(3);
    let (cause, _, text) = said(start(place.world(1, 2), LONG), 1);
    assert_eq!(cause, ConnectCause::Descriptors, "{text}");
    let mut failures = 0;
    for descriptors in 3..100 {
        limit(descriptors);
        match Communicator::threads_over(Transport::Tcp, 2) {
            Ok(_) => break,
            Err(error) => says_the_limit(&error, descriptors),
        }
        failures += 1;
    }
    assert!((3..97).contains(&failures), "{failures} limits were too low");
}
