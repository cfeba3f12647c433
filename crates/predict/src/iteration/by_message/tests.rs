use paceline_collective::cost::Load;
use paceline_collective::{Topology, registry};
use paceline_plan::{CollectiveKind, Hosts, LinkClass, NetworkModel, Plan, Profile, Shape};

use super::super::tests::{plan_of, profile};
use super::super::{Operations, Spread, WorkerClass};
use super::*;
use crate::programs::{Combining, PreparedProgram};
use crate::topology::{Network, Speeds};

/// Two workers on hosts of their own; a ring of them takes a second per KiB, and latency twice.
struct Pair {
    network: Network,
    ring: PreparedProgram,
}

impl Pair {
    fn new(latency_s: f64) -> Pair {
        let class = LinkClass { alpha_s: latency_s, overhead_s: 0.0, beta_s_per_byte: 1.0 / 1024.0 };
        let speeds = Speeds::of(NetworkModel { within: class, across: class });
        let network = Network::new(Shape::Flat, &Hosts::regular(2, 1), &speeds).expect("a network");
        let ring = registry::find(CollectiveKind::AllReduce, "ring").expect("a ring");
        Pair { network, ring: PreparedProgram::of_algorithm(ring, &Topology::flat(2), 0).expect("a program") }
    }

    /// By messages, with start-ups of so many seconds, one by one or not.
    fn play(
        &self,
        classes: &[WorkerClass<'_>],
        plan: &Plan,
        (start_s, starts): (f64, Starts),
        length: Length,
    ) -> (Outcome, usize) {
        let bytes = plan.partitions().map(|(_, partition)| partition.elements.len() * 4);
        let operations: Vec<Operation<'_>> = bytes
            .map(|bytes| Operation { program: &self.ring, load: Load { bytes, tile_bytes: bytes, window: 1 } })
            .collect();
        let combining = Combining::InsteadOfReceiving;
        let machine = Machine { combining, ..Machine::new(&self.network) };
        let class_of = [0, classes.len() - 1];
        let messages = Messages {
            machine: &machine,
            operations: &operations,
            class_of: &class_of,
            server_gamma: 0.0,
            start_s,
            starts,
        };
        let nothing = Operations::on_channel(plan, |_| 0.0);
        let training = Training { timeline: true, ..Training::new(plan, classes, &nothing) };
        simulate_by_message(&training, &messages, length).expect("it ends")
    }
}

/// Three layers of 2, 4 and 2 KiB; forward 1 s each, backward 1, 2 and 1 s, from the last to the first.
fn three_layers() -> Profile {
    profile(&[(512, 1.0, 1.0), (1024, 1.0, 2.0), (512, 1.0, 1.0)], 0.5)
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
}

/// Forward until 3 s. Layer 2 is ready at 4 s and sent until 6 s; layer 1 ready at 6 s. Its two messages take 2 s each; layer 0, ready
/// at 7 s, has its first one between them, and its second one last: from 11 to 12 s. The optimiser until 12.5 s.
#[test]
fn three_tensors_share_a_connection() {
    let profile = three_layers();
    let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
    let classes = [WorkerClass::of(&profile, 2)];
    let (outcome, messages) = Pair::new(0.0).play(&classes, &plan, (0.0, Starts::OnPort), Length::Steady);
    near(outcome.iteration_s, 12.5);
    assert_eq!(messages, 3 * 4);
    let sent: Vec<_> = outcome.spans.iter().filter(|span| span.lane == Lane::Links).collect();
    let began: Vec<_> = sent.iter().map(|span| (span.operation, span.start_s.round())).collect();
    assert_eq!(began, [(Some(0), 4.0), (Some(1), 6.0), (Some(2), 7.0)]);
    near(sent[2].end_s, 12.0);
}

/// All at once after backward: 7 + 0.5 + 8 + 0.5. One by one, layer 1 starts when layer 2 has arrived, at 6.5 s, and layer 0 at 11 s.
#[test]
fn operations_take_time_to_start() {
    let (profile, pair) = (three_layers(), Pair::new(0.0));
    let classes = [WorkerClass::of(&profile, 2)];
    let whole = plan_of("bsp-a2a", &profile, &|_| 0.0);
    near(pair.play(&classes, &whole, (0.5, Starts::OnPort), Length::Steady).0.iteration_s, 16.0);
    let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
    near(pair.play(&classes, &plan, (0.5, Starts::OneByOne), Length::Steady).0.iteration_s, 14.0);
}

/// A worker that takes twice as long is ready with layer 2 at 8 s, with layer 1 at 12 s, with layer 0 at 14 s, and has everything at
/// 18 s, when its optimiser takes another second. The other one waits for it.
#[test]
fn all_wait_for_whom_is_late() {
    let (profile, pair) = (three_layers(), Pair::new(0.0));
    let plan = plan_of("wfbp-a2a", &profile, &|_| 0.0);
    let slow = WorkerClass { slowness: 2.0, ..WorkerClass::of(&profile, 1) };
    let classes = [slow, WorkerClass::of(&profile, 1)];
    near(pair.play(&classes, &plan, (0.0, Starts::OnPort), Length::Steady).0.iteration_s, 19.0);
    // As it is whoever is watched.
    let classes = [WorkerClass::of(&profile, 1), slow];
    near(pair.play(&classes, &plan, (0.0, Starts::OnPort), Length::Steady).0.iteration_s, 19.0);
}

/// A latency for each of the two messages that wait for each other; what several operations have in flight hides it.
#[test]
fn latencies_hide_behind_what_else_travels() {
    let profile = three_layers();
    let classes = [WorkerClass::of(&profile, 2)];
    let seconds = |strategy: &str, latency_s: f64| {
        let plan = plan_of(strategy, &profile, &|_| 0.0);
        Pair::new(latency_s).play(&classes, &plan, (0.0, Starts::OnPort), Length::Steady).0.iteration_s
    };
    near(seconds("bsp-a2a", 0.1) - seconds("bsp-a2a", 0.0), 0.2);
    let hidden = seconds("wfbp-a2a", 0.1) - seconds("wfbp-a2a", 0.0);
    assert!((0.0..0.6 - 1e-9).contains(&hidden), "{hidden}");
}

/// Every worker draws for itself; an iteration takes what the slower of the two does, and the same seed gives the same.
#[test]
fn workers_draw_for_themselves() {
    let (profile, pair) = (three_layers(), Pair::new(0.0));
    let plan = plan_of("bsp-a2a", &profile, &|_| 0.0);
    let spread = Spread::Exponential { mean: 0.1 };
    let classes = [WorkerClass { spread, ..WorkerClass::of(&profile, 2) }];
    let of_seed = |seed| {
        let length = Length::Drawn { seed, iterations: 400 };
        pair.play(&classes, &plan, (0.0, Starts::OnPort), length).0
    };
    let outcome = of_seed(7);
    assert_eq!((outcome.iteration_s, outcome.deviation_s), {
        let again = of_seed(7);
        (again.iteration_s, again.deviation_s)
    });
    // 15.5 s without delays. Of two that are exponential with mean s, the longer one takes 1.5 s: of 7.5 s of computation.
    let expected = 15.5 + 0.1 * 1.5 * 7.5;
    assert!((outcome.iteration_s - expected).abs() < 0.15, "{} {expected}", outcome.iteration_s);
    assert!(of_seed(8).iteration_s != outcome.iteration_s && outcome.deviation_s > 0.1);
}
