//! A cluster of NCCL's that is not there: its ranks make calls as a policy file says, and write down what they took.

mod cuts;
mod handed;
mod iterations;

use std::path::Path as FilePath;

use paceline_tune::environment::Disturbances;
use paceline_tune::nccl::{Communicator, Function, Graph, Path};
use paceline_tune::{Parallelism, Random};

use super::super::samples::{LeftOut, Recording};
use super::kind::UNHEARD_MAX;
use super::*;

const RANKS: u32 = 4;
/// A round has so many calls of each kind, of which the first does not count.
const TIMES: u64 = 3;
const CALLS: [(Function, u64); 2] = [(Function::AllReduce, 16 << 20), (Function::AllGather, 4 << 20)];
const MODEL: Model = Model { intensity: 249.0, local_batch: 8 };

/// A host with four H100. Releases before 2.30 set no chunks, so that there is less to try.
fn nccl() -> NcclModel {
    let graph = Graph { channels: 16, intra_gb_s: 20.0, inter_gb_s: 20.0, ..Graph::default() };
    let graph = Graph { intra: Path::NvLink, inter: Path::Pxb, ..graph };
    let whole = Communicator { ranks: RANKS, hosts: 1, compute_capability: 90, ..Communicator::of_graph(graph) };
    NcclModel::new("2.29.7".parse().expect("a version"), whole).expect("a communicator")
}

fn measured(function: Function, bytes: u64, label: Label) -> Measured {
    Measured { function, bytes, ranks: RANKS, hosts: 1, way: None, channels: 1, label, seconds: 1e-3 }
}

struct World {
    /// By kind of call.
    situations: Vec<Situation>,
    /// By kind of call and arm.
    truth_s: Vec<Vec<f64>>,
    random: Random,
    sequence: u64,
}

impl World {
    /// As the model has it; `is_faster`: but the first kind of calls takes 30 % less by another algorithm or protocol.
    fn new(nccl: &NcclModel, is_faster: bool, seed: u64) -> World {
        let situation = |&(function, bytes): &(Function, u64)| {
            let label = Label::default();
            let state = nccl.state(&MODEL.call(&measured(function, bytes, label), label));
            nccl.situation(&State { bytes: state.context().typical_bytes(), ..state }).expect("choices")
        };
        let situations: Vec<Situation> = CALLS.iter().map(situation).collect();
        let modelled = |it: &Situation| it.arms.iter().map(|arm| arm.modelled_s).collect::<Vec<f64>>();
        let mut truth_s: Vec<Vec<f64>> = situations.iter().map(modelled).collect();
        if is_faster {
            let it = &situations[0];
            let own = it.arms[it.default];
            let others = it.arms.iter().filter(|arm| arm.action.family != own.action.family);
            let best = others.min_by(|one, two| one.modelled_s.total_cmp(&two.modelled_s)).expect("another family");
            let factor = 0.7 * own.modelled_s / best.modelled_s;
            for (seconds, arm) in truth_s[0].iter_mut().zip(&it.arms) {
                if arm.action.family == best.action.family {
                    *seconds *= factor;
                }
            }
        }
        World { situations, truth_s, random: Random::new(seed, 0x9cc1), sequence: 0 }
    }

    /// What the ranks write in a round in which calls take these arms.
    fn round(&mut self, number: u64, policy: u64, arms: [usize; 2]) -> Vec<String> {
        let mut lines = Vec::new();
        for (kind, (function, bytes)) in CALLS.iter().enumerate() {
            let action = self.situations[kind].arms[arms[kind]].action;
            let (algorithm, protocol) = NcclModel::way(&action).expect("a way of NCCL's");
            for _ in 0..TIMES {
                self.sequence += 1;
                let seconds = self.truth_s[kind][arms[kind]] * Disturbances::usual().noise(&mut self.random);
                let last = self.random.below(RANKS as usize);
                for rank in 0..RANKS {
                    // The others came early, and wait.
                    let waited_s = if rank as usize == last { 0.0 } else { 5e-3 * self.random.unit() };
                    let (sequence, channels) = (self.sequence, action.channels);
                    let longest_ns = (1e9 * (seconds + waited_s)) as u64;
                    lines.push(format!(
                        "{{\"schema\": 1, \"round\": {number}, \"policy\": {policy}, \"communicator\": 3, \
                         \"sequence\": {sequence}, \"rank\": {rank}, \"ranks\": {RANKS}, \"hosts\": 1, \
                         \"function\": \"{function}\", \"bytes\": {bytes}, \"algorithm\": \"{algorithm}\", \
                         \"protocol\": \"{protocol}\", \"channels\": {channels}, \"longest_ns\": {longest_ns}}}"
                    ));
                }
            }
        }
        lines
    }

