//! Which program a call runs: made once for each algorithm, world, rank and root, and kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_collective::Algorithm;
use paceline_collective::registry::{find, index_of, of_kind, registry};
use paceline_engine::RankSchedule;
use paceline_plan::{CollectiveKind, LinkCost};

use crate::{CallOptions, CommError};

/// Tile sizes among which the cost model chooses.
const TILE_BYTES: [usize; 7] = [16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

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
    let mut best: Option<(f64, Choice)> = None;
    let candidates = of_kind(kind).filter(|algorithm| named.is_none_or(|named| named.name() == algorithm.name()));
    for algorithm in candidates.filter(|algorithm| algorithm.supports(world)) {
        for tile_bytes in TILE_BYTES {
            let seconds = algorithm.seconds(world, bytes, tile_bytes, link);
            if best.is_none_or(|(least, _)| seconds < least) {
                let index = index_of(algorithm).unwrap_or(u8::MAX);
                best = Some((seconds, Choice { algorithm, index, tile_bytes }));
            }
            if tile_bytes >= bytes {
                break;
            }
        }
    }
    match best {
        Some((_, choice)) => choice,
        // Every collective has an algorithm for every world (tested in `paceline-collective`).
        None => Choice { algorithm: registry()[0], index: 0, tile_bytes: TILE_BYTES[0] },
    }
}
