//! What only a link over sockets can meet: frames cut anywhere, strangers, connections that end in mid-frame.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytemuck::bytes_of;
use common::{Random, Recorder, Want, control, data, payload, piece, sockets, tcp_pair};
use paceline_engine::frame::{FRAME_BYTES_MAX, HEADER_BYTES, Header, Kind};
use paceline_fabric::{Link, LinkError, TcpLink, TcpOptions};

/// A link, and the bare socket of its peer.
fn link_and_socket() -> (TcpLink, TcpStream) {
    let (ours, theirs) = sockets();
    theirs.set_nodelay(true).expect("a socket option");
    (TcpLink::new(vec![ours], TcpOptions::default()).expect("a link"), theirs)
}

#[test]
fn idle_connections_are_probed() {
    let (ours, _theirs) = sockets();
    let seen = ours.try_clone().expect("a descriptor");
    let _link = TcpLink::new(vec![ours], TcpOptions::default()).expect("a link");
    let seen = socket2::SockRef::from(&seen);
    assert!(seen.keepalive().expect("a socket option"));
    assert_eq!(seen.tcp_keepalive_time().expect("a socket option"), Duration::from_secs(5));
}

/// Receives until the link reports an error.
fn receive_to_the_end(link: &mut TcpLink, recorder: &mut Recorder) -> LinkError {
    let start = Instant::now();
    loop {
        if let Err(error) = link.receive(recorder) {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the link does not notice");
    }
}

#[test]
fn frames_cut_at_any_byte_are_put_together() {
    let mut random = Random::new();
    let (mut link, mut socket) = link_and_socket();
    let sizes: Vec<usize> = (0..60)
        .map(|_| match random.below(3) {
            0 => random.below(5),
            1 => random.below(2000),
            _ => random.below(60_000),
        })
        .collect();
    let mut wire = Vec::new();
    for (id, &bytes) in sizes.iter().enumerate() {
        wire.extend_from_slice(bytes_of(&data(id as u32, bytes)));
        wire.extend(payload(id as u32, bytes));
    }
    let mut wants = Random(random.next());
    let mut recorder = Recorder::new(move |_| match wants.below(3) {
        0 => Want::Memory,
        1 => Want::Slices(8),
        _ => Want::Slices(1 + wants.below(5000)),
    });
    let mut rest = &wire[..];
    while !rest.is_empty() {
        // Now single bytes, now more than the staging buffer holds.
        let bound = [2, 200, 3000, 300_000][random.below(4)];
        let cut = (1 + random.below(bound)).min(rest.len());
        socket.write_all(&rest[..cut]).expect("the link reads");
        rest = &rest[cut..];
        while link.receive(&mut recorder).expect("good frames") {}
    }
    drop(socket);
    assert!(matches!(receive_to_the_end(&mut link, &mut recorder), LinkError::Closed));
    assert_eq!(recorder.frames.len(), sizes.len());
    for (id, (header, bytes)) in recorder.frames.iter().enumerate() {
        assert_eq!(*header, data(id as u32, sizes[id]));
        assert!(*bytes == payload(id as u32, sizes[id]), "frame {id} is damaged");
    }
}

#[test]
fn an_end_in_mid_frame_ends_the_link_and_not_the_frame() {
    let frame = [bytes_of(&data(0, 5000)).to_vec(), payload(0, 5000)].concat();
    for cut in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 4000, frame.len() - 1] {
        for want in [Want::Memory, Want::Slices(16), Want::Discard] {
            let (mut link, mut socket) = link_and_socket();
            socket.write_all(&frame[..cut]).expect("the kernel takes a little");
            drop(socket);
            let mut recorder = Recorder::new(move |_| want);
            let error = receive_to_the_end(&mut link, &mut recorder);
            assert!(matches!(error, LinkError::Closed), "{error}");
            assert!(recorder.frames.is_empty());
            assert_eq!(recorder.unfinished(), usize::from(cut >= HEADER_BYTES));
        }
    }
}

