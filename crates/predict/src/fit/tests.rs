//! What a fit finds in the comparative study's throughputs, and in parts of them.

use std::sync::LazyLock;
use std::time::Duration;

use paceline_plan::MeasuredRange;
use paceline_strategy::Registry;

use super::left_out::Leaving;
use super::*;
use crate::random::Random;
use crate::study::{Case, METHODS, StudyRow};

/// Shi et al., "Communication-efficient distributed deep learning: a comprehensive survey" (arXiv 2005.13247), as published.
const CALIBRATION: &str = include_str!("../../../../data/study_calibration.csv");

/// To the whole study.
static OF_ALL: LazyLock<Fit> = LazyLock::new(|| fitted(&study()));

fn study() -> Study {
    Study::parse(CALIBRATION).unwrap()
}

/// The study without the rows that are not kept.
fn only(keep: impl Fn(&StudyRow) -> bool) -> Study {
    let mut study = study();
    study.rows.retain(keep);
    study
}

fn fitted(study: &Study) -> Fit {
    let fit = fit(study, &FitOptions::default()).unwrap();
    fit.clusters.iter().for_each(|(network, cluster)| assert_eq!(cluster.check(), Ok(()), "{network}"));
    assert!(fit.parameters.len() <= 20 && fit.converged, "{} constants", fit.parameters.len());
    fit
}

impl Fit {
    fn cluster(&self, network: &str) -> &Cluster {
        &self.clusters.iter().find(|(name, _)| name == network).unwrap().1
    }

    fn parameter(&self, name: &str, network: Option<&str>) -> &FittedParameter {
        let is = |one: &&FittedParameter| one.name == name && one.network.as_deref() == network;
        self.parameters.iter().find(is).unwrap()
    }

    /// Samples per second of a row on the fitted clusters.
    fn predicted(&self, row: &StudyRow) -> f64 {
        let case = Case::of(row, &[], &Registry::built_in()).unwrap();
        case.estimate(self.cluster(&row.network)).unwrap().samples_per_s
    }

    /// How many times as fast as a worker alone.
    fn speedup(&self, model: &str, network: &str, method: &str, workers: usize) -> f64 {
        let known = study().rows.into_iter().find(|row| row.model == model).unwrap();
        let alone = known.single_gpu_samples_per_s.unwrap();
        let row = StudyRow { network: network.into(), method: method.into(), workers, ..known };
        self.predicted(&row) / alone
    }

    /// Seconds that the all-reduce of all gradients takes, which begins behind backward.
    fn all_reduce_s(&self, model: &str, network: &str, workers: usize) -> f64 {
        let known = study().rows.into_iter().find(|row| row.model == model).unwrap();
        let row = StudyRow { network: network.into(), method: "BSP-A2A".into(), workers, ..known };
        let prediction = Case::of(&row, &[], &Registry::built_in()).unwrap().estimate(self.cluster(network)).unwrap();
        assert_eq!(prediction.plan.operations(), 1);
        prediction.communication_s
    }

    fn errors_on(&self, rows: &[StudyRow]) -> Errors {
        Errors::of(rows.iter().map(|row| self.predicted(row) / row.samples_per_s.unwrap() - 1.0))
    }
}

fn within(predicted: f64, published: f64, share: f64) -> bool {
    (predicted / published - 1.0).abs() <= share
}

#[test]
fn the_study_is_explained_by_a_handful_of_constants() {
    let fit = &*OF_ALL;
    println!("{:#?}\n{:?}", fit.parameters, fit.errors);
    // Found were 0.6 and 2.3 % (docs/prediction.md); a fifth more is admitted.
    assert!(fit.errors.median <= 0.0078 && fit.errors.p90 <= 0.0276 && fit.errors.worst < 0.1, "{:?}", fit.errors);
    assert_eq!((fit.rows.len(), &*fit.skipped), (76, &[][..]));
    // A ring carries a byte on 10GbE in what messages took from point to point, and no network is faster than PCIe.
    let beta = |network| fit.parameter("across.beta_s_per_byte", Some(network)).value;
    assert!(within(beta("10GbE").value, 8.8162e-10, 0.03), "{:?}", beta("10GbE"));
    assert!(beta("100GbIB").value > 1.9e-10 && beta("100GbIB").value < beta("100GbE").value);
    assert!(beta("10GbE").low < beta("10GbE").value && beta("10GbE").value < beta("10GbE").high);
    // Only where TCP runs over InfiniBand do hosts get into each other's way.
    let crowded = fit.parameters.iter().filter(|one| one.name == "across.contention");
    assert_eq!(crowded.map(|one| one.network.as_deref()).collect::<Vec<_>>(), [Some("100GbE")]);
}

