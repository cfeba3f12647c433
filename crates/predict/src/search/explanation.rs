//! Why a strategy is the best one, and what would bring more: in words, every number predicted.

mod sentences;
mod surroundings;

use paceline_plan::{Cluster, Profile};
use paceline_strategy::{Call, Strategy, Value};

use super::what_if::faster;
use super::{Answer, Candidate, DdpSettings, Question, SearchError, Space, ddp_settings, search};
use crate::prediction::scaled;
use crate::{Job, PredictError, Prediction, estimate, published_intensity, serving_hosts};

pub use sentences::mark;
pub use surroundings::{Room, Surroundings};

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
#[derive(Clone, Debug)]
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
    /// What comes closest with PyTorch. None: it cannot be predicted.
    pub ddp: Option<DdpSettings>,
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
/// way and the plain one; one of everything if the question does not leave everything open; and the estimates of [`ddp_settings`].
pub fn explain(question: &Question, answer: &Answer) -> Explanation {
    explain_in(question.cluster, question, answer)
}

/// The same where other numbers of workers and other batches find another cluster: the question's is what its own find.
pub fn explain_in(surroundings: &dyn Surroundings, question: &Question, answer: &Answer) -> Explanation {
    let best = answer.best();
    let (prediction, profile) = (&best.prediction, question.profile.for_batch(best.local_batch));
    let plain = plain(question, &profile).ok();
    let plain_samples_per_s = plain.as_ref().map(|plain| plain.samples_per_s);
    let alone_s = profile.forward_s() + profile.backward_s() + profile.update_s;
    let alone_samples_per_s = if alone_s > 0.0 { best.local_batch as f64 / alone_s } else { f64::INFINITY };
    let alike_samples_per_s = prediction.samples_per_s;
    let mut asked = Asked { surroundings, question, profile: &profile, best, alike_samples_per_s };
    // Like is compared with like.
    let alike = asked.found(surroundings.bare(), question.workers, &profile, None);
    asked.alike_samples_per_s = alike.map_or(prediction.samples_per_s, |alike| alike.samples_per_s);
    let fewer = asked.fewer_workers(alone_samples_per_s);
    let mut explanation = Explanation {
        verdict: asked.verdict(&fewer, plain_samples_per_s),
        communication_bound: asked.communication_bound(),
        c2c: prediction.c2c,
        all_reduce_factor: prediction.all_reduce_factor,
        intensity: prediction.intensity,
        published_intensity: published_intensity(&question.profile.model),
        bottleneck: prediction.bottleneck.to_string(),
        bottleneck_share: prediction.bottleneck_share,
        plain_samples_per_s,
        plain_extrapolated: plain.map_or_else(Vec::new, |plain| best.beyond(plain.extrapolated)),
        ddp: ddp_settings(question, answer).ok(),
        alone_samples_per_s,
        effects: asked.effects(answer),
        sentences: Vec::new(),
    };
    explanation.sentences = sentences::sentences(question, answer, &explanation, &fewer);
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

impl Candidate {
    /// Doubts without those of this one, which stand there.
    fn beyond(&self, mut doubts: Vec<String>) -> Vec<String> {
        doubts.retain(|doubt| !self.prediction.extrapolated.contains(doubt));
        doubts
    }
}

/// The question for the batch of its answer.
struct Asked<'a> {
    surroundings: &'a dyn Surroundings,
    question: &'a Question<'a>,
    profile: &'a Profile,
    best: &'a Candidate,
    /// What the search of a change finds without one.
    alike_samples_per_s: f64,
}

