//! The study's models on emulated networks.

use super::super::cluster::{Group, WARM_UP};
use super::{AUTO, METHODS};

const MODELS: [&str; 3] = ["resnet50", "bert-base", "bert-large"];
const NETWORKS: [&str; 2] = ["10GbE", "100GbIB"];
const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Four hosts of two: one worker, one host, and several.
const HOSTS: usize = 4;
const WORKERS_PER_HOST: usize = 2;

/// Shards beside workers.
const SHARDS: [&str; 5] = [
    "schedule=wfbp,arch=ps:1",
    "schedule=wfbp,arch=ps:2",
    "schedule=wfbp,arch=ps:3",
    "schedule=wfbp,arch=ps:4",
    "schedule=wfbp,arch=ps:6",
];

/// Every model, network and number of workers by itself: fewer workers need less dilation. With `quick` the smallest.
pub fn groups(quick: bool) -> Vec<Group> {
    if quick {
        return vec![group("resnet50", "10GbE", 2, vec!["bsp-a2a", "wfbp-a2a", "wfbp-ps"])];
    }
    let methods = || METHODS.into_iter().chain([AUTO]).collect();
    let of_model = |model| NETWORKS.into_iter().map(move |network| (model, network));
    let places = MODELS.into_iter().flat_map(of_model);
    places.flat_map(|(model, network)| WORKERS.map(|workers| group(model, network, workers, methods()))).collect()
}

/// How many servers are best? Where each has a host of its own the more the better, if anything; of six shards on four hosts two
/// share an interface, and four are better.
pub fn servers(quick: bool) -> Vec<Group> {
    let beside = |hosts: usize, workers_per_host: usize, network: &'static str| {
        let workers = hosts * workers_per_host;
        let name = format!("servers-resnet50-{workers}-{network}");
        Group { name, hosts, workers_per_host, ..group("resnet50", network, workers, SHARDS.to_vec()) }
    };
    let groups = || [beside(6, 1, "10GbE"), beside(6, 1, "100GbIB"), beside(4, 2, "10GbE")];
    if quick { Vec::new() } else { groups().into() }
}

/// A model on a network with so many workers, on the hosts of these cases.
pub fn group(model: &'static str, network: &'static str, workers: usize, methods: Vec<&'static str>) -> Group {
    Group {
        name: format!("predicted-{model}-{workers}-{network}"),
        model,
        network,
        hosts: HOSTS,
        workers_per_host: WORKERS_PER_HOST,
        workers: vec![workers],
        methods,
        warm_up: WARM_UP,
        iterations: 5,
        runs: 1,
        bulk: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_asked_for_is_there_once() {
        let groups = groups(false);
        assert_eq!(groups.len(), MODELS.len() * NETWORKS.len() * WORKERS.len());
        let names: Vec<&String> = groups.iter().map(|group| &group.name).collect();
        assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)));
        for group in &groups {
            assert!(METHODS.iter().all(|method| group.methods.contains(method)) && group.methods.contains(&AUTO));
            assert!(group.workers[0] <= group.hosts * group.workers_per_host);
        }
        let servers_on: Vec<(usize, usize)> =
            servers(false).iter().map(|group| (group.workers[0], group.hosts)).collect();
        assert_eq!(servers_on, [(6, 6), (6, 6), (8, 4)]);
        assert!(servers(false).iter().all(|group| group.methods.len() == 5));
        assert!(servers(true).is_empty() && super::groups(true).len() == 1);
    }
}
