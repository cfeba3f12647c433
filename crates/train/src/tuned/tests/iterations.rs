//! What iterations say, of calls that nobody makes: their time follows from what they would be made with.

use std::time::Duration;

use paceline_tune::{Situation, State};

use super::*;
use crate::tuned::iterations::{alike_in_all, shortlist};
use crate::tuned::learning::typical_situation;

const WORLD: usize = 3;

/// A job whose iteration takes 1 ms: a fifth less where the first of two kinds of calls takes its good choice, a tenth more for every other
/// choice than the default.
struct Job<'a> {
    communicator: &'a Communicator,
    tuned: TunedCalls<'a>,
    kinds: [State; 2],
    good: Choice,
    iterations: u32,
}

impl<'a> Job<'a> {
    fn new(communicator: &'a Communicator) -> Job<'a> {
        let mut tuned = TunedCalls::new(communicator, 5).by_iterations(5);
        tuned.meetings = tuned.meetings.clone().always();
        let kinds = [1 << 16, 1 << 22].map(|bytes| tuned.state_of(CollectiveKind::AllReduce, bytes, &CALL));
        let situations = kinds.map(|state| typical_situation(tuned.model(), &state).expect("there is a choice"));
        let choices = |situation: &Situation| -> Vec<Choice> {
            let others = (0..situation.arms.len()).filter(|arm| *arm != situation.default).take(6);
            std::iter::once(Choice::Default).chain(others.map(|arm| situation.choice(arm))).collect()
        };
        let lists = situations.each_ref().map(choices);
        let good = lists[0][3];
        if let Some(leader) = &mut tuned.leader {
            for (situation, list) in situations.into_iter().zip(lists) {
                tuned.shortlists.insert(situation.context, list);
                leader.situations.insert(situation.context, Some(situation));
            }
        }
        Job { communicator, tuned, kinds, good, iterations: 0 }
    }

    /// Seconds of an iteration in which the two kinds of calls take this.
    fn seconds(&mut self, choices: [Choice; 2]) -> f64 {
        self.iterations += 1;
        let noise = 1.0 + 0.002 * f64::from(self.iterations * 7 % 11);
        let of = |number: usize| match choices[number] {
            Choice::Default => 1.0,
            choice if number == 0 && choice == self.good => 0.8,
            Choice::Play(_) => 1.1,
        };
        1e-3 * of(0) * of(1) * noise
    }
}

impl<'a> Iterations<'a> for Job<'a> {
    fn world(&self) -> &Communicator {
        self.communicator
    }

    fn tuned(&mut self) -> Vec<&mut TunedCalls<'a>> {
        vec![&mut self.tuned]
    }

    fn iteration(&mut self) -> Result<f64, CommError> {
        let rehearsed = self.tuned.rehearsed.clone().expect("iterations are rehearsed");
        let choices = self.kinds.map(|state| rehearsed.get(&state.context().key()).copied().unwrap_or_default());
        Ok(self.seconds(choices))
    }
}

/// A job that has rehearsed its iterations: in as much time as it takes to find a gain, as ranks agree slowly on a machine that is busy.
fn rehearsed(communicator: &Communicator) -> (Job<'_>, RehearsedIterations) {
    for limit in [600, 2400, 9600].map(Duration::from_millis) {
        let mut job = Job::new(communicator);
        let rehearsed = rehearse_iterations(&mut job, limit).expect("all ranks rehearse");
        if rehearsed.chosen.is_some() {
            return (job, rehearsed);
        }
    }
    panic!("no gain was found");
}

/// What has shortened iterations stands on all ranks, and nobody learns of single calls then.
#[test]
fn what_shortens_rehearsed_iterations_stands_in_all_of_them() {
    let all = on_ranks(WORLD, |communicator| {
        let (job, rehearsed) = rehearsed(&communicator);
        let stands = job.kinds.map(|state| job.tuned.policy().choice(state.context().key(), 0));
        (rehearsed, stands, job.good, job.tuned.listens, job.tuned.rehearsed.is_some())
    });
    for (rehearsed, stands, good, listens, is_rehearsed) in &all {
        assert_eq!(rehearsed, &all[0].0);
        let (contexts, gain) = rehearsed.chosen.expect("a gain");
        assert!(rehearsed.contexts == 2 && contexts == 1 && (gain.share - 0.2).abs() < 0.02, "{rehearsed:?}");
        assert!(rehearsed.iterations > 50 && rehearsed.seconds > 0.0, "{rehearsed:?}");
        assert_eq!((*stands, *listens, *is_rehearsed), ([*good, Choice::Default], false, false));
    }
}

/// Where no choice shortens iterations, the default stands, whatever calls would say.
#[test]
fn without_a_gain_of_iterations_the_default_stands() {
    let all = on_ranks(WORLD, |communicator| {
        let mut job = Job::new(&communicator);
        // None of the choices is the good one.
        job.good = Choice::Default;
        let rehearsed = rehearse_iterations(&mut job, Duration::from_millis(300)).expect("all ranks rehearse");
        (rehearsed.chosen, job.tuned.policy().entries().count())
    });
    assert!(all.iter().all(|it| *it == (None, 0)), "{all:?}");
}

