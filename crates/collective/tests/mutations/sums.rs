//! What the cells of a program hold: sums of contributions, written out.

use std::collections::HashMap;
use std::rc::Rc;

use paceline_collective::{Action, Fold, Place, Slot, Space, blocks};
use paceline_plan::CollectiveKind;

use crate::machine::{Numbers, Plan, Touches};

/// A sum of contributions (rank, block, part).
#[derive(Debug, PartialEq)]
struct Sum {
    terms: Vec<(usize, u32, u32)>,
    is_final: bool,
    /// How it was put together; operands in a fixed order, because a reduction commutes.
    expression: String,
}

impl Sum {
    fn plus(&self, other: &Sum, last: bool) -> Result<Rc<Sum>, String> {
        if self.is_final || other.is_final {
            return Err("added to a final value".into());
        }
        let mut terms = [self.terms.clone(), other.terms.clone()].concat();
        terms.sort_unstable();
        let mut operands = [&*self.expression, &*other.expression];
        operands.sort_unstable();
        Ok(Rc::new(Sum { terms, is_final: last, expression: format!("({}+{})", operands[0], operands[1]) }))
    }
}

/// The content of all cells, and of the messages under way.
#[derive(Default)]
pub struct Sums {
    cells: HashMap<usize, Rc<Sum>>,
    messages: HashMap<usize, Vec<Rc<Sum>>>,
}

impl Sums {
    /// Carries a program out in this order of events, and looks at the outputs.
    pub fn run(
        mut self,
        plan: &Plan,
        touches: &[Touches],
        in_place: bool,
        mut numbers: Numbers,
        order: &[usize],
    ) -> Result<(), String> {
        for place in places(plan) {
            for block in 0..blocks(place.kind, place.rank, place.root, place.world).0 {
                for part in 0..plan.program.parts {
                    let slot = Slot::of_parts(Space::Input, block, part, 1);
                    let terms = vec![(place.rank, block, part)];
                    let expression = format!("{}.{block}.{part}", place.rank);
                    let cell = plan.cells(&place, slot, in_place, &mut numbers)?[0];
                    self.cells.insert(cell, Rc::new(Sum { terms, is_final: false, expression }));
                }
            }
        }
        for &event in order {
            let own = event / 2;
            let is_start = event % 2 == 0;
            if is_start == plan.is_send(own) {
                self.act(plan, own, &touches[own]).map_err(|why| format!("step {:?}: {why}", plan.steps[own]))?;
            }
        }
        self.check_results(plan, in_place, &mut numbers)
    }

    fn act(&mut self, plan: &Plan, own: usize, touches: &Touches) -> Result<(), String> {
        // In place, a copy of memory onto itself touches nothing.
        if touches.reads.is_empty() && touches.write.is_empty() {
            return Ok(());
        }
        let mut reads = touches.reads.iter().map(|cells| self.read(cells)).collect::<Result<Vec<_>, _>>()?;
        let values = match &plan.steps[own].1.action {
            Action::Send { .. } => {
                self.messages.insert(own, reads.remove(0));
                return Ok(());
            }
            Action::Receive { fold, .. } => {
                let message = plan.peer[own].and_then(|send| self.messages.remove(&send)).ok_or("no message")?;
                match fold {
                    None => message,
                    Some(Fold { last, .. }) => add(&reads[0], &message, *last)?,
                }
            }
            Action::Combine { last, .. } => add(&reads[0], &reads[1], *last)?,
            Action::Copy { .. } => reads.remove(0),
            Action::Map { .. } => return Err("the machine has no kernels".into()),
        };
        self.cells.extend(touches.write.iter().copied().zip(values));
        Ok(())
    }

    fn read(&self, cells: &[usize]) -> Result<Vec<Rc<Sum>>, String> {
        cells.iter().map(|cell| self.cells.get(cell).cloned().ok_or_else(|| "reads what is undefined".into())).collect()
    }

    fn check_results(&self, plan: &Plan, in_place: bool, numbers: &mut Numbers) -> Result<(), String> {
        let places = places(plan);
        for place in &places {
            for block in 0..blocks(place.kind, place.rank, place.root, place.world).1 {
                for part in 0..plan.program.parts {
                    let Some(expected) = expected(place, block, part) else { continue };
                    let slot = Slot::of_parts(Space::Output, block, part, 1);
                    let sum = self.read(&plan.cells(place, slot, in_place, numbers)?)?.remove(0);
                    if sum.terms != expected || sum.is_final != (expected.len() > 1) {
                        return Err(format!("rank {}: {slot} ends as {sum:?}, not {expected:?}", place.rank));
                    }
                    if matches!(place.kind, CollectiveKind::AllReduce | CollectiveKind::PushPull) {
                        let first = self.read(&plan.cells(&places[0], slot, in_place, numbers)?)?.remove(0);
                        if first != sum {
                            return Err(format!("rank {}: {slot} is {sum:?}, on rank 0 {first:?}", place.rank));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn add(left: &[Rc<Sum>], right: &[Rc<Sum>], last: bool) -> Result<Vec<Rc<Sum>>, String> {
    left.iter().zip(right).map(|(left, right)| left.plus(right, last)).collect()
}

fn places(plan: &Plan) -> Vec<Place> {
    let (kind, world, root) = (plan.program.kind, plan.program.ranks.len(), plan.program.root);
    (0..world).map(|rank| Place { kind, rank, world, root }).collect()
}

/// The terms that a cell of the output must have in the end.
fn expected(place: &Place, block: u32, part: u32) -> Option<Vec<(usize, u32, u32)>> {
    let all = |block: u32| (0..place.world).map(|rank| (rank, block, part)).collect();
    let (own, sender) = (place.rank as u32, block as usize);
    Some(match place.kind {
        CollectiveKind::AllReduce | CollectiveKind::Reduce => all(0),
        CollectiveKind::PushPull | CollectiveKind::Push => {
            (0..place.world).filter(|&rank| rank != place.root).map(|rank| (rank, 0, part)).collect()
        }
        CollectiveKind::ReduceScatter => all(own),
        CollectiveKind::AllGather | CollectiveKind::Gather => vec![(sender, 0, part)],
        CollectiveKind::Broadcast => vec![(place.root, 0, part)],
        CollectiveKind::Scatter => vec![(place.root, own, part)],
        CollectiveKind::AllToAll => vec![(sender, own, part)],
        CollectiveKind::SendReceive if place.rank == 1 => vec![(0, 0, part)],
        CollectiveKind::SendReceive | CollectiveKind::Barrier => return None,
    })
}
