//! What is left of a program where input and output are apart does the same, and nothing in it races.
//!
//! Random steps of one rank, in an order in which they could be executed. They are right for no collective, but what they
//! send and leave behind is a function of what they are given, and that function must stay the same.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use paceline_collective::{Action, KernelId, Place, RankBuilder, RankProgram, Slot, Space, Step};
use paceline_plan::CollectiveKind;
use proptest::prelude::*;

const PARTS: u32 = 2;

/// Of an all-gather among two: one block in the input, two in the output, and up to two in scratch.
const PLACE: Place = Place { kind: CollectiveKind::AllGather, rank: 0, world: 2, root: 0 };

/// What a step does, its operands, and its result: numbers that [`slot`] turns into slots.
type Choice = (u8, [u8; 2], u8);

/// A part of a block, or all of it. Only scratch and output are written.
fn slot(number: u8, whole: bool, written: bool) -> Slot {
    let places = [(Space::Scratch, 0), (Space::Scratch, 1), (Space::Output, 0), (Space::Output, 1), (Space::Input, 0)];
    let (space, block) = places[usize::from(number / 2) % if written { 4 } else { 5 }];
    if whole { Slot::of_parts(space, block, 0, PARTS) } else { Slot::of_parts(space, block, u32::from(number % 2), 1) }
}

/// Whole blocks are what copies save most, so most steps move them.
fn program(choices: &[Choice]) -> RankProgram {
    let mut builder = RankBuilder::new(PLACE, PARTS);
    for &(what, operands, into) in choices {
        let whole = what % 4 != 0;
        let ([left, right], into) = (operands.map(|number| slot(number, whole, false)), slot(into, whole, true));
        // What a step reads beside what it writes must not overlap it in part; slots of one size never do.
        match what / 4 {
            0..=4 => builder.copy(left, into),
            5..=7 => builder.send(1, left),
            8 => builder.receive(1, into),
            9 => builder.receive_fold(1, left, into, false),
            10 => builder.combine(left, right, into, false),
            _ => builder.map(KernelId(0), left, into),
        };
    }
    builder.finish()
}

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// By space, block and part. What was never written has a value of its own, too.
type Cells = BTreeMap<(Space, u32, u32), u64>;

fn cells(slot: &Slot) -> impl Iterator<Item = (Space, u32, u32)> + use<> {
    let Slot { space, block, part, parts, .. } = *slot;
    (part..part + parts).map(move |part| (space, block, part))
}

/// Executes the steps in their order: what is sent, under which name, and what lies in the output at the end.
fn execute(steps: &[Step]) -> (BTreeMap<u32, Vec<u64>>, Vec<u64>) {
    let (mut memory, mut sent) = (Cells::new(), BTreeMap::new());
    for step in steps {
        let memory = &mut memory;
        let read = |memory: &Cells, slot: &Slot| -> Vec<u64> {
            cells(slot).map(|cell| memory.get(&cell).copied().unwrap_or_else(|| hashed(cell))).collect()
        };
        let of = |what: &str, values: &[Vec<u64>]| -> Vec<u64> {
            (0..values[0].len())
                .map(|at| hashed((what, values.iter().map(|value| value[at]).collect::<Vec<_>>())))
                .collect()
        };
        let (into, values) = match &step.action {
            Action::Send { message, from, .. } => {
                assert!(sent.insert(*message, read(memory, from)).is_none(), "message {message} is sent twice");
                continue;
            }
            Action::Receive { message, into, fold, .. } => {
                let arrived: Vec<u64> =
                    cells(into).zip(0u32..).map(|(_, at)| hashed(("message", message, at))).collect();
                let values = fold.map(|fold| of("fold", &[read(memory, &fold.with), arrived.clone()]));
                (into, values.unwrap_or(arrived))
            }
            Action::Combine { left, right, into, .. } => {
                (into, of("combine", &[read(memory, left), read(memory, right)]))
            }
            Action::Copy { from, into } => (into, read(memory, from)),
            Action::Map { from, into, .. } => (into, of("map", &[read(memory, from)])),
        };
        memory.extend(cells(into).zip(values));
    }
    let value = |part: u32| {
        let cell = (Space::Output, part / PARTS, part % PARTS);
        memory.get(&cell).copied().unwrap_or_else(|| hashed(cell))
    };
    (sent, (0..2 * PARTS).map(value).collect())
}

/// Two steps of which one writes what the other touches are in order, so that any order that the waits allow gives what
/// the order of the steps gives.
fn races(steps: &[Step]) -> Option<(usize, usize)> {
    let mut before: Vec<Vec<usize>> = Vec::new();
    for step in steps {
        let waits = step.after.iter().map(|&wait| wait as usize);
        before.push(waits.flat_map(|wait| before[wait].iter().copied().chain([wait])).collect());
    }
    let writes = |one: &Action, other: &Action| {
        one.write().is_some_and(|write| other.reads().chain(other.write()).any(|slot| slot.overlaps(&write)))
    };
    let pairs = (0..steps.len()).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
    let race = |&(earlier, later): &(usize, usize)| {
        let (one, other) = (&steps[earlier].action, &steps[later].action);
        (writes(one, other) || writes(other, one)) && !before[later].contains(&earlier)
    };
    pairs.into_iter().find(race)
}

#[track_caller]
fn check(program: &RankProgram) {
    let apart = program.apart(PLACE, PARTS);
    assert_eq!(execute(&apart.steps), execute(&program.steps), "{program:#?}\nbecame {apart:#?}");
    assert_eq!(races(&apart.steps), None, "{program:#?}\nbecame {apart:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn random_programs_do_the_same_apart(
        choices in proptest::collection::vec((0u8..48, any::<[u8; 2]>(), any::<u8>()), 1..14),
    ) {
        check(&program(&choices));
    }
}

/// What is sent second is what was saved second.
#[test]
fn one_slot_of_scratch_saves_two_blocks_one_after_the_other() {
    let place = Place { kind: CollectiveKind::AllToAll, ..PLACE };
    let mut builder = RankBuilder::new(place, PARTS);
    let saved = builder.tile(Space::Scratch, 0);
    for block in 0..2 {
        let input = builder.tile(Space::Input, block);
        builder.copy(input, saved);
        builder.send(1, saved);
    }
    let program = builder.finish();
    let apart = program.apart(place, PARTS);
    assert_eq!(apart.steps.len(), 2, "nothing is copied: {apart:#?}");
    assert_eq!(execute(&apart.steps), execute(&program.steps), "{apart:#?}");
    assert_eq!(races(&apart.steps), None);
}
