//! Worlds of `paceline perf --tune`: on this host, or in the lab, whose rate changes when rank 0 asks for that.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use xtask::lab::{Lab, LabOptions, Rate, Shaper};

use super::super::ranks::Ranks;
use crate::compare::Error;

/// What carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// Hosts with NICs of 1 Gbit/s.
    Lab,
}

/// One command line and where it runs.
#[derive(Clone, Debug)]
pub struct Case {
    /// For `--case` and for people.
    pub name: String,
    pub links: Links,
    pub ranks: usize,
    /// On each host of the lab.
    pub per_host: usize,
    /// What `perf all-reduce` is told besides.
    pub arguments: Vec<String>,
    /// About what it takes.
    pub seconds: f64,
}

/// Connections per pair of ranks over TCP: so that lanes are a choice.
const TCP_STREAMS: usize = 4;
/// What the lab's NICs have when rank 0 says `network: slow`.
const SLOW: &str = "200mbit";
/// A world that takes so many times what was expected, and so much longer, hangs.
pub const PATIENCE: f64 = 5.0;
pub const PATIENCE_MIN: Duration = Duration::from_secs(120);

impl Links {
    pub const ALL: [Links; 3] = [Links::Shm, Links::Tcp, Links::Lab];

    /// In names and tables.
    pub fn name(self) -> &'static str {
        match self {
            Links::Shm => "shm",
            Links::Tcp => "tcp",
            Links::Lab => "lab",
        }
    }

    /// About what an all-reduce takes, in seconds, with so many cores: for estimates of time only.
    pub fn call_s(self, ranks: usize, bytes: usize, cores: usize) -> f64 {
        let (ranks, bytes, cores) = (ranks as f64, bytes as f64, cores as f64);
        // Every rank's bytes pass a core about four times; a call of few bytes takes a change of the running rank or two, where ranks
        // share cores.
        let busy_s = |bytes_per_s: f64| 4.0 * ranks * bytes / (bytes_per_s * cores);
        let turns = if ranks > cores { ranks } else { 0.1 * ranks };
        match self {
            Links::Shm => busy_s(if bytes < 8e6 { 2e10 } else { 4e9 }) + 1e-5 * turns,
            Links::Tcp => busy_s(if bytes < 8e6 { 1e10 } else { 2e9 }) + 2e-5 * turns,
            Links::Lab => (2.0 * (ranks - 1.0) / ranks * bytes / 116e6).max(busy_s(1e9)) + 1e-4 * ranks,
        }
    }
}

impl Case {
    /// Runs it once; what stands about tuning in the file that it writes.
    ///
    /// # Errors
    /// A rank failed, an element was wrong, or it takes too long.
    pub fn run(&self, program: &Path, scratch: &Path, seed: usize) -> Result<Value, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::from(format!("{}: {error}", self.name));
        let json = scratch.join("tuning.json");
        // The measurement before must not be taken for this one's.
        if json.exists() {
            fs::remove_file(&json).map_err(|error| failed(&error))?;
        }
        let mut words: Vec<OsString> = ["perf", "all-reduce", "--json"].map(OsString::from).into();
        words.push(json.clone().into_os_string());
        words.extend(self.arguments.iter().map(OsString::from));
        words.extend(["--tune-seed".to_owned(), seed.to_string()].map(OsString::from));
        if self.links != Links::Shm {
            words.extend(["--tcp-streams".to_owned(), TCP_STREAMS.to_string()].map(OsString::from));
        }
        let lab = (self.links == Links::Lab).then(|| self.lab()).transpose()?;
        let commands = match &lab {
            Some(lab) => lab.ranks(self.per_host, &[vec![OsString::from(program)], words].concat()),
            None => {
                let mut perf = Command::new(program);
                perf.args(&words).args(["--ranks", &self.ranks.to_string(), "--transport", self.links.name()]);
                vec![perf]
            }
        };
        let limit = Duration::from_secs_f64(PATIENCE * self.seconds).max(PATIENCE_MIN);
        Ranks::start(commands, lab.is_some(), scratch)
            .and_then(|ranks| ranks.end(limit, &mut |line, answer| hear(line, answer, lab.as_ref())))
            .map_err(|error| failed(&error))?;
        let text = fs::read_to_string(&json).map_err(|error| failed(&error))?;
        let report: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        match report["tuned"]["wrong"].as_u64() {
            Some(0) => Ok(report["tuned"].clone()),
            Some(wrong) => Err(failed(&format!("{wrong} elements were wrong"))),
            None => Err(failed(&"nothing was tuned")),
        }
    }

    fn lab(&self) -> Result<Lab, Error> {
        let hosts = self.ranks / self.per_host.max(1);
        let lab = Lab::build(&LabOptions { hosts, shaper: Shaper::new(Rate::GIGABIT) });
        lab.map_err(|error| format!("{}: {error}", self.name).into())
    }
}

/// `network: slow` and `network: usual` are wishes; all else is a table.
fn hear(line: &str, answer: &mut dyn Write, lab: Option<&Lab>) -> Result<(), Error> {
    let (Some(network), Some(lab)) = (line.strip_prefix("network: "), lab) else { return Ok(()) };
    let rate = if network == "slow" { SLOW.parse::<Rate>()? } else { Rate::GIGABIT };
    lab.set_shaper(Shaper::new(rate)).map_err(|error| error.to_string())?;
    writeln!(answer).map_err(|error| format!("rank 0 does not listen: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_calls_on_slower_links_take_longer() {
        for ranks in [2, 8] {
            let [shm, tcp, lab] = Links::ALL.map(|links| links.call_s(ranks, 16 << 20, 2));
            assert!(shm < tcp && tcp < lab, "{shm} {tcp} {lab}");
            assert!(Links::Lab.call_s(ranks, 64 << 20, 2) > 3.0 * lab);
        }
    }
}
