//! By how much what chooses, and each method that stays the same, is slower than the fastest method of its group, in the mean over
//! groups; and what is open of that. Pure.

use paceline_cli::Estimate;
use serde::Serialize;

use super::super::report::{NOT_MEASURED, Target};
use super::METHODS;
use super::judge::{Group, Outcome};
use super::regret::Regret;

/// Is the mean regret of what chooses below that of every method that stays the same? Over the groups that have all of them. What
/// is open of the groups, which were measured apart, adds up as independent errors of a mean do.
pub fn on_average<'a>(groups: &[Group<'a>], chooser: &str, of: fn(&Group<'a>) -> Option<&'a Outcome>) -> Target {
    let rows: Vec<Chosen> = groups.iter().filter_map(|group| Chosen::of(group, of(group)?)).collect();
    let averages = Averages::of(&rows.iter().collect::<Vec<_>>());
    let found = averages.as_ref().and_then(|averages| Some((averages, averages.best()?)));
    target(
        chooser,
        found.map(|(averages, best)| {
            let (apart, open) = (best.apart.mean, best.by_runs);
            let words = if open > 0.0 { format!(", apart ± {:.2} %", 100.0 * open) } else { String::new() };
            (averages.beside(best, &words), Some(apart < 0.0).filter(|_| apart.abs() >= open))
        }),
    )
}

/// The same of groups that stand for others: is it so beyond what they leave open, too, and of each method?
pub fn over_groups(averages: Option<&Averages>, chooser: &str) -> Target {
    let found = averages.and_then(|averages| Some((averages, averages.best()?)));
    target(
        chooser,
        found.map(|(averages, best)| {
            let open = best.open().map_or_else(|| "unknown".to_owned(), |open| format!("{:.2}", 100.0 * open));
            let words = format!(", apart {:.2} ± {open} %", 100.0 * best.apart.mean);
            let beaten: Vec<Option<bool>> = averages.fixed.iter().map(Fixed::is_beaten).collect();
            (averages.beside(best, &words), all_met(&beaten))
        }),
    )
}

/// What was found, and whether it is what is demanded. None: nothing was.
fn target(chooser: &str, found: Option<(String, Option<bool>)>) -> Target {
    let (found, met) = found.unwrap_or_else(|| (NOT_MEASURED.to_owned(), None));
    let demanded = "less regret than any fixed method".to_owned();
    Target { case: format!("{chooser}, mean over groups"), demanded, found, met }
}

/// Are all of them met? One that is missed decides; if none is, one that is open leaves it open. Of none nothing is said.
pub fn all_met(verdicts: &[Option<bool>]) -> Option<bool> {
    let all = !verdicts.is_empty() && verdicts.iter().all(|verdict| *verdict == Some(true));
    if verdicts.contains(&Some(false)) { Some(false) } else { all.then_some(true) }
}

/// The regret of what chose, and of each method that stays the same; and what is open of the first beside each of these, 0 if
/// nothing is known of that.
#[derive(Serialize)]
pub struct Chosen {
    regret: f64,
    fixed: Vec<(f64, f64)>,
}

impl Chosen {
    /// None of a group that lacks a method.
    pub fn of(group: &Group<'_>, chosen: &Outcome) -> Option<Chosen> {
        let beside = |method: &&str| -> Option<(f64, f64)> {
            let fixed = group.method(method)?;
            Some((group.regret(fixed)?.value, Regret::of(chosen, fixed)?.open.unwrap_or(0.0)))
        };
        let fixed = METHODS.iter().map(beside).collect::<Option<_>>()?;
        Some(Chosen { regret: group.regret(chosen)?.value, fixed })
    }
}

/// Of the same groups.
#[derive(Serialize)]
pub struct Averages {
    /// The regret of what chose.
    pub chosen: Estimate,
    /// Of each method that stays the same.
    pub fixed: Vec<Fixed>,
}

/// A method that stays the same, beside what chose.
#[derive(Serialize)]
pub struct Fixed {
    /// As it is asked for.
    pub method: &'static str,
    /// Its own.
    pub regret: Estimate,
    /// That of what chose less its own, group by group.
    pub apart: Estimate,
    /// So much of the mean difference do the runs of these groups leave open, as far as that is known: independent errors of a mean.
    pub by_runs: f64,
    /// In so many groups what chose was faster.
    pub faster_in: usize,
}

impl Averages {
    /// None of no group.
    pub fn of(rows: &[&Chosen]) -> Option<Averages> {
        let regrets: Vec<f64> = rows.iter().map(|row| row.regret).collect();
        let fixed = METHODS.into_iter().enumerate().map(|(place, method)| Fixed::of(method, place, rows));
        Some(Averages { chosen: Estimate::of(&regrets)?, fixed: fixed.collect::<Option<_>>()? })
    }

    /// The one with the least regret.
    pub fn best(&self) -> Option<&Fixed> {
        self.fixed.iter().min_by(|one, other| one.regret.mean.total_cmp(&other.regret.mean))
    }

    /// What chose beside the best fixed one, with what is said of how far they are apart.
    fn beside(&self, best: &Fixed, apart: &str) -> String {
        let [chosen, regret] = [self.chosen, best.regret].map(|estimate| 100.0 * estimate.mean);
        let groups = self.chosen.runs;
        format!("{chosen:.2} %, and the best fixed one, {}, {regret:.2} %{apart} ({groups} groups)", best.method)
    }
}