    fn defaults(&self) -> [usize; 2] {
        [0, 1].map(|kind| self.situations[kind].default)
    }

    /// What a policy file has the calls take.
    fn played(&self, policy: &str) -> [usize; 2] {
        [0, 1].map(|kind| {
            let (function, bytes) = CALLS[kind];
            played(&self.situations[kind], policy, function, bytes)
        })
    }

    /// How many times as long as NCCL's own choice an arm takes.
    fn over_default(&self, kind: usize, arm: usize) -> f64 {
        self.truth_s[kind][arm] / self.truth_s[kind][self.situations[kind].default]
    }
}

/// The arm that a file has a call take: NCCL's own where it has no rule for it.
fn played(it: &Situation, policy: &str, function: Function, bytes: u64) -> usize {
    let field = |rule: &str, name: &str| -> Option<String> {
        let value = rule.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
        Some(value.trim_matches('"').to_owned())
    };
    let number = |rule: &str, name: &str| field(rule, name).and_then(|value| value.parse::<u64>().ok());
    let rule = policy.split("[[call]]").skip(1).find(|rule| {
        field(rule, "function").as_deref() == Some(function.name())
            && number(rule, "min_bytes").is_some_and(|least| least <= bytes)
            && number(rule, "below_bytes").is_some_and(|end| bytes < end)
    });
    let Some(rule) = rule else { return it.default };
    let algorithm = field(rule, "algorithm").and_then(|name| name.parse::<Algorithm>().ok());
    let protocol = field(rule, "protocol").and_then(|name| name.parse::<Protocol>().ok());
    let way = algorithm.zip(protocol);
    assert!(way.is_some(), "{rule}");
    // Where the rule says no number of channels, all of NCCL's own.
    let wanted = number(rule, "channels");
    let fits = |arm: &usize| {
        let action = it.arms[*arm].action;
        NcclModel::way(&action) == way && wanted.is_none_or(|wanted| u64::from(action.channels) == wanted)
    };
    (0..it.arms.len()).filter(fits).max_by_key(|arm| it.arms[*arm].action.channels).expect("an arm of the rule")
}

fn read(lines: &[String]) -> Vec<Round> {
    let mut recording = Recording::default();
    recording.add(FilePath::new("samples.jsonl"), lines.join("\n").as_bytes()).expect("samples");
    let (rounds, left_out) = recording.rounds().expect("all ranks");
    assert_eq!(left_out, LeftOut::default());
    rounds
}

fn learn(job: &mut JobTuner, lines: &[String]) {
    read(lines).iter().for_each(|round| job.learn(round));
}

/// A loop as the documentation has it: record, tune, push. Until something stands for the first kind of calls.
struct Loop {
    rounds: u64,
    lines: Vec<String>,
    policy: String,
    /// By how much calls of the second kind took longer than by NCCL's own choice, all in all.
    lost: f64,
}

fn until_found(world: &mut World, job: &mut JobTuner) -> Loop {
    let mut it = Loop { rounds: 0, lines: Vec::new(), policy: String::new(), lost: 0.0 };
    while world.played(&job.written(&job.settled()))[0] == world.defaults()[0] {
        let arms = world.played(&it.policy);
        it.rounds += 1;
        assert!(it.rounds < 1500, "nothing was found");
        let lines = world.round(it.rounds, 2 * (it.rounds - 1), arms);
        it.lost += world.over_default(1, arms[1]) - 1.0;
        learn(job, &lines);
        it.lines.extend(lines);
        it.policy = job.written(&job.policy());
        assert!(it.policy.contains(&format!("version = {}\n", 2 * it.rounds)), "{}", it.policy);
    }
    it
}

