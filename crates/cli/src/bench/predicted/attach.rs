//! Predicts the cells of a study, and puts the predictions beside what was measured.

use std::time::Duration;

use paceline_plan::{Cluster, Constant, EmulationError, NetworkModel, Profile};
use paceline_predict::search::{Candidate, Question, Space, search};
use paceline_predict::{Job, Prediction, predict_plan, predict_scheduled};
use paceline_schedule::Schedulers;
use paceline_strategy::{Call, Strategy, Value};

use super::super::cell::{Arm, Cell, Setting};
use super::super::placement::workers_on_cores;
use super::super::store::{CellRecord, StudyRecord};
use super::super::summary::{Group, Panel};
use super::cluster::{Layout, Machine, Seen, emulated, measured, server_hosts, wake_up_s};
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
    /// Of a worker that really computes: cores that it keeps busy, as a share of those that there are. 0 for a replay, which
    /// sleeps.
    pub busy: f64,
    /// So many workers that really compute at once take so many times as long as one, if that was measured.
    pub together: Option<(usize, Constant)>,
    /// What was measured here and is not believed.
    pub doubts: Vec<String>,
}

/// Plans that are predicted to improve what `strategy=auto` chooses: as while it trains.
const EFFORT: usize = 150;

/// Predicts every row of the panels of a study, and what lies beyond them. Rows that cannot be predicted say why.
///
/// Costs milliseconds for each row, seconds for one of which something is left open, and seconds for each panel's outlook.
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
            match profile.map_err(String::clone).and_then(|profile| self.predict(&record.cell, profile)) {
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

    /// What a cell is expected to do.
    fn predict(&self, cell: &Cell, profile: &Profile) -> Result<Predicted, String> {
        if !cell.setting.is_replayed() && cell.workers == 1 {
            return Err("what one worker alone computes is measured, and not predicted".to_owned());
        }
        let strategy = self.strategy(cell)?;
        let ground = self.ground(cell, &strategy, profile)?;
        let cluster = ground.crowded(ground.cluster.clone(), cell.workers, profile);
        let prediction = self.prediction(cell, &strategy, &cluster, profile)?;
        let crowd = ground.crowd(cell.workers, self.study.machine.cores);
        let doubts = ground.doubts.into_iter().chain(crowd).collect();
        Ok(Predicted::of(&prediction, cell.workers * profile.local_batch).doubting(doubts))
    }

    /// How a cell communicates: its method, with its servers where they were. Where networks are emulated a timer ends each start-up
    /// that the method adds, too, and that takes a wake-up more.
    pub fn strategy(&self, cell: &Cell) -> Result<Strategy, String> {
        let parsed = self.schedulers.grammar().parse(&cell.strategy).map_err(|error| error.to_string())?;
        let strategy = self.served(cell, parsed);
        let start_up = strategy.start_up(cell.workers);
        if cell.setting.network.is_none() || start_up.is_zero() {
            return Ok(strategy);
        }
        let wake_up = Duration::from_secs_f64(wake_up_s(cell, self.study.machine.cores));
        Ok(strategy.with_start_up(start_up + wake_up))
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
            // Nobody to talk to.
            None if cell.workers == 1 => (Cluster::of_network(NetworkModel::TEN_GBE, 1, 1), Vec::new()),
            None => self.measured(cell, strategy, profile)?,
        };
        let busy = match (&self.study.placement, cell.setting.is_replayed()) {
            (_, true) => 0.0,
            (Some(placement), false) => placement.busy(cell) / cell.workers.max(1) as f64,
            (None, false) => cell.threads as f64 / self.study.machine.cores.max(1) as f64,
        };
        let together = alone::slower_together(&cell.setting, cell.workers, self.cells);
        Ok(Ground { cluster, busy, together: together.map(|times| (cell.workers, times)), doubts })
    }

    /// As the ranks of all worlds of the group measured it that communicate over the same protocol.
    fn measured(&self, cell: &Cell, strategy: &Strategy, profile: &Profile) -> Result<(Cluster, Vec<String>), String> {
        let alike = |record: &&CellRecord| record.cell.workers == cell.workers && record.cell.setting == cell.setting;
        let mut seen = Vec::new();
        for record in self.cells.iter().filter(alike) {
            let Ok(other) = self.strategy(&record.cell) else { continue };
            if other.protocol != strategy.protocol {
                continue;
            }
            for run in record.runs.iter().filter_map(|run| run.outcome.as_ref().ok()) {
                let operations = run.inputs.communication.as_ref();
                seen.extend(run.links.map(|links| Seen { strategy: other.clone(), links, operations }));
            }
        }
        let cluster = measured(&seen, self.layout(cell), profile, cell.workers)?;
        let (mut cluster, doubts) = cluster.ok_or("no run says what its links cost")?;
        cluster.server_hosts = server_hosts(cell);
        if !cell.setting.is_replayed() {
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
            return predict_scheduled(&job, self.schedulers).map_err(|error| error.to_string());
        }
        let mut archs = vec![Call::all_to_all("auto")];
        if cell.shards > 0 {
            archs.push(Call::servers(cell.shards as u64, false));
        }
        let space = Space {
            archs,
            lossy: true,
            effort: EFFORT,
            // Of all candidates only the one that is taken is told, and that need not be the first.
            intervals: 0,
            ..Space::of(self.schedulers.clone(), strategy.clone())
        };
        let answer =
            search(&Question { cluster, profile, workers, space: &space }).map_err(|error| error.to_string())?;
        let Candidate { strategy, prediction, .. } = answer.taken();
        let job = Job { cluster, profile, strategy, workers, local_batch: None };
        predict_plan(&job, &prediction.plan).map_err(|error| error.to_string())
    }
}

