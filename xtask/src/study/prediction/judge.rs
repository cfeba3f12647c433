//! What predictions are worth: errors, and what it costs to do what they say. Pure.

use paceline_cli::Estimate;
use paceline_train::Decision;
use serde::{Deserialize, Serialize};

use super::super::cells::Cell;
use super::super::report::Target;
use super::AUTO;
use super::averages::on_average;
use super::lab::foreseen;
use super::regret::Regret;
use crate::compare::statistics::median;

/// Where a cell was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The study's models on emulated networks.
    Emulated,
    /// Tensor lists and networks at random.
    Drawn,
    /// Several numbers of servers, on emulated networks.
    Servers,
    /// Links that the kernel shapes.
    Lab,
    /// Models that are trained, over the links within this host.
    Real,
    /// The same over TCP on its loopback.
    Loopback,
    /// On links of several kinds, from files of a probe and a profile.
    Files,
}

/// A cell: what was predicted, and what came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Where.
    pub place: Place,
    /// Which methods it is compared with: those of the same name.
    pub group: String,
    /// How many.
    pub workers: usize,
    /// As it was asked for.
    pub method: String,
    /// Samples per second. None: no run counted.
    pub measured: Option<f64>,
    /// Samples per second. None: it could not be predicted.
    pub predicted: Option<f64>,
    /// From where to where, with 95 %. None: nobody has said it.
    pub interval: Option<[f64; 2]>,
    /// What was measured, with how it scatters over the runs.
    pub throughput: Option<Estimate>,
    /// The same by rounds, in each of which all of its group are measured; None: that one did not count. (None stand in pages of 23
    /// November 2026.)
    #[serde(default)]
    pub rounds: Vec<Option<f64>>,
    /// How far two measurements of the same thing lay apart in its group, as a share, if there were two.
    pub noise: Option<f64>,
    /// What is missing, and why.
    pub missing: Vec<String>,
    /// The strategy that ran, where that was chosen.
    pub chosen: Option<String>,
    /// What `auto` decided in one of its runs, one after the other, and what became of that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// If processors were slower than the links that they carry.
    pub limited: Option<String>,
}

/// What is demanded of the median error.
pub const ERROR_MAX: f64 = 0.05;

impl Place {
    /// As tables have them.
    pub const ALL: [Place; 7] =
        [Place::Emulated, Place::Drawn, Place::Servers, Place::Lab, Place::Real, Place::Loopback, Place::Files];

    /// Is it one of those that say together how good predictions are? Files are told of apart: their cells are such as others have, too.
    pub fn counts_among_all(self) -> bool {
        self != Place::Files
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Place::Emulated => "emulated networks",
            Place::Drawn => "drawn cases, emulated",
            Place::Servers => "numbers of servers, emulated",
            Place::Lab => "lab, 1 Gbit/s by the kernel",
            Place::Real => "trained models, this host",
            Place::Loopback => "trained models, TCP on the loopback",
            Place::Files => "files of a probe and a profile",
        }
    }

    fn is_emulated(self) -> bool {
        matches!(self, Place::Emulated | Place::Drawn | Place::Servers | Place::Files)
    }

    fn is_trained(self) -> bool {
        matches!(self, Place::Real | Place::Loopback)
    }
}

impl Outcome {
    /// Of a cell that `paceline bench` has measured.
    /// What chooses on links that are there is held to what it expected itself when it had chosen: what `bench` predicts of it later knows what the
    /// worlds of all methods have measured.
    pub fn of(place: Place, group: &str, cell: &Cell) -> Outcome {
        let samples = (cell.workers * cell.local_batch) as f64;
        let first = cell.decisions.first().filter(|_| place.is_trained());
        let (predicted, interval) = first.map(|decision| foreseen(decision, samples)).unzip();
        let unpredicted = cell.not_predicted.iter().map(|why| format!("no prediction: {why}"));
        Outcome {
            place,
            group: group.to_owned(),
            workers: cell.workers,
            method: cell.method.clone(),
            measured: cell.samples_per_s,
            predicted: predicted.or(cell.predicted),
            interval: interval.or(cell.predicted_interval),
            throughput: cell.throughput,
            rounds: cell.rounds.clone(),
            noise: cell.noise,
            missing: cell.failures.iter().cloned().chain(unpredicted).collect(),
            chosen: cell.chosen.clone(),
            decisions: cell.decisions.clone(),
            limited: cell.limited.clone(),
        }
    }

