//! Irregular work: any tasks, on any resources, in any order that their dependencies allow.
//!
//! What has no regular form (pipelines, several models, an exchange that follows no plan) is stated as a graph, in a file or
//! by a program, and played in virtual time by list scheduling: whenever a resource is free it takes up, of the tasks whose
//! predecessors are done, the most urgent one; of equals, the one that has waited longest. (R. L. Graham, "Bounds on
//! multiprocessing timing anomalies", 1969.)
//!
//! ```
//! use paceline_predict::graph::{Task, TaskGraph};
//!
//! // A layer's gradient is sent while the next layer is computed.
//! let task = |name: &str, resource: &str, seconds, after: &[&str]| Task {
//!     after: after.iter().map(|&before| before.to_owned()).collect(),
//!     ..Task::new(name, resource, seconds)
//! };
//! let graph = TaskGraph {
//!     tasks: vec![
//!         task("backward 1", "gpu", 1.0, &[]),
//!         task("backward 0", "gpu", 2.0, &["backward 1"]),
//!         task("send 1", "network", 3.0, &["backward 1"]),
//!         task("send 0", "network", 1.0, &["backward 0"]),
//!     ],
//! };
//! let played = graph.play()?;
//! assert_eq!(played.seconds, 5.0);
//! assert_eq!(played.critical, ["backward 1", "send 1", "send 0"]);
//! # Ok::<(), paceline_predict::graph::GraphError>(())
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

/// Tasks that wait for each other and share resources. `docs/json.md` describes the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskGraph {
    /// In any order.
    pub tasks: Vec<Task>,
}

/// A piece of work of one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Unique.
    pub name: String,
    /// Who does it: any name. A resource does one task at a time.
    pub resource: String,
    /// For how long the resource is busy.
    pub seconds: f64,
    /// Seconds after that until those who wait for it may begin; they keep nothing busy.
    #[serde(default)]
    pub latency_s: f64,
    /// The names of the tasks that must be done before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Lower is more urgent.
    #[serde(default)]
    pub priority: u32,
}

/// How a graph went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Played {
    /// From the start to the last end.
    pub seconds: f64,
    /// By task, in the order of the graph: when it began, and when those who wait for it could.
    pub times_s: Vec<(f64, f64)>,
    /// By resource: seconds for which it was busy.
    pub busy_s: BTreeMap<String, f64>,
    /// The names of tasks each of which began when the one before let it, the last of which ended last.
    pub critical: Vec<String>,
}

/// Why a graph cannot be played.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// Two tasks of one name.
    #[error("two tasks have the name `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// A task waits for one that there is not.
    #[error("the task `{task}` waits for `{before}`, and there is no such task")]
    Unknown {
        /// Who waits.
        task: String,
        /// For what.
        before: String,
    },
    /// A time that is none.
    #[error("the task `{task}`: {field} is {seconds}, which is no time")]
    NoTime {
        /// Whose.
        task: String,
        /// `seconds` or `latency_s`.
        field: &'static str,
        /// What it is.
        seconds: f64,
    },
    /// Tasks wait for each other.
    #[error("tasks wait for each other in a circle, such as {}", .tasks.join(", "))]
    Circle {
        /// Their names; each waits for the one before, and the first for the last.
        tasks: Vec<String>,
    },
}

impl Task {
    /// A task that waits for nothing.
    pub fn new(name: &str, resource: &str, seconds: f64) -> Task {
        let (name, resource) = (name.to_owned(), resource.to_owned());
        Task { name, resource, seconds, latency_s: 0.0, after: Vec::new(), priority: 0 }
    }
}

impl TaskGraph {
    /// Plays it. The cost is (tasks + dependencies) × log(tasks).
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn play(&self) -> Result<Played, GraphError> {
        let before = self.check()?;
        let mut state = State::new(self, &before);
        state.run();
        if let Some(stuck) = state.times.iter().position(Option::is_none) {
            return Err(self.circle(stuck, &before, &state));
        }
        let times_s: Vec<(f64, f64)> = state.times.iter().map(|times| times.unwrap_or_default()).collect();
        let mut busy_s = BTreeMap::new();
        for task in &self.tasks {
            *busy_s.entry(task.resource.clone()).or_insert(0.0) += task.seconds;
        }
        let last = (0..times_s.len()).max_by(|&one, &other| times_s[one].1.total_cmp(&times_s[other].1));
        let mut critical: Vec<String> = std::iter::successors(last, |&task| state.let_begin[task])
            .map(|task| self.tasks[task].name.clone())
            .collect();
        critical.reverse();
        Ok(Played { seconds: last.map_or(0.0, |last| times_s[last].1), times_s, busy_s, critical })
    }

