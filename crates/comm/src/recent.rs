//! What a communicator's last calls ran: a program makes the same few calls again and again, and most of what a small one
//! costs besides its messages is finding out what to run.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_engine::RankSchedule;
use paceline_plan::CollectiveKind;

use crate::prepare::Call;
use crate::programs::Choice;

/// Different calls that are remembered; an iteration of a program seldom makes more small ones.
const CALLS_MAX: usize = 8;

/// What a call runs.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub choice: Choice,
    pub schedule: Arc<RankSchedule>,
}

/// All that the choice depends on, within one communicator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    kind: CollectiveKind,
    block_bytes: usize,
    chunk_bytes: Option<usize>,
    root: usize,
    /// Input and output share no memory.
    apart: bool,
    /// Which costs of links the choice is made by: [`crate::world::World::costs_version`].
    costs: u64,
}

/// The last different calls.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    calls: Vec<(Question, Chosen)>,
    /// Whose place the next one takes.
    next: usize,
}

impl Question {
    /// None for calls that are not remembered: messages, programs of the caller's, blocks of different lengths, and
    /// algorithms by name, which are found by comparing names in any case.
    pub fn of(call: &Call, costs: u64) -> Option<Question> {
        let usual = call.route.is_none()
            && call.program.is_none()
            && call.settings.algorithm.is_none()
            && !call.layout.variable();
        usual.then(|| Question {
            kind: call.kind,
            block_bytes: call.block_bytes(),
            chunk_bytes: call.settings.chunk_bytes,
            root: call.root,
            apart: call.input.is_apart_from(&call.output),
            costs,
        })
    }
}

impl Recent {
    /// The answer to a question that was asked before.
    pub fn find(&self, question: &Question) -> Option<Chosen> {
        let remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.calls.iter().find(|(known, _)| known == question).map(|(_, chosen)| chosen.clone())
    }

    /// Remembers an answer, in the place of an old one if there are many.
    pub fn remember(&self, question: Question, chosen: Chosen) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.calls.len() < CALLS_MAX {
            return remembered.calls.push((question, chosen));
        }
        let place = remembered.next;
        remembered.calls[place] = (question, chosen);
        remembered.next = (place + 1) % CALLS_MAX;
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Reduction;

    use super::*;
    use crate::memory::Span;
    use crate::{CallOptions, Communicator};

    /// (What else makes a question another one shows in what calls do: `tests/communicators.rs`.)
    #[test]
    fn a_call_in_place_is_another_question() {
        let communicator = Communicator::threads(1).expect("one thread").remove(0);
        let (input, output) = ([1i64; 5], [0i64; 5]);
        let (input, output) = (Span::of(&input), Span::of(&output));
        let choose = |input, output| {
            let call = communicator.all_reduce_call::<i64>((input, output), Reduction::Sum, &CallOptions::default());
            communicator.choose(&call.expect("a call")).expect("a choice").schedule
        };
        let (apart, in_place) = (choose(input, output), choose(output, output));
        assert!(!Arc::ptr_eq(&apart, &in_place));
        assert!(Arc::ptr_eq(&apart, &choose(input, output)) && Arc::ptr_eq(&in_place, &choose(output, output)));
    }
}
