//! Whole iterations in this world, by workers that compute and begin operations as the runtime's `Dispatcher` says, and whose engines carry
//! them; and what is predicted of the same plan, by formulas and message by message.
//!
//! Where links share nothing, operations are rings: there each port has one rank to send to and one to hear from in the simulator, too. Where
//! they share their ranks' ports, as emulated links do, operations are what many ranks meet in: servers, and everybody's parts at once.

use paceline_collective::registry::find;
use paceline_collective::{Topology, WINDOW, select};
use paceline_plan::{Cluster, CollectiveKind, OperationNumber, Plan, Profile, ProfileTensor, Protocol, Step, TensorId};
use paceline_predict::{EMULATED_MESSAGES_MAX, Job, estimate, predict_by_message, predict_emulated};
use paceline_schedule::Dispatcher;
use paceline_strategy::{Registry, Strategy};

use crate::call::Call;
use crate::link::LinkModel;
use crate::predicted::Wire;
use crate::setup::Setup;
use crate::world::{Node, World};

/// Nanoseconds after which a worker has noticed that an operation has ended.
const NOTICED: u64 = 2_000;

/// Iterations: where they overlap, the first begins with nothing under way.
const ITERATIONS: usize = 4;

/// 50 MB/s, and little latency: bytes and computation decide.
const WIRE: Wire = Wire { latency: 5_000, bytes_per_microsecond: 50 };

/// Six layers, 0.9 MB, which take 19 ms on the way between two ranks and 28 between four, and are computed in 27. The optimiser takes
/// no time, as where the next forward pass begins early it runs tensor by tensor.
fn profile() -> Profile {
    let elements = [2_000, 30_000, 60_000, 500, 100_000, 40_000];
    let tensor = |(layer, elements)| ProfileTensor { name: format!("{layer}"), elements, forward_macs_per_sample: 0 };
    let step = |seconds: f64| move |tensor| Step { tensor, seconds };
    Profile {
        tensors: elements.into_iter().enumerate().map(tensor).collect(),
        forward: (0..elements.len()).map(step(1.5e-3)).collect(),
        backward: (0..elements.len()).rev().map(step(3e-3)).collect(),
        local_batch: 1,
        schema: Profile::SCHEMA,
        ..Profile::default()
    }
}

/// What a worker does in every iteration.
#[derive(Clone, Copy)]
enum Part {
    Forward(TensorId, u64),
    Backward(TensorId, u64),
}

/// A worker: what it computes, and which operations are under way.
struct Worker {
    dispatcher: Dispatcher,
    bucket_of: Vec<usize>,
    forward_overlap: bool,
    script: Vec<Part>,
    /// What of it is next, over all iterations.
    next: usize,
    busy_until: u64,
    /// Whose gradient is final then.
    computes: Option<TensorId>,
    passes: u64,
    in_flight: Vec<OperationNumber>,
    /// When iterations began.
    began: Vec<u64>,
}

impl Worker {
    fn new(plan: &Plan, profile: &Profile) -> Worker {
        let mut bucket_of = vec![0; plan.tensors()];
        for (number, bucket) in plan.buckets.iter().enumerate() {
            bucket.tensors.iter().for_each(|&tensor| bucket_of[tensor] = number);
        }
        let nanoseconds = |step: &Step| (1e9 * step.seconds) as u64;
        let forward = profile.forward.iter().map(|step| Part::Forward(step.tensor, nanoseconds(step)));
        let backward = profile.backward.iter().map(|step| Part::Backward(step.tensor, nanoseconds(step)));
        Worker {
            dispatcher: Dispatcher::new(plan),
            bucket_of,
            forward_overlap: plan.forward_overlap,
            script: forward.chain(backward).collect(),
            next: 0,
            busy_until: 0,
            computes: None,
            passes: 0,
            in_flight: Vec::new(),
            began: Vec::new(),
        }
    }

    /// Which of its operations have ended on this node.
    fn hear(&mut self, node: &Node, operations: usize) {
        let Worker { dispatcher, passes, in_flight, .. } = self;
        let has_ended = |operation| node.ended.contains_key(&key(*passes, operation, operations));
        for operation in in_flight.extract_if(.., |operation| has_ended(*operation)) {
            dispatcher.finished(operation);
        }
    }

