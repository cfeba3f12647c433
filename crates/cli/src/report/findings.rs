//! The study's claims, tested one by one on the data at hand. Pure.

mod across;
mod claims;
mod named;
mod partitions;

use serde::Serialize;

use super::Report;
use crate::bench::{Estimate, Group, Panel, Ratio, Row, Study, geometric_mean};
use claims::CLAIMS;

/// A claim with what the data says about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// As a sentence.
    pub claim: &'static str,
    /// Held, not held, or not decidable.
    pub verdict: Outcome,
    /// The numbers, or what is missing.
    pub numbers: String,
}

/// What the data says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// It is as the claim says.
    #[serde(rename = "held")]
    Holds,
    /// It is not.
    #[serde(rename = "not held")]
    Refuted,
    /// The data does not say.
    #[serde(rename = "not decidable")]
    Undecidable,
}

/// Tests every claim.
pub fn findings(reports: &[Report]) -> Vec<Finding> {
    let panels = reports.iter().flat_map(|report| {
        let study = &report.study;
        report.panels.iter().map(move |panel| Measured { panel, study })
    });
    let data = Data { panels: panels.collect() };
    CLAIMS
        .iter()
        .map(|(claim, test)| {
            let (verdict, numbers) = test(&data);
            Finding { claim, verdict, numbers }
        })
        .collect()
}

/// What claims are tested on.
struct Data<'a> {
    panels: Vec<Measured<'a>>,
}

/// A panel of a study.
#[derive(Clone, Copy)]
struct Measured<'a> {
    panel: &'a Panel,
    study: &'a Study,
}

/// Two methods in one group.
struct Pair<'a> {
    panel: &'a Panel,
    group: &'a Group,
    /// The throughput of the first over that of the second.
    ratio: Ratio,
    /// What they are called, where that is not what claims call them.
    called: String,
}

impl Pair<'_> {
    /// Where it is, and of what.
    fn place(&self) -> String {
        place(self.panel, self.group) + &self.called
    }

    fn is_faster(&self) -> bool {
        self.ratio.is_above(1.0)
    }

    fn is_slower(&self) -> bool {
        self.ratio.is_below(1.0)
    }
}

impl<'a> Data<'a> {
    /// Every group with more than one worker, but for those whose cores had too much to do for anybody to win.
    fn groups(&self) -> impl Iterator<Item = (&'a Panel, &'a Group)> {
        let panels = self.panels.iter().map(|measured| measured.panel);
        let groups = panels.flat_map(|panel| panel.groups.iter().map(move |group| (panel, group)));
        groups.filter(|(panel, group)| group.workers > 1 && !panel.is_crowded(group))
    }

    /// Every group that has both methods, by the names of the plain presets, or under [other names](named::rows).
    fn pairs(&self, first: &str, second: &str) -> Vec<Pair<'a>> {
        let pair = |(panel, group): (&'a Panel, &'a Group)| {
            let [one, other] = named::rows(group, [first, second])?;
            let called = named::called([one, other], [first, second]);
            Some(Pair { panel, group, ratio: ratio(group, of_row(one)?, of_row(other)?), called })
        };
        self.groups().filter_map(pair).collect()
    }
}

/// What two throughputs of one group are to each other.
fn ratio(group: &Group, first: &Estimate, second: &Estimate) -> Ratio {
    Ratio::of(&[(first, 1.0), (second, -1.0)], &[group.noise])
}

/// Samples per second of a method in a group.
fn throughput<'a>(group: &'a Group, method: &str) -> Option<&'a Estimate> {
    of_row(group.rows.iter().find(|row| row.method == method)?)
}

/// What processors have limited says nothing of its method.
fn of_row(row: &Row) -> Option<&Estimate> {
    row.result.as_ref().filter(|result| result.limited().is_none()).map(|result| &result.samples_per_s)
}

/// The fastest method's throughput.
fn best(group: &Group) -> Option<&Estimate> {
    group.rows.iter().filter_map(of_row).max_by(|a, b| a.mean.total_cmp(&b.mean))
}

/// The verdict of a claim that cannot be tested, and what it would take.
fn missing(what: &str) -> (Outcome, String) {
    (Outcome::Undecidable, format!("needs {what}"))
}

