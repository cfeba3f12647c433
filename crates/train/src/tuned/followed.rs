//! Calls that take what was learned elsewhere, and of which nothing more is learned.

use std::collections::BTreeMap;

use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_tune::environment::{Call, CostModel, OwnModel};
use paceline_tune::{Choice, Context, Policy, Schedule, State};

use super::{TunedCalls, typical_situation};

/// What a policy's rules come to in this world, as far as they were needed.
pub(super) type Followed = BTreeMap<Context, Choice>;

impl TunedCalls<'_> {
    /// From here on, calls take what a policy says that was learned elsewhere ([`paceline_tune::policy_file`] reads one), and nothing
    /// more is learned: boundaries do nothing. All ranks call it, where no call is under way; None: this rank has none, for it could
    /// not read it. Returns
    /// whether it is in force: only if all ranks have the same one. Else all of them go on as they are, and the reason for which
    /// a file cannot be read is the caller's to tell. Rules for what this world cannot do leave their calls alone.
    ///
    /// # Errors
    /// As [`paceline_comm::Communicator::all_reduce`].
    pub fn follow(&mut self, policy: Option<&Policy>) -> Result<bool, CommError> {
        // Positive, so that it can be negated, and never that of none.
        let seen = policy.map_or(0, |policy| (policy.fingerprint() >> 2) as i64 + 1);
        let mut least = [seen, -seen];
        self.communicator.all_reduce(&mut least, Reduction::Min, &CallOptions::default())?;
        let Some(policy) = policy.filter(|_| least[0] == -least[1]) else { return Ok(false) };
        self.policies.follow(policy);
        self.kinds.forget();
        (self.leader, self.followed) = (None, Some(Followed::new()));
        Ok(true)
    }

    /// How many of a policy's rules say nothing here: they are for calls among other ranks or hosts or over other links, or for what
    /// cannot be done here.
    pub fn rules_elsewhere(&self, policy: &Policy) -> usize {
        rules_elsewhere(self.communicator, &self.model, policy)
    }
}

/// The same for whoever makes calls by himself, of which this is believed.
pub(crate) fn rules_elsewhere(communicator: &Communicator, model: &OwnModel, policy: &Policy) -> usize {
    let topology = communicator.topology();
    let is_here = |&(context, schedule): &(&Context, &Schedule)| {
        // As the rule's calls would be here. What the model computes and in which batch, costs do not depend on.
        let state = model.state(&Call {
            collective: context.collective,
            bytes: context.typical_bytes(),
            ranks: topology.world() as u32,
            hosts: topology.hosts() as u32,
            parallelism: context.parallelism,
            is_pipelined_layer: context.is_pipelined_layer,
            is_fused_call: context.is_fused_call,
            is_ps_deployment: context.is_ps_deployment,
            model_intensity: 1.0,
            local_batch: 1,
            times: 1,
        });
        let world = |it: &Context| (it.ranks, it.hosts, it.transport, it.topology, it.has_nvlink, it.congestion);
        if world(&state.context()) != world(context) {
            return false;
        }
        match schedule.at(0) {
            Choice::Default => true,
            Choice::Play(action) => model.situation(&state).is_some_and(|it| it.families.contains(&action.family)),
        }
    };
    policy.entries().filter(|rule| !is_here(rule)).count()
}

/// What a rule comes to: nothing, where this world has no such algorithm and protocol.
pub(super) fn possible(followed: &mut Followed, model: &OwnModel, state: &State, choice: Choice) -> Choice {
    let Choice::Play(action) = choice else { return choice };
    *followed.entry(state.context()).or_insert_with(|| {
        let situation = typical_situation(model, state);
        let has_it = situation.is_some_and(|situation| situation.families.contains(&action.family));
        if has_it { choice } else { Choice::Default }
    })
}

#[cfg(test)]
mod tests {
    use paceline_plan::CollectiveKind;
    use paceline_tune::{Action, Family, TopologyClass, Transport, WireProtocol, policy_file};

    use super::*;
    use crate::tuned::tests::{CALL, choose, number_of, on_tuned_ranks};

    const ELEMENTS: usize = 4096;

    fn adds_up(calls: &mut TunedCalls<'_>, world: usize) {
        let mut data = vec![1.0f32; ELEMENTS];
        calls.all_reduce(&mut data, Reduction::Sum, &CALL, &CallOptions::default()).unwrap();
        assert!(data.iter().all(|value| *value == world as f32));
    }

    /// A policy for the call: an algorithm by its number, with two lanes.
    fn rule(calls: &TunedCalls<'_>, algorithm: u8) -> Policy {
        let context = calls.state_of(CollectiveKind::AllReduce, 4 * ELEMENTS, &CALL).context();
        let family = Family { algorithm, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 2, threads: 0, chunk_log2: 0 };
        Policy::new(3, [(context, Schedule::always(Choice::Play(action)))])
    }

    /// The same, as a file has it.
    fn policy(calls: &TunedCalls<'_>, algorithm: u8) -> Policy {
        policy_file::read(&policy_file::write(&rule(calls, algorithm))).expect("what was written")
    }

    /// As a call is made.
    fn options_of(calls: &mut TunedCalls<'_>, state: &State) -> CallOptions {
        let plain = CallOptions::default();
        let made = choose(calls, state, &plain);
        calls.played(made.choice, state.collective, &plain).0
    }

