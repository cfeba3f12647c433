//! Workers and shards as processes: this program runs itself as each of them. One is killed; the others end in time.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meeting::free_port;
use paceline_comm::{CallOptions, Communicator, Config, TransportChoice};
use paceline_plan::Hosts;
use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions, ServerError, join_beside, serve};
use support::{aggregate, plan};

const WORKERS: usize = 2;
const SHARDS: usize = 2;

/// In the environment of a rank: what carries its links, how many iterations it works, and whether shards live beside the
/// workers.
const TRANSPORT: &str = "PACELINE_TEST_TRANSPORT";
const ITERATIONS: &str = "PACELINE_TEST_ITERATIONS";
const BESIDE: &str = "PACELINE_TEST_BESIDE";

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
    let config = Config { transport, ..Config::from_environment()? };
    if std::env::var_os(BESIDE).is_some() {
        // The shards' threads end with the process.
        let joined = join_beside(config, &Hosts::regular(1, WORKERS), SHARDS, &ServeOptions::default())?;
        return work(&joined.world, joined.roles, iterations);
    }
    let world = Communicator::connect(config)?;
    let roles = Roles::new(WORKERS, SHARDS)?;
    if roles.shard_of(world.rank()).is_some() {
        serve(&world, roles, &ServeOptions::default())?;
        return Ok(());
    }
    work(&world, roles, iterations)
}

fn work(world: &Communicator, roles: Roles, iterations: u64) -> Result<(), ServerError> {
    let server = ParameterServer::connect(world, roles)?;
    let assignment = Assignment {
        plan: plan(1, &[40_000, 100, 9000], 15_000, SHARDS),
        iterations: 0..iterations,
        mode: Mode::Aggregate,
    };
    server.assign(&assignment)?;
    for iteration in 0..iterations {
        if iterations < 100 {
            aggregate(&server, world, &assignment, iteration, 0x5eed_0003);
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
    start_with(transport, iterations, WORKERS + SHARDS, &[])
}

/// So many processes, with these variables besides.
fn start_with(transport: &str, iterations: u64, processes: usize, variables: &[(&str, &str)]) -> Ranks {
    let port = free_port();
    let start = |rank: usize| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["rank", "--exact", "--nocapture"])
            .env(TRANSPORT, transport)
            .env(ITERATIONS, iterations.to_string())
            .env("PACELINE_RANK", rank.to_string())
            .env("PACELINE_WORLD_SIZE", processes.to_string())
            .envs(variables.iter().copied())
            .env("PACELINE_RENDEZVOUS", format!("127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    Ranks((0..processes).map(start).collect())
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

/// What the end of survivors never takes, however busy the machine is.
const SOON: Duration = Duration::from_secs(60);

/// No signs of life: only a connection that ends tells of a loss.
const UNWATCHED: (&str, &str) = ("PACELINE_HEARTBEAT", "0");

/// Ranks that work, how one of them goes away, and who is named by those that are left.
struct Case {
    name: String,
    ranks: Ranks,
    workers: usize,
    lost: usize,
    names: &'static [usize],
}

/// Waits until all work, lets one go, and looks at what the others do and say.
fn survive(case: Case, go: impl FnOnce(&mut Child)) {
    let Case { name, mut ranks, workers, lost, names } = case;
    let mut said: Vec<_> = ranks.0.iter_mut().map(|rank| BufReader::new(rank.stderr.take().expect("a pipe"))).collect();
    for worker in &mut said[..workers] {
        let mut line = String::new();
        worker.read_line(&mut line).expect("text");
        assert_eq!(line.trim(), "in the middle", "{name}");
    }
    go(&mut ranks.0[lost]);
    let gone = Instant::now();
    let survivors = (0..ranks.0.len()).filter(|&rank| rank != lost);
    for rank in survivors.clone() {
        while ranks.0[rank].try_wait().expect("its state").is_none() {
            assert!(gone.elapsed() < SOON, "{name}: rank {rank} still runs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    for rank in survivors {
        let mut text = String::new();
        said[rank].read_to_string(&mut text).expect("text");
        let reports = text.contains(&format!("rank {rank} on "));
        let named = names.iter().any(|lost| text.contains(&format!("rank {lost}")));
        assert!(reports && named && text.contains("host") && text.contains("push-pull"), "{name}, {rank}: {text}");
        assert!(text.contains("start the job again"), "{name}, {rank}: {text}");
        assert_eq!(ranks.0[rank].wait().expect("its end").code(), Some(1), "{name}, {rank}");
    }
}

fn kill(rank: &mut Child) {
    rank.kill().expect("it is still there");
}

#[test]
fn survivors_of_a_killed_worker_or_shard_need_no_silence_to_end() {
    for transport in ["shm", "tcp"] {
        for (lost, names) in [(1, &[1][..]), (WORKERS + 1, &[WORKERS + 1])] {
            let ranks = start_with(transport, 1_000_000, WORKERS + SHARDS, &[UNWATCHED]);
            let name = format!("{transport}, rank {lost} killed");
            survive(Case { name, ranks, workers: WORKERS, lost, names }, kill);
        }
    }
}

/// Its connections stay open, and nothing comes any more.
#[test]
fn survivors_of_a_shard_that_is_stopped_end_when_it_has_missed_its_signs_of_life() {
    for transport in ["shm", "tcp"] {
        let ranks = start_with(transport, 1_000_000, WORKERS + SHARDS, &[("PACELINE_HEARTBEAT", "2")]);
        let (name, lost) = (format!("{transport}, stopped"), WORKERS + 1);
        survive(Case { name, ranks, workers: WORKERS, lost, names: &[WORKERS + 1] }, |rank| {
            let stop = Command::new("sh").args(["-c", &format!("kill -STOP {}", rank.id())]).status();
            assert!(stop.expect("a shell").success());
        });
    }
}

#[test]
fn a_shard_beside_a_worker_dies_with_it_and_the_other_worker_ends() {
    for transport in ["shm", "tcp"] {
        let ranks = start_with(transport, 1_000_000, WORKERS, &[(BESIDE, "1"), UNWATCHED]);
        // The worker, or the shard that lived beside it: whichever is missed first.
        let name = format!("{transport}, beside");
        survive(Case { name, ranks, workers: WORKERS, lost: 1, names: &[1, WORKERS + 1] }, kill);
    }
}
