use super::event::Work;
use super::places::Places;

/// A channel or a bus: carries the most urgent of what is on it. Operations go by their place in the dispatchers' order.
pub(super) struct Line {
    waiting: Places,
    /// By place, of what waits: seconds that are left at full speed.
    left_s: Vec<f64>,
    pub carries: Option<(usize, Work)>,
    /// The last work's number: what was said of others before is void.
    pub last: u64,
}

impl Line {
    /// For so many operations.
    pub fn new(operations: usize) -> Line {
        Line { waiting: Places::up_to(operations), left_s: vec![0.0; operations], carries: None, last: 0 }
    }

    /// The operation at a place waits, with so many seconds left.
    pub fn wait(&mut self, place: usize, left_s: f64) {
        self.left_s[place] = left_s;
        self.waiting.insert(place);
    }

    /// The most urgent one that waits, which does so no more, and the seconds that are left of it.
    pub fn take_next(&mut self) -> Option<(usize, f64)> {
        let place = self.waiting.take_first()?;
        Some((place, self.left_s[place]))
    }
}
