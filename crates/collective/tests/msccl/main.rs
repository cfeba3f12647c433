//! Programs to MSCCL XML and back, files that others write, and files that are wrong.

mod files;
mod fuzz;
mod reading;
mod refused;
mod writing;

use paceline_collective::{Action, Program};

/// Is it the same program, but for the order in which a rank's steps are listed?
fn same(one: &Program, other: &Program) -> Result<(), String> {
    type Flow = Vec<(String, Vec<String>)>;
    let flow = |program: &Program, rank: usize| -> Flow {
        let steps = &program.ranks[rank].steps;
        let name = |action: &Action| format!("{action:?}");
        let named = |after: &u32| name(&steps[*after as usize].action);
        let mut flow: Flow = Vec::new();
        for step in steps {
            let mut after: Vec<_> = step.after.iter().map(named).collect();
            after.sort();
            flow.push((name(&step.action), after));
        }
        flow.sort();
        flow
    };
    let heads = [one, other].map(|program| {
        let scratch: Vec<_> = program.ranks.iter().map(|rank| rank.scratch_blocks).collect();
        (program.kind, program.root, program.parts, scratch)
    });
    if heads[0] != heads[1] {
        return Err(format!("{:?} became {:?}", heads[0], heads[1]));
    }
    for rank in 0..one.ranks.len() {
        let (left, right) = (flow(one, rank), flow(other, rank));
        for (left, right) in left.iter().zip(&right) {
            if left != right {
                return Err(format!("rank {rank}: {left:#?}\nbecame {right:#?}"));
            }
        }
        if left.len() != right.len() {
            return Err(format!("rank {rank}: {} steps became {}", left.len(), right.len()));
        }
    }
    Ok(())
}
