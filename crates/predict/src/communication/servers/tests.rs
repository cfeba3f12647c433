use paceline_plan::{Constant, LinkClass, NetworkModel};
use paceline_schedule::{Workload, formula, plan};
use paceline_strategy::Registry;

use super::*;
use crate::iteration::tests::profile;
use crate::iteration::{Length, Training, WorkerClass, simulate};

const BETA: f64 = 1e-9;

fn cluster(hosts: usize) -> Cluster {
    let class = |beta_s_per_byte| LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte };
    Cluster::of_network(NetworkModel { within: class(BETA / 4.0), across: class(BETA) }, hosts, 4)
}

/// Workers, on hosts of four, under a strategy: the costs and the plan of a model of 256 layers of a megabyte.
fn costs(cluster: &Cluster, workers: usize, text: &str) -> (ServerCosts, Plan) {
    let world = World::of(workers, cluster.workers_per_host);
    let strategy = Registry::built_in().parse(text).expect("a strategy");
    let servers = strategy.servers(workers, world.hosts).expect("servers");
    let sizes = vec![250_000; 256];
    let plan = plan(&strategy, &Workload::of_sizes(&sizes).with_world(workers, world.hosts)).expect("a plan");
    (ServerCosts::of(cluster, world, servers, 0.0, 0.0).by_message(cluster), plan)
}

fn fullest(traffic: &Traffic) -> (Bottleneck, f64) {
    traffic
        .busy
        .iter()
        .copied()
        .fold((Bottleneck::Computation, 0.0), |one, other| if other.1 > one.1 * (1.0 + 1e-9) { other } else { one })
}

/// All of a gradient of M bytes, n hosts, k servers: on the workers' interfaces M; on servers' nM/k; beside the workers
/// (n−1)M/k and what goes to the others.
#[test]
fn the_fullest_interface_carries_what_the_formula_says() {
    let all = 256e6 * BETA;
    let cluster = cluster(8);
    for (text, expected, where_) in [
        ("schedule=wfbp,arch=ps:hosts:1MiB:dedicated", all, Bottleneck::LinkBetweenHosts),
        ("schedule=wfbp,arch=ps:4:1MiB:dedicated", 2.0 * all, Bottleneck::ServerLink),
        ("schedule=wfbp,arch=ps:1:1MiB:dedicated", 8.0 * all, Bottleneck::ServerLink),
        ("schedule=wfbp,arch=ps:hosts:1MiB", 2.0 * 7.0 / 8.0 * all, Bottleneck::LinkBetweenHosts),
        ("schedule=wfbp,arch=ps:1:1MiB", 7.0 * all, Bottleneck::LinkBetweenHosts),
        ("schedule=wfbp,arch=ps:2:1MiB", 4.0 * all, Bottleneck::LinkBetweenHosts),
    ] {
        let (costs, plan) = costs(&cluster, 32, text);
        let (place, busy_s) = fullest(&costs.traffic(&plan));
        assert!((busy_s / expected - 1.0).abs() < 0.01 && place == where_, "{text}: {busy_s} {expected} {place:?}");
    }
}

/// One host carries nothing to servers elsewhere; its workers add up among themselves.
#[test]
fn servers_elsewhere_do_not_see_the_only_host() {
    let cluster = cluster(8);
    let (only, plan) = costs(&cluster, 4, "schedule=wfbp,arch=ps:hosts:1MiB:dedicated");
    let (place, busy_s) = fullest(&only.traffic(&plan));
    assert_eq!(place, Bottleneck::LinkWithinHost);
    assert!((busy_s / (1.5 * 256e6 * BETA / 4.0) - 1.0).abs() < 1e-9, "{busy_s}");
    // Beside the workers each of four takes in its quarter from three, and sends three quarters.
    let (beside, plan) = costs(&cluster, 4, "schedule=wfbp,arch=ps:workers:1MiB");
    let (_, busy_s) = fullest(&beside.traffic(&plan));
    assert!((busy_s / (1.5 * 256e6 * BETA / 4.0) - 1.0).abs() < 1e-9, "{busy_s}");
}

