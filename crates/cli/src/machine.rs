//! The machine that a number was measured on.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// Stands in every file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// When the kernel gives huge pages to shared memory, in its own word: `never`, or `advise`, which ours asks for.
    #[serde(default)]
    pub shared_huge_pages: String,
}

impl Machine {
    /// This one. What cannot be found out is "unknown", or 0.
    pub fn this() -> Machine {
        let unknown = || "unknown".to_owned();
        let uname = rustix::system::uname();
        let memory_kib =
            field(&read("/proc/meminfo"), "MemTotal").and_then(|value| value.split(' ').next()?.parse().ok());
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let name = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        Machine {
            processor: processor(&read("/proc/cpuinfo"), &read("/proc/device-tree/model")).unwrap_or_else(unknown),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_kib.unwrap_or(0_u64) * 1024,
            architecture: uname.machine().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            system: name.map_or_else(unknown, |name| name.trim_matches('"').to_owned()),
            shared_huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
                .unwrap_or_else(unknown),
        }
    }
}

/// The kernel does not name Arm's processors: there it is the board's name, or the codes of maker and part.
fn processor(cpuinfo: &str, board: &str) -> Option<String> {
    let board = board.trim_matches(['\0', '\n', ' ']);
    let codes = || {
        let (maker, part) = (field(cpuinfo, "CPU implementer")?, field(cpuinfo, "CPU part")?);
        Some(format!("Arm, implementer {maker}, part {part}"))
    };
    let board = (!board.is_empty()).then(|| board.to_owned());
    field(cpuinfo, "model name").or(board).or_else(codes)
}

/// Of the words of a kernel's setting, the one in brackets.
fn chosen(setting: &str) -> Option<String> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Empty if there is no such file.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value` of a text.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn processors_without_a_name_are_known_by_board_or_codes() {
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        let named = "processor\t: 0\nmodel name\t: Some CPU\n";
        let name = |cpuinfo, board| super::processor(cpuinfo, board);
        assert_eq!(name(named, "Board\0").as_deref(), Some("Some CPU"));
        assert_eq!(name(arm, "Board B\0").as_deref(), Some("Board B"));
        assert_eq!(name(arm, "").as_deref(), Some("Arm, implementer 0x41, part 0xd0c"));
        assert_eq!(name("", ""), None);
    }

    #[test]
    fn of_a_setting_the_word_in_brackets_counts() {
        let [some, none] = ["always within_size [advise] never deny force\n", ""].map(super::chosen);
        assert_eq!((some.as_deref(), none), (Some("advise"), None));
    }

    #[test]
    fn this_machine_is_described() {
        let machine = super::Machine::this();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(!machine.kernel.is_empty() && !machine.architecture.is_empty(), "{machine:?}");
    }
}
