use std::collections::BTreeSet;

use paceline_plan::Cluster;

use super::*;

const SPEEDS: Speeds = Speeds {
    network: NetworkModel {
        within: LinkClass { alpha_s: 5e-6, overhead_s: 1e-6, beta_s_per_byte: 1e-10 },
        across: LinkClass { alpha_s: 30e-6, overhead_s: 10e-6, beta_s_per_byte: 1e-9 },
    },
    hop_s: 2e-6,
    fetched: false,
};

const SHAPES: [&str; 12] = [
    "flat",
    "tree:4:4",
    "tree:5:1.5",
    "fat-tree:4:2",
    "fat-tree:4:1",
    "fat-tree:4:2:hash",
    "torus:4x4",
    "torus:2x8",
    "torus:16x1",
    "torus:1x16",
    "bcube:4:2",
    "bcube:2:4",
];

fn network(shape: &str, hosts: usize, ranks_per_host: usize) -> Network {
    Network::new(shape.parse().unwrap(), &Hosts::regular(hosts, ranks_per_host), &SPEEDS).unwrap()
}

fn choices() -> Vec<PathChoice> {
    let hash = |seed| PathChoice { spines: Spines::Hash { seed }, ..PathChoice::default() };
    let levels = |levels: &[usize]| PathChoice { levels: levels.to_vec(), ..PathChoice::default() };
    let y_first = PathChoice { y_first: true, ..PathChoice::default() };
    vec![PathChoice::default(), hash(1), hash(2), y_first, levels(&[0]), levels(&[1, 0, 9, 1])]
}

fn nodes(network: &Network, from: usize, to: usize, choice: &PathChoice) -> Vec<Node> {
    let links = network.route(from, to, choice).links.into_iter().map(|link| network.links[link as usize]);
    let links: Vec<Link> = links.collect();
    links.iter().map(|link| link.from).chain(links.last().map(|link| link.to)).collect()
}

#[test]
fn every_route_is_a_path_without_loops() {
    for (shape, ranks_per_host) in SHAPES.iter().flat_map(|shape| [(shape, 1), (shape, 3)]) {
        let network = network(shape, 16, ranks_per_host);
        for (from, to) in (0..network.world()).flat_map(|from| (0..network.world()).map(move |to| (from, to))) {
            for choice in choices() {
                let route = network.route(from, to, &choice);
                if from == to {
                    assert!(route.links.is_empty());
                    continue;
                }
                let links: Vec<Link> = route.links.iter().map(|&link| network.links[link as usize]).collect();
                let told = format!("{shape}, {from} to {to}, {choice:?}: {links:?}");
                let ends = |rank: usize| [Node::Rank(rank), Node::Host(network.hosts.host(rank))];
                assert!(ends(from).contains(&links[0].from) && ends(to).contains(&links[links.len() - 1].to), "{told}");
                assert!(links.windows(2).all(|pair| pair[0].to == pair[1].from), "{told}");
                let passed: BTreeSet<Node> = links.iter().map(|link| link.to).collect();
                assert_eq!(passed.len(), links.len(), "{told}");
            }
        }
    }
}

#[test]
fn a_message_between_hosts_costs_what_its_class_says() {
    let (flat, shared) = (network("flat", 4, 1), network("flat", 4, 2));
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
    let route = flat.route(0, 3, &PathChoice::default());
    assert_eq!(route.links.len(), 2);
    assert!(close(route.latency_s, 20e-6) && close(route.overhead_bytes, 10_000.0), "{route:?}");
    assert!(route.links.iter().all(|&link| close(flat.links[link as usize].capacity, 1e9)));
    // Ranks 0 and 1 share a host: their own ports, and to the next host these and the interface.
    let within = shared.route(0, 1, &PathChoice::default());
    assert_eq!(nodes(&shared, 0, 1, &PathChoice::default()), [Node::Rank(0), Node::Host(0), Node::Rank(1)]);
    assert!(close(within.latency_s, 4e-6) && close(within.overhead_bytes, 10_000.0), "{within:?}");
    let across = shared.route(1, 2, &PathChoice::default());
    assert_eq!(across.links.len(), 4);
    assert!(close(across.latency_s, 20e-6) && close(across.overhead_bytes, 10_000.0), "{across:?}");
    assert_eq!(flat.links[flat.port_in(2) as usize].to, Node::Host(2));
    assert_eq!(shared.links[shared.port_in(2) as usize].to, Node::Rank(2));
}

#[test]
fn what_is_fetched_takes_the_receivers_port_only() {
    let speeds = Speeds { fetched: true, ..SPEEDS };
    let fetched = Network::new(Shape::Flat, &Hosts::regular(4, 2), &speeds).unwrap();
    let (choice, sent) = (PathChoice::default(), network("flat", 4, 2));
    let (there, before) = (fetched.route(0, 1, &choice), sent.route(0, 1, &choice));
    assert_eq!(there, Route { links: before.links[1..].to_vec(), ..before });
    assert_eq!(nodes(&fetched, 0, 1, &choice), [Node::Host(0), Node::Rank(1)]);
    // Nobody reads the memory of another host.
    assert_eq!(fetched.route(1, 2, &choice), sent.route(1, 2, &choice));
}

