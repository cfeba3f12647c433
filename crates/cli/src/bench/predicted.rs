//! What a cell was expected to do, from what was known before its first iteration, beside what it did. Pure, but for the
//! profiles that are read.
//!
//! Nothing here sees a measured iteration of the cell that is predicted. What it sees: the cell; what the study knew of this
//! machine's processors when it began; of links that are not emulated what the ranks measured when they met, and operations
//! that they timed alone ([`cluster`]); and where computation is real what one worker alone computes, of whose own cells those of
//! the other methods ([`alone`]). So it can be made again at any time, and comes out the same.

mod alone;
mod attach;
mod cluster;
mod curves;
mod outlook;
mod world;

use paceline_predict::Prediction;
use serde::{Deserialize, Serialize};

use super::statistics::median;
use super::summary::{Group, Panel, Row, RowResult};
use crate::report::aspects::aspect;

pub use attach::{Sources, attach};
pub use curves::{Curve, CurveLine};
pub use outlook::Outlook;
pub use world::{Seen, predict_replay};

/// What was predicted of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Samples per second of all workers together.
    pub samples_per_s: f64,
    /// With 95 % it is not less, as far as the intervals of the constants say.
    pub samples_per_s_low: f64,
    /// Nor more.
    pub samples_per_s_high: f64,
    /// Seconds of an iteration.
    pub iteration_s: f64,
    /// Of them, waiting for communication, and what computation is slowed down by it.
    pub exposed_communication_s: f64,
    /// What limits it, in words.
    pub bottleneck: String,
    /// Where it leaves what was measured, or what was measured is not believed.
    pub extrapolated: Vec<String>,
}

impl Predicted {
    /// Of an iteration of so many samples.
    pub fn of(prediction: &Prediction, samples: usize) -> Predicted {
        let rate = |seconds: f64| if seconds > 0.0 { samples as f64 / seconds } else { prediction.samples_per_s };
        Predicted {
            samples_per_s: prediction.samples_per_s,
            samples_per_s_low: rate(prediction.high_s),
            samples_per_s_high: rate(prediction.low_s),
            iteration_s: prediction.iteration_s,
            exposed_communication_s: prediction.exposed_s,
            bottleneck: prediction.bottleneck.to_string(),
            extrapolated: prediction.extrapolated.clone(),
        }
    }

    /// The same with further reasons not to trust it.
    pub fn doubting(mut self, doubts: Vec<String>) -> Predicted {
        self.extrapolated.extend(doubts);
        self
    }
}

/// The method that the predictions would have chosen in a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The one with the highest predicted throughput.
    pub method: String,
    /// The one with the highest measured throughput.
    pub fastest: String,
    /// By which share the chosen one was measured to be slower than the fastest.
    pub regret: f64,
}

impl Choice {
    /// Among the methods that were both predicted and measured, and not limited by the processors; None if there are not two. What
    /// chooses by itself, as `auto` does, is none of them: its prediction is that of what it would run. Nor is a method whose calls
    /// a tuner or a policy decides: that is predicted without.
    pub fn among(rows: &[Row]) -> Option<Choice> {
        let is_open = |row: &Row| ["schedule", "arch"].iter().any(|name| aspect(&row.strategy, name) == ["auto"]);
        let both = |row: &Row| {
            let plain = |result: &&RowResult| result.tuning.is_none() && result.followed.is_none();
            let result = row.result.as_ref().filter(|result| result.limited().is_none()).filter(plain)?;
            Some((row.predicted.as_ref()?.samples_per_s, result.samples_per_s.mean))
        };
        let fixed = rows.iter().filter(|row| !is_open(row));
        let known: Vec<(&Row, (f64, f64))> = fixed.filter_map(|row| Some((row, both(row)?))).collect();
        if known.len() < 2 {
            return None;
        }
        // Of those that are predicted to be alike the first: whoever asked named it first.
        let best = |rate: fn(&(f64, f64)) -> f64| {
            known.iter().reduce(|best, other| if rate(&other.1) > rate(&best.1) { other } else { best })
        };
        let (chosen, fastest) = (best(|rates| rates.0)?, best(|rates| rates.1)?);
        let regret = 1.0 - chosen.1.1 / fastest.1.1;
        Some(Choice { method: chosen.0.method.clone(), fastest: fastest.0.method.clone(), regret })
    }

    /// As a sentence.
    pub fn in_words(&self) -> String {
        let Choice { method, fastest, regret } = self;
        match method == fastest {
            true => format!("the predictions choose {method}, which was the fastest"),
            false => format!("the predictions choose {method}, {:.1} % slower than {fastest}", 100.0 * regret),
        }
    }
}

/// How far predictions are off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Cells that were both predicted and measured.
    pub cells: usize,
    /// The median of the errors without their signs.
    pub median: f64,
    /// The median of the errors: above 0, predictions are too fast.
    pub bias: f64,
    /// The largest one, without its sign.
    pub worst: f64,
}

impl Errors {
    /// Of these errors; None if there are none.
    pub fn of(errors: &[f64]) -> Option<Errors> {
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        let worst = sizes.iter().copied().fold(0.0, f64::max);
        Some(Errors { cells: errors.len(), median: median(&sizes)?, bias: median(errors)?, worst })
    }

    /// Of all cells that count.
    pub fn of_panels<'a>(panels: impl IntoIterator<Item = &'a Panel>) -> Option<Errors> {
        let rows = panels.into_iter().flat_map(rows_that_count);
        Errors::of(&rows.filter_map(|row| row.prediction_error).collect::<Vec<_>>())
    }

    /// As a sentence.
    pub fn in_words(&self) -> String {
        let Errors { cells, median, .. } = self;
        let s = if *cells == 1 { "" } else { "s" };
        format!("predictions are off by {:.1} % (the median of {cells} cell{s})", 100.0 * median)
    }
}

