//! What a decision costs rank 0, for which all others wait at a boundary.

use std::time::Instant;

use paceline_plan::Cluster;
use paceline_tune::Tuner;
use paceline_tune::environment::{Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};

/// While a call with thousands of choices is explored, one decision takes a fraction of a millisecond: a schedule of sixteen is ready
/// within the time of a large call. The median, as the machine may be busy; ten times what it takes when it is not.
#[test]
fn a_decision_takes_a_fraction_of_a_millisecond() {
    const MEDIAN_US_MAX: f64 = 1000.0;
    let machine = Cluster::named("study-10gbe:8x4").expect("it is built in");
    let mut cluster = SimulatedCluster::new(Box::new(OwnModel::of(&machine)), Misfit::USUAL, Disturbances::usual(), 1);
    let workload = Workload::named("data-parallel", 8, 4).expect("it is known");
    let mut tuner = Tuner::shipped(1);
    let (mut decisions_us, mut observations_us, mut most) = (Vec::new(), Vec::new(), 0);
    for _ in 0..180 {
        for call in &workload.calls {
            let state = cluster.state(call, 0);
            let situation = cluster.situation(&state).expect("choices").clone();
            most = most.max(situation.arms.len());
            let began = Instant::now();
            let decision = tuner.decide(&situation);
            decisions_us.push(1e6 * began.elapsed().as_secs_f64());
            let seconds = cluster.call(&situation, decision.arm, 0);
            let began = Instant::now();
            tuner.observe(&situation, decision, seconds);
            observations_us.push(1e6 * began.elapsed().as_secs_f64());
        }
    }
    let [decision_us, observation_us] = [decisions_us, observations_us].map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!("up to {most} choices: {decision_us:.0} us to decide, {observation_us:.0} us to learn");
    assert!(most > 1000, "{most}");
    assert!(decision_us <= MEDIAN_US_MAX && observation_us <= MEDIAN_US_MAX, "{decision_us} and {observation_us} us");
}
