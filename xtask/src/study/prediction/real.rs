//! Models that really compute, on this host: what one worker computes and what the links cost is measured, the rest predicted.

use super::super::cells::Cell;
use super::super::cluster::Bench;
use super::judge::Place;
use super::{AUTO, METHODS, Skipped};
use crate::compare::Error;

/// What is trained, and over what; how many iterations of each world are measured, and about how many seconds a round of all its
/// worlds takes on two cores.
const MODELS: [(&str, Link, usize, f64); 5] = [
    ("mlp", Link::Fastest, 300, 60.0),
    ("cnn", Link::Fastest, 100, 90.0),
    ("transformer-lm", Link::Fastest, 12, 280.0),
    ("mlp", Link::Tcp, 300, 30.0),
    ("transformer-lm", Link::Tcp, 12, 130.0),
];
const WORKERS_QUICK: &str = "1,2";
const QUICK_S: f64 = 20.0;
/// As in the study's protocol. Iterations get faster by some percent until about the tenth, and `auto` has computed for longer
/// than that before it has chosen.
const WARM_UP: usize = 10;
/// Rounds if nobody says how many: where processes share cores, worlds of the same thing differ by a tenth and more.
pub const RUNS: usize = 5;

/// What could be measured, too, and is left out, each with the reason.
pub fn left_out() -> Vec<Skipped> {
    let too_many = "left out to save time: eight workers are measured over shared memory";
    let skipped = [
        ("loopback-mlp-8", too_many),
        ("loopback-transformer-lm-8", too_many),
        (
            "loopback-cnn",
            "left out to save time: over shared memory it is trained, and over TCP a smaller and a larger model are",
        ),
        ("loopback-replay", "left out to save time: replays are measured on emulated networks and in the lab"),
        ("lab-trained", "left out to save time: in the lab computation is replayed"),
        (
            "lab-bert-large",
            "left out to save time: at 1 Gbit/s its gradients take 11 s and more of an iteration; MobileNetV2 is in its place",
        ),
        ("lab-*-1", "one worker of a replay talks to nobody: it takes what its profile says"),
        (
            "predicted-*-100GbE",
            "left out to save time: 10GbE and 100GbIB, the slowest and the fastest, lie to both sides of it",
        ),
    ];
    skipped.map(|(case, why)| (case.to_owned(), why.to_owned())).into()
}

/// Over what ranks of this host talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// What they choose themselves: shared memory.
    Fastest,
    /// TCP on the loopback.
    Tcp,
}

/// What a method says that is to talk over TCP.
const OVER_TCP: &str = ",protocol=tcp";

/// A model with all methods on all numbers of workers: one call of `paceline bench`.
#[derive(Clone, Debug)]
pub struct Real {
    /// How it is called.
    pub name: String,
    model: &'static str,
    link: Link,
    workers: &'static str,
    iterations: usize,
    round_s: f64,
}

/// All models; with `quick` the smallest.
pub fn models(quick: bool) -> Vec<Real> {
    let real = |(model, link, iterations, round_s): (&'static str, Link, usize, f64)| {
        let (workers, round_s) = if quick { (WORKERS_QUICK, QUICK_S) } else { (link.workers(), round_s) };
        Real { name: format!("{}-{model}", link.name()), model, link, workers, iterations, round_s }
    };
    MODELS.into_iter().take(if quick { 1 } else { MODELS.len() }).map(real).collect()
}

impl Link {
    fn name(self) -> &'static str {
        match self {
            Link::Fastest => "real",
            Link::Tcp => "loopback",
        }
    }

    /// Predictions begin with what one worker measured.
    fn workers(self) -> &'static str {
        match self {
            Link::Fastest => "1,2,4,8",
            Link::Tcp => "1,2,4",
        }
    }
}

impl Real {
    /// Among what its errors count.
    pub fn place(&self) -> Place {
        match self.link {
            Link::Fastest => Place::Real,
            Link::Tcp => Place::Loopback,
        }
    }

    /// Worlds of a round; the first method's twice for each number of workers.
    pub fn worlds(&self) -> usize {
        (METHODS.len() + 2) * self.workers.split(',').count()
    }

    /// Seconds that it takes, about.
    pub fn estimate_s(&self, runs: usize) -> f64 {
        runs as f64 * self.round_s
    }

    fn arguments(&self, runs: usize) -> Vec<String> {
        let over = if self.link == Link::Tcp { OVER_TCP } else { "" };
        let methods: Vec<String> = METHODS.into_iter().chain([AUTO]).map(|method| format!("{method}{over}")).collect();
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

    /// Measures what the database does not have yet. Methods are called what they are called over any link.
    ///
    /// # Errors
    /// The program cannot be run, or refuses what it is asked.
    pub fn measure(&self, bench: Bench<'_>, runs: usize) -> Result<Vec<Cell>, Error> {
        let mut cells = bench.call(&self.name, &self.arguments(runs))?;
        for cell in &mut cells {
            cell.method = cell.method.trim_end_matches(OVER_TCP).to_owned();
        }
        Ok(cells)
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

    /// Models that are trained over one link and not over the other, or with fewer workers there, are named.
    #[test]
    fn what_is_left_out_is_not_measured() {
        let (all, left_out) = (models(false), left_out());
        let named = |name: &str| left_out.iter().any(|(case, why)| case == name && why.contains("to save time"));
        for real in all.iter().filter(|real| real.place() == Place::Real) {
            let over_tcp = format!("loopback-{}", real.model);
            match all.iter().find(|other| other.name == over_tcp) {
                None => assert!(named(&over_tcp), "{over_tcp}"),
                Some(other) => {
                    let missing =
                        real.workers.split(',').filter(|count| !other.workers.split(',').any(|it| it == *count));
                    missing.for_each(|count| assert!(named(&format!("{over_tcp}-{count}")), "{over_tcp}-{count}"));
                }
            }
        }
        assert!(left_out.iter().all(|(case, _)| all.iter().all(|real| real.name != *case)), "{left_out:?}");
        assert!(named("loopback-replay") && named("lab-trained"));
    }

    #[test]
    fn over_tcp_every_method_says_so() {
        let over_tcp: Vec<Real> = models(false).into_iter().filter(|real| real.place() == Place::Loopback).collect();
        assert_eq!(
            over_tcp.iter().map(|real| real.name.as_str()).collect::<Vec<_>>(),
            ["loopback-mlp", "loopback-transformer-lm"]
        );
        for real in over_tcp {
            let words = real.arguments(1);
            let place = words.iter().position(|word| word == "--methods").expect("it is said");
            let protocol = |method: &str| Registry::built_in().parse(method).expect("a strategy").to_string();
            let methods: Vec<String> = words[place + 1].split(';').map(protocol).collect();
            assert!(
                methods.len() == METHODS.len() + 1 && methods.iter().all(|method| method.ends_with("protocol=tcp"))
            );
            assert_eq!(real.worlds(), 3 * (METHODS.len() + 2));
        }
    }
}
