//! Runs in turns, and what they say together: medians over the rounds.

use serde::Serialize;

use super::formula;
use super::measured::{Communication, Measured, Seen, Timeline};
use super::report::{Table, Target};
use super::workload::Workload;
use super::worlds::{Ddp, DdpMeasured, Effort, Worlds};
use crate::compare::Error;
use crate::compare::statistics::{median, spread};

/// Everything that was measured of one workload.
#[derive(Serialize)]
pub struct Rounds {
    /// The model.
    pub model: String,
    /// Seconds of computation by the profile.
    pub compute_s: f64,
    /// Seconds of an all-reduce of all gradients at line rate.
    pub line_s: f64,
    /// Of each run.
    pub effort: Effort,
    /// In the order of measurement.
    pub ours: Vec<OurRun>,
    /// In the order of measurement.
    pub ddp: Vec<DdpRun>,
    /// Runs that gave nothing, and why.
    pub failures: Vec<String>,
}

/// A run of ours.
#[derive(Clone, Debug, Serialize)]
pub struct OurRun {
    /// From 1.
    pub round: usize,
    /// As it was asked for.
    pub method: String,
    /// The median over its iterations.
    pub median_s: f64,
    /// What the formula says with what this run measured; None if it measured no communication.
    pub formula_s: Option<f64>,
    /// The same with gradients ready when they were announced, late or not.
    pub formula_announced_s: Option<f64>,
    /// The formula, or without start-ups, whichever is smaller: nobody takes less on this network.
    pub bound_s: Option<f64>,
    /// Of the formula's time, communication that no computation hides.
    pub formula_exposed_s: Option<f64>,
    /// The same if starting an operation cost nothing: nobody exposes less on this network.
    pub least_exposed_s: Option<f64>,
    /// When communication was under way, from the timeline; None: not all of it was recorded.
    pub seen: Option<Seen>,
    /// Operations per iteration.
    pub operations: usize,
    /// Buckets of the plan.
    pub buckets: usize,
    /// In full.
    pub strategy: String,
    /// Seconds of each counted iteration.
    pub iteration_s: Vec<f64>,
    /// Seconds of computation.
    pub compute_s: f64,
    /// Seconds of an iteration in which a worker waited.
    pub exposed_communication_s: f64,
    /// What deciding costs.
    pub scheduling_s_per_tensor: f64,
    /// As a share of the computation.
    pub late: Option<f64>,
    /// If the processors were slower than the links.
    pub limited: Option<String>,
    /// What an operation cost that had the network for itself.
    pub communication: Option<Communication>,
}

/// A run of PyTorch's DDP.
#[derive(Clone, Debug, Serialize)]
pub struct DdpRun {
    /// From 1.
    pub round: usize,
    /// Before ours in its round, or after.
    pub place: &'static str,
    /// The median over its iterations.
    pub median_s: f64,
    /// All that it said.
    #[serde(flatten)]
    pub measured: DdpMeasured,
}

/// What the runs of a method say together.
#[derive(Clone, Debug, Serialize)]
pub struct MethodSummary {
    /// As it was asked for.
    pub method: String,
    /// Seconds of an iteration: the median over the rounds of the median over the iterations.
    pub iteration_s: f64,
    /// By what factor the rounds differ from their median.
    pub spread: f64,
    /// By the formula.
    pub formula_s: Option<f64>,
    /// By the formula, with gradients ready when they were announced.
    pub formula_announced_s: Option<f64>,
    /// Seconds by which sleeps ended late in an iteration, at most.
    pub late_s: f64,
    /// The formula's time over ours: 1 is all that the schedule can do. The median over the rounds.
    pub of_formula: Option<f64>,
    /// The formula, or without start-ups, whichever is smaller.
    pub bound_s: Option<f64>,
    /// That over the time: at most 1, if the costs that were measured are right.
    pub of_bound: Option<f64>,
    /// Seconds per iteration in which a worker waited.
    pub exposed_communication_s: f64,
    /// The same by the formula.
    pub formula_exposed_s: Option<f64>,
    /// The same if starting an operation cost nothing.
    pub least_exposed_s: Option<f64>,
    /// Seconds of backward in which communication was under way, from the timelines.
    pub in_backward_s: Option<f64>,
    /// The share of the communication that lies in backward, from the timelines.
    pub share_in_backward: Option<f64>,
    /// The median over the rounds of the median over the iterations, of the slowest worker.
    pub scheduling_s_per_tensor: f64,
    /// DDP's time over ours: above 1 we are faster. The median over the rounds of √(before · after) / ours.
    pub ddp_ratio: Option<f64>,
    /// Operations per iteration.
    pub operations: usize,
}

