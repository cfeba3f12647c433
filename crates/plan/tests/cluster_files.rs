//! Clusters as they stand in their files: what is said twice there must be the same.

use paceline_plan::{BUILT_IN_CLUSTERS, Cluster, ClusterSet, Constant, NetworkModel, ProtocolConstants};

/// Two hosts with two workers each, and further lines of `[across]` and below it.
fn file(across: &str) -> String {
    format!(
        "schema = 1\nname = \"mine\"\nsource = \"by hand\"\nhosts = 2\nworkers_per_host = 2\n\
         [within]\nalpha_s = 1e-6\nbeta_s_per_byte = 1e-10\n\
         [across]\nalpha_s = 5e-5\nbeta_s_per_byte = 1e-9\n{across}"
    )
}

/// Read, or why not: alone, and as one of several networks.
fn read(across: &str) -> Result<Cluster, String> {
    let text = file(across);
    let set = text.replace("[within]", "[networks.a.within]").replace("[across]", "[networks.a.across]");
    let set = set.replace("[measured]", "[networks.a.measured]").replace("[protocols", "[networks.a.protocols");
    let set = ClusterSet::from_toml(&format!("[networks.a]\n{set}")).map_err(|error| error.to_string());
    let found = Cluster::from_toml(&text).map_err(|error| error.to_string());
    let in_network = |error: &String| error.replace("is inconsistent: ", "is inconsistent: networks.a.");
    assert_eq!(set.err(), found.as_ref().err().map(in_network), "{across}");
    found
}

#[test]
fn messages_take_about_as_long_as_alpha_and_beta_say() {
    // 5e-5 + 4194304e-9 s are 4.24 ms.
    for points in ["[[4194304, 4.3e-3]]", "[[64, 6e-6], [4194304, 4.2e-2]]", "[[4194304, 4.3e-4]]"] {
        assert!(read(&format!("points = {points}\n")).is_ok(), "{points}");
    }
    for (points, says) in [
        ("[[64, 5e-5], [4194304, 10.0]]", "across.points[1] is 10 s for 4194304 bytes, and across.alpha_s and"),
        ("[[4194304, 4.2e-4]]", "across.points[0] is 0.00042 s for 4194304 bytes"),
        ("[[64, 6e-4]]", "across.beta_s_per_byte say 5.01e-5 s: mend"),
    ] {
        let error = read(&format!("points = {points}\n")).unwrap_err();
        assert!(error.contains(says), "{points}: {error}");
    }
    // Whatever carries them.
    let tcp = "[protocols.tcp.across]\nalpha_s = 1e-3\nbeta_s_per_byte = 1e-9\npoints = [[64, 6e-4]]\n";
    assert!(read(tcp).is_ok());
    let error = read(&tcp.replace("6e-4", "6e-1")).unwrap_err();
    assert!(error.contains("protocols.tcp.across.points[0] is 0.6 s for 64 bytes"), "{error}");
}