impl Asked<'_> {
    fn verdict(&self, fewer: &[Fewer], plain_samples_per_s: Option<f64>) -> Verdict {
        let enough = self.alike_samples_per_s * (1.0 - INDIFFERENT);
        // The most that fewer workers reach; of those that reach it the fewest.
        let most = fewer.iter().map(|fewer| fewer.samples_per_s).fold(enough, f64::max) * (1.0 - INDIFFERENT);
        let worth = |samples_per_s: f64| samples_per_s >= enough && samples_per_s >= most;
        let as_good = |samples_per_s: f64| samples_per_s >= self.best.prediction.samples_per_s * (1.0 - INDIFFERENT);
        match fewer.iter().find(|fewer| worth(fewer.samples_per_s)) {
            Some(fewer) => Verdict::FewerWorkers(fewer.workers),
            None if plain_samples_per_s.is_some_and(as_good) => Verdict::PlainIsAsGood,
            None => Verdict::Use,
        }
    }

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
        let (cluster, workers) = (self.surroundings.bare(), self.question.workers);
        let halves = std::iter::successors(Some(workers / 2), |count| Some(count / 2));
        let mut counts: Vec<usize> = halves.take_while(|&count| count > 1).collect();
        counts.push(cluster.workers_per_host);
        counts.sort_unstable();
        counts.dedup();
        counts.retain(|&count| count > 1 && count < workers);
        let of = |workers: usize| {
            let Prediction { samples_per_s, extrapolated, .. } =
                self.found(cluster, workers, self.profile, None).ok()?;
            Some(Fewer { workers, samples_per_s, extrapolated: self.best.beyond(extrapolated) })
        };
        let alone = Fewer { workers: 1, samples_per_s: alone_samples_per_s, extrapolated: Vec::new() };
        let more = counts.into_iter().filter_map(of);
        if workers > 1 { [alone].into_iter().chain(more).collect() } else { Vec::new() }
    }

    /// What changes would bring; the most first.
    fn effects(&self, answer: &Answer) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.question.workers > 1 {
            effects.extend(self.faster_links());
            effects.extend(self.one_more_shard());
            effects.extend(self.larger_batch());
        }
        effects.extend(self.more_workers());
        effects.extend(self.servers_instead(answer));
        effects.extend(self.protocols_instead(answer));
        effects.sort_by(|one, other| other.gain.total_cmp(&one.gain));
        effects
    }

    /// What a change brings. What cannot be predicted is not told.
    fn effect(&self, change: String, found: Result<Prediction, SearchError>, doubt: Option<String>) -> Option<Effect> {
        let Prediction { samples_per_s, extrapolated, .. } = found.ok()?;
        let gain = samples_per_s / self.alike_samples_per_s - 1.0;
        let mut extrapolated = self.best.beyond(extrapolated);
        let doubt = doubt.filter(|doubt| !extrapolated.contains(doubt));
        extrapolated.extend(doubt);
        Some(Effect { change, samples_per_s, gain, extrapolated })
    }

    fn faster_links(&self) -> Vec<Effect> {
        let (cluster, workers) = (self.surroundings.bare(), self.question.workers);
        let tell = |(change, other): (String, Cluster)| {
            let doubt = cluster.measured.map(|_| "nothing like that was measured here".to_owned());
            self.effect(change, self.found(&other, workers, self.profile, None), doubt)
        };
        faster(cluster, workers).into_iter().filter_map(tell).collect()
    }

    fn one_more_shard(&self) -> Option<Effect> {
        let workers = self.question.workers;
        let (shards, arch) = one_more_shard(&self.best.strategy.arch)?;
        let mut cluster = self.surroundings.bare().clone();
        let mut change = format!("{shards} shards instead of {}", shards - 1);
        // Those that the cluster has, or that the answer supposes.
        let serving = cluster.server_hosts.max(serving_hosts(&cluster, workers, &self.best.strategy));
        if arch.word(2) == Some("dedicated") && shards > serving as u64 {
            cluster.server_hosts = serving + 1;
            change.push_str(", on one host more,");
        }
        self.effect(change, self.found(&cluster, workers, self.profile, Some(arch)), None)
    }

    /// Twice as large a batch, or the largest that fits. None: the answer's is that.
    fn larger_batch(&self) -> Option<Effect> {
        let (own, twice) = (self.best.local_batch, 2 * self.best.local_batch);
        let (batch, fits) = match self.profile.memory {
            None => (twice, "if it fits in memory".to_owned()),
            Some(memory) => match largest_batch(self.profile).filter(|&most| most < twice) {
                Some(most) => (most, format!("the largest that fits in memory ({twice} does not)")),
                None => (twice, format!("which takes {:.1} GB of memory", memory.worker_bytes(twice) as f64 / 1e9)),
            },
        };
        if batch <= own {
            return None;
        }
        let larger = self.profile.for_batch(batch);
        let found = self.found(self.surroundings.bare(), self.question.workers, &larger, None);
        self.effect(format!("a local batch of {batch}, {fits},"), found, scaled(&larger))
    }

    fn more_workers(&self) -> Option<Effect> {
        let workers = 2 * self.question.workers;
        let Room { cluster, place } = self.surroundings.room(workers)?;
        let doubt = match cluster.hosts.saturating_sub(self.surroundings.bare().hosts) {
            0 => None,
            1 => Some("1 host more, which is taken to be like the others".to_owned()),
            more => Some(format!("{more} hosts more, which are taken to be like the others")),
        };
        let place = if place.is_empty() { place } else { format!(" {place}") };
        self.effect(format!("{workers} workers{place}"), self.found(&cluster, workers, self.profile, None), doubt)
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
            extrapolated: self.best.beyond(prediction.extrapolated.clone()),
        }
    }

    /// The best strategy on the arch of the answer or a plain all-to-all; or on this arch besides. The cluster is as it is before
    /// anybody computes on it.
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
            // What was played for the answer would be played anew for each change: those of which formulas know enough say what it brings.
            messages: false,
            ..self.question.space.clone()
        };
        let cluster = &self.surroundings.crowded(cluster.clone(), workers, profile);
        let answer = search(&Question { cluster, profile, workers, space: &space })?;
        let is_known = |candidate: &&Candidate| !candidate.prediction.knows_few_partitions();
        let known = answer.candidates.iter().find(is_known).filter(|_| self.question.space.messages);
        Ok(known.unwrap_or(answer.best()).prediction.clone())
    }
}

/// The largest batch that fits in the device's memory, if that is known.
fn largest_batch(profile: &Profile) -> Option<usize> {
    profile.memory?.largest_local_batch().map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// The arch with one shard more, and their number; None if it has none or does not say how many.
fn one_more_shard(arch: &Call) -> Option<(u64, Call)> {
    let shards = arch.number(0).filter(|_| arch.name == "ps")? + 1;
    let mut more = arch.clone();
    *more.arguments.first_mut()? = Value::Count(shards);
    Some((shards, more))
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
}
