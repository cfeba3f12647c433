//! What every link must do, whatever carries it.

mod common;

use std::time::{Duration, Instant};

use common::{Random, Recorder, Want, control, data, pairs, payload, piece, wait};
use paceline_engine::frame::{FRAME_BYTES_MAX, Header, Kind};
use paceline_fabric::{Link, LinkError, Piece};

/// A side that sends `count` random frames from its own memory and overwrites each as soon as it may.
struct Sender {
    random: Random,
    left: usize,
    next: u32,
    /// Frames that may not be touched, by ticket.
    held: std::collections::HashMap<u64, Vec<u8>>,
}

impl Sender {
    fn step(&mut self, link: &mut dyn Link) -> bool {
        while self.left > 0 && link.has_room_on(0) {
            let bytes = match self.random.below(6) {
                0 => 0,
                1..4 => self.random.below(300),
                4 => self.random.below(40_000),
                _ => self.random.below(FRAME_BYTES_MAX as usize + 1),
            };
            let (header, memory) = (data(self.next, bytes), payload(self.next, bytes));
            let mut cuts: Vec<usize> = (0..self.random.below(5)).map(|_| self.random.below(bytes + 1)).collect();
            cuts.extend([0, bytes]);
            cuts.sort_unstable();
            let pieces: Vec<Piece> = cuts.windows(2).map(|cut| piece(&memory[cut[0]..cut[1]])).collect();
            let ticket = u64::from(self.next) | 1 << 40;
            // SAFETY: `held` keeps the memory until the ticket comes back.
            unsafe { link.enqueue(&header, &pieces, ticket) };
            assert!(self.held.insert(ticket, memory).is_none());
            (self.left, self.next) = (self.left - 1, self.next + 1);
        }
        let held = &mut self.held;
        link.flush(&mut |ticket| {
            let mut memory = held.remove(&ticket).expect("a ticket comes back once");
            memory.fill(0xee);
        })
        .expect("a link that works")
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.held.is_empty()
    }
}

#[test]
fn random_frames_arrive_intact_in_both_directions() {
    for (name, mut left, mut right) in pairs() {
        println!("{name}");
        let mut random = Random::new();
        let count = 150;
        let mut sender =
            || Sender { random: Random(random.next()), left: count, next: 0, held: std::collections::HashMap::new() };
        let (mut from_left, mut from_right) = (sender(), sender());
        let mut recorder = || {
            let mut random = Random(random.next());
            Recorder::new(move |_| match random.below(4) {
                0 => Want::Memory,
                1 => Want::Slices(1 + random.below(9)),
                2 => Want::Slices(1 << random.below(13)),
                _ => Want::Discard,
            })
        };
        let (mut at_left, mut at_right) = (recorder(), recorder());
        let start = Instant::now();
        while at_left.frames.len() < count || at_right.frames.len() < count {
            from_left.step(&mut *left);
            from_right.step(&mut *right);
            left.receive(&mut at_left).expect("a link that works");
            right.receive(&mut at_right).expect("a link that works");
            assert!(start.elapsed() < Duration::from_secs(60), "{name}: stuck");
        }
        assert!(from_left.is_done() && from_right.is_done(), "{name}: a ticket is missing");
        for recorder in [at_left, at_right] {
            check_all(name, recorder, count);
        }
    }
}

fn check_all(name: &str, recorder: Recorder, count: usize) {
    let mut frames = recorder.frames;
    if !name.contains("streams") {
        assert!(frames.windows(2).all(|pair| pair[0].0.tile < pair[1].0.tile), "{name}: frames change their order");
    }
    frames.sort_by_key(|(header, _)| header.tile);
    assert_eq!(frames.len(), count, "{name}");
    for (index, (header, bytes)) in frames.iter().enumerate() {
        assert_eq!(*header, data(index as u32, bytes.len()), "{name}");
        let discarded = bytes.iter().all(|&byte| byte == 0);
        assert!(discarded || *bytes == payload(header.tile, bytes.len()), "{name}: frame {index} is damaged");
    }
}

#[test]
fn nothing_is_discarded_that_was_wanted() {
    for (name, mut left, mut right) in pairs() {
        let memory = payload(7, 300_000);
        for want in [Want::Memory, Want::Slices(4), Want::Slices(4096)] {
            let mut recorder = Recorder::new(move |_| want);
            // SAFETY: `memory` outlives the links' use of it: the frame arrives before the loop goes on.
            unsafe { left.enqueue(&data(7, memory.len()), &[piece(&memory)], 0) };
            let start = Instant::now();
            while recorder.frames.is_empty() {
                left.flush(&mut |_| ()).expect("a link that works");
                right.receive(&mut recorder).expect("a link that works");
                assert!(start.elapsed() < Duration::from_secs(20), "{name}: stuck");
            }
            assert!(recorder.frames[0].1 == memory, "{name}, {want:?}");
        }
    }
}

