//! A prediction, for people and for programs.

use std::fmt;

use paceline_predict::iteration::{Lane, Span};
use paceline_predict::{Bottleneck, ByMessage, Job, Prediction, published_intensity};
use serde::Serialize;

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
pub struct Report {
    cluster: String,
    model: String,
    device: String,
    strategy: String,
    world_size: usize,
    local_batch: usize,
    prediction: Predicted,
    timeline: Vec<Piece>,
    by_message: Option<Played>,
    elapsed_us: Option<f64>,
    searched_us: Option<f64>,
}

#[derive(Serialize)]
struct Predicted {
    iteration_s: f64,
    low_s: f64,
    high_s: f64,
    samples_per_s: f64,
    speedup: f64,
    forward_s: f64,
    backward_s: f64,
    update_s: f64,
    communication_s: f64,
    exposed_communication_s: f64,
    c2c: Option<f64>,
    intensity: Option<f64>,
    published_intensity: Option<f64>,
    all_reduce_factor: f64,
    bytes_sent: f64,
    messages: usize,
    memory_bytes: Option<u64>,
    buckets: usize,
    operations: usize,
    bottleneck: Bottleneck,
    bottleneck_share: f64,
    extrapolated: Vec<String>,
}

/// The same iteration, message by message.
#[derive(Serialize)]
struct Played {
    iteration_s: f64,
    deviation_s: f64,
    /// Times the predicted one.
    over_prediction: f64,
    messages: usize,
    left_out: Vec<String>,
    elapsed_us: f64,
}

/// A span of the timeline.
#[derive(Serialize)]
struct Piece {
    lane: &'static str,
    start_s: f64,
    end_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<usize>,
}

impl Report {
    /// Of a prediction that took so many microseconds, after a search of so many, if there was one.
    pub fn new(job: &Job<'_>, prediction: &Prediction, elapsed_us: Option<f64>, searched_us: Option<f64>) -> Report {
        let local_batch = job.local_batch.unwrap_or(job.profile.local_batch);
        Report {
            cluster: job.cluster.name.clone(),
            model: job.profile.model.clone(),
            device: job.profile.device.clone(),
            strategy: job.strategy.to_string(),
            world_size: job.workers,
            local_batch,
            prediction: Predicted {
                iteration_s: prediction.iteration_s,
                low_s: prediction.low_s,
                high_s: prediction.high_s,
                samples_per_s: prediction.samples_per_s,
                speedup: prediction.speedup,
                forward_s: prediction.forward_s,
                backward_s: prediction.backward_s,
                update_s: prediction.update_s,
                communication_s: prediction.communication_s,
                exposed_communication_s: prediction.exposed_s,
                c2c: Some(prediction.c2c).filter(|c2c| c2c.is_finite()),
                intensity: prediction.intensity,
                published_intensity: published_intensity(&job.profile.model),
                all_reduce_factor: prediction.all_reduce_factor,
                bytes_sent: prediction.bytes_sent,
                messages: prediction.messages,
                memory_bytes: prediction.memory_bytes,
                buckets: prediction.plan.buckets.len(),
                operations: prediction.plan.operations(),
                bottleneck: prediction.bottleneck,
                bottleneck_share: prediction.bottleneck_share,
                extrapolated: prediction.extrapolated.clone(),
            },
            timeline: prediction.timeline.iter().map(Piece::of).collect(),
            by_message: None,
            elapsed_us,
            searched_us,
        }
    }

    /// With what came out message by message, if it was played, in so many microseconds; and its timeline.
    pub fn with_messages(self, played: Option<&(ByMessage, f64)>) -> Report {
        let Some((played, elapsed_us)) = played else { return self };
        let ByMessage { iteration_s, deviation_s, messages, .. } = *played;
        let over_prediction =
            if self.prediction.iteration_s > 0.0 { iteration_s / self.prediction.iteration_s } else { 1.0 };
        let (left_out, elapsed_us) = (played.left_out.clone(), *elapsed_us);
        let by_message = Played { iteration_s, deviation_s, over_prediction, messages, left_out, elapsed_us };
        let timeline = played.timeline.iter().map(Piece::of).collect();
        Report { by_message: Some(by_message), timeline, ..self }
    }
}

impl Piece {
    fn of(span: &Span) -> Piece {
        let Span { lane, start_s, end_s, tensor, operation, .. } = *span;
        Piece { lane: Lane::name(lane), start_s, end_s, tensor, operation }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { prediction, .. } = self;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, text: String| writeln!(f, "  {name:<15} {text}");
        let workers = if self.world_size == 1 { "worker" } else { "workers" };
        writeln!(f, "{}@{} on {} {workers} of {}", self.model, self.device, self.world_size, self.cluster)?;
        writeln!(f, "{}", self.strategy)?;
        let interval = format!("{} to {}", ms(prediction.low_s), ms(prediction.high_s));
        row(
            f,
            "iteration",
            format!("{} ({interval}, 95 % by the constants and the model)", ms(prediction.iteration_s)),
        )?;
        let (speed, speedup) = (prediction.samples_per_s, prediction.speedup);
        row(f, "throughput", format!("{speed:.1} samples/s, {speedup:.2} times one worker's"))?;
        let parts = [
            ("forward", prediction.forward_s),
            ("backward", prediction.backward_s),
            ("optimiser", prediction.update_s),
        ];
        let parts = parts.map(|(name, seconds)| format!("{name} {}", ms(seconds)));
        row(f, "computation", parts.join(", "))?;
        row(
            f,
            "communication",
            format!("{}, of which {} exposed", ms(prediction.communication_s), ms(prediction.exposed_communication_s)),
        )?;
        row(
            f,
            "travelling",
            format!(
                "{:.1} MB from each worker in {} operations of {} buckets",
                prediction.bytes_sent / 1e6,
                prediction.operations,
                prediction.buckets
            ),
        )?;
        if let (Some(c2c), Some(intensity)) = (prediction.c2c, prediction.intensity) {
            let published = prediction.published_intensity.map(|published| format!(", published as {published}"));
            let factor = prediction.all_reduce_factor;
            let published = published.unwrap_or_default();
            row(f, "C2C", format!("{c2c:.2e} = f(N)/(M·I), f(N) = {factor:.3}, I = {intensity:.0}{published}"))?;
        }
        if let Some(bytes) = prediction.memory_bytes {
            row(f, "memory", format!("{:.2} GB per worker", bytes as f64 / 1e9))?;
        }
        let share = 100.0 * prediction.bottleneck_share;
        row(f, "limited by", format!("{}, {share:.0} % of the iteration", prediction.bottleneck))?;
        if let Some(Played { iteration_s, over_prediction, messages, left_out, elapsed_us, .. }) = &self.by_message {
            let seconds = format!("{}, {over_prediction:.3} times the prediction", ms(*iteration_s));
            row(f, "by message", format!("{seconds}; {messages} messages, played in {:.0} ms", elapsed_us / 1e3))?;
            for what in left_out {
                row(f, "", format!("not among messages: {what}"))?;
            }
        }
        for doubt in &prediction.extrapolated {
            row(f, "extrapolated", doubt.clone())?;
        }
        if let Some(searched_us) = self.searched_us {
            row(f, "searched in", format!("{:.0} ms, for what the strategy leaves open", searched_us / 1e3))?;
        }
        let beside = if self.searched_us.is_some() { ", without the search" } else { "" };
        self.elapsed_us.map_or(Ok(()), |elapsed_us| row(f, "predicted in", format!("{elapsed_us:.0} us{beside}")))
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.2} ms", 1e3 * seconds)
}
