//! Why a strategy is the best one, and what would bring more: in words, every number predicted.

use std::fmt;

use paceline_plan::{Cluster, Profile};
use paceline_strategy::{Call, Strategy, Value};

use super::what_if::faster;
use super::{Answer, Candidate, Change, Question, SearchError, Space, apply_changes, search};
use crate::prediction::scaled;
use crate::{Job, PredictError, Prediction, estimate, published_intensity, serving_hosts};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The best strategy is worth it.
    Use,
    /// None of it: one bucket after backward, all-to-all, is as good.
    PlainIsAsGood,
    /// So many workers have the throughput of all of them, or more.
    FewerWorkers(usize),
}

/// What a change would bring at least: with the best schedule for it on the answer's arch or all-to-all, of those that are
/// found without improving plans bucket by bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// What changes, in words.
    pub change: String,
    /// The predicted throughput, at least.
    pub samples_per_s: f64,
    /// The throughput over what the same search finds without the change, less 1.
    pub gain: f64,
    /// Where this leaves what was measured, in words.
    pub extrapolated: Vec<String>,
}

/// Why an answer is what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What to do.
    pub verdict: Verdict,
    /// Is there more exposed communication than computation in the iteration even with the best of all lossless strategies, also
    /// of those that the question does not leave open? Then every other one leaves more.
    pub communication_bound: bool,
    /// C2C = f(N)/(M·I): numbers that are communicated for each multiply-accumulate that is computed. NaN if the profile has
    /// none.
    pub c2c: f64,
    /// f(N) = 2(N − 1)/N: how often an all-reduce moves each number, at least.
    pub all_reduce_factor: f64,
    /// Model intensity I: multiply-accumulates of an iteration per parameter and sample; None if the profile has none.
    pub intensity: Option<f64>,
    /// What the survey publishes as the model's intensity, if it does.
    pub published_intensity: Option<f64>,
    /// What is busiest, and for which share of the iteration.
    pub bottleneck: String,
    /// That share.
    pub bottleneck_share: f64,
    /// The throughput of one bucket after backward, all-to-all. None: it cannot be predicted.
    pub plain_samples_per_s: Option<f64>,
    /// Where that leaves what was measured, and the answer does not, in words.
    pub plain_extrapolated: Vec<String>,
    /// The throughput of a worker alone.
    pub alone_samples_per_s: f64,
    /// What would bring how much; the most first.
    pub effects: Vec<Effect>,
    /// All of it, in words.
    pub sentences: Vec<String>,
}

/// Less than this share is no difference: about what the predictions themselves are off by.
const INDIFFERENT: f64 = 0.01;

/// Explains an answer. What cannot be predicted is left out.
///
/// Costs a search without improvement for each of about six changes and of some smaller numbers of workers, on the answer's
/// way and the plain one; and one of everything if the question does not leave everything open.
pub fn explain(question: &Question, answer: &Answer) -> Explanation {
    let best = answer.best();
    let (prediction, profile) = (&best.prediction, question.profile.for_batch(best.local_batch));
    let plain = plain(question, &profile).ok();
    let plain_samples_per_s = plain.as_ref().map(|plain| plain.samples_per_s);
    let alone_s = profile.forward_s() + profile.backward_s() + profile.update_s;
    let alone_samples_per_s = if alone_s > 0.0 { best.local_batch as f64 / alone_s } else { f64::INFINITY };
    let compute_s = prediction.forward_s + prediction.backward_s + prediction.update_s;
    let mut asked = Asked { question, profile: &profile, best, alike_samples_per_s: prediction.samples_per_s };
    // Like is compared with like.
    let alike = asked.found(question.cluster, question.workers, &profile, None);
    asked.alike_samples_per_s = alike.map_or(prediction.samples_per_s, |alike| alike.samples_per_s);
    let fewer = asked.fewer_workers(alone_samples_per_s);
    let mut effects = asked.effects();
    effects.extend(asked.servers_instead(answer));
    effects.extend(asked.protocols_instead(answer));
    effects.sort_by(|one, other| other.gain.total_cmp(&one.gain));
    let enough = asked.alike_samples_per_s * (1.0 - INDIFFERENT);
    // The most that fewer workers reach; of those that reach it the fewest.
    let most = fewer.iter().map(|fewer| fewer.samples_per_s).fold(enough, f64::max) * (1.0 - INDIFFERENT);
    let worth = |samples_per_s: f64| samples_per_s >= enough && samples_per_s >= most;
    let as_good = |samples_per_s: f64| samples_per_s >= prediction.samples_per_s * (1.0 - INDIFFERENT);
    let verdict = match fewer.iter().find(|fewer| worth(fewer.samples_per_s)) {
        Some(fewer) => Verdict::FewerWorkers(fewer.workers),
        None if plain_samples_per_s.is_some_and(as_good) => Verdict::PlainIsAsGood,
        None => Verdict::Use,
    };
    let mut explanation = Explanation {
        verdict,
        communication_bound: asked.communication_bound(),
        c2c: prediction.c2c,
        all_reduce_factor: prediction.all_reduce_factor,
        intensity: prediction.intensity,
        published_intensity: published_intensity(&question.profile.model),
        bottleneck: prediction.bottleneck.to_string(),
        bottleneck_share: prediction.bottleneck_share,
        plain_samples_per_s,
        plain_extrapolated: plain.map_or_else(Vec::new, |plain| asked.beyond(plain.extrapolated)),
        alone_samples_per_s,
        effects,
        sentences: Vec::new(),
    };
    explanation.sentences = sentences(question, best, compute_s, &explanation, &fewer);
    explanation
}

