//! `paceline launch --hostfile` over a real sshd on loopback, with keys and configuration of its own. Where no sshd is
//! installed, the tests say so and pass ([`needs`]). Loopback has many addresses: 127.0.0.1 and 127.0.0.2 are two hosts here.

#[path = "../../fabric/tests/common/meeting.rs"]
mod meeting;
mod support;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meeting::free_port;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::folder::scratch_file;
use support::{Outcome, SOON, is_alive, paceline, run, start, until};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(30);

/// An sshd of this test.
struct Sshd {
    folder: PathBuf,
    process: Child,
}

impl Sshd {
    /// None, with the reason on standard error, where there is none.
    fn start(name: &str) -> Option<Sshd> {
        needs::program(&["ssh"], "openssh-client")?;
        // By its whole path: it starts itself again for each connection.
        let program = needs::program(&["/usr/sbin/sshd", "/usr/local/sbin/sshd"], "openssh-server")?;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sshd-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            let made = make.status().expect("ssh-keygen comes with ssh");
            assert!(made.success());
        }
        let at = folder.display();
        let port = free_port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {at}/host\nPidFile none\n\
             AuthorizedKeysFile {at}/user.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        );
        fs::write(folder.join("sshd_config"), config).expect("our own folder");
        let client = format!(
            "Host *\nPort {port}\nIdentityFile {at}/user\nIdentitiesOnly yes\nStrictHostKeyChecking no\n\
             UserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        );
        fs::write(folder.join("ssh_config"), client).expect("our own folder");
        // Wanted by some builds of sshd when it runs as root.
        let _ = fs::create_dir_all("/run/sshd");
        let mut command = Command::new(program);
        command
            .arg("-D")
            .arg("-e")
            .arg("-f")
            .arg(folder.join("sshd_config"))
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let sshd = Sshd { process: command.spawn().expect("sshd starts"), folder };
        let answers =
            until(LIMIT, || sshd.ssh().args(["127.0.0.2", "true"]).status().is_ok_and(|status| status.success()));
        assert!(answers, "sshd does not let us in");
        Some(sshd)
    }

    fn ssh(&self) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.folder.join("ssh_config")).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// A command over these hosts.
    fn over(&self, hosts: &str, command: &str, arguments: &[&str]) -> Command {
        let file = self.folder.join("hosts");
        fs::write(&file, hosts).expect("our own folder");
        let ssh = format!("ssh -F {}", self.folder.join("ssh_config").display());
        let file = file.display().to_string();
        let fixed = [command, "--hostfile", &file, "--ssh", &ssh];
        paceline(&[&fixed[..], arguments].concat())
    }

    /// A launch over these hosts.
    fn launch(&self, hosts: &str, options: &[&str], command: &[&str]) -> Command {
        self.over(hosts, "launch", &[options, &["--"], command].concat())
    }

    /// What the doctor finds on these hosts.
    #[track_caller]
    fn doctor(&self, hosts: &str, options: &[&str]) -> (Outcome, Value) {
        let json = self.folder.join("report").display().to_string();
        let outcome = run(self.over(hosts, "doctor", &[options, &["--json", &json]].concat()), LIMIT);
        let report = serde_json::from_str(&fs::read_to_string(json).unwrap_or_default()).expect("a report");
        (outcome, report)
    }

    #[track_caller]
    fn run(&self, hosts: &str, options: &[&str], script: &str) -> Outcome {
        run(self.launch(hosts, options, &["sh", "-c", script]), LIMIT)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const TWO_HOSTS: &str = "127.0.0.1 slots=2\n127.0.0.2 # the other one\n";

#[test]
fn ranks_of_all_hosts_know_their_place_and_share_a_secret_that_no_command_line_shows() {
    let Some(sshd) = Sshd::start("place") else { return };
    let script = "echo $PACELINE_RANK/$PACELINE_WORLD_SIZE/$PACELINE_LOCAL_RANK/$PACELINE_LOCAL_SIZE $PACELINE_JOB \
                  $PACELINE_RENDEZVOUS $PACELINE_SECRET $GREETING $HOME $(pwd)";
    let mut launch = sshd.launch(TWO_HOSTS, &["--env", "GREETING=hello", "--directory", "/"], &["sh", "-c", script]);
    launch.env("PACELINE_SECRET_FILE", "");
    let outcome = run(launch, LIMIT).expect_code(0);
    let (places, rest): (BTreeSet<&str>, BTreeSet<&str>) =
        outcome.stdout.lines().map(|line| line.split_once(' ').expect("two words")).unzip();
    assert_eq!(places, BTreeSet::from(["0/3/0/2", "1/3/1/2", "2/3/0/1"]), "{outcome:#?}");
    assert_eq!(rest.len(), 1, "all ranks share the rest: {outcome:#?}");
    let words: Vec<&str> = rest.first().map_or(Vec::new(), |rest| rest.split(' ').collect());
    assert_eq!((words.len(), words[3], words.last()), (6, "hello", Some(&"/")), "{outcome:#?}");
    assert!(words[2].len() >= 32, "a secret: {outcome:#?}");

    let find = "all=$(cat /proc/[0-9]*/cmdline | tr '\\0' ' '); \
                case \"$all\" in *\"$PACELINE_SECRET\"*) echo shown;; *paceline*) echo hidden;; esac";
    let outcome = sshd.run(TWO_HOSTS, &["--workers", "1"], find).expect_code(0);
    assert_eq!(outcome.stdout, "hidden\n", "a command line shows the secret: {outcome:#?}");
}

#[test]
fn ranks_meet_across_hosts_and_all_reduce() {
    let Some(sshd) = Sshd::start("perf") else { return };
    let perf = [env!("CARGO_BIN_EXE_paceline"), "perf", "all-reduce", "--max", "64KiB", "--seconds", "0.02"];
    let outcome = run(sshd.launch(TWO_HOSTS, &["--tag"], &perf), LIMIT).expect_code(0);
    assert!(outcome.stdout.contains("[0] # all-reduce, 3 ranks"), "{outcome:#?}");
    assert!(outcome.stdout.lines().all(|line| line.starts_with("[0] ")), "{outcome:#?}");
}

#[test]
fn the_first_failure_is_named_with_its_host_and_the_others_are_ended() {
    let Some(sshd) = Sshd::start("failure") else { return };
    let script = "[ $PACELINE_RANK != 2 ] || exit 7; echo $$; exec sleep 60.5";
    let outcome = sshd.run(TWO_HOSTS, &[], script).expect_code(1);
    // Lines of their own: login shells may have said something before.
    let errors: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(matches!(*errors, [error] if error.starts_with("error: rank 2 on 127.0.0.2 (pid ")), "{outcome:#?}");
    let outcome = outcome.expect_stderr(&["ended with exit status 7", "terminated: rank 0, rank 1"]);
    assert_gone(&outcome.stdout);
    let outcome = sshd.run(TWO_HOSTS, &["--directory", "/no/such/folder"], "true").expect_code(1);
    outcome.expect_stderr(&["127.0.0.", "working directory /no/such/folder: No such file"]);
}

#[test]
fn an_interrupt_a_killed_launcher_and_a_killed_ssh_leave_nothing() {
    let Some(sshd) = Sshd::start("end") else { return };
    let script = "trap '' INT; echo $$; sleep 60.75 & wait; sleep 60.75";
    for how in ["interrupt", "kill", "ssh"] {
        let running = start(sshd.launch(TWO_HOSTS, &[], &["sh", "-c", script]));
        assert!(until(LIMIT, || running.stdout_so_far().lines().count() == 3), "{}", running.stderr_so_far());
        let pids = running.stdout_so_far();
        match how {
            "interrupt" => {
                running.signal(Signal::INT);
                running.end_within(LIMIT).expect_code(130);
            }
            "kill" => {
                running.signal(Signal::KILL);
                running.end_within(LIMIT).expect_code(137);
            }
            _ => {
                let ssh = support::children_of(running.pid())[1];
                let ssh = Pid::from_raw(ssh as i32).expect("it is one");
                kill_process(ssh, Signal::KILL).expect("it is our grandchild");
                let outcome = running.end_within(LIMIT).expect_code(1);
                outcome.expect_stderr(&["error: lost 127.0.0.2 with rank 2"]);
            }
        }
        assert_gone(&pids);
    }
}

#[test]
fn hosts_that_cannot_be_reached_are_named() {
    let Some(sshd) = Sshd::start("unreachable") else { return };
    // Nobody listens at this one.
    let outcome = sshd.run("127.0.0.1\n127.0.0.3\n", &[], "true").expect_code(1);
    outcome.expect_stderr(&["cannot start ranks on 127.0.0.3: ssh failed", "without a password"]);
    run(sshd.launch("127.0.0.1", &["--workers", "2"], &["true"]), LIMIT).expect_code(2).expect_stderr(&["1 slots"]);
    run(sshd.launch("127.0.0.1 slots=none", &[], &["true"]), LIMIT).expect_code(2).expect_stderr(&["line 1"]);
    let outcome = sshd.run("127.0.0.1", &["--paceline", "/no/such/program"], "true");
    if outcome.code() != 0 {
        outcome.expect_code(1).expect_stderr(&["there is no paceline program", "--paceline"]);
    }
}

/// Both ways between two hosts, and what each agent found, through a real ssh.
#[test]
fn doctor_asks_the_hosts_by_ssh_and_measures_both_directions_of_their_path() {
    let Some(sshd) = Sshd::start("doctor") else { return };
    let (outcome, report) = sshd.doctor(TWO_HOSTS, &[]);
    let paths = report["paths"].as_array().expect("a list");
    assert_eq!(paths.len(), 1, "{outcome:#?}");
    assert_eq!((&paths[0]["host"], &paths[0]["used"]), (&"127.0.0.2".into(), &true.into()), "{report:#}");
    for direction in ["measured_mbit_per_s", "measured_back_mbit_per_s"] {
        assert!(paths[0][direction].as_f64().is_some_and(|rate| rate > 10.0), "{direction}: {report:#}");
    }
    for host in ["127.0.0.1", "127.0.0.2"] {
        let findings = report["findings"].as_array().expect("a list");
        let of_host: Vec<_> = findings.iter().filter(|finding| finding["host"] == host).collect();
        assert!(of_host.iter().any(|it| it["subject"] == "version" && it["verdict"] == "good"), "{report:#}");
        assert!(of_host.iter().any(|it| it["subject"] == "open files"), "{report:#}");
    }
}

/// Ranks meet on each host. On one of them a limit, as its shell may set, leaves no room for shared memory.
#[test]
fn doctor_lets_ranks_meet_on_each_host_and_finds_where_they_share_no_memory() {
    let Some(sshd) = Sshd::start("memory") else { return };
    let program = sshd.folder.join("limited");
    let script = format!("#!/bin/sh\nulimit -f 512\nexec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_paceline"));
    fs::write(&program, script).expect("our own folder");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("our own file");
    let program = program.display().to_string();
    // The first one needs no ssh, and so no other program.
    let (outcome, report) = sshd.doctor("localhost slots=2\n127.0.0.2 slots=2\n", &["--paceline", &program]);
    let of_host = |host: &str, subject: &str| {
        let mut findings = report["findings"].as_array().expect("a list").iter();
        let found = findings.find(|finding| finding["host"] == host && finding["subject"] == subject);
        found.cloned().unwrap_or_else(|| panic!("nothing of {host} about {subject}: {report:#}"))
    };
    for (host, subject, verdict, found, fix) in [
        ("localhost", "shared memory", "good", "all ranks share it", None),
        ("localhost", "memory files", "good", "64 MiB can be had", None),
        ("127.0.0.2", "shared memory", "slow", "(ulimit -f)", Some("`ulimit -f unlimited`")),
        ("127.0.0.2", "memory files", "broken", "the limit on file sizes is ", Some("ulimit -f unlimited")),
        ("127.0.0.2", "links", "good", " us per message", None),
    ] {
        let finding = of_host(host, subject);
        assert_eq!(finding["verdict"], verdict, "{finding:#}");
        assert!(finding["found"].as_str().is_some_and(|text| text.contains(found)), "no `{found}`: {finding:#}");
        let named = finding["fix"].as_str().map(|text| fix.is_some_and(|fix| text.contains(fix)));
        assert_eq!(named, fix.map(|_| true), "{finding:#}");
    }
    // The limit is broken, and the path between the two was measured all the same.
    outcome.expect_code(1);
    assert_eq!(report["paths"][0]["used"], true, "{report:#}");
}

#[test]
fn this_host_needs_no_ssh() {
    let file = scratch_file("hosts");
    fs::write(&file, "localhost slots=2\n").expect("a scratch file");
    let name = file.display().to_string();
    let script = "echo $PACELINE_RANK $PACELINE_RENDEZVOUS";
    let outcome = run(paceline(&["launch", "--hostfile", &name, "--ssh", "false", "--", "sh", "-c", script]), LIMIT);
    fs::remove_file(&file).expect("our own file");
    let outcome = outcome.expect_code(0);
    assert_eq!(outcome.stdout.lines().filter(|line| line.contains(" 127.0.0.1:")).count(), 2, "{outcome:#?}");
}

/// Every process whose id stands on a line has ended, long before it would by itself.
#[track_caller]
fn assert_gone(pids: &str) {
    let alive = || pids.lines().filter_map(|line| line.parse().ok()).any(is_alive);
    assert!(until(SOON, || !alive()), "left behind: {pids}");
}
