//! The cluster that other numbers of workers, or workers with another batch, would find.

use paceline_plan::{Cluster, Profile};

use super::super::{Change, apply_changes};

/// What lies around a question. Where workers share what no link shows, such as cores, the constants of a cluster hold for one number
/// of workers with one batch: whoever varies these asks here.
pub trait Surroundings {
    /// The cluster as it is before anybody computes on it.
    fn bare(&self) -> &Cluster;

    /// The bare cluster, or what a change makes of it, as so many workers find it that compute this.
    fn crowded(&self, cluster: Cluster, workers: usize, profile: &Profile) -> Cluster;

    /// The bare cluster with room for so many workers. None: it cannot have it.
    fn room(&self, workers: usize) -> Option<Room>;
}

/// Room for workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// Where it is; nobody computes there yet.
    pub cluster: Cluster,
    /// The place in words that follow the number of workers. Empty: where the cluster says.
    pub place: String,
}

/// Workers share nothing but links, and more of them take hosts like those that there are.
impl Surroundings for Cluster {
    fn bare(&self) -> &Cluster {
        self
    }

    fn crowded(&self, cluster: Cluster, _: usize, _: &Profile) -> Cluster {
        cluster
    }

    fn room(&self, workers: usize) -> Option<Room> {
        let (cluster, ..) = apply_changes(self, workers, None, &[Change::Workers(workers)]).ok()?;
        Some(Room { cluster, place: String::new() })
    }
}
