//! The tuner as it ships, with all choices, on clusters where what is best depends on whether a call is pipelined and on the model's
//! intensity, as in the survey's two crossovers: what does it lose if it does not see that, and do its choices flip where they must if it
//! does?

use paceline_tune::Tuner;
use paceline_tune::environment::{Disturbances, Misfit, OwnModel, SimulatedCluster};
use paceline_tune::simulation::ablation::{self, Ablation, Feature};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target, percent};
use super::super::{Over, Section, in_words};
use super::{SEEDS, machine};
use crate::compare::Error;

/// One rank on each of eight hosts. Its model knows no difference between rounds, nor between chunks, as messages have no latency there:
/// what decides is what is asked about, and what truths differ from models by.
const CLUSTER: &str = "study-10gbe:8x1";
const RANKS: u32 = 8;
/// log2 of the bytes of calls. Below, there are few chunks to choose from.
const SIZES_LOG2: [u32; 4] = [20, 22, 24, 26];
/// By how much each of the two decides, as a logarithm: enough not to be lost among what families are off by, a quarter.
const OVERLAP: f64 = 0.3;
/// Each call is made once in each: where there is room for few tries only, a context is explored in up to 768.
const ITERATIONS: u64 = 1000;
const COUNT: u64 = 24;
/// By so much regret must rise without the feature, at the lower end of its interval.
const RISE_MIN: f64 = 0.1;
/// Of the pairs of calls in which the feature decides, choices must differ likewise in so many.
const FLIPS_MIN: f64 = 0.75;

