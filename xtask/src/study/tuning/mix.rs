//! The calls of a large language model: a live tuner against the best configuration that is the same for all of them.

use serde_json::{Value, json};

use super::super::report::{Table, Target, ms};
use super::sizes::{cut_off, search_ended};
use super::world::{Case, Links};
use super::{Measured, Over, Question, Section, in_words, last_text, numbers};
use crate::compare::statistics::median;

/// The tuner's total over the best static configuration's.
const OVER_STATIC_MAX: f64 = 1.0;
/// All iterations so far over the default's, from 100 on.
const PREFIX_MAX: f64 = 1.02;
/// No more runs are made when the mean is known so well.
const KNOWN: f64 = 0.01;
const RUNS_MIN: usize = 3;
/// By which bytes are divided: a model of 13 billion parameters on 64 workers becomes 150 ms of a NIC of 1 Gbit/s.
const SCALE: u64 = 256;
/// Iterations, and seconds of the search.
const LEARNING: usize = 300;
const COMPARED: usize = 100;
const SEARCH_S: f64 = 360.0;
/// Seconds of the rehearsal; in the lab, where an iteration takes twenty times as long, and nobody can compare as many.
const REHEARSAL_S: f64 = 120.0;
const REHEARSAL_IN_LAB_S: f64 = 240.0;
/// About what an iteration takes, and starting a world.
const ITERATION_S: f64 = 0.02;
const ITERATION_IN_LAB_S: f64 = 0.35;
const START_S: f64 = 5.0;

pub fn question(quick: bool) -> Question {
    let cases = if quick {
        vec![case(Links::Shm, 4, 1, 65_536, [20, 4], [1.0, 0.5])]
    } else {
        let full = |links, ranks, per_host| {
            let rehearsal_s = if links == Links::Lab { REHEARSAL_IN_LAB_S } else { REHEARSAL_S };
            case(links, ranks, per_host, SCALE, [LEARNING, COMPARED], [SEARCH_S, rehearsal_s])
        };
        vec![full(Links::Shm, 8, 1), full(Links::Tcp, 4, 1), full(Links::Lab, 8, 2)]
    };
    Question { name: "mix", cases, runs: 3, is_enough, judge }
}

fn case(links: Links, ranks: usize, per_host: usize, scale: u64, iterations: [usize; 2], limits_s: [f64; 2]) -> Case {
    let ([learning, compared], [search_s, rehearsal_s]) = (iterations, limits_s);
    let iteration_s = if links == Links::Lab { ITERATION_IN_LAB_S } else { ITERATION_S };
    let words = [
        ("--tune-mix", scale.to_string()),
        ("--tune-calls", learning.to_string()),
        ("--tune-compared", compared.to_string()),
        ("--tune-search", search_s.to_string()),
        ("--tune-rehearsal", rehearsal_s.to_string()),
    ];
    Case {
        name: format!("mix-{}-{ranks}", links.name()),
        links,
        ranks,
        per_host,
        arguments: words.into_iter().flat_map(|(word, value)| [word.to_owned(), value]).collect(),
        seconds: START_S + search_s + rehearsal_s + 3.0 * (learning + compared) as f64 * iteration_s,
    }
}

fn mixes(runs: &[Value]) -> Vec<&Value> {
    runs.iter().map(|run| &run["mix"]).collect()
}

fn is_enough(runs: &[Value]) -> bool {
    let over = Over::of(&numbers(mixes(runs), "tuned_over_static"));
    runs.len() >= RUNS_MIN && over.is_some_and(|over| over.half_width.is_some_and(|half| half <= KNOWN * over.mean))
}

/// Is it better? None: the interval, or what the default differs from itself, does not say.
fn beats(over: &Over, noise: Option<f64>) -> Option<bool> {
    let open = over.half_width.or(noise.map(|noise| noise - 1.0))?;
    match over.mean {
        mean if mean + open < OVER_STATIC_MAX => Some(true),
        mean if mean - open > OVER_STATIC_MAX => Some(false),
        _ => None,
    }
}

