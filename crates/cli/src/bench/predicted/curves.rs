//! What another network, more workers, or another batch would do to each method: predicted throughputs, one thing changed at
//! a time. Pure.

use std::time::Duration;

use paceline_plan::{Cluster, Profile};
use paceline_predict::search::{Change, Surroundings, apply_changes};
use paceline_predict::{Job, estimate};
use paceline_strategy::Strategy;
use serde::{Deserialize, Serialize};

use super::attach::Ground;

/// Throughputs over one thing that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What changes, in words.
    pub what: String,
    /// Its values, in words.
    pub points: Vec<String>,
    /// Which of them is as it was measured, from 0.
    pub today: usize,
    /// By method.
    pub lines: Vec<CurveLine>,
}

/// Of a method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveLine {
    /// Its name.
    pub method: String,
    /// Samples per second of all workers, by point; null where it cannot be predicted.
    pub samples_per_s: Vec<Option<f64>>,
    /// By point: beyond what the constants were measured for, of another batch than was measured, or beyond what the device can
    /// hold. Empty: nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extrapolated: Vec<bool>,
}

impl CurveLine {
    fn of(method: String, points: Vec<Option<(f64, bool)>>) -> CurveLine {
        let extrapolated: Vec<bool> = points.iter().map(|point| point.is_some_and(|point| point.1)).collect();
        CurveLine {
            method,
            samples_per_s: points.into_iter().map(|point| Some(point?.0)).collect(),
            extrapolated: if extrapolated.contains(&true) { extrapolated } else { Vec::new() },
        }
    }

    /// Is a point beyond what was measured, or what the device can hold?
    pub fn is_extrapolated(&self, point: usize) -> bool {
        self.extrapolated.get(point) == Some(&true)
    }
}

#[cfg(test)]
impl Curve {
    /// For tests of what is made of it.
    pub fn of(what: &str, points: Vec<String>, today: usize, lines: Vec<(String, Vec<Option<f64>>)>) -> Curve {
        let line = |(method, rates): (String, Vec<Option<f64>>)| {
            CurveLine::of(method, rates.into_iter().map(|rate| Some((rate?, false))).collect())
        };
        Curve { what: what.to_owned(), points, today, lines: lines.into_iter().map(line).collect() }
    }
}

/// What curves start from.
pub struct Subject<'a> {
    /// Where it runs.
    pub ground: &'a Ground,
    /// For the setting's batch.
    pub profile: &'a Profile,
    /// How many.
    pub workers: usize,
    /// Each has a line.
    pub methods: &'a [Method],
}

/// A method that was measured.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// As it was asked for: a start-up that it adds may depend on the number of workers.
    pub strategy: Strategy,
    /// By so much each start-up that it adds ends late; zero where no timer ends it.
    pub wake_up: Duration,
}

impl Method {
    /// How so many workers communicate, with start-ups as long as they take there. The wake-up stays that of the workers that there
    /// are, as it does in the cluster's alpha.
    pub fn among(&self, workers: usize) -> Strategy {
        let start_up = self.strategy.start_up(workers);
        match start_up.is_zero() || self.wake_up.is_zero() {
            true => self.strategy.clone(),
            false => self.strategy.with_start_up(start_up + self.wake_up),
        }
    }
}

/// How much faster, or slower, links may be.
const SPEEDS: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
/// How many times as large, or small, a local batch may be.
const BATCHES: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// Of so many times as many workers as were measured the curve ends.
const GROWTH: usize = 4;

/// A point of a curve: what it is called, and what is otherwise there.
struct Point {
    name: String,
    cluster: Cluster,
    workers: usize,
    local_batch: usize,
    /// Has nobody measured links like these, where some were?
    other_links: bool,
}

