//! Clusters: what they answer, what is refused, that their file is read as it was written, and that it is documented.

use std::collections::BTreeSet;

use paceline_plan::{
    BUILT_IN_CLUSTERS, Cluster, ClusterError, ClusterSet, Constant, Distribution, InterferenceConstants, LinkConstants,
    MeasuredRange, NetworkModel, ProtocolConstants, UnlikeWorkers,
};

/// With every field.
fn full() -> Cluster {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 2);
    cluster.name = "a \"name\"\twith\\ everything é\u{7f}".into();
    cluster.source = "made up,\nby hand".into();
    cluster.server_hosts = 3;
    cluster.topology = "torus:2x2".into();
    for class in [&mut cluster.within, &mut cluster.across] {
        class.points = vec![(1, 0.015.into()), (16, Constant::between(0.1, 0.0625, 0.25)), (1 << 10, 10.0.into())];
    }
    (cluster.within.fetched, cluster.across.counted_overhead_s) = (true, 2e-4);
    cluster.server.own_ports = true;
    cluster.server.beta_s_per_byte = Some(Constant::ZERO);
    (cluster.server.dedicated_share, cluster.server.connection_s_per_byte) =
        (Some(Constant::ZERO), Some(Constant::ZERO));
    cluster.operation.overtaking_small_s = Some(Constant::ZERO);
    cluster.computation.overhead_s.insert("*".into(), Constant::ZERO);
    cluster.computation.overhead_s.insert("a.b \"c\"".into(), Constant::between(-1e-3, -2e-3, 0.5));
    cluster.measured = Some(MeasuredRange {
        workers: [2, 8],
        bytes: [0, u64::from(u32::MAX)],
        hosts: Some([1, 4]),
        workers_per_host: Some([2, 2]),
        shards: Some([3, 4]),
    });
    (cluster.device, cluster.price_per_host_hour) = (Some("a \"gpu\"".into()), Some(3.06));
    cluster.computation.distribution = Distribution::LogNormal;
    (cluster.computation.draws, cluster.computation.seed) = (50, 7);
    let unlike = |ranks: &[usize], slower| UnlikeWorkers { ranks: ranks.to_vec(), slower };
    cluster.unlike = vec![unlike(&[0, 5], 1.5), unlike(&[7], 0.875)];
    let within = Some(cluster.within.clone());
    cluster.protocols.shm = Some(ProtocolConstants { within: within.clone(), ..ProtocolConstants::default() });
    cluster.protocols.tcp = Some(ProtocolConstants {
        within,
        across: Some(cluster.across.clone()),
        operation: Some(cluster.operation),
        server: Some(cluster.server),
        interference: Some(InterferenceConstants::default()),
    });
    let names: Vec<String> = cluster.constants().into_iter().map(|(name, _)| name).collect();
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !name.starts_with("computation.overhead_s")) {
        // All different, and shares; and with few digits, of which serde_json drops none.
        let value = (index + 2) as f64 / 1024.0;
        *cluster.constant_mut(name).unwrap() = Constant::between(value, value / 2.0, value * 2.0);
    }
    for name in names.iter().filter(|name| name.ends_with(".overhead_s")) {
        *cluster.constant_mut(name).unwrap() = Constant::exact(1e-7);
    }
    cluster
}

fn over_tcp(cluster: &mut Cluster) -> &mut ProtocolConstants {
    cluster.protocols.tcp.as_mut().expect("it is given")
}

fn tcp_within(cluster: &mut Cluster) -> &mut LinkConstants {
    over_tcp(cluster).within.as_mut().expect("it is given")
}

fn tcp_across(cluster: &mut Cluster) -> &mut LinkConstants {
    over_tcp(cluster).across.as_mut().expect("it is given")
}

#[test]
fn a_cluster_is_read_as_it_was_written() {
    let all = full();
    all.check().unwrap();
    let text = all.to_toml();
    assert_eq!(Cluster::from_toml(&text).unwrap(), all, "{text}");
    assert_eq!(serde_json::from_str::<Cluster>(&serde_json::to_string(&all).unwrap()).unwrap(), all);
    for name in BUILT_IN_CLUSTERS {
        let cluster = Cluster::named(name).unwrap();
        assert_eq!((&*cluster.name, Cluster::from_toml(&cluster.to_toml())), (name, Ok(cluster.clone())));
    }
    for name in Cluster::link_names() {
        let cluster = Cluster::named(&name).unwrap();
        assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster), "{name}");
    }
}

