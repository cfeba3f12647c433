//! The formulas: known answers, and that formula, plan and simulation agree.

use paceline_plan::{Plan, Profile, ProfileTensor, Step};
use paceline_schedule::formula::{HostNetwork, IterationTime, bsp, mg_wfbp, one_channel, servers_bound, wfbp};
use paceline_schedule::{Workload, plan, steady_state_s};
use paceline_strategy::Registry;
use proptest::prelude::*;

/// Layers of so many elements, forward and backward seconds, the first one nearest the input.
fn profile(layers: &[(usize, f64, f64)], update_s: f64) -> Profile {
    let tensors = layers.iter().enumerate().map(|(layer, &(elements, ..))| ProfileTensor {
        name: format!("layer {layer}"),
        elements,
        forward_macs_per_sample: 0,
    });
    let step = |(tensor, seconds)| Step { tensor, seconds };
    let profile = Profile {
        schema: Profile::SCHEMA,
        model: "layers".into(),
        device: "paper".into(),
        source: "made up".into(),
        local_batch: 1,
        tensors: tensors.collect(),
        forward: layers.iter().map(|layer| layer.1).enumerate().map(step).collect(),
        backward: layers.iter().map(|layer| layer.2).enumerate().rev().map(step).collect(),
        update_s,
        uncertainty: None,
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
        spread: None,
    };
    profile.check().expect("a profile");
    profile
}

fn plan_of(strategy: &str, profile: &Profile, communication_s: &(dyn Fn(u64) -> f64 + Sync)) -> Plan {
    let strategy = Registry::built_in().parse(strategy).expect("a strategy");
    plan(&strategy, &Workload::of_profile(profile).with_communication(communication_s)).expect("a plan")
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs()).max(1.0)
}

/// Two layers of 512 elements, 2 KiB, that take a second each way; the network takes a second per KiB.
const KIB: f64 = 1.0 / 1024.0;

fn two_layers() -> Profile {
    profile(&[(512, 1.0, 1.0), (512, 1.0, 1.0)], 0.0)
}

/// Layer 1 is sent from 3 to 5 s, layer 0 from 5 to 7 s, and then the next forward pass begins.
#[test]
fn waiting_for_all_of_two_layers() {
    let cost = |bytes: u64| bytes as f64 * KIB;
    let expected =
        IterationTime { forward_s: 2.0, backward_s: 2.0, update_s: 0.0, communication_s: 4.0, exposed_s: 3.0 };
    assert_eq!(wfbp(&two_layers(), &cost), expected);
    assert_eq!((expected.total_s(), expected.hidden_share()), (7.0, 0.25));
    assert_eq!(bsp(&two_layers(), &cost).total_s(), 8.0);
    assert_eq!(steady_state_s(&two_layers(), &plan_of("wfbp-a2a", &two_layers(), &cost), &cost), 7.0);
}

/// Layer 0 takes half a second backward. By partitions of 1 KiB: of layer 1 a quarter from 3 to 3.5 s, when layer 0 is ready and
/// overtakes it, until 5.5 s, the rest of layer 1 until 7 s, while layer 0 computes forward; layer 1 then computes until 8 s,
/// backward until 9.5 s. Before, it was at 3.5 s.
#[test]
fn bytescheduler_overlaps_with_the_next_forward_pass() {
    let cost = |bytes: u64| bytes as f64 * KIB;
    let profile = profile(&[(512, 1.0, 0.5), (512, 1.0, 1.0)], 0.0);
    let plan = plan_of("schedule=bytescheduler:1KiB:1KiB", &profile, &cost);
    assert_eq!(steady_state_s(&profile, &plan, &cost), 6.0);
    assert_eq!(wfbp(&profile, &cost).total_s(), 7.0);
    // The optimiser's two seconds: layer 0's, with its forward until 7.5 s, while the rest of layer 1 arrives, layer 1's after it.
    let updated = Profile { update_s: 2.0, ..profile };
    assert_eq!(steady_state_s(&updated, &plan, &cost), 7.5);
}