/// `data/clusters` has them with four digits.
#[test]
fn the_built_in_clusters_are_what_the_fit_finds() {
    let fit = &*OF_ALL;
    let name = |network: &str| format!("study-{}", network.to_lowercase());
    let clusters = fit.clusters.iter().map(|(network, _)| (network.clone(), Cluster::named(&name(network)).unwrap()));
    let built_in = Fit { clusters: clusters.collect(), ..fit.clone() };
    for row in study().rows {
        let (built_in, fitted) = (built_in.predicted(&row), fit.predicted(&row));
        assert!(within(built_in, fitted, 1e-3), "{row:?}: {built_in} samples/s, and the fit says {fitted}");
    }
}

/// A number in the text of the paper, in words, and what the fitted clusters make of it, in the same unit.
struct OfText {
    what: String,
    unit: &'static str,
    published: f64,
    predicted: f64,
}

fn what_the_text_says(fit: &Fit) -> Vec<OfText> {
    let of_method = |model: &str, method: &str, published: f64| OfText {
        what: format!("{model}, {method} with 32 workers on 100GbIB: times one worker"),
        unit: "",
        published,
        predicted: fit.speedup(model, "100GbIB", method, 32),
    };
    let of_best = |model: &str, published: f64| {
        let methods = METHODS.map(|(method, _)| method);
        let speedups = methods.map(|method| fit.speedup(model, "100GbIB", method, 4));
        OfText {
            what: format!("{model}, the best method with 4 workers: times one worker"),
            unit: "",
            published,
            predicted: speedups.into_iter().fold(0.0, f64::max),
        }
    };
    vec![
        of_method("ResNet-50", "ByteScheduler-PS", 31.6),
        of_method("BERT-Base", "MG-WFBP", 23.2),
        of_best("ResNet-50", 4.0),
        of_best("BERT-Base", 3.1),
        of_best("BERT-Large", 1.2),
        OfText {
            what: "an all-reduce of BERT-Large's gradients with 4 workers".to_owned(),
            unit: " ms",
            published: 441.0,
            predicted: 1e3 * fit.all_reduce_s("BERT-Large", "10GbE", 4),
        },
    ]
}

/// What travels during backward takes no less than after it, but for forward, and nothing travels before: so no method that begins
/// earlier can be faster than its bulk-synchronous row leaves room for.
#[test]
fn beginning_earlier_saves_no_more_than_backward() {
    let fit = &*OF_ALL;
    for row in study().rows.iter().filter(|row| row.method.starts_with("BSP") && row.workers > 4) {
        let case = Case::of(row, &[], &Registry::built_in()).unwrap();
        let samples = (row.workers * row.local_batch) as f64;
        let backward_s = Case::of(&StudyRow { method: "WFBP-A2A".into(), ..row.clone() }, &[], &Registry::built_in());
        let least_s = samples / row.samples_per_s.unwrap() - backward_s.unwrap().profile.backward_s();
        let place = if case.on_byteps { "PS" } else { "A2A" };
        for method in ["WFBP", "MG-WFBP", "ByteScheduler"]
            .map(|method| format!("{method}-{place}").replace("MG-WFBP-A2A", "MG-WFBP"))
        {
            if METHODS.iter().all(|(name, _)| *name != method) {
                continue;
            }
            let predicted = fit.predicted(&StudyRow { method: method.clone(), ..row.clone() });
            // Rows differ from what explains all of them by as much.
            assert!(
                samples / predicted > 0.92 * least_s,
                "{method} of {row:?}: {predicted} samples/s, at most {}",
                samples / least_s
            );
        }
    }
}

