//! `paceline profile`: what one worker computes in an iteration. Measured here, read from a trace of PyTorch's profiler,
//! made of a list of tensors and a throughput, or scaled to a GPU that is not here.

mod beside;
mod listed;
mod starts;
mod summary;

use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use paceline_plan::{MemoryNeed, Profile, throughput_of};
use paceline_train::{
    Backend, BatchSize, Data, DataSource, Length, MeasuredProfile, ModelName, OptimizerSettings, ProfileOptions,
    ProfileSourceError, ProfiledStart, TensorInfo, TraceOptions, TracedProfile, TrainOptions, available_memory,
    load_profile, memory_need, memory_of_parameters, peak_memory, profile_model, profile_of_starts, profile_of_trace,
    read_tensor_list, read_trace,
};

use crate::Registry;
use crate::arguments::at_least_one;
use crate::bench::{confine_worker, usual_batch};
use crate::failure::{Failure, unless_closed};
use crate::json_file::{JsonFile, PlainFile};
use crate::machine::Machine;
use crate::train::{ChosenModel, size_pools};
use beside::{Others, keep_busy};
use summary::Summary;

/// What `profile` is told.
#[derive(Args)]
pub struct ProfileArguments {
    /// The model to measure: cnn, mlp, resnet20, transformer-lm, resnet50, bert-base, bert-large; or a profile to check and
    /// sum up (mine.json), or to scale to a GPU: resnet50@v100, or from samples per second that somebody has published
    /// resnet50@h100=1500 or mine.json@h100=1500:10%, or with what the GPU's memory has mine.json@h100=1500,memory=80GiB
    /// (docs/models.md); with --from-trace what to call the model; with --samples-per-s that and on which GPU, as in mine@v100
    #[arg(long, value_name = "NAME", required_unless_present_any = ["from_trace", "samples_per_s", "tensors"])]
    model: Option<String>,

    /// Samples per iteration [default: as many as bench takes; of a trace, what its first operation has]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    local_batch: Option<usize>,

    /// What to compute on, as for train [default: sample]
    #[arg(long, value_name = "SOURCE", conflicts_with_all = ["from_trace", "samples_per_s"])]
    data: Option<DataSource>,

    /// sgd or adamw [default: sgd]
    #[arg(long, value_name = "NAME", conflicts_with = "from_trace")]
    optimizer: Option<OptimizerSettings>,

    /// Iterations of each start that count [default: until their mean is known to 1 %, at least 5, at most half a minute in the first and 6 s in each other one]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["from_trace", "samples_per_s"])]
    iterations: Option<usize>,

    /// Iterations of each start before those that count [default: 5]
    #[arg(long, value_name = "N", conflicts_with_all = ["from_trace", "samples_per_s"])]
    warmup: Option<usize>,

    /// Workers of the job on this host: as many others compute meanwhile, each on cores of its own as in bench, and share its caches and its
    /// memory
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["from_trace", "samples_per_s"], default_value = "1")]
    workers: usize,

    /// The model is started so many times, as it takes some percent more or less in each [default: 5, or 3, 4 or 1, as many as take a
    /// minute together]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["from_trace", "samples_per_s"])]
    starts: Option<usize>,

    /// One of the others, by its number from 1.
    #[arg(long, hide = true)]
    keep_busy: Option<usize>,

    /// One of the further starts.
    #[arg(long, hide = true)]
    one_start: bool,

    /// Threads that compute [default: the cores, shared out among the workers]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["from_trace", "samples_per_s"])]
    threads: Option<usize>,

    /// Read a trace of PyTorch's profiler (export_chrome_trace, also packed by gzip) instead of measuring
    #[arg(long, value_name = "FILE")]
    from_trace: Option<PathBuf>,

    /// Instead of measuring, share out what one GPU is known to train of the model behind --tensors: samples per second at
    /// --local-batch, and how uncertain they are [default: 10 %]
    #[arg(
        long,
        value_name = "X[:P%]",
        value_parser = throughput,
        requires = "tensors",
        requires = "local_batch",
        conflicts_with = "from_trace"
    )]
    samples_per_s: Option<Stated>,

    /// The model's tensors, of a trace for their names and order: lines of name,numel[,fwd_macs_per_sample] below a line of these
    /// words; --samples-per-s needs the multiply-accumulates
    #[arg(long, value_name = "FILE.csv")]
    tensors: Option<PathBuf>,

    /// Write the profile to this file (docs/json.md)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write the summary to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A throughput that somebody has published.
