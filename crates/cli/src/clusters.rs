//! Clusters by name or from a file.

use std::fs;
use std::io;
use std::path::Path;

use paceline_plan::{Cluster, ClusterError, ClusterSet};
use paceline_predict::PredictError;
use paceline_predict::search::SearchError;

use crate::failure::Failure;

/// A cluster file, or a built-in cluster. A file of a built-in cluster's name is reached by `./NAME`. Of a file of several networks
/// one is named behind it: `FILE:NETWORK`. As behind a name, `:HOSTSxWORKERS` may follow.
///
/// # Errors
/// Wrong usage: there is no such cluster, the file makes no sense, or it does not say which network is meant.
pub fn load_cluster(name: &str) -> Result<Cluster, Failure> {
    match Cluster::named(name) {
        Ok(cluster) => Ok(cluster),
        Err(unknown) => {
            let (file, choice) = file_and_choice(name);
            chosen(&read(file, &unknown)?, file, choice)
        }
    }
}

/// The same of several networks, all of which are meant where none is named.
///
/// # Errors
/// As [`load_cluster`].
pub fn load_clusters(name: &str) -> Result<ClusterSet, Failure> {
    let whatever_the_network = |cluster| ClusterSet { networks: [("*".to_owned(), cluster)].into() };
    match Cluster::named(name) {
        Ok(cluster) => Ok(whatever_the_network(cluster)),
        Err(unknown) => {
            let (file, choice) = file_and_choice(name);
            let set = read(file, &unknown)?;
            if choice.is_empty() { Ok(set) } else { chosen(&set, file, choice).map(whatever_the_network) }
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

/// A colon may stand in the name of a file, too: of the parts that end before one, and the whole, the longest that there is as a file
/// is its name, and what follows it says which cluster.
fn file_and_choice(name: &str) -> (&str, &str) {
    let there = |file: &str| Path::new(file).exists() && !Path::new(file).is_dir();
    if there(name) {
        return (name, "");
    }
    let end = name.rmatch_indices(':').map(|(end, _)| end).find(|&end| there(&name[..end]));
    end.map_or((name, ""), |end| (&name[..end], &name[end + 1..]))
}

fn chosen(set: &ClusterSet, file: &str, choice: &str) -> Result<Cluster, Failure> {
    set.choose(choice).map_err(|error| Failure::usage(format!("{file}: {error}")))
}

fn read(file: &str, unknown: &ClusterError) -> Result<ClusterSet, Failure> {
    let text = fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(unknown),
        _ => Failure::usage(format!("the cluster {file} cannot be read")).cause(error),
    })?;
    ClusterSet::from_toml(&text).map_err(|error| Failure::usage(format!("{file}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes when the test ends.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("paceline-clusters-{}-{name}", std::process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            Folder(folder)
        }

        fn write(&self, name: &str, networks: &[&str]) -> String {
            let cluster = |name: &str| Cluster::named(name).expect("it is built in");
            let text = match networks {
                [only] => cluster(only).to_toml(),
                several => {
                    let networks = several.iter().map(|name| ((*name).to_owned(), cluster(name))).collect();
                    ClusterSet { networks }.to_toml()
                }
            };
            let path = self.0.join(name);
            fs::write(&path, text).expect("our own file");
            path.display().to_string()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refused(name: &str) -> String {
        load_cluster(name).expect_err("a refusal").in_one_line()
    }

    /// As `paceline fit` writes them.
    #[test]
    fn one_of_the_networks_of_a_file_is_named_behind_it() {
        let folder = Folder::new("several");
        let both = folder.write("both.toml", &["study-10gbe", "study-100gbe"]);
        let slow = Cluster::named("study-10gbe").expect("it is built in");
        assert_eq!(load_cluster(&format!("{both}:Study-10GbE")).ok(), Some(slow.clone()));
        let sized = load_cluster(&format!("{both}:study-10gbe:16x4")).expect("a cluster");
        assert_eq!((sized.hosts, &*sized.name), (16, "study-10gbe:16x4"));
        let which = refused(&both);
        assert!(which.starts_with(&both) && which.contains("it has the networks study-100gbe, study-10gbe"), "{which}");
        let unknown = refused(&format!("{both}:25gbe"));
        assert!(unknown.contains("it has no network `25gbe`, but study-100gbe, study-10gbe"), "{unknown}");
        // All of them, or one whatever the network.
        let all = load_clusters(&both).expect("clusters");
        assert_eq!((all.networks.len(), all.of("study-10gbe")), (2, Some(&slow)));
        let one = load_clusters(&format!("{both}:study-10gbe")).expect("a cluster");
        assert_eq!(one.of("25gbe"), Some(&slow));
    }

    #[test]
    fn a_file_of_one_cluster_needs_no_name_and_may_have_a_colon_in_its_own() {
        let folder = Folder::new("single");
        let (plain, odd) = (folder.write("a", &["study-10gbe"]), folder.write("a:8x2", &["study-100gbe"]));
        assert_eq!(load_cluster(&plain).expect("a cluster").name, "study-10gbe");
        // The whole is a file, and the longest that there is.
        assert_eq!(load_cluster(&odd).expect("a cluster").name, "study-100gbe");
        assert_eq!(load_cluster(&format!("{odd}:2x4")).expect("a cluster").name, "study-100gbe:2x4");
        assert_eq!(load_cluster(&format!("{plain}:4x2")).expect("a cluster").workers_per_host, 2);
        assert!(refused(&format!("{plain}:10GbE")).contains("it is one cluster, whatever the network"));
        let nowhere = refused(&format!("{}/nowhere.toml:10GbE", folder.0.display()));
        assert!(nowhere.contains("is no cluster that is built in"), "{nowhere}");
    }
}
