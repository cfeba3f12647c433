//! The schedule's own formula: how long an iteration takes if nothing costs more than it was measured to.

use paceline_plan::{Plan, Profile, Step};
use paceline_schedule::formula::{HostNetwork, servers_bound};
use paceline_schedule::steady_state_s;
use paceline_strategy::Servers;

use super::measured::{Communication, Inputs};

/// Seconds of an iteration of `profile` under `plan`, on hosts of one worker each, with the costs of operations that a run has
/// measured. The computation is what the profile says, on whose clock a replay sleeps: what delays an announcement is our
/// doing, and must not move the bound. (See [`as_announced`].)
///
/// Among the workers one channel carries one operation after the other, each for what it costs alone. Servers beside the
/// workers are bound by the bytes of the busiest NIC. (`paceline_schedule::formula` has both, with their sources.)
pub fn iteration_s(profile: &Profile, plan: &Plan, inputs: &Inputs, hosts: usize) -> Option<f64> {
    let communication = inputs.communication.as_ref()?;
    if plan.shards == 0 || plan.forward_overlap {
        return Some(steady_state_s(profile, plan, &|bytes| communication.on_the_channel(bytes, plan.shards, hosts)));
    }
    let servers = Servers { shards: plan.shards, partition_bytes: u64::MAX, dedicated: false, apply: false };
    Some(servers_bound(profile, plan, &servers, &network(communication, hosts)).total_s())
}

/// Seconds that an iteration takes at least: [`iteration_s`], or the same if starting an operation cost nothing, whichever is
/// smaller. The formula counts start-ups one after the other, and ours overlap while others are under way, so that an iteration
/// may take less than the formula says; it may not take less than its bytes do.
pub fn least_s(profile: &Profile, plan: &Plan, inputs: &Inputs, hosts: usize) -> Option<f64> {
    let of = |inputs: &Inputs| iteration_s(profile, plan, inputs, hosts);
    Some(of(inputs)?.min(of(&inputs.without_start_up())?))
}

/// Seconds of communication that no computation hides.
pub fn exposed_s(profile: &Profile, plan: &Plan, inputs: &Inputs, hosts: usize) -> Option<f64> {
    let compute_s = profile.forward_s() + profile.backward_s() + profile.update_s;
    Some(iteration_s(profile, plan, inputs, hosts)? - compute_s)
}

/// One operation on servers takes S·(n−1) bytes through the NIC of its server.
fn network(communication: &Communication, hosts: usize) -> HostNetwork {
    let (start_s, seconds_per_byte) = communication.line();
    let seconds_per_byte = seconds_per_byte / (hosts - 1).max(1) as f64;
    HostNetwork { hosts, start_s, seconds_per_byte }
}

/// The profile with the times that were measured: when gradients were announced, and how long forward took.
pub fn as_announced(profile: &Profile, inputs: &Inputs) -> Profile {
    let mut order: Vec<usize> = (0..profile.tensors.len()).collect();
    order.sort_by(|&one, &other| inputs.ready_s[one].total_cmp(&inputs.ready_s[other]));
    let mut now = 0.0;
    let mut backward: Vec<Step> = Vec::new();
    for tensor in order {
        let seconds = inputs.ready_s[tensor] - now;
        now = inputs.ready_s[tensor];
        backward.push(Step { tensor, seconds });
    }
    let stretch = inputs.forward_s / profile.forward_s().max(f64::MIN_POSITIVE);
    let forward = profile.forward.iter().map(|step| Step { seconds: step.seconds * stretch, ..*step });
    Profile { forward: forward.collect(), backward, update_s: inputs.update_s, ..profile.clone() }
}

#[cfg(test)]
mod tests {
    use paceline_plan::ProfileTensor;
    use paceline_schedule::{Workload, plan};
    use paceline_strategy::Registry;

    use super::*;

    const HOSTS: usize = 4;

