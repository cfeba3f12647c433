//! What the sockets of this machine can do: the bytes of a collective between as many processes over as many sockets,
//! and nothing else.
//!
//! The ranks stand in a ring. For an all-reduce of S bytes each sends 2(n−1)/n·S bytes to the next and takes in as many from
//! the one before, in both directions at once: what a bandwidth-optimal one moves, without its reduction, its rounds and
//! its headers. Two ranks share one socket, n ranks have n. Other collectives likewise, by what a rank must send and take
//! in at least (`Exchanged`).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_congestion;

use super::calls::{CALLS_MAX, Calls, PROBE_CALLS};
use super::command::{Error, Setting};
use super::resident::Resident;

/// What a rank is told; the numbers are those of every resident contestant, and known here.
#[derive(Args)]
pub struct RankArguments {
    /// The folder of the pipes
    pipes: PathBuf,

    /// The rule for the number of calls
    #[arg(num_args = 4)]
    calls: Vec<usize>,
}

/// The other ranks must show themselves within this time, and move a byte.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is handed to the kernel at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Starts the ranks.
pub fn start(setting: &Setting, root: &Path, scratch: &Path) -> Result<Resident, Error> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find our own program: {error}"))?;
    let mut launch = Command::new(super::ours::program(root));
    launch.args(["launch", "--workers", &setting.ranks.to_string(), "--"]).arg(own).arg("raw-exchange");
    Resident::start("raw exchange", launch, setting.ranks, &scratch.join("raw-exchange"))
}

/// The bytes that a rank sends to the next, and takes in from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exchanged {
    sent: usize,
    received: usize,
}

impl Exchanged {
    /// Of a collective on data of so many bytes; None if it is not known.
    fn of(collective: &str, rank: usize, ranks: usize, bytes: usize) -> Option<Exchanged> {
        let both = |bytes: usize| Exchanged { sent: bytes, received: bytes };
        Some(match collective {
            "all-reduce" => both(2 * (ranks - 1) * bytes / ranks),
            // All but a rank's own part.
            "all-gather" | "reduce-scatter" | "all-to-all" => both((ranks - 1) * bytes / ranks),
            // A chain: whoever is not the root takes the data in once, and somebody sends it to each of them.
            "broadcast" => {
                Exchanged { sent: if rank + 1 < ranks { bytes } else { 0 }, received: if rank > 0 { bytes } else { 0 } }
            }
            _ => return None,
        })
    }
}

/// One rank, as `paceline launch` starts it.
pub fn run_rank(arguments: &RankArguments) -> Result<(), Error> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let (Some(rank), Some(ranks)) = (number("PACELINE_RANK"), number("PACELINE_WORLD_SIZE")) else {
        return Err("raw-exchange is a rank of `cargo xtask compare`, which starts it".into());
    };
    let mut ring = Ring::join(&arguments.pipes, rank, ranks)?;
    serve(&mut ring, &arguments.pipes).map_err(|error| format!("rank {rank} of the raw exchange: {error}").into())
}

fn serve(ring: &mut Ring, pipes: &Path) -> io::Result<()> {
    let commands = BufReader::new(std::fs::File::open(pipes.join(ring.rank.to_string()))?);
    ring.barrier()?;
    if ring.rank == 0 {
        println!("{{\"ready\":true}}");
    }
    for line in commands.lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let collective = words.next().unwrap_or_default();
        let bytes = words.next().and_then(|word| word.parse().ok());
        let seconds = words.next().and_then(|word| word.parse().ok());
        let exchanged = bytes.and_then(|bytes| Exchanged::of(collective, ring.rank, ring.ranks, bytes));
        let (Some(bytes), Some(exchanged), Some(seconds)) = (bytes, exchanged, seconds) else {
            return Err(io::Error::other(format!("not a command: {line}")));
        };
        let (mut times, wrong) = measure(ring, bytes, exchanged, seconds)?;
        times.sort_by(f64::total_cmp);
        let median = times[times.len().div_ceil(2) - 1] * 1e6;
        if ring.rank == 0 {
            let calls = times.len();
            println!("{{\"bytes\":{bytes},\"iterations\":{calls},\"p50_us\":{median:.3},\"wrong\":{wrong}}}");
        }
    }
    Ok(())
}

