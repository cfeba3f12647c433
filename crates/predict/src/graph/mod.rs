//! Irregular work: any tasks, on any resources and links, in any order that their dependencies allow.
//!
//! What has no regular form (pipelines, several models, an exchange that follows no plan) is stated as a graph, in a file or
//! by a program, and played in virtual time by list scheduling: whenever a resource is free it takes up, of the tasks whose
//! predecessors are done, the most urgent one; of equals, the one that has waited longest. (R. L. Graham, "Bounds on
//! multiprocessing timing anomalies", 1969.) A transfer needs no resource: its bytes set out as soon as its predecessors are
//! done, and all that are under way share each link max-min fairly ([`crate::flows`]).
//!
//! ```
//! use paceline_predict::graph::{Link, Task, TaskGraph};
//!
//! // A layer's gradient is sent while the next layer is computed, and shares the network with that one's.
//! let after = |before: &str, task: Task| Task { after: vec![before.to_owned()], ..task };
//! let graph = TaskGraph {
//!     links: vec![Link { name: "network".to_owned(), bytes_per_s: 1e9 }],
//!     tasks: vec![
//!         Task::new("backward 1", "gpu", 1.0),
//!         after("backward 1", Task::new("backward 0", "gpu", 2.0)),
//!         after("backward 1", Task::transfer("send 1", 3e9, &["network"])),
//!         after("backward 0", Task::transfer("send 0", 0.5e9, &["network"])),
//!     ],
//! };
//! let played = graph.play()?;
//! assert_eq!(played.seconds, 4.5);
//! assert_eq!(played.critical, ["backward 1", "send 1"]);
//! # Ok::<(), paceline_predict::graph::GraphError>(())
//! ```

mod file;
mod run;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::topology::LinkId;
use run::Run;

/// Tasks that wait for each other and share resources and links. `docs/json.md` describes the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskGraph {
    /// Over which transfers go. In any order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// In any order.
    pub tasks: Vec<Task>,
}

/// What transfers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Unique among links.
    pub name: String,
    /// Bytes per second that it carries, of all transfers together. Finite, above 0, not subnormal.
    pub bytes_per_s: f64,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "file::TaskInFile", into = "file::TaskInFile")]
pub struct Task {
    /// Unique among tasks.
    pub name: String,
    /// What is done, and where.
    pub work: Work,
    /// Seconds that keep nothing busy: on a resource those after the work, until those who wait for it may begin; of a
    /// transfer those before its bytes move.
    pub latency_s: f64,
    /// The names of the tasks that must be done before.
    pub after: Vec<String>,
    /// On a resource: lower is more urgent. Of a transfer, which waits for no turn: 0.
    pub priority: u32,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// It keeps a resource busy, which does one task at a time.
    OnResource {
        /// Any name.
        resource: String,
        /// For how long.
        seconds: f64,
    },
    /// It moves bytes, beside any other task. Without bytes it takes its latency.
    Transfer {
        /// How many.
        bytes: f64,
        /// The names of the links that all of them cross, at least one and none twice. The order does not matter.
        route: Vec<String>,
    },
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
    /// By link: what it has carried.
    pub links: BTreeMap<String, Carried>,
    /// The names of tasks each of which began when the one before let it, the last of which ended last.
    pub critical: Vec<String>,
}

/// What a link has carried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Carried {
    /// Of all transfers together.
    pub bytes: f64,
    /// Seconds that the link needs for these at its full speed. Over [`Played::seconds`] that is its utilization.
    pub busy_s: f64,
}

