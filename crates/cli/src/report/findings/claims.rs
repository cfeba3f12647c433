//! Each claim with its test.

use super::{Data, Outcome, Pair, best, place, throughput};
use crate::bench::{Panel, Verdict, geometric_mean};

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
    ("Partitioning with priorities (ByteScheduler) suits the parameter server, not all-to-all", partitioning),
    ("Partitioning with priorities wins on ResNet-50", partitioning_on_resnet),
    ("No method wins everywhere", no_winner),
    ("Hardware matters more than the method for BERT-Large", hardware),
    ("From 10 to 100 Gbit/s, training gets 10 to 80 % faster in most cases", faster_network),
    ("Fusing two messages of 16 KB saves 58 % (InfiniBand)", two_messages),
];

const MISSING: Outcome = Outcome::Undecidable;

fn missing(what: &str) -> (Outcome, String) {
    (MISSING, format!("needs {what}"))
}

/// Held if most pairs are faster beyond the noise, or all of them.
fn most(pairs: &[Pair<'_>], all: bool, what: &str) -> (Outcome, String) {
    if pairs.is_empty() {
        return missing(what);
    }
    let faster = pairs.iter().filter(|pair| pair.is_faster()).count();
    let slower = pairs.iter().filter(|pair| pair.is_slower()).count();
    let verdict = match (all, faster, slower) {
        (true, _, slower) if slower > 0 => Outcome::Refuted,
        (true, faster, _) if faster == pairs.len() => Outcome::Holds,
        (true, ..) => Outcome::Undecidable,
        (false, faster, slower) if faster > slower && 2 * faster > pairs.len() => Outcome::Holds,
        (false, faster, slower) if slower > faster => Outcome::Refuted,
        (false, ..) => Outcome::Undecidable,
    };
    (verdict, format!("faster in {faster}, slower in {slower} of {}; {}", pairs.len(), listed(pairs)))
}

/// The ratios, the first few by place.
fn listed(pairs: &[Pair<'_>]) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<String> =
        pairs.iter().take(SHOWN).map(|pair| format!("{:.2}× ({})", pair.ratio, pair.place())).collect();
    let mean = geometric_mean(&pairs.iter().map(|pair| pair.ratio).collect::<Vec<_>>());
    let mean = mean.filter(|_| pairs.len() > 1).map(|mean| format!(", geometric mean {mean:.2}×")).unwrap_or_default();
    let more = if pairs.len() > SHOWN { format!(" and {} more", pairs.len() - SHOWN) } else { String::new() };
    format!("{}{more}{mean}", shown.join(", "))
}

fn a2a_in_most(data: &Data<'_>) -> (Outcome, String) {
    most(&data.pairs("bsp-a2a", "bsp-ps"), false, "bsp-a2a and bsp-ps in one group")
}

fn a2a_in_all(data: &Data<'_>) -> (Outcome, String) {
    most(&data.pairs("bsp-a2a", "bsp-ps"), true, "bsp-a2a and bsp-ps in one group")
}

fn wfbp_ps(data: &Data<'_>) -> (Outcome, String) {
    let pairs = data.pairs("wfbp-ps", "wfbp-a2a");
    let slow = |pair: &Pair<'_>| pair.group.workers >= 16 || pair.panel.setting.network.as_deref() == Some("10GbE");
    let pairs: Vec<Pair<'_>> = pairs.into_iter().filter(slow).collect();
    most(&pairs, false, "wfbp-ps and wfbp-a2a on 10GbE or at 16 workers or more")
}

fn fusion(data: &Data<'_>) -> (Outcome, String) {
    most(&data.pairs("mg-wfbp", "wfbp-a2a"), false, "mg-wfbp and wfbp-a2a in one group")
}

fn fusion_over_bulk(data: &Data<'_>) -> (Outcome, String) {
    let pairs = data.pairs("mg-wfbp", "bsp-a2a");
    if pairs.is_empty() {
        return missing("mg-wfbp and bsp-a2a in one group");
    }
    let slower = pairs.iter().filter(|pair| pair.is_slower()).count();
    let verdict = if slower == 0 { Outcome::Holds } else { Outcome::Refuted };
    (verdict, format!("slower in {slower} of {}; {}", pairs.len(), listed(&pairs)))
}

fn partitioning(data: &Data<'_>) -> (Outcome, String) {
    let servers = data.pairs("bytescheduler-ps", "wfbp-ps");
    let all_to_all = data.pairs("bytescheduler-a2a", "wfbp-a2a");
    if servers.is_empty() || all_to_all.is_empty() {
        return missing("bytescheduler and wfbp, each on the parameter server and on all-to-all");
    }
    let (on_servers, numbers) = most(&servers, false, "");
    let (on_all_to_all, others) = most(&all_to_all, false, "");
    let verdict = match (on_servers, on_all_to_all) {
        (Outcome::Holds, Outcome::Refuted) => Outcome::Holds,
        (Outcome::Refuted, _) | (_, Outcome::Holds) => Outcome::Refuted,
        _ => Outcome::Undecidable,
    };
    (verdict, format!("parameter server: {numbers}. All-to-all: {others}"))
}

fn partitioning_on_resnet(data: &Data<'_>) -> (Outcome, String) {
    let groups: Vec<_> = data.groups().filter(|(panel, _)| panel.setting.model == "resnet50").collect();
    let mut told = Vec::new();
    let (mut wins, mut losses) = (0, 0);
    for (panel, group) in groups {
        let partitioned = group.rows.iter().any(|row| row.method.starts_with("bytescheduler"));
        match &group.verdict {
            Verdict::Winner { method, .. } if partitioned && method.starts_with("bytescheduler") => wins += 1,
            Verdict::Winner { .. } if partitioned => losses += 1,
            _ => continue,
        }
        told.push(format!("{}: {}", place(panel, group), group.verdict.headline()));
    }
    match (wins, losses) {
        (0, 0) => missing("resnet50 with a partitioning method, and a winner beyond the noise"),
        (_, 0) => (Outcome::Holds, told.join("; ")),
        _ => (Outcome::Refuted, told.join("; ")),
    }
}

fn no_winner(data: &Data<'_>) -> (Outcome, String) {
    let mut winners: Vec<(&str, usize)> = Vec::new();
    let mut groups = 0;
    for (_, group) in data.groups() {
        let Verdict::Winner { method, .. } = &group.verdict else { continue };
        groups += 1;
        match winners.iter_mut().find(|(known, _)| known == method) {
            Some((_, count)) => *count += 1,
            None => winners.push((method, 1)),
        }
    }
    let told: Vec<String> =
        winners.iter().map(|(method, count)| format!("{method} wins {count} of {groups}")).collect();
    match (groups, winners.len()) {
        (0 | 1, _) => missing("two groups with a winner beyond the noise"),
        (_, 1) => (Outcome::Refuted, told.join(", ")),
        _ => (Outcome::Holds, told.join(", ")),
    }
}

/// The efficiency of the best method, by what differs between panels that are otherwise alike.
fn scaling(
    data: &Data<'_>,
    alike: fn(&Panel, &Panel) -> bool,
    key: fn(&Panel) -> Option<f64>,
    what: &str,
) -> (Outcome, String) {
    let efficiency = |panel: &Panel, workers: usize| {
        let group = panel.groups.iter().find(|group| group.workers == workers)?;
        let single = panel.baseline.as_ref()?.samples_per_s;
        Some((best(group)? / single / workers as f64, group.noise.unwrap_or(f64::INFINITY)))
    };
    let (mut as_claimed, mut against, mut told) = (0, 0, Vec::new());
    for (panel, group) in data.groups() {
        for other in data.panels.iter().filter(|other| alike(panel, other)) {
            let (Some(low), Some(high)) = (key(panel), key(other)) else { continue };
            let (Some((one, noise)), Some((two, other_noise))) =
                (efficiency(panel, group.workers), efficiency(other, group.workers))
            else {
                continue;
            };
            if low * 1.001 >= high {
                continue;
            }
            let noise = noise.max(other_noise);
            as_claimed += usize::from(two > one * (1.0 + noise));
            against += usize::from(one > two * (1.0 + noise));
            told.push(format!(
                "{:.0} % → {:.0} % ({} → {}, {} workers)",
                100.0 * one,
                100.0 * two,
                panel.setting,
                other.setting,
                group.workers
            ));
        }
    }
    let verdict = match (as_claimed, against) {
        (0, 0) => Outcome::Undecidable,
        (_, 0) => Outcome::Holds,
        (claimed, against) if claimed > against => Outcome::Holds,
        _ => Outcome::Refuted,
    };
    match told.is_empty() {
        true => missing(what),
        false => (verdict, format!("efficiency of the best method: {}", told.join("; "))),
    }
}

fn intensity(data: &Data<'_>) -> (Outcome, String) {
    let alike = |a: &Panel, b: &Panel| {
        a.setting.model != b.setting.model
            && a.setting.local_batch == b.setting.local_batch
            && a.setting.network == b.setting.network
            && a.setting.is_replayed() == b.setting.is_replayed()
    };
    scaling(
        data,
        alike,
        |panel| panel.intensity,
        "two models of known intensity with the same batch, network and workers",
    )
}

fn batch(data: &Data<'_>) -> (Outcome, String) {
    let alike = |a: &Panel, b: &Panel| {
        a.setting.model == b.setting.model
            && a.setting.local_batch != b.setting.local_batch
            && a.setting.network == b.setting.network
            && a.setting.compute == b.setting.compute
    };
    scaling(
        data,
        alike,
        |panel| Some(panel.setting.local_batch as f64),
        "one model with two local batches, as by --local-batch 8,64",
    )
}

/// Panels of one model on a slow and on a fast network, with a number of workers that both have.
fn networks<'a>(data: &Data<'a>, slow: &str, fast: &[&str]) -> Vec<(&'a Panel, &'a Panel, usize)> {
    let on =
        |panel: &&'a Panel, names: &[&str]| panel.setting.network.as_deref().is_some_and(|name| names.contains(&name));
    let mut found = Vec::new();
    for one in data.panels.iter().filter(|panel| on(panel, &[slow])) {
        let others = data.panels.iter().filter(|panel| on(panel, fast) && panel.setting.model == one.setting.model);
        for other in others.filter(|other| other.setting.local_batch == one.setting.local_batch) {
            let both = one.groups.iter().filter(|group| group.workers > 1);
            let both = both.filter(|group| other.groups.iter().any(|there| there.workers == group.workers));
            found.extend(both.map(|group| (one, other, group.workers)));
        }
    }
    found
}

fn hardware(data: &Data<'_>) -> (Outcome, String) {
    let (mut held, mut not, mut told) = (0, 0, Vec::new());
    for (slow, fast, workers) in networks(data, "10GbE", &["100GbE", "100GbIB"]) {
        if slow.setting.model != "bert-large" {
            continue;
        }
        let group = |panel: &'_ Panel| panel.groups.iter().find(|group| group.workers == workers).cloned();
        let (Some(slow_group), Some(fast_group)) = (group(slow), group(fast)) else { continue };
        let worst =
            slow_group.rows.iter().filter_map(|row| row.result.as_ref()).map(|result| result.samples_per_s.mean);
        let (Some(one), Some(two)) = (best(&slow_group), best(&fast_group)) else { continue };
        let method = one / worst.fold(f64::INFINITY, f64::min);
        let hardware = two / one;
        held += usize::from(hardware > method);
        not += usize::from(hardware <= method);
        told.push(format!("{workers} workers: network {hardware:.2}×, method {method:.2}× ({})", fast.setting));
    }
    match (held, not) {
        (0, 0) => missing("bert-large on 10GbE and on a network of 100 Gbit/s"),
        (held, not) => (if held > not { Outcome::Holds } else { Outcome::Refuted }, told.join("; ")),
    }
}

fn faster_network(data: &Data<'_>) -> (Outcome, String) {
    let mut gains = Vec::new();
    for (slow, fast, workers) in networks(data, "10GbE", &["100GbE", "100GbIB"]) {
        let group = |panel: &'_ Panel| panel.groups.iter().find(|group| group.workers == workers).cloned();
        let (Some(one), Some(two)) = (group(slow), group(fast)) else { continue };
        for row in &one.rows {
            if let (Some(before), Some(after)) = (throughput(&one, &row.method), throughput(&two, &row.method)) {
                gains.push(after / before - 1.0);
            }
        }
    }
    let within = gains.iter().filter(|gain| (0.1..=0.8).contains(*gain)).count();
    let (low, high) = (gains.iter().copied().fold(f64::INFINITY, f64::min), gains.iter().copied().fold(0.0, f64::max));
    match gains.len() {
        0 => missing("a model on 10GbE and on a network of 100 Gbit/s"),
        count => (
            if 2 * within > count { Outcome::Holds } else { Outcome::Refuted },
            format!("{within} of {count} cells gain 10 to 80 %; from {:+.0} % to {:+.0} %", 100.0 * low, 100.0 * high),
        ),
    }
}

/// From the study's own point-to-point times: 16 KiB in 7.85 µs and 32 KiB in 10.1 µs (`data/p2p_points.csv`).
fn two_messages(_: &Data<'_>) -> (Outcome, String) {
    let (small_us, large_us) = (7.85, 10.1);
    let saved = 1.0 - large_us / (2.0 * small_us);
    let verdict = if (saved - 0.58_f64).abs() < 0.02 { Outcome::Holds } else { Outcome::Refuted };
    (
        verdict,
        format!(
            "by the study's own times, two of 16 KiB take {:.1} µs and one of 32 KiB {large_us} µs: {:.0} % saved",
            2.0 * small_us,
            100.0 * saved
        ),
    )
}