/// The times of the exchanges, each the maximum over the ranks, and the wrong bytes of all ranks: what every contestant
/// measures.
fn measure(ring: &mut Ring, bytes: usize, exchanged: Exchanged, seconds: f64) -> io::Result<(Vec<f64>, u64)> {
    let mut data = Data::new(ring, bytes, exchanged);
    let mut probe = [0.0];
    for _ in 0..1 + PROBE_CALLS {
        let start = Instant::now();
        timed_exchange(ring, &mut data)?;
        probe = [start.elapsed().as_secs_f64()];
    }
    ring.slowest(&mut probe)?;
    let calls = Calls::plan(seconds, probe[0], None, None);
    for _ in 0..calls.warm_up {
        timed_exchange(ring, &mut data)?;
    }
    let mut times = vec![0.0; calls.measured.min(CALLS_MAX)];
    let last = times.len() - 1;
    for (index, time) in times.iter_mut().enumerate() {
        if index == last {
            data.received.fill(!data.expected);
        }
        *time = timed_exchange(ring, &mut data)?;
    }
    ring.slowest(&mut times)?;
    let written = data.received.len().min(exchanged.received);
    let wrong = data.received[..written].iter().filter(|&&byte| byte != data.expected).count();
    let mut any = [wrong as f64];
    ring.slowest(&mut any)?;
    Ok((times, any[0] as u64))
}

/// What a rank sends and takes in, round and round in memory no larger than the collective's input and output.
struct Data {
    sent: Vec<u8>,
    received: Vec<u8>,
    expected: u8,
    exchanged: Exchanged,
}

impl Data {
    fn new(ring: &Ring, bytes: usize, exchanged: Exchanged) -> Data {
        let mark = |rank: usize| rank as u8 + 1;
        let before = (ring.rank + ring.ranks - 1) % ring.ranks;
        let room = bytes.min(exchanged.sent.max(exchanged.received)).max(1);
        let (sent, received) = (vec![mark(ring.rank); room], vec![0; room]);
        Data { sent, received, expected: mark(before), exchanged }
    }
}

fn timed_exchange(ring: &mut Ring, data: &mut Data) -> io::Result<f64> {
    ring.barrier()?;
    let start = Instant::now();
    ring.exchange(data)?;
    Ok(start.elapsed().as_secs_f64())
}

/// A rank's two neighbours.
struct Ring {
    rank: usize,
    ranks: usize,
    next: TcpStream,
    before: TcpStream,
}

