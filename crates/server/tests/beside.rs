//! Shards as threads beside the workers: two and more ranks in one process, which meet as processes do.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
mod support;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use meeting::Place;
use paceline_comm::{CallOptions, Config, TransportChoice};
use paceline_fabric::environment::{Environment, Network, World};
use paceline_plan::{Emulation, Hosts, NetworkModel, Shape};
use paceline_server::{
    Assignment, Joined, Mode, ParameterServer, Roles, ServeOptions, ServerError, join_beside, join_beside_with, serve,
};
use support::{aggregate, joined, plan};

const SEED: u64 = 0x5eed_0002;

fn config(world: Option<World>, transport: TransportChoice) -> Config {
    let environment = Environment {
        world,
        network: Network::default(),
        timeout: Duration::from_secs(30),
        heartbeat: None,
        stall: None,
        topology: Shape::Flat,
    };
    // The rest is as without a launcher.
    Config { environment, transport, ..Config::from_environment().expect("nothing launched this test") }
}

/// What a launcher says to each of so many workers.
fn launched(workers: usize, transport: TransportChoice) -> Vec<Config> {
    let (place, workers) = (Place::new(), workers as u32);
    (0..workers).map(|rank| config(Some(place.world_of_one_host(rank, workers)), transport)).collect()
}

/// Three iterations, and the end of the shards that live here. How many those were.
fn work(joined: Joined, shards: usize) -> usize {
    let Joined { world, roles, shards: threads } = joined;
    assert_eq!(roles.shards(), shards);
    let all_here = Hosts::regular(1, roles.workers());
    assert!(threads.iter().all(|thread| all_here.rank_of_shard(thread.shard()) == world.rank()));
    let server = ParameterServer::connect(&world, roles).unwrap();
    let plan = plan(1, &[100_000, 10, 50_000], 30_000, shards);
    let assignment = Assignment { plan, iterations: 0..3, mode: Mode::Aggregate };
    server.assign(&assignment).unwrap();
    (0..3).for_each(|iteration| aggregate(&server, &world, &assignment, iteration, SEED));
    server.stop().unwrap();
    let here = threads.len();
    // Before this worker leaves the world.
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().assignments, 1));
    here
}

#[test]
fn shards_live_beside_workers_of_several_processes_over_shared_memory_and_tcp() {
    println!("seed {SEED:#x}");
    for transport in [TransportChoice::Auto, TransportChoice::Shm, TransportChoice::Tcp] {
        for (workers, shards) in [(1, 1), (2, 1), (2, 2), (2, 3)] {
            let threads = launched(workers, transport).into_iter().map(|config| {
                thread::spawn(move || {
                    let hosts = config.hosts().unwrap();
                    work(join_beside(config, &hosts, shards, &ServeOptions::default()).unwrap(), shards)
                })
            });
            let threads: Vec<_> = threads.collect();
            let here: Vec<usize> = threads.into_iter().map(joined).collect();
            assert_eq!(here.iter().sum::<usize>(), shards, "{transport}: {here:?}");
            assert!(here.iter().max().unwrap() - here.iter().min().unwrap() <= 1, "they take turns");
        }
    }
}

#[test]
fn a_worker_that_nobody_launched_has_a_world_of_threads() {
    for transport in [TransportChoice::Auto, TransportChoice::Shm, TransportChoice::Tcp] {
        let joined = join_beside(config(None, transport), &Hosts::regular(1, 1), 2, &ServeOptions::default()).unwrap();
        assert_eq!(work(joined, 2), 2);
    }
}

#[test]
fn shards_may_do_more_than_serve() {
    let act = |world: &paceline_comm::Communicator, roles: Roles| {
        world.record_calls(100);
        let served = serve(world, roles, &ServeOptions::default())?;
        Ok((served, world.take_records().calls.len()))
    };
    let Joined { world, roles, shards } =
        join_beside_with(config(None, TransportChoice::Auto), &Hosts::regular(1, 1), 1, act).unwrap();
    let server = ParameterServer::connect(&world, roles).unwrap();
    let assignment = Assignment { plan: plan(1, &[5, 6], 10, 1), iterations: 0..3, mode: Mode::Aggregate };
    server.assign(&assignment).unwrap();
    (0..3).for_each(|iteration| aggregate(&server, &world, &assignment, iteration, SEED));
    server.stop().unwrap();
    for shard in shards {
        let (served, calls) = shard.join().unwrap();
        assert_eq!(served.operations, 6);
        assert!(calls > 6, "{calls} calls were recorded: those, and what gives out the work");
    }
}

