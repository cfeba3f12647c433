use paceline_collective::{Action, Combine, Fold, Order, RankProgram, Slot, Space, StepId};

/// A receive that need not store its message: the combination that is its only reader can be made as it arrives.
///
/// Programs store such a message in scratch because the result may have to wait, for instance until a send from the same
/// memory is complete. When nothing but the message is missing, its way through scratch is a copy for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortcut {
    /// The combination.
    pub combine: StepId,
    /// The receive and the combination in one.
    pub action: Action,
}

/// For each step, the shortcut that it may take.
///
/// A program is a partial order, but a list that names only earlier steps in its `after` is one of the orders in which it
/// may run; and since no two steps race, all orders agree about who reads what. So the readers of a message are those
/// between its receive and the next step that writes to its slot.
pub(crate) fn shortcuts(program: &RankProgram) -> Vec<Option<Shortcut>> {
    let ordered = (0u32..).zip(&program.steps).all(|(id, step)| step.after.iter().all(|&before| before < id));
    let shortcut = |index: usize| shortcut(program, index).filter(|_| ordered);
    (0..program.steps.len()).map(shortcut).collect()
}

fn shortcut(program: &RankProgram, receive: usize) -> Option<Shortcut> {
    let Action::Receive { from, message, into: stored, fold: None } = program.steps[receive].action else {
        return None;
    };
    if stored.space != Space::Scratch {
        return None;
    }
    let index = only_reader(program, receive, &stored)?;
    let Action::Combine { left, right, into, combine: Combine::Reduction, last } = program.steps[index].action else {
        return None;
    };
    let (with, order) = match (left == stored, right == stored) {
        (true, false) => (right, Order::MessageFirst),
        (false, true) => (left, Order::LocalFirst),
        _ => return None,
    };
    // The engine sees that nothing but the message is missing when the combination waits for one step: this one.
    if with.overlaps(&stored) || !program.steps[index].after.contains(&(receive as StepId)) {
        return None;
    }
    let fold = Some(Fold { with, order, combine: Combine::Reduction, last });
    Some(Shortcut { combine: index as StepId, action: Action::Receive { from, message, into, fold } })
}

/// The one step that reads what a step has written to a slot, if there is just one.
fn only_reader(program: &RankProgram, writer: usize, slot: &Slot) -> Option<usize> {
    let mut reader = None;
    for (index, step) in program.steps.iter().enumerate().skip(writer + 1) {
        if step.action.reads().any(|read| read.overlaps(slot)) && reader.replace(index).is_some() {
            return None;
        }
        if step.action.write().is_some_and(|written| written.overlaps(slot)) {
            break;
        }
    }
    reader
}

#[cfg(test)]
mod tests {
    use paceline_collective::{Place, RankBuilder};
    use paceline_plan::CollectiveKind;

    use super::*;

    fn builder() -> RankBuilder {
        RankBuilder::new(Place { kind: CollectiveKind::AllReduce, rank: 0, world: 2, root: 0 }, 1)
    }

    #[test]
    fn a_message_that_is_only_combined_takes_the_shortcut() {
        let mut builder = builder();
        let [input, output, scratch] =
            [Space::Input, Space::Output, Space::Scratch].map(|space| builder.tile(space, 0));
        builder.send(1, input);
        let receive = builder.receive(1, scratch);
        let combine = builder.combine(scratch, input, output, true);
        let shortcuts = shortcuts(&builder.finish());
        let shortcut = shortcuts[receive as usize].expect("its only reader is a combination");
        assert_eq!(shortcut.combine, combine);
        let fold = Fold { with: input, order: Order::MessageFirst, combine: Combine::Reduction, last: true };
        assert_eq!(shortcut.action, Action::Receive { from: 1, message: 0, into: output, fold: Some(fold) });
    }

    #[test]
    fn a_message_that_others_read_too_is_stored() {
        let mut builder = builder();
        let [input, output, scratch] =
            [Space::Input, Space::Output, Space::Scratch].map(|space| builder.tile(space, 0));
        builder.receive(1, scratch);
        builder.combine(scratch, input, output, true);
        builder.send(1, scratch);
        assert!(shortcuts(&builder.finish()).iter().all(Option::is_none));
    }

    #[test]
    fn a_result_is_stored_even_if_it_is_read_once() {
        let mut builder = builder();
        let [input, output] = [Space::Input, Space::Output].map(|space| builder.tile(space, 0));
        let other = builder.tile(Space::Output, 1);
        builder.receive(1, output);
        builder.combine(output, input, other, true);
        assert!(shortcuts(&builder.finish()).iter().all(Option::is_none));
    }
}
