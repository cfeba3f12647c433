//! Ranks meet, or every one of them learns why not.

#[path = "common/meeting.rs"]
mod meeting;

use std::io::{Read, Write, copy};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meeting::{Place, free_port, listener, port};
use paceline_fabric::CONTROL_VERSION;
use paceline_fabric::environment::{MeetingPoint, Network, World};
use paceline_fabric::rendezvous::{Members, Refusal, RendezvousError, ahead, meet, survey};
use paceline_fabric::security::Secret;

const LONG: Duration = Duration::from_secs(30);
/// Long enough for all that come to have come, on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

type Outcome = Result<Members, RendezvousError>;

fn start(world: World, timeout: Duration) -> JoinHandle<Outcome> {
    start_in(Network::default(), world, timeout)
}

fn start_in(network: Network, world: World, timeout: Duration) -> JoinHandle<Outcome> {
    thread::spawn(move || {
        let rank = world.rank as u8;
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 1000 + u16::from(rank)))];
        meet(&world, &network, timeout, addresses, vec![rank; 3])
    })
}

/// Starts a rank that takes a detour, and waits until rank 0 has answered it: from then on it has a seat.
fn seated(place: &Place, rank: u32, world_size: u32) -> JoinHandle<Outcome> {
    let door = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = door.local_addr().expect("its address").port();
    let meeting_point = Some(MeetingPoint { host: "127.0.0.1".into(), port });
    let thread = start(World { meeting_point, ..place.world(rank, world_size) }, LONG);
    let mut near = door.accept().expect("the rank dials").0;
    let mut far = TcpStream::connect(("127.0.0.1", place.port)).expect("rank 0 listens");
    let clone = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
    let (mut said, mut to_zero) = (clone(&near), clone(&far));
    thread::spawn(move || copy(&mut said, &mut to_zero));
    assert_eq!(far.peek(&mut [0]).expect("rank 0 answers"), 1);
    thread::spawn(move || copy(&mut far, &mut near));
    thread
}

fn error(thread: JoinHandle<Outcome>) -> String {
    failure(thread).to_string()
}

/// What a rank that finds no world says ends with what to do.
fn failure(thread: JoinHandle<Outcome>) -> RendezvousError {
    let error = thread.join().expect("no panic").expect_err("no world");
    let (text, next_step) = (error.to_string(), error.next_step());
    assert!(next_step.len() > 10 && text.ends_with(&next_step), "{text}");
    error
}

/// Why there is no world, as rank 0 has said it.
fn reason(error: RendezvousError) -> Refusal {
    match error {
        RendezvousError::Ended(reason) | RendezvousError::Refused { reason, .. } => *reason,
        error => panic!("{error}"),
    }
}

#[test]
fn ranks_meet_in_any_order_and_know_each_other() {
    for size in [1, 2, 3, 9] {
        let place = Place::new();
        // Rank 0 comes last: the others dial until it is there. (The listener is there before, as under a launcher.)
        let threads: Vec<_> = (0..size).rev().map(|rank| start(place.world(rank, size), LONG)).collect();
        let all: Vec<Members> =
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("a world")).collect();
        for members in &all {
            assert_eq!((members.world_size, members.members.len()), (size, size as usize));
            assert_eq!(members.nonce, all[0].nonce);
            assert_eq!(members.members, all[0].members);
            assert_eq!(members.own().rank, members.rank);
            assert_eq!(members.neighbours().count(), size as usize - 1, "all are on this host");
            for (member, rank) in members.members.iter().zip(0..) {
                assert_eq!((member.rank, member.process), (rank, std::process::id()));
                assert_eq!(member.blob, [rank as u8; 3]);
                assert_eq!(member.addresses[0].port(), 1000 + rank as u16);
                assert_eq!(member.seen_at.is_some(), rank > 0);
            }
        }
        if size > 1 {
            assert!(TcpStream::connect(("127.0.0.1", place.port)).is_err(), "the meeting point stays open");
        }
    }
}

#[test]
fn the_longest_timeout_is_no_mistake() {
    let place = Place::new();
    let threads = [0, 1].map(|rank| start(place.world(rank, 2), Duration::MAX));
    for thread in threads {
        assert!(thread.join().expect("no panic").is_ok());
    }
}

