//! Random faults at random moments. Every survivor ends, soon, with the right result or with a reason that names the
//! culprit; an operation that a rank stays away from is reported long before; and nothing is kept.
//!
//! A world begins with its links. Two ranks with one id, a rank of another job and one of another version are turned away
//! before there are any, where ranks meet, and that is sockets and no engine: they have tests with real processes
//! (`crates/cli/tests/faults.rs`), and seeds of their own (`crates/fabric/tests/rendezvous_faults.rs`).

use paceline_engine::{Cause, Failure, Held, Waiting};
use paceline_plan::{CollectiveKind, DataType, Rank, Reduction};

use crate::call::{Call, Variety, algorithms};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;
use crate::world::{Event, World};

const VARIETY: Variety = Variety { elements: &[0, 1, 3, 50, 400], tiles_max: 20, windows: &[1, 2, 4] };

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Some ranks start late, or pause for a second: nothing is wrong.
    Slow,
    /// A process dies.
    Kill,
    /// A process stops, for ever or for a while that is too long.
    Freeze,
    /// A link drops everything in one direction, or in both.
    Cut,
    /// The link of two ranks closes, and both live.
    Close,
    /// A rank's own system refuses it memory for a link.
    Refused,
    /// A program gives up.
    Abort,
    /// A rank leaves in good order, perhaps too early.
    Leave,
    /// A rank makes another call under the same key.
    Mismatch,
    /// A rank never makes one of the calls.
    Absent,
}

const FAULTS: [Fault; 10] = [
    Fault::Slow,
    Fault::Kill,
    Fault::Freeze,
    Fault::Cut,
    Fault::Close,
    Fault::Refused,
    Fault::Abort,
    Fault::Leave,
    Fault::Mismatch,
    Fault::Absent,
];

/// After so long an operation that does not move is reported.
const STALL: u64 = 10 * SECOND;