#[test]
fn a_network_that_is_faster_than_the_ports_of_a_host_goes_past_them() {
    let speeds = Speeds::of(NetworkModel::HUNDRED_GB_IB);
    let network = Network::new(Shape::Flat, &Hosts::regular(2, 4), &speeds).unwrap();
    let nodes = nodes(&network, 0, 7, &PathChoice::default());
    assert_eq!(nodes, [Node::Host(0), Node::Switch { tier: 0, number: 0 }, Node::Host(1)]);
}

#[test]
fn the_switches_of_a_tree_share_one_link_upwards() {
    let tree = network("tree:4:2", 8, 1);
    let route = tree.route(1, 6, &PathChoice::default());
    let capacities = route.links.iter().map(|&link| (tree.links[link as usize].capacity / 1e9).round());
    assert_eq!(capacities.collect::<Vec<_>>(), [1.0, 2.0, 2.0, 1.0]);
    assert!((route.latency_s - 24e-6).abs() < 1e-12, "two switches more: {route:?}");
    assert_eq!(tree.route(0, 3, &PathChoice::default()).links.len(), 2);
    assert_eq!(
        tree.route(1, 6, &PathChoice::default()).links[1..3],
        tree.route(2, 7, &PathChoice::default()).links[1..3]
    );
}

#[test]
fn shifts_never_meet_on_spines_that_are_chosen_by_the_receiver_and_do_by_a_hash() {
    let network = network("fat-tree:4:1", 16, 1);
    let busiest = |shift: usize, choice: &PathChoice| {
        let mut flows = vec![0; network.links.len()];
        for rank in 0..16 {
            network.route(rank, (rank + shift) % 16, choice).links.iter().for_each(|&link| flows[link as usize] += 1);
        }
        flows.into_iter().max().unwrap()
    };
    let hash = |seed| PathChoice { spines: Spines::Hash { seed }, ..PathChoice::default() };
    for shift in 1..16 {
        assert_eq!(busiest(shift, &PathChoice::default()), 1, "shift {shift}");
    }
    // Where the last switch has two hosts, 5 sends to 8 and 7 to 0 by one spine.
    let short = self::network("fat-tree:4:1", 10, 1);
    let spine = |from, to| nodes(&short, from, to, &PathChoice::default())[2];
    assert_eq!(spine(5, 8), spine(7, 0));
    // Four flows on four spines miss each other with probability 4!/4⁴ = 0.09, and there are four switches.
    let meet = (0..100).filter(|&seed| busiest(4, &hash(seed)) > 1).count();
    assert!(meet > 90, "only {meet} of 100 seeds");
    let routes = |seed| (0..16).map(|rank| network.route(rank, (rank + 4) % 16, &hash(seed))).collect::<Vec<_>>();
    assert_eq!(routes(7), routes(7));
    assert_ne!(routes(7), routes(8));
}

#[test]
fn a_fat_tree_whose_shape_says_so_goes_by_a_hash() {
    let [plain, hashed] = ["fat-tree:4:1", "fat-tree:4:1:hash"].map(|shape| network(shape, 16, 1));
    let by = |spines| PathChoice { spines, ..PathChoice::default() };
    let pairs = || (0..16).flat_map(|from| (0..16).map(move |to| (from, to)));
    for (from, to) in pairs() {
        let [by_default, by_hash] = [by(Spines::OfShape), by(Spines::Hash { seed: 0 })];
        assert_eq!(hashed.route(from, to, &by_default), hashed.route(from, to, &by_hash));
        assert_eq!(plain.route(from, to, &by_default), plain.route(from, to, &by(Spines::ByReceiver)));
    }
    let ways = |network: &Network| -> Vec<Route> {
        pairs().map(|(from, to)| network.route(from, to, &by(Spines::OfShape))).collect()
    };
    assert_ne!(ways(&plain), ways(&hashed));
}

#[test]
fn what_a_cluster_says_of_its_switches_and_links_counts() {
    let mut cluster = Cluster::of_network(SPEEDS.network, 8, 1);
    let speeds = |cluster: &Cluster| Speeds::of_costs(&cluster.link_costs(), cluster.across.hop_s.value);
    assert_eq!(speeds(&cluster), Speeds::of(SPEEDS.network));
    (cluster.across.hop_s, cluster.within.fetched) = (2e-6.into(), true);
    assert_eq!(speeds(&cluster), Speeds { fetched: true, ..SPEEDS });
    // Eight hosts are in each other's way for 60 times as much as contention says.
    cluster.across.contention = 0.01.into();
    let ratio = speeds(&cluster).network.across.beta_s_per_byte / SPEEDS.network.across.beta_s_per_byte;
    assert!((ratio - 1.6).abs() < 1e-12, "{ratio}");
}

