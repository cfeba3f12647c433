//! What follows from the measurements: ratios, means, targets met and missed.

use serde::{Deserialize, Serialize};

use super::command::Setting;
use super::results::{
    Cell, GLOO, MEMORY_FLOOR, OPENMPI, OPENMPI_BEST, OURS, OURS_ALLOC, RAW_EXCHANGE, Results, Verdict,
};
use super::statistics::geometric_mean;

/// Up to here latency decides, above it bandwidth.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// A machine on which ours differs this much from itself says nothing about a mean.
const OWN_NOISE_MAX: f64 = 1.5;
/// Where the target against Gloo changes.
const GLOO_SMALL_BYTES_MAX: usize = 4 << 20;
/// From here the memory floor is measured.
pub const FLOOR_BYTES_MIN: usize = 25 << 20;
/// From here bytes decide, and worlds of different sizes can be compared by them.
const BYTES_DECIDE_MIN: usize = 1 << 20;

/// All that is derived.
#[derive(Serialize, Deserialize)]
pub struct Summary {
    pub comparisons: Vec<Comparison>,
    pub geometric_means: Vec<Mean>,
    pub bounds: Vec<Bound>,
    pub crowds: Vec<Crowd>,
    pub targets: Vec<Target>,
}

/// Ours against one rival at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    #[serde(flatten)]
    pub setting: Setting,
    pub bytes: usize,
    pub rival: String,
    pub ours_us: f64,
    pub rival_us: f64,
    /// The rival's time over ours.
    pub ratio: f64,
    pub noise: f64,
    pub verdict: Verdict,
    /// What the ratio must reach, where there is a demand.
    pub target: Option<f64>,
}

/// The geometric means of the ratios against one rival.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mean {
    #[serde(flatten)]
    pub setting: Setting,
    pub rival: String,
    /// Up to 64 KiB.
    pub small: Option<f64>,
    pub large: Option<f64>,
    pub all: Option<f64>,
    /// Why there are none: sizes at which ours differed too much from itself.
    pub unsteady: Vec<usize>,
    /// What the mean of all must reach, where there is a demand.
    pub target: Option<f64>,
}

/// How close we come to what the machine can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bound {
    #[serde(flatten)]
    pub setting: Setting,
    pub bytes: usize,
    /// `memory-floor` or `raw-exchange`.
    pub bound: String,
    /// Who is compared with it.
    pub contestant: String,
    pub bound_us: f64,
    pub ours_us: f64,
    /// The bound's time over ours: 1 is all that the machine can do.
    pub share: f64,
    /// What it is made of.
    pub measured: String,
    pub target: Option<f64>,
}

/// More ranks than cores, against 4 ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Crowd {
    #[serde(flatten)]
    pub setting: Setting,
    pub bytes: usize,
    pub ours_us: f64,
    /// The time over that of 4 ranks.
    pub slower: f64,
    /// The same per byte that the ranks together must send, 2(n−1)·S.
    pub slower_per_byte_sent: f64,
    /// What the latter may be at most, where there is a demand.
    pub target: Option<f64>,
}

/// A row of the table of demands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub case: String,
    pub demanded: String,
    pub measured: String,
    pub met: bool,
}

impl Comparison {
    /// None without a demand.
    pub fn met(&self) -> Option<bool> {
        self.target.map(|target| self.ratio >= target)
    }
}

/// Who is compared, in the order of the columns.
pub const RIVALS: [&str; 3] = [OPENMPI, OPENMPI_BEST, GLOO];

/// Derives everything.
pub fn summarize(results: &Results) -> Summary {
    let comparisons: Vec<Comparison> = results.cells.iter().flat_map(compare).collect();
    let mut geometric_means = Vec::new();
    for setting in results.settings() {
        geometric_means.extend(RIVALS.iter().filter_map(|rival| mean(results, setting, rival)));
    }
    let bounds: Vec<Bound> = results.cells.iter().flat_map(bounds).collect();
    let crowds: Vec<Crowd> = results.cells.iter().filter_map(|cell| crowd(results, cell)).collect();
    let targets = targets(&comparisons, &geometric_means, &bounds, &crowds);
    Summary { comparisons, geometric_means, bounds, crowds, targets }
}

fn compare(cell: &Cell) -> Vec<Comparison> {
    let against = |rival: &&str| {
        let duel = cell.duel(rival)?;
        Some(Comparison {
            setting: cell.setting.clone(),
            bytes: cell.bytes,
            rival: (*rival).to_owned(),
            ours_us: duel.ours_us,
            rival_us: duel.rival_us,
            ratio: duel.ratio,
            noise: duel.noise,
            verdict: duel.verdict(),
            target: cell_target(&cell.setting, rival, cell.bytes),
        })
    };
    RIVALS.iter().filter_map(against).collect()
}

