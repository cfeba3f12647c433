//! What the constants of a cluster were measured for, and what leaves it.

use serde::{Deserialize, Serialize};

use super::{Cluster, Constant, InterferenceConstants};
use crate::scale::is_gpu;

/// The device of a profile that PyTorch has recorded on a processor, whose name it does not know.
const ANY_PROCESSOR: &str = "cpu";

/// Between what constants were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRange {
    /// The fewest workers and the most.
    pub workers: [usize; 2],
    /// Bytes of the smallest operation and of the largest.
    pub bytes: [u64; 2],
    /// The fewest hosts with workers and the most. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<[usize; 2]>,
    /// The fewest workers of a host and the most, of the fullest host of each world. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_per_host: Option<[usize; 2]>,
    /// The fewest shards of a parameter server and the most; twice 0 where none was there. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<[usize; 2]>,
}

impl Cluster {
    /// Where so many workers, or operations of which the largest has so many bytes, leave what the constants were measured for: in
    /// words, empty where they do not, or where nobody has said. (Smaller operations beside those that were measured take no longer
    /// than these.)
    pub fn left_by(&self, workers: usize, bytes: u64) -> Vec<String> {
        let Some(range) = self.measured else { return Vec::new() };
        let mut found = range.left_by_workers(workers, workers.min(self.workers_per_host), self.hosts_of(workers));
        let [smallest, largest] = range.bytes;
        if !(smallest..=largest).contains(&bytes) {
            let at_most = if bytes < smallest { "at most " } else { "" };
            found.push(format!(
                "operations of {at_most}{bytes} bytes, and constants were measured with {smallest} to {largest}"
            ));
        }
        found
    }

    /// The same for so many shards of a parameter server; 0: without. That other numbers of workers have others goes
    /// without saying.
    pub fn left_by_shards(&self, workers: usize, shards: usize) -> Option<String> {
        let measured = self.measured.filter(|range| !is_left(workers, range.workers))?;
        let range = measured.shards.filter(|&range| shards > 0 && is_left(shards, range))?;
        let none = "a parameter server, and constants were measured without one";
        Some(if range == MeasuredRange::NO_SHARDS { none.to_owned() } else { leaving(shards, "shard*", range) })
    }

    /// That nothing of it was measured, as far as it says, and where its constants come from instead, in words. None: something was.
    /// (An emulated network is what it says it is, so whoever makes one need not say this.)
    pub fn measurement_doubt(&self) -> Option<String> {
        let Cluster { name, source, measured, .. } = self;
        let doubt = || format!("nothing of {name} was measured, as far as it says; its constants come from: {source}");
        measured.is_none().then(doubt)
    }

    /// The same for a model and a device: what workers compute more together is known by model, what computation and communication cost
    /// each other, and what copies take, of a device. It concerns several workers only.
    pub fn left_by_computation(&self, model: &str, device: &str) -> Vec<String> {
        let mut found = Vec::new();
        let known = &self.computation.overhead_s;
        if !known.is_empty() && !known.contains_key("*") && !known.contains_key(model) {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            found.push(format!("{model}, and constants were measured with {}", names.join(", ")));
        }
        let is_other = |measured: &&str| !measured.eq_ignore_ascii_case(device) && device != ANY_PROCESSOR;
        if let Some(measured) = self.device.as_deref().filter(is_other) {
            let loses = if self.is_of_processors_for(device) { LOSES } else { "" };
            found.push(format!("{model} is computed by {device}, and constants were measured with {measured}{loses}"));
        }
        found
    }

    /// The cluster as it is for what this device computes. Processors compute less beside communication, which they do themselves, and
    /// differ from iteration to iteration; of a GPU, whose work they only begin, that says nothing. Where it was measured with processors
    /// and a GPU computes, none of it is counted, and up to what was measured stays in the intervals.
    pub fn for_device(mut self, device: &str) -> Cluster {
        if self.is_of_processors_for(device) {
            let unknown = |constant: Constant| Constant::between(0.0, 0.0, constant.high);
            let InterferenceConstants { computation, communication } = self.interference;
            let [computation, communication] = [computation, communication].map(unknown);
            self.set_interference(InterferenceConstants { computation, communication });
            self.computation.spread = unknown(self.computation.spread);
        }
        self
    }

    /// Were its constants measured with processors, and does a GPU compute?
    fn is_of_processors_for(&self, device: &str) -> bool {
        is_gpu(device) && self.device.as_deref().is_some_and(|measured| !is_gpu(measured))
    }
}

