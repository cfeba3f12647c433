//! What shared memory costs between two processes of this machine: latency, bandwidth, and from where on a reference is
//! cheaper than bytes in a ring.
//!
//! `cargo bench -p paceline-fabric --bench shm_perf [-- ROUNDS]`. As a test it makes 20 rounds.

use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use paceline_engine::frame::{FRAME_BYTES_MAX, Header, Kind};
use paceline_fabric::shm::{Allocation, ShmHost, ShmLink, ShmOptions};
use paceline_fabric::{Link, LinkError, Piece, Sink, Target};
use rustix::event::{PollFd, PollFlags, poll};

const BLOB: &str = "SHM_PERF_BLOB";
const BYTES_MAX: usize = FRAME_BYTES_MAX as usize;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usual = if std::env::args().any(|argument| argument == "--bench") { 2000 } else { 20 };
    let rounds: usize = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(usual);
    let host = ShmHost::new(ShmOptions::default())?;
    let deadline = Instant::now() + Duration::from_secs(30);
    if let Ok(blob) = std::env::var(BLOB) {
        println!("{}", to_hex(&host.blob()));
        let links = host.connect(1, &[(0, from_hex(&blob)?)], deadline)?;
        return Ok(play(&host, links.into_values().next().ok_or("no link")??, rounds, false)?);
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg(rounds.to_string())
        .env(BLOB, to_hex(&host.blob()))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut blob = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut blob)?;
    let links = host.connect(0, &[(1, from_hex(blob.trim())?)], deadline)?;
    play(&host, links.into_values().next().ok_or("no link")??, rounds, true)?;
    child.wait()?;
    Ok(())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Result<Vec<u8>, std::num::ParseIntError> {
    (0..digits.len() / 2).map(|index| u8::from_str_radix(&digits[2 * index..2 * index + 2], 16)).collect()
}

/// How a message crosses.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Through the ring into the destination.
    Ring,
    /// The same, and the receiver sleeps whenever it waits.
    Asleep,
    /// By a reference to private memory: `process_vm_readv`.
    SingleCopy,
    /// By a reference to the arena: one copy out of mapped memory.
    Arena,
}

/// One side of all measurements. `leads`: this side sends first and measures.
fn play(host: &ShmHost, link: ShmLink, rounds: usize, leads: bool) -> Result<(), LinkError> {
    let Ok(shared) = host.arena().allocate(BYTES_MAX, 64) else { return Err(LinkError::Closed) };
    let mut side =
        Side { link, shared, private: vec![1; BYTES_MAX], into: vec![1; BYTES_MAX], last: None, arrived: 0, leads };
    // SAFETY: the allocation is that long and ours.
    unsafe { side.shared.start().write_bytes(1, BYTES_MAX) };
    if let (true, Err(reason)) = (leads, side.link.single_copy()) {
        println!("{reason}");
    }
    if leads {
        println!("{:<44} {:>10} {:>10} {:>10}", "half a round trip, in microseconds", "min", "median", "99 %");
    }
    for bytes in [8, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, BYTES_MAX] {
        for (name, way) in [
            ("ring", Way::Ring),
            ("ring, asleep", Way::Asleep),
            ("single copy", Way::SingleCopy),
            ("arena", Way::Arena),
        ] {
            let (cold, rounds) = (rounds / 100, (rounds << 16) / (bytes + (1 << 16)) + rounds.div_ceil(20));
            let mut times = (0..cold + rounds).map(|_| side.round(way, bytes)).collect::<Result<Vec<f64>, _>>()?;
            times.drain(..cold);
            times.sort_by(f64::total_cmp);
            if leads && (way != Way::SingleCopy || side.link.single_copy().is_ok()) {
                let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] * 1e6 / 2.0;
                println!("{bytes:>10} B, {name:<30} {:>10.2} {:>10.2} {:>10.2}", at(0.0), at(0.5), at(0.99));
            }
        }
    }
    side.stream(rounds.div_ceil(4))
}

struct Side {
    link: ShmLink,
    shared: Allocation,
    private: Vec<u8>,
    into: Vec<u8>,
    /// The header that has arrived.
    last: Option<Header>,
    /// Frames that have arrived and were not waited for yet.
    arrived: usize,
    leads: bool,
}

