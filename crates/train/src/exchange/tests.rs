use std::sync::mpsc;
use std::thread;

use paceline_comm::Communicator;
use paceline_schedule::{Workload, plan};
use paceline_strategy::Registry;

use super::*;
use crate::peers::Peers;

/// Tensors of 2, 3 and 1 elements that travel by themselves.
const SIZES: [usize; 3] = [2, 3, 1];

fn exchange(communicator: Communicator, plan: Plan, algorithm: Option<&str>) -> Result<Exchange, TrainError> {
    let carrier = Carrier::new(Peers::AllToAll(communicator), algorithm.map(str::to_owned));
    Exchange::new(carrier, plan, &[], &SIZES, &Handicap::default())
}

/// The exchanges of two ranks, each of whose operations takes a start-up time of its own.
fn with_start_up(start_up: Duration, slowed: f64) -> [Exchange; 2] {
    let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
    let plan = plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap();
    let communicators: [Communicator; 2] = Communicator::threads(2).unwrap().try_into().ok().unwrap();
    let handicap = Handicap { start_up: Some(start_up), slowed };
    communicators.map(|workers| {
        let carrier = Carrier::new(Peers::AllToAll(workers), None);
        Exchange::new(carrier, plan.clone(), &[], &SIZES, &handicap).unwrap()
    })
}

/// The exchanges of two ranks.
fn exchanges(change: impl Fn(&mut Plan)) -> [Exchange; 2] {
    let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
    let mut plan = plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap();
    change(&mut plan);
    let communicators: [Communicator; 2] = Communicator::threads(2).unwrap().try_into().ok().unwrap();
    communicators.map(|communicator| exchange(communicator, plan.clone(), None).unwrap())
}

/// Waits for a tensor's sums.
fn sums(exchange: &mut Exchange, tensor: TensorId) -> Vec<f32> {
    exchange.wait(tensor).unwrap();
    let mut sums = vec![f32::NAN; SIZES[tensor]];
    exchange.read(tensor, |start, part| sums[start..start + part.len()].copy_from_slice(part));
    sums
}

fn on_both(exchanges: [Exchange; 2], rank: impl Fn(usize, Exchange) + Send + Sync) {
    thread::scope(|scope| {
        let rank = &rank;
        let ranks =
            exchanges.into_iter().enumerate().map(|(number, exchange)| scope.spawn(move || rank(number, exchange)));
        ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
    });
}

const ONLY: Pass = Pass { weight: 0.5, first: true, last: true };

#[test]
fn a_bucket_arrives_while_backward_goes_on() {
    on_both(exchanges(|plan| plan.forward_overlap = true), |_, mut exchange| {
        exchange.begin(ONLY);
        exchange.ready(2, Some(&[3.0])).unwrap();
        // Neither rank has announced another tensor.
        assert_eq!(sums(&mut exchange, 2), [3.0]);
        exchange.ready(0, None).unwrap();
        exchange.ready(1, None).unwrap();
        exchange.wait_for_all().unwrap();
    });
}

#[test]
fn costs_are_those_of_waiting() {
    // Long beside what a busy machine keeps a thread waiting.
    const LATE: Duration = Duration::from_secs(1);
    let [mut first, mut second] = exchanges(|_| ());
    let (waits, rank_0_waits) = mpsc::channel();
    let late = thread::spawn(move || {
        second.begin(ONLY);
        rank_0_waits.recv().unwrap();
        thread::sleep(LATE);
        second.nothing().unwrap();
        assert_eq!(sums(&mut second, 0), [0.0; 2]);
    });
    first.begin(ONLY);
    first.nothing().unwrap();
    let began = Instant::now();
    waits.send(()).unwrap();
    // This thread may come late to the wait.
    let came_late = began.elapsed();
    let held_up = first.wait(1).unwrap();
    assert_eq!(first.wait(0).unwrap(), Duration::ZERO, "all have arrived");
    let costs = first.take_costs();
    let waited = held_up + came_late >= LATE / 2;
    assert!(waited && costs.in_communicator >= held_up, "held up for {held_up:?}, {came_late:?} late, and {costs:?}");
    assert!(costs.scheduling > Duration::ZERO && costs.scheduling < held_up, "{costs:?}");
    assert_eq!(first.take_costs(), Costs::default(), "they are taken once");
    late.join().unwrap();
}

