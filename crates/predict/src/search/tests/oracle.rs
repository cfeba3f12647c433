//! The search against all plans of small instances: within 0.5 % of the best of them, wherever a job runs.

use paceline_plan::{Distribution, LinkConstants, ProtocolConstants, UnlikeWorkers};
use paceline_schedule::lay_out;

use super::*;

/// Within 0.5 % of the best of all plans on each way; and no plan is below the bound.
#[test]
fn small_instances_are_solved() {
    for seed in 0..48 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let (cluster, tensors) = (small_cluster(random), 2 + random.below(4));
        let profile = small_profile(random, tensors);
        let mut texts = vec!["a2a:auto", "a2a:ring", "a2a:halving-doubling"];
        // On hosts of one worker each it is a ring.
        if cluster.workers_per_host > 1 {
            texts.push("a2a:hierarchical");
        }
        texts.extend(["ps:1", "ps:2", "ps:3", "ps:2:4MiB:colocated:apply"]);
        if cluster.server_hosts > 0 {
            texts.extend(["ps:1:4MiB:dedicated", "ps:3:4MiB:dedicated"]);
        }
        solved(&cluster, &profile, &texts, &[]);
    }
}

/// Where links between switches are in the way, and where hosts forward to their neighbours.
#[test]
fn small_instances_are_solved_on_every_topology() {
    let shapes = [
        ("tree:2:2", 4, None),
        ("tree:2:4", 5, None),
        ("fat-tree:2:2", 4, None),
        ("fat-tree:2:1:hash", 4, None),
        ("torus:2x2", 4, Some("a2a:2d-torus")),
        ("torus:3x2", 6, Some("a2a:2d-torus")),
        ("bcube:2:2", 4, Some("a2a:bcube")),
    ];
    for (seed, (topology, hosts, own)) in (200..).zip(shapes) {
        println!("seed {seed}: {topology}");
        let random = &mut Random::new(seed);
        let mut cluster = small_cluster(random);
        (cluster.topology, cluster.hosts) = (topology.to_owned(), hosts);
        if own.is_some() {
            // It has no place for others, and its programs are for ranks that share no host.
            (cluster.workers_per_host, cluster.server_hosts) = (1, 0);
        }
        let profile = drawn_profile(random);
        let mut texts = vec!["a2a:auto", "a2a:ring", "ps:2", "ps:3"];
        texts.extend(own);
        if cluster.workers_per_host > 1 {
            texts.push("a2a:hierarchical");
        }
        if cluster.server_hosts > 0 {
            texts.push("ps:2:4MiB:dedicated");
        }
        solved(&cluster, &profile, &texts, &[]);
    }
}

/// Each of them late or slow on some links and not on others.
#[test]
fn small_instances_are_solved_over_two_protocols() {
    for seed in 300..308 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let mut cluster = small_cluster(random);
        cluster.protocols.tcp = Some(other_links(random, &cluster));
        let profile = drawn_profile(random);
        solved(&cluster, &profile, &["a2a:auto", "a2a:ring", "ps:1", "ps:2"], &[]);
    }
}

#[test]
fn small_instances_are_solved_for_one_batch_and_for_two() {
    for seed in 400..406 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let (cluster, profile) = (small_cluster(random), drawn_profile(random));
        for local_batches in [&[32][..], &[32, 64]] {
            solved(&cluster, &profile, &["a2a:auto", "a2a:halving-doubling", "ps:1", "ps:3"], local_batches);
        }
    }
}

/// Each iteration as slow as the slowest of those that are drawn, half of the time beside a worker that is slower than the others.
#[test]
fn small_instances_are_solved_with_stragglers() {
    let distributions = [Distribution::Normal, Distribution::LogNormal, Distribution::Exponential];
    for (seed, distribution) in (500..509).zip(distributions.into_iter().cycle()) {
        println!("seed {seed}: {distribution:?}");
        let random = &mut Random::new(seed);
        let mut cluster = small_cluster(random);
        cluster.computation.spread = between(random, 0.02, 0.2).into();
        cluster.computation.distribution = distribution;
        (cluster.computation.draws, cluster.computation.seed) = (24, 7);
        if random.below(2) == 0 {
            cluster.unlike = vec![UnlikeWorkers { ranks: vec![1], slower: between(random, 1.05, 1.5) }];
        }
        let profile = drawn_profile(random);
        solved(&cluster, &profile, &["a2a:auto", "a2a:ring", "ps:1", "ps:2"], &[]);
    }
}

/// As on emulated networks: two to four workers of a single host, on links that are as slow as between hosts.
#[test]
fn small_instances_are_solved_with_servers_on_ports_of_their_own() {
    for seed in 600..608 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let mut cluster = small_cluster(random);
        (cluster.hosts, cluster.workers_per_host, cluster.server_hosts) = (1, 2 + random.below(3), 0);
        (cluster.within, cluster.server.own_ports) = (cluster.across.clone(), true);
        let profile = drawn_profile(random);
        solved(&cluster, &profile, &["a2a:auto", "ps:1", "ps:2", "ps:3"], &[]);
    }
}

