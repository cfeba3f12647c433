//! What is predicted beyond the cells that were measured: the best strategy of all, why it is the best, and what another
//! network, more workers or another batch would do to each method.

use paceline_plan::Profile;
use paceline_predict::search::{Question, Space, Surroundings, explain_in, search};
use paceline_strategy::{Call, Strategy};
use serde::{Deserialize, Serialize};

use super::super::summary::{Group, Panel};
use super::attach::{Ground, Sources};
use super::cluster::server_hosts;
use super::curves::{Curve, Method, Subject};

/// Of the panel's largest number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// How many.
    pub workers: usize,
    /// The best strategy that the search has found, over the archs that were measured.
    pub strategy: String,
    /// Its predicted throughput.
    pub samples_per_s: f64,
    /// Why it is the best, what would bring more, and what of it is extrapolated: sentences without a full stop.
    pub reasons: Vec<String>,
    /// What if.
    pub curves: Vec<Curve>,
}

impl Outlook {
    /// Of what was measured at the largest number of workers, if there are several, and something can be predicted. The
    /// search leaves out the improvement of plans bucket by bucket, which takes longest and gains least.
    pub fn of(sources: &Sources<'_>, panel: &Panel, profile: &Profile) -> Option<Outlook> {
        let group = panel.groups.last().filter(|group| group.workers > 1)?;
        let methods = methods(sources, panel, group);
        let first = methods.first()?;
        let cell = &sources.record(&panel.setting, group.workers, &first.name)?.cell;
        let strategy = first.among(group.workers);
        let mut ground = sources.ground(cell, &strategy, profile).ok()?;
        let cells = group.rows.iter().filter_map(|row| sources.record(&panel.setting, group.workers, &row.method));
        ground.cluster.server_hosts = cells.map(|record| server_hosts(&record.cell)).max().unwrap_or(0);
        let (strategy, samples_per_s, reasons) = best(sources, &ground, group.workers, profile, &methods)?;
        let methods = &methods;
        let curves = Subject { ground: &ground, profile, workers: group.workers, methods }.curves();
        Some(Outlook { workers: group.workers, strategy, samples_per_s, reasons, curves })
    }
}

/// The methods of a group.
fn methods(sources: &Sources<'_>, panel: &Panel, group: &Group) -> Vec<Method> {
    let method = |name: &String| {
        let record = sources.record(&panel.setting, group.workers, name)?;
        // What is left open has no curve: it is another method at each point.
        sources.method(&record.cell).ok().filter(|method| !method.strategy.is_open())
    };
    group.rows.iter().filter_map(|row| method(&row.method)).collect()
}

/// The best strategy, its throughput, and why.
fn best(
    sources: &Sources<'_>,
    ground: &Ground,
    workers: usize,
    profile: &Profile,
    methods: &[Method],
) -> Option<(String, f64, Vec<String>)> {
    let mut archs: Vec<Call> = vec![Call::all_to_all("auto")];
    for arch in methods.iter().map(|method| method.among(workers).arch).filter(|arch| arch.name == "ps") {
        if !archs.contains(&arch) {
            archs.push(arch);
        }
    }
    let open = Space::default().strategy;
    let strategy = Strategy { protocol: methods.first()?.strategy.protocol.clone(), ..open };
    let space = Space { archs, effort: 0, intervals: 1, ..Space::of(sources.schedulers.clone(), strategy) };
    let cluster = ground.crowded(ground.cluster.clone(), workers, profile);
    let question = Question { cluster: &cluster, profile, workers, space: &space };
    let answer = search(&question).ok()?;
    let found = answer.best();
    let mut reasons = explain_in(ground, &question, &answer).sentences;
    let doubts = &found.prediction.extrapolated;
    reasons.extend(doubts.iter().map(|doubt| format!("This leaves what was measured: {doubt}")));
    Some((found.strategy.to_string(), found.prediction.samples_per_s, reasons))
}