/// The errors of each method that count, methods in the order in which they first come.
pub fn errors_by_method<'a>(panels: impl IntoIterator<Item = &'a Panel>) -> Vec<(String, Errors)> {
    let mut by_method: Vec<(String, Vec<f64>)> = Vec::new();
    for row in panels.into_iter().flat_map(rows_that_count) {
        let Some(error) = row.prediction_error else { continue };
        match by_method.iter_mut().find(|(method, _)| *method == row.method) {
            Some((_, errors)) => errors.push(error),
            None => by_method.push((row.method.clone(), vec![error])),
        }
    }
    by_method.into_iter().filter_map(|(method, errors)| Some((method, Errors::of(&errors)?))).collect()
}

/// The rows whose errors count: not those of one worker that really computes, which is predicted from runs of the same, so that its
/// errors only say how such runs scatter.
pub fn rows_that_count(panel: &Panel) -> impl Iterator<Item = &Row> {
    let counts = move |group: &&Group| group.workers > 1 || panel.setting.is_replayed();
    panel.groups.iter().filter(counts).flat_map(|group| &group.rows)
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A prediction of so many samples per second, give or take a twentieth.
    pub fn predicted(samples_per_s: f64) -> Predicted {
        Predicted {
            samples_per_s,
            samples_per_s_low: 0.95 * samples_per_s,
            samples_per_s_high: 1.05 * samples_per_s,
            iteration_s: 64.0 / samples_per_s,
            exposed_communication_s: 0.01,
            bottleneck: "computation".to_owned(),
            extrapolated: Vec::new(),
        }
    }

    /// Predicts every cell of these panels that gave a result: each by this factor too fast.
    pub fn predict(panels: &mut [Panel], factor: f64) {
        for group in panels.iter_mut().flat_map(|panel| &mut panel.groups) {
            for row in &mut group.rows {
                let Some(result) = &row.result else { continue };
                row.predicted = Some(predicted(factor * result.samples_per_s.mean));
                row.prediction_error = Some(factor - 1.0);
            }
            group.choice = Choice::among(&group.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_train::FollowedOperations;

    use super::super::summary::{panels, samples::study};
    use super::samples::{predict, predicted};
    use super::*;

    #[test]
    fn errors_are_medians_without_signs() {
        let errors = Errors::of(&[0.1, -0.02, -0.04]).expect("there are some");
        assert_eq!((errors.cells, errors.median, errors.bias, errors.worst), (3, 0.04, -0.02, 0.1));
        assert_eq!(Errors::of(&[]), None);
        assert_eq!(errors.in_words(), "predictions are off by 4.0 % (the median of 3 cells)");
        let mut panels = panels(&study(), 2);
        assert_eq!(Errors::of_panels(&panels), None, "nothing was predicted");
        predict(&mut panels, 1.05);
        let all = Errors::of_panels(&panels).expect("all were predicted");
        assert!((all.median - 0.05).abs() < 1e-12 && all.cells == 7, "two are of one worker that computes: {all:?}");
        let methods = errors_by_method(&panels);
        assert_eq!((methods.len(), methods[0].0.as_str(), methods[0].1.cells), (6, "bsp-a2a", 2));
        panels[0].groups.truncate(1);
        assert_eq!(Errors::of_panels(&panels[..1]), None, "how runs of the same scatter is no error");
        panels[0].setting = panels[1].setting.clone();
        assert_eq!(Errors::of_panels(&panels[..1]).map(|replayed| replayed.cells), Some(2));
    }

    #[test]
    fn regret_is_what_the_choice_was_measured_to_cost() {
        let mut panels = panels(&study(), 2);
        predict(&mut panels, 1.0);
        let group = &mut panels[1].groups[0];
        let right = group.choice.clone().expect("four methods");
        assert_eq!((right.method.as_str(), right.regret), ("bytescheduler-ps", 0.0));
        assert_eq!(right.in_words(), "the predictions choose bytescheduler-ps, which was the fastest");
        // Half a second an iteration, and not 0.269.
        group.rows[1].predicted = Some(predicted(1e6));
        let wrong = Choice::among(&group.rows).expect("four methods");
        assert_eq!((wrong.method.as_str(), wrong.fastest.as_str()), ("bsp-ps", "bytescheduler-ps"));
        assert!((wrong.regret - (1.0 - 0.269 / 0.5023)).abs() < 1e-3, "{wrong:?}");
        assert_eq!(Choice::among(&group.rows[..1]), None, "there is no choice");
    }

    #[test]
    fn what_chooses_by_itself_is_not_chosen() {
        let mut panels = panels(&study(), 2);
        predict(&mut panels, 1.0);
        let rows = &mut panels[1].groups[0].rows;
        let with = |rows: &mut [Row], strategy: &str| {
            rows[0].strategy = strategy.to_owned();
            rows[0].predicted = Some(predicted(1e6));
            Choice::among(rows).expect("four methods").method
        };
        for open in
            ["sync=bsp,schedule=auto,arch=auto", "sync=bsp,schedule=auto,arch=a2a:auto", "schedule=ddp,arch=auto"]
        {
            assert_eq!(with(rows, open), "bytescheduler-ps", "{open}");
        }
        // An algorithm that the runtime picks leaves nothing open.
        let closed = "sync=bsp,schedule=none,arch=a2a:auto,protocol=auto";
        assert_eq!(with(rows, closed), "bsp-a2a");
        // What a policy decides is predicted without it.
        rows[0].result.as_mut().expect("it was measured").followed = Some(FollowedOperations::default());
        assert_eq!(with(rows, closed), "bytescheduler-ps");
    }
}
