//! The steps that have to do with a mutated one.

use std::collections::BTreeSet;

use paceline_collective::{Action, Place, Program, Slot, StepId};

use crate::mutation::{Change, Mutant};

/// The step itself; those of its rank that touch the same cells, that it waits for or that wait for it; and the other
/// side of its message, before and after the change. Numbered as in the mutant.
pub fn steps(original: &Program, mutant: &Mutant) -> BTreeSet<(usize, StepId)> {
    let mut near = BTreeSet::new();
    let mut changed = vec![mutant.step];
    if mutant.change == Change::SwappedWithNext {
        changed.push(mutant.step + 1);
    }
    for &step in &changed {
        let old = &original.ranks[mutant.rank].steps[step as usize];
        let dropped = mutant.change == Change::Dropped;
        let new = if dropped { old } else { &mutant.program.ranks[mutant.rank].steps[step as usize] };
        let renumbered = |step: StepId| if dropped && step > mutant.step { step - 1 } else { step };
        if !dropped {
            near.insert((mutant.rank, step));
        }
        if mutant.change == Change::Doubled {
            near.insert((mutant.rank, mutant.program.ranks[mutant.rank].steps.len() as StepId - 1));
        }
        for action in [&old.action, &new.action] {
            near.extend(sharing(&mutant.program, mutant.rank, action).map(|step| (mutant.rank, step)));
            near.extend(other_side(&mutant.program, mutant.rank, action));
        }
        near.extend(old.after.iter().chain(&new.after).map(|&after| (mutant.rank, renumbered(after))));
        let waiting =
            original.ranks[mutant.rank].steps.iter().enumerate().filter(|(_, other)| other.after.contains(&step));
        near.extend(waiting.map(|(other, _)| (mutant.rank, renumbered(other as StepId))));
    }
    near
}

/// The steps of a rank that touch a cell of this action, with input and output apart or as one memory.
fn sharing(program: &Program, rank: usize, action: &Action) -> impl Iterator<Item = StepId> {
    let place = Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root };
    let touched = |action: &Action| action.reads().chain(action.write()).collect::<Vec<Slot>>();
    let own = touched(action);
    let shares = move |other: &Action| {
        let pairs =
            touched(other).into_iter().flat_map(|slot| own.iter().map(move |own| (slot, *own)).collect::<Vec<_>>());
        pairs.into_iter().any(|(a, b)| a.overlaps(&b) || place.in_place(a).overlaps(&place.in_place(b)))
    };
    let steps: Vec<_> = program.ranks[rank].steps.iter().map(|step| shares(&step.action)).collect();
    steps.into_iter().enumerate().filter(|(_, shares)| *shares).map(|(step, _)| step as StepId)
}

/// Whoever receives what this sends, or sends what this receives.
fn other_side(program: &Program, rank: usize, action: &Action) -> Vec<(usize, StepId)> {
    let mut steps = Vec::new();
    for (peer, content) in program.ranks.iter().enumerate() {
        for (step, other) in content.steps.iter().enumerate() {
            let matches = match (action, &other.action) {
                (Action::Send { to, message, .. }, Action::Receive { from, message: other, .. }) => {
                    *to == peer && *from == rank && message == other
                }
                (Action::Receive { from, message, .. }, Action::Send { to, message: other, .. }) => {
                    *from == peer && *to == rank && message == other
                }
                _ => false,
            };
            if matches {
                steps.push((peer, step as StepId));
            }
        }
    }
    steps
}

/// Did the step write this cell before it was changed?
pub fn wrote(original: &Program, mutant: &Mutant, rank: usize, cell: Slot) -> bool {
    let place = Place { kind: original.kind, rank, world: original.ranks.len(), root: original.root };
    let step = mutant.step as usize;
    let writes = |step: usize| original.ranks[rank].steps.get(step).and_then(|step| step.action.write());
    let hit = |slot: Slot| slot.overlaps(&cell) || place.in_place(slot).overlaps(&place.in_place(cell));
    rank == mutant.rank && [step, step + 1].into_iter().filter_map(writes).any(hit)
}
