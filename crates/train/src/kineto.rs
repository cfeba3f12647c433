//! Profiles from traces of PyTorch's profiler (Kineto's Chrome JSON), without PyTorch. Pure, but for [`read_trace`].
//!
//! A trace has operations with their times and, if it was recorded with shapes, the shapes of their arguments; it has no
//! parameters. What can be told of them is this:
//!
//! - An iteration ends with `Optimizer.step#…`; backward begins with the first `autograd::engine::evaluate_function`.
//! - Backward calls `torch::autograd::AccumulateGrad` once for each parameter, with the whole gradient, however often
//!   forward has used the parameter: then it is final. Its argument has the parameter's shape.
//! - Autograd visits what forward made last first (PyTorch pull request 4746), and accumulates a gradient as soon as it has
//!   it (7604). So gradients become final in the reverse of the order in which forward first used their parameters.
//! - Operations such as `aten::linear` say by their name which of their arguments are parameters.
//!
//! So the gradients, read backwards, are the parameters in the order of their first use; walking forward's operations with
//! them tells which operation uses which ([`parameters`]). Where a gradient fits no operation, the trace is refused.
//! Computation on a GPU is timed by its kernels ([`clock`]); what it takes of its memory is told by the allocator ([`memory`]), if that was
//! recorded (profile_memory=True).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use paceline_plan::{Profile, ProfileError, ProfileTensor, Step};

mod arithmetic;
mod clock;
mod events;
mod iteration;
mod memory;
mod parameters;

use crate::iteration_times::{IterationTimes, typical};
use crate::measure::{median, relative_half_width};
use crate::read_at_most::read_at_most;
use clock::Clock;
use events::Trace;
use iteration::Iteration;
use parameters::Uses;

/// What a trace does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceOptions {
    /// What the profile calls the model.
    pub model: String,
    /// Samples of an iteration. None: as the first operation's argument has them.
    pub local_batch: Option<usize>,
    /// The model's tensors, in its order: names, and multiply-accumulates. None: tensors are called after the operations
    /// that use them.
    pub tensors: Option<Vec<ProfileTensor>>,
}

/// A profile that was read from a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedProfile {
    /// With the times; and with what the worker takes of a GPU's memory, if that was recorded.
    pub profile: Profile,
    /// How many iterations it is made of.
    pub iterations: usize,
    /// Seconds from the end of one iteration to that of the next, with what is neither forward, backward nor the optimiser
    /// (data, clipping, logging), as it was recorded: the median. None: there is one iteration.
    pub iteration_s: Option<f64>,
    /// Seconds of it in which the GPU computes nothing, which the profile does not count: it waits for its program, which recording
    /// slows, for data or for communication. The median; None: there is one iteration, or no GPU.
    pub waiting_s: Option<f64>,
    /// The types of two bytes that gradients have, as PyTorch calls them. A profile has no type: whoever predicts from it counts
    /// four bytes for each element, as of f32.
    pub half_types: Vec<&'static str>,
}

/// Why a trace gives no profile.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file is none.
    #[error("this is no trace of PyTorch's profiler: {0}; `export_chrome_trace` writes one")]
    Malformed(#[source] serde_json::Error),
    /// Nothing was recorded on the CPU.
    #[error("the trace has no operations: record it with ProfilerActivity.CPU, on a GPU with CUDA besides")]
    NoOperations,
    /// Nothing ends an iteration.
    #[error(
        "the trace has no `Optimizer.step#…`, so nothing says where an iteration ends: record whole iterations, with an \
         optimiser of torch.optim"
    )]
    NoOptimizer,
    /// There is nothing before it.
    #[error("the trace has no gradients before an `Optimizer.step#…`: record forward and backward, too")]
    NoGradients,
    /// It cannot be told which gradient is which.
    #[error(
        "the trace was recorded without shapes, so nothing says which gradient is whose: record it with \
         record_shapes=True, or give a list of the model's tensors (--tensors)"
    )]
    NoShapes,
    /// A gradient that fits nothing.
    #[error(
        "no operation of forward uses the parameter of gradient {number}, of shape {shape:?}, as far as shapes tell; \
         tools/profile_torch.py measures the model itself"
    )]
    Homeless {
        /// Which of an iteration's gradients, in the order in which they become final, from 1.
        number: usize,
        /// Its sizes.
        shape: Vec<usize>,
    },
    /// Several passes of backward belong to one call of the optimiser.
    #[error(
        "an iteration of the trace has the same gradients several times over: record one pass of backward for each call of \
         the optimiser"
    )]
    Accumulated,
    /// The list of tensors is of another model.
    #[error("the list has {listed} tensors{which}, and the trace {found}: is it of this model?")]
    List {
        /// In the list.
        listed: usize,
        /// In an iteration of the trace.
        found: usize,
        /// Of which size, if that is the difference.
        which: String,
    },
    /// There is no typical iteration.
    #[error(
        "the trace's iterations differ in their gradients or operations: record some that do the same, with one optimiser \
         and one pass of backward each"
    )]
    Differ,
    /// How much is computed is unknown.
    #[error("nothing in the trace says how many samples an iteration takes: say it with --local-batch")]
    NoBatch,
    /// What has come out makes no sense.
    #[error("the trace gives no profile: {0}")]
    Inconsistent(#[source] ProfileError),
}