/// A schedule: what goes wrong, when, and who is to be named for it.
struct Schedule {
    world: World,
    calls: Vec<Call>,
    fault: Fault,
    /// The call that is made differently or not at all, and by whom.
    odd: Option<(usize, Rank)>,
    culprits: Vec<Rank>,
    /// All must have ended by then.
    end: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        let mut random = Random::new(seed);
        let n = 2 + random.below(5);
        let setup = Setup {
            heartbeat: SECOND,
            stall_report: STALL,
            ..Setup::wild(n, random.next()).with_pieces_of_at_least(100)
        };
        let fault = random.pick(&FAULTS);
        let timeout = if fault == Fault::Absent { random.within(8..20) } else { 60 };
        let calls = (0..1 + random.below(10)).map(|operation| {
            let call = Call::random(&mut random, n, operation as u64, &VARIETY);
            Call { timeout: timeout * SECOND, ..call }
        });
        let calls: Vec<Call> = calls.collect();
        let mut schedule = Schedule { world: World::new(setup), calls, fault, odd: None, culprits: Vec::new(), end: 0 };
        schedule.choose_the_odd_call(&mut random);
        schedule.post_all(&mut random);
        schedule.strike(&mut random);
        schedule
    }

    fn choose_the_odd_call(&mut self, random: &mut Random) {
        if !matches!(self.fault, Fault::Mismatch | Fault::Absent) {
            return;
        }
        let shared: Vec<usize> = (0..self.calls.len()).filter(|&call| self.calls[call].world() > 1).collect();
        if shared.is_empty() {
            self.fault = Fault::Slow;
            return;
        }
        let call = random.pick(&shared);
        let rank = random.pick(&self.calls[call].group);
        self.odd = Some((call, rank));
        self.culprits = vec![rank];
    }

    fn post_all(&mut self, random: &mut Random) {
        let n = self.world.nodes.len();
        (0..n).for_each(|rank| self.world.at(0, Event::Tick { rank }));
        let spread = random.pick(&[1, 100_000, 20_000_000, if self.fault == Fault::Slow { 5 * SECOND } else { 1 }]);
        for (index, call) in self.calls.iter().enumerate() {
            for (group_rank, &rank) in call.group.iter().enumerate() {
                let time = 50_000_000 + random.within(0..spread);
                match self.odd.filter(|&odd| odd == (index, rank)) {
                    None => self.world.post_at(time, group_rank, call),
                    Some(_) if self.fault == Fault::Absent => {}
                    Some(_) => self.world.post_at(time, group_rank, &different(random, call)),
                }
            }
        }
    }

    fn strike(&mut self, random: &mut Random) {
        let n = self.world.nodes.len();
        let spread = random.pick(&[100_000, 3_000_000, 30_000_000]);
        let at = 50_000_000 + random.within(0..spread);
        let rank = random.below(n);
        let other = (rank + 1 + random.below(n - 1)) % n;
        let pause = |length| Event::Freeze { rank, until: at + length };
        let (events, culprits, limit) = match self.fault {
            Fault::Slow => (vec![pause(random.within(0..SECOND))], vec![], 20 * SECOND),
            Fault::Kill => (vec![Event::Kill { rank }], vec![rank], SECOND),
            Fault::Freeze => {
                let length = random.pick(&[4 * SECOND, 8 * SECOND, u64::MAX / 2]);
                (vec![pause(length)], vec![rank], 10 * SECOND)
            }
            Fault::Cut => {
                let mut cuts = vec![Event::Cut { from: rank, to: other }];
                if random.once_in(2) {
                    cuts.push(Event::Cut { from: other, to: rank });
                }
                (cuts, vec![rank, other], 5 * SECOND)
            }
            Fault::Close => {
                let down = |random: &mut Random, at, peer| {
                    let noticed = random.within(1..1_000_000);
                    (noticed, Event::LinkDown { at, peer })
                };
                for (later, event) in [down(random, rank, other), down(random, other, rank)] {
                    self.world.at(at + later, event);
                }
                let cuts = [(rank, other), (other, rank)].map(|(from, to)| Event::Cut { from, to });
                (cuts.into(), vec![rank, other], SECOND)
            }
            // With the next frame, a sign of life if there is no other.
            Fault::Refused => (vec![Event::Refuse { rank, peer: other }], vec![rank], 5 * SECOND),
            Fault::Abort => (vec![Event::Cancel { rank }], vec![rank], SECOND),
            Fault::Leave => (vec![Event::Leave { rank }], vec![rank], 5 * SECOND),
            Fault::Mismatch => (vec![], self.culprits.clone(), 5 * SECOND),
            Fault::Absent => (vec![], self.culprits.clone(), 25 * SECOND),
        };
        events.into_iter().for_each(|event| self.world.at(at, event));
        self.culprits = culprits;
        self.end = at + limit;
    }

    /// The rank takes no part any more: what it has is not looked at.
    fn is_gone(&self, rank: Rank) -> bool {
        self.world.nodes[rank].dead || self.world.nodes[rank].stalled_until > self.world.now
    }

    fn check(&mut self) {
        self.world.run_until(self.end);
        for (index, call) in self.calls.iter().enumerate() {
            for (group_rank, &rank) in call.group.iter().enumerate().filter(|&(_, &rank)| !self.is_gone(rank)) {
                if self.odd == Some((index, rank)) {
                    continue;
                }
                let ended = self.world.ended(rank, call);
                match &ended.outcome {
                    Ok(()) => {
                        let right = !call.has_result(group_rank) || ended.output == call.expected(group_rank);
                        assert!(right, "{} is wrong on rank {rank}", call.key());
                    }
                    Err(failure) => {
                        assert_eq!(self.world.nodes[rank].engine.failure(), Some(failure), "rank {rank} goes on");
                        self.check_reason(rank, failure);
                    }
                }
            }
        }
        self.check_reports();
        self.check_refusals();
        self.check_nothing_is_left();
    }

    /// The reason is one of those that the fault can have, and names who is to blame, in its type and in its text. What
    /// the culprit itself says names it, too, or its peer.
    fn check_reason(&self, rank: Rank, failure: &Failure) {
        let text = failure.to_string();
        let fits = match failure.cause() {
            // Where there was no memory for its last words either.
            Cause::PeerLost if self.fault == Fault::Refused => !self.culprits.contains(&rank),
            Cause::PeerLost => matches!(self.fault, Fault::Kill | Fault::Freeze | Fault::Cut | Fault::Close),
            Cause::Cancelled => matches!(self.fault, Fault::Abort | Fault::Refused),
            Cause::PeerLeft => self.fault == Fault::Leave,
            Cause::Mismatch => self.fault == Fault::Mismatch,
            Cause::Deadline => self.fault == Fault::Absent,
            Cause::Violation => false,
        };
        assert!(fits, "rank {rank} ends a {:?} of {:?} with: {text}", self.fault, self.culprits);
        if self.culprits.contains(&rank) {
            return;
        }
        let blamed = match failure {
            // Of two calls that differ neither is the right one: who made the other one may have said so first.
            Failure::Aborted { rank, cause: Cause::Mismatch, culprit, .. } => vec![*rank, *culprit],
            _ => failure.culprit().into_iter().collect(),
        };
        let named = |culprit: &Rank| blamed.contains(culprit) && text.contains(&format!("rank {culprit}"));
        assert!(self.culprits.iter().any(named), "rank {rank} does not name {:?}: {failure:?}", self.culprits);
    }

    /// Nothing is reported but the call that a rank stays away from, which everyone that waits in it is told in time.
    fn check_reports(&self) {
        for (rank, node) in self.world.nodes.iter().enumerate().filter(|&(rank, _)| !self.is_gone(rank)) {
            let odd =
                self.odd.filter(|_| self.fault == Fault::Absent).map(|(call, absent)| (&self.calls[call], absent));
            for (at, stall) in &node.stalls {
                let Some((call, absent)) = odd else { panic!("rank {rank} reports for no reason: {stall}") };
                assert_eq!(stall.key, call.key(), "rank {rank} reports at {at} ns: {stall}");
                let only = stall.waiting.iter().all(|waiting| waiting.started == (waiting.rank != absent));
                assert!(only, "rank {rank} reports others than {absent} at {at} ns: {stall}");
            }
            let Some((call, absent)) = odd.filter(|(call, _)| call.group.contains(&rank)) else { continue };
            // Whoever has waited for the deadline, with a second to spare for what was done before.
            if rank != absent && call.timeout > STALL + SECOND && self.world.ended(rank, call).outcome.is_err() {
                let named = |stall: &[Waiting]| stall.contains(&Waiting { rank: absent, started: false });
                let in_time = node.stalls.iter().any(|(at, stall)| *at < STALL + 2 * SECOND && named(&stall.waiting));
                assert!(in_time, "rank {rank} does not report {absent}: {:?}", node.stalls);
            }
        }
    }

    /// Whoever has failed refuses the next call at once, for the same reason.
    fn check_refusals(&mut self) {
        let n = self.world.nodes.len();
        let next = Call { operation: 1000, ..Call::named(CollectiveKind::Barrier, "dissemination", n, 0) };
        let here = (0..n).filter(|&rank| !self.is_gone(rank));
        let failures: Vec<_> = here.map(|rank| (rank, self.world.nodes[rank].engine.failure().cloned())).collect();
        // Of these everyone learns, also whoever waits for nobody.
        let known = matches!(self.fault, Fault::Kill | Fault::Freeze | Fault::Abort | Fault::Refused);
        for (rank, failure) in failures {
            let Some(failure) = failure else {
                assert!(!known, "rank {rank} has heard nothing of {:?} of {:?}", self.fault, self.culprits);
                continue;
            };
            self.world.post_at(self.end, rank, &next);
            self.world.run_until(self.end);
            let refused = self.world.ended(rank, &next);
            assert_eq!((&refused.outcome, refused.at), (&Err(failure), self.end), "rank {rank} is not poisoned");
        }
    }

    fn check_nothing_is_left(&mut self) {
        // Signs of life bring the last credit back.
        self.world.run_until(self.end + 3 * SECOND);
        let several_streams = self.world.setup.link.streams > 1;
        for rank in 0..self.world.nodes.len() {
            let alone = self.culprits.iter().any(|&culprit| self.world.nodes[culprit].left || self.is_gone(culprit));
            if self.is_gone(rank) || self.world.nodes[rank].left {
                continue;
            }
            let node = &self.world.nodes[rank];
            let mut held = node.engine.held();
            if several_streams {
                held.unposted = 0; // A late grant may look like an early one.
            }
            if node.engine.failure().is_none() && (alone || self.fault == Fault::Absent) {
                // A peer that left or will never start an operation keeps what it was sent for it.
                (held.eager_bytes, held.unposted, held.pool_buffers) = (0, 0, 0);
            }
            assert_eq!(held, Held::default(), "rank {rank} keeps something ({:?})", node.engine.failure());
            let calls = node.calls.len();
            assert_eq!(calls, 0, "rank {rank} keeps the memory of {calls} calls");
        }
    }
}