impl Ground {
    /// A cluster like this one for so many workers, with what they lose to each other where they share cores.
    pub fn crowded(&self, mut cluster: Cluster, workers: usize, profile: &Profile) -> Cluster {
        let times = self.times(workers);
        if times.high > 1.0 {
            let alone_s = profile.iteration_s();
            let lost_s = |times: f64| (times - 1.0) * alone_s;
            let lost = Constant::between(lost_s(times.value), lost_s(times.low), lost_s(times.high));
            cluster.computation.overhead_s.insert("*".to_owned(), lost);
        }
        cluster
    }

    /// Times what a worker alone computes. What was measured; for other numbers of workers than were, in proportion to how often
    /// all of them fill the cores, as it is where nothing was.
    fn times(&self, workers: usize) -> Constant {
        let filled = |workers: usize| (self.busy * workers as f64).max(1.0);
        match self.together {
            _ if workers <= 1 => Constant::exact(1.0),
            Some((measured, times)) => times.times(filled(workers) / filled(measured)).at_least(1.0),
            None => Constant::exact(filled(workers)),
        }
    }

    /// Says so, if workers share cores and nobody has measured what that costs.
    fn crowd(&self, workers: usize, cores: usize) -> Option<String> {
        let times = self.busy * workers as f64;
        let who = workers_on_cores(workers, cores);
        (self.together.is_none() && times > 1.0)
            .then(|| format!("{who}: computation is taken to be {times:.1} times as slow"))
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{LinkCost, LinkCosts};
    use paceline_train::{CellRun, CommunicationCost, FormulaInputs};

    use super::super::super::cell::Compute;
    use super::super::super::cell::samples::{cell, setting};
    use super::super::super::store::tests::study_record;
    use super::super::super::store::{Occasion, RunRecord};
    use super::super::super::summary::{panels, samples::cell_run};
    use super::*;

    /// ResNet-50 replayed on an emulated network, three methods with 1 and 8 workers.
    fn replayed() -> Vec<CellRecord> {
        let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
        let compute = Compute::Replay {
            profile: "resnet50@rtx2080ti".to_owned(),
            fingerprint: super::super::super::models::fingerprint(&profile),
            recorded_batch: profile.local_batch,
            samples_per_s: profile.local_batch as f64 / profile.iteration_s(),
        };
        let setting = Setting {
            compute,
            network: Some("10GbE".to_owned()),
            workers_per_host: Some(1),
            local_batch: profile.local_batch,
            dilate: 8.0,
            ..setting("resnet50")
        };
        let grammar = paceline_strategy::Registry::built_in();
        let of = |method: &str, workers: usize, iteration_s: f64| {
            let strategy = grammar.parse(method).expect("a preset");
            let shards = strategy.servers(workers, workers).map_or(0, |servers| servers.shards);
            let cell = Cell { strategy: strategy.to_string(), shards, ..cell(&setting, method, workers) };
            super::super::super::summary::samples::record(cell, &[iteration_s; 3])
        };
        vec![of("bsp-a2a", 1, 0.25), of("bsp-a2a", 8, 0.4), of("wfbp-a2a", 8, 0.3), of("wfbp-ps", 8, 0.3)]
    }

    fn attached(study: &StudyRecord, cells: &[CellRecord]) -> Vec<Panel> {
        let mut panels = panels(cells, 2);
        let schedulers = Schedulers::built_in();
        attach(&Sources { schedulers: &schedulers, study, cells }, &mut panels);
        panels
    }

    #[test]
    fn replays_on_emulated_networks_are_predicted_from_the_network_and_the_profile() {
        let study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
        let panels = attached(&study, &replayed());
        let alone = panels[0].groups[0].rows[0].predicted.as_ref().expect("it computes, and that is all");
        assert!((alone.samples_per_s - 253.1).abs() < 1.0, "{alone:?}");
        let group = &panels[0].groups[1];
        let of = |row: usize| group.rows[row].predicted.clone().expect("a prediction");
        let (bsp, wfbp) = (of(0), of(1));
        // The ring's 2 · 7/8 · 102 MB · 0.88 ns = 158 ms, none of it hidden.
        assert!((bsp.exposed_communication_s - 0.158).abs() < 0.03, "{bsp:?}");
        assert!(wfbp.iteration_s < bsp.iteration_s && wfbp.exposed_communication_s < bsp.exposed_communication_s);
        assert!(bsp.samples_per_s_low <= bsp.samples_per_s && bsp.samples_per_s <= bsp.samples_per_s_high);
        let error = group.rows[0].prediction_error.expect("it was measured");
        assert!((error - (bsp.samples_per_s / (8.0 * 64.0 / 0.4) - 1.0)).abs() < 1e-12);
        assert!(group.choice.is_some() && group.rows.iter().all(|row| row.not_predicted.is_none()));
    }

    /// Eight ranks on two cores wake up in 70 us, of which dilation leaves an eighth.
    #[test]
    fn a_timer_ends_the_start_up_that_a_method_adds() {
        let mut study = study_record("f");
        study.machine.cores = 2;
        let schedulers = Schedulers::built_in();
        let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
        let start_up = |method: &str, network: Option<&str>| {
            let mut cell = replayed().pop().expect("a record").cell;
            cell.strategy = schedulers.grammar().parse(method).expect("a preset").to_string();
            cell.setting.network = network.map(str::to_owned);
            sources.strategy(&cell).expect("a strategy").start_up(8).as_nanos()
        };
        assert_eq!(start_up("study-wfbp-a2a", Some("10GbE")), 250_000 + 8_750);
        // Nothing is added without a start-up, nor where no timer stands for the network.
        assert_eq!([start_up("wfbp-a2a", Some("10GbE")), start_up("study-wfbp-a2a", None)], [0, 250_000]);
    }

    /// Whatever comes out, the same is predicted.
    #[test]
    fn no_prediction_sees_its_result() {
        let study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
        let (one, mut other) = (replayed(), replayed());
        for run in other.iter_mut().flat_map(|record| &mut record.runs) {
            let measured = run.outcome.as_mut().expect("it ended");
            measured.iteration_s = vec![9.9; 4];
            (measured.compute_s, measured.exposed_communication_s) = (1.0, 8.9);
        }
        let predicted = |cells: &[CellRecord]| -> Vec<Option<Predicted>> {
            let panels = attached(&study, cells);
            let rows = panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.rows);
            rows.map(|row| row.predicted.clone()).collect()
        };
        assert_eq!(predicted(&one), predicted(&other));
    }