/// The largest trace that is read, unpacked: some minutes of a large model.
const BYTES_MAX: u64 = 4 << 30;

/// Reads a trace, packed by gzip or not.
///
/// # Errors
/// The file cannot be read, or is too large.
pub fn read_trace(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = BufReader::new(File::open(path)?);
    let is_packed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let unpacked: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    read_at_most(unpacked, BYTES_MAX, "a trace of more than 4 GiB: record fewer iterations")
}

/// The profile of the iterations in a trace, which do the same (but the first, of which a part may have been recorded): their
/// medians. Time grows with the trace by n log n, and by the number of gradients times the arguments of an operation; memory
/// linearly.
///
/// # Errors
/// It is no trace, or does not say what a profile needs.
pub fn profile_of_trace(text: &[u8], options: &TraceOptions) -> Result<TracedProfile, TraceError> {
    let trace = events::parse(text).map_err(TraceError::Malformed)?;
    let clock = Clock::new(&trace.events);
    let all = iteration::iterations(&trace)?;
    let with_shapes = all.iter().flat_map(|iteration| &iteration.gradients).all(|gradient| gradient.shape.is_some());
    let reading = match (with_shapes, &options.tensors) {
        (true, list) => by_shape(&trace, &clock, &all, list.as_deref())?,
        (false, Some(list)) => by_order(&clock, &all, list)?,
        (false, None) => return Err(TraceError::NoShapes),
    };
    let local_batch = options.local_batch.or(reading.samples).ok_or(TraceError::NoBatch)?;
    let mut profile = reading.profile(&trace, &clock, options, local_batch, all.len());
    profile.check().and_then(|()| profile.check_pace()).map_err(TraceError::Inconsistent)?;
    profile.memory = memory::memory_need(&trace, &all, local_batch, profile.parameters());
    let half_types: Vec<&str> = trace.half_types.iter().copied().collect();
    if !half_types.is_empty() {
        profile.source += &format!("; gradients are {} there, and count as f32 here", half_types.join(" and "));
    }
    let (recorded, worked) = between_ends(&clock, &all);
    let is_several = !recorded.is_empty();
    let waited = recorded.iter().zip(&worked).map(|(recorded, worked)| recorded - worked);
    let waiting_s = (is_several && clock.is_of_gpu()).then(|| median(waited));
    let iteration_s = is_several.then(|| median(recorded.iter().copied()));
    Ok(TracedProfile { profile, iterations: reading.times.len(), iteration_s, waiting_s, half_types })
}

