//! Ranks that are told how their hosts are wired: programs for a torus or a BCube follow that.

use std::thread;

use paceline_comm::{CallOptions, Communicator, Emulation, Reduction, ThreadsConfig, Topology, Transport};
use paceline_plan::{Hosts, NetworkModel, Shape};

fn shape(text: &str) -> Shape {
    text.parse().expect("a topology")
}

/// A world of threads, so many on each host of this topology.
fn world(topology: Shape, per_host: usize) -> Vec<Communicator> {
    let hosts = topology.hosts().expect("it has places");
    let config = ThreadsConfig { hosts, topology, ..ThreadsConfig::default() };
    Communicator::threads_with(hosts * per_host, &config).expect("a world of threads")
}

/// Lets each rank act; a panic of one is the panic of the test.
fn on_all_ranks(world: Vec<Communicator>, act: impl Fn(&Communicator) + Sync) {
    thread::scope(|scope| {
        let act = &act;
        for comm in world {
            scope.spawn(move || act(&comm));
        }
    });
}

#[track_caller]
fn sums_up(comm: &Communicator, algorithm: &str) {
    let own = comm.rank() as i64 + 1;
    let mut data: Vec<i64> = (0..1000).map(|element| element * own).collect();
    comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::algorithm(algorithm)).expect("a sum");
    let ranks: i64 = (1..=comm.world_size() as i64).sum();
    assert!(data.iter().zip(0..).all(|(sum, element)| *sum == element * ranks), "{algorithm}: {data:?}");
}

#[test]
fn a_world_stands_where_it_is_said_to_stand() {
    for (text, algorithm) in [("torus:2x2", "2d-torus"), ("torus:4x2", "2d-torus"), ("bcube:2:2", "bcube")] {
        let told = shape(text);
        on_all_ranks(world(told, 1), |comm| {
            let hosts = Topology::regular(comm.world_size(), 1);
            assert!(*comm.topology() == hosts.on(told) && *comm.topology() != hosts, "{text}");
            sums_up(comm, algorithm);
        });
    }
}

#[test]
fn emulated_hosts_can_stand_in_a_topology() {
    let emulation = Emulation { network: NetworkModel::TEN_GBE, hosts: Hosts::regular(4, 1), dilation: 1.0 };
    let (transport, topology) = (Transport::Shm, Shape::Torus { x: 4, y: 1 });
    let config = ThreadsConfig { transport, emulation: Some(emulation), topology, ..ThreadsConfig::default() };
    on_all_ranks(Communicator::threads_with(4, &config).expect("a world of threads"), |comm| {
        assert_eq!(comm.topology().torus(), Some([4, 1]));
        sums_up(comm, "2d-torus");
    });
}

/// Those that have a rank on each host, in the order of the hosts.
#[test]
fn groups_stand_there_if_they_have_a_place_for_each_rank() {
    on_all_ranks(world(shape("torus:2x2"), 2), |comm| {
        let rank = comm.rank();
        let group = |color: usize, key: i32| comm.split(Some(color as u32), key).expect("a split").expect("a group");
        let across = group(rank % 2, 0);
        assert_eq!((across.world_size(), across.topology().torus()), (4, Some([2, 2])));
        sums_up(&across, "2d-torus");
        // Two ranks on each host; two hosts of four; all hosts the other way round.
        for other in [&group(0, 0), &group(rank / 4, 0), &group(rank % 2, -(rank as i32))] {
            assert_eq!(other.topology().torus(), None);
            sums_up(other, "2d-torus");
        }
    });
}

#[test]
fn a_topology_has_a_place_for_each_host() {
    for (hosts, text, words) in [
        (3, "torus:2x2", "torus:2x2 has room for 4 hosts, exactly, and the cluster has 3; give --topology"),
        (4, "bcube:2:1", "bcube:2:1 has room for 2 hosts, exactly, and the cluster has 4; give --topology"),
    ] {
        let config = ThreadsConfig { hosts, topology: shape(text), ..ThreadsConfig::default() };
        let error = Communicator::threads_with(4, &config).map(|_| ()).expect_err("no world").to_string();
        assert!(error.contains(words), "{error}");
    }
}