/// What is demanded of each size.
fn cell_target(setting: &Setting, rival: &str, bytes: usize) -> Option<f64> {
    let judged = setting.collective == "all-reduce" && matches!(setting.ranks, 2 | 4);
    match (setting.transport.as_str(), rival) {
        _ if !judged => None,
        ("shm", OPENMPI_BEST) => Some(1.0),
        ("tcp", OPENMPI) => Some(0.95),
        ("tcp", GLOO) => Some(if bytes <= GLOO_SMALL_BYTES_MAX { 3.0 } else { 1.0 }),
        _ => None,
    }
}

/// What is demanded of the mean over the sizes.
fn mean_target(setting: &Setting, rival: &str) -> Option<f64> {
    match (setting.collective.as_str(), setting.transport.as_str(), rival) {
        _ if !matches!(setting.ranks, 2 | 4) => None,
        ("all-reduce", "shm", OPENMPI_BEST) => Some(1.5),
        ("all-reduce", "tcp", OPENMPI) => Some(1.3),
        ("all-reduce", ..) => None,
        (_, _, OPENMPI) => Some(1.2),
        _ => None,
    }
}

fn mean(results: &Results, setting: &Setting, rival: &str) -> Option<Mean> {
    let duels: Vec<_> = results.cells_of(setting).filter_map(|cell| Some((cell.bytes, cell.duel(rival)?))).collect();
    let unsteady: Vec<usize> =
        duels.iter().filter(|(_, duel)| duel.own_noise > OWN_NOISE_MAX).map(|(bytes, _)| *bytes).collect();
    let over = |wanted: &dyn Fn(usize) -> bool| {
        // One unsteady size spoils the means that it would be part of.
        if unsteady.iter().any(|&bytes| wanted(bytes)) {
            return None;
        }
        geometric_mean(duels.iter().filter(|(bytes, _)| wanted(*bytes)).map(|(_, duel)| duel.ratio))
    };
    (!duels.is_empty()).then(|| Mean {
        setting: setting.clone(),
        rival: rival.to_owned(),
        small: over(&|bytes| bytes <= SMALL_BYTES_MAX),
        large: over(&|bytes| bytes > SMALL_BYTES_MAX),
        all: over(&|_| true),
        target: mean_target(setting, rival),
        unsteady: unsteady.clone(),
    })
}

fn bounds(cell: &Cell) -> Vec<Bound> {
    let judged = cell.setting.collective == "all-reduce" && matches!(cell.setting.ranks, 2 | 4);
    let floor = (judged && cell.bytes >= FLOOR_BYTES_MIN).then_some(0.65);
    let raw = (judged && cell.bytes > GLOO_SMALL_BYTES_MAX).then_some(0.85);
    let pairs = [(MEMORY_FLOOR, OURS, None), (MEMORY_FLOOR, OURS_ALLOC, floor), (RAW_EXCHANGE, OURS, raw)];
    let bound = |(bound, contestant, target): (&str, &str, Option<f64>)| {
        // The raw exchange stands between two of ours; the floor beside one of each.
        let share = match bound {
            RAW_EXCHANGE => cell.duel(bound)?.ratio,
            _ => cell.share(bound, contestant)?,
        };
        Some(Bound {
            setting: cell.setting.clone(),
            bytes: cell.bytes,
            bound: bound.to_owned(),
            contestant: contestant.to_owned(),
            bound_us: cell.median_us(bound)?,
            ours_us: cell.median_us(contestant)?,
            share,
            measured: cell.runs.iter().rev().find(|run| run.contestant == bound)?.algorithm.clone(),
            target,
        })
    };
    pairs.into_iter().filter_map(bound).collect()
}

fn crowd(results: &Results, cell: &Cell) -> Option<Crowd> {
    if cell.setting.ranks <= 4 || cell.setting.collective != "all-reduce" {
        return None;
    }
    let four = Setting { ranks: 4, ..cell.setting.clone() };
    let reference = results.cells_of(&four).find(|other| other.bytes == cell.bytes)?;
    let ours_us = cell.median_us(OURS)?;
    let slower = ours_us / reference.median_us(OURS)?;
    let sent = |ranks: usize| 2.0 * (ranks as f64 - 1.0);
    Some(Crowd {
        setting: cell.setting.clone(),
        bytes: cell.bytes,
        ours_us,
        slower,
        slower_per_byte_sent: slower * sent(4) / sent(cell.setting.ranks),
        target: (cell.bytes >= BYTES_DECIDE_MIN).then_some(1.5),
    })
}

