//! `paceline perf --tune`: what a tuner gains on calls while it learns, by turns with the same calls without it, and with the
//! best that a search has found.

mod alike;
mod bench;
mod contestants;
mod drift;
mod mix;
mod size;
mod turns;

use std::io::{self, Write};
use std::time::Instant;

use clap::Args;
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_plan::CollectiveKind;
use paceline_train::TunedProgram;
use paceline_tune::Policy;
use serde::Serialize;

use super::exercise::Subject;
use crate::arguments::{at_least_one, seconds};
use crate::failure::Failure;
use crate::workers::transport_name;
use alike::TunedAlike;
pub use bench::CALL;
use drift::TunedDrift;
use mix::TunedMix;
use size::TunedSize;

/// Options that say what a tuner is to find out, or what is called otherwise.
const FIXED: [&str; 12] = [
    "urgent",
    "compute",
    "emulate",
    "trace",
    "algorithm",
    "protocol",
    "lanes",
    "reducing_threads",
    "chunk_bytes",
    "op",
    "dtype",
    "in_place",
];

/// The best of a search and the runner-up meet the tuner, beside the default: whichever takes least then is the best.
const RIVALS: usize = 2;

/// What is tuned, instead of the table.
#[derive(Args, Clone, Copy, Debug)]
pub struct TuneArguments {
    /// Let a tuner choose what f32 all-reduces take while they are made, by turns with the same calls without it
    /// (docs/tuning.md)
    #[arg(long, group = "tuned", conflicts_with_all = FIXED)]
    tune: bool,

    /// Tune the calls of a large language model, whose bytes are divided by this; a static configuration is searched
    #[arg(long, value_name = "SCALE", group = "tuned", conflicts_with = "program", conflicts_with_all = FIXED)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    tune_mix: Option<u64>,

    /// With calls of --max bytes, say `network: slow` and later `network: usual` on standard output, and go on when a line comes
    /// in on standard input: by then, the network has changed
    #[arg(long, requires = "tune")]
    tune_drift: bool,

    /// Let so many tuners learn, one after the other, from calls that all are the default's, whatever they choose: how many report
    /// a gain that is none?
    #[arg(long, value_name = "N", requires = "tune", conflicts_with_all = ["tune_drift", "program"])]
    #[arg(value_parser = at_least_one)]
    tune_alike: Option<usize>,

    /// Calls of each size while it learns; of --tune-mix, iterations
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = at_least_one)]
    tune_calls: usize,

    /// Calls of each size afterwards, by turns with those without it and with the best that was found; of --tune-mix,
    /// iterations; of --tune-drift, calls after each change
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one)]
    tune_compared: usize,

    /// With --tune alone, of short calls: let jobs learn one after the other for so many seconds, for each size. What a single one's calls take is noise
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    tune_jobs: f64,

    /// Search for the best choice, in at most so long for each size: behind the learning, which it is not to prepare; with --tune-drift
    /// beforehand, as the network changes while it learns
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = seconds)]
    tune_search: f64,

    /// Rehearse each size before it is learned and measured, with --tune-alike before each job, or with --tune-mix all kinds of calls
    /// together: at most so many seconds, of which none count as the tuner's
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = seconds, requires = "tuned")]
    tune_rehearsal: f64,

    /// What is left to chance in tuning follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    tune_seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// The world size.
    pub ranks: usize,
    /// What carried it.
    pub transport: String,
    /// TCP connections per pair of ranks.
    pub tcp_streams: u32,
    /// Size by size.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<TunedSize>,
    /// The calls of a large language model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<TunedMix>,
    /// Of calls that are all alike, size by size.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<TunedAlike>,
    /// While the network changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<TunedDrift>,
    /// Elements that were not what they must be, on all ranks together.
    pub wrong: u64,
}

/// What measurements need of the command line.
#[derive(Clone, Copy, Debug)]
struct Effort<'a> {
    calls: usize,
    compared: usize,
    jobs_s: f64,
    search_s: f64,
    rehearse_s: f64,
    seed: u64,
    /// That may be chosen, besides algorithms.
    programs: &'a [TunedProgram],
}

impl TuneArguments {
    /// Was it?
    pub fn is_asked_for(&self) -> bool {
        self.tune || self.tune_mix.is_some()
    }

