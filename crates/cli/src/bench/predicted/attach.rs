//! Predicts the cells of a study, and puts the predictions beside what was measured.

use std::time::Duration;

use paceline_plan::{Cluster, Constant, EmulationError, MeasuredRange, NetworkModel, Profile};
use paceline_predict::search::{Candidate, Question, Room, Space, Surroundings, archs_of_world, search};
use paceline_predict::{Job, PredictError, Prediction, played_emulated, predict_plan, predict_scheduled};
use paceline_schedule::Schedulers;
use paceline_strategy::{Strategy, Value};
use paceline_train::interfere;

use super::super::cell::{Arm, Cell, Setting};
use super::super::placement::workers_on_cores;
use super::super::store::{CellRecord, StudyRecord};
use super::super::summary::{Group, Panel};
use super::cluster::{Layout, Machine, Seen, emulated, lost_beside, measured, server_hosts, wake_up_s};
use super::curves::Method;
use super::{Choice, Outlook, Predicted, alone};

/// What predictions are made from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The schedules that there are.
    pub schedulers: &'a Schedulers,
    /// The study, as it was when it began.
    pub study: &'a StudyRecord,
    /// Its cells. Of a cell's own runs nothing is looked at but what was measured before the first iteration.
    pub cells: &'a [CellRecord],
}

/// Where a cell runs.
pub struct Ground {
    /// Without what sharing cores costs.
    pub cluster: Cluster,
    /// Of a worker that really computes: cores that it keeps busy, as a share of those of its machine. 0 for a replay, which
    /// sleeps.
    pub busy: f64,
    /// Are there several hosts, each a machine? Emulated ones are all on one.
    pub several_machines: bool,
    /// So many workers that really compute at once take so many times as long as one, if that was measured.
    pub together: Option<(usize, Constant)>,
    /// What was measured here and is not believed.
    pub doubts: Vec<String>,
}

/// Plans that are predicted to improve what `strategy=auto` chooses: as while it trains.
const EFFORT: usize = 150;

/// Of cells whose calls a tuner or a policy decides.
const OTHERWISE_DONE: &str = "predicted as without its tuner or policy, which decide how all-reduces are done";

/// Predicts every row of the panels of a study, and what lies beyond them. Rows that cannot be predicted say why.
///
/// Costs milliseconds for each row, a tenth of a second on an emulated network of several hosts, whose messages are played, seconds for one
/// of which something is left open, and seconds for each panel's outlook.
pub fn attach(sources: &Sources<'_>, panels: &mut [Panel]) {
    for panel in panels {
        let profile = alone::profile(&panel.setting, sources.cells);
        for group in &mut panel.groups {
            sources.predict_group(&panel.setting, group, profile.as_ref());
        }
        panel.outlook = profile.ok().and_then(|profile| Outlook::of(sources, panel, &profile));
    }
}

impl<'a> Sources<'a> {
    fn predict_group(&self, setting: &Setting, group: &mut Group, profile: Result<&Profile, &String>) {
        for row in &mut group.rows {
            let Some(record) = self.record(setting, group.workers, &row.method) else { continue };
            match self.expected(&record.cell, profile) {
                Ok(predicted) => {
                    let measured = row.result.as_ref().map(|result| result.samples_per_s.mean);
                    row.prediction_error = measured.map(|measured| predicted.samples_per_s / measured - 1.0);
                    row.predicted = Some(predicted);
                }
                Err(why) => row.not_predicted = Some(why),
            }
        }
        // One worker has nothing to gain from any of them.
        group.choice = Choice::among(&group.rows).filter(|_| group.workers > 1);
    }

