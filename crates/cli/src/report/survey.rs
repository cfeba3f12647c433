//! What the survey's Table 1 says of methods like these, beside what was measured. What is said follows from the strategy.

use serde::Serialize;

use super::aspects::aspect;
use super::bars::number;
use crate::bench::{Group, Panel, Row};

/// A method: what the taxonomy says, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SurveyRow {
    /// Its name.
    pub method: String,
    /// What it does to the loss.
    pub loss: String,
    /// How often workers communicate.
    pub frequency: String,
    /// Bytes that a worker sends, in D (bytes of the gradient), N (workers), H (their hosts), S (shards).
    pub traffic: String,
    /// How it converges.
    pub convergence: String,
    /// Measured megabytes per iteration and worker, by panel and workers.
    pub megabytes: String,
    /// Measured messages per iteration and worker.
    pub messages: String,
    /// Measured share of exposed communication.
    pub exposed: String,
}

/// One row for each method that was measured with more than one worker.
pub fn rows(panels: &[Panel]) -> Vec<SurveyRow> {
    let mut rows: Vec<SurveyRow> = Vec::new();
    for panel in panels {
        let Some(group) = largest(panel) else { continue };
        for row in &group.rows {
            let Some(result) = &row.result else { continue };
            let place = format!("{} at {}{}", panel.setting.model, group.workers, panel.in_short());
            let tell = |cell: &mut String, value: String| {
                let apart = if cell.is_empty() { "" } else { "; " };
                cell.push_str(&format!("{apart}{value} ({place})"));
            };
            let index = rows.iter().position(|known| known.method == row.method).unwrap_or_else(|| {
                rows.push(theory(row, Sharing::of(panels, &row.method)));
                rows.len() - 1
            });
            let known = &mut rows[index];
            if NORMALISED.contains(&panel.setting.model.as_str()) && !known.convergence.contains("normalisation") {
                known.convergence.push_str(LOCAL_STATISTICS);
            }
            tell(&mut known.megabytes, number(result.bytes_per_iteration / 1e6));
            tell(&mut known.messages, format!("{:.0}", result.messages_per_iteration));
            tell(&mut known.exposed, format!("{:.1} %", 100.0 * result.exposed_share));
        }
    }
    rows
}

/// The largest number of workers, which says most.
fn largest(panel: &Panel) -> Option<&Group> {
    panel.groups.iter().rev().find(|group| group.workers > 1)
}

/// Where a method was measured, did several workers live on a host?
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    Nowhere,
    Everywhere,
    Somewhere,
}

impl Sharing {
    fn of(panels: &[Panel], method: &str) -> Sharing {
        let measured = |group: &&Group| group.rows.iter().any(|row| row.method == method && row.result.is_some());
        let groups = panels.iter().filter_map(|panel| Some((panel, largest(panel).filter(measured)?)));
        let shared: Vec<bool> = groups.map(|(panel, group)| shares_hosts(panel, group, method)).collect();
        match (shared.contains(&true), shared.contains(&false)) {
            (true, true) => Sharing::Somewhere,
            (true, false) => Sharing::Everywhere,
            (false, _) => Sharing::Nowhere,
        }
    }
}

/// Do workers add up on their hosts before they push? Not on a single host that they share with their servers.
fn shares_hosts(panel: &Panel, group: &Group, method: &str) -> bool {
    let (setting, workers) = (&panel.setting, group.workers);
    let placed = panel.placement.as_ref().map(|placement| placement.stage().hosts_of(workers, &setting.servers_on));
    let emulated = || setting.workers_per_host.map(|on_each| workers.div_ceil(on_each.max(1)));
    let Some(hosts) = placed.or_else(emulated) else { return false };
    let apart = group.rows.iter().any(|row| row.method == method && row.dedicated_servers);
    hosts < workers && (hosts > 1 || apart)
}

/// Models with batch normalisation, whose statistics are of a worker's own samples (docs/models.md).
const NORMALISED: [&str; 2] = ["resnet20", "resnet50"];
const LOCAL_STATISTICS: &str =
    "; with batch normalisation, which sees the worker's own samples only, that of PyTorch's DDP";

