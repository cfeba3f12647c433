//! What a cluster says of its topology is what this crate reads.

use paceline_plan::{BUILT_IN_CLUSTERS, Cluster, NetworkModel};
use paceline_predict::topology::Shape;

#[test]
fn clusters_that_are_built_in_have_topologies() {
    for name in Cluster::link_names().into_iter().chain(BUILT_IN_CLUSTERS.map(str::to_owned)) {
        let cluster = Cluster::named(&name).expect("it is built in");
        let shape: Shape = cluster.topology.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(shape.hosts().is_none_or(|hosts| hosts == cluster.hosts), "{name}");
    }
}

/// A cluster refuses no topology that there is, and none that fits its hosts.
#[test]
fn a_cluster_takes_the_topologies_that_there_are() {
    for text in
        ["flat", "tree:8:2", "fat-tree:8:2", "torus:4x4", " torus: 2 x 8 ", "bcube:4:2", "bcube:2:4", "bcube:16:1"]
    {
        let shape: Shape = text.parse().expect(text);
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 16, 2);
        cluster.topology = text.into();
        assert!(shape.hosts().is_none_or(|hosts| hosts == 16), "{text}");
        assert_eq!(cluster.check(), Ok(()), "{text}");
        cluster.hosts = 15;
        assert_eq!(cluster.check().is_ok(), shape.hosts().is_none(), "{text}");
    }
    for text in ["ring", "", "torus:16", "bcube:16"] {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 16, 2);
        cluster.topology = text.into();
        assert!(text.parse::<Shape>().is_err() && cluster.check().is_err(), "{text}");
    }
}