#[test]
fn random_faults() {
    with_seeds("random_faults", schedules(1000, 10_000), |seed| Schedule::new(seed).check());
}

/// The same call, but for a detail, or another collective under the same key.
fn different(random: &mut Random, call: &Call) -> Call {
    let data_type = if call.data_type == DataType::F32 { DataType::I32 } else { DataType::F32 };
    match random.below(5) {
        0 => Call { data_type, ..call.clone() },
        1 => Call { tile_elements: call.tile_elements + 1, ..call.clone() },
        2 => Call { counts: call.counts.iter().map(|count| count + 1).collect(), ..call.clone() },
        3 => another_collective(random, call).unwrap_or_else(|| Call { data_type, ..call.clone() }),
        _ => Call { reduction: Reduction::Max, ..call.clone() },
    }
}

/// Collectives in which every rank needs something of every other. Of others a rank may be content with having sent: then
/// nobody learns that its receivers do something else.
const MUTUAL: [CollectiveKind; 5] = [
    CollectiveKind::AllReduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Barrier,
];

fn another_collective(random: &mut Random, call: &Call) -> Option<Call> {
    let others = algorithms(call.world()).filter(|other| MUTUAL.contains(&other.kind()) && other.kind() != call.kind);
    let others: Vec<_> = others.filter(|_| MUTUAL.contains(&call.kind)).collect();
    let other = (!others.is_empty()).then(|| random.pick(&others))?;
    let made = Call::new(other, call.world(), call.counts[0]).of_group(&call.group);
    Some(Call { operation: call.operation, timeout: call.timeout, ..made })
}