/// Whoever asks what an epoch has cost knows of no plans.
#[test]
fn costs_are_carried_over_to_another_plan() {
    let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
    let plan = plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap();
    let mut exchange = exchange(Communicator::solo().unwrap(), plan.clone(), None).unwrap();
    (exchange.waiting, exchange.scheduling) = (Duration::from_secs(5), Duration::from_secs(7));
    exchange.replan(None, Plan { version: 2, ..plan }, &[], &SIZES, &Handicap::default()).unwrap();
    let costs = exchange.take_costs();
    assert!(costs.in_communicator >= Duration::from_secs(5) && costs.scheduling >= Duration::from_secs(7), "{costs:?}");
}

#[test]
fn an_algorithm_that_there_is_not_is_named() {
    let strategy = Registry::built_in().parse("wfbp-a2a").unwrap();
    let plan = plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap();
    let error = exchange(Communicator::solo().unwrap(), plan, Some("rign")).err().unwrap().to_string();
    assert!(error.contains("`rign`"), "{error}");
}

/// Credit for one tensor at a time, most urgent first.
fn one_at_a_time(plan: &mut Plan) {
    plan.credit_bytes = Some(1);
    plan.forward_overlap = true;
    for bucket in &mut plan.buckets {
        bucket.priority = bucket.tensors[0] as u32;
    }
}

#[test]
fn ranks_may_announce_in_different_orders() {
    let changes: [fn(&mut Plan); 2] = [|_| (), one_at_a_time];
    for change in changes {
        on_both(exchanges(change), |rank, mut exchange| {
            for update in 1..=3 {
                let value = update as f32;
                exchange.begin(ONLY);
                if rank == 0 {
                    exchange.nothing().unwrap();
                } else {
                    exchange.ready(2, Some(&[value])).unwrap();
                    exchange.ready(1, Some(&[value, -value, 0.0])).unwrap();
                    exchange.ready(0, Some(&[8.0, 2.0 * value])).unwrap();
                }
                let sums = [0, 1, 2].map(|tensor| sums(&mut exchange, tensor));
                assert_eq!(sums, [vec![4.0, value], vec![value / 2.0, -value / 2.0, 0.0], vec![value / 2.0]]);
            }
        });
    }
}

/// The first operation takes all credit of a rank. It ends while the rank computes: the next one is started all the
/// same.
#[test]
fn credit_is_released_while_the_trainer_computes() {
    on_both(exchanges(one_at_a_time), |_, mut exchange| {
        exchange.begin(ONLY);
        for tensor in [2, 1, 0] {
            exchange.ready(tensor, None).unwrap();
        }
        let until = Instant::now() + Duration::from_secs(20);
        while !(0..3).all(|operation| exchange.operations.has_ended(operation)) {
            assert!(Instant::now() < until, "nobody has started the operations that waited for credit");
            thread::sleep(Duration::from_millis(1));
        }
        exchange.wait_for_all().unwrap();
    });
}

/// One rank has started one tensor, and the other another one: neither can end before both have started both.
#[test]
fn ranks_that_start_differently_do_not_wait_for_each_other() {
    on_both(exchanges(one_at_a_time), |rank, mut exchange| {
        exchange.begin(ONLY);
        exchange.ready(1 + rank, None).unwrap();
        thread::sleep(Duration::from_millis(5));
        exchange.ready(2 - rank, None).unwrap();
        // Backward is not over.
        assert_eq!(sums(&mut exchange, 1), [0.0; 3]);
        assert_eq!(sums(&mut exchange, 2), [0.0]);
        exchange.ready(0, None).unwrap();
        exchange.wait_for_all().unwrap();
    });
}

/// How long this thread has had a processor, or could have used one; nothing where the system does not say.
fn runnable() -> Duration {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let times = status.split_whitespace().take(2).filter_map(|nanoseconds| nanoseconds.parse().ok());
    times.map(Duration::from_nanos).sum()
}

