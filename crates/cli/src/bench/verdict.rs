//! Who won a group, and why. Pure.

use serde::{Deserialize, Serialize};

use super::statistics::{Ratio, VALUES_MIN};
use super::summary::{Row, RowResult};
use crate::report::aspects::aspect;

/// Who won.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// One method is faster than every other, beyond the noise.
    Winner {
        /// Its name.
        method: String,
        /// The second.
        runner_up: String,
        /// By which share it is faster than the second.
        margin: f64,
    },
    /// The difference between the fastest ones is within the noise.
    Tie {
        /// The fastest first.
        methods: Vec<String>,
    },
    /// There are no two methods to compare, the noise was not measured, or a method that the processors have limited might
    /// be faster than all others.
    Undecided {
        /// What is missing.
        why: String,
    },
}

impl Verdict {
    /// Does this method win, alone or with others?
    pub fn is_among_the_best(&self, method: &str) -> bool {
        match self {
            Verdict::Winner { method: winner, .. } => winner == method,
            Verdict::Tie { methods } => methods.iter().any(|tied| tied == method),
            Verdict::Undecided { .. } => false,
        }
    }

    /// On workers that compute on fewer cores than they have threads ("4 workers on 2 cores"), where these cores carry
    /// the emulated links, too: nobody knows what is due to a method, and what to its wait for a core.
    pub fn on_shared_cores(shared: &str, remedy: &str) -> Verdict {
        Verdict::Undecided { why: format!("{shared} compute, and carry the links that they emulate; {remedy}") }
    }

    /// In a few words.
    pub fn headline(&self) -> String {
        match self {
            Verdict::Winner { method, runner_up, margin } => {
                format!("{method} wins, {:.1} % ahead of {runner_up}", 100.0 * margin)
            }
            Verdict::Tie { methods } => format!("tie: {}", methods.join(", ")),
            Verdict::Undecided { why } => format!("undecided: {why}"),
        }
    }
}

/// The verdict on the rows of a group, and the reason in words. The difference of two methods counts if it exceeds the
/// noise and the 95 % confidence interval that the runs leave open. The winner must be ahead of every other method by that
/// measure, so that choosing it among many makes no winner by chance. Methods with too few runs, and those that the processors
/// have limited and not the links, take no part, and nobody wins against one that looks faster, or that the processors have
/// limited and that would be faster if none of its communication were exposed. `remedy`: what leaves the processors more
/// time.
pub fn decide(rows: &[Row], noise: Option<f64>, c2c: Option<f64>, workers: usize, remedy: &str) -> (Verdict, String) {
    let undecided = |why: String| (Verdict::Undecided { why }, String::new());
    let field = match Field::of(rows, remedy) {
        Ok(field) => field,
        Err(why) => return undecided(why),
    };
    let Some(noise) = noise else {
        return undecided("no method was measured twice, so the noise is unknown".to_owned());
    };
    if let Some(why) = field.might_be_beaten(noise, remedy) {
        return undecided(why);
    }
    let verdict = field.verdict(noise);
    let reason = reason(&verdict, &field.compared, noise, c2c, workers) + &field.left_out();
    (verdict, reason)
}

/// Who is compared with whom.
struct Field<'a> {
    /// The fastest first; two at least.
    compared: Vec<(&'a Row, &'a RowResult)>,
    /// Those with too few runs.
    few: Vec<&'a str>,
    /// Those that the processors have limited, however many runs they have.
    limited: Vec<(&'a str, &'a RowResult)>,
}