    /// Of this machine's links and a real model: links that ranks measured, the profile of one worker.
    fn real(workers: usize) -> CellRecord {
        let links = LinkCosts::uniform(LinkCost { alpha: 20e-6, overhead: 5e-6, beta: 0.5e-9, gamma: 0.1e-9 });
        let points = vec![(4096, 50e-6), (1 << 21, 4e-3)];
        let communication = CommunicationCost::of_points(points);
        let inputs = FormulaInputs {
            ready_s: vec![0.05, 0.02],
            elements: vec![1 << 18, 1 << 18],
            update_s: 0.01,
            communication: (workers > 1).then_some(communication),
            ..FormulaInputs::default()
        };
        let links = (workers > 1).then_some(links);
        let run = CellRun { workers, links, inputs, compute_s: 0.1, ..cell_run(0.1) };
        let strategy = paceline_strategy::Registry::built_in().parse("bsp-a2a").expect("a preset").to_string();
        let cell = Cell { strategy, ..cell(&setting("cnn"), "bsp-a2a", workers) };
        CellRecord { cell, runs: vec![RunRecord { number: 1, outcome: Ok(run), occasion: Occasion::default() }] }
    }

    #[test]
    fn real_cells_are_predicted_from_one_worker_and_the_links_that_were_measured() {
        let mut study = study_record("f");
        study.machine.cores = 2;
        let panels = attached(&study, &[real(1), real(2), real(4)]);
        let row = |group: usize| &panels[0].groups[group].rows[0];
        assert!(row(0).predicted.is_none());
        assert!(row(0).not_predicted.as_ref().is_some_and(|why| why.contains("not predicted")));
        let two = row(1).predicted.as_ref().expect("a prediction");
        assert!(two.iteration_s > 0.1 && two.iteration_s < 0.12 && two.extrapolated.is_empty(), "{two:?}");
        // Four workers on two cores compute half as fast.
        let four = row(2).predicted.as_ref().expect("a prediction");
        assert!(four.iteration_s > 0.2 && four.extrapolated[0].starts_with("4 workers on 2 cores"), "{four:?}");
    }

