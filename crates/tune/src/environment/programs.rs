//! Programs that were read from files, as further algorithms of our communicator, priced by walking them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use paceline_collective::cost::{Load, walk};
use paceline_collective::{Action, Program, Topology, tiles};
use paceline_plan::{LinkCost, LinkCosts};

use crate::action::Family;
use crate::state::State;

/// Tiles that are walked, all of them in flight, as closed formulas have it. Of more, each further one takes what the second half of
/// these has taken: by then, the busiest port is never idle.
const WALKED: usize = 16;

/// A program that was proved to be right, and what it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// What it says, step by step.
    pub program: Program,
    /// Bytes of the calls that it is for, as [`State::bytes`] counts them.
    pub sizes: RangeInclusive<u64>,
}

impl Admitted {
    /// So many can be told apart by their numbers, from [`Family::PROGRAMS`] on.
    pub const MAX: usize = 256 - Family::PROGRAMS as usize;

    /// Is it for calls of this context? All of them take the same, so it must be for the smallest and the largest.
    pub fn fits(&self, state: &State) -> bool {
        let size_log2 = u32::from(state.context().size_log2);
        let (least, most) = (1u64 << size_log2, ((1u128 << (size_log2 + 1)) - 1) as u64);
        self.program.kind == state.collective
            && self.program.ranks.len() == state.ranks as usize
            && self.sizes.contains(&least)
            && self.sizes.contains(&most)
    }

    /// What it takes in tiles of so many bytes. None: it would never end, or takes no time that one could name.
    pub(super) fn price(
        &self,
        topology: &Topology,
        bytes: usize,
        tile_bytes: usize,
        costs: &LinkCosts,
    ) -> Option<Price> {
        let without = |change: fn(LinkCost) -> LinkCost| LinkCosts {
            within: change(costs.within),
            across: change(costs.across),
            ..*costs
        };
        let walked = |costs: &LinkCosts| seconds(&self.program, topology, (bytes, tile_bytes), costs);
        let (whole, sent_bytes) = walked(costs)?;
        let (moved, _) = walked(&without(|link| LinkCost { gamma: 0.0, ..link }))?;
        let (begun, _) = walked(&without(|link| LinkCost { gamma: 0.0, beta: 0.0, ..link }))?;
        let contention = match topology.hosts() {
            1 if bytes < LinkCosts::CONTENTION_WITHIN_FROM => 0.0,
            1 => costs.contention_within,
            _ => costs.contention,
        };
        let lost = self.fan_in().saturating_sub(1) as f64 * sent_bytes * contention;
        let price =
            Price { begin_s: begun, bytes_s: (moved - begun).max(0.0) + lost, work_s: (whole - moved).max(0.0) };
        price.of(1.0, 1.0, 1.0).is_finite().then_some(price)
    }

    /// From how many others a rank takes in, at most.
    fn fan_in(&self) -> usize {
        let senders = |steps: &[paceline_collective::Step]| {
            let from = steps.iter().filter_map(|step| match step.action {
                Action::Receive { from, .. } => Some(from),
                _ => None,
            });
            from.collect::<BTreeSet<_>>().len()
        };
        self.program.ranks.iter().map(|rank| senders(&rank.steps)).max().unwrap_or(0)
    }
}

/// Seconds of a program, by what they are spent on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    begin_s: f64,
    bytes_s: f64,
    work_s: f64,
}

impl Price {
    /// Seconds, if messages, bytes and work cost so many times as much as on the links that were walked.
    pub(super) fn of(&self, begin: f64, byte: f64, work: f64) -> f64 {
        self.begin_s * begin + self.bytes_s * byte + self.work_s * work
    }
}

