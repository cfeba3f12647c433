use paceline_engine::shard::Mode;
use paceline_plan::{Plan, Profile, ProfileTensor, Step};
use paceline_schedule::{Workload, formula, plan, steady_state_s};
use paceline_strategy::Registry;
use proptest::prelude::*;

use super::*;

/// Layers of so many elements, forward and backward seconds, the first one nearest the input.
pub fn profile(layers: &[(usize, f64, f64)], update_s: f64) -> Profile {
    let tensors = layers.iter().enumerate().map(|(layer, &(elements, ..))| ProfileTensor {
        name: format!("layer {layer}"),
        elements,
        forward_macs_per_sample: 0,
    });
    let step = |(tensor, seconds)| Step { tensor, seconds };
    Profile {
        tensors: tensors.collect(),
        forward: layers.iter().map(|layer| layer.1).enumerate().map(step).collect(),
        backward: layers.iter().map(|layer| layer.2).enumerate().rev().map(step).collect(),
        update_s,
        local_batch: 1,
        ..paceline_plan::built_in_profile("resnet50").expect("it is built in")
    }
}

pub fn plan_of(strategy: &str, profile: &Profile, communication_s: &(dyn Fn(u64) -> f64 + Sync)) -> Plan {
    let strategy = Registry::built_in().parse(strategy).expect("a strategy");
    plan(&strategy, &Workload::of_profile(profile).with_communication(communication_s)).expect("a plan")
}

/// One class of workers.
fn simulated(profile: &Profile, plan: &Plan, operations: &Operations) -> Outcome {
    let classes = [WorkerClass::of(profile, 1)];
    simulate(&Training { timeline: true, ..Training::new(plan, &classes, operations) }, Length::Steady)
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs()).max(1.0)
}

/// A second per KiB: layers of 512 elements are 2 KiB, and take 2 s.
const KIB: f64 = 1.0 / 1024.0;

fn by_bytes(bytes: u64) -> f64 {
    bytes as f64 * KIB
}

/// Three layers of 2, 4 and 2 KiB; forward 1 s each, backward 1, 2 and 1 s, from the last to the first.
fn three_layers() -> Profile {
    profile(&[(512, 1.0, 1.0), (1024, 1.0, 2.0), (512, 1.0, 1.0)], 0.5)
}

/// Forward until 3 s. Layer 2 is ready at 4 s and sent until 6 s; layer 1 ready at 6 s, sent until 10 s; layer 0 ready at
/// 7 s, sent from 10 to 12 s; the optimiser until 12.5 s.
#[test]
fn three_tensors_one_after_the_other() {
    let profile = three_layers();
    let plan = plan_of("wfbp-a2a", &profile, &by_bytes);
    let outcome = simulated(&profile, &plan, &Operations::on_channel(&plan, by_bytes));
    assert_eq!(outcome.iteration_s, 12.5);
    let carried: Vec<_> = outcome.spans.iter().filter(|span| span.lane == Lane::Line).collect();
    let times: Vec<_> = carried.iter().map(|span| (span.operation, span.start_s, span.end_s)).collect();
    assert_eq!(times, [(Some(0), 4.0, 6.0), (Some(1), 6.0, 10.0), (Some(2), 10.0, 12.0)]);
    let update = outcome.spans.last().expect("the optimiser's");
    assert_eq!((update.lane, update.start_s, update.end_s), (Lane::Update, 12.0, 12.5));
    // A start-up of half a second for each, and all at once after backward: 7 + 0.5 + 8 + 0.5.
    let whole = plan_of("bsp-a2a", &profile, &by_bytes);
    let operations = Operations::on_channel(&whole, |bytes| 0.5 + by_bytes(bytes));
    assert_eq!(simulated(&profile, &whole, &operations).iteration_s, 16.0);
    // One by one, but announced after backward only: 7 + 3·0.5 + 8 + 0.5.
    let operations = Operations::on_channel(&plan, |bytes| 0.5 + by_bytes(bytes));
    let classes = [WorkerClass::of(&profile, 1)];
    let late = Training { announce: Announce::AfterBackward, ..Training::new(&plan, &classes, &operations) };
    assert_eq!(simulate(&late, Length::Steady).iteration_s, 17.0);
}

