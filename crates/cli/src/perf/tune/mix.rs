//! The calls of a large language model in three dimensions, tuned, against every configuration that is the same for all calls:
//! what one would otherwise search once and set for a job.

mod groups;
mod statics;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_plan::CollectiveKind;
use paceline_train::{Iterations, RehearsedIterations, Took, TunedCalls, links_of, race, rehearse_iterations};
use paceline_tune::environment::{Call, Mix};
use paceline_tune::main_effects::Entrant;
use paceline_tune::{Parallelism, Random};
use serde::Serialize;

use super::turns::{Length, Playing, Turns, median_us, play, ratio, worst_prefix};
use super::{Effort, RIVALS, agreed_s};
use crate::failure::Failure;
use groups::{Group, Groups};
use statics::{Static, statics};

/// The cluster whose calls are scaled down: hosts, and workers of each.
const CLUSTER: (usize, usize) = (8, 8);
/// Calls of which an iteration has more than so many are made so many times fewer.
const MANY: u32 = 8;

/// Kinds of calls by themselves may take such a share of the rehearsal.
const ALONE: f64 = 0.3;

/// How much longer than it should take others wait for a rehearsal.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found out. An iteration takes as long as on its slowest rank.
#[derive(Clone, Debug, Serialize)]
pub struct TunedMix {
    /// By which all bytes were divided.
    pub scale: u64,
    /// The calls of an iteration.
    pub mix_calls: Vec<MixCall>,
    /// Iterations while it learned.
    pub calls: usize,
    /// Iterations afterwards.
    pub compared: usize,
    /// Static configurations that there are.
    pub choices: usize,
    /// Of them, called in the search.
    pub called: usize,
    /// Did the search end before its time?
    pub search_ended: bool,
    /// The best static configuration that was found.
    pub best_static: String,
    /// Seconds in which calls were rehearsed before the first iteration; none of them is the tuner's or the default's.
    pub rehearsal_s: f64,
    /// Iterations that were rehearsed, and kinds of calls that took something else than the default from the first iteration on.
    pub rehearsed_iterations: usize,
    /// The latter.
    pub changed_contexts: usize,
    /// Medians of an iteration, after it has learned, in microseconds.
    pub default_us: Option<f64>,
    /// The tuner's.
    pub tuned_us: Option<f64>,
    /// The best static configuration's.
    pub static_us: Option<f64>,
    /// Totals while it learned, boundaries included, over the default's, times the default's over those of the best static
    /// configuration, afterwards.
    pub learning_over_static: f64,
    /// Totals afterwards: the tuner's, boundaries included, over the best static configuration's.
    pub tuned_over_static: f64,
    /// The same of calls alone.
    pub calls_over_static: f64,
    /// Totals while it learned, boundaries included, over the default's.
    pub learning_over_default: f64,
    /// Totals afterwards, likewise.
    pub tuned_over_default: f64,
    /// The largest total over the default's, from 100 iterations on, boundaries included.
    pub worst_prefix: Option<f64>,
    /// The same measure, while it learned, of a second one without it: noise.
    pub default_over_itself: Option<f64>,
    /// What a boundary takes in the mean, after each iteration, whether the ranks meet at it or not.
    pub boundary_us: f64,
}

/// A kind of call.
#[derive(Clone, Debug, Serialize)]
pub struct MixCall {
    /// What is called.
    pub collective: String,
    /// By which kind of parallelism.
    pub parallelism: Parallelism,
    /// The larger side of a rank.
    pub bytes: usize,
    /// In its group.
    pub ranks: usize,
    /// How often in an iteration.
    pub times: u32,
}

/// Measures, all ranks together. Gives elements that were wrong, too.
///
/// # Errors
/// Those of the communication.
pub fn measure(communicator: &Communicator, scale: u64, effort: &Effort<'_>) -> Result<(TunedMix, u64), Failure> {
    let groups = Groups::of(communicator)?;
    let calls = calls(scale);
    let mut mixed = Mixed::new(communicator, &groups, &calls, effort.seed);
    let statics = statics(communicator.topology(), links_of(communicator));
    let entrants: Vec<Entrant> = statics.iter().map(|it| Entrant::unmodelled(it.traits)).collect();
    let default = &statics[0];
    let began = Instant::now();
    let rehearsed = mixed.rehearse(effort.rehearse_s)?;
    let rehearsal_s = agreed_s(communicator, began)?;
    let length = Length { rounds: effort.calls, between: 1, seed: effort.seed };
    // A second one by turns with the first says what is noise.
    let learning = play(&mut mixed, &[default.clone(), default.clone()], &length)?;
    // Afterwards, so that it prepares nothing that the tuner uses.
    let finish = race(communicator, &entrants, effort.search_s, &mut |number| mixed.rival(&statics[number], false))?;
    let rivals = finish.best_beside_the_first(RIVALS);
    let length = Length { rounds: effort.compared, seed: effort.seed.wrapping_add(1), ..length };
    let fixed: Vec<Static> = rivals.iter().map(|&number| statics[number].clone()).collect();
    let after = play(&mut mixed, &fixed, &length)?;
    // Doing nothing for all calls is a static configuration, too.
    let best = rivals[after.best(0)];
    let mix = TunedMix {
        scale,
        mix_calls: mixed.kinds(),
        choices: statics.len(),
        called: finish.called,
        search_ended: finish.is_complete,
        best_static: statics[best].to_string(),
        rehearsal_s,
        rehearsed_iterations: rehearsed.as_ref().map_or(0, |it| it.iterations),
        changed_contexts: rehearsed.as_ref().and_then(|it| it.chosen).map_or(0, |(contexts, _)| contexts),
        ..summary(&learning, &after)
    };
    Ok((mix, mixed.wrong))
}

