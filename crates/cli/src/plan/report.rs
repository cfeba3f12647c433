//! The answer, for a file and for people.

use std::fmt;
use std::time::Duration;

use paceline_predict::search::{Answer, Candidate, DdpSettings, Effect, Explanation, Question, Reason, Verdict, mark};
use paceline_predict::{Prediction, serving_hosts};
use serde::Serialize;

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
pub struct Report {
    cluster: String,
    model: String,
    device: String,
    profile_source: String,
    workers: usize,
    hosts: usize,
    /// `use`, `plain` or `fewer-workers`.
    verdict: &'static str,
    /// With `fewer-workers`.
    use_workers: Option<usize>,
    /// The best one.
    best: Row,
    /// What `strategy=auto` would take; None: the best one.
    auto: Option<AutoRow>,
    communication_bound: bool,
    c2c: f64,
    all_reduce_factor: f64,
    intensity: Option<f64>,
    published_intensity: Option<f64>,
    bottleneck: String,
    bottleneck_share: f64,
    /// Of `--what-if`: what the best strategy reaches without the changes.
    pub unchanged_samples_per_s: Option<f64>,
    /// Where that leaves what was measured.
    pub unchanged_extrapolated: Vec<String>,
    plain_samples_per_s: Option<f64>,
    plain_extrapolated: Vec<String>,
    alone_samples_per_s: f64,
    /// In words.
    pub reasons: Vec<String>,
    effects: Vec<EffectRow>,
    /// Of each kind of arch, each schedule and each protocol the best one, the best of all first.
    candidates: Vec<Row>,
    left_out: Vec<LeftOutRow>,
    epoch_samples: Option<usize>,
    epoch_s: Option<f64>,
    epoch_price: Option<f64>,
    /// Has somebody said what a host costs?
    #[serde(skip)]
    priced: bool,
    /// None: they cannot be predicted.
    ddp: Option<DdpRow>,
    predictions: usize,
    /// Of candidates, message by message.
    played: usize,
    elapsed_us: f64,
    /// What is beyond what was measured.
    pub extrapolated: Vec<String>,
}

/// A strategy and what it would do.
#[derive(Clone, Serialize)]
struct Row {
    strategy: String,
    local_batch: usize,
    iteration_s: f64,
    iteration_low_s: f64,
    iteration_high_s: f64,
    predicted_samples_per_s: f64,
    samples_per_s_low: f64,
    samples_per_s_high: f64,
    speedup: f64,
    exposed_s: f64,
    communication_s: f64,
    operations: usize,
    buckets: usize,
    forward_overlap: bool,
    gap: f64,
    epoch_price: Option<f64>,
    plan_hash: String,
    extrapolated: Vec<String>,
}

/// What is taken instead of the best one.
#[derive(Serialize)]
struct AutoRow {
    strategy: String,
    predicted_samples_per_s: f64,
    extrapolated: Vec<String>,
}

#[derive(Serialize)]
struct EffectRow {
    change: String,
    predicted_samples_per_s: f64,
    gain: f64,
    extrapolated: Vec<String>,
}

#[derive(Serialize)]
struct LeftOutRow {
    arch: String,
    /// Where there are several to choose from.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    schedule: Option<String>,
    local_batch: usize,
    /// Not more than this; null if it was refused.
    samples_per_s_max: Option<f64>,
    refused: Option<String>,
}

#[derive(Serialize)]
struct DdpRow {
    settings: String,
    bucket_cap_mb: Option<u64>,
    comm_hook: Option<&'static str>,
    predicted_samples_per_s: f64,
    extrapolated: Vec<String>,
}

/// What an epoch is.
pub struct Epoch {
    /// None: nobody has said.
    pub samples: Option<usize>,
    pub price_per_host_hour: Option<f64>,
}

