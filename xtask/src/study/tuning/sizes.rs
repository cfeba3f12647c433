//! Size by size: a live tuner learns beside the default, everything that can be chosen is searched, and the tuner meets the best of
//! the search.

use serde_json::{Value, json};

use super::super::report::{Table, percent};
use super::world::{Case, Links};
use super::{Measured, Over, Question, Section, in_words, last_text, median_us, number, numbers, together};

/// After at most 300 calls: the tuner's total over that of the best that was found.
const OVER_ORACLE_MAX: f64 = 1.03;
/// From 100 calls on, at any call: the tuner's total over the default's.
const PREFIX_MAX: f64 = 1.02;
/// A total that is further from the default's than so many times what the default is from itself stands out of the noise.
const OUTSTANDING: f64 = 2.0;
/// What is demanded is demanded of all that the tuner takes, and shown of its calls alone, too: the fields of a run.
const COUNTED: [(&str, &str, &str); 2] = [
    ("boundaries included", "tuned_over_oracle", "worst_prefix"),
    ("calls alone", "calls_over_oracle", "calls_worst_prefix"),
];
/// No more runs are made when the mean over the oracle is known so well.
const KNOWN: f64 = 0.01;
const RUNS_MIN: usize = 3;
/// Of calls that take this long, in microseconds, a run is minutes: one is enough that knows it so well by its own rounds.
const LONG_US: f64 = 50e3;
/// Of short calls, jobs learn one after the other for so many seconds, so that a process that waits for a processor now and then does not
/// decide.
const JOBS_S: f64 = 6.0;
/// Calls while it learns, and afterwards; fewer of both if one takes longer than this.
const LEARNING: [usize; 2] = [300, 150];
const COMPARED: [usize; 2] = [100, 40];
const LONG_S: f64 = 0.2;
/// Of short calls there are more afterwards: about so many seconds, up to so many calls.
const COMPARED_S: f64 = 4.0;
const COMPARED_MAX: usize = 300_000;
/// Seconds of the search, and where calls are long.
const SEARCH_S: [f64; 2] = [60.0, 120.0];
/// Seconds of the rehearsal before a job's first call, at most: where calls are long, as long as about so many take, but no longer.
const REHEARSAL_S: f64 = 5.0;
const REHEARSED_CALLS: f64 = 300.0;
const REHEARSAL_MAX_S: f64 = 60.0;
/// About what starting a world takes, probing its links and ending it, for each rank.
const START_S: f64 = 0.6;

pub fn question(quick: bool, cores: usize) -> Question {
    let cases = if quick {
        let quick = ["--tune-calls", "100", "--tune-compared", "20", "--tune-search", "1", "--tune-rehearsal", "0.1"];
        [1 << 10, 64 << 10].map(|bytes| case(Links::Shm, 2, bytes, &quick.map(str::to_owned), 5.0)).into()
    } else {
        let worlds = Links::ALL.into_iter().flat_map(|links| [2, 4, 8].map(|ranks| (links, ranks)));
        let sizes = (10..=26).step_by(2).map(|log2| 1usize << log2).collect::<Vec<usize>>();
        worlds
            .flat_map(|(links, ranks)| {
                sizes.iter().map(move |&bytes| full(links, ranks, bytes, cores)).collect::<Vec<_>>()
            })
            .collect()
    };
    Question { name: "sizes", cases, runs: 5, is_enough, judge }
}

fn full(links: Links, ranks: usize, bytes: usize, cores: usize) -> Case {
    let call_s = links.call_s(ranks, bytes, cores);
    let is_long = usize::from(call_s > LONG_S);
    let search_s = SEARCH_S[is_long];
    let compared = ((COMPARED_S / call_s) as usize).clamp(COMPARED[is_long], COMPARED_MAX);
    let rehearsal_s = rehearsal_s(call_s);
    let learning = LEARNING[is_long];
    let arguments = [
        ("--tune-calls", learning.to_string()),
        ("--tune-compared", compared.to_string()),
        ("--tune-jobs", JOBS_S.to_string()),
        ("--tune-search", search_s.to_string()),
        ("--tune-rehearsal", rehearsal_s.to_string()),
    ];
    let arguments: Vec<String> = arguments.into_iter().flat_map(|(word, value)| [word.to_owned(), value]).collect();
    // The tuner's and twice the default's; and then the two best of the search as well. A search of short calls ends sooner.
    let calls = (3 * learning + 4 * compared) as f64;
    let seconds = START_S * ranks as f64 + JOBS_S + rehearsal_s + search_s.min(4000.0 * call_s) + calls * 1.3 * call_s;
    case(links, ranks, bytes, &arguments, seconds)
}

