use std::str::FromStr;
use std::time::Duration;

use super::{Lab, LabError};

/// What is done to a host's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Its cable is pulled: [`Lab::take_down`].
    Down,
    /// Everything is lost in silence: [`Lab::drop_traffic`].
    Drop,
}

/// When a host's link is hurt: `HOST@SECONDS`, counted from the start of the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Counts from 0.
    pub host: usize,
    /// After so long.
    pub after: Duration,
}

impl Fault {
    /// Does it now.
    ///
    /// # Errors
    /// There is no such host, or `ip` failed.
    pub fn happen(self, harm: Harm, lab: &Lab) -> Result<(), LabError> {
        match harm {
            Harm::Down => lab.take_down(self.host),
            Harm::Drop => lab.drop_traffic(self.host),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let parts = text.split_once('@').and_then(|(host, seconds)| {
            let after = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
            Some(Fault { host: host.parse().ok()?, after })
        });
        parts
            .ok_or_else(|| format!("`{text}` is not HOST@SECONDS: 1@2.5 is host 1, 2.5 s after the ranks have started"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_a_host_and_a_time() {
        assert_eq!("1@2.5".parse(), Ok(Fault { host: 1, after: Duration::from_millis(2500) }));
        for text in ["", "1", "@2", "1@", "1@-2", "x@1", "1@inf"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
