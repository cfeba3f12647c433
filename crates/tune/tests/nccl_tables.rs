//! NCCL's tables, to the digit that it prints: worked out by hand from the formulas, release by release, and from logs
//! that people published or we have recorded.

use paceline_tune::nccl::{Algorithm, Communicator, CpuVendor, Function, Graph, Path, Protocol, Tables, Version};

fn version(text: &str) -> Version {
    text.parse().expect("a version")
}

fn tables(of: &str, communicator: &Communicator) -> Tables {
    // What `cargo xtask study --part nccl` counts.
    println!(r#"evidence: {{"what":"table","nccl":"{of}"}}"#);
    Tables::new(version(of), communicator).expect("a communicator")
}

/// As NCCL prints it.
fn cell(tables: &Tables, function: Function, algorithm: Algorithm, protocol: Protocol) -> String {
    let entry = tables.entry(function, algorithm, protocol);
    format!("{:.1}/{:.1}", entry.latency_us, entry.bandwidth_gb_s)
}

/// The three cells of an algorithm: LL, LL128, Simple.
fn cells(tables: &Tables, function: Function, algorithm: Algorithm) -> [String; 3] {
    [Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|protocol| cell(tables, function, algorithm, protocol))
}

/// Eight H100 on one host: 16 channels of 20 GB/s over NVLink, with its switches.
fn one_host() -> Communicator {
    let graph = Graph { channels: 16, intra_gb_s: 20.0, inter_gb_s: 40.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::NvLink, ..graph };
    Communicator { ranks: 8, compute_capability: 90, nvls: true, nvswitch: true, ..Communicator::of_graph(graph) }
}

/// Four such hosts: 16 channels of 40 GB/s within, of 24 GB/s between them.
fn four_hosts() -> Communicator {
    let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let of_graph = Communicator::of_graph(graph);
    Communicator { ranks: 32, hosts: 4, compute_capability: 90, nvls: true, nvswitch: true, ..of_graph }
}

/// Hosts of one rank each over sockets, whose rings have two channels; a tree's carry twice as much within a host.
fn single_ranks(hosts: u32, channel_gb_s: f32) -> Communicator {
    let ring = Graph { channels: 2, intra_gb_s: channel_gb_s, inter_gb_s: channel_gb_s, ..Graph::default() };
    let mut single = Communicator { ranks: hosts, hosts, ..Communicator::of_graph(ring) };
    // PAT goes by the tree's graph.
    for algorithm in [Algorithm::Tree, Algorithm::Pat] {
        single.graphs[algorithm.number()] = Graph { intra_gb_s: 2.0 * channel_gb_s, ..ring };
    }
    single
}

#[test]
fn one_host_of_h100_in_2_30() {
    let tables = tables("2.30.7", &one_host());
    let printed = tables.to_string();
    // Tree: 2 · 7 steps; ring: 14 steps, 8/14 of the bus; LL at most 141 GB/s; trees 92 % of 320 GB/s, then half.
    for line in [
        "    AllReduce |    15.2/  38.7 |    31.5/ 114.5 |    64.4/ 147.2 |    15.0/  80.6 |    40.6/ 168.2 |    56.0/ 182.9 |     \
         5.6/   0.0 |     5.6/   0.0 |    44.0/   0.0 |",
        "    AllReduce |     0.0/   0.0 |     0.0/   0.0 |    69.2/   0.0 |     0.0/   0.0 |     0.0/   0.0 |    25.0/ 291.4 |     \
         0.0/   0.0 |     0.0/   0.0 |    25.0/   0.0 |",
        "    Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     7.2/ 141.0 |    15.9/ 294.4 |    11.8/ 320.0 |     \
         0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |",
        " Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |              \
         0 |              0 |            640 |",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "no line\n{line}\nin\n{printed}");
    }
    // NCCL's heading has three times three protocols over PAT, too.
    let headings: Vec<&str> = printed.lines().filter(|line| line.starts_with("  Protocol    |")).collect();
    assert!(headings.len() == 3 && headings.iter().all(|line| line.matches('|').count() == 10), "{headings:?}");
    assert_eq!(cells(&tables, Function::AllGather, Algorithm::Ring), ["10.8/161.1", "27.3/336.5", "32.2/365.7"]);
    // 20 · 0.85 · 15/16 · 7/8 GB/s on each of 16 channels.
    assert_eq!(cell(&tables, Function::ReduceScatter, Algorithm::Nvls, Protocol::Simple), "25.0/223.1");
    assert_eq!(cells(&tables, Function::AllGather, Algorithm::Pat), ["0.0/0.0"; 3]);
}