    /// The cell of a row.
    pub fn record(&self, setting: &Setting, workers: usize, method: &str) -> Option<&'a CellRecord> {
        self.cells.iter().find(|record| {
            let cell = &record.cell;
            cell.arm == Arm::Method && cell.workers == workers && cell.method == method && cell.setting == *setting
        })
    }

    /// What a cell is expected to do, from the panel's profile. Where one worker alone really computes, that has the cell's own
    /// iterations in it, and one without them takes its place.
    fn expected(&self, cell: &Cell, profile: Result<&Profile, &String>) -> Result<Predicted, String> {
        if cell.workers == 1 && !cell.setting.is_replayed() {
            return self.predict(cell, &alone::profile_of_others(cell, self.cells)?);
        }
        self.predict(cell, profile.map_err(String::clone)?)
    }

    /// The same from this profile.
    fn predict(&self, cell: &Cell, profile: &Profile) -> Result<Predicted, String> {
        let strategy = self.strategy(cell)?;
        let ground = self.ground(cell, &strategy, profile)?;
        let mut cluster = ground.crowded(ground.cluster.clone(), cell.workers, profile);
        if strategy.arch_is_open() && cell.shards > 0 {
            // Those that `auto` times when it searches.
            let all = MeasuredRange { workers: [cell.workers; 2], bytes: [0, u64::MAX], ..MeasuredRange::default() };
            cluster.measured =
                Some(MeasuredRange { shards: Some([cell.shards; 2]), ..cluster.measured.unwrap_or(all) });
        }
        let prediction = self.prediction(cell, &strategy, &cluster, profile)?;
        let crowd = ground.crowd(cell.workers, self.study.machine.cores);
        let changed = (cell.workers > 1 && (cell.tuned || cell.policy.is_some())).then(|| OTHERWISE_DONE.to_owned());
        let doubts = ground.doubts.into_iter().chain(crowd).chain(changed).collect();
        Ok(Predicted::of(&prediction, cell.workers * profile.local_batch).doubting(doubts))
    }

    /// How a cell communicates.
    pub fn strategy(&self, cell: &Cell) -> Result<Strategy, String> {
        Ok(self.method(cell)?.among(cell.workers))
    }

    /// A cell's method, with its servers where they were. Where networks are emulated a timer ends each start-up that the method adds,
    /// too, and that takes a wake-up more.
    pub fn method(&self, cell: &Cell) -> Result<Method, String> {
        let parsed = self.schedulers.grammar().parse(&cell.strategy).map_err(|error| error.to_string())?;
        let strategy = self.served(cell, parsed);
        let wake_up_s = cell.setting.network.as_ref().map_or(0.0, |_| wake_up_s(cell, self.study.machine.cores));
        Ok(Method { name: cell.method.clone(), strategy, wake_up: Duration::from_secs_f64(wake_up_s) })
    }

    fn served(&self, cell: &Cell, mut strategy: Strategy) -> Strategy {
        let Some(servers) = strategy.servers(cell.workers, self.layout(cell).hosts) else { return strategy };
        let arguments = &mut strategy.arch.arguments;
        if let Some(shards) = arguments.first_mut().filter(|_| servers.shards != cell.shards) {
            *shards = Value::Count(cell.shards as u64);
        }
        if let Some(place) = arguments.get_mut(2).filter(|_| cell.dedicated_servers) {
            *place = Value::Name("dedicated".to_owned());
        }
        strategy
    }

    fn layout(&self, cell: &Cell) -> Layout {
        match cell.setting.network {
            Some(_) => Layout::emulated(cell),
            None => Layout::of(cell, self.study.placement.as_ref()),
        }
    }

    /// Where a cell runs.
    pub fn ground(&self, cell: &Cell, strategy: &Strategy, profile: &Profile) -> Result<Ground, String> {
        let (cluster, doubts) = match &cell.setting.network {
            Some(network) => {
                let network = network.parse().map_err(|error: EmulationError| error.to_string())?;
                let cores = self.study.machine.cores;
                let combine_s_per_byte = self.study.combine_s_per_byte.unwrap_or(0.0);
                (emulated(cell, network, Machine { cores, combine_s_per_byte }), Vec::new())
            }
            // Nobody to talk to, but for servers, over links that nobody has measured.
            None if cell.workers == 1 => {
                let pushed = (cell.shards > 0).then(|| "what one worker sends to servers is not counted".to_owned());
                (Cluster::of_network(NetworkModel::TEN_GBE, 1, 1), pushed.into_iter().collect())
            }
            None => self.measured(cell, strategy, profile)?,
        };
        let layout = self.layout(cell);
        let several_machines = cell.setting.network.is_none() && layout.hosts > 1;
        let sharing = if several_machines { layout.workers_per_host } else { cell.workers };
        let busy = match (&self.study.placement, cell.setting.is_replayed()) {
            (_, true) => 0.0,
            (Some(placement), false) => placement.busy(cell) / sharing.max(1) as f64,
            (None, false) => cell.threads as f64 / self.study.machine.cores.max(1) as f64,
        };
        let together = alone::slower_together(&cell.setting, cell.workers, self.cells);
        Ok(Ground { cluster, busy, several_machines, together: together.map(|times| (cell.workers, times)), doubts })
    }

    /// As the ranks of all worlds of the group measured it that communicate over the same protocol.
    fn measured(&self, cell: &Cell, strategy: &Strategy, profile: &Profile) -> Result<(Cluster, Vec<String>), String> {
        let alike = |record: &&CellRecord| record.cell.workers == cell.workers && record.cell.setting == cell.setting;
        let (mut seen, mut beside) = (Vec::new(), Vec::new());
        for record in self.cells.iter().filter(alike) {
            let Ok(other) = self.strategy(&record.cell) else { continue };
            if other.protocol != strategy.protocol {
                continue;
            }
            for run in record.runs.iter().filter_map(|run| run.outcome.as_ref().ok()) {
                let operations = run.inputs.communication.as_ref();
                beside.extend(run.inputs.interference);
                seen.extend(run.links.map(|links| Seen { strategy: other.clone(), links, operations }));
            }
        }
        let cluster = measured(&seen, self.layout(cell), profile, cell.workers)?;
        let (mut cluster, doubts) = cluster.ok_or("no run says what its links cost")?;
        cluster.server_hosts = server_hosts(cell);
        if let Some((bytes, lost_s)) = lost_beside(&beside) {
            interfere(&mut cluster, strategy, profile, cell.workers, bytes, lost_s)
                .map_err(|error| error.to_string())?;
        } else if !cell.setting.is_replayed() {
            // Of runs by a version that did not measure it.
            cluster.share_cores(cell.threads);
        }
        Ok((cluster, doubts))
    }

    fn prediction(
        &self,
        cell: &Cell,
        strategy: &Strategy,
        cluster: &Cluster,
        profile: &Profile,
    ) -> Result<Prediction, String> {
        let workers = cell.workers;
        if !strategy.is_open() {
            let job = Job { cluster, profile, strategy, workers, local_batch: None };
            let prediction = predict_scheduled(&job, self.schedulers).map_err(|error| error.to_string())?;
            return as_played(cell, &job, prediction);
        }
        let space = self.space(cell, strategy);
        let question = Question { cluster, profile, workers, space: &space };
        let mut answer = search(&question).map_err(|error| error.to_string())?;
        if cell.setting.network.is_some() {
            // As `auto` does there.
            answer.play_emulated(&question);
        }
        let Candidate { strategy, prediction, .. } = answer.taken();
        let job = Job { cluster, profile, strategy, workers, local_batch: None };
        let prediction = predict_plan(&job, &prediction.plan).map_err(|error| error.to_string())?;
        as_played(cell, &job, prediction)
    }

    /// What `strategy=auto` chooses from in a cell.
    fn space(&self, cell: &Cell, strategy: &Strategy) -> Space {
        Space {
            archs: archs_of_world(cell.shards),
            // As while it trains: only what is named may be lossy.
            lossy: !strategy.lossless(self.schedulers.grammar()),
            effort: EFFORT,
            // Of all candidates only the one that is taken is told, and that need not be the first.
            intervals: 0,
            ..Space::of(self.schedulers.clone(), strategy.clone())
        }
    }
}