impl<'a> Field<'a> {
    /// Of the rows that have a result; or why nothing can be said of them.
    fn of(rows: &'a [Row], remedy: &str) -> Result<Field<'a>, String> {
        let mut results: Vec<(&Row, &RowResult)> =
            rows.iter().filter_map(|row| Some((row, row.result.as_ref()?))).collect();
        results.sort_by(|a, b| b.1.samples_per_s.mean.total_cmp(&a.1.samples_per_s.mean));
        let [(fastest, first), _, ..] = results[..] else {
            return Err("fewer than two methods gave a result".to_owned());
        };
        if first.limited().is_some() {
            return Err(format!("the processors, and not the links, limited {}; {remedy}", fastest.method));
        }
        let has_few = |result: &RowResult| result.samples_per_s.runs < VALUES_MIN;
        let mut field = Field { compared: Vec::new(), few: Vec::new(), limited: Vec::new() };
        for (row, result) in results {
            match (result.limited().is_some(), has_few(result)) {
                (true, _) => field.limited.push((&row.method, result)),
                (_, true) => field.few.push(&row.method),
                _ => field.compared.push((row, result)),
            }
        }
        let needs = format!("a comparison needs {VALUES_MIN} runs of each method");
        match (field.compared.len() < 2, field.limited.is_empty()) {
            (true, true) => Err(needs),
            (true, false) => Err(format!("{needs}, and the processors limited {}", names(&field.limited).join(", "))),
            _ if has_few(first) => Err(format!("{needs}, and {} has fewer", fastest.method)),
            _ => Ok(field),
        }
    }

    /// Why none of those that are compared can be called the fastest, if so: what the processors have limited is as fast as
    /// measured or faster, and nobody knows by how much; at most as if all of its communication were hidden.
    fn might_be_beaten(&self, noise: f64, remedy: &str) -> Option<String> {
        let (first, best) = self.compared[0];
        let out_of_reach = |other: &RowResult| {
            let at_most = other.samples_per_s_without_exposed();
            Ratio::of(&[(&best.samples_per_s, 1.0), (&at_most, -1.0)], &[Some(noise)]).is_above(1.0)
        };
        let rivals: Vec<_> = self.limited.iter().copied().filter(|(_, result)| !out_of_reach(result)).collect();
        (!rivals.is_empty()).then(|| {
            format!(
                "the processors, and not the links, limited {}, which might be faster than {}, the fastest of the others; \
                 {remedy}",
                names(&rivals).join(", "),
                first.method
            )
        })
    }

    fn verdict(&self, noise: f64) -> Verdict {
        let ((first, best), (second, next)) = (self.compared[0], self.compared[1]);
        let ahead = |other: &RowResult| {
            Ratio::of(&[(&best.samples_per_s, 1.0), (&other.samples_per_s, -1.0)], &[Some(noise)]).is_above(1.0)
        };
        let tied: Vec<String> =
            self.compared.iter().filter(|(_, result)| !ahead(result)).map(|(row, _)| row.method.clone()).collect();
        if tied.len() > 1 {
            return Verdict::Tie { methods: tied };
        }
        let (method, runner_up) = (first.method.clone(), second.method.clone());
        let margin = best.samples_per_s.mean / next.samples_per_s.mean - 1.0;
        Verdict::Winner { method, runner_up, margin }
    }

    /// Who takes no part, and why, as the end of a sentence.
    fn left_out(&self) -> String {
        let few = format!("with fewer than {VALUES_MIN} runs");
        let named = |names: &[&str], why: &str| match names {
            [] => String::new(),
            names => format!("; not compared, {why}: {}", names.join(", ")),
        };
        named(&self.few, &few) + &named(&names(&self.limited), "limited by the processors")
    }
}

fn names<'a>(limited: &[(&'a str, &RowResult)]) -> Vec<&'a str> {
    limited.iter().map(|(method, _)| *method).collect()
}

