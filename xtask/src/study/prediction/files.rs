//! What files predict: a cluster that `paceline probe` has written and a profile that `paceline profile` has, from which `paceline simulate`
//! predicts, beside what `paceline bench` measures. That knows nothing of a run: neither what its ranks measured when they met, nor
//! that links are emulated.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_cli::{Estimate, Processors};
use serde_json::Value;

use super::super::cells::Cell;
use super::super::cluster::{Bench, Group};
use super::super::read_json;
use super::judge::{Outcome, Place};
use super::{METHODS, emulated};
use crate::compare::Error;
use crate::compare::command::output;

/// A model on links, with files of both.
#[derive(Clone, Debug)]
pub struct Files {
    /// How it is called.
    pub name: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The study's models, whose profiles are built in, on an emulated network.
    Emulated(Group),
    /// A model that is trained, over shared memory or TCP on this host; iterations of each world, and seconds that all worlds take.
    Trained { model: &'static str, transport: &'static str, iterations: usize, seconds: f64 },
}

/// One on each core.
const TRAINED_WORKERS: usize = 2;
/// Rounds where models are trained, each of a run of each method.
const TRAINED_ROUNDS: usize = 5;
/// So many methods are run after another between two profiles of a round. A machine may change its speed by a quarter within a minute, and what
/// computes on it takes as long as it happens to: profiles are to see as much of that as runs.
const BETWEEN_PROFILES: usize = 3;
/// Iterations of a profile, at least.
const PROFILED: usize = 20;
/// Iterations get faster by some percent until about the tenth.
const TRAINED_WARM_UP: usize = 10;
/// Seconds for a probe, and for profiles of a model at one time.
const FILES_S: f64 = 60.0;
/// Dilation of a probe: it does nothing but move bytes, and so needs more of it than iterations, or it measures processors.
const PROBE_DILATION: &str = "20";

/// All of them; with `quick` the smallest.
pub fn all(quick: bool) -> Vec<Files> {
    let trained = |model: &'static str, transport: &'static str, iterations, seconds| {
        let kind = Kind::Trained { model, transport, iterations, seconds };
        Files { name: format!("files-{model}-{TRAINED_WORKERS}-{transport}"), kind }
    };
    if quick {
        return vec![trained("mlp", "shm", 50, 20.0)];
    }
    let emulated = |model, network, hosts, workers_per_host| {
        let workers = hosts * workers_per_host;
        let name = format!("files-{model}-{workers}-{network}");
        let group = emulated::group(model, network, workers, METHODS.to_vec());
        let group = Group { name: name.clone(), hosts, workers_per_host, ..group };
        Files { name, kind: Kind::Emulated(group) }
    };
    vec![
        emulated("resnet50", "10GbE", 4, 1),
        emulated("resnet50", "100GbIB", 2, 2),
        emulated("bert-base", "10GbE", 2, 2),
        trained("mlp", "shm", 300, 100.0),
        trained("transformer-lm", "shm", 12, 450.0),
        trained("transformer-lm", "tcp", 12, 450.0),
    ]
}

impl Files {
    /// Seconds that it takes, about.
    pub fn estimate_s(&self, processors: Processors) -> f64 {
        FILES_S
            + match &self.kind {
                Kind::Emulated(group) => group.estimate_s(processors, 1),
                Kind::Trained { seconds, .. } => *seconds,
            }
    }

    /// Worlds that are measured.
    pub fn worlds(&self) -> usize {
        match self.kind {
            Kind::Emulated(_) => METHODS.len() + 1,
            // Each call measures one worker, too.
            Kind::Trained { .. } => TRAINED_ROUNDS * (METHODS.len() + METHODS.chunks(BETWEEN_PROFILES).len()),
        }
    }

    fn workers(&self) -> usize {
        match &self.kind {
            Kind::Emulated(group) => group.workers[0],
            Kind::Trained { .. } => TRAINED_WORKERS,
        }
    }