/// How long a call that takes so long is rehearsed at most.
pub fn rehearsal_s(call_s: f64) -> f64 {
    (REHEARSED_CALLS * call_s).ceil().clamp(REHEARSAL_S, REHEARSAL_MAX_S)
}

fn case(links: Links, ranks: usize, bytes: usize, more: &[String], seconds: f64) -> Case {
    let name = format!("sizes-{}-{ranks}-{}", links.name(), size(bytes as f64));
    let words = ["--tune", "--min", &bytes.to_string(), "--max", &bytes.to_string()].map(str::to_owned);
    Case { name, links, ranks, per_host: 1, arguments: [words.as_slice(), more].concat(), seconds }
}

/// "64KiB".
pub fn size(bytes: f64) -> String {
    let bytes = bytes as u64;
    if bytes >= 1 << 20 { format!("{}MiB", bytes >> 20) } else { format!("{}KiB", bytes >> 10) }
}

/// At least three runs, whose mean is known to 1 %; of long calls, one.
fn is_enough(runs: &[Value]) -> bool {
    let sizes = sizes(runs);
    let is_long = sizes.first().and_then(|run| number(run, "default_us")).is_some_and(|us| us >= LONG_US);
    let least = if is_long { 1 } else { RUNS_MIN };
    let is_known = |over: Over| over.half_width.is_some_and(|half| half <= KNOWN * over.mean);
    runs.len() >= least && over_oracle(&sizes, "tuned_over_oracle").is_some_and(is_known)
}

/// A ratio to the oracle's; of a single run, with the interval that its rounds leave open.
fn over_oracle(runs: &[&Value], name: &str) -> Option<Over> {
    let over = Over::of(&numbers(runs.iter().copied(), name))?;
    let of_rounds = runs.first().and_then(|run| number(run, "over_oracle_half_width"));
    Some(Over { half_width: over.half_width.or(of_rounds), ..over })
}

/// Has every run's search ended before its time? If not, something may be better than the best that was found.
pub fn search_ended(runs: &[&Value]) -> bool {
    runs.iter().all(|run| run["search_ended"] != false)
}

/// For the table, if it has not.
pub fn cut_off(runs: &[&Value]) -> &'static str {
    if search_ended(runs) { "" } else { ", cut off" }
}

/// What each run has found of its size.
fn sizes(runs: &[Value]) -> Vec<&Value> {
    runs.iter().map(|run| &run["sizes"][0]).collect()
}

fn judge(all: &[Measured]) -> Section {
    let mut table = table();
    let (mut targets, mut measured) = (Vec::new(), Vec::new());
    let mut worlds: Vec<(Links, usize)> = all.iter().map(|one| (one.case.links, one.case.ranks)).collect();
    worlds.dedup();
    for (links, ranks) in worlds {
        let of_world = all.iter().filter(|one| (one.case.links, one.case.ranks) == (links, ranks));
        let found: Vec<Found> = of_world.map(Found::of).collect();
        table.rows.extend(found.iter().map(Found::row));
        measured.extend(found.iter().map(Found::measured));
        for (place, (counted, ..)) in COUNTED.into_iter().enumerate() {
            let world = format!("{}, {ranks} ranks, {counted}", links.name());
            let demanded =
                format!("each size: total after at most {} calls over the best's ≤ {OVER_ORACLE_MAX}", LEARNING[0]);
            let over_best: Vec<_> = found.iter().filter_map(|found| found.keeps_near(place)).collect();
            targets.push(together(world.clone(), demanded, &over_best));
            let demanded =
                format!("each size: total over the default's from 100 calls on, of all jobs together ≤ {PREFIX_MAX}");
            let prefixes: Vec<_> = found.iter().filter_map(|found| found.keeps_prefix(place)).collect();
            targets.push(together(world, demanded, &prefixes));
        }
    }
    Section { targets, tables: vec![table], measured: Value::Array(measured) }
}