/// On servers: the bus takes 0.25 s per KiB, the network a second per KiB. Layer 2: bus 4–4.5 s, network 4.5–6.5 s. Layer 1:
/// bus 6–7 s, network 7–11 s. Layer 0: bus 7–7.5 s, network 11–13 s, the server 13–14 s; it arrives at 14.25 s.
#[test]
fn three_tensors_by_way_of_servers() {
    let profile = three_layers();
    let plan = plan_of("schedule=wfbp,arch=ps:1", &profile, &by_bytes);
    let mut operations = Operations::new(Line::Buses, 2, 1, Mode::Aggregate);
    for (_, partition) in plan.partitions() {
        let kib = partition.elements.len() as f64 / 256.0;
        operations.push(0.25 * kib, 0.25);
        // The other link is done before.
        operations.then_links([Part { link: 0, busy_s: kib }, Part { link: 1, busy_s: 0.5 * kib }]);
        operations.then_server(0, 0.5 * kib);
    }
    let outcome = simulated(&profile, &plan, &operations);
    assert_eq!(outcome.iteration_s, 14.75);
    let lane = |lane| {
        let spans = outcome.spans.iter().filter(move |span| span.lane == lane);
        spans.map(|span| (span.start_s, span.end_s)).collect::<Vec<_>>()
    };
    assert_eq!(lane(Lane::Line), [(4.0, 4.5), (6.0, 7.0), (7.0, 7.5)]);
    assert_eq!(lane(Lane::Links), [(4.5, 6.5), (7.0, 11.0), (11.0, 13.0)]);
    assert_eq!(lane(Lane::Server), [(6.5, 7.5), (11.0, 13.0), (13.0, 14.0)]);
    assert_eq!(operations.busy_s(), (2.0, vec![8.0, 4.0], vec![4.0]));
}

/// Two layers. By partitions of 1 KiB: of layer 1 a quarter from 3 to 3.5 s, when layer 0 is ready and overtakes it, until 5.5 s,
/// the rest of layer 1 until 7 s, while layer 0 computes forward; layer 1 then computes until 8 s, backward until 9.5 s.
#[test]
fn priorities_let_the_first_layer_overtake() {
    let profile = profile(&[(512, 1.0, 0.5), (512, 1.0, 1.0)], 0.0);
    let plan = plan_of("schedule=bytescheduler:1KiB:1KiB", &profile, &by_bytes);
    let outcome = simulated(&profile, &plan, &Operations::on_channel(&plan, by_bytes));
    assert_eq!(outcome.iteration_s, 6.0);
    // Blind workers send what is ready first, and wait for everything.
    let blind = Plan { server_priority_only: true, forward_overlap: false, credit_bytes: None, ..plan };
    assert_eq!(simulated(&profile, &blind, &Operations::on_channel(&blind, by_bytes)).iteration_s, 7.0);
}

/// The same. What overtakes waits for what is on the wire in front of it: the first half of layer 0 arrives 2 s after it is
/// through, at 6.5 s; the other half follows it, and has overtaken nothing. Layer 0 computes until 7.5 s, layer 1, which is there
/// at 7 s, until 8.5 s, backward until 10 s.
#[test]
fn whoever_overtakes_waits_for_what_is_on_the_wire() {
    let profile = profile(&[(512, 1.0, 0.5), (512, 1.0, 1.0)], 0.0);
    let channel = plan_of("schedule=bytescheduler:1KiB", &profile, &by_bytes);
    let servers = plan_of("schedule=bytescheduler:1KiB,arch=ps:1", &profile, &by_bytes);
    for (plan, line) in [(channel, Line::Channel), (servers, Line::Buses)] {
        let seconds = |overtaking_s: f64| {
            let mut operations = Operations::new(line, 1, 0, Mode::Aggregate);
            for (_, partition) in plan.partitions() {
                let kib = partition.elements.len() as f64 / 256.0;
                match line {
                    Line::Channel => operations.push(kib, 0.0),
                    Line::Buses => {
                        operations.push(0.0, 0.0);
                        operations.then_links([Part { link: 0, busy_s: kib }]);
                    }
                }
                operations.later_if_it_overtakes(overtaking_s);
            }
            simulated(&profile, &plan, &operations).iteration_s
        };
        assert_eq!((seconds(0.0), seconds(2.0)), (6.0, 6.5), "{line:?}");
    }
}

