//! What `bench` is told.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use paceline_tune::Policy;

use crate::arguments::{at_least_one, seconds};
use crate::security::SecurityArguments;

/// What `bench` is told. Without arguments: two panels, this machine and a cluster in a box.
#[derive(Args, Clone, Debug, Default)]
pub struct BenchArguments {
    /// The models: cnn, mlp, resnet50, bert-base, … [default: two panels, mlp computed and resnet50 replayed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub models: Vec<String>,

    /// The methods: presets or strategies, separated by commas (or by semicolons, where a strategy begins with an
    /// aspect) [default: the seven methods of the study, and ddp]
    #[arg(long, value_name = "METHOD,…")]
    pub methods: Option<String>,

    /// Numbers of workers [default: 1,2,4, and 8 in the cluster in a box, which keeps them; all hosts' workers with --hosts;
    /// under a launcher: all of its ranks]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = at_least_one)]
    pub workers: Vec<usize>,

    /// Emulated hosts and workers on each of them, such as 2x4; workers fill hosts in order
    #[arg(long, value_name = "HOSTSxWORKERS", requires = "emulate")]
    pub hosts: Option<Hosts>,

    /// Shape the links in software: 10GbE, 100GbE, 100GbIB, or alpha=SECONDS,beta=SECONDS_PER_BYTE; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub emulate: Vec<String>,

    /// TCP connections per pair of ranks, where TCP carries what they say; with --tune the tuner chooses over how many of them a call
    /// is spread [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tcp_streams: Option<u32>,

    /// What workers do between communications: real (train the model here), or replay[:PROFILE] (sleep through a
    /// recorded iteration: of the built-in profile rtx2080ti, of one scaled to a GPU such as resnet50@v100, or of a file by
    /// `paceline profile`) [default: real]
    #[arg(long, value_name = "real|replay[:PROFILE]")]
    pub compute: Option<ComputeChoice>,

    /// Samples per worker and iteration; several make a chart each [default: the profile's, or 32]
    #[arg(long, value_name = "M,…", value_delimiter = ',', value_parser = at_least_one)]
    pub local_batch: Vec<usize>,

    /// What real computation trains on: sample, synthetic, fashion-mnist, images:DIR, idx:DIR or text:FILE [default: what
    /// comes with the model]
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<String>,

    /// Slow replayed computation and emulated links alike by this factor, and divide times by it [default: as far as this
    /// machine's cores need to keep up with a replay on an emulated network; 1 for all else]
    #[arg(long, value_name = "K")]
    pub dilate: Option<f64>,

    /// The study's protocol: 10 warm-up and 100 measured iterations, 5 runs
    #[arg(long, conflicts_with_all = ["budget", "iterations", "warmup", "runs"])]
    pub full: bool,

    /// About how long to take; it decides how many iterations are measured [default: 190; more for many cells]
    #[arg(long, value_name = "SECONDS", conflicts_with = "iterations")]
    pub budget: Option<f64>,

    /// Measured iterations of each run, however long they take
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,

    /// Iterations before the measured ones of each run
    #[arg(long, value_name = "N", requires = "iterations", value_parser = at_least_one)]
    pub warmup: Option<usize>,

    /// Runs of each cell, interleaved with those of the others
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub runs: Option<usize>,

    /// Measure all-to-all methods once more with their all-reduces tuned, as METHOD+tune; what is learned is kept in --database
    /// for later runs (docs/tuning.md). PACELINE_TUNE=off in the environment switches it off
    #[arg(long)]
    pub tune: bool,

    /// Before the first iteration of a run that is tuned, make each kind of all-reduce for its time only, in at most so many seconds for
    /// all kinds together; 0: not at all. What an earlier run has told of is not rehearsed [default: 1]
    #[arg(long, value_name = "S", requires = "tune", value_parser = seconds)]
    pub tune_rehearsal: Option<f64>,

    /// Iterations that a run spends on learning at most, before those that count [default: 400]
    #[arg(long, value_name = "N", requires = "tune", value_parser = at_least_one)]
    pub tune_learning: Option<usize>,

    /// Each run that is tuned begins with nothing, whatever others have learned on this cluster: what learning brings, measured each
    /// time
    #[arg(long, requires = "tune")]
    pub tune_afresh: bool,

