//! Shared memory between hosts that are threads of this process; other processes are in `shm_processes.rs`.

mod common;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::shm::{PATIENCE, hosts_and_links, mesh, shm_pair, tiny};
use common::{Random, Recorder, Want, control, data, payload, piece};
use paceline_engine::frame::{Header, Kind};
use paceline_fabric::shm::{ShmHost, ShmLink, ShmOptions};
use paceline_fabric::{Link, LinkError, Sink, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Polls once, and if nothing moves sleeps until woken, as a communicator does. Panics if nobody wakes it.
fn poll_or_sleep(
    link: &mut ShmLink,
    polled: &mut dyn FnMut(&mut ShmLink) -> Result<bool, LinkError>,
) -> Result<(), LinkError> {
    link.prepare_sleep(true);
    let moved = polled(link);
    if let Ok(false) = moved {
        let mut descriptors = Vec::new();
        link.descriptors(&mut descriptors);
        // SAFETY: the descriptor belongs to the link, which outlives the wait.
        let fd = unsafe { BorrowedFd::borrow_raw(descriptors[0].fd) };
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        assert_ne!(woken, Ok(0), "nobody wakes the sleeper");
    }
    link.prepare_sleep(false);
    moved.map(|_| ())
}

fn receive_or_sleep(link: &mut ShmLink, recorder: &mut Recorder) -> Result<(), LinkError> {
    poll_or_sleep(link, &mut |link| link.receive(recorder))
}

fn send_control(link: &mut ShmLink, kind: Kind, id: u32) -> Result<bool, LinkError> {
    // SAFETY: no pieces.
    unsafe { link.enqueue(&control(kind, id), &[], 0) };
    link.flush(&mut |_| ())
}

#[test]
fn a_hundred_thousand_wake_ups_and_none_is_lost() {
    const ROUNDS: u32 = 100_000;
    let (mut left, mut right) = shm_pair(ShmOptions { arena_bytes: Some(1 << 20), ..ShmOptions::default() });
    let mut random = Random::new();
    let seeds = [random.next(), random.next()];
    let play = move |link: &mut ShmLink, serves: bool, seed: u64| {
        let mut random = Random(seed);
        let mut recorder = Recorder::new(|_| Want::Memory);
        for round in 0..ROUNDS {
            if serves {
                send_control(link, Kind::Heartbeat, round).expect("an open link");
            }
            // Spins for a while that is hardly ever right, so that the sleep meets the frame at any moment.
            for _ in 0..random.below(200) {
                std::hint::spin_loop();
            }
            while recorder.frames.is_empty() {
                receive_or_sleep(link, &mut recorder).expect("an open link");
            }
            let (header, _) = recorder.frames.pop().expect("a frame");
            assert_eq!(header.tile, round);
            if !serves {
                send_control(link, Kind::Heartbeat, round).expect("an open link");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(&mut left, true, seeds[0]));
        scope.spawn(move || play(&mut right, false, seeds[1]));
    });
}

/// The ring is full most of the time, and both sides sleep whenever nothing moves.
#[test]
fn a_flood_through_a_tiny_ring_never_gets_stuck() {
    const FRAMES: u32 = 30_000;
    let (mut left, mut right) = shm_pair(tiny());
    let mut random = Random::new();
    let mut seed = random.next();
    let memory = payload(9, 20_000);
    std::thread::scope(|scope| {
        let memory = &memory;
        scope.spawn(move || {
            let (mut enqueued, mut sent) = (0, 0);
            while sent < FRAMES {
                let mut polled = |link: &mut ShmLink| {
                    let mut moved = false;
                    while enqueued < FRAMES && link.has_room() {
                        let bytes = &memory[..random.below(if enqueued % 16 == 0 { 20_000 } else { 2000 })];
                        // SAFETY: `memory` outlives the link.
                        unsafe { link.enqueue(&data(enqueued, bytes.len()), &[piece(bytes)], 0) };
                        (enqueued, moved) = (enqueued + 1, true);
                    }
                    Ok(link.flush(&mut |_| sent += 1)? || moved)
                };
                poll_or_sleep(&mut left, &mut polled).expect("an open link");
            }
        });
        let mut recorder = Recorder::new(move |_| {
            seed = seed.wrapping_add(1);
            [Want::Memory, Want::Slices(8), Want::Discard][seed as usize % 3]
        });
        let mut arrived = 0;
        while arrived < FRAMES {
            receive_or_sleep(&mut right, &mut recorder).expect("an open link");
            for (header, bytes) in recorder.frames.drain(..) {
                assert_eq!(header.tile, arrived);
                let discarded = bytes.iter().all(|byte| *byte == 0);
                assert!(discarded || *bytes == memory[..bytes.len()], "frame {arrived} is damaged");
                arrived += 1;
            }
        }
    });
}

#[test]
fn references_reach_the_arena_and_all_other_memory() {
    let (hosts, [mut left, right]) = hosts_and_links([tiny(), tiny()]);
    let bytes = 100_000;
    let private = payload(1, bytes);
    let shared = hosts[0].arena().allocate(bytes, 64).expect("room");
    // SAFETY: the allocation is that long and ours.
    unsafe { shared.start().copy_from_nonoverlapping(std::ptr::NonNull::from(&payload(2, bytes)[..]).cast(), bytes) };
    left.single_copy().expect("a process may read itself");
    assert!(left.any_memory() && left.reference_above().is_some());
    let in_arena = paceline_fabric::Piece { start: shared.start().as_ptr(), bytes };
    for (piece, expected, is_mapped) in
        [(piece(&private), payload(1, bytes), false), (in_arena, payload(2, bytes), true)]
    {
        let reference = left.refer(piece).expect("any memory can be referred to");
        for (offset, part) in [(0, bytes), (12_345, 50_000), (bytes - 1, 1)] {
            let mut into = vec![0; part];
            // SAFETY: `into` is that long.
            unsafe { right.take(reference, offset, into.as_mut_ptr(), part) }.expect("a copy");
            assert!(into == expected[offset..offset + part]);
        }
        let mapped = right.mapped(reference, bytes);
        assert_eq!(mapped.is_some(), is_mapped);
        if let Some(start) = mapped {
            // SAFETY: the link says that so many bytes are mapped there, and nobody writes to them.
            assert!(unsafe { std::slice::from_raw_parts(start, bytes) } == expected);
        }
    }
    assert!(!right.withdrawn());
    left.abandon();
    assert!(right.withdrawn());
}

#[test]
fn references_to_nowhere_are_refused() {
    let (hosts, [left, right]) = hosts_and_links([tiny(), tiny()]);
    let arena = hosts[0].arena().bytes() as u64;
    let nowhere: [([u64; 2], usize, usize); 8] = [
        ([0, 0], 0, 16),
        ([3, 0], 0, 16),
        ([1, arena], 0, 1),
        ([1, arena - 8], 0, 16),
        ([1, u64::MAX - 3], 0, 16),
        ([1, 0], usize::MAX, 16),
        ([2, 8], 0, 16),
        ([2, u64::MAX], 4, 16),
    ];
    for (reference, offset, bytes) in nowhere {
        let mut into = [0; 16];
        // SAFETY: `into` is that long.
        let error = unsafe { right.take(reference, offset, into.as_mut_ptr(), bytes) }.expect_err("no such memory");
        assert!(matches!(error, LinkError::Protocol { .. }), "{reference:?}: {error}");
        if offset == 0 {
            assert_eq!(right.mapped(reference, bytes), None, "{reference:?}");
        }
    }
    drop(left);
}

#[test]
fn either_side_can_switch_references_off() {
    let without = || ShmOptions { single_copy: false, ..tiny() };
    for options in [[without(), tiny()], [tiny(), without()], [without(), without()]] {
        let (hosts, links) = hosts_and_links(options);
        let shared = hosts[0].arena().allocate(64, 64).expect("room");
        for link in &links {
            assert_eq!((link.reference_above(), link.any_memory()), (None, false));
            assert_eq!(link.refer(paceline_fabric::Piece { start: shared.start().as_ptr(), bytes: 64 }), None);
            assert!(link.single_copy().expect_err("switched off").contains("switched off"));
        }
    }
}

#[test]
fn an_abandoned_frame_is_finished_from_a_copy() {
    let (mut left, mut right) = shm_pair(tiny());
    let mut memory = payload(5, 200_000);
    let later = payload(6, 1000);
    // SAFETY: the pieces live until `abandon`.
    unsafe {
        left.enqueue(&data(5, memory.len()), &[piece(&memory)], 1);
        left.enqueue(&data(6, later.len()), &[piece(&later)], 2);
    }
    assert!(left.flush(&mut |_| panic!("the ring is too small")).expect("an open link"));
    left.abandon();
    memory.fill(0xee);
    drop((memory, later));
    send_control(&mut left, Kind::Abort, 7).expect("an open link");
    let mut recorder = Recorder::new(|_| Want::Memory);
    while recorder.frames.len() < 2 {
        left.flush(&mut |ticket| assert_eq!(ticket, 0, "the abandoned have no ticket")).expect("an open link");
        right.receive(&mut recorder).expect("an open link");
    }
    assert!(recorder.frames[0].1 == payload(5, 200_000));
    assert_eq!(recorder.kinds(), [Kind::Data, Kind::Abort]);
}

#[test]
fn a_hang_up_wakes_the_sleeper_and_spinning_finds_it_too() {
    let (left, mut right) = shm_pair(tiny());
    let thread = std::thread::spawn(move || {
        let start = Instant::now();
        let error = loop {
            if let Err(error) = receive_or_sleep(&mut right, &mut Recorder::new(|_| Want::Memory)) {
                break error;
            }
        };
        (error, start.elapsed())
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(left);
    let (error, elapsed) = thread.join().expect("no panic");
    assert!(matches!(error, LinkError::Closed) && elapsed < PATIENCE / 2, "{error} after {elapsed:?}");

    let (left, mut right) = shm_pair(tiny());
    drop(left);
    let mut polls = 0_u32;
    while right.receive(&mut Recorder::new(|_| Want::Memory)).is_ok() {
        polls += 1;
        assert!(polls < 100_000, "nobody looks at the socket");
    }
}

#[test]
fn all_pairs_of_seven_ranks_connect_and_talk() {
    let hosts: Vec<ShmHost> = (0..7).map(|_| ShmHost::new(tiny()).expect("a host")).collect();
    let mut links = mesh(&hosts, PATIENCE);
    for from in 0..7_u32 {
        for to in (0..7).filter(|to| *to != from) {
            let link = links[from as usize].get_mut(&to).expect("a result").as_mut().expect("a link");
            send_control(link, Kind::Heartbeat, from * 10 + to).expect("an open link");
            let mut recorder = Recorder::new(|_| Want::Memory);
            let link = links[to as usize].get_mut(&from).expect("a result").as_mut().expect("a link");
            assert!(link.receive(&mut recorder).expect("an open link"));
            assert_eq!(recorder.frames[0].0.tile, from * 10 + to);
        }
    }
}

#[test]
fn whoever_is_not_here_gets_a_reason_at_once() {
    let host = ShmHost::new(tiny()).expect("a host");
    let gone = ShmHost::new(tiny()).expect("a host").blob();
    let peers = [(0, gone.clone()), (2, gone), (3, Vec::new()), (4, vec![0xff; 40]), (1, host.blob())];
    let start = Instant::now();
    let links = host.connect(1, &peers, Instant::now() + PATIENCE).expect("a host that works");
    assert!(start.elapsed() < PATIENCE / 2);
    let reason = |rank| links[&rank].as_ref().expect_err("nobody is there").clone();
    assert!(reason(0).contains("another host") && reason(2).contains("another host"), "{}", reason(0));
    assert!(reason(3).contains("no shared memory") && reason(4).contains("cannot be read"));
    assert!(reason(1).contains("itself"));
}

#[test]
fn a_peer_that_never_calls_costs_its_own_link_only() {
    let hosts = [(); 3].map(|()| ShmHost::new(tiny()).expect("a host"));
    let blobs: Vec<(u32, Vec<u8>)> = (0..).zip(hosts.iter().map(ShmHost::blob)).collect();
    // Long enough for those that come, on a busy machine.
    let deadline = Instant::now() + Duration::from_secs(5);
    let [zero, one] = std::thread::scope(|scope| {
        // Rank 2 listens, but stays away.
        let connect = |rank: u32| {
            let peers: Vec<_> = blobs.iter().filter(|(peer, _)| *peer != rank).cloned().collect();
            hosts[rank as usize].connect(rank, &peers, deadline).expect("a host that works")
        };
        let threads = [0, 1].map(|rank| scope.spawn(move || connect(rank)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for (links, peer) in [(&zero, 1), (&one, 0)] {
        assert!(links[&peer].is_ok());
        assert!(links[&2].as_ref().expect_err("it stays away").contains("did not call"));
    }
}

/// Connects to a host's socket, whose name is public; as anybody on the machine can.
fn stranger(blob: &[u8]) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    // The blob starts with the version (1 byte) and the name.
    let digits: String = blob[1..17].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = SocketAddrUnix::new_abstract_name(format!("paceline-{digits}").as_bytes()).expect("a name");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::connect(&socket, &name).expect("a connection");
    socket
}

#[test]
fn strangers_neither_get_in_nor_keep_anyone_waiting() {
    let hosts = [(); 2].map(|()| ShmHost::new(tiny()).expect("a host"));
    let mut random = Random::new();
    let strangers: Vec<OwnedFd> = (0..8).map(|_| stranger(&hosts[0].blob())).collect();
    // Some say nothing, some talk nonsense.
    for socket in &strangers[2..] {
        let length = 1 + random.below(200);
        rustix::net::send(socket, &random.bytes(length), rustix::net::SendFlags::empty()).expect("sent");
    }
    let start = Instant::now();
    let links = mesh(&hosts, PATIENCE);
    assert!(links[0][&1].is_ok() && links[1][&0].is_ok());
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn of_too_many_strangers_that_say_nothing_the_oldest_go() {
    let hosts = [(); 2].map(|()| ShmHost::new(tiny()).expect("a host"));
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| hosts[0].connect(0, &[(1, hosts[1].blob())], deadline).expect("works"));
        let strangers: Vec<OwnedFd> = (0..200).map(|_| stranger(&hosts[0].blob())).collect();
        // The peer calls only when the first stranger has been hung up on.
        let end = rustix::net::recv(&strangers[0], &mut [0u8; 1], rustix::net::RecvFlags::empty());
        assert!(Instant::now() < deadline, "it is kept to the end");
        assert!(end.is_ok_and(|(_, bytes)| bytes == 0));
        let one = hosts[1].connect(1, &[(0, hosts[0].blob())], deadline).expect("works");
        assert!(one[&0].is_ok() && zero.join().expect("no panic")[&1].is_ok());
    });
}

#[test]
fn a_rank_with_the_wrong_secret_is_turned_away() {
    let hosts = [(); 2].map(|()| ShmHost::new(tiny()).expect("a host"));
    // Rank 1 knows where rank 0 listens, but not its secret (the last 16 bytes).
    let mut guessed = hosts[0].blob();
    let last = guessed.len() - 1;
    guessed[last] ^= 1;
    let deadline = Instant::now() + Duration::from_millis(300);
    let (zero, one) = std::thread::scope(|scope| {
        let zero = scope.spawn(|| hosts[0].connect(0, &[(1, hosts[1].blob())], deadline));
        let one = scope.spawn(|| hosts[1].connect(1, &[(0, guessed)], deadline));
        (zero.join().expect("no panic").expect("works"), one.join().expect("no panic").expect("works"))
    });
    assert!(zero[&1].is_err() && one[&0].is_err());
}

/// Takes one frame and has enough.
struct OneAtATime(Recorder);

impl Sink for OneAtATime {
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError> {
        self.0.begin(header)
    }

    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError> {
        self.0.bytes(header, offset, slice)
    }

    fn end(&mut self, header: &Header) -> Result<(), LinkError> {
        self.0.end(header)
    }

    fn has_enough(&self) -> bool {
        true
    }
}

#[test]
fn what_lies_behind_a_frame_waits_for_a_sink_that_has_enough() {
    let (mut left, mut right) = shm_pair(tiny());
    for id in 0..3 {
        send_control(&mut left, Kind::Heartbeat, id).expect("an open link");
    }
    let mut sink = OneAtATime(Recorder::new(|_| Want::Memory));
    for taken in 1..=3 {
        assert!(right.receive(&mut sink).expect("an open link"));
        assert_eq!(sink.0.frames.len(), taken);
    }
    assert!(!right.receive(&mut sink).expect("an open link"), "nothing is left");
}