/// The only throughput that is known of hooks in Python is where their cost comes from: no prediction, but it must come out.
#[test]
fn the_cost_of_hooks_gives_the_throughput_that_it_was_taken_from() {
    let first = study().rows.into_iter().next().unwrap();
    let hooked = |workers| OF_ALL.predicted(&StudyRow { method: "ByteScheduler-A2A".into(), workers, ..first.clone() });
    assert!(within(hooked(4), 654.0, 0.01), "{}", hooked(4));
}

/// The paper's fifth finding. What handing over a partition takes is no more than that needs: with two thirds of it a cell contradicts.
#[test]
fn partitions_do_not_suit_all_to_all() {
    let over_unpartitioned = |handed_over_us: u64| {
        let of = |row: &StudyRow, method: &str| {
            let row = StudyRow { method: method.into(), ..row.clone() };
            let mut case = Case::of(&row, &[], &Registry::built_in()).unwrap();
            if method == "ByteScheduler-A2A" {
                case.strategy = case.strategy.with_start_up(Duration::from_micros(handed_over_us));
            }
            case.estimate(OF_ALL.cluster(&row.network)).unwrap().samples_per_s
        };
        let rows = study().rows.into_iter().filter(|row| row.method == "BSP-A2A");
        let ratios: Vec<f64> = rows.map(|row| of(&row, "ByteScheduler-A2A") / of(&row, "WFBP-A2A")).collect();
        assert_eq!(ratios.len(), 36);
        ratios.into_iter().fold(0.0, f64::max)
    };
    let [found, less] = [300, 200].map(over_unpartitioned);
    assert!(found < 1.005, "{found} times the throughput without partitions");
    assert!(less > 1.02, "{less}: it need not take so long");
}

/// None of these is among the throughputs that were fitted to; but of kappa, which no throughput tells, they are what is expected, and
/// so is the last of them of the links within hosts (`parameters.rs`): so they show that the model can have all of them at once, and
/// not that it would have predicted them.
#[test]
fn what_the_text_of_the_paper_says_is_consistent_with_the_fit() {
    for OfText { what, unit, published, predicted } in what_the_text_says(&OF_ALL) {
        println!("{what}: {predicted:.2}{unit} for {published}{unit}");
        assert!(within(predicted, published, 0.05), "{what}: {predicted}{unit}, and published is {published}{unit}");
    }
}

/// How much of these speed-ups is kappa: less of it is faster, and one standard deviation of what is expected moves them little.
#[test]
fn what_the_text_of_the_paper_says_depends_little_on_kappa() {
    let speedups = |kappa: f64| {
        let mut fit = Fit::clone(&OF_ALL);
        fit.clusters.iter_mut().for_each(|(_, cluster)| cluster.interference.computation = Constant::exact(kappa));
        let resnet = fit.speedup("ResNet-50", "100GbIB", "ByteScheduler-PS", 32);
        [resnet, fit.speedup("BERT-Base", "100GbIB", "MG-WFBP", 32)]
    };
    let [less, expected, more] = [0.3, 0.6, 0.9].map(speedups);
    for (published, place) in [(31.6, 0), (23.2, 1)] {
        let (less, expected, more) = (less[place], expected[place], more[place]);
        println!("{published}: {less:.2} at kappa 0.3, {expected:.2} at 0.6, {more:.2} at 0.9");
        assert!(more < expected && expected < less, "{published}: {less}, {expected}, {more}");
        let near = within(less, expected, 0.06) && within(more, expected, 0.06);
        assert!(near, "{published}: {less}, {expected}, {more}");
    }
}

#[test]
fn one_half_predicts_the_other() {
    for seed in [1, 2, 3] {
        let mut rows = study().rows;
        Random::new(seed).shuffle(&mut rows);
        let (known, unknown) = rows.split_at(rows.len() / 2);
        let fit = fitted(&Study { rows: known.to_vec(), ..study() });
        let errors = fit.errors_on(unknown);
        println!("seed {seed}: {errors:?}");
        assert!(errors.median <= 0.04, "seed {seed}: {errors:?}");
    }
}

