//! Every way in which one step of a program can be wrong.

use std::fmt;

use paceline_collective::{Action, Program, Slot, Space, StepId, blocks};

/// A program with one thing changed.
pub struct Mutant {
    pub program: Program,
    pub rank: usize,
    /// The step changed, as it is numbered in the original.
    pub step: StepId,
    pub change: Change,
}

/// What was changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Dropped,
    Doubled,
    /// Sent to, or expected from, another rank.
    Redirected(usize),
    /// Goes by another number.
    Renumbered(u32),
    /// Does what the next step should do, and the other way round.
    SwappedWithNext,
    /// Waits for another step, too.
    Waits(StepId),
    /// No longer waits for a step.
    Hurries(StepId),
    /// Its n-th slot is another one.
    Slot(usize, Slot),
    /// Final, or no longer final.
    LastFlipped,
    /// Stores what it should fold.
    Unfolded,
}

impl Change {
    /// Is there no program that stays right?
    pub fn is_fatal(&self) -> bool {
        use Change::{Doubled, Dropped, LastFlipped, Redirected, Renumbered, Unfolded};
        matches!(self, Dropped | Doubled | Redirected(_) | Renumbered(_) | LastFlipped | Unfolded)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, step {} {:?}", self.rank, self.step, self.change)
    }
}

/// All mutants of a program, step by step.
pub fn mutants(program: &Program) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (rank, content) in program.ranks.iter().enumerate() {
        for step in 0..content.steps.len() as StepId {
            for change in changes(program, rank, step) {
                let program = apply(program.clone(), rank, step, &change);
                mutants.push(Mutant { program, rank, step, change });
            }
        }
    }
    mutants
}

fn changes(program: &Program, rank: usize, step: StepId) -> Vec<Change> {
    let steps = &program.ranks[rank].steps;
    let content = &steps[step as usize];
    let mut changes = vec![Change::Dropped, Change::Doubled];
    if let Action::Send { to: peer, message, .. } | Action::Receive { from: peer, message, .. } = content.action {
        let others = (0..program.ranks.len()).filter(|&other| other != rank && other != peer);
        changes.extend(others.map(Change::Redirected));
        changes.extend([Change::Renumbered(message + 1), Change::Renumbered(message + 1000)]);
    }
    if steps.get(step as usize + 1).is_some_and(|next| next.action != content.action) {
        changes.push(Change::SwappedWithNext);
    }
    let others = (0..steps.len() as StepId).filter(|other| *other != step && !content.after.contains(other));
    changes.extend(others.map(Change::Waits));
    changes.extend(content.after.iter().copied().map(Change::Hurries));
    for (which, slot) in slots(&mut content.action.clone()).into_iter().enumerate() {
        changes.extend(neighbours(program, rank, *slot).into_iter().map(|other| Change::Slot(which, other)));
    }
    match &content.action {
        Action::Receive { fold: Some(_), .. } => changes.extend([Change::LastFlipped, Change::Unfolded]),
        Action::Combine { .. } => changes.push(Change::LastFlipped),
        _ => {}
    }
    changes
}

/// Slots one block or one part further, or in another space.
fn neighbours(program: &Program, rank: usize, slot: Slot) -> Vec<Slot> {
    let (input, output) = blocks(program.kind, rank, program.root, program.ranks.len());
    let scratch = program.ranks[rank].scratch_blocks;
    let mut others = Vec::new();
    for (space, count) in [(Space::Input, input), (Space::Output, output), (Space::Scratch, scratch)] {
        if space == slot.space {
            let (block, part) = ((slot.block + 1) % count, (slot.part + 1) % program.parts);
            others.extend([Slot { block, ..slot }, Slot { part, ..slot }]);
        } else {
            let block = slot.block.min(count.saturating_sub(1));
            others.push(Slot { space, block, ..slot });
        }
    }
    others.retain(|other| *other != slot);
    others
}

fn slots(action: &mut Action) -> Vec<&mut Slot> {
    match action {
        Action::Send { from, .. } => vec![from],
        Action::Receive { into, fold, .. } => {
            std::iter::once(into).chain(fold.as_mut().map(|fold| &mut fold.with)).collect()
        }
        Action::Combine { left, right, into, .. } => vec![left, right, into],
        Action::Copy { from, into } | Action::Map { from, into, .. } => vec![from, into],
    }
}

fn apply(mut program: Program, rank: usize, step: StepId, change: &Change) -> Program {
    let steps = &mut program.ranks[rank].steps;
    let index = step as usize;
    match change {
        Change::Dropped => {
            steps.remove(index);
            for other in steps {
                other.after.retain(|&after| after != step);
                other.after.iter_mut().filter(|after| **after > step).for_each(|after| *after -= 1);
            }
        }
        Change::Doubled => {
            let again = steps[index].clone();
            steps.push(again);
        }
        Change::Redirected(other) => match &mut steps[index].action {
            Action::Send { to: peer, .. } | Action::Receive { from: peer, .. } => *peer = *other,
            _ => unreachable!("only messages are redirected"),
        },
        Change::Renumbered(number) => match &mut steps[index].action {
            Action::Send { message, .. } | Action::Receive { message, .. } => *message = *number,
            _ => unreachable!("only messages have numbers"),
        },
        Change::SwappedWithNext => {
            let next = steps[index + 1].action;
            steps[index + 1].action = std::mem::replace(&mut steps[index].action, next);
        }
        Change::Waits(other) => steps[index].after.push(*other),
        Change::Hurries(other) => steps[index].after.retain(|after| after != other),
        Change::Slot(which, slot) => *slots(&mut steps[index].action).swap_remove(*which) = *slot,
        Change::LastFlipped => match &mut steps[index].action {
            Action::Receive { fold: Some(fold), .. } => fold.last = !fold.last,
            Action::Combine { last, .. } => *last = !*last,
            _ => unreachable!("only combinations are final"),
        },
        Change::Unfolded => match &mut steps[index].action {
            Action::Receive { fold, .. } => *fold = None,
            _ => unreachable!("only receives fold"),
        },
    }
    program
}
