//! What a profile comes to.

use std::io::{self, Write};

use paceline_plan::Profile;
use paceline_predict::published_intensity;
use serde::Serialize;

use super::Made;

/// What stands in the file behind `--json`, besides machine and command line.
#[derive(Serialize)]
pub struct Summary {
    model: String,
    device: String,
    source: String,
    threads: Option<usize>,
    tensors: usize,
    parameters: usize,
    local_batch: usize,
    extrapolated_from: Option<usize>,
    iterations: Option<usize>,
    starts: Option<usize>,
    forward_s: f64,
    backward_s: f64,
    update_s: f64,
    /// With what is none of the three, where that is known.
    iteration_s: Option<f64>,
    /// Of it what a GPU waits, which is none of the three either.
    waiting_s: Option<f64>,
    /// Of one worker that waits for nobody.
    samples_per_s: f64,
    uncertainty: Option<f64>,
    spread: Option<f64>,
    forward_macs_per_sample: Option<u64>,
    flops_per_sample: Option<f64>,
    flops_per_s: Option<f64>,
    intensity: Option<f64>,
    published_intensity: Option<f64>,
    worker_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    available_bytes: Option<u64>,
    largest_local_batch: Option<u64>,
}

impl Summary {
    /// Of a profile.
    pub fn new(made: &Made) -> Summary {
        let Made { profile, threads, iterations, starts, iteration_s, waiting_s, peak_bytes } = made;
        let samples_per_s = profile.local_batch as f64 / profile.iteration_s();
        let memory = profile.memory.as_ref();
        Summary {
            model: profile.model.clone(),
            device: profile.device.clone(),
            source: profile.source.clone(),
            threads: *threads,
            tensors: profile.tensors.len(),
            parameters: profile.parameters(),
            local_batch: profile.local_batch,
            extrapolated_from: profile.scaled_from(),
            iterations: *iterations,
            starts: *starts,
            forward_s: profile.forward_s(),
            backward_s: profile.backward_s(),
            update_s: profile.update_s,
            iteration_s: *iteration_s,
            waiting_s: *waiting_s,
            samples_per_s,
            uncertainty: profile.uncertainty,
            spread: profile.spread,
            forward_macs_per_sample: profile.forward_macs_per_sample(),
            flops_per_sample: profile.flops_per_sample(),
            flops_per_s: profile.flops_per_sample().map(|operations| operations * samples_per_s),
            intensity: profile.intensity(),
            published_intensity: published_intensity(&profile.model),
            worker_bytes: memory.map(|memory| memory.worker_bytes(profile.local_batch)),
            peak_bytes: *peak_bytes,
            available_bytes: memory.and_then(|memory| memory.available_bytes),
            largest_local_batch: memory.and_then(|memory| memory.largest_local_batch()),
        }
    }

    /// In words, with the tensors that take longest.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
        let Summary { model, device, tensors, parameters, local_batch, .. } = self;
        writeln!(out, "{model} on {device}: {tensors} tensors, {parameters} parameters, local batch {local_batch}")?;
        let (forward, backward, update) = (time(self.forward_s), time(self.backward_s), time(self.update_s));
        let uncertainty = self.uncertainty.map(|share| format!(" ± {:.1} %", 100.0 * share)).unwrap_or_default();
        let speed = digits(self.samples_per_s, 4);
        writeln!(out, "forward {forward}, backward {backward}, update {update}: {speed} samples/s{uncertainty} alone")?;
        if let Some(spread) = self.spread.filter(|spread| 0.5 * spread > WORTH_SAYING) {
            let more = 100.0 * 0.5 * spread;
            writeln!(out, "iterations differ: of two workers the slower one takes {more:.1} % longer than one alone")?;
        }
        if let Some(samples) = self.extrapolated_from {
            writeln!(out, "extrapolated from a local batch of {samples}; how well others use the device is not known")?;
        }
        if let Some(iteration_s) = self.iteration_s {
            let waiting_s = self.waiting_s.unwrap_or(0.0);
            let outside_s = (iteration_s - waiting_s - profile.iteration_s()).max(0.0);
            writeln!(out, "an iteration takes {}, {} of it none of these", time(iteration_s), time(outside_s))?;
            if waiting_s > WORTH_SAYING * iteration_s {
                let waiting = time(waiting_s);
                writeln!(
                    out,
                    "for {waiting} of it the GPU computes nothing, which is not counted: it waits for communication, for data, or for \
                     its program, which recording slows (tools/profile_torch.py measures without)"
                )?;
            }
        }
        if let (Some(operations), Some(rate), Some(intensity)) =
            (self.flops_per_sample, self.flops_per_s, self.intensity)
        {
            let (operations, rate) = (with_prefix(operations), with_prefix(rate));
            let published = self.published_intensity.map(|known| format!("; published: {known}")).unwrap_or_default();
            writeln!(
                out,
                "{operations}FLOP per sample, {rate}FLOP/s, I = {intensity:.1} per parameter and sample{published}"
            )?;
        }
        self.write_memory(out)?;
        write_longest(profile, out)?;
        writeln!(out, "{}", self.source)
    }

    fn write_memory(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(worker) = self.worker_bytes else { return Ok(()) };
        let bytes = |bytes: u64| with_prefix(bytes as f64);
        let peak = self.peak_bytes.map(|peak| format!(" (this process: {}B)", bytes(peak))).unwrap_or_default();
        let largest = self.largest_local_batch.zip(self.available_bytes);
        let largest = largest.map(|(largest, available)| format!("; {largest} samples fit in {}B", bytes(available)));
        writeln!(out, "memory of a worker {}B{peak}{}", bytes(worker), largest.unwrap_or_default())
    }
}