/// n workers of one host and k servers with their own ports: each worker sends everything, to the server beside it as well,
/// and a server takes in its k-th part from all n.
#[test]
fn all_workers_push_to_servers_with_ports_of_their_own() {
    let mut cluster = cluster(8);
    cluster.server.own_ports = true;
    let all = 256e6 * BETA / 4.0;
    for (workers, shards, expected) in [(4, 4, 1.0), (4, 2, 2.0), (4, 1, 4.0), (2, 1, 2.0), (2, 4, 1.0), (1, 1, 1.0)] {
        let (costs, plan) = costs(&cluster, workers, &format!("schedule=wfbp,arch=ps:{shards}:1MiB"));
        let (place, busy_s) = fullest(&costs.traffic(&plan));
        assert!((busy_s / (expected * all) - 1.0).abs() < 0.01, "{workers} {shards}: {busy_s}");
        assert_eq!(place, Bottleneck::LinkWithinHost);
        let of_bound = costs.seconds_per_byte_min() * 256e6 / busy_s;
        assert!((0.9..=1.0 + 1e-9).contains(&of_bound), "{workers} {shards}: {of_bound}");
    }
}

/// Two hosts of four and a fast network. A worker sends three quarters to the others and three quarters of the sum; and its
/// quarter of the half for which the server is beside it. What a port sends and takes in at once does not always fit together.
#[test]
fn servers_on_the_workers_hosts_are_reached_over_the_links_within() {
    let mut cluster = cluster(2);
    cluster.across.beta_s_per_byte = Constant::exact(BETA / 16.0);
    let bus_s = |text: &str| {
        let (costs, plan) = costs(&cluster, 8, text);
        let (place, busy_s) = fullest(&costs.traffic(&plan));
        assert_eq!(place, Bottleneck::LinkWithinHost);
        busy_s / (256e6 * BETA / 4.0)
    };
    for (text, expected, most) in [
        ("schedule=wfbp,arch=ps:hosts:1MiB", 1.5 + 0.125, 1.15),
        ("schedule=wfbp,arch=ps:1:1MiB", 1.5 + 0.25, 1.15),
        ("schedule=wfbp,arch=ps:hosts:1MiB:dedicated", 1.5, 1.0 + 1e-9),
    ] {
        let over = bus_s(text) / expected;
        assert!((1.0 - 1e-9..most).contains(&over), "{text}: {over}");
    }
}

/// A worker of four sends three messages of each tile, and three more of the sum: each keeps its port busy for the overhead, which is
/// part of alpha.
#[test]
fn messages_within_a_host_keep_ports_busy() {
    let found = |overhead: f64, per_host: usize| {
        let mut cluster = cluster(8);
        cluster.workers_per_host = per_host;
        (cluster.within.alpha_s, cluster.within.overhead_s) = (Constant::exact(1e-3), Constant::exact(overhead));
        let found = costs(&cluster, 8 * per_host, "schedule=wfbp,arch=ps:hosts:1MiB:dedicated").0;
        (found.alone_s(1_000_000), found.tiles.count(1_000_000))
    };
    let ((with_s, tiles), (without_s, _)) = (found(1e-4, 4), found(0.0, 4));
    assert!((with_s - without_s - tiles as f64 * 6e-4).abs() < 1e-12, "{tiles}: {with_s} {without_s}");
    assert_eq!(found(1e-4, 1).0, found(0.0, 1).0, "whoever is alone on a host");
}

#[test]
fn every_constant_counts() {
    let text = "schedule=wfbp,arch=ps:hosts:1MiB:dedicated";
    let seconds = |change: &dyn Fn(&mut Cluster)| {
        let mut cluster = cluster(8);
        change(&mut cluster);
        costs(&cluster, 32, text).0.alone_s(1_000_000)
    };
    let base = seconds(&|_| {});
    type Change = fn(&mut Cluster);
    let changes: [(Change, f64); 8] = [
        (|cluster| cluster.server.partition_s = Constant::exact(1e-3), 1e-3),
        (|cluster| cluster.server.local_partition_s = Constant::exact(1e-3), 1e-3),
        (|cluster| cluster.server.copy_s_per_byte = Constant::exact(1e-9), 1e-3),
        (|cluster| cluster.server.combine_s_per_byte = Constant::exact(1e-9), 7e-3),
        (|cluster| cluster.across.alpha_s = Constant::exact(1e-3), 2e-3),
        // Eight hosts push to one server.
        (|cluster| cluster.server.duplex_loss = Constant::exact(0.5), 4e-3),
        (
            |cluster| {
                cluster.server.duplex_loss = Constant::exact(0.5);
                cluster.server.dedicated_share = Some(Constant::exact(0.5));
            },
            2e-3,
        ),
        (|cluster| cluster.server.connection_s_per_byte = Some(Constant::exact(8e-9)), 8e-3),
    ];
    for (index, (change, more)) in changes.into_iter().enumerate() {
        assert!((seconds(&change) - base - more).abs() < 1e-9, "{index}: {} {base}", seconds(&change));
    }
}