/// One bucket after backward, all-to-all.
fn plain(question: &Question, profile: &Profile) -> Result<Prediction, PredictError> {
    let Question { cluster, workers, .. } = *question;
    let strategy =
        Strategy { schedule: Call::named("none"), arch: Call::all_to_all("auto"), ..question.space.strategy.clone() };
    let job = Job { cluster, profile, strategy: &strategy, workers, local_batch: None };
    estimate(&job)
}

/// What so many workers reach, with the best strategy for them.
struct Fewer {
    workers: usize,
    samples_per_s: f64,
    /// Where this leaves what was measured, and the answer does not, in words.
    extrapolated: Vec<String>,
}

/// The question for the batch of its answer.
struct Asked<'a> {
    question: &'a Question<'a>,
    profile: &'a Profile,
    best: &'a Candidate,
    /// What the search of a change finds without one.
    alike_samples_per_s: f64,
}

impl Asked<'_> {
    fn communication_bound(&self) -> bool {
        let exposed = |found: &Candidate| {
            let Prediction { forward_s, backward_s, update_s, exposed_s, .. } = found.prediction;
            exposed_s > forward_s + backward_s + update_s
        };
        let Space { strategy, schedulers, forward_overlap, .. } = self.question.space;
        // Where nothing tells protocols apart, there is none to choose.
        let any_protocol = strategy.protocol.name == "auto" || self.question.cluster.protocols.is_empty();
        let all_open = strategy.arch_is_open() && strategy.schedule.name == "auto" && any_protocol;
        if !exposed(self.best) || all_open {
            return exposed(self.best);
        }
        let space = Space {
            schedulers: schedulers.clone(),
            forward_overlap: *forward_overlap,
            effort: 0,
            intervals: 0,
            ..Space::default()
        };
        let question = Question { profile: self.profile, space: &space, ..*self.question };
        // Of what cannot be searched the answer is all that is known.
        search(&question).map_or(true, |answer| exposed(answer.best()))
    }

    /// One worker; one host; a half, a quarter, an eighth of the workers: with the best strategy for so many.
    fn fewer_workers(&self, alone_samples_per_s: f64) -> Vec<Fewer> {
        let Question { cluster, workers, .. } = *self.question;
        let halves = std::iter::successors(Some(workers / 2), |count| Some(count / 2));
        let mut counts: Vec<usize> = halves.take_while(|&count| count > 1).collect();
        counts.push(cluster.workers_per_host);
        counts.sort_unstable();
        counts.dedup();
        counts.retain(|&count| count > 1 && count < workers);
        let of = |workers: usize| {
            let Prediction { samples_per_s, extrapolated, .. } =
                self.found(cluster, workers, self.profile, None).ok()?;
            Some(Fewer { workers, samples_per_s, extrapolated: self.beyond(extrapolated) })
        };
        let alone = Fewer { workers: 1, samples_per_s: alone_samples_per_s, extrapolated: Vec::new() };
        let more = counts.into_iter().filter_map(of);
        if workers > 1 { [alone].into_iter().chain(more).collect() } else { Vec::new() }
    }

    /// Doubts without those of the answer, which stand there.
    fn beyond(&self, mut doubts: Vec<String>) -> Vec<String> {
        doubts.retain(|doubt| !self.best.prediction.extrapolated.contains(doubt));
        doubts
    }

    fn effects(&self) -> Vec<Effect> {
        let Question { cluster, workers, .. } = *self.question;
        let mut effects = Vec::new();
        let mut tell = |change: String, found: Result<Prediction, SearchError>, doubt: Option<String>| {
            // What cannot be predicted is not told.
            if let Ok(Prediction { samples_per_s, extrapolated, .. }) = found {
                let gain = samples_per_s / self.alike_samples_per_s - 1.0;
                let mut extrapolated = self.beyond(extrapolated);
                let doubt = doubt.filter(|doubt| !extrapolated.contains(doubt));
                extrapolated.extend(doubt);
                effects.push(Effect { change, samples_per_s, gain, extrapolated });
            }
        };
        if workers > 1 {
            for (change, other) in faster(cluster, workers) {
                let doubt = cluster.measured.map(|_| "nothing like that was measured here".to_owned());
                tell(change, self.found(&other, workers, self.profile, None), doubt);
            }
            if let Some((shards, arch)) = one_more_shard(&self.best.strategy.arch) {
                let mut other = cluster.clone();
                let mut change = format!("{shards} shards instead of {}", shards - 1);
                // Those that the cluster has, or that the answer supposes.
                let serving = cluster.server_hosts.max(serving_hosts(cluster, workers, &self.best.strategy));
                if arch.word(2) == Some("dedicated") && shards > serving as u64 {
                    other.server_hosts = serving + 1;
                    change.push_str(", on one host more,");
                }
                tell(change, self.found(&other, workers, self.profile, Some(arch)), None);
            }
            let batch = 2 * self.best.local_batch;
            let fits = match self.profile.memory {
                Some(memory) => format!("which takes {:.1} GB of memory", memory.worker_bytes(batch) as f64 / 1e9),
                None => "if it fits in memory".to_owned(),
            };
            let change = format!("a local batch of {batch}, {fits},");
            let larger = self.profile.for_batch(batch);
            tell(change, self.found(cluster, workers, &larger, None), scaled(&larger));
        }
        if let Ok((larger, doubled, _)) = apply_changes(cluster, workers, None, &[Change::Workers(2 * workers)]) {
            let doubt = format!("{} hosts more, which are taken to be like the others", larger.hosts - cluster.hosts);
            let doubt = Some(doubt).filter(|_| larger.hosts > cluster.hosts);
            tell(format!("{doubled} workers"), self.found(&larger, doubled, self.profile, None), doubt);
        }
        effects
    }

    /// What the best servers would bring, where the answer has none and they were searched.
    fn servers_instead(&self, answer: &Answer) -> Option<Effect> {
        if self.best.strategy.arch.name == "ps" {
            return None;
        }
        let served = |candidate: &&Candidate| {
            candidate.strategy.arch.name == "ps" && candidate.local_batch == self.best.local_batch
        };
        let Candidate { strategy, prediction, .. } = answer.candidates.iter().find(served)?;
        let shards = prediction.plan.shards;
        let place =
            if strategy.arch.word(2) == Some("dedicated") { "on hosts of their own" } else { "beside the workers" };
        Some(self.instead(format!("{shards} {} {place}", if shards == 1 { "shard" } else { "shards" }), prediction))
    }

    /// What every other protocol would bring, where several were searched.
    fn protocols_instead(&self, answer: &Answer) -> Vec<Effect> {
        let own = &self.best.strategy.protocol;
        let (mut told, mut effects) = (vec![own], Vec::new());
        // Of each the first is the best.
        for Candidate { strategy, prediction, local_batch, .. } in &answer.candidates {
            if *local_batch == self.best.local_batch && !told.contains(&&strategy.protocol) {
                told.push(&strategy.protocol);
                effects.push(self.instead(format!("protocol={} instead of {own}", strategy.protocol), prediction));
            }
        }
        effects
    }

    /// What is chosen otherwise. Both are the best that the whole search has found.
    fn instead(&self, change: String, prediction: &Prediction) -> Effect {
        Effect {
            change,
            samples_per_s: prediction.samples_per_s,
            gain: prediction.samples_per_s / self.best.prediction.samples_per_s - 1.0,
            extrapolated: self.beyond(prediction.extrapolated.clone()),
        }
    }

    /// The best strategy on the arch of the answer or a plain all-to-all; or on this arch besides.
    fn found(
        &self,
        cluster: &Cluster,
        workers: usize,
        profile: &Profile,
        arch: Option<Call>,
    ) -> Result<Prediction, SearchError> {
        let only = arch.is_some();
        let mut archs = vec![arch.unwrap_or_else(|| self.best.strategy.arch.clone())];
        let all_to_all = Call::all_to_all("auto");
        if !only && archs[0] != all_to_all {
            archs.push(all_to_all);
        }
        let kept = &self.question.space.strategy;
        // An arch that the question does not leave open stays.
        let strategy = if kept.arch_is_open() || only {
            Strategy { arch: Call::named("auto"), ..kept.clone() }
        } else {
            kept.clone()
        };
        let space = Space {
            strategy,
            archs,
            local_batches: Vec::new(),
            effort: 0,
            intervals: 0,
            ..self.question.space.clone()
        };
        Ok(search(&Question { cluster, profile, workers, space: &space })?.best().prediction.clone())
    }
}

