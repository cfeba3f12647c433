//! Where a launcher has placed the ranks of a study, and the cores that it gave them: kept with the study, as its numbers
//! mean nothing without. Pure.

use std::collections::BTreeSet;
use std::fmt;

use paceline_plan::{Hosts, Rank};
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::stage::Stage;

/// The hosts of a launcher's ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// What the launcher is called.
    pub launcher: String,
    /// By number.
    pub hosts: Vec<PlacedHost>,
}

/// A host with ranks of a launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedHost {
    /// What it is called.
    pub name: String,
    /// The launcher's ranks on it, ascending.
    pub ranks: Vec<Rank>,
    /// Cores that they may keep busy together.
    pub cores: usize,
}

/// Workers of a cell on one host.
#[derive(Clone, Copy, Debug)]
struct Crowd<'a> {
    host: &'a PlacedHost,
    workers: usize,
    /// Threads that compute, over cores.
    busy: f64,
}

/// So many hosts are named where a line must do.
const NAMED: usize = 4;

impl Placement {
    /// These ranks on their hosts, with the cores of each host by its number.
    pub fn new(launcher: &str, stage: &Stage, cores: &[usize]) -> Placement {
        let host = |(number, name): (usize, &String)| PlacedHost {
            name: name.clone(),
            ranks: (0..stage.hosts.ranks()).filter(|&rank| stage.hosts.host(rank) == number).collect(),
            cores: cores.get(number).copied().unwrap_or(1),
        };
        Placement { launcher: launcher.to_owned(), hosts: stage.names.iter().enumerate().map(host).collect() }
    }

    /// The same, to find the places of a cell's processes.
    pub fn stage(&self) -> Stage {
        let of = |(number, host): (usize, &PlacedHost)| host.ranks.iter().map(move |&rank| (rank, number)).collect();
        let mut places: Vec<(Rank, usize)> = self.hosts.iter().enumerate().flat_map::<Vec<_>, _>(of).collect();
        places.sort_unstable();
        let hosts = Hosts::in_order(places.into_iter().map(|(_, number)| number));
        Stage { hosts, names: self.hosts.iter().map(|host| host.name.clone()).collect() }
    }

    /// Cores that each rank has for itself: its share of its host's; the least of all hosts.
    pub fn cores_of_rank(&self) -> usize {
        self.hosts.iter().map(|host| (host.cores / host.ranks.len().max(1)).max(1)).min().unwrap_or(1)
    }

    /// Threads of the cell that compute, over cores, on the host where that is most.
    pub fn busy(&self, cell: &Cell) -> f64 {
        self.crowd(cell).map_or(0.0, |crowd| crowd.busy)
    }

    /// Says so, if workers of a cell compute on fewer cores than they have threads; of several hosts, on the worst.
    pub fn oversubscribed(&self, cell: &Cell) -> Option<String> {
        let Crowd { host, workers, .. } = self.crowd(cell).filter(|crowd| crowd.busy > 1.0)?;
        let of = if self.hosts.len() == 1 { String::new() } else { format!(" of {}", host.name) };
        Some(format!("{}{of}", workers_on_cores(workers, host.cores)))
    }

    fn crowd(&self, cell: &Cell) -> Option<Crowd<'_>> {
        let stage = self.stage();
        let workers: Vec<Rank> = stage.workers(&cell.setting.servers_on).into_iter().take(cell.workers).collect();
        let crowd = |(number, host): (usize, &'_ PlacedHost)| {
            let here = workers.iter().filter(|&&rank| stage.hosts.host(rank) == number).count();
            (here, (here * cell.threads) as f64 / host.cores.max(1) as f64)
        };
        let crowds = self.hosts.iter().enumerate().map(|one| (one.1, crowd(one)));
        let crowds = crowds.map(|(host, (workers, busy))| Crowd { host, workers, busy });
        crowds.max_by(|one, other| one.busy.total_cmp(&other.busy))
    }

    /// How many hosts the cell's workers are on.
    pub fn hosts_of(&self, cell: &Cell) -> usize {
        let stage = self.stage();
        let workers = stage.workers(&cell.setting.servers_on).into_iter().take(cell.workers);
        workers.map(|rank| stage.hosts.host(rank)).collect::<BTreeSet<usize>>().len()
    }

    /// As a place: the only host's name, or how many there are.
    pub fn place(&self) -> String {
        match &self.hosts[..] {
            [only] => only.name.clone(),
            hosts => format!("{} hosts", hosts.len()),
        }
    }

    /// As the label of a chart: all hosts, or the first of many.
    pub fn label(&self) -> String {
        let more = self.hosts.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", self.first(NAMED))
    }

    fn first(&self, count: usize) -> String {
        let one = |host: &PlacedHost| {
            let ranks = host.ranks.len();
            format!("{} ({ranks} rank{})", host.name, if ranks == 1 { "" } else { "s" })
        };
        let hosts: Vec<String> = self.hosts.iter().take(count).map(one).collect();
        let s = if self.hosts.len() == 1 { "" } else { "s" };
        format!("{} on {} host{s}: {}", self.launcher, self.hosts.len(), hosts.join(", "))
    }
}

