//! Where rounds say what an iteration takes, that decides; and what is decided is watched, round by round.

use paceline_tune::Standing;
use paceline_tune::whole::Stage;

use super::*;

/// Rounds until something must be decided: those of two kinds of calls, and a trial of the iterations.
const ROUNDS_MAX: u64 = 2500;

/// A job that plays what it is told, as the documentation has it.
struct Job {
    world: World,
    job: JobTuner,
    rounds: u64,
    policy: Policy,
}

impl Job {
    /// In which the first kind of calls takes 30 % less by another algorithm or protocol.
    fn new(nccl: &NcclModel, seed: u64) -> Job {
        let job = JobTuner::new(nccl, MODEL, Tuner::shipped(seed), &[]);
        Job { world: World::new(nccl, true, seed), job, rounds: 0, policy: Policy::new(0, []) }
    }

    /// The next round. `iteration_s`: what an iteration takes, by what calls of the first kind take, the default's being 1.
    fn round(&mut self, iteration_s: impl Fn(f64) -> f64) {
        self.rounds += 1;
        let arms = self.world.played(&self.job.written(&self.policy));
        let noise = (0.01 * self.world.random.normal()).exp();
        let seconds = noise * iteration_s(self.world.over_default(0, arms[0]));
        let lines = self.world.round(self.rounds, self.policy.version(), arms);
        let timed = |line: &String| line.replacen('{', &format!("{{\"iteration_s\": {seconds}, "), 1);
        learn(&mut self.job, &lines.iter().map(timed).collect::<Vec<_>>());
        self.policy = self.job.policy();
    }

    /// The rounds until something is so, one at least.
    fn until(&mut self, iteration_s: impl Fn(f64) -> f64, is_so: impl Fn(&Self) -> bool) -> u64 {
        let before = self.rounds;
        loop {
            self.round(&iteration_s);
            if is_so(&*self) {
                return self.rounds - before;
            }
            assert!(self.rounds - before < ROUNDS_MAX, "not within {ROUNDS_MAX} rounds: {:?}", self.job.whole());
        }
    }

    fn stage(&self) -> Option<&Stage> {
        self.job.whole().map(Whole::stage)
    }

    /// What calls of the first kind take by what stands, the default's being 1.
    fn stands(&self) -> f64 {
        self.world.over_default(0, self.world.played(&self.job.written(&self.job.settled()))[0])
    }

    fn is_tuned(&self) -> bool {
        matches!(self.stage(), Some(Stage::Stands { gain: Some(_), .. }))
    }

    fn is_found_by_calls(&self) -> bool {
        self.job.tuner.courses().any(|(_, course)| matches!(course.standing(), Standing::Chosen(..)))
    }
}

/// Half of an iteration are calls of the first kind.
fn by_half(over: f64) -> f64 {
    5e-3 * (1.0 + over)
}

/// Calls are hidden, and what makes them faster takes what computation misses.
fn hidden(over: f64) -> f64 {
    if over < 1.0 { 10.5e-3 } else { 10e-3 }
}

#[test]
fn what_shortens_iterations_stands() {
    let nccl = nccl();
    for seed in 1..3 {
        let mut it = Job::new(&nccl, seed);
        it.until(by_half, |it| it.job.is_settled());
        let Some(Stage::Stands { gain: Some(gain), .. }) = it.stage() else { panic!("seed {seed}: {:?}", it.stage()) };
        let expected = 0.5 * (1.0 - it.stands());
        assert!(it.stands() < 0.8 && (gain.share - expected).abs() < 0.03, "seed {seed}: {gain:?}, {expected}");
        // What the next round plays is what stands, so that nobody needs another policy for the time to the next round.
        let played = |policy: Policy| it.world.played(&it.job.written(&policy));
        assert_eq!(played(it.job.policy()), played(it.job.settled()), "seed {seed}");
    }
}

#[test]
fn what_shortens_calls_and_lengthens_iterations_does_not_stand() {
    let nccl = nccl();
    let mut it = Job::new(&nccl, 3);
    it.until(hidden, |it| it.job.is_settled());
    assert!(it.is_found_by_calls() && matches!(it.stage(), Some(Stage::Unused { .. })), "{:?}", it.stage());
    for _ in 0..40 {
        it.round(hidden);
        let played = it.job.written(&it.job.policy());
        assert!(it.stands() == 1.0 && !played.contains("[[call]]"), "{played}");
    }
    // Iterations that wait for their calls take another time: all is looked at anew, and now it counts.
    it.until(|over| 3.0 * by_half(over), Job::is_tuned);
    assert!(it.stands() < 0.8, "{}", it.stands());
}

/// A choice that alone becomes slower is given up, and so it is where rounds are few and far between.
#[test]
fn what_is_no_longer_better_is_given_up() {
    let nccl = nccl();
    let mut it = Job::new(&nccl, 1);
    it.until(by_half, |it| it.job.is_settled());
    let chosen = it.world.played(&it.job.written(&it.job.settled()))[0];
    let family = it.world.situations[0].arms[chosen].action.family;
    let arms = it.world.situations[0].arms.clone();
    for (seconds, arm) in it.world.truth_s[0].iter_mut().zip(arms) {
        if arm.action.family == family {
            *seconds *= 2.0;
        }
    }
    let rounds = it.until(by_half, |it| it.stands() <= 1.0);
    assert!(rounds <= 60, "{rounds} rounds");
}

/// If all calls take longer, what was found is found out anew.
#[test]
fn a_network_that_changes_is_learned_anew() {
    let nccl = nccl();
    let mut it = Job::new(&nccl, 2);
    it.until(by_half, |it| it.job.is_settled());
    it.world.truth_s[0].iter_mut().for_each(|seconds| *seconds *= 1.5);
    let drifts = |it: &Job| it.job.tuner.courses().map(|(_, course)| course.drifts).sum::<u32>();
    let before = drifts(&it);
    let rounds = it.until(by_half, |it| drifts(it) > before);
    assert!(rounds <= 60 && !it.job.is_settled(), "{rounds} rounds");
    it.until(by_half, |it| it.job.is_settled() && it.is_tuned());
    assert!(it.stands() < 0.8, "{}", it.stands());
}

/// Rounds without a time, or of another policy than the trial's, do not count; those that do, do.
#[test]
fn rounds_of_another_policy_do_not_count() {
    let nccl = nccl();
    let mut it = Job::new(&nccl, 2);
    it.until(by_half, |it| matches!(it.stage(), Some(Stage::OnTrial { .. })));
    let complete = |it: &Job| match it.stage() {
        Some(Stage::OnTrial { trial, .. }) => trial.complete(),
        _ => usize::MAX,
    };
    // NCCL's own choices, whatever the trial says: no block has its candidate.
    for _ in 0..15 {
        it.policy = Policy::new(0, []);
        it.round(by_half);
    }
    assert_eq!(complete(&it), 0);
    it.until(by_half, Job::is_tuned);
}
