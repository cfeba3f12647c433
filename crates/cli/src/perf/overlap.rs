//! What an all-reduce in the background costs others: an urgent call that overtakes it, or a computation beside it.

mod computation;

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use paceline_comm::{CallOptions, CommError, Communicator, Pending, Reduction};
use serde::Serialize;

use super::row::Times;
use crate::arguments::ByteSize;
use crate::emulation::Emulated;
use crate::workers::transport_name;

/// What is measured beside an all-reduce of `--max` bytes, instead of the table.
#[derive(Args, Clone, Copy, Debug)]
pub struct OverlapArguments {
    /// Measure an urgent f32 all-reduce of so many bytes, alone and while one of --max bytes is in flight
    #[arg(long, value_name = "BYTES", conflicts_with = "compute")]
    urgent: Option<ByteSize>,

    /// Measure a computation on the caller's thread, alone and while an f32 all-reduce of --max bytes is in flight
    #[arg(long)]
    compute: bool,
}

/// How often each is done, unless the user says it.
const ROUNDS: usize = 10;
/// The background call has this long to get going before the urgent one starts.
const HEAD_START: Duration = Duration::from_millis(20);
/// Less urgent than the default.
const BACKGROUND: u32 = u32::MAX;

/// What came out; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Overlap {
    /// `urgent` or `compute`.
    pub what: &'static str,
    /// What carried it.
    pub transport: String,
    /// The world size.
    pub ranks: usize,
    /// Bytes of the all-reduce in the background.
    pub background_bytes: usize,
    /// Bytes of the urgent one; 0 for a computation.
    pub urgent_bytes: usize,
    /// How often.
    pub rounds: usize,
    /// The median time alone, of the slowest rank. Of a computation: of a slice, as a mean over those of a round.
    pub alone_p50_us: f64,
    /// The median time beside the background call, of the slowest rank.
    pub beside_p50_us: f64,
    /// An urgent call: the second over the first. A computation: the median over the rounds of how much longer a slice
    /// took beside the call, on the rank on which that was most.
    pub ratio: f64,
    /// A computation: the same in processor time of its thread. What `ratio` has beyond that, the thread waited for a
    /// processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_ratio: Option<f64>,
    /// A computation: slices that lay within a background call, on the rank that had the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices: Option<usize>,
    /// Rounds in which the background call had ended first: they prove nothing, and are not counted.
    pub too_short: usize,
    /// Elements that were not what they must be, on all ranks together.
    pub wrong: u64,
    /// For the text.
    #[serde(skip)]
    pub emulated: Option<Emulated>,
}

impl OverlapArguments {
    /// Was one of them?
    pub fn is_asked_for(&self) -> bool {
        self.urgent.is_some() || self.compute
    }

    /// Measures what was asked for, if anything; all ranks together.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn measure(
        &self,
        communicator: &Communicator,
        background: ByteSize,
        rounds: Option<usize>,
        options: &CallOptions,
    ) -> Result<Option<Overlap>, CommError> {
        let elements = (background.0 / size_of::<f32>()).max(1);
        let mut bench = Bench { communicator, options, elements, rounds: rounds.unwrap_or(ROUNDS), wrong: 0 };
        match (self.urgent, self.compute) {
            (Some(bytes), _) => bench.urgent((bytes.0 / size_of::<f32>()).max(1)).map(Some),
            (None, true) => bench.compute().map(Some),
            (None, false) => Ok(None),
        }
    }
}

struct Bench<'a> {
    communicator: &'a Communicator,
    /// Of the urgent call and of the one in the background.
    options: &'a CallOptions,
    elements: usize,
    rounds: usize,
    wrong: u64,
}

