//! Claims that compare panels: models, batches, networks.

use super::{Data, Measured, Outcome, best, missing, of_row, throughput};
use crate::bench::worlds::Compute;
use crate::bench::{Estimate, Group, Panel, Ratio};

/// In what two panels differ that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum But {
    Model,
    LocalBatch,
    Network,
}

/// Do the panels differ in nothing but this? (Dilation is divided out.)
fn alike(one: Measured<'_>, other: Measured<'_>, but: But) -> bool {
    let (a, b) = (&one.panel.setting, &other.panel.setting);
    let same = [
        (But::Model, a.model == b.model),
        (But::LocalBatch, a.local_batch == b.local_batch),
        (But::Network, a.network == b.network),
    ];
    same.into_iter().all(|(what, same)| same == (what != but))
        && same_computer(&a.compute, &b.compute, but)
        && (&a.data, a.workers_per_host, &a.servers_on) == (&b.data, b.workers_per_host, &b.servers_on)
        && a.tcp_streams == b.tcp_streams
        && (is_of_no_machine(one.panel) && is_of_no_machine(other.panel) || same_machine(one, other))
}

/// The same profile, or of another model one of the same device, as built-in profiles say in their names
/// (`resnet50@rtx2080ti`).
fn same_computer(one: &Compute, other: &Compute, but: But) -> bool {
    let device = |profile: &'_ str| profile.split_once('@').map(|(_, device)| device.to_owned());
    match (one, other) {
        (Compute::Real, Compute::Real) => true,
        (Compute::Replay { profile: a, .. }, Compute::Replay { profile: b, .. }) if but == But::Model => {
            device(a).is_some() && device(a) == device(b)
        }
        (Compute::Replay { fingerprint: a, .. }, Compute::Replay { fingerprint: b, .. }) => a == b,
        _ => false,
    }
}

/// Computation and network are both those of a model, and the same wherever it runs.
fn is_of_no_machine(panel: &Panel) -> bool {
    panel.setting.is_replayed() && panel.setting.network.is_some()
}

/// The same hosts, too, where a launcher has placed the workers.
fn same_machine(one: Measured<'_>, other: Measured<'_>) -> bool {
    let place = |measured: Measured<'_>| measured.study.identity.get("place").cloned();
    one.study.machine == other.study.machine && place(one) == place(other)
}

/// The efficiency of the best method, by what differs between panels that are otherwise alike. Groups whose workers share
/// cores are left out: their efficiency is the machine's. One pair against the claim refutes it.
fn scaling(data: &Data<'_>, but: But, key: fn(&Panel) -> Option<f64>, what: &str) -> (Outcome, String) {
    let group = |panel: &'_ Panel, workers| {
        panel.groups.iter().find(|group| group.workers == workers && group.labels.is_empty()).cloned()
    };
    let (mut as_claimed, mut against, mut told) = (0, 0, Vec::new());
    let pairs = data.panels.iter().flat_map(|one| data.panels.iter().map(move |other| (*one, *other)));
    for (one, other) in pairs.filter(|(one, other)| alike(*one, *other, but)) {
        let (panel, other) = (one.panel, other.panel);
        if !key(panel).zip(key(other)).is_some_and(|(low, high)| low * 1.001 < high) {
            continue;
        }
        for low in panel.groups.iter().filter(|group| group.workers > 1 && group.labels.is_empty()) {
            let Some(high) = group(other, low.workers) else { continue };
            let Some((one, two, ratio)) = efficiencies((panel, low), (other, &high)) else { continue };
            as_claimed += usize::from(ratio.is_above(1.0));
            against += usize::from(ratio.is_below(1.0));
            told.push(format!(
                "{:.0} % → {:.0} % ({} → {}, {} workers)",
                100.0 * one,
                100.0 * two,
                panel.labelled_title(),
                other.labelled_title(),
                low.workers
            ));
        }
    }
    let verdict = match (as_claimed, against) {
        (0, 0) => Outcome::Undecidable,
        (_, 0) => Outcome::Holds,
        _ => Outcome::Refuted,
    };
    match told.len() {
        0 => missing(what),
        pairs => (
            verdict,
            format!(
                "as claimed in {as_claimed}, against it in {against} of {pairs}; efficiency of the best method: {}",
                told.join("; ")
            ),
        ),
    }
}

