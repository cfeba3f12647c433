//! What disturbs a simulated cluster, as the command line says it.

use clap::Args;
use paceline_tune::environment::{Bursts, Change, Disturbances};

/// Iterations that a burst takes, unless it is said.
const BURST_STEPS: u64 = 20;

/// No factor is larger, and no seconds are more.
const FACTOR_MAX: f64 = 1000.0;
const LATE_S_MAX: f64 = 60.0;

/// Drift, congestion, noise and stragglers.
#[derive(Args)]
pub struct DisturbanceArguments {
    /// The network becomes slower at an iteration: ITERATION:FACTOR, such as 100:5; 150:1 takes it back. May stand several times
    #[arg(long, value_name = "ITERATION:FACTOR", value_parser = change)]
    pub drift: Vec<Change>,

    /// Others use the network for a share of the time, in which everything takes FACTOR times as long, for STEPS iterations (20) at
    /// least, such as 0.2:2 or 0.2:2:50. All ranks agree how much others are in the way, so that choices may depend on it
    #[arg(long, value_name = "SHARE:FACTOR[:STEPS]", value_parser = congestion)]
    pub congestion: Option<Bursts>,

    /// How calls of the same kind differ: the standard deviation of the logarithm of their times [default: 0.03]
    #[arg(long, value_name = "DEVIATION", value_parser = noise)]
    pub noise: Option<f64>,

    /// For a share of the calls a rank is late by so many seconds, in the mean. The others wait: iterations take longer, whatever is
    /// chosen, and calls do not, as the last one's own time is the call's [default: 0.01:0.005]
    #[arg(long, value_name = "SHARE:SECONDS", value_parser = stragglers)]
    pub stragglers: Option<Stragglers>,
}

/// Ranks that are late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// The share of calls for which one is.
    share: f64,
    /// In the mean.
    seconds: f64,
}

impl DisturbanceArguments {
    /// Those of a cluster that is drawn from a seed: as on a quiet one, but for what was said.
    pub fn disturbances(&self, seed: u64) -> Disturbances {
        let usual = Disturbances::usual();
        let mut changes = self.drift.clone();
        changes.sort_by_key(|change| change.step);
        let Stragglers { share, seconds } =
            self.stragglers.unwrap_or(Stragglers { share: usual.straggler_share, seconds: usual.straggler_s });
        Disturbances {
            changes,
            noise: self.noise.unwrap_or(usual.noise),
            bursts: self.congestion.map(|bursts| Bursts { seed, ..bursts }),
            is_agreed: self.congestion.is_some(),
            straggler_share: share,
            straggler_s: seconds,
            ..usual
        }
    }
}

fn change(text: &str) -> Result<Change, String> {
    let wrong = || "give an iteration and a factor from 0.01 to 1000, such as 100:5".to_owned();
    let (step, factor) = text.split_once(':').ok_or_else(wrong)?;
    let factor = number(factor, |factor| (0.01..=FACTOR_MAX).contains(&factor)).ok_or_else(wrong)?;
    Ok(Change { step: step.parse().map_err(|_| wrong())?, factor })
}

fn congestion(text: &str) -> Result<Bursts, String> {
    let wrong = || {
        "give a share between 0 and 1, a factor above 1 and up to 1000, and whole iterations from 1 on, such as \
         0.2:2 or 0.2:2:50"
            .to_owned()
    };
    let mut parts = text.splitn(3, ':');
    let (share, factor, steps) = (parts.next(), parts.next(), parts.next());
    let share = share.and_then(|text| number(text, |share| share > 0.0 && share < 1.0)).ok_or_else(wrong)?;
    let factor = factor.and_then(|text| number(text, |factor| factor > 1.0 && factor <= FACTOR_MAX));
    let factor = factor.ok_or_else(wrong)?;
    let steps = steps.map_or(Ok(BURST_STEPS), |text| text.parse().map_err(|_| wrong()))?;
    if steps == 0 {
        return Err(wrong());
    }
    // The cluster's seed takes the place of this one.
    Ok(Bursts { steps, share, factor, seed: 0 })
}

fn noise(text: &str) -> Result<f64, String> {
    number(text, |deviation| (0.0..=1.0).contains(&deviation))
        .ok_or_else(|| "give a standard deviation from 0 to 1, such as 0.1".to_owned())
}

