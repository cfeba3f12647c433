//! What is promised of a tuner, on clusters that are simulated: after 300 calls of a context what it has settled for takes at most
//! 3 % longer than the best, and at no time from 100 calls on all calls took more than 2 % longer than the default's.

use paceline_plan::Cluster;
use paceline_tune::comparison::{Comparison, learners};
use paceline_tune::environment::{Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
use paceline_tune::{Tuner, simulation};

fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

fn cluster(machine: &Cluster, seed: u64) -> SimulatedCluster {
    SimulatedCluster::new(Box::new(OwnModel::of(machine)), Misfit::USUAL, Disturbances::usual(), seed)
}

#[test]
fn what_is_learned_is_near_the_best_and_learning_costs_little() {
    let seeds = 1..if long() { 15 } else { 5 };
    let (mut contexts, mut above) = (0, Vec::new());
    for (name, mix, iterations) in [
        ("study-100gbe:4x1", "data-parallel", 400),
        ("study-10gbe:8x4", "data-parallel", 400),
        ("1gbe+pcie3:8x1", "data-parallel", 400),
        ("25gbe+pcie4:8x4", "llm-3d", 30),
    ] {
        let machine = Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let workload = Workload::named(mix, machine.hosts, machine.workers_per_host).expect("it is known");
        let mut over = Vec::new();
        for seed in seeds.clone() {
            let (mut cluster, mut tuner) = (cluster(&machine, seed), Tuner::shipped(seed));
            let outcome = simulation::run(&mut cluster, &workload, &mut tuner, iterations, seed);
            assert!(outcome.worst_prefix <= 1.02, "{name}, seed {seed}: {} of the default", outcome.worst_prefix);
            let all = outcome.totals.last().expect("iterations");
            assert!(all.saved() > 0.0, "{name}, seed {seed}: {all:?}");
            for (context, progress) in &outcome.contexts {
                contexts += 1;
                if progress.worst_prefix > 1.02 {
                    above.push(format!("{name}, seed {seed}, {context:?}: {}", progress.worst_prefix));
                }
                if progress.learned.calls > 0 {
                    over.push(progress.learned.over_oracle());
                }
            }
        }
        let mean = over.iter().sum::<f64>() / over.len() as f64;
        println!("{name}, {mix}: {:.2} % over the oracle after 300 calls, in {} contexts", 100.0 * mean, over.len());
        // Most of the mix is in the conservative regime, which may spend a quarter of the others' allowance: there, what counts is
        // that something is gained.
        assert!(mean <= 0.03 || mix == "llm-3d", "{name}, seeds {seeds:?}: {:.2} % over the oracle", 100.0 * mean);
    }
    // A call that is tried may take longer than anybody believed, and one at the wrong time is enough: in hundreds of contexts
    // there is one.
    assert!(above.len() <= contexts / 200, "{} of {contexts} contexts: {above:#?}", above.len());
}

/// With the same guard and the same trials, on the same clusters, nobody settles for less than the learner that ships.
#[test]
fn the_best_learner_ships() {
    let machine = Cluster::named("study-100gbe:4x1").expect("it is built in");
    let workload = Workload::named("data-parallel", 4, 1).expect("it is known");
    let (iterations, seeds) = if long() { (500, 1..11) } else { (340, 1..2) };
    let rows = learners(|seed| cluster(&machine, seed), &workload, iterations, seeds.clone());
    println!("seeds {seeds:?}\n{}", Comparison(rows.clone()));
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0].learner, Tuner::shipped(0).learner().name());
}