#[test]
fn four_hosts_of_h100_in_2_30() {
    let of_intel = tables("2.30.7", &four_hosts());
    let all_reduce = |tables: &Tables, algorithm| cells(tables, Function::AllReduce, algorithm);
    // 56 steps within hosts, none shorter than what the processor pays for the network (1 us, 3 us with Simple), 6 between.
    assert_eq!(all_reduce(&of_intel, Algorithm::Ring), ["78.8/10.5", "144.4/182.3", "282.8/198.2"]);
    assert_eq!(all_reduce(&of_intel, Algorithm::Tree), ["35.2/10.2", "65.5/165.6", "120.4/176.6"]);
    assert_eq!(all_reduce(&of_intel, Algorithm::NvlsTree), ["0.0/0.0", "0.0/0.0", "108.6/198.2"]);
    // NVLS alone ends at the host, where the network does not add up.
    assert_eq!(all_reduce(&of_intel, Algorithm::Nvls), ["0.0/0.0", "0.0/0.0", "43.0/0.0"]);
    assert_eq!(cells(&of_intel, Function::AllGather, Algorithm::Ring), ["42.7/21.1", "79.2/364.7", "145.6/396.4"]);
    let of_amd = tables("2.30.7", &Communicator { cpu: CpuVendor::Amd, ..four_hosts() });
    assert_eq!(all_reduce(&of_amd, Algorithm::Ring), ["134.8/9.8", "150.0/182.3", "428.4/198.2"]);
    let slow = Communicator { net_overhead_us: Some(2.0), ..four_hosts() };
    let slow = tables("2.30.7", &slow);
    assert_eq!(cell(&slow, Function::AllReduce, Algorithm::Ring, Protocol::Ll), "134.8/10.5");
}

/// https://github.com/NVIDIA/nccl/issues/1519: two hosts with eight H100 each, whose rings carry 20 GB/s.
#[test]
fn a_published_log_of_2_20() {
    let graph = Graph { intra_gb_s: 20.0, inter_gb_s: 20.0, intra: Path::NvLink, ..Graph::default() };
    let hosts = Communicator { ranks: 16, hosts: 2, compute_capability: 90, ..Communicator::of_graph(graph) };
    let tables = tables("2.20.5", &hosts);
    assert_eq!(cells(&tables, Function::Broadcast, Algorithm::Ring), ["9.3/5.0", "18.0/0.0", "22.4/20.0"]);
    assert_eq!(cells(&tables, Function::Reduce, Algorithm::Ring), ["9.3/5.0", "18.0/0.0", "22.4/20.0"]);
    assert_eq!(cells(&tables, Function::AllGather, Algorithm::Ring), ["23.3/5.3", "44.6/0.0", "70.0/21.3"]);
    assert_eq!(cells(&tables, Function::AllGather, Algorithm::CollNetDirect), ["5.6/0.0", "5.6/0.0", "44.0/0.0"]);
    assert_eq!(cell(&tables, Function::AllReduce, Algorithm::Ring, Protocol::Ll), "43.4/2.7");
    // (NCCL_ALGO kept trees out there, so only their latencies are printed.)
    let latency = |protocol| tables.entry(Function::AllReduce, Algorithm::Tree, protocol).latency_us;
    let latencies =
        [Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|protocol| format!("{:.1}", latency(protocol)));
    assert_eq!(latencies, ["25.2", "48.5", "448.0"]);
}