    /// Writes the files, predicts from them, and only then measures; where models are trained by turns.
    ///
    /// # Errors
    /// The program cannot be run, or refuses what it is asked.
    pub fn measure(&self, bench: Bench<'_>, processors: Processors) -> Result<Vec<Outcome>, Error> {
        let files = Written { bench, name: &self.name };
        let cluster = files.path("cluster.toml");
        let workers = self.workers().to_string();
        files.run("probe", &words(&["--workers", &workers, "-o"], &cluster, &self.probe_words()))?;
        match &self.kind {
            Kind::Emulated(group) => {
                let predicted = self.predict_all(&files, &cluster, &group.model.into())?;
                let cells = group.measure(bench, processors, 1)?;
                cells.iter().map(|cell| self.outcome(cell, &predicted)).collect()
            }
            Kind::Trained { model, .. } => {
                let rounds = (1..=TRAINED_ROUNDS).map(|round| self.measure_trained(round, model, &files, &cluster));
                Ok(over_rounds(&rounds.collect::<Result<Vec<_>, _>>()?))
            }
        }
    }

    /// One run of each method, predicted from the profiles between them: the means of what these say.
    fn measure_trained(
        &self,
        round: usize,
        model: &str,
        files: &Written<'_>,
        cluster: &Path,
    ) -> Result<Vec<Outcome>, Error> {
        let (mut predicted, mut cells) = (Vec::new(), Vec::new());
        for (part, methods) in METHODS.chunks(BETWEEN_PROFILES).enumerate() {
            let profile = self.profile(&format!("profile-{round}-{part}.json"), model, files)?;
            predicted.push(self.predict_all(files, cluster, &profile.into_os_string())?);
            // A database for each: to `bench` rounds are the same study.
            let database = files.bench.database.with_extension(format!("{round}.{part}.db"));
            let bench = Bench { database: &database, ..files.bench };
            cells.extend(bench.call(&format!("{}-{round}-{part}", self.name), &self.bench_words(methods))?);
        }
        let predicted = means(&predicted);
        cells.iter().map(|cell| self.outcome(cell, &predicted)).collect()
    }

    /// A start of the model, in this file.
    fn profile(&self, file: &str, model: &str, files: &Written<'_>) -> Result<PathBuf, Error> {
        let (path, workers) = (files.path(file), self.workers().to_string());
        let iterations = self.iterations().max(PROFILED).to_string();
        let first = ["--model", model, "--starts", "1", "--iterations", &iterations, "--workers", &workers, "-o"];
        files.run("profile", &words(&first, &path, &[]))?;
        Ok(path)
    }

    fn iterations(&self) -> usize {
        match self.kind {
            Kind::Emulated(_) => 0,
            Kind::Trained { iterations, .. } => iterations,
        }
    }

    /// Method by method.
    fn predict_all(&self, files: &Written<'_>, cluster: &Path, model: &OsString) -> Result<Vec<[f64; 3]>, Error> {
        METHODS.iter().map(|method| self.predict(files, cluster, model, method)).collect()
    }

    /// A cell, with what its method was predicted to do. (`bench` predicts it, too, from what its ranks measure; that is not meant here.)
    fn outcome(&self, cell: &Cell, predicted: &[[f64; 3]]) -> Result<Outcome, Error> {
        let name = cell.method.split(',').next().unwrap_or_default();
        let place = METHODS.iter().position(|method| *method == name);
        let place = place.ok_or_else(|| format!("{}: `{}` is no method that was predicted", self.name, cell.method))?;
        let [low, rate, high] = predicted[place];
        let cell = Cell { not_predicted: None, ..cell.clone() };
        let of_cell = Outcome::of(Place::Files, &self.name, &cell);
        Ok(Outcome { method: name.to_owned(), predicted: Some(rate), interval: Some([low, high]), ..of_cell })
    }

    fn probe_words(&self) -> Vec<String> {
        match &self.kind {
            Kind::Emulated(group) => {
                let hosts = format!("{}x{}", group.hosts, group.workers_per_host);
                ["--emulate", group.network, "--hosts", &hosts, "--dilate", PROBE_DILATION].map(str::to_owned).into()
            }
            Kind::Trained { transport, .. } => ["--transport", transport].map(str::to_owned).into(),
        }
    }

