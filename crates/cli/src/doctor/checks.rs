//! What can be seen without starting ranks.

use std::fs;
use std::thread;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Open files per peer: sockets, memory files and doorbells, counted generously.
const FILES_PER_PEER: u64 = 8;
/// Open files of a program that has no peers.
const FILES_BASE: u64 = 64;
/// As much shared memory as a small job uses.
const MEMORY_FILE_BYTES: u64 = 64 << 20;

/// All checks, for so many ranks on this host.
pub fn all(ranks: usize) -> Vec<Finding> {
    let mut findings = vec![cores(ranks), open_files(ranks), memory_files(), ptrace_scope()];
    findings.extend(frequency());
    findings.extend(networks());
    findings
}

fn cores(ranks: usize) -> Finding {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let found = format!("{cores} for {ranks} ranks");
    if ranks <= cores {
        return Finding::good("cores", found);
    }
    let fix = format!("run at most {cores} ranks here: more take turns, and a small message waits for a turn");
    Finding::slow("cores", found, fix)
}

fn open_files(ranks: usize) -> Finding {
    let needed = FILES_BASE + FILES_PER_PEER * ranks as u64;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => {
            let found = format!("the limit is {limit}, {ranks} ranks need up to {needed}");
            Finding::broken("open files", found, format!("ulimit -n {needed}"))
        }
        Some(limit) => Finding::good("open files", format!("the limit is {limit}")),
        None => Finding::good("open files", "no limit"),
    }
}

fn memory_files() -> Finding {
    let made = memfd_create("paceline-doctor", MemfdFlags::CLOEXEC)
        .and_then(|file| fallocate(&file, FallocateFlags::empty(), 0, MEMORY_FILE_BYTES));
    let mebibytes = MEMORY_FILE_BYTES >> 20;
    match made {
        Ok(()) => Finding::good("memory files", format!("{mebibytes} MiB can be had")),
        Err(error) => {
            let found = format!("{mebibytes} MiB cannot be had: {error}");
            Finding::broken("memory files", found, "raise the memory limit of the container or `ulimit -f`")
        }
    }
}

/// What it means for us is found out by the trial: this only names the reason.
fn ptrace_scope() -> Finding {
    const SUBJECT: &str = "Yama";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|text| text.trim().parse().ok());
    match scope {
        None => Finding::good(SUBJECT, "not in this kernel"),
        Some(scope @ 0..=1_u32) => Finding::good(SUBJECT, format!("ptrace_scope is {scope}")),
        Some(scope) => {
            let found = format!("ptrace_scope is {scope}: ranks may not read each other's memory");
            Finding::slow(SUBJECT, found, "sysctl kernel.yama.ptrace_scope=1")
        }
    }
}

fn frequency() -> Option<Finding> {
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    let found = format!("the governor is {}", governor.trim());
    Some(match governor.trim() {
        "powersave" | "conservative" => Finding::slow("frequency", found, "cpupower frequency-set -g performance"),
        _ => Finding::good("frequency", found),
    })
}

/// Interfaces to other hosts that are up.
fn networks() -> Option<Finding> {
    let read = |name: &str, file: &str| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/{file}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let mut names: Vec<String> = fs::read_dir("/sys/class/net")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| read(name, "operstate") == "up")
        .collect();
    names.sort();
    let described: Vec<String> = names
        .iter()
        .map(|name| match read(name, "speed").parse::<i64>() {
            Ok(megabits) if megabits > 0 => format!("{name} ({megabits} Mbit/s)"),
            _ => name.clone(),
        })
        .collect();
    let found = match described.len() {
        0 => "no interface to other hosts is up".to_owned(),
        1 => described.concat(),
        _ => format!("{}; PACELINE_INTERFACE names the one to use", described.join(", ")),
    };
    Some(Finding::good("network", found))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn too_many_ranks_are_slow_and_far_too_many_are_broken() {
        assert_eq!(cores(1).verdict, Verdict::Good);
        assert_eq!(cores(100_000).verdict, Verdict::Slow);
        if getrlimit(Resource::Nofile).current.is_some_and(|limit| limit < u64::MAX / 16) {
            let finding = open_files(usize::MAX / 16);
            assert_eq!(finding.verdict, Verdict::Broken);
            assert!(finding.fix.is_some_and(|fix| fix.starts_with("ulimit -n ")));
        }
    }
}
