//! `paceline program simulate`: what an algorithm of the library takes on a cluster.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use paceline_collective::Topology;
use paceline_plan::{Cluster, Shape};
use serde::Serialize;

use super::{AlgorithmArguments, BlockArguments, Predicted, has_room};
use crate::clusters::load_cluster;
use crate::failure::{Failure, unless_closed};
use crate::json_file::JsonFile;

#[derive(Args)]
pub struct SimulateArguments {
    #[command(flatten)]
    algorithm: AlgorithmArguments,

    /// Where, a rank on each worker and hosts filled one after the other: a file (docs/clusters.md; of several networks FILE:NETWORK), or a
    /// built-in one such as 25gbe:1024x1
    #[arg(long, value_name = "CLUSTER")]
    cluster: String,

    #[command(flatten)]
    block: BlockArguments,

    /// Write the answer to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Report {
    algorithm: String,
    collective: String,
    ranks: usize,
    predicted: Predicted,
    /// Making the program included.
    elapsed_us: f64,
}

impl SimulateArguments {
    /// Predicts, and says it.
    ///
    /// # Errors
    /// No such algorithm or cluster, or they do not fit together; a file cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let (began, AlgorithmArguments { collective, algorithm, ranks, .. }) = (Instant::now(), &self.algorithm);
        let cluster = load_cluster(&self.cluster)?;
        has_room(&cluster, &self.cluster, *ranks, &format!("{collective} {algorithm}"))?;
        let program = self.algorithm.program(&topology_of(&cluster, *ranks))?;
        let predicted = Predicted::of(&program, &cluster, &self.cluster, &self.block)?;
        let elapsed_us = 1e6 * began.elapsed().as_secs_f64();
        let report = Report {
            algorithm: algorithm.clone(),
            collective: collective.to_string(),
            ranks: *ranks,
            predicted,
            elapsed_us,
        };
        if let Some(path) = &self.json {
            JsonFile::create(path)?.write(&report)?;
        }
        let (words, seconds) = (report.predicted.in_words(), 1e-6 * elapsed_us);
        unless_closed(writeln!(
            io::stdout(),
            "{collective} {algorithm}, {ranks} ranks; predicted in {seconds:.2} s{words}"
        ))
    }
}

/// So many ranks on a cluster's hosts, in the torus or BCube that joins these.
fn topology_of(cluster: &Cluster, ranks: usize) -> Topology {
    let hosts = Topology::filled(ranks, cluster.workers_per_host);
    match cluster.topology.parse() {
        Ok(Shape::Torus { x, y }) => hosts.on_torus(x, y),
        Ok(Shape::BCube { ports, levels }) => hosts.on_bcube(ports, levels),
        _ => hosts,
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::NetworkModel;

    use super::*;

    #[test]
    fn ranks_fill_hosts_in_the_shape_of_the_cluster() {
        let on = |shape: &str, hosts, per_host| Cluster {
            topology: shape.to_owned(),
            ..Cluster::of_network(NetworkModel::TEN_GBE, hosts, per_host)
        };
        assert_eq!(topology_of(&on("torus:4x2", 8, 1), 8).torus(), Some([4, 2]));
        assert_eq!(topology_of(&on("bcube:2:3", 8, 1), 8).bcube(), Some((2, 3)));
        let shared = topology_of(&on("tree:2:2", 4, 2), 6);
        assert_eq!((shared.hosts(), shared.members(1), shared.torus()), (3, &[2, 3][..], None));
    }
}