    /// On the algorithm and the tiles ranks must agree: how a rank's own messages travel is no reason to leave the policy alone there.
    #[test]
    fn one_rank_alone_may_say_how_its_messages_travel() {
        let chosen = on_tuned_ranks(2, |communicator, calls| {
            let policy = policy(calls, number_of("ring"));
            assert!(calls.follow(Some(&policy)).unwrap());
            let lanes = (communicator.rank() == 1).then_some(1);
            let own = CallOptions { lanes, ..CallOptions::default() };
            let bytes = 4 * ELEMENTS;
            for _ in 0..3 {
                let mut data = [1.0f32; ELEMENTS];
                calls.all_reduce(&mut data, Reduction::Sum, &CALL, &own).unwrap();
                assert_eq!(data, [2.0; ELEMENTS]);
            }
            let CallOptions { algorithm, lanes, .. } = calls.options_for(CollectiveKind::AllReduce, bytes, &CALL, &own);
            (algorithm, lanes)
        });
        assert_eq!(chosen, [2, 1].map(|lanes| (Some("ring".to_owned()), Some(lanes))));
    }

    #[test]
    fn what_all_ranks_have_is_followed_and_nothing_is_learned() {
        let chosen = on_tuned_ranks(3, |_, calls| {
            let policy = policy(calls, number_of("ring"));
            let place = calls.place(CollectiveKind::AllReduce, 4 * ELEMENTS, &CALL);
            assert_eq!(calls.stands(place, &CallOptions::default()), Choice::Default);
            assert!(calls.follow(Some(&policy)).unwrap());
            assert!(calls.stands(place, &CallOptions::default()) != Choice::Default);
            for _ in 0..20 {
                adds_up(calls, 3);
                calls.boundary().unwrap();
            }
            let state = calls.state_of(CollectiveKind::AllReduce, 4 * ELEMENTS, &CALL);
            let options = options_of(calls, &state);
            let plain = CallOptions::default();
            assert_eq!(calls.options_for(state.collective, 4 * ELEMENTS, &CALL, &plain), options);
            assert_eq!(calls.options_for(state.collective, 8 * ELEMENTS, &CALL, &plain), plain, "it has no rule");
            (
                options.algorithm,
                options.lanes,
                calls.policy().fingerprint() == policy.fingerprint(),
                calls.tuner().is_none(),
            )
        });
        assert!(chosen.iter().all(|chosen| *chosen == (Some("ring".to_owned()), Some(2), true, true)), "{chosen:?}");
    }

    /// A file that one rank cannot read, or has in another version, is followed by nobody; calls go on, and tuning, too.
    #[test]
    fn who_has_another_one_or_none_keeps_all_as_they_are() {
        for broken in ["channels = 200", "", "schema = 9"] {
            let stands = on_tuned_ranks(3, |communicator, calls| {
                let rank = communicator.rank();
                let policy = policy(calls, number_of("ring"));
                let text = policy_file::write(&policy);
                let mine = if rank == 1 { text.replacen("channels = 2", broken, 1) } else { text };
                let followed = calls.follow(policy_file::read(&mine).ok().as_ref()).unwrap();
                adds_up(calls, 3);
                calls.boundary().unwrap();
                (followed, rank == 0 && calls.tuner().is_none())
            });
            assert_eq!(stands, [(false, false); 3], "{broken}");
        }
    }

    /// A rule for an algorithm that is none of all-reduces, or not of this world's, fails no call. Files with the first are refused, and
    /// of the others it is known that they say nothing here.
    #[test]
    fn what_this_world_cannot_do_is_left_alone() {
        let other = (0..u8::MAX).find(|&number| OwnModel::algorithm(CollectiveKind::AllGather, number).is_some());
        let chosen = on_tuned_ranks(2, |_, calls| {
            let gather = rule(calls, other.expect("an algorithm"));
            assert!(policy_file::read(&policy_file::write(&gather)).is_err());
            let policies = [gather, policy(calls, 200), policy(calls, number_of("hierarchical"))];
            policies.map(|policy| {
                assert_eq!(calls.rules_elsewhere(&policy), 1);
                assert!(calls.follow(Some(&policy)).unwrap());
                adds_up(calls, 2);
                let state = calls.state_of(CollectiveKind::AllReduce, 4 * ELEMENTS, &CALL);
                let options = options_of(calls, &state);
                (options.algorithm, options.lanes)
            })
        });
        assert!(chosen.iter().flatten().all(|chosen| *chosen == (None, None)), "{chosen:?}");
    }

    /// Of three rules, one is for these ranks.
    #[test]
    fn rules_for_other_worlds_are_counted() {
        let counted = on_tuned_ranks(2, |_, calls| {
            let here = policy(calls, number_of("ring"));
            let (context, schedule) = here.entries().next().map(|(context, schedule)| (*context, *schedule)).unwrap();
            let more_ranks = Context { ranks: 64, ..context };
            let slower = Context { hosts: 2, topology: TopologyClass::Flat, transport: Transport::Tcp1g, ..context };
            let all = Policy::new(3, [context, more_ranks, slower].map(|context| (context, schedule)));
            [calls.rules_elsewhere(&here), calls.rules_elsewhere(&all)]
        });
        assert_eq!(counted, [[0, 2]; 2]);
    }
}
