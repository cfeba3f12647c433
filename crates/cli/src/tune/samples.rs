//! What calls of NCCL's took in a job, as its ranks have written it down, a sample a line (docs/json.md).

mod handed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use paceline_plan::Fnv1a;
use paceline_tune::environment::Costs;
use paceline_tune::nccl::{Algorithm, Communicator, Function, NcclError, Protocol};
use paceline_tune::{Parallelism, reward};
use serde::Deserialize;

use crate::failure::Failure;
use handed::Handed;

pub use handed::Asked;

/// The form of lines that is read here.
const SCHEMA: u64 = 1;

/// The last version of a policy that samples may have: those of the rounds to come need room, in a file of TOML, too.
const POLICY_MAX: u64 = 1 << 62;

/// Calls that were made under one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The version of that policy; 0: there was none.
    pub policy: u64,
    /// Seconds of an iteration, on the rank on which it took the longest; None: nobody says.
    pub iteration_s: Option<f64>,
    /// Those of which all ranks have a time.
    pub calls: Vec<Measured>,
    /// What NCCL's own model says of them, as far as it was handed over.
    pub costs: BTreeMap<Asked, Costs>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What it did.
    pub function: Function,
    /// As NCCL's tuners count them.
    pub bytes: u64,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its hosts.
    pub hosts: u32,
    /// Algorithm and protocol that ran; None where NCCL's names are not known.
    pub way: Option<(Algorithm, Protocol)>,
    /// Channels that it ran with.
    pub channels: u32,
    /// What the program says of it.
    pub label: Label,
    /// Of the rank that came last: the least of all ranks.
    pub seconds: f64,
}

/// What a call is for, which NCCL does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Who calls.
    pub parallelism: Parallelism,
    /// Is it one of several in an iteration, under way while others are computed or sent?
    pub is_pipelined_layer: bool,
    /// Does it carry several tensors, fused?
    pub is_fused_call: bool,
    /// Does the job exchange gradients through parameter servers, besides what NCCL does?
    pub is_ps_deployment: bool,
}

/// Where nobody says anything: most calls are one of several in an iteration, of several tensors, in a job without servers.
impl Default for Label {
    fn default() -> Label {
        Label { parallelism: Parallelism::Data, is_pipelined_layer: true, is_fused_call: true, is_ps_deployment: false }
    }
}

/// What is not learned from, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Calls of which a rank has no time: its sample was lost, or it took no time that a clock could tell.
    pub calls: u64,
    /// Calls of communicators of which, in that round, a rank has no sample at all.
    pub of_absent: u64,
    /// The first of these, in words.
    pub absent: Option<String>,
    /// Lines that whoever wrote them did not finish.
    pub cut_lines: u64,
    /// Calls that ranks have recorded and lost, as they say themselves: each rank counts its own.
    pub lost: u64,
}

/// What files of samples say.
#[derive(Debug, Default)]
pub struct Recording {
    files: Vec<Source>,
    /// By round, the policy, and who said so first.
    rounds: BTreeMap<u64, (u64, Spot)>,
    /// By rank, those with the same key: the file, and seconds.
    calls: BTreeMap<CallKey, BTreeMap<u32, Vec<(usize, f64)>>>,
    /// What the first rank that was read says of each. It is for beliefs only, so nothing breaks where another says otherwise.
    labels: BTreeMap<CallKey, Label>,
    /// By round, seconds of an iteration: the most that a rank says.
    iteration_s: BTreeMap<u64, f64>,
    /// What NCCL's own model says.
    handed: Handed,
    /// By round and communicator, the ranks of which there are samples, and where the first of them stands.
    members: BTreeMap<(u64, CommunicatorKey), (BTreeSet<u32>, Spot)>,
    /// By file and round, the calls that the rank says it has lost.
    lost: BTreeMap<(usize, u64), u64>,
    cut_lines: u64,
}

