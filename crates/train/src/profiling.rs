//! Measures a model: what one worker computes in an iteration, tensor by tensor, by the hooks that training has, too.

mod starts;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_plan::{Profile, ProfileTensor, Step, TensorId};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, BackendError, GradientSink, OpenGate, SharedSink, SinkClosed, Slot, TensorInfo};
use crate::computed::slowed_profile;
use crate::data::Dataset;
use crate::error::TrainError;
use crate::iteration_times::{IterationTimes, mean_difference, typical};
use crate::measure::{Length, relative_half_width};
use crate::optimizer::{Optimizer, OptimizerSettings, Part};
use crate::recording::{self, PassRecord};
use crate::sync::lock;

pub use starts::{ProfiledStart, profile_of_starts};

/// How a model is measured.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// Samples of an iteration.
    pub local_batch: usize,
    /// Iterations before those that count.
    pub warm_up: usize,
    /// How many count. The default is until the 95 % interval of an iteration's mean is within ± 1 % of it, at least 5,
    /// and no further ones after 30 s.
    pub length: Length,
    /// Threads that compute.
    pub threads: usize,
    /// What updates the parameters, at its usual learning rate: a model that learns does not compute for as long as one that stays what it
    /// was, as functions and branches take longer for some values than for others.
    pub optimizer: OptimizerSettings,
    /// What the profile calls the device.
    pub device: String,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        let budget = Duration::from_secs(30);
        ProfileOptions {
            local_batch: 32,
            warm_up: 5,
            length: Length::Confident { relative: 0.01, at_least: 5, at_most: 1000, budget },
            threads: 1,
            optimizer: OptimizerSettings::default(),
            device: "cpu".to_owned(),
        }
    }
}

/// A profile that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredProfile {
    /// With the times; what the worker takes in memory is not said.
    pub profile: Profile,
    /// What each iteration took that counted.
    pub seconds: Vec<f64>,
}

/// Measures forward, backward and the optimiser, iteration by iteration; `told` learns what those have taken that have counted so far, first
/// when none has.
///
/// A step of forward lasts from the moment at which forward asks for a parameter to that at which it asks for the next one
/// (of a model that asks once only, the time of a second use counts to the step before it); what comes before the first
/// belongs to the first step, the loss to the last. A step of backward lasts until the gradient has been copied into the
/// arena, as in training, since the one before; what comes after the last belongs to the last step. Forward has what getting the samples takes
/// in it, too. Phases share the mean of the iterations as the medians of theirs, and steps what their phase takes likewise: throughput is the mean's.
///
/// # Errors
/// Senseless options, too little data, or the framework failed.
pub fn profile_model(
    name: &str,
    backend: &mut dyn Backend,
    data: &Dataset,
    options: &ProfileOptions,
    told: &mut (dyn FnMut(&[f64]) + Send),
) -> Result<MeasuredProfile, TrainError> {
    options.check(data)?;
    // candle computes on the pool of the thread that calls it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool = pool.map_err(|e| TrainError::Threads { threads: options.threads, message: e.to_string() })?;
    let measured = pool.install(|| Profiler::new(backend, options).run(data, told));
    let iterations = measured.map_err(|source| TrainError::Backend { rank: 0, source })?;
    let profile = profile(name, backend, options, &iterations)?;
    profile.check().map_err(|error| TrainError::Options(format!("{name} has no profile: {error}")))?;
    Ok(MeasuredProfile { profile, seconds: iterations.iter().map(IterationTimes::seconds).collect() })
}

impl ProfileOptions {
    fn check(&self, data: &Dataset) -> Result<(), TrainError> {
        self.length.check_with(self.local_batch, self.threads)?;
        if data.len() < self.local_batch {
            let (samples, batch) = (data.len(), self.local_batch);
            return Err(TrainError::Options(format!(
                "an iteration takes {batch} samples, and the data holds {samples}; choose a smaller local batch or more \
                 data"
            )));
        }
        self.optimizer.check().map_err(TrainError::Options)
    }

    /// What a profile says of itself that is the mean of so many iterations, together in so many starts.
    fn source(&self, iterations: usize, starts: usize) -> String {
        let of_starts = if starts > 1 { format!(" in each of {starts} starts") } else { String::new() };
        format!(
            "measured by paceline {}: mean of {iterations} iterations after {}{of_starts}, threads {}, {}",
            env!("CARGO_PKG_VERSION"),
            self.warm_up,
            self.threads,
            self.optimizer.name()
        )
    }

