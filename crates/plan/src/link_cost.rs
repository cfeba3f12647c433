use serde::{Deserialize, Serialize};

/// What a link costs in the Hockney model, with a term for combining.
///
/// Source: R. Hockney, "The communication challenge for MPP" (1994); the gamma term as in Thakur, Rabenseifner and
/// Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), §3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCost {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte moved.
    pub beta: f64,
    /// Seconds per byte reduced.
    pub gamma: f64,
}

impl LinkCost {
    /// Seconds for one message of `bytes`.
    pub fn message(&self, bytes: usize) -> f64 {
        self.alpha + self.beta * bytes as f64
    }
}