/// https://github.com/eunomia-bpf/nccl-eBPF, docs/tmp/default-suboptimal-search.md of commit b287394: NCCL 2.29.7 says so itself, built from
/// 3619159, whose tables are those of the tag v2.29.7-1. Two ranks of a GeForce RTX 5090 (compute capability 12.0), each a host of its own by
/// NCCL_HOSTID, over sockets. What the graph search has found follows from the table and from `src/graph/search.cc`: a ring's channels carry
/// 2.4 GB/s together, a tree's twice as much, as the search raises what trees carry within one of two hosts; a host's only rank is a tree.
/// Calls had four channels: there are two of each.
#[test]
fn a_published_log_of_2_29() {
    let hosts = Communicator { compute_capability: 120, channels: 4, ..single_ranks(2, 1.2) };
    let tables = tables("2.29.7", &hosts);
    let gathered = ["11.6/2.4", "22.5/0.0", "22.4/4.8"];
    let collnet = ["5.0/0.0", "8.5/0.0", "14.0/0.0"];
    for &function in Function::ALL {
        for &algorithm in Algorithm::ALL {
            let printed = match (function, algorithm) {
                (Function::Broadcast | Function::Reduce, Algorithm::Ring) => ["9.3/1.2", "18.0/0.0", "22.4/2.4"],
                (Function::AllReduce, Algorithm::Tree) => ["16.8/0.5", "31.0/0.0", "36.4/1.9"],
                (Function::AllReduce, Algorithm::Ring) => ["16.6/1.2", "31.0/0.0", "36.4/2.4"],
                (Function::AllReduce, Algorithm::CollNetDirect | Algorithm::CollNetChain) => collnet,
                (Function::AllGather | Function::ReduceScatter, Algorithm::Ring) => gathered,
                (Function::AllGather | Function::ReduceScatter, Algorithm::CollNetDirect) => collnet,
                (Function::AllGather | Function::ReduceScatter, Algorithm::Pat) => ["0.0/0.0", "0.0/0.0", "17.6/3.6"],
                _ => ["0.0/0.0"; 3],
            };
            assert_eq!(cells(&tables, function, algorithm), printed, "{function} by {algorithm}");
        }
    }
    let of_protocols = |algorithm: &Algorithm| {
        [Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|protocol| tables.max_threads(*algorithm, protocol))
    };
    let threads: Vec<[u32; 3]> = Algorithm::ALL.iter().map(of_protocols).collect();
    let simple: [u32; 3] = [0, 0, 640];
    assert_eq!(threads, [[512, 640, 512], [512, 640, 256], simple, simple, simple, simple, [0; 3]]);
    // What it took for broadcasts: LL with one channel up to 8 KiB, with two at 16 KiB; then Simple, with 1, 2, and 4.
    for size in 10..=27 {
        let (protocol, channels) = match size {
            ..=13 => (Protocol::Ll, 1),
            14 => (Protocol::Ll, 2),
            15 => (Protocol::Simple, 1),
            16 => (Protocol::Simple, 2),
            _ => (Protocol::Simple, 4),
        };
        let bytes = 1_u64 << size;
        let choice = tables.choose(Function::Broadcast, bytes, 1).expect("a choice");
        // A channel gets 32 KiB at least, and LL's bytes count four times (`src/enqueue.cc`).
        let counted = if choice.protocol == Protocol::Ll { 4 * bytes } else { bytes };
        let busy = u64::from(choice.channels).min((counted >> 15).max(1));
        assert_eq!((choice.algorithm, choice.protocol, busy), (Algorithm::Ring, protocol, channels), "{bytes} bytes");
    }
}

