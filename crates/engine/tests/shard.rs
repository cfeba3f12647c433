//! A shard's partitions go through their iterations and phases, whatever ends first.

use paceline_engine::shard::{Mode, Phase, Shard, Task};
use proptest::prelude::*;

/// What a partition must go through, in order.
fn course(iterations: std::ops::Range<u64>, mode: Mode) -> Vec<(u64, Phase)> {
    let phases: &[Phase] = match mode {
        Mode::Aggregate => &[Phase::PushPull],
        Mode::Apply | Mode::Decompress => &[Phase::Push, Phase::Apply, Phase::Pull],
    };
    let begins = (mode == Mode::Apply && iterations.start == 0).then_some((0, Phase::Initialise));
    let rest = iterations.flat_map(|iteration| phases.iter().map(move |&phase| (iteration, phase)));
    begins.into_iter().chain(rest).collect()
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Aggregate), Just(Mode::Apply), Just(Mode::Decompress)]
}

proptest! {
    #[test]
    fn every_partition_goes_through_every_phase_once_and_in_order(
        priorities in prop::collection::vec(0u32..4, 0..12),
        first in 0u64..3,
        iterations in 0u64..5,
        mode in modes(),
        applying_max in 1usize..4,
        choices in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200),
    ) {
        let range = first..first + iterations;
        let mut shard = Shard::new(&priorities, range.clone(), mode, applying_max);
        let mut open: Vec<Task> = Vec::new();
        let mut seen = vec![Vec::new(); priorities.len()];
        let mut choices = choices.iter().cycle();
        loop {
            let (eager, index) = choices.next().expect("they never end");
            // Sometimes something ends before all that may start has started.
            if (*eager || open.is_empty())
                && let Some(task) = shard.begin()
            {
                prop_assert!(open.iter().all(|other| other.partition != task.partition), "one phase at a time");
                seen[task.partition].push((task.iteration, task.phase));
                open.push(task);
                let applying = open.iter().filter(|task| !task.phase.communicates()).count();
                prop_assert!(applying <= applying_max);
                prop_assert_eq!(shard.open(), open.len());
                continue;
            }
            if open.is_empty() {
                break;
            }
            prop_assert!(!shard.is_done());
            shard.finished(open.swap_remove(index.index(open.len())).partition);
        }
        prop_assert!(shard.is_done(), "nothing is open and nothing may start, but it is not done");
        for partition in seen {
            prop_assert_eq!(partition, course(range.clone(), mode));
        }
    }

    #[test]
    fn the_most_urgent_starts_first(
        priorities in prop::collection::vec(0u32..4, 1..20),
        mode in modes(),
    ) {
        let mut shard = Shard::new(&priorities, 1..3, mode, priorities.len());
        let started = |shard: &mut Shard| std::iter::from_fn(|| shard.begin()).collect::<Vec<_>>();
        // Operations before work, which takes this shard's time.
        let urgency =
            |task: &Task| (!task.phase.communicates(), task.iteration, priorities[task.partition], task.partition);
        while !shard.is_done() {
            let tasks = started(&mut shard);
            prop_assert!(tasks.is_sorted_by_key(urgency), "{tasks:?}");
            // The least urgent half first, so that iterations mix.
            let (late, early) = tasks.split_at(tasks.len() / 2);
            early.iter().for_each(|task| shard.finished(task.partition));
            let next = started(&mut shard);
            prop_assert!(next.is_sorted_by_key(urgency), "{next:?}");
            late.iter().chain(&next).for_each(|task| shard.finished(task.partition));
        }
    }
}

#[test]
fn a_shard_without_partitions_or_iterations_is_done_at_once() {
    assert!(Shard::new(&[], 0..10, Mode::Apply, 1).is_done());
    let mut idle = Shard::new(&[1, 2], 4..4, Mode::Apply, 1);
    assert!(idle.is_done() && idle.begin().is_none());
    let mut begins = Shard::new(&[1], 0..0, Mode::Apply, 1);
    assert_eq!(begins.begin(), Some(Task { partition: 0, iteration: 0, phase: Phase::Initialise }));
    begins.finished(0);
    assert!(begins.is_done() && begins.begin().is_none());
}

#[test]
#[should_panic(expected = "nothing was open for partition 0")]
fn what_was_not_started_cannot_end() {
    Shard::new(&[1], 0..1, Mode::Aggregate, 1).finished(0);
}

#[test]
fn operations_of_one_partition_and_iteration_have_parts_of_their_own() {
    let parts = [Phase::Push, Phase::Pull, Phase::Initialise].map(Phase::part);
    assert_eq!(parts, [0, 1, 2]);
}
