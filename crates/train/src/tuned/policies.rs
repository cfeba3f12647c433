//! How a policy gets from rank 0 to all ranks, and into force on all of them or on none.

use std::collections::BTreeMap;
use std::iter;

use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_tune::{Agreement, Choice, Context, ContextKey, Policy, Received, Schedule, Swap};

/// What the calls of a context take from a boundary on: `turns`, each of them once, and then always the same. What is tried was
/// admitted once, and must not be repeated before its time is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plays {
    pub(crate) context: Context,
    pub(crate) turns: Schedule,
    pub(crate) then: Choice,
    /// Calls that nobody times take what stands, also while the default is called in its place: nothing would be learned of that.
    pub(crate) untimed: Choice,
}

/// A version of what all contexts take.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Version {
    /// Counts from 1; 0 leaves everything alone.
    pub(crate) number: u64,
    plays: BTreeMap<ContextKey, Plays>,
}

/// A rank's versions: the one in force, and those that wait until everybody has them.
pub(crate) struct Policies {
    /// Whoever makes a call reads one pointer.
    current: Swap<InForce>,
    agreement: Agreement,
    /// Those that the agreement keeps.
    waiting: BTreeMap<u64, Version>,
    /// Reads what has come. None: it is as if it had not.
    pub(crate) read: fn(&[u8]) -> Option<Version>,
}

/// What calls take.
#[derive(Default)]
struct InForce {
    version: Version,
    /// The same, for whoever asks.
    policy: Policy,
}

impl Plays {
    /// Always this.
    pub(crate) fn always(context: Context, choice: Choice) -> Plays {
        Plays { context, turns: Schedule::always(choice), then: choice, untimed: choice }
    }
}

impl Version {
    pub(crate) fn new(number: u64, plays: impl IntoIterator<Item = Plays>) -> Version {
        Version { number, plays: plays.into_iter().map(|plays| (plays.context.key(), plays)).collect() }
    }

    /// What a call takes, by its number among the recorded ones of its context since the ranks have met; None: it is not recorded.
    pub(crate) fn choice(&self, context: ContextKey, number: Option<u64>) -> Choice {
        let Some(plays) = self.plays.get(&context) else { return Choice::Default };
        let Some(number) = number else { return plays.untimed };
        let turn = usize::try_from(number).ok().and_then(|number| plays.turns.turns().get(number));
        turn.copied().unwrap_or(plays.then)
    }

    /// What a context's recorded calls take when its turns are over.
    pub(crate) fn after_turns(&self, context: ContextKey) -> Choice {
        self.plays.get(&context).map_or(Choice::Default, |plays| plays.then)
    }

    /// What it says of a context, if anything.
    pub(crate) fn of(&self, context: &Context) -> Option<&Plays> {
        self.plays.get(&context.key())
    }

    pub(crate) fn plays(&self) -> impl Iterator<Item = &Plays> {
        self.plays.values()
    }

    /// Does it say the same of all calls?
    pub(crate) fn plays_as(&self, other: &Version) -> bool {
        self.plays == other.plays
    }

    /// As others read policies.
    pub(crate) fn policy(&self) -> Policy {
        Policy::new(self.number, self.plays().map(|plays| (plays.context, plays.turns)))
    }
}

impl Default for Policies {
    fn default() -> Policies {
        Policies {
            current: Swap::new(InForce::default()),
            agreement: Agreement::default(),
            waiting: BTreeMap::new(),
            read: decoded,
        }
    }
}

impl Policies {
    /// What calls take.
    pub(crate) fn current(&self) -> &Version {
        &self.current.current().version
    }

    /// The same as a policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.current.current().policy
    }

    /// The number of the version in force.
    pub(crate) fn active(&self) -> u64 {
        self.agreement.active()
    }

    /// All ranks have this one, and go by it from here on.
    pub(crate) fn follow(&mut self, policy: &Policy) {
        let plays =
            policy.entries().map(|(context, turns)| Plays { turns: *turns, ..Plays::always(*context, turns.at(0)) });
        self.agreement = Agreement::from(policy.version());
        self.waiting.clear();
        self.put_up(Version::new(policy.version(), plays), policy.clone());
    }

    /// At a boundary, where no call is under way: rank 0's next version, if it has one, goes to all ranks, and is in force
    /// afterwards if the minimum of the versions says that all have it. `told`: numbers of rank 0's that go along, and count
    /// whether it is or not. One small collective, and two more if there is a version.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(crate) fn spread(
        &mut self,
        communicator: &Communicator,
        next: Option<&Version>,
        told: &mut [i64],
    ) -> Result<(), CommError> {
        let plain = CallOptions::default();
        let mut bytes = next.map_or_else(Vec::new, encoded);
        let mut head: Vec<i64> = iter::once(bytes.len() as i64).chain(told.iter().copied()).collect();
        communicator.broadcast(&mut head, 0, &plain)?;
        told.copy_from_slice(&head[1..]);
        bytes.resize(head[0].max(0) as usize, 0);
        if bytes.is_empty() {
            return Ok(());
        }
        communicator.broadcast(&mut bytes, 0, &plain)?;
        self.receive(&bytes);
        let mut lowest = [self.agreement.ballot() as i64];
        communicator.all_reduce(&mut lowest, Reduction::Min, &plain)?;
        self.decide(lowest[0].max(0) as u64);
        Ok(())
    }

    /// A version has come. What cannot be read is not there; then this rank holds the others on the version before.
    fn receive(&mut self, bytes: &[u8]) {
        if let Some(version) = (self.read)(bytes)
            && self.agreement.receive(version.policy()) == Received::Kept
        {
            self.waiting.insert(version.number, version);
        }
    }

    /// The least of what all ranks have is in force from here on, if it is new.
    fn decide(&mut self, lowest: u64) {
        let Some(policy) = self.agreement.decide(lowest) else { return };
        let later = self.waiting.split_off(&(policy.version() + 1));
        if let Some(version) = self.waiting.remove(&policy.version()) {
            self.put_up(version, policy);
        }
        self.waiting = later;
    }

    fn put_up(&mut self, version: Version, policy: Policy) {
        // Whoever changes this rank's policies reads none of them: what was there before can go, so that there is always room.
        if self.current.replace(InForce { version, policy }).is_ok() {
            self.current.release();
        }
    }
}