/// Over an emulated network an iteration takes what its messages do: formulas let a port be busy as long as there is something for
/// it, but operations that are in flight together are not always in each other's gaps, and an emulated link passes its next message
/// only when the last has passed both ports. What cannot be played, or not all of it, keeps the formulas' time, and says so.
fn as_played(cell: &Cell, job: &Job<'_>, mut prediction: Prediction) -> Result<Prediction, String> {
    let hosts = job.cluster.hosts_of(job.workers);
    if cell.setting.network.is_none() || hosts < 2 {
        return Ok(prediction);
    }
    let why = match played_emulated(job, &prediction) {
        Ok(played) => return Ok(played),
        Err(PredictError::ByMessage(why)) => why,
        Err(error) => return Err(error.to_string()),
    };
    prediction.extrapolated.push(format!("ports are taken to be busy as long as there is something for them: {why}"));
    Ok(prediction)
}

impl Surroundings for Ground {
    fn bare(&self) -> &Cluster {
        &self.cluster
    }

    /// With what workers lose to each other where they share cores.
    fn crowded(&self, mut cluster: Cluster, workers: usize, profile: &Profile) -> Cluster {
        let times = self.times(workers);
        if times.high > 1.0 {
            let alone_s = profile.iteration_s();
            let lost_s = |times: f64| (times - 1.0) * alone_s;
            let lost = Constant::between(lost_s(times.value), lost_s(times.low), lost_s(times.high));
            cluster.computation.overhead_s.insert("*".to_owned(), lost);
        }
        cluster
    }