/// Of the methods that were compared, the fastest first.
fn reason(verdict: &Verdict, known: &[(&Row, &RowResult)], noise: f64, c2c: Option<f64>, workers: usize) -> String {
    let ratio = c2c.map(|c2c| format!("C2C = f({workers})/(M·I) = {c2c:.2e}; ")).unwrap_or_default();
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let [(first, best), others @ ..] = known else { return String::new() };
    // Whatever the method is called.
    let without_overlap = |row: &Row| aspect(&row.strategy, "schedule") == ["none"];
    // Only what overlaps has hidden something.
    let bulk = others.iter().find(|(row, _)| without_overlap(row) && !without_overlap(first));
    match verdict {
        Verdict::Tie { .. } => {
            let exposed = percent(best.exposed_share);
            format!(
                "{ratio}they differ by less than the same method from itself ({}), or than their runs leave open; {exposed} of the fastest one's time is exposed communication",
                percent(noise)
            )
        }
        Verdict::Winner { runner_up, .. } => {
            let second = others.first().map_or(0.0, |(_, result)| result.exposed_share);
            let hidden = bulk.map(|(row, result)| {
                let (before, after) = (result.exposed_communication_s, best.exposed_communication_s);
                format!(
                    "; without overlap ({}) {:.1} ms of an iteration are exposed, here {:.1} ms",
                    row.method,
                    1e3 * before,
                    1e3 * after
                )
            });
            format!(
                "{ratio}{} of its time is exposed communication, {} of {runner_up}'s{}; the noise is {}",
                percent(best.exposed_share),
                percent(second),
                hidden.unwrap_or_default(),
                percent(noise)
            )
        }
        Verdict::Undecided { .. } => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use paceline_train::Lateness;

    use super::super::summary::{panels, samples};
    use super::*;

    fn verdict(panel: usize, group: usize) -> (Verdict, String) {
        let group = panels(&samples::study(), 2)[panel].groups[group].clone();
        (group.verdict, group.reason)
    }

    #[test]
    fn a_clear_difference_has_a_winner_and_a_reason() {
        let (verdict, reason) = verdict(1, 0);
        let Verdict::Winner { method, runner_up, margin } = &verdict else { panic!("{verdict:?}") };
        assert_eq!((method.as_str(), runner_up.as_str()), ("bytescheduler-ps", "mg-wfbp"));
        assert!((margin - 0.117).abs() < 0.01, "{margin}");
        assert!(reason.contains("C2C = f(8)/(M·I) = 5.70e-5") && reason.contains("bsp-a2a"), "{reason}");
        assert!(verdict.is_among_the_best("bytescheduler-ps") && !verdict.is_among_the_best("mg-wfbp"));
    }

    #[test]
    fn a_difference_within_the_noise_is_a_tie() {
        let (verdict, reason) = verdict(0, 0);
        assert!(verdict.headline().starts_with("tie: "), "{verdict:?}");
        assert!(verdict.is_among_the_best("bsp-a2a") && verdict.is_among_the_best("wfbp-a2a"));
        assert!(reason.contains("less than the same method from itself"), "{reason}");
    }

    #[test]
    fn without_a_second_measurement_of_the_same_nothing_is_decided() {
        let mut group = panels(&samples::study(), 2)[1].groups[0].clone();
        let (verdict, _) = decide(&group.rows, None, None, 8, "");
        assert!(matches!(verdict, Verdict::Undecided { .. }));
        group.rows.truncate(1);
        let (verdict, _) = decide(&group.rows, Some(0.01), None, 8, "");
        assert!(matches!(verdict, Verdict::Undecided { .. }));
    }

    /// Two runs differ by little only by luck; and whoever has too few to be compared is not beaten either.
    #[test]
    fn too_few_runs_decide_nothing() {
        use super::super::cell::samples::{cell, setting};
        use super::super::cell::{Arm, Cell};
        let here = setting("cnn");
        let of = |bulk: &[f64], overlap: &[f64], again: &[f64]| {
            let second = Cell { arm: Arm::Again, ..cell(&here, "bsp-a2a", 2) };
            let records = [
                samples::record(cell(&here, "bsp-a2a", 2), bulk),
                samples::record(cell(&here, "wfbp-a2a", 2), overlap),
                samples::record(cell(&here, "mg-wfbp", 2), &[0.09, 0.0901, 0.0899]),
                samples::record(second, again),
            ];
            let group = panels(&records, 2)[0].groups[0].clone();
            (group.verdict, group.reason)
        };
        let three = [0.1, 0.1001, 0.0999];
        let (verdict, _) = of(&three, &[0.05, 0.05], &three);
        assert!(verdict.headline().contains("needs 3 runs of each method, and wfbp-a2a has fewer"), "{verdict:?}");
        let (verdict, _) = of(&three[..2], &[0.2], &three[..2]);
        assert!(matches!(verdict, Verdict::Undecided { .. }), "{verdict:?}");
        let (verdict, reason) = of(&three, &[0.2, 0.2], &three);
        assert!(verdict.headline().starts_with("mg-wfbp wins"), "{verdict:?}");
        assert!(reason.contains("fewer than 3 runs: wfbp-a2a"), "{reason}");
    }

    #[test]
    fn what_processors_have_limited_neither_wins_nor_loses() {
        use super::super::cell::samples::{cell, replayed};
        use super::super::cell::{Arm, Cell, Setting};
        let emulated = replayed("cnn", "10GbE", 253.1);
        let in_setting = |here: &Setting, limited: &str, overlap: &[f64]| {
            let three = |seconds: f64| [seconds, 1.001 * seconds, 0.999 * seconds];
            let again = Cell { arm: Arm::Again, ..cell(here, "bsp-a2a", 2) };
            let mut records = [
                samples::record(cell(here, "bsp-a2a", 2), &three(0.1)),
                samples::record(cell(here, "mg-wfbp", 2), &three(0.09)),
                samples::record(cell(here, "wfbp-a2a", 2), overlap),
                samples::record(again, &three(0.1)),
            ];
            for record in records.iter_mut().filter(|record| record.cell.method == limited) {
                for run in record.runs.iter_mut().filter_map(|run| run.outcome.as_mut().ok()) {
                    run.exposed_communication_s = 0.5 * run.mean_iteration_s();
                    run.lateness = Some(Lateness { processors_busy: Some(1.96), ..Lateness::default() });
                }
            }
            let group = panels(&records, 2)[0].groups[0].clone();
            (group.verdict.headline(), group.reason)
        };
        let of = |limited: &str, overlap: &[f64]| in_setting(&emulated, limited, overlap);
        let slow = [0.2, 0.2002, 0.1998];
        let (headline, _) = of("mg-wfbp", &slow);
        assert!(headline.starts_with("undecided: the processors, and not the links, limited mg-wfbp"), "{headline}");
        // Without its exposed half it would take 0.1 s, which is still longer than the winner.
        let (headline, reason) = of("wfbp-a2a", &slow);
        assert!(headline.starts_with("mg-wfbp wins"), "{headline}");
        assert!(reason.ends_with("; not compared, limited by the processors: wfbp-a2a"), "{reason}");
        assert!(!of("none", &slow).1.contains("not compared"));
        // Here, with links that keep up, it might take 0.075 s; and of a single run nobody knows.
        for overlap in [&[0.15, 0.1502, 0.1498][..], &[0.2]] {
            let (headline, reason) = of("wfbp-a2a", overlap);
            let words =
                "undecided: the processors, and not the links, limited wfbp-a2a, which might be faster than mg-wfbp";
            assert!(headline.starts_with(words) && headline.ends_with("; raise --dilate"), "{headline}");
            assert_eq!(reason, "");
            assert!(of("none", overlap).0.starts_with("mg-wfbp wins"));
        }
        // Real links cannot be slowed.
        let (headline, _) = in_setting(&Setting { network: None, ..emulated.clone() }, "mg-wfbp", &slow);
        let words = "limited mg-wfbp; ask for fewer --workers, or for a larger --local-batch";
        assert!(headline.ends_with(words), "{headline}");
    }

    /// Each number belongs to the method whose name stands beside it.
    #[test]
    fn a_reason_compares_the_winner_with_the_runner_up_and_with_what_does_not_overlap() {
        use super::super::cell::samples::{cell, setting};
        use super::super::cell::{Arm, Cell};
        let here = setting("cnn");
        let of_named = |name: &str, strategy: &str, bulk_s: f64, overlap_s: f64| {
            let three = |seconds: f64| [seconds, 1.001 * seconds, 0.999 * seconds];
            let first = Cell { strategy: strategy.to_owned(), ..cell(&here, name, 2) };
            let again = Cell { arm: Arm::Again, ..first.clone() };
            let mut records = [
                samples::record(first, &three(bulk_s)),
                samples::record(cell(&here, "mg-wfbp", 2), &three(overlap_s)),
                samples::record(cell(&here, "bsp-ps", 2), &three(0.2)),
                // Between them, with too few runs to be compared.
                samples::record(cell(&here, "wfbp-a2a", 2), &[0.095, 0.095]),
                samples::record(again, &three(bulk_s)),
            ];
            let shares = [0.5, 0.125, 0.75, 0.99, 0.5];
            for (record, share) in records.iter_mut().zip(shares) {
                for measured in record.runs.iter_mut().filter_map(|run| run.outcome.as_mut().ok()) {
                    measured.exposed_communication_s = share * measured.mean_iteration_s();
                }
            }
            let group = panels(&records, 2)[0].groups[0].clone();
            (group.verdict.headline(), group.reason)
        };
        let of = |bulk_s, overlap_s| of_named("bsp-a2a", "sync=bsp,schedule=none", bulk_s, overlap_s);
        let (headline, reason) = of(0.1, 0.09);
        assert!(headline.starts_with("mg-wfbp wins"), "{headline}");
        assert!(reason.contains("12.5 % of its time is exposed communication, 50.0 % of bsp-a2a's"), "{reason}");
        assert!(
            reason.contains("without overlap (bsp-a2a) 50.0 ms of an iteration are exposed, here 11.2 ms"),
            "{reason}"
        );
        // By its schedule, and not by its name.
        let (_, reason) = of_named("study-bsp-a2a", "sync=bsp,schedule=none", 0.1, 0.09);
        assert!(reason.contains("without overlap (study-bsp-a2a) 50.0 ms"), "{reason}");
        assert!(!of_named("bsp-a2a", "sync=bsp,schedule=wfbp", 0.1, 0.09).1.contains("without overlap (bsp-a2a)"));
        let (headline, reason) = of(0.09, 0.1);
        assert!(headline.starts_with("bsp-a2a wins"), "{headline}");
        assert!(reason.contains("50.0 % of its time is exposed communication, 12.5 % of mg-wfbp's"), "{reason}");
        assert!(!reason.contains("without overlap"), "{reason}");
    }

    /// The noise of the A/A arm may be small by luck, while the runs of the methods scatter.
    #[test]
    fn runs_that_scatter_make_a_tie_too() {
        use super::super::cell::samples::{cell, setting};
        use super::super::cell::{Arm, Cell};
        let here = setting("cnn");
        let again = Cell { arm: Arm::Again, ..cell(&here, "bsp-a2a", 2) };
        let records = [
            samples::record(cell(&here, "bsp-a2a", 2), &[0.1; 3]),
            samples::record(cell(&here, "wfbp-a2a", 2), &[0.08, 0.11, 0.085]),
            samples::record(again, &[0.1; 3]),
        ];
        let group = panels(&records, 2)[0].groups[0].clone();
        assert_eq!(group.noise, Some(0.0));
        assert!(matches!(group.verdict, Verdict::Tie { .. }), "{:?}", group.verdict);
    }
}