type Encoded = (u64, Vec<(Context, Vec<Choice>, [Choice; 2])>);

fn encoded(version: &Version) -> Vec<u8> {
    let of = |plays: &Plays| (plays.context, plays.turns.turns().to_vec(), [plays.then, plays.untimed]);
    let all: Encoded = (version.number, version.plays().map(of).collect());
    // Numbers and short lists: nothing in it can fail. If it did, there would be no new version.
    postcard::to_stdvec(&all).unwrap_or_default()
}

fn decoded(bytes: &[u8]) -> Option<Version> {
    let (number, all): Encoded = postcard::from_bytes(bytes).ok()?;
    let plays = all
        .into_iter()
        .map(|(context, turns, [then, untimed])| Some(Plays { context, turns: Schedule::of(&turns)?, then, untimed }));
    Some(Version::new(number, plays.collect::<Option<Vec<_>>>()?))
}

#[cfg(test)]
mod agreed;

#[cfg(test)]
mod tests {
    use paceline_plan::CollectiveKind;
    use paceline_tune::{Action, Congestion, Family, Parallelism, State, TopologyClass, Transport, WireProtocol};

    use super::*;
    use crate::on_ranks::on_ranks;

    fn context() -> Context {
        state().context()
    }

    pub(super) fn state() -> State {
        State {
            collective: CollectiveKind::AllReduce,
            bytes: 4096,
            ranks: 3,
            hosts: 1,
            model_intensity: 100.0,
            local_batch: 8,
            has_nvlink: false,
            transport: Transport::SharedMemory,
            topology: TopologyClass::OneHost,
            is_ps_deployment: false,
            is_pipelined_layer: true,
            is_fused_call: false,
            parallelism: Parallelism::Data,
            congestion: Congestion::None,
        }
    }

    fn play(channels: u8) -> Choice {
        let family = Family { algorithm: 1, protocol: WireProtocol::Simple };
        Choice::Play(Action { family, channels, threads: 1, chunk_log2: 17 })
    }

    fn version(number: u64) -> Version {
        let turns = Schedule::of(&[Choice::Default, play(4)]).unwrap();
        Version::new(number, [Plays { context: context(), turns, then: play(2), untimed: play(3) }])
    }

    fn lost(_: &[u8]) -> Option<Version> {
        None
    }

    #[test]
    fn versions_travel_as_bytes_and_others_are_refused() {
        assert_eq!(decoded(&encoded(&version(3))), Some(version(3)));
        assert_eq!(decoded(&[]), None);
        assert_eq!(decoded(&encoded(&version(3))[..4]), None);
        let nothing_in_turn: Encoded = (3, vec![(context(), Vec::new(), [play(1); 2])]);
        assert_eq!(decoded(&postcard::to_stdvec(&nothing_in_turn).unwrap()), None);
    }

    /// However many calls there are: each of those that were admitted is made once.
    #[test]
    fn what_is_tried_is_not_repeated() {
        let (version, key) = (version(1), context().key());
        let all: Vec<Choice> = (0..320).map(|number| version.choice(key, Some(number))).collect();
        assert_eq!(all[..3], [Choice::Default, play(4), play(2)]);
        assert!(all[2..].iter().all(|choice| *choice == play(2)));
        assert_eq!(version.choice(key, None), play(3), "calls that nobody times");
        let other = State { ranks: 9, ..state() }.context();
        assert_eq!(version.choice(other.key(), Some(0)), Choice::Default);
    }

    /// Rank 1 cannot read the first policies: nobody is under them, and nobody waits. When they are sent again, all are.
    #[test]
    fn a_rank_that_lacks_a_policy_holds_all_others_back() {
        let all = on_ranks(3, |communicator| {
            let (rank, mut policies, mut seen) = (communicator.rank(), Policies::default(), Vec::new());
            for (round, number) in [1, 1, 2, 1, 2].into_iter().enumerate() {
                policies.read = if rank == 1 && round < 3 { lost } else { decoded };
                let next = version(number);
                let mut told = [if rank == 0 { round as i64 + 7 } else { 0 }];
                policies.spread(&communicator, Some(&next).filter(|_| rank == 0), &mut told).unwrap();
                assert_eq!(policies.current().number, policies.policy().version());
                seen.push((policies.active(), policies.policy().version(), told[0]));
            }
            policies.spread(&communicator, None, &mut []).unwrap();
            seen
        });
        for rank in all {
            assert_eq!(rank, [(0, 0, 7), (0, 0, 8), (0, 0, 9), (1, 1, 10), (2, 2, 11)]);
        }
    }
}