/// What is not counted then.
const LOSES: &str = ": what processors lose beside communication is not counted";

impl MeasuredRange {
    /// What [`MeasuredRange::shards`] is where no parameter server was measured.
    pub const NO_SHARDS: [usize; 2] = [0, 0];

    /// Where so many workers leave it, so many of them on the fullest of so many hosts.
    fn left_by_workers(&self, workers: usize, on_fullest: usize, on_hosts: usize) -> Vec<String> {
        let mut found = Vec::new();
        let told = is_left(workers, self.workers);
        if told {
            found.push(leaving(workers, "worker*", self.workers));
        }
        // Workers that do not fill one host are few, which the range of workers is about.
        let not_full = on_hosts == 1 && self.workers_per_host.is_some_and(|[least, _]| on_fullest < least);
        if let Some(range) = self.workers_per_host.filter(|&range| is_left(on_fullest, range) && !not_full) {
            found.push(leaving(on_fullest, "worker* on a host", range));
        }
        // On hosts as full as those, more workers are on more hosts, and fewer on fewer.
        let as_full = self.workers_per_host.is_some_and(|[_, most]| on_fullest == most);
        if let Some(range) = self.hosts.filter(|&range| is_left(on_hosts, range) && !(told && as_full)) {
            found.push(leaving(on_hosts, "host*", range));
        }
        found
    }

    /// What it says of numbers, by their names in a file.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, [usize; 2])> {
        let MeasuredRange { workers, bytes: _, hosts, workers_per_host, shards } = *self;
        let others = [("hosts", hosts), ("workers_per_host", workers_per_host), ("shards", shards)];
        let given = others.into_iter().filter_map(|(name, range)| Some((name, range?)));
        [("workers", workers)].into_iter().chain(given)
    }

    /// With the size of the cluster whose constants these are, where nobody has said on which hosts they were measured.
    pub(super) fn of_size(self, cluster: &Cluster) -> MeasuredRange {
        let fewest = self.workers[0];
        let hosts = [cluster.hosts_of(fewest).min(cluster.hosts), cluster.hosts];
        let workers_per_host = [fewest.min(cluster.workers_per_host), cluster.workers_per_host];
        MeasuredRange {
            hosts: self.hosts.or(Some(hosts)),
            workers_per_host: self.workers_per_host.or(Some(workers_per_host)),
            ..self
        }
    }
}

fn is_left(count: usize, [least, most]: [usize; 2]) -> bool {
    !(least..=most).contains(&count)
}

/// So many of something leave a range; `*` is the s of the plural.
fn leaving(count: usize, what: &str, range: [usize; 2]) -> String {
    let what = what.replacen('*', if count == 1 { "" } else { "s" }, 1);
    format!("{count} {what}, and constants were measured with {}", in_words(range))
}

/// `4 to 32`, or `4`.
fn in_words([least, most]: [usize; 2]) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four workers of which probes know what their processors lose.
    fn probed(device: Option<&str>) -> Cluster {
        let mut cluster = Cluster::named("10gbe:4x1").expect("it is built in");
        let lost = Constant::between(0.3, 0.2, 0.5);
        cluster.set_interference(InterferenceConstants { computation: lost, communication: lost });
        cluster.computation.spread = lost;
        Cluster { device: device.map(str::to_owned), ..cluster }
    }

    #[test]
    fn what_processors_lose_is_not_counted_for_a_gpu() {
        let of_processors = probed(Some("AMD EPYC"));
        let doubts = of_processors.left_by_computation("resnet50", "rtx2080ti");
        assert!(doubts.iter().any(|doubt| doubt.ends_with(LOSES)), "{doubts:?}");
        let of_gpu = of_processors.clone().for_device("NVIDIA GeForce RTX 2080 Ti");
        let unknown = Constant::between(0.0, 0.0, 0.5);
        let InterferenceConstants { computation, communication } = of_gpu.interference;
        assert_eq!([computation, communication, of_gpu.computation.spread], [unknown; 3]);
        // Of processors it is what was measured, and of GPUs what was found with others.
        assert_eq!(of_processors.clone().for_device("Intel Xeon"), of_processors);
        for measured in [Some("rtx2080ti"), None] {
            let cluster = probed(measured);
            assert_eq!(cluster.clone().for_device("v100"), cluster);
            assert!(!cluster.left_by_computation("resnet50", "v100").iter().any(|doubt| doubt.ends_with(LOSES)));
        }
    }
}