/// Measures: in each round DDP, if it takes part, then the methods one after the other, then DDP again. A run that fails, or
/// without DDP could not keep up with its profile, is noted, and the others go on.
///
/// # Errors
/// PyTorch's ranks have ended.
pub fn measure(
    worlds: &Worlds,
    workload: &Workload,
    methods: &[&str],
    mut ddp: Option<&mut Ddp>,
    effort: Effort,
    rounds: usize,
) -> Result<Rounds, Error> {
    let model = workload.profile.model.clone();
    let (compute_s, line_s) = (workload.compute_s(), workload.line_s);
    let mut found =
        Rounds { model, compute_s, line_s, effort, ours: Vec::new(), ddp: Vec::new(), failures: Vec::new() };
    let has_rival = ddp.is_some();
    for round in 1..=rounds {
        let mut rival = |place, found: &mut Rounds| -> Result<(), Error> {
            if let Some(ddp) = &mut ddp {
                let measured = ddp.measure(workload, effort)?;
                found.ddp.push(DdpRun { round, place, median_s: measured.median_s(), measured });
            }
            Ok(())
        };
        rival("before", &mut found)?;
        for method in methods {
            eprintln!("{}: round {round} of {rounds}: {method}", found.model);
            let measured = worlds.ours(method, workload, effort);
            // A rival's sleeps may end late as well: there ours are counted, and it is said by how much they were late.
            let counted = if has_rival { measured } else { measured.and_then(Measured::punctual) };
            match counted {
                Ok(measured) => found.ours.push(OurRun::of(round, method, &measured, workload, worlds.workers())),
                Err(error) => {
                    eprintln!("{error}");
                    found.failures.push(format!("round {round}: {error}"));
                }
            }
        }
        rival("after", &mut found)?;
    }
    Ok(found)
}

impl OurRun {
    fn of(round: usize, method: &str, measured: &Measured, workload: &Workload, workers: usize) -> OurRun {
        let Measured { plan, inputs, .. } = measured;
        let profile = &workload.profile;
        OurRun {
            round,
            method: method.to_owned(),
            median_s: measured.median_s(),
            formula_s: formula::iteration_s(profile, plan, inputs, workers),
            formula_announced_s: formula::iteration_s(&formula::as_announced(profile, inputs), plan, inputs, workers),
            bound_s: formula::least_s(profile, plan, inputs, workers),
            formula_exposed_s: formula::exposed_s(profile, plan, inputs, workers),
            least_exposed_s: formula::exposed_s(profile, plan, &inputs.without_start_up(), workers),
            seen: measured.timeline.as_ref().and_then(Timeline::seen),
            operations: plan.operations(),
            buckets: plan.buckets.len(),
            strategy: measured.strategy.clone(),
            iteration_s: measured.iteration_s.clone(),
            compute_s: measured.compute_s,
            exposed_communication_s: measured.exposed_communication_s,
            scheduling_s_per_tensor: measured.scheduling_s_per_tensor,
            late: measured.lateness.map(|lateness| lateness.share),
            limited: measured.limited(),
            communication: inputs.communication.clone(),
        }
    }
}

impl Rounds {
    /// What the runs of a method say; None if none gave anything.
    pub fn summary(&self, method: &str) -> Option<MethodSummary> {
        let runs: Vec<&OurRun> = self.ours.iter().filter(|run| run.method == method).collect();
        let last = runs.last()?;
        let times: Vec<f64> = runs.iter().map(|run| run.median_s).collect();
        let of = |value: &dyn Fn(&OurRun) -> Option<f64>| median_of(runs.iter().filter_map(|run| value(run)));
        Some(MethodSummary {
            method: method.to_owned(),
            iteration_s: median(&times),
            spread: spread(&times),
            formula_s: of(&|run| run.formula_s),
            formula_announced_s: of(&|run| run.formula_announced_s),
            late_s: runs.iter().map(|run| run.late.unwrap_or(0.0) * run.compute_s).fold(0.0, f64::max),
            of_formula: of(&|run| Some(run.formula_s? / run.median_s)),
            bound_s: of(&|run| run.bound_s),
            of_bound: of(&|run| Some(run.bound_s? / run.median_s)),
            exposed_communication_s: of(&|run| Some(run.exposed_communication_s))?,
            formula_exposed_s: of(&|run| run.formula_exposed_s),
            least_exposed_s: of(&|run| run.least_exposed_s),
            in_backward_s: of(&|run| Some(run.seen?.in_backward_s)),
            share_in_backward: of(&|run| run.seen?.share()),
            scheduling_s_per_tensor: of(&|run| Some(run.scheduling_s_per_tensor))?,
            ddp_ratio: of(&|run| Some(self.ddp_s(run.round)? / run.median_s)),
            operations: last.operations,
        })
    }

    /// What is to be known of single runs: of those that gave nothing, and whose processors were slower than the links.
    pub fn remarks(&self) -> Option<Table> {
        let of_run = |run: &OurRun| Some(format!("round {}: {}: {}", run.round, run.method, run.limited.as_ref()?));
        let said = self.failures.iter().cloned().chain(self.ours.iter().filter_map(of_run));
        let mut table = Table::new(
            "Remarks",
            "Of runs that gave nothing, and of those whose waiting workers kept the processors busy: with what they need, or with looking \
             for messages again and again before they sleep.",
            &["run"],
        );
        table.rows = said.map(|remark| vec![remark]).collect();
        (!table.rows.is_empty()).then_some(table)
    }