/// What is lost without a feature.
#[derive(Serialize)]
struct Row {
    feature: Feature,
    seeds: u64,
    /// What was settled for over the best, seed by seed, by a tuner that sees the feature, and by one that does not.
    seeing: Option<Over>,
    blind: Option<Over>,
    /// How much more the latter loses, seed by seed.
    rise: Option<Over>,
    /// All calls over the best, those of finding out included.
    all_seeing: Option<Over>,
    all_blind: Option<Over>,
    /// Pairs of calls in which the feature decides what is best, and those of them in which choices differ likewise.
    flips_wanted: usize,
    flips_seeing: usize,
    flips_blind: usize,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let (seeds, iterations, sizes) =
        if quick { (1, 12, &SIZES_LOG2[..1]) } else { (COUNT, ITERATIONS, &SIZES_LOG2[..]) };
    let mut rows = Vec::new();
    for feature in Feature::ALL {
        rows.push(row(feature, seeds, iterations, sizes)?);
    }
    let targets = if quick { Vec::new() } else { rows.iter().flat_map(targets).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

fn row(feature: Feature, seeds: u64, iterations: u64, sizes_log2: &[u32]) -> Result<Row, Error> {
    let machine = machine(CLUSTER)?;
    let misfit = Misfit { overlap: OVERLAP, ..Misfit::USUAL };
    // Of a tuner that sees the feature, and of one that does not.
    let (mut settled, mut all): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    let (mut flips_wanted, mut flips) = (0, [0; 2]);
    for seed in SEEDS..SEEDS + seeds {
        for (number, is_hidden) in [false, true].into_iter().enumerate() {
            let model = Box::new(OwnModel::of(&machine));
            let mut cluster = SimulatedCluster::new(model, misfit, Disturbances::usual(), seed);
            let ablation = Ablation { feature, is_hidden, sizes_log2, ranks: RANKS, iterations, seed };
            let ablated = ablation::run(&mut cluster, &mut Tuner::shipped(seed), &ablation);
            let ablated = ablated.ok_or("there is nothing to choose from")?;
            settled[number].push(ablated.settled_over_best());
            all[number].push(ablated.over_best);
            flips[number] += ablated.flips_found;
            flips_wanted += if is_hidden { 0 } else { ablated.flips_wanted };
        }
    }
    let rise: Vec<f64> = settled[0].iter().zip(&settled[1]).map(|(seeing, blind)| blind - seeing).collect();
    let [seeing, blind] = settled.map(|values| Over::of(&values));
    let [all_seeing, all_blind] = all.map(|values| Over::of(&values));
    let [flips_seeing, flips_blind] = flips;
    let rise = Over::of(&rise);
    Ok(Row { feature, seeds, seeing, blind, rise, all_seeing, all_blind, flips_wanted, flips_seeing, flips_blind })
}

impl Row {
    /// The share of flips that were found; None if nothing had to flip.
    fn flipped(&self) -> Option<f64> {
        (self.flips_wanted > 0).then(|| self.flips_seeing as f64 / self.flips_wanted as f64)
    }
}

/// Without the feature more is lost than what seeds leave open, and with it choices flip.
fn targets(row: &Row) -> [Target; 2] {
    let name = row.feature.name();
    let case = format!("simulated: the tuner without {name}");
    let met = row.rise.as_ref().and_then(|rise| rise.is_at_most(RISE_MIN)).map(|at_most| !at_most);
    let found = format!("by {}", in_words(row.rise.as_ref()));
    let rises = Target { case, demanded: format!("regret rises by {RISE_MIN} and more"), found, met };
    let what = "share of pairs in which choices flip, of those in which it decides";
    [rises, Target::at_least(format!("simulated: the tuner with {name}"), what, FLIPS_MIN, row.flipped())]
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "Simulated: what the tuner loses without a feature",
        format!(
            "The tuner as it ships, with all choices, on {CLUSTER}. All-reduces of 1 to 64 MiB come in pairs that differ in the feature alone, and \
             the truth depends on it by {OVERLAP} to each side, as a logarithm: pipelined calls take longer in many rounds, others in few, as \
             all-to-all and servers do; with four times BERT's intensity long chunks take longer, with a quarter of it short ones, as fusing and \
             partitioning do. Regret: what was settled for after {ITERATIONS} calls of each over the best, without noise, and all calls over the \
             best; geometric mean over calls, mean over seeds ± its 95 % interval. Flips: pairs in which the feature decides what is \
             best, and those in which choices differ likewise."
        ),
        &[
            "feature",
            "seeds",
            "regret seeing it",
            "regret without",
            "rise",
            "all calls, seeing it",
            "all calls, without",
            "flips wanted",
            "flips, seeing it",
            "flips, without",
        ],
    );
    table.rows.extend(rows.iter().map(|row| {
        let mut texts = vec![row.feature.name().to_owned(), row.seeds.to_string()];
        let over = [&row.seeing, &row.blind, &row.rise, &row.all_seeing, &row.all_blind];
        texts.extend(over.map(|over| in_words(over.as_ref())));
        texts.push(row.flips_wanted.to_string());
        texts.push(format!("{} ({})", row.flips_seeing, percent(row.flipped())));
        texts.push(row.flips_blind.to_string());
        texts
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_must_rise_by_more_than_seeds_leave_open_and_choices_must_flip() {
        let met = |rises: &[f64], flips_seeing: usize| {
            let row = Row {
                feature: Feature::ModelIntensity,
                seeds: 3,
                seeing: None,
                blind: None,
                rise: Over::of(rises),
                all_seeing: None,
                all_blind: None,
                flips_wanted: 8,
                flips_seeing,
                flips_blind: 0,
            };
            assert_eq!(table(&[]).columns.len(), table(std::slice::from_ref(&row)).rows[0].len());
            targets(&row).map(|target| target.met)
        };
        assert_eq!(met(&[0.15, 0.151, 0.15], 8), [Some(true), Some(true)]);
        assert_eq!(met(&[0.01, 0.011, 0.01], 5), [Some(false), Some(false)]);
        assert_eq!(met(&[0.05, 0.15, 0.11], 6), [None, Some(true)]);
        assert_eq!(met(&[], 6), [None, Some(true)]);
    }
}
