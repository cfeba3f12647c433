//! What is measured: a cell of the study, and the setting that it shares with those it is compared with.

use std::fmt;
use std::time::Duration;

use paceline_train::TuneOptions;
use paceline_tune::learner::Lesson;
use serde::{Deserialize, Serialize};

use super::placement::Placement;
use crate::report::aspects::aspect;

/// What is the same for all methods and worker counts of one chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The model's name.
    pub model: String,
    /// What the workers do between communications.
    pub compute: Compute,
    /// The emulated network, as `--emulate` says it; None: the links of the machine, or of a launcher's hosts.
    pub network: Option<String>,
    /// Workers on each emulated host; None: all share this one, or a launcher has placed them.
    pub workers_per_host: Option<usize>,
    /// Samples per worker and iteration.
    pub local_batch: usize,
    /// Computation and emulated links were slowed by this factor, and times divided by it.
    pub dilate: f64,
    /// What real computation trains on, as `--data` says it; None: what comes with the model.
    pub data: Option<String>,
    /// The hosts that do nothing but serve; where none is named, servers live where their method says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers_on: Vec<ServerHost>,
    /// TCP connections per pair of ranks.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tcp_streams: u32,
}

/// Of cells from before there was a choice.
fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

/// A host that does nothing but serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHost {
    /// Its number among the hosts, from 0.
    pub number: usize,
    /// What it is called.
    pub name: String,
}

/// What a worker does between communications.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compute {
    /// It trains the model here.
    Real,
    /// It sleeps through the steps of a profile.
    Replay {
        /// The built-in profile's name, or the file.
        profile: String,
        /// The fingerprint of its contents.
        fingerprint: String,
        /// Samples per worker and iteration that it was recorded with.
        recorded_batch: usize,
        /// The throughput of the device alone at the setting's local batch, by the profile: forward and backward in
        /// proportion to the batch, the optimiser as before.
        samples_per_s: f64,
    },
}

/// One world: what is measured as one number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What it shares with those that it is compared with.
    pub setting: Setting,
    /// As it was asked for.
    pub method: String,
    /// The method with every aspect.
    pub strategy: String,
    /// Workers.
    pub workers: usize,
    /// Shards that they meet. All of these serve, or, where the arch is open, some may; 0 without a parameter server.
    pub shards: usize,
    /// Each shard is a process on a host of its own, rather than a thread beside a worker.
    pub dedicated_servers: bool,
    /// Threads that compute in each worker.
    pub threads: usize,
    /// What it is there for.
    pub arm: Arm,
    /// Its all-reduces are tuned while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tuned: bool,
    /// How, where it is not as usual.
    #[serde(default, skip_serializing_if = "TuneSettings::are_usual")]
    pub tune_settings: TuneSettings,
    /// The policy that its all-reduces follow, as a file has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// What a tuner begins with, and what it may take before the iterations that count; none: the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TuneSettings {
    /// Seconds in which calls are rehearsed.
    pub rehearsal_s: Option<f64>,
    /// Iterations in which it learns.
    pub iterations: Option<usize>,
    /// It begins with nothing, whatever was learned on the cluster before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub afresh: bool,
}

impl TuneSettings {
    fn are_usual(&self) -> bool {
        *self == TuneSettings::default()
    }

    /// Those of a run.
    pub fn options(&self, lessons: Vec<Lesson>) -> TuneOptions {
        TuneOptions {
            lessons,
            rehearsal: self.rehearsal_s.map_or(TuneOptions::REHEARSAL, Duration::from_secs_f64),
            iterations: self.iterations.unwrap_or(TuneOptions::ITERATIONS_MAX),
            ..TuneOptions::default()
        }
    }
}

/// What a cell is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// To be compared.
    Method,
    /// A method of the group once more: how far do two measurements of the same thing lie apart? Planned of the first one,
    /// and measured of the one that is fastest in its first run.
    Again,
    /// One worker alone, which speedups refer to; it was not asked for by itself.
    Baseline,
}

impl Cell {
    /// Are its gradients compressed?
    pub fn compresses(&self) -> bool {
        aspect(&self.strategy, "compress").iter().any(|word| *word != "none")
    }