fn table() -> Table {
    Table::new(
        "Sizes",
        "Times in us: medians of calls, afterwards, each from when the last rank has begun it until the last one has ended it, by a clock that all ranks share. \"Boundary\": what one takes in the mean while tuners learn, after every 4 \
         calls, where the ranks learn of each other's times, or go on if that is not worth it yet; the tuner's totals include it, but where \"calls\" stands. \"Over best\": its total after \
         it has learned over that of the best choice that the search has found, by turns; mean over the runs, with its 95 % interval: of \
         a single run (enough where calls take 50 ms and more, if it is within 1 %), by its rounds. \"Fastest\": its calls over \
         the best's by the fastest rank's time. Before its first call each job rehearses for five seconds at most, or where 300 calls take longer, as long as those, up to a \
         minute (\"rehearsed\": the last job). That counts as nobody's, and it prepares what a choice must have when it is first called. \"While learning\": its total over the default's in its first \
         300 calls, or 150 where one is expected to take 0.2 s and more; \"that over best\": times the default's over the best's, so all that finding out has cost in the job is in it. Of short calls \
         jobs learn one after the other, each with a tuner of its own (\"jobs\"): their times while they learn, and so \"prefix\" and \
         \"noise\", are added up call by call. All that comes afterwards, and the changes noticed, are the last one's. \
         \"Prefix\": the largest total over the default's from 100 calls on, of all runs; of several jobs it ends with call 300, the last one \
         they learn in, and of a single one with the last call afterwards. \"Jobs beyond\": of all jobs by themselves, those whose total was \
         at some call from 100 to 300 more than 1.02 times the default's, and (in brackets) those whose second default's was. What stands for several is judged afterwards by \"over best\" alone. \
         \"Noise\": the same of a second default, which takes its turns like the tuner while it learns. What is beyond the limit is undecided unless it is more than twice as far from 1 as any noise, or the \
         runs' prefixes are beyond the limit in the mean, and beyond the noise of their own at the lower end of the 95 % interval. The search, when the tuner has learned, calls every choice that differs on these links three times after a \
         warm-up (once, if that took 20 ms, and only some where not all would fit into half of its time); then, by turns, a third goes on each time with twice as many calls, and the last six are \
         called 10 to 100 times, until the fastest one's median is known to 1 %. \"Called\": in the search of the last run; what was \
         not called is modelled ten times slower than the best, belongs to an algorithm and protocol of which four choices took twice \
         as long as the best, or came when the search's time (60 s, or 120 s where calls are long) was over: \"cut off\", in some run. What \
         it has missed may be better than the best, and whether the tuner is near enough is undecided then, if it does not miss what was \
         found.",
        &[
            "links",
            "ranks",
            "size",
            "runs",
            "default",
            "tuned",
            "best",
            "boundary",
            "over best",
            "calls over best",
            "fastest",
            "while learning",
            "that over best",
            "prefix",
            "calls' prefix",
            "noise",
            "changes noticed",
            "default over best",
            "called",
            "the best",
            "the tuner's",
            "jobs",
            "jobs beyond",
            "rehearsed",
        ],
    )
}

/// What the runs of a size say together.
struct Found<'a> {
    measured: &'a Measured,
    runs: Vec<&'a Value>,
    size: String,
    /// As [`COUNTED`].
    over_oracle: [Option<Over>; 2],
    prefix: [Option<Over>; 2],
    noise: Option<Over>,
}