/// The demands, each with what was measured; those of which nothing was measured are left out.
fn targets(comparisons: &[Comparison], means: &[Mean], bounds: &[Bound], crowds: &[Crowd]) -> Vec<Target> {
    let mut targets = Vec::new();
    for mean in means {
        let here: Vec<_> = comparisons
            .iter()
            .filter(|one| one.setting == mean.setting && one.rival == mean.rival && one.target.is_some())
            .collect();
        if !here.is_empty() {
            targets.push(every_size(&here));
        }
        if let Some(demanded) = mean.target {
            targets.push(Target {
                case: format!("{} against {}: geometric mean", mean.setting, mean.rival),
                demanded: format!("≥ {demanded:.2}"),
                measured: mean.all.map_or_else(|| "none: too unsteady".to_owned(), |all| format!("{all:.2}")),
                met: mean.all.is_some_and(|all| all >= demanded),
            });
        }
    }
    targets.extend(bounds.iter().filter_map(|bound| {
        let demanded = bound.target?;
        Some(Target {
            case: format!("{}, {} bytes: {} of the {}", bound.setting, bound.bytes, bound.contestant, bound.bound),
            demanded: format!("≥ {:.0} %", demanded * 100.0),
            measured: format!("{:.0} %", bound.share * 100.0),
            met: bound.share >= demanded,
        })
    }));
    targets.extend(every_floor(bounds));
    targets.extend(crowds.iter().filter_map(|crowd| {
        let demanded = crowd.target?;
        Some(Target {
            case: format!("{}, {} bytes: time per byte sent over that of 4 ranks", crowd.setting, crowd.bytes),
            demanded: format!("≤ {demanded:.2}"),
            measured: format!("{:.2}", crowd.slower_per_byte_sent),
            met: crowd.slower_per_byte_sent <= demanded,
        })
    }));
    targets
}

/// The demand on every size of one setting against one rival: the sizes that miss it are named.
fn every_size(here: &[&Comparison]) -> Target {
    let Comparison { setting, rival, .. } = here[0];
    let mut demands: Vec<f64> = here.iter().filter_map(|one| one.target).collect();
    demands.dedup();
    let demanded = demands.iter().map(|demand| format!("{demand:.2}")).collect::<Vec<_>>().join(", then ");
    let missed: Vec<String> = here
        .iter()
        .filter(|one| one.met() == Some(false))
        .map(|one| format!("{:.2} at {}", one.ratio, one.bytes))
        .collect();
    let worst = here.iter().map(|one| one.ratio).fold(f64::INFINITY, f64::min);
    let met = missed.is_empty();
    let measured = if met { format!("at least {worst:.2}") } else { missed.join(", ") };
    Target {
        case: format!("{setting} against {rival}: every size"), demanded: format!("≥ {demanded}"), measured, met
    }
}