#[test]
fn a_start_up_time_passes_before_each_operation() {
    // Long beside what a busy machine keeps a thread waiting.
    const EACH: Duration = Duration::from_millis(400);
    on_both(with_start_up(EACH, 2.0), |_, mut exchange| {
        let (began, runnable) = (Instant::now(), runnable());
        exchange.begin(ONLY);
        exchange.nothing().unwrap();
        // However long this thread had to wait for a processor.
        let asleep = began.elapsed().saturating_sub(self::runnable().saturating_sub(runnable));
        assert!(asleep < EACH, "the trainer waits for start-up times: {asleep:?}");
        exchange.wait_for_all().unwrap();
        assert!(began.elapsed() >= 2 * 3 * EACH, "three operations took {:?}", began.elapsed());
    });
}

/// Each travels alone, so that two ranks that have started different ones wait until they lose patience: no longer each time.
#[test]
fn patience_does_not_grow_with_each_loss_of_it() {
    const LEAST: Duration = Duration::from_millis(20);
    on_both(with_start_up(Duration::from_millis(1), 1.0), |rank, mut exchange| {
        for first in [[1, 1], [1, 2], [2, 1], [1, 2], [2, 1]] {
            exchange.begin(ONLY);
            exchange.ready(first[rank], None).unwrap();
            // The first one's start-up is over.
            thread::sleep(Duration::from_millis(5));
            exchange.ready(3 - first[rank], None).unwrap();
            exchange.ready(0, None).unwrap();
            exchange.wait_for_all().unwrap();
        }
        // An operation that nothing keeps takes less than a fiftieth of this on an idle machine.
        let patience = exchange.operations.lock().patience(LEAST);
        assert!(patience < 3 * LEAST, "{patience:?} after four losses of {LEAST:?} each");
    });
}

#[test]
fn passes_add_up_and_only_the_last_sets_off() {
    on_both(exchanges(|_| ()), |_, mut exchange| {
        exchange.begin(Pass { weight: 0.25, first: true, last: false });
        exchange.ready(2, Some(&[4.0])).unwrap();
        exchange.ready(1, None).unwrap();
        exchange.ready(0, Some(&[0.0, 8.0])).unwrap();
        assert!((0..3).all(|operation| !exchange.operations.is_travelling(operation)));
        exchange.begin(Pass { weight: 0.25, first: false, last: true });
        exchange.ready(2, None).unwrap();
        exchange.ready(1, Some(&[4.0; 3])).unwrap();
        exchange.ready(0, Some(&[4.0, 4.0])).unwrap();
        let sums = [2, 1, 0].map(|tensor| sums(&mut exchange, tensor));
        assert_eq!(sums, [vec![2.0], vec![2.0; 3], vec![2.0, 6.0]]);
    });
}

/// A tensor in three operations, the last of which it shares.
#[test]
fn a_tensor_may_lie_in_several_operations() {
    let cut = |plan: &mut Plan| {
        let whole = paceline_plan::Bucket::whole(vec![1, 0, 2], 0..6);
        let partition = |elements| paceline_plan::Partition { elements, shard: None };
        let partitions = vec![partition(0..1), partition(1..2), partition(2..6)];
        plan.buckets = vec![paceline_plan::Bucket { partitions, ..whole }];
    };
    on_both(exchanges(cut), |_, mut exchange| {
        for update in 0..2 {
            exchange.begin(ONLY);
            exchange.ready(2, Some(&[1.0])).unwrap();
            let written = exchange.write(1, &mut |start, place| {
                place.iter_mut().enumerate().for_each(|(index, value)| *value = (start + index + update) as f32);
            });
            assert_eq!(written, Ok(true));
            exchange.ready(0, Some(&[7.0, 9.0])).unwrap();
            let first = 2.0 * update as f32;
            assert_eq!(sums(&mut exchange, 1), [first, first + 2.0, first + 4.0]);
            assert_eq!((sums(&mut exchange, 0), sums(&mut exchange, 2)), (vec![7.0, 9.0], vec![1.0]));
        }
    });
}
