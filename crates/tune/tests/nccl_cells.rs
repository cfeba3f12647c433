//! Cells of NCCL's tables that the logs of ordinary machines do not show, worked out by hand from the formulas.

use paceline_tune::nccl::{Algorithm, Communicator, CpuVendor, Function, Graph, Path, Protocol, Tables};

const LL: Protocol = Protocol::Ll;
const LL128: Protocol = Protocol::Ll128;
const SIMPLE: Protocol = Protocol::Simple;
const ALL_REDUCE: Function = Function::AllReduce;

fn tables(of: &str, communicator: &Communicator) -> Tables {
    // What `cargo xtask study --part nccl` counts.
    println!(r#"evidence: {{"what":"table","nccl":"{of}"}}"#);
    Tables::new(of.parse().expect("a version"), communicator).expect("a communicator")
}

/// Four hosts with eight H100: 16 channels of 40 GB/s within, of 24 GB/s between them, in a network that adds up.
fn four_hosts() -> Communicator {
    let graph = Graph { channels: 16, intra_gb_s: 40.0, inter_gb_s: 24.0, ..Graph::default() };
    let of_graph = Communicator::of_graph(Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph });
    let of_graph = Communicator { collnet: true, collnet_heads: 8, ..of_graph };
    Communicator { ranks: 32, hosts: 4, compute_capability: 90, nvls: true, nvswitch: true, ..of_graph }
}

fn with_graphs(communicator: &Communicator, change: impl Fn(&mut Graph)) -> Communicator {
    let mut changed = communicator.clone();
    changed.graphs.iter_mut().for_each(change);
    changed
}

/// Cells, each with what NCCL prints of it.
fn assert_cells(expected: &[(&str, &Communicator, Function, Algorithm, Protocol, &str)]) {
    for (of, communicator, function, algorithm, protocol, digits) in expected {
        let entry = tables(of, communicator).entry(*function, *algorithm, *protocol);
        let printed = format!("{:.1}/{:.1}", entry.latency_us, entry.bandwidth_gb_s);
        assert_eq!(printed, *digits, "{of}: {function} by {algorithm} with {protocol}, {communicator:?}");
    }
}

#[test]
fn networks_that_add_up() {
    use Algorithm::{CollNetChain, CollNetDirect, Nvls, NvlsTree};
    let four = four_hosts();
    let few_heads = Communicator { collnet_heads: 7, ..four.clone() };
    let ampere = Communicator { compute_capability: 80, ..four.clone() };
    let two = Communicator { ranks: 16, hosts: 2, ..four.clone() };
    let gather = Function::AllGather;
    assert_cells(&[
        // 640 GB/s; half as many ranks as channels: over 0.75; 0.85 from Hopper on; half. 2 (3.7 + 7 · 0.4) + 31 us.
        ("2.30.7", &four, ALL_REDUCE, CollNetDirect, SIMPLE, "44.0/362.7"),
        ("2.30.7", &ampere, ALL_REDUCE, CollNetDirect, SIMPLE, "44.0/426.7"),
        // Half of 640 GB/s. 14 · 2.8 + 30 us.
        ("2.30.7", &four, ALL_REDUCE, CollNetChain, SIMPLE, "69.2/320.0"),
        // Eight ranks · 0.9 · 24 GB/s, if each has an interface.
        ("2.30.7", &four, gather, CollNetDirect, SIMPLE, "44.0/172.8"),
        ("2.30.7", &few_heads, gather, CollNetDirect, SIMPLE, "44.0/0.0"),
        // Until 2.26: eight ranks · 40 GB/s · 0.85.
        ("2.26.2", &four, gather, CollNetDirect, SIMPLE, "44.0/272.0"),
        // 16 · 24 GB/s, less than 16 · 40 · 0.85 · 15/16 · 7/8. 25 + 18 us.
        ("2.30.7", &four, gather, Nvls, SIMPLE, "43.0/384.0"),
        ("2.30.7", &few_heads, gather, Nvls, SIMPLE, "43.0/0.0"),
        // 32/62 of it.
        ("2.30.7", &four, ALL_REDUCE, Nvls, SIMPLE, "43.0/198.2"),
        // With two hosts what comes in counts twice: 16 · 48 · 16/30 GB/s. 25 + 2 · 20.9 us.
        ("2.30.7", &two, ALL_REDUCE, NvlsTree, SIMPLE, "66.8/409.6"),
    ]);
}