/// The arch with one shard more, and their number; None if it has none or does not say how many.
fn one_more_shard(arch: &Call) -> Option<(u64, Call)> {
    let shards = arch.number(0).filter(|_| arch.name == "ps")? + 1;
    let mut more = arch.clone();
    *more.arguments.first_mut()? = Value::Count(shards);
    Some((shards, more))
}

fn sentences(
    question: &Question,
    best: &Candidate,
    compute_s: f64,
    explanation: &Explanation,
    fewer: &[Fewer],
) -> Vec<String> {
    let prediction = &best.prediction;
    let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    let mut sentences = vec![verdict_sentence(question, best, explanation, fewer)];
    if question.workers == 1 {
        sentences.push(format!("An iteration takes {}; a worker alone waits for nobody", ms(prediction.iteration_s)));
    } else {
        sentences.push(format!(
            "An iteration takes {}: {} of computation, and {} for which it waits for communication, which takes {} in all",
            ms(prediction.iteration_s),
            ms(compute_s),
            ms(prediction.exposed_s),
            ms(prediction.communication_s)
        ));
    }
    if let Some(intensity) = explanation.intensity.filter(|_| question.workers > 1) {
        sentences.push(format!(
            "In an all-reduce each worker sends at least {:.3} numbers for each thousand multiply-accumulates (C2C = f(N)/(M·I) = \
             {:.2e}, with f(N) = {:.3}), as the model computes {intensity:.0} of them per parameter and sample (I{})",
            1e3 * explanation.c2c,
            explanation.c2c,
            explanation.all_reduce_factor,
            explanation.published_intensity.map_or_else(String::new, |known| format!("; published: {known:.0}"))
        ));
    }
    let percent = 100.0 * explanation.bottleneck_share;
    sentences.push(format!("It is limited by {}, busy for {percent:.0} % of the iteration", explanation.bottleneck));
    if explanation.communication_bound {
        sentences.push(
            "Even with the best lossless strategy that was found more time goes into waiting for communication than into \
             computation: only faster links, a larger batch, or lossy compression would change that"
                .to_owned(),
        );
    }
    sentences.extend(explanation.effects.iter().map(Effect::to_string));
    if question.workers > 1 {
        sentences.extend(certainty(question, best));
    }
    sentences
}

