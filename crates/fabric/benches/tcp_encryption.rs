//! What encryption costs: the throughput of a TCP link on loopback, plain and encrypted in turns, and the time of a round
//! trip. Both ends are threads of this process, so sealing and opening run side by side.
//!
//!     cargo bench -p paceline-fabric --bench tcp_encryption
//!
//! As a test it does the same with little to do.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use paceline_engine::frame::{Header, Kind};
use paceline_fabric::environment::Network;
use paceline_fabric::rendezvous::{HostIdentity, Member, Members};
use paceline_fabric::security::Secret;
use paceline_fabric::{Link, LinkError, Piece, Sink, Target, TcpAcceptor, TcpConnectOptions, TcpLink, connect_tcp};
use paceline_plan::OperationKey;

/// Bytes of a frame, and frames of a measurement.
const CASES: [(usize, usize); 3] = [(4 << 10, 40_000), (64 << 10, 8000), (1 << 20, 800)];
const ROUND_TRIPS: usize = 5000;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let measures = std::env::args().any(|argument| argument == "--bench");
    let (rounds, less) = if measures { (ROUNDS, 1) } else { (1, 200) };
    let mut links = [pair(false)?, pair(true)?];
    println!("{:>10}  {:>14}  {:>14}  {:>6}", "frame", "plain GB/s", "encrypted GB/s", "ratio");
    for (bytes, frames) in CASES {
        let mut rates = [Vec::new(), Vec::new()];
        let frames = frames / less;
        for _ in 0..rounds {
            for (links, rates) in links.iter_mut().zip(&mut rates) {
                let seconds = stream(links, bytes, frames)?;
                rates.push((bytes * frames) as f64 / seconds / 1e9);
            }
        }
        let [plain, encrypted] = rates.map(median);
        println!("{bytes:>10}  {plain:>14.2}  {encrypted:>14.2}  {:>6.2}", encrypted / plain);
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (links, times) in links.iter_mut().zip(&mut times) {
            times.push(round_trip(links, ROUND_TRIPS / less)? * 1e6);
        }
    }
    let [plain, encrypted] = times.map(median);
    println!("round trip of 64 bytes: plain {plain:.1} us, encrypted {encrypted:.1} us");
    Ok(())
}

/// Two ranks of this process.
fn pair(encrypt: bool) -> Result<[TcpLink; 2], Box<dyn std::error::Error>> {
    let network = Network { secret: Some(Secret::generate()?), encrypt, ..Network::default() };
    let options = TcpConnectOptions { network, ..TcpConnectOptions::default() };
    let acceptors = [TcpAcceptor::open_local(&options.network)?, TcpAcceptor::open_local(&options.network)?];
    let member = |(rank, acceptor): (u32, &TcpAcceptor)| Member {
        rank,
        host: "here".into(),
        process: std::process::id(),
        identity: HostIdentity::here(),
        addresses: acceptor.addresses().to_vec(),
        seen_at: None,
        blob: Vec::new(),
    };
    let members: Vec<Member> = (0..).zip(&acceptors).map(member).collect();
    let connect = |rank: u32, acceptor| {
        let members = members.clone();
        let members = Members { rank, world_size: 2, job: String::new(), nonce: [0; 16], members, notes: Vec::new() };
        let deadline = Instant::now() + Duration::from_secs(20);
        connect_tcp(&members, acceptor, &BTreeSet::from([1 - rank]), &options, deadline)
    };
    let [zero, one] = acceptors;
    let (zero, one) = thread::scope(|scope| {
        let one = scope.spawn(|| connect(1, one));
        (connect(0, zero), one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let link = |(_, link)| link;
    let links = [zero?.links.pop_first().map(link), one?.links.pop_first().map(link)];
    let [Some(zero), Some(one)] = links else { return Err("no link".into()) };
    Ok([zero, one])
}

/// Sends frames one way. The time until the last has arrived.
fn stream([from, to]: &mut [TcpLink; 2], bytes: usize, frames: usize) -> Result<f64, LinkError> {
    let payload = vec![1u8; bytes];
    let start = Instant::now();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let (mut queued, mut sent) = (0, 0);
            while sent < frames {
                while queued < frames && from.has_room() {
                    let piece = Piece { start: payload.as_ptr(), bytes };
                    // SAFETY: the payload outlives the loop, which ends when every ticket has come back.
                    unsafe { from.enqueue(&data(bytes), &[piece], 0) };
                    queued += 1;
                }
                if !from.flush(&mut |_| sent += 1)? {
                    thread::yield_now();
                }
            }
            Ok::<_, LinkError>(from)
        });
        let mut into = Into { memory: vec![0; bytes], frames: 0 };
        while into.frames < frames {
            if !to.receive(&mut into)? {
                thread::yield_now();
            }
        }
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// The mean time of a small frame there and back.
fn round_trip([near, far]: &mut [TcpLink; 2], times: usize) -> Result<f64, LinkError> {
    let start = Instant::now();
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            for _ in 0..times {
                await_frame(far)?;
                send_small(far)?;
            }
            Ok::<_, LinkError>(())
        });
        for _ in 0..times {
            send_small(near)?;
            await_frame(near)?;
        }
        echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    })
}

fn send_small(link: &mut TcpLink) -> Result<(), LinkError> {
    static PAYLOAD: [u8; 64] = [1; 64];
    // SAFETY: the payload is never written to.
    unsafe { link.enqueue(&data(64), &[Piece { start: PAYLOAD.as_ptr(), bytes: 64 }], 0) };
    let mut sent = false;
    while !sent {
        link.flush(&mut |_| sent = true)?;
    }
    Ok(())
}

fn await_frame(link: &mut TcpLink) -> Result<(), LinkError> {
    let mut into = Into { memory: vec![0; 64], frames: 0 };
    while into.frames == 0 {
        link.receive(&mut into)?;
    }
    Ok(())
}

fn data(bytes: usize) -> Header {
    let bytes = bytes as u32;
    Header { message_bytes: bytes, payload_bytes: bytes, ..Header::new(Kind::Data, OperationKey::default()) }
}

/// Takes payload where it is wanted, as an operation does.
struct Into {
    memory: Vec<u8>,
    frames: usize,
}

impl Sink for Into {
    fn begin(&mut self, _: &Header) -> Result<Target, LinkError> {
        Ok(Target::Memory(self.memory.as_mut_ptr()))
    }

    fn bytes(&mut self, _: &Header, _: usize, _: &[u8]) -> Result<(), LinkError> {
        Ok(())
    }

    fn end(&mut self, _: &Header) -> Result<(), LinkError> {
        self.frames += 1;
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