impl Ring {
    /// Finds the neighbours through files that say where each rank listens.
    fn join(folder: &Path, rank: usize, ranks: usize) -> Result<Ring, Error> {
        let failed = |error: io::Error| format!("rank {rank} of the raw exchange cannot reach its neighbours: {error}");
        if ranks < 2 {
            return Err("a raw exchange needs at least two ranks".into());
        }
        let connect = || -> io::Result<Ring> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let (draft, place) = (folder.join(format!("{rank}.draft")), folder.join(format!("{rank}.address")));
            std::fs::write(&draft, listener.local_addr()?.to_string())?;
            std::fs::rename(draft, place)?;
            let (next, before) = match (ranks, rank) {
                // One socket, both ways.
                (2, 0) => doubled(listener.accept()?.0)?,
                (2, _) => doubled(TcpStream::connect(address(folder, 0)?)?)?,
                _ => (TcpStream::connect(address(folder, (rank + 1) % ranks)?)?, listener.accept()?.0),
            };
            for stream in [&next, &before] {
                stream.set_nodelay(true)?;
                // As our links go by loss: an estimate that paces (BBR) makes half of the connections slow.
                set_tcp_congestion(stream, "reno")?;
                stream.set_nonblocking(true)?;
            }
            Ok(Ring { rank, ranks, next, before })
        };
        connect().map_err(|error| failed(error).into())
    }

    /// Sends and takes in the bytes, both at once.
    fn exchange(&mut self, data: &mut Data) -> io::Result<()> {
        let (room, all) = (data.sent.len(), data.exchanged);
        let (mut sent, mut received) = (0, 0);
        let piece = |done: usize, all: usize| (done % room)..room.min(done % room + CHUNK_BYTES.min(all - done));
        while sent < all.sent || received < all.received {
            let mut moved = false;
            if received < all.received {
                let got = unless_blocked(self.before.read(&mut data.received[piece(received, all.received)]))?;
                moved |= got.is_some();
                received += got.unwrap_or(0);
            }
            if sent < all.sent {
                let gone = unless_blocked(self.next.write(&data.sent[piece(sent, all.sent)]))?;
                moved |= gone.is_some();
                sent += gone.unwrap_or(0);
            }
            if !moved {
                self.wait(sent < all.sent, received < all.received)?;
            }
        }
        Ok(())
    }

    /// Waits until every rank has come here: a token goes round twice.
    fn barrier(&mut self) -> io::Result<()> {
        for _ in 0..2 {
            self.pass_on(&mut [1], |_| ())?;
        }
        Ok(())
    }

    /// Number by number the largest of all ranks, on all ranks.
    fn slowest(&mut self, numbers: &mut [f64]) -> io::Result<()> {
        let own = numbers.to_vec();
        let mut bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
        // Once round to find it, once more to tell everybody.
        for _ in 0..2 {
            self.pass_on(&mut bytes, |bytes| {
                for (place, own) in bytes.chunks_exact_mut(8).zip(&own) {
                    let so_far = f64::from_le_bytes(place.try_into().unwrap_or_default());
                    place.copy_from_slice(&so_far.max(*own).to_le_bytes());
                }
            })?;
        }
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = f64::from_le_bytes(place.try_into().unwrap_or_default());
        }
        Ok(())
    }

    /// Rank 0 sends the bytes off, every rank changes them and passes them on, and rank 0 takes them back.
    fn pass_on(&mut self, bytes: &mut [u8], mut change: impl FnMut(&mut [u8])) -> io::Result<()> {
        if self.rank == 0 {
            change(bytes);
            self.send(bytes)?;
            self.receive(bytes)
        } else {
            self.receive(bytes)?;
            change(bytes);
            self.send(bytes)
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match unless_blocked(self.next.write(bytes))? {
                Some(gone) => bytes = &bytes[gone..],
                None => self.wait(true, false)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut received = 0;
        while received < bytes.len() {
            match unless_blocked(self.before.read(&mut bytes[received..]))? {
                Some(got) => received += got,
                None => self.wait(false, true)?,
            }
        }
        Ok(())
    }

    /// Sleeps until a socket is ready.
    fn wait(&self, to_send: bool, to_receive: bool) -> io::Result<()> {
        let flags = |wanted: bool, flags: PollFlags| if wanted { flags } else { PollFlags::empty() };
        let mut sockets = [
            PollFd::new(&self.next, flags(to_send, PollFlags::OUT)),
            PollFd::new(&self.before, flags(to_receive, PollFlags::IN)),
        ];
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut sockets, Some(&limit)) {
            Ok(0) => Err(io::Error::new(ErrorKind::TimedOut, "a neighbour does nothing any more")),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// None if it would have had to wait; an error at the end of the stream.
fn unless_blocked(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn doubled(stream: TcpStream) -> io::Result<(TcpStream, TcpStream)> {
    Ok((stream.try_clone()?, stream))
}

/// Where a rank listens, as soon as it says so.
fn address(folder: &Path, rank: usize) -> io::Result<String> {
    let place = folder.join(format!("{rank}.address"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            address => return address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_all_ranks_agree_on_the_times() {
        for (ranks, collective) in [(2, "all-reduce"), (2, "broadcast"), (3, "all-gather"), (4, "all-reduce")] {
            let folder = std::env::temp_dir().join(format!("paceline-ring-{}-{ranks}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder");
            let results: Vec<_> = thread::scope(|scope| {
                let rank = |rank| {
                    let folder = &folder;
                    scope.spawn(move || {
                        let mut ring = Ring::join(folder, rank, ranks).expect("neighbours");
                        let mut number = [rank as f64, -(rank as f64)];
                        ring.slowest(&mut number).expect("a ring");
                        assert_eq!(number, [(ranks - 1) as f64, 0.0]);
                        let exchanged = Exchanged::of(collective, rank, ranks, 3_000_001).expect("a collective");
                        measure(&mut ring, 3_000_001, exchanged, 0.001).expect("a ring")
                    })
                };
                let threads: Vec<_> = (0..ranks).map(rank).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            std::fs::remove_dir_all(&folder).expect("our own folder");
            assert!(
                results.iter().all(|(times, wrong)| *times == results[0].0 && *wrong == 0),
                "{collective}, {ranks} ranks"
            );
            assert!(results[0].0.iter().all(|time| *time > 0.0));
        }
    }

    #[test]
    fn a_rank_moves_what_it_must_at_least() {
        let of = |collective, ranks| {
            let rank = |rank| Exchanged::of(collective, rank, ranks, 1200).expect("a collective");
            (0..ranks).map(|number| (rank(number).sent, rank(number).received)).collect::<Vec<_>>()
        };
        assert_eq!(of("all-reduce", 2), [(1200, 1200); 2]);
        assert_eq!(of("all-reduce", 4), [(1800, 1800); 4]);
        for collective in ["all-gather", "reduce-scatter", "all-to-all"] {
            assert_eq!(of(collective, 4), [(900, 900); 4], "{collective}");
        }
        assert_eq!(of("broadcast", 3), [(1200, 0), (1200, 1200), (0, 1200)]);
        assert_eq!(Exchanged::of("barrier", 0, 2, 1200), None);
    }
}
