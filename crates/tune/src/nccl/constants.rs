//! The constants, by version.

use super::Version;

/// Latencies of an algorithm, by protocol: LL, LL128, Simple; us.
type ByProtocol = [f32; 3];
/// By compute capability (Volta, Ampere, Hopper, Blackwell) and hosts (1, 2, more); GB/s.
type ByGeneration = [[f64; 3]; 4];

/// What NCCL multiplies and limits by. Algorithms stand in NCCL's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    /// What a call costs by itself.
    pub base_latency_us: [ByProtocol; 7],
    /// What a step costs: over NVLink, PCI, the network.
    pub link_latency_us: [[ByProtocol; 7]; 3],
    /// What LL carries at most. The first row of a pair of hosts or more is Intel's, the second AMD's.
    pub ll_max_gb_s: ByGeneration,
    /// What a channel carries at most: ring with LL128.
    pub ring_ll128_gb_s: ByGeneration,
    /// Tree with LL128.
    pub tree_ll128_gb_s: ByGeneration,
    /// Tree.
    pub tree_gb_s: ByGeneration,
    /// NVLS tree; from 2.28 on.
    pub nvls_tree_gb_s: ByGeneration,
    /// The share of NVLink's bandwidth that NVLS has; from 2.28 on.
    pub nvls_efficiency: [f32; 4],
}

/// By log2(bytes / 64); trees are not as fast for middle sizes as the model says.
pub(super) const TREE_CORRECTION: [[f32; 24]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0,
        1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0,
        1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

/// Sums that NCCL starts together (NCCL_MAX_WORK_ELEMENTS, NCCL_MAX_DEV_WORK_BATCH_COLLS): all algorithms but the ring pay
/// their latency once for so many. From 2.22 on it follows from the size of a structure: 1024 bytes hold so many.
pub fn work_batch(version: Version) -> u32 {
    match version {
        version if version.since(30) => 8,
        version if version.since(23) => 10,
        version if version.since(22) => 16,
        _ => 9,
    }
}

impl Constants {
    /// Those of a release.
    pub fn of(version: Version) -> Constants {
        let since = |minor| version.since(minor);
        // From 2.23 on a tree starts its chunks as a ring does: `src/graph/tuning.cc` has 0, 28 and 28 up to v2.22.3-1, and 8.4, 4 and 14
        // from v2.23.4-1 on, the first release of 2.23 that there is.
        let (tree_base, tree_step, tree_net) = if since(23) { (8.4, 4.0, 14.0) } else { (0.0, 28.0, 28.0) };
        let nvls = if since(21) { 25.0 } else { 23.0 };
        let nvls_tree_net = if version.since_patch(28, 9) { 20.9 } else { 14.0 };
        let only_simple = |simple| [0.0, 0.0, simple];
        let within = |tree: ByProtocol, ring: ByProtocol, nvls| {
            let (nvls, pat) = (only_simple(nvls), only_simple(4.0));
            [tree, ring, only_simple(3.7), only_simple(2.8), nvls, nvls, pat]
        };
        let across = [
            [5.0, 8.5, tree_net],
            [2.7, 4.0, 14.0],
            only_simple(31.0),
            only_simple(30.0),
            only_simple(18.0),
            only_simple(nvls_tree_net),
            only_simple(14.0),
        ];
        let zero = [0.0; 3];
        Constants {
            base_latency_us: [[6.8, 14.0, tree_base], [6.6, 14.0, 8.4], zero, zero, zero, zero, [8.0; 3]],
            link_latency_us: [
                within([0.6, 1.25, tree_step], [0.6, 1.9, 3.4], nvls),
                within([1.0, 1.9, tree_step], [1.0, 2.5, 5.7], 0.0),
                across,
            ],
            ll_max_gb_s: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], ll_of_hopper(version), [282.0, 90.0, 70.0]],
            ring_ll128_gb_s: [[20.0; 3], [20.0; 3], [36.7; 3], ring_ll128_of_blackwell(version)],
            tree_ll128_gb_s: [
                [20.0; 3],
                [20.0; 3],
                [36.7, 36.7, 29.0],
                if since(28) { [55.6, 31.67, 20.0] } else { [73.4, 73.4, 58.0] },
            ],
            tree_gb_s: [
                [26.5, 18.5, 10.0],
                [24.0, 23.6, 17.8],
                [38.7, 41.4, 36.0],
                if since(28) { [70.0, 42.8, 24.0] } else { [77.4, 82.8, 72.0] },
            ],
            nvls_tree_gb_s: [
                [26.5, 18.5, 10.0],
                [24.0, 23.6, 17.8],
                [0.0, 57.7, 45.5],
                [0.0, 96.0, nvls_tree_of_blackwell(version)],
            ],
            nvls_efficiency: [0.0, 0.0, 0.85, 0.74],
        }
    }
}

fn ll_of_hopper(version: Version) -> [f64; 3] {
    if version.since(21) { [141.0, 45.0, 35.0] } else { [87.7, 22.5, 19.0] }
}

fn ring_ll128_of_blackwell(version: Version) -> [f64; 3] {
    match version {
        version if version.since_patch(29, 7) => [40.0; 3],
        version if version.since(29) => [34.5, 34.6, 34.5],
        version if version.since_patch(28, 7) => [73.4, 34.6, 73.4],
        _ => [73.4; 3],
    }
}

fn nvls_tree_of_blackwell(version: Version) -> f64 {
    match version {
        version if version.since(30) => 80.0,
        version if version.since_patch(28, 9) => 43.8,
        _ => 43.1,
    }
}