#[derive(Clone, Copy)]
struct Stated {
    samples_per_s: f64,
    /// As a share.
    uncertainty: f64,
}

/// For clap: a number of samples per second, perhaps with its uncertainty.
fn throughput(text: &str) -> Result<Stated, String> {
    let stated = throughput_of(text).map(|(samples_per_s, uncertainty)| Stated { samples_per_s, uncertainty });
    stated.ok_or_else(|| "give samples per second above 0, and perhaps how uncertain they are: 405, 405:5%".to_owned())
}

/// A profile, and what its file does not say.
struct Made {
    profile: Profile,
    /// Threads that have computed.
    threads: Option<usize>,
    /// That counted, in all starts.
    iterations: Option<usize>,
    /// Of the model, each in a process of its own.
    starts: Option<usize>,
    /// With what is neither forward, backward nor the optimiser.
    iteration_s: Option<f64>,
    /// Of it what a GPU waits, which the profile does not count.
    waiting_s: Option<f64>,
    /// The most that this process has held.
    peak_bytes: Option<u64>,
}

impl From<Profile> for Made {
    fn from(profile: Profile) -> Made {
        Made {
            profile,
            threads: None,
            iterations: None,
            starts: None,
            iteration_s: None,
            waiting_s: None,
            peak_bytes: None,
        }
    }
}

/// Where the profile comes from.
enum Origin {
    Trace(PathBuf),
    /// A list of tensors.
    Listed(PathBuf, Stated),
    /// A profile that there is, or one of them scaled.
    Named(String),
    Measured(ChosenModel),
}