#[test]
fn strangers_that_knock_without_end_do_not_extend_the_deadline() {
    let place = Place::new();
    let begun = Instant::now();
    let zero = start(place.world(0, 2), Duration::from_millis(500));
    let knocking = [(); 3].map(|()| {
        let port = place.port;
        thread::spawn(move || while TcpStream::connect(("127.0.0.1", port)).is_ok() {})
    });
    assert!(error(zero).contains("rank 1 never came within 0.5 s"));
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    for thread in knocking {
        thread.join().expect("no panic");
    }
}

#[test]
fn nonces_differ() {
    let nonce =
        || meet(&Place::new().world(0, 1), &Network::default(), LONG, vec![], vec![]).expect("a world of one").nonce;
    assert_ne!(nonce(), nonce());
}

#[test]
fn rank_zero_binds_the_meeting_point_itself() {
    // The others start first and are refused for a while.
    let place = Place { port: free_port(), listener: -1 };
    let other = start(place.world(1, 2), LONG);
    thread::sleep(Duration::from_millis(50));
    let zero = start(World { listener: None, ..place.world(0, 2) }, LONG);
    assert!(zero.join().expect("no panic").is_ok());
    assert!(other.join().expect("no panic").is_ok());
}

#[test]
fn who_never_comes_is_named_on_every_rank() {
    let place = Place::new();
    let threads: Vec<_> = [0, 1, 3, 4].map(|rank| start(place.world(rank, 6), SHORT)).into();
    let errors: Vec<RendezvousError> = threads.into_iter().map(failure).collect();
    let reason = "ranks 2, 5 never came within 2 s (have 0, 1, 3, 4); look at the output of ranks 2, 5, and raise \
                  PACELINE_TIMEOUT if they only start slowly";
    assert_eq!(errors[0].to_string(), reason);
    for error in &errors[1..] {
        assert_eq!(error.to_string(), format!("rank 0 at 127.0.0.1:{} ended the rendezvous: {reason}", place.port));
    }
    for error in errors {
        assert_eq!(error.culprit(), Some((2, None)));
        assert!(matches!(self::reason(error), Refusal::Missing { missing, .. } if missing == [2, 5]));
    }
}

#[test]
fn different_world_sizes_are_named_on_every_rank() {
    let place = Place::new();
    let zero = start(place.world(0, 5), LONG);
    // Whoever comes when the meeting is over finds nobody who tells it why.
    let one = seated(&place, 1, 5);
    let three = start(place.world(3, 4), LONG);
    let (zero, others) = (error(zero), [error(one), error(three)]);
    let says = format!(", process {}) says the world has 4 ranks, rank 0 says 5: start", std::process::id());
    assert!(zero.starts_with("rank 3 (host ") && zero.contains(&says), "{zero}");
    assert!(others.iter().all(|other| other.ends_with(&zero)), "{others:?}");
}

#[test]
fn two_processes_of_one_rank_are_named_on_every_rank() {
    let place = Place::new();
    let zero = start(place.world(0, 3), LONG);
    let one = start(place.world(1, 3), LONG);
    let again = start(place.world(1, 3), LONG);
    let failure_of_zero = failure(zero);
    let message = failure_of_zero.to_string();
    assert!(message.starts_with("two processes claim rank 1: host "), "{message}");
    assert_eq!(message.matches(&format!("process {}", std::process::id())).count(), 2, "{message}");
    let duplicate = reason(failure_of_zero);
    assert!(matches!(duplicate, Refusal::Duplicate { rank: 1, .. }), "{duplicate:?}");
    for other in [one, again].map(failure) {
        assert!(other.to_string().ends_with(&message), "{other}");
        assert_eq!(reason(other), duplicate);
    }
}

