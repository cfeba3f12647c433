//! Each claim with its test, and the tests that look at one group after the other.

use super::across::{batch, faster_network, hardware, intensity};
use super::partitions::{partitioning, partitioning_on_resnet};
use super::{Data, Outcome, Pair, counts, missing, most, of_row, told};
use crate::bench::{Group, VALUES_MIN, Verdict};
use paceline_plan::NetworkModel;

type Test = fn(&Data<'_>) -> (Outcome, String);

/// The study's findings, and claims of it and its summaries.
pub const CLAIMS: &[(&str, Test)] = &[
    ("The higher a model's intensity, the better it scales (C2C = f(N)/(M·I))", intensity),
    ("The larger the local batch, the better it scales (C2C = f(N)/(M·I))", batch),
    ("Without pipelining, all-to-all beats the parameter server in most cells", a2a_in_most),
    ("Without pipelining, all-to-all beats the parameter server in all cases", a2a_in_all),
    ("With WFBP, the parameter server beats all-to-all where latency is high or workers are many", wfbp_ps),
    ("Tensor fusion (MG-WFBP) mends all-to-all's WFBP", fusion),
    ("Tensor fusion (MG-WFBP) is not slower than one bucket (BSP-A2A)", fusion_over_bulk),
    ("Partitioning suits the parameter server, not all-to-all", partitioning),
    ("Partitioning wins on ResNet-50", partitioning_on_resnet),
    ("ByteScheduler beats WFBP on the parameter server, not on all-to-all", bytescheduler),
    ("No method wins everywhere", no_winner),
    ("Hardware matters more than the method for BERT-Large", hardware),
    ("From 10 to 100 Gbit/s, training gets 10 to 80 % faster in most cases", faster_network),
    ("Fusing two messages of 16 KB saves 58 % (InfiniBand)", two_messages),
];

fn most_of(pairs: &[Pair<'_>], what: &str) -> (Outcome, String) {
    if pairs.is_empty() { missing(what) } else { most(pairs) }
}

const BULK: &str = "bsp-a2a and bsp-ps in one group";

fn a2a_in_most(data: &Data<'_>) -> (Outcome, String) {
    most_of(&data.pairs("bsp-a2a", "bsp-ps"), BULK)
}

fn a2a_in_all(data: &Data<'_>) -> (Outcome, String) {
    let pairs = data.pairs("bsp-a2a", "bsp-ps");
    let verdict = match counts(&pairs) {
        _ if pairs.is_empty() => return missing(BULK),
        (_, slower) if slower > 0 => Outcome::Refuted,
        (faster, _) if faster == pairs.len() => Outcome::Holds,
        _ => Outcome::Undecidable,
    };
    (verdict, told(&pairs))
}

fn wfbp_ps(data: &Data<'_>) -> (Outcome, String) {
    let pairs = data.pairs("wfbp-ps", "wfbp-a2a");
    let slow =
        |pair: &Pair<'_>| pair.group.workers >= 16 || alpha_s(pair).is_some_and(|alpha_s| alpha_s >= HIGH_ALPHA_S);
    let pairs: Vec<Pair<'_>> = pairs.into_iter().filter(slow).collect();
    let alpha_us = 1e6 * HIGH_ALPHA_S;
    most_of(
        &pairs,
        &format!(
            "wfbp-ps and wfbp-a2a on a network with an alpha of {alpha_us:.0} µs or more or at 16 workers or more"
        ),
    )
}

/// From here on latency is high. The study calls it so on 10GbE, whose messages take 96 µs before the first byte, and not on
/// its networks of 100 Gbit/s, where they take 22 µs and 7 µs; this lies about in the middle of 96 and 22 on a scale of ratios.
const HIGH_ALPHA_S: f64 = 50e-6;

/// Seconds before the first byte of a message between the workers; None where the links are real, and nobody has said it.
fn alpha_s(pair: &Pair<'_>) -> Option<f64> {
    let setting = &pair.panel.setting;
    let NetworkModel { within, across } = setting.network.as_ref()?.parse().ok()?;
    let on_one_host = pair.group.workers <= setting.workers_per_host.unwrap_or(1);
    Some(if on_one_host { within.alpha_s } else { across.alpha_s })
}

fn fusion(data: &Data<'_>) -> (Outcome, String) {
    most_of(&data.pairs("mg-wfbp", "wfbp-a2a"), "mg-wfbp and wfbp-a2a in one group")
}

/// Whoever reaches this share of another's throughput is not slower: nobody would change a method for less.
const NOT_SLOWER: f64 = 0.95;

fn fusion_over_bulk(data: &Data<'_>) -> (Outcome, String) {
    let pairs = data.pairs("mg-wfbp", "bsp-a2a");
    let shown = pairs.iter().filter(|pair| pair.ratio.is_above(NOT_SLOWER)).count();
    let verdict = match counts(&pairs) {
        _ if pairs.is_empty() => return missing("mg-wfbp and bsp-a2a in one group"),
        (_, slower) if slower > 0 => Outcome::Refuted,
        _ if shown == pairs.len() => Outcome::Holds,
        _ => Outcome::Undecidable,
    };
    let most = 100.0 * (1.0 - NOT_SLOWER);
    (verdict, format!("slower by less than {most:.0} % or not at all in {shown} of {}; {}", pairs.len(), told(&pairs)))
}

/// The study's row: ByteScheduler differs from WFBP by priorities, credit and overlap with the next forward pass; on
/// servers both are cut into the same partitions.
fn bytescheduler(data: &Data<'_>) -> (Outcome, String) {
    let servers = data.pairs("bytescheduler-ps", "wfbp-ps");
    let all_to_all = data.pairs("bytescheduler-a2a", "wfbp-a2a");
    suits_servers(&servers, &all_to_all)
        .unwrap_or_else(|| missing("bytescheduler and wfbp, each on the parameter server and on all-to-all"))
}

/// Faster on servers, slower among workers: held; the other way round: not. None if a side is missing.
pub fn suits_servers(servers: &[Pair<'_>], all_to_all: &[Pair<'_>]) -> Option<(Outcome, String)> {
    if servers.is_empty() || all_to_all.is_empty() {
        return None;
    }
    let ((on_servers, numbers), (on_all_to_all, others)) = (most(servers), most(all_to_all));
    let verdict = match (on_servers, on_all_to_all) {
        (Outcome::Holds, Outcome::Refuted) => Outcome::Holds,
        (Outcome::Refuted, _) | (_, Outcome::Holds) => Outcome::Refuted,
        _ => Outcome::Undecidable,
    };
    Some((verdict, format!("parameter server: {numbers}. All-to-all: {others}")))
}

/// Held if every method is beaten somewhere, refuted if one wins everywhere by itself. One that is tied for the first place
/// has neither won nor been beaten.
fn no_winner(data: &Data<'_>) -> (Outcome, String) {
    let decided = |group: &&Group| !matches!(group.verdict, Verdict::Undecided { .. });
    let groups: Vec<&Group> = data.groups().map(|(_, group)| group).filter(decided).collect();
    if groups.len() < 2 {
        return missing("two groups with a winner or a tie");
    }
    let mut methods: Vec<&str> = groups.iter().flat_map(|group| &group.rows).map(|row| row.method.as_str()).collect();
    methods.sort_unstable();
    methods.dedup();
    let wins = |group: &Group, name: &str| matches!(&group.verdict, Verdict::Winner { method, .. } if method == name);
    let (mut unbeaten, mut everywhere) = (Vec::new(), false);
    for method in methods {
        if groups.iter().any(|group| is_beaten(group, method)) {
            continue;
        }
        let alone = groups.iter().filter(|group| wins(group, method)).count();
        everywhere |= alone == groups.len();
        unbeaten.push(format!("{method} is beaten nowhere, and wins alone in {alone} of {}", groups.len()));
    }
    match (unbeaten.is_empty(), everywhere) {
        (true, _) => (Outcome::Holds, format!("each method is beaten in one of {} groups or more", groups.len())),
        (false, true) => (Outcome::Refuted, unbeaten.join("; ")),
        (false, false) => (Outcome::Undecidable, unbeaten.join("; ")),
    }
}

/// Has the method been measured often enough, and is it not among the best?
fn is_beaten(group: &Group, method: &str) -> bool {
    let row = group.rows.iter().find(|row| row.method == method);
    let measured = row.and_then(of_row).is_some_and(|estimate| estimate.runs >= VALUES_MIN);
    measured && !group.verdict.is_among_the_best(method)
}

const POINTS: &str = include_str!("../../../../../data/p2p_points.csv");

/// Seconds of a message of so many bytes on the study's InfiniBand, each time that it published one.
fn published_s(bytes: &str) -> Vec<f64> {
    let point = |line: &str| {
        let mut fields = line.split(',');
        let (network, size) = (fields.next()?, fields.next()?);
        let time_ms: f64 = fields.next()?.parse().ok()?;
        (network.starts_with("100GbIB") && size == bytes).then_some(time_ms * 1e-3)
    };
    POINTS.lines().filter_map(point).collect()
}

/// Not measured: it follows from the study's own times.
fn two_messages(_: &Data<'_>) -> (Outcome, String) {
    const CLAIMED: f64 = 0.58;
    let (small, large) = (published_s("16384"), published_s("32768"));
    let pairs = small.iter().flat_map(|small| large.iter().map(move |large| (2.0 * small, *large)));
    let saved: Vec<(f64, f64, f64)> = pairs.map(|(two, one)| (two, one, 1.0 - one / two)).collect();
    let told: Vec<String> = saved
        .iter()
        .map(|(two, one, saved)| {
            format!(
                "two of 16 KiB take {:.1} µs, one of 32 KiB {:.1} µs: {:.0} % saved",
                two * 1e6,
                one * 1e6,
                100.0 * saved
            )
        })
        .collect();
    let near = saved.iter().filter(|(.., saved)| (saved - CLAIMED).abs() < 0.02).count();
    let verdict = match near {
        0 => Outcome::Refuted,
        near if near == saved.len() => Outcome::Holds,
        _ => Outcome::Undecidable,
    };
    (verdict, format!("not measured here; by the study's own times (data/p2p_points.csv) {}", told.join("; or ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Panel, sample_panels};
    use crate::report::findings::tests::finding;

    /// The second sample panel, ResNet-50 with 8 workers on 10GbE, with these methods alone, and their samples per second.
    fn panel(rates: &[(&str, f64)]) -> Vec<Panel> {
        let mut panels = vec![sample_panels().remove(1)];
        let group = &mut panels[0].groups[0];
        let sample = group.rows[0].clone();
        let row = |(method, rate): &(&str, f64)| {
            let mut row = sample.clone();
            row.method = (*method).to_owned();
            let samples_per_s = &mut row.result.as_mut().expect("it ran").samples_per_s;
            let factor = rate / samples_per_s.mean;
            samples_per_s.mean *= factor;
            samples_per_s.std = samples_per_s.std.map(|std| std * factor);
            row
        };
        group.rows = rates.iter().map(row).collect();
        panels
    }

    #[test]
    fn a_pair_of_methods_decides_by_who_is_faster() {
        for (claim, faster, slower) in [
            ("beats the parameter server in most cells", "bsp-a2a", "bsp-ps"),
            ("beats the parameter server in all cases", "bsp-a2a", "bsp-ps"),
            ("With WFBP, the parameter server beats", "wfbp-ps", "wfbp-a2a"),
            ("mends all-to-all's WFBP", "mg-wfbp", "wfbp-a2a"),
        ] {
            let outcome = |rates: &[(&str, f64)]| finding(&panel(rates), claim).verdict;
            assert_eq!(outcome(&[(faster, 2000.0), (slower, 1000.0)]), Outcome::Holds, "{claim}");
            assert_eq!(outcome(&[(faster, 1000.0), (slower, 2000.0)]), Outcome::Refuted, "{claim}");
            assert_eq!(outcome(&[(faster, 1000.0), (slower, 1000.0)]), Outcome::Undecidable, "{claim}: a tie");
            assert_eq!(outcome(&[(faster, 2000.0)]), Outcome::Undecidable, "{claim}: alone");
        }
    }

    #[test]
    fn methods_as_the_study_ran_them_decide_too_and_are_named() {
        let claim = "beats the parameter server in all cases";
        let found = finding(&panel(&[("study-bsp-a2a", 2000.0), ("study-bsp-ps", 1000.0)]), claim);
        assert_eq!(found.verdict, Outcome::Holds, "{found:?}");
        assert!(found.numbers.contains(", replayed, emulated: study-bsp-a2a over study-bsp-ps)"), "{found:?}");
        let plain = [("bsp-a2a", 1000.0), ("bsp-ps", 2000.0), ("study-bsp-a2a", 2000.0), ("study-bsp-ps", 1000.0)];
        let found = finding(&panel(&plain), claim);
        assert!(found.verdict == Outcome::Refuted && !found.numbers.contains("study-"), "{found:?}");
    }

    /// Half of the cells are not most, and fewer that are slower refute nothing.
    #[test]
    fn most_are_more_than_half() {
        let rates = |ratio: f64| panel(&[("bsp-a2a", 1000.0 * ratio), ("bsp-ps", 1000.0)]).remove(0);
        let outcome = |ratios: &[f64]| {
            let panels: Vec<Panel> = ratios.iter().map(|ratio| rates(*ratio)).collect();
            ["in most cells", "in all cases"].map(|claim| finding(&panels, claim).verdict)
        };
        assert_eq!(outcome(&[2.0, 2.0, 2.0]), [Outcome::Holds, Outcome::Holds]);
        assert_eq!(outcome(&[2.0, 2.0, 0.5]), [Outcome::Holds, Outcome::Refuted]);
        assert_eq!(outcome(&[2.0, 2.0, 1.0]), [Outcome::Holds, Outcome::Undecidable]);
        assert_eq!(outcome(&[2.0, 1.0]), [Outcome::Undecidable, Outcome::Undecidable]);
        assert_eq!(outcome(&[2.0, 0.5]), [Outcome::Undecidable, Outcome::Refuted]);
        assert_eq!(outcome(&[2.0, 0.5, 0.5]), [Outcome::Refuted, Outcome::Refuted]);
    }

    /// WFBP's claim is of high latency and of many workers.
    #[test]
    fn low_latency_and_few_workers_say_nothing_of_wfbp_on_servers() {
        let mut panels = panel(&[("wfbp-ps", 2000.0), ("wfbp-a2a", 1000.0)]);
        let mut outcome = |network: &str, workers| {
            panels[0].setting.network = Some(network.into());
            panels[0].groups[0].workers = workers;
            finding(&panels, "With WFBP").verdict
        };
        assert_eq!(outcome("100GbIB", 8), Outcome::Undecidable);
        assert_eq!(outcome("100GbIB", 16), Outcome::Holds);
        assert_eq!(outcome("10GbE", 8), Outcome::Holds);
        // Whatever it is called; and four workers are on one host, whose links are fast.
        assert_eq!(outcome("10GbE,beta=0.5ns", 8), Outcome::Holds);
        assert_eq!(outcome("alpha=51us,beta=0.8ns", 8), Outcome::Holds);
        assert_eq!(outcome("alpha=49us,beta=0.8ns", 8), Outcome::Undecidable);
        assert_eq!(outcome("10GbE", 4), Outcome::Undecidable);
    }

    #[test]
    fn bytescheduler_must_help_servers_and_hurt_all_to_all() {
        let outcome = |servers: f64, all_to_all: f64| {
            let mut rates = vec![("wfbp-ps", 1000.0), ("wfbp-a2a", 1000.0)];
            rates.extend([("bytescheduler-ps", servers), ("bytescheduler-a2a", all_to_all)]);
            finding(&panel(&rates), "ByteScheduler beats WFBP").verdict
        };
        assert_eq!(outcome(2000.0, 500.0), Outcome::Holds);
        assert_eq!(outcome(2000.0, 2000.0), Outcome::Refuted, "it helps both");
        assert_eq!(outcome(500.0, 500.0), Outcome::Refuted, "it helps neither");
        assert_eq!(outcome(2000.0, 1000.0), Outcome::Undecidable, "a tie among workers");
        let missing = panel(&[("wfbp-ps", 1000.0), ("bytescheduler-ps", 2000.0)]);
        assert_eq!(finding(&missing, "ByteScheduler beats WFBP").verdict, Outcome::Undecidable);
    }
}
