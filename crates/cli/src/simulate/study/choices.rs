//! Which method the predictions choose, and what following them costs.

use std::io::{self, Write};

use paceline_predict::study::StudyRow;
use serde::Serialize;

use super::{Predicted, new_table, same};

/// What the predictions choose in a group.
#[derive(Serialize)]
pub(super) struct Choice {
    model: String,
    local_batch: usize,
    network: String,
    workers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    single_gpu_samples_per_s: Option<f64>,
    /// The method with the highest predicted throughput.
    predicted_best: String,
    /// The one with the highest measured throughput.
    measured_best: String,
    /// By which share the former was measured to be slower than the latter.
    regret: f64,
}

/// Rows that differ in the method, and not in what it was measured on.
struct Group<'a> {
    row: &'a StudyRow,
    contestants: Vec<Contestant<'a>>,
}

/// A method of a group.
struct Contestant<'a> {
    method: &'a str,
    predicted: f64,
    /// The mean of its rows.
    measured: f64,
    rows: usize,
}

/// Of each group in which at least two methods were measured, in the order in which groups first stand there. What chooses by itself,
/// as `auto` does, is none of them: its prediction is that of what it would run. Nor is what a note casts doubt on.
pub(super) fn chosen(predicted: &[Predicted<'_>]) -> Vec<Choice> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for one in predicted.iter().filter(|one| !one.is_open && !one.row.is_doubted()) {
        let Some(measured) = one.row.samples_per_s else { continue };
        let contestant = Contestant { method: &one.row.method, predicted: one.samples_per_s, measured, rows: 1 };
        match groups.iter_mut().find(|group| group.has(one.row)) {
            Some(group) => group.add(contestant),
            None => groups.push(Group { row: one.row, contestants: vec![contestant] }),
        }
    }
    groups.iter().filter_map(Group::choice).collect()
}

impl<'a> Group<'a> {
    fn has(&self, row: &StudyRow) -> bool {
        let numbers =
            |row: &StudyRow| (row.local_batch, row.workers, row.single_gpu_samples_per_s, row.is_of_one_host());
        same(&self.row.model, &row.model)
            && self.row.network.eq_ignore_ascii_case(&row.network)
            && numbers(self.row) == numbers(row)
    }

    fn add(&mut self, contestant: Contestant<'a>) {
        match self.contestants.iter_mut().find(|known| same(known.method, contestant.method)) {
            Some(known) => {
                known.rows += 1;
                known.measured += (contestant.measured - known.measured) / known.rows as f64;
            }
            None => self.contestants.push(contestant),
        }
    }

    /// None: there is one method only.
    fn choice(&self) -> Option<Choice> {
        if self.contestants.len() < 2 {
            return None;
        }
        // Of those that are alike the first: whoever made the table named it first.
        let best = |rate: fn(&Contestant<'_>) -> f64| {
            self.contestants.iter().reduce(|best, other| if rate(other) > rate(best) { other } else { best })
        };
        let (predicted, measured) = (best(|one| one.predicted)?, best(|one| one.measured)?);
        let row = self.row;
        Some(Choice {
            model: row.model.clone(),
            local_batch: row.local_batch,
            network: row.network.clone(),
            workers: row.workers,
            single_gpu_samples_per_s: row.single_gpu_samples_per_s,
            predicted_best: predicted.method.to_owned(),
            measured_best: measured.method.to_owned(),
            regret: 1.0 - predicted.measured / measured.measured,
        })
    }
}

/// None: nothing was to be chosen.
pub(super) fn mean_regret(choices: &[Choice]) -> Option<f64> {
    let sum: f64 = choices.iter().map(|choice| choice.regret).sum();
    (!choices.is_empty()).then(|| sum / choices.len() as f64)
}

