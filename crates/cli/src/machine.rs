//! The machine that a number was measured on.

use std::fs;
use std::thread;

use serde::Serialize;

/// Stands in every file of results.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor, as the kernel names it.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
}

impl Machine {
    /// This one. What cannot be found out is "unknown", or 0.
    pub fn this() -> Machine {
        let unknown = || "unknown".to_owned();
        let uname = rustix::system::uname();
        let memory_kib = field("/proc/meminfo", "MemTotal").and_then(|value| value.split(' ').next()?.parse().ok());
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let name = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        Machine {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib.unwrap_or(0_u64) * 1024,
            architecture: uname.machine().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            system: name.map_or_else(unknown, |name| name.trim_matches('"').to_owned()),
        }
    }
}

/// The value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_is_described() {
        let machine = super::Machine::this();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(!machine.kernel.is_empty() && !machine.architecture.is_empty(), "{machine:?}");
    }
}