impl Found<'_> {
    fn of(measured: &Measured) -> Found<'_> {
        let runs = sizes(&measured.runs);
        let over = |name: &str| Over::of(&numbers(runs.iter().copied(), name));
        Found {
            size: runs.first().and_then(|run| run["bytes"].as_f64()).map_or_else(|| "?".to_owned(), size),
            over_oracle: COUNTED.map(|(_, name, _)| over_oracle(&runs, name)),
            prefix: COUNTED.map(|(_, _, prefix)| over(prefix)),
            noise: over("default_over_itself"),
            measured,
            runs,
        }
    }

    fn keeps_near(&self, place: usize) -> Option<(String, f64, Option<bool>)> {
        let over = self.over_oracle[place].as_ref()?;
        // Of a search that was cut off, nobody knows what it has missed: only a miss is certain then.
        let met = over.is_at_most(OVER_ORACLE_MAX).filter(|met| !met || search_ended(&self.runs));
        Some((self.size.clone(), over.mean, met))
    }

    /// Undecided: the default differs from itself by as much. By less it does where a run stands out, or where the runs do in the mean, each
    /// beside the default of its own.
    fn keeps_prefix(&self, place: usize) -> Option<(String, f64, Option<bool>)> {
        let prefix = self.prefix[place].as_ref()?;
        // The second default may as well be the faster one.
        let noise =
            numbers(self.runs.iter().copied(), "default_over_itself").into_iter().map(|noise| (noise - 1.0).abs());
        let noise = noise.reduce(f64::max)?;
        let (_, _, name) = COUNTED[place];
        let beyond = |run: &&Value| Some(number(run, name)? - number(run, "default_over_itself")?);
        let beyond: Vec<f64> = self.runs.iter().filter_map(beyond).collect();
        let is_beyond = Over::of(&beyond).is_some_and(|over| over.half_width.is_some_and(|half| over.mean > half));
        let in_the_mean = prefix.mean > PREFIX_MAX && is_beyond;
        let met = match prefix.worst {
            worst if worst <= PREFIX_MAX => Some(true),
            worst if in_the_mean || worst - 1.0 > OUTSTANDING * noise => Some(false),
            _ => None,
        };
        Some((self.size.clone(), prefix.worst, met))
    }

    fn measured(&self) -> Value {
        let Measured { case, runs, .. } = self.measured;
        json!({"case": case.name, "links": case.links, "ranks": case.ranks, "over_oracle": self.over_oracle[0],
            "calls_over_oracle": self.over_oracle[1], "worst_prefix": self.prefix[0],
            "calls_worst_prefix": self.prefix[1], "default_over_itself": self.noise,
            "search_ended": search_ended(&self.runs), "runs": runs})
    }

    fn row(&self) -> Vec<String> {
        let (case, runs) = (&self.measured.case, &self.runs);
        let over = |name: &str| Over::of(&numbers(runs.iter().copied(), name));
        let default_over_best =
            |run: &Value| Some(number(run, "tuned_over_oracle")? / number(run, "tuned_over_default")?);
        let learning = |run: &Value| Some(number(run, "learning_over_default")? * default_over_best(run)?);
        let learning: Vec<f64> = runs.iter().filter_map(|run| learning(run)).collect();
        let default_over_best: Vec<f64> = runs.iter().filter_map(|run| default_over_best(run)).collect();
        let worst = |over: Option<&Over>| over.map_or_else(|| "–".to_owned(), |over| format!("{:.3}", over.worst));
        let of = |name: &str| runs.last().map_or_else(|| "–".to_owned(), |run| run[name].to_string());
        let excess = Over::of(&default_over_best).map(|over| over.mean - 1.0);
        let rehearsed_s = runs.last().and_then(|run| run["rehearsal"]["seconds"].as_f64());
        vec![
            case.links.name().to_owned(),
            case.ranks.to_string(),
            self.size.clone(),
            runs.len().to_string(),
            median_us(runs, "default_us"),
            median_us(runs, "tuned_us"),
            median_us(runs, "oracle_us"),
            median_us(runs, "boundary_us"),
            in_words(self.over_oracle[0].as_ref()),
            in_words(self.over_oracle[1].as_ref()),
            in_words(over("reward_over_oracle").as_ref()),
            in_words(over("learning_over_default").as_ref()),
            in_words(Over::of(&learning).as_ref()),
            worst(self.prefix[0].as_ref()),
            worst(self.prefix[1].as_ref()),
            worst(self.noise.as_ref()),
            over("drifts").map_or_else(|| "–".to_owned(), |drifts| format!("{:.1}", drifts.mean)),
            percent(excess),
            format!("{} of {}{}", of("called"), of("choices"), cut_off(runs)),
            last_text(runs, "oracle"),
            self.chosen(),
            of("jobs"),
            self.beyond(),
            rehearsed_s.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2} s")),
        ]
    }

    /// Jobs of all runs that took more than is promised, and those whose second default did. (Pages before 28 November 2026 have none.)
    fn beyond(&self) -> String {
        let all = |name: &str| numbers(self.runs.iter().copied(), name).iter().sum::<f64>();
        if self.runs.iter().all(|run| run["jobs_beyond"].is_null()) {
            return "–".to_owned();
        }
        format!("{} ({}) of {}", all("jobs_beyond"), all("defaults_beyond"), all("jobs"))
    }

    /// What the tuner has come to in the last run.
    fn chosen(&self) -> String {
        let decided = self.runs.last().is_none_or(|run| run["decided"] != false);
        format!("{}{}", last_text(&self.runs, "chosen"), if decided { "" } else { ", not decided" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boundaries take a tenth more.
    fn run(over_oracle: f64, prefix: f64, noise: f64) -> Value {
        json!({"sizes": [{"bytes": 65536, "choices": 90, "called": 80, "oracle": "ring", "chosen": "default",
            "calls_over_oracle": over_oracle, "tuned_over_oracle": 1.1 * over_oracle, "tuned_over_default": 0.8,
            "calls_worst_prefix": prefix, "worst_prefix": 1.1 * prefix, "reward_over_oracle": 1.0, "boundary_us": 9.0,
            "default_over_itself": noise, "default_us": 10.0, "tuned_us": 8.0, "oracle_us": 7.9,
            "learning_over_default": 0.9, "drifts": 1, "jobs": 7, "jobs_beyond": 2, "defaults_beyond": 1, "rehearsal": {"seconds": 0.48}}]})
    }

    /// The same of calls of so many microseconds, with what its rounds leave open.
    fn long_run(us: f64, half_width: f64) -> Value {
        let mut run = run(1.0, 1.0, 1.0);
        run["sizes"][0]["default_us"] = json!(us);
        run["sizes"][0]["over_oracle_half_width"] = json!(half_width);
        run
    }

    fn measured(runs: Vec<Value>) -> Measured {
        Measured { case: case(Links::Tcp, 4, 65536, &[], 1.0), runs, failures: Vec::new() }
    }

    #[test]
    fn all_worlds_and_sizes_are_cases_with_different_names() {
        let question = question(false, 2);
        assert_eq!(question.cases.len(), 3 * 3 * 9);
        let names: Vec<&String> = question.cases.iter().map(|case| &case.name).collect();
        assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)));
        assert!(names.iter().any(|name| *name == "sizes-lab-8-64MiB"));
    }

    #[test]
    fn runs_end_when_three_of_them_agree() {
        assert!(!is_enough(&[run(1.0, 1.0, 1.0), run(1.0, 1.0, 1.0)]));
        assert!(is_enough(&[run(1.0, 1.0, 1.0), run(1.001, 1.0, 1.0), run(1.0, 1.0, 1.0)]));
        assert!(!is_enough(&[run(1.0, 1.0, 1.0), run(1.1, 1.0, 1.0), run(1.0, 1.0, 1.0)]));
    }

    #[test]
    fn one_run_of_long_calls_is_enough_if_its_rounds_agree() {
        assert!(is_enough(&[long_run(60e3, 0.01)]));
        assert!(!is_enough(&[long_run(60e3, 0.02)]) && !is_enough(&[long_run(40e3, 0.01)]) && !is_enough(&[]));
        assert!(is_enough(&[long_run(60e3, 0.02), long_run(60e3, 0.02)]), "runs agree, whatever their rounds do");
        // Calls alone are at the best, give or take what rounds leave open.
        let met = |half_width| judge(&[measured(vec![long_run(60e3, half_width)])]).targets[2].met;
        assert_eq!([met(0.02), met(0.04)], [Some(true), None]);
    }

    /// What the search has missed may be better: being near what it has found proves nothing then, and missing that is a miss all the same.
    #[test]
    fn a_search_that_was_cut_off_proves_no_success() {
        let cut = |over_oracle: f64| {
            let mut run = run(over_oracle, 0.9, 1.01);
            run["sizes"][0]["search_ended"] = json!(false);
            run
        };
        let judged = |runs: Vec<Value>| {
            let section = judge(&[measured(runs)]);
            let met: Vec<Option<bool>> = section.targets.iter().map(|target| target.met).collect();
            (met, section.tables[0].rows[0][18].clone())
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(judged(vec![cut(0.9)]), (vec![None, yes, None, yes], "80 of 90, cut off".to_owned()));
        assert_eq!(judged(vec![run(0.9, 0.9, 1.01), cut(0.9)]).0, [None, yes, None, yes], "one of two");
        assert_eq!(judged(vec![cut(1.09)]).0, [no, yes, no, yes]);
        let mut ended = cut(0.9);
        ended["sizes"][0]["search_ended"] = json!(true);
        assert_eq!(judged(vec![ended]), (vec![yes; 4], "80 of 90".to_owned()));
    }

    #[test]
    fn targets_are_met_missed_or_hidden_by_noise() {
        let met =
            |runs: Vec<Value>| judge(&[measured(runs)]).targets.iter().map(|target| target.met).collect::<Vec<_>>();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(met(vec![run(0.9, 0.9, 1.01)]), [yes, yes, yes, yes]);
        assert_eq!(met(vec![run(1.01, 1.01, 1.01)]), [no, no, yes, yes]);
        assert_eq!(met(vec![run(1.09, 1.05, 1.01)]), [no, no, no, no]);
        assert_eq!(met(vec![run(1.01, 1.05, 1.06)]), [no, no, yes, None]);
        // Calls by 5 %, with boundaries by 15.5 %; the default by 6 % and more in a single run.
        assert_eq!(met(vec![run(1.01, 1.05, 1.08)]), [no, None, yes, None]);
        // No run stands out, and yet they do where they agree.
        let calls = |runs: [(f64, f64); 4]| met(runs.map(|(prefix, noise)| run(1.01, prefix, noise)).to_vec())[3];
        assert_eq!(calls([(1.05, 1.03), (1.06, 1.04), (1.05, 1.03), (1.06, 1.04)]), no);
        assert_eq!(calls([(1.05, 1.01), (1.0, 1.05), (0.99, 1.02), (1.0, 1.0)]), None);
        // Nor do those that are within the limit in the mean, nor does one where the second default was faster.
        assert_eq!(calls([(1.03, 1.02), (1.01, 1.0), (1.01, 1.0), (1.01, 1.0)]), None);
        assert_eq!(met(vec![run(1.01, 1.04, 0.97)])[3], None);
        assert_eq!(met(Vec::new()), [None; 4]);
        let section = judge(&[measured(vec![run(1.01, 1.01, 1.01)])]);
        assert_eq!(section.tables[0].rows[0].len(), section.tables[0].columns.len());
        assert_eq!(section.tables[0].rows[0][2], "64KiB");
        assert_eq!(section.tables[0].rows[0][21..], ["7", "2 (1) of 7", "0.48 s"]);
    }

    #[test]
    fn false_alarms_stand_in_the_page() {
        let noticed = |runs: Vec<Value>| {
            let section = judge(&[measured(runs)]);
            let table = &section.tables[0];
            let place = table.columns.iter().position(|column| column == "changes noticed").expect("a column");
            table.rows[0][place].clone()
        };
        let mut quiet = run(1.0, 1.0, 1.0);
        quiet["sizes"][0]["drifts"] = json!(0);
        assert_eq!(noticed(vec![run(1.0, 1.0, 1.0), quiet]), "0.5");
        assert_eq!(noticed(Vec::new()), "–");
    }
}