/// Makes a profile.
///
/// # Errors
/// Wrong usage; the model, the data, the trace or the file to scale cannot be used; a file cannot be written.
pub fn run(arguments: &ProfileArguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let origin = arguments.origin(registry)?;
    if let Origin::Measured(_) = origin {
        size_pools(arguments.threads())?;
    }
    if let Origin::Measured(model) = &origin
        && (arguments.keep_busy.is_some() || arguments.one_start)
    {
        return arguments.beside_another(model);
    }
    let output = arguments.output.as_deref().map(PlainFile::create).transpose()?;
    let json = arguments.json.as_deref().map(JsonFile::create).transpose()?;
    let made = match &origin {
        Origin::Trace(path) => arguments.traced(path)?,
        Origin::Listed(path, stated) => arguments.listed(path, *stated)?,
        Origin::Named(name) => arguments.named(name)?,
        Origin::Measured(model) => arguments.measured(model)?,
    };
    let summary = Summary::new(&made);
    if let Some(output) = output {
        let text = serde_json::to_string_pretty(&made.profile);
        let text = text.map_err(|error| Failure::failed("the profile cannot be written").cause(error))?;
        output.write(&(text + "\n"))?;
    }
    if let Some(json) = json {
        json.write(&summary)?;
    }
    unless_closed(summary.write(&made.profile, &mut std::io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}

impl ProfileArguments {
    fn origin(&self, registry: &Registry) -> Result<Origin, Failure> {
        if let Some(path) = &self.from_trace {
            return Ok(Origin::Trace(path.clone()));
        }
        match (&self.tensors, self.samples_per_s) {
            (Some(path), Some(stated)) => return Ok(Origin::Listed(path.clone(), stated)),
            (Some(_), None) => {
                let what = "--tensors says what the model has, and not how long an iteration takes";
                let help = "give --samples-per-s and --local-batch, or --from-trace, or leave --tensors out";
                return Err(Failure::usage(what).help(help));
            }
            // clap sees to it that there is a list where there is a throughput.
            (None, _) => {}
        }
        let name = self.model.as_deref().unwrap_or_default();
        let is_profile = name.contains(['@', '/']) || name.ends_with(".json");
        if !is_profile || registry.model(name).is_some() {
            return ChosenModel::find(name, registry).map(Origin::Measured);
        }
        let of_measuring = [
            ("--data", self.data.is_some()),
            ("--optimizer", self.optimizer.is_some()),
            ("--iterations", self.iterations.is_some()),
            ("--warmup", self.warmup.is_some()),
            ("--workers", self.workers > 1),
            ("--starts", self.starts.is_some()),
            ("--threads", self.threads.is_some()),
        ];
        match of_measuring.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Failure::usage(format!("{option} says how to measure, and {name} is a profile"))),
            None => Ok(Origin::Named(name.to_owned())),
        }
    }

    fn threads(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(|| (cores() / self.workers).max(1))
    }

    fn traced(&self, path: &Path) -> Result<Made, Failure> {
        let tensors = self.tensors.as_deref().map(read_tensor_list).transpose().map_err(Failure::usage)?;
        let text = read_trace(path)
            .map_err(|error| Failure::usage(format!("cannot read the trace {}", path.display())).cause(error))?;
        let model = self.model.clone().unwrap_or_else(|| name_of(path, &[".gz", ".json", ".trace", ".pt"]));
        let options = TraceOptions { model, local_batch: self.local_batch, tensors };
        let traced = profile_of_trace(&text, &options);
        let TracedProfile { profile, iterations, iteration_s, waiting_s, half_types } =
            traced.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        // As tools/profile_torch.py does: a profile has no type, and whoever predicts from this one would count twice the bytes.
        if !half_types.is_empty() {
            let problem = format!(
                "{}: gradients are {}, of 2 bytes an element, and predictions count 4, as of float32",
                path.display(),
                half_types.join(" and ")
            );
            let help = "record the model in float32, with torch.autocast where it is to compute in half precision; \
                        to predict gradients of 2 bytes, halve `elements` of their tensors in the profile of that";
            return Err(Failure::usage(problem).help(help));
        }
        Ok(Made { iterations: Some(iterations), iteration_s, waiting_s, ..Made::from(profile) })
    }

    fn named(&self, name: &str) -> Result<Made, Failure> {
        let profile = load_profile(name).map_err(|error| {
            let base = name.split('@').next().unwrap_or_default();
            match (&error, base.parse::<ModelName>()) {
                (ProfileSourceError::Unknown { .. }, Ok(model)) => Failure::usage(&error).help(format!(
                    "measure it: `paceline profile --model {model} -o {model}.json`, then {model}.json@…"
                )),
                _ => Failure::usage(&error),
            }
        })?;
        let Some(samples) = self.local_batch.filter(|samples| *samples != profile.local_batch) else {
            return Ok(Made::from(profile));
        };
        let profile = profile.for_batch(samples);
        let checked = profile.check().and_then(|()| profile.check_pace());
        checked.map_err(|error| Failure::usage(format!("{name} at {samples} samples: {error}")))?;
        Ok(Made::from(profile))
    }

    /// All starts of a model, the first one in this process.
    fn measured(&self, model: &ChosenModel) -> Result<Made, Failure> {
        let (options, bar, began) = (self.options(model), progress_bar(), Instant::now());
        let First { start, need, peak_bytes, epoch_samples } = self.first(model, &bar)?;
        let all = self.starts_after(start, began.elapsed(), &bar)?;
        bar.finish_and_clear();
        let of_starts = profile_of_starts(&all, &options);
        let MeasuredProfile { mut profile, seconds } = of_starts.ok_or_else(|| {
            let model = &all[0].measured.profile.model;
            Failure::failed(format!("{model} does not come to its parameters in the same order in each start"))
                .help("--starts 1 measures a single one")
        })?;
        if self.workers > 1 {
            profile.source += &format!(", as one of {} workers that computed on this host", self.workers);
        }
        // A few iterations may say less of their mean than that it takes time.
        profile.uncertainty = profile.uncertainty.map(|share| share.min(Profile::UNCERTAINTY_MAX));
        (profile.memory, profile.epoch_samples) = (Some(need), epoch_samples);
        Ok(Made {
            threads: Some(options.threads),
            iterations: Some(seconds.len()),
            starts: Some(all.len()),
            peak_bytes,
            ..Made::from(profile)
        })
    }

    /// The first start, which took so long, and further ones. Where nobody has said how many, those that fail are left out.
    fn starts_after(
        &self,
        first: ProfiledStart,
        took: Duration,
        bar: &ProgressBar,
    ) -> Result<Vec<ProfiledStart>, Failure> {
        let measured = Duration::try_from_secs_f64(first.measured.seconds.iter().sum()).unwrap_or(took);
        let of_further = match self.length(true) {
            Length::Confident { budget, .. } => budget.min(measured),
            Length::Iterations(_) => measured,
        };
        let count = starts::count(self.starts, took, took.saturating_sub(measured) + of_further);
        let mut all = vec![first];
        for number in 2..=count {
            bar.set_message(format!("start {number} of {count}, after "));
            bar.tick();
            match starts::another(number, took) {
                Ok(start) => all.push(start),
                Err(failure) if self.starts.is_some() => return Err(failure),
                Err(failure) => {
                    eprintln!("warning: {}; the profile is of {} starts", failure.in_one_line(), all.len());
                    break;
                }
            }
            bar.set_position(all.iter().map(|start| start.measured.seconds.len() as u64).sum());
        }
        Ok(all)
    }

    /// What another process has started to measure beside it, or after it.
    fn beside_another(&self, model: &ChosenModel) -> Result<ExitCode, Failure> {
        let hidden = ProgressBar::hidden();
        if self.one_start {
            starts::end_with_whoever_waits();
        }
        let First { start, .. } = self.first(model, &hidden)?;
        let text = serde_json::to_string(&start);
        let text = text.map_err(|error| Failure::failed("what was measured cannot be said").cause(error))?;
        unless_closed(writeln!(std::io::stdout(), "{text}"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// One start, beside the other workers.
    fn first(&self, model: &ChosenModel, bar: &ProgressBar) -> Result<First, Failure> {
        let options = self.options(model);
        let source = self.data.clone().unwrap_or_default();
        let training = TrainOptions {
            model: model.name(),
            own_model: model.own_name(),
            data: source.clone(),
            batch: BatchSize::Local(options.local_batch),
            optimizer: options.optimizer,
            threads: options.threads,
            ..TrainOptions::default()
        };
        let available_bytes = available_memory();
        model.check_memory(&training, [self.workers, self.workers], available_bytes)?;
        let (data, mut backend) = model.load(&source, training.seed)?;
        let name = model.own_name().unwrap_or_else(|| model.name().to_string());
        let mut profile = |told: &mut (dyn FnMut(&[f64]) + Send)| {
            self.on_own_cores(|| profile_model(&name, backend.as_mut(), &data.training, &options, told))
        };
        if self.keep_busy.is_some() {
            // It ends when it is told to.
            let measured = profile(&mut keep_busy())?;
            return Err(Failure::failed(format!("a worker ended after {} iterations", measured.seconds.len())));
        }
        let mut others = Others::start(self.workers - 1)?;
        let measured = profile(&mut |seconds| {
            if seconds.is_empty() {
                others.note();
            }
            bar.set_position(seconds.len() as u64);
        })?;
        let start = ProfiledStart { measured, beside: others.end()? };
        let peak_bytes = peak_memory();
        let need = need_of(model, &options, backend.as_ref(), &data, peak_bytes);
        let need = MemoryNeed { available_bytes, ..need };
        // Of the sample that is there for trying nobody wants to know what an epoch costs.
        let epoch_samples = self.data.is_some().then(|| data.training.len());
        Ok(First { start, need, peak_bytes, epoch_samples })
    }

    /// Does so on the cores that a worker of several would have. A thread of its own is confined to them: processes that this one starts are to
    /// choose among all.
    fn on_own_cores<R: Send>(&self, compute: impl FnOnce() -> R + Send) -> R {
        if self.workers == 1 {
            return compute();
        }
        let confined = || {
            confine_worker(self.threads(), self.keep_busy.unwrap_or(0));
            compute()
        };
        thread::scope(|scope| scope.spawn(confined).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// How each start is measured.
    fn options(&self, model: &ChosenModel) -> ProfileOptions {
        let usual = ProfileOptions::default();
        ProfileOptions {
            local_batch: self.local_batch.unwrap_or_else(|| model.usual_batch()),
            warm_up: self.warmup.unwrap_or(usual.warm_up),
            length: self.length(self.one_start),
            threads: self.threads(),
            optimizer: self.optimizer.unwrap_or_default(),
            device: Machine::this().processor,
        }
    }

    /// How many iterations of a start count, the first one or a further one.
    fn length(&self, further: bool) -> Length {
        match (ProfileOptions::default().length, self.iterations) {
            _ if self.keep_busy.is_some() => Length::Iterations(usize::MAX),
            (_, Some(iterations)) => Length::Iterations(iterations),
            (Length::Confident { relative, at_least, at_most, budget }, None) if further => {
                Length::Confident { relative, at_least, at_most, budget: budget / starts::SHARE }
            }
            (length, None) => length,
        }
    }
}

/// What the start of a model says that is not measured again.
struct First {
    start: ProfiledStart,
    need: MemoryNeed,
    peak_bytes: Option<u64>,
    epoch_samples: Option<usize>,
}

/// A file's name without what may stand at its end, the last first: of a trace `.pt.trace.json.gz`.
fn name_of(path: &Path, ends: &[&str]) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    ends.iter().fold(name, |name, end| name.strip_suffix(end).unwrap_or(&name).to_owned())
}

/// What a worker takes: of a model of the house as it is counted, of one of the caller's own by what this process has taken
/// beyond its parameters.
fn need_of(
    model: &ChosenModel,
    options: &ProfileOptions,
    backend: &dyn Backend,
    data: &Data,
    peak_bytes: Option<u64>,
) -> MemoryNeed {
    let (copies, samples) = (options.optimizer.state_copies(), data.training.bytes() + data.test.bytes());
    if model.own_name().is_none() {
        return memory_need(model.name(), copies, samples);
    }
    let parameters = backend.parameters().iter().map(|tensor: &TensorInfo| tensor.elements() as u64).sum();
    let fixed_bytes = memory_of_parameters(parameters, Some(copies), 1).worker_bytes().saturating_add(samples);
    let of_samples = peak_bytes.unwrap_or(0).saturating_sub(fixed_bytes);
    MemoryNeed { fixed_bytes, bytes_per_sample: of_samples / options.local_batch as u64, available_bytes: None }
}

/// On standard error, and only if that is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}{pos} iterations [{elapsed}]") {
        bar.set_style(style);
    }
    bar
}

impl ChosenModel {
    fn usual_batch(&self) -> usize {
        match self {
            ChosenModel::BuiltIn(model) => usual_batch(*model),
            ChosenModel::Own(..) => ProfileOptions::default().local_batch,
        }
    }
}