/// Both groups' efficiencies with their fastest methods, and the second's over the first's.
fn efficiencies(low: (&Panel, &Group), high: (&Panel, &Group)) -> Option<(f64, f64, Ratio)> {
    let (one, two) = (best(low.1)?, best(high.1)?);
    let (alone, other_alone) = (low.0.baseline.as_ref()?, high.0.baseline.as_ref()?);
    let efficiency = |estimate: &Estimate, alone: f64| estimate.mean / alone / low.1.workers as f64;
    let (first, second) = (efficiency(one, alone.samples_per_s), efficiency(two, other_alone.samples_per_s));
    let mut factors = vec![(two, 1.0), (one, -1.0)];
    // A profile's throughput is given; a measured one scatters.
    factors.extend(alone.measured.as_ref().map(|alone| (alone, 1.0)));
    factors.extend(other_alone.measured.as_ref().map(|alone| (alone, -1.0)));
    let open = Ratio::of(&factors, &[low.1.noise, high.1.noise]).open;
    Some((first, second, Ratio { value: second / first, open }))
}

pub fn intensity(data: &Data<'_>) -> (Outcome, String) {
    let what = "two models of known intensity with the same batch, network, device and workers";
    scaling(data, But::Model, |panel| panel.intensity, what)
}

pub fn batch(data: &Data<'_>) -> (Outcome, String) {
    let what = "one model with two local batches, as by --local-batch 8,64";
    scaling(data, But::LocalBatch, |panel| Some(panel.setting.local_batch as f64), what)
}

/// Groups of panels on 10 and on 100 Gbit/s that are alike besides, with the same number of workers.
fn networks<'a>(data: &Data<'a>) -> Vec<(&'a Group, &'a Group, &'a Panel)> {
    let on = |one: Measured<'_>, names: &[&str]| {
        one.panel.setting.network.as_deref().is_some_and(|name| names.contains(&name))
    };
    let mut found = Vec::new();
    for slow in data.panels.iter().filter(|one| on(**one, &["10GbE"])) {
        let fast = data.panels.iter().filter(|one| on(**one, &["100GbE", "100GbIB"]));
        for fast in fast.filter(|fast| alike(*slow, **fast, But::Network)).map(|fast| fast.panel) {
            for group in slow.panel.groups.iter().filter(|group| group.workers > 1 && !slow.panel.is_crowded(group)) {
                let other = fast.groups.iter().find(|other| other.workers == group.workers && !fast.is_crowded(other));
                found.extend(other.map(|other| (group, other, fast)));
            }
        }
    }
    found
}

pub fn hardware(data: &Data<'_>) -> (Outcome, String) {
    let (mut held, mut not, mut told) = (0, 0, Vec::new());
    for (slow, fast, panel) in networks(data).into_iter().filter(|(.., panel)| panel.setting.model == "bert-large") {
        let worst = slow.rows.iter().filter_map(of_row).min_by(|a, b| a.mean.total_cmp(&b.mean));
        let (Some(worst), Some(one), Some(two)) = (worst, best(slow), best(fast)) else { continue };
        // What the network brings over what the method brings: (two / one) / (one / worst).
        let ratio = Ratio::of(&[(two, 1.0), (worst, 1.0), (one, -2.0)], &[slow.noise, fast.noise]);
        held += usize::from(ratio.is_above(1.0));
        not += usize::from(ratio.is_below(1.0));
        let (network, method) = (two.mean / one.mean, one.mean / worst.mean);
        let place = panel.labelled_title();
        told.push(format!("{} workers: network {network:.2}×, method {method:.2}×: {place}", slow.workers));
    }
    match (held, not) {
        _ if told.is_empty() => missing("bert-large on 10GbE and on a network of 100 Gbit/s"),
        (held, not) if held > not => (Outcome::Holds, told.join("; ")),
        (held, not) if not > held => (Outcome::Refuted, told.join("; ")),
        _ => (Outcome::Undecidable, told.join("; ")),
    }
}

