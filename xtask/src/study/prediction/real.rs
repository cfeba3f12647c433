//! Models that really compute, on this host: what one worker computes and what the links cost is measured, the rest predicted.

use super::super::cells::Cell;
use super::super::cluster::Bench;
use super::{AUTO, METHODS};
use crate::compare::Error;

const MODELS: [&str; 3] = ["mlp", "cnn", "transformer-lm"];
/// Predictions begin with what one worker measured.
const WORKERS: &str = "1,2,4,8";
const WORKERS_QUICK: &str = "1,2";
/// Rounds if nobody says how many: where processes share cores, worlds of the same thing differ by a tenth and more.
pub const RUNS: usize = 5;
/// Seconds that a round of a model is to take: some iterations of each world.
const BUDGET_S: f64 = 90.0;
const BUDGET_QUICK_S: f64 = 20.0;

/// A model with all methods on all numbers of workers: one call of `paceline bench`.
#[derive(Clone, Debug)]
pub struct Real {
    /// How it is called.
    pub name: String,
    model: &'static str,
    workers: &'static str,
    budget_s: f64,
}

/// All models; with `quick` the smallest.
pub fn models(quick: bool) -> Vec<Real> {
    let (count, workers, budget_s) =
        if quick { (1, WORKERS_QUICK, BUDGET_QUICK_S) } else { (MODELS.len(), WORKERS, BUDGET_S) };
    let real = |model: &'static str| Real { name: format!("real-{model}"), model, workers, budget_s };
    MODELS.into_iter().take(count).map(real).collect()
}

impl Real {
    /// Worlds of a round; the first method's twice for each number of workers.
    pub fn worlds(&self) -> usize {
        (METHODS.len() + 2) * self.workers.split(',').count()
    }

    /// Seconds that it takes, about.
    pub fn estimate_s(&self, runs: usize) -> f64 {
        runs as f64 * self.budget_s
    }

    fn arguments(&self, runs: usize) -> Vec<String> {
        let methods: Vec<&str> = METHODS.into_iter().chain([AUTO]).collect();
        let words = [
            ("--models", self.model.to_owned()),
            ("--methods", methods.join(";")),
            ("--workers", self.workers.to_owned()),
            ("--compute", "real".to_owned()),
            ("--budget", self.estimate_s(runs).to_string()),
            ("--runs", runs.to_string()),
        ];
        words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// The group of a cell: those with as many workers are compared.
    pub fn group(&self, cell: &Cell) -> String {
        format!("{}-{}", self.name, cell.workers)
    }

    /// Measures what the database does not have yet.
    ///
    /// # Errors
    /// The program cannot be run, or refuses what it is asked.
    pub fn measure(&self, bench: Bench<'_>, runs: usize) -> Result<Vec<Cell>, Error> {
        bench.call(&self.name, &self.arguments(runs))
    }
}

#[cfg(test)]
mod tests {
    use paceline_strategy::Registry;

    use super::*;

    #[test]
    fn every_method_computes_really_on_every_number_of_workers() {
        let all = models(false);
        assert_eq!(all.len(), MODELS.len());
        let words = all[0].arguments(2);
        let value = |option: &str| {
            let place = words.iter().position(|word| word == option).expect("it is said");
            words[place + 1].as_str()
        };
        assert_eq!((value("--compute"), value("--workers"), value("--runs")), ("real", "1,2,4,8", "2"));
        assert!(!words.iter().any(|word| word == "--emulate"), "links are real, too");
        let methods: Vec<&str> = value("--methods").split(';').collect();
        assert!(METHODS.iter().chain([&AUTO]).all(|method| methods.contains(method)), "{methods:?}");
        assert!(methods.iter().all(|method| Registry::built_in().parse(method).is_ok()));
        assert_eq!((all[0].worlds(), all[0].estimate_s(2)), (36, 180.0));
        assert_eq!((models(true).len(), models(true)[0].workers), (1, "1,2"));
    }
}