/// A share of an iteration.
const WORTH_SAYING: f64 = 0.01;

/// Tensors that are shown.
const SHOWN: usize = 5;

fn write_longest(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut seconds = vec![[0.0; 2]; profile.tensors.len()];
    for (phase, steps) in [&profile.forward, &profile.backward].into_iter().enumerate() {
        steps.iter().for_each(|step| seconds[step.tensor][phase] += step.seconds);
    }
    let ready_s = profile.ready_s();
    let mut order: Vec<usize> = (0..seconds.len()).collect();
    order.sort_by(|&one, &other| seconds[other].iter().sum::<f64>().total_cmp(&seconds[one].iter().sum()));
    let shown = &order[..SHOWN.min(order.len())];
    let width = shown.iter().map(|&tensor| profile.tensors[tensor].name.chars().count()).max().unwrap_or(0);
    for &tensor in shown {
        let (name, [forward, backward]) = (&profile.tensors[tensor].name, seconds[tensor].map(time));
        let ready = time(ready_s[tensor]);
        writeln!(out, "  {name:<width$}  forward {forward:>8}  backward {backward:>8}  final after {ready:>8}")?;
    }
    Ok(())
}

/// Three digits and a unit.
fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        seconds if seconds >= 1.0 => (seconds, "s"),
        seconds if seconds >= 1e-3 => (seconds * 1e3, "ms"),
        seconds => (seconds * 1e6, "us"),
    };
    format!("{} {unit}", digits(number, 3))
}

/// Three digits and the beginning of a unit: `13.9 G`.
fn with_prefix(number: f64) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (factor, prefix) = prefixes.into_iter().find(|(factor, _)| number >= *factor).unwrap_or((1.0, ""));
    format!("{} {prefix}", digits(number / factor, 3))
}

/// With at least so many digits, one of them before the point.
fn digits(number: f64, count: usize) -> String {
    let before = [10.0, 100.0, 1000.0].into_iter().filter(|power| number >= *power).count() + 1;
    let after = count.saturating_sub(before);
    format!("{number:.after$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_plan::{MemoryNeed, built_in_profile};

    fn text(profile: Profile) -> String {
        let made = Made { iterations: Some(7), peak_bytes: Some(2_000_000_000), ..Made::from(profile) };
        let mut out = Vec::new();
        Summary::new(&made).write(&made.profile, &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_profile_is_summed_up() {
        let memory =
            MemoryNeed { fixed_bytes: 1_000_000_000, bytes_per_sample: 1 << 20, available_bytes: Some(2 << 30) };
        let profile = built_in_profile("bert-base").expect("it is built in");
        let text = text(Profile { memory: Some(memory), uncertainty: Some(0.051), ..profile });
        for words in [
            "bert-base on rtx2080ti: 206 tensors, 110111042 parameters, local batch 64\n",
            "forward 94.3 ms, backward 189 ms, update 17.9 ms: 212.8 samples/s ± 5.1 % alone",
            "41.8 GFLOP per sample, 8.91 TFLOP/s, I = 190.0 per parameter and sample; published: 249\n",
            "memory of a worker 1.07 GB (this process: 2.00 GB); 1094 samples fit in 2.15 GB\n",
            "\n  bert.embeddings.word_embeddings.weight ",
            "  forward  20.3 ms  backward  40.6 ms  final after   189 ms\n",
            "derived: 212.8 samples/s on one GPU",
        ] {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
        // Five tensors, and nothing is said that is not known.
        assert_eq!(text.lines().count(), 4 + SHOWN + 1, "{text}");
    }

    #[test]
    fn what_the_study_does_not_publish_is_not_shown() {
        let profile = built_in_profile("bert-base").expect("it is built in");
        let made = Made::from(Profile { model: "mine".to_owned(), ..profile.clone() });
        let (own, known) = (Summary::new(&made), Summary::new(&Made::from(profile)));
        assert_eq!((own.published_intensity, known.published_intensity), (None, Some(249.0)));
        assert!(own.intensity == known.intensity && !text(made.profile).contains("published"));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.0, 2e-6, 0.0123, 0.5, 12.0, 1234.0].map(time),
            ["0.00 us", "2.00 us", "12.3 ms", "500 ms", "12.0 s", "1234 s"]
        );
        assert_eq!([0.0, 999.0, 41.8e9, 2e16].map(with_prefix), ["0.00 ", "999 ", "41.8 G", "20.0 P"]);
    }
}