/// Seconds from the end of one iteration to that of the next, as they were recorded, and by the clock.
fn between_ends(clock: &Clock, all: &[Iteration<'_>]) -> (Vec<f64>, Vec<f64>) {
    let by = |at: fn(&Clock, f64) -> f64| {
        let ends: Vec<f64> = all.iter().map(|iteration| at(clock, iteration.update_us.1)).collect();
        ends.windows(2).map(|ends| (ends[1] - ends[0]) * S_PER_US).collect()
    };
    (by(Clock::recorded_at), by(Clock::at))
}

const S_PER_US: f64 = 1e-6;

/// What was read.
struct Reading {
    tensors: Vec<ProfileTensor>,
    /// Of the iterations that count, which have the same steps.
    times: Vec<IterationTimes>,
    /// Samples of an iteration, if that can be told.
    samples: Option<usize>,
    /// By tensor: multiply-accumulates of forward, of all samples, if they can be told and the list does not say them.
    macs: Option<Vec<u64>>,
    /// How tensors were told apart.
    how: &'static str,
}

impl Reading {
    fn profile(
        &self,
        trace: &Trace,
        clock: &Clock,
        options: &TraceOptions,
        local_batch: usize,
        recorded: usize,
    ) -> Profile {
        let nothing = IterationTimes { forward: Vec::new(), backward: Vec::new(), update_s: 0.0 };
        let IterationTimes { forward, backward, update_s } = typical(&self.times).unwrap_or(nothing);
        let seconds: Vec<f64> = self.times.iter().map(IterationTimes::seconds).collect();
        let batch =
            if options.local_batch.is_none() { ", samples as the first operation's argument has them" } else { "" };
        let mut tensors = self.tensors.clone();
        for (tensor, macs) in tensors.iter_mut().zip(self.macs.iter().flatten()) {
            tensor.forward_macs_per_sample = (*macs as f64 / local_batch as f64).round() as u64;
        }
        let device = match (clock.is_of_gpu(), &trace.device) {
            (true, Some(name)) => name.clone(),
            (true, None) => "gpu".to_owned(),
            (false, _) => "cpu".to_owned(),
        };
        let waits = if clock.is_of_gpu() { ", without what the GPU waits" } else { "" };
        Profile {
            schema: Profile::SCHEMA,
            model: options.model.clone(),
            device,
            source: format!(
                "read from a trace of PyTorch's profiler: median of {} of {recorded} iterations{waits}; {}{batch}",
                self.times.len(),
                self.how
            ),
            local_batch,
            tensors,
            forward,
            backward,
            update_s,
            uncertainty: Some(relative_half_width(&seconds))
                .filter(|share| share.is_finite())
                .map(|share| share.min(Profile::UNCERTAINTY_MAX)),
            memory: None,
            epoch_samples: None,
            recorded_batch: None,
            spread: None,
        }
    }
}

/// Of a trace with shapes: which operation uses which parameter, and when.
fn by_shape(
    trace: &Trace,
    clock: &Clock,
    all: &[Iteration<'_>],
    list: Option<&[ProfileTensor]>,
) -> Result<Reading, TraceError> {
    let last = all.last().ok_or(TraceError::NoGradients)?;
    let uses = Uses::of(last)?;
    let mut times = Vec::new();
    for (index, iteration) in all.iter().enumerate() {
        match Uses::of(iteration).ok().filter(|own| *own == uses) {
            Some(own) => times.push(times_by_shape(clock, iteration, &own)),
            // Of the first one a part may have been recorded.
            None if index == 0 => {}
            None => return Err(TraceError::Differ),
        }
    }
    let mut tensors = uses.tensors(&trace.events);
    let mut macs = uses.forward_macs();
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    if let Some(list) = list {
        order = order_in_list(&tensors, list)?;
        tensors = list.to_vec();
        let is_said = list.iter().any(|tensor| tensor.forward_macs_per_sample > 0);
        macs = macs.filter(|_| !is_said).map(|macs| {
            let mut in_list = vec![0; macs.len()];
            macs.iter().zip(&order).for_each(|(&macs, &place)| in_list[place] = macs);
            in_list
        });
    }
    let rename = |step: &mut Step| step.tensor = order[step.tensor];
    times.iter_mut().for_each(|times| {
        times.forward.iter_mut().for_each(rename);
        times.backward.iter_mut().for_each(rename);
    });
    let how = "gradients and operations by their shapes";
    Ok(Reading { tensors, times, samples: uses.samples(), macs, how })
}

/// An operation's time is that until the next one with parameters begins, and counts to the first of its parameters. The first
/// step has that of what is frozen before it, too.
fn times_by_shape(clock: &Clock, iteration: &Iteration<'_>, uses: &Uses<'_>) -> IterationTimes {
    let mut starts: Vec<f64> = uses.takers().map(|(start_us, _)| clock.at(start_us)).collect();
    if let (Some(first), Some(known_us)) = (starts.first_mut(), parameters::first_known_us(iteration)) {
        *first = first.min(clock.at(known_us));
    }
    let ends = starts.iter().skip(1).copied().chain([clock.at(iteration.backward_us)]);
    let forward = uses.takers().zip(starts.iter().zip(ends)).flat_map(|((_, parameters), (&start, end))| {
        let seconds = (end - start).max(0.0) * S_PER_US;
        let step = move |(index, &tensor)| Step { tensor, seconds: if index == 0 { seconds } else { 0.0 } };
        parameters.iter().enumerate().map(step)
    });
    let forward = forward.collect();
    backward_and_update(clock, iteration, forward, |number| uses.gradients[number])
}

/// `tensor` says whose the gradient of a number is.
fn backward_and_update(
    clock: &Clock,
    iteration: &Iteration<'_>,
    forward: Vec<Step>,
    tensor: impl Fn(usize) -> usize,
) -> IterationTimes {
    let mut before = clock.at(iteration.backward_us);
    let mut backward = Vec::with_capacity(iteration.gradients.len());
    for (number, gradient) in iteration.gradients.iter().enumerate() {
        let end = clock.at(gradient.done_us).max(before);
        backward.push(Step { tensor: tensor(number), seconds: (end - before) * S_PER_US });
        before = end;
    }
    let (start, end) = (clock.at(iteration.update_us.0), clock.at(iteration.update_us.1));
    IterationTimes { forward, backward, update_s: (end - start).max(0.0) * S_PER_US }
}

/// Of a trace without shapes, with the model's tensors: gradients are taken to become final in the reverse order of the
/// list, and forward is shared among the tensors as backward is.
fn by_order(clock: &Clock, all: &[Iteration<'_>], list: &[ProfileTensor]) -> Result<Reading, TraceError> {
    let last = all.last().ok_or(TraceError::NoGradients)?;
    let (listed, found) = (list.len(), last.gradients.len());
    if listed != found {
        return Err(TraceError::List { listed, found, which: String::new() });
    }
    // Of the first one a part may have been recorded.
    let (whole, partial): (Vec<_>, Vec<_>) = all.iter().partition(|iteration| iteration.gradients.len() == found);
    if whole.len() + 1 < all.len() || partial.first().is_some_and(|partial| !std::ptr::eq(*partial, &all[0])) {
        return Err(TraceError::Differ);
    }
    let of_iteration = |iteration: &Iteration<'_>| {
        let times = backward_and_update(clock, iteration, Vec::new(), |number| found - 1 - number);
        let forward_us = parameters::first_taker_us(iteration).unwrap_or(iteration.backward_us);
        let forward_s = (clock.at(iteration.backward_us) - clock.at(forward_us)).max(0.0) * S_PER_US;
        let backward_s: f64 = times.backward.iter().map(|step| step.seconds).sum();
        let share = if backward_s > 0.0 { forward_s / backward_s } else { 0.0 };
        let mirrored = times.backward.iter().rev().map(|step| Step { seconds: step.seconds * share, ..*step });
        IterationTimes { forward: mirrored.collect(), ..times }
    };
    let times = whole.into_iter().map(of_iteration).collect();
    let how = "without shapes: gradients taken to become final in the reverse order of the list, and forward shared among \
               the tensors as backward is";
    Ok(Reading { tensors: list.to_vec(), times, samples: None, macs: None, how })
}

/// By tensor of the trace, in the order of first use, its place in the list: tensors of equal size in the same order.
fn order_in_list(tensors: &[ProfileTensor], list: &[ProfileTensor]) -> Result<Vec<usize>, TraceError> {
    let (listed, found) = (list.len(), tensors.len());
    if listed != found {
        return Err(TraceError::List { listed, found, which: String::new() });
    }
    let mut places: HashMap<usize, Vec<usize>> = HashMap::new();
    for (place, tensor) in list.iter().enumerate().rev() {
        places.entry(tensor.elements).or_default().push(place);
    }
    let of_size = |elements: usize, all: &[ProfileTensor]| all.iter().filter(|it| it.elements == elements).count();
    let mut order = Vec::with_capacity(found);
    for tensor in tensors {
        match places.get_mut(&tensor.elements).and_then(Vec::pop) {
            Some(place) => order.push(place),
            None => {
                let (listed, found) = (of_size(tensor.elements, list), of_size(tensor.elements, tensors));
                let which = format!(" of {} elements", tensor.elements);
                return Err(TraceError::List { listed, found, which });
            }
        }
    }
    Ok(order)
}
