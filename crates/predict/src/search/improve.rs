//! Changes the best plans bucket by bucket, as long as they get better.

use std::cell::Cell;

use paceline_plan::{Plan, TensorId};
use paceline_schedule::{Schedule, lay_out, urgency};

use super::{BoundedWay, Candidate, Found, TIE};
use crate::Prediction;

/// So many ways are improved on, the best ones, and on each so many plans.
const WAYS: usize = 3;
const PLANS: usize = 2;

/// And the best of each other place that is behind by no more than this share: several stages work at once there, so that cutting
/// buckets brings more than all-to-all.
const BEHIND: f64 = 0.05;

/// Into more pieces than this no bucket is cut.
const CUTS_MAX: usize = 256;

/// A plan of more operations than this counts as several: simulating it takes as many times as long.
const OPERATIONS: usize = 512;

/// Improves the plans of the best candidates, if the schedule is open. What is predicted is shared out among them; what one
/// leaves, the next has.
pub(super) fn improve(ways: &[BoundedWay], found: &mut Found) {
    let Some(space) = ways.first().map(|way| way.subject.question.space) else { return };
    if space.strategy.schedule.name != "auto" || ways[0].subject.question.workers == 1 {
        return;
    }
    let (best, others) = starts(ways, found);
    let mut left = space.effort;
    for (number, (way, start)) in best.iter().chain(&others).enumerate() {
        // The best ways share all of it, and other places what these leave.
        let share = left / best.len().saturating_sub(number).max(1);
        left -= share;
        left += climb(way, start, found, share);
    }
}

/// Plans to begin with, each on its way.
type Starts<'w, 'a> = Vec<(&'w BoundedWay<'a>, Plan)>;

/// The best candidates of the best ways, and of the best one of each other place: on each way the best with overlap and the best
/// without.
fn starts<'w, 'a>(ways: &'w [BoundedWay<'a>], found: &Found) -> (Starts<'w, 'a>, Starts<'w, 'a>) {
    let mut ranked: Vec<&Candidate> = found.candidates.iter().collect();
    ranked.sort_by(|one, other| other.prediction.samples_per_s.total_cmp(&one.prediction.samples_per_s));
    let (mut best, mut others): (Starts, Starts) = (Vec::new(), Vec::new());
    let mut of_ways: Vec<&BoundedWay> = Vec::new();
    let near = ranked.first().map_or(0.0, |best| best.prediction.samples_per_s * (1.0 - BEHIND));
    for candidate in ranked {
        let Some(way) = ways.iter().find(|way| way.has(candidate)) else { continue };
        let known = of_ways.iter().position(|known| std::ptr::eq(*known, way));
        let of_new_place = || of_ways.iter().all(|known| known.way.place() != way.way.place());
        if known.is_none() && of_ways.len() >= WAYS && !(candidate.prediction.samples_per_s >= near && of_new_place()) {
            continue;
        }
        let place = known.unwrap_or(of_ways.len());
        if known.is_none() {
            of_ways.push(way);
        }
        let starts = if place < WAYS { &mut best } else { &mut others };
        let plan = &candidate.prediction.plan;
        let mut here = starts.iter().filter(|(other, _)| std::ptr::eq(*other, way));
        if here.clone().count() < PLANS && !here.any(|(_, other)| other.forward_overlap == plan.forward_overlap) {
            starts.push((way, plan.clone()));
        }
    }
    (best, others)
}

impl BoundedWay<'_> {
    /// Is a candidate on this way, wherever servers want buckets to be cut?
    fn has(&self, candidate: &Candidate) -> bool {
        let mut own = self.way.uncut().arch;
        let mut other = candidate.strategy.arch.clone();
        if self.way.shards > 0 {
            if own.arguments.len() > 1 {
                own.arguments.remove(1);
            }
            if other.arguments.len() > 1 {
                other.arguments.remove(1);
            }
        }
        let same_links = self.way.strategy.protocol == candidate.strategy.protocol;
        own == other && same_links && self.subject.profile.local_batch == candidate.local_batch
    }
}