/// A worker's host has a connection to each server, and a server's to each host that pushes.
#[test]
fn connections_share_the_work() {
    let mut cluster = cluster(8);
    cluster.server.connection_s_per_byte = Some(Constant::exact(8e-9));
    let costs = costs(&cluster, 32, "schedule=wfbp,arch=ps:2:1MiB:dedicated").0;
    let busy_s = |interface: Interface| costs.interface_busy_s(interface, 1_000_000, 0);
    let base = 1e6 * BETA;
    assert!((busy_s(Interface::Workers) - (base + 4e-3)).abs() < 1e-9, "{}", busy_s(Interface::Workers));
    let server = busy_s(Interface::Server(0));
    assert!((server - 8.0 * (base + 1e-3)).abs() < 1e-9, "{server}");
}

/// A server that two hosts push to has two connections, and a host that pushes to eight servers eight, each of which a core works for. So
/// half of all bytes keep that server's interface busy for longer than all of them a worker's, though it carries no more than that.
#[test]
fn a_server_whose_bytes_take_longer_bounds_though_they_are_no_more() {
    let mut cluster = cluster(2);
    cluster.server_hosts = 8;
    cluster.server.connection_s_per_byte = Some(Constant::exact(8e-9));
    let strategy = Registry::built_in().parse("schedule=wfbp,arch=ps:8:64MiB:dedicated").expect("a strategy");
    let servers = strategy.servers(8, 2).expect("servers");
    let sizes = [&[3_500_000_usize][..], &[500_000; 9]].concat();
    let plan = plan(&strategy, &Workload::of_sizes(&sizes).with_world(8, 2)).expect("a plan");
    let mut bytes_at = [0.0; 8];
    plan.partitions().for_each(|(_, part)| bytes_at[part.shard.expect("a server")] += 4.0 * part.elements.len() as f64);
    let most = bytes_at.into_iter().fold(0.0, f64::max);
    assert!(most >= 14e6 && 2.0 * most <= EVEN * 32e6, "{bytes_at:?}");
    let costs = ServerCosts::of(&cluster, World::of(8, 4), servers, 0.0, 0.0);
    let (place, busy_s) = fullest(&costs.traffic(&plan));
    let expected = 2.0 * most * (BETA + 4e-9);
    assert!((busy_s / expected - 1.0).abs() < 1e-9 && place == Bottleneck::ServerLink, "{busy_s} {expected} {place:?}");
    assert!(costs.seconds_per_byte_min() * 32e6 <= busy_s, "{}", costs.seconds_per_byte_min());
}

/// Hosts with one worker each, no other costs: the bound of the formula, which counts what each interface carries.
#[test]
fn one_worker_on_each_host_is_the_bound_of_the_formula() {
    let layers: Vec<_> = (1..30).map(|layer| (100_000 * layer, 1e-3, 2e-3)).collect();
    let profile = profile(&layers, 1e-3);
    for text in
        ["schedule=wfbp,arch=ps:hosts:1MiB", "schedule=none,arch=ps:3:1MiB", "schedule=wfbp,arch=ps:2:1MiB:dedicated"]
    {
        let strategy = Registry::built_in().parse(text).expect("a strategy");
        let mut cluster = cluster(6);
        cluster.workers_per_host = 1;
        let world = World::of(6, 1);
        let servers = strategy.servers(6, 6).expect("servers");
        let plan = plan(&strategy, &Workload::of_profile(&profile).with_world(6, 6)).expect("a plan");
        let traffic = ServerCosts::of(&cluster, world, servers, 0.0, 0.0).traffic(&plan);
        let classes = [WorkerClass::of(&profile, 6)];
        let seconds = simulate(&Training::new(&plan, &classes, &traffic.operations), Length::Steady).iteration_s;
        let network = formula::HostNetwork { hosts: 6, start_s: 0.0, seconds_per_byte: BETA };
        let bound = formula::servers_bound(&profile, &plan, &servers, &network).total_s();
        assert!((seconds / bound - 1.0).abs() < 1e-9, "{text}: {seconds} {bound}");
    }
}
