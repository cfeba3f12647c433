//! What communication and computation cost each other, as either of them begins or ends.

use super::Run;

impl Run<'_> {
    /// Seconds that a second of a class's computation takes now.
    pub(super) fn slowed(&self, class: usize) -> f64 {
        let busy = match self.training.operations.disturbing_links() {
            0 => usize::from(self.lines[self.line_of(class)].carries.is_some()),
            links => self.links.carrying(links),
        };
        1.0 + busy as f64 * self.training.interference.computation
    }

    /// Seconds that a second of a line takes now.
    pub(super) fn hindered(&self, line: usize) -> f64 {
        let hindering = self.training.operations.disturbing_links() == 0
            && (0..self.workers.len()).any(|class| self.line_of(class) == line && self.workers[class].work.is_some());
        self.times_communication(hindering)
    }

    fn times_communication(&self, computing: bool) -> f64 {
        1.0 + if computing { self.training.interference.communication } else { 0.0 }
    }

    /// A line has become busy or idle.
    pub(super) fn line_changed(&mut self, line: usize) {
        for class in 0..self.workers.len() {
            if self.line_of(class) == line {
                self.retime_work(class);
            }
        }
    }

    /// A link may have become busy or idle.
    pub(super) fn links_changed(&mut self) {
        if self.training.operations.disturbing_links() > 0 {
            (0..self.workers.len()).for_each(|class| self.retime_work(class));
        }
    }

    fn retime_work(&mut self, class: usize) {
        if self.training.interference.computation == 0.0 {
            return;
        }
        let (factor, now) = (self.slowed(class), self.now);
        if self.workers[class].work.as_mut().is_some_and(|work| work.change(factor, now)) {
            self.time_work(class);
        }
    }

    /// A class has begun or ended to compute.
    pub(super) fn computation_changed(&mut self, class: usize) {
        if self.training.interference.communication == 0.0 {
            return;
        }
        let now = self.now;
        match self.training.operations.disturbing_links() {
            0 => {
                let line = self.line_of(class);
                let factor = self.hindered(line);
                if self.lines[line].carries.as_mut().is_some_and(|(_, work)| work.change(factor, now)) {
                    self.time_line(line);
                }
            }
            links => {
                let computing = self.workers.iter().any(|workers| workers.work.is_some());
                self.links.change_pace(links, self.times_communication(computing), now);
            }
        }
    }
}
