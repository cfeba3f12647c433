//! While the network changes and changes back: how soon does the tuner take as long again as the best that there is then?

use std::io::{self, Write};

use paceline_comm::{CallOptions, Communicator};
use paceline_train::links_of;
use paceline_tune::Choice;
use serde::Serialize;

use super::super::exercise::Subject;
use super::super::pattern::Pattern;
use super::Effort;
use super::bench::{Bench, CALL};
use super::contestants::{Contestants, in_words};
use super::size::{ITERATION, search};
use super::turns::{Length, Turns, median_us, play, ratio};
use crate::failure::{Failure, unless_closed};

/// How the network can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Network {
    Usual,
    Slow,
}

/// It has recovered when so many calls together take at most so many times as long as the best.
const WINDOW: usize = 20;
const RECOVERED: f64 = 1.05;

/// So many calls after a change, it must have.
const GRACE: usize = 100;

/// What was found out.
#[derive(Clone, Debug, Serialize)]
pub struct TunedDrift {
    /// That are reduced, in place.
    pub bytes: usize,
    /// Calls while it learned, before anything changed.
    pub calls: usize,
    /// Did the searches in both networks end before their time?
    pub search_ended: bool,
    /// The network as it was, changed, and as it was.
    pub phases: Vec<DriftPhase>,
}

/// The calls after a change.
#[derive(Clone, Debug, Serialize)]
pub struct DriftPhase {
    /// `usual` or `slow`.
    network: Network,
    /// The best of the default and of what searches in both networks have found.
    pub oracle: String,
    /// What the tuner has come to.
    pub chosen: String,
    /// Calls.
    pub compared: usize,
    /// After so many calls, 20 together took at most 5 % longer than the best, boundaries not counted. None: never.
    pub recovered_after: Option<usize>,
    /// Totals from the 100th call on: the tuner's, boundaries included, over the best's.
    pub over_oracle: Option<f64>,
    /// The same of the 100th to the 199th call alone: what comes late is not thinned out by what follows.
    pub over_oracle_at_first: Option<f64>,
    /// The same of calls alone.
    pub calls_over_oracle: Option<f64>,
    /// Totals of all calls: the tuner's, boundaries included, over the default's.
    pub over_default: f64,
    /// Medians from the 100th call on, in microseconds.
    pub tuned_us: Option<f64>,
    /// Of the best.
    pub oracle_us: Option<f64>,
    /// How often the network was taken for changed, so far; known to rank 0.
    pub drifts: u32,
}

/// Measures, all ranks together. Gives elements that were wrong, too.
///
/// # Errors
/// Those of the communication; standard input or output failed; there is not that much memory.
pub fn measure(
    communicator: &Communicator,
    subject: &Subject,
    bytes: usize,
    effort: &Effort<'_>,
) -> Result<(TunedDrift, u64), Failure> {
    let pattern = Pattern::<f32>::new(subject.reduction, subject.kind.contributors(communicator.world_size()));
    let mut bench = Bench::new(communicator, subject, &pattern, bytes, effort)?;
    let state = bench.tuned.state_of(subject.kind, bench.bytes(), &CALL);
    let contestants = Contestants::of(&bench.tuned, &state, links_of(communicator));
    let (mut rivals, mut search_ended) = (vec![Choice::Default], true);
    for network in [Network::Usual, Network::Slow] {
        change(communicator, network)?;
        let finish = search(communicator, &mut bench, &contestants, effort.search_s)?;
        search_ended &= finish.is_complete;
        let best = finish.ranking.first().map_or(Choice::Default, |&number| contestants.choices[number]);
        if !rivals.contains(&best) {
            rivals.push(best);
        }
    }
    let mut phases = Vec::new();
    for (place, network) in [Network::Usual, Network::Slow, Network::Usual].into_iter().enumerate() {
        change(communicator, network)?;
        if place == 0 {
            bench.rehearse(effort.rehearse_s)?;
        }
        let rounds = if place == 0 { effort.calls } else { effort.compared };
        let length = Length { rounds, between: ITERATION, seed: effort.seed.wrapping_add(place as u64) };
        let turns = play(&mut bench, &rivals, &length)?;
        let words = |choice: Choice| in_words(&bench.tuned, &state, choice);
        let chosen = words(bench.tuned.standing().choice(state.context().key(), 0));
        let drifts: u32 = bench.tuned.tuner().map_or(0, |tuner| tuner.courses().map(|(_, course)| course.drifts).sum());
        let best = turns.best(grace(&turns));
        phases.push(DriftPhase { oracle: words(rivals[best]), chosen, drifts, ..phase(network, &turns, best) });
    }
    Ok((TunedDrift { bytes: bench.bytes(), calls: effort.calls, search_ended, phases }, bench.wrong))
}

