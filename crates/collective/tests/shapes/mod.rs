//! Worlds of many shapes: which ranks share a host.
#![allow(dead_code, reason = "not every test needs every shape")]

use paceline_collective::Topology;

/// Every way to put so many ranks on hosts.
pub fn all(world: usize) -> impl Iterator<Item = Topology> {
    let mut shapes: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..world {
        let longer = |shape: &Vec<usize>| {
            let shape = shape.clone();
            let hosts = shape.iter().max().map_or(0, |last| last + 1);
            (0..=hosts).map(move |host| [shape.as_slice(), &[host]].concat())
        };
        shapes = shapes.iter().flat_map(longer).collect();
    }
    shapes.into_iter().map(|shape| Topology::of_hosts(&shape))
}

/// So many random ones of at most so many ranks. `PACELINE_SEED` chooses others; a failure shows the shape.
pub fn random(count: usize, world_max: u64) -> impl Iterator<Item = Topology> {
    let seed = std::env::var("PACELINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x70b0_1097);
    println!("PACELINE_SEED={seed}");
    let mut state: u64 = seed;
    let mut below = move |end: u64| {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    };
    (0..count).map(move |_| {
        let world = 1 + below(world_max);
        let hosts = 1 + below(world);
        Topology::of_hosts(&(0..world).map(|_| below(hosts)).collect::<Vec<_>>())
    })
}

#[test]
fn there_are_as_many_shapes_as_bell_counted() {
    assert_eq!([1, 2, 3, 4, 5].map(|world| all(world).count()), [1, 2, 5, 15, 52]);
}