#[test]
fn what_is_faster_comes_into_the_file_and_what_is_not_does_not() {
    let nccl = nccl();
    for seed in 1..3 {
        let mut world = World::new(&nccl, true, seed);
        let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(seed), &[]);
        let it = until_found(&mut world, &mut job);
        let settled = job.written(&job.settled());
        let arms = world.played(&settled);
        assert!(world.over_default(0, arms[0]) < 0.8, "seed {seed}, {} rounds: {settled}", it.rounds);
        assert_eq!(arms[1], world.defaults()[1], "seed {seed}: nothing is better there: {settled}");
        assert_eq!(settled.matches("[[call]]").count(), 1, "{settled}");
        assert!(it.lost < 0.03 * it.rounds.max(100) as f64, "seed {seed}: {} of {} rounds", it.lost, it.rounds);
        // Every call of the command goes through all rounds again, and decides as it did then.
        let mut again = JobTuner::new(&nccl, MODEL, Tuner::shipped(seed), &[]);
        learn(&mut again, &it.lines);
        assert_eq!(again.written(&again.policy()), it.policy, "seed {seed}");
        assert_eq!((again.counts, again.counts.not_honoured), (job.counts, 0));
        assert_eq!(again.counts.calls, 2 * (TIMES - 1) * it.rounds);
        let Cost { measured_s, regret_s } = job.cost();
        assert!(0.0 < regret_s && regret_s < measured_s && job.cost() == again.cost(), "seed {seed}: {:?}", job.cost());
        // Another job on the same cluster begins with what this one has learned, keeps it, and finds the same no later.
        let mut world = World::new(&nccl, true, seed + 10);
        let mut next = JobTuner::new(&nccl, MODEL, Tuner::shipped(seed + 10), &job.lessons());
        learn(&mut next, &world.round(1, 0, world.defaults()));
        let known: Vec<_> = next.lessons().iter().map(Lesson::subject).collect();
        assert!(job.lessons().iter().all(|lesson| known.contains(&lesson.subject())), "seed {seed}: {known:?}");
        let mut next = JobTuner::new(&nccl, MODEL, Tuner::shipped(seed + 10), &job.lessons());
        let then = until_found(&mut world, &mut next);
        assert!(then.rounds <= it.rounds, "seed {seed}: {} rounds, then {}", it.rounds, then.rounds);
    }
}

#[test]
fn where_nothing_is_better_nothing_stands() {
    let nccl = nccl();
    let mut world = World::new(&nccl, false, 5);
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(5), &[]);
    let (mut policy, mut tried) = (String::new(), 0);
    for number in 1..=350 {
        let arms = world.played(&policy);
        tried += usize::from(arms != world.defaults());
        let lines = world.round(number, 2 * (number - 1), arms);
        learn(&mut job, &lines);
        policy = job.written(&job.policy());
    }
    assert!(tried > 5, "something is tried: {tried}");
    let settled = job.written(&job.settled());
    assert!(!settled.contains("[[call]]"), "{settled}");
    assert_eq!(job.standing_and_tried().0, 0);
}

/// In the middle of a loop, policies without tries are given to the job: what it plays then is not taken for a try.
#[test]
fn what_was_made_without_tries_is_not_taken_for_what_has_them() {
    let nccl = nccl();
    let mut world = World::new(&nccl, false, 6);
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(6), &[]);
    let (mut policy, mut version, mut lines, mut withheld) = (String::new(), 0, Vec::new(), 0);
    for number in 1..=300 {
        let arms = world.played(&policy);
        let round = world.round(number, version, arms);
        learn(&mut job, &round);
        lines.extend(round);
        let is_settled = (100..200).contains(&number);
        let next = if is_settled { job.settled() } else { job.policy() };
        withheld += usize::from(is_settled && job.standing_and_tried().1 > 0);
        version = next.version();
        policy = job.written(&next);
        assert!(policy.contains(&format!("version = {version}\n")), "{policy}");
    }
    assert!(withheld > 0, "nothing was to be tried");
    assert_eq!((job.counts.not_honoured, job.unheard().count()), (0, 0), "{:?}", job.counts);
    let mut again = JobTuner::new(&nccl, MODEL, Tuner::shipped(6), &[]);
    learn(&mut again, &lines);
    assert_eq!(again.written(&again.policy()), policy);
}

