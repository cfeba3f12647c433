//! Worlds in the lab: ours, started anew for each run, as a user starts them; and PyTorch's, which stays, because torch
//! takes seconds to start. Everybody's ranks sleep while others are measured.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use paceline_cli::worlds::{Arm, Cell, Compute, RANK_COMMAND, RECORDED_ITERATIONS, Setting, WorldSpec, result_text};
use paceline_strategy::Registry;
use serde::{Deserialize, Serialize};
use xtask::lab::{INTERFACE, Lab};

use super::measured::Measured;
use super::ranks::{Children, Ranks, last_lines};
use super::workload::Workload;
use crate::compare::Error;
use crate::compare::statistics::median;

/// A world that takes so many times what was expected, and so much longer, hangs.
const PATIENCE: f64 = 5.0;
const PATIENCE_MIN: Duration = Duration::from_secs(90);
/// Importing torch on a busy machine takes long.
const TORCH_START_MAX: Duration = Duration::from_secs(180);

/// How much one run measures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Effort {
    /// Iterations before the measured ones.
    pub warm_up: usize,
    /// Measured ones.
    pub iterations: usize,
}

impl Effort {
    /// How methods are measured in so many rounds, for people.
    pub fn protocol(&self, rounds: usize) -> String {
        format!(
            "Four hosts of one worker with NICs of 1 Gbit/s; computation is slept through, communication is real; \
             {} + {} iterations, {rounds} rounds in turns; medians over rounds of medians over iterations, the slowest worker.",
            self.warm_up, self.iterations
        )
    }

    /// About what starting a world of ours, measuring its network and ending it takes, in seconds.
    pub const START_S: f64 = 4.0;

    /// Seconds of a run of ours whose iterations take so long; the recorded one and its neighbours follow.
    pub fn seconds(&self, iteration_s: f64) -> f64 {
        (self.warm_up + self.iterations + RECORDED_ITERATIONS) as f64 * iteration_s
    }
}

/// A lab, and what runs in it.
pub struct Worlds {
    lab: Lab,
    per_host: usize,
    program: PathBuf,
    scratch: PathBuf,
}

impl Worlds {
    /// In this lab, with this program; `scratch` takes what ranks say.
    pub fn new(lab: Lab, program: PathBuf, scratch: PathBuf) -> Worlds {
        Worlds { lab, per_host: 1, program, scratch }
    }

    /// The same with so many workers on every host, of which DDP knows nothing.
    pub fn with_workers_per_host(self, per_host: usize) -> Worlds {
        Worlds { per_host, ..self }
    }

    /// Hosts of the lab.
    pub fn hosts(&self) -> usize {
        self.lab.hosts()
    }

    /// Workers of a world.
    pub fn workers(&self) -> usize {
        self.hosts() * self.per_host
    }

    /// One run of a method of ours.
    ///
    /// # Errors
    /// A rank failed.
    pub fn ours(&self, method: &str, workload: &Workload, effort: Effort) -> Result<Measured, Error> {
        let Effort { warm_up, iterations } = effort;
        let length = paceline_cli::worlds::Effort { warm_up, at_least: iterations, at_most: iterations, seconds: None };
        let cell = cell(method, workload, self.workers(), self.hosts())?;
        let specification = WorldSpec { cell, effort: length, timeline: true, lessons: Vec::new() };
        let environment = specification.environment().map_err(|error| format!("{method}: {error}"))?;
        let command: [OsString; 2] = [self.program.clone().into(), RANK_COMMAND.into()];
        let mut ranks = self.lab.ranks(self.per_host, &command);
        ranks.iter_mut().for_each(|rank| _ = rank.envs(environment.iter().map(|(name, value)| (name, value))));
        let expected = effort.seconds(workload.compute_s() + 2.0 * workload.line_s);
        let limit = Duration::from_secs_f64(PATIENCE * expected).max(PATIENCE_MIN);
        let said = self.run(method, ranks, limit)?;
        let result = result_text(&said).map_err(|why| format!("{method}: {why}: {}", said.trim()))?;
        Measured::read(result).map_err(|error| format!("{method}: {error}").into())
    }

    /// Runs ranks to their end; what rank 0 wrote to its standard output.
    fn run(&self, name: &str, commands: Vec<Command>, limit: Duration) -> Result<String, Error> {
        let mut said = String::new();
        let mut hear = |line: &str, _: &mut dyn Write| {
            said.push_str(line);
            said.push('\n');
            Ok(())
        };
        let ended = Ranks::start(commands, true, &self.scratch).and_then(|ranks| ranks.end(limit, &mut hear));
        ended.map_err(|error| format!("{name}: {error}"))?;
        Ok(said)
    }