    /// What clap cannot see.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self, collective: CollectiveKind) -> Result<(), Failure> {
        if self.is_asked_for() && collective != CollectiveKind::AllReduce {
            return Err(Failure::usage(format!("--tune and --tune-mix are for all-reduce, not for {collective}")));
        }
        Ok(())
    }

    /// Measures what was asked for, if anything; all ranks together.
    ///
    /// # Errors
    /// Those of the communication; there is not enough memory.
    pub fn measure(
        &self,
        communicator: &Communicator,
        sizes: &[usize],
        allocated: bool,
        tcp_streams: u32,
        programs: &[TunedProgram],
    ) -> Result<Option<Tuned>, Failure> {
        if !self.is_asked_for() {
            return Ok(None);
        }
        let effort = Effort {
            calls: self.tune_calls,
            compared: self.tune_compared,
            jobs_s: self.tune_jobs,
            search_s: self.tune_search,
            rehearse_s: self.tune_rehearsal,
            seed: self.tune_seed,
            programs,
        };
        let (kind, reduction) = (CollectiveKind::AllReduce, Reduction::Sum);
        let options = CallOptions::default();
        let subject = Subject { kind, reduction, root: 0, in_place: true, allocated, program: None, options };
        let mut tuned = Tuned {
            ranks: communicator.world_size(),
            transport: transport_name(communicator).to_owned(),
            tcp_streams,
            sizes: Vec::new(),
            mix: None,
            alike: Vec::new(),
            drift: None,
            wrong: 0,
        };
        if let Some(scale) = self.tune_mix {
            let (mix, wrong) = mix::measure(communicator, scale, &effort)?;
            (tuned.mix, tuned.wrong) = (Some(mix), wrong);
        } else if self.tune_drift {
            let bytes = sizes.last().copied().unwrap_or(1);
            let (drift, wrong) = drift::measure(communicator, &subject, bytes, &effort)?;
            (tuned.drift, tuned.wrong) = (Some(drift), wrong);
        } else if let Some(jobs) = self.tune_alike {
            for &bytes in sizes {
                let (alike, wrong) = alike::measure(communicator, &subject, bytes, jobs, &effort)?;
                tuned.alike.push(alike);
                tuned.wrong += wrong;
            }
        } else {
            for &bytes in sizes {
                let (size, wrong) = size::measure(communicator, &subject, bytes, &effort)?;
                tuned.sizes.push(size);
                tuned.wrong += wrong;
            }
        }
        let mut wrong = [tuned.wrong as i64];
        communicator.all_reduce(&mut wrong, Reduction::Sum, &CallOptions::default())?;
        Ok(Some(Tuned { wrong: wrong[0] as u64, ..tuned }))
    }
}

impl Tuned {
    /// What stands for the sizes, as a policy.
    pub fn policy(&self) -> Policy {
        let rules = self.sizes.iter().flat_map(|size| size.policy.entries());
        Policy::new(1, rules.map(|(context, schedule)| (*context, *schedule)))
    }

    /// For people.
    ///
    /// # Errors
    /// Those of the output.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Tuned { ranks, transport, tcp_streams, .. } = self;
        writeln!(
            out,
            "# {ranks} ranks, transport {transport}, {tcp_streams} TCP connections per pair; a barrier before each call"
        )?;
        if !self.sizes.is_empty() {
            TunedSize::write_head(out)?;
        }
        self.sizes.iter().try_for_each(|size| size.write(out))?;
        self.alike.iter().try_for_each(|alike| alike.write(out))?;
        self.mix.as_ref().map_or(Ok(()), |mix| mix.write(out))?;
        self.drift.as_ref().map_or(Ok(()), |drift| drift.write(out))
    }
}

/// Number by number, the largest of all ranks.
fn largest(communicator: &Communicator, seconds: &mut [f64]) -> Result<(), CommError> {
    if seconds.is_empty() {
        return Ok(());
    }
    communicator.all_reduce(seconds, Reduction::Max, &CallOptions::default())
}

/// Seconds since then, on the rank where they are most.
fn agreed_s(communicator: &Communicator, began: Instant) -> Result<f64, CommError> {
    let mut seconds = [began.elapsed().as_secs_f64()];
    largest(communicator, &mut seconds)?;
    Ok(seconds[0])
}