fn summary(learning: &Turns, after: &Turns) -> TunedMix {
    let all = learning.then(after);
    let [default, fixed] = [0, after.best(0)].map(|rival| &after.rivals[rival].lasted);
    let learning_over_default = ratio(&learning.tuned_whole(), &learning.rivals[0].lasted);
    TunedMix {
        scale: 0,
        mix_calls: Vec::new(),
        calls: learning.boundaries.len(),
        compared: after.boundaries.len(),
        choices: 0,
        called: 0,
        search_ended: false,
        best_static: String::new(),
        rehearsal_s: 0.0,
        rehearsed_iterations: 0,
        changed_contexts: 0,
        default_us: median_us(default),
        tuned_us: median_us(&after.tuned.lasted),
        static_us: median_us(fixed),
        learning_over_static: learning_over_default * ratio(default, fixed),
        tuned_over_static: ratio(&after.tuned_whole(), fixed),
        calls_over_static: ratio(&after.tuned.lasted, fixed),
        learning_over_default,
        tuned_over_default: ratio(&after.tuned_whole(), default),
        worst_prefix: worst_prefix(&all.tuned_whole(), &all.rivals[0].lasted),
        default_over_itself: worst_prefix(&learning.rivals[1].lasted, &learning.rivals[0].lasted),
        boundary_us: all.boundary_us(),
    }
}

/// The calls of an iteration, scaled down.
fn calls(scale: u64) -> Vec<Call> {
    let mut calls = Mix { scale, ..Mix::on(CLUSTER.0, CLUSTER.1) }.workload().calls;
    for call in &mut calls {
        if call.times > MANY {
            call.times /= MANY;
        }
    }
    calls
}

/// An iteration's calls with their data and tuners.
struct Mixed<'a> {
    communicator: &'a Communicator,
    groups: &'a Groups,
    /// By group; none where this rank is in no such group.
    tuned: Vec<Option<TunedCalls<'a>>>,
    calls: Vec<Prepared>,
    /// Of the calls in an iteration, in the order of this one.
    order: Vec<usize>,
    /// What the last one took on this rank, as it was tuned.
    last: Duration,
    random: Random,
    /// Elements of this rank that were not what they must be, in the iterations that were checked.
    wrong: u64,
}

/// A call with its data. All of it is 1, and stays 1: reductions take the average. Only in what is checked ranks have different data.
struct Prepared {
    call: Call,
    group: Group,
    /// Ranks in the group, and this one's number there.
    ranks: usize,
    rank: usize,
    /// The whole, and a rank's part of it.
    whole: Vec<f32>,
    part: Vec<f32>,
}