fn theory(row: &Row, sharing: Sharing) -> SurveyRow {
    let of = |name| aspect(&row.strategy, name);
    let [compress, sync, schedule, arch] = ["compress", "sync", "schedule", "arch"].map(of);
    let exact = compress.iter().all(|word| *word == "none");
    let synchronous = sync == ["bsp"];
    SurveyRow {
        method: row.method.clone(),
        loss: match exact {
            true => "none: the gradient is exact".into(),
            false => format!("as its compressor {} says", compress.join(":")),
        },
        frequency: format!(
            "{}, {}",
            if synchronous { "every iteration".into() } else { sync.join(":") },
            when(&schedule)
        ),
        traffic: match exact {
            true => traffic(&arch, row.dedicated_servers, sharing),
            false => compressed_traffic(&arch, &compress.join(":")),
        },
        convergence: match (synchronous, exact) {
            (true, true) => "that of single-worker SGD on the joined batch".into(),
            (true, false) => "that of single-worker SGD only if its compressor loses nothing".into(),
            (false, _) => "not that of single-worker SGD".into(),
        },
        megabytes: String::new(),
        messages: String::new(),
        exposed: String::new(),
    }
}

/// When and in which pieces gradients leave a worker.
fn when(schedule: &[&str]) -> String {
    match *schedule {
        ["none", ..] => "once, after backward".to_owned(),
        ["wfbp", ..] => "tensor by tensor during backward".to_owned(),
        ["mg-wfbp", ..] => "in merged tensors during backward".to_owned(),
        ["ddp", ..] => "in buckets of 25 MiB behind one of 1 MiB, during backward".to_owned(),
        ["fusion", bytes, ..] => format!("in buckets of {bytes} during backward"),
        ["bytescheduler", partition, ..] => {
            format!(
                "in partitions of at most {partition}, the first layers' first, during backward and the next forward"
            )
        }
        ["server-priority", ..] => "tensor by tensor during backward; servers answer the first layers first".to_owned(),
        ["auto", ..] => "in fused tensors and pieces of tensors, as was predicted to be best".to_owned(),
        [own, ..] => format!("as its schedule {own} says"),
        [] => "as its schedule says".to_owned(),
    }
}

fn compressed_traffic(arch: &[&str], compressor: &str) -> String {
    match *arch {
        ["ps", ..] => format!("what {compressor} makes of D out and D in per worker"),
        _ => format!("(N−1) times what {compressor} makes of D, per worker"),
    }
}

