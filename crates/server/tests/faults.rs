//! A worker or a shard goes away: everyone else ends soon, and says who, where, what, and what to do next.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, ThreadsConfig, Transport};
use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions, serve};
use support::{LINKS, filled, gradient, joined, plan};

/// What no end takes, however busy the machine is; and far less than any deadline.
const SOON: Duration = Duration::from_secs(60);

/// Two workers and two shards.
const ROLES: (usize, usize) = (2, 2);

/// How a rank goes away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// As if killed: its links break, or it says at last why it ends.
    Abort,
    /// In good order, but too early.
    Leave,
}

/// Works until something fails, or until it is this rank's turn to go. Counts itself as soon as it is in the middle of that.
fn work(world: Communicator, roles: Roles, serving: usize, goes: Option<Way>, at_work: &AtomicUsize) -> Option<String> {
    let server = ParameterServer::connect(&world, roles).unwrap();
    let assignment =
        Assignment { plan: plan(1, &[50_000, 70], 20_000, serving), iterations: 0..10_000, mode: Mode::Aggregate };
    server.assign(&assignment).unwrap();
    for iteration in 0..10_000 {
        let mut pending = Vec::new();
        for (operation, (_, partition)) in assignment.plan.partitions().enumerate() {
            let buffer =
                filled(&world, partition.elements.clone(), |element| gradient(world.rank(), iteration, element));
            let options = assignment.options(iteration, operation, CallOptions::default());
            match server.start_push_pull(partition.shard.unwrap(), buffer, &options) {
                Ok(started) => pending.push(started),
                Err(error) => return Some(error.to_string()),
            }
        }
        if iteration == 5 {
            at_work.fetch_add(1, Ordering::SeqCst);
        }
        match goes {
            Some(Way::Abort) if iteration == 5 => world.abort("as if killed"),
            Some(Way::Leave) if iteration == 5 => return None,
            _ => {}
        }
        if let Some(error) = pending.into_iter().find_map(|pending| pending.wait().err()) {
            return Some(error.to_string());
        }
    }
    None
}

/// What every other rank said, by rank, when one went; and how long the last took. So many shards serve.
fn without(lost: usize, way: Way, links: Transport, serving: usize) -> (Vec<Option<String>>, Duration) {
    let roles = Roles::new(ROLES.0, ROLES.1).unwrap();
    let config = ThreadsConfig { transport: links, ..ThreadsConfig::default() };
    let ranks = Communicator::threads_with(roles.world_size(), &config).unwrap();
    let (started, at_work) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let threads = ranks.into_iter().map(|world| {
        let goes = (world.rank() == lost).then_some(way);
        let at_work = at_work.clone();
        thread::spawn(move || match roles.shard_of(world.rank()) {
            None => work(world, roles, serving, goes, &at_work),
            Some(_) => {
                if goes.is_some() {
                    let other = world.clone();
                    thread::spawn(move || {
                        while at_work.load(Ordering::SeqCst) < ROLES.0 && started.elapsed() < SOON {
                            thread::sleep(Duration::from_millis(1));
                        }
                        other.abort("as if killed");
                    });
                }
                serve(&world, roles, &ServeOptions::default()).err().map(|error| error.to_string())
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let said = threads.into_iter().map(joined).collect();
    (said, started.elapsed())
}

fn assert_told(said: &[Option<String>], lost: usize, what: &str) {
    assert_told_of(said, lost, |_| "push-pull", what);
}

/// `operation`: what a rank was at.
fn assert_told_of(said: &[Option<String>], lost: usize, operation: fn(usize) -> &'static str, what: &str) {
    for (rank, said) in said.iter().enumerate().filter(|(rank, _)| *rank != lost) {
        let said = said.as_deref().unwrap_or_else(|| panic!("{what}: rank {rank} noticed nothing"));
        let named = said.contains(&format!("rank {rank} on ")) && said.contains(&format!("rank {lost}"));
        assert!(named && said.contains(operation(rank)), "{what}: rank {rank} said: {said}");
        assert!(said.contains("start the job again"), "{what}: rank {rank} does not say what to do: {said}");
    }
}

#[test]
fn survivors_of_a_lost_worker_end_and_say_who_where_and_what() {
    for links in LINKS {
        for way in [Way::Abort, Way::Leave] {
            let (said, took) = without(1, way, links, ROLES.1);
            assert_told(&said, 1, &format!("{links:?}, {way:?}"));
            assert!(took < SOON, "{links:?}, {way:?}: {took:?}");
        }
    }
}

#[test]
fn survivors_of_a_lost_shard_end_and_say_who_where_and_what() {
    for links in LINKS {
        let (said, took) = without(3, Way::Abort, links, ROLES.1);
        assert_told(&said, 3, &format!("{links:?}"));
        assert!(took < SOON, "{links:?}: {took:?}");
    }
}

/// One shard serves, and the other waits for a plan in which it does: a world without it, or without a worker, ends all the same.
#[test]
fn a_shard_that_only_waits_is_missed_and_misses_others() {
    let operation = |rank| if rank == 3 { "broadcast" } else { "push-pull" };
    for links in LINKS {
        for lost in [1, 3] {
            let (said, took) = without(lost, Way::Abort, links, 1);
            assert_told_of(&said, lost, operation, &format!("{links:?}, rank {lost}"));
            assert!(took < SOON, "{links:?}: {took:?}");
        }
    }
}

#[test]
fn shards_whose_workers_leave_without_a_word_end() {
    let roles = Roles::new(1, 1).unwrap();
    let served = support::world_with_shards(LINKS[0], roles, &ServeOptions::default(), |world, roles| {
        ParameterServer::connect(world, roles).unwrap();
    });
    let error = served[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rank 0 has left") && error.contains("broadcast"), "{error}");
}

#[test]
fn a_shard_gives_up_on_workers_that_do_nothing() {
    let roles = Roles::new(1, 1).unwrap();
    let options = ServeOptions { timeout: Duration::from_millis(200), ..ServeOptions::default() };
    let served = support::world_with_shards(LINKS[0], roles, &options, |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let assignment = Assignment { plan: plan(1, &[10], 10, 1), iterations: 0..1, mode: Mode::Aggregate };
        // A worker that is slow to come back from there may hear of it there.
        let mut lives = server.assign(&assignment).is_ok();
        // Long enough for the shard to give up, however slow the machine is.
        let until = Instant::now() + Duration::from_secs(20);
        while lives && Instant::now() < until {
            lives = server.stop().is_ok();
            thread::sleep(Duration::from_millis(1));
        }
    });
    let error = served[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("push-pull") && error.contains("did not finish in time"), "{error}");
}

/// Workers may add up among themselves for longer than any operation may take, and want the shard later.
#[test]
fn a_shard_without_an_assignment_waits() {
    let roles = Roles::new(1, 1).unwrap();
    let options = ServeOptions { timeout: Duration::from_millis(100), ..ServeOptions::default() };
    let served = support::world_with_shards(LINKS[0], roles, &options, |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        thread::sleep(Duration::from_millis(500));
        server.start_trace().unwrap();
        thread::sleep(Duration::from_millis(500));
        server.stop().unwrap();
    });
    assert_eq!(served[0].as_ref().unwrap().assignments, 0);
}