#[test]
fn links_and_processors() {
    use Algorithm::{Ring, Tree};
    let four = four_hosts();
    let pci = Graph { channels: 2, intra: Path::Phb, ..Graph::default() };
    let pci = Communicator { ranks: 4, compute_capability: 80, ..Communicator::of_graph(pci) };
    let far = with_graphs(&four, |graph| graph.latency_inter_us = 2.0);
    let mixed = Communicator { cpu: CpuVendor::Mixed, ..four.clone() };
    let one = Communicator { ranks: 8, hosts: 1, ..four.clone() };
    let splits = with_graphs(&one, |graph| graph.tree_pattern = true);
    let other_way = with_graphs(&one, |graph| graph.same_channels = false);
    let (broadcast, gather) = (Function::Broadcast, Function::AllGather);
    let narrow = with_graphs(&one, |graph| (graph.channels, graph.intra_gb_s) = (4, 20.0));
    let pair = with_graphs(&four, |graph| (graph.channels, graph.intra_gb_s) = (2, 20.0));
    let pair = Communicator { ranks: 2, hosts: 2, compute_capability: 80, nvls: false, ..pair };
    assert_cells(&[
        // PCI: 24 GB/s, 4/6 of it; LL half of that. 6.6 + 6 · 1.0 us, 8.4 + 6 · 5.7 us.
        ("2.30.7", &pci, ALL_REDUCE, Ring, LL, "12.6/8.0"),
        ("2.30.7", &pci, ALL_REDUCE, Ring, LL128, "29.0/0.0"),
        ("2.30.7", &pci, ALL_REDUCE, Ring, SIMPLE, "42.6/16.0"),
        ("2.30.7", &pci, ALL_REDUCE, Tree, LL, "12.8/2.9"),
        ("2.30.7", &pci, ALL_REDUCE, Tree, SIMPLE, "32.4/11.0"),
        // Each of six steps between hosts is 2 us longer, with Simple twice.
        ("2.30.7", &far, ALL_REDUCE, Ring, LL, "90.8/10.5"),
        ("2.30.7", &far, ALL_REDUCE, Ring, SIMPLE, "306.8/198.2"),
        // Hosts of both vendors: AMD's 19.0 GB/s from 2.24 on, Intel's 20.4 before; 32/62.
        ("2.23.4", &mixed, ALL_REDUCE, Ring, LL, "78.8/10.5"),
        ("2.24.3", &mixed, ALL_REDUCE, Ring, LL, "78.8/9.8"),
        // 0.92 · 640 GB/s, 0.85 where a host's ranks are a tree, half.
        ("2.30.7", &one, ALL_REDUCE, Tree, SIMPLE, "64.4/294.4"),
        ("2.30.7", &splits, ALL_REDUCE, Tree, SIMPLE, "64.4/250.2"),
        // Eight steps where channels run in different orders, with Simple a tree's.
        ("2.30.7", &other_way, broadcast, Ring, LL, "11.4/141.0"),
        ("2.30.7", &other_way, broadcast, Ring, LL128, "29.2/587.2"),
        ("2.30.7", &other_way, broadcast, Ring, SIMPLE, "40.4/640.0"),
        // LL until 2.20 on one host: a third of 80 GB/s, a quarter for what adds; 8/7, 8/14 of it.
        ("2.20.5", &narrow, gather, Ring, LL, "10.8/30.5"),
        ("2.20.5", &narrow, ALL_REDUCE, Ring, LL, "15.0/11.4"),
    ]);
    // One rank to a host: LL128 had 0.7 of 40 GB/s until 2.22.
    for (of, bandwidth) in [("2.22.3", "28.0"), ("2.23.4", "36.8")] {
        let entry = tables(of, &pair).entry(ALL_REDUCE, Ring, LL128);
        assert_eq!(format!("{:.1}", entry.bandwidth_gb_s), bandwidth, "{of}");
    }
}

#[test]
fn times_that_depend_on_the_release_and_the_gpu() {
    use Algorithm::{NvlsTree, Ring, Tree};
    let four = four_hosts();
    let volta = Communicator { compute_capability: 70, ..four.clone() };
    let blackwell = Communicator { compute_capability: 100, ..four.clone() };
    let arm = Communicator { cpu: CpuVendor::Arm, ..blackwell.clone() };
    for (of, communicator, algorithm, protocol, bytes, operations, time_us) in [
        // So many calls at once cost a tree 35.2 us, one more twice as much.
        ("2.21.5", &four, Tree, LL, 1 << 10, 9, "35.3"),
        ("2.21.5", &four, Tree, LL, 1 << 10, 10, "70.5"),
        ("2.22.3", &four, Tree, LL, 1 << 10, 16, "35.3"),
        ("2.22.3", &four, Tree, LL, 1 << 10, 17, "70.5"),
        ("2.23.4", &four, Tree, LL, 1 << 10, 10, "35.3"),
        ("2.23.4", &four, Tree, LL, 1 << 10, 11, "70.5"),
        // The plateau of rings: 1.9 · 282.8 us before Ampere.
        ("2.30.7", &volta, Ring, SIMPLE, 32 << 10, 1, "537.5"),
        // 1 MiB by an NVLS tree: 108.6 us, and half of 198.2 GB/s on Blackwell with x86-64 from 2.29 on.
        ("2.30.7", &blackwell, NvlsTree, SIMPLE, 1 << 20, 1, "119.2"),
        ("2.30.7", &arm, NvlsTree, SIMPLE, 1 << 20, 1, "113.9"),
        ("2.28.9", &blackwell, NvlsTree, SIMPLE, 1 << 20, 1, "113.9"),
    ] {
        let time = tables(of, communicator).time_us(ALL_REDUCE, algorithm, protocol, bytes, operations);
        assert_eq!(format!("{:.1}", time.expect("a time")), time_us, "{of}: {algorithm}, {operations} operations");
    }
    let one = tables("2.30.7", &Communicator { ranks: 8, hosts: 1, ..four });
    // One channel, and half of its threads: 256 · 8 · 8 bytes keep them busy, 512 · 8 · 8 do not come.
    assert_eq!(one.channels_and_threads(Ring, LL, 20_000), (1, 256));
    let pci = Communicator { ranks: 4, compute_capability: 80, ..Communicator::of_graph(Graph::default()) };
    assert_eq!(tables("2.30.7", &pci).channels_and_threads(Ring, SIMPLE, 1 << 30), (1, 256 + 32));
}
