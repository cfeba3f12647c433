//! Clusters by name or from a file.

use std::fs;
use std::io;
use std::path::Path;

use paceline_plan::{Cluster, ClusterSet};
use paceline_predict::PredictError;
use paceline_predict::search::SearchError;

use crate::failure::Failure;

/// A cluster file, or a built-in cluster. A file of a built-in cluster's name is reached by `./NAME`.
///
/// # Errors
/// Wrong usage: there is no such cluster, or the file makes no sense.
pub fn load_cluster(name: &str) -> Result<Cluster, Failure> {
    match Cluster::named(name) {
        Ok(cluster) => Ok(cluster),
        Err(unknown) => {
            let text = read(name, &unknown)?;
            Cluster::from_toml(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
        }
    }
}

/// The same of several networks, which may stand in one file.
///
/// # Errors
/// As [`load_cluster`].
pub fn load_clusters(name: &str) -> Result<ClusterSet, Failure> {
    match Cluster::named(name) {
        Ok(cluster) => Ok(ClusterSet { networks: [("*".to_owned(), cluster)].into() }),
        Err(unknown) => {
            let text = read(name, &unknown)?;
            ClusterSet::from_toml(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
        }
    }
}

/// Why there is no prediction on a cluster, with the cluster's file or name in front if that is to blame.
pub fn blamed(cluster: &str, error: &SearchError) -> String {
    use PredictError::{Cluster, Places, Topology};
    match error {
        SearchError::Predict(Cluster(_) | Topology(_) | Places { .. }) => format!("{cluster}: {error}"),
        _ => error.to_string(),
    }
}

fn read(name: &str, unknown: &paceline_plan::ClusterError) -> Result<String, Failure> {
    fs::read_to_string(Path::new(name)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(unknown),
        _ => Failure::usage(format!("the cluster {name} cannot be read")).cause(error),
    })
}