    fn bench_words(&self, methods: &[&str]) -> Vec<String> {
        let Kind::Trained { model, transport, iterations, .. } = &self.kind else { return Vec::new() };
        let methods: Vec<String> = methods.iter().map(|method| format!("{method},protocol={transport}")).collect();
        let words = [
            ("--models", (*model).to_owned()),
            ("--methods", methods.join(";")),
            ("--workers", TRAINED_WORKERS.to_string()),
            ("--compute", "real".to_owned()),
            ("--warmup", TRAINED_WARM_UP.to_string()),
            ("--iterations", iterations.to_string()),
            ("--runs", "1".to_owned()),
        ];
        words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// Samples per second: at least, probably, at most.
    fn predict(&self, files: &Written<'_>, cluster: &Path, model: &OsString, method: &str) -> Result<[f64; 3], Error> {
        let json = files.path(&format!("{method}.json"));
        let workers = self.workers().to_string();
        let mut more: Vec<OsString> = ["--workers", &workers, "--strategy", method, "--cluster"].map(Into::into).into();
        more.extend([cluster.as_os_str().to_owned(), "--model".into(), model.clone()]);
        files.run("simulate", &[more, vec!["--json".into(), json.clone().into_os_string()]].concat())?;
        rates(&read_json(&json)?["prediction"]).ok_or_else(|| format!("{}: no prediction", json.display()).into())
    }
}

/// Of a prediction, in samples per second: an iteration takes between `low_s` and `high_s`.
fn rates(prediction: &Value) -> Option<[f64; 3]> {
    let number = |name: &str| prediction[name].as_f64();
    let samples = number("samples_per_s")? * number("iteration_s")?;
    Some([samples / number("high_s")?, number("samples_per_s")?, samples / number("low_s")?])
}

/// Number by number the means of what several profiles say.
fn means(predicted: &[Vec<[f64; 3]>]) -> Vec<[f64; 3]> {
    let methods = predicted.first().map_or(0, Vec::len);
    let mean = |method: usize, number: usize| {
        predicted.iter().map(|all| all[method][number]).sum::<f64>() / predicted.len() as f64
    };
    (0..methods).map(|method| [0, 1, 2].map(|number| mean(method, number))).collect()
}

/// Method by method the means over the rounds. How far apart predictions lie of profiles of different times is uncertainty, too.
fn over_rounds(rounds: &[Vec<Outcome>]) -> Vec<Outcome> {
    let methods = rounds.first().into_iter().flatten().map(|outcome| &outcome.method);
    let of_method = |method: &String| {
        let all: Vec<&Outcome> = rounds.iter().flatten().filter(|outcome| outcome.method == *method).collect();
        let mean_of = |number: &dyn Fn(&Outcome) -> Option<f64>| {
            let numbers: Vec<f64> = all.iter().filter_map(|outcome| number(outcome)).collect();
            Estimate::of(&numbers)
        };
        let mean = |number: &dyn Fn(&Outcome) -> Option<f64>| mean_of(number).map(|estimate| estimate.mean);
        let predicted = mean_of(&|outcome| outcome.predicted);
        let end = |end: usize| {
            let (own, all) = (mean(&|outcome| Some(outcome.interval?[end]))?, predicted.as_ref()?);
            let apart = (own - all.mean).hypot(all.half_width_95.unwrap_or(0.0));
            Some(if end == 0 { (all.mean - apart).max(0.0) } else { all.mean + apart })
        };
        let throughput = mean_of(&|outcome| outcome.measured);
        Outcome {
            measured: throughput.as_ref().map(|throughput| throughput.mean),
            predicted: predicted.as_ref().map(|estimate| estimate.mean),
            interval: end(0).zip(end(1)).map(|(low, high)| [low, high]),
            throughput,
            rounds: all.iter().map(|outcome| outcome.measured).collect(),
            noise: mean(&|outcome| outcome.noise),
            missing: all.iter().flat_map(|outcome| outcome.missing.clone()).collect(),
            ..all[0].clone()
        }
    };
    methods.map(of_method).collect()
}

fn words(first: &[&str], path: &Path, rest: &[String]) -> Vec<OsString> {
    let first = first.iter().map(OsString::from).chain([path.as_os_str().to_owned()]);
    first.chain(rest.iter().map(OsString::from)).collect()
}

/// Where the files of a case lie.
struct Written<'a> {
    bench: Bench<'a>,
    name: &'a str,
}

