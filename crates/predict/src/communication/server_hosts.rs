//! Hosts that serve and do nothing else: those of the cluster, or, where it has none, as many as a prediction supposes.

use paceline_plan::Cluster;
use paceline_strategy::{Servers, Strategy};

use super::World;

/// How many hosts a strategy takes that serve and do nothing else: as many as its shards live on. On a cluster that has no such
/// hosts, predictions suppose that it has one for each of its hosts with workers, and say so.
pub fn serving_hosts(cluster: &Cluster, workers: usize, strategy: &Strategy) -> usize {
    let hosts = cluster.hosts_of(workers);
    let servers = strategy.servers(workers, hosts).filter(|servers| servers.dedicated);
    // A single host pushes to no server elsewhere, so none is supposed.
    let there = if hosts > 1 { hosts_that_serve(cluster, hosts) } else { cluster.server_hosts };
    servers.map_or(0, |servers| servers.shards.min(there))
}

/// On how many hosts servers may be that have hosts of their own, where so many have workers.
pub(super) fn hosts_that_serve(cluster: &Cluster, workers_hosts: usize) -> usize {
    if cluster.server_hosts > 0 { cluster.server_hosts } else { workers_hosts }
}

/// What is supposed where the cluster has no hosts for its servers, in words.
pub(super) fn supposed(cluster: &Cluster, world: &World, servers: &Servers) -> Option<String> {
    if world.hosts == 1 || !servers.dedicated || cluster.server_hosts > 0 {
        return None;
    }
    let hosts = servers.shards.min(hosts_that_serve(cluster, world.hosts));
    let are = if hosts == 1 { "host that only serves is" } else { "hosts that only serve are" };
    Some(format!("{hosts} {are} supposed, and the cluster has none"))
}

#[cfg(test)]
mod tests {
    use paceline_plan::NetworkModel;
    use paceline_strategy::Registry;

    use super::*;

    #[test]
    fn hosts_that_only_serve_are_the_clusters_or_supposed() {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 2);
        let of = |cluster: &Cluster, workers: usize, text: &str| {
            let strategy = Registry::built_in().parse(text).expect("a strategy");
            let world = World::of(workers, cluster.workers_per_host);
            let servers = strategy.servers(workers, world.hosts).expect("servers");
            (serving_hosts(cluster, workers, &strategy), supposed(cluster, &world, &servers))
        };
        let says = |words: &str| Some(format!("{words} supposed, and the cluster has none"));
        assert_eq!(of(&cluster, 8, "arch=ps:3:1MiB:dedicated"), (3, says("3 hosts that only serve are")));
        assert_eq!(of(&cluster, 8, "arch=ps:9:1MiB:dedicated"), (4, says("4 hosts that only serve are")));
        assert_eq!(of(&cluster, 4, "arch=ps:1:1MiB:dedicated"), (1, says("1 host that only serves is")));
        assert_eq!(of(&cluster, 8, "arch=ps:3:1MiB"), (0, None), "beside the workers");
        assert_eq!(of(&cluster, 2, "arch=ps:3:1MiB:dedicated"), (0, None), "a single host pushes to nobody");
        cluster.server_hosts = 2;
        assert_eq!(of(&cluster, 8, "arch=ps:3:1MiB:dedicated"), (2, None));
        assert_eq!(of(&cluster, 2, "arch=ps:3:1MiB:dedicated"), (2, None));
    }
}