#[test]
fn a_second_rank_zero_and_a_rank_beyond_the_world_are_named() {
    let place = Place::new();
    let zero = start(place.world(0, 3), LONG);
    let beyond = start(place.world(7, 3), LONG);
    let message = error(zero);
    assert!(message.contains("says it is rank 7, and the world has 3 ranks"), "{message}");
    assert!(error(beyond).ends_with(&message));

    // `meet` makes whoever is rank 0 listen, so a second one that dials must be made by hand.
    let place = Place::new();
    let zero = start(place.world(0, 3), LONG);
    let alone = meet(&place.world(0, 1), &Network::default(), LONG, vec![], vec![]).expect("a world of one");
    let hello = postcard::to_stdvec(&("a job", 3u32, "", alone.own())).expect("a message");
    let mut socket = TcpStream::connect(("127.0.0.1", place.port)).expect("rank 0 listens");
    socket.write_all(&[b"PcLc\x05\0\0\0", &(hello.len() as u32).to_le_bytes()[..], &hello].concat()).expect("it reads");
    let message = error(zero);
    assert!(message.starts_with("two processes claim rank 0: "), "{message}");
}

#[test]
fn a_rank_that_leaves_ends_the_wait_at_once() {
    let place = Place::new();
    let start_time = Instant::now();
    let zero = start(place.world(0, 4), LONG);
    let one = seated(&place, 1, 4);
    let alone = meet(&place.world(0, 1), &Network::default(), LONG, vec![], vec![]).expect("a world of one");
    let mut member = alone.own().clone();
    member.rank = 2;
    let hello = postcard::to_stdvec(&("a job", 4u32, "", member)).expect("a message");
    let mut socket = TcpStream::connect(("127.0.0.1", place.port)).expect("rank 0 listens");
    socket.write_all(&[b"PcLc\x05\0\0\0", &(hello.len() as u32).to_le_bytes()[..], &hello].concat()).expect("it reads");
    socket.read_exact(&mut [0]).expect("it is welcome");
    drop(socket);
    let message = error(zero);
    assert!(message.starts_with("rank 2 (host "), "{message}");
    let expected =
        ") left before all ranks had come (have 0, 1); look at the output of rank 2, then start the job again";
    assert!(message.ends_with(expected), "{message}");
    assert!(error(one).ends_with(&message));
    assert!(start_time.elapsed() < LONG / 2);
}

#[test]
fn ranks_that_come_with_other_terms_are_told_both() {
    let place = Place::new();
    let with = |rank, terms: &str| World { terms: terms.into(), ..place.world(rank, 2) };
    let zero = start(with(0, "with 2 shards beside workers on hosts 0,0"), LONG);
    let one = start(with(1, "with 2 shards beside workers on hosts 0,1"), LONG);
    let (zero, one) = (error(zero), error(one));
    assert!(zero.starts_with("rank 1 (host "), "{zero}");
    assert!(zero.contains("comes with 2 shards beside workers on hosts 0,1, rank 0 with 2 shards"), "{zero}");
    assert!(one.ends_with(&zero), "{one}");

    let place = Place::new();
    let zero = start(place.world(0, 2), LONG);
    let asks = survey(&place.world(1, 2), &Network::default(), LONG).expect_err("rank 0 connects at once").to_string();
    assert!(asks.contains("comes only to learn who is on which host, rank 0 to connect as it is"), "{asks}");
    assert!(error(zero).contains("start all ranks with the same arguments"));
}