/// The launcher and all hosts.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first(self.hosts.len()))
    }
}

/// `8 workers on 4 cores`.
pub fn workers_on_cores(workers: usize, cores: usize) -> String {
    format!("{workers} workers on {cores} core{}", if cores == 1 { "" } else { "s" })
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// Hosts a, b, … of which each rank's is given, with so many cores each.
    pub fn placement(hosts: &str, cores: &[usize]) -> Placement {
        let hosts: Hosts = hosts.parse().expect("hosts");
        let names = ('a'..='z').take(hosts.count()).map(String::from).collect();
        Placement::new("srun", &Stage { hosts, names }, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::samples::{cell, setting};
    use super::super::cell::{ServerHost, Setting};
    use super::samples::placement;
    use super::*;

    #[test]
    fn the_cores_of_all_hosts_count() {
        let eight = cell(&setting("mlp"), "bsp-a2a", 8);
        let label = |hosts: &str, cores: &[usize], cell: &Cell| placement(hosts, cores).oversubscribed(cell);
        assert_eq!(label("2x4", &[4, 4], &eight), None);
        assert_eq!(label("2x4", &[4, 2], &eight), Some("4 workers on 2 cores of b".to_owned()));
        assert_eq!(label("1x8", &[4], &eight), Some("8 workers on 4 cores".to_owned()));
        // One core of its own for each rank, though rank 0 sees but one.
        let four = cell(&setting("mlp"), "bsp-a2a", 4);
        assert_eq!(label("1x4", &[4], &four), None);
        assert_eq!(label("1x4", &[1], &four), Some("4 workers on 1 core".to_owned()));
        // Two workers of four ranks, which are dealt out: one on each host.
        let two = Cell { threads: 2, ..cell(&setting("mlp"), "bsp-a2a", 2) };
        assert_eq!(label("0,1,0,1", &[2, 2], &two), None);
        assert_eq!(label("2x2", &[2, 2], &two), Some("2 workers on 2 cores of a".to_owned()));
        // Whoever serves does not compute.
        let servers_on = vec![ServerHost { number: 0, name: "a".to_owned() }];
        let served = cell(&Setting { servers_on, ..setting("mlp") }, "wfbp-ps", 2);
        assert_eq!(label("2x2", &[1, 2], &served), None);
        let hosts = |hosts: &str, cell: &Cell| placement(hosts, &[2, 2]).hosts_of(cell);
        assert_eq!(
            [hosts("0,1,0,1", &two), hosts("2x2", &two), hosts("2x4", &eight), hosts("2x2", &served)],
            [2, 1, 2, 1]
        );
    }

    #[test]
    fn a_rank_has_its_share_of_its_host() {
        assert_eq!(placement("2x2", &[8, 4]).cores_of_rank(), 2);
        assert_eq!(placement("0,1,1", &[8, 1]).cores_of_rank(), 1);
    }

    #[test]
    fn hosts_are_named_and_found_again() {
        let two = placement("0,1,0,1", &[2, 4]);
        assert_eq!(two.stage().hosts.by_rank(), [0, 1, 0, 1]);
        assert_eq!(
            (two.place(), two.to_string()),
            ("2 hosts".into(), "srun on 2 hosts: a (2 ranks), b (2 ranks)".into())
        );
        assert_eq!(two.label(), two.to_string());
        let many = placement("6x1", &[1; 6]);
        assert!(many.label().ends_with("c (1 rank), d (1 rank) and 2 more"), "{}", many.label());
        assert!(many.to_string().ends_with("e (1 rank), f (1 rank)"));
        let one = placement("1x2", &[2]);
        assert_eq!((one.place(), one.label()), ("a".into(), "srun on 1 host: a (2 ranks)".into()));
    }
}
