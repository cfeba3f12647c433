use paceline_plan::Cluster;
use paceline_tune::environment::{Call, CostModel};
use paceline_tune::{Choice, Random, Tuner};

use super::*;
use crate::tuned::tests::CALL;

/// Calls of the only context in an iteration.
const ALIKE: usize = 16;

/// What everything but the calls takes of an iteration.
const COMPUTATION_S: f64 = 1e-3;

/// A job whose calls all are of one context, on a cluster that is not there.
struct Job {
    leader: Leader,
    situations: Situations,
    calls: BTreeMap<Context, usize>,
    active: Version,
    /// Whether this rank's policies come.
    comes: bool,
    window: (usize, usize),
    settled: bool,
    boundary_s: f64,
    random: Random,
}

impl Job {
    fn new(seed: u64) -> Job {
        let model = OwnModel::of(&Cluster::named("study-10gbe:4x1").unwrap());
        let state = model.state(&Call { bytes: 1 << 20, ranks: 4, hosts: 4, ..CALL });
        let context = state.context();
        Job {
            leader: Leader::new(Learning::new(Tuner::shipped(seed)), seed),
            situations: Situations::from([(context, model.situation(&state))]),
            calls: BTreeMap::from([(context, ALIKE)]),
            active: Version::default(),
            comes: true,
            window: (1, 1),
            settled: false,
            boundary_s: 0.0,
            random: Random::new(seed, 0x10b),
        }
    }

    /// Runs a window: what a call of a choice takes, and an iteration by the sum of its calls.
    fn window(&mut self, call_s: impl Fn(Choice) -> f64, iteration_s: impl Fn(f64) -> f64) {
        let (iterations, recorded) = self.window;
        let context = *self.calls.keys().next().unwrap();
        let (mut made, mut all_s) = (Vec::new(), Vec::new());
        for iteration in 0..iterations {
            let number = (iteration + recorded).checked_sub(iterations).map(|number| number as u64);
            let choice = self.active.choice(context.key(), number);
            let noise = |_| (0.02 * self.random.normal()).exp();
            let sum_s = call_s(choice) * (0..ALIKE).map(noise).sum::<f64>();
            let seconds = sum_s / ALIKE as f64;
            made.extend(number.map(|number| Made { context, number, choice, calls: ALIKE, seconds, longest: 1.0 }));
            all_s.push(iteration_s(sum_s) * (0.01 * self.random.normal()).exp());
        }
        let (situations, calls, active) = (&self.situations, &self.calls, self.active.number);
        let (iteration_s, boundary_s) = (&all_s[..], self.boundary_s);
        let turn = self.leader.turn(&Ended { active, made: &made, iteration_s, boundary_s, situations, calls });
        if let Some(version) = turn.version.filter(|_| self.comes) {
            self.active = version;
        }
        (self.window, self.settled) = ((turn.iterations, turn.recorded), turn.settled);
    }

    /// Runs windows until everything is decided. The iterations that it took.
    fn until_settled(&mut self, call_s: impl Fn(Choice) -> f64, iteration_s: impl Fn(f64) -> f64) -> u64 {
        for _ in 0..500 {
            self.window(&call_s, &iteration_s);
            if self.settled {
                return self.leader.iterations;
            }
        }
        panic!("nothing is decided after {} iterations", self.leader.iterations);
    }

    fn report(&self) -> TuningReport {
        let model = OwnModel::of(&Cluster::named("study-10gbe:4x1").unwrap());
        self.leader.report(&model, &self.situations)
    }

    fn standing(&self) -> TuningStanding {
        self.report().standing
    }

    fn plays_default(&self) -> bool {
        let default = |choice: &Choice| *choice == Choice::Default;
        self.active.plays().all(|plays| plays.turns.turns().iter().all(default) && default(&plays.then))
    }
}

/// Whatever is not the default takes half the time.
fn halved(choice: Choice) -> f64 {
    if choice == Choice::Default { 1e-3 } else { 0.5e-3 }
}

#[test]
fn what_shortens_iterations_stands() {
    for seed in 1..4 {
        let mut job = Job::new(seed);
        let iterations = job.until_settled(halved, |calls_s| COMPUTATION_S + calls_s);
        assert_eq!(job.standing(), TuningStanding::Tuned, "seed {seed}");
        assert!(!job.plays_default(), "seed {seed}: {:?}", job.active);
        let written = job.report().policy;
        let context = *job.situations.keys().next().unwrap();
        assert_eq!(written.choice(context.key(), 0), job.active.choice(context.key(), None), "seed {seed}");
        assert!(iterations < 400, "seed {seed}: {iterations} iterations");
        let news = job.leader.take_news();
        let [TuningNews::Trial { contexts: 1 }, TuningNews::Tuned(gain)] = news[..] else {
            panic!("seed {seed}: {news:?}");
        };
        // 16 calls of 1 ms, of which half is saved, and 1 ms besides.
        assert!((gain.share - 8.0 / 17.0).abs() < 0.03, "seed {seed}: {gain:?}");
        // It is watched, and stays: only windows of many iterations come, with the calls of the last one.
        assert_eq!(job.window, (DECIDED, WATCHED));
        for _ in 0..80 {
            job.window(halved, |calls_s| COMPUTATION_S + calls_s);
        }
        assert_eq!((job.standing(), job.settled), (TuningStanding::Tuned, true), "seed {seed}");
    }
}