#[test]
fn frames_that_break_the_protocol_are_refused() {
    let good = data(1, 100);
    let cases = [
        (Header { magic: u32::from_le_bytes(*b"GET "), ..good }, "does not start like"),
        (Header { kind: 77, ..good }, "unknown kind"),
        (Header { payload_bytes: FRAME_BYTES_MAX + 1, message_bytes: u32::MAX, ..good }, "longer than"),
        (Header { payload_bytes: FRAME_BYTES_MAX + 1, ..control(Kind::Abort, 1) }, "longer than"),
        (Header { offset: u32::MAX, ..good }, "beyond the end"),
        (Header { message_bytes: 4, payload_bytes: 4, ..control(Kind::Reference, 1) }, "refers to its memory"),
    ];
    for (header, expected) in cases {
        let (mut link, mut socket) = link_and_socket();
        socket.write_all(bytes_of(&header)).expect("the kernel takes a little");
        let mut recorder = Recorder::new(|_| panic!("a bad header reaches the sink"));
        let error = receive_to_the_end(&mut link, &mut recorder).to_string();
        assert!(error.starts_with("the peer sent a frame that") && error.contains(expected), "{error}");
        // And from then on nothing is heard, but the peer can be told why.
        socket.write_all(bytes_of(&good)).expect("the kernel takes a little");
        assert!(matches!(link.receive(&mut recorder), Err(LinkError::Closed)));
        let reason = control(Kind::Abort, 2);
        // SAFETY: no pieces.
        unsafe { link.enqueue(&reason, &[], 0) };
        assert!(matches!(link.flush(&mut |_| ()), Ok(true)));
        link.close();
        let mut told = Vec::new();
        std::io::Read::read_to_end(&mut socket, &mut told).expect("an end");
        assert_eq!(told, bytes_of(&reason));
    }
}

#[test]
fn noise_never_panics() {
    let mut random = Random::new();
    for _ in 0..200 {
        let (mut link, mut socket) = link_and_socket();
        for id in 0..3 {
            // A good header with some bytes changed, then noise: gets further than noise alone.
            let mut header = data(id, random.below(3000));
            for _ in 0..random.below(3) {
                bytemuck::bytes_of_mut(&mut header)[random.below(HEADER_BYTES)] = random.next() as u8;
            }
            socket.write_all(bytes_of(&header)).expect("the kernel takes a little");
            let count = random.below(4000);
            socket.write_all(&random.bytes(count)).expect("the kernel takes a little");
        }
        drop(socket);
        let start = Instant::now();
        let mut sink = Anything(Vec::new(), Random(random.next()));
        while link.receive(&mut sink).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20), "the link does not end");
        }
    }
}

/// A sink that takes whatever comes.
struct Anything(Vec<u8>, Random);

impl paceline_fabric::Sink for Anything {
    fn begin(&mut self, header: &Header) -> Result<paceline_fabric::Target, LinkError> {
        assert!(header.check().is_ok(), "the sink sees an unchecked header");
        self.0.resize(FRAME_BYTES_MAX as usize, 0);
        Ok(match self.1.below(3) {
            0 => paceline_fabric::Target::Memory(self.0.as_mut_ptr()),
            1 => paceline_fabric::Target::Slices(4),
            _ => paceline_fabric::Target::Discard,
        })
    }

    fn bytes(&mut self, _: &Header, _: usize, _: &[u8]) -> Result<(), LinkError> {
        Ok(())
    }

    fn end(&mut self, _: &Header) -> Result<(), LinkError> {
        Ok(())
    }
}

#[test]
fn an_error_of_the_sink_ends_the_link() {
    let (mut link, mut socket) = link_and_socket();
    socket.write_all(bytes_of(&control(Kind::Heartbeat, 1))).expect("the kernel takes a little");
    struct Refusing;
    impl paceline_fabric::Sink for Refusing {
        fn begin(&mut self, _: &Header) -> Result<paceline_fabric::Target, LinkError> {
            Err(LinkError::Protocol { what: "bores".into() })
        }
        fn bytes(&mut self, _: &Header, _: usize, _: &[u8]) -> Result<(), LinkError> {
            unreachable!("nothing has begun")
        }
        fn end(&mut self, _: &Header) -> Result<(), LinkError> {
            unreachable!("nothing has begun")
        }
    }
    let start = Instant::now();
    let error = loop {
        match link.receive(&mut Refusing) {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(10), "the frame does not arrive"),
        }
    };
    assert_eq!(error, "the peer bores");
    // The peer learns of it when the link goes.
    drop(link);
    let read = std::io::Read::read(&mut socket, &mut [0; 1]);
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// A peer that does not read has no room for the last words, and goes on sending. They must not be lost for that.
#[test]
fn last_words_reach_a_peer_that_reads_late_and_sends_much() {
    let (mut link, mut socket) = link_and_socket();
    let bulk = vec![7u8; 1 << 20];
    let mut unsent = 0usize;
    // Fill both directions until neither kernel takes more.
    socket.set_nonblocking(true).expect("a socket");
    while unsent < 64 {
        // SAFETY: the pieces outlive the link.
        unsafe { link.enqueue(&data(1, bulk.len()), &[piece(&bulk)], 1) };
        unsent += 1;
        let mut sent = 0;
        link.flush(&mut |_| sent += 1).expect("an open link");
        if sent == 0 {
            break;
        }
    }
    while socket.write(&bulk).is_ok() {}
    link.abandon();
    let reason = control(Kind::Abort, 2);
    // SAFETY: no pieces.
    unsafe { link.enqueue(&reason, &[], 9) };
    let start = Instant::now();
    let mut heard = Vec::new();
    let (mut said, mut settled) = (false, false);
    while !settled {
        assert!(start.elapsed() < Duration::from_secs(20), "the words do not arrive");
        link.flush(&mut |ticket| said |= ticket == 9).expect("an open link");
        settled = said && link.settled();
        // The peer reads now and then.
        let mut some = vec![0; 1 << 18];
        if let Ok(read) = std::io::Read::read(&mut socket, &mut some) {
            heard.extend_from_slice(&some[..read]);
        }
        let _ = socket.write(&bulk[..1000]);
    }
    // From here on the link may go, with whatever has come since.
    link.close();
    let _ = socket.write(&bulk);
    drop(link);
    socket.set_nonblocking(false).expect("a socket");
    let _ = std::io::Read::read_to_end(&mut socket, &mut heard);
    assert!(heard.ends_with(bytes_of(&reason)), "the last words are lost");
}

