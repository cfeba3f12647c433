//! What an iteration takes where iterations overlap: no closed formula, so the plan is played on one channel.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_plan::{OperationNumber, Plan, Profile};

use crate::workload::{Forward, Workload};
use crate::{Dispatcher, ELEMENT_BYTES};

/// Iterations that are played. The first begins with an empty network; from the second on all are alike.
const ITERATIONS: usize = 3;

/// Seconds of one iteration among many, of workers that are all alike, on one channel that takes the most urgent of the
/// operations that the plan's [`Dispatcher`] has started, and `communication_s` seconds for each. The difference of the last
/// two of three iterations.
///
/// If the plan overlaps with the next forward pass, a layer's parameters are updated before their first use, each tensor
/// in its share of the optimiser's time; else everything waits for the last operation, and the result is that of
/// [`formula::one_channel`](crate::formula::one_channel). The profile must pass its [`check`](Profile::check).
pub fn steady_state_s(profile: &Profile, plan: &Plan, communication_s: &dyn Fn(u64) -> f64) -> f64 {
    let workload = Workload::of_profile(profile);
    played_s(&workload, &profile.ready_s(), &Forward::of_profile(profile), plan, communication_s)
}

/// The same for the orders and sizes of a workload, and these times of backward and forward.
pub(crate) fn played_s(
    workload: &Workload,
    ready_s: &[f64],
    forward: &Forward,
    plan: &Plan,
    communication_s: &dyn Fn(u64) -> f64,
) -> f64 {
    let mut channel = Channel::new(plan, communication_s);
    let mut bucket_of = vec![0; plan.tensors()];
    for (number, bucket) in plan.buckets.iter().enumerate() {
        bucket.tensors.iter().for_each(|&tensor| bucket_of[tensor] = number);
    }
    let update_share = forward.update_s / plan.elements().max(1) as f64;
    let mut now: f64 = 0.0;
    let mut ends = [0.0; ITERATIONS];
    for (iteration, end) in ends.iter_mut().enumerate() {
        let arrived = iteration > 0;
        if arrived && !plan.forward_overlap {
            now = (0..plan.buckets.len()).map(|bucket| channel.arrival_s(bucket)).fold(now, f64::max);
            now += forward.update_s;
        }
        let mut done_s: f64 = 0.0;
        for &tensor in &workload.used {
            let needed_s = forward.needed_s[tensor].clamp(done_s, forward.total_s.max(done_s));
            now += needed_s - std::mem::replace(&mut done_s, needed_s);
            if arrived && plan.forward_overlap {
                now = now.max(channel.arrival_s(bucket_of[tensor]));
                now += update_share * workload.sizes[tensor] as f64;
            }
        }
        now += (forward.total_s - done_s).max(0.0);
        channel.dispatcher.begin();
        let began = now;
        for &tensor in &workload.ready {
            now = now.max(began + ready_s[tensor]);
            channel.advance(now);
            channel.dispatcher.ready(tensor);
            channel.start(now);
        }
        *end = now;
    }
    ends[ITERATIONS - 1] - ends[ITERATIONS - 2]
}

/// Carries the most urgent of the operations that have started: what is less urgent makes way, and the rest of it comes later.
struct Channel<'a> {
    communication_s: &'a dyn Fn(u64) -> f64,
    bytes: Vec<u64>,
    dispatcher: Dispatcher,
    /// Started, and not under way, by place: the most urgent first.
    waiting: BinaryHeap<Reverse<(usize, OperationNumber)>>,
    /// Seconds that are left of those that wait.
    left_s: Vec<f64>,
    current: Option<Current>,
    /// By bucket: when it arrived last.
    arrived_s: Vec<f64>,
}

/// The operation that is under way, and when it ends.
#[derive(Clone, Copy)]
struct Current {
    place: usize,
    operation: OperationNumber,
    end_s: f64,
}

impl<'a> Channel<'a> {
    fn new(plan: &Plan, communication_s: &'a dyn Fn(u64) -> f64) -> Self {
        Channel {
            communication_s,
            bytes: plan.partitions().map(|(_, part)| part.elements.len() as u64 * ELEMENT_BYTES).collect(),
            dispatcher: Dispatcher::new(plan),
            waiting: BinaryHeap::new(),
            left_s: vec![0.0; plan.operations()],
            current: None,
            arrived_s: vec![0.0; plan.buckets.len()],
        }
    }

    /// Lets operations start, and the most urgent of all set off.
    fn start(&mut self, now: f64) {
        while let Some(operation) = self.dispatcher.next() {
            self.left_s[operation] = (self.communication_s)(self.bytes[operation]);
            self.waiting.push(Reverse((self.dispatcher.place(operation), operation)));
        }
        let Some(&Reverse((first, _))) = self.waiting.peek() else { return };
        if let Some(Current { place, operation, end_s }) = self.current.take_if(|current| first < current.place) {
            self.left_s[operation] = end_s - now;
            self.waiting.push(Reverse((place, operation)));
        }
        if self.current.is_none() {
            let next = self.waiting.pop();
            self.current = next.map(|Reverse((place, operation))| Current {
                place,
                operation,
                end_s: now + self.left_s[operation],
            });
        }
    }

    /// Lets everything happen that happens until then.
    fn advance(&mut self, until: f64) {
        while let Some(Current { operation, end_s, .. }) = self.current.take_if(|current| current.end_s <= until) {
            if let Some(bucket) = self.dispatcher.finished(operation) {
                self.arrived_s[bucket] = end_s;
            }
            self.start(end_s);
        }
    }

    /// When a bucket of the last iteration arrives, or did.
    fn arrival_s(&mut self, bucket: usize) -> f64 {
        while !self.dispatcher.has_arrived(bucket) {
            let Some(Current { end_s, .. }) = self.current else { break };
            self.advance(end_s);
        }
        self.arrived_s[bucket]
    }
}