impl Subject<'_> {
    /// Network, workers, batch.
    pub fn curves(&self) -> Vec<Curve> {
        let place = if self.hosts() > 1 { "between hosts" } else { "within the host" };
        let speed = |&factor: &f64| {
            let cluster = self.faster(factor)?;
            let other_links = factor != 1.0 && cluster.measured.is_some();
            Some((Point { name: format!("{factor}×"), cluster, other_links, ..self.today() }, factor == 1.0))
        };
        let workers = |&workers: &usize| {
            let cluster = self.ground.room(workers)?.cluster;
            Some((Point { name: workers.to_string(), cluster, workers, ..self.today() }, workers == self.workers))
        };
        let batch = |&local_batch: &usize| {
            let is_today = local_batch == self.profile.local_batch;
            Some((Point { name: local_batch.to_string(), local_batch, ..self.today() }, is_today))
        };
        vec![
            self.curve(format!("bandwidth {place}"), SPEEDS.iter().filter_map(speed).collect()),
            self.curve(
                format!("workers {}", self.ground.place()),
                self.worker_counts().iter().filter_map(workers).collect(),
            ),
            self.curve("local batch".to_owned(), self.batches().iter().filter_map(batch).collect()),
        ]
    }

    fn curve(&self, what: String, points: Vec<(Point, bool)>) -> Curve {
        let line = |method: &Method| {
            CurveLine::of(method.name.clone(), points.iter().map(|(point, _)| self.predicted(method, point)).collect())
        };
        Curve {
            what,
            today: points.iter().position(|(_, is_today)| *is_today).unwrap_or(0),
            lines: self.methods.iter().map(line).collect(),
            points: points.iter().map(|(point, _)| point.name.clone()).collect(),
        }
    }

    /// As it is.
    fn today(&self) -> Point {
        Point {
            name: String::new(),
            cluster: self.ground.cluster.clone(),
            workers: self.workers,
            local_batch: self.profile.local_batch,
            other_links: false,
        }
    }

    fn hosts(&self) -> usize {
        self.ground.cluster.hosts_of(self.workers)
    }

    /// The links that limit, so many times as fast: between hosts, where there are several.
    fn faster(&self, factor: f64) -> Option<Cluster> {
        let mut cluster = self.ground.cluster.clone();
        if self.hosts() > 1 {
            return apply_changes(&cluster, self.workers, None, &[Change::Faster(factor)])
                .ok()
                .map(|changed| changed.0);
        }
        cluster.scale(&["within.beta_s_per_byte"], 1.0 / factor);
        Some(cluster)
    }

    /// Powers of two, and what was measured.
    fn worker_counts(&self) -> Vec<usize> {
        let most = GROWTH * self.workers;
        let powers = std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|count| *count <= most);
        let mut counts: Vec<usize> = powers.chain([self.workers]).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn batches(&self) -> Vec<usize> {
        let today = self.profile.local_batch as f64;
        let mut batches: Vec<usize> = BATCHES.iter().map(|factor| (factor * today).round().max(1.0) as usize).collect();
        batches.dedup();
        batches
    }

    /// Samples per second, and whether that is beyond what was measured.
    fn predicted(&self, method: &Method, point: &Point) -> Option<(f64, bool)> {
        let strategy = &method.among(point.workers);
        let profile = self.profile.for_batch(point.local_batch);
        let cluster = self.ground.crowded(point.cluster.clone(), point.workers, &profile);
        let job = Job { cluster: &cluster, profile: &profile, strategy, workers: point.workers, local_batch: None };
        let prediction = estimate(&job).ok().filter(|prediction| prediction.samples_per_s.is_finite())?;
        Some((prediction.samples_per_s, point.other_links || !prediction.extrapolated.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{MeasuredRange, NetworkModel, built_in_profile};
    use paceline_strategy::Registry;

    use super::*;

    fn curves(hosts: usize, workers_per_host: usize, busy: f64) -> Vec<Curve> {
        let cluster = Cluster::of_network(NetworkModel::TEN_GBE, hosts, workers_per_host);
        curves_on(cluster, hosts * workers_per_host, busy)
    }

    fn curves_on(cluster: Cluster, workers: usize, busy: f64) -> Vec<Curve> {
        curves_of(&["bsp-a2a", "wfbp-ps"], Duration::ZERO, cluster, workers, busy)
    }

    fn curves_of(methods: &[&str], wake_up: Duration, cluster: Cluster, workers: usize, busy: f64) -> Vec<Curve> {
        let ground = Ground { cluster, busy, several_machines: false, together: None, doubts: Vec::new() };
        let profile = built_in_profile("resnet50").expect("it is built in");
        let method = |name: &&str| {
            let strategy = Registry::built_in().parse(name).expect("a strategy");
            Method { name: (*name).to_owned(), strategy, wake_up }
        };
        let methods: Vec<Method> = methods.iter().map(method).collect();
        Subject { ground: &ground, profile: &profile, workers, methods: &methods }.curves()
    }

    /// The study's start-up is 190, 190, 250, 350 and 460 us with 2, 4, 8, 16 and 32 workers, and a timer ends each 10 us late.
    #[test]
    fn a_start_up_is_that_of_each_number_of_workers() {
        let cluster = Cluster::of_network(NetworkModel::TEN_GBE, 8, 1);
        let rates = |strategy: &str, wake_up_us: u64| -> Vec<f64> {
            let wake_up = Duration::from_micros(wake_up_us);
            let curve = curves_of(&[strategy], wake_up, cluster.clone(), 8, 0.0).swap_remove(1);
            assert_eq!(curve.points, ["1", "2", "4", "8", "16", "32"]);
            curve.lines[0].samples_per_s.iter().map(|rate| rate.expect("predicted")).collect()
        };
        let of_study = rates("schedule=wfbp,arch=a2a:ring:study", 10);
        for (point, start_up_us) in [(1, 200), (2, 200), (3, 260), (4, 360), (5, 470)] {
            let of_one = rates(&format!("schedule=wfbp,arch=a2a:ring:{start_up_us}us"), 0);
            assert!((of_study[point] / of_one[point] - 1.0).abs() < 1e-9, "{point}: {of_study:?} {of_one:?}");
        }
        // One operation for each of 161 tensors: what start-ups take is seen.
        let of_eight = rates("schedule=wfbp,arch=a2a:ring:260us", 0);
        assert!(of_study[2] > 1.001 * of_eight[2] && of_study[5] < 0.999 * of_eight[5], "{of_study:?} {of_eight:?}");
    }

    #[test]
    fn faster_links_more_workers_and_larger_batches_are_told_apart() {
        let all = curves(2, 3, 0.0);
        let what: Vec<&str> = all.iter().map(|curve| curve.what.as_str()).collect();
        assert_eq!(what, ["bandwidth between hosts", "workers on such hosts", "local batch"]);
        assert_eq!(all[1].points, ["1", "2", "4", "6", "8", "16"]);
        assert_eq!(all[2].points, ["16", "32", "64", "128", "256"]);
        assert_eq!((all[0].points[2].as_str(), all[0].today, all[1].today, all[2].today), ("1×", 2, 3, 2));
        for curve in &all {
            assert_eq!(curve.lines.len(), 2);
            // More of each of them is more throughput.
            let bsp: Vec<f64> = curve.lines[0].samples_per_s.iter().map(|rate| rate.expect("predicted")).collect();
            let rises = bsp.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-9)) && bsp[bsp.len() - 1] > bsp[0];
            assert!(rises, "{}: {bsp:?}", curve.what);
        }
        // The same point of all three.
        let today: Vec<f64> = all.iter().map(|curve| curve.lines[0].samples_per_s[curve.today].expect("it")).collect();
        assert!(today.iter().all(|rate| (rate / today[0] - 1.0).abs() < 1e-9), "{today:?}");
    }

    #[test]
    fn points_beyond_what_was_measured_say_so() {
        let unmeasured = curves(2, 3, 0.0);
        assert!(unmeasured[..2].iter().flat_map(|curve| &curve.lines).all(|line| line.extrapolated.is_empty()));
        // Of every other batch computation is scaled, and of 128 and 256 samples the device cannot hold what backward needs.
        let scaled = |line: &CurveLine| line.extrapolated == [true, true, false, true, true];
        assert!(unmeasured[2].lines.iter().all(scaled), "{:?}", unmeasured[2]);
        let range = MeasuredRange { workers: [2, 8], bytes: [4, u64::MAX], ..MeasuredRange::default() };
        let cluster = Cluster { measured: Some(range), ..Cluster::of_network(NetworkModel::TEN_GBE, 2, 3) };
        let all = curves_on(cluster, 6, 0.0);
        let marked = |line: &CurveLine| (0..6).map(|point| line.is_extrapolated(point)).collect::<Vec<_>>();
        // No links but today's were measured.
        let others = [true, true, false, true, true, true];
        assert!(all[0].lines.iter().all(|line| marked(line) == others), "{:?}", all[0]);
        let workers = &all[1];
        assert_eq!(workers.points, ["1", "2", "4", "6", "8", "16"]);
        assert!(
            workers.lines.iter().all(|line| marked(line)[1..] == [false, false, false, false, true]),
            "{workers:?}"
        );
    }

    #[test]
    fn workers_that_share_cores_gain_little() {
        let of = |busy: f64| -> Vec<f64> {
            let all = curves(1, 2, busy);
            let what = [all[0].what.as_str(), all[1].what.as_str()];
            assert_eq!((what, all[1].points.len()), (["bandwidth within the host", "workers on the same host"], 4));
            all[1].lines[0].samples_per_s.iter().map(|rate| rate.expect("predicted")).collect()
        };
        // 1, 2, 4 and 8 workers; two of them fill the cores.
        let (sharing, sleeping) = (of(0.5), of(0.0));
        assert!(sharing[3] < 1.1 * sharing[1] && sleeping[3] > 3.0 * sleeping[1], "{sharing:?} {sleeping:?}");
        assert_eq!(sharing[1], sleeping[1]);
    }
}