    /// Passes that all workers make at once, and no assumption about cores, say how slow they are.
    #[test]
    fn what_company_costs_is_predicted_as_it_was_measured() {
        let of = |workers: usize, pass_s: f64| {
            let mut record = real(workers);
            if let Ok(run) = &mut record.runs[0].outcome {
                run.inputs.pass_s = Some(pass_s);
            }
            record
        };
        let mut study = study_record("f");
        study.machine.cores = 2;
        let predicted = |cells: &[CellRecord]| -> Vec<Predicted> {
            let panels = attached(&study, cells);
            panels[0].groups[1..].iter().map(|group| group.rows[0].predicted.clone().expect("a prediction")).collect()
        };
        let assumed = predicted(&[real(1), real(2), real(4)]);
        let measured = predicted(&[of(1, 0.08), of(2, 0.12), of(4, 0.2)]);
        // One and a half times as slow, and two and a half times; and nothing is assumed.
        for (row, times) in measured.iter().zip([1.5, 2.5]) {
            assert!(row.iteration_s > times * 0.1 && row.iteration_s < times * 0.1 + 0.02, "{times}: {row:?}");
            assert!(row.extrapolated.is_empty(), "{row:?}");
        }
        assert!(assumed[0].iteration_s < 0.12 && !assumed[1].extrapolated.is_empty(), "{assumed:?}");
    }

    /// On cores that compute, what communication takes of backward's time is missing there.
    #[test]
    fn communication_hides_behind_nothing_that_needs_its_cores() {
        let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
        let strategy =
            paceline_strategy::Registry::built_in().parse("schedule=fusion:4MiB,arch=a2a:ring").expect("one");
        let exposed = |threads: Option<usize>| {
            let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 1, 4);
            if let Some(threads) = threads {
                cluster.share_cores(threads);
            }
            let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
            let prediction = predict_scheduled(&job, &Schedulers::built_in()).expect("a prediction");
            (prediction.exposed_s, prediction.communication_s)
        };
        let ((free, _), (shared, busy), (of_many, _)) = (exposed(None), exposed(Some(1)), exposed(Some(8)));
        assert!(free < 0.2 * busy, "without sharing most of it hides: {free} s of {busy} s");
        assert!(shared > 0.6 * busy && shared < 1.3 * busy, "{shared} s of {busy} s");
        assert!(of_many > free && of_many < 0.5 * shared, "{of_many} s");
    }

    /// What the operations of a world do not say stands beside its predictions.
    #[test]
    fn doubts_are_shown() {
        let mut records = vec![real(1), real(2)];
        if let Ok(run) = &mut records[1].runs[0].outcome {
            run.inputs.communication = Some(CommunicationCost::of_points(vec![(4096, 2e-3), (1 << 21, 1e-3)]));
        }
        let panels = attached(&study_record("f"), &records);
        let row = panels[0].groups[1].rows[0].predicted.as_ref().expect("a prediction");
        assert!(row.extrapolated.iter().any(|doubt| doubt.contains("do not say what a byte takes")), "{row:?}");
    }

    #[test]
    fn what_cannot_be_predicted_says_why() {
        let mut records = vec![real(1), real(2)];
        if let Ok(run) = &mut records[1].runs[0].outcome {
            run.links = None;
        }
        let panels = attached(&study_record("f"), &records);
        assert_eq!(panels[0].groups[1].rows[0].not_predicted.as_deref(), Some("no run says what its links cost"));
    }
}