    /// On more hosts like these; or on the only host, if there is but one.
    fn room(&self, workers: usize) -> Option<Room> {
        let cores = match (self.busy > 0.0, self.cluster.hosts) {
            (false, _) => "",
            (true, 1) => ", whose cores they share,",
            (true, _) if self.several_machines => "",
            (true, _) => ", which share one machine's cores,",
        };
        let place = format!("{}{cores}", self.place());
        if self.cluster.hosts > 1 {
            return Some(Room { place, ..self.cluster.room(workers)? });
        }
        let workers_per_host = self.cluster.workers_per_host.max(workers);
        Some(Room { cluster: Cluster { workers_per_host, ..self.cluster.clone() }, place })
    }
}

impl Ground {
    /// Where other numbers of workers are supposed to be.
    pub fn place(&self) -> &'static str {
        if self.cluster.hosts > 1 { "on such hosts" } else { "on the same host" }
    }

    /// Times what a worker alone computes. What was measured; for other numbers of workers than were, in proportion to how often
    /// those of a machine fill its cores, as it is where nothing was.
    fn times(&self, workers: usize) -> Constant {
        let filled = |workers: usize| self.filled(workers).max(1.0);
        match self.together {
            _ if workers <= 1 => Constant::exact(1.0),
            Some((measured, times)) => times.times(filled(workers) / filled(measured)).at_least(1.0),
            None => Constant::exact(filled(workers)),
        }
    }

    /// How often workers fill the cores of their machine, of several that of the fullest.
    fn filled(&self, workers: usize) -> f64 {
        self.busy * self.sharing(workers) as f64
    }

    fn sharing(&self, workers: usize) -> usize {
        if self.several_machines { workers.min(self.cluster.workers_per_host) } else { workers }
    }

    /// Says so, if workers share cores and nobody has measured what that costs.
    fn crowd(&self, workers: usize, cores: usize) -> Option<String> {
        let times = self.filled(workers);
        let who = workers_on_cores(self.sharing(workers), cores);
        (workers > 1 && self.together.is_none() && times > 1.0)
            .then(|| format!("{who}: computation is taken to be {times:.1} times as slow"))
    }
}

#[cfg(test)]
mod tests;