/// What computes while the channel is busy takes twice as long. Layer 1 (2 KiB) is ready at 3 s and on the channel until
/// 5 s; layer 0's backward of 1.5 s takes 2 s for the first of them, until 5 s, and half a second alone. Then 2 s more.
#[test]
fn a_busy_channel_slows_computation() {
    let profile = profile(&[(512, 1.0, 1.5), (512, 1.0, 1.0)], 0.0);
    let plan = plan_of("wfbp-a2a", &profile, &by_bytes);
    let operations = Operations::on_channel(&plan, by_bytes);
    let classes = [WorkerClass::of(&profile, 1)];
    let seconds = |computation, communication| {
        let interference = Interference { computation, communication };
        let training = Training { interference, ..Training::new(&plan, &classes, &operations) };
        simulate(&training, Length::Steady).iteration_s
    };
    assert_eq!(seconds(0.0, 0.0), 7.0);
    assert_eq!(seconds(1.0, 0.0), 7.5);
    // The other way round: 1.5 s of backward leave 0.75 s of the channel's 2 s done; 1.25 s more, then layer 0's 2 s.
    assert_eq!(seconds(0.0, 1.0), 2.0 + 1.0 + 1.5 + 1.25 + 2.0);
}

/// The same where a bus that nothing takes time on is followed by links, of which the first is in the way and the second is not.
#[test]
fn busy_links_slow_computation_where_the_bus_carries_nothing() {
    let profile = profile(&[(512, 1.0, 1.5), (512, 1.0, 1.0)], 0.0);
    let plan = plan_of("schedule=wfbp,arch=ps:1", &profile, &by_bytes);
    let classes = [WorkerClass::of(&profile, 1)];
    let seconds = |on_first: f64, computation, communication| {
        let mut operations = Operations::new(Line::Buses, 2, 0, Mode::Aggregate);
        for (_, partition) in plan.partitions() {
            let kib = partition.elements.len() as f64 / 256.0;
            operations.push(0.0, 0.0);
            let busy = [on_first, 1.0 - on_first].map(|share| share * kib);
            operations.then_links((0..).zip(busy).map(|(link, busy_s)| Part { link, busy_s }));
        }
        let operations = operations.disturbing_on_links(1);
        let interference = Interference { computation, communication };
        let training = Training { interference, ..Training::new(&plan, &classes, &operations) };
        simulate(&training, Length::Steady).iteration_s
    };
    assert_eq!([seconds(1.0, 0.0, 0.0), seconds(1.0, 1.0, 0.0)], [7.0, 7.5]);
    assert_eq!(seconds(1.0, 0.0, 1.0), 2.0 + 1.0 + 1.5 + 1.25 + 2.0);
    assert_eq!([seconds(0.0, 1.0, 0.0), seconds(0.0, 0.0, 1.0)], [7.0; 2]);
    // Two that carry half of it at once are in the way as much as one that carries all, twice as much for half of the time; and links
    // that carry one after the other are in the way for as long as each does.
    let both = |parts: [f64; 2]| {
        let mut operations = Operations::new(Line::Buses, 2, 0, Mode::Aggregate);
        for (number, (_, partition)) in plan.partitions().enumerate() {
            let kib = partition.elements.len() as f64 / 256.0;
            operations.push(0.0, 0.0);
            let busy = if number == 0 { parts } else { [parts[1], parts[0]] };
            operations.then_links((0..).zip(busy).map(|(link, share)| Part { link, busy_s: share * kib }));
        }
        let operations = operations.disturbing_on_links(2);
        let interference = Interference { computation: 1.0, communication: 0.0 };
        let training = Training { interference, ..Training::new(&plan, &classes, &operations) };
        simulate(&training, Length::Steady).iteration_s
    };
    // 1.5 s of backward: a second beside both, at a third, leaves 1.17 s; layer 0 then takes a second. Or two beside one, and half a second.
    assert!((both([0.5, 0.5]) - (3.0 + 1.0 + 7.0 / 6.0 + 1.0)).abs() < 1e-9, "{}", both([0.5, 0.5]));
    assert_eq!(both([1.0, 0.0]), 7.5);
}

