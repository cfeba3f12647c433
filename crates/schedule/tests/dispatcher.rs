//! The dispatcher's promises, under random plans and random orders of events.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use paceline_plan::{Bucket, OperationNumber, Partition, Plan};
use paceline_schedule::Dispatcher;
use proptest::prelude::*;

const ELEMENT_BYTES: u64 = 4;

/// Pieces of a bucket; elements of each.
type Pieces = Vec<usize>;

/// A plan of buckets of `tensors` tensors each.
fn plan(buckets: &[(usize, u32, Pieces)], credit_bytes: Option<u64>) -> Plan {
    let (mut tensor, mut element) = (0, 0);
    let buckets = buckets.iter().map(|(tensors, priority, pieces)| {
        let first = element;
        let partitions = pieces.iter().map(|elements| {
            element += elements;
            Partition { elements: element - elements..element, shard: None }
        });
        let partitions = partitions.collect();
        tensor += tensors;
        let members = (tensor - tensors..tensor).rev().collect();
        Bucket { tensors: members, elements: first..element, priority: *priority, partitions }
    });
    Plan {
        version: 1,
        strategy: "schedule=bytescheduler".into(),
        buckets: buckets.collect(),
        shards: 0,
        credit_bytes,
        forward_overlap: true,
        server_priority_only: false,
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let bucket = (1usize..4, 0u32..6, prop::collection::vec(0usize..50, 1..5));
    (prop::collection::vec(bucket, 1..12), prop::option::of(1u64..400))
        .prop_map(|(buckets, credit)| plan(&buckets, credit))
}

/// Small numbers without end, from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, values: &mut [T]) {
        (1..values.len()).rev().for_each(|last| values.swap(last, self.below(last + 1)));
    }
}

/// What a dispatcher has been told and has given, kept in the simplest way.
struct Model<'a> {
    plan: &'a Plan,
    bytes: Vec<u64>,
    bucket: Vec<usize>,
    ready: BTreeSet<usize>,
    started: BTreeSet<OperationNumber>,
    in_flight: Vec<OperationNumber>,
    finished: BTreeSet<OperationNumber>,
}

impl<'a> Model<'a> {
    fn new(plan: &'a Plan) -> Self {
        let bytes = plan.partitions().map(|(_, part)| part.elements.len() as u64 * ELEMENT_BYTES).collect();
        Model {
            plan,
            bytes,
            bucket: plan.partitions().map(|(bucket, _)| bucket).collect(),
            ready: BTreeSet::new(),
            started: BTreeSet::new(),
            in_flight: Vec::new(),
            finished: BTreeSet::new(),
        }
    }

    fn complete(&self, bucket: usize) -> bool {
        self.plan.buckets[bucket].tensors.iter().all(|tensor| self.ready.contains(tensor))
    }

    /// What goes first.
    fn urgency(&self, operation: OperationNumber) -> (u32, OperationNumber) {
        (self.plan.buckets[self.bucket[operation]].priority, operation)
    }

    /// What may start, the most urgent first.
    fn candidates(&self) -> Vec<OperationNumber> {
        let may =
            |&operation: &OperationNumber| !self.started.contains(&operation) && self.complete(self.bucket[operation]);
        let mut candidates: Vec<_> = (0..self.bytes.len()).filter(may).collect();
        candidates.sort_by_key(|&operation| self.urgency(operation));
        candidates
    }

    /// Bytes in flight that are more urgent.
    fn before(&self, operation: OperationNumber) -> u64 {
        let before = self.in_flight.iter().filter(|&&other| self.urgency(other) < self.urgency(operation));
        before.map(|&other| self.bytes[other]).sum()
    }
}

