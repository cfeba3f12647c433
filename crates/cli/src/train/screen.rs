//! What rank 0 shows: a progress bar on a terminal, one line per epoch, a summary.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use paceline_train::{Decision, EpochRow, Observer, Progress, Start, TrainReport};

/// Follows a training. The bar is on standard error, and only if that is a terminal; results are on standard output.
pub struct Screen {
    bar: ProgressBar,
}

impl Screen {
    /// Nothing to see yet.
    pub fn new() -> Screen {
        Screen { bar: ProgressBar::hidden() }
    }

    /// A line of results. Whoever closed standard output does not want it.
    fn line(&self, line: &str) {
        self.bar.suspend(|| {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        });
    }
}

impl Observer for Screen {
    fn started(&mut self, start: &Start) {
        let Start { strategy, parameters, buckets, iterations, global_batch, .. } = start;
        self.line(&format!("strategy {strategy}"));
        self.line(&format!(
            "{parameters} parameters in {buckets} buckets, joined batch {global_batch}, {iterations} iterations"
        ));
        self.bar = ProgressBar::new(*iterations as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} iterations, {msg} [{elapsed} + {eta}]");
        if let Ok(style) = style {
            self.bar.set_style(style);
        }
    }

    fn iteration(&mut self, progress: &Progress) {
        if let Some(loss) = progress.loss.filter(|_| !self.bar.is_hidden()) {
            self.bar.set_message(format!("epoch {}, loss {loss:.3}", progress.epoch));
        }
        self.bar.set_position(progress.iteration as u64);
    }

    fn decided(&mut self, decision: &Decision) {
        self.line(&decision.to_string());
    }

    fn epoch(&mut self, row: &EpochRow) {
        self.line(&format!(
            "epoch {}: loss {:.4}, test accuracy {:.2} %, {:.0} samples/s, {:.1} % of the time in communication",
            row.epoch,
            row.loss,
            row.test_accuracy * 100.0,
            row.samples_per_s,
            row.communication_share() * 100.0
        ));
    }
}

/// A bar that is not finished must not stay on the terminal.
impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The last lines.
///
/// # Errors
/// Standard output is closed.
pub fn summary(report: &TrainReport) -> io::Result<()> {
    let share = 100.0 * report.communication_share();
    for decision in &report.decisions {
        if let Some(outcome) = decision.outcome() {
            writeln!(io::stdout(), "auto: from iteration {} on, {outcome}", decision.iteration)?;
        }
    }
    writeln!(
        io::stdout(),
        "{} workers: test accuracy {:.2} %, loss {:.4}, {:.0} samples/s, {share:.1} % of the time in communication \
         ({:.2} s of {:.2} s)",
        report.world_size,
        report.test_accuracy * 100.0,
        report.final_loss,
        report.samples_per_s,
        report.exposed_communication_s,
        report.exposed_communication_s + report.compute_s
    )
}