impl Bench<'_> {
    /// Alone, beside, alone, beside, …
    fn urgent(&mut self, elements: usize) -> Result<Overlap, CommError> {
        let (communicator, options) = (self.communicator, CallOptions::default());
        // Warm-up.
        self.call(elements)?;
        let (mut alone, mut beside, mut too_short) = (Vec::new(), Vec::new(), 0);
        for _ in 0..self.rounds {
            communicator.barrier(&options)?;
            let by_itself = self.call(elements)?;
            communicator.barrier(&options)?;
            let pending = self.start()?;
            thread::sleep(HEAD_START);
            let together = self.call(elements)?;
            let ended_first = f64::from(u8::from(pending.is_done()));
            self.finish(pending)?;
            let mut slowest = [by_itself, together, ended_first];
            communicator.all_reduce(&mut slowest, Reduction::Max, &options)?;
            if slowest[2] > 0.0 {
                too_short += 1;
            } else {
                alone.push(slowest[0]);
                beside.push(slowest[1]);
            }
        }
        let (rounds, urgent_bytes) = (alone.len(), elements * size_of::<f32>());
        let [alone_p50_us, beside_p50_us] = [alone, beside].map(|seconds| median(seconds) * 1e6);
        let ratio = if rounds == 0 { 0.0 } else { beside_p50_us / alone_p50_us };
        Ok(Overlap { alone_p50_us, beside_p50_us, ratio, rounds, too_short, urgent_bytes, ..self.outcome("urgent")? })
    }

    /// Seconds of an urgent call.
    fn call(&mut self, elements: usize) -> Result<f64, CommError> {
        let mut data = vec![self.contribution(); elements];
        let start = Instant::now();
        self.communicator.all_reduce(&mut data, Reduction::Sum, self.options)?;
        let seconds = start.elapsed().as_secs_f64();
        self.check(&data);
        Ok(seconds)
    }

    /// What was measured, but for the times.
    fn outcome(&self, what: &'static str) -> Result<Overlap, CommError> {
        let communicator = self.communicator;
        let mut wrong = [self.wrong as i64];
        communicator.all_reduce(&mut wrong, Reduction::Sum, &CallOptions::default())?;
        Ok(Overlap {
            what,
            transport: transport_name(communicator).to_owned(),
            ranks: communicator.world_size(),
            background_bytes: self.elements * size_of::<f32>(),
            urgent_bytes: 0,
            rounds: 0,
            alone_p50_us: 0.0,
            beside_p50_us: 0.0,
            ratio: 0.0,
            processor_ratio: None,
            slices: None,
            too_short: 0,
            wrong: wrong[0] as u64,
            emulated: None,
        })
    }

    fn start(&self) -> Result<Pending<f32>, CommError> {
        let mut buffer = self.communicator.alloc(self.elements)?;
        buffer.fill(self.contribution());
        let options = CallOptions { priority: BACKGROUND, ..self.options.clone() };
        self.communicator.start_all_reduce(buffer, Reduction::Sum, &options)
    }

    fn finish(&mut self, pending: Pending<f32>) -> Result<(), CommError> {
        let buffer = pending.wait()?;
        self.check(&buffer);
        Ok(())
    }

    fn contribution(&self) -> f32 {
        self.communicator.rank() as f32 + 1.0
    }

    fn check(&mut self, data: &[f32]) {
        let ranks = self.communicator.world_size();
        let sum = (ranks * (ranks + 1) / 2) as f32;
        self.wrong += data.iter().filter(|element| **element != sum).count() as u64;
    }
}

/// The median; 0 of nothing.
fn median(values: Vec<f64>) -> f64 {
    if values.is_empty() { 0.0 } else { Times::new(values).percentile_us(0.5) * 1e-6 }
}

impl Overlap {
    /// It was measured on an emulated network: takes the dilation out of the times.
    pub fn emulated(&mut self, by: &Emulated) {
        self.alone_p50_us /= by.dilation;
        self.beside_p50_us /= by.dilation;
        self.emulated = Some(by.clone());
    }

    /// A sentence for each number.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let what = match self.urgent_bytes {
            0 => "a slice of a computation on the caller's thread".to_owned(),
            bytes => format!("an urgent all-reduce of {}", ByteSize(bytes)),
        };
        let Overlap { transport, ranks, rounds, too_short, wrong, .. } = self;
        let background = ByteSize(self.background_bytes);
        writeln!(out, "# {what} beside an all-reduce of {background}: {ranks} ranks, transport {transport}, f32 sum")?;
        if let Some(emulated) = &self.emulated {
            emulated.write(out)?;
        }
        if *rounds == 0 {
            writeln!(out, "# nothing measured: in all {too_short} rounds the background call ended first")?;
            return out.flush();
        }
        writeln!(out, "alone   {:>12.1} us", self.alone_p50_us)?;
        writeln!(out, "beside  {:>12.1} us", self.beside_p50_us)?;
        writeln!(out, "ratio   {:>12.3}    median of {rounds} rounds, slowest rank; {wrong} wrong", self.ratio)?;
        if let (Some(ratio), Some(slices)) = (self.processor_ratio, self.slices) {
            writeln!(
                out,
                "processor time {ratio:>5.3}    the rest is waiting for a processor; at least {slices} slices"
            )?;
        }
        if *too_short > 0 {
            writeln!(out, "# in {too_short} rounds the background call ended first: give a larger --max")?;
        }
        out.flush()
    }
}