/// A probe widens the intervals of alpha and beta by each of its points, and what a fit knows no alpha of is in the start of operations.
#[test]
fn points_may_be_as_far_off_as_the_constants_intervals_and_a_start_say() {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 1);
    let line_s = |cluster: &Cluster, bytes: u64| {
        cluster.across.alpha_s.value + cluster.across.beta_s_per_byte.value * bytes as f64
    };
    let read = |cluster: &Cluster| Cluster::from_toml(&cluster.to_toml()).map_err(|error| error.to_string());
    // A hundred times faster and a thousand times slower, where alpha, beta or both make the most of it.
    let bytes = (cluster.across.alpha_s.value / cluster.across.beta_s_per_byte.value) as u64;
    for (bytes, times) in [(64, 1e-2), (64, 1e3), (bytes, 1e-2), (bytes, 1e3), (1 << 22, 1e-2), (1 << 22, 1e3)] {
        let message_s = times * line_s(&cluster, bytes);
        cluster.across.points = vec![(bytes, Constant::exact(message_s))];
        let error = read(&cluster).unwrap_err();
        assert!(error.contains("across.points[0]"), "{error}");
        let mut probed = cluster.clone();
        let is_short = probed.across.alpha_s.value >= probed.across.beta_s_per_byte.value * bytes as f64;
        let widened = if is_short { &mut probed.across.alpha_s } else { &mut probed.across.beta_s_per_byte };
        let Constant { value, .. } = *widened;
        *widened = Constant::between(value, value.min(value * times), value.max(value * times));
        assert_eq!(read(&probed).as_ref(), Ok(&probed), "{bytes} bytes");
        // Other links are what they are, and the points stay what was measured.
        let faster = probed.with_link("100gbe").unwrap();
        assert_eq!(faster.check(), Ok(()));
    }
    (cluster.across.alpha_s, cluster.across.overhead_s) = (Constant::ZERO, Constant::ZERO);
    cluster.across.points = vec![(64, Constant::exact(1e-4))];
    assert!(read(&cluster).is_err());
    cluster.operation.start_s = Constant::exact(1e-4);
    assert_eq!(read(&cluster).as_ref(), Ok(&cluster));
    // An alpha that is nothing, as far as one knows, and may be more: ten times that, and no longer.
    cluster.operation.start_s = Constant::ZERO;
    cluster.across.alpha_s = Constant::between(0.0, 0.0, 1e-4);
    for (message_s, fits) in [(1e-7, true), (1e-4, true), (9e-4, true), (1.1e-3, false)] {
        cluster.across.points = vec![(64, Constant::exact(message_s))];
        assert_eq!(read(&cluster).is_ok(), fits, "{message_s}");
    }
}

#[test]
fn constants_are_measured_with_workers_that_there_are() {
    let measured = |fields: &str| read(&format!("[measured]\nbytes = [4, 1024]\n{fields}"));
    for fields in [
        "workers = [2, 4]\n",
        // On a larger cluster, of which this one is a part.
        "workers = [2, 64]\nhosts = [1, 32]\n",
        "workers = [2, 64]\nhosts = [1, 16]\nworkers_per_host = [2, 4]\n",
    ] {
        assert!(measured(fields).is_ok(), "{fields}");
    }
    for (fields, room) in [
        ("workers = [2, 64]\n", 4),
        ("workers = [2, 5]\n", 4),
        ("workers = [2, 64]\nhosts = [1, 16]\n", 32),
        ("workers = [2, 64]\nhosts = [1, 16]\nworkers_per_host = [1, 3]\n", 48),
    ] {
        let error = measured(fields).unwrap_err();
        assert!(error.contains("measured.workers is from 2 to "), "{error}");
        assert!(error.contains(&format!("and the hosts have room for {room}: mend the number")), "{error}");
    }
}

/// What is something else where it is left out.
#[test]
fn nothing_that_is_given_as_zero_is_lost() {
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
    for zero in [None, Some(Constant::ZERO)] {
        cluster.server.beta_s_per_byte = zero;
        (cluster.server.dedicated_share, cluster.server.connection_s_per_byte) = (zero, zero);
        assert_eq!(Cluster::from_toml(&cluster.to_toml()).as_ref(), Ok(&cluster));
    }
}

/// What is built in stands in files, too; and a smaller cluster keeps what the larger one was measured with.
#[test]
fn another_size_is_no_contradiction() {
    for name in BUILT_IN_CLUSTERS {
        let cluster = Cluster::named(name).unwrap();
        assert_eq!(Cluster::from_toml(&cluster.to_toml()).as_ref(), Ok(&cluster));
        let set = ClusterSet { networks: [("*".to_owned(), cluster)].into() };
        let small = set.choose("1x2").unwrap();
        assert!(small.workers() < small.measured.unwrap().workers[1], "{name}");
        assert_eq!(small.check(), Ok(()), "{name}");
        assert_eq!(Cluster::from_toml(&small.to_toml()).as_ref(), Ok(&small));
    }
    // Over a protocol the points are those of its own links, or there are none.
    let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 2, 2);
    let operation = Some(cluster.operation);
    cluster.protocols.tcp = Some(ProtocolConstants { operation, ..ProtocolConstants::default() });
    cluster.within.points = vec![(64, Constant::exact(cluster.network().within.alpha_s))];
    assert_eq!(Cluster::from_toml(&cluster.to_toml()).as_ref(), Ok(&cluster));
}