/// benches/runs/2026-11-27-nvidia-h200: four ranks of an H200, each a host of its own by NCCL_HOSTID, over sockets on loopback. Rings and
/// trees have two channels of 0.6 GB/s; a host's only rank is a tree, whose channels carry twice as much within a host.
#[test]
fn a_log_of_ours_of_2_28() {
    let tables = tables("2.28.9", &Communicator { compute_capability: 90, ..single_ranks(4, 0.6) });
    let gathered = ["21.6/0.8", "39.5/0.0", "50.4/1.6"];
    let collnet = ["5.0/0.0", "8.5/0.0", "14.0/0.0"];
    for &function in Function::ALL {
        for &algorithm in Algorithm::ALL {
            let printed = match (function, algorithm) {
                (Function::Broadcast | Function::Reduce, Algorithm::Ring) => ["9.3/0.6", "18.0/0.0", "22.4/1.2"],
                (Function::AllReduce, Algorithm::Tree) => ["26.8/0.1", "48.0/0.0", "64.4/0.5"],
                (Function::AllReduce, Algorithm::Ring) => ["36.6/0.4", "65.0/0.0", "92.4/0.8"],
                (Function::AllReduce, Algorithm::CollNetDirect | Algorithm::CollNetChain) => collnet,
                (Function::AllGather | Function::ReduceScatter, Algorithm::Ring) => gathered,
                (Function::AllGather | Function::ReduceScatter, Algorithm::CollNetDirect) => collnet,
                (Function::AllGather | Function::ReduceScatter, Algorithm::Pat) => ["0.0/0.0", "0.0/0.0", "27.2/0.9"],
                _ => ["0.0/0.0"; 3],
            };
            assert_eq!(cells(&tables, function, algorithm), printed, "{function} by {algorithm}");
        }
    }
    // What it took by itself.
    for (bytes, algorithm, protocol, channels) in [
        (1 << 10, Algorithm::Tree, Protocol::Ll, 1),
        (64 << 10, Algorithm::Ring, Protocol::Ll, 2),
        (256 << 10, Algorithm::Ring, Protocol::Simple, 2),
        (1 << 20, Algorithm::Ring, Protocol::Simple, 2),
    ] {
        let choice = tables.choose(Function::AllReduce, bytes, 1).expect("a choice");
        assert_eq!((choice.algorithm, choice.protocol), (algorithm, protocol), "{bytes} bytes");
        assert_eq!(choice.channels, channels, "{bytes} bytes");
        // Why the plug-in did not play what a policy wanted from 64 KiB on.
        let time_us = |algorithm, protocol| tables.time_us(Function::AllReduce, algorithm, protocol, bytes, 1);
        let tree_us = time_us(Algorithm::Tree, Protocol::Ll).expect("a tree");
        let best_us = time_us(algorithm, protocol).expect("what was chosen");
        assert_eq!(tree_us > 4.0 * best_us, bytes >= 64 << 10, "{bytes} bytes: {tree_us} and {best_us} us");
    }
}

#[test]
fn what_changed_from_release_to_release() {
    let all_reduce = |of: &str, communicator: &Communicator, algorithm, protocol| {
        cell(&tables(of, communicator), Function::AllReduce, algorithm, protocol)
    };
    let (one, four) = (one_host(), four_hosts());
    // Trees were 28 us a step with Simple until 2.22.
    assert_eq!(all_reduce("2.22.3", &one, Algorithm::Tree, Protocol::Simple), "392.0/147.2");
    assert_eq!(all_reduce("2.23.4", &one, Algorithm::Tree, Protocol::Simple), "64.4/147.2");
    // LL was a quarter of the bus, and at most 87.7 GB/s, until 2.20.
    assert_eq!(all_reduce("2.20.5", &one, Algorithm::Ring, Protocol::Ll), "15.0/45.7");
    assert_eq!(all_reduce("2.21.5", &one, Algorithm::Ring, Protocol::Ll), "15.0/80.6");
    // A ring's steps between hosts were counted as 2 · hosts until 2.22: 54 · 1.0 + 8 · 2.7.
    assert_eq!(all_reduce("2.22.3", &four, Algorithm::Ring, Protocol::Ll), "82.2/10.5");
    // NVLS: 23 us in 2.19 and 2.20, 25 then; 5/6 of the smaller of the bandwidths until 2.27.
    assert_eq!(all_reduce("2.20.5", &one, Algorithm::Nvls, Protocol::Simple), "23.0/266.7");
    assert_eq!(all_reduce("2.27.7", &one, Algorithm::Nvls, Protocol::Simple), "25.0/266.7");
    assert_eq!(all_reduce("2.28.3", &one, Algorithm::Nvls, Protocol::Simple), "25.0/291.4");
    // NVLS trees: half of what comes in from the network until 2.27; 14 us a level until 2.28.7.
    assert_eq!(all_reduce("2.27.7", &four, Algorithm::NvlsTree, Protocol::Simple), "81.0/160.0");
    assert_eq!(all_reduce("2.28.7", &four, Algorithm::NvlsTree, Protocol::Simple), "81.0/198.2");
    assert_eq!(all_reduce("2.28.9", &four, Algorithm::NvlsTree, Protocol::Simple), "108.6/198.2");
}