    /// Predicted over measured, less 1.
    pub fn error(&self) -> Option<f64> {
        Some(self.predicted? / self.measured? - 1.0)
    }

    /// Does its error count among others? What one worker alone trains is predicted from runs of the same, and its error says how far
    /// these lie apart.
    pub fn counts(&self) -> bool {
        self.workers > 1 || !self.place.is_trained()
    }

    /// Was what was measured predicted to lie there? The ends count. None: it was not measured, or nobody has said where.
    pub fn within(&self) -> Option<bool> {
        let (measured, [low, high]) = (self.measured?, self.interval?);
        Some((low..=high).contains(&measured))
    }

    /// Does it say which method is how fast? Not where processors were slower than the links that they emulate. In the lab, and of
    /// trained models, that is what was to be measured.
    pub fn decides(&self) -> bool {
        self.limited.is_none() || !self.place.is_emulated()
    }

    /// That nobody knows how fast it is, and why.
    fn unmeasured(&self) -> String {
        let why = if self.missing.is_empty() { "no run counted".to_owned() } else { self.missing.join("; ") };
        format!("{} was not measured: {why}", self.method)
    }

    /// What it ran in short, where that was chosen: the aspects that are.
    pub fn ran(&self) -> Option<String> {
        let open = |aspect: &&str| aspect.starts_with("schedule=") || aspect.starts_with("arch=");
        let aspects = self.chosen.as_ref()?.split(',').filter(open);
        Some(aspects.collect::<Vec<_>>().join(", "))
    }

    /// What it is called and what is missing, if it says nothing.
    pub fn gap(&self) -> Option<(String, String)> {
        let name = format!("{}, {}", self.group, self.method);
        self.error().is_none().then(|| (name, self.missing.join("; ")))
    }
}

/// What was measured and predicted of the methods of a group.
pub struct Group<'a> {
    /// How it is called.
    pub name: &'a str,
    /// Where.
    pub place: Place,
    /// How many.
    pub workers: usize,
    /// One of each method.
    pub cells: Vec<&'a Outcome>,
}

/// The groups in the order in which they were measured.
pub fn groups(outcomes: &[Outcome]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for outcome in outcomes {
        let same = |group: &&mut Group<'_>| group.name == outcome.group && group.place == outcome.place;
        match groups.iter_mut().find(same) {
            Some(group) => group.cells.push(outcome),
            None => groups.push(Group {
                name: &outcome.group,
                place: outcome.place,
                workers: outcome.workers,
                cells: vec![outcome],
            }),
        }
    }
    groups
}