/// Each of these lacks something that others determine.
#[test]
fn parts_of_the_study_are_fitted_as_well() {
    type Keep = fn(&StudyRow) -> bool;
    let parts: [(&str, Keep, f64); 8] = [
        ("without ResNet-50", |row| row.model != "ResNet-50", 0.02),
        ("without 10GbE", |row| row.network != "10GbE", 0.02),
        ("one network", |row| row.network == "100GbIB", 0.02),
        ("one model", |row| row.model == "BERT-Large", 0.02),
        ("all-to-all only", |row| row.method.ends_with("A2A"), 0.02),
        ("servers only", |row| row.method == "BSP-PS", 0.04),
        ("one host only", |row| row.workers == 4, 0.03),
        ("32 workers only", |row| row.workers == 32, 0.03),
    ];
    for (what, keep, median) in parts {
        let fit = fitted(&only(keep));
        println!("{what}: {:?}", fit.errors);
        assert!(fit.errors.median <= median, "{what}: {:?}", fit.errors);
        // Every other cell is still predicted as something.
        let rest = fit.errors_on(&only(|row| fit.clusters.iter().any(|(name, _)| *name == row.network)).rows);
        assert!(rest.worst < 1.5 && rest.median < 0.35, "{what}: {rest:?}");
    }
}

#[test]
fn what_the_study_does_not_say_is_said_to_be_expected() {
    let fit = fitted(&only(|row| row.method == "BSP-A2A" && row.network == "10GbE"));
    let loss = fit.parameter("server.duplex_loss", Some("10GbE"));
    assert_eq!((loss.origin(), loss.value.value), (Origin::Prior, 0.6));
    assert!(loss.value.low < 0.1 && loss.value.high == 1.0, "{loss:?}");
    assert_eq!(fit.parameter("across.beta_s_per_byte", Some("10GbE")).origin(), Origin::Throughputs);
    // A transfer takes computation's time, at most all of it.
    let kappa = fit.parameter("interference.computation", None);
    assert_eq!((kappa.origin(), kappa.value.high), (Origin::Prior, 1.0));
}

#[test]
fn a_row_that_contradicts_all_others_counts_little_and_a_copied_one_not_at_all() {
    let clean = fitted(&study());
    let mut study = study();
    let wrong = study.rows.iter().position(|row| row.method == "BSP-A2A" && row.workers == 32).unwrap();
    study.rows[wrong].samples_per_s = study.rows[wrong].samples_per_s.map(|rate| 0.6 * rate);
    let fit = fitted(&study);
    for (one, other) in fit.parameters.iter().zip(&clean.parameters).filter(|(one, _)| one.unit == "s/byte") {
        let (now, then) = (one.value, other.value.value);
        // What rows tell of servers, they tell less surely now.
        let unsure = one.name.starts_with("server") && now.low <= then && then <= now.high;
        let near = within(now.value, then, 0.03) || unsure;
        assert!(near, "{}: {:?} and {:?}", one.name, one.value, other.value);
    }
    let mut copied = self::study();
    let copy = StudyRow { method: "WFBP-PS".into(), line: 99, ..copied.rows[7].clone() };
    copied.rows.push(copy);
    let fit = fitted(&copied);
    assert_eq!(fit.skipped.iter().map(|skipped| skipped.line).collect::<Vec<_>>(), [9, 99]);
    assert!(fit.skipped[0].reason.contains("mislabelled"), "{:?}", fit.skipped);
}

/// As they are read: in any case, with or without hyphens.
#[test]
fn what_is_left_out_is_known_however_its_method_is_spelt() {
    let mut study = study();
    let known = study.rows[7].clone();
    let hooks = StudyRow { method: "bytescheduler a2a".into(), line: 98, samples_per_s: Some(1.0), ..known.clone() };
    // The same method in other letters is no other one, and this model in other letters no other one, either.
    let again = StudyRow { method: known.method.to_lowercase().replace('-', " "), line: 99, ..known.clone() };
    let copy = StudyRow {
        method: "wfbp ps".into(),
        model: known.model.to_lowercase().replace('-', ""),
        network: known.network.to_lowercase(),
        line: 100,
        ..known
    };
    let lines = |study: &Study| -> Vec<usize> {
        let (_, skipped) = Observations::of(study, &[], 4).unwrap();
        skipped.iter().map(|skipped| skipped.line).collect()
    };
    study.rows.extend([hooks, again]);
    assert_eq!(lines(&study), [98]);
    study.rows.push(copy);
    assert_eq!(lines(&study), [9, 98, 99, 100]);
}

