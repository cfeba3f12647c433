//! Models that really compute, on this host: what one worker computes and what the links cost is measured, the rest predicted.

use super::super::cells::Cell;
use super::super::cluster::Bench;
use super::{AUTO, METHODS};
use crate::compare::Error;

/// What is trained; how many iterations of each world are measured, and about how many seconds a round of all its worlds takes
/// on two cores.
const MODELS: [(&str, usize, f64); 3] = [("mlp", 300, 60.0), ("cnn", 100, 90.0), ("transformer-lm", 12, 280.0)];
/// Predictions begin with what one worker measured.
const WORKERS: &str = "1,2,4,8";
const WORKERS_QUICK: &str = "1,2";
const QUICK_S: f64 = 20.0;
/// As in the study's protocol. Iterations get faster by some percent until about the tenth, and `auto` has computed for longer
/// than that before it has chosen.
const WARM_UP: usize = 10;
/// Rounds if nobody says how many: where processes share cores, worlds of the same thing differ by a tenth and more.
pub const RUNS: usize = 5;

/// A model with all methods on all numbers of workers: one call of `paceline bench`.
#[derive(Clone, Debug)]
pub struct Real {
    /// How it is called.
    pub name: String,
    model: &'static str,
    workers: &'static str,
    iterations: usize,
    round_s: f64,
}

/// All models; with `quick` the smallest.
pub fn models(quick: bool) -> Vec<Real> {
    let real = |(model, iterations, round_s): (&'static str, usize, f64)| {
        let (workers, round_s) = if quick { (WORKERS_QUICK, QUICK_S) } else { (WORKERS, round_s) };
        Real { name: format!("real-{model}"), model, workers, iterations, round_s }
    };
    MODELS.into_iter().take(if quick { 1 } else { MODELS.len() }).map(real).collect()
}

impl Real {
    /// Worlds of a round; the first method's twice for each number of workers.
    pub fn worlds(&self) -> usize {
        (METHODS.len() + 2) * self.workers.split(',').count()
    }

    /// Seconds that it takes, about.
    pub fn estimate_s(&self, runs: usize) -> f64 {
        runs as f64 * self.round_s
    }

    fn arguments(&self, runs: usize) -> Vec<String> {
        let methods: Vec<&str> = METHODS.into_iter().chain([AUTO]).collect();
        let words = [
            ("--models", self.model.to_owned()),
            ("--methods", methods.join(";")),
            ("--workers", self.workers.to_owned()),
            ("--compute", "real".to_owned()),
            ("--warmup", WARM_UP.to_string()),
            ("--iterations", self.iterations.to_string()),
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
        assert_eq!((value("--warmup"), value("--iterations")), ("10", "300"));
        assert_eq!((all[0].worlds(), all[0].estimate_s(2)), (36, 120.0));
        assert_eq!((models(true).len(), models(true)[0].workers), (1, "1,2"));
    }
}