fn judge(all: &[Measured]) -> Section {
    let mut table = Table::new(
        "Calls of a large language model",
        "Tensor-parallel all-reduces and a pipeline's messages, many, of three sizes, as texts have different lengths; all-gathers and \
         reduce-scatters of shards of two; one all-reduce of gradients: those of 13 billion parameters on 8 hosts of 8 workers, with bytes divided by the scale and calls of which \
         there are more than 8 made an eighth as often. In the lab, tensors are split within hosts, and all else crosses them. \
         Times in ms: medians of iterations, after 300 to learn, before which iterations were rehearsed (two minutes, in the lab four, \
         which count as nobody's; \"changed\": kinds of calls, of 12, that were found to shorten them made otherwise). The best static configuration is the same for all calls: \
         algorithm, protocol, lanes, threads and chunk; it is searched when the tuner has learned. \"Boundary\": after each \
         iteration; the tuner's totals include it, but where \"calls\" stands. \"Cut off\": in some run the search's time was over before all \
         were called, so that a better one may have been missed: a tuner that is better than what was found is undecided then.",
        &[
            "links",
            "ranks",
            "scale",
            "runs",
            "default",
            "tuned",
            "best static",
            "boundary",
            "over static",
            "calls over static",
            "over static while learning",
            "over default",
            "prefix",
            "noise",
            "rehearsed",
            "changed",
            "called",
            "the best static",
        ],
    );
    let (mut targets, mut measured) = (Vec::new(), Vec::new());
    for one in all {
        let runs = mixes(&one.runs);
        let over = |name: &str| Over::of(&numbers(runs.iter().copied(), name));
        // Whichever of both took longer.
        let of_default = numbers(runs.iter().copied(), "default_over_itself");
        let noise = of_default.iter().map(|noise| 1.0 + (noise - 1.0).abs()).reduce(f64::max);
        let place = format!("calls of a large language model, {}, {} ranks", one.case.links.name(), one.case.ranks);
        for (counted, name) in [("boundaries included", "tuned_over_static"), ("calls alone", "calls_over_static")] {
            let over_static = over(name);
            let met = over_static.as_ref().and_then(|over| beats(over, noise));
            // Of a search that was cut off, nobody knows what it has missed: only a miss is certain then.
            let met = met.filter(|met| !met || search_ended(&runs));
            let open = if met.is_none() && !runs.is_empty() { ", undecided" } else { "" };
            targets.push(Target {
                case: format!("{place}, {counted}"),
                demanded: format!("total over the best static configuration's < {OVER_STATIC_MAX}"),
                found: in_words(over_static.as_ref()) + open + cut_off(&runs),
                met,
            });
        }
        let worst = over("worst_prefix").map(|over| over.worst);
        targets.push(Target {
            case: format!("{place}, from 100 iterations on"),
            demanded: format!("total over the default's ≤ {PREFIX_MAX}, each run"),
            found: worst.map_or_else(|| "not measured".to_owned(), |worst| format!("at worst {worst:.3}")),
            // What the default exceeds itself by is no fault of the tuner's.
            met: worst.and_then(|worst| match worst <= PREFIX_MAX {
                true => Some(true),
                false => (worst > PREFIX_MAX.max(noise.unwrap_or(1.0))).then_some(false),
            }),
        });
        table.rows.push(row(one, &runs));
        measured.push(json!({"case": one.case.name, "links": one.case.links, "ranks": one.case.ranks,
            "over_static": over("tuned_over_static"), "search_ended": search_ended(&runs), "runs": one.runs}));
    }
    Section { targets, tables: vec![table], measured: Value::Array(measured) }
}

