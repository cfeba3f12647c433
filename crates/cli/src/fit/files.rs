//! Where fitted clusters go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use paceline_plan::{Cluster, ClusterSet};

use crate::failure::Failure;
use crate::json_file::PlainFile;

/// Stands for the network in the name of a file.
const PLACE: &str = "{network}";

/// One file for all networks, or one for each.
pub enum Target {
    /// All in one. It is open.
    One(PlainFile, PathBuf),
    /// A path with [`PLACE`] in it.
    Each(String),
}

impl Target {
    /// What `--output` means.
    ///
    /// # Errors
    /// The file cannot be written to.
    pub fn of(output: &Path) -> Result<Target, Failure> {
        let text = output.to_string_lossy();
        if text.contains(PLACE) {
            return Ok(Target::Each(text.into_owned()));
        }
        if output.is_dir() {
            return Ok(Target::Each(output.join(format!("{PLACE}.toml")).to_string_lossy().into_owned()));
        }
        Ok(Target::One(PlainFile::create(output)?, output.to_owned()))
    }

    /// Writes the clusters, each called like its file, and says which file has which network.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(self, clusters: Vec<(String, Cluster)>) -> Result<Vec<(String, PathBuf)>, Failure> {
        match self {
            Target::One(file, path) => {
                let networks: Vec<String> = clusters.iter().map(|(network, _)| network.clone()).collect();
                let stem = stem(&path);
                // One alone keeps its name, too: constants of one network are no other's.
                let named = clusters.into_iter().map(|(network, mut cluster)| {
                    cluster.name = if networks.len() == 1 { stem.clone() } else { format!("{stem}, {network}") };
                    (network, cluster)
                });
                let set = ClusterSet { networks: named.collect::<BTreeMap<_, _>>() };
                file.write(&set.to_toml())?;
                Ok(networks.into_iter().map(|network| (network, path.clone())).collect())
            }
            Target::Each(pattern) => {
                let each = clusters.into_iter().map(|(network, mut cluster)| {
                    let path = PathBuf::from(pattern.replace(PLACE, &file_name(&network)));
                    cluster.name = stem(&path);
                    PlainFile::create(&path)?.write(&cluster.to_toml())?;
                    Ok((network, path))
                });
                each.collect()
            }
        }
    }
}

/// The name of a file without its ending.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "cluster".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// A network's name as part of the name of a file.
fn file_name(network: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    network.chars().map(letter).collect()
}