    /// Measure all-to-all methods once more with their all-reduces as this policy says, where it has a rule for them, as
    /// METHOD+policy (docs/tuning.md); a file that cannot be used changes nothing
    #[arg(long, value_name = "FILE.toml")]
    pub policy: Option<PathBuf>,

    /// What stands in that file, if it can be used.
    #[arg(skip)]
    pub followed: Option<Policy>,

    /// The hosts that do nothing but serve, by name or number from 0: of a launcher, or of --hosts
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub servers_on: Vec<String>,

    /// Where finished runs are kept
    #[arg(long, value_name = "FILE", default_value = "paceline-runs.db")]
    pub database: PathBuf,

    /// Go on with the last study of the same options in the database: what it has finished is not run again
    #[arg(long)]
    pub resume: bool,

    /// The report, one file for a browser
    #[arg(long, value_name = "FILE", default_value = "paceline-report.html")]
    pub report: PathBuf,

    /// Write the results to this file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the results to this file, a line for each method and number of workers (docs/json.md)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write one iteration of each method to this file, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub security: SecurityArguments,
}

/// `2x4`: hosts and workers on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Hosts.
    pub hosts: usize,
    /// Workers on each.
    pub workers: usize,
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('x').and_then(|(hosts, workers)| {
            let positive = |text: &str| text.parse().ok().filter(|count: &usize| *count > 0);
            Some((positive(hosts)?, positive(workers)?))
        });
        let (hosts, workers) = numbers.ok_or("give hosts and workers on each, such as 2x4")?;
        Ok(Hosts { hosts, workers })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.hosts, self.workers)
    }
}

/// What `--compute` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComputeChoice {
    /// Train here.
    Real,
    /// Sleep through the model's built-in profile, or this one.
    Replay(Option<String>),
}

impl FromStr for ComputeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "real" => Ok(ComputeChoice::Real),
            None if text == "replay" => Ok(ComputeChoice::Replay(None)),
            Some(("replay", profile)) if !profile.is_empty() => Ok(ComputeChoice::Replay(Some(profile.to_owned()))),
            _ => Err("give real, replay, or replay:PROFILE".to_owned()),
        }
    }
}

/// The texts of a list of methods. Commas separate them, but a piece with `=` is an aspect of the method before it;
/// semicolons separate whatever stands between them.
pub fn split_methods(text: &str) -> Vec<String> {
    let mut methods: Vec<String> = Vec::new();
    for part in text.split(';') {
        let mut fresh = true;
        for piece in part.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
            match methods.last_mut().filter(|_| piece.contains('=') && !fresh) {
                Some(method) => {
                    method.push(',');
                    method.push_str(piece);
                }
                None => methods.push(piece.to_owned()),
            }
            fresh = false;
        }
    }
    methods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_separated_as_people_write_them() {
        assert_eq!(split_methods("wfbp-ps, mg-wfbp"), ["wfbp-ps", "mg-wfbp"]);
        assert_eq!(split_methods("ddp,arch=a2a:ring,bsp-ps"), ["ddp,arch=a2a:ring", "bsp-ps"]);
        assert_eq!(split_methods("fusion:25MiB,ddp"), ["fusion:25MiB", "ddp"]);
        let two = ["schedule=fusion:4MiB,arch=a2a:ring", "schedule=wfbp"];
        assert_eq!(split_methods("schedule=fusion:4MiB,arch=a2a:ring;schedule=wfbp"), two);
        assert!(split_methods(" , ;").is_empty());
    }

    #[test]
    fn hosts_and_computation_are_read() {
        assert_eq!("2x4".parse(), Ok(Hosts { hosts: 2, workers: 4 }));
        for wrong in ["", "2", "2x", "0x4", "2x0", "2x4x1", "-1x2"] {
            assert!(wrong.parse::<Hosts>().is_err(), "{wrong}");
        }
        assert_eq!("real".parse(), Ok(ComputeChoice::Real));
        assert_eq!("replay".parse(), Ok(ComputeChoice::Replay(None)));
        assert_eq!("replay:my.json".parse(), Ok(ComputeChoice::Replay(Some("my.json".to_owned()))));
        for wrong in ["", "replay:", "real:x", "sleep"] {
            assert!(wrong.parse::<ComputeChoice>().is_err(), "{wrong}");
        }
    }
}
