//! Rank 0's tuner, and which of its decisions wait for their times.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use paceline_comm::{Communicator, Transport};
use paceline_plan::{CollectiveKind, LinkCosts};
use paceline_tune::congestion::Observed;
use paceline_tune::environment::{Call, CostModel, Links, OwnModel};
use paceline_tune::learner::{Lesson, Remembered};
use paceline_tune::whole::Found;
use paceline_tune::{
    Choice, Congestion, Context, Cost, Course, Decision, Ledger, Schedule, Situation, Standing, State,
    Transport as Carrier, Tuner,
};

use super::congestion::tell;
use super::policies::Plays;

/// What can be done in each context; None where there is nothing to choose.
pub(crate) type Situations = BTreeMap<Context, Option<Situation>>;

/// A call that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) context: Context,
    /// Its number among those of its context since the ranks have met: whose turn it was.
    pub(crate) number: u64,
    pub(crate) choice: Choice,
    /// As many calls as it stands for.
    pub(crate) calls: usize,
    /// Of one call, or the mean of all of them. Not finite if nobody knows, or if it is no time of this choice.
    pub(crate) seconds: f64,
    /// How many times as long as the mean the longest of them took: 1 of one call.
    pub(crate) longest: f64,
}

impl Made {
    /// It took so long; what is not to count, as its seconds are none, does not.
    pub(super) fn took(self, time: Duration) -> Made {
        Made { seconds: self.seconds + time.as_secs_f64(), ..self }
    }
}

/// A tuner with what it has decided and not yet seen.
pub(crate) struct Learning {
    pub(crate) tuner: Tuner,
    /// What a context's turns came from, in their order.
    decisions: BTreeMap<Context, Vec<Option<Decision>>>,
    /// What earlier jobs have learned.
    remembered: Remembered,
    ledgers: BTreeMap<Context, Ledger>,
    observed: Observed,
}

impl Learning {
    pub(crate) fn new(tuner: Tuner) -> Learning {
        Learning {
            tuner,
            decisions: BTreeMap::new(),
            remembered: Remembered::default(),
            ledgers: BTreeMap::new(),
            observed: Observed::default(),
        }
    }

    /// Sees how much others are in the way, by calls that have been made since the ranks last met, and has every situation say so.
    pub(crate) fn observe_congestion(&mut self, made: &[Made], situations: &mut Situations) {
        let mut observed = mem::take(&mut self.observed);
        let made = made.iter().map(|made| (made.context, made.choice, made.seconds));
        tell(situations, observed.observe(made, |context| self.stands(context)));
        self.observed = observed;
    }

    /// How much others are in the way.
    pub(crate) fn congestion(&self) -> Congestion {
        self.observed.level()
    }

    /// Learns from calls that have been made since the ranks last met. `by_calls`: did each context go by its own tuner then?
    pub(crate) fn learn(&mut self, made: &[Made], situations: &Situations, by_calls: bool) {
        let mut called = BTreeSet::new();
        for made in made {
            let Some(situation) = situation_of(situations, &made.context) else { continue };
            called.insert(made.context);
            let arm = situation.arm_of(made.choice);
            let ledger = self.ledgers.entry(made.context).or_default();
            let times = [made.seconds, made.seconds * made.longest];
            ledger.look_at_longest(&mut self.tuner, situation, arm, times);
            match self.decision(made) {
                Some(decision) if decision.arm == arm => self.tuner.observe(situation, decision, made.seconds),
                Some(decision) => {
                    // It was decided for another policy than the one under which the call was made.
                    self.tuner.observe(situation, decision, f64::NAN);
                    self.tuner.observe_elsewhere(situation, arm, made.seconds);
                }
                None if by_calls => self.tuner.observe_repeated(situation, arm, made.seconds),
                None => self.tuner.observe_elsewhere(situation, arm, made.seconds),
            }
            self.count(made, arm);
        }
        called.iter().filter_map(|context| situation_of(situations, context)).for_each(|it| self.forget(it));
    }

    /// The decision behind a call, once.
    fn decision(&mut self, made: &Made) -> Option<Decision> {
        let decisions = self.decisions.get_mut(&made.context)?;
        decisions.get_mut(usize::try_from(made.number).ok()?)?.take()
    }

