//! Workers and shards as processes: this program runs itself as each of them. One is killed; the others end in time.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Config, TransportChoice};
use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions, ServerError, serve};
use support::{aggregate, plan};

const WORKERS: usize = 2;
const SHARDS: usize = 2;

/// In the environment of a rank: what carries its links, and how many iterations it works.
const TRANSPORT: &str = "PACELINE_TEST_TRANSPORT";
const ITERATIONS: &str = "PACELINE_TEST_ITERATIONS";

/// The part of a rank. In the test run itself there is nothing to be done.
#[test]
fn rank() {
    let Ok(transport) = std::env::var(TRANSPORT) else { return };
    let iterations = std::env::var(ITERATIONS).expect("with the transport").parse().expect("a number");
    let outcome = take_part(transport.parse().expect("a transport"), iterations);
    if let Err(error) = outcome {
        // Straight to the descriptor: the test harness must not keep it.
        writeln!(std::io::stderr(), "{error}").expect("a pipe");
        std::process::exit(1);
    }
}

fn take_part(transport: TransportChoice, iterations: u64) -> Result<(), ServerError> {
    let world = Communicator::connect(Config { transport, ..Config::from_environment()? })?;
    let roles = Roles::new(WORKERS, SHARDS)?;
    if roles.shard_of(world.rank()).is_some() {
        serve(&world, roles, &ServeOptions::default())?;
        return Ok(());
    }
    let server = ParameterServer::connect(&world, roles)?;
    let assignment = Assignment {
        plan: plan(1, &[40_000, 100, 9000], 15_000, SHARDS),
        iterations: 0..iterations,
        extensible: false,
        mode: Mode::Aggregate,
    };
    server.assign(&assignment)?;
    for iteration in 0..iterations {
        if iterations < 100 {
            aggregate(&server, &world, &assignment, iteration, 0x5eed_0003);
            continue;
        }
        for (operation, (_, partition)) in assignment.plan.partitions().enumerate() {
            let options = assignment.options(iteration, operation, CallOptions::default());
            let gradient = world.alloc(partition.elements.len())?;
            server.start_push_pull(partition.shard.unwrap_or(0), gradient, &options)?.wait()?;
        }
        if iteration == 3 {
            writeln!(std::io::stderr(), "in the middle").expect("a pipe");
        }
    }
    server.stop()
}

/// The ranks, each a process; killed if the test ends before them.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn start(transport: &str, iterations: u64) -> Ranks {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let start = |rank: usize| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["rank", "--exact", "--nocapture"])
            .env(TRANSPORT, transport)
            .env(ITERATIONS, iterations.to_string())
            .env("PACELINE_RANK", rank.to_string())
            .env("PACELINE_WORLD_SIZE", (WORKERS + SHARDS).to_string())
            .env("PACELINE_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    Ranks((0..WORKERS + SHARDS).map(start).collect())
}

#[test]
fn workers_and_shards_are_processes() {
    for transport in ["shm", "tcp"] {
        let mut ranks = start(transport, 5);
        for (rank, child) in ranks.0.iter_mut().enumerate() {
            let mut said = String::new();
            child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
            assert!(child.wait().expect("its end").success(), "{transport}, rank {rank}: {said}");
        }
    }
}

#[test]
fn survivors_of_a_killed_worker_or_shard_end_within_two_seconds() {
    for transport in ["shm", "tcp"] {
        for lost in [1, WORKERS + 1] {
            let mut ranks = start(transport, 1_000_000);
            let mut said: Vec<_> =
                ranks.0.iter_mut().map(|rank| BufReader::new(rank.stderr.take().expect("a pipe"))).collect();
            for worker in &mut said[..WORKERS] {
                let mut line = String::new();
                worker.read_line(&mut line).expect("text");
                assert_eq!(line.trim(), "in the middle", "{transport}");
            }
            ranks.0[lost].kill().expect("it is still there");
            let killed = Instant::now();
            let survivors = (0..WORKERS + SHARDS).filter(|&rank| rank != lost);
            for rank in survivors.clone() {
                while ranks.0[rank].try_wait().expect("its state").is_none() {
                    assert!(killed.elapsed() < Duration::from_secs(2), "{transport}: rank {rank} still runs");
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            for rank in survivors {
                let mut text = String::new();
                said[rank].read_to_string(&mut text).expect("text");
                let reports = format!("rank {rank} on ");
                let named = text.contains(&reports) && text.contains(&format!("rank {lost}"));
                assert!(named && text.contains("host") && text.contains("push-pull"), "{transport}, {rank}: {text}");
                assert!(text.contains("start the job again"), "{transport}, {rank}: {text}");
                assert_eq!(ranks.0[rank].wait().expect("its end").code(), Some(1));
            }
        }
    }
}