    /// Are these iterations enough, which have taken so long?
    fn enough(&self, seconds: &[f64], elapsed: Duration) -> bool {
        match self.length {
            Length::Iterations(count) => seconds.len() >= count,
            Length::Confident { relative, at_least, at_most, budget } => {
                let known = elapsed >= budget || relative_half_width(seconds) <= relative;
                seconds.len() >= at_most || seconds.len() >= at_least.max(2) && known
            }
        }
    }
}

/// Where gradients lie until the optimiser takes them.
pub(crate) struct Arena(Vec<Vec<f32>>);

impl Arena {
    /// For tensors of so many elements.
    pub(crate) fn of(sizes: &[usize]) -> Arena {
        Arena(sizes.iter().map(|&elements| vec![0.0; elements]).collect())
    }
}

impl GradientSink for Arena {
    fn ready(&mut self, parameter: TensorId, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        let place = self.0.get_mut(parameter).ok_or(SinkClosed)?;
        match gradient {
            Some(gradient) if gradient.len() == place.len() => place.copy_from_slice(gradient),
            Some(_) => return Err(SinkClosed),
            None => place.fill(0.0),
        }
        Ok(())
    }

    fn write(&mut self, parameter: TensorId, write: &mut dyn FnMut(usize, &mut [f32])) -> Result<bool, SinkClosed> {
        write(0, self.0.get_mut(parameter).ok_or(SinkClosed)?);
        Ok(true)
    }
}

/// Runs the iterations.
struct Profiler<'a> {
    backend: &'a mut dyn Backend,
    options: &'a ProfileOptions,
    arena: Arc<Mutex<Arena>>,
    optimizer: Box<dyn Optimizer>,
    updates: usize,
}

impl<'a> Profiler<'a> {
    fn new(backend: &'a mut dyn Backend, options: &'a ProfileOptions) -> Self {
        let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
        let arena = Arc::new(Mutex::new(Arena::of(&sizes)));
        let optimizer = options.optimizer.build(sizes.into_iter());
        Profiler { backend, options, arena, optimizer, updates: 0 }
    }

    fn run(
        mut self,
        data: &Dataset,
        told: &mut (dyn FnMut(&[f64]) + Send),
    ) -> Result<Vec<IterationTimes>, BackendError> {
        for _ in 0..self.options.warm_up {
            self.iterate(data)?;
        }
        let (began, mut iterations, mut seconds) = (Instant::now(), Vec::new(), Vec::new());
        told(&seconds);
        while !self.options.enough(&seconds, began.elapsed()) {
            let iteration = self.iterate(data)?;
            seconds.push(iteration.seconds());
            iterations.push(iteration);
            told(&seconds);
        }
        Ok(iterations)
    }

    fn iterate(&mut self, data: &Dataset) -> Result<IterationTimes, BackendError> {
        let (batch, samples) = (self.options.local_batch, data.len());
        let first = self.updates % (samples / batch) * batch;
        let began = Instant::now();
        let batch = data.batch(&(first..first + batch).collect::<Vec<usize>>());
        let sink: SharedSink = self.arena.clone();
        let (_, pass) = recording::record(self.backend, &batch, &mut OpenGate, sink)?;
        let update_s = self.update()?;
        Ok(IterationTimes { forward: forward(&pass, began), backward: backward(&pass), update_s })
    }

    /// Seconds that the optimiser takes.
    fn update(&mut self) -> Result<f64, BackendError> {
        self.updates += 1;
        let (arena, update, optimizer) = (lock(&self.arena), self.updates, &mut self.optimizer);
        let rate = self.options.optimizer.default_learning_rate();
        let began = Instant::now();
        for (parameter, gradient) in arena.0.iter().enumerate() {
            let part = Part::whole(parameter, update, rate);
            self.backend.access(Slot::Parameter(parameter), &mut |values| {
                optimizer.step(&part, values, gradient);
            })?;
        }
        Ok(began.elapsed().as_secs_f64())
    }
}

