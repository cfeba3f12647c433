use std::rc::Rc;

use paceline_plan::{OperationNumber, Profile, TensorId};
use paceline_schedule::Dispatcher;

use super::{Announce, Lane, Training, WorkerClass};

/// How far a worker, or all those of a class, are in what they do in every iteration.
#[derive(Clone)]
pub(super) struct Progress {
    script: Rc<[Action]>,
    /// What of it is next.
    next: usize,
    pub dispatcher: Dispatcher,
    /// A bucket that has not arrived.
    waits_for: Option<usize>,
    /// Backward passes that have begun.
    pub passes: u32,
}

/// What a simulator has to do for a script to go on.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// An iteration begins.
    Start,
    /// Let so many seconds pass, on average, before it goes on.
    Compute { seconds: f64, lane: Lane, tensor: Option<TensorId> },
    /// The dispatcher may have operations to begin.
    Dispatch,
}

impl Progress {
    /// Of a class, before its first iteration.
    pub fn new(training: &Training<'_>, class: &WorkerClass<'_>) -> Progress {
        Progress {
            script: script(training, class).into(),
            next: 0,
            dispatcher: Dispatcher::new(training.plan),
            waits_for: None,
            passes: 0,
        }
    }

    /// Goes on until there is something to do. None: it waits for a bucket.
    pub fn go_on(&mut self) -> Option<Next> {
        loop {
            let action = self.script[self.next % self.script.len()];
            if let Action::Wait { bucket } = action
                && !self.dispatcher.has_arrived(bucket)
            {
                self.waits_for = Some(bucket);
                return None;
            }
            self.next += 1;
            match action {
                Action::Start => return Some(Next::Start),
                Action::Compute { seconds, lane, tensor } => return Some(Next::Compute { seconds, lane, tensor }),
                Action::Wait { .. } => {}
                Action::Backward => {
                    self.passes += 1;
                    self.dispatcher.begin();
                }
                Action::Ready { tensor } => {
                    if self.dispatcher.ready(tensor).is_some() {
                        return Some(Next::Dispatch);
                    }
                }
            }
        }
    }

    /// An operation has ended. Has that been waited for, so that the script goes on?
    pub fn finished(&mut self, operation: OperationNumber) -> bool {
        let bucket = self.dispatcher.finished(operation);
        let wakes = bucket.is_some() && self.waits_for == bucket;
        if wakes {
            self.waits_for = None;
        }
        wakes
    }
}

/// What the workers of a class do in an iteration, one thing after the other.
#[derive(Clone, Copy)]
enum Action {
    /// An iteration begins.
    Start,
    /// Computes so long, on average.
    Compute { seconds: f64, lane: Lane, tensor: Option<TensorId> },
    /// Waits until a bucket of the iteration before has arrived.
    Wait { bucket: usize },
    /// Backward begins.
    Backward,
    /// A gradient is final.
    Ready { tensor: TensorId },
}

/// The script of a class.
///
/// With overlap, forward waits layer by layer and updates each tensor before its first use, in its share of the optimiser's
/// time; otherwise everything arrives and is updated before the iteration ends.
fn script(training: &Training<'_>, class: &WorkerClass<'_>) -> Vec<Action> {
    let mut writer = Writer { training, class, actions: vec![Action::Start] };
    if training.plan.forward_overlap {
        writer.overlapped_forward();
    } else {
        writer.compute(class.profile.forward_s(), Lane::Forward, None);
    }
    writer.backward();
    if !training.plan.forward_overlap {
        for bucket in 0..training.plan.buckets.len() {
            writer.arrival(bucket);
        }
        writer.update(training.plan.elements());
    }
    writer.actions
}

struct Writer<'a> {
    training: &'a Training<'a>,
    class: &'a WorkerClass<'a>,
    actions: Vec<Action>,
}

impl Writer<'_> {
    fn compute(&mut self, seconds: f64, lane: Lane, tensor: Option<TensorId>) {
        if seconds > 0.0 {
            self.actions.push(Action::Compute { seconds: seconds * self.class.slowness, lane, tensor });
        }
    }

    fn arrival(&mut self, bucket: usize) {
        self.actions.push(Action::Wait { bucket });
        if let Some(coding) = self.training.coding.get(bucket) {
            self.compute(coding.decode_s, Lane::Decode, None);
        }
    }

    /// Updates so many elements.
    fn update(&mut self, elements: usize) {
        if !self.training.servers_update {
            let share = elements as f64 / self.training.plan.elements().max(1) as f64;
            self.compute(self.class.profile.update_s * share, Lane::Update, None);
        }
    }

    fn overlapped_forward(&mut self) {
        let Profile { tensors, forward, .. } = self.class.profile;
        let bucket_of = self.bucket_of();
        let mut arrived = vec![false; self.training.plan.buckets.len()];
        let mut updated = vec![false; tensors.len()];
        for step in forward {
            if !std::mem::replace(&mut updated[step.tensor], true) {
                let bucket = bucket_of[step.tensor];
                if !std::mem::replace(&mut arrived[bucket], true) {
                    self.arrival(bucket);
                }
                self.update(tensors[step.tensor].elements);
            }
            self.compute(step.seconds, Lane::Forward, Some(step.tensor));
        }
    }

    fn backward(&mut self) {
        let Profile { tensors, backward, .. } = self.class.profile;
        let coding = self.training.coding;
        let bucket_of = if coding.is_empty() { Vec::new() } else { self.bucket_of() };
        let mut missing: Vec<usize> = self.training.plan.buckets.iter().map(|bucket| bucket.tensors.len()).collect();
        let mut last = vec![0; tensors.len()];
        backward.iter().enumerate().for_each(|(index, step)| last[step.tensor] = index);
        self.actions.push(Action::Backward);
        let mut held = Vec::new();
        for (index, step) in backward.iter().enumerate() {
            self.compute(step.seconds, Lane::Backward, Some(step.tensor));
            if last[step.tensor] != index {
                continue;
            }
            if let Some(&bucket) = bucket_of.get(step.tensor) {
                missing[bucket] -= 1;
                if let (0, Some(coding)) = (missing[bucket], coding.get(bucket)) {
                    self.compute(coding.encode_s, Lane::Encode, None);
                }
            }
            let ready = Action::Ready { tensor: step.tensor };
            match self.training.announce {
                Announce::AsReady => self.actions.push(ready),
                Announce::AfterBackward => held.push(ready),
            }
        }
        self.actions.extend(held);
    }

    /// By tensor.
    fn bucket_of(&self) -> Vec<usize> {
        let mut bucket_of = vec![0; self.training.plan.tensors()];
        for (number, bucket) in self.training.plan.buckets.iter().enumerate() {
            bucket.tensors.iter().for_each(|&tensor| bucket_of[tensor] = number);
        }
        bucket_of
    }
}