/// Is it the best plan, or the best that was found? None where nobody has asked for other plans, and others may be shorter.
fn certainty(question: &Question, best: &Candidate) -> Option<String> {
    let Strategy { arch, protocol, .. } = &best.strategy;
    let (asked, percent) = (&question.space.strategy, 100.0 * best.gap);
    // What was asked for goes without saying.
    let over = if *protocol == asked.protocol { String::new() } else { format!(",protocol={protocol}") };
    if best.gap < INDIFFERENT {
        return Some(format!("No plan at all on arch={arch}{over} can be more than {percent:.1} % shorter"));
    }
    (asked.schedule.name == "auto").then(|| {
        format!(
            "Plans that overlap were searched by a heuristic, bucket by bucket: one on arch={arch}{over} could be shorter, but by no \
             more than {percent:.1} %"
        )
    })
}

fn verdict_sentence(question: &Question, best: &Candidate, explanation: &Explanation, fewer: &[Fewer]) -> String {
    let samples_per_s = best.prediction.samples_per_s;
    let plain_mark = mark(&explanation.plain_extrapolated);
    match explanation.verdict {
        Verdict::Use => match explanation.plain_samples_per_s {
            Some(plain) => format!(
                "Use it: it is {:.1} % faster than one bucket after backward, all-to-all (bsp-a2a, {plain:.1} \
                 samples/s){plain_mark}",
                100.0 * (samples_per_s / plain - 1.0)
            ),
            None => "Use it: one bucket after backward, all-to-all (bsp-a2a), cannot be predicted here".to_owned(),
        },
        Verdict::PlainIsAsGood if question.workers == 1 => {
            "None of it: one worker has nobody to communicate with".to_owned()
        }
        Verdict::PlainIsAsGood => format!(
            "None of it: one bucket after backward, all-to-all (bsp-a2a), reaches {:.1} samples/s{plain_mark}, as good as the \
             best strategy",
            explanation.plain_samples_per_s.unwrap_or(samples_per_s)
        ),
        Verdict::FewerWorkers(workers) => {
            let of_fewer = fewer.iter().find(|fewer| fewer.workers == workers);
            let (rate, doubts) =
                of_fewer.map_or((0.0, &[][..]), |fewer| (fewer.samples_per_s, &fewer.extrapolated[..]));
            let s = if workers == 1 { "" } else { "s" };
            format!(
                "Use {workers} worker{s}: {rate:.1} samples/s{}, and all {} reach {samples_per_s:.1} with the best strategy",
                mark(doubts),
                question.workers
            )
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effect { change, samples_per_s, gain, extrapolated } = self;
        if gain.abs() < INDIFFERENT {
            write!(f, "With {change} it would be as fast")?;
        } else {
            let (percent, word) = (100.0 * gain.abs(), if *gain > 0.0 { "more" } else { "less" });
            write!(f, "With {change} it would reach at least {samples_per_s:.1} samples/s, {percent:.0} % {word}")?;
        }
        f.write_str(&mark(extrapolated))
    }
}

/// What stands behind a number that leaves what was measured: the reasons, in brackets; nothing where there are none.
pub fn mark(doubts: &[String]) -> String {
    if doubts.is_empty() { String::new() } else { format!(" (extrapolated: {})", doubts.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_more_is_one_shard_more() {
        let grammar = paceline_strategy::Registry::built_in();
        let arch = |text: &str| grammar.parse(text).unwrap().arch;
        let (shards, more) = one_more_shard(&arch("arch=ps:3:1MiB:dedicated")).unwrap();
        assert_eq!((shards, more), (4, arch("arch=ps:4:1MiB:dedicated")));
        assert!(one_more_shard(&arch("arch=ps")).is_none() && one_more_shard(&arch("arch=a2a")).is_none());
    }

    #[test]
    fn an_effect_says_how_much_in_which_direction() {
        let of = |gain| Effect { change: "64 workers".into(), samples_per_s: 150.0, gain, extrapolated: Vec::new() };
        let effect = |gain| of(gain).to_string();
        assert_eq!(effect(0.5), "With 64 workers it would reach at least 150.0 samples/s, 50 % more");
        assert_eq!(effect(-0.25), "With 64 workers it would reach at least 150.0 samples/s, 25 % less");
        let doubted = Effect { extrapolated: vec!["8 hosts more".into()], ..of(0.0) };
        assert_eq!(doubted.to_string(), "With 64 workers it would be as fast (extrapolated: 8 hosts more)");
        assert_eq!(effect(0.001), "With 64 workers it would be as fast");
    }
}