/// One iteration in a random order of events.
fn iteration(dispatcher: &mut Dispatcher, plan: &Plan, dice: &mut Dice) -> Result<(), TestCaseError> {
    let mut model = Model::new(plan);
    let mut announced: Vec<usize> = (0..plan.tensors()).collect();
    dice.shuffle(&mut announced);
    dispatcher.begin();
    while model.finished.len() < plan.operations() {
        match dice.below(3) {
            0 => {
                if let Some(tensor) = announced.pop() {
                    model.ready.insert(tensor);
                    let bucket = plan.buckets.iter().position(|bucket| bucket.tensors.contains(&tensor)).unwrap();
                    prop_assert_eq!(dispatcher.ready(tensor), model.complete(bucket).then_some(bucket));
                }
            }
            1 => {
                let candidates = model.candidates();
                prop_assert_eq!(dispatcher.waits(), !candidates.is_empty());
                let given = dispatcher.next();
                let fits = |&&first: &&OperationNumber| {
                    let before = model.before(first);
                    before == 0 || plan.credit_bytes.is_none_or(|credit| before + model.bytes[first] <= credit)
                };
                prop_assert_eq!(given, candidates.first().filter(fits).copied());
                if let Some(operation) = given {
                    model.started.insert(operation);
                    model.in_flight.push(operation);
                }
            }
            _ if !model.in_flight.is_empty() => {
                let operation = model.in_flight.swap_remove(dice.below(model.in_flight.len()));
                model.finished.insert(operation);
                let bucket = model.bucket[operation];
                let arrived = (0..model.bucket.len()).filter(|&other| model.bucket[other] == bucket);
                let arrived = arrived.into_iter().all(|other| model.finished.contains(&other));
                prop_assert_eq!(dispatcher.finished(operation), arrived.then_some(bucket));
            }
            _ => {}
        }
        prop_assert_eq!(dispatcher.is_done(), model.finished.len() == plan.operations());
    }
    prop_assert_eq!(model.started.len(), plan.operations(), "each operation starts exactly once");
    prop_assert_eq!(dispatcher.next(), None);
    Ok(())
}

proptest! {
    #[test]
    fn the_most_urgent_complete_operation_starts_while_the_credit_lasts(plan in plans(), seed in any::<u64>()) {
        let (mut dispatcher, mut dice) = (Dispatcher::new(&plan), Dice(seed));
        prop_assert!(dispatcher.is_done() && !dispatcher.waits() && dispatcher.next().is_none());
        for _ in 0..3 {
            iteration(&mut dispatcher, &plan, &mut dice)?;
        }
    }

    /// Ranks are apart in backward, come to the tensors in different orders, and an operation ends on a rank some time
    /// after all ranks have started it. However little credit there is, every operation ends.
    #[test]
    fn ranks_never_wait_for_each_other_for_good(plan in plans(), ranks in 2usize..5, seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let mut world: Vec<Rank> = (0..ranks).map(|_| Rank::new(&plan, &mut dice)).collect();
        let mut idle = 0;
        while world.iter().any(|rank| !rank.dispatcher.is_done()) {
            let everywhere: BTreeSet<usize> = (0..plan.operations())
                .filter(|operation| world.iter().all(|rank| rank.started.contains(operation))).collect();
            let moved = world[dice.below(ranks)].step(&everywhere, &mut dice);
            idle = if moved { 0 } else { idle + 1 };
            prop_assert!(idle < 1000, "the ranks stand still");
        }
    }

    /// All ranks come to the tensors in one order, each at another moment of what ends meanwhile. However little credit there is,
    /// everything that is ready everywhere ends without the next tensor.
    #[test]
    fn ranks_that_are_not_apart_never_stand_still(plan in plans(), ranks in 2usize..5, seed in any::<u64>()) {
        let mut dice = Dice(seed);
        let mut world: Vec<Rank> = (0..ranks).map(|_| Rank::new(&plan, &mut dice)).collect();
        world.iter_mut().for_each(|rank| rank.tensors.clear());
        let mut tensors: Vec<usize> = (0..plan.tensors()).collect();
        dice.shuffle(&mut tensors);
        for announced in 1..=tensors.len() {
            let mut order: Vec<usize> = (0..ranks).collect();
            dice.shuffle(&mut order);
            for rank in order {
                for _ in 0..dice.below(10) {
                    let other = dice.below(ranks);
                    step_one(&mut world, other, &plan, &mut dice);
                }
                world[rank].dispatcher.ready(tensors[announced - 1]);
            }
            // If nobody waits for the network.
            if dice.below(2) == 0 {
                continue;
            }
            while (0..ranks).filter(|&rank| step_one(&mut world, rank, &plan, &mut dice)).count() > 0 {}
            let complete = |bucket: &Bucket| bucket.tensors.iter().all(|tensor| tensors[..announced].contains(tensor));
            let ready = plan.partitions().enumerate().filter(|(_, (bucket, _))| complete(&plan.buckets[*bucket]));
            for (operation, _) in ready {
                let ended = world.iter().all(|rank| rank.finished.contains(&operation));
                prop_assert!(ended, "operation {operation} is ready on all ranks, and the ranks stand still");
            }
        }
    }
}