impl Fixed {
    /// The one in this place of every row.
    fn of(method: &'static str, place: usize, rows: &[&Chosen]) -> Option<Fixed> {
        let regrets: Vec<f64> = rows.iter().map(|row| row.fixed[place].0).collect();
        let apart: Vec<f64> = rows.iter().map(|row| row.regret - row.fixed[place].0).collect();
        let squares: f64 = rows.iter().map(|row| row.fixed[place].1.powi(2)).sum();
        Some(Fixed {
            method,
            regret: Estimate::of(&regrets)?,
            apart: Estimate::of(&apart)?,
            by_runs: squares.sqrt() / rows.len() as f64,
            faster_in: apart.iter().filter(|apart| **apart < 0.0).count(),
        })
    }

    /// Of the mean difference, with 95 %: the wider of what the groups leave open (Student's t) and what their runs do. None of one
    /// group.
    fn open(&self) -> Option<f64> {
        self.apart.half_width_95.map(|by_groups| by_groups.max(self.by_runs))
    }

    /// Was what chose less slow? None if that lies within what is open.
    pub fn is_beaten(&self) -> Option<bool> {
        let (apart, open) = (self.apart.mean, self.open()?);
        (apart.abs() >= open).then_some(apart < 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::AUTO;
    use super::super::judge::groups;
    use super::super::judge::samples::outcome;
    use super::*;

    /// A group whose first two methods and `auto` have these throughputs, and the other methods half of 100.
    fn group(name: &str, [first, second, auto]: [f64; 3]) -> Vec<Outcome> {
        let rates = [first, second].into_iter().chain([50.0; METHODS.len() - 2]).chain([auto]);
        let methods = METHODS.into_iter().chain([AUTO]);
        methods.zip(rates).map(|(method, rate)| outcome(name, method, rate, rate)).collect()
    }

    fn averages(outcomes: &[Outcome]) -> Averages {
        let groups = groups(outcomes);
        let rows: Vec<Chosen> = groups.iter().filter_map(|group| Chosen::of(group, group.auto()?)).collect();
        Averages::of(&rows.iter().collect::<Vec<_>>()).expect("groups that have all methods")
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    /// `auto` is 1 and 3 % slower than the first method, which is the fastest, and 1 % faster; the second is 20, 10 and 30 % slower.
    /// With two degrees of freedom the quantile is 4.303.
    #[test]
    fn means_are_over_groups_and_so_are_their_intervals() {
        let rates = [[100.0, 80.0, 99.0], [100.0, 90.0, 97.0], [100.0, 70.0, 101.0]];
        let outcomes: Vec<Outcome> =
            ["a", "b", "c"].into_iter().zip(rates).flat_map(|(name, rates)| group(name, rates)).collect();
        let found = averages(&outcomes);
        close(found.chosen.mean, 0.01);
        close(found.chosen.half_width_95.expect("of three groups"), 4.303 * 0.02 / 3f64.sqrt());
        let [first, second, third, ..] = &found.fixed[..] else { panic!("{} methods", found.fixed.len()) };
        assert_eq!((first.method, first.faster_in, first.is_beaten()), (METHODS[0], 1, None));
        close(first.regret.mean, 0.0);
        close(first.apart.mean, 0.01);
        assert_eq!((second.faster_in, second.is_beaten()), (3, None), "19 % are open by 30");
        close(second.regret.mean, 0.2);
        close(second.apart.mean, -0.19);
        close(second.open().expect("of three groups"), 4.303 * 0.12 / 3f64.sqrt());
        assert_eq!((third.faster_in, third.is_beaten()), (3, Some(true)), "49 % by 5");
        close(third.apart.mean, -0.49);
        let target = over_groups(Some(&found), AUTO);
        assert_eq!((target.case.as_str(), target.met), ("auto, mean over groups", None));
        assert_eq!(target.found, "1.00 %, and the best fixed one, bsp-ps, 0.00 %, apart 1.00 ± 4.97 % (3 groups)");
    }

    /// In three groups that are all alike nothing is open but what runs leave open.
    #[test]
    fn the_wider_of_what_groups_and_runs_leave_open_decides() {
        let of = |auto: f64, noise: Option<f64>| {
            let mut outcomes = ["a", "b", "c"].map(|name| group(name, [100.0, 80.0, auto])).concat();
            let noisy = outcomes.iter_mut().filter(|outcome| outcome.method == AUTO && outcome.group != "c");
            noisy.for_each(|outcome| outcome.noise = noise);
            averages(&outcomes)
        };
        let met = |averages: &Averages| over_groups(Some(averages), AUTO).met;
        assert_eq!((met(&of(101.0, None)), met(&of(99.0, None))), (Some(true), Some(false)));
        // 3 % of two groups of three are 1.4 % of the mean.
        let noisy = of(101.0, Some(0.03));
        close(noisy.fixed[0].by_runs, 2f64.sqrt() * 0.03 / 3.0);
        assert_eq!((met(&noisy), noisy.fixed[1].is_beaten()), (None, Some(true)));
        assert_eq!(met(&of(98.0, Some(0.03))), Some(false));
    }

    #[test]
    fn of_one_group_or_none_nothing_is_decided() {
        let target = over_groups(Some(&averages(&group("a", [100.0, 80.0, 110.0]))), AUTO);
        assert_eq!((target.met, target.found.contains("apart -10.00 ± unknown %")), (None, true), "{}", target.found);
        assert_eq!(over_groups(None, AUTO).found, NOT_MEASURED);
        assert!(Averages::of(&[]).is_none());
        let cases: [(&[Option<bool>], Option<bool>); 4] = [
            (&[Some(true), Some(true)], Some(true)),
            (&[Some(true), None], None),
            (&[None, Some(false)], Some(false)),
            (&[], None),
        ];
        cases.into_iter().for_each(|(verdicts, met)| assert_eq!(all_met(verdicts), met, "{verdicts:?}"));
    }
}