    /// By task: those that it waits for.
    fn check(&self) -> Result<Vec<Vec<usize>>, GraphError> {
        let mut numbers = HashMap::new();
        for (number, task) in self.tasks.iter().enumerate() {
            if numbers.insert(&*task.name, number).is_some() {
                return Err(GraphError::Twice { name: task.name.clone() });
            }
            for (field, seconds) in [("seconds", task.seconds), ("latency_s", task.latency_s)] {
                if !(seconds.is_finite() && seconds >= 0.0) {
                    return Err(GraphError::NoTime { task: task.name.clone(), field, seconds });
                }
            }
        }
        let number = |task: &Task, before: &String| {
            let unknown = || GraphError::Unknown { task: task.name.clone(), before: before.clone() };
            numbers.get(&**before).copied().ok_or_else(unknown)
        };
        self.tasks.iter().map(|task| task.after.iter().map(|before| number(task, before)).collect()).collect()
    }

    /// A circle: whatever is stuck waits for something that is.
    fn circle(&self, stuck: usize, before: &[Vec<usize>], state: &State<'_>) -> GraphError {
        let mut way = vec![stuck];
        loop {
            let next = before[way[way.len() - 1]].iter().copied().find(|&task| state.times[task].is_none());
            let Some(next) = next else { break };
            if let Some(first) = way.iter().position(|&task| task == next) {
                way.drain(..first);
                break;
            }
            way.push(next);
        }
        way.reverse();
        GraphError::Circle { tasks: way.into_iter().map(|task| self.tasks[task].name.clone()).collect() }
    }
}

/// A graph under way.
struct State<'a> {
    graph: &'a TaskGraph,
    then: Vec<Vec<usize>>,
    missing: Vec<usize>,
    resource: Vec<usize>,
    /// By resource.
    busy: Vec<bool>,
    waiting: Vec<BinaryHeap<Reverse<Waiting>>>,
    /// What is over, and when: a resource is free (false), or those who wait for a task may begin (true).
    events: BinaryHeap<Reverse<(Time, bool, usize)>>,
    times: Vec<Option<(f64, f64)>>,
    /// What each waited for last: a task before it, or the one before on its resource.
    let_begin: Vec<Option<usize>>,
    last_on: Vec<Option<usize>>,
}

/// By urgency, then by how long they have waited, then by number.
type Waiting = (u32, Time, usize);