impl<'a> Mixed<'a> {
    fn new(communicator: &'a Communicator, groups: &'a Groups, calls: &[Call], seed: u64) -> Mixed<'a> {
        let tuned = |group: &Group| {
            groups.get(*group).map(|members| TunedCalls::new(members, seed).by_iterations(seed + *group as u64))
        };
        let prepared = |call: &Call| {
            let group = Group::of(call.parallelism);
            let (rank, ranks) = groups.get(group).map_or((0, 1), |members| (members.rank(), members.world_size()));
            let part = (call.bytes as usize / size_of::<f32>() / ranks).max(1);
            Prepared { call: *call, group, ranks, rank, whole: vec![1.0; part * ranks], part: vec![1.0; part] }
        };
        let calls: Vec<Prepared> = calls.iter().map(prepared).collect();
        let order = (0..calls.len()).flat_map(|place| vec![place; calls[place].call.times as usize]).collect();
        let tuned = Group::ALL.iter().map(tuned).collect();
        Mixed {
            communicator,
            groups,
            tuned,
            calls,
            order,
            last: Duration::ZERO,
            random: Random::new(seed, 0x313),
            wrong: 0,
        }
    }

    /// Rehearses in about so many seconds: each kind of call alone, and then iterations.
    fn rehearse(&mut self, limit_s: f64) -> Result<Option<RehearsedIterations>, CommError> {
        if limit_s <= 0.0 {
            return Ok(None);
        }
        let began = Instant::now();
        let limit = Duration::from_secs_f64(ALONE * limit_s / self.calls.len().max(1) as f64);
        // A race may take longer than its limit, by a call of each choice at the most.
        let waits = CallOptions { timeout: Some(3 * limit + PATIENCE), ..CallOptions::default() };
        for it in &mut self.calls {
            // One kind after the other: whoever has no part in it waits.
            self.communicator.barrier(&waits)?;
            let Some(tuned) = &mut self.tuned[it.group as usize] else { continue };
            let (call, bytes) = (it.call, size_of_val(&*it.whole));
            let in_a_row = call.times as usize;
            tuned.shortlist_call(call.collective, bytes, &call, in_a_row, limit, |members, options, _| {
                it.plain(members, options)
            })?;
        }
        self.communicator.barrier(&waits)?;
        let left_s = limit_s - agreed_s(self.communicator, began)?;
        rehearse_iterations(self, Duration::from_secs_f64(left_s.max(0.0))).map(Some)
    }

    /// What is called, for people.
    fn kinds(&self) -> Vec<MixCall> {
        let kind = |it: &Prepared| MixCall {
            collective: it.call.collective.to_string(),
            parallelism: it.call.parallelism,
            bytes: size_of_val(&*it.whole),
            ranks: it.ranks,
            times: it.call.times,
        };
        self.calls.iter().map(kind).collect()
    }

    /// All calls of an iteration, in an order of chance that is the same on all ranks; seconds of this rank. Where it is checked, each
    /// kind of call is made once more behind it, with data that differs from rank to rank.
    fn iteration(
        &mut self,
        is_checked: bool,
        mut make: impl FnMut(&mut Prepared, &Groups, &mut [Option<TunedCalls<'a>>]) -> Result<(), CommError>,
    ) -> Result<f64, CommError> {
        for last in (1..self.order.len()).rev() {
            self.order.swap(last, self.random.below(last + 1));
        }
        self.communicator.barrier(&CallOptions::default())?;
        let began = Instant::now();
        for &place in &self.order {
            make(&mut self.calls[place], self.groups, self.tuned.as_mut_slice())?;
        }
        let seconds = began.elapsed().as_secs_f64();
        if is_checked {
            for call in &mut self.calls {
                call.differ();
                make(call, self.groups, self.tuned.as_mut_slice())?;
                self.wrong += call.count_wrong();
            }
        }
        Ok(seconds)
    }

    /// An iteration as the tuners say; seconds of this rank.
    fn tuned_iteration(&mut self, is_checked: bool) -> Result<f64, CommError> {
        let seconds = self.iteration(is_checked, |it, _, tuned| {
            tuned[it.group as usize].as_mut().map_or(Ok(()), |tuned| it.tuned(tuned))
        })?;
        self.last = Duration::from_secs_f64(seconds);
        Ok(seconds)
    }
}

impl<'a> Iterations<'a> for Mixed<'a> {
    fn world(&self) -> &Communicator {
        self.communicator
    }

    fn tuned(&mut self) -> Vec<&mut TunedCalls<'a>> {
        self.tuned.iter_mut().flatten().collect()
    }

    fn iteration(&mut self) -> Result<f64, CommError> {
        self.tuned_iteration(false)
    }
}

impl Playing for Mixed<'_> {
    type Rival = Static;

    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    fn tuned(&mut self, is_checked: bool) -> Result<Took, CommError> {
        self.tuned_iteration(is_checked).map(Took::from)
    }

    fn rival(&mut self, rival: &Static, is_checked: bool) -> Result<Took, CommError> {
        self.iteration(is_checked, |it, groups, _| {
            let options = rival.options(it.call.collective, it.ranks);
            groups.get(it.group).map_or(Ok(()), |members| it.plain(members, &options))
        })
        .map(Took::from)
    }

    fn boundary(&mut self) -> Result<(), CommError> {
        let last = self.last;
        self.tuned.iter_mut().flatten().try_for_each(|tuned| tuned.boundary_after(last).map(drop))
    }
}

impl Prepared {
    /// This rank has its number, from 1 on, everywhere.
    fn differ(&mut self) {
        let own = self.rank as f32 + 1.0;
        self.whole.fill(own);
        self.part.fill(own);
    }