#[test]
fn shards_that_wait_for_a_worker_that_computes_report_nothing() {
    for launched_as_one in [false, true] {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let mut config = match launched_as_one {
            true => launched(1, TransportChoice::Shm).swap_remove(0),
            false => config(None, TransportChoice::Auto),
        };
        let told = reports.clone();
        // So long that a thread which has to wait for a processor is not reported.
        config.watch.stall = Duration::from_secs(1);
        config.watch.on_stall = Some(Arc::new(move |report| told.lock().unwrap().push(report.rank)));
        let Joined { world, roles, shards } =
            join_beside(config, &Hosts::regular(1, 1), 1, &ServeOptions::default()).unwrap();
        let server = ParameterServer::connect(&world, roles).unwrap();
        let iterations = 0..1;
        let plan = plan(1, &[5], 10, 1);
        let assignment = Assignment { plan, iterations, mode: Mode::Aggregate };
        server.assign(&assignment).unwrap();
        // Twice and a half as long as it takes to be reported.
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(*reports.lock().unwrap(), [], "the shard waits, and that is its work");
        // The worker's own waiting is reported.
        let receive = server.shard(0).start_receive(world.alloc::<u8>(1).unwrap(), 1, 9, &CallOptions::default());
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while reports.lock().unwrap().is_empty() && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(reports.lock().unwrap().iter().all(|rank| *rank == 0) && !reports.lock().unwrap().is_empty());
        drop((receive, server, world, shards));
    }
}

#[test]
fn no_shards_and_ranks_that_do_not_come_are_told() {
    let none = join_beside(config(None, TransportChoice::Auto), &Hosts::regular(1, 1), 0, &ServeOptions::default())
        .unwrap_err();
    assert!(matches!(none, ServerError::Roles(_)), "{none}");
    // The second worker never comes; nor does its shard.
    let mut config = launched(2, TransportChoice::Auto).swap_remove(0);
    config.environment.timeout = Duration::from_millis(300);
    let error = join_beside(config, &Hosts::regular(1, 2), 2, &ServeOptions::default()).unwrap_err().to_string();
    assert!(error.contains("never came within") && error.contains('1') && error.contains('3'), "{error}");
}

/// Two workers on each of two hosts, of which the launcher says too little, and no more than two shards: they live on
/// both hosts, really and in the emulation.
#[test]
fn shards_are_dealt_out_host_by_host() {
    let hosts: Hosts = "0,0,1,1".parse().unwrap();
    let emulation = Emulation { network: NetworkModel::TEN_GBE, hosts: hosts.clone(), dilation: 1.0 };
    let configs = launched(4, TransportChoice::Shm).into_iter();
    let threads = configs.map(|config| Config { emulation: Some(emulation.clone()), ..config }).map(|config| {
        thread::spawn(move || {
            let hosts = config.hosts().unwrap();
            let joined = join_beside(config, &hosts, 2, &ServeOptions::default()).unwrap();
            let server = ParameterServer::connect(&joined.world, joined.roles).unwrap();
            server.stop().unwrap();
            let here: Vec<usize> = joined.shards.iter().map(|shard| shard.shard()).collect();
            joined.shards.into_iter().for_each(|shard| _ = shard.join().unwrap());
            let shares = |rank| joined.world.topology().host(rank) == joined.world.topology().host(joined.world.rank());
            (here, (0..6).map(shares).collect::<Vec<bool>>())
        })
    });
    let threads: Vec<_> = threads.collect();
    let found: Vec<_> = threads.into_iter().map(joined).collect();
    assert_eq!(found.iter().map(|(here, _)| here.clone()).collect::<Vec<_>>(), [vec![0], vec![], vec![1], vec![]]);
    assert_eq!(found[0].1, [true, true, false, false, true, false]);
    assert_eq!(found[3].1, [false, false, true, true, false, true]);
}

#[test]
fn workers_that_see_other_hosts_are_refused_with_both_sides() {
    let mut configs = launched(2, TransportChoice::Tcp);
    for config in &mut configs {
        // As if they did not know.
        config.environment.world.as_mut().unwrap().local_size = None;
    }
    let threads = configs.into_iter().zip(["0,0", "0,1"]).map(|(config, hosts)| {
        thread::spawn(move || {
            join_beside(config, &hosts.parse().unwrap(), 1, &ServeOptions::default()).unwrap_err().to_string()
        })
    });
    let threads: Vec<_> = threads.collect();
    for error in threads.into_iter().map(joined) {
        let both = "comes with 1 shards beside workers on hosts 2x1, rank 0 with 1 shards beside workers on hosts 1x2";
        assert!(error.contains("rank 1 (host ") && error.contains(both), "{error}");
    }
    let of_others =
        join_beside(config(None, TransportChoice::Auto), &Hosts::regular(1, 2), 1, &ServeOptions::default());
    assert!(of_others.unwrap_err().to_string().contains("1x2 are those of 2 workers, and there are 1"));
}

#[test]
fn a_shard_whose_optimiser_panics_is_told_from_one_that_is_lost() {
    let act =
        |_: &paceline_comm::Communicator, _: Roles| -> Result<(), ServerError> { panic!("as an optimiser might") };
    let Joined { world, roles, mut shards } =
        join_beside_with(config(None, TransportChoice::Auto), &Hosts::regular(1, 1), 1, act).unwrap();
    assert!(ParameterServer::connect(&world, roles).is_err());
    let error = shards.remove(0).join().unwrap_err();
    assert!(matches!(error, ServerError::Panicked { shard: 0 }), "{error}");
}
