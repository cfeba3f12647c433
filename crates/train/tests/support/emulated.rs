//! Replays on emulated networks, and patience with a busy machine.

use std::thread;

use paceline_comm::{Communicator, Emulation, ThreadsConfig};
use paceline_plan::{Hosts, NetworkModel, Profile, ProfileTensor, Step};
use paceline_server::{ParameterServer, Roles, ServeOptions, serve};
use paceline_train::{CellRun, MeasureOptions, Peers, Subject, measure};

/// Tensors of these sizes, each with as much computation; forward takes half as long as backward.
pub fn profile(sizes: &[usize], backward_s: f64) -> Profile {
    let tensors = sizes.len();
    let tensor = |(number, &elements): (usize, &usize)| ProfileTensor {
        name: number.to_string(),
        elements,
        forward_macs_per_sample: 1,
    };
    let step = |tensor: usize, seconds: f64| Step { tensor, seconds: seconds / tensors as f64 };
    Profile {
        schema: Profile::SCHEMA,
        model: "even".into(),
        device: "none".into(),
        source: "made up".into(),
        local_batch: 1,
        tensors: sizes.iter().enumerate().map(tensor).collect(),
        forward: (0..tensors).map(|tensor| step(tensor, backward_s / 2.0)).collect(),
        backward: (0..tensors).rev().map(|tensor| step(tensor, backward_s)).collect(),
        update_s: 0.0,
        uncertainty: None,
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
        spread: None,
    }
}

/// Workers on hosts of their own on this network, slowed as much as their computation, and as many servers beside them if the
/// strategy has some. What worker 0 has measured.
pub fn emulated(workers: usize, profile: &Profile, network: &str, options: &MeasureOptions) -> CellRun {
    // What another test computes meanwhile would be what a busy machine is.
    let _world = super::one_world();
    let shards = if options.strategy.contains("ps") { workers } else { 0 };
    let roles = Roles::new(workers, shards.max(1)).expect("roles");
    let hosts = (0..workers + shards).map(|rank| rank % workers).collect();
    let hosts = Hosts::of_ranks(hosts).expect("hosts");
    let network: NetworkModel = network.parse().expect("a network");
    let config = ThreadsConfig {
        emulation: Some(Emulation { network, hosts, dilation: options.dilate }),
        ..ThreadsConfig::default()
    };
    let mut ranks = Communicator::threads_with(workers + shards, &config).expect("a world of threads");
    let servers = ranks.split_off(workers);
    let work = |world: Communicator| {
        if shards == 0 {
            return measure(&world, Subject::Replay(profile), options).expect("a run");
        }
        let peers = Peers::from(ParameterServer::connect(&world, roles).expect("servers"));
        let run = measure(peers.clone(), Subject::Replay(profile), options).expect("a run");
        let Peers::Servers(server) = peers else { unreachable!("made above") };
        server.stop().expect("it served");
        run
    };
    thread::scope(|scope| {
        for world in servers {
            scope.spawn(move || serve(&world, roles, &ServeOptions::default()).expect("it serves"));
        }
        let workers: Vec<_> = ranks.into_iter().map(|world| scope.spawn(|| work(world))).collect();
        let mut runs: Vec<CellRun> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        runs.remove(0)
    })
}

const TRIES: usize = 5;

/// Repeats `attempt` until it gives nothing to complain of.
#[track_caller]
pub fn eventually(attempt: impl Fn() -> Result<(), String>) {
    let mut complaints = Vec::new();
    for _ in 0..TRIES {
        match attempt() {
            Ok(()) => return,
            Err(complaint) => complaints.push(complaint),
        }
    }
    panic!("{complaints:#?}");
}

pub fn demand(holds: bool, complaint: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(complaint()) }
}