#[test]
fn a_hash_uses_all_spines_about_evenly() {
    let network = network("fat-tree:16:2", 512, 1);
    let choice = PathChoice { spines: Spines::Hash { seed: 3 }, ..PathChoice::default() };
    let mut flows = [0; 8];
    for (from, to) in (0..16).flat_map(|from| (16..512).map(move |to| (from, to))) {
        let Node::Switch { tier: 1, number } = nodes(&network, from, to, &choice)[2] else { panic!("no spine") };
        flows[number] += 1;
    }
    // 7,936 flows on 8 spines: 992 each, with a standard deviation of 30.
    assert!(flows.iter().all(|flows| (850..1130).contains(flows)), "{flows:?}");
}

#[test]
fn a_torus_goes_dimension_by_dimension_the_shorter_way() {
    let torus = network("torus:5x4", 20, 1);
    let y_first = PathChoice { y_first: true, ..PathChoice::default() };
    let x_first = PathChoice::default();
    let path = |from, to, choice| nodes(&torus, from, to, choice);
    let hosts = |hosts: &[usize]| hosts.iter().map(|&host| Node::Host(host)).collect::<Vec<_>>();
    // Host 18 is column 3 of row 3: two to the left, one down, both past the edge.
    assert_eq!(path(0, 18, &x_first), hosts(&[0, 4, 3, 18]));
    assert_eq!(path(0, 18, &y_first), hosts(&[0, 15, 19, 18]));
    // Two rows away, both ways are as long: upwards.
    assert_eq!(path(1, 11, &x_first), hosts(&[1, 6, 11]));
    assert_eq!(torus.links.len(), 2 * 20 + 4 * 20);
    // A ring of two has one cable.
    assert_eq!(network("torus:2x1", 2, 1).links.len(), 2 * 2 + 2);
    assert_eq!(torus.links[torus.port_in(3) as usize].to, Node::Rank(3));
}

#[test]
fn bcube_sets_digits_right_in_the_order_given() {
    let bcube = network("bcube:3:3", 27, 1);
    let path = |levels: &[usize]| {
        let choice = PathChoice { levels: levels.to_vec(), ..PathChoice::default() };
        let nodes = nodes(&bcube, 0, 1 + 3 * 2 + 9, &choice);
        nodes.into_iter().filter(|node| matches!(node, Node::Host(_))).collect::<Vec<_>>()
    };
    assert_eq!(path(&[]), [0, 9, 15, 16].map(Node::Host));
    assert_eq!(path(&[0, 1]), [0, 1, 7, 16].map(Node::Host));
    assert_eq!(path(&[1]), [0, 6, 15, 16].map(Node::Host));
    // The rotations of one order share no link: Guo et al., §4.1, theorem 2.
    let orders: [&[usize]; 3] = [&[0, 2, 1], &[2, 1, 0], &[1, 0, 2]];
    let links = orders
        .iter()
        .flat_map(|levels| bcube.route(0, 16, &PathChoice { levels: levels.to_vec(), ..PathChoice::default() }).links);
    let links: Vec<LinkId> = links.collect();
    assert_eq!(links.iter().collect::<BTreeSet<_>>().len(), links.len());
}

#[test]
fn a_topology_without_room_is_refused() {
    for (shape, hosts) in [("torus:4x4", 15), ("bcube:4:2", 17)] {
        let error = Network::new(shape.parse().unwrap(), &Hosts::regular(hosts, 1), &SPEEDS).unwrap_err();
        assert!(error.to_string().contains(&format!("the cluster has {hosts}")), "{error}");
    }
}

#[test]
fn a_speed_that_is_no_time_is_refused_by_its_name() {
    let refused = |change: &dyn Fn(&mut Speeds)| {
        let mut speeds = SPEEDS;
        change(&mut speeds);
        Network::new(Shape::Flat, &Hosts::regular(2, 1), &speeds).unwrap_err().to_string()
    };
    let within = refused(&|speeds| speeds.network.within.alpha_s = f64::NAN);
    assert_eq!(within, "within.alpha_s is NaN: give seconds, from 0 to 10⁶");
    let across = refused(&|speeds| speeds.network.across.beta_s_per_byte = -1.0);
    assert_eq!(across, "across.beta_s_per_byte is -1: give seconds, from 0 to 10⁶");
    let endless = refused(&|speeds| (speeds.network.across.alpha_s, speeds.network.across.overhead_s) = (1e300, 1e300));
    assert!(endless.starts_with("across.alpha_s is 1"), "{endless}");
    assert!(refused(&|speeds| speeds.hop_s = f64::INFINITY).starts_with("hop_s is inf"));
    let longer = refused(&|speeds| speeds.network.across.overhead_s = 1.0);
    assert_eq!(longer, "across.overhead_s is 1: it is part of alpha_s, and at most as long");
}