/// What one rank of a world does next. Returns whether it did anything.
fn step_one(world: &mut [Rank], rank: usize, plan: &Plan, dice: &mut Dice) -> bool {
    let started = |operation: &usize| world.iter().all(|rank| rank.started.contains(operation));
    let everywhere: BTreeSet<usize> = (0..plan.operations()).filter(started).collect();
    world[rank].step(&everywhere, dice)
}

/// A rank of a world in which operations end when all have started them.
struct Rank {
    dispatcher: Dispatcher,
    /// Not ready yet.
    tensors: Vec<usize>,
    started: BTreeSet<OperationNumber>,
    finished: BTreeSet<OperationNumber>,
}

impl Rank {
    fn new(plan: &Plan, dice: &mut Dice) -> Rank {
        let mut tensors: Vec<usize> = (0..plan.tensors()).collect();
        dice.shuffle(&mut tensors);
        let mut dispatcher = Dispatcher::new(plan);
        dispatcher.begin();
        Rank { dispatcher, tensors, started: BTreeSet::new(), finished: BTreeSet::new() }
    }

    /// Perhaps a tensor becomes ready, an operation starts, one ends. Returns whether anything happened.
    fn step(&mut self, everywhere: &BTreeSet<OperationNumber>, dice: &mut Dice) -> bool {
        let tensor = (dice.below(3) == 0).then(|| self.tensors.pop()).flatten();
        tensor.map(|tensor| self.dispatcher.ready(tensor));
        let starts = self.dispatcher.next();
        self.started.extend(starts);
        let ends: Vec<usize> = everywhere.difference(&self.finished).copied().collect();
        if !ends.is_empty() {
            let operation = ends[dice.below(ends.len())];
            self.dispatcher.finished(operation);
            self.finished.insert(operation);
        }
        tensor.is_some() || starts.is_some() || !ends.is_empty()
    }
}

/// Layers 0 and 1, of two partitions each, as backward comes to them: layer 1 first.
fn two_layers(credit: u64) -> Plan {
    plan(&[(1, 1, vec![10, 10]), (1, 0, vec![10, 10])], Some(credit))
}

fn started(dispatcher: &mut Dispatcher) -> Vec<OperationNumber> {
    std::iter::from_fn(|| dispatcher.next()).collect()
}

#[test]
fn an_urgent_layer_overtakes_what_has_not_started() {
    let mut dispatcher = Dispatcher::new(&two_layers(40));
    dispatcher.begin();
    assert_eq!(dispatcher.ready(0), Some(0));
    assert_eq!(started(&mut dispatcher), [0], "one partition of 40 bytes spends the credit");
    assert_eq!(dispatcher.finished(0), None);
    assert_eq!(dispatcher.ready(1), Some(1));
    assert_eq!(started(&mut dispatcher), [2], "the next layer's first partition before the rest of this one");
    assert_eq!(dispatcher.finished(2), None);
    assert_eq!(started(&mut dispatcher), [3]);
    assert_eq!(dispatcher.finished(3), Some(1), "layer 0 may compute while layer 1's gradient still waits");
    assert_eq!(started(&mut dispatcher), [1]);
    assert_eq!(dispatcher.finished(1), Some(0));
    assert!(dispatcher.is_done());
}

