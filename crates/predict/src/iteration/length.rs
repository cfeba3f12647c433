//! For how long training is simulated, and what comes out.

use super::{Length, Outcome, Span};

/// Iterations that overlap are alike when they differ by less than this …
const ALIKE_S: f64 = 1e-9;
/// … and at the latest after so many.
const ITERATIONS_MAX: usize = 10;
const ITERATIONS_MIN: usize = 3;

/// The iterations of a worker: when each began, the next one as well.
pub(super) struct Iterations<'a> {
    pub began: &'a [f64],
    /// Do they overlap?
    pub overlap: bool,
    /// Do all workers the same at the same time? Then all iterations are alike, unless they overlap.
    pub symmetric: bool,
}

impl Iterations<'_> {
    /// Has the worker been through enough of them?
    pub fn are_enough(&self, length: Length) -> bool {
        let count = self.began.len() - 1;
        match length {
            // Of iterations that overlap, the first begins with nothing under way.
            Length::Drawn { iterations: wanted, .. } => count >= wanted.max(1) + self.skipped(),
            // Everything has arrived, and nobody else is late, when the second begins: all are like the first.
            Length::Steady if !self.overlap && self.symmetric => count >= 1,
            Length::Steady if count < ITERATIONS_MIN => false,
            Length::Steady => {
                let before = self.began[count - 1] - self.began[count - 2];
                let last = self.began[count] - self.began[count - 1];
                (last - before).abs() < ALIKE_S || count >= ITERATIONS_MAX
            }
        }
    }

    fn skipped(&self) -> usize {
        usize::from(self.overlap)
    }

    /// What these say, with those of the spans that lie in the last one.
    pub fn outcome(&self, length: Length, mut spans: Vec<Span>) -> Outcome {
        let all: Vec<f64> = self.began.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let last = all.len() - 1;
        let (start, end) = (self.began[last], self.began[last + 1]);
        let counted = match length {
            Length::Steady => &all[last..],
            Length::Drawn { .. } => &all[self.skipped()..],
        };
        let mean = counted.iter().sum::<f64>() / counted.len() as f64;
        let squares: f64 = counted.iter().map(|seconds| (seconds - mean).powi(2)).sum();
        let deviation_s = if counted.len() > 1 { (squares / (counted.len() - 1) as f64).sqrt() } else { 0.0 };
        spans.retain(|span| span.end_s > start && span.start_s < end);
        for span in &mut spans {
            (span.start_s, span.end_s) = (span.start_s - start, span.end_s - start);
        }
        spans.sort_by(|one, other| one.start_s.total_cmp(&other.start_s));
        Outcome { iteration_s: mean, deviation_s, spans }
    }
}
