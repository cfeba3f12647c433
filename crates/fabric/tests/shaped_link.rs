//! What an emulated network does to the frames of a link, in real time.

mod common;

use std::time::{Duration, Instant};

use common::{Recorder, Want, control, data, payload, piece, shaped_pair};
use paceline_engine::frame::{Header, Kind};
use paceline_fabric::Link;
use paceline_fabric::emulation::{Ports, ShapedLink};
use paceline_plan::{Emulation, Hosts};

/// Two ends of a memory link between hosts.
fn pair(network: &str) -> (ShapedLink, ShapedLink) {
    let network = network.parse().expect("a network");
    let emulation = Emulation { network, hosts: Hosts::regular(2, 1), dilation: 1.0 };
    let ports = Ports::create(&emulation).expect("memory");
    let (one, other) = paceline_fabric::memory_pair();
    let shape = |link, from, to| ShapedLink::new(Box::new(link), ports.clone(), &emulation, from, to);
    (shape(one, 0, 1), shape(other, 1, 0))
}

/// Turns the crank of a sender and its receiver until so many frames have arrived; when each did.
fn arrivals(from: &mut ShapedLink, to: &mut ShapedLink, recorder: &mut Recorder, count: usize) -> Vec<Instant> {
    let (start, mut times) = (Instant::now(), Vec::new());
    while recorder.frames.len() < count {
        from.flush(&mut |_| ()).expect("a link that works");
        to.receive(recorder).expect("a link that works");
        times.resize(recorder.frames.len(), Instant::now());
        assert!(start.elapsed() < Duration::from_secs(20), "stuck");
    }
    times
}

#[test]
fn no_frame_arrives_before_its_time_and_control_frames_wait_for_no_data() {
    // Long enough that nobody is descheduled for as long as the data needs to leave.
    let (mut left, mut right) = pair("alpha=50ms,beta=20us");
    let (memory, mut recorder) = (payload(1, 100_000), Recorder::new(|_| Want::Memory));
    assert!(left.has_room_on(0) && left.is_flushed() && left.next_event().is_none());
    let start = Instant::now();
    // SAFETY: `memory` outlives the links.
    unsafe { left.enqueue(&data(1, memory.len()), &[piece(&memory)], 1) };
    assert!(!left.has_room_on(0), "the first is still leaving");
    assert!(left.has_room(), "control frames need no port");
    // SAFETY: no pieces.
    unsafe { left.enqueue(&control(Kind::Grant, 2), &[], 2) };
    let next = left.next_event().expect("the grant's arrival") - start;
    assert!(next >= Duration::from_millis(50) && next < Duration::from_millis(2050), "{next:?}");
    let times = arrivals(&mut left, &mut right, &mut recorder, 2);
    assert_eq!(recorder.kinds(), [Kind::Grant, Kind::Data]);
    assert!(times[0] - start >= Duration::from_millis(50));
    assert!(times[1] - start >= Duration::from_millis(2050));
    assert!(left.has_room_on(0) && left.is_flushed() && left.next_event().is_none());
    // Nothing to be sorry for in a link that was dropped: it said all.
    // SAFETY: no pieces.
    unsafe { left.enqueue(&control(Kind::Goodbye, 3), &[], 3) };
    drop(left);
    right.receive(&mut recorder).expect("what was said before the end");
    assert_eq!(recorder.kinds().last(), Some(&Kind::Goodbye));
}

/// That memory is free again costs a real network nothing. But credit must not come before older grants.
#[test]
fn taken_memory_is_told_at_once_but_returns_no_credit_before_older_grants() {
    let (mut left, mut right) = pair("alpha=300ms,beta=0");
    let mut recorder = Recorder::new(|_| Want::Memory);
    let returning = |kind, id, eager_returned| Header { eager_returned, ..control(kind, id) };
    for header in [returning(Kind::Taken, 1, 10), returning(Kind::Grant, 2, 10), returning(Kind::Taken, 3, 20)] {
        // SAFETY: no pieces.
        unsafe { left.enqueue(&header, &[], 0) };
    }
    arrivals(&mut left, &mut right, &mut recorder, 4);
    let order: Vec<_> = recorder.frames.iter().map(|(it, _)| (it.kind().unwrap(), it.eager_returned)).collect();
    assert_eq!(order, [(Kind::Taken, 10), (Kind::Taken, 10), (Kind::Grant, 10), (Kind::Credit, 20)]);
}

