//! What rank 0 shows: a progress bar on a terminal, one line per epoch, a summary.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use paceline_train::{
    Decision, EpochRow, Observer, Progress, Start, TrainReport, TunedContext, TuningNews, TuningReport,
};
use paceline_tune::atlas::saturation_in_words;

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

    fn tuned(&mut self, iteration: usize, news: &TuningNews) {
        self.line(&format!("tuning, iteration {iteration}: {news}"));
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

/// The last lines. `is_kept`: what was learned stands in a database.
///
/// # Errors
/// Standard output is closed.
pub fn summary(report: &TrainReport, is_kept: bool) -> io::Result<()> {
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
    )?;
    report.tuning.as_ref().map_or(Ok(()), |report| write!(io::stdout(), "{}", tuned(report, is_kept)))
}

/// What tuning has come to: what stands, of calls and of the plan, a line for each context, and what it has cost.
fn tuned(report: &TuningReport, is_kept: bool) -> String {
    let mut text = format!("tuning: {report}\n");
    if let Some(fusion) = &report.fusion {
        text += &format!("  {fusion}\n");
    }
    if report.remembered > 0 {
        text += &format!("  began with what earlier jobs have learned of {} choices\n", report.remembered);
    }
    report.contexts.iter().for_each(|context| text += &of_context(context));
    let TuningReport { measured_s, regret_s, boundaries_s, tuned_iterations, .. } = report;
    if *measured_s > 0.0 {
        text += &format!(
            "  regret: {regret_s:.3} s ({:.1} %) of the {measured_s:.3} s of calls that were timed would have been saved, had \
             this been known from the start\n",
            100.0 * regret_s / measured_s
        );
    }
    if report.rehearsal_s > 0.0 {
        text += &format!("  calls were rehearsed for {:.3} s before the first iteration\n", report.rehearsal_s);
    }
    text += &format!("  agreeing between iterations took {boundaries_s:.3} s in {tuned_iterations} iterations\n");
    if !is_kept {
        text += "  --tune-database FILE keeps what was learned, and the next job begins with it\n";
    }
    text
}

/// "all-reduce from 1 MiB (aggressive, 320 iterations): ring rendezvous, 2 lanes, … (12.0 % ± 1.1, p = 3e-6), 1.21 ms instead of 1.37 ms".
fn of_context(it: &TunedContext) -> String {
    let size = human_bytes(1 << it.context.size_log2.min(62));
    let head = format!("  {} from {size} ({}, {} iterations)", it.context.collective, it.regime, it.calls);
    let ms = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    let times = match (it.gain, it.default_s, it.chosen_s) {
        (Some(_), Some(default_s), Some(chosen_s)) => format!(", {} instead of {}", ms(chosen_s), ms(default_s)),
        (None, Some(default_s), _) => format!(", {}", ms(default_s)),
        _ => String::new(),
    };
    let saturated = it.over_bandwidth.filter(|_| it.lossless_saturated).map_or_else(String::new, |times| {
        format!("; only fewer bytes would help much: {}", saturation_in_words(times, &it.compression))
    });
    format!("{head}: {} ({}){times}{saturated}\n", it.best, it.certainty)
}

/// Powers of two as people write them.
fn human_bytes(bytes: u64) -> String {
    match bytes {
        ..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_train::{FusionReport, IterationGain, TuningStanding};
    use paceline_tune::environment::{CostModel, OwnModel, Workload};
    use paceline_tune::prior::Regime;

    use super::*;

    #[test]
    fn what_was_chosen_and_how_sure_and_what_it_cost_is_told() {
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let state = model.state(&Workload::data_parallel(8, 32).calls[0]);
        let chosen = TunedContext {
            context: paceline_tune::State { bytes: 3 << 20, ..state }.context(),
            regime: Regime::Aggressive,
            rule: "a rule".to_owned(),
            ratio: None,
            calls: 320,
            explored: 60,
            drifts: 0,
            best: "ring rendezvous, 2 lanes".to_owned(),
            certainty: "12.0 % ± 1.1, p = 3e-6".to_owned(),
            gain: Some(0.12),
            default_s: Some(1.375e-3),
            chosen_s: Some(1.21e-3),
            over_bandwidth: None,
            lossless_saturated: false,
            compression: Vec::new(),
        };
        let certainty = "nothing looked better by 3 %".to_owned();
        let default = TunedContext {
            best: "default".to_owned(),
            certainty,
            gain: None,
            over_bandwidth: Some(1.3),
            lossless_saturated: true,
            compression: vec![("fp16".to_owned(), 1.667), ("onebit".to_owned(), 4.44)],
            ..chosen.clone()
        };
        let report = TuningReport {
            standing: TuningStanding::Tuned,
            gain: Some(IterationGain { share: 0.08, share_margin: 0.01, probability: 2e-5 }),
            tuned_iterations: 400,
            trials: 1,
            iteration_trials: 1,
            policies: 40,
            congestion: None,
            fusion: None,
            remembered: 0,
            measured_s: 2.0,
            regret_s: 0.05,
            boundaries_s: 0.25,
            rehearsal_s: 0.0,
            contexts: vec![chosen, default],
            lessons: Vec::new(),
            policy: paceline_tune::Policy::default(),
        };
        let expected = "tuning: iterations take 8.0 % ± 1.0 less time (p = 2e-5) with what was found
  all-reduce from 2 MiB (aggressive, 320 iterations): ring rendezvous, 2 lanes (12.0 % ± 1.1, p = 3e-6), 1.210 ms instead of 1.375 ms
  all-reduce from 2 MiB (aggressive, 320 iterations): default (nothing looked better by 3 %), 1.375 ms; only fewer bytes would help \
  much: takes 1.3 times what bandwidth alone would; at best, compression would bring fp16 1.7x, onebit 4.4x
  regret: 0.050 s (2.5 %) of the 2.000 s of calls that were timed would have been saved, had this been known from the start
  agreeing between iterations took 0.250 s in 400 iterations
";
        assert_eq!(tuned(&report, true), expected);
        let fusion = FusionReport {
            threshold_bytes: 4 << 20,
            strategy_bytes: 4 << 20,
            decided: true,
            gain: None,
            trials: 2,
            on_trial_bytes: None,
            search_cost_s: 0.0,
        };
        let again =
            TuningReport { remembered: 7, measured_s: 0.0, contexts: Vec::new(), fusion: Some(fusion), ..report };
        let text = tuned(&again, false);
        assert!(text.contains("have learned of 7 choices") && text.contains("--tune-database FILE"), "{text}");
        assert!(text.contains("\n  the fusion threshold stays 4MiB: "), "{text}");
    }
}