/// Two or three tensors, of which all plans are soon tried.
fn drawn_profile(random: &mut Random) -> Profile {
    let tensors = 2 + random.below(2);
    small_profile(random, tensors)
}

/// The links of a cluster over another protocol: up to twice as late or as early, and as slow or as fast.
fn other_links(random: &mut Random, cluster: &Cluster) -> ProtocolConstants {
    let mut other = |link: &LinkConstants| {
        let (late, slow) = (between(random, 0.5, 2.0), between(random, 0.5, 2.0));
        LinkConstants {
            alpha_s: link.alpha_s.times(late),
            overhead_s: link.overhead_s.times(late),
            beta_s_per_byte: link.beta_s_per_byte.times(slow),
            ..link.clone()
        }
    };
    let (within, across) = (other(&cluster.within), other(&cluster.across));
    ProtocolConstants { within: Some(within), across: Some(across), ..ProtocolConstants::default() }
}

/// Holds the search to the best of all plans on each of these ways, over each protocol and with each of these batches (none: the
/// profile's own).
fn solved(cluster: &Cluster, profile: &Profile, texts: &[&str], local_batches: &[usize]) {
    let space = Space { archs: archs(texts), local_batches: local_batches.to_vec(), intervals: 0, ..Space::default() };
    let question = Question { cluster, profile, workers: cluster.workers(), space: &space };
    let own = [profile.local_batch];
    let batches = if local_batches.is_empty() { &own[..] } else { local_batches };
    let (predictions, mut best) = (Cell::new(0), 0.0_f64);
    for &batch in batches {
        let profile = profile.for_batch(batch);
        let subject = Subject { question: &question, profile: &profile, predictions: &predictions };
        for way in ways::ways(&question) {
            let way = BoundedWay::new(subject, &way).unwrap();
            let (shortest_s, bound_s, strategy) = (exhaustive(&way), way.bound_s, &way.way.strategy);
            assert!(bound_s <= shortest_s * (1.0 + 1e-9), "{strategy}: {shortest_s} s is below the bound {bound_s} s");
            best = best.max((question.workers * batch) as f64 / shortest_s);
        }
    }
    let answer = search(&question).unwrap();
    let (found, strategy) = (answer.best().prediction.samples_per_s, &answer.best().strategy);
    println!("{:.3} % below the best of all plans, by {strategy}", 100.0 * (1.0 - found / best));
    assert!(found * 1.005 >= best, "found {found} samples/s by {strategy}, and there are {best}");
    assert!(answer.candidates.iter().all(|candidate| (0.0..1.0).contains(&candidate.gap)));
}

/// All ways to cut a list into runs.
fn runs(list: &[usize]) -> Vec<Vec<Vec<usize>>> {
    let all = (0..1_usize << (list.len() - 1)).map(|cuts| {
        let mut runs = vec![vec![list[0]]];
        for (index, &tensor) in list.iter().enumerate().skip(1) {
            if cuts >> (index - 1) & 1 == 1 {
                runs.push(Vec::new());
            }
            runs.last_mut().unwrap().push(tensor);
        }
        runs
    });
    all.collect()
}

/// Every combination of pieces for so many buckets.
fn pieces(buckets: usize) -> Vec<Vec<usize>> {
    (0..buckets).fold(vec![Vec::new()], |all, _| {
        all.iter().flat_map(|cuts| [1, 2, 4].map(|pieces| [&cuts[..], &[pieces]].concat())).collect()
    })
}

/// The shortest iteration of all plans on a way: every run of neighbours fused, every bucket in one, two or four pieces, with
/// overlap or without, and with it without credit, with a credit of the largest piece, and of four of them.
fn exhaustive(way: &BoundedWay) -> f64 {
    let strategy = way.way.uncut();
    let cost = |_: u64| 0.0;
    let workload = way.workload(&cost);
    let mut best = f64::INFINITY;
    for buckets in runs(&workload.ready) {
        let urgent = |bucket: &Vec<usize>| bucket.iter().map(|tensor| *tensor as u32).min().unwrap();
        let priorities: Vec<u32> = buckets.iter().map(urgent).collect();
        for cuts in pieces(buckets.len()) {
            let whole = Schedule { cuts: cuts.clone(), ..Schedule::of(buckets.clone()) };
            let bytes = |(bucket, pieces): (&Vec<usize>, &usize)| {
                let elements: usize = bucket.iter().map(|&tensor| workload.sizes[tensor]).sum();
                (elements * 4 / pieces) as u64
            };
            let piece = buckets.iter().zip(&cuts).map(bytes).max().unwrap() + 4;
            let overlapping = [None, Some(piece), Some(4 * piece)].map(|credit_bytes| Schedule {
                credit_bytes,
                priorities: priorities.clone(),
                forward_overlap: true,
                ..whole.clone()
            });
            for schedule in overlapping.iter().chain([&whole]) {
                let plan = lay_out(&strategy, schedule, &workload).unwrap();
                best = best.min(way.estimate(&plan).unwrap().iteration_s);
            }
        }
    }
    best
}