impl Written<'_> {
    fn path(&self, what: &str) -> PathBuf {
        self.bench.scratch.join(format!("{}-{what}", self.name))
    }

    fn run(&self, command: &str, words: &[OsString]) -> Result<(), Error> {
        let ended = output(Command::new(self.bench.program).arg(command).args(words)).map(drop);
        ended.map_err(|error| format!("{}: {error}", self.name).into())
    }
}

#[cfg(test)]
mod tests {
    use paceline_strategy::Registry;
    use serde_json::json;

    use super::super::judge::samples::outcome;
    use super::*;

    #[test]
    fn every_case_has_its_own_name_and_methods_that_there_are() {
        let all = all(false);
        let names: Vec<&String> = all.iter().map(|files| &files.name).collect();
        assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)), "{names:?}");
        assert!(names.contains(&&"files-transformer-lm-2-tcp".to_owned()) && names.len() == 6);
        let here = Processors { cores: 2, core_bytes_per_s: 1.2e9 };
        for files in &all {
            assert!(files.estimate_s(here) > FILES_S && files.worlds() >= METHODS.len() && files.workers() >= 2);
            let words = files.bench_words(&METHODS);
            let methods = words.iter().position(|word| word == "--methods").map(|place| words[place + 1].split(';'));
            assert!(methods.into_iter().flatten().all(|method| Registry::built_in().parse(method).is_ok()));
            let probe = files.probe_words().join(" ");
            match &files.kind {
                Kind::Emulated(_) => assert!(probe.contains("--emulate ") && probe.contains(" --dilate "), "{probe}"),
                Kind::Trained { transport, .. } => assert_eq!(probe, format!("--transport {transport}")),
            }
        }
    }

    #[test]
    fn rounds_are_averaged_method_by_method() {
        let of = |method: &str, measured: f64, predicted: f64| {
            let interval = Some([predicted - 1.0, predicted + 2.0]);
            Outcome { interval, ..outcome("g", method, predicted, measured) }
        };
        let rounds = [vec![of("a", 10.0, 12.0), of("b", 5.0, 5.0)], vec![of("a", 20.0, 16.0), of("b", 7.0, 5.0)]];
        let found = over_rounds(&rounds);
        assert_eq!((found[0].method.as_str(), found[0].measured, found[0].predicted), ("a", Some(15.0), Some(14.0)));
        assert_eq!((found[1].measured, found[1].interval), (Some(6.0), Some([4.0, 7.0])));
        assert_eq!(
            (&found[0].rounds, found[1].throughput.map(|all| all.runs)),
            (&vec![Some(10.0), Some(20.0)], Some(2))
        );
        // Of 12 and 16 the mean is known to 12.706 times 2 at 95 %.
        let [low, high] = found[0].interval.expect("both have one");
        assert!(low == 0.0 && (high - 14.0 - 25.412f64.hypot(2.0)).abs() < 1e-3, "{low} to {high}");
        assert!(over_rounds(&[]).is_empty());
    }

    #[test]
    fn what_profiles_say_is_averaged_number_by_number() {
        let of_one = |shift: f64| vec![[1.0 + shift, 2.0, 3.0], [4.0, 5.0 + shift, 6.0]];
        assert_eq!(means(&[of_one(0.0), of_one(2.0)]), [[2.0, 2.0, 3.0], [4.0, 6.0, 6.0]]);
        assert!(means(&[]).is_empty());
    }

    #[test]
    fn a_longer_iteration_is_a_lower_rate() {
        let prediction = json!({"samples_per_s": 100.0, "iteration_s": 0.5, "low_s": 0.4, "high_s": 1.0});
        assert_eq!(rates(&prediction), Some([50.0, 100.0, 125.0]));
        assert_eq!(rates(&json!({"samples_per_s": 100.0})), None);
    }
}