#[test]
fn what_is_left_out_is_predicted() {
    let options = FitOptions { leave_out: true, source: "a test", ..FitOptions::default() };
    let fit = fit(&study(), &options).unwrap();
    println!("{:#?}", fit.left_out);
    // What was found, in percent (docs/prediction.md): the median, and what 90 % are within.
    let found = [
        ("resnet50", 2.5, 3.5),
        ("bert-large", 4.2, 7.7),
        ("bert-base", 3.2, 5.2),
        ("10GbE", 2.5, 5.3),
        ("100GbIB", 3.3, 4.3),
        ("100GbE", 2.2, 10.6),
    ];
    let names: Vec<_> = fit.left_out.iter().map(|left| &*left.name).collect();
    assert_eq!(names, found.map(|(name, ..)| name));
    for (left, (_, median, p90)) in fit.left_out.iter().zip(found) {
        // A fifth more is admitted, but no more than 12 % for nine in ten, which all are meant to meet. (A median of 4 % is
        // meant, too; bert-large misses it.)
        let near = left.errors.median <= 0.012 * median && left.errors.p90 <= f64::min(0.012 * p90, 0.12);
        assert!(left.errors.rows >= 8 && near, "{left:?}");
    }
    assert_eq!(fit.cluster("100GbE").source, "a test");
    assert_eq!(fit, super::fit(&study(), &options).unwrap(), "the same study gives the same constants");
}

/// Neither which constants are sought, nor what is expected of them, nor where the search begins knows what was measured of what is
/// left out; of a network it is known what its rows of all-to-all without overlap say.
#[test]
fn what_is_left_out_is_not_known() {
    let all = || Observations::of(&study(), &[], 4).unwrap().0;
    let names = |known: &left_out::Known| -> Vec<String> {
        known.parameters.iter().map(|parameter| parameter.constant.clone()).collect()
    };
    let known = all();
    for model in 0..known.models.len() {
        let without = |observations: &Observations| {
            let clusters = observations.clusters("");
            Leaving { observations, clusters: &clusters }.model(model).unwrap()
        };
        let mut other = all();
        other.all.iter_mut().filter(|one| one.model == model).for_each(|one| one.measured *= 0.7);
        let (one, other) = (without(&known), without(&other));
        assert_eq!((names(&one), &one.values), (names(&other), &other.values), "{}", known.models[model].name);
    }
    for network in 0..known.networks.len() {
        let without = |observations: &Observations| {
            let clusters = observations.clusters("");
            Leaving { observations, clusters: &clusters }.network(network).unwrap().unwrap()
        };
        let mut other = all();
        let here = other.all.iter_mut().filter(|one| one.network == network);
        here.filter(|one| one.case.overlaps || one.has_servers()).for_each(|one| one.measured *= 0.7);
        let (one, other) = (without(&known), without(&other));
        assert_eq!((names(&one), &one.values), (names(&other), &other.values), "{}", known.networks[network]);
    }
}

/// Links without a row of several hosts are expected to be as fast as their messages from point to point.
#[test]
fn links_without_rows_are_expected_to_take_what_messages_take() {
    let all = Observations::of(&study(), &[], 4).unwrap().0;
    let place = all.networks.iter().position(|name| name == "100GbIB").unwrap();
    let without = all.only(|one| one.network != place);
    let beta = parameters(&without, &[]).into_iter().find(|one| one.is_across(place)).unwrap();
    assert_eq!(beta.unknown.mean, paceline_plan::NetworkModel::HUNDRED_GB_IB.across.beta_s_per_byte);
    assert!(beta.why.contains("point to point"), "{}", beta.why);
    let with = parameters(&all, &[]).into_iter().find(|one| one.is_across(place)).unwrap();
    assert!(with.unknown.mean > 1.5 * beta.unknown.mean && with.why.contains("ring"), "{:?}", with.unknown);
}

