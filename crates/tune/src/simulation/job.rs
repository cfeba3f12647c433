//! A job as it runs: computation with calls behind it, iteration by iteration. The tuner learns from calls, as all simulations have it;
//! the time of the iteration decides about what it finds ([`crate::whole`]); and at last iterations with what stands and iterations with
//! the default take turns, under the same noise.

mod leader;

use std::collections::BTreeMap;

use super::PREFIX;
use super::alternated::Compared;
use super::timeline::Timeline;
use crate::action::Situation;
use crate::environment::{Played, SimulatedCluster};
use crate::random::Random;
use crate::state::Context;
use crate::trial::Gain;
use crate::whole::Found;
use leader::{Leader, Made, Window};

/// What can be done in each context.
type Situations = BTreeMap<Context, Situation>;

/// How a job is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Iterations in which the tuner works, whether it needs all of them or not.
    pub iterations: u64,
    /// Iterations with what stands that are compared with as many with the default; four at least, or nothing is known of how sure that is.
    pub pairs: usize,
    /// What computation varies from iteration to iteration, on the slowest rank: the standard deviation of its logarithm.
    pub computation_noise: f64,
    /// What is left to chance besides the cluster's own disturbances follows from it.
    pub seed: u64,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What the tuner's part has taken.
    pub spent: Spent,
    /// What is better by the times of calls at last.
    pub by_calls: Found,
    /// What stands, as it has shortened iterations: of all that was found, or nothing.
    pub stands: Found,
    /// By how much it has, as its trial says.
    pub gain: Option<Gain>,
    /// Iterations with what stands, and with the default.
    pub compared: Compared,
    /// What noise leaves out.
    pub quiet: Quiet,
}

/// What finding out has taken, beside what the default would have under the same noise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Iterations until nothing was open any more; None if something still is.
    pub settled_after: Option<u64>,
    /// Seconds of all iterations.
    pub tuned_s: f64,
    /// The same, had all calls taken the default.
    pub default_s: f64,
    /// How many times as long as the default's all calls took at worst, from 100 iterations on: what the guard promises.
    pub worst_prefix: f64,
    calls_tuned_s: f64,
    calls_default_s: f64,
}

/// Iterations without noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quiet {
    /// With the default.
    pub default: Seconds,
    /// With all that is better by the times of calls.
    pub by_calls: Seconds,
    /// With what stands.
    pub stands: Seconds,
    /// With what is best for each call.
    pub best: Seconds,
}

/// What an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// From its beginning to its end.
    pub iteration_s: f64,
    /// All its calls, hidden or not.
    pub calls_s: f64,
}

/// Runs a job with the tuner that ships, for so many iterations, and then compares what stands with the default.
pub fn run(cluster: &mut SimulatedCluster, timeline: &Timeline, options: &Options) -> Outcome {
    let mut job = Job::new(cluster, timeline, options);
    let mut leader = Leader::new(options.seed);
    let spent = job.learn(&mut leader, options.iterations);
    let (by_calls, _) = leader.found(&job.situations);
    let stands = leader.stands();
    let compared = job.alternate(&stands, options.pairs);
    let best = job.best();
    let quiet = Quiet {
        default: job.quiet(|it| it.default),
        by_calls: job.quiet(|it| arm_in(&by_calls, it)),
        stands: job.quiet(|it| arm_in(&stands, it)),
        best: job.quiet(|it| best.get(&it.context).copied().unwrap_or(it.default)),
    };
    Outcome { spent, by_calls, stands, gain: leader.gain(), compared, quiet }
}

/// A job that runs.
struct Job<'a> {
    cluster: &'a mut SimulatedCluster,
    timeline: &'a Timeline,
    situations: Situations,
    /// Of each bucket's call; None where there is nothing to choose, as whoever is alone calls nothing.
    contexts: Vec<Option<Context>>,
    computation_noise: f64,
    random: Random,
    /// Iterations so far: the cluster's steps.
    step: u64,
}

/// An iteration that was made.
struct Iteration {
    seconds: f64,
    calls_s: f64,
    /// The same, had all calls taken the default under the same noise.
    default_s: f64,
    calls_default_s: f64,
    /// Bucket by bucket.
    calls: Vec<Played>,
}

/// Where nothing is called.
const NOTHING: Played = Played { call_s: 0.0, shared: 1.0, stalled_s: 0.0, late_s: 0.0 };

