//! The tables as NCCL prints them, with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=TUNING.

use std::fmt;

use super::{Algorithm, Entry, Function, Protocol, Tables};

/// Algorithms beside each other.
const COLUMNS: usize = 3;

/// Latency in us, a stroke, algorithm bandwidth in GB/s; three algorithms beside each other, in NCCL's columns, so that a log
/// can be compared line by line.
impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithms().chunks(COLUMNS).try_for_each(|algorithms| self.block(algorithms, f))
    }
}

impl Tables {
    fn block(&self, algorithms: &[Algorithm], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  Algorithm   |")?;
        for algorithm in algorithms {
            write!(f, " {:>14}   {algorithm:>14}   {:>14} |", "", "")?;
        }
        write!(f, "\n  Protocol    |")?;
        // NCCL names the protocols three times, also in the last block, which has one algorithm.
        for protocol in [Protocol::ALL; COLUMNS].into_iter().flatten() {
            write!(f, " {protocol:>14} |")?;
        }
        write!(f, "\n Max NThreads |")?;
        for &algorithm in algorithms {
            for &protocol in Protocol::ALL {
                write!(f, " {:>14} |", self.max_threads(algorithm, protocol))?;
            }
        }
        writeln!(f)?;
        for &function in Function::ALL {
            write!(f, "{function:>13} |")?;
            for &algorithm in algorithms {
                for &protocol in Protocol::ALL {
                    let Entry { latency_us, bandwidth_gb_s } = self.entry(function, algorithm, protocol);
                    // C prints a single as the double that it is.
                    write!(f, "{:8.1}/{:6.1} |", f64::from(latency_us), f64::from(bandwidth_gb_s))?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