/// From one parameter that forward asks for to the next; `began`: when its samples were asked for.
fn forward(pass: &PassRecord, began: Instant) -> Vec<Step> {
    let first = pass.gates.iter().map(|gate| (gate.parameter, gate.asked, gate.ended));
    let again = pass.again.iter().map(|&(parameter, at)| (parameter, at, at));
    let mut uses: Vec<(TensorId, Instant, Instant)> = first.chain(again).collect();
    uses.sort_by_key(|&(_, asked, _)| asked);
    let ends = uses.iter().skip(1).map(|&(_, asked, _)| asked).chain([pass.backward_began]);
    let mut steps: Vec<Step> =
        uses.iter().zip(ends).map(|(&(tensor, _, began), end)| step(tensor, began, end)).collect();
    if let (Some(step), Some(&(_, asked, _))) = (steps.first_mut(), uses.first()) {
        step.seconds += asked.saturating_duration_since(began).as_secs_f64();
    }
    steps
}

/// From one gradient that backward has announced to the next.
fn backward(pass: &PassRecord) -> Vec<Step> {
    let count = pass.announced.len();
    let ends = pass.announced.iter().map(|announced| announced.until).take(count.saturating_sub(1)).chain([pass.ended]);
    let mut before = pass.backward_began;
    let one = |(tensor, end): (TensorId, Instant)| step(tensor, std::mem::replace(&mut before, end), end);
    pass.announced.iter().map(|announced| announced.tensor).zip(ends).map(one).collect()
}

fn step(tensor: TensorId, began: Instant, ended: Instant) -> Step {
    Step { tensor, seconds: ended.saturating_duration_since(began).as_secs_f64() }
}

