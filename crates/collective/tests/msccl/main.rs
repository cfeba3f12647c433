//! Programs to MSCCL XML and back, files that others write, and files that are wrong.

mod files;
mod fuzz;
mod reading;
mod refused;
mod strangers;
mod writing;

use std::collections::BTreeSet;

use paceline_collective::{Action, Order, Program, RankProgram, Slot, Space};

/// Is it the same program, but for the order in which a rank's steps are listed, which operand of a reduction is the left
/// one, and blocks of scratch that nobody uses?
fn same(one: &Program, other: &Program) -> Result<(), String> {
    let head = |program: &Program| (program.kind, program.root, program.parts, program.ranks.len());
    if head(one) != head(other) {
        return Err(format!("{:?} became {:?}", head(one), head(other)));
    }
    for (rank, (left, right)) in one.ranks.iter().zip(&other.ranks).enumerate() {
        let (left, right) = (flow(left), flow(right));
        if let Some((left, right)) = left.iter().zip(&right).find(|(left, right)| left != right) {
            return Err(format!("rank {rank}: {left:#?}\nbecame {right:#?}"));
        }
        if left.len() != right.len() {
            return Err(format!("rank {rank}: {} steps became {}", left.len(), right.len()));
        }
    }
    Ok(())
}

/// What a rank does, each step with those for which it waits.
fn flow(rank: &RankProgram) -> Vec<(String, Vec<String>)> {
    let mut actions: Vec<Action> = rank.steps.iter().map(|step| step.action).collect();
    let scratch = |slot: &&mut Slot| slot.space == Space::Scratch;
    let used: BTreeSet<u32> = (actions.iter_mut().flat_map(slots).filter(scratch))
        .flat_map(|slot| slot.block..slot.block + slot.blocks)
        .collect();
    for slot in actions.iter_mut().flat_map(slots).filter(scratch) {
        slot.block = used.range(..slot.block).count() as u32;
    }
    for action in &mut actions {
        match action {
            Action::Combine { left, right, .. } if left.to_string() > right.to_string() => std::mem::swap(left, right),
            Action::Receive { fold: Some(fold), .. } => fold.order = Order::LocalFirst,
            _ => {}
        }
    }
    let names: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
    let mut flow: Vec<_> = (rank.steps.iter().zip(&names))
        .map(|(step, name)| {
            let mut after: Vec<_> = step.after.iter().map(|&after| names[after as usize].clone()).collect();
            after.sort();
            (name.clone(), after)
        })
        .collect();
    flow.sort();
    flow
}

fn slots(action: &mut Action) -> Vec<&mut Slot> {
    match action {
        Action::Send { from, .. } => vec![from],
        Action::Receive { into, fold: Some(fold), .. } => vec![into, &mut fold.with],
        Action::Receive { into, fold: None, .. } => vec![into],
        Action::Copy { from, into } | Action::Map { from, into, .. } => vec![from, into],
        Action::Combine { left, right, into, .. } => vec![left, right, into],
    }
}
