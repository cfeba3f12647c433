//! Which program a call runs: made once for each algorithm, world, rank and root, and kept.
//!
//! Memory safety rests on these programs: whoever touches an operation's memory relies on the proof that no two steps
//! race. The tests of `paceline-collective` run `verify` on every algorithm of the registry, in all worlds of up to 33
//! ranks and in those of 48 and 64. Larger worlds get programs of the same construction, a formula in rank and world;
//! whatever such a program did wrong, it could not leave the memory of its operation, which is checked at every access.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_collective::registry::{find, index_of, registry};
use paceline_collective::{Algorithm, select};
use paceline_engine::RankSchedule;
use paceline_plan::{CollectiveKind, LinkCost};

use crate::{CallOptions, CommError};

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

/// Algorithm, world size, rank, root.
type ScheduleKey = (u8, usize, usize, usize);

/// Collective, world size, bytes of a block, algorithm that the caller named.
type ChoiceKey = (CollectiveKind, usize, usize, Option<u8>);

/// The programs of a rank, and the choices made.
#[derive(Default)]
pub(crate) struct Programs {
    schedules: Mutex<HashMap<ScheduleKey, Arc<RankSchedule>>>,
    choices: Mutex<HashMap<ChoiceKey, Choice>>,
}

impl Programs {
    /// The prepared program of a rank.
    pub fn schedule(&self, choice: &Choice, rank: usize, world: usize, root: usize) -> Arc<RankSchedule> {
        let key = (choice.index, world, rank, root);
        let mut schedules = self.schedules.lock().unwrap_or_else(PoisonError::into_inner);
        let schedule = schedules.entry(key).or_insert_with(|| {
            let program = choice.algorithm.rank_program(rank, world, root);
            Arc::new(RankSchedule::new(&program, choice.algorithm.parts(world)))
        });
        schedule.clone()
    }

    /// The algorithm and tile size for a call: what the caller names, else what the cost model finds cheapest. A pure
    /// function of arguments that all ranks share.
    pub fn choose(
        &self,
        kind: CollectiveKind,
        world: usize,
        block_bytes: usize,
        link: &LinkCost,
        options: &CallOptions,
    ) -> Result<Choice, CommError> {
        let named = match options.algorithm.as_deref() {
            None | Some("auto") => None,
            Some(name) => Some(find(kind, name)?),
        };
        let index = named.and_then(index_of);
        let key = (kind, world, block_bytes, index);
        let mut choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        if choices.len() > CHOICES_MAX {
            choices.clear();
        }
        let known = choices.get(&key).copied();
        let mut choice = match known {
            Some(choice) => choice,
            None => {
                let choice = cheapest(kind, world, block_bytes, link, named);
                choices.insert(key, choice);
                choice
            }
        };
        if let Some(tile_bytes) = options.tile_bytes {
            choice.tile_bytes = tile_bytes;
        }
        Ok(choice)
    }
}

fn cheapest(
    kind: CollectiveKind,
    world: usize,
    bytes: usize,
    link: &LinkCost,
    named: Option<&'static dyn Algorithm>,
) -> Choice {
    let admits = |algorithm: &dyn Algorithm| named.is_none_or(|named| named.name() == algorithm.name());
    let cheapest = select::cheapest(kind, world, bytes, link, admits);
    // Every algorithm serves every world (tested in `paceline-collective`), so one is left.
    let (algorithm, tile_bytes) =
        cheapest.map_or((registry()[0], *select::TILE_BYTES.start()), |choice| (choice.algorithm, choice.tile_bytes));
    Choice { algorithm, index: index_of(algorithm).unwrap_or(u8::MAX), tile_bytes }
}