    /// By fewer rounds than were asked for no target is met: those that failed may have missed it.
    pub fn judged(&self, method: &str, rounds: usize, target: Target) -> Target {
        let counted = self.ours.iter().filter(|run| run.method == method).count();
        if counted >= rounds {
            return target;
        }
        let found = format!("{}, by {counted} of {rounds} rounds", target.found);
        Target { found, met: target.met.filter(|met| !met), ..target }
    }

    /// DDP's time in a round: the geometric mean of before and after.
    fn ddp_s(&self, round: usize) -> Option<f64> {
        let times: Vec<f64> = self.ddp.iter().filter(|run| run.round == round).map(|run| run.median_s).collect();
        crate::compare::statistics::geometric_mean(times.into_iter())
    }

    /// DDP's time: the median over the rounds; None if it did not take part.
    pub fn ddp_iteration_s(&self) -> Option<f64> {
        median_of(self.ddp.iter().map(|run| run.median_s))
    }

    /// The factor by which DDP differs between before and after: the median over the rounds.
    pub fn ddp_noise(&self) -> Option<f64> {
        let of = |place: &'static str| self.ddp.iter().filter(move |run| run.place == place);
        median_of(
            of("before").zip(of("after")).map(|(before, after)| (before.median_s / after.median_s).ln().abs().exp()),
        )
    }
}

/// The median; None of nothing.
fn median_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: usize, method: &str, median_s: f64) -> OurRun {
        OurRun {
            round,
            method: method.into(),
            median_s,
            formula_s: Some(0.9),
            formula_announced_s: Some(0.95),
            bound_s: Some(0.85),
            formula_exposed_s: Some(0.1),
            least_exposed_s: Some(0.05),
            seen: Some(Seen { communication_s: 0.5, in_backward_s: 0.1 * round as f64 }),
            operations: 3,
            buckets: 3,
            strategy: String::new(),
            iteration_s: vec![median_s],
            compute_s: 0.5,
            exposed_communication_s: 0.25,
            scheduling_s_per_tensor: 1e-6 * round as f64,
            late: None,
            limited: None,
            communication: None,
        }
    }

    fn ddp(round: usize, place: &'static str, median_s: f64) -> DdpRun {
        let measured = DdpMeasured {
            iteration_s: vec![median_s],
            exposed_communication_s: 0.0,
            processor_s: 0.0,
            bucket_bytes: Vec::new(),
            wrong: 0,
        };
        DdpRun { round, place, median_s, measured }
    }

    /// The machine becomes four times slower in the second round; side by side ours takes as long, half and a quarter.
    #[test]
    fn ratios_are_taken_round_by_round() {
        let rounds = Rounds {
            model: "m".into(),
            compute_s: 1.0,
            line_s: 1.0,
            effort: Effort { warm_up: 1, iterations: 1 },
            ours: vec![run(1, "a", 1.0), run(2, "a", 2.0), run(3, "a", 1.0)],
            ddp: vec![
                ddp(1, "before", 1.0),
                ddp(1, "after", 1.0),
                ddp(2, "before", 2.0),
                ddp(2, "after", 8.0),
                ddp(3, "before", 4.0),
                ddp(3, "after", 4.0),
            ],
            failures: Vec::new(),
        };
        let summary = rounds.summary("a").expect("it ran");
        assert_eq!((summary.ddp_ratio, summary.iteration_s, summary.of_formula), (Some(2.0), 1.0, Some(0.9)));
        assert_eq!((summary.bound_s, summary.of_bound), (Some(0.85), Some(0.85)));
        assert_eq!(summary.scheduling_s_per_tensor, 2e-6);
        assert_eq!((summary.in_backward_s, summary.share_in_backward), (Some(0.2), Some(0.4)));
        assert_eq!(rounds.ddp_noise(), Some(1.0));
        assert!(rounds.summary("b").is_none());
        let met = |rounds: &Rounds, asked| rounds.judged("a", asked, Target::at_most("it", "x", 1.0, Some(0.5))).met;
        assert_eq!((met(&rounds, 3), met(&rounds, 4)), (Some(true), None));
        let missed = rounds.judged("a", 4, Target::at_most("it", "x", 1.0, Some(2.0)));
        assert_eq!((missed.met, &*missed.found), (Some(false), "2.000, by 3 of 4 rounds"));
        assert!(rounds.remarks().is_none());
        let limited = OurRun { limited: Some("97 % of the processors were busy".into()), ..run(1, "a", 1.0) };
        let told = Rounds { ours: vec![limited], failures: vec!["round 2: late".into()], ..rounds };
        let table = told.remarks().expect("there is something to say");
        assert_eq!(table.rows, [["round 2: late"], ["round 1: a: 97 % of the processors were busy"]]);
    }
}