/// All 4 KiB in four partitions over two hosts' interfaces: each carries its workers' push to the other server, and the
/// other's pull from its own: 2(n−1)/n of the bytes. With servers on hosts of their own, an interface of a host with workers carries all.
#[test]
fn servers_are_bound_by_the_fullest_interface() {
    let profile = two_layers();
    let network = HostNetwork { hosts: 2, start_s: 0.5, seconds_per_byte: KIB };
    let total = |text: &str, network: HostNetwork| {
        let strategy = Registry::built_in().parse(text).expect("a strategy");
        // Four workers on each host: they send together what one would.
        let workload = Workload::of_profile(&profile).with_world(4 * network.hosts, network.hosts);
        let plan = plan(&strategy, &workload).expect("a plan");
        let servers = strategy.servers(workload.workers, workload.hosts).expect("servers");
        servers_bound(&profile, &plan, &servers, &network)
    };
    let beside = total("schedule=wfbp,arch=ps:hosts:1KiB", network);
    assert_eq!((beside.communication_s, beside.exposed_s), (4.0, 3.5));
    let apart = total("schedule=wfbp,arch=ps:hosts:1KiB:dedicated", network);
    assert_eq!(apart.communication_s, 4.0, "a host's workers send all once, a server gets half from each of two hosts");
    let one = total("schedule=wfbp,arch=ps:1:1KiB:dedicated", network);
    assert_eq!(one.communication_s, 8.0, "one server gets what both hosts send");
    // Four partitions lie on four of ten hosts; the interface of such a host carries its own nine times, the others once.
    let ten = total("schedule=wfbp,arch=ps:hosts:1KiB", HostNetwork { hosts: 10, ..network });
    assert_eq!(ten.communication_s, 12.0);
}

fn profiles() -> impl Strategy<Value = Profile> {
    let layer = (1usize..3000, 0.0f64..2.0, 0.0f64..3.0);
    (prop::collection::vec(layer, 1..20), 0.0f64..1.0).prop_map(|(layers, update_s)| profile(&layers, update_s))
}

proptest! {
    /// The formula of each schedule, the general one on its plan, and the simulation that drives the dispatcher.
    #[test]
    fn formula_plan_and_simulation_agree(profile in profiles(), alpha in 0.0f64..2.0, beta in 0.0f64..0.001) {
        let cost = |bytes: u64| alpha + beta * bytes as f64;
        for (strategy, formula) in [
            ("bsp-a2a", bsp(&profile, &cost)),
            ("wfbp-a2a", wfbp(&profile, &cost)),
            ("mg-wfbp", mg_wfbp(&profile, &cost).expect("times")),
        ] {
            let plan = plan_of(strategy, &profile, &cost);
            let of_plan = one_channel(&profile, &plan, &cost);
            prop_assert!(near(of_plan.total_s(), formula.total_s()), "{}: {:?} {:?}", strategy, of_plan, formula);
            prop_assert!(near(of_plan.communication_s, formula.communication_s), "{}", strategy);
            let played = steady_state_s(&profile, &plan, &cost);
            prop_assert!(near(played, formula.total_s()), "{}: {} {:?}", strategy, played, formula);
        }
    }

    /// No iteration is shorter than computation, nor than communication. Merging is never worse than not merging, nor than
    /// one bucket.
    #[test]
    fn bounds(profile in profiles(), alpha in 0.0f64..2.0, beta in 0.0f64..0.001, partition in 1024u64..9000) {
        let cost = |bytes: u64| alpha + beta * bytes as f64;
        let (bsp, wfbp) = (bsp(&profile, &cost), wfbp(&profile, &cost));
        let merged = mg_wfbp(&profile, &cost).expect("times");
        prop_assert!(merged.total_s() <= wfbp.total_s() + 1e-9 && merged.total_s() <= bsp.total_s() + 1e-9);
        prop_assert!((0.0..=1.0).contains(&wfbp.hidden_share()) && bsp.hidden_share() < 1e-9);
        let plan = plan_of(&format!("schedule=bytescheduler:{partition}:{}", 2 * partition), &profile, &cost);
        let busy: f64 = plan.partitions().map(|(_, part)| cost(part.elements.len() as u64 * 4)).sum();
        let played = steady_state_s(&profile, &plan, &cost);
        let computing = profile.forward_s() + profile.backward_s() + profile.update_s;
        prop_assert!(played >= computing - 1e-9 && played >= busy - 1e-9, "{} {} {}", played, computing, busy);
        // Waiting for everything, with the same pieces, is no better: but for what is in flight when something urgent comes.
        let waiting = Plan { forward_overlap: false, ..plan.clone() };
        prop_assert!(played <= steady_state_s(&profile, &waiting, &cost) + 1e-9);
    }
}
