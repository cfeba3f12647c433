//! All-reduces that follow a policy which was learned elsewhere: nothing is measured, and nothing changes while a plan is carried
//! out.

use std::mem;

use paceline_comm::{CallOptions, Communicator};
use paceline_plan::{OperationNumber, Plan};
use paceline_tune::environment::OwnModel;
use paceline_tune::{Choice, Policy};

use super::carrier::Way;
use super::tunable::{Job, operations, seen, situation};
use crate::agreement::Agreement;
use crate::error::TrainError;
use crate::tuned::{beliefs, rules_elsewhere};
use crate::tuning::{FollowedOperations, TuningNews};

/// Follows.
pub(crate) struct Followed {
    workers: Communicator,
    job: Job,
    model: OwnModel,
    policy: Policy,
    /// What is called otherwise than the carrier would, from the next iteration on.
    waiting: Vec<(OperationNumber, Way)>,
    /// Of the plan that is carried out.
    share: FollowedOperations,
    news: Vec<TuningNews>,
}

impl Followed {
    /// All ranks have the same policy.
    pub(super) fn new(workers: &Communicator, job: Job, policy: &Policy) -> Followed {
        Followed {
            workers: workers.clone(),
            job,
            model: beliefs(workers),
            policy: policy.clone(),
            waiting: Vec::new(),
            share: FollowedOperations::default(),
            news: Vec::new(),
        }
    }

    /// Another plan is carried out from here on, whose operations the carrier calls like this; `fixed`: with this algorithm, if the
    /// plan's strategy names one, which no rule changes. All ranks call it, and compare what they see of the calls. Rules for what
    /// this world cannot do leave their calls alone.
    pub(super) fn replanned(
        &mut self,
        plan: &Plan,
        fixed: Option<&str>,
        options: Vec<CallOptions>,
    ) -> Result<(), TrainError> {
        self.waiting.clear();
        let mut agreement = Agreement::default();
        agreement.add("the policy that calls follow", format!("{:x}", self.policy.fingerprint()));
        let operations = operations(&self.workers, &self.model, self.job, plan, options);
        agreement.add("what is seen of the calls that follow a policy", seen(operations.iter().map(|(it, _)| it)));
        let all = operations.len();
        for (number, (operation, state)) in operations.into_iter().enumerate() {
            let Choice::Play(action) = self.policy.choice(operation.key, 0) else { continue };
            let situation = situation(&self.model, fixed, &state);
            if situation.is_some_and(|situation| situation.families.contains(&action.family)) {
                let mut operation = operation;
                self.waiting.push((number, operation.choose(Choice::Play(action), &self.workers, fixed, &[])));
            }
        }
        let rules_elsewhere = rules_elsewhere(&self.workers, &self.model, &self.policy);
        self.share = FollowedOperations { operations: self.waiting.len(), all, rules_elsewhere };
        self.news.push(TuningNews::Followed(self.share));
        agreement.compare(&self.workers)
    }

    /// Servers add up in one way only.
    pub(super) fn rest(&mut self) {
        self.waiting.clear();
        self.share = FollowedOperations::default();
    }

    /// How much of an iteration it decides.
    pub(super) fn share(&self) -> FollowedOperations {
        self.share
    }

    /// What is called otherwise than in the last iteration.
    pub(super) fn next_iteration(&mut self) -> Vec<(OperationNumber, Way)> {
        mem::take(&mut self.waiting)
    }

    /// What has become known since this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<TuningNews> {
        mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use paceline_comm::Origin;
    use paceline_schedule::Workload;
    use paceline_strategy::Registry;
    use paceline_tune::{Action, Family, Schedule, WireProtocol};

    use super::super::tunable::state_of;
    use super::super::{Carrier, Exchange, Handicap, Pass};
    use super::*;
    use crate::backend::GradientSink;
    use crate::on_ranks::on_ranks;
    use crate::peers::Peers;
    use crate::tuned::tests::number_of;

    /// Two tensors of 16 KiB and one of 64 KiB, each a call of its own.
    const SIZES: [usize; 3] = [1 << 12, 1 << 14, 1 << 12];
    const JOB: Job = Job { model_intensity: 100.0, local_batch: 8 };

    /// A policy for the calls of 16 KiB: this algorithm, in chunks of 4 KiB.
    fn policy(workers: &Communicator, algorithm: u8) -> Policy {
        let state = state_of(workers, &beliefs(workers), JOB, 4 * SIZES[0], Origin::Layer);
        let family = Family { algorithm, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 12 };
        Policy::new(3, [(state.context(), Schedule::always(Choice::Play(action)))])
    }

    type Seen = (Vec<(String, usize)>, usize, Vec<TuningNews>);

    /// After three iterations, of which all sums are right: by operation its algorithm and chunk, what has changed, and the news.
    fn followed(strategy: &str, algorithm: u8) -> Vec<Seen> {
        on_ranks(3, |workers| {
            let strategy = Registry::built_in().parse(strategy).unwrap();
            let plan = paceline_schedule::plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap();
            let carrier = Carrier::new(Peers::from(&workers), strategy.algorithm().map(str::to_owned));
            let mut exchange = Exchange::new(carrier, plan, &[], &SIZES, &Handicap::default()).unwrap();
            exchange.follow(&policy(&workers, algorithm), JOB).unwrap();
            exchange.keep_changes();
            for _ in 0..3 {
                exchange.begin(Pass { weight: 1.0, first: true, last: true });
                for tensor in (0..SIZES.len()).rev() {
                    exchange.ready(tensor, Some(&vec![1.0; SIZES[tensor]])).unwrap();
                }
                for tensor in 0..SIZES.len() {
                    exchange.wait(tensor).unwrap();
                    exchange.read(tensor, |_, part| assert!(part.iter().all(|value| *value == 3.0)));
                }
            }
            let (_, all_reduces) = exchange.plan();
            let changed = exchange.take_changes().iter().map(|change| change.iteration).sum();
            let done = all_reduces.into_iter().map(|it| (it.algorithm, it.chunk_bytes)).collect();
            (done, changed, exchange.take_news())
        })
    }

    #[test]
    fn all_reduces_are_done_as_the_policy_says_from_the_first_iteration_on() {
        for (done, changed, news) in followed("wfbp-a2a", number_of("direct")) {
            let by_rule = done.iter().filter(|(algorithm, chunk)| algorithm == "direct" && *chunk == 4096);
            assert_eq!((by_rule.count(), changed), (2, 0), "{done:?}");
            let share = FollowedOperations { operations: 2, all: 3, rules_elsewhere: 0 };
            assert_eq!(news, [TuningNews::Followed(share)]);
        }
    }

    /// A rule for an algorithm that is none, or for another than the strategy names, fails nothing.
    #[test]
    fn rules_for_what_is_not_there_leave_calls_alone() {
        for (strategy, algorithm) in [("wfbp-a2a", 200), ("wfbp-a2a,arch=a2a:ring", number_of("direct"))] {
            for (done, _, news) in followed(strategy, algorithm) {
                assert!(done.iter().all(|(_, chunk)| *chunk != 4096), "{done:?}");
                // That the strategy names another one is no fault of the rule.
                let rules_elsewhere = usize::from(algorithm == 200);
                let share = FollowedOperations { operations: 0, all: 3, rules_elsewhere };
                assert_eq!(news, [TuningNews::Followed(share)]);
            }
        }
    }
}
