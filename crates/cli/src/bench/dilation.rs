//! By how much a cluster in a box is slowed if nobody says it: so that this machine's processors keep up with it. Pure.

use paceline_plan::NetworkModel;

use super::placement::workers_on_cores;
use super::statistics::traffic_factor;

/// What a core sends, receives and adds in a second, about, where nobody says it: measured on a Xeon whose cores copy 6 GB/s
/// each. Emulated links pass references to memory that is there.
pub const CORE_BYTES_PER_S: f64 = 1.2e9;
/// Of all processors, so much may be busy with that, so that the replay keeps up: rounded down from 0.8. That was measured at
/// 32 workers on 2 cores: half of the dilation that a share of 0.4 asks for gives the same throughput within 0.5 %, with no
/// run late.
const BUSY_SHARE: f64 = 0.75;
/// So many processes on a core cost each other nothing else. Each more makes what they do take that share longer, as caches hold
/// nothing for whoever is woken: 32 workers on 2 cores were busy to 90 to 98 % while they waited, dilated by what bytes alone say.
const CROWD: f64 = 8.0;
const CROWD_SHARE: f64 = 0.08;
/// Of the time that gradients travel, so much is behind computation, about.
pub const HIDDEN_SHARE: f64 = 0.5;

/// What a cluster in a box does in an iteration, as if nothing were slowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Workers, where they are most.
    workers: usize,
    /// Bytes of the gradients of each of them.
    bytes: f64,
    /// Seconds that it takes, about.
    iteration_s: f64,
}

impl Load {
    /// Of workers that compute for so long, and send so many bytes of gradients.
    pub fn of(workers: usize, bytes: f64, compute_s: f64, network: &NetworkModel) -> Load {
        let travel_s = traffic_factor(workers) * bytes * network.across.beta_s_per_byte;
        Load { workers, bytes, iteration_s: compute_s + (1.0 - HIDDEN_SHARE) * travel_s }
    }

    /// As [`Processors::needed_dilation`], on these cores.
    pub fn dilation(&self, cores: usize) -> f64 {
        Processors::usual(cores).needed_dilation(self.workers, self.bytes, self.iteration_s)
    }

    /// Why it is slowed by that; None if it is not.
    pub fn reason(&self, cores: usize) -> Option<String> {
        let factor = self.dilation(cores);
        (factor > 1.0).then(|| {
            format!(
                "dilated {factor}×, as {} send, receive and add {:.0} MB each in an iteration of about {:.2} s, which \
                 takes about {:.2} s of all cores; --dilate K says otherwise",
                workers_on_cores(self.workers, cores),
                self.bytes / 1e6,
                self.iteration_s,
                Processors::usual(cores).busy_s(self.workers, self.bytes)
            )
        })
    }
}

/// What carries the bytes of an emulated network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processors {
    /// How many.
    pub cores: usize,
    /// What each sends, receives and adds in a second, about.
    pub core_bytes_per_s: f64,
}

impl Processors {
    fn usual(cores: usize) -> Processors {
        Processors { cores, core_bytes_per_s: CORE_BYTES_PER_S }
    }

    /// Seconds for which all of them send, receive and add the gradients of all workers.
    fn busy_s(self, workers: usize, bytes: f64) -> f64 {
        let cores = self.cores.max(1) as f64;
        let crowd = 1.0 + CROWD_SHARE * (workers as f64 / cores - CROWD).max(0.0);
        crowd * workers as f64 * 2.0 * bytes / (cores * self.core_bytes_per_s)
    }

    /// The factor that leaves them the time that they need, if each of the workers sends gradients of so many bytes and an iteration
    /// takes so long undilated: a whole number, 1 where they keep up as it is.
    pub fn needed_dilation(self, workers: usize, bytes: f64, iteration_s: f64) -> f64 {
        let factor = (self.busy_s(workers, bytes) / (BUSY_SHARE * iteration_s)).ceil();
        if factor.is_finite() { factor.max(1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(workers: usize, compute_s: f64) -> Load {
        Load::of(workers, 102e6, compute_s, &NetworkModel::TEN_GBE)
    }

    #[test]
    fn more_workers_fewer_cores_and_less_computation_need_more_dilation() {
        let usual = load(8, 0.253);
        // Alone, with servers beside it.
        assert_eq!((load(1, 0.253).dilation(2), load(1, 0.0253).dilation(2)), (1.0, 5.0));
        assert_eq!([1, 2, 4, 16].map(|cores| usual.dilation(cores)), [6.0, 3.0, 2.0, 1.0]);
        assert_eq!((load(2, 0.253).dilation(2), load(32, 0.253).dilation(2)), (1.0, 18.0));
        assert!(load(8, 0.03).dilation(2) > 8.0);
    }

    #[test]
    fn what_moves_nothing_or_cannot_be_told_is_not_slowed() {
        let mut free = NetworkModel::TEN_GBE;
        free.across.beta_s_per_byte = 0.0;
        assert_eq!(Load::of(8, 102e6, 0.0, &free).dilation(2), 1.0);
        assert_eq!(Load::of(8, 0.0, 0.0, &free).dilation(2), 1.0);
    }

    #[test]
    fn the_reason_has_the_numbers() {
        let why = load(8, 0.253).reason(2).expect("it is slowed");
        for words in ["dilated 3×", "8 workers on 2 cores", "102 MB", "0.33 s", "0.68 s", "--dilate"] {
            assert!(why.contains(words), "no `{words}` in {why}");
        }
        assert_eq!(load(8, 0.253).reason(64), None);
    }
}