/// Any number: none loses a digit on its way through the text.
#[test]
fn numbers_survive_the_text() {
    let mut random = Random(7);
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
    for _ in 0..500 {
        let value = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * 10_f64.powi(-((random.next() % 40) as i32));
        cluster.operation.start_s = Constant::between(value, value / 3.0, value * 1e3);
        assert_eq!(Cluster::from_toml(&cluster.to_toml()).unwrap(), cluster);
    }
}

#[test]
fn a_person_may_leave_out_what_does_not_matter() {
    let short = "\
        schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 2\nworkers_per_host = 1\n\
        across = { alpha_s = 5e-5, beta_s_per_byte = { value = 9e-10, low = 8e-10, high = 1e-9 } }\n";
    let cluster = Cluster::from_toml(short).unwrap();
    assert_eq!((cluster.workers(), &*cluster.topology, cluster.within.clone()), (2, "flat", LinkConstants::default()));
    assert_eq!(cluster.across.beta_s_per_byte, Constant::between(9e-10, 8e-10, 1e-9));
    assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster));
}

/// Within a host there is none.
#[test]
fn what_a_switch_adds_is_a_constant_between_hosts() {
    let read = |within: &str, across: &str| {
        Cluster::from_toml(&format!(
            "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 8\nworkers_per_host = 2\n\
             topology = \"tree:4:2\"\n\
             [within]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-10\n{within}\
             [across]\nalpha_s = 5e-5\nbeta_s_per_byte = 1e-9\n{across}"
        ))
    };
    let mut cluster = read("", "hop_s = { value = 1e-6, low = 0.0, high = 2e-6 }\n").unwrap();
    assert_eq!(cluster.across.hop_s, Constant::between(1e-6, 0.0, 2e-6));
    assert_eq!(cluster.constant_mut("across.hop_s"), Some(&mut Constant::between(1e-6, 0.0, 2e-6)));
    assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster));
    assert_eq!(read("", "").unwrap().across.hop_s, Constant::ZERO);
    for (within, across, says) in
        [("hop_s = 1e-6\n", "", "within.hop_s is given"), ("", "hop_s = -1.0\n", "across.hop_s is -1")]
    {
        let error = read(within, across).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // Hosts that are in each other's way have names of their own there, too.
    for (field, says) in [
        ("contention = 0.01\n", "within.contention is given, and it is about hosts"),
        ("jitter_s = { value = 0.0, low = 0.0, high = 1e-3 }\n", "within.jitter_s is given, and it is about hosts"),
    ] {
        assert!(read("", field).is_ok(), "{field}");
        let error = read(field, "").unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn slow_workers_and_stragglers_are_written_by_hand() {
    let text = "\
        schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 2\nworkers_per_host = 2\n\
        [within]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-10\n\
        [across]\nalpha_s = 5e-5\nbeta_s_per_byte = 1e-9\n\
        [computation]\nspread = 0.125\ndistribution = \"exponential\"\ndraws = 100\n\
        [[workers]]\nranks = [2, 3]\nslower = 1.5\n";
    let cluster = Cluster::from_toml(text).unwrap();
    assert_eq!(cluster.unlike, [UnlikeWorkers { ranks: vec![2, 3], slower: 1.5 }]);
    let computation = &cluster.computation;
    assert_eq!((computation.distribution, computation.draws, computation.seed), (Distribution::Exponential, 100, 0));
    assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster));
    for (right, wrong, words) in [
        ("exponential", "gaussian", "unknown variant `gaussian`"),
        ("slower = 1.5", "faster = 1.5", "unknown field `faster`"),
        ("ranks = [2, 3]\n", "", "missing field `ranks`"),
        ("ranks = [2, 3]", "ranks = [2, 4]", "workers[0].ranks has 4, and the last worker is 3"),
    ] {
        let error = Cluster::from_toml(&text.replace(right, wrong)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A table for each class that differs; the rest is the cluster's.
#[test]
fn what_a_protocol_costs_is_written_by_hand() {
    let text = "\
        schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 1\nworkers_per_host = 2\n\
        [within]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-10\nfetched = true\n\
        [protocols.tcp.within]\nalpha_s = 5e-5\nbeta_s_per_byte = { value = 1e-9, low = 9e-10, high = 2e-9 }\n";
    let cluster = Cluster::from_toml(text).unwrap();
    let over = cluster.over("tcp").into_owned();
    assert_eq!((over.within.alpha_s, over.within.fetched), (Constant::exact(5e-5), false));
    assert_eq!(over.within.beta_s_per_byte, Constant::between(1e-9, 9e-10, 2e-9));
    assert_eq!((&over.across, &over.operation, over.workers()), (&cluster.across, &cluster.operation, 2));
    assert_eq!([&*cluster.over("auto"), &*cluster.over("shm")], [&cluster; 2]);
    assert_eq!(Cluster::from_toml(&cluster.to_toml()), Ok(cluster.clone()));
    // What is there stands instead of the cluster's, also where it is nothing.
    let zero = format!("{text}[protocols.tcp.operation]\n[operation]\nstart_s = 1e-3\n");
    let zero = Cluster::from_toml(&zero).unwrap();
    assert_eq!((zero.start_s(2), zero.over("tcp").start_s(2)), (1e-3, 0.0));
    assert_eq!(Cluster::from_toml(&zero.to_toml()), Ok(zero));
    for (right, wrong, words) in [
        ("protocols.tcp", "protocols.tpc", "unknown field `tpc`, expected `shm` or `tcp`"),
        ("protocols.tcp", "protocols.auto", "unknown field `auto`, expected `shm` or `tcp`"),
        ("tcp.within", "tcp.witin", "unknown field `witin`"),
        ("tcp.within", "tcp", "unknown field `alpha_s`"),
        ("alpha_s = 5e-5\n", "", "missing field `alpha_s`"),
        ("tcp.within", "shm.across", "protocols.shm.across is given, and hosts share no memory"),
        ("[protocols", "[protocols.shm]\n[protocols", "protocols.shm says nothing"),
    ] {
        let error = Cluster::from_toml(&text.replace(right, wrong)).unwrap_err().to_string();
        assert!(error.contains(words), "{wrong}: {error}");
    }
}

fn range(cluster: &mut Cluster) -> &mut MeasuredRange {
    cluster.measured.as_mut().expect("it is given")
}

/// Another size behind a cluster's name makes other hosts of it, and no measurement: neither where the file says on which hosts its
/// constants were measured, nor where it does not.
#[test]
fn another_size_leaves_what_was_measured() {
    let study = Cluster::named("study-100gbe").unwrap();
    let mut silent = study.clone();
    (range(&mut silent).hosts, range(&mut silent).workers_per_host) = (None, None);
    for cluster in [study, silent] {
        let set = ClusterSet { networks: [("100GbE".to_owned(), cluster)].into() };
        let left = |size: &str, workers| set.choose(&format!("100GbE:{size}")).unwrap().left_by(workers, 1 << 20);
        assert_eq!(
            left("32x1", 32),
            [
                "1 worker on a host, and constants were measured with 4",
                "32 hosts, and constants were measured with 1 to 8"
            ]
        );
        assert_eq!(left("1x8", 8), ["8 workers on a host, and constants were measured with 4"]);
        assert_eq!(left("4x4", 16), Vec::<String>::new());
        // That is on more hosts as well, and on a part of one, which goes without saying.
        assert_eq!(left("16x4", 64), ["64 workers, and constants were measured with 4 to 32"]);
        assert_eq!(left("8x4", 2), ["2 workers, and constants were measured with 4 to 32"]);
        let alone = left("64x1", 64);
        assert!(alone.len() == 3 && alone[2].starts_with("64 hosts, and"), "{alone:?}");
        assert_eq!(set.choose("32x1").map(|cluster| (cluster.hosts, cluster.server_hosts)), Ok((32, 32)));
        assert_eq!(set.choose("2x4").map(|cluster| (cluster.hosts, cluster.server_hosts)), Ok((2, 2)));
        assert!(set.choose(&format!("{}x1", usize::MAX)).is_err());
    }
}

#[test]
fn other_numbers_of_shards_leave_what_was_measured() {
    let mut cluster = full();
    let left = |cluster: &Cluster, workers, shards| cluster.left_by_shards(workers, shards);
    assert_eq!(left(&cluster, 8, 1).as_deref(), Some("1 shard, and constants were measured with 3 to 4"));
    assert_eq!(left(&cluster, 2, 5).as_deref(), Some("5 shards, and constants were measured with 3 to 4"));
    // As many as were measured; those of more workers, of which it is said that they are more; and none at all.
    for (workers, shards) in [(8, 3), (8, 4), (16, 8), (8, 0)] {
        assert_eq!(left(&cluster, workers, shards), None, "{workers} workers, {shards} shards");
    }
    range(&mut cluster).shards = None;
    assert_eq!(left(&cluster, 8, 1), None, "nobody has said");
}

/// Links that one can buy are what their makers state; all others that are built in were measured by somebody.
#[test]
fn what_nobody_has_measured_says_where_it_comes_from() {
    for name in BUILT_IN_CLUSTERS {
        assert_eq!(Cluster::named(name).unwrap().measurement_doubt(), None, "{name}");
    }
    for name in Cluster::link_names() {
        let cluster = Cluster::named(&name).unwrap();
        let doubt = cluster.measurement_doubt().unwrap();
        let says = format!("nothing of {name} was measured, as far as it says; its constants come from: ");
        assert!(doubt.starts_with(&says) && doubt.ends_with(&cluster.source), "{doubt}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    type Change = fn(&mut Cluster);
    let cases: [(Change, &str); 47] = [
        (|cluster| cluster.schema = 2, "schema 2; this version of Paceline reads schema 1"),
        (|cluster| cluster.name = " ".into(), "name is empty"),
        (|cluster| cluster.hosts = 0, "hosts is 0"),
        (|cluster| cluster.hosts = usize::MAX, "hosts is"),
        (|cluster| cluster.workers_per_host = 0, "workers_per_host is 0"),
        (|cluster| cluster.workers_per_host = usize::MAX, "workers_per_host is"),
        (|cluster| (cluster.hosts, cluster.workers_per_host) = (1 << 20, 1 << 16), "hosts times workers_per_host"),
        (|cluster| cluster.server_hosts = usize::MAX, "server_hosts is"),
        (|cluster| cluster.topology = "ring".into(), "topology `ring` is no topology"),
        (|cluster| cluster.topology = "torus:4x".into(), "topology `torus:4x` is no topology"),
        (|cluster| cluster.topology = "torus:4x2".into(), "topology torus:4x2 has room for 8 hosts, exactly"),
        (|cluster| cluster.topology = "bcube:3:2".into(), "topology bcube:3:2 has room for 9 hosts, exactly"),
        (
            |cluster| cluster.topology = "bcube:9:99999".into(),
            "topology `bcube:9:99999`: a switch has at least 2 ports",
        ),
        (|cluster| cluster.across.alpha_s = (-1.0).into(), "across.alpha_s is -1"),
        (|cluster| cluster.within.beta_s_per_byte = f64::INFINITY.into(), "within.beta_s_per_byte is inf"),
        (|cluster| cluster.operation.start_s.high = f64::NAN, "operation.start_s is"),
        (|cluster| cluster.operation.start_s.low = 1.0, "operation.start_s is"),
        (|cluster| cluster.server.partition_s = Constant::between(1.0, -1.0, 2.0), "server.partition_s is 1, from -1"),
        (|cluster| cluster.server.duplex_loss.high = 1.5, "server.duplex_loss is"),
        (|cluster| cluster.across.overhead_s = 1.0.into(), "across.overhead_s is 1, longer than across.alpha_s"),
        (|cluster| cluster.across.beta_s_per_byte = Constant::ZERO, "across.beta_s_per_byte is missing or 0"),
        (|cluster| cluster.across.fetched = true, "across.fetched is true"),
        (|cluster| cluster.within.counted_overhead_s = -1e-6, "within.counted_overhead_s is -0.000001; it is not"),
        (|cluster| cluster.across.counted_overhead_s = f64::NAN, "across.counted_overhead_s is NaN"),
        (|cluster| cluster.within.points[1].0 = 0, "within.points[1] has no more bytes"),
        (|cluster| cluster.within.points[2].1 = (-1.0).into(), "within.points[2] is -1, from -1; it is not negative"),
        (|cluster| cluster.within.points[1].1.low = 0.2, "within.points[1] is 0.1, and its interval is from 0.2"),
        (|cluster| range(cluster).workers = [0, 4], "measured.workers is from 0 to 4"),
        (|cluster| range(cluster).bytes = [2, 1], "measured.bytes is from 2 to 1"),
        (|cluster| range(cluster).hosts = Some([3, 2]), "measured.hosts is from 3 to 2"),
        (|cluster| range(cluster).workers_per_host = Some([0, 2]), "measured.workers_per_host is from 0 to 2"),
        (|cluster| range(cluster).shards = Some([0, 1]), "measured.shards is from 0 to 1"),
        (|cluster| cluster.price_per_host_hour = Some(f64::NAN), "price_per_host_hour is NaN"),
        (
            |cluster| _ = cluster.computation.overhead_s.insert("m".into(), Constant::exact(f64::INFINITY)),
            "computation.overhead_s.m is inf",
        ),
        (|cluster| cluster.computation.draws = 1001, "computation.draws is 1001; at most 1000"),
        (|cluster| cluster.unlike[1].slower = 0.0, "workers[1].slower is 0; a second takes from 0.001 to 1000 s"),
        (|cluster| cluster.unlike[0].slower = f64::NAN, "workers[0].slower is NaN"),
        (|cluster| cluster.unlike[0].ranks.clear(), "workers[0].ranks is empty"),
        (|cluster| cluster.unlike[0].ranks[1] = 8, "workers[0].ranks has 8, and the last worker is 7"),
        (|cluster| cluster.unlike[1].ranks.push(5), "workers[1].ranks has 5, which was named before"),
        (|cluster| tcp_within(cluster).alpha_s = (-1.0).into(), "protocols.tcp.within.alpha_s is -1"),
        (
            |cluster| tcp_within(cluster).beta_s_per_byte = Constant::ZERO,
            "protocols.tcp.within.beta_s_per_byte is missing or 0",
        ),
        (
            |cluster| tcp_across(cluster).overhead_s = 1.0.into(),
            "protocols.tcp.across.overhead_s is 1, longer than protocols.tcp.across.alpha_s",
        ),
        (|cluster| tcp_across(cluster).fetched = true, "protocols.tcp.across.fetched is true"),
        (|cluster| tcp_within(cluster).points[1].0 = 0, "protocols.tcp.within.points[1] has no more bytes"),
        (
            |cluster| over_tcp(cluster).server.as_mut().unwrap().duplex_loss.high = 1.5,
            "protocols.tcp.server.duplex_loss is",
        ),
        (
            |cluster| cluster.protocols.shm.as_mut().unwrap().across = Some(cluster.across.clone()),
            "protocols.shm.across is given, and hosts share no memory",
        ),
    ];
    for (change, says) in cases {
        let mut cluster = full();
        change(&mut cluster);
        let error = cluster.check().expect_err(says).to_string();
        assert!(error.contains(says), "`{error}` does not say `{says}`");
        // What is refused here is refused in a file, too.
        assert!(Cluster::from_toml(&cluster.to_toml()).is_err(), "{says}");
    }
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_line() {
    let file = Cluster::named("study-10gbe").unwrap().to_toml();
    for (from, to, says) in [
        ("schema = 1", "schema = 2\nfuture = 3", "the cluster has schema 2"),
        ("hosts = 8", "hosts = -8", "hosts = -8"),
        ("hosts = 8", "", "missing field `hosts`"),
        ("hosts = 8", "hosts = 8\nhots = 8", "unknown field `hots`"),
        ("[within]", "[wthin]", "unknown field `wthin`"),
        ("[across]", "[across.nic]", "line"),
        ("alpha_s = 0.0", "alpha_us = 0.0", "unknown field `alpha_us`"),
        ("alpha_s = 0.0", "alpha_s = \"50us\"", "`alpha_s = \"50us\"`: invalid type"),
        ("alpha_s = 0.0", "alpha_s = nan", "within.alpha_s is NaN"),
        ("alpha_s = 0.0", "alpha_s = { value = 0.0, low = 0.0 }", "missing field `high`"),
        ("alpha_s = 0.0", "alpha_s = ", "`alpha_s =`"),
        ("workers = [4, 32]", "workers = [4]", "workers = [4]"),
    ] {
        assert!(file.contains(from), "{file}");
        let wrong = file.replacen(from, to, 1);
        let error = Cluster::from_toml(&wrong).expect_err(says);
        assert!(error.to_string().contains(says), "`{error}` does not say `{says}`");
    }
    let error = Cluster::from_toml(&file.replacen("alpha_s = 0.0", "alpha_us = 0.0", 1)).unwrap_err();
    let ClusterError::Text { line, text, .. } = error else { panic!("{error}") };
    let place = file.lines().position(|line| line.starts_with("alpha_s")).unwrap();
    assert_eq!((line, &*text), (place + 1, "alpha_us = 0.0"));
    assert!(Cluster::from_toml("").unwrap_err().to_string().contains("missing field"));
}

/// Whatever stands in a file: it is read or refused, and nothing else.
#[test]
fn a_mutated_file_is_read_or_refused() {
    let seed = 20_261_121;
    println!("seed {seed}");
    let mut random = Random(seed);
    let originals: Vec<Vec<u8>> =
        BUILT_IN_CLUSTERS.map(|name| Cluster::named(name).unwrap().to_toml().into_bytes()).into_iter().collect();
    let (mut read, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let mut bytes = random.of(&originals).clone();
        for _ in 0..1 + random.next() % 4 {
            if bytes.len() < 8 {
                break;
            }
            let at = random.next() as usize % bytes.len();
            match random.next() % 6 {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] = *random.of(b"0123456789-+.eE={}[]\"\\\n#nafi'"),
                2 => _ = bytes.remove(at),
                3 => bytes.truncate(at.max(1)),
                4 => bytes.splice(at..at, random.of(&PIECES).bytes()).for_each(drop),
                _ => {
                    let (end, other) = ((at + random.next() as usize % 40).min(bytes.len()), random.of(&originals));
                    let from = random.0 as usize % other.len();
                    bytes.splice(at..end, other[from..].iter().copied().take(end - at)).for_each(drop);
                }
            }
        }
        match Cluster::from_toml(&String::from_utf8_lossy(&bytes)) {
            Ok(cluster) => {
                assert_eq!(Cluster::from_toml(&cluster.to_toml()).unwrap(), cluster);
                assert!(cluster.link_costs().across.beta.is_finite());
                read += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    println!("{read} were read, {refused} refused");
    assert!(read > 20 && refused > 500, "{read} were read, {refused} refused");
}

const PIECES: [&str; 10] = [
    "1e999",
    "-0.0",
    "nan",
    "[[",
    "{ value = ",
    "99999999999999999999",
    "\u{feff}",
    "1979-05-27",
    "\"\"\"",
    "a.b.c = 1\n",
];

/// Marsaglia, "Xorshift RNGs" (2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.next() as usize % all.len()]
    }
}

#[test]
fn every_constant_has_a_name_of_its_own() {
    let mut cluster = full();
    let constants = cluster.constants();
    let names: BTreeSet<&String> = constants.iter().map(|(name, _)| name).collect();
    assert_eq!((names.len(), constants.len()), (58, 58), "{names:?}");
    for (name, constant) in &constants {
        assert_eq!(cluster.constant_mut(name), Some(&mut constant.clone()), "{name}");
    }
    assert_eq!(cluster.constant_mut("across.gamma"), None);
}

/// docs/clusters.md has a row for every field of the file, and for every name.
#[test]
fn every_field_is_documented() {
    let page = include_str!("../../../docs/clusters.md");
    let documented: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut written = BTreeSet::new();
    let value = serde_json::to_value(full()).unwrap();
    for (name, value) in value.as_object().unwrap() {
        written.insert(name.clone());
        let of_list = value.as_array().and_then(|list| list.first());
        if let Some(table) = of_list.unwrap_or(value).as_object().filter(|table| !table.contains_key("low")) {
            written.extend(table.keys().cloned());
        }
    }
    for field in &written {
        assert!(documented.contains(&**field), "docs/clusters.md has no row for {field}");
    }
    for name in Cluster::link_names().iter().map(String::as_str).chain(BUILT_IN_CLUSTERS) {
        assert!(documented.contains(name), "docs/clusters.md has no row for {name}");
        written.insert(name.to_owned());
    }
    for row in documented {
        assert!(written.contains(row), "no cluster has the field {row}, and none is called so");
    }
}