#[test]
fn after_abandon_nothing_is_written_to_the_sinks_memory() {
    let (mut link, mut socket) = link_and_socket();
    let frame = [bytes_of(&data(0, 200_000)).to_vec(), payload(0, 200_000)].concat();
    socket.write_all(&frame[..50_000]).expect("the kernel takes it");
    let mut recorder = Recorder::new(|_| Want::Memory);
    let start = Instant::now();
    while !link.receive(&mut recorder).expect("a good frame") || recorder.unfinished() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the frame does not arrive");
    }
    link.abandon();
    let writer = std::thread::spawn(move || socket.write_all(&frame[50_000..]).expect("the link reads"));
    while recorder.frames.is_empty() {
        link.receive(&mut recorder).expect("a good frame");
    }
    writer.join().expect("no panic");
    assert!(recorder.frames[0].1[50_000..].iter().all(|&byte| byte == 0), "the link writes to memory that it gave up");
}

#[test]
fn an_urgent_frame_overtakes_bulk_on_another_stream() {
    let (mut left, mut right) = tcp_pair(2, TcpOptions::default(), Some(4 << 10));
    let memory = payload(1, FRAME_BYTES_MAX as usize);
    // SAFETY: `memory` outlives the links.
    unsafe {
        left.enqueue(&data(1, memory.len()), &[piece(&memory)], 1);
        left.enqueue(&data(2, 100), &[piece(&memory[..100])], 2);
        left.enqueue(&control(Kind::Goodbye, 3), &[], 3);
    }
    assert!(!left.has_room(), "the bulk stream is full");
    let mut recorder = Recorder::new(|_| Want::Memory);
    let start = Instant::now();
    while recorder.frames.len() < 3 {
        left.flush(&mut |_| ()).expect("a link that works");
        right.receive(&mut recorder).expect("a link that works");
        assert!(start.elapsed() < Duration::from_secs(20), "stuck");
    }
    let order: Vec<u32> = recorder.frames.iter().map(|(header, _)| header.tile).collect();
    assert_eq!(order, [2, 1, 3], "urgent, bulk, and the goodbye after everything");
}

