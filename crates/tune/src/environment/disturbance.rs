//! What keeps calls from taking what they take.

use crate::random::Random;

/// From this step on, everything takes `factor` times as long as on the first day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The first step.
    pub step: u64,
    /// How many times as long.
    pub factor: f64,
}

/// Others use the network for a while, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Steps that a burst takes, at least.
    pub steps: u64,
    /// The share of the time in which there are some.
    pub share: f64,
    /// How many times as long everything takes then.
    pub factor: f64,
    /// When they come follows from it.
    pub seed: u64,
}

/// Noise, drift, congestion and stragglers. The default is none of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disturbances {
    /// The standard deviation of the logarithm of a call's time.
    pub noise: f64,
    /// How alike the noise of calls in a row is: the correlation of a call's with that of the one before, of the same kind.
    pub persistence: f64,
    /// Does a network that is so many times as slow have so many times as much noise?
    pub noise_grows: bool,
    /// The share of calls that take `slow_factor` times as long, for no reason that anybody knows: a second mode.
    pub slow_share: f64,
    /// How many times as long.
    pub slow_factor: f64,
    /// The share of calls that stall for `stall_s`, whatever they take: until a lost packet is sent again.
    pub stall_share: f64,
    /// How many seconds.
    pub stall_s: f64,
    /// Drift and congestion: changes, by rising steps.
    pub changes: Vec<Change>,
    /// Congestion that comes and goes.
    pub bursts: Option<Bursts>,
    /// Do all ranks agree how congested the network is, so that it is part of the state? Otherwise tuners must notice.
    pub is_agreed: bool,
    /// The share of calls for which a rank is late.
    pub straggler_share: f64,
    /// By how many seconds, in the mean.
    pub straggler_s: f64,
}

impl Disturbances {
    /// As on a quiet cluster: 3 % noise, one call in fifty half as long again, one in a hundred with a rank 5 ms late.
    pub fn usual() -> Disturbances {
        Disturbances {
            noise: 0.03,
            slow_share: 0.02,
            slow_factor: 1.5,
            straggler_share: 0.01,
            straggler_s: 5e-3,
            ..Disturbances::default()
        }
    }

    /// How many times as long as on the first day everything takes at a step.
    pub fn factor(&self, step: u64) -> f64 {
        let changed = self.changes.iter().rev().find(|change| change.step <= step).map_or(1.0, |change| change.factor);
        changed * self.bursts.map_or(1.0, |bursts| bursts.factor_at(step))
    }

    /// The factor of a call at a step. `lasting`: what is left of the noise of its kind, in deviations, from call to call.
    pub(super) fn noise_at(&self, step: u64, lasting: &mut f64, random: &mut Random) -> f64 {
        let slow = random.unit() <= self.slow_share;
        let fresh = (1.0 - self.persistence.powi(2)).max(0.0).sqrt();
        *lasting = self.persistence * *lasting + fresh * random.normal();
        let grown = if self.noise_grows { self.factor(step).max(1.0) } else { 1.0 };
        self.factor_of(slow, grown * self.noise * *lasting)
    }

    /// The factor of a call on the first day, if calls have nothing to do with each other.
    pub fn noise(&self, random: &mut Random) -> f64 {
        let slow = random.unit() <= self.slow_share;
        self.factor_of(slow, self.noise * random.normal())
    }

    /// The factor of a call of the slow mode or of the other, whose noise is the logarithm of one.
    fn factor_of(&self, slow: bool, noise: f64) -> f64 {
        noise.exp() * if slow { self.slow_factor } else { 1.0 }
    }

    /// Seconds for which a call stalls.
    pub(super) fn stalled_s(&self, random: &mut Random) -> f64 {
        // Nothing is drawn where nothing stalls.
        if self.stall_share > 0.0 && random.unit() <= self.stall_share { self.stall_s } else { 0.0 }
    }

    /// Seconds by which a rank is late to a call: exponentially distributed.
    pub fn lateness_s(&self, random: &mut Random) -> f64 {
        let late = random.unit() <= self.straggler_share;
        let seconds = -random.unit().ln() * self.straggler_s;
        if late { seconds } else { 0.0 }
    }
}

impl Bursts {
    fn factor_at(&self, step: u64) -> f64 {
        let burst = Random::new(self.seed, step / self.steps.max(1)).unit() <= self.share;
        if burst { self.factor } else { 1.0 }
    }
}