impl Side {
    /// There and back; in seconds.
    fn round(&mut self, way: Way, bytes: usize) -> Result<f64, LinkError> {
        let start = Instant::now();
        if self.leads {
            self.send(way, bytes)?;
            self.receive(way, bytes)?;
        } else {
            self.receive(way, bytes)?;
            self.send(way, bytes)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// As a communicator does it: a reference stays valid until the answer has come, which says that it was taken.
    fn send(&mut self, way: Way, bytes: usize) -> Result<(), LinkError> {
        let start = if way == Way::Arena { self.shared.start().as_ptr() } else { self.private.as_mut_ptr() };
        let piece = Piece { start, bytes };
        // Where the peer cannot copy from this process, there is nothing to measure, and the bytes take the ring.
        let reference = if matches!(way, Way::Ring | Way::Asleep) { None } else { self.link.refer(piece) };
        let taken = |reference| Header { reference, ..Header::new(Kind::Taken, Default::default()) };
        let header = reference.map_or_else(|| data(bytes), taken);
        let pieces = if header.wire_payload_bytes() > 0 { &[piece][..] } else { &[] };
        // SAFETY: the memory lives as long as this side, and nobody writes to it before the answer.
        unsafe { self.link.enqueue(&header, pieces, 0) };
        let mut sent = false;
        while !sent {
            if !self.link.flush(&mut |_| sent = true)? {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn receive(&mut self, way: Way, bytes: usize) -> Result<(), LinkError> {
        let mut sink = Into { start: self.into.as_mut_ptr(), last: &mut self.last, arrived: &mut self.arrived };
        let mut polls = 0_u32;
        while *sink.arrived == 0 {
            if way == Way::Asleep {
                self.link.prepare_sleep(true);
                if !self.link.receive(&mut sink)? {
                    sleep(&self.link);
                }
                self.link.prepare_sleep(false);
            } else if !self.link.receive(&mut sink)? {
                polls += 1;
                if polls.is_multiple_of(200) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
        self.arrived -= 1;
        let header = self.last.unwrap_or_default();
        if header.kind() == Some(Kind::Taken) {
            // SAFETY: `into` is that long and ours.
            unsafe { self.link.take(header.reference, 0, self.into.as_mut_ptr(), bytes) }?;
        }
        Ok(())
    }

    /// One way, as fast as the ring takes it.
    fn stream(&mut self, frames: usize) -> Result<(), LinkError> {
        for bytes in [1 << 10, 16 << 10, 128 << 10, BYTES_MAX] {
            let start = Instant::now();
            if self.leads {
                let (mut enqueued, mut sent) = (0, 0);
                let piece = Piece { start: self.private.as_ptr(), bytes };
                while sent < frames {
                    while enqueued < frames && self.link.has_room() {
                        // SAFETY: the memory lives as long as this side, and nobody writes to it.
                        unsafe { self.link.enqueue(&data(bytes), &[piece], 0) };
                        enqueued += 1;
                    }
                    if !self.link.flush(&mut |_| sent += 1)? {
                        std::thread::yield_now();
                    }
                }
                self.receive(Way::Ring, 8)?;
                let rate = (frames * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
                println!("{bytes:>10} B frames, streamed through the ring: {rate:>8.2} GB/s");
            } else {
                for _ in 0..frames {
                    self.receive(Way::Ring, bytes)?;
                }
                self.send(Way::Ring, 8)?;
            }
        }
        Ok(())
    }
}

fn data(bytes: usize) -> Header {
    let bytes = bytes as u32;
    Header { payload_bytes: bytes, message_bytes: bytes, ..Header::new(Kind::Data, Default::default()) }
}

fn sleep(link: &ShmLink) {
    let mut descriptors = Vec::new();
    link.descriptors(&mut descriptors);
    for descriptor in descriptors {
        // SAFETY: the descriptor belongs to the link, which outlives the wait.
        let fd = unsafe { BorrowedFd::borrow_raw(descriptor.fd) };
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
    }
}

/// Puts every payload to the same place.
struct Into<'a> {
    start: *mut u8,
    last: &'a mut Option<Header>,
    arrived: &'a mut usize,
}

impl Sink for Into<'_> {
    fn begin(&mut self, _: &Header) -> Result<Target, LinkError> {
        Ok(Target::Memory(self.start))
    }

    fn bytes(&mut self, _: &Header, _: usize, _: &[u8]) -> Result<(), LinkError> {
        Ok(())
    }

    fn end(&mut self, header: &Header) -> Result<(), LinkError> {
        *self.last = Some(*header);
        *self.arrived += 1;
        Ok(())
    }
}