#[test]
fn a_peer_that_does_not_read_stops_the_sender_and_bounds_each_receive() {
    for (name, mut left, mut right) in pairs() {
        let memory = payload(1, 60_000);
        let (mut enqueued, mut sent) = (0, 0);
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_millis(50) {
            while left.has_room_on(0) {
                // SAFETY: `memory` outlives the links.
                unsafe { left.enqueue(&data(enqueued, memory.len()), &[piece(&memory)], 0) };
                enqueued += 1;
            }
            if left.flush(&mut |_| sent += 1).expect("a link that works") {
                quiet_since = Instant::now();
            }
        }
        let waiting = (enqueued - sent) as usize * memory.len();
        assert!(waiting <= 4 * (400 << 10), "{name}: {waiting} bytes wait in the caller's memory");
        assert!(enqueued as usize * memory.len() < 32 << 20, "{name}: the link takes whatever it gets");

        // A control frame is taken all the same, and everything arrives.
        // SAFETY: no pieces.
        unsafe { left.enqueue(&control(Kind::Heartbeat, enqueued), &[], 0) };
        let mut recorder = Recorder::new(|_| Want::Slices(4));
        while recorder.frames.len() <= enqueued as usize {
            left.flush(&mut |_| ()).expect("a link that works");
            let before = recorder.frames.len();
            right.receive(&mut recorder).expect("a link that works");
            let frames = recorder.frames.len() - before;
            assert!(frames * memory.len() <= (1 << 20) + 5 * memory.len(), "{name}: {frames} frames in one call");
        }
        drop(left);
        assert!(matches!(wait_for_error(&mut *right, &mut recorder), LinkError::Closed), "{name}");
    }
}

/// A driver flushes no link that says that there is nothing to flush.
#[test]
fn a_link_is_not_flushed_while_a_ticket_is_out() {
    for (name, mut left, _right) in pairs() {
        let memory = payload(1, 5000);
        let (mut enqueued, mut sent, mut quiet_since) = (0, 0, Instant::now());
        while quiet_since.elapsed() < Duration::from_millis(50) {
            // One at a time, so that the last one is as far as it can be when the peer takes no more.
            if sent == enqueued && left.has_room_on(0) {
                // SAFETY: `memory` outlives the links.
                unsafe { left.enqueue(&data(enqueued, memory.len()), &[piece(&memory)], 0) };
                enqueued += 1;
            }
            if left.flush(&mut |_| sent += 1).expect("a link that works") {
                quiet_since = Instant::now();
            }
            assert!(sent == enqueued || !left.is_flushed(), "{name}: frame {sent} is neither out nor to be flushed");
        }
        assert!(enqueued as usize * memory.len() < 32 << 20, "{name}: {sent} of {enqueued}");
    }
}