    /// Goes on as far as it can now. Returns the operations that begin.
    fn go_on(&mut self, now: u64) -> Vec<OperationNumber> {
        while self.busy_until <= now {
            if let Some(tensor) = self.computes.take() {
                self.dispatcher.ready(tensor);
            }
            let part = self.script[self.next % self.script.len()];
            let begins = self.next.is_multiple_of(self.script.len());
            match part {
                Part::Forward(tensor, nanoseconds) => {
                    let bucket = self.bucket_of[tensor];
                    let is_there = self.dispatcher.has_arrived(bucket) && self.forward_overlap;
                    if !is_there && !self.dispatcher.is_done() {
                        break;
                    }
                    if begins {
                        self.began.push(now);
                    }
                    self.busy_until = now + nanoseconds;
                }
                Part::Backward(tensor, nanoseconds) => {
                    if self.next % self.script.len() == self.script.len() / 2 {
                        self.dispatcher.begin();
                        self.passes += 1;
                    }
                    self.computes = Some(tensor);
                    self.busy_until = now + nanoseconds;
                }
            }
            self.next += 1;
        }
        let begun: Vec<OperationNumber> = std::iter::from_fn(|| self.dispatcher.next()).collect();
        self.in_flight.extend(&begun);
        begun
    }
}

/// The operation of a backward pass, counted from 1, by the number under which all ranks know it.
fn key(pass: u64, operation: OperationNumber, operations: usize) -> u64 {
    pass * operations as u64 + operation as u64
}

/// Each operation of a plan: an all-reduce by the algorithm that its strategy names, or a push to its server and a pull from it; in the
/// tiles that the runtime would choose. Servers' ranks stand behind the workers'.
fn calls(plan: &Plan, cluster: &Cluster, workers: usize) -> Vec<Call> {
    let all_reduce = strategy(&plan.strategy).arch.word(0).unwrap_or("direct").to_owned();
    let counted = cluster.counted_costs_among(workers);
    let call = |(bucket, partition): (usize, &paceline_plan::Partition)| {
        let elements = partition.elements.len();
        let (kind, name, ranks) = match partition.shard {
            Some(_) => (CollectiveKind::PushPull, "direct", workers + 1),
            None => (CollectiveKind::AllReduce, &*all_reduce, workers),
        };
        let algorithm = find(kind, name).expect("it is in the registry");
        let topology = Topology::regular(ranks, 1);
        let choice = select::cheapest(kind, &topology, 4 * elements, &counted, |other| other.name() == name);
        let tile_elements = choice.expect("the algorithm").tile_bytes / 4;
        let server = partition.shard.map(|shard| workers + shard);
        let group: Vec<usize> = (0..workers).chain(server).collect();
        Call {
            tile_elements: tile_elements.min(elements),
            window: WINDOW as u32,
            priority: plan.worker_priority(bucket),
            // No message waits for a grant.
            protocols: [Protocol::Eager; 2],
            ..Call::placed(algorithm, &topology, elements, ranks - 1).of_group(&group)
        }
    };
    plan.partitions().map(call).collect()
}

/// Seconds of the last iteration here, on links that share ports or nothing. All sums must be right.
fn executed_s(plan: &Plan, profile: &Profile, cluster: &Cluster, workers: usize, ports: bool) -> f64 {
    let setup = WIRE.setup(workers + plan.shards);
    // What is urgent is behind no more than one message.
    let mut world = World::new(Setup { link: LinkModel { unsent_bytes_max: 1, ports, ..setup.link.clone() }, ..setup });
    let calls = calls(plan, cluster, workers);
    let mut workers: Vec<Worker> = (0..workers).map(|_| Worker::new(plan, profile)).collect();
    // Pushes and pulls that their servers have begun.
    let mut served = 0;
    let call = |pass: u64, operation: OperationNumber| Call {
        operation: key(pass, operation, calls.len()),
        ..calls[operation].clone()
    };
    let mut now = 0;
    while workers[0].began.len() <= ITERATIONS {
        for (rank, worker) in workers.iter_mut().enumerate() {
            worker.hear(&world.nodes[rank], calls.len());
            for operation in worker.go_on(now) {
                world.post_at(now, rank, &call(worker.passes, operation));
            }
            // A server has opened all partitions of an iteration before anybody pushes one.
            while served < worker.passes {
                served += 1;
                let of_servers =
                    (0..calls.len()).filter(|&operation| calls[operation].kind == CollectiveKind::PushPull);
                of_servers.for_each(|operation| {
                    let call = call(served, operation);
                    world.post_at(now, call.world() - 1, &call);
                });
            }
        }
        let computed = workers.iter().map(|worker| worker.busy_until).filter(|&until| until > now).min();
        now = computed.map_or(now + NOTICED, |until| until.min(now + NOTICED));
        world.run_until(now);
    }
    for pass in 1..ITERATIONS as u64 {
        (0..calls.len()).for_each(|operation| world.check(&call(pass, operation)));
    }
    let began = &workers[0].began;
    (began[ITERATIONS] - began[ITERATIONS - 1]) as f64 * 1e-9
}