#[test]
fn ll128_where_it_is_safe() {
    let ll128 = |of: &str, communicator: &Communicator| {
        tables(of, communicator).entry(Function::AllReduce, Algorithm::Ring, Protocol::Ll128).bandwidth_gb_s > 0.0
    };
    let of_graph = |change: &dyn Fn(&mut Graph)| {
        let mut graph = *one_host().graph(Algorithm::Ring);
        change(&mut graph);
        Communicator { graphs: [graph; 7], ..one_host() }
    };
    let mixed = Communicator { same_compute_capability: false, ..one_host() };
    let ada = Communicator { compute_capability: 89, ..one_host() };
    let behind_gpu = of_graph(&|graph| graph.inter = Path::Pxn);
    for (communicator, of, safe) in [
        (&one_host(), "2.19.4", true),
        // GPUs of two kinds from 2.30 on; others than 7.0, 8.0 and 9.0 from 2.27 on.
        (&mixed, "2.29.7", false),
        (&mixed, "2.30.3", true),
        (&ada, "2.26.2", false),
        (&ada, "2.27.3", true),
        // Through another GPU's interface from Hopper on; never through a processor, and never over PCI within a host.
        (&behind_gpu, "2.30.7", true),
        (&Communicator { compute_capability: 80, ..behind_gpu.clone() }, "2.30.7", false),
        (&of_graph(&|graph| graph.inter = Path::Phb), "2.30.7", false),
        (&of_graph(&|graph| graph.intra = Path::Pix), "2.30.7", false),
    ] {
        assert_eq!(ll128(of, communicator), safe, "{of}: {communicator:?}");
    }
}

