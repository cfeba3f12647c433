//! The gradients' way between the ranks: arena, buckets, all-reduce.

use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Origin, Pending};
use paceline_plan::{Plan, Reduction, TensorId};
use paceline_schedule::Dispatcher;

use crate::backend::{GradientSink, SinkClosed};

/// The gradients of one rank. They lie in one arena in plan order; a bucket is a range of it.
///
/// An update is one or more passes of forward and backward. Each gradient is weighted and copied (first pass) or added
/// (later passes) into the arena as backward announces it. In the last pass a bucket sets off as soon as its last gradient
/// is in, while backward goes on. All-reduce by sum then gives the mean over the joined batch, as the weights are shares
/// of it.
pub(crate) struct Exchange {
    communicator: Communicator,
    plan: Plan,
    algorithm: Option<String>,
    /// By tensor.
    places: Vec<Place>,
    dispatcher: Dispatcher,
    /// By bucket.
    gradients: Vec<Gradients>,
    /// Updates so far; makes the operations' ids.
    updates: u64,
    pass: Pass,
    in_communicator: Duration,
    failure: Option<CommError>,
}

/// One pass of forward and backward within an update.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// This rank's share of the samples of the update.
    pub(crate) weight: f32,
    /// Whether the arena holds nothing of this update yet.
    pub(crate) first: bool,
    /// Whether the gradients set off.
    pub(crate) last: bool,
}

/// Where a tensor lies.
struct Place {
    bucket: usize,
    /// Within the bucket.
    elements: Range<usize>,
}

enum Gradients {
    Here(Buffer<f32>),
    Travelling(Pending<f32>),
    /// Their operation failed.
    Lost,
}

impl Gradients {
    fn insert(&mut self, buffer: Buffer<f32>) -> &Buffer<f32> {
        *self = Gradients::Here(buffer);
        match self {
            Gradients::Here(buffer) => buffer,
            _ => unreachable!("set above"),
        }
    }
}

impl Exchange {
    /// `sizes`: elements of each tensor.
    pub(crate) fn new(
        communicator: Communicator,
        plan: Plan,
        sizes: &[usize],
        algorithm: Option<String>,
    ) -> Result<Self, CommError> {
        let arena = communicator.alloc::<f32>(plan.elements())?;
        let lengths: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.elements.len()).collect();
        let buffers = arena.split(&lengths);
        Ok(Exchange {
            communicator,
            places: places(&plan, sizes),
            dispatcher: Dispatcher::new(&plan),
            gradients: buffers.into_iter().map(Gradients::Here).collect(),
            plan,
            algorithm,
            updates: 0,
            pass: Pass::default(),
            in_communicator: Duration::ZERO,
            failure: None,
        })
    }

    /// Announces the pass whose gradients come next.
    pub(crate) fn begin(&mut self, pass: Pass) {
        self.updates += u64::from(pass.first);
        self.pass = pass;
        if pass.last {
            self.dispatcher.begin();
        }
    }

    /// Announces that this rank has no sample in the pass: every gradient is zeros.
    pub(crate) fn nothing(&mut self) -> Result<(), SinkClosed> {
        (0..self.places.len()).try_for_each(|tensor| self.ready(tensor, None))
    }

    /// After the last pass: waits until bucket `number` has arrived; its tensors with their reduced gradients.
    pub(crate) fn wait(&mut self, number: usize) -> Result<impl Iterator<Item = (TensorId, &[f32])>, CommError> {
        let bucket = &mut self.gradients[number];
        let Gradients::Travelling(pending) = mem::replace(bucket, Gradients::Lost) else {
            unreachable!("every bucket sets off in the last pass");
        };
        let called = Instant::now();
        let arrived = pending.wait();
        self.in_communicator += called.elapsed();
        self.dispatcher.finished(number);
        let buffer = bucket.insert(arrived?);
        let tensors = self.plan.buckets[number].tensors.iter();
        Ok(tensors.map(|&tensor| (tensor, &buffer[self.places[tensor].elements.clone()])))
    }

    /// Why the sink closed, if it did.
    pub(crate) fn take_failure(&mut self) -> Option<CommError> {
        self.failure.take()
    }

    /// The time that the calling thread has spent in the communicator since this was last asked.
    pub(crate) fn take_time_in_communicator(&mut self) -> Duration {
        mem::take(&mut self.in_communicator)
    }

    /// All-reduces a full bucket. Every rank gives the operation the same id, as ranks without a sample start their
    /// buckets in another order.
    fn depart(&mut self, number: usize) -> Result<(), CommError> {
        let Gradients::Here(buffer) = mem::replace(&mut self.gradients[number], Gradients::Lost) else {
            unreachable!("a bucket is full once per update");
        };
        let options = CallOptions {
            algorithm: self.algorithm.clone(),
            priority: self.plan.buckets[number].priority,
            operation: Some(self.updates * self.plan.buckets.len() as u64 + number as u64),
            plan_version: self.plan.version,
            tag: number as u64,
            origin: if self.plan.buckets[number].tensors.len() > 1 { Origin::Fused } else { Origin::Layer },
            ..CallOptions::default()
        };
        let called = Instant::now();
        let pending = self.communicator.start_all_reduce(buffer, Reduction::Sum, &options);
        self.in_communicator += called.elapsed();
        self.gradients[number] = Gradients::Travelling(pending?);
        Ok(())
    }
}

