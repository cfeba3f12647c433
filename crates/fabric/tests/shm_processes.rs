//! Shared memory between processes. Each test runs this program again, with its own name, as the peer.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::filter::{Whom, forbid_single_copies, refuse_memory};
use common::shm::{PATIENCE, tiny};
use common::{Random, Recorder, Want, control, data, payload, piece};
use paceline_engine::frame::{Header, Kind};
use paceline_fabric::shm::{ShmHost, ShmLink, ShmOptions};
use paceline_fabric::{Link, LinkError, Piece};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// In the peer's environment: the blob of rank 0.
const BLOB: &str = "PACELINE_TEST_BLOB";

/// The peer's part: links to rank 0 as rank 1 and does `part`. In the test itself, does nothing and says false.
fn is_peer(options: ShmOptions, part: impl FnOnce(&ShmHost, ShmLink)) -> bool {
    let Ok(blob) = std::env::var(BLOB) else { return false };
    let host = ShmHost::new(options).expect("a host");
    // Straight to the descriptor: the test harness must not keep it.
    writeln!(std::io::stderr(), "{}", to_hex(&host.blob())).expect("a pipe");
    let links = host.connect(1, &[(0, from_hex(&blob))], Instant::now() + PATIENCE).expect("a host that works");
    let link = links.into_values().next().expect("a result").expect("a link");
    part(&host, link);
    true
}

/// The peer's process; killed if the test ends before it.
struct Peer(Child);

impl Peer {
    fn kill(&mut self) {
        self.0.kill().expect("a running peer");
        self.0.wait().expect("its end");
    }

