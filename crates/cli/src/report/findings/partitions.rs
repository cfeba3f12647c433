//! Claims about partitions. Whether they help is seen where the same method was measured cut and uncut.

use super::claims::suits_servers;
use super::{Data, Outcome, Pair, missing, of_row, ratio};
use crate::bench::{Group, Ratio, Row, Verdict};
use crate::report::aspects::aspect;

const NEEDED: &str = "a method cut into partitions and the same one uncut, such as \
                      --methods \"wfbp-ps;schedule=wfbp,arch=ps:hosts:2GiB\"";

pub fn partitioning(data: &Data<'_>) -> (Outcome, String) {
    let (mut servers, mut all_to_all) = (Vec::new(), Vec::new());
    for (panel, group) in data.groups() {
        for twins in twins(group) {
            let pairs = if twins.cut.shards > 0 { &mut servers } else { &mut all_to_all };
            pairs.extend(twins.ratio(group).map(|ratio| Pair { panel, group, ratio, called: String::new() }));
        }
    }
    let needed = || missing(&format!("{NEEDED}, on the parameter server and on all-to-all"));
    suits_servers(&servers, &all_to_all).unwrap_or_else(needed)
}

/// Partitions win where a method wins that is cut, and is faster than itself uncut.
pub fn partitioning_on_resnet(data: &Data<'_>) -> (Outcome, String) {
    let (mut told, mut wins, mut losses) = (Vec::new(), 0, 0);
    for (panel, group) in data.groups().filter(|(panel, _)| panel.setting.model == "resnet50") {
        let Verdict::Winner { method, .. } = &group.verdict else { continue };
        let mut twins: Vec<Twins<'_>> = twins(group).collect();
        if twins.is_empty() {
            continue;
        }
        twins.retain(|twins| twins.cut.method == *method);
        let faster = |twins: &Twins<'_>| twins.ratio(group).map(|ratio| (ratio.is_above(1.0), ratio.is_below(1.0)));
        match (twins.first().and_then(faster), is_cut(group, method)) {
            (Some((true, _)), _) => wins += 1,
            (Some((_, true)), _) | (None, false) => losses += 1,
            _ => continue,
        }
        told.push(format!("{}: {}", super::place(panel, group), group.verdict.headline()));
    }
    match (wins, losses) {
        (0, 0) => missing(&format!("resnet50 with a winner beyond the noise, and {NEEDED}")),
        (_, 0) => (Outcome::Holds, told.join("; ")),
        _ => (Outcome::Refuted, told.join("; ")),
    }
}

/// The same method, cut and uncut.
struct Twins<'a> {
    cut: &'a Row,
    uncut: &'a Row,
}

impl Twins<'_> {
    fn ratio(&self, group: &Group) -> Option<Ratio> {
        Some(ratio(group, of_row(self.cut)?, of_row(self.uncut)?))
    }
}

fn twins(group: &Group) -> impl Iterator<Item = Twins<'_>> {
    let cut = group.rows.iter().filter(|row| has_partitions(row) == Some(true));
    cut.flat_map(|cut| {
        let alike =
            |row: &&Row| has_partitions(row) == Some(false) && but_for_partitions(row) == but_for_partitions(cut);
        group.rows.iter().filter(alike).map(move |uncut| Twins { cut, uncut })
    })
}

/// Are any of its buckets cut?
fn has_partitions(row: &Row) -> Option<bool> {
    row.result.as_ref().map(|result| result.operations > result.buckets)
}

fn is_cut(group: &Group, method: &str) -> bool {
    group.rows.iter().any(|row| row.method == method && has_partitions(row) == Some(true))
}

/// What is left of a strategy without the sizes of its partitions and what goes with them: the credit.
fn but_for_partitions(row: &Row) -> Vec<&str> {
    let strategy = &row.strategy;
    let mut rest: Vec<&str> = ["sync", "compress", "protocol"].iter().flat_map(|name| aspect(strategy, name)).collect();
    // `fusion:BYTES` is another schedule for every size; ByteScheduler's arguments are partition and credit.
    let schedule = aspect(strategy, "schedule");
    rest.extend(if schedule.first() == Some(&"bytescheduler") { &schedule[..1] } else { &schedule[..] });
    // Servers: how many, partition, place, start-up.
    let arch = aspect(strategy, "arch");
    let is_partition = |place: usize| arch.first() == Some(&"ps") && place == 2;
    rest.extend(arch.iter().enumerate().filter(|(place, _)| !is_partition(*place)).map(|(_, word)| word));
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Panel, sample_panels};
    use crate::report::findings::tests::finding;

    /// The second sample panel with a row of WFBP on servers, cut and uncut, and of ByteScheduler among workers.
    fn panels() -> Vec<Panel> {
        let mut panels = sample_panels();
        let group = &mut panels[1].groups[0];
        let sample = group.rows[0].clone();
        let mut row = |method: &str, strategy: &str, shards, operations, samples_per_s: f64| {
            let mut row = Row { method: method.into(), strategy: strategy.into(), shards, ..sample.clone() };
            if let Some(result) = &mut row.result {
                (result.buckets, result.operations) = (161, operations);
                let factor = samples_per_s / result.samples_per_s.mean;
                result.samples_per_s.mean *= factor;
                result.samples_per_s.std = result.samples_per_s.std.map(|std| std * factor);
            }
            group.rows.push(row);
        };
        row("wfbp-ps", "schedule=wfbp,arch=ps:hosts:4000KiB:colocated", 2, 175, 1200.0);
        row("uncut-ps", "schedule=wfbp,arch=ps:hosts:2GiB:colocated", 2, 161, 1000.0);
        row("bytescheduler-a2a", "schedule=bytescheduler:4000KiB:16000KiB,arch=a2a:auto", 0, 175, 900.0);
        row("uncut-a2a", "schedule=bytescheduler:2GiB:2GiB,arch=a2a:auto", 0, 161, 1000.0);
        panels
    }

    fn outcome(panels: &[Panel], claim: &str) -> Outcome {
        finding(panels, claim).verdict
    }

    #[test]
    fn partitions_are_judged_by_cut_against_uncut_only() {
        let claim = "Partitioning suits";
        let mut panels = panels();
        assert_eq!(outcome(&panels, claim), Outcome::Holds);
        // Without the uncut ones nothing can be said, however fast ByteScheduler is.
        panels[1].groups[0].rows.retain(|row| !row.method.starts_with("uncut"));
        assert_eq!(outcome(&panels, claim), Outcome::Undecidable);
    }

    #[test]
    fn partitions_win_where_their_method_wins_and_loses_uncut() {
        let claim = "wins on ResNet-50";
        let mut panels = panels();
        let wins = |method: &str| Verdict::Winner { method: method.into(), runner_up: "ddp".into(), margin: 0.1 };
        panels[1].groups[0].verdict = wins("wfbp-ps");
        assert_eq!(outcome(&panels, claim), Outcome::Holds);
        panels[1].groups[0].verdict = wins("uncut-ps");
        assert_eq!(outcome(&panels, claim), Outcome::Refuted);
        panels[1].groups[0].verdict = wins("wfbp-ps");
        panels[1].groups[0].rows.retain(|row| row.method != "uncut-ps" && row.method != "uncut-a2a");
        assert_eq!(outcome(&panels, claim), Outcome::Undecidable);
    }
}