fn wait_for_error(link: &mut dyn Link, recorder: &mut Recorder) -> LinkError {
    let start = Instant::now();
    loop {
        if let Err(error) = link.receive(recorder) {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the link does not notice");
    }
}

#[test]
fn a_goodbye_arrives_after_all_else_and_before_the_end() {
    for (name, mut left, mut right) in pairs() {
        // What the closing side has not read must not cost it its last words.
        let unread = payload(2, 5000);
        // SAFETY: `unread` and `memory` outlive the links.
        unsafe { right.enqueue(&data(9, unread.len()), &[piece(&unread)], 0) };
        right.flush(&mut |_| ()).expect("a link that works");
        let memory = payload(1, 30_000);
        for id in 0..4 {
            // SAFETY: as above.
            unsafe { left.enqueue(&data(id, memory.len()), &[piece(&memory)], 0) };
        }
        // SAFETY: no pieces.
        unsafe { left.enqueue(&control(Kind::Goodbye, 4), &[], 77) };
        let (mut tickets, mut recorder) = (Vec::new(), Recorder::new(|_| Want::Memory));
        while tickets.len() < 5 {
            left.flush(&mut |ticket| tickets.push(ticket)).expect("a link that works");
            right.receive(&mut recorder).expect("a link that works");
        }
        assert_eq!(tickets.iter().filter(|&&ticket| ticket == 77).count(), 1, "{name}");
        left.close();
        drop(left);
        let error = wait_for_error(&mut *right, &mut recorder);
        assert!(matches!(error, LinkError::Closed), "{name}: {error}");
        assert_eq!(recorder.kinds(), [Kind::Data, Kind::Data, Kind::Data, Kind::Data, Kind::Goodbye], "{name}");

        // The survivor may still speak; nobody listens, and nothing breaks.
        // SAFETY: no pieces.
        unsafe { right.enqueue(&control(Kind::Heartbeat, 5), &[], 0) };
        right.flush(&mut |_| ()).expect("a closed link takes frames and forgets them");
        right.close();
        right.close();
        assert!(matches!(right.receive(&mut recorder), Err(LinkError::Closed)), "{name}");
    }
}

#[test]
fn after_abandon_no_memory_is_read_and_the_last_words_arrive() {
    for (name, mut left, mut right) in pairs() {
        let mut memory = payload(1, 1 << 20);
        for id in 0..8 {
            // SAFETY: `memory` stays unchanged until the link is told to let go of it.
            unsafe { left.enqueue(&data(id, memory.len()), &[piece(&memory)], 0) };
        }
        left.flush(&mut |_| ()).expect("a link that works");
        left.abandon();
        left.abandon();
        memory.fill(0xee);
        let reason = "a neighbour is gone";
        let abort = Header { payload_bytes: reason.len() as u32, ..control(Kind::Abort, 99) };
        // SAFETY: the reason is static.
        unsafe { left.enqueue(&abort, &[piece(reason.as_bytes())], 1) };
        let (start, mut recorder) = (Instant::now(), Recorder::new(|_| Want::Slices(4)));
        let (mut tickets, mut quiet_since) = (Vec::new(), Instant::now());
        let moving = |recorder: &Recorder, tickets: &[u64]| {
            let said = recorder.frames.iter().any(|(header, _)| header.tile == 99);
            recorder.unfinished() > 0 || tickets.is_empty() || !said
        };
        while moving(&recorder, &tickets) || quiet_since.elapsed() < Duration::from_millis(50) {
            let sent = left.flush(&mut |ticket| tickets.push(ticket)).expect("a link that works");
            if sent | right.receive(&mut recorder).expect("a link that works") {
                quiet_since = Instant::now();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{name}: stuck");
        }
        assert_eq!(tickets, [1], "{name}: tickets of abandoned frames come back");
        // With several streams the last words may overtake.
        let (last_words, frames): (Vec<_>, Vec<_>) = recorder.frames.iter().partition(|(header, _)| header.tile == 99);
        assert_eq!(last_words.len(), 1, "{name}");
        assert_eq!(last_words[0].1, reason.as_bytes(), "{name}");
        assert!(frames.len() < 8, "{name}: nothing was abandoned");
        assert!(frames.iter().all(|(_, bytes)| *bytes == payload(1, 1 << 20)), "{name}: a frame is damaged");
    }
}

#[test]
fn a_sleeper_wakes_for_a_frame_for_room_and_for_the_end() {
    for (name, mut left, mut right) in pairs() {
        let pause = Duration::from_millis(30);
        let count = 60;
        let thread = std::thread::spawn(move || {
            let memory = payload(3, 100_000);
            for id in 0..count {
                if id % 20 == 0 {
                    std::thread::sleep(pause);
                }
                while !left.has_room_on(0) {
                    sleep_unless(&mut *left, |link| link.flush(&mut |_| ())).expect("a link that works");
                }
                // SAFETY: `memory` lives until everything was flushed or the link is dropped.
                unsafe { left.enqueue(&data(id, memory.len()), &[piece(&memory)], 0) };
                left.flush(&mut |_| ()).expect("a link that works");
            }
            // SAFETY: no pieces.
            unsafe { left.enqueue(&control(Kind::Goodbye, count), &[], u64::MAX) };
            let mut done = false;
            while !done {
                left.flush(&mut |ticket| done |= ticket == u64::MAX).expect("a link that works");
                std::thread::yield_now();
            }
        });
        let mut recorder = Recorder::new(|_| Want::Memory);
        let (start, mut naps) = (Instant::now(), 0);
        let error = loop {
            match right.receive(&mut recorder) {
                Ok(true) => continue,
                Ok(false) => naps += 1,
                Err(error) => break error,
            }
            if let Err(error) = sleep_unless(&mut *right, |link| link.receive(&mut recorder)) {
                break error;
            }
        };
        thread.join().expect("the sender");
        assert!(matches!(error, LinkError::Closed), "{name}: {error}");
        assert_eq!(recorder.frames.len(), count as usize + 1, "{name}");
        assert!(naps < 10_000, "{name}: {naps} naps in {:?} are no sleep", start.elapsed());
    }
}

/// Waits as the communicator does: announce, look once more (`moved`), sleep.
fn sleep_unless(
    link: &mut dyn Link,
    mut moved: impl FnMut(&mut dyn Link) -> Result<bool, LinkError>,
) -> Result<(), LinkError> {
    link.prepare_sleep(true);
    let result = moved(link).map(|moved| {
        if !moved {
            wait_for_descriptors(&*link);
        }
    });
    link.prepare_sleep(false);
    result
}

fn wait_for_descriptors(link: &dyn Link) {
    let event = link.next_event().map(|event| event.saturating_duration_since(Instant::now()));
    let woken = wait(link, event.unwrap_or(Duration::from_secs(10)));
    // (A shaped link whose inner one wakes nobody shows in `shaped_link.rs`.)
    assert!(woken || event.is_some(), "nobody wakes the sleeper");
}