/// From a plan to a better neighbour, and from that on, until none is better or the share is used up. What is left of it.
fn climb(way: &BoundedWay, start: &Plan, found: &mut Found, share: usize) -> usize {
    let strategy = way.way.uncut();
    let costs = &way.costs;
    let cost = |bytes| costs.seconds(bytes);
    let workload = way.workload(&cost);
    let may_overlap = way.subject.question.space.forward_overlap;
    let left = Cell::new(share);
    let predict = |schedule: &Schedule| -> Option<Prediction> {
        left.set(left.get().checked_sub(effort(schedule))?);
        let plan = lay_out(&strategy, schedule, &workload).ok()?;
        way.estimate(&plan).ok()
    };
    let mut current = of_plan(start);
    let Some(mut best) = predict(&current) else { return left.get() };
    loop {
        let affordable = |_: &Schedule| left.get() > 0;
        let better = neighbours(&current, may_overlap).take_while(affordable).find_map(|mut neighbour| {
            neighbour.priorities = priorities(&neighbour, &workload.used);
            let prediction = predict(&neighbour)?;
            (prediction.iteration_s < best.iteration_s * (1.0 - TIE)).then_some((neighbour, prediction))
        });
        match better {
            Some((neighbour, prediction)) => (current, best) = (neighbour, prediction),
            None => break,
        }
    }
    found.add(way, strategy.clone(), best);
    left.get()
}

/// As how many plans of few operations a schedule counts.
fn effort(schedule: &Schedule) -> usize {
    1 + schedule.cuts.iter().sum::<usize>() / OPERATIONS
}

/// What a scheduler would have decided to get this plan.
fn of_plan(plan: &Plan) -> Schedule {
    Schedule {
        buckets: plan.buckets.iter().map(|bucket| bucket.tensors.clone()).collect(),
        priorities: plan.buckets.iter().map(|bucket| bucket.priority).collect(),
        cuts: plan.buckets.iter().map(|bucket| bucket.partitions.len()).collect(),
        partition_bytes: None,
        credit_bytes: plan.credit_bytes,
        forward_overlap: plan.forward_overlap,
        server_priority_only: plan.server_priority_only,
    }
}

/// How urgent each bucket is. All alike where everything is waited for.
fn priorities(schedule: &Schedule, used: &[TensorId]) -> Vec<u32> {
    match schedule.forward_overlap || schedule.server_priority_only {
        true => urgency(&schedule.buckets, used),
        false => vec![0; schedule.buckets.len()],
    }
}

/// Schedules that differ from one in one thing. First what concerns all buckets; then bucket by bucket, from the last to be
/// complete, whose communication is hidden least; and where nothing of that helps, all buckets in other pieces.
fn neighbours(schedule: &Schedule, may_overlap: bool) -> impl Iterator<Item = Schedule> + '_ {
    let overlap = may_overlap || schedule.forward_overlap;
    let overall = overlap.then(|| Schedule { forward_overlap: !schedule.forward_overlap, ..schedule.clone() });
    let credits = [schedule.credit_bytes.map_or(Some(4 << 20), |_| None)].into_iter();
    let credits = credits
        .chain(schedule.credit_bytes.into_iter().flat_map(|bytes| [Some(bytes / 2), Some(bytes.saturating_mul(2))]));
    let credits = credits.filter(|credit| credit.is_none_or(|bytes| bytes >= 1 << 10));
    let credits = credits.map(move |credit_bytes| Schedule { credit_bytes, ..schedule.clone() });
    let buckets = (0..schedule.buckets.len()).rev().flat_map(move |bucket| of_bucket(schedule, bucket));
    overall.into_iter().chain(credits).chain(buckets).chain(all_cut_otherwise(schedule))
}

/// Every bucket in other pieces: where servers share the pieces of one evenly, it is all buckets or none that gain by it.
fn all_cut_otherwise(schedule: &Schedule) -> impl Iterator<Item = Schedule> + '_ {
    let ways: [fn(usize) -> usize; 4] =
        [|cuts| cuts * 2, |cuts| cuts + 1, |cuts| cuts / 2, |cuts| cuts.saturating_sub(1)];
    let cut = |way: fn(usize) -> usize| schedule.cuts.iter().map(|&cuts| way(cuts).clamp(1, CUTS_MAX)).collect();
    let mut all: Vec<Vec<usize>> = ways.into_iter().map(cut).collect();
    // Of one piece twice as many are one more.
    all.dedup();
    all.retain(|cuts| schedule.cuts.len() > 1 && *cuts != schedule.cuts);
    all.into_iter().map(|cuts| Schedule { cuts, ..schedule.clone() })
}