/// Bytes out of a worker, by docs/algorithms.md, and of a shard, by docs/scheduling.md. Servers can have hosts of their own
/// without their strategy asking for it.
fn traffic(arch: &[&str], dedicated_servers: bool, sharing: Sharing) -> String {
    match *arch {
        ["ps", _, partition, place, ..] => {
            let servers =
                if dedicated_servers || place == "dedicated" { "on hosts of their own" } else { "beside workers" };
            let shard = match sharing {
                Sharing::Nowhere => "N·D/S in and out per shard",
                Sharing::Everywhere => "H·D/S in and out per shard, as the workers of a host add up first",
                Sharing::Somewhere => "N·D/S in and out per shard, H·D/S where workers share hosts, which add up first",
            };
            format!("D out and D in per worker, cut at {partition}; {shard}, {servers}")
        }
        ["a2a", algorithm @ ("ring" | "direct-scatter" | "2d-torus" | "bcube"), ..] => {
            format!("2(N−1)/N·D per worker ({algorithm})")
        }
        ["a2a", "halving-doubling", ..] => {
            "2(N−1)/N·D per worker where N is a power of two, up to D more else (halving-doubling)".to_owned()
        }
        ["a2a", "recursive-doubling", ..] => "log₂N·D per worker (recursive-doubling)".to_owned(),
        ["a2a", "direct", ..] => "(N−1)·D per worker (direct)".to_owned(),
        ["a2a", "auto", ..] => "2(N−1)/N·D per worker or more: the algorithm is chosen by size".to_owned(),
        ["a2a", algorithm, ..] => format!("as the algorithm {algorithm} has it"),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample_panels;

    #[test]
    fn every_measured_method_has_one_row_with_its_numbers() {
        let rows = rows(&sample_panels());
        let methods: Vec<&str> = rows.iter().map(|row| row.method.as_str()).collect();
        assert_eq!(methods, ["bsp-a2a", "wfbp-a2a", "wfbp-ps", "bsp-ps", "mg-wfbp", "bytescheduler-ps"]);
        assert_eq!(rows[0].exposed, "25.0 % (cnn at 2); 25.0 % (resnet50 at 8, replayed, emulated)");
        // Only what has met a model with batch normalisation says so.
        assert!(rows[0].convergence.contains("batch normalisation") && !rows[1].convergence.contains("normalisation"));
    }

    /// The name of a method says nothing; its strategy does.
    #[test]
    fn what_is_said_follows_from_the_strategy() {
        let sample = sample_panels()[0].groups[0].rows[0].clone();
        let of = |strategy: &str| {
            let strategy = format!("sync=bsp,compress=none,{strategy}");
            theory(&Row { strategy, ..sample.clone() }, Sharing::Nowhere)
        };
        let study = of("schedule=server-priority,arch=ps:hosts:4000KiB:dedicated,protocol=auto");
        assert!(study.frequency.contains("servers answer") && !study.frequency.contains("next forward"), "{study:?}");
        assert!(study.traffic.contains("on hosts of their own"), "{study:?}");
        let beside = Row {
            strategy: "sync=bsp,compress=none,schedule=wfbp,arch=ps:hosts:4000KiB:colocated".into(),
            ..sample.clone()
        };
        let of_row = |row: &Row| theory(row, Sharing::Nowhere);
        assert!(of_row(&beside).traffic.ends_with("; N·D/S in and out per shard, beside workers"), "{beside:?}");
        let moved = Row { dedicated_servers: true, ..beside };
        assert!(of_row(&moved).traffic.ends_with("on hosts of their own"), "--servers-on moves them");
        let full = of("schedule=bytescheduler:4000KiB:16000KiB,arch=a2a:auto,protocol=auto");
        assert!(full.frequency.contains("next forward") && full.traffic.contains("chosen by size"), "{full:?}");
        assert!(of("schedule=none,arch=a2a:ring:study,protocol=auto").traffic.ends_with("(ring)"));
        assert!(of("schedule=pieces:3,arch=a2a:auto").frequency.contains("its schedule pieces"));
        let lossy = of_row(&Row { strategy: "sync=ssp:3,compress=topk:0.01,schedule=wfbp,arch=ps".into(), ..sample });
        assert_eq!(
            (lossy.loss.as_str(), lossy.convergence.as_str()),
            ("as its compressor topk:0.01 says", "not that of single-worker SGD")
        );
        let own =
            of_row(&Row { strategy: "sync=bsp,compress=sign,schedule=wfbp,arch=a2a:auto".into(), ..moved.clone() });
        assert_eq!(own.traffic, "(N−1) times what sign makes of D, per worker");
        assert!(own.convergence.ends_with("only if its compressor loses nothing"), "{own:?}");
        let pushed = of_row(&Row { strategy: "sync=bsp,compress=sign,schedule=wfbp,arch=ps:hosts".into(), ..moved });
        assert_eq!(pushed.traffic, "what sign makes of D out and D in per worker");
    }
    /// The sample's panels with these servers: `wfbp-ps` on this machine, `bsp-ps` on two emulated hosts.
    fn served(change: impl Fn(&mut Panel)) -> Vec<SurveyRow> {
        let mut panels = sample_panels();
        for row in panels.iter_mut().flat_map(|panel| &mut panel.groups).flat_map(|group| &mut group.rows) {
            if row.method.ends_with("ps") {
                row.strategy = "schedule=wfbp,arch=ps:hosts:4000KiB:colocated:aggregate".into();
            }
        }
        panels.iter_mut().for_each(change);
        rows(&panels)
    }

    #[test]
    fn hosts_count_where_their_workers_add_up_first() {
        let traffic = |rows: &[SurveyRow], method: &str| -> String {
            rows.iter().find(|row| row.method == method).expect("it was measured").traffic.clone()
        };
        let usual = served(|_| {});
        assert!(
            traffic(&usual, "wfbp-ps").contains("N·D/S in and out per shard, beside"),
            "one host, and nothing leaves"
        );
        assert!(traffic(&usual, "bsp-ps").contains("H·D/S in and out per shard, as"), "{usual:?}");
        let alone = served(|panel| panel.setting.workers_per_host = panel.setting.workers_per_host.and(Some(1)));
        assert!(traffic(&alone, "bsp-ps").contains("N·D/S in and out per shard, beside"), "{alone:?}");
        let both = served(|panel| {
            for row in panel.groups.iter_mut().flat_map(|group| &mut group.rows) {
                row.method = row.method.replace("bsp-ps", "wfbp-ps");
            }
        });
        assert!(traffic(&both, "wfbp-ps").contains("N·D/S in and out per shard, H·D/S where"), "{both:?}");
        // One host of workers, with its servers and without.
        let one_host = |dedicated: bool| {
            served(|panel| {
                panel.setting.workers_per_host = panel.setting.workers_per_host.and(Some(8));
                let rows = panel.groups.iter_mut().flat_map(|group| &mut group.rows);
                rows.for_each(|row| row.dedicated_servers = dedicated && row.shards > 0);
            })
        };
        assert!(traffic(&one_host(false), "bsp-ps").contains("N·D/S in and out per shard, beside"));
        assert!(traffic(&one_host(true), "bsp-ps").contains("H·D/S in and out per shard, as"));
        assert!(traffic(&one_host(true), "wfbp-ps").contains("N·D/S in and out per shard, on"), "all on this machine");
    }
}