/// A line for each group, and below them the mean.
pub(super) fn show(choices: &[Choice], mean_regret: Option<f64>, out: &mut dyn Write) -> io::Result<()> {
    let Some(mean_regret) = mean_regret else { return Ok(()) };
    let heading = ["model", "network", "predicted best", "measured best", "local batch", "workers", "regret"];
    let mut table = new_table(&heading, 4);
    for choice in choices {
        table.add_row([
            choice.model.clone(),
            choice.network.clone(),
            choice.predicted_best.clone(),
            choice.measured_best.clone(),
            choice.local_batch.to_string(),
            choice.workers.to_string(),
            format!("{:.1} %", 100.0 * choice.regret),
        ]);
    }
    let s = if choices.len() == 1 { "" } else { "s" };
    writeln!(out, "\n{table}\nmean regret {:.1} % of {} group{s}", 100.0 * mean_regret, choices.len())
}

#[cfg(test)]
mod tests {
    use paceline_predict::study::Study;

    use super::*;

    const HEADING: &str =
        "model,local_batch,network,method,workers,samples_per_s,single_gpu_samples_per_s,predicted,note";

    /// Of rows whose last cell says what is predicted of them.
    fn choices_of(rows: &[&str]) -> Vec<Choice> {
        // Most rows have no note.
        let rows: Vec<String> = rows
            .iter()
            .map(|row| if row.matches(',').count() < 8 { format!("{row},") } else { row.to_string() })
            .collect();
        let study = Study::parse(&format!("{HEADING}\n{}", rows.join("\n"))).expect("a study");
        let predicted = study.rows.iter().map(|row| {
            let samples_per_s: f64 = row.cells[7].parse().expect("a number");
            let interval = (samples_per_s, samples_per_s);
            let is_open = row.method == "auto";
            Predicted { row, is_open, samples_per_s, interval, extrapolated: Vec::new(), error: None }
        });
        let predicted: Vec<Predicted<'_>> = predicted.collect();
        chosen(&predicted)
    }

    #[test]
    fn regret_is_what_the_choice_was_measured_to_cost() {
        let choices = choices_of(&[
            "a,8,n,ring,4,90,,95",
            "a,8,n,ring,16,90,,95",
            "a,8,n,servers,4,100,,80",
            "A,8,N,Servers,16,60,,80",
            "a,8,n,auto,16,200,,200",
        ]);
        let said: Vec<_> = choices.iter().map(|one| (one.workers, &*one.predicted_best, &*one.measured_best)).collect();
        assert_eq!(said, [(4, "ring", "servers"), (16, "ring", "ring")]);
        assert!((choices[0].regret - 0.1).abs() < 1e-12 && choices[1].regret == 0.0, "{}", choices[0].regret);
        assert!(mean_regret(&choices).is_some_and(|mean| (mean - 0.05).abs() < 1e-12));
        let mut text = Vec::new();
        show(&choices, mean_regret(&choices), &mut text).expect("it is memory");
        assert!(String::from_utf8_lossy(&text).ends_with("\nmean regret 5.0 % of 2 groups\n"));
    }

    #[test]
    fn what_was_measured_on_something_else_or_not_at_all_is_no_alternative() {
        let choices = choices_of(&[
            "a,8,n,ring,4,90,,95",
            "b,8,n,servers,4,100,,80",
            "a,16,n,servers,4,100,,80",
            "a,8,other,servers,4,100,,80",
            "a,8,n,servers,4,100,50,80",
            "a,8,n,servers,4,,,80",
            "a,8,n,RING,4,80,,95",
            "a,8,n,servers,4,100,,80,single_node",
            "a,8,n,servers,4,100,,80,suspect: another run",
        ]);
        assert_eq!((choices.len(), mean_regret(&choices)), (0, None));
        let mut text = Vec::new();
        show(&choices, None, &mut text).expect("it is memory");
        assert!(text.is_empty());
    }

    #[test]
    fn a_method_with_several_rows_counts_by_their_mean_and_the_first_of_equals_is_chosen() {
        let rows = ["a,8,n,ring,4,80,,80", "a,8,n,servers,4,98,,80", "a,8,n,ring,4,100,,80", "a,8,n,ring,4,105,,80"];
        let choices = choices_of(&rows);
        let choice = &choices[0];
        assert_eq!((&*choice.predicted_best, &*choice.measured_best), ("ring", "servers"));
        assert!((choice.regret - (1.0 - 95.0 / 98.0)).abs() < 1e-12, "{}", choice.regret);
    }
}