impl GradientSink for Exchange {
    fn ready(&mut self, tensor: TensorId, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        let Place { bucket, elements } = &self.places[tensor];
        if let Gradients::Here(buffer) = &mut self.gradients[*bucket] {
            store(gradient, self.pass, &mut buffer[elements.clone()]);
        }
        if self.pass.last {
            self.dispatcher.ready(tensor);
            while let Some(full) = self.dispatcher.next() {
                self.depart(full).map_err(|failure| {
                    self.failure = Some(failure);
                    SinkClosed
                })?;
            }
        }
        Ok(())
    }
}

/// The one copy of a gradient: weighted, into its place.
fn store(gradient: Option<&[f32]>, Pass { weight, first, .. }: Pass, place: &mut [f32]) {
    match gradient {
        Some(gradient) if first => place.iter_mut().zip(gradient).for_each(|(sum, value)| *sum = weight * value),
        Some(gradient) => place.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += weight * value),
        None if first => place.fill(0.0),
        None => {}
    }
}

fn places(plan: &Plan, sizes: &[usize]) -> Vec<Place> {
    let mut places: Vec<Place> = sizes.iter().map(|_| Place { bucket: 0, elements: 0..0 }).collect();
    for (number, bucket) in plan.buckets.iter().enumerate() {
        let mut start = 0;
        for &tensor in &bucket.tensors {
            places[tensor] = Place { bucket: number, elements: start..start + sizes[tensor] };
            start += sizes[tensor];
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use paceline_schedule::{Workload, plan};
    use paceline_strategy::Registry;

    use super::*;

    /// The exchanges of two ranks, for tensors of 2, 3 and 1 elements that travel by themselves.
    fn exchanges(algorithm: Option<&str>) -> [Exchange; 2] {
        let sizes = [2, 3, 1];
        let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
        let plan = plan(&strategy, &Workload::of_sizes(&sizes)).unwrap();
        let communicators: [Communicator; 2] = Communicator::threads(2).unwrap().try_into().ok().unwrap();
        communicators.map(|communicator| {
            Exchange::new(communicator, plan.clone(), &sizes, algorithm.map(str::to_owned)).unwrap()
        })
    }

    const ONLY: Pass = Pass { weight: 0.5, first: true, last: true };

    #[test]
    fn a_bucket_arrives_while_backward_goes_on() {
        let ranks = exchanges(None).map(|mut exchange| {
            thread::spawn(move || {
                exchange.begin(ONLY);
                exchange.ready(2, Some(&[3.0])).unwrap();
                // Neither rank announces another tensor; the first bucket of the plan holds tensor 2.
                let arrived = exchange.wait(0).unwrap().map(|(tensor, gradient)| (tensor, gradient.to_vec()));
                assert_eq!(arrived.collect::<Vec<_>>(), [(2, vec![3.0])]);
            })
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }

    #[test]
    fn time_in_the_communicator_is_that_of_waiting() {
        const LATE: Duration = Duration::from_millis(100);
        let [mut first, mut second] = exchanges(None);
        let (waits, rank_0_waits) = mpsc::channel();
        let late = thread::spawn(move || {
            second.begin(ONLY);
            rank_0_waits.recv().unwrap();
            thread::sleep(LATE);
            second.nothing().unwrap();
            (0..3).for_each(|bucket| assert_eq!(second.wait(bucket).unwrap().count(), 1));
        });
        first.begin(ONLY);
        first.nothing().unwrap();
        waits.send(()).unwrap();
        (0..3).for_each(|bucket| assert_eq!(first.wait(bucket).unwrap().count(), 1));
        // Most of it: this thread may have come late to the wait.
        let told = first.take_time_in_communicator();
        assert!(told >= LATE / 2, "rank 0 has waited for rank 1, and says {told:?}");
        assert_eq!(first.take_time_in_communicator(), Duration::ZERO, "it is taken once");
        late.join().unwrap();
    }

    #[test]
    fn the_named_algorithm_is_the_one_that_is_asked_for() {
        let [mut exchange, other] = exchanges(Some("rign"));
        drop(other);
        exchange.begin(ONLY);
        assert_eq!(exchange.ready(2, None), Err(SinkClosed));
        let failure = exchange.take_failure().unwrap();
        assert!(matches!(failure, CommError::Algorithm(_)), "{failure:?}");
    }

    #[test]
    fn ranks_may_announce_in_different_orders() {
        let ranks = exchanges(None).map(|mut exchange| {
            thread::spawn(move || {
                for update in 1..=3 {
                    let value = update as f32;
                    exchange.begin(ONLY);
                    if exchange.communicator.rank() == 0 {
                        exchange.nothing().unwrap();
                    } else {
                        exchange.ready(2, Some(&[value])).unwrap();
                        exchange.ready(1, Some(&[value, -value, 0.0])).unwrap();
                        exchange.ready(0, Some(&[8.0, 2.0 * value])).unwrap();
                    }
                    let mut sums = vec![Vec::new(); 3];
                    for bucket in 0..3 {
                        exchange.wait(bucket).unwrap().for_each(|(tensor, gradient)| sums[tensor] = gradient.to_vec());
                    }
                    assert_eq!(sums, [vec![4.0, value], vec![value / 2.0, -value / 2.0, 0.0], vec![value / 2.0]]);
                }
            })
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }

    #[test]
    fn passes_add_up_and_only_the_last_sets_off() {
        let ranks = exchanges(None).map(|mut exchange| {
            thread::spawn(move || {
                exchange.begin(Pass { weight: 0.25, first: true, last: false });
                exchange.ready(2, Some(&[4.0])).unwrap();
                exchange.ready(1, None).unwrap();
                exchange.ready(0, Some(&[0.0, 8.0])).unwrap();
                assert!(exchange.gradients.iter().all(|gradients| matches!(gradients, Gradients::Here(_))));
                exchange.begin(Pass { weight: 0.25, first: false, last: true });
                exchange.ready(2, None).unwrap();
                exchange.ready(1, Some(&[4.0; 3])).unwrap();
                exchange.ready(0, Some(&[4.0, 4.0])).unwrap();
                let sums: Vec<Vec<f32>> = (0..3)
                    .flat_map(|bucket| exchange.wait(bucket).unwrap().map(|(_, g)| g.to_vec()).collect::<Vec<_>>())
                    .collect();
                assert_eq!(sums, [vec![2.0], vec![2.0; 3], vec![2.0, 6.0]]);
            })
        });
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}