/// Data that had to wait for room leaves when there was some, so it may arrive before a word that was said before it.
#[test]
fn late_data_returns_no_credit_before_older_grants() {
    let (mut left, mut right) = pair("alpha=2s,beta=100us");
    let (memory, mut recorder) = (payload(1, 5000), Recorder::new(|_| Want::Memory));
    let returning = |header, eager_returned| Header { eager_returned, ..header };
    // SAFETY: `memory` outlives the links.
    unsafe { left.enqueue(&returning(data(1, memory.len()), 0), &[piece(&memory)], 0) };
    assert!(!left.has_room_on(0), "the second has to wait");
    // It leaves at 0.5 s and arrives at 3 s, this grant later.
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: no pieces.
    unsafe { left.enqueue(&returning(control(Kind::Grant, 2), 10), &[], 0) };
    // SAFETY: as above.
    unsafe { left.enqueue(&returning(data(3, memory.len()), 30), &[piece(&memory)], 0) };
    arrivals(&mut left, &mut right, &mut recorder, 4);
    let order: Vec<_> =
        recorder.frames.iter().map(|(it, _)| (it.kind().unwrap(), it.tile, it.eager_returned)).collect();
    let expected = [(Kind::Data, 1, 0), (Kind::Data, 3, 0), (Kind::Grant, 2, 10), (Kind::Credit, 0, 30)];
    assert_eq!(order, expected);
}

/// Where the link underneath is full, no time wakes the sender: the link underneath must.
#[test]
fn whoever_waits_for_the_link_underneath_is_woken_by_it() {
    let (mut left, mut right) = shaped_pair(common::shm::shm_pair(common::shm::tiny()));
    const COUNT: u32 = 40;
    let memory = payload(1, 3000);
    let (waits, sender_waits) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut recorder = Recorder::new(|_| Want::Memory);
        // Before, nothing is read: so the link underneath is full at least once.
        let _ = sender_waits.recv_timeout(Duration::from_secs(5));
        while recorder.frames.len() < COUNT as usize {
            // As a rank that looks now and then.
            std::thread::sleep(Duration::from_millis(2));
            right.receive(&mut recorder).expect("a link that works");
        }
        assert!(recorder.frames.iter().all(|(_, bytes)| bytes.len() == 3000));
    });
    let (mut sent, mut blocked) = (0, 0);
    while sent < COUNT || !left.is_flushed() {
        left.flush(&mut |_| ()).expect("a link that works");
        if sent < COUNT && left.has_room_on(0) {
            // SAFETY: `memory` outlives the link.
            unsafe { left.enqueue(&data(sent, memory.len()), &[piece(&memory)], 0) };
            sent += 1;
            continue;
        }
        left.prepare_sleep(true);
        if !left.flush(&mut |_| ()).expect("a link that works") && !left.is_flushed() {
            let event = left.next_event();
            blocked += u32::from(event.is_none());
            if event.is_none() {
                let _ = waits.send(());
            }
            let timeout = event.map(|event| event.saturating_duration_since(Instant::now()));
            let woken = common::wait(&left, timeout.unwrap_or(Duration::from_secs(10)));
            assert!(woken || event.is_some(), "nobody wakes the sleeper");
        }
        left.prepare_sleep(false);
    }
    reader.join().expect("the reader");
    assert!(blocked > 0, "the link underneath was never full");
}

#[test]
fn whoever_was_refused_is_told_when_there_is_room() {
    let (mut left, mut right) = pair("alpha=0,beta=100ns");
    let (memory, mut recorder) = (payload(1, 30_000), Recorder::new(|_| Want::Memory));
    let (start, mut naps) = (Instant::now(), 0);
    for id in 0..10 {
        while !left.has_room_on(0) {
            let event = left.next_event().expect("a time at which there is room, or a frame arrives");
            std::thread::sleep(event.saturating_duration_since(Instant::now()));
            naps += 1;
            left.flush(&mut |_| ()).expect("a link that works");
        }
        // SAFETY: `memory` outlives the links.
        unsafe { left.enqueue(&data(id, memory.len()), &[piece(&memory)], 1) };
    }
    arrivals(&mut left, &mut right, &mut recorder, 10);
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(naps <= 20, "{naps} naps for nine refusals");
}

#[test]
fn a_pair_without_much_to_do_is_idle() {
    let (left, right) = shaped_pair(paceline_fabric::memory_pair());
    assert!(left.keeps_time() && right.keeps_time());
    assert!(left.next_event().is_none() && right.is_flushed());
}