#[test]
fn blackwells_limits_by_release() {
    let graph = Graph { channels: 16, intra_gb_s: 60.0, inter_gb_s: 60.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let hosts = Communicator { ranks: 16, hosts: 2, compute_capability: 100, ..Communicator::of_graph(graph) };
    // 0.92 · 960, or 16 · 34.6, or 16 · 40 GB/s; 16/30 of it.
    for (of, bandwidth) in [
        ("2.25.1", 471.0),
        ("2.28.3", 471.0),
        ("2.28.7", 295.3),
        ("2.29.2", 295.3),
        ("2.29.7", 341.3),
        ("2.30.7", 341.3),
    ] {
        let entry = tables(of, &hosts).entry(Function::AllReduce, Algorithm::Ring, Protocol::Ll128);
        assert_eq!(format!("{:.1}", entry.bandwidth_gb_s), format!("{bandwidth:.1}"), "{of}");
    }
    // Before 2.25 there was no row for it: Hopper's; and LL128 was not proved.
    let entry = |protocol| tables("2.24.3", &hosts).entry(Function::AllReduce, Algorithm::Tree, protocol);
    assert_eq!(entry(Protocol::Ll128).bandwidth_gb_s, 0.0);
    assert_eq!(format!("{:.1}", entry(Protocol::Simple).bandwidth_gb_s), "331.2");
}

#[test]
fn pat_needs_one_rank_to_a_host() {
    let graph = Graph { channels: 2, intra_gb_s: 10.0, inter_gb_s: 10.0, ..Graph::default() };
    let hosts = Communicator { ranks: 16, hosts: 16, compute_capability: 80, ..Communicator::of_graph(graph) };
    let pat = |of: &str, communicator: &Communicator| {
        cell(&tables(of, communicator), Function::AllGather, Algorithm::Pat, Protocol::Simple)
    };
    // 8 + 4 · 14/3.5 + 16 · 2.8 us; three quarters of 20 GB/s (0.85 in 2.23).
    assert_eq!(pat("2.30.7", &hosts), "68.8/15.0");
    assert_eq!(pat("2.23.4", &hosts), "68.8/17.0");
    assert_eq!(pat("2.22.3", &hosts), "0.0/0.0");
    assert_eq!(pat("2.30.7", &Communicator { hosts: 8, ..hosts.clone() }), "0.0/0.0");
    assert!(!tables("2.22.3", &hosts).to_string().contains("PAT"));
}

#[test]
fn times_follow_from_the_tables() {
    let tables = tables("2.30.7", &four_hosts());
    let time = |algorithm, protocol, bytes, operations| {
        let time = tables.time_us(Function::AllReduce, algorithm, protocol, bytes, operations);
        format!("{:.1}", time.expect("a time"))
    };
    // 78.8 us + 1024 / (1000 · 10.529).
    assert_eq!(time(Algorithm::Ring, Protocol::Ll, 1 << 10, 1), "78.9");
    // A ring pays for each operation, a tree for each eight.
    assert_eq!(time(Algorithm::Ring, Protocol::Ll, 1 << 10, 3), "236.5");
    assert_eq!(time(Algorithm::Tree, Protocol::Ll, 1 << 10, 8), "35.3");
    assert_eq!(time(Algorithm::Tree, Protocol::Ll, 1 << 10, 9), "70.5");
    // The plateau from 64 bytes per channel and rank on, 16 · 32 · 64: 1.4 · 282.8.
    assert_eq!(time(Algorithm::Ring, Protocol::Simple, (32 << 10) - 1, 1), "283.0");
    assert_eq!(time(Algorithm::Ring, Protocol::Simple, 32 << 10, 1), "396.1");
    // 1 MiB is 2^14 · 64 bytes: a tree with Simple has half of 176.64 GB/s.
    assert_eq!(time(Algorithm::Tree, Protocol::Simple, 1 << 20, 1), "132.3");
    assert_eq!(tables.time_us(Function::AllReduce, Algorithm::Nvls, Protocol::Simple, 1 << 20, 1), None);
}

#[test]
fn calls_get_no_algorithm_without_room_for_a_hosts_ranks() {
    let collnet = Communicator { collnet: true, collnet_heads: 16, ..four_hosts() };
    let has = |of: &str, communicator: &Communicator, function, algorithm| {
        tables(of, communicator).time_us(function, algorithm, Protocol::Simple, 1 << 20, 1).is_some()
    };
    let wide = Communicator { ranks: 64, ..collnet.clone() };
    for (algorithm, first) in
        [(Algorithm::CollNetDirect, ["2.22.3", "2.23.4"]), (Algorithm::CollNetChain, ["2.27.7", "2.28.3"])]
    {
        for of in first {
            assert!(has(of, &collnet, Function::AllReduce, algorithm), "{of}: eight ranks a host");
        }
        assert_eq!(
            first.map(|of| has(of, &wide, Function::AllReduce, algorithm)),
            [true, false],
            "{algorithm}: sixteen"
        );
    }
    let gathers = |of, communicator: &Communicator| has(of, communicator, Function::AllGather, Algorithm::Nvls);
    assert!(gathers("2.26.2", &one_host()) && !gathers("2.26.2", &collnet) && gathers("2.27.7", &collnet));
    assert!(!gathers("2.30.7", &Communicator { ranks: 33, ..one_host() }));
}

#[test]
fn choices_and_what_they_get() {
    let tables = tables("2.30.7", &one_host());
    let choice = |bytes| tables.choose(Function::AllReduce, bytes, 1).expect("a choice");
    let small = choice(1 << 10);
    assert_eq!((small.algorithm, small.protocol), (Algorithm::Ring, Protocol::Ll));
    // The smallest call has one channel and 96 threads; the largest all of both.
    assert_eq!((small.channels, small.threads), (1, 96));
    let large = choice(1 << 30);
    assert_eq!(
        (large.algorithm, large.protocol, large.channels, large.threads),
        (Algorithm::Nvls, Protocol::Simple, 16, 640)
    );
    let of = |algorithm, protocol, bytes| tables.channels_and_threads(algorithm, protocol, bytes);
    assert_eq!(of(Algorithm::Ring, Protocol::Simple, 1 << 30), (16, 544));
    assert_eq!(of(Algorithm::Ring, Protocol::Ll, 1 << 30), (16, 512));
    // 4 · 512 · 64 bytes keep four channels of Simple busy.
    assert_eq!(of(Algorithm::Ring, Protocol::Simple, 4 * 512 * 64), (4, 544));
    assert_eq!(of(Algorithm::Tree, Protocol::Ll, 1 << 10), (1, 640));
}

#[test]
fn communicators_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut Communicator)| {
        let mut communicator = one_host();
        change(&mut communicator);
        Tables::new(version("2.30"), &communicator).expect_err("refused").to_string()
    };
    for (message, words) in [
        (refused(&|c| c.ranks = 1), "ranks = 1: it has 2"),
        (refused(&|c| c.hosts = 0), "hosts = 0: at least 1"),
        (refused(&|c| c.hosts = 3), "hosts = 3: at least 1, each with as many"),
        (refused(&|c| c.graphs[0].channels = 0), "channels = 0: 1 to 64"),
        (refused(&|c| c.graphs[1].intra_gb_s = f32::NAN), "bandwidth = NaN: GB/s above 0"),
        (refused(&|c| c.graphs[2].latency_inter_us = -1.0), "latency = -1: microseconds"),
        (refused(&|c| c.compute_capability = 9), "compute capability = 9: 70"),
    ] {
        assert!(message.contains(words), "{message}");
    }
}
