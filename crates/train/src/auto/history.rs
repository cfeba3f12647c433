//! What a training that chooses its plans knows of itself: how long updates take, what was decided, what plans have taken.

use std::time::Duration;

use super::{Decisions, Experience};
use crate::measure::relative_half_width;

/// From the first update on.
#[derive(Default)]
pub(crate) struct History {
    /// What was decided, and whether it came true.
    pub(crate) decisions: Decisions,
    /// What plans have taken.
    pub(crate) experience: Experience,
    /// Seconds of the updates of this window.
    window: Vec<f64>,
    /// How often something was chosen.
    rounds: u32,
}

impl History {
    /// An update has taken so long.
    pub(crate) fn note(&mut self, update: Duration) {
        self.window.push(update.as_secs_f64());
    }

    /// Ends the window: its median, and by which share of it updates differ (half of the 95 % interval of their mean); zero
    /// and infinite without any.
    pub(crate) fn end_window(&mut self) -> [f64; 2] {
        let mut window = std::mem::take(&mut self.window);
        window.sort_by(f64::total_cmp);
        let middle = window.get(window.len() / 2).copied().unwrap_or(0.0);
        [middle, relative_half_width(&window)]
    }

    /// The number of the next choice, from 1.
    pub(crate) fn next_round(&mut self) -> u32 {
        self.rounds += 1;
        self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_with_its_median() {
        let mut history = History::default();
        [30, 10, 20, 10, 900].map(Duration::from_millis).into_iter().for_each(|update| history.note(update));
        let [middle, differ] = history.end_window();
        assert!((middle - 0.020).abs() < 1e-12 && differ > 1.0, "{middle} {differ}");
        assert_eq!(history.end_window(), [0.0, f64::INFINITY], "a new one");
        assert_eq!([history.next_round(), history.next_round()], [1, 2]);
    }
}
