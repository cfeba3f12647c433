//! What `tc tbf` is told.

use std::fmt;
use std::str::FromStr;

/// How fast a NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    bits_per_s: u64,
}

/// What limits a NIC, in each direction: a token bucket with a queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaper {
    /// The rate at which the bucket fills.
    pub rate: Rate,
    /// What the bucket holds: so much leaves at once after a pause.
    pub burst_bytes: u64,
    /// What the queue holds: more is dropped.
    pub queue_bytes: u64,
}

/// As many bytes as the largest packet that the kernel segments late: a smaller burst would make `tbf` cut each one up.
const BURST_BYTES_MIN: u64 = 66_000;
/// The burst lasts so long at least: the shaper's timer may be late by this and no rate is lost. Measured with 4 hosts at
/// 1 Gbit/s on two cores: an eighth of it costs half of the rate.
const BURST_SECONDS: f64 = 2e-3;
/// What a switch's port can queue, in time at its rate: about what cheap switches of 1 Gbit/s have.
const QUEUE_SECONDS: f64 = 10e-3;
/// A queue holds a few large packets at any rate.
const QUEUE_BYTES_MIN: u64 = 4 * BURST_BYTES_MIN;

impl Shaper {
    /// With the usual burst and queue for a rate.
    pub fn new(rate: Rate) -> Shaper {
        let bytes = |seconds: f64| (rate.bits_per_s() / 8.0 * seconds) as u64;
        let (burst_bytes, queue_bytes) = (bytes(BURST_SECONDS), bytes(QUEUE_SECONDS));
        Shaper { rate, burst_bytes: burst_bytes.max(BURST_BYTES_MIN), queue_bytes: queue_bytes.max(QUEUE_BYTES_MIN) }
    }

    /// How long the last byte of a full queue waits.
    pub fn queue_seconds(self) -> f64 {
        self.queue_bytes as f64 * 8.0 / self.rate.bits_per_s()
    }
}

/// The queueing discipline, in the words of `tc`.
impl fmt::Display for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tbf rate {} burst {} limit {}", self.rate, self.burst_bytes, self.queue_bytes)
    }
}

impl Rate {
    /// 1 Gbit/s.
    pub const GIGABIT: Rate = Rate { bits_per_s: 1_000_000_000 };

    /// In bits per second.
    pub fn bits_per_s(self) -> f64 {
        self.bits_per_s as f64
    }
}

const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];

/// As `tc` writes it: `1gbit`, `100mbit`.
impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let parsed = UNITS.iter().find_map(|(unit, factor)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(*factor).filter(|bits| *bits > 0)
        });
        let wrong = || format!("`{text}` is no rate: give a whole number with kbit, mbit or gbit, as in 1gbit");
        parsed.map(|bits_per_s| Rate { bits_per_s }).ok_or_else(wrong)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, factor)| self.bits_per_s.is_multiple_of(*factor));
        let (unit, factor) = unit.copied().unwrap_or(("bit", 1));
        write!(f, "{}{unit}", self.bits_per_s / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_as_tc_does() {
        for text in ["1gbit", "100mbit", "2500mbit", "64kbit"] {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("1gbit".parse(), Ok(Rate::GIGABIT));
        for text in ["", "1", "0gbit", "fast", "1.5gbit", "-1mbit", "99999999999999gbit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!(Shaper::new(Rate::GIGABIT).to_string(), "tbf rate 1gbit burst 250000 limit 1250000");
    }
}