/// Only of NCCL's own choice is something known where nothing else was played: the ranks refused every policy, or NCCL did not do
/// what it was told. What it never does is named, and not tried for ever.
#[test]
fn what_was_not_played_is_not_learned_from() {
    let nccl = nccl();
    for is_refused in [true, false] {
        let mut world = World::new(&nccl, true, 7);
        let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(7), &[]);
        let own = world.defaults();
        let mut tries: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for number in 1..=300 {
            let policy = job.policy();
            let arms = world.played(&job.written(&policy));
            (0..2)
                .filter(|kind| arms[*kind] != own[*kind])
                .for_each(|it| *tries.entry((it, arms[it])).or_default() += 1);
            let lines = world.round(number, if is_refused { 0 } else { policy.version() }, own);
            learn(&mut job, &lines);
        }
        let actions = [0, 1].map(|kind| world.situations[kind].arms[own[kind]].action);
        let lessons = job.lessons();
        assert!(!lessons.is_empty() && lessons.iter().all(|lesson| actions.contains(&lesson.action)), "{lessons:?}");
        assert_eq!(job.counts.not_honoured > 0, !is_refused, "{:?}", job.counts);
        assert_eq!(job.unheard().count() > 0, !is_refused);
        let often = tries.values().filter(|times| **times > 2 * UNHEARD_MAX).count();
        assert!(is_refused || often == 0 && !tries.is_empty(), "{tries:?}");
        assert_eq!(job.standing_and_tried().0, 0);
    }
}

/// A job may begin under a policy that somebody else has written: the next one has the next number, and NCCL's own choice is measured
/// under that.
#[test]
fn a_policy_of_somebody_else_is_not_taken_for_nccls_own_choice() {
    let nccl = nccl();
    let mut world = World::new(&nccl, true, 3);
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(3), &[]);
    let own = world.defaults();
    let is_faster = |arm: &usize| world.over_default(0, *arm) < 0.8;
    let other = (0..world.situations[0].arms.len()).find(is_faster).expect("an arm of the family");
    learn(&mut job, &world.round(1, 40, [other, own[1]]));
    assert_eq!(job.policy().version(), 42);
    assert!(!job.written(&job.policy()).contains("[[call]]"), "NCCL's own choice comes first");
    let known: Vec<_> = job.lessons().iter().map(|lesson| lesson.action).collect();
    assert!(known.contains(&world.situations[0].arms[other].action), "{known:?}");
    learn(&mut job, &world.round(2, 42, own));
    assert_eq!((job.policy().version(), job.counts.rounds, job.counts.calls), (44, 2, 4 * (TIMES - 1)));
    // An odd number is that of a policy without tries, which somebody else may have written, too.
    learn(&mut job, &world.round(3, 61, own));
    assert_eq!((job.policy().version(), job.settled().version()), (62, 63));
}

