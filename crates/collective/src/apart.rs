//! What a program need not do when input and output are known to be different memory.
//!
//! A program is right in place, too, and pays for it: a send from the input must be complete before the output may be
//! written, and where two ranks swap blocks one of them saves its own first. Apart, nothing ever writes to the input, so
//! neither is needed.

use paceline_plan::CollectiveKind;

use crate::program::{Action, Fold, RankProgram, Slot, Space, Step, StepId};
use crate::{Place, Program, RankBuilder};

impl RankProgram {
    /// The same result with fewer waits and copies, for a call whose input and output share no memory; not to be run in
    /// place. `parts` is the program's. What it sends and takes in stays the same, message by message, so each rank may
    /// decide for itself.
    ///
    /// Two things go: waits between steps that would touch the same memory only in place, and copies from the input to
    /// scratch, whose readers read the input instead. A program whose steps do not stand in an order in which they could
    /// be executed stays as it is, and so does a barrier: its waits are not about memory.
    pub fn apart(&self, place: Place, parts: u32) -> RankProgram {
        let ordered = (0..).zip(&self.steps).all(|(id, step)| step.after.iter().all(|&before| before < id));
        if !ordered || place.kind == CollectiveKind::Barrier {
            return self.clone();
        }
        let mut builder = RankBuilder::apart(place, parts);
        // Slots of scratch whose content is that of a slot of the input.
        let mut saved: Vec<(Slot, Slot)> = Vec::new();
        // What became of each step so far: none of a copy that is not made.
        let mut kept: Vec<Option<StepId>> = Vec::new();
        for (index, Step { action, after }) in self.steps.iter().enumerate() {
            if let Action::Copy { from, into } = *action
                && from.space == Space::Input
                && into.space == Space::Scratch
                && read_only_whole(&self.steps[index + 1..], &into)
            {
                // What lay there before is overwritten here as by any other step.
                saved.retain(|(scratch, _)| !scratch.overlaps(&into));
                saved.push((into, from));
                kept.push(None);
                continue;
            }
            let original =
                |slot: Slot| saved.iter().find(|(scratch, _)| *scratch == slot).map_or(slot, |&(_, input)| input);
            let action = with_reads(*action, original);
            if let Some(written) = action.write() {
                saved.retain(|(scratch, _)| !scratch.overlaps(&written));
            }
            // What waits for another reason than memory goes on waiting.
            let explicit =
                |before: &&StepId| !place.conflict(&self.steps[**before as usize].action, &self.steps[index].action);
            after
                .iter()
                .filter(explicit)
                .filter_map(|&before| kept[before as usize])
                .for_each(|before| builder.wait_for(before));
            kept.push(Some(builder.push(action)));
        }
        builder.finish()
    }
}

impl Program {
    /// The whole of it as [`RankProgram::apart`].
    pub fn apart(&self) -> Program {
        let world = self.ranks.len();
        let place = |rank| Place { kind: self.kind, rank, world, root: self.root };
        let ranks = self.ranks.iter().enumerate().map(|(rank, program)| program.apart(place(rank), self.parts));
        Program { ranks: ranks.collect(), algorithm: self.algorithm.clone(), ..*self }
    }
}

/// Is a slot read as a whole or not at all, until all of it is written again?
fn read_only_whole(later: &[Step], slot: &Slot) -> bool {
    for Step { action, .. } in later {
        if action.reads().any(|read| read.overlaps(slot) && read != *slot) {
            return false;
        }
        match action.write() {
            Some(written) if written == *slot => return true,
            Some(written) if written.overlaps(slot) => return false,
            _ => {}
        }
    }
    true
}

/// The action with other slots to read.
fn with_reads(action: Action, of: impl Fn(Slot) -> Slot) -> Action {
    match action {
        Action::Send { to, message, from } => Action::Send { to, message, from: of(from) },
        Action::Receive { from, message, into, fold } => {
            let fold = fold.map(|fold| Fold { with: of(fold.with), ..fold });
            Action::Receive { from, message, into, fold }
        }
        Action::Combine { left, right, into, combine, last } => {
            Action::Combine { left: of(left), right: of(right), into, combine, last }
        }
        Action::Copy { from, into } => Action::Copy { from: of(from), into },
        Action::Map { from, into, kernel } => Action::Map { from: of(from), into, kernel },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{find, registry};
    use crate::{Algorithm, Topology};

    #[test]
    fn messages_stay_what_they_are() {
        let messages = |rank: &RankProgram| {
            let name = |step: &Step| match step.action {
                Action::Send { to, message, .. } => Some((true, to, message)),
                Action::Receive { from, message, .. } => Some((false, from, message)),
                _ => None,
            };
            rank.steps.iter().filter_map(name).collect::<Vec<_>>()
        };
        for algorithm in registry() {
            for world in (1..=9).chain([13, 16]).filter(|&world| algorithm.supports(world)) {
                let program = algorithm.program(&Topology::flat(world), world / 2 % world);
                for (one, other) in program.ranks.iter().zip(&program.apart().ranks) {
                    assert_eq!(messages(one), messages(other), "{} {}, {world}", algorithm.kind(), algorithm.name());
                }
            }
        }
    }

    #[test]
    fn an_all_to_all_saves_nothing_and_waits_for_nothing() {
        let algorithm: &dyn Algorithm = find(CollectiveKind::AllToAll, "direct").expect("it is the only one");
        let program = algorithm.program(&Topology::flat(4), 0);
        let copies = |program: &Program| {
            let steps = program.ranks.iter().flat_map(|rank| &rank.steps);
            steps.filter(|step| matches!(step.action, Action::Copy { .. })).count()
        };
        let waits =
            |program: &Program| program.ranks.iter().flat_map(|rank| &rank.steps).any(|step| !step.after.is_empty());
        assert!(copies(&program) > 4 && waits(&program));
        let apart = program.apart();
        // The own block of each rank.
        assert_eq!((copies(&apart), waits(&apart)), (4, false));
        assert!(apart.ranks.iter().all(|rank| rank.scratch_blocks == 0));
    }

    #[test]
    fn what_is_read_in_pieces_stays_saved() {
        let place = Place { kind: CollectiveKind::AllReduce, rank: 0, world: 2, root: 0 };
        let mut builder = RankBuilder::new(place, 2);
        let (input, scratch) = (builder.tile(Space::Input, 0), builder.tile(Space::Scratch, 0));
        builder.copy(input, scratch);
        builder.send(1, Slot::of_parts(Space::Scratch, 0, 1, 1));
        let program = builder.finish();
        assert_eq!(program.apart(place, 2), program);
    }
}