/// Held if most pairs are faster beyond what is open, refuted if more are slower.
fn most(pairs: &[Pair<'_>]) -> (Outcome, String) {
    let (faster, slower) = counts(pairs);
    let verdict = match (faster, slower) {
        (faster, slower) if faster > slower && 2 * faster > pairs.len() => Outcome::Holds,
        (faster, slower) if slower > faster => Outcome::Refuted,
        _ => Outcome::Undecidable,
    };
    (verdict, told(pairs))
}

/// How many are faster, and how many slower.
fn counts(pairs: &[Pair<'_>]) -> (usize, usize) {
    let faster = pairs.iter().filter(|pair| pair.is_faster()).count();
    (faster, pairs.iter().filter(|pair| pair.is_slower()).count())
}

/// The counts, and the ratios, the first few by place.
fn told(pairs: &[Pair<'_>]) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<String> =
        pairs.iter().take(SHOWN).map(|pair| format!("{:.2}× ({})", pair.ratio.value, pair.place())).collect();
    let mean = geometric_mean(&pairs.iter().map(|pair| pair.ratio.value).collect::<Vec<_>>());
    let mean = mean.filter(|_| pairs.len() > 1).map(|mean| format!(", geometric mean {mean:.2}×")).unwrap_or_default();
    let more = if pairs.len() > SHOWN { format!(" and {} more", pairs.len() - SHOWN) } else { String::new() };
    let (faster, slower) = counts(pairs);
    let open = pairs.iter().filter(|pair| !pair.ratio.is_known()).count();
    let open = if open > 0 { format!(", without enough runs {open}") } else { String::new() };
    format!("faster in {faster}, slower in {slower}{open} of {}; {}{more}{mean}", pairs.len(), shown.join(", "))
}

/// Where a number comes from, and what was not real there.
fn place(panel: &Panel, group: &Group) -> String {
    format!("{} on {} at {}{}", panel.setting.model, panel.place(), group.workers, panel.in_short())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::worlds::Compute;
    use crate::bench::{Verdict, sample_panels, sample_study};

    /// What panels of one study say of the claim with these words.
    pub fn finding(panels: &[Panel], words: &str) -> Finding {
        of_reports(&[Report { study: sample_study(), panels: panels.to_vec() }], words)
    }

    pub fn of_reports(reports: &[Report], words: &str) -> Finding {
        let findings = findings(reports);
        findings.into_iter().find(|finding| finding.claim.contains(words)).expect("there is such a claim")
    }

    #[test]
    fn claims_without_data_are_not_decided() {
        let findings = findings(&[]);
        assert!(findings.len() >= 10);
        let decided: Vec<_> = findings.iter().filter(|finding| finding.verdict != Outcome::Undecidable).collect();
        // What follows from the study's own numbers does not depend on ours.
        assert_eq!(decided.len(), 1, "{decided:?}");
        assert!(decided[0].claim.contains("16 KB") && decided[0].verdict == Outcome::Refuted);
        assert!(decided[0].numbers.contains("not measured here"), "{}", decided[0].numbers);
        assert!(decided[0].numbers.contains("36 %") && decided[0].numbers.contains("37 %"), "{}", decided[0].numbers);
        assert!(findings.iter().all(|finding| !finding.numbers.is_empty()));
    }

    #[test]
    fn claims_follow_the_numbers_and_not_the_other_way_round() {
        let mut panels = sample_panels();
        let claim = "in all cases";
        let found = finding(&panels, claim);
        assert_eq!(found.verdict, Outcome::Holds, "{found:?}");
        assert!(found.numbers.contains("resnet50 on 10GbE at 8, replayed, emulated"), "{found:?}");
        for row in &mut panels[1].groups[0].rows {
            let faster = if row.method == "bsp-ps" { 2.0 } else { 1.0 };
            row.result.as_mut().expect("it ran").samples_per_s.mean *= faster;
        }
        assert_eq!(finding(&panels, claim).verdict, Outcome::Refuted);
    }

    #[test]
    fn a_difference_within_the_noise_holds_nothing() {
        let mut panels = sample_panels();
        let group = &mut panels[1].groups[0];
        group.noise = Some(0.5);
        assert_eq!(finding(&panels, "in all cases").verdict, Outcome::Undecidable);
        panels[1].groups[0].noise = None;
        assert_eq!(finding(&panels, "in all cases").verdict, Outcome::Undecidable, "noise that nobody measured");
    }

    #[test]
    fn what_processors_have_limited_holds_nothing() {
        let claim = "in all cases";
        let mut panels = sample_panels();
        assert_eq!(finding(&panels, claim).verdict, Outcome::Holds);
        let row = panels[1].groups[0].rows.iter_mut().find(|row| row.method == "bsp-ps").expect("it is there");
        let result = row.result.as_mut().expect("it ran");
        (result.processors_waiting, result.exposed_share) = (Some(0.97), 0.5);
        assert_eq!(finding(&panels, claim).verdict, Outcome::Undecidable);
    }

    /// Real computation, and an emulated network, on fewer cores than workers.
    #[test]
    fn cores_that_compute_and_carry_the_links_hold_nothing() {
        let claim = "in all cases";
        let mut panels = sample_panels();
        panels[1].setting.compute = Compute::Real;
        assert_eq!(finding(&panels, claim).verdict, Outcome::Holds);
        panels[1].groups[0].labels.push("8 workers on 2 cores".to_owned());
        assert_eq!(finding(&panels, claim).verdict, Outcome::Undecidable);
    }

    /// Tied everywhere is neither winning nor being beaten.
    #[test]
    fn a_method_wins_everywhere_only_alone() {
        let claim = "No method wins everywhere";
        let mut panels = sample_panels();
        panels.remove(0);
        let mut second = panels[0].groups[0].clone();
        second.workers = 16;
        panels[0].groups.push(second);
        let win = |method: &str| Verdict::Winner { method: method.into(), runner_up: "ddp".into(), margin: 0.1 };
        let all = panels[0].groups[0].rows.iter().map(|row| row.method.clone()).collect();
        let cases = [
            (win("mg-wfbp"), win("mg-wfbp"), Outcome::Refuted),
            (win("mg-wfbp"), win("bsp-ps"), Outcome::Holds),
            (win("mg-wfbp"), Verdict::Tie { methods: all }, Outcome::Undecidable),
            (win("mg-wfbp"), Verdict::Undecided { why: String::new() }, Outcome::Undecidable),
        ];
        for (first, second, expected) in cases {
            (panels[0].groups[0].verdict, panels[0].groups[1].verdict) = (first, second);
            let found = finding(&panels, claim);
            assert_eq!(found.verdict, expected, "{found:?}");
        }
    }

    #[test]
    fn not_slower_must_be_shown() {
        let claim = "not slower than one bucket";
        let mut panels = sample_panels();
        assert_eq!(finding(&panels, claim).verdict, Outcome::Holds);
        panels[1].groups[0].noise = Some(0.9);
        assert_eq!(finding(&panels, claim).verdict, Outcome::Undecidable, "so much noise hides anything");
        panels[1].groups[0].noise = None;
        assert_eq!(finding(&panels, claim).verdict, Outcome::Undecidable);
    }
}