/// As soon as all ranks have a tensor, all have started its first operation, and may end it: none has spent its credit on
/// operations that others have not come to yet.
#[test]
fn what_is_less_urgent_and_in_flight_holds_nothing_up() {
    let mut dispatcher = Dispatcher::new(&two_layers(40));
    dispatcher.begin();
    dispatcher.ready(0);
    assert_eq!(started(&mut dispatcher), [0]);
    dispatcher.ready(1);
    assert_eq!(started(&mut dispatcher), [2], "layer 1's first half is in flight, and need not have ended");
    dispatcher.finished(0);
    assert_eq!(
        started(&mut dispatcher),
        [0; 0],
        "the credit is spent on what is more urgent than layer 1's other half"
    );
    dispatcher.finished(2);
    assert_eq!(started(&mut dispatcher), [3]);
    assert_eq!([0, 1, 2, 3].map(|operation| dispatcher.place(operation)), [2, 3, 0, 1]);
}

#[test]
fn a_worker_without_priorities_starts_in_the_order_of_the_plan() {
    let plan = Plan { server_priority_only: true, credit_bytes: None, ..two_layers(0) };
    let mut dispatcher = Dispatcher::new(&plan);
    dispatcher.begin();
    dispatcher.ready(0);
    dispatcher.ready(1);
    assert_eq!(started(&mut dispatcher), [0, 1, 2, 3]);
}

#[test]
#[should_panic(expected = "announced twice")]
fn a_tensor_is_announced_once() {
    let mut dispatcher = Dispatcher::new(&two_layers(80));
    dispatcher.begin();
    dispatcher.ready(0);
    dispatcher.ready(0);
}

#[test]
#[should_panic(expected = "have not finished")]
fn iterations_do_not_mix() {
    let mut dispatcher = Dispatcher::new(&two_layers(80));
    dispatcher.begin();
    dispatcher.begin();
}

#[test]
#[should_panic(expected = "operation 3 is not in flight")]
fn only_what_is_in_flight_can_finish() {
    let mut dispatcher = Dispatcher::new(&two_layers(80));
    dispatcher.begin();
    dispatcher.finished(3);
}

/// An iteration of BERT-Large's 400 tensors in pieces costs far less than 5 us per tensor, and no more per tensor for a
/// model of ten times as many. The fastest of several runs counts, as the machine may be busy.
#[test]
fn an_iteration_costs_little_per_tensor() {
    let per_tensor = |range: Range<usize>| -> Duration {
        let tensors = range.len();
        let buckets: Vec<_> = range.rev().map(|priority| (1, priority as u32, vec![1000, 1000])).collect();
        let plan = plan(&buckets, Some(16_000));
        let mut dispatcher = Dispatcher::new(&plan);
        let run = |_| {
            let started = Instant::now();
            let mut in_flight = std::collections::VecDeque::new();
            dispatcher.begin();
            for tensor in 0..tensors {
                dispatcher.ready(tensor);
                in_flight.extend(std::iter::from_fn(|| dispatcher.next()));
                // The network takes one operation in for two that become ready.
                in_flight.pop_front().map(|operation| dispatcher.finished(operation));
            }
            while let Some(operation) = in_flight.pop_front() {
                dispatcher.finished(operation);
                in_flight.extend(std::iter::from_fn(|| dispatcher.next()));
            }
            assert!(dispatcher.is_done());
            started.elapsed()
        };
        (0..20).map(run).min().unwrap_or_default() / tensors as u32
    };
    let (usual, many) = (per_tensor(0..400), per_tensor(0..4000));
    assert!(usual < Duration::from_micros(2), "{usual:?} per tensor");
    assert!(many < Duration::from_micros(2), "{many:?} per tensor");
}
