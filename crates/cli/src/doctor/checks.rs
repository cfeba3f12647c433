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
/// A rank, its threads, and those of its pools, counted generously.
const PROCESSES_PER_RANK: u64 = 16;
/// What is in flight on a link of 10 Gbit/s over 1 ms (1.25 MB), times the three that the kernel's bookkeeping needs.
const SOCKET_BUFFER_BYTES: u64 = 4 << 20;
/// Systems give every user 8 MiB since Linux 5.16, and 64 KiB before: too little for one pinned bucket.
const LOCKED_BYTES: u64 = 8 << 20;
/// As much shared memory as a small job uses.
const MEMORY_FILE_BYTES: u64 = 64 << 20;

/// All checks, for so many ranks on this host.
pub fn all(ranks: usize, interface: Option<&str>) -> Vec<Finding> {
    let mut findings = vec![cores(ranks), open_files(ranks), memory_files(), locked_memory(), ptrace_scope()];
    findings.extend(frequency());
    findings.extend([processes(ranks), socket_buffers()]);
    findings.extend(networks(interface));
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
    const SUBJECT: &str = "memory files";
    let mebibytes = MEMORY_FILE_BYTES >> 20;
    // To grow a file beyond this limit raises a signal that kills.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < MEMORY_FILE_BYTES) {
        let found = format!("{mebibytes} MiB cannot be had: the limit on file sizes is {} KiB", limit >> 10);
        return Finding::broken(SUBJECT, found, "ulimit -f unlimited");
    }
    let made = memfd_create("paceline-doctor", MemfdFlags::CLOEXEC)
        .and_then(|file| fallocate(&file, FallocateFlags::empty(), 0, MEMORY_FILE_BYTES));
    match made {
        Ok(()) => Finding::good(SUBJECT, format!("{mebibytes} MiB can be had")),
        Err(error) => {
            let found = format!("{mebibytes} MiB cannot be had: {error}");
            Finding::broken(SUBJECT, found, "raise the memory limit of the container")
        }
    }
}

/// Pinned buffers of NICs and GPUs count against it; nothing that we do ourselves does.
fn locked_memory() -> Finding {
    locked_memory_of(getrlimit(Resource::Memlock).current)
}

fn locked_memory_of(limit: Option<u64>) -> Finding {
    const SUBJECT: &str = "locked memory";
    match limit {
        Some(limit) if limit < LOCKED_BYTES => {
            let found = format!("the limit is {} KiB: NICs and GPUs that pin buffers want more", limit >> 10);
            Finding::slow(SUBJECT, found, format!("ulimit -l {}, or `memlock` in limits.conf", LOCKED_BYTES >> 10))
        }
        Some(limit) => Finding::good(SUBJECT, format!("the limit is {} KiB", limit >> 10)),
        None => Finding::good(SUBJECT, "no limit"),
    }
}

/// What it means for us is found out by the trial: this only names the reason.
fn ptrace_scope() -> Finding {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    ptrace_scope_of(scope.and_then(|text| text.trim().parse().ok()))
}