/// A file.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// Ranks and hosts of the largest communicator that it knows, and its rank there.
    largest: (u32, u32, u32),
}

/// A file, by its place in the list, and a line, from 1 on.
#[derive(Clone, Copy, Debug)]
struct Spot {
    file: usize,
    line: usize,
}

/// Those of one parent may share the number, and then are one here: it is known that they are several, and not who is in which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CommunicatorKey {
    number: u64,
    ranks: u32,
    hosts: u32,
}

/// A call, as all of its ranks see it, or several that are not told apart: replays of a CUDA graph, or calls of communicators of one
/// parent. Rounds stand first, so that those that come later change nothing about the first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallKey {
    round: u64,
    communicator: CommunicatorKey,
    function: Function,
    sequence: u64,
    bytes: u64,
    way: Option<(Algorithm, Protocol)>,
    channels: u32,
}

/// Calls of a kind in a round: round, communicator, function, ⌊log2 bytes⌋.
type Kind = (u64, CommunicatorKey, Function, u32);

/// A line. Fields that are not listed are nobody's business here.
#[derive(Deserialize)]
struct Line {
    schema: u64,
    round: u64,
    policy: u64,
    communicator: u64,
    sequence: u64,
    rank: u32,
    ranks: u32,
    hosts: u32,
    function: String,
    algorithm: Option<String>,
    protocol: Option<String>,
    bytes: u64,
    channels: u32,
    longest_ns: i64,
    #[serde(default)]
    lost: u64,
    iteration_s: Option<f64>,
    parallelism: Option<Parallelism>,
    pipelined: Option<bool>,
    fused: Option<bool>,
    ps: Option<bool>,
    costs_bytes: Option<u64>,
    costs_us: Option<Vec<Vec<Option<f64>>>>,
}

impl Recording {
    /// Reads files: one of each rank, or several.
    ///
    /// # Errors
    /// One cannot be read, or has a line that is no sample; with file and line.
    pub fn read(paths: &[PathBuf]) -> Result<Recording, Failure> {
        let mut recording = Recording::default();
        for path in paths {
            let file = File::open(path).map_err(|error| {
                Failure::usage(format!("cannot read the samples in {}", path.display())).cause(error)
            })?;
            recording.add(path, BufReader::new(file))?;
        }
        Ok(recording)
    }