/// What was measured on one network says nothing of where another one was.
#[test]
fn a_network_claims_what_its_own_rows_have_measured() {
    let mut study = only(|row| match &*row.network {
        "100GbIB" => row.workers == 8 && row.method == "WFBP-A2A" || row.workers == 4 && row.method == "BSP-PS",
        network => network == "10GbE" && row.workers >= 16,
    });
    let missing = study.rows.iter().find(|row| row.network == "10GbE").unwrap().clone();
    study.rows.push(StudyRow { network: "40GbE".into(), samples_per_s: None, ..missing });
    let fit = fitted(&study);
    let range = |network: &str| fit.cluster(network).measured.map(|range| (range.workers, range.shards));
    // What a single host does is the same everywhere.
    assert_eq!(range("10GbE"), Some(([4, 32], Some([1, 8]))));
    assert_eq!(range("100GbIB"), Some(([4, 8], Some(MeasuredRange::NO_SHARDS))));
    assert_eq!(range("40GbE"), Some(([4, 4], Some(MeasuredRange::NO_SHARDS))));
    let fit = fitted(&Study { rows: study.rows.into_iter().filter(|row| row.workers > 4).collect(), ..self::study() });
    let none = fit.cluster("40GbE");
    assert!(none.measured.is_none() && none.measurement_doubt().is_some());
}

#[test]
fn a_study_without_throughputs_is_refused() {
    let text = "model,local_batch,network,method,workers\nResNet-50,64,10GbE,BSP-PS,8";
    let error = fit(&Study::parse(text).unwrap(), &FitOptions::default()).unwrap_err().to_string();
    assert!(error.ends_with("in the column samples_per_s; line 2 has no throughput"), "{error}");
}

/// The tables of docs/prediction.md. PACELINE_UPDATE_DOCS=1 writes them anew.
#[test]
fn what_the_page_says_is_what_was_found() {
    let options = FitOptions { leave_out: true, ..FitOptions::default() };
    let fit = fit(&study(), &options).unwrap();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prediction.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let filled = with_block(&page, "constants", &constants_table(&fit));
    let filled = with_block(&filled, "errors", &errors_table(&fit));
    let filled = with_block(&filled, "paper", &paper_table(&fit));
    if std::env::var_os("PACELINE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &filled).unwrap();
        return;
    }
    assert!(page == filled, "docs/prediction.md is out of date: run this test with PACELINE_UPDATE_DOCS=1");
}

/// The page with other text between `<!-- name -->` and `<!-- end of name -->`.
fn with_block(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).expect("the block begins");
    let (_, after) = rest.split_once(&end).expect("the block ends");
    format!("{before}{begin}{text}{end}{after}")
}

fn constants_table(fit: &Fit) -> String {
    let mut text = "| constant | network | found | 95 % | unit | known from |\n|---|---|---|---|---|---|\n".to_owned();
    for parameter in &fit.parameters {
        let (factor, unit) = match parameter.unit {
            "s" => (1e3, "ms"),
            "s/byte" => (1e9, "ns/byte"),
            unit => (1.0, unit),
        };
        let [value, low, high] =
            [parameter.value.value, parameter.value.low, parameter.value.high].map(|value| value * factor);
        let network = parameter.network.as_deref().unwrap_or("all");
        let origin = parameter.origin().name();
        text +=
            &format!("| `{}` | {network} | {value:.3} | {low:.3} to {high:.3} | {unit} | {origin} |\n", parameter.name);
    }
    text
}

fn errors_table(fit: &Fit) -> String {
    let mut text = "| | throughputs | median | 90 % within | worst |\n|---|---|---|---|---|\n".to_owned();
    let mut row = |name: &str, errors: &Errors| {
        let [median, p90, worst] = [errors.median, errors.p90, errors.worst].map(|share| 100.0 * share);
        text += &format!("| {name} | {} | {median:.1} % | {p90:.1} % | {worst:.1} % |\n", errors.rows);
    };
    row("what was fitted to", &fit.errors);
    fit.left_out.iter().for_each(|left| row(&format!("the {} {}, left out", left.what, left.name), &left.errors));
    text
}

fn paper_table(fit: &Fit) -> String {
    let mut text = "| in the text of the paper | published | predicted | off |\n|---|---|---|---|\n".to_owned();
    for OfText { what, unit, published, predicted } in what_the_text_says(fit) {
        let (off, digits) = (100.0 * (predicted / published - 1.0), usize::from(unit.is_empty()));
        text += &format!("| {what} | {published:.digits$}{unit} | {predicted:.digits$}{unit} | {off:+.1} % |\n");
    }
    text
}