    fn count(&mut self, made: &Made, arm: usize) {
        let drifts = self.course(&made.context).map_or(0, |course| course.drifts);
        let (calls, seconds) = (made.calls as u64, made.calls as f64 * made.seconds);
        self.ledgers.entry(made.context).or_default().count(drifts, arm, calls, seconds);
    }

    /// What was decided for a context and not seen will not be seen any more: what was set aside for it is free again.
    pub(crate) fn forget(&mut self, situation: &Situation) {
        for decision in self.decisions.remove(&situation.context).unwrap_or_default().into_iter().flatten() {
            self.tuner.observe(situation, decision, f64::NAN);
        }
    }

    /// The same for all contexts.
    pub(crate) fn forget_all(&mut self, situations: &Situations) {
        situations.values().flatten().for_each(|situation| self.forget(situation));
    }

    /// Calls have other choices from here on, and nothing of what was decided is under way. What is known of them goes; what the job's
    /// trials may err together, and what the guard has counted of all that was tried, does not.
    pub(crate) fn start_over(&mut self) {
        self.tuner.start_over();
        self.decisions.clear();
        self.ledgers.clear();
        (self.remembered, self.observed) = (Remembered::default(), Observed::default());
    }

    /// The network has changed while all calls of a context were the default's.
    pub(crate) fn changed(&mut self, situation: &Situation) {
        self.forget(situation);
        self.tuner.changed(situation);
    }

    /// What a context takes from here on, of which so many calls will be timed.
    pub(crate) fn plays(&mut self, situation: &Situation, calls: usize) -> Plays {
        self.forget(situation);
        self.recall(situation);
        let context = situation.context;
        let (turns, decisions) = self.tuner.schedule(situation, calls);
        let then = self.tuner.rests_with(&context);
        self.decisions.insert(context, decisions.into_iter().map(Some).collect());
        let nothing_else = turns.turns().iter().all(|turn| *turn == then);
        let turns = if nothing_else { Schedule::always(then) } else { turns };
        Plays { context, turns, then, untimed: self.tuner.goes_on_with(&context) }
    }

    /// The same where nothing is to be tried from here on, nor asked of the default: what stands.
    pub(crate) fn stays(&mut self, situation: &Situation) -> Plays {
        self.forget(situation);
        Plays::always(situation.context, self.tuner.stands_with(&situation.context))
    }

    /// What stands in a context.
    pub(crate) fn stands(&self, context: &Context) -> Choice {
        self.tuner.stands_with(context)
    }

    pub(crate) fn course(&self, context: &Context) -> Option<&Course> {
        self.tuner.course(context)
    }

    /// What is better than the default, call by call, and whether something is open. `contexts`: where something can be chosen, each with
    /// whether it is waited for until it is decided.
    pub(crate) fn found<'a>(&self, contexts: impl IntoIterator<Item = (&'a Context, bool)>) -> (Found, bool) {
        let (mut found, mut is_open) = (Found::new(), false);
        for (context, is_waited_for) in contexts {
            match self.course(context).map(Course::standing) {
                Some(Standing::Chosen(choice, _)) => _ = found.insert(*context, choice),
                Some(Standing::Settled(_)) => {}
                Some(Standing::Learning) | None => is_open |= is_waited_for,
            }
        }
        (found, is_open)
    }

    /// How often the network has changed, as far as calls have shown.
    pub(crate) fn drifts(&self) -> u64 {
        self.tuner.courses().map(|(_, course)| u64::from(course.drifts)).sum()
    }

    /// What the calls of a context have cost.
    pub(crate) fn cost(&self, context: &Context, situations: &Situations) -> Cost {
        let (Some(ledger), Some(situation)) = (self.ledgers.get(context), situation_of(situations, context)) else {
            return Cost::default();
        };
        ledger.cost(situation.arm_of(self.stands(context)))
    }

    /// What a later job may begin with, in seconds: what was measured here, and what earlier jobs have told and this one has not measured
    /// again, as they have told it.
    pub(crate) fn lessons(&self, situations: &Situations) -> Vec<Lesson> {
        self.remembered.lessons(self.tuner.lessons(), |context| situation_of(situations, context))
    }

    /// What an earlier job has kept.
    pub(crate) fn remember(&mut self, lessons: impl IntoIterator<Item = Lesson>) {
        self.remembered.add(lessons);
    }

    /// Has an earlier job told something of a context?
    pub(crate) fn is_told_of(&self, context: &Context) -> bool {
        self.remembered.tells_of(context)
    }

    /// Of how many choices an earlier job has told something.
    pub(crate) fn recalled(&self) -> usize {
        self.remembered.recalled()
    }

    fn recall(&mut self, situation: &Situation) {
        self.tuner.remember(self.remembered.recall(situation));
    }
}