/// Merged with the one before, a tensor given to it or taken from it, split, cut otherwise.
fn of_bucket(schedule: &Schedule, bucket: usize) -> Vec<Schedule> {
    let mut all = Vec::new();
    let tensors = &schedule.buckets[bucket];
    if bucket > 0 {
        let before = &schedule.buckets[bucket - 1];
        all.push(with_two(schedule, bucket, [before, tensors].into_iter().flatten().copied().collect(), Vec::new()));
        if tensors.len() > 1 {
            let given = before.iter().chain(&tensors[..1]).copied().collect();
            all.push(with_two(schedule, bucket, given, tensors[1..].to_vec()));
        }
        if let [rest @ .., last] = &before[..]
            && !rest.is_empty()
        {
            let taken = [*last].iter().chain(tensors).copied().collect();
            all.push(with_two(schedule, bucket, rest.to_vec(), taken));
        }
    }
    for at in splits(tensors.len()) {
        let mut split = schedule.clone();
        split.buckets.splice(bucket..=bucket, [tensors[..at].to_vec(), tensors[at..].to_vec()]);
        split.cuts.insert(bucket, split.cuts[bucket]);
        split.priorities.insert(bucket, split.priorities[bucket]);
        all.push(split);
    }
    let cuts = schedule.cuts[bucket];
    // Of two pieces half of them is one less.
    let fewer = cuts.checked_sub(1).filter(|&fewer| fewer > 1);
    let others = [cuts * 2, cuts / 2, cuts + 1].into_iter().chain(fewer);
    for cuts in others.filter(|cuts| (1..=CUTS_MAX).contains(cuts)) {
        let mut cut = schedule.clone();
        cut.cuts[bucket] = cuts;
        all.push(cut);
    }
    all
}

/// With other tensors in a bucket and in the one before; an empty one vanishes.
fn with_two(schedule: &Schedule, bucket: usize, before: Vec<TensorId>, here: Vec<TensorId>) -> Schedule {
    let mut changed = schedule.clone();
    changed.buckets[bucket - 1] = before;
    if here.is_empty() {
        changed.buckets.remove(bucket);
        let cuts = changed.cuts.remove(bucket);
        changed.cuts[bucket - 1] = changed.cuts[bucket - 1].max(cuts);
        changed.priorities.remove(bucket);
    } else {
        changed.buckets[bucket] = here;
    }
    changed
}

/// Where to split so many tensors: everywhere if they are few, else in quarters.
fn splits(tensors: usize) -> Vec<usize> {
    match tensors {
        0 | 1 => Vec::new(),
        2..=8 => (1..tensors).collect(),
        _ => vec![tensors / 2, tensors / 4, tensors - tensors / 4],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_keep_every_tensor_once() {
        let buckets = vec![vec![5, 4], vec![3], vec![2, 1, 0]];
        let schedule = Schedule {
            priorities: vec![4, 3, 0],
            cuts: vec![1, 2, 1],
            credit_bytes: Some(4096),
            ..Schedule::of(buckets)
        };
        let all: Vec<Schedule> = neighbours(&schedule, true).collect();
        for neighbour in &all {
            let mut tensors = neighbour.buckets.concat();
            tensors.sort_unstable();
            assert_eq!(tensors, [0, 1, 2, 3, 4, 5]);
            assert_eq!(
                (neighbour.cuts.len(), neighbour.priorities.len()),
                (neighbour.buckets.len(), neighbour.buckets.len())
            );
            assert_ne!(*neighbour, schedule);
        }
        let with = |buckets: Vec<Vec<usize>>| all.iter().any(|neighbour| neighbour.buckets == buckets);
        assert!(with(vec![vec![5, 4], vec![3, 2, 1, 0]]), "merged");
        assert!(with(vec![vec![5, 4], vec![3, 2], vec![1, 0]]), "given");
        assert!(with(vec![vec![5], vec![4, 3], vec![2, 1, 0]]), "taken");
        assert!(with(vec![vec![5, 4], vec![3], vec![2], vec![1, 0]]), "split");
        assert!(all.iter().any(|neighbour| neighbour.credit_bytes.is_none()));
        assert!(all.iter().any(|neighbour| neighbour.forward_overlap));
        assert!(!neighbours(&schedule, false).any(|neighbour| neighbour.forward_overlap));
    }

    /// So that no search takes for ever, however finely a plan is cut.
    #[test]
    fn a_plan_of_many_operations_counts_as_several() {
        let of = |cuts: Vec<usize>| effort(&Schedule { cuts, ..Schedule::of(vec![vec![1], vec![0]]) });
        assert_eq!((of(vec![1, 1]), of(vec![256, 255]), of(vec![256, 256]), of(vec![5120, 1])), (1, 1, 2, 11));
    }

    #[test]
    fn a_plan_is_the_plan_of_its_schedule() {
        use paceline_schedule::Workload;
        let strategy = paceline_strategy::Registry::built_in().parse("schedule=auto,arch=a2a").unwrap();
        let schedule = Schedule { cuts: vec![2, 3], priorities: vec![1, 0], ..Schedule::of(vec![vec![1], vec![0]]) };
        let workload = Workload::of_sizes(&[300, 200]);
        let plan = lay_out(&strategy, &schedule, &workload).unwrap();
        assert_eq!(of_plan(&plan), schedule);
        assert_eq!(lay_out(&strategy, &of_plan(&plan), &workload), Ok(plan));
    }
}