impl<'a> Group<'a> {
    /// Those among which a choice is made, whether their runs then counted or not: what chooses by itself is none of them.
    fn fixed(&self) -> impl Iterator<Item = &'a Outcome> {
        let fixed = self.deciding().filter(|outcome| outcome.method != AUTO);
        fixed.filter(|outcome| outcome.measured.is_some() || outcome.predicted.is_some())
    }

    fn deciding(&self) -> impl Iterator<Item = &'a Outcome> {
        self.cells.iter().copied().filter(|outcome| outcome.decides())
    }

    /// Is the regret of what was chosen small enough? Where it has none, because it was not measured or the processors were in the
    /// way, that is said.
    fn target(&self, what: &str, chosen: Option<&Outcome>) -> Target {
        let regret = chosen.and_then(|chosen| self.regret(chosen));
        let target = Regret::target(regret, format!("{what} in {}", self.name));
        if let Some(chosen) = chosen.filter(|chosen| chosen.measured.is_none()) {
            return Target { found: chosen.unmeasured(), ..target };
        }
        let limited = self.cells.iter().filter(|outcome| !outcome.decides());
        let limited: Vec<&str> = limited.map(|outcome| outcome.method.as_str()).collect();
        // Of fewer than two nobody chooses.
        let in_the_way = limited.contains(&what) || (!limited.is_empty() && self.fixed().count() < 2);
        if regret.is_some() || !in_the_way {
            return target;
        }
        Target { found: format!("the processors, not the links, limited {}", limited.join(", ")), ..target }
    }

    /// The fastest one, as measured.
    pub fn fastest(&self) -> Option<&'a Outcome> {
        best(self.fixed().filter(|outcome| outcome.measured.is_some()), |outcome| outcome.measured)
    }

    /// The one with the highest predicted throughput, which may be one that could not be measured: the next one is no substitute.
    /// None where one that was measured was not predicted, or there is no choice.
    pub fn choice(&self) -> Option<&'a Outcome> {
        let choices = self.fixed().count() > 1 && self.fixed().all(|outcome| outcome.predicted.is_some());
        best(self.fixed(), |outcome| outcome.predicted).filter(|_| choices)
    }

    /// What chose while it ran.
    pub fn auto(&self) -> Option<&'a Outcome> {
        self.method(AUTO)
    }

    /// The regret of the choice.
    pub fn of_choice(&self) -> Option<Regret> {
        self.regret(self.choice()?)
    }

    /// The regret of what chose while it ran.
    pub fn of_auto(&self) -> Option<Regret> {
        self.regret(self.auto()?)
    }

    /// What ran in short, where that was chosen.
    pub fn ran(&self) -> Option<String> {
        self.cells.iter().find_map(|outcome| outcome.ran())
    }

    /// What a method did, unless that decides nothing.
    pub fn method(&self, method: &str) -> Option<&'a Outcome> {
        self.deciding().find(|outcome| outcome.method == method)
    }

    /// Beside the fastest.
    pub fn regret(&self, chosen: &Outcome) -> Option<Regret> {
        Regret::of(chosen, self.fastest()?)
    }
}

fn best<'a>(
    outcomes: impl Iterator<Item = &'a Outcome>,
    rate: impl Fn(&Outcome) -> Option<f64>,
) -> Option<&'a Outcome> {
    outcomes.reduce(|best, other| if rate(other) > rate(best) { other } else { best })
}

/// What is demanded.
pub fn targets(outcomes: &[Outcome]) -> Vec<Target> {
    let mut targets = Vec::new();
    for place in Place::ALL {
        let errors = errors(outcomes, |outcome| outcome.place == place && outcome.counts());
        let found = (!errors.is_empty()).then(|| median(&errors));
        targets.push(Target::at_most(place.name(), "median error", ERROR_MAX, found));
    }
    let groups: Vec<Group<'_>> = groups(outcomes).into_iter().filter(|group| group.workers > 1).collect();
    for group in &groups {
        targets.push(group.target("choice", group.choice()));
        if group.cells.iter().any(|outcome| outcome.method == AUTO) {
            targets.push(group.target(AUTO, group.auto()));
        }
    }
    let groups: Vec<Group<'_>> = groups.into_iter().filter(|group| group.place.counts_among_all()).collect();
    targets.push(on_average(&groups, "choice", Group::choice));
    targets.push(on_average(&groups, AUTO, Group::auto));
    targets
}

