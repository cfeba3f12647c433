//! Which program a call runs: made once for each algorithm, topology, rank and root, and kept.
//!
//! Memory safety rests on these programs: whoever touches an operation's memory relies on the proof that no two steps
//! race. The tests of `paceline-collective` run `verify` on every algorithm of the registry, in all worlds of up to 33
//! ranks and in those of 48 and 64, and on those that ask which ranks share a host wherever the ranks of a small world
//! may be, and in many larger ones; and on what is left of them where input and output are apart (`RankProgram::apart`) in
//! worlds of up to nine ranks, from every root, and wherever the ranks of a small world may be. Other worlds get programs of
//! the same construction, a formula in rank and topology; whatever such a program did wrong, it could not leave the memory
//! of its operation, which is checked at every access.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;
use paceline_collective::registry::{index_of, registry};
use paceline_collective::{Algorithm, Place, Topology, select};
use paceline_engine::RankSchedule;
use paceline_plan::{CollectiveKind, LinkCosts};

use crate::CommError;
use crate::options::Settings;

/// Choices that are remembered; more different calls than this start over.
const CHOICES_MAX: usize = 4096;

/// What a call runs.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    pub algorithm: &'static dyn Algorithm,
    /// Its index in the registry.
    pub index: u8,
    pub tile_bytes: usize,
}

impl Choice {
    /// What runs is a program of the caller's; no algorithm of the registry has its index.
    pub fn of_caller(tile_bytes: usize) -> Choice {
        Choice { algorithm: registry()[0], index: u8::MAX, tile_bytes }
    }
}

/// Algorithm, topology, rank, root, whether input and output are apart.
type ScheduleKey = (u8, Topology, usize, usize, bool);

/// Collective, topology, bytes of a block, whether blocks differ, algorithm that the caller named.
type ChoiceKey = (CollectiveKind, Topology, usize, bool, Option<u8>, Option<usize>);

/// The choices made, and at which costs.
#[derive(Default)]
struct Choices {
    costs: Option<LinkCosts>,
    made: HashMap<ChoiceKey, Choice, FixedState>,
}

/// The programs of a rank, and the choices made.
#[derive(Default)]
pub(crate) struct Programs {
    schedules: Mutex<HashMap<ScheduleKey, Arc<RankSchedule>, FixedState>>,
    choices: Mutex<Choices>,
}

impl Programs {
    /// The prepared program of a rank. `apart`: input and output share no memory, so it need not be right in place.
    pub fn schedule(
        &self,
        choice: &Choice,
        rank: usize,
        topology: &Topology,
        root: usize,
        apart: bool,
    ) -> Arc<RankSchedule> {
        let key = (choice.index, topology.clone(), rank, root, apart);
        let mut schedules = self.schedules.lock().unwrap_or_else(PoisonError::into_inner);
        let schedule = schedules.entry(key).or_insert_with(|| {
            let (algorithm, parts) = (choice.algorithm, choice.algorithm.parts(topology));
            let place = Place { kind: algorithm.kind(), rank, world: topology.world(), root };
            let program = algorithm.rank_program(rank, topology, root);
            let program = if apart { program.apart(place, parts) } else { program };
            Arc::new(RankSchedule::new(&program, parts))
        });
        schedule.clone()
    }

    /// The algorithm and tile size for a call: what the caller names, else what the cost model finds cheapest. A pure
    /// function of arguments that all ranks share.
    pub fn choose(
        &self,
        kind: CollectiveKind,
        topology: &Topology,
        block_bytes: usize,
        variable: bool,
        costs: &LinkCosts,
        settings: &Settings,
    ) -> Result<Choice, CommError> {
        let index = settings.algorithm.and_then(index_of);
        let key = (kind, topology.clone(), block_bytes, variable, index, settings.chunk_bytes);
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        // What was cheapest at other costs need not be now.
        if choices.costs.replace(*costs) != Some(*costs) || choices.made.len() > CHOICES_MAX {
            choices.made.clear();
        }
        let choice =
            choices.made.entry(key).or_insert_with(|| cheapest(kind, topology, block_bytes, variable, costs, settings));
        Ok(*choice)
    }
}

fn cheapest(
    kind: CollectiveKind,
    topology: &Topology,
    bytes: usize,
    variable: bool,
    costs: &LinkCosts,
    settings: &Settings,
) -> Choice {
    let admits = |algorithm: &dyn Algorithm| {
        let named = settings.algorithm.is_none_or(|named| named.name() == algorithm.name());
        named && (!variable || algorithm.variable_counts())
    };
    let cheapest = match settings.chunk_bytes {
        None => select::cheapest(kind, topology, bytes, costs, admits),
        Some(tile_bytes) => select::cheapest_in_tiles(tile_bytes, kind, topology, bytes, costs, admits),
    };
    // Every algorithm serves every world (tested in `paceline-collective`), so one is left.
    let (algorithm, tile_bytes) =
        cheapest.map_or((registry()[0], *select::TILE_BYTES.start()), |choice| (choice.algorithm, choice.tile_bytes));
    Choice { algorithm, index: index_of(algorithm).unwrap_or(u8::MAX), tile_bytes }
}

#[cfg(test)]
mod tests {
    use paceline_plan::LinkCost;

    use super::*;
    use crate::CallOptions;

    #[test]
    fn a_choice_lasts_as_long_as_the_costs_that_it_was_made_at() {
        let (programs, ranks) = (Programs::default(), Topology::flat(8));
        let name = |overhead| {
            let link = LinkCost { alpha: 20e-6, overhead, beta: 0.1e-9, gamma: 0.1e-9 };
            let costs = LinkCosts::uniform(link);
            let Ok(settings) = CallOptions::default().settings(CollectiveKind::AllReduce) else { unreachable!() };
            let choose = programs.choose(CollectiveKind::AllReduce, &ranks, 64, false, &costs, &settings);
            choose.unwrap().algorithm.name()
        };
        assert_eq!([20e-6, 1e-6, 20e-6].map(name), ["recursive-doubling", "direct", "recursive-doubling"]);
    }
}
