use paceline_plan::Cluster;

use super::*;
use crate::environment::{Call, Disturbances, Misfit, OwnModel, Workload};
use crate::simulation::Bucket;

const SEEDS: std::ops::Range<u64> = 1..4;

/// Iterations after which nothing is open: five calls of the default, up to 768 of exploration, and two trials of up to 96.
const ENOUGH: u64 = 1600;

fn cluster(seed: u64) -> SimulatedCluster {
    let model = OwnModel::of(&Cluster::named("study-10gbe:8x1").expect("it is built in"));
    SimulatedCluster::new(Box::new(model), Misfit::USUAL, Disturbances::usual(), seed)
}

/// Three buckets of 4 MiB, which become final while backward runs.
fn timeline(backward_s: f64) -> Timeline {
    let call = Call { bytes: 4 << 20, is_fused_call: true, ..Workload::data_parallel(8, 8).calls[0] };
    let buckets = [0.2, 0.4, 1.0].map(|share| Bucket { call, ready_s: share * backward_s }).to_vec();
    Timeline { forward_s: 0.5 * backward_s, backward_s, update_s: 1e-4, buckets }
}

fn job(backward_s: f64, iterations: u64, seed: u64) -> Outcome {
    let options = Options { iterations, pairs: 100, computation_noise: 0.01, seed };
    run(&mut cluster(seed), &timeline(backward_s), &options)
}

/// Computation takes a fraction of what the calls take: what shortens them shortens iterations, and what stands is no matter of luck.
#[test]
fn where_communication_decides_what_is_found_shortens_iterations() {
    let mut gained = 0;
    for seed in SEEDS {
        let Outcome { spent, stands, gain, compared, quiet, .. } = job(1e-3, ENOUGH, seed);
        assert!(spent.worst_prefix <= 1.02 && spent.worst_prefix > 0.0, "seed {seed}: {spent:?}");
        assert!(spent.settled_after.is_some_and(|iterations| iterations > 200), "seed {seed}: {spent:?}");
        assert!(quiet.best.iteration_s <= quiet.stands.iteration_s, "seed {seed}: {quiet:?}");
        assert!((compared.control.median - 1.0).abs() <= 3.0 * compared.control.margin, "seed {seed}: {compared:?}");
        assert_eq!(gain.is_some(), !stands.is_empty(), "seed {seed}");
        let quiet_ratio = quiet.stands.iteration_s / quiet.default.iteration_s;
        assert!((compared.ratio.median / quiet_ratio - 1.0).abs() < 0.02, "seed {seed}: {compared:?} {quiet:?}");
        assert_ne!(compared.ratio.is_at_most(1.01), Some(false), "seed {seed}: {compared:?}");
        if let Some(gain) = gain {
            assert!(quiet.stands.calls_s < quiet.default.calls_s, "seed {seed}: {quiet:?}");
            assert!(compared.ratio.is_at_most(1.0) == Some(true) && gain.share > 0.03, "seed {seed}: {compared:?}");
            gained += 1;
        }
    }
    assert!(gained > 0, "nothing was gained");
}

/// Backward takes a hundred times as long as the calls: they are faster in the end, and nobody would notice.
#[test]
fn what_computation_hides_does_not_stand() {
    let mut faster = 0;
    for seed in SEEDS {
        let Outcome { by_calls, stands, gain, compared, quiet, .. } = job(2.0, ENOUGH, seed);
        assert!(stands.is_empty() && gain.is_none(), "seed {seed}: {stands:?}");
        assert_eq!(quiet.stands, quiet.default, "seed {seed}");
        assert_eq!(compared.ratio.is_at_most(1.01), Some(true), "seed {seed}: {compared:?}");
        if !by_calls.is_empty() {
            assert!(quiet.by_calls.calls_s < quiet.default.calls_s, "seed {seed}: {quiet:?}");
            faster += 1;
        }
    }
    assert!(faster > 0, "nothing was found");
}

#[test]
fn a_seed_is_a_job() {
    let of = |seed: u64| job(1e-3, 250, seed);
    let (one, again, other) = (of(5), of(5), of(6));
    assert_eq!(one, again);
    assert_ne!(one.compared, other.compared);
    assert_ne!(one.spent, other.spent);
}

/// Whoever is alone calls nothing, and nothing can be gained.
#[test]
fn without_calls_there_is_nothing_to_decide() {
    let timeline = Timeline { buckets: Vec::new(), ..timeline(0.1) };
    let options = Options { iterations: 100, pairs: 8, computation_noise: 0.0, seed: 1 };
    let outcome = run(&mut cluster(1), &timeline, &options);
    assert!(outcome.stands.is_empty() && outcome.by_calls.is_empty());
    assert_eq!((outcome.compared.ratio.median, outcome.spent.over_default()), (1.0, 1.0));
}