/// Iterations in which calls take half the time, of 9 ms, and those of the default, of 17, as long as `chosen_s` and `default_s` say from here
/// on. What stands is compared with the default's once more, and what that has come to; after how many iterations it was.
fn compared_again(job: &mut Job, chosen_s: f64, default_s: f64) -> (TuningStanding, usize) {
    job.leader.take_news();
    let iteration_s = |calls_s: f64| if calls_s < 12e-3 { chosen_s } else { default_s };
    let before = job.leader.iterations;
    while job.settled {
        assert!(job.leader.iterations - before < 5000, "it is never compared");
        job.window(halved, iteration_s);
    }
    let after = job.leader.iterations - before;
    // Until it is known that it does not, it stands.
    assert_eq!(job.standing(), TuningStanding::OnTrial);
    assert!(job.report().policy.entries().next().is_some() && job.leader.whole.trials() > 1);
    job.until_settled(halved, iteration_s);
    (job.standing(), after as usize)
}

/// Calls take half the time as ever, and something makes iterations with them longer than those without: it is given up.
#[test]
fn what_stood_is_given_up_when_it_makes_iterations_longer() {
    for seed in 1..4 {
        let mut job = Job::new(seed);
        job.until_settled(halved, |calls_s| COMPUTATION_S + calls_s);
        for _ in 0..4 {
            job.window(halved, |calls_s| COMPUTATION_S + calls_s);
        }
        assert_eq!((job.standing(), job.settled), (TuningStanding::Tuned, true), "seed {seed}");
        let (standing, after) = compared_again(&mut job, 20e-3, 17e-3);
        assert_eq!(standing, TuningStanding::NoSignificantGain, "seed {seed}");
        assert!(after <= 2 * DECIDED && job.plays_default(), "seed {seed}: after {after} iterations");
        assert!(job.report().policy.entries().next().is_none(), "seed {seed}");
    }
}

/// Only iterations without it become shorter, which nobody sees: they are tried now and then.
#[test]
fn what_stands_is_compared_with_the_default_now_and_then() {
    for (default_s, standing) in [(8e-3, TuningStanding::NoSignificantGain), (17e-3, TuningStanding::Tuned)] {
        let mut job = Job::new(11);
        job.until_settled(halved, |calls_s| COMPUTATION_S + calls_s);
        let (came_to, after) = compared_again(&mut job, 9e-3, default_s);
        assert_eq!(came_to, standing);
        let due = TRIED_AGAIN as usize;
        assert!((due..due + 2 * DECIDED).contains(&after), "after {after} iterations");
    }
}

/// Calls that are hidden behind computation may become as fast as they like.
#[test]
fn what_shortens_calls_only_does_not() {
    for seed in 1..4 {
        let mut job = Job::new(seed);
        job.until_settled(halved, |calls_s| calls_s.max(50e-3));
        assert_eq!(job.standing(), TuningStanding::NoSignificantGain, "seed {seed}");
        assert!(job.plays_default() && job.report().policy.entries().next().is_none(), "seed {seed}");
        let news = job.leader.take_news();
        assert_eq!(news[news.len() - 1], TuningNews::NoSignificantGain, "seed {seed}");
    }
}

/// What was hidden decides when the network becomes slower: that is seen within two windows, and what is faster then is found anew.
#[test]
fn a_network_that_changes_is_noticed_where_what_was_found_is_not_used() {
    let iteration_s = |calls_s: f64| calls_s.max(50e-3);
    for seed in 1..4 {
        let mut job = Job::new(seed);
        job.until_settled(halved, iteration_s);
        for _ in 0..20 {
            job.window(halved, iteration_s);
        }
        assert_eq!(
            (job.standing(), job.window),
            (TuningStanding::NoSignificantGain, (DECIDED, WATCHED)),
            "seed {seed}"
        );
        job.leader.take_news();
        let before = job.leader.iterations;
        // 16 calls of 5 ms.
        let slower = |choice| 5.0 * halved(choice);
        job.window(slower, iteration_s);
        assert_eq!(
            (job.standing(), job.leader.take_news()),
            (TuningStanding::Learning, vec![TuningNews::Again]),
            "seed {seed}"
        );
        let after = job.until_settled(slower, iteration_s);
        assert_eq!(job.standing(), TuningStanding::Tuned, "seed {seed}");
        assert!(after - before < 400, "seed {seed}: {} iterations", after - before);
        // 80 ms with the default, and no less than 50 with what takes half.
        let gain = job.report().gain.unwrap();
        assert!((gain.share - 3.0 / 8.0).abs() < 0.03, "seed {seed}: {gain:?}");
    }
}

