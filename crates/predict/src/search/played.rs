//! Messages decide among the best candidates: where links are emulated, and where formulas know too little of them.

use super::{Answer, Candidate, Question, rank};
use crate::prediction::played_at_once;
use crate::{Job, PredictError, Prediction, played_emulated};

/// So many of the first candidates are played: those that are predicted to be slower by a share of no more than this. Formulas are off by
/// less, but by more than good plans differ.
const PLAYED: usize = 8;
const WITHIN: f64 = 0.1;

impl Answer {
    /// Lets the first candidates take what their messages do by the rule by which links are emulated ([`played_emulated`]), and puts
    /// them in the order of that. Those among them that cannot be played are no candidates any more, as what formulas say of them
    /// cannot be compared; where none can be played everything stays as it is. How many were played.
    ///
    /// The cost is that of some ten iterations message by message, a tenth of a second each for 100,000 messages.
    pub fn play_emulated(&mut self, question: &Question) -> usize {
        let rate = |candidate: &Candidate| candidate.prediction.samples_per_s;
        let near = (1.0 - WITHIN) * rate(self.best());
        let looked_at = self.candidates.iter().take(PLAYED).take_while(|candidate| rate(candidate) >= near).count();
        let first = &self.candidates[..looked_at];
        let mut played: Vec<Option<Prediction>> = first.iter().map(|one| one.played(question).ok()).collect();
        let count = played.iter().flatten().count();
        if count == 0 {
            return 0;
        }
        let mut played = played.drain(..);
        self.candidates.retain_mut(|candidate| match played.next() {
            Some(Some(prediction)) => {
                candidate.prediction = prediction;
                true
            }
            Some(None) => false,
            None => true,
        });
        rank(&mut self.candidates[..count]);
        count
    }
}

/// So many candidates are played at most, of which formulas know too little.
const SETTLED: usize = 3;

/// Plays the first candidate as long as formulas know too little of it, and puts it in its place among the others, whom formulas predict as
/// messages do to some percent: messages take longer, so that none of those behind it that are not played can be better for that. How many
/// were played. What cannot be played keeps its place, and its doubt.
///
/// The cost is that of some ten iterations message by message for each: one or two seconds for 100,000 messages between 32 hosts.
pub(super) fn settle(candidates: &mut [Candidate], question: &Question) -> usize {
    for count in 0..SETTLED {
        let Some(first) = candidates.first_mut().filter(|first| first.prediction.knows_few_partitions()) else {
            return count;
        };
        let Ok(played) = played_at_once(&first.job(question), &first.prediction) else { return count };
        let bound_s = first.prediction.iteration_s * (1.0 - first.gap);
        (first.gap, first.by_message_s) = ((1.0 - bound_s / played.iteration_s).max(0.0), Some(played.iteration_s));
        first.prediction = played;
        rank(candidates);
    }
    SETTLED
}

impl Candidate {
    pub(super) fn job<'a>(&'a self, question: &'a Question) -> Job<'a> {
        let Question { cluster, profile, workers, .. } = *question;
        Job { cluster, profile, strategy: &self.strategy, workers, local_batch: Some(self.local_batch) }
    }

    fn played(&self, question: &Question) -> Result<Prediction, PredictError> {
        played_emulated(&self.job(question), &self.prediction)
    }
}
