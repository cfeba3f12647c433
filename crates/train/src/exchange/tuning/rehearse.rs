//! Before calls are tuned, which is before the first iteration as a rule: each kind of call is made for its times only, and tuning begins
//! with what they have shown.

use std::time::Duration;

use paceline_comm::{Buffer, CommError, Reduction};
use paceline_tune::{Choice, Context, Tuner};

use super::Tuning;
use crate::error::{TrainError, WhileTraining};
use crate::tuned::{Rehearsal, Rehearsed};
use crate::tuning::TuningNews;

/// In less than that nothing is found out.
const SHORTEST_S: f64 = 5e-3;

impl Tuning {
    /// Rehearses all kinds of calls of the plan, as long as there is time for that: so much as the options say, under all plans together.
    /// All ranks call it. What earlier jobs have told something of is not rehearsed, nor what was called under a plan before.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn rehearse(&mut self) -> Result<(), TrainError> {
        let (limit_s, before_s) = (self.rehearsal.as_secs_f64(), self.rehearsal_s);
        let contexts: Vec<Context> = self.calls.keys().copied().collect();
        let (mut kinds, mut won) = (0, 0);
        for (done, context) in contexts.iter().enumerate() {
            // As all ranks have agreed what it took so far, they go on together.
            let share_s = (limit_s - self.rehearsal_s) / (contexts.len() - done) as f64;
            if share_s < SHORTEST_S {
                break;
            }
            let rehearsed = self.rehearse_one(context, Duration::from_secs_f64(share_s));
            let Some(rehearsed) = rehearsed.while_training("rehearsing all-reduces")? else { continue };
            self.rehearsal_s += rehearsed.seconds;
            kinds += 1;
            won += usize::from(rehearsed.chosen.is_some());
        }
        if let Some(leader) = self.leader.as_mut().filter(|_| kinds > 0) {
            leader.tell(TuningNews::Rehearsed { kinds, won, seconds: self.rehearsal_s - before_s });
        }
        Ok(())
    }

    /// Calls of a context, as large as the largest that the plan has. None: there is nothing to rehearse.
    fn rehearse_one(&mut self, context: &Context, limit: Duration) -> Result<Option<Rehearsed>, CommError> {
        let of_context = self.operations.iter().filter(|operation| operation.context == *context);
        let Some(operation) = of_context.max_by_key(|operation| operation.bytes) else { return Ok(None) };
        let is_new = self.leader.as_ref().is_some_and(|leader| !leader.knows(context));
        let situation = self.situations.get(context).and_then(Option::as_ref).filter(|_| is_new);
        let (workers, elements) = (&self.workers, operation.bytes / size_of::<f32>());
        let rehearsal = Rehearsal::new(workers, situation, limit)?;
        if !rehearsal.has_choice() {
            return Ok(None);
        }
        let mut data: Option<Buffer<f32>> = None;
        let mut play = |choice: Choice| -> Result<(), CommError> {
            // Gradients lie in such memory, and their operations are started like this.
            let buffer = data.take().map_or_else(|| workers.alloc(elements), Ok)?;
            let way = operation.possible(choice, workers, self.fixed.as_deref(), &self.programs);
            let way = way.unwrap_or_else(|| operation.base.clone().into());
            let pending = match &way.program {
                None => workers.start_all_reduce(buffer, Reduction::Sum, &way.options)?,
                Some(program) => workers.start_program_in_place(program, buffer, Reduction::Sum, &way.options)?,
            };
            data = Some(pending.wait()?);
            Ok(())
        };
        let level = || self.leader.as_mut().map_or(0.0, |leader| leader.learning.tuner.next_level());
        let outcome = rehearsal.run(level, &mut play)?;
        if let (Some(leader), Some(situation)) = (&mut self.leader, situation) {
            outcome.teach(&mut leader.learning.tuner, situation, Tuner::rehearsed_alone);
        }
        Ok(Some(outcome.rehearsed))
    }
}