    /// Adds the lines of a file. The last one may be cut, where whoever wrote it was ended: that is counted, and no more.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn add(&mut self, path: &Path, mut lines: impl BufRead) -> Result<(), Failure> {
        let file = self.files.len();
        self.files.push(Source { path: path.to_owned(), largest: (0, 0, 0) });
        let (mut last_round, mut bytes) = (0, Vec::new());
        for line in 1.. {
            let spot = Spot { file, line };
            bytes.clear();
            if lines.read_until(b'\n', &mut bytes).map_err(|error| self.wrong(spot, error))? == 0 {
                break;
            }
            if is_cut(&bytes) {
                self.cut_lines += 1;
                continue;
            }
            let text = std::str::from_utf8(&bytes).map_err(|error| self.wrong(spot, error))?.trim_end();
            if !text.is_empty() {
                let added = self.add_line(text, spot, &mut last_round);
                added.map_err(|reason| self.wrong(spot, reason))?;
            }
        }
        Ok(())
    }

    fn add_line(&mut self, text: &str, spot: Spot, last_round: &mut u64) -> Result<(), String> {
        let line: Line = serde_json::from_str(text).map_err(|error| {
            // It knows of one line, which is not that of the file.
            let words = error.to_string();
            let reason = words.split(" at line ").next().unwrap_or_default();
            format!("this is no sample: {reason} (column {})", error.column())
        })?;
        line.check()?;
        if line.round < *last_round {
            let (now, before) = (line.round, *last_round);
            return Err(format!("round {now} stands after round {before}: each job writes to files of its own"));
        }
        *last_round = line.round;
        let (policy, said) = *self.rounds.entry(line.round).or_insert((line.policy, spot));
        if policy != line.policy {
            return Err(format!(
                "in round {} the policy was {} here and {policy} in {}: all ranks change theirs together",
                line.round,
                line.policy,
                self.place(said)
            ));
        }
        let communicator = CommunicatorKey { number: line.communicator, ranks: line.ranks, hosts: line.hosts };
        let members = self.members.entry((line.round, communicator)).or_insert_with(|| (BTreeSet::new(), spot));
        members.0.insert(line.rank);
        if let Some(source) = self.files.get_mut(spot.file)
            && (line.ranks, line.hosts) > (source.largest.0, source.largest.1)
        {
            source.largest = (line.ranks, line.hosts, line.rank);
        }
        let lost = self.lost.entry((spot.file, line.round)).or_default();
        *lost = line.lost.max(*lost);
        if let Some(seconds) = line.iteration_s {
            let longest = self.iteration_s.entry(line.round).or_insert(seconds);
            *longest = longest.max(seconds);
        }
        let key = CallKey {
            round: line.round,
            communicator,
            function: named(&line.function)?,
            sequence: line.sequence,
            bytes: line.bytes,
            way: line.way()?,
            channels: line.channels,
        };
        self.labels.entry(key).or_insert(line.label());
        self.handed.add(line.round, key.asked(), (line.costs_bytes, line.costs_us))?;
        let of_rank = self.calls.entry(key).or_default().entry(line.rank).or_default();
        of_rank.push((spot.file, 1e-9 * line.longest_ns as f64));
        Ok(())
    }

    /// The rounds, in their order, and what is left out. Of several calls of a kind in a round the first one does not count: a way
    /// that is new costs more at its first use.
    ///
    /// # Errors
    /// There is nothing, or no call of which all ranks have a sample: files are missing.
    pub fn rounds(&self) -> Result<(Vec<Round>, LeftOut), Failure> {
        self.check_complete()?;
        let mut rounds: BTreeMap<u64, Round> = BTreeMap::new();
        for (&number, &(policy, _)) in &self.rounds {
            let iteration_s = self.iteration_s.get(&number).copied();
            rounds.insert(number, Round { policy, iteration_s, calls: Vec::new(), costs: self.handed.of(number) });
        }
        let mut calls: Vec<(&CallKey, Vec<f64>)> = Vec::new();
        for (key, of_ranks) in &self.calls {
            calls.extend(self.told_apart(of_ranks).into_iter().map(|seconds| (key, seconds)));
        }
        let mut of_kind: BTreeMap<Kind, usize> = BTreeMap::new();
        calls.iter().for_each(|(key, _)| *of_kind.entry(key.kind()).or_default() += 1);
        let absent = self.incomplete().next().map(|(spot, reason)| format!("{}: {reason}", self.place(spot)));
        let mut left_out =
            LeftOut { absent, cut_lines: self.cut_lines, lost: self.lost.values().sum(), ..LeftOut::default() };
        let mut begun = BTreeSet::new();
        for (key, seconds) in calls {
            let CommunicatorKey { ranks, hosts, .. } = key.communicator;
            let members = self.members.get(&(key.round, key.communicator));
            if members.is_none_or(|(members, _)| members.len() < ranks as usize) {
                left_out.of_absent += 1;
                continue;
            }
            if begun.insert(key.kind()) && of_kind.get(&key.kind()).is_some_and(|calls| *calls > 1) {
                continue;
            }
            let all = seconds.len() == ranks as usize;
            match (reward::call_s(&seconds).filter(|_| all), rounds.get_mut(&key.round)) {
                (Some(seconds), Some(round)) => {
                    let CallKey { function, bytes, way, channels, .. } = *key;
                    let label = self.labels.get(key).copied().unwrap_or_default();
                    round.calls.push(Measured { function, bytes, ranks, hosts, way, channels, label, seconds });
                }
                _ => left_out.calls += 1,
            }
        }
        Ok((rounds.into_values().collect(), left_out))
    }

    /// The seconds of each of several calls, of all ranks: the first of each rank belong together, and so on. Ranks that have the same
    /// number in communicators of one parent are in the order of their ranks in the largest communicator, and of their files else.
    fn told_apart(&self, of_ranks: &BTreeMap<u32, Vec<(usize, f64)>>) -> Vec<Vec<f64>> {
        let mut apart: Vec<Vec<f64>> = Vec::new();
        for of_rank in of_ranks.values() {
            let mut samples = of_rank.clone();
            samples.sort_by_key(|(file, _)| (self.files.get(*file).map(|source| source.largest.2), *file));
            apart.resize(apart.len().max(samples.len()), Vec::new());
            for (call, (_, seconds)) in apart.iter_mut().zip(samples) {
                call.push(seconds);
            }
        }
        apart
    }

    fn check_complete(&self) -> Result<(), Failure> {
        if self.members.is_empty() {
            return Err(Failure::usage("there are no samples in these files")
                .help("record calls before: docs/nccl.md says how, and what NCCL that takes"));
        }
        if self.calls.iter().any(|(key, of_ranks)| of_ranks.len() == key.communicator.ranks as usize) {
            return Ok(());
        }
        let failure = match self.incomplete().next() {
            Some((spot, reason)) => self.wrong(spot, reason),
            None => Failure::usage("there is no call of which all ranks have a sample"),
        };
        Err(failure.help("give the files of all ranks"))
    }

    /// Communicators of which a rank has no sample in a round: where the first of its samples stands, and who is missing.
    fn incomplete(&self) -> impl Iterator<Item = (Spot, String)> {
        self.members.iter().filter_map(|((round, key), (members, spot))| {
            let CommunicatorKey { number, ranks, .. } = key;
            let missing: Vec<String> =
                (0..*ranks).filter(|rank| !members.contains(rank)).take(4).map(|rank| rank.to_string()).collect();
            let more = if members.len() + missing.len() < *ranks as usize { ", …" } else { "" };
            let missing = (!missing.is_empty()).then(|| missing.join(", "))?;
            let reason =
                format!("communicator {number} has {ranks} ranks, and in round {round} there is no sample of rank ");
            Some((*spot, reason + &missing + more))
        })
    }

    /// Ranks and hosts of the largest communicator.
    pub fn largest(&self) -> Option<(u32, u32)> {
        self.members.keys().map(|(_, key)| (key.ranks, key.hosts)).max()
    }

    /// The same of the first round, which stays as more is written.
    pub fn largest_at_first(&self) -> Option<(u32, u32)> {
        let first = self.members.keys().next()?.0;
        let keys = self.members.keys().take_while(|(round, _)| *round == first);
        keys.map(|(_, key)| (key.ranks, key.hosts)).max()
    }

    /// Are all communicators parts of this one? `is_said`: as the options have it, and else the largest one.
    ///
    /// # Errors
    /// One has more ranks or hosts: what is believed of its calls would be of another cluster.
    pub fn check_within(&self, whole: &Communicator, is_said: bool) -> Result<(), Failure> {
        let Communicator { ranks, hosts, .. } = *whole;
        let beyond = |key: &CommunicatorKey| key.ranks > ranks || key.hosts > hosts;
        let found = self.members.iter().find(|((_, key), _)| beyond(key));
        let Some(((_, key), (_, spot))) = found else { return Ok(()) };
        let here = format!("the communicator has {} ranks on {} hosts", key.ranks, key.hosts);
        Err(if is_said {
            self.wrong(*spot, format!("{here}, and --ranks and --hosts say {ranks} on {hosts}"))
                .help("describe the communicator of all ranks of the job")
        } else {
            self.wrong(*spot, format!("{here}, and is no part of one of {ranks} on {hosts}"))
                .help("give --ranks and --hosts: those of the whole job")
        })
    }

    /// A number of the job that wrote this: that of its first call, which stays as more is written. 0 without samples.
    pub fn job(&self) -> u64 {
        let Some((key, of_ranks)) = self.calls.first_key_value() else { return 0 };
        let mut number = Fnv1a::default();
        number.number(key.communicator.number).number(key.sequence).number(key.bytes);
        for of_rank in of_ranks.values() {
            // In whatever order files are given.
            let mut all: Vec<u64> = of_rank.iter().map(|(_, seconds)| seconds.to_bits()).collect();
            all.sort_unstable();
            all.into_iter().for_each(|bits| _ = number.number(bits));
        }
        number.value()
    }

    fn wrong(&self, spot: Spot, reason: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("{}: {reason}", self.place(spot)))
    }

    fn place(&self, spot: Spot) -> String {
        let path = self.files.get(spot.file).map(|source| source.path.display().to_string()).unwrap_or_default();
        format!("{path}:{}", spot.line)
    }
}