fn stragglers(text: &str) -> Result<Stragglers, String> {
    let wrong = || "give a share of the calls from 0 to 1 and seconds from 0 to 60, such as 0.05:0.01".to_owned();
    let (share, seconds) = text.split_once(':').ok_or_else(wrong)?;
    let share = number(share, |share| (0.0..=1.0).contains(&share)).ok_or_else(wrong)?;
    let seconds = number(seconds, |seconds| (0.0..=LATE_S_MAX).contains(&seconds)).ok_or_else(wrong)?;
    Ok(Stragglers { share, seconds })
}

/// A number that may be; `NaN` and `inf` are in no range.
fn number(text: &str, may_be: impl Fn(f64) -> bool) -> Option<f64> {
    text.parse().ok().filter(|number| may_be(*number))
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_tune::Congestion;
    use paceline_tune::environment::{Misfit, OwnModel, SimulatedCluster, Workload};

    use super::*;

    const NOTHING: DisturbanceArguments =
        DisturbanceArguments { drift: Vec::new(), congestion: None, noise: None, stragglers: None };

    #[test]
    fn a_drift_is_an_iteration_and_a_factor() {
        assert_eq!(change("100:5"), Ok(Change { step: 100, factor: 5.0 }));
        assert_eq!(change("0:0.5"), Ok(Change { step: 0, factor: 0.5 }));
        for text in ["", "100", "100:", ":5", "-1:5", "100:0", "100:NaN", "100:1e9", "a:b"] {
            assert!(change(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_disturbance() {
        assert_eq!(congestion("0.2:2"), Ok(Bursts { steps: BURST_STEPS, share: 0.2, factor: 2.0, seed: 0 }));
        assert_eq!(congestion("0.25:3.5:50"), Ok(Bursts { steps: 50, share: 0.25, factor: 3.5, seed: 0 }));
        for text in ["", "0.2", "0:2", "1:2", "-0.1:2", "0.2:1", "0.2:NaN", "0.2:2:0", "0.2:2:1.5", "0.2:2:3:4"] {
            assert!(congestion(text).is_err(), "{text}");
        }
        assert_eq!((noise("0"), noise("0.1")), (Ok(0.0), Ok(0.1)));
        for text in ["", "-0.1", "1.1", "NaN", "ten"] {
            assert!(noise(text).is_err(), "{text}");
        }
        assert_eq!(stragglers("0.05:0.01"), Ok(Stragglers { share: 0.05, seconds: 0.01 }));
        for text in ["", "0.05", "1.5:1", "0.1:-1", "0.1:1e3", "NaN:1", "0.1:NaN"] {
            assert!(stragglers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cluster_is_disturbed_as_was_said_and_otherwise_as_usual() {
        assert_eq!(NOTHING.disturbances(1), Disturbances::usual());
        let said = DisturbanceArguments {
            drift: vec![Change { step: 9, factor: 1.0 }, Change { step: 3, factor: 5.0 }],
            noise: Some(0.2),
            stragglers: Some(Stragglers { share: 0.5, seconds: 1.0 }),
            ..NOTHING
        };
        let disturbances = said.disturbances(1);
        assert_eq!(disturbances.changes[0].step, 3, "by rising steps, in whatever order they stand");
        assert_eq!((disturbances.noise, disturbances.straggler_share, disturbances.straggler_s), (0.2, 0.5, 1.0));
        assert!(!disturbances.is_agreed, "drift alone is for the tuner to notice");
    }

    /// Congestion is part of what a tuner is told of a call, while it lasts, and other seeds have it at other times.
    #[test]
    fn congestion_is_agreed_and_part_of_the_state() {
        let said = DisturbanceArguments { congestion: congestion("0.3:2.5:10").ok(), ..NOTHING };
        let machine = Cluster::named("study-10gbe").expect("it is built in");
        let call = Workload::data_parallel(8, 8).calls[0];
        let levels = |seed: u64| -> Vec<Congestion> {
            let model = Box::new(OwnModel::of(&machine));
            let cluster = SimulatedCluster::new(model, Misfit::NONE, said.disturbances(seed), seed);
            (0..1000).map(|step| cluster.state(&call, step).congestion).collect()
        };
        let heavy = levels(1).iter().filter(|level| **level == Congestion::Heavy).count();
        assert!((150..450).contains(&heavy), "{heavy} of 1000 steps");
        assert!(levels(1).iter().all(|level| [Congestion::None, Congestion::Heavy].contains(level)));
        assert_ne!(levels(1), levels(2));
    }
}