pub fn faster_network(data: &Data<'_>) -> (Outcome, String) {
    /// 10 to 80 % faster.
    const CLAIMED: [f64; 2] = [1.1, 1.8];
    let (mut gains, mut unreal): (Vec<Ratio>, &str) = (Vec::new(), "");
    for (slow, fast, panel) in networks(data) {
        unreal = unreal.max(panel.in_short());
        for row in &slow.rows {
            if let Some((before, after)) = of_row(row).zip(throughput(fast, &row.method)) {
                gains.push(Ratio::of(&[(after, 1.0), (before, -1.0)], &[slow.noise, fast.noise]));
            }
        }
    }
    let [least, most] = CLAIMED;
    let within = gains.iter().filter(|gain| gain.is_above(least) && gain.is_below(most)).count();
    let outside = gains.iter().filter(|gain| gain.is_below(least) || gain.is_above(most)).count();
    let percent = |gain: f64| 100.0 * (gain - 1.0);
    let low = gains.iter().map(|gain| gain.value).fold(f64::INFINITY, f64::min);
    let high = gains.iter().map(|gain| gain.value).fold(f64::NEG_INFINITY, f64::max);
    let verdict = match gains.len() {
        0 => return missing("a model on 10GbE and on a network of 100 Gbit/s"),
        count if 2 * within > count => Outcome::Holds,
        count if 2 * outside > count => Outcome::Refuted,
        _ => Outcome::Undecidable,
    };
    let numbers = format!(
        "{within} of {} cells gain 10 to 80 %, {outside} less or more; from {:+.0} % to {:+.0} %{unreal}",
        gains.len(),
        percent(low),
        percent(high)
    );
    (verdict, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::worlds::ServerHost;
    use crate::bench::{sample_panels, sample_study};
    use crate::report::Report;
    use crate::report::findings::tests::{finding, of_reports};

    /// The replayed sample panel, and the same with all throughputs changed by a factor on another network.
    fn two_networks(factor: f64) -> Vec<Panel> {
        let slow = sample_panels().remove(1);
        let mut fast = slow.clone();
        fast.setting.network = Some("100GbIB".to_owned());
        scale(&mut fast, factor);
        vec![slow, fast]
    }

    fn scale(panel: &mut Panel, factor: f64) {
        for row in panel.groups.iter_mut().flat_map(|group| &mut group.rows) {
            let estimate = &mut row.result.as_mut().expect("it ran").samples_per_s;
            estimate.mean *= factor;
            estimate.std = estimate.std.map(|std| std * factor);
        }
    }

    #[test]
    fn networks_are_compared_beyond_what_is_open() {
        let claim = "10 to 100 Gbit/s";
        assert_eq!(finding(&two_networks(1.4), claim).verdict, Outcome::Holds);
        let slower = finding(&two_networks(0.9), claim);
        assert_eq!(slower.verdict, Outcome::Refuted);
        assert!(slower.numbers.contains("from -10 % to -10 %"), "{slower:?}");
        assert_eq!(finding(&two_networks(1.1), claim).verdict, Outcome::Undecidable);
        let mut unknown = two_networks(1.4);
        unknown[1].groups[0].noise = None;
        assert_eq!(finding(&unknown, claim).verdict, Outcome::Undecidable);
    }

    #[test]
    fn hardware_and_method_are_compared_beyond_what_is_open() {
        let claim = "Hardware matters more";
        let panels = |factor| {
            let mut panels = two_networks(factor);
            panels.iter_mut().for_each(|panel| panel.setting.model = "bert-large".to_owned());
            panels
        };
        // The best method is 1.87 times as fast as the worst.
        assert_eq!(finding(&panels(3.0), claim).verdict, Outcome::Holds);
        assert_eq!(finding(&panels(1.2), claim).verdict, Outcome::Refuted);
        assert_eq!(finding(&panels(1.88), claim).verdict, Outcome::Undecidable);
        let mut unknown = panels(3.0);
        unknown[0].groups[0].noise = None;
        assert_eq!(finding(&unknown, claim).verdict, Outcome::Undecidable);
    }

    #[test]
    fn one_pair_against_it_refutes_what_is_said_of_batches() {
        let claim = "larger the local batch";
        let small = sample_panels().remove(1);
        let with = |local_batch, factor| {
            let mut panel = small.clone();
            panel.setting.local_batch = local_batch;
            scale(&mut panel, factor);
            panel
        };
        let held = [small.clone(), with(128, 1.2)];
        assert_eq!(finding(&held, claim).verdict, Outcome::Holds);
        let against = [small.clone(), with(128, 1.2), with(256, 0.8)];
        assert_eq!(finding(&against, claim).verdict, Outcome::Refuted);
        // Workers that share cores show what the machine can do.
        let mut shared = held;
        shared[1].groups[0].labels.push("8 workers on 2 cores".to_owned());
        assert_eq!(finding(&shared, claim).verdict, Outcome::Undecidable);
    }

    type Change = fn(&mut Panel);

    /// Whatever else differs, such panels say nothing of what they are compared for.
    #[test]
    fn only_panels_that_are_alike_besides_are_compared() {
        let changes: [Change; 6] = [
            |panel| panel.setting.workers_per_host = Some(2),
            |panel| panel.setting.tcp_streams = 4,
            |panel| panel.setting.servers_on = vec![ServerHost { number: 2, name: "c".into() }],
            |panel| panel.setting.data = Some("elsewhere".into()),
            |panel| panel.setting.compute = Compute::Real,
            |panel| {
                if let Compute::Replay { profile, fingerprint, .. } = &mut panel.setting.compute {
                    (*profile, *fingerprint) = ("resnet50@v100".into(), "fedcba9876543210".into());
                }
            },
        ];
        let mut base = sample_panels().remove(1);
        if let Compute::Replay { profile, .. } = &mut base.setting.compute {
            *profile = "resnet50@rtx2080ti".into();
        }
        let other_model: Change = |panel| {
            panel.setting.model = "bert-base".into();
            panel.intensity = panel.intensity.map(|intensity| 2.0 * intensity);
            if let Compute::Replay { profile, fingerprint, .. } = &mut panel.setting.compute {
                (*profile, *fingerprint) = ("bert-base@rtx2080ti".into(), "0000000000000000".into());
            }
        };
        let claims: [(&str, Change); 3] = [
            ("The higher a model's intensity", other_model),
            ("larger the local batch", |panel| panel.setting.local_batch = 128),
            ("10 to 100 Gbit/s", |panel| panel.setting.network = Some("100GbIB".into())),
        ];
        for (claim, but) in claims {
            let mut second = base.clone();
            but(&mut second);
            scale(&mut second, 1.4);
            let verdict = |second: &Panel| finding(&[base.clone(), second.clone()], claim).verdict;
            assert_eq!(verdict(&second), Outcome::Holds, "{claim}");
            for (number, change) in changes.iter().enumerate() {
                let mut second = second.clone();
                change(&mut second);
                assert_eq!(verdict(&second), Outcome::Undecidable, "{claim}, change {number}");
            }
        }
    }

    /// Replays over emulated networks are the same on every machine; anything else is not.
    #[test]
    fn what_a_machine_does_is_compared_with_itself_only() {
        let claim = "larger the local batch";
        let verdict = |change: Change| {
            let mut panel = sample_panels().remove(1);
            change(&mut panel);
            let mut second = panel.clone();
            second.setting.local_batch = 128;
            scale(&mut second, 1.4);
            let report = |panel, processor: &str| {
                let mut study = sample_study();
                study.machine.processor = processor.to_owned();
                Report { study, panels: vec![panel] }
            };
            ["one", "other"].map(|processor| {
                let reports = [report(panel.clone(), "one"), report(second.clone(), processor)];
                of_reports(&reports, claim).verdict
            })
        };
        assert_eq!(verdict(|_| {}), [Outcome::Holds; 2]);
        let bound = [Outcome::Holds, Outcome::Undecidable];
        assert_eq!(verdict(|panel| panel.setting.network = None), bound);
        assert_eq!(verdict(|panel| panel.setting.compute = Compute::Real), bound);
    }
}