/// The end of a file without the end of a line, and of what stands in it.
fn is_cut(line: &[u8]) -> bool {
    let text = line.trim_ascii_end();
    !line.ends_with(b"\n") && !text.is_empty() && !text.ends_with(b"}")
}

impl CallKey {
    fn kind(&self) -> Kind {
        (self.round, self.communicator, self.function, self.bytes.max(1).ilog2())
    }

    fn asked(&self) -> Asked {
        (self.function, self.bytes.max(1).ilog2(), self.communicator.ranks, self.communicator.hosts)
    }
}

impl Measured {
    /// As the plug-in is asked about it.
    pub fn asked(&self) -> Asked {
        (self.function, self.bytes.max(1).ilog2(), self.ranks, self.hosts)
    }
}

impl Line {
    /// Numbers that mean something.
    fn check(&self) -> Result<(), String> {
        let Line { schema, round, policy, rank, ranks, hosts, longest_ns, .. } = *self;
        if schema != SCHEMA {
            return Err(format!("it has schema {schema}, and this paceline reads {SCHEMA}"));
        }
        if round == 0 {
            return Err("round is 0: rounds count from 1 on".to_owned());
        }
        if policy > POLICY_MAX {
            return Err(format!("policy is {policy}: versions go up to {POLICY_MAX}"));
        }
        if rank >= ranks {
            return Err(format!("rank is {rank}, and the communicator has {ranks}: they count from 0 on"));
        }
        if hosts == 0 || hosts > ranks {
            return Err(format!("hosts is {hosts}: {ranks} ranks are on 1 to {ranks}"));
        }
        if longest_ns < 0 {
            return Err(format!("longest_ns is {longest_ns}: no call takes less than no time"));
        }
        if let Some(seconds) = self.iteration_s.filter(|seconds| *seconds <= 0.0) {
            return Err(format!("iteration_s is {seconds}: every iteration takes some time"));
        }
        Ok(())
    }

    fn label(&self) -> Label {
        let Label { parallelism, is_pipelined_layer, is_fused_call, is_ps_deployment } = Label::default();
        Label {
            parallelism: self.parallelism.unwrap_or(parallelism),
            is_pipelined_layer: self.pipelined.unwrap_or(is_pipelined_layer),
            is_fused_call: self.fused.unwrap_or(is_fused_call),
            is_ps_deployment: self.ps.unwrap_or(is_ps_deployment),
        }
    }

    fn way(&self) -> Result<Option<(Algorithm, Protocol)>, String> {
        match (&self.algorithm, &self.protocol) {
            (Some(algorithm), Some(protocol)) => Ok(Some((named(algorithm)?, named(protocol)?))),
            _ => Ok(None),
        }
    }
}

fn named<T: std::str::FromStr<Err = NcclError>>(name: &str) -> Result<T, String> {
    name.parse().map_err(|error: NcclError| error.to_string())
}

#[cfg(test)]
mod tests;