fn profile(
    name: &str,
    backend: &dyn Backend,
    options: &ProfileOptions,
    iterations: &[IterationTimes],
) -> Result<Profile, TrainError> {
    let macs = backend.forward_macs_per_sample();
    let tensor = |(number, info): (usize, &TensorInfo)| ProfileTensor {
        name: info.name.clone(),
        elements: info.elements(),
        forward_macs_per_sample: macs.get(number).copied().unwrap_or(0),
    };
    let seconds: Vec<f64> = iterations.iter().map(IterationTimes::seconds).collect();
    let typical = typical(iterations).ok_or_else(|| {
        let message = "it does not come to its parameters in the same order in each iteration".to_owned();
        TrainError::Backend { rank: 0, source: BackendError { doing: "profiling the model", message } }
    })?;
    // However long it has taken now and then counts in the mean.
    let mean_s = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let times = if typical.seconds() > 0.0 { mean_s / typical.seconds() } else { 1.0 };
    let profile = Profile {
        schema: Profile::SCHEMA,
        model: name.to_owned(),
        device: options.device.clone(),
        source: options.source(iterations.len(), 1),
        local_batch: options.local_batch,
        tensors: backend.parameters().iter().enumerate().map(tensor).collect(),
        forward: typical.forward,
        backward: typical.backward,
        update_s: typical.update_s,
        uncertainty: Some(relative_half_width(&seconds)).filter(|share| share.is_finite()),
        spread: (seconds.len() > 1).then(|| mean_difference(seconds) / mean_s).filter(|share| share.is_finite()),
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
    };
    Ok(slowed_profile(&profile, times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Form, Synthetic};
    use crate::replay::ReplayBackend;

    /// Steps of very different lengths, and an order of backward that is not that of forward.
    fn recorded() -> Profile {
        let tensor = |name: &str, elements| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: 0 };
        let steps = |steps: [(usize, f64); 3]| steps.map(|(tensor, ms)| Step { tensor, seconds: ms / 1e3 }).to_vec();
        Profile {
            schema: Profile::SCHEMA,
            model: "recorded".into(),
            device: "clock".into(),
            source: "made up".into(),
            local_batch: 2,
            tensors: vec![tensor("a", 50_000), tensor("b", 10), tensor("c", 1)],
            forward: steps([(0, 4.0), (1, 14.0), (2, 1.0)]),
            backward: steps([(1, 2.0), (2, 20.0), (0, 6.0)]),
            update_s: 0.0,
            uncertainty: None,
            memory: None,
            epoch_samples: None,
            recorded_batch: None,
            spread: None,
        }
    }

    /// Of three iterations one takes twice as long: throughput is that of their mean, and two of them differ by half of it.
    #[test]
    fn a_profile_has_the_mean_and_says_how_iterations_differ() {
        let backend = ReplayBackend::new(&recorded(), 1.0, 0, 1).expect("a profile");
        let taking = |times: f64| {
            let Profile { forward, backward, update_s, .. } =
                slowed_profile(&Profile { update_s: 3e-3, ..recorded() }, times);
            IterationTimes { forward, backward, update_s }
        };
        let of =
            |iterations: &[IterationTimes]| profile("recorded", &backend, &options(), iterations).expect("one order");
        let found = of(&[taking(1.0), taking(2.0), taking(1.0)]);
        assert!((found.iteration_s() - 0.05 * 4.0 / 3.0).abs() < 1e-9, "{}", found.iteration_s());
        assert!(found.spread.is_some_and(|spread| (spread - 0.5).abs() < 1e-9), "{:?}", found.spread);
        assert!((found.forward_s() / found.backward_s() - 19.0 / 28.0).abs() < 1e-9);
        assert_eq!((of(&[taking(1.0)]).spread, of(&[taking(0.0), taking(0.0)]).spread), (None, None));
    }

    fn samples(count: usize) -> Dataset {
        Dataset::Synthetic(Synthetic::new(Form::Images { channels: 1, size: (2, 2), classes: 2 }, count, 0))
    }

    fn options() -> ProfileOptions {
        ProfileOptions { local_batch: 2, warm_up: 1, length: Length::Iterations(7), ..ProfileOptions::default() }
    }

    fn measured(options: &ProfileOptions) -> Result<MeasuredProfile, TrainError> {
        let mut backend = ReplayBackend::new(&recorded(), 1.0, 0, 1).expect("a profile");
        profile_model("recorded", &mut backend, &samples(5), options, &mut |_| ())
    }

    /// A replay sleeps as long as its profile says, so measuring it must give that profile again. Its steps are long beside
    /// what a machine that does something else lets a sleep end late.
    #[test]
    fn the_profile_of_a_replay_is_the_one_that_is_replayed() {
        let mut expected = recorded();
        expected.forward.iter_mut().chain(&mut expected.backward).for_each(|step| step.seconds *= 6.0);
        let measured = || {
            let mut backend = ReplayBackend::new(&expected, 1.0, 0, 1).expect("a profile");
            profile_model("recorded", &mut backend, &samples(5), &options(), &mut |_| ()).expect("it is measured")
        };
        let fits = |found: &[Step], expected: &[Step]| {
            let near = |(found, expected): (&Step, &Step)| {
                assert_eq!(found.tensor, expected.tensor);
                (found.seconds - expected.seconds).abs() < 0.001 + 0.2 * expected.seconds
            };
            found.iter().zip(expected).all(near)
        };
        // On a busy machine sleeps end late.
        let found = (0..5).map(|_| measured()).find(|MeasuredProfile { profile, .. }| {
            assert_eq!((profile.forward.len(), profile.backward.len(), profile.local_batch), (3, 3, 2));
            assert_eq!(profile.tensors, expected.tensors);
            let is_certain = profile.uncertainty.is_some_and(|share| share < 1.0);
            is_certain && fits(&profile.forward, &expected.forward) && fits(&profile.backward, &expected.backward)
        });
        let found = found.expect("five times another profile");
        assert_eq!(found.seconds.len(), 7);
        assert_eq!(found.profile.ready_order(), expected.ready_order());
    }

    #[test]
    fn it_goes_on_until_the_mean_is_known() {
        let length = |relative, budget_s| Length::Confident {
            relative,
            at_least: 3,
            at_most: 6,
            budget: Duration::from_secs(budget_s),
        };
        let iterations =
            |length| measured(&ProfileOptions { length, ..options() }).expect("it is measured").seconds.len();
        assert_eq!((iterations(length(1e9, 60)), iterations(length(0.0, 60)), iterations(length(0.0, 0))), (3, 6, 3));
    }

    #[test]
    fn senseless_options_are_named() {
        for (options, says) in [
            (ProfileOptions { local_batch: 0, ..options() }, "local batch must be"),
            (ProfileOptions { threads: 0, ..options() }, "threads must be"),
            (ProfileOptions { length: Length::Iterations(0), ..options() }, "iterations must be"),
            (ProfileOptions { local_batch: 6, ..options() }, "takes 6 samples, and the data holds 5"),
        ] {
            let error = measured(&options).expect_err(says).to_string();
            assert!(error.contains(says), "`{error}` does not say `{says}`");
        }
    }
}