fn row(one: &Measured, runs: &[&Value]) -> Vec<String> {
    let over = |name: &str| Over::of(&numbers(runs.iter().copied(), name));
    let worst = |name: &str| over(name).map_or_else(|| "–".to_owned(), |over| format!("{:.3}", over.worst));
    let of = |name: &str| runs.last().map_or_else(|| "–".to_owned(), |run| run[name].to_string());
    let middle = |name: &str| {
        let us = numbers(runs.iter().copied(), name);
        if us.is_empty() { "–".to_owned() } else { ms(median(&us) / 1e6) }
    };
    vec![
        one.case.links.name().to_owned(),
        one.case.ranks.to_string(),
        of("scale"),
        runs.len().to_string(),
        middle("default_us"),
        middle("tuned_us"),
        middle("static_us"),
        middle("boundary_us"),
        in_words(over("tuned_over_static").as_ref()),
        in_words(over("calls_over_static").as_ref()),
        in_words(over("learning_over_static").as_ref()),
        in_words(over("tuned_over_default").as_ref()),
        worst("worst_prefix"),
        worst("default_over_itself"),
        numbers(runs.iter().copied(), "rehearsed_iterations")
            .iter()
            .map(|it| it.to_string())
            .collect::<Vec<_>>()
            .join(", "),
        numbers(runs.iter().copied(), "changed_contexts")
            .iter()
            .map(|it| it.to_string())
            .collect::<Vec<_>>()
            .join(", "),
        format!("{} of {}{}", of("called"), of("choices"), cut_off(runs)),
        last_text(runs, "best_static"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(over_static: f64) -> Value {
        json!({"mix": {"scale": 256, "tuned_over_static": over_static, "calls_over_static": 0.5, "default_over_itself": 1.02, "default_us": 1e5}})
    }

    fn met(ratios: &[f64]) -> Option<bool> {
        let runs = ratios.iter().map(|ratio| run(*ratio)).collect();
        let measured =
            Measured { case: case(Links::Shm, 8, 1, 256, [300, 100], [1.0, 0.5]), runs, failures: Vec::new() };
        let section = judge(&[measured]);
        assert_eq!(section.tables[0].rows[0].len(), section.tables[0].columns.len());
        assert_eq!(section.targets.len(), 3);
        section.targets[0].met
    }

    #[test]
    fn no_run_may_take_longer_than_the_default_but_for_noise() {
        let judged = |worst: f64, noise: f64| {
            let run = json!({"mix": {"worst_prefix": worst, "default_over_itself": noise, "rehearsed_iterations": 9, "changed_contexts": 2}});
            let case = case(Links::Shm, 8, 1, 256, [300, 100], [1.0, 0.5]);
            judge(&[Measured { case, runs: vec![run], failures: Vec::new() }]).targets[2].met
        };
        let found = [judged(1.019, 1.0), judged(1.25, 1.02), judged(1.03, 1.05), judged(1.03, 0.95)];
        assert_eq!(found, [Some(true), Some(false), None, None]);
    }

    #[test]
    fn a_static_configuration_is_beaten_by_more_than_chance_leaves_open() {
        assert_eq!(met(&[0.95, 0.951, 0.949]), Some(true));
        assert_eq!(met(&[0.95, 1.05, 0.98]), None);
        assert_eq!(met(&[1.05, 1.051, 1.049]), Some(false));
        // A single run is judged by what the default differs from itself.
        assert_eq!([met(&[0.97]), met(&[0.99]), met(&[1.03])], [Some(true), None, Some(false)]);
        assert_eq!(met(&[]), None);
    }

    /// It may have missed a better one: to beat what it has found proves nothing then, and not to beat that is a miss all the same.
    #[test]
    fn a_search_that_was_cut_off_proves_no_success() {
        let judged = |over_static: f64| {
            let runs = [0.999, 1.0, 1.001].map(|times| {
                let mut run = run(over_static * times);
                run["mix"]["search_ended"] = json!(times != 1.0);
                run
            });
            let case = case(Links::Shm, 8, 1, 256, [300, 100], [1.0, 0.5]);
            let section = judge(&[Measured { case, runs: runs.into(), failures: Vec::new() }]);
            (section.targets[0].met, section.targets[0].found.clone(), section.tables[0].rows[0][16].clone())
        };
        let (met, found, called) = judged(0.9);
        assert!(met.is_none() && found.ends_with(", undecided, cut off") && called.ends_with(", cut off"), "{found}");
        assert_eq!(judged(1.1).0, Some(false));
    }
}