    /// After a call for which ranks had their numbers: elements that are not what they must be. Then all is 1 again.
    fn count_wrong(&mut self) -> u64 {
        let average = (self.ranks as f32 + 1.0) / 2.0;
        let wrong = |values: &[f32], right: f32| values.iter().filter(|value| (**value - right).abs() > 1e-3).count();
        let Prepared { call, ranks, whole, part, .. } = &*self;
        let wrong = match call.collective {
            // It is in no such group: nothing was called.
            _ if *ranks == 1 => wrong(whole, 1.0),
            CollectiveKind::AllGather => {
                whole.chunks(part.len()).zip(1u16..).map(|(part, number)| wrong(part, f32::from(number))).sum::<usize>()
            }
            CollectiveKind::ReduceScatter => wrong(part, average),
            // Both have the first one's.
            CollectiveKind::SendReceive => wrong(whole, 1.0),
            _ => wrong(whole, average),
        };
        self.whole.fill(1.0);
        self.part.fill(1.0);
        wrong as u64
    }

    fn tuned(&mut self, tuned: &mut TunedCalls<'_>) -> Result<(), CommError> {
        let Prepared { call, rank, whole, part, .. } = self;
        let (reduction, options) = (Reduction::Average, CallOptions::default());
        match call.collective {
            CollectiveKind::AllGather => tuned.all_gather(part, whole, call, &options),
            CollectiveKind::ReduceScatter => tuned.reduce_scatter(whole, part, reduction, call, &options),
            CollectiveKind::SendReceive if *rank == 0 => tuned.send(whole, 1, call, &options),
            CollectiveKind::SendReceive => tuned.receive(whole, 0, call, &options),
            _ => tuned.all_reduce(whole, reduction, call, &options),
        }
    }

    fn plain(&mut self, members: &Communicator, options: &CallOptions) -> Result<(), CommError> {
        let Prepared { call, rank, whole, part, .. } = self;
        let reduction = Reduction::Average;
        match call.collective {
            CollectiveKind::AllGather => members.all_gather(part, whole, options),
            CollectiveKind::ReduceScatter => members.reduce_scatter(whole, part, reduction, options),
            CollectiveKind::SendReceive if *rank == 0 => members.send(whole, 1, 0, options),
            CollectiveKind::SendReceive => members.receive(whole, 0, 0, options),
            _ => members.all_reduce(whole, reduction, options),
        }
    }
}

impl TunedMix {
    /// For people.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for call in &self.mix_calls {
            let MixCall { collective, parallelism, bytes, ranks, times } = call;
            writeln!(out, "# {times} x {collective} of {bytes} bytes among {ranks} ranks ({parallelism})")?;
        }
        let ms = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{:.2} ms", us / 1e3));
        let (default, tuned, fixed) = (ms(self.default_us), ms(self.tuned_us), ms(self.static_us));
        writeln!(out, " an iteration: default {default}, tuned {tuned}, best static configuration {fixed}")?;
        let Self { best_static, called, choices, tuned_over_static, calls_over_static, tuned_over_default, .. } = self;
        writeln!(
            out,
            " tuned, boundaries included, over the best static configuration: {tuned_over_static:.3} (calls alone \
             {calls_over_static:.3}), over the default: {tuned_over_default:.3}"
        )?;
        writeln!(out, " best static configuration: {best_static} ({called} of {choices} called)")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_mix_is_that_of_a_large_model_scaled_down() {
        let (calls, whole) = (calls(256), Mix::on(CLUSTER.0, CLUSTER.1).workload().calls);
        assert_eq!(calls.len(), whole.len());
        for (scaled, call) in calls.iter().zip(&whole) {
            assert_eq!((scaled.collective, scaled.bytes), (call.collective, call.bytes / 256));
            assert!(scaled.times >= 1 && scaled.times <= call.times);
        }
        let kinds: Vec<Parallelism> = calls.iter().map(|call| call.parallelism).collect();
        assert!(Parallelism::ALL.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    }

    #[test]
    fn every_kind_of_call_is_made_and_nothing_is_wrong() {
        let effort =
            Effort { calls: 12, compared: 4, jobs_s: 0.0, search_s: 0.2, rehearse_s: 0.1, seed: 3, programs: &[] };
        let ranks = Communicator::threads(3).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || measure(&communicator, 1 << 16, &effort).expect("all ranks measure"))
        });
        let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        for (mix, wrong) in &all {
            assert_eq!((*wrong, mix.calls, mix.compared), (0, 12, 4));
            assert!(mix.called >= 1 && mix.tuned_over_static > 0.0 && mix.rehearsal_s > 0.0, "{mix:?}");
            assert!(mix.rehearsed_iterations > 0 && mix.changed_contexts <= mix.mix_calls.len(), "{mix:?}");
        }
        assert_eq!(all[0].0.tuned_us, all[1].0.tuned_us);
    }
}
