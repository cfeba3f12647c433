//! The study's claims, tested one by one on the data at hand. Pure.

mod claims;

use serde::Serialize;

use crate::bench::{Group, Panel};
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
pub fn findings(panels: &[Panel]) -> Vec<Finding> {
    let data = Data { panels };
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
    panels: &'a [Panel],
}

/// Two methods in one group.
struct Pair<'a> {
    panel: &'a Panel,
    group: &'a Group,
    /// The throughput of the first over that of the second.
    ratio: f64,
}

impl Pair<'_> {
    /// Where it is.
    fn place(&self) -> String {
        place(self.panel, self.group)
    }

    /// How far the ratio may be from 1 by chance. Where that was not measured, no ratio decides anything.
    fn noise(&self) -> f64 {
        self.group.noise.unwrap_or(f64::INFINITY)
    }

    fn is_faster(&self) -> bool {
        self.ratio > 1.0 + self.noise()
    }

    fn is_slower(&self) -> bool {
        self.ratio < 1.0 / (1.0 + self.noise())
    }
}

impl<'a> Data<'a> {
    /// Every group with more than one worker.
    fn groups(&self) -> impl Iterator<Item = (&'a Panel, &'a Group)> {
        let groups = self.panels.iter().flat_map(|panel| panel.groups.iter().map(move |group| (panel, group)));
        groups.filter(|(_, group)| group.workers > 1)
    }

    /// Every group that has both methods.
    fn pairs(&self, first: &str, second: &str) -> Vec<Pair<'a>> {
        let pair = |(panel, group): (&'a Panel, &'a Group)| {
            let ratio = throughput(group, first)? / throughput(group, second)?;
            Some(Pair { panel, group, ratio })
        };
        self.groups().filter_map(pair).collect()
    }
}

/// Mean samples per second of a method in a group.
fn throughput(group: &Group, method: &str) -> Option<f64> {
    let row = group.rows.iter().find(|row| row.method == method)?;
    row.result.as_ref().map(|result| result.samples_per_s.mean)
}

/// The fastest method's throughput.
fn best(group: &Group) -> Option<f64> {
    let results = group.rows.iter().filter_map(|row| row.result.as_ref());
    results.map(|result| result.samples_per_s.mean).max_by(f64::total_cmp)
}

fn place(panel: &Panel, group: &Group) -> String {
    let network = panel.setting.network.as_deref().unwrap_or("this machine");
    format!("{} on {network} at {}", panel.setting.model, group.workers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample_panels;

    fn finding(panels: &[Panel], words: &str) -> Finding {
        let findings = findings(panels);
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
        assert!(decided[0].numbers.contains("36 %"), "{}", decided[0].numbers);
        assert!(findings.iter().all(|finding| !finding.numbers.is_empty()));
    }

    #[test]
    fn claims_follow_the_numbers_and_not_the_other_way_round() {
        let mut panels = sample_panels();
        let claim = "in all cases";
        let found = finding(&panels, claim);
        assert_eq!(found.verdict, Outcome::Holds, "{found:?}");
        assert!(found.numbers.contains("resnet50 on 10GbE at 8"), "{found:?}");
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
}