    /// Two tensors of a million elements; forward takes 1 s for each, backward 2 s.
    fn profile() -> Profile {
        let tensor = |name: &str| ProfileTensor { name: name.into(), elements: 1_000_000, forward_macs_per_sample: 1 };
        Profile {
            schema: Profile::SCHEMA,
            model: "two".into(),
            device: String::new(),
            source: String::new(),
            local_batch: 1,
            tensors: vec![tensor("first"), tensor("last")],
            forward: vec![Step { tensor: 0, seconds: 1.0 }, Step { tensor: 1, seconds: 1.0 }],
            backward: vec![Step { tensor: 1, seconds: 2.0 }, Step { tensor: 0, seconds: 2.0 }],
            update_s: 0.5,
            uncertainty: None,
            memory: None,
            epoch_samples: None,
            recorded_batch: None,
            spread: None,
        }
    }

    /// The first gradient was announced late by half a second.
    fn inputs(alpha_s: f64, beta_s_per_byte: f64) -> Inputs {
        let communication = Some(Communication {
            alpha_s,
            beta_s_per_byte,
            points: Vec::new(),
            in_flight: None,
            large_in_flight: None,
            overtaking: Vec::new(),
        });
        Inputs { forward_s: 2.0, backward_s: 4.0, update_s: 0.5, ready_s: vec![4.0, 2.5], communication }
    }

    fn of(strategy: &str, profile: &Profile, inputs: &Inputs) -> (f64, f64) {
        let strategy = Registry::built_in().parse(strategy).expect("a strategy");
        let workload = Workload::of_profile(profile).with_world(HOSTS, HOSTS);
        let plan = plan(&strategy, &workload).expect("a plan");
        let of = |value: fn(&Profile, &Plan, &Inputs, usize) -> Option<f64>| {
            value(profile, &plan, inputs, HOSTS).expect("communication was measured")
        };
        (of(iteration_s), of(exposed_s))
    }

    /// What is announced late moves the bound only where it is asked for.
    #[test]
    fn the_bound_is_that_of_the_profile() {
        // 1 s to start, 1 s for each tensor's bytes.
        let (profile, inputs) = (profile(), inputs(1.0, 0.25e-6));
        assert_eq!(of("bsp-a2a", &profile, &inputs), (9.5, 3.0));
        // Ready at 2 and 4 s; the channel is free again at 4 and 6 s.
        assert_eq!(of("wfbp-a2a", &profile, &inputs), (8.5, 2.0));
        // Ready at 2.5 and 4 s; the channel is free again at 4.5 and 6.5 s.
        assert_eq!(of("wfbp-a2a", &as_announced(&profile, &inputs), &inputs), (9.0, 2.5));
    }

    /// What starts while others are under way costs less than the formula says; bytes do not.
    #[test]
    fn the_least_that_an_iteration_takes_is_without_start_ups() {
        let least_s = |alpha_s: f64, beta_s_per_byte: f64| {
            let (profile, inputs) = (profile(), inputs(alpha_s, beta_s_per_byte));
            let workload = Workload::of_profile(&profile).with_world(HOSTS, HOSTS);
            let plan = plan(&Registry::built_in().parse("wfbp-a2a").expect("a strategy"), &workload).expect("a plan");
            least_s(&profile, &plan, &inputs, HOSTS)
        };
        // The formula says 8.5 s. Without 1 s to start, the last gradient's bytes take 1 s behind backward.
        assert_eq!(least_s(1.0, 0.25e-6), Some(7.5));
        assert_eq!(least_s(0.0, 0.25e-6), Some(7.5));
    }

    /// Four partitions of 2 MB, one on each server. Alone, one of them takes 1.5 s: its server's NIC carries 6 MB. All of
    /// them take 3 s: every NIC carries 6 MB as a server's and 6 MB as a worker's.
    #[test]
    fn servers_are_bound_by_the_busiest_nic() {
        let (iteration_s, exposed_s) = of("schedule=none,arch=ps:4:2000000", &profile(), &inputs(0.0, 0.75e-6));
        assert!((exposed_s - 3.0).abs() < 1e-6 && (iteration_s - 9.5).abs() < 1e-6, "{iteration_s} {exposed_s}");
    }
}