/// Asks for a change, and waits until it has happened. Who asks nobody (standard input has ended) goes on.
fn change(communicator: &Communicator, network: Network) -> Result<(), Failure> {
    if communicator.rank() == 0 {
        let word = if network == Network::Slow { "slow" } else { "usual" };
        let mut out = io::stdout();
        unless_closed(writeln!(out, "network: {word}").and_then(|()| out.flush()))?;
        let mut line = String::new();
        io::stdin()
            .read_line(&mut line)
            .map_err(|error| Failure::failed("cannot read from standard input").cause(error))?;
    }
    communicator.barrier(&CallOptions::default())?;
    Ok(())
}

/// The first call that counts: after the grace, or at once if there are no more.
fn grace(turns: &Turns) -> usize {
    if turns.boundaries.len() > GRACE { GRACE } else { 0 }
}

fn phase(network: Network, turns: &Turns, best: usize) -> DriftPhase {
    let (tuned, oracle, whole) = (&turns.tuned.lasted, &turns.rivals[best].lasted, turns.tuned_whole());
    let is_good = |start: &usize| {
        let window = *start..*start + WINDOW;
        ratio(&tuned[window.clone()], &oracle[window]) <= RECOVERED
    };
    let from = grace(turns);
    let between = |of: &[f64], to: usize| (from > 0).then(|| ratio(&of[from..to], &oracle[from..to]));
    let late = |of: &[f64]| between(of, of.len());
    DriftPhase {
        network,
        oracle: String::new(),
        chosen: String::new(),
        compared: tuned.len(),
        recovered_after: (0..(tuned.len() + 1).saturating_sub(WINDOW)).find(is_good),
        over_oracle: late(&whole),
        over_oracle_at_first: between(&whole, whole.len().min(2 * GRACE)),
        calls_over_oracle: late(tuned),
        over_default: ratio(&whole, &turns.rivals[0].lasted),
        tuned_us: median_us(&tuned[from..]),
        oracle_us: median_us(&oracle[from..]),
        drifts: 0,
    }
}

impl TunedDrift {
    /// For people.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# {} bytes; {} calls to learn", self.bytes, self.calls)?;
        for phase in &self.phases {
            let network = if phase.network == Network::Slow { "slow" } else { "usual" };
            let recovered = phase.recovered_after.map_or("never".to_owned(), |calls| format!("after {calls} calls"));
            let over = phase.over_oracle.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            writeln!(
                out,
                " {network:<6} {:>5} calls, within 5 % of the best {recovered}; from 100 calls on {over} of it, boundaries included; {}; \
                 best: {}",
                phase.compared, phase.chosen, phase.oracle
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::Times;
    use super::*;

    #[test]
    fn recovery_is_counted_in_calls_from_the_change_on() {
        let slow_at_first = |calls: usize, factor: f64| {
            (0..300).map(|call| if call < calls { factor } else { 1.0 }).collect::<Vec<f64>>()
        };
        let times = |lasted: Vec<f64>| Times { fastest: lasted.clone(), lasted };
        let turns = Turns {
            tuned: times(slow_at_first(80, 3.0)),
            // The second is the best from the 100th call on, if not from the first.
            rivals: [vec![1.2; 300], slow_at_first(90, 5.0), vec![1.1; 300]].map(times).into(),
            boundaries: (1..=300).map(|call| if call % 10 == 0 { 1.0 } else { 0.0 }).collect(),
        };
        let best = turns.best(grace(&turns));
        let found = phase(Network::Slow, &turns, best);
        assert_eq!((best, found.recovered_after, found.calls_over_oracle), (1, Some(0), Some(1.0)));
        assert!(found.over_oracle.is_some_and(|ratio| (ratio - 1.1).abs() < 1e-9), "{found:?}");
        let against_steady = phase(Network::Slow, &turns, 2);
        assert_eq!(against_steady.recovered_after, Some(79));
        assert!(against_steady.over_default > 1.0);
        let one = |seconds| times(vec![seconds; 10]);
        let short = Turns { tuned: one(1.0), rivals: vec![one(1.0)], boundaries: vec![0.0; 10] };
        let found = phase(Network::Usual, &short, short.best(grace(&short)));
        assert_eq!((found.recovered_after, found.over_oracle, found.tuned_us), (None, None, Some(1e6)));
    }
}
