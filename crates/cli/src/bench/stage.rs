//! Which hosts there are, and who lives on them: the ranks that a launcher has started, or those of an emulated cluster.
//! Pure.

use std::collections::BTreeSet;

use paceline_plan::{Hosts, Rank};

use super::cell::{Cell, ServerHost};

/// Ranks on hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The host of each rank.
    pub hosts: Hosts,
    /// What the hosts are called, by number.
    pub names: Vec<String>,
}

impl Stage {
    /// An emulated cluster; its hosts are called by their numbers.
    pub fn emulated(hosts: usize, workers: usize) -> Stage {
        Stage { hosts: Hosts::regular(hosts, workers), names: (0..hosts).map(|host| host.to_string()).collect() }
    }

    /// The hosts that a user names: by name, by the part of it before the first dot, or by number.
    ///
    /// # Errors
    /// A sentence, if there is no such host, or if none is left for workers.
    pub fn serving(&self, wanted: &[String]) -> Result<Vec<ServerHost>, String> {
        let mut numbers = BTreeSet::new();
        for text in wanted {
            let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
            let by_name = self.names.iter().position(|name| name == text || short(name) == *text);
            let by_number = text.parse().ok().filter(|&number: &usize| number < self.names.len());
            let found = by_name.or(by_number);
            numbers.insert(found.ok_or_else(|| format!("there is no host {text}; the hosts are {}", self.list()))?);
        }
        if numbers.len() == self.names.len() {
            return Err(format!("no host is left for workers; the hosts are {}", self.list()));
        }
        Ok(numbers.into_iter().map(|number| ServerHost { number, name: self.names[number].clone() }).collect())
    }

    /// The ranks that can be workers, in order: those of all hosts that do not serve.
    pub fn workers(&self, serving: &[ServerHost]) -> Vec<Rank> {
        let serves = |&rank: &Rank| serving.iter().any(|host| host.number == self.hosts.host(rank));
        (0..self.hosts.ranks()).filter(|rank| !serves(rank)).collect()
    }

    /// Hosts that so many workers fill.
    pub fn hosts_of(&self, workers: usize, serving: &[ServerHost]) -> usize {
        let hosts: BTreeSet<usize> =
            self.workers(serving).into_iter().take(workers).map(|rank| self.hosts.host(rank)).collect();
        hosts.len()
    }

    /// Where the processes of a cell live, by rank: its workers fill hosts in order; its servers, if they are processes,
    /// are dealt out over the hosts that serve ([`Hosts::rank_of_shard`]), several to a rank if there are more.
    ///
    /// # Errors
    /// A sentence, if there are too few ranks.
    pub fn cast(&self, cell: &Cell) -> Result<Vec<Rank>, String> {
        let serving = &cell.setting.servers_on;
        let mut cast = self.workers(serving);
        if cast.len() < cell.workers {
            return Err(format!("{} workers, but there are ranks for {}", cell.workers, cast.len()));
        }
        cast.truncate(cell.workers);
        if cell.dedicated_servers {
            let at = |rank: &Rank| serving.iter().any(|host| host.number == self.hosts.host(*rank));
            let ranks: Vec<Rank> = (0..self.hosts.ranks()).filter(at).collect();
            if ranks.is_empty() {
                return Err(format!("{} has servers on hosts of their own, and no host serves", cell.method));
            }
            let hosts = Hosts::in_order(ranks.iter().map(|&rank| self.hosts.host(rank)));
            cast.extend((0..cell.shards).map(|shard| ranks[hosts.rank_of_shard(shard)]));
        }
        Ok(cast)
    }

    /// The hosts with their numbers and ranks, for people.
    pub fn list(&self) -> String {
        let ranks = |number| (0..self.hosts.ranks()).filter(|&rank| self.hosts.host(rank) == number).count();
        let one = |(number, name): (usize, &String)| {
            let name = if *name == number.to_string() { String::new() } else { format!(" {name}") };
            format!("{number}{name} ({} ranks)", ranks(number))
        };
        self.names.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Setting;
    use super::super::cell::samples::{cell, setting};
    use super::*;

    /// Six ranks on hosts of 3, 2 and 1.
    fn stage() -> Stage {
        let names = ["node1.cluster", "node2.cluster", "box"].map(str::to_owned).to_vec();
        Stage { hosts: "0,0,0,1,1,2".parse().expect("hosts"), names }
    }

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn hosts_are_found_by_name_and_by_number() {
        let numbers = |texts: &[&str]| {
            let found = stage().serving(&names(texts)).expect("they are there");
            found.iter().map(|host| host.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&["box", "node1", "box"]), [0, 2]);
        assert_eq!(numbers(&["node2.cluster"]), [1]);
        assert_eq!(numbers(&["2"]), [2]);
        let refused = |texts: &[&str]| stage().serving(&names(texts)).expect_err("refused");
        let all = "the hosts are 0 node1.cluster (3 ranks), 1 node2.cluster (2 ranks), 2 box (1 ranks)";
        assert_eq!(refused(&["node9"]), format!("there is no host node9; {all}"));
        assert_eq!(refused(&["3"]), format!("there is no host 3; {all}"));
        assert_eq!(refused(&["0", "1", "2"]), format!("no host is left for workers; {all}"));
        assert!(
            Stage::emulated(2, 4).serving(&names(&["2"])).expect_err("refused").ends_with("0 (4 ranks), 1 (4 ranks)")
        );
    }

    #[test]
    fn workers_fill_hosts_in_order_and_servers_those_that_serve() {
        let stage = stage();
        let served_by = |texts: &[&str], workers: usize, shards: usize| {
            let servers_on = stage.serving(&names(texts)).expect("they are there");
            let setting = Setting { servers_on, ..setting("cnn") };
            Cell { shards, dedicated_servers: true, ..cell(&setting, "wfbp-ps", workers) }
        };
        let beside = cell(&setting("cnn"), "wfbp-ps", 4);
        assert_eq!(stage.cast(&beside), Ok(vec![0, 1, 2, 3]));
        assert_eq!(stage.cast(&served_by(&["1"], 4, 3)), Ok(vec![0, 1, 2, 5, 3, 4, 3]));
        assert_eq!(stage.cast(&served_by(&["0", "2"], 2, 4)), Ok(vec![3, 4, 0, 5, 1, 5]));
        assert_eq!(stage.hosts_of(4, &served_by(&["1"], 1, 1).setting.servers_on), 2);
        assert_eq!(stage.cast(&served_by(&["0"], 4, 1)), Err("4 workers, but there are ranks for 3".to_owned()));
        let nobody = Cell { dedicated_servers: true, ..beside };
        assert!(stage.cast(&nobody).is_err_and(|why| why.contains("no host serves")));
    }
}