/// Why a graph cannot be read, or not be played.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// Two tasks of one name.
    #[error("two tasks have the name `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// Two links of one name.
    #[error("the link `{name}` is there twice")]
    LinkTwice {
        /// The name.
        name: String,
    },
    /// A link that carries nothing, or without end.
    #[error("the link `{link}`: bytes_per_s is {bytes_per_s}, which is no speed")]
    NoSpeed {
        /// Whose.
        link: String,
        /// What it is.
        bytes_per_s: f64,
    },
    /// A task is work on a resource and a transfer at once.
    #[error("the task `{task}` has both {field} and {other}: one is of work on a resource, the other of a transfer")]
    Both {
        /// Which.
        task: String,
        /// What it has of work on a resource: `seconds`, `resource` or `priority`.
        field: &'static str,
        /// What it has of a transfer: `bytes` or `route`.
        other: &'static str,
    },
    /// A task is neither.
    #[error("the task `{task}`: missing field `{field}`; a task has seconds on a resource, or bytes over a route")]
    Missing {
        /// Which.
        task: String,
        /// What it lacks.
        field: &'static str,
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
    /// A number of bytes that is none.
    #[error("the task `{task}`: bytes is {bytes}, which is no number of bytes")]
    NoBytes {
        /// Whose.
        task: String,
        /// What it is.
        bytes: f64,
    },
    /// A transfer over no link.
    #[error("the task `{task}`: route names no link")]
    NoRoute {
        /// Which.
        task: String,
    },
    /// A transfer over a link that there is not.
    #[error("the task `{task}`: route names `{link}`, and there is no such link")]
    UnknownLink {
        /// Which.
        task: String,
        /// Over what.
        link: String,
    },
    /// A transfer over one link several times.
    #[error("the task `{task}`: route names the link `{link}` twice")]
    RouteTwice {
        /// Which.
        task: String,
        /// Over what.
        link: String,
    },
    /// Tasks wait for each other.
    #[error("tasks wait for each other in a circle, such as {}", .tasks.join(", "))]
    Circle {
        /// Their names; each waits for the one before, and the first for the last.
        tasks: Vec<String>,
    },
    /// Times add up to infinity.
    #[error("the task `{task}` would end later than any number says")]
    TooLate {
        /// The one that would end last.
        task: String,
    },
}

impl Task {
    /// Work on a resource that waits for nothing.
    pub fn new(name: &str, resource: &str, seconds: f64) -> Task {
        Task::of_work(name, Work::OnResource { resource: resource.to_owned(), seconds })
    }

    /// Bytes over these links that wait for nothing.
    pub fn transfer(name: &str, bytes: f64, route: &[&str]) -> Task {
        let route = route.iter().map(|&link| link.to_owned()).collect();
        Task::of_work(name, Work::Transfer { bytes, route })
    }

    fn of_work(name: &str, work: Work) -> Task {
        Task { name: name.to_owned(), work, latency_s: 0.0, after: Vec::new(), priority: 0 }
    }

    /// Is every number one that can be played?
    fn check(&self) -> Result<(), GraphError> {
        let task = || self.name.clone();
        let is_amount = |number: f64| number.is_finite() && number >= 0.0;
        let (seconds, bytes) = match self.work {
            Work::OnResource { seconds, .. } => (seconds, None),
            Work::Transfer { bytes, .. } => (0.0, Some(bytes)),
        };
        for (field, seconds) in [("seconds", seconds), ("latency_s", self.latency_s)] {
            if !is_amount(seconds) {
                return Err(GraphError::NoTime { task: task(), field, seconds });
            }
        }
        match bytes {
            Some(bytes) if !is_amount(bytes) => Err(GraphError::NoBytes { task: task(), bytes }),
            Some(_) if self.priority > 0 => Err(GraphError::Both { task: task(), field: "priority", other: "bytes" }),
            _ => Ok(()),
        }
    }

    /// The tasks that it waits for, by their numbers.
    fn before(&self, numbers: &HashMap<&str, usize>) -> Result<Vec<usize>, GraphError> {
        let number = |before: &String| {
            let unknown = || GraphError::Unknown { task: self.name.clone(), before: before.clone() };
            numbers.get(&**before).copied().ok_or_else(unknown)
        };
        self.after.iter().map(number).collect()
    }

    /// The links that it crosses, by their numbers: of work on a resource none.
    fn links(&self, numbers: &HashMap<&str, LinkId>) -> Result<Vec<LinkId>, GraphError> {
        let Work::Transfer { route, .. } = &self.work else { return Ok(Vec::new()) };
        if route.is_empty() {
            return Err(GraphError::NoRoute { task: self.name.clone() });
        }
        let (mut links, mut taken) = (Vec::with_capacity(route.len()), HashSet::new());
        for name in route {
            let Some(&link) = numbers.get(&**name) else {
                return Err(GraphError::UnknownLink { task: self.name.clone(), link: name.clone() });
            };
            if !taken.insert(link) {
                return Err(GraphError::RouteTwice { task: self.name.clone(), link: name.clone() });
            }
            links.push(link);
        }
        Ok(links)
    }
}