#[test]
fn ranks_that_have_only_asked_who_is_where_can_still_meet() {
    let place = Place::new();
    // With an inherited listener, and with one that rank 0 opens itself.
    for listener in [place.world(0, 3).listener, None] {
        let threads = (0..3).map(|rank| {
            let world = World { listener: listener.filter(|_| rank == 0), ..place.world(rank, 3) };
            thread::spawn(move || {
                let met = survey(&world, &Network::default(), LONG)?;
                let connected = meet(&world, &Network::default(), LONG, Vec::new(), vec![rank as u8])?;
                Ok::<_, RendezvousError>((met, connected))
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            let (met, connected) = thread.join().expect("no panic").expect("two meetings");
            assert_eq!((met.members.len(), connected.members.len()), (3, 3));
            assert!(met.members.iter().all(|member| member.identity == met.members[0].identity));
            assert_eq!(connected.members[2].blob, [2]);
        }
    }
}

/// One after the other, at the same place, as long as they say alike which one it is.
#[test]
fn the_same_ranks_can_form_several_worlds() {
    let place = Place::new();
    for listener in [place.world(0, 2).listener, None] {
        let threads = [0, 1].map(|rank| {
            let world = World { listener: listener.filter(|_| rank == 0), ..place.world(rank, 2) };
            thread::spawn(move || {
                let mut nonces = Vec::new();
                for number in 0..3 {
                    let own = if number == 2 { world.clone() } else { ahead(&world, format!("as number {number}"))? };
                    nonces.push(meet(&own, &Network::default(), LONG, Vec::new(), Vec::new())?.nonce);
                }
                Ok::<_, RendezvousError>(nonces)
            })
        });
        let [zero, one] = threads.map(|thread| thread.join().expect("no panic").expect("three meetings"));
        assert!(zero == one && zero[0] != zero[1] && zero[1] != zero[2], "{zero:?} {one:?}");
    }
    let place = Place::new();
    let worlds = [0, 1].map(|rank| ahead(&place.world(rank, 2), format!("as number {rank}")).expect("a place"));
    let threads = worlds.map(|world| start(world, LONG));
    for thread in threads {
        assert!(error(thread).contains("start all ranks with the same arguments"));
    }
}

#[test]
fn another_job_is_turned_away_and_this_one_goes_on() {
    let place = Place::new();
    let zero = start(place.world(0, 2), LONG);
    let stranger = start(World { job: "other".into(), ..place.world(1, 2) }, LONG);
    let stranger = failure(stranger);
    let message = stranger.to_string();
    assert!(message.contains(") belongs to job \"other\", rank 0 to job \"a job\": give all ranks"), "{message}");
    assert!(matches!(reason(stranger), Refusal::Job { rank: 1, theirs, .. } if theirs == "other"));
    let one = start(place.world(1, 2), LONG);
    let members = zero.join().expect("no panic").expect("a world");
    assert!(one.join().expect("no panic").is_ok());
    assert_eq!(members.notes.len(), 1, "{:?}", members.notes);
    let note = &members.notes[0];
    assert!(note.contains(": rank 1 (host ") && note.contains(") belongs to job"), "{note}");
}

#[test]
fn strangers_and_stalled_connections_hold_nobody_up() {
    let place = Place::new();
    let zero = start(place.world(0, 3), LONG);
    let connect = || TcpStream::connect(("127.0.0.1", place.port)).expect("rank 0 listens");
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let mut stalled = connect();
    stalled.write_all(b"PcLc\x05\0\0\0\xff").expect("rank 0 reads");
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"PcLc\x07\0\0\0\0\0\0\0",
        b"PcLc\x05\0\0\0\xff\xff\xff\x7f",
        b"PcLc\x05\0\0\0\x02\0\0\0\xff\xff",
    ] {
        connect().write_all(garbage).expect("rank 0 reads");
    }
    thread::sleep(Duration::from_millis(50));
    let start_time = Instant::now();
    let others = [1, 2].map(|rank| start(place.world(rank, 3), LONG));
    let members = zero.join().expect("no panic").expect("a world");
    for other in others {
        assert!(other.join().expect("no panic").is_ok());
    }
    assert!(start_time.elapsed() < Duration::from_secs(4), "somebody waited for a stranger");
    let notes = members.notes.join("\n");
    for expected in ["begins with \"GET \"", "version 7", "2147483647 bytes", "does not speak like Paceline"] {
        assert!(notes.contains(expected), "{expected} is not in {notes}");
    }
    drop((silent, stalled));
}

#[test]
fn a_port_in_use_is_named() {
    let other_program = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other_program.local_addr().expect("its address").port();
    let place = Place { port, listener: -1 };
    let message = error(start(World { listener: None, ..place.world(0, 2) }, LONG));
    let expected = format!("port {port} on 127.0.0.1 is already in use by another program");
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn rank_zero_on_the_wrong_host_is_told_so() {
    // A documentation address (RFC 5737) that no host has.
    let meeting_point = Some(MeetingPoint { host: "203.0.113.7".into(), port: 4000 });
    let place = Place { port: 0, listener: -1 };
    let message =
        error(start(World { listener: None, meeting_point: meeting_point.clone(), ..place.world(0, 2) }, LONG));
    assert!(message.starts_with("rank 0 cannot listen at 203.0.113.7:4000: "), "{message}");
    assert!(message.ends_with("it must run on the host that is named there"), "{message}");
    // And the others do not dial a host that nothing vouches for.
    let message = error(start(World { meeting_point, ..place.world(1, 2) }, LONG));
    assert!(message.contains("203.0.113.7 is another host") && message.contains("PACELINE_INSECURE=1"), "{message}");
}

#[test]
fn an_unanswered_call_names_the_address() {
    let listener = listener();
    let place = Place { port: port(&listener), listener: -1 };
    let expected = format!("rank 0 at 127.0.0.1:{} did not answer within 2 s (", place.port);
    // Somebody listens and says nothing …
    let message = error(start(place.world(1, 2), SHORT));
    let next_step = "see whether it is running, and whether the address is right";
    assert_eq!(message, format!("{expected}it says nothing); {next_step}"));
    // … or nobody does.
    drop(listener);
    let message = error(start(place.world(1, 2), SHORT));
    assert!(message.starts_with(&expected) && message.contains("refused"), "{message}");
    // A name that means nothing.
    let meeting_point = Some(MeetingPoint { host: "no-such-host.invalid".into(), port: 1 });
    let message = error(start(World { meeting_point, ..place.world(1, 2) }, SHORT));
    assert!(message.starts_with("rank 0 at no-such-host.invalid:1 did not answer within 2 s"), "{message}");
}

#[test]
fn another_program_in_the_place_of_rank_zero_is_recognised() {
    let listener = listener();
    let place = Place { port: port(&listener), listener: -1 };
    let one = start(place.world(1, 2), LONG);
    let (mut socket, _) = listener.accept().expect("rank 1 dials");
    socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("rank 1 reads");
    let message = error(one);
    let expected = format!("what listens at 127.0.0.1:{} is not rank 0: it does not speak like Paceline", place.port);
    assert!(message.starts_with(&expected), "{message}");
}

/// Header and nothing else, as it refuses everybody: the version stands at the same place in all versions.
#[test]
fn a_rank_zero_of_another_version_is_named_with_both() {
    let secret = Secret::from_text("correct horse battery staple", "a test").ok();
    for network in [Network::default(), Network { secret, ..Network::default() }] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let place = Place { port: listener.local_addr().expect("its address").port(), listener: -1 };
        let has_secret = network.secret.is_some();
        let begun = Instant::now();
        let one = start_in(network, place.world(1, 2), LONG);
        let mut socket = listener.accept().expect("rank 1 dials").0;
        let answer =
            [b"PcLc", &(CONTROL_VERSION + 1).to_le_bytes()[..], &[3, u8::from(has_secret), 0, 0, 0, 0]].concat();
        socket.write_all(&answer).expect("rank 1 reads");
        let error = failure(one);
        assert!(begun.elapsed() < LONG, "it waits for another rank 0: {:?}", begun.elapsed());
        let versions = match &error {
            RendezvousError::Version { theirs, ours, .. } => (*theirs, *ours),
            error => panic!("with a secret: {has_secret}: {error}"),
        };
        assert_eq!(versions, (CONTROL_VERSION + 1, CONTROL_VERSION));
        let said = format!(
            "rank 0 at 127.0.0.1:{} speaks version {} of the control protocol, this rank version {}: run the same",
            place.port, versions.0, versions.1
        );
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(error.culprit(), Some((0, Some("127.0.0.1"))));
        // Open until now: what was not read would have ended the connection before the answer is read.
        drop(socket);
    }
}

#[test]
fn a_useless_inherited_descriptor_is_named() {
    let connected = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let socket = TcpStream::connect(connected.local_addr().expect("its address")).expect("a connection");
    let file = std::fs::File::open("/dev/null").expect("it is always there");
    for descriptor in [socket.as_raw_fd(), file.as_raw_fd(), 1_000_000] {
        let place = Place { port: 1, listener: descriptor };
        let message = error(start(place.world(0, 2), LONG));
        let expected = format!("PACELINE_RENDEZVOUS_FD={descriptor} is not a listening TCP socket: unset ");
        assert!(message.starts_with(&expected), "{message}");
    }
}