    /// Names the cell within its study: the same text, the same cell. Everything that matters stands in it.
    ///
    /// # Errors
    /// Never in practice: the fields have a JSON form.
    pub fn key(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl Setting {
    /// Was the computation only slept through?
    pub fn is_replayed(&self) -> bool {
        matches!(self.compute, Compute::Replay { .. })
    }

    /// Does real computation take the time of the cores that carry the emulated links?
    pub fn computes_on_its_links(&self) -> bool {
        self.network.is_some() && !self.is_replayed()
    }

    /// The profile that was slept through; None where computation was real.
    pub fn profile(&self) -> Option<&str> {
        match &self.compute {
            Compute::Replay { profile, .. } => Some(profile),
            Compute::Real => None,
        }
    }

    /// The words that must stand beside every number: what of it was not real.
    pub fn labels(&self) -> Vec<String> {
        let mut labels = Vec::new();
        if let Compute::Replay { profile, recorded_batch, .. } = &self.compute {
            labels.push(format!("replayed: {profile}"));
            if *recorded_batch != self.local_batch {
                labels.push(format!("scaled from a local batch of {recorded_batch}"));
            }
        }
        if let Some(network) = &self.network {
            labels.push(format!("emulated: {network}"));
        }
        if self.computes_on_its_links() {
            labels.push("computed on the cores that carry the links".to_owned());
        }
        if !self.servers_on.is_empty() {
            let names: Vec<&str> = self.servers_on.iter().map(|host| host.name.as_str()).collect();
            labels.push(format!("servers on {}", names.join(", ")));
        }
        if self.dilate != 1.0 {
            labels.push(format!("dilated {}×", self.dilate));
        }
        labels
    }

    /// As a heading: model, batch, network; with the hosts on which a launcher had placed the ranks, if one had.
    pub fn title(&self, placement: Option<&Placement>) -> String {
        let links =
            || placement.map_or_else(|| "this machine's links".to_owned(), |on| format!("links of {}", on.place()));
        let network = self.network.clone().unwrap_or_else(links);
        let per_host = self.workers_per_host.map(|workers| format!(", {workers} workers per host")).unwrap_or_default();
        let streams = match self.tcp_streams {
            1 => String::new(),
            streams => format!(", {streams} TCP connections per pair of ranks"),
        };
        format!("{}, local batch {}, {network}{per_host}{streams}", self.model, self.local_batch)
    }

    /// The throughput of one device alone, if the profile says it.
    pub fn single_device(&self) -> Option<f64> {
        match &self.compute {
            Compute::Replay { samples_per_s, .. } => Some(*samples_per_s),
            Compute::Real => None,
        }
    }
}

/// As a heading of what was measured on this machine.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title(None))
    }
}

/// As a line of progress.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arm = match self.arm {
            Arm::Method => "",
            Arm::Again => " (A/A)",
            Arm::Baseline => " (baseline)",
        };
        let s = if self.workers == 1 { "" } else { "s" };
        write!(f, "{}, {}{arm}, {} worker{s}", self.setting.model, self.method, self.workers)?;
        self.setting.network.as_ref().map_or(Ok(()), |network| write!(f, ", {network}"))
    }
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A setting that nothing was emulated in.
    pub fn setting(model: &str) -> Setting {
        Setting {
            model: model.to_owned(),
            compute: Compute::Real,
            network: None,
            workers_per_host: None,
            local_batch: 32,
            dilate: 1.0,
            data: None,
            servers_on: Vec::new(),
            tcp_streams: 1,
        }
    }

    /// A replayed one over an emulated network.
    pub fn replayed(model: &str, network: &str, samples_per_s: f64) -> Setting {
        let compute = Compute::Replay {
            profile: "rtx2080ti".to_owned(),
            fingerprint: "0123456789abcdef".to_owned(),
            recorded_batch: 64,
            samples_per_s,
        };
        Setting {
            compute,
            network: Some(network.to_owned()),
            workers_per_host: Some(4),
            local_batch: 64,
            ..setting(model)
        }
    }

    /// A cell to be compared.
    pub fn cell(setting: &Setting, method: &str, workers: usize) -> Cell {
        let shards = if method.ends_with("-ps") { workers } else { 0 };
        let schedule = if method.starts_with("bsp-") { "none" } else { "wfbp" };
        Cell {
            setting: setting.clone(),
            method: method.to_owned(),
            strategy: format!("strategy of {method},schedule={schedule}"),
            workers,
            shards,
            dedicated_servers: false,
            threads: 1,
            arm: Arm::Method,
            tuned: false,
            tune_settings: TuneSettings::default(),
            policy: None,
        }
    }
}