/// Compression is work of the one who computes: layer 1's delays layer 0's backward.
#[test]
fn compression_takes_time_of_computation() {
    let profile = profile(&[(512, 1.0, 1.0), (512, 1.0, 1.0)], 0.0);
    let plan = plan_of("wfbp-a2a", &profile, &by_bytes);
    // To a quarter: half a second each.
    let operations = Operations::on_channel(&plan, |bytes| by_bytes(bytes) / 4.0);
    let classes = [WorkerClass::of(&profile, 1)];
    let coding = [Coding { encode_s: 0.25, decode_s: 0.125 }; 2];
    let training = Training { coding: &coding, ..Training::new(&plan, &classes, &operations) };
    // Layer 1 is encoded at 3.25 s, layer 0 at 4.5 s; sent at 5 s; decoded: layer 1 before, at 4.5 s; layer 0 at 5.125 s.
    assert_eq!(simulate(&training, Length::Steady).iteration_s, 5.125);
}

/// The slower class decides, and its operations wait for nobody else's.
#[test]
fn all_classes_start_an_operation_before_it_moves() {
    let profile = three_layers();
    let plan = plan_of("wfbp-a2a", &profile, &by_bytes);
    let operations = Operations::on_channel(&plan, by_bytes);
    let fast = WorkerClass::of(&profile, 3);
    let slow = WorkerClass { slowness: 2.0, ..WorkerClass::of(&profile, 1) };
    let seconds =
        |classes: &[WorkerClass<'_>]| simulate(&Training::new(&plan, classes, &operations), Length::Steady).iteration_s;
    // The slow one's layers are ready at 8, 12 and 14 s: sent until 10, 16 and 18 s. Its optimiser takes a second.
    assert_eq!(seconds(&[slow]), 19.0);
    // The fast ones are ready for the next iteration half a second earlier, and wait in it.
    assert_eq!((seconds(&[slow, fast]), seconds(&[fast, slow])), (19.0, 19.0));
}

/// Two profiles of the same tensors, each of which takes 2 s to be sent. Workers of the first have layers 2, 1 and 0 ready 4, 10 and 11 s
/// after their iteration begins, those of the second 5, 5.5 and 12.5 s after theirs, which begins half a second later, as their optimiser
/// takes a second: so the second are waited for with layers 2 and 0, and the first with layer 1.
#[test]
fn classes_compute_what_their_own_profiles_say() {
    let one = profile(&[(512, 1.0, 1.0), (512, 1.0, 6.0), (512, 1.0, 1.0)], 0.5);
    let other = profile(&[(512, 0.5, 7.0), (512, 0.25, 0.5), (512, 0.25, 4.0)], 1.0);
    let plan = plan_of("wfbp-a2a", &one, &by_bytes);
    let operations = Operations::on_channel(&plan, by_bytes);
    let played = |classes: [WorkerClass<'_>; 2]| {
        let training = Training { timeline: true, ..Training::new(&plan, &classes, &operations) };
        simulate(&training, Length::Steady)
    };
    let (first, second) = (WorkerClass::of(&one, 3), WorkerClass::of(&other, 1));
    let outcome = played([first, second]);
    let carried = outcome.spans.iter().filter(|span| span.lane == Lane::Line);
    let times: Vec<_> = carried.map(|span| (span.operation, span.start_s, span.end_s)).collect();
    assert_eq!(times, [(Some(0), 5.5, 7.5), (Some(1), 10.0, 12.0), (Some(2), 13.0, 15.0)]);
    // The optimiser of the first takes half a second, and the second are as late in each iteration.
    assert_eq!((outcome.iteration_s, played([second, first]).iteration_s), (15.5, 15.5));
}

#[test]
fn stragglers_are_drawn_from_the_seed_and_cost_what_is_expected() {
    let profile = three_layers();
    let plan = plan_of("bsp-a2a", &profile, &by_bytes);
    let operations = Operations::on_channel(&plan, by_bytes);
    let spread = Spread::Normal { deviation: 0.05 };
    let classes = [WorkerClass { spread, ..WorkerClass::of(&profile, 64) }];
    let training = Training::new(&plan, &classes, &operations);
    let drawn = |seed| simulate(&training, Length::Drawn { seed, iterations: 500 });
    let (one, again, other) = (drawn(1), drawn(1), drawn(2));
    assert_eq!(one, again);
    assert_ne!(one.iteration_s, other.iteration_s);
    assert!(one.deviation_s > 0.0 && simulate(&training, Length::Steady).deviation_s == 0.0);
    let slowest = WorkerClass { slowness: spread.expected_slowest(64), ..WorkerClass::of(&profile, 64) };
    let expected = simulate(&Training::new(&plan, &[slowest], &operations), Length::Steady).iteration_s;
    assert!((one.iteration_s / expected - 1.0).abs() < 0.02, "{} {expected}", one.iteration_s);
}

/// A server that updates parameters: workers' optimiser is not needed, and what it does is on the server.
#[test]
fn servers_update_one_partition_after_the_other() {
    let profile = three_layers();
    let plan = plan_of("schedule=wfbp,arch=ps:1:apply", &profile, &by_bytes);
    let mut operations = Operations::new(Line::Buses, 1, 1, Mode::Apply);
    for (_, partition) in plan.partitions() {
        operations.push(0.0, 0.0);
        operations.then_links([Part { link: 0, busy_s: partition.elements.len() as f64 / 256.0 }]);
        operations.then_server(0, 1.0);
    }
    let classes = [WorkerClass::of(&profile, 1)];
    let training = Training { servers_update: true, ..Training::new(&plan, &classes, &operations) };
    // As on the channel, and the last update a second more; no optimiser's half second.
    assert_eq!(simulate(&training, Length::Steady).iteration_s, 13.0);
}

fn profiles() -> impl proptest::strategy::Strategy<Value = Profile> {
    let layer = (1usize..3000, 0.0f64..2.0, 0.0f64..3.0);
    (prop::collection::vec(layer, 1..20), 0.0f64..1.0).prop_map(|(layers, update_s)| profile(&layers, update_s))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// One channel: what the scheduler's own simulation says, and the formulas where there are some.
    #[test]
    fn on_one_channel_it_is_what_the_scheduler_says(
        profile in profiles(),
        alpha in 0.0f64..2.0,
        beta in 0.0f64..0.001,
        partition in 1024u64..9000,
    ) {
        let cost = |bytes: u64| alpha + beta * bytes as f64;
        let priorities = format!("schedule=bytescheduler:{partition}:{}", 2 * partition);
        for strategy in ["bsp-a2a", "wfbp-a2a", "mg-wfbp", "schedule=fusion:4KiB", &priorities] {
            let plan = plan_of(strategy, &profile, &cost);
            let seconds = simulated(&profile, &plan, &Operations::on_channel(&plan, cost)).iteration_s;
            let played = steady_state_s(&profile, &plan, &cost);
            if plan.forward_overlap {
                // That one plays three iterations, this one until two are alike.
                prop_assert!((seconds - played).abs() <= 0.02 * played, "{}: {} {}", strategy, seconds, played);
            } else {
                prop_assert!(near(seconds, played), "{}: {} {}", strategy, seconds, played);
                let formula = formula::one_channel(&profile, &plan, &cost);
                prop_assert!(near(seconds, formula.total_s()), "{}: {} {:?}", strategy, seconds, formula);
            }
        }
    }

    /// Of two profiles that one decides which would take longer by itself, whoever is late with which gradient: times only add up and are
    /// compared, as long as no iteration overlaps with the next.
    #[test]
    fn of_two_profiles_the_longer_one_decides(
        layers in prop::collection::vec((1usize..3000, 0.0f64..2.0, 0.0f64..3.0, 0.0f64..2.0, 0.0f64..3.0), 1..12),
        updates in (0.0f64..1.0, 0.0f64..1.0),
        alpha in 0.0f64..2.0,
        beta in 0.0f64..0.001,
    ) {
        let cost = |bytes: u64| alpha + beta * bytes as f64;
        let one: Vec<_> = layers.iter().map(|&(elements, forward, backward, ..)| (elements, forward, backward)).collect();
        let other: Vec<_> = layers.iter().map(|&(elements, .., forward, backward)| (elements, forward, backward)).collect();
        let (one, other) = (profile(&one, updates.0), profile(&other, updates.1));
        for strategy in ["bsp-a2a", "wfbp-a2a", "schedule=fusion:4KiB"] {
            let plan = plan_of(strategy, &one, &cost);
            let operations = Operations::on_channel(&plan, cost);
            let classes = [WorkerClass::of(&one, 1), WorkerClass::of(&other, 3)];
            let seconds = simulate(&Training::new(&plan, &classes, &operations), Length::Steady).iteration_s;
            let alone = [&one, &other].map(|profile| formula::one_channel(profile, &plan, &cost).total_s());
            prop_assert!(near(seconds, alone[0].max(alone[1])), "{}: {} {:?}", strategy, seconds, alone);
        }
    }

    /// Links that serve each for itself: the bound of the formula is reached but for what an
    /// operation's parts wait for each other, which is nothing where they have no other stage.
    #[test]
    fn on_links_it_is_the_bound_of_servers(profile in profiles(), hosts in 2usize..6, beta in 1e-5f64..1e-3) {
        for text in ["schedule=wfbp,arch=ps:hosts:1KiB", "schedule=none,arch=ps:hosts:1KiB:dedicated"] {
            let strategy = Registry::built_in().parse(text).expect("a strategy");
            let workload = Workload::of_profile(&profile).with_world(hosts, hosts);
            let plan = plan(&strategy, &workload).expect("a plan");
            let servers = strategy.servers(hosts, hosts).expect("servers");
            let network = formula::HostNetwork { hosts, start_s: 0.5, seconds_per_byte: beta };
            let bound = formula::servers_bound(&profile, &plan, &servers, &network).total_s();
            let links = if servers.dedicated { 2 * hosts } else { hosts };
            let mut operations = Operations::new(Line::Buses, links, 0, Mode::Aggregate);
            for (_, partition) in plan.partitions() {
                let seconds = partition.elements.len() as f64 * 4.0 * beta;
                let shard = partition.shard.expect("a shard");
                operations.push(0.0, 0.5);
                operations.then_links((0..links).map(|link| {
                    let times = match (servers.dedicated, link < hosts, shard == link % hosts) {
                        (true, true, _) | (false, _, false) => 1,
                        (true, false, true) => hosts,
                        (false, _, true) => hosts - 1,
                        (true, false, false) => 0,
                    };
                    Part { link, busy_s: times as f64 * seconds }
                }));
            }
            let seconds = simulated(&profile, &plan, &operations).iteration_s;
            // The formula adds the start after the last byte even where backward hides it.
            prop_assert!(near(seconds, bound), "{}: {} {}", text, seconds, bound);
        }
    }
}