/// Iterations that take longer with what stands than without it give it up; and if they take another time once more, calls are learned from.
#[test]
fn what_does_not_shorten_iterations_any_more_is_given_up() {
    let all = on_ranks(WORLD, |communicator| {
        let (mut job, _) = rehearsed(&communicator);
        let key = job.kinds[0].context().key();
        let mut run = |boundaries: u32, good_s: f64, default_s: f64| {
            for number in 0..boundaries {
                let stands = job.tuned.policy().choice(key, 0);
                let seconds = if stands == job.good { good_s } else { default_s };
                let seconds = seconds * (1.0 + 0.002 * f64::from(number * 7 % 11));
                job.tuned.boundary_after(Duration::from_secs_f64(seconds)).expect("all ranks meet");
            }
            (job.tuned.policy().choice(key, 0) == job.good, job.tuned.listens)
        };
        let stays = run(200, 0.8e-3, 1e-3);
        let given_up = run(400, 1.5e-3, 1e-3);
        (stays, given_up, run(100, 3e-3, 3e-3))
    });
    for it in all {
        assert_eq!(it, ((true, false), (false, false), (false, true)));
    }
}

/// A call is worth a try if it is the best of its algorithm and protocol, and not far behind the default.
#[test]
fn a_shortlist_begins_with_the_best_of_each_family() {
    let model = OwnModel::of(&paceline_plan::Cluster::named("study-10gbe:4x1").expect("it is built in"));
    let state = model.state(&Call { bytes: 1 << 20, ranks: 4, hosts: 4, ..CALL });
    let situation = model.situation(&state).expect("there is a choice");
    let others = (0..situation.arms.len()).filter(|arm| *arm != situation.default);
    let choices: Vec<Choice> =
        std::iter::once(Choice::Default).chain(others.map(|arm| situation.choice(arm))).collect();
    // The later, the faster; the first few are hopeless.
    let seconds: Vec<Option<f64>> = (0..choices.len())
        .map(|number| match number {
            0 => Some(1.0),
            1..4 => Some(3.0),
            _ => Some(1.0 - 1e-3 * number as f64),
        })
        .collect();
    let list = shortlist(&choices, &seconds);
    assert_eq!((list[0], list[1]), (Choice::Default, choices[choices.len() - 1]));
    assert!(choices[1..4].iter().all(|hopeless| !list.contains(hopeless)), "{list:?}");
    let family = |choice: &Choice| if let Choice::Play(action) = choice { Some(action.family) } else { None };
    let of_second = family(&list[2]);
    assert!(of_second.is_some() && of_second != family(&list[1]), "{list:?}");
    assert_eq!(shortlist(&choices, &[None]), [Choice::Default]);
}

/// Each of two kinds of calls keeps its own algorithm; what they can have in common they have, and chunks as alike as they can be.
#[test]
fn what_all_calls_have_alike_leaves_each_its_algorithm() {
    let model = OwnModel::of(&paceline_plan::Cluster::named("study-10gbe:4x1").expect("it is built in"));
    let of = |collective, bytes| {
        let state = model.state(&Call { collective, bytes, ranks: 4, hosts: 4, ..CALL });
        model.situation(&state).expect("there is a choice")
    };
    let default = |situation: &Situation| situation.arms[situation.default].action;
    let (short, long) = (&of(CollectiveKind::AllGather, 1 << 12), &of(CollectiveKind::AllReduce, 1 << 26));
    assert_ne!(default(short).family.algorithm, default(long).family.algorithm, "else this shows nothing");
    let all = alike_in_all(&[short, long]);
    assert!(all.len() > 8, "{} contestants", all.len());
    let mut have_other_chunks = 0;
    for (entrant, found) in &all {
        let actions: Vec<paceline_tune::Action> = found
            .iter()
            .map(|(context, choice)| {
                let situation = if *context == short.context { short } else { long };
                let Choice::Play(action) = *choice else { panic!("{choice:?} is nothing to try") };
                assert!(situation.arm_of(*choice) != situation.default && *context == situation.context);
                assert_eq!(action.family.algorithm, default(situation).family.algorithm);
                action
            })
            .collect();
        let [one, other] = actions[..] else { panic!("both or nothing: {found:?}") };
        assert_eq!(
            (one.family.protocol, one.channels, one.threads),
            (other.family.protocol, other.channels, other.threads)
        );
        let of_entrant = entrant.traits[4];
        assert!([one.chunk_log2, other.chunk_log2].contains(&of_entrant), "{entrant:?} {found:?}");
        have_other_chunks += usize::from(one.chunk_log2 != other.chunk_log2);
    }
    assert!(have_other_chunks > 0, "short calls have no long chunks");
    assert!(alike_in_all(&[short]).is_empty(), "one kind of calls has nothing in common");
}