impl Report {
    pub fn new(
        question: &Question,
        answer: &Answer,
        explanation: &Explanation,
        epoch: &Epoch,
        top: usize,
        elapsed: Duration,
    ) -> Report {
        let hosts = question.cluster.hosts_of(question.workers);
        let best = answer.best();
        let row = |candidate: &Candidate| Row::of(question, candidate, epoch);
        let (verdict, use_workers) = match explanation.verdict {
            Verdict::Use => ("use", None),
            Verdict::PlainIsAsGood => ("plain", None),
            Verdict::FewerWorkers(workers) => ("fewer-workers", Some(workers)),
        };
        Report {
            cluster: question.cluster.name.clone(),
            model: question.profile.model.clone(),
            device: question.profile.device.clone(),
            profile_source: question.profile.source.clone(),
            workers: question.workers,
            hosts,
            verdict,
            use_workers,
            best: row(best),
            auto: answer.taken_instead().map(|(taken, _)| AutoRow::of(taken)),
            communication_bound: explanation.communication_bound,
            c2c: explanation.c2c,
            all_reduce_factor: explanation.all_reduce_factor,
            intensity: explanation.intensity,
            published_intensity: explanation.published_intensity,
            bottleneck: explanation.bottleneck.clone(),
            bottleneck_share: explanation.bottleneck_share,
            unchanged_samples_per_s: None,
            unchanged_extrapolated: Vec::new(),
            plain_samples_per_s: explanation.plain_samples_per_s,
            plain_extrapolated: explanation.plain_extrapolated.clone(),
            alone_samples_per_s: explanation.alone_samples_per_s,
            reasons: explanation.sentences.clone(),
            effects: explanation.effects.iter().map(EffectRow::of).collect(),
            candidates: answer.best_of_each_kind().take(top).map(row).collect(),
            left_out: left_out(answer),
            epoch_samples: epoch.samples,
            epoch_s: epoch.seconds(best),
            epoch_price: epoch.price(question, best),
            priced: epoch.price_per_host_hour.is_some(),
            ddp: explanation.ddp.as_ref().map(DdpRow::of),
            predictions: answer.predictions,
            played: answer.played,
            elapsed_us: elapsed.as_secs_f64() * 1e6,
            extrapolated: best.prediction.extrapolated.clone(),
        }
    }
}

impl Epoch {
    fn seconds(&self, candidate: &Candidate) -> Option<f64> {
        self.samples.map(|samples| samples as f64 / candidate.prediction.samples_per_s)
    }

    /// Of all hosts, also of those that only serve, supposed ones included.
    fn price(&self, question: &Question, candidate: &Candidate) -> Option<f64> {
        let Question { cluster, workers, .. } = *question;
        let hosts = cluster.hosts_of(workers) + serving_hosts(cluster, workers, &candidate.strategy);
        Some(self.price_per_host_hour? * hosts as f64 * self.seconds(candidate)? / 3600.0)
    }
}

fn left_out(answer: &Answer) -> Vec<LeftOutRow> {
    let row = |left_out: &paceline_predict::search::LeftOut| {
        let (samples_per_s_max, refused) = match &left_out.reason {
            Reason::Bound(samples_per_s) => (Some(*samples_per_s), None),
            Reason::Refused(reason) => (None, Some(reason.clone())),
        };
        let paceline_predict::search::LeftOut { arch, protocol, schedule, local_batch, .. } = left_out;
        let (arch, protocol) = (arch.clone(), protocol.clone());
        let (schedule, local_batch) = (schedule.clone(), *local_batch);
        LeftOutRow { arch, protocol, schedule, local_batch, samples_per_s_max, refused }
    };
    answer.left_out.iter().map(row).collect()
}

impl Row {
    fn of(question: &Question, candidate: &Candidate, epoch: &Epoch) -> Row {
        let Prediction { iteration_s, low_s, high_s, samples_per_s, plan, extrapolated, .. } = &candidate.prediction;
        let samples = (question.workers * candidate.local_batch) as f64;
        Row {
            strategy: candidate.strategy.to_string(),
            local_batch: candidate.local_batch,
            iteration_s: *iteration_s,
            iteration_low_s: *low_s,
            iteration_high_s: *high_s,
            predicted_samples_per_s: *samples_per_s,
            samples_per_s_low: samples / high_s,
            samples_per_s_high: samples / low_s,
            speedup: candidate.prediction.speedup,
            exposed_s: candidate.prediction.exposed_s,
            communication_s: candidate.prediction.communication_s,
            operations: plan.operations(),
            buckets: plan.buckets.len(),
            forward_overlap: plan.forward_overlap,
            gap: candidate.gap,
            epoch_price: epoch.price(question, candidate),
            plan_hash: format!("{:016x}", plan.hash()),
            extrapolated: extrapolated.clone(),
        }
    }
}

impl AutoRow {
    fn of(taken: &Candidate) -> AutoRow {
        AutoRow {
            strategy: taken.strategy.to_string(),
            predicted_samples_per_s: taken.prediction.samples_per_s,
            extrapolated: taken.prediction.extrapolated.clone(),
        }
    }
}