/// The plug-in knows function, size, ranks and hosts: what differs in no more is one context, and what it is for only says what is
/// believed first.
#[test]
fn what_the_plug_in_cannot_tell_apart_is_one_context() {
    let nccl = nccl();
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(1), &[]);
    let tensor = Label { parallelism: Parallelism::Tensor, is_pipelined_layer: false, ..Label::default() };
    let tensor = Label { is_fused_call: false, is_ps_deployment: true, ..tensor };
    let mut round = |calls: &[(u64, Label)]| {
        let calls = calls.iter().map(|&(bytes, label)| measured(Function::AllReduce, bytes, label)).collect();
        job.learn(&Round { policy: 0, iteration_s: None, calls, costs: BTreeMap::new() });
        let switches = |it: &Context| [it.is_pipelined_layer, it.is_fused_call, it.is_ps_deployment];
        let said = |it: &Context| (it.size_log2, it.parallelism, switches(it));
        job.contexts().map(said).collect::<Vec<_>>()
    };
    let contexts = [(20u8, Parallelism::Tensor, [false, false, true]), (24, Parallelism::Data, [true, true, false])];
    let both = [(1 << 24, tensor), (1 << 24, Label::default())];
    assert_eq!(round(&[(1 << 20, tensor), (3 << 19, tensor), both[0], both[1]]), contexts);
    assert_eq!(round(&[(1 << 20, Label::default()), both[0]]), contexts, "as it was said at first");
}

/// Fifteen calls of the first choice that is tried take half of the time, and one more four times that of NCCL's own: it is not tried
/// again.
#[test]
fn one_long_call_of_a_round_puts_a_choice_out() {
    let nccl = nccl();
    let world = World::new(&nccl, false, 9);
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(9), &[]);
    let (it, (function, bytes)) = (&world.situations[0], CALLS[0]);
    let default_s = world.truth_s[0][it.default];
    let mut out = None;
    for round in 0..600 {
        let policy = job.policy();
        let arm = world.played(&job.written(&policy))[0];
        assert!(out != Some(arm), "round {round}");
        let action = it.arms[arm].action;
        let (way, channels) = (NcclModel::way(&action), u32::from(action.channels));
        let plain = Measured { way, channels, ..measured(function, bytes, Label::default()) };
        let call = |times: f64| Measured { seconds: times * default_s, ..plain };
        let mut calls = vec![call(if arm == it.default { 1.0 } else { 0.5 }); 15];
        if arm != it.default {
            // In the mean they are still the faster ones.
            calls.push(call(4.0));
            out = out.or(Some(arm));
        }
        job.learn(&Round { policy: policy.version(), iteration_s: None, calls, costs: BTreeMap::new() });
    }
    assert!(out.is_some(), "nothing was tried");
}

/// Who else uses the network is known of every call, and no call becomes another one by it.
#[test]
fn others_are_noticed_by_rounds_and_contexts_stay() {
    let nccl = nccl();
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(1), &[]);
    let mut rounds = |times: f64, rounds: usize| {
        for _ in 0..rounds {
            let call = measured(Function::AllReduce, 16 << 20, Label::default());
            let calls = vec![Measured { seconds: times * call.seconds, ..call }; 2];
            job.learn(&Round { policy: 0, iteration_s: None, calls, costs: BTreeMap::new() });
        }
        let known = job.kinds.values().flatten().map(|kind| kind.situation.state.congestion);
        (job.congestion(), known.collect::<Vec<_>>())
    };
    for (times, count, level) in [
        (1.0, 20, Congestion::None),
        (1.5, 11, Congestion::Light),
        (2.5, 11, Congestion::Heavy),
        (1.0, 11, Congestion::None),
    ] {
        assert_eq!(rounds(times, count), (level, vec![level]), "{times}");
    }
}

/// A sum over all ranks every hundredth iteration, say: it would take years to decide, and there is nothing to gain.
#[test]
fn what_is_called_seldom_holds_nothing_up() {
    let nccl = nccl();
    let mut world = World::new(&nccl, false, 8);
    let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(8), &[]);
    let mut policy = job.policy();
    for number in 1..=2500 {
        let arms = world.played(&job.written(&policy));
        let mut lines = world.round(number, policy.version(), arms);
        if number % 20 != 1 {
            lines.retain(|line| line.contains(Function::AllReduce.name()));
        }
        learn(&mut job, &lines);
        policy = job.policy();
        if job.is_settled() {
            break;
        }
    }
    let open = job.tuner.courses().filter(|(_, course)| !course.is_decided()).count();
    assert_eq!((job.is_settled(), job.undecided(), open), (true, 0, 1));
}