fn strategy(text: &str) -> Strategy {
    Registry::built_in().parse(text).expect("a strategy")
}

/// As far as predictions by formulas are from messages, too (`prediction/tests/by_message.rs` of `predict`): what is urgent finds others on
/// the way.
#[test]
fn iterations_take_as_long_as_is_predicted() {
    let profile = profile();
    let mut after_backward_s = [0.0; 2];
    for (text, near) in [
        ("schedule=none,arch=a2a:ring", 0.01),
        ("schedule=wfbp,arch=a2a:ring", 0.01),
        ("schedule=mg-wfbp,arch=a2a:ring", 0.01),
        ("schedule=bytescheduler:64KiB:256KiB,arch=a2a:ring", 0.06),
    ] {
        for (ranks, after_backward_s) in [2, 4].into_iter().zip(&mut after_backward_s) {
            let (cluster, strategy) = (Cluster::of_network(WIRE.model(), ranks, 1), strategy(text));
            let job =
                Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: ranks, local_batch: None };
            let predicted = estimate(&job).expect("a prediction");
            let played_s = predict_by_message(&job, &predicted.plan).expect("an iteration").iteration_s;
            let executed_s = executed_s(&predicted.plan, &profile, &cluster, ranks, false);
            let predicted_s = predicted.iteration_s;
            println!("{text}, {ranks} ranks: {executed_s} s, predicted {predicted_s} s, by message {played_s} s");
            for (what, seconds) in [("predicted", predicted_s), ("by message", played_s)] {
                let ratio = executed_s / seconds;
                assert!((ratio - 1.0).abs() < near, "{text}, {ranks} ranks: {executed_s} s, {what} {seconds} s");
            }
            if text.starts_with("schedule=none") {
                *after_backward_s = executed_s;
            } else {
                assert!(executed_s < 0.9 * *after_backward_s, "{text}, {ranks} ranks: nothing overlaps");
            }
        }
    }
}

/// Where ranks share a port for all that they send, and one for all that they are sent, as hosts on emulated links do: servers, whose
/// ports all workers meet at, and all-reduces in which everybody sends to everybody.
#[test]
fn iterations_on_shared_ports_take_as_long_as_their_messages() {
    let profile = profile();
    for (text, workers, shards) in [
        ("schedule=none,arch=a2a:direct-scatter", 4, 0),
        ("schedule=wfbp,arch=a2a:direct-scatter", 4, 0),
        ("schedule=wfbp,arch=a2a:halving-doubling", 4, 0),
        ("schedule=none,arch=ps:1:64KiB:dedicated", 2, 1),
        ("schedule=wfbp,arch=ps:2:64KiB:dedicated", 3, 2),
        ("schedule=wfbp,arch=ps:3:64KiB:dedicated", 3, 3),
    ] {
        let (mut cluster, strategy) = (Cluster::of_network(WIRE.model(), workers, 1), strategy(text));
        cluster.server_hosts = shards;
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
        let predicted = estimate(&job).expect("a prediction");
        let played = predict_emulated(&job, &predicted.plan, EMULATED_MESSAGES_MAX).expect("an iteration");
        let executed_s = executed_s(&predicted.plan, &profile, &cluster, workers, true);
        let (predicted_s, played_s) = (predicted.iteration_s, played.iteration_s);
        println!("{text}, {workers} workers: {executed_s} s, predicted {predicted_s} s, by message {played_s} s");
        let ratio = executed_s / played_s;
        assert!((ratio - 1.0).abs() < 0.01, "{text}, {workers} workers: {executed_s} s, by message {played_s} s");
    }
}