/// What a program takes, and the bytes that its busiest sender sends.
fn seconds(
    program: &Program,
    topology: &Topology,
    (bytes, tile_bytes): (usize, usize),
    costs: &LinkCosts,
) -> Option<(f64, f64)> {
    let tile_bytes = tile_bytes.min(bytes).max(1);
    let walked = |bytes: usize| {
        let cost = walk(program, &Load { bytes, tile_bytes, window: WALKED }, topology, costs).ok()?;
        Some((cost.seconds, cost.bytes_sent_max as f64))
    };
    if tiles(bytes, tile_bytes) <= WALKED {
        return walked(bytes);
    }
    let (half, _) = walked(WALKED / 2 * tile_bytes)?;
    let (whole, sent_bytes) = walked(WALKED * tile_bytes)?;
    let all = bytes as f64 / tile_bytes as f64;
    let next = (whole - half) / (WALKED - WALKED / 2) as f64;
    Some((whole + next * (all - WALKED as f64), sent_bytes * all / WALKED as f64))
}

#[cfg(test)]
mod tests {
    use paceline_collective::registry;
    use paceline_plan::{Cluster, CollectiveKind};

    use super::*;
    use crate::environment::{CostModel, OwnModel};
    use crate::state::tests::CALL;
    use crate::{Action, Arm, Situation, WireProtocol};

    fn admitted(name: &str, ranks: usize) -> Admitted {
        let algorithm = registry::find(CollectiveKind::AllReduce, name).expect("it is built in");
        Admitted { program: algorithm.program(&Topology::flat(ranks), 0), sizes: 0..=u64::MAX }
    }

    fn situation(programs: &[Admitted], state: &State) -> Situation {
        let model = OwnModel::of(&Cluster::named("study-10gbe:8x1").expect("it is built in"));
        model.with_programs(programs.to_vec()).situation(state).expect("a choice")
    }

    fn of_programs(situation: &Situation) -> Vec<&Arm> {
        situation.arms.iter().filter(|arm| arm.action.family.algorithm >= Family::PROGRAMS).collect()
    }

    /// The library's ring, as somebody else's program, is priced as the library's, whatever the knobs.
    #[test]
    fn a_program_takes_what_its_algorithm_takes() {
        let ring = registry::find(CollectiveKind::AllReduce, "ring").ok().and_then(registry::index_of);
        for bytes in [1 << 12, 1 << 20, 1 << 26] {
            let situation = situation(&[admitted("ring", 8)], &State { bytes, ..CALL });
            let programs = of_programs(&situation);
            assert!(programs.len() > 20, "{}", programs.len());
            for arm in programs {
                let family = Family { algorithm: ring.expect("a ring"), ..arm.action.family };
                let same = Action { family, ..arm.action };
                let own = situation.arms.iter().find(|arm| arm.action == same).expect("the ring has all knobs");
                let ratio = arm.modelled_s / own.modelled_s;
                assert!((0.9..1.1).contains(&ratio), "{bytes}: {ratio} of {arm:?}");
            }
        }
    }

    /// Only calls for which it is made: the collective, the ranks, and all sizes of the context.
    #[test]
    fn a_program_is_an_algorithm_only_of_what_it_is_for() {
        let sized = Admitted { sizes: 1 << 20..=(1 << 21) - 1, ..admitted("ring", 8) };
        let programs = [sized, admitted("direct", 4)];
        let numbers = |state: &State| {
            let situation = situation(&programs, state);
            of_programs(&situation).iter().map(|arm| arm.action.family.algorithm).collect::<BTreeSet<_>>()
        };
        assert_eq!(numbers(&CALL), BTreeSet::from([Family::PROGRAMS]));
        assert_eq!(numbers(&State { ranks: 4, hosts: 4, ..CALL }), BTreeSet::from([Family::PROGRAMS + 1]));
        let others = [
            State { bytes: 1 << 21, ..CALL },
            State { bytes: 1 << 19, ..CALL },
            State { ranks: 6, hosts: 6, ..CALL },
            State { collective: CollectiveKind::AllGather, ..CALL },
        ];
        assert!(others.iter().all(|state| numbers(state).is_empty()));
        assert!(
            !programs[0].fits(&State { bytes: u64::MAX, ..CALL })
                && programs[1].fits(&State { bytes: u64::MAX, ranks: 4, ..CALL })
        );
        let whole = situation(&programs, &CALL);
        assert!(whole.arms[whole.default].action.family.algorithm < Family::PROGRAMS, "the default is the library's");
        let ll = |arm: &&Arm| arm.action.family.protocol == WireProtocol::LowLatency;
        assert!(of_programs(&whole).iter().any(ll));
    }
}