/// A call as the tuner sees it, with this communicator's ranks and hosts.
pub(super) fn state_of(
    communicator: &Communicator,
    model: &OwnModel,
    collective: CollectiveKind,
    bytes: usize,
    call: &Call,
) -> State {
    let topology = communicator.topology();
    let (ranks, hosts) = (topology.world() as u32, topology.hosts() as u32);
    model.state(&Call { collective, bytes: bytes as u64, ranks, hosts, ..*call })
}

/// What can be done about the calls of a state's context: about all of them what can be done about one in its middle.
pub(crate) fn typical_situation(model: &OwnModel, state: &State) -> Option<Situation> {
    model.situation(&State { bytes: state.context().typical_bytes(), ..*state })
}

/// What can be done in a context, if something can.
pub(crate) fn situation_of<'a>(situations: &'a Situations, context: &Context) -> Option<&'a Situation> {
    situations.get(context).and_then(Option::as_ref)
}

/// Seconds per byte of links between hosts, from which on they are no longer a class better: half way, as factors go, between 1 and
/// 10 Gbit/s, and between 10 and 40, as what is measured is less than what a link is named after.
const NO_TCP_10G: f64 = 8.0 / 3.2e9;
const NO_TCP_100G: f64 = 8.0 / 20e9;

/// What is believed of a communicator's calls: that links cost what was measured when the world formed, as all ranks agreed, and lead
/// where all of them were told.
pub(crate) fn beliefs(communicator: &Communicator) -> OwnModel {
    let (topology, costs) = (communicator.topology(), communicator.link_costs());
    // Rank 0 alone chooses among the arms that there are on its links; the others do what it says.
    let links = links_of(communicator);
    let has_tcp = if topology.hosts() == 1 { communicator.has_tcp_within() } else { links.has_tcp() };
    let carrier = carrier_of(&costs, topology.hosts(), has_tcp, communicator.dilation());
    OwnModel::measured(&costs, topology, carrier, links)
}

/// What carries a communicator's calls. It is the same on every rank as long as hosts have equally many.
pub fn links_of(communicator: &Communicator) -> Links {
    let carried = |by: fn(Transport) -> bool| {
        (0..communicator.world_size()).filter_map(|rank| communicator.transport(rank)).any(by)
    };
    let (tcp, memory) = (carried(|it| it == Transport::Tcp), carried(|it| it != Transport::Tcp));
    Links::new(tcp, memory, u32::try_from(communicator.tcp_streams()).unwrap_or(u32::MAX))
}

/// What carries the bytes of a communicator's slowest links, the same on every rank: within a host they have agreed whether that is TCP, and
/// among several each has a link to another one. An emulated network is of memory, and stands for the one that it would be without its dilation.
fn carrier_of(costs: &LinkCosts, hosts: usize, has_tcp: bool, dilation: f64) -> Carrier {
    match (hosts, has_tcp) {
        (..=1, false) => Carrier::SharedMemory,
        // A loopback has no name, and what is measured of it may be of one class today and of another one tomorrow.
        (..=1, true) => Carrier::Tcp100g,
        (_, true) => tcp_of(costs.across.beta),
        (_, false) if costs.across.beta <= OwnModel::ADAPTERS * dilation => Carrier::Rdma,
        (_, false) => tcp_of(costs.across.beta / dilation),
    }
}

/// The class of TCP links that take so many seconds per byte.
fn tcp_of(beta: f64) -> Carrier {
    match beta {
        beta if beta > NO_TCP_10G => Carrier::Tcp1g,
        beta if beta > NO_TCP_100G => Carrier::Tcp10g,
        _ => Carrier::Tcp100g,
    }
}

#[cfg(test)]
mod tests;