fn ptrace_scope_of(scope: Option<u32>) -> Finding {
    const SUBJECT: &str = "Yama";
    match scope {
        None => Finding::good(SUBJECT, "not in this kernel"),
        Some(scope @ 0..=1) => Finding::good(SUBJECT, format!("ptrace_scope is {scope}")),
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
fn networks(interface: Option<&str>) -> Option<Finding> {
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
    let nics: Vec<(String, Option<u64>)> = names
        .into_iter()
        .map(|name| {
            let speed = stated_speed(&name);
            (name, speed)
        })
        .collect();
    Some(choice_of_network(&nics, interface))
}

/// What the NIC's driver says, in Mbit/s; none if it does not.
pub fn stated_speed(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    // -1: unknown.
    text.trim().parse().ok().filter(|megabits| *megabits > 0)
}

/// Which of these NICs (with their speeds in Mbit/s) carries the links, and whether it is the right one.
fn choice_of_network(nics: &[(String, Option<u64>)], chosen: Option<&str>) -> Finding {
    const SUBJECT: &str = "network";
    let described = nics.iter().map(|(name, speed)| match speed {
        Some(speed) => format!("{name} ({speed} Mbit/s)"),
        None => name.clone(),
    });
    let found = described.collect::<Vec<_>>().join(", ");
    let fastest = nics.iter().filter_map(|(name, speed)| Some((name, (*speed)?))).max_by_key(|nic| nic.1);
    let speed_of = |wanted: &str| nics.iter().find(|(name, _)| name == wanted).and_then(|(_, speed)| *speed);
    match (chosen, fastest) {
        _ if nics.is_empty() => Finding::good(SUBJECT, "no interface to other hosts is up"),
        (Some(chosen), Some((name, speed))) if speed_of(chosen).is_some_and(|chosen| chosen < speed) => {
            let found = format!("{found}; PACELINE_INTERFACE={chosen} is not the fastest");
            Finding::slow(SUBJECT, found, format!("PACELINE_INTERFACE={name}, if the other hosts are on it, too"))
        }
        (Some(chosen), _) => Finding::good(SUBJECT, format!("{found}; PACELINE_INTERFACE={chosen}")),
        (None, Some((name, speed))) if nics.iter().any(|(_, other)| other.is_some_and(|other| other < speed)) => {
            let found = format!("{found}: links may take any of them");
            Finding::slow(SUBJECT, found, format!("PACELINE_INTERFACE={name}, if the other hosts are on it, too"))
        }
        (None, _) if nics.len() > 1 => {
            Finding::good(SUBJECT, format!("{found}; PACELINE_INTERFACE names the one to use"))
        }
        (None, _) => Finding::good(SUBJECT, found),
    }
}

/// Processes and threads count alike.
fn processes(ranks: usize) -> Finding {
    const SUBJECT: &str = "processes";
    let needed = PROCESSES_PER_RANK * ranks as u64;
    match getrlimit(Resource::Nproc).current {
        Some(limit) if limit < needed => {
            let found = format!("the limit is {limit} for all of your programs, {ranks} ranks start up to {needed}");
            Finding::broken(SUBJECT, found, format!("ulimit -u {}", needed + limit))
        }
        Some(limit) => Finding::good(SUBJECT, format!("the limit is {limit}")),
        None => Finding::good(SUBJECT, "no limit"),
    }
}

/// How far the kernel lets TCP's own tuning go: the last number of `tcp_rmem` and `tcp_wmem`.
fn socket_buffers() -> Finding {
    let max = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    socket_buffers_of(max("tcp_rmem"), max("tcp_wmem"))
}

fn socket_buffers_of(receive: Option<u64>, send: Option<u64>) -> Finding {
    const SUBJECT: &str = "socket buffers";
    let (Some(receive), Some(send)) = (receive, send) else {
        return Finding::good(SUBJECT, "this kernel does not say");
    };
    let found = format!("TCP may use {} KiB to receive and {} KiB to send", receive >> 10, send >> 10);
    if receive.min(send) >= SOCKET_BUFFER_BYTES {
        return Finding::good(SUBJECT, found);
    }
    let fix =
        format!("sysctl net.ipv4.tcp_rmem='4096 131072 {0}' net.ipv4.tcp_wmem='4096 16384 {0}'", SOCKET_BUFFER_BYTES);
    Finding::slow(SUBJECT, format!("{found}: less than 10 Gbit/s times 1 ms and some slack"), fix)
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

    #[test]
    fn little_locked_memory_is_called_out() {
        assert_eq!(locked_memory_of(Some(64 << 10)).verdict, Verdict::Slow);
        assert_eq!(locked_memory_of(Some(8 << 20)).verdict, Verdict::Good);
        assert_eq!(locked_memory_of(None).verdict, Verdict::Good);
    }

    #[test]
    fn a_scope_that_keeps_ranks_out_of_each_others_memory_is_called_out() {
        for (scope, verdict, found) in [
            (None, Verdict::Good, "not in this kernel"),
            (Some(0), Verdict::Good, "ptrace_scope is 0"),
            (Some(1), Verdict::Good, "ptrace_scope is 1"),
            (Some(2), Verdict::Slow, "ptrace_scope is 2: ranks may not read each other's memory"),
            (Some(3), Verdict::Slow, "ptrace_scope is 3: ranks may not read each other's memory"),
        ] {
            let finding = ptrace_scope_of(scope);
            assert_eq!((finding.verdict, &finding.found[..]), (verdict, found));
            let fix = (verdict == Verdict::Slow).then_some("sysctl kernel.yama.ptrace_scope=1");
            assert_eq!(finding.fix.as_deref(), fix, "{scope:?}");
        }
    }

    #[test]
    fn a_slow_network_is_called_out_with_the_fast_one() {
        let nics = |speeds: &[Option<u64>]| -> Vec<(String, Option<u64>)> {
            speeds.iter().enumerate().map(|(index, speed)| (format!("eth{index}"), *speed)).collect()
        };
        let two = nics(&[Some(1000), Some(25_000)]);
        for (nics, chosen, verdict) in [
            (&two, Some("eth0"), Verdict::Slow),
            (&two, None, Verdict::Slow),
            (&two, Some("eth1"), Verdict::Good),
            (&nics(&[Some(1000)]), None, Verdict::Good),
            (&nics(&[None, None]), None, Verdict::Good),
            (&nics(&[]), None, Verdict::Good),
        ] {
            let finding = choice_of_network(nics, chosen);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(verdict == Verdict::Good || finding.fix.is_some_and(|fix| fix.contains("=eth1")));
        }
        assert_eq!(socket_buffers_of(Some(212_992), Some(4 << 20)).verdict, Verdict::Slow);
        assert_eq!(socket_buffers_of(Some(6 << 20), Some(4 << 20)).verdict, Verdict::Good);
        assert_eq!(processes(usize::MAX >> 8).verdict == Verdict::Broken, getrlimit(Resource::Nproc).current.is_some());
    }
}