/// The demand on the memory of the communicator from 25 MiB on, in the settings in which that size was measured.
fn every_floor(bounds: &[Bound]) -> Vec<Target> {
    let judged: Vec<(&Bound, f64)> = bounds
        .iter()
        .filter(|bound| bound.bound == MEMORY_FLOOR)
        .filter_map(|bound| Some((bound, bound.target?)))
        .collect();
    let settings = judged.chunk_by(|(one, _), (next, _)| one.setting == next.setting);
    let from_the_least = settings.filter(|here| here[0].0.bytes == FLOOR_BYTES_MIN);
    let target = |here: &[(&Bound, f64)]| {
        let (Bound { setting, contestant, bound, .. }, demanded) = here[0];
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let missed: Vec<String> = here
            .iter()
            .filter(|(bound, target)| bound.share < *target)
            .map(|(bound, _)| format!("{} at {}", percent(bound.share), bound.bytes))
            .collect();
        let least = here.iter().map(|(bound, _)| bound.share).fold(f64::INFINITY, f64::min);
        let met = missed.is_empty();
        Target {
            case: format!("{setting}: {contestant} of the {bound}, every size from 25 MiB on"),
            demanded: format!("≥ {}", percent(demanded)),
            measured: if met { format!("at least {}", percent(least)) } else { missed.join(", ") },
            met,
        }
    };
    from_the_least.map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::super::command::Measured;
    use super::*;

    fn setting(transport: &str, ranks: usize) -> Setting {
        Setting { collective: "all-reduce".into(), transport: transport.into(), ranks }
    }

    fn cell(setting: Setting, bytes: usize, runs: &[(&str, f64)]) -> Cell {
        let mut cell = Cell { setting, bytes, runs: Vec::new() };
        for &(contestant, p50_us) in runs {
            cell.add(1, contestant, Measured { bytes, iterations: 3, p50_us, wrong: 0, algorithm: String::new() });
        }
        cell
    }

    fn results(cells: Vec<Cell>) -> Results {
        Results { cells, ..Results::default() }
    }

    #[test]
    fn demands_are_judged_and_what_misses_them_is_named() {
        let small = [(OURS, 10.0), (OPENMPI, 9.0), (OURS, 10.0), (GLOO, 40.0), (OURS, 10.0)];
        let large = [(OURS, 10.0), (OPENMPI, 40.0), (OURS, 10.0), (GLOO, 11.0), (OURS, 10.0)];
        let cells = vec![cell(setting("tcp", 2), 1 << 10, &small), cell(setting("tcp", 2), 16 << 20, &large)];
        let summary = summarize(&results(cells));
        let found: Vec<_> = summary.targets.iter().map(|target| (target.measured.as_str(), target.met)).collect();
        assert_eq!(found, [("0.90 at 1024", false), ("1.90", true), ("at least 1.10", true)]);
        assert_eq!(summary.comparisons.iter().filter(|one| one.verdict == Verdict::Lost).count(), 2);
        let mean = &summary.geometric_means[0];
        assert_eq!((mean.rival.as_str(), mean.small, mean.large), (OPENMPI, Some(0.9), Some(4.0)));
    }

    #[test]
    fn no_mean_is_quoted_where_ours_differs_too_much_from_itself() {
        let steady = cell(setting("shm", 2), 1 << 10, &[(OURS, 10.0), (OPENMPI, 20.0), (OURS, 10.0)]);
        let unsteady = cell(setting("shm", 2), 1 << 20, &[(OURS, 10.0), (OPENMPI, 20.0), (OURS, 20.0)]);
        let summary = summarize(&results(vec![steady, unsteady]));
        let mean = &summary.geometric_means[0];
        assert!((mean.small.expect("steady") - 2.0).abs() < 1e-12);
        assert_eq!((mean.large, mean.all, mean.unsteady.as_slice()), (None, None, &[1_usize << 20][..]));
    }

    #[test]
    fn bounds_and_crowds_are_judged() {
        let floor = [(OURS, 20.0), (OURS_ALLOC, 10.0), (MEMORY_FLOOR, 7.0)];
        let cells = vec![
            cell(setting("shm", 4), 64 << 20, &floor),
            cell(setting("shm", 8), 64 << 20, &[(OURS, 50.0)]),
            cell(setting("shm", 16), 64 << 20, &[(OURS, 200.0)]),
        ];
        let summary = summarize(&results(cells));
        let shares: Vec<_> = summary.bounds.iter().map(|bound| bound.share).collect();
        assert_eq!(shares, [0.35, 0.7]);
        let crowds: Vec<_> = summary.crowds.iter().map(|crowd| crowd.slower_per_byte_sent).collect();
        assert!((crowds[0] - 2.5 * 6.0 / 14.0).abs() < 1e-12 && (crowds[1] - 2.0).abs() < 1e-12, "{crowds:?}");
        let met: Vec<_> = summary.targets.iter().map(|target| target.met).collect();
        assert_eq!(met, [true, true, false]);
    }

    #[test]
    fn memory_of_the_communicator_is_judged_from_25_mib_on_where_that_was_measured() {
        let at = |ranks, bytes, us| cell(setting("shm", ranks), bytes, &[(OURS_ALLOC, us), (MEMORY_FLOOR, 7.0)]);
        let cells = vec![
            at(2, FLOOR_BYTES_MIN, 10.0),
            at(2, 64 << 20, 8.0),
            at(4, FLOOR_BYTES_MIN, 10.0),
            at(4, 64 << 20, 14.0),
        ];
        let verdicts = |cells| {
            let targets = summarize(&results(cells)).targets;
            let of_all = targets.into_iter().filter(|target| target.case.ends_with("every size from 25 MiB on"));
            of_all.map(|target| (target.measured, target.met)).collect::<Vec<_>>()
        };
        let expected = [("at least 70 %".to_owned(), true), ("50 % at 67108864".to_owned(), false)];
        assert_eq!(verdicts(cells), expected);
        assert!(verdicts(vec![at(2, 64 << 20, 8.0)]).is_empty(), "what happens at 25 MiB is not known");
    }

    #[test]
    fn floors_of_other_collectives_are_shown_without_a_demand() {
        let other = Setting { collective: "all-gather".into(), ..setting("shm", 2) };
        let cells = vec![cell(other, 64 << 20, &[(OURS, 20.0), (OURS_ALLOC, 10.0), (MEMORY_FLOOR, 4.0)])];
        let summary = summarize(&results(cells));
        let shares: Vec<_> = summary.bounds.iter().map(|bound| (bound.share, bound.target)).collect();
        assert_eq!(shares, [(0.2, None), (0.4, None)]);
        assert!(summary.targets.is_empty());
    }
}
