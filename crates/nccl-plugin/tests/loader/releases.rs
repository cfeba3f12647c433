//! Which symbols each release of NCCL looks for, in its order, and how large its table of costs is.

/// A row of releases that do the same.
#[derive(Debug)]
pub struct Release {
    /// Which.
    pub nccl: &'static str,
    /// Versions of `ncclTunerPlugin_v`, in order.
    pub tuners: &'static [u32],
    /// Versions of `ncclProfiler_v`, in order.
    pub profilers: &'static [u32],
    /// Rows of the table.
    pub algorithms: usize,
}

const fn release(nccl: &'static str, tuners: &'static [u32], profilers: &'static [u32], algorithms: usize) -> Release {
    Release { nccl, tuners, profilers, algorithms }
}

/// All since 2.18.
pub const RELEASES: [Release; 13] = [
    release("2.18", &[], &[], 6),
    release("2.19.1 to 2.20.5", &[1], &[], 6),
    release("2.21.5", &[2], &[], 6),
    release("2.22.3", &[3, 2], &[], 6),
    release("2.23.4", &[3, 2], &[1], 7),
    release("2.24.3 to 2.25.1", &[4, 3, 2], &[2, 1], 7),
    release("2.26", &[4, 3, 2], &[3, 2, 1], 7),
    release("2.27", &[4, 3, 2], &[4, 3, 2, 1], 7),
    release("2.28", &[5, 4, 3, 2], &[5, 4, 3, 2, 1], 7),
    release("2.29", &[5, 4, 3, 2], &[6, 5, 4, 3, 2, 1], 7),
    release("2.30", &[6, 5, 4, 3, 2], &[6, 5, 4, 3, 2, 1], 7),
    release("2.31.2, 2.32.3", &[6, 5, 4, 3, 2], &[7, 6, 5, 4, 3, 2, 1], 7),
    release("2.32.6", &[7, 6, 5, 4, 3, 2], &[7, 6, 5, 4, 3, 2, 1], 7),
];