impl<'a> Job<'a> {
    fn new(cluster: &'a mut SimulatedCluster, timeline: &'a Timeline, options: &Options) -> Job<'a> {
        let (mut situations, mut contexts) = (Situations::new(), Vec::new());
        for bucket in &timeline.buckets {
            let state = cluster.state(&bucket.call, 0);
            let situation = cluster.situation(&state);
            contexts.push(situation.map(|situation| situation.context));
            if let Some(situation) = situation {
                situations.entry(situation.context).or_insert_with(|| situation.clone());
            }
        }
        let (computation_noise, random) = (options.computation_noise, Random::new(options.seed, 0x1f3));
        Job { cluster, timeline, situations, contexts, computation_noise, random, step: 0 }
    }

    fn learn(&mut self, leader: &mut Leader, iterations: u64) -> Spent {
        let (mut spent, mut window) = (Spent::default(), Window::first());
        while self.step < iterations {
            let (mut made, mut iteration_s) = (Vec::new(), Vec::new());
            for ended in 0..window.iterations {
                let number = window.recorded_number(ended);
                let iteration = self.iterate(|it| it.arm_of(window.choice(&it.context, number)));
                if let Some(number) = number {
                    made.extend(self.made(&iteration, &window, number));
                }
                iteration_s.push(iteration.seconds);
                spent.add(&iteration, self.step);
            }
            window = leader.turn(&made, &iteration_s, &self.situations);
            if spent.settled_after.is_none() && leader.is_settled() {
                spent.settled_after = Some(self.step);
            }
        }
        spent
    }

    /// By context, what the calls of an iteration have taken, which was the `number`th in which calls are timed.
    fn made(&self, iteration: &Iteration, window: &Window, number: usize) -> Vec<Made> {
        let of = |context: Context| {
            let of_context = self.contexts.iter().zip(&iteration.calls).filter(|(it, _)| **it == Some(context));
            let seconds: Vec<f64> = of_context.map(|(_, played)| played.call_s).collect();
            Made {
                context,
                number,
                choice: window.choice(&context, Some(number)),
                mean_s: seconds.iter().sum::<f64>() / seconds.len() as f64,
                longest_s: seconds.iter().copied().fold(0.0, f64::max),
            }
        };
        self.situations.keys().copied().map(of).collect()
    }

    /// An iteration with the default and one with what stands, again and again.
    fn alternate(&mut self, stands: &Found, pairs: usize) -> Compared {
        let (mut default_s, mut tuned_s) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            default_s.push(self.iterate(|it| it.default).seconds);
            tuned_s.push(self.iterate(|it| arm_in(stands, it)).seconds);
        }
        Compared::of(&default_s, &tuned_s)
    }

    /// Makes an iteration, in which all calls of a context take the same.
    fn iterate(&mut self, arm: impl Fn(&Situation) -> usize) -> Iteration {
        let slower = (self.computation_noise * self.random.normal()).exp();
        let (mut calls, mut as_default) = (Vec::new(), Vec::new());
        for context in &self.contexts {
            let Some(situation) = context.and_then(|context| self.situations.get(&context)) else {
                calls.push(NOTHING);
                as_default.push(NOTHING);
                continue;
            };
            let (chosen, default) = (arm(situation), situation.default);
            let played = self.cluster.play(situation, chosen, self.step);
            let default_s = match chosen == default {
                true => played.call_s,
                false => self.cluster.truth_s(situation, default, self.step) * played.shared + played.stalled_s,
            };
            calls.push(played);
            as_default.push(Played { call_s: default_s, ..played });
        }
        self.step += 1;
        Iteration {
            seconds: self.timeline.iteration_s(slower, &calls),
            calls_s: sum_s(&calls),
            default_s: self.timeline.iteration_s(slower, &as_default),
            calls_default_s: sum_s(&as_default),
            calls,
        }
    }

    /// By context, the arm that takes least.
    fn best(&mut self) -> BTreeMap<Context, usize> {
        let mut best = BTreeMap::new();
        for (context, situation) in &self.situations {
            best.insert(*context, self.cluster.oracle(situation, self.step));
        }
        best
    }

    /// What an iteration takes without noise.
    fn quiet(&self, arm: impl Fn(&Situation) -> usize) -> Seconds {
        let of = |context: &Option<Context>| {
            let situation = context.and_then(|context| self.situations.get(&context));
            let call_s = situation.map_or(0.0, |it| self.cluster.truth_s(it, arm(it), self.step));
            Played { call_s, ..NOTHING }
        };
        let calls: Vec<Played> = self.contexts.iter().map(of).collect();
        Seconds { iteration_s: self.timeline.iteration_s(1.0, &calls), calls_s: sum_s(&calls) }
    }
}

impl Spent {
    /// All iterations over those of the default.
    pub fn over_default(&self) -> f64 {
        self.tuned_s / self.default_s
    }

    /// One more, the `count`th.
    fn add(&mut self, iteration: &Iteration, count: u64) {
        self.tuned_s += iteration.seconds;
        self.default_s += iteration.default_s;
        self.calls_tuned_s += iteration.calls_s;
        self.calls_default_s += iteration.calls_default_s;
        if count >= PREFIX && self.calls_default_s > 0.0 {
            self.worst_prefix = self.worst_prefix.max(self.calls_tuned_s / self.calls_default_s);
        }
    }
}

/// What calls take if this is what there is, and else the default.
fn arm_in(found: &Found, situation: &Situation) -> usize {
    situation.arm_of(found.get(&situation.context).copied().unwrap_or_default())
}

fn sum_s(calls: &[Played]) -> f64 {
    calls.iter().map(|played| played.call_s).sum()
}

#[cfg(test)]
mod tests;
