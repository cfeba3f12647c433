//! What processes hold of the system, and what of it outlives them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Where the kernel lists the sockets of a network.
const TABLES: [&str; 3] = ["unix", "tcp", "tcp6"];

/// Sockets and memory files, by inode.
#[derive(Debug, Default)]
pub struct Held {
    /// Processes that see the networks and file systems of those that hold something.
    witnesses: Vec<u32>,
    sockets: BTreeSet<String>,
    memory_files: BTreeSet<u64>,
}

impl Held {
    /// Those of these processes, which see what we see.
    pub fn by(processes: &[u32]) -> Held {
        Held::seen_by(&[std::process::id()], processes)
    }

    /// Those of these processes, each of which sees what one of the witnesses sees: these must outlive them.
    pub fn seen_by(witnesses: &[u32], processes: &[u32]) -> Held {
        let targets = processes.iter().flat_map(|pid| descriptors(*pid)).filter_map(|path| fs::read_link(path).ok());
        let socket = |target: PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
        Held {
            witnesses: witnesses.to_vec(),
            sockets: targets.filter_map(socket).collect(),
            memory_files: processes.iter().flat_map(|pid| memory_files(*pid)).collect(),
        }
    }

    /// These, too.
    pub fn add(&mut self, other: Held) {
        self.sockets.extend(other.sockets);
        self.memory_files.extend(other.memory_files);
    }

    /// Do they hold sockets, and memory files if `memory`? Otherwise nothing is shown by their being gone.
    pub fn is_something(&self, memory: bool) -> bool {
        !self.sockets.is_empty() && (!memory || !self.memory_files.is_empty())
    }

    /// Those of the sockets that the kernel still has, those of the memory files that any process still holds, and objects
    /// of ours in the file system for shared memory, in words.
    pub fn left_over(&self) -> Vec<String> {
        let paths = self.witnesses.iter().flat_map(|pid| TABLES.map(|table| format!("/proc/{pid}/net/{table}")));
        let tables: Vec<String> = paths.filter_map(|path| fs::read_to_string(path).ok()).collect();
        let words: BTreeSet<&str> = tables.iter().flat_map(|table| table.split_whitespace()).collect();
        let sockets = self.sockets.iter().filter(|inode| words.contains(inode.as_str()));
        let mut left: Vec<String> = sockets.map(|inode| format!("socket {inode}")).collect();
        for pid in names_in("/proc").filter_map(|name| name.parse().ok()) {
            let kept = memory_files(pid).intersection(&self.memory_files).count();
            left.extend((kept > 0).then(|| format!("{kept} memory files in process {pid}")));
        }
        let shared = self.witnesses.iter().flat_map(|pid| names_in(&format!("/proc/{pid}/root/dev/shm")));
        left.extend(shared.filter(|name| name.to_lowercase().contains("paceline")));
        left
    }
}

fn names_in(directory: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The memory files of a process, open or mapped. One that has ended, or is another user's, has none.
fn memory_files(pid: u32) -> BTreeSet<u64> {
    let open = descriptors(pid).filter(|path| {
        fs::read_link(path).is_ok_and(|target| target.to_str().is_some_and(|target| target.starts_with("/memfd:")))
    });
    let open = open.filter_map(|path| Some(fs::metadata(path).ok()?.ino()));
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter(|line| line.contains("/memfd:"));
    // Address, permissions, offset, device, inode.
    let mapped = mapped.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok());
    open.chain(mapped).collect()
}