    /// Starts PyTorch's ranks.
    ///
    /// # Errors
    /// This Python has no torch, or its ranks do not find each other.
    pub fn ddp(&self, python: &Path, root: &Path) -> Result<Ddp, Error> {
        let failed = |error: std::io::Error| Error::from(format!("DDP: {error}"));
        let command: [OsString; 2] = [python.into(), root.join("xtask/compare/ddp.py").into()];
        let mut ranks = Children(Vec::new());
        let complaints = self.scratch.join("ddp.err");
        let stderr = File::create(&complaints).map_err(failed)?;
        for mut rank in self.lab.ranks(1, &command) {
            rank.env("GLOO_SOCKET_IFNAME", INTERFACE).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
            ranks.0.push(rank.stderr(stderr.try_clone().map_err(failed)?).spawn().map_err(failed)?);
        }
        let commands = ranks.0.iter_mut().filter_map(|rank| rank.stdin.take()).collect();
        let (sender, answers) = mpsc::channel();
        if let Some(stdout) = ranks.0.first_mut().and_then(|rank| rank.stdout.take()) {
            // Ends with the rank's output.
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.filter(|line| line.starts_with('{')).try_for_each(|line| sender.send(line))
            });
        }
        let mut ddp = Ddp { commands, answers, complaints, version: String::new(), _ranks: ranks };
        let greeting: serde_json::Value = ddp.answer(TORCH_START_MAX)?;
        ddp.version = format!("PyTorch {} DDP on Gloo", greeting["version"].as_str().unwrap_or("?"));
        Ok(ddp)
    }
}

/// A method on workers of so many hosts, with its servers beside them. Where the arch is open each host has a shard, of which
/// as many serve as are predicted to be the fastest.
pub fn cell(method: &str, workload: &Workload, workers: usize, hosts: usize) -> Result<Cell, Error> {
    let strategy = Registry::built_in().parse(method).map_err(|error| format!("{method}: {error}"))?;
    let profile = &workload.profile;
    let compute = Compute::Replay {
        profile: workload.path.display().to_string(),
        fingerprint: workload.fingerprint.clone(),
        recorded_batch: profile.local_batch,
        samples_per_s: profile.local_batch as f64 / workload.compute_s(),
    };
    let setting = Setting {
        model: profile.model.clone(),
        compute,
        network: None,
        workers_per_host: None,
        local_batch: profile.local_batch,
        dilate: 1.0,
        data: None,
        servers_on: Vec::new(),
        tcp_streams: 1,
    };
    let open = if strategy.arch_is_open() && workers > 1 { hosts } else { 0 };
    Ok(Cell {
        setting,
        method: method.to_owned(),
        strategy: strategy.to_string(),
        workers,
        shards: strategy.servers(workers, hosts).map_or(open, |servers| servers.shards),
        dedicated_servers: false,
        threads: 1,
        arm: Arm::Method,
        tuned: false,
        tune_settings: Default::default(),
        policy: None,
    })
}

/// PyTorch's DDP, in the lab.
pub struct Ddp {
    /// One per rank. Closed, they let the ranks go.
    commands: Vec<ChildStdin>,
    answers: Receiver<String>,
    complaints: PathBuf,
    /// As it calls itself.
    pub version: String,
    _ranks: Children,
}

/// One run of PyTorch's DDP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DdpMeasured {
    /// Seconds of each counted iteration, from one end of the slowest rank to the next.
    pub iteration_s: Vec<f64>,
    /// Seconds per iteration after backward's computation until all gradients were there.
    pub exposed_communication_s: f64,
    /// Seconds of processors that a rank used in an iteration.
    pub processor_s: f64,
    /// Of its buckets, in the order in which they become ready.
    pub bucket_bytes: Vec<u64>,
    /// Wrong elements of gradients: must be 0.
    pub wrong: u64,
}

impl Ddp {
    /// One run.
    ///
    /// # Errors
    /// A rank failed, or a gradient was wrong.
    pub fn measure(&mut self, workload: &Workload, effort: Effort) -> Result<DdpMeasured, Error> {
        let line = format!("{} {} {}\n", workload.path.display(), effort.warm_up, effort.iterations);
        for rank in &mut self.commands {
            rank.write_all(line.as_bytes()).map_err(|error| format!("DDP: {error}"))?;
        }
        let expected = (workload.compute_s() + 2.0 * workload.line_s) * (effort.warm_up + effort.iterations) as f64;
        let measured: DdpMeasured = self.answer(Duration::from_secs_f64(PATIENCE * expected).max(PATIENCE_MIN))?;
        match measured.wrong {
            0 => Ok(measured),
            wrong => Err(format!("DDP: {wrong} elements of gradients were wrong").into()),
        }
    }

    fn answer<T: serde::de::DeserializeOwned>(&self, limit: Duration) -> Result<T, Error> {
        let failed = |what: String| Error::from(format!("DDP: {what}: {}", last_lines(&self.complaints)));
        let answer = self.answers.recv_timeout(limit).map_err(|error| failed(format!("no answer: {error}")))?;
        serde_json::from_str(&answer).map_err(|error| failed(format!("{answer}: {error}")))
    }
}

impl DdpMeasured {
    /// The median over the iterations.
    pub fn median_s(&self) -> f64 {
        median(&self.iteration_s)
    }
}