impl DdpRow {
    fn of(ddp: &DdpSettings) -> DdpRow {
        DdpRow {
            settings: ddp.to_string(),
            bucket_cap_mb: ddp.bucket_cap_mb,
            comm_hook: ddp.comm_hook,
            predicted_samples_per_s: ddp.prediction.samples_per_s,
            extrapolated: ddp.prediction.extrapolated.clone(),
        }
    }
}

impl EffectRow {
    fn of(effect: &Effect) -> EffectRow {
        let Effect { change, samples_per_s, gain, extrapolated } = effect;
        let (change, extrapolated) = (change.clone(), extrapolated.clone());
        EffectRow { change, predicted_samples_per_s: *samples_per_s, gain: *gain, extrapolated }
    }
}

/// What is printed: the answer, the reasons, the runners-up.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let (workers, hosts) = (plural(self.workers, "worker"), plural(self.hosts, "host"));
        writeln!(f, "{}@{} on {workers} ({hosts}) of {}", self.model, self.device, self.cluster)?;
        writeln!(f, "{}", self.best.strategy)?;
        writeln!(f, "{}, {:.2} times one worker's\n", self.best.throughput(), self.best.speedup)?;
        for reason in &self.reasons {
            writeln!(f, "- {reason}")?;
        }
        if let Some(workers) = self.use_workers {
            writeln!(f, "- --workers {workers} says with which strategy")?;
        }
        if let Some(unchanged) = self.unchanged_samples_per_s {
            let mark = mark(&self.unchanged_extrapolated);
            writeln!(f, "- Without what --what-if changes the best strategy reaches {unchanged:.1} samples/s{mark}")?;
        }
        if self.played > 0 {
            let (candidates, were) = (plural(self.played, "candidate"), if self.played == 1 { "was" } else { "were" });
            writeln!(
                f,
                "- {candidates} {were} played message by message, as formulas know too little of servers with few partitions"
            )?;
        }
        for doubt in &self.extrapolated {
            writeln!(f, "- Extrapolated: {doubt}")?;
        }
        for refused in self.left_out.iter().filter(|row| row.refused.is_some()) {
            writeln!(f, "- {refused}")?;
        }
        if let Some((samples, seconds)) = self.epoch_samples.zip(self.epoch_s) {
            write!(f, "- An epoch of {samples} samples takes {}", duration(seconds))?;
            match self.epoch_price {
                Some(price) => writeln!(f, " and costs {price:.2}")?,
                None => writeln!(f)?,
            }
        } else if self.priced {
            writeln!(
                f,
                "- What an epoch costs is not known, as nobody has said of how many samples it is: --epoch does"
            )?;
        }
        writeln!(f)?;
        writeln!(f, "Runners-up, the best of each kind:")?;
        for row in self.candidates.iter().skip(1) {
            let price = row.epoch_price.map_or_else(String::new, |price| format!(", {price:.2} an epoch"));
            let doubt = if row.extrapolated.is_empty() { "" } else { " (extrapolated)" };
            writeln!(f, "  {}{price}{doubt}\n    {}", row.throughput(), row.strategy)?;
        }
        if self.candidates.len() < 2 {
            writeln!(f, "  none")?;
        }
        let Some(ddp) = &self.ddp else { return Ok(()) };
        let hook = ddp.comm_hook.map_or("no communication hook", |_| "that hook");
        writeln!(f, "\nWith PyTorch, what comes closest ({hook}):\n  {}", ddp.settings)?;
        let (rate, mark) = (ddp.predicted_samples_per_s, mark(&ddp.extrapolated));
        writeln!(f, "  {rate:.1} samples/s, if its all-reduce is as fast as this one{mark}")
    }
}

/// Of one that was refused.
impl fmt::Display for LeftOutRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOutRow { arch, protocol, schedule, local_batch, refused, .. } = self;
        let schedule = schedule.as_ref().map_or_else(String::new, |schedule| format!("schedule={schedule},"));
        let protocol = protocol.as_ref().map_or_else(String::new, |protocol| format!(",protocol={protocol}"));
        let reason = refused.as_deref().unwrap_or("cannot be the best");
        write!(f, "Not predicted: {schedule}arch={arch}{protocol} with a local batch of {local_batch}: {reason}")
    }
}

impl Row {
    fn throughput(&self) -> String {
        let Row { predicted_samples_per_s, samples_per_s_low, samples_per_s_high, local_batch, .. } = self;
        format!(
            "{predicted_samples_per_s:.1} samples/s ({samples_per_s_low:.1} to {samples_per_s_high:.1}) with a local batch \
             of {local_batch}"
        )
    }
}

/// As people say it.
fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86_400.0),
    }
}