/// What names stand for.
struct Numbers {
    /// By task: those that it waits for.
    before: Vec<Vec<usize>>,
    /// By task: the links that it crosses.
    routes: Vec<Vec<LinkId>>,
}

impl TaskGraph {
    /// Plays it. The cost is (tasks + dependencies) × log(tasks), and that of two changes of a
    /// [`FlowNetwork`](crate::flows::FlowNetwork) for each transfer.
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn play(&self) -> Result<Played, GraphError> {
        let numbers = self.check()?;
        let (times, let_begin) = Run::new(self, &numbers).run();
        if let Some(stuck) = times.iter().position(Option::is_none) {
            return Err(self.circle(stuck, &numbers.before, &times));
        }
        let times_s: Vec<(f64, f64)> = times.into_iter().map(Option::unwrap_or_default).collect();
        let last = (0..times_s.len()).max_by(|&one, &other| times_s[one].1.total_cmp(&times_s[other].1));
        let seconds = last.map_or(0.0, |last| times_s[last].1);
        if let Some(last) = last.filter(|_| !seconds.is_finite()) {
            return Err(GraphError::TooLate { task: self.tasks[last].name.clone() });
        }
        let critical = std::iter::successors(last, |&task| let_begin[task]);
        let mut critical: Vec<String> = critical.map(|task| self.tasks[task].name.clone()).collect();
        critical.reverse();
        let (busy_s, links) = self.amounts(&numbers.routes);
        Ok(Played { seconds, times_s, busy_s, links, critical })
    }

    /// What the work on each resource, and what the transfers over each link come to.
    fn amounts(&self, routes: &[Vec<LinkId>]) -> (BTreeMap<String, f64>, BTreeMap<String, Carried>) {
        let mut busy_s: BTreeMap<String, f64> = BTreeMap::new();
        let mut link_bytes = vec![0.0_f64; self.links.len()];
        for (task, route) in self.tasks.iter().zip(routes) {
            match &task.work {
                Work::OnResource { resource, seconds } => *busy_s.entry(resource.clone()).or_insert(0.0) += *seconds,
                Work::Transfer { bytes, .. } => route.iter().for_each(|&link| link_bytes[link as usize] += *bytes),
            }
        }
        let links = self.links.iter().zip(link_bytes).map(|(link, bytes)| {
            let busy_s = bytes / link.bytes_per_s;
            (link.name.clone(), Carried { bytes, busy_s })
        });
        (busy_s, links.collect())
    }

    fn check(&self) -> Result<Numbers, GraphError> {
        let links = self.link_numbers()?;
        let mut numbers = HashMap::new();
        for (number, task) in self.tasks.iter().enumerate() {
            if numbers.insert(&*task.name, number).is_some() {
                return Err(GraphError::Twice { name: task.name.clone() });
            }
            task.check()?;
        }
        let before = self.tasks.iter().map(|task| task.before(&numbers)).collect::<Result<Vec<_>, _>>()?;
        let routes = self.tasks.iter().map(|task| task.links(&links)).collect::<Result<Vec<_>, _>>()?;
        Ok(Numbers { before, routes })
    }

    fn link_numbers(&self) -> Result<HashMap<&str, LinkId>, GraphError> {
        let mut numbers: HashMap<&str, LinkId> = HashMap::new();
        for (number, Link { name, bytes_per_s }) in (0..).zip(&self.links) {
            if numbers.insert(name, number).is_some() {
                return Err(GraphError::LinkTwice { name: name.clone() });
            }
            // A share of a subnormal speed may round to nothing, and a transfer would never end.
            if !(bytes_per_s.is_normal() && *bytes_per_s > 0.0) {
                return Err(GraphError::NoSpeed { link: name.clone(), bytes_per_s: *bytes_per_s });
            }
        }
        Ok(numbers)
    }

    /// A circle: whatever is stuck waits for something that is.
    fn circle(&self, stuck: usize, before: &[Vec<usize>], times: &[Option<(f64, f64)>]) -> GraphError {
        let mut way = vec![stuck];
        loop {
            let next = before[way[way.len() - 1]].iter().copied().find(|&task| times[task].is_none());
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

#[cfg(test)]
mod tests;