/// What stood was so in the network before: it is told of no more until it is known what calls take now.
#[test]
fn a_network_that_changes_drops_what_stood() {
    let mut job = Job::new(12);
    job.until_settled(halved, |calls_s| COMPUTATION_S + calls_s);
    for _ in 0..20 {
        job.window(halved, |calls_s| COMPUTATION_S + calls_s);
    }
    assert_eq!(job.standing(), TuningStanding::Tuned);
    // Iterations are compared once more at first, in windows of one of them.
    let noticed = (0..300).any(|_| {
        job.window(|choice| 5.0 * halved(choice), |calls_s| COMPUTATION_S + calls_s);
        job.standing() == TuningStanding::Learning
    });
    assert!(noticed && job.report().policy.entries().next().is_none(), "{:?}", job.leader.whole);
    job.until_settled(|choice| 5.0 * halved(choice), |calls_s| COMPUTATION_S + calls_s);
    assert_eq!(job.standing(), TuningStanding::Tuned);
}

#[test]
fn where_nothing_is_better_nothing_is_tried_on_iterations() {
    for seed in 1..4 {
        let mut job = Job::new(seed);
        let worse = |choice| if choice == Choice::Default { 1e-3 } else { 1.3e-3 };
        job.until_settled(worse, |calls_s| COMPUTATION_S + calls_s);
        assert_eq!((job.standing(), job.leader.whole.trials()), (TuningStanding::Unchanged, 0), "seed {seed}");
        assert!(job.plays_default() && job.leader.take_news() == [TuningNews::Unchanged], "seed {seed}");
    }
}

/// While somebody lacks a policy, the same one is sent again, and nothing is learned from what it was not in force for.
#[test]
fn a_policy_that_does_not_come_is_sent_again() {
    let mut job = Job::new(5);
    job.comes = false;
    for _ in 0..20 {
        job.window(halved, |calls_s| calls_s);
    }
    assert_eq!((job.leader.published.number, job.active.number, job.settled), (1, 0, false));
    job.comes = true;
    job.until_settled(halved, |calls_s| calls_s);
    assert_eq!(job.standing(), TuningStanding::Tuned);
}

/// Evaluations between epochs, say: a trial goes on after them, to an end.
#[test]
fn interrupted_iterations_do_not_count() {
    let mut job = Job::new(6);
    let count = std::cell::Cell::new(0);
    let often = |calls_s: f64| {
        count.set(count.get() + 1);
        if count.get() % 7 == 0 { f64::INFINITY } else { calls_s }
    };
    job.until_settled(halved, often);
    assert_eq!(job.standing(), TuningStanding::Tuned);
}

#[test]
fn other_operations_begin_anew() {
    let mut job = Job::new(7);
    job.until_settled(halved, |calls_s| calls_s);
    job.leader.replanned(&job.situations);
    assert_eq!(job.standing(), TuningStanding::Learning);
    job.window = (1, 1);
    // What was learned of the context is known: only the trial comes again.
    let before = job.leader.iterations;
    let after = job.until_settled(halved, |calls_s| calls_s);
    assert_eq!(job.standing(), TuningStanding::Tuned);
    assert!(after - before < 120, "{} iterations", after - before);
}

/// A hundredth of the window, as far as sixteen turns go.
#[test]
fn windows_are_as_long_as_boundaries_demand() {
    let mut job = Job::new(10);
    let lengths = [0.0, 0.5e-3, 1e-3, 1.0, f64::NAN].map(|boundary_s| {
        job.boundary_s = boundary_s;
        job.window(|_| 1e-3 / ALIKE as f64, |_| 10e-3);
        job.window
    });
    // Iterations take 10 ms, give or take 1 %, and a few of them.
    let (half, whole) = (lengths[1].0, lengths[2].0);
    assert!((5..=6).contains(&half) && (10..=11).contains(&whole), "{lengths:?}");
    assert_eq!([lengths[0], lengths[3], lengths[4]], [(4, 4), (16, 16), (4, 4)]);
}

/// A later job on the same cluster begins with what this one has learned, and comes to the same.
#[test]
fn a_later_job_begins_where_this_one_ended() {
    let mut first = Job::new(8);
    first.until_settled(halved, |calls_s| calls_s);
    let lessons = first.leader.lessons(&first.situations);
    let mut learning = Learning::new(Tuner::shipped(9));
    learning.remember(lessons.clone());
    let mut second = Job { leader: Leader::new(learning, 9), ..Job::new(9) };
    second.until_settled(halved, |calls_s| calls_s);
    assert_eq!((second.standing(), second.leader.learning.recalled()), (TuningStanding::Tuned, lessons.len()));
}