/// The sizes of the errors of some outcomes.
pub fn errors(outcomes: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> Vec<f64> {
    outcomes.iter().filter(|outcome| wanted(outcome)).filter_map(Outcome::error).map(f64::abs).collect()
}

#[cfg(test)]
pub mod samples {
    use super::super::AUTO;
    use super::{Decision, Estimate, Outcome, Place};

    const CHOSEN: &str = "sync=bsp,schedule=wfbp,arch=a2a:auto,protocol=auto";

    /// Measured once, and predicted give or take a twentieth.
    pub fn outcome(group: &str, method: &str, predicted: f64, measured: f64) -> Outcome {
        Outcome {
            place: Place::Emulated,
            group: group.to_owned(),
            workers: 8,
            method: method.to_owned(),
            measured: Some(measured),
            predicted: Some(predicted),
            interval: Some([0.95 * predicted, 1.05 * predicted]),
            throughput: Estimate::of(&[measured]),
            rounds: Vec::new(),
            noise: None,
            missing: Vec::new(),
            limited: None,
            chosen: (method == AUTO).then(|| CHOSEN.to_owned()),
            decisions: Vec::new(),
        }
    }

    /// Iterations of so many seconds were predicted, and measured.
    pub fn decision(predicted_s: f64, measured_iteration_s: Option<f64>) -> Decision {
        Decision {
            iteration: 0,
            strategy: CHOSEN.to_owned(),
            plan_hash: "0a".to_owned(),
            changed: true,
            predicted_iteration_s: predicted_s,
            predicted_low_s: 0.9 * predicted_s,
            predicted_high_s: 1.1 * predicted_s,
            expected_iteration_s: predicted_s,
            reasons: vec!["the best of 230 predicted plans".to_owned()],
            doubts: Vec::new(),
            measured_iteration_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::METHODS;
    use super::super::tables::{cell_table, error_table, group_table, method_table};
    use super::samples::{decision, outcome};
    use super::*;

    /// In each group the seven methods, of which one is fast; and `auto`, which is 1 % slower than that.
    fn two_groups() -> Vec<Outcome> {
        let of = |group: &str, fast: usize| -> Vec<Outcome> {
            let rate = |method: usize| if method == fast { 100.0 } else { 80.0 };
            let fixed =
                (0..METHODS.len()).map(|method| outcome(group, METHODS[method], 1.04 * rate(method), rate(method)));
            fixed.chain([outcome(group, AUTO, 99.0, 99.0)]).collect()
        };
        [of("a", 0), of("b", 1)].concat()
    }

    fn target<'a>(targets: &'a [Target], case: &str) -> &'a Target {
        targets.iter().find(|target| target.case == case).expect("there is such a case")
    }

    #[test]
    fn what_chooses_beats_what_stays_the_same() {
        let targets = targets(&two_groups());
        assert_eq!(target(&targets, "emulated networks").met, Some(true));
        assert_eq!(target(&targets, "lab, 1 Gbit/s by the kernel").met, None, "nothing was measured there");
        for case in ["choice in a", "auto in b", "choice, mean over groups", "auto, mean over groups"] {
            assert_eq!(target(&targets, case).met, Some(true), "{case}");
        }
        assert!(
            target(&targets, "auto, mean over groups")
                .found
                .starts_with("1.00 %, and the best fixed one, bsp-ps, 10.00 %")
        );
    }

    #[test]
    fn a_wrong_choice_costs_what_it_was_measured_to_cost() {
        let mut outcomes = two_groups();
        outcomes[2].predicted = Some(500.0);
        let groups = groups(&outcomes);
        assert_eq!(groups[0].choice().map(|outcome| outcome.method.as_str()), Some(METHODS[2]));
        let regret = groups[0].of_choice().expect("a regret");
        assert!((regret.value - 0.2).abs() < 1e-12 && regret.open.is_none(), "{regret:?}");
        assert_eq!(target(&targets(&outcomes), "choice in a").met, Some(false));
        // Whoever could not be predicted may be the best one.
        outcomes[2].predicted = None;
        assert!(super::groups(&outcomes)[0].choice().is_none());
    }

    /// Whoever is predicted to be the best and has no run that counts is not replaced by the next one: what choosing it costs is unknown,
    /// among methods as among numbers of servers.
    #[test]
    fn a_choice_that_was_not_measured_is_undecided() {
        for place in [Place::Emulated, Place::Servers] {
            let mut outcomes = two_groups();
            outcomes.iter_mut().for_each(|outcome| outcome.place = place);
            let failed = &mut outcomes[0];
            (failed.measured, failed.throughput) = (None, None);
            failed.missing = vec!["run 1: late".to_owned()];
            let choice = |outcomes: &[Outcome]| groups(outcomes)[0].choice().map(|outcome| outcome.method.clone());
            assert_eq!(choice(&outcomes).as_deref(), Some(METHODS[0]), "{place:?}");
            assert_eq!(groups(&outcomes)[0].of_choice(), None);
            let targets = targets(&outcomes);
            let said = target(&targets, "choice in a");
            assert_eq!((said.met, said.found.as_str()), (None, "bsp-ps was not measured: run 1: late"));
            assert_eq!(target(&targets, "choice in b").met, Some(true));
            assert!(target(&targets, "choice, mean over groups").found.ends_with("(1 groups)"));
            assert_eq!(group_table(&outcomes).rows[0][2..4], ["bsp-ps", "not measured"]);
            // What was neither predicted nor measured was never there.
            outcomes[0].predicted = None;
            assert_eq!(choice(&outcomes).as_deref(), Some(METHODS[1]), "{place:?}");
        }
    }

    /// The fastest cell of an emulated network is none if its links were slower than they should be; in the lab it is.
    #[test]
    fn cells_that_processors_limited_decide_nothing_where_links_are_emulated() {
        let limited = |place: Place, method: &str| {
            let mut outcomes = two_groups();
            for outcome in &mut outcomes {
                outcome.place = place;
                if outcome.group == "a" && outcome.method == method {
                    outcome.limited = Some("its links were slower".to_owned());
                }
            }
            outcomes
        };
        for place in [Place::Emulated, Place::Drawn, Place::Servers] {
            let outcomes = limited(place, METHODS[0]);
            let of_all = &groups(&outcomes)[0];
            assert_ne!(of_all.fastest().map(|outcome| outcome.method.as_str()), Some(METHODS[0]), "{place:?}");
            assert_ne!(of_all.choice().map(|outcome| outcome.method.as_str()), Some(METHODS[0]), "{place:?}");
            // What remains is compared, and the group has not all methods.
            let targets = targets(&outcomes);
            assert_eq!(target(&targets, "auto in a").met, Some(true));
            assert!(target(&targets, "auto, mean over groups").found.ends_with("(1 groups)"), "{place:?}");
            let errors: Vec<String> = error_table(&outcomes).rows.into_iter().map(|row| row[0].clone()).collect();
            let kinds =
                ["", ": links were the limit", ": processors were"].map(|kind| format!("{}{kind}", place.name()));
            assert_eq!(errors, kinds);
            assert_eq!(cell_table(&outcomes).rows.len(), 16, "all of them stand there");
        }
        for place in [Place::Lab, Place::Real, Place::Loopback] {
            let outcomes = limited(place, METHODS[0]);
            assert_eq!(groups(&outcomes)[0].fastest().map(|outcome| outcome.method.as_str()), Some(METHODS[0]));
            assert!(target(&targets(&outcomes), "auto, mean over groups").found.ends_with("(2 groups)"), "{place:?}");
        }
        let of_auto = targets(&limited(Place::Emulated, AUTO));
        let said = target(&of_auto, "auto in a");
        assert_eq!((said.met, said.found.as_str()), (None, "the processors, not the links, limited auto"));
    }

    /// 2 workers with a batch of 8 in 0.1 s; on an emulated network, as `bench` says.
    #[test]
    fn what_chooses_is_held_to_what_it_expected() {
        let cell = super::super::super::cells::samples::cell("m", "n", 2, AUTO, 100.0);
        let cell = Cell { decisions: vec![decision(0.1, Some(0.2))], local_batch: 8, predicted: Some(90.0), ..cell };
        let of = |place| Outcome::of(place, "g", &cell).predicted.map(f64::round);
        assert_eq!([Place::Loopback, Place::Emulated].map(of), [Some(160.0), Some(90.0)]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let cell = Cell {
            failures: vec!["run 1: late".to_owned()],
            samples_per_s: None,
            ..super::super::super::cells::samples::cell("m", "n", 2, "ddp", 1.0)
        };
        let outcome = Outcome::of(Place::Drawn, "g", &cell);
        assert_eq!(outcome.gap(), Some(("g, ddp".to_owned(), "run 1: late".to_owned())));
        assert!(two_groups().iter().all(|outcome| outcome.gap().is_none()));
        assert_eq!(method_table(&two_groups()).rows.len(), METHODS.len() + 2);
        let groups = group_table(&two_groups());
        assert_eq!((groups.rows.len(), cell_table(&two_groups()).rows.len()), (2, 16));
        assert_eq!(groups.rows[0].last().map(String::as_str), Some("schedule=wfbp, arch=a2a:auto"));
    }
}