#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> State<'a> {
    fn new(graph: &'a TaskGraph, before: &[Vec<usize>]) -> State<'a> {
        let tasks = graph.tasks.len();
        let mut then = vec![Vec::new(); tasks];
        for (task, before) in before.iter().enumerate() {
            before.iter().for_each(|&before| then[before].push(task));
        }
        let mut names: HashMap<&str, usize> = HashMap::new();
        let resource = graph.tasks.iter().map(|task| {
            let next = names.len();
            *names.entry(&task.resource).or_insert(next)
        });
        let resource: Vec<usize> = resource.collect();
        let resources = names.len();
        State {
            graph,
            then,
            missing: before.iter().map(Vec::len).collect(),
            resource,
            busy: vec![false; resources],
            waiting: (0..resources).map(|_| BinaryHeap::new()).collect(),
            events: BinaryHeap::new(),
            times: vec![None; tasks],
            let_begin: vec![None; tasks],
            last_on: vec![None; resources],
        }
    }

    fn run(&mut self) {
        for task in (0..self.missing.len()).filter(|&task| self.missing[task] == 0).collect::<Vec<_>>() {
            self.is_ready(task, 0.0);
        }
        (0..self.busy.len()).for_each(|resource| self.begin(resource, 0.0));
        while let Some(Reverse((time, _, _))) = self.events.peek().copied() {
            // Everything that happens now, before anything begins: the most urgent is chosen of all.
            let mut touched = Vec::new();
            while let Some(&Reverse((at, is_done, task))) = self.events.peek()
                && at == time
            {
                self.events.pop();
                if !is_done {
                    self.busy[self.resource[task]] = false;
                    touched.push(self.resource[task]);
                    continue;
                }
                for next in std::mem::take(&mut self.then[task]) {
                    self.missing[next] -= 1;
                    if self.missing[next] == 0 {
                        self.let_begin[next] = Some(task);
                        self.is_ready(next, time.0);
                        touched.push(self.resource[next]);
                    }
                }
            }
            touched.into_iter().for_each(|resource| self.begin(resource, time.0));
        }
    }

    fn is_ready(&mut self, task: usize, now: f64) {
        let waiting = (self.graph.tasks[task].priority, Time(now), task);
        self.waiting[self.resource[task]].push(Reverse(waiting));
    }

    /// A resource takes up a task, if it is free and there is one.
    fn begin(&mut self, resource: usize, now: f64) {
        if self.busy[resource] {
            return;
        }
        let Some(Reverse((_, ready, task))) = self.waiting[resource].pop() else { return };
        let Task { seconds, latency_s, .. } = self.graph.tasks[task];
        self.busy[resource] = true;
        if ready.0 < now {
            self.let_begin[task] = self.last_on[resource];
        }
        self.last_on[resource] = Some(task);
        self.times[task] = Some((now, now + seconds + latency_s));
        self.events.push(Reverse((Time(now + seconds), false, task)));
        self.events.push(Reverse((Time(now + seconds + latency_s), true, task)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(tasks: &[(&str, &str, f64, &[&str])]) -> TaskGraph {
        let task = |&(name, resource, seconds, after): &(&str, &str, f64, &[&str])| Task {
            after: after.iter().map(|&before| before.to_owned()).collect(),
            ..Task::new(name, resource, seconds)
        };
        TaskGraph { tasks: tasks.iter().map(task).collect() }
    }

    #[test]
    fn a_resource_does_one_thing_at_a_time_and_the_urgent_first() {
        let mut tasks = graph(&[
            ("load", "disk", 1.0, &[]),
            ("slow", "gpu", 4.0, &["load"]),
            ("fast", "gpu", 1.0, &["load"]),
            ("end", "disk", 1.0, &["fast"]),
        ]);
        let played = tasks.play().unwrap();
        assert_eq!((played.seconds, &played.times_s[2]), (7.0, &(5.0, 6.0)));
        assert_eq!(played.critical, ["load", "slow", "fast", "end"]);
        assert_eq!(played.busy_s["gpu"], 5.0);
        tasks.tasks[1].priority = 1;
        let played = tasks.play().unwrap();
        assert_eq!((played.seconds, &*played.critical), (6.0, &["load", "fast", "slow"].map(String::from)[..]));
        // A latency keeps nothing busy.
        tasks.tasks[2].latency_s = 10.0;
        assert_eq!(tasks.play().unwrap().times_s, [(0.0, 1.0), (2.0, 6.0), (1.0, 12.0), (12.0, 13.0)]);
    }

    #[test]
    fn nothing_takes_no_time() {
        assert_eq!(TaskGraph::default().play().unwrap().seconds, 0.0);
        let played = graph(&[("a", "x", 0.0, &[]), ("b", "x", 0.0, &["a"])]).play().unwrap();
        assert_eq!(played.times_s, [(0.0, 0.0), (0.0, 0.0)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        let refused = |tasks: &[(&str, &str, f64, &[&str])]| graph(tasks).play().unwrap_err().to_string();
        assert_eq!(refused(&[("a", "x", 1.0, &[]), ("a", "x", 1.0, &[])]), "two tasks have the name `a`");
        assert_eq!(refused(&[("a", "x", 1.0, &["b"])]), "the task `a` waits for `b`, and there is no such task");
        assert_eq!(refused(&[("a", "x", -1.0, &[])]), "the task `a`: seconds is -1, which is no time");
        assert!(refused(&[("a", "x", f64::NAN, &[])]).contains("NaN"));
        let circle = refused(&[
            ("z", "x", 1.0, &["a"]),
            ("a", "x", 1.0, &["c"]),
            ("b", "x", 1.0, &["a"]),
            ("c", "y", 1.0, &["b"]),
        ]);
        assert_eq!(circle, "tasks wait for each other in a circle, such as b, c, a");
        assert_eq!(refused(&[("a", "x", 1.0, &["a"])]), "tasks wait for each other in a circle, such as a");
    }
}