    fn assert_success(mut self) {
        assert!(self.0.wait().expect("its end").success(), "the peer failed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the peer of this test and links to it as rank 0.
fn start(test: &str, options: ShmOptions) -> (Peer, ShmHost, ShmLink) {
    let host = ShmHost::new(options).expect("a host");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env(BLOB, to_hex(&host.blob()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let peer = Peer(child);
    let mut blob = String::new();
    stderr.read_line(&mut blob).expect("a line");
    // Whatever else it says belongs to this test.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
    let peers = [(1, from_hex(blob.trim()))];
    let links = host.connect(0, &peers, Instant::now() + PATIENCE).expect("a host that works");
    let link = links.into_values().next().expect("a result").expect("a link");
    (peer, host, link)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    let digit = |index: usize| u8::from_str_radix(&digits[index..index + 2], 16).expect("two hexadecimal digits");
    (0..digits.len() / 2).map(|index| digit(2 * index)).collect()
}

/// Polls until `done` says true, and sleeps while it says false, which it does when nothing moves. The link's error if it
/// has one.
fn until(link: &mut ShmLink, mut done: impl FnMut(&mut ShmLink) -> Result<bool, LinkError>) -> Result<(), LinkError> {
    let start = Instant::now();
    loop {
        link.prepare_sleep(true);
        let result = done(link);
        if let Ok(false) = result {
            let mut descriptors = Vec::new();
            link.descriptors(&mut descriptors);
            // SAFETY: the descriptor belongs to the link, which outlives the wait.
            let fd = unsafe { BorrowedFd::borrow_raw(descriptors[0].fd) };
            let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            assert_ne!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)), Ok(0), "nobody wakes the sleeper");
        }
        link.prepare_sleep(false);
        assert!(start.elapsed() < 2 * PATIENCE, "no end");
        if result? {
            return Ok(());
        }
    }
}

/// Sends one frame and waits until it is out.
fn send(link: &mut ShmLink, header: &Header, bytes: &[u8]) {
    let pieces = [piece(bytes)];
    let pieces = if bytes.is_empty() { &[] } else { &pieces[..] };
    let mut sent = false;
    // SAFETY: `bytes` outlives this call, which ends when the ticket has come back or with a panic.
    unsafe { link.enqueue(header, pieces, 1) };
    let done = |link: &mut ShmLink| {
        while !sent && link.flush(&mut |_| sent = true)? {}
        Ok(sent)
    };
    until(link, done).expect("an open link");
}

/// Waits for one frame.
fn receive(link: &mut ShmLink, recorder: &mut Recorder) -> Result<(Header, Vec<u8>), LinkError> {
    until(link, |link| {
        while recorder.frames.is_empty() && link.receive(recorder)? {}
        Ok(!recorder.frames.is_empty())
    })?;
    Ok(recorder.frames.remove(0))
}

fn echo(link: &mut ShmLink) {
    let mut recorder = Recorder::new(|_| Want::Memory);
    loop {
        let (header, bytes) = receive(link, &mut recorder).expect("an open link");
        if header.kind() == Some(Kind::Goodbye) {
            return;
        }
        send(link, &header, &bytes);
    }
}

fn exchange_frames(test: &str, options: ShmOptions) {
    if is_peer(options.clone(), |_, mut link| echo(&mut link)) {
        return;
    }
    let (peer, _host, mut link) = start(test, options);
    let mut random = Random::new();
    let mut recorder = Recorder::new(|_| Want::Slices(4));
    for id in 0..200 {
        let bytes = [0, 4, 100, 4000, 20_000, 300_000][random.below(6)];
        let bytes = bytes + if bytes > 100 { random.below(bytes) } else { 0 };
        send(&mut link, &data(id, bytes), &payload(id, bytes));
        let (header, arrived) = receive(&mut link, &mut recorder).expect("an open link");
        assert_eq!(header, data(id, bytes));
        assert!(arrived == payload(id, bytes), "frame {id} of {bytes} bytes is damaged");
    }
    send(&mut link, &control(Kind::Goodbye, 0), &[]);
    peer.assert_success();
    assert!(matches!(receive(&mut link, &mut recorder), Err(LinkError::Closed)));
}

#[test]
fn frames_cross() {
    exchange_frames("frames_cross", ShmOptions::default());
}

#[test]
fn frames_cross_tiny_rings_without_references() {
    let options = ShmOptions { single_copy: false, ..tiny() };
    exchange_frames("frames_cross_tiny_rings_without_references", options);
}

/// The peer says where two messages lie in its memory, and this side takes them.
#[test]
fn references_cross() {
    const BYTES: usize = 3_000_000;
    let options = || ShmOptions { arena_bytes: Some(8 << 20), ..ShmOptions::default() };
    let part = |host: &ShmHost, mut link: ShmLink| {
        let private = payload(1, BYTES);
        let shared = host.arena().allocate(BYTES, 64).expect("room");
        // SAFETY: the allocation is that long and ours.
        unsafe {
            shared.start().copy_from_nonoverlapping(std::ptr::NonNull::from(&payload(2, BYTES)[..]).cast(), BYTES)
        };
        for (id, piece) in [(1, piece(&private)), (2, Piece { start: shared.start().as_ptr(), bytes: BYTES })] {
            let reference = link.refer(piece).expect("the other side can reach this");
            send(&mut link, &Header { reference, ..control(Kind::Heartbeat, id) }, &[]);
        }
        receive(&mut link, &mut Recorder::new(|_| Want::Memory)).expect("a goodbye");
    };
    if is_peer(options(), part) {
        return;
    }
    let (peer, _host, mut link) = start("references_cross", options());
    let mut recorder = Recorder::new(|_| Want::Memory);
    for (id, is_mapped) in [(1, false), (2, true)] {
        let (header, _) = receive(&mut link, &mut recorder).expect("an open link");
        let mut into = vec![0; BYTES - 5];
        // SAFETY: `into` is that long.
        unsafe { link.take(header.reference, 5, into.as_mut_ptr(), into.len()) }.expect("a copy");
        assert!(into == payload(id, BYTES)[5..]);
        let mapped = link.mapped(header.reference, BYTES);
        assert_eq!(mapped.is_some(), is_mapped);
        if let Some(start) = mapped {
            // SAFETY: so many bytes are mapped there, and the peer leaves them alone until the goodbye.
            assert!(unsafe { std::slice::from_raw_parts(start, BYTES) } == payload(id, BYTES));
        }
        assert!(!link.withdrawn());
    }
    send(&mut link, &control(Kind::Goodbye, 0), &[]);
    peer.assert_success();
    assert!(matches!(receive(&mut link, &mut recorder), Err(LinkError::Closed)));
    assert!(link.withdrawn());
}

/// The peer may not copy from our memory: it says so, and only shared memory is referred to.
#[test]
fn refused_single_copies_are_noticed_and_explained() {
    if std::env::var(BLOB).is_ok() {
        forbid_single_copies().expect("a filter");
    }
    let part = |_: &ShmHost, mut link: ShmLink| {
        link.single_copy().expect("the other side may copy from here");
        let mut recorder = Recorder::new(|_| Want::Memory);
        let (header, _) = receive(&mut link, &mut recorder).expect("an open link");
        let mut into = vec![0; 1000];
        // SAFETY: `into` is that long.
        unsafe { link.take(header.reference, 0, into.as_mut_ptr(), into.len()) }.expect("a copy of mapped memory");
        assert!(into.iter().all(|byte| *byte == 9));
        // What a sender that does not keep to it would get.
        // SAFETY: as above.
        let error = unsafe { link.take([2, into.as_ptr().addr() as u64], 0, into.as_mut_ptr(), 8) };
        assert!(matches!(error, Err(LinkError::Io { .. })));
    };
    if is_peer(tiny(), part) {
        return;
    }
    let (peer, host, mut link) = start("refused_single_copies_are_noticed_and_explained", tiny());
    let reason = link.single_copy().expect_err("forbidden").to_owned();
    assert!(reason.contains("not permitted") && reason.contains("ptrace_scope"), "{reason}");
    let private = [9; 1000];
    assert_eq!((link.any_memory(), link.refer(piece(&private))), (false, None));
    assert!(link.reference_above().is_some(), "the arena can be referred to");
    let shared = host.arena().allocate(1000, 64).expect("room");
    // SAFETY: the allocation is that long and ours.
    unsafe { shared.start().write_bytes(9, 1000) };
    let reference = link.refer(Piece { start: shared.start().as_ptr(), bytes: 1000 }).expect("a reference");
    send(&mut link, &Header { reference, ..control(Kind::Heartbeat, 1) }, &[]);
    peer.assert_success();
}

/// A peer killed in the middle of a frame ends the link at once, whether this side sleeps or spins; and the frame does
/// not end.
#[test]
fn a_killed_peer_is_noticed_at_once() {
    const BYTES: usize = 1 << 20;
    let part = |_: &ShmHost, mut link: ShmLink| {
        send(&mut link, &data(1, 10), &payload(1, 10));
        // Never gets to its end: rank 0 does not read.
        send(&mut link, &data(2, BYTES), &payload(2, BYTES));
    };
    if is_peer(tiny(), part) {
        return;
    }
    for sleeps in [true, false] {
        let (mut peer, _host, mut link) = start("a_killed_peer_is_noticed_at_once", tiny());
        let mut recorder = Recorder::new(|_| Want::Slices(1));
        let begun = Instant::now();
        while recorder.frames.is_empty() || recorder.unfinished() == 0 {
            link.receive(&mut recorder).expect("an open link");
            std::thread::yield_now();
            assert!(begun.elapsed() < Duration::from_secs(20), "the peer sends nothing");
        }
        peer.kill();
        let killed = Instant::now();
        let error = if sleeps {
            until(&mut link, |link| {
                while link.receive(&mut recorder)? {}
                Ok(false)
            })
            .expect_err("the peer is dead")
        } else {
            loop {
                if let Err(error) = link.receive(&mut recorder) {
                    break error;
                }
            }
        };
        assert!(matches!(error, LinkError::Closed), "{error}");
        assert!(killed.elapsed() < PATIENCE / 2, "noticed after {:?}", killed.elapsed());
        assert_eq!((recorder.frames.len(), recorder.unfinished()), (1, 1));
        assert!(recorder.frames[0].1 == payload(1, 10));
        // What is sent now goes nowhere, and breaks nothing.
        // SAFETY: no pieces.
        unsafe { link.enqueue(&control(Kind::Heartbeat, 3), &[], 0) };
        link.flush(&mut |_| ()).expect("a dead link takes frames and forgets them");
    }
}

/// Memory is taken when it is asked for: where there is none, that is an error, and nothing dies of touching it later.
#[test]
fn shared_memory_that_is_not_there_is_an_error_and_no_signal() {
    let host = ShmHost::new(tiny()).expect("a host");
    let arena = host.arena().clone();
    let free = arena.free_bytes();
    let refused = std::thread::spawn(move || {
        refuse_memory(Whom::Thread).expect("a filter");
        arena.allocate(100_000, 64).map(|_| ()).expect_err("there is none").to_string()
    });
    let refused = refused.join().expect("no panic");
    assert!(refused.contains("no memory for") && refused.contains("memory limit"), "{refused}");
    assert_eq!(host.arena().free_bytes(), free, "what was refused is kept");
    // The filter is the other thread's own.
    host.arena().allocate(100_000, 64).expect("there is some");
}

/// The same holds for rings, which take theirs as they are first filled.
#[test]
fn a_ring_without_memory_is_an_error_and_no_signal() {
    let part = |_: &ShmHost, mut link: ShmLink| {
        let bytes = payload(2, 100_000);
        send(&mut link, &data(1, 10), &payload(1, 10));
        refuse_memory(Whom::Thread).expect("a filter");
        let pieces = [piece(&bytes)];
        // SAFETY: `bytes` outlives the link: it is dropped after it.
        unsafe { link.enqueue(&data(2, bytes.len()), &pieces, 1) };
        let error = link.flush(&mut |_| ()).expect_err("there is none").to_string();
        assert!(error.contains("taking memory for a ring") && error.contains("memory limit"), "{error}");
        drop(link);
        drop(bytes);
    };
    if is_peer(ShmOptions::default(), part) {
        return;
    }
    let (peer, _host, mut link) = start("a_ring_without_memory_is_an_error_and_no_signal", ShmOptions::default());
    let mut recorder = Recorder::new(|_| Want::Memory);
    let (header, arrived) = receive(&mut link, &mut recorder).expect("what was sent before");
    assert!(header == data(1, 10) && arrived == payload(1, 10));
    peer.assert_success();
    assert!(matches!(receive(&mut link, &mut recorder), Err(LinkError::Closed)));
}