#[test]
fn a_call_with_few_lanes_keeps_to_them() {
    let pairs: Vec<_> = (0..4).map(|_| sockets()).collect();
    let (ours, mut theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let mut link = TcpLink::new(ours, TcpOptions::default()).expect("a link");
    let memory = payload(1, 32 << 10);
    let enqueue = |link: &mut TcpLink, id, lanes| {
        let header = Header { lanes, ..data(id, memory.len()) };
        // SAFETY: `memory` outlives the link.
        unsafe { link.enqueue(&header, &[piece(&memory)], u64::from(id)) };
    };
    (0..6).for_each(|id| enqueue(&mut link, id, 2));
    assert!(link.has_room_on(1));
    (6..15).for_each(|id| enqueue(&mut link, id, 1));
    assert!(!link.has_room_on(1) && link.has_room_on(2) && link.has_room());
    theirs.iter().for_each(|socket| socket.set_nonblocking(true).expect("a socket option"));
    let mut carried = [0; 4];
    let mut read = |theirs: &mut [TcpStream]| {
        for (socket, carried) in theirs.iter_mut().zip(&mut carried) {
            let mut bytes = Vec::new();
            // Ends with "would block".
            let _ = socket.read_to_end(&mut bytes);
            *carried += bytes.len();
        }
    };
    while !link.is_flushed() {
        link.flush(&mut |_| ()).expect("a link that works");
        read(&mut theirs);
    }
    // What the kernel still has comes before the end.
    drop(link);
    theirs.iter().for_each(|socket| socket.set_nonblocking(false).expect("a socket option"));
    read(&mut theirs);
    assert_eq!(carried.iter().sum::<usize>(), 15 * (HEADER_BYTES + memory.len()), "{carried:?}");
    assert!(carried[0] == 0 && carried[1] > carried[2] && carried[2] > 0 && carried[3] == 0, "{carried:?}");
}

#[test]
fn what_a_dying_peer_said_on_another_stream_is_still_heard() {
    // It said goodbye on none: the first connection ends at once, the second carries a last frame.
    let ((urgent, urgent_peer), (bulk, mut bulk_peer)) = (sockets(), sockets());
    let mut link = TcpLink::new(vec![urgent, bulk], TcpOptions::default()).expect("a link");
    bulk_peer.write_all(&[bytes_of(&data(1, 70_000)), &payload(1, 70_000)[..]].concat()).expect("the kernel takes it");
    drop((urgent_peer, bulk_peer));
    let mut recorder = Recorder::new(|_| Want::Memory);
    let error = receive_to_the_end(&mut link, &mut recorder);
    assert!(matches!(error, LinkError::Closed), "{error}");
    assert_eq!(recorder.frames.len(), 1);
    let mut descriptors = Vec::new();
    link.descriptors(&mut descriptors);
    assert!(descriptors.is_empty(), "a sleeper would spin on an ended connection");
}

#[test]
fn a_write_to_a_dead_peer_does_not_hide_what_it_said() {
    let (mut link, mut socket) = link_and_socket();
    let reason = "out of memory";
    let abort = Header { payload_bytes: reason.len() as u32, ..control(Kind::Abort, 1) };
    socket.write_all(&[bytes_of(&abort), reason.as_bytes()].concat()).expect("the kernel takes a little");
    drop(socket);
    let memory = payload(2, 100_000);
    for id in 0..20 {
        // SAFETY: `memory` outlives the link.
        unsafe { link.enqueue(&data(id, memory.len()), &[piece(&memory)], 0) };
        link.flush(&mut |_| ()).expect("`receive` reports the end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut recorder = Recorder::new(|_| Want::Memory);
    let error = receive_to_the_end(&mut link, &mut recorder);
    assert!(matches!(error, LinkError::Closed), "{error}");
    assert_eq!(recorder.frames.len(), 1);
    assert_eq!(recorder.frames[0].1, reason.as_bytes());
}

/// Calls of one lane each do not all take the same one.
#[test]
fn operations_begin_with_different_streams_and_keep_to_as_many_as_they_may() {
    const BYTES: usize = 20_000;
    let (ours, theirs): (Vec<TcpStream>, Vec<TcpStream>) = (0..4).map(|_| sockets()).unzip();
    let mut link = TcpLink::new(ours, TcpOptions::default()).expect("a link");
    let memory = payload(1, BYTES);
    // Operation n begins with bulk stream n, modulo 3; the first stream of the link is for small frames.
    for (id, operation, count) in [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 2, 2), (6, 2, 2)] {
        let header = Header { lanes: paceline_engine::frame::lanes(count, operation), ..data(id, BYTES) };
        // SAFETY: `memory` outlives the link.
        unsafe { link.enqueue(&header, &[piece(&memory)], 0) };
    }
    while link.flush(&mut |_| ()).expect("a link that works") {}
    assert!(link.is_flushed());
    drop(link);
    let ids = |mut socket: TcpStream| {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).expect("an end");
        let frames = bytes.chunks_exact(HEADER_BYTES + BYTES);
        frames.map(|frame| bytemuck::pod_read_unaligned::<Header>(&frame[..HEADER_BYTES]).tile).collect::<Vec<_>>()
    };
    let found: Vec<Vec<u32>> = theirs.into_iter().map(ids).collect();
    // Two lanes from the third on are the third and the first, whichever has less to send.
    assert_eq!(found, [vec![], vec![0, 3], vec![1, 4], vec![2, 5, 6]]);
}
