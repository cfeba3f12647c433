//! `paceline doctor --hostfile`, with commands in ssh's place that reach this machine, the hosts of a lab, or an older
//! version.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::{Outcome, paceline, run};
use xtask::lab::{LabOptions, Rate, Shaper};
use xtask::needs;

const LIMIT: Duration = Duration::from_secs(60);

/// Files of one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        Scratch(folder)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("our own folder");
        path.display().to_string()
    }

    /// Looks at these hosts; `ssh` is a shell script that is called with `OPTIONS -- HOST LINE`.
    fn doctor(&self, hosts: &str, ssh: &str, variables: &[(&str, &str)]) -> (Outcome, Value) {
        let hosts = self.file("hosts", hosts);
        let skip = "while [ \"$1\" != -- ]; do shift; done; host=$2 line=$3\n";
        let ssh = format!("sh {}", self.file("ssh", &format!("{skip}{ssh}")));
        let json = self.0.join("json");
        let mut command = paceline(&["doctor", "--hostfile", &hosts, "--ssh", &ssh, "--json", &json.to_string_lossy()]);
        command.envs(variables.iter().copied());
        let outcome = run(command, LIMIT);
        let report = serde_json::from_str(&fs::read_to_string(json).unwrap_or_default()).expect("a report");
        (outcome, report)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Of this host about this subject.
#[track_caller]
fn finding<'a>(report: &'a Value, host: &str, subject: &str) -> &'a Value {
    let mut findings = report["findings"].as_array().expect("a list").iter();
    let found = findings.find(|finding| finding["host"] == host && finding["subject"] == subject);
    found.unwrap_or_else(|| panic!("nothing of {host} about {subject}: {report:#}"))
}

#[track_caller]
fn says(finding: &Value, field: &str, words: &str) {
    assert!(finding[field].as_str().is_some_and(|text| text.contains(words)), "no `{words}`: {finding:#}");
}

#[test]
fn a_host_that_cannot_be_reached_and_one_of_another_version_do_not_hide_the_others() {
    let scratch = Scratch::new("versions");
    let hello = |version: &str| {
        format!(
            r#"paceline-agent: {{"Hello":{{"version":"{version}","host":"h","port":1,"address":null,"kernel":"6","cores":1}}}}"#
        )
    };
    let ssh = format!(
        "case $host in gone) exit 255;; bare) exit 127;;\n\
         old) echo '{}'; read -r _;;\nsame) echo '{}'; read -r _;;\n*) exec sh -c \"$line\";; esac\n",
        hello("0.0.1"),
        hello(env!("CARGO_PKG_VERSION"))
    );
    let (outcome, report) = scratch.doctor("here slots=2\ngone\nold\nsame\nbare\nthere\n", &ssh, &[]);
    let outcome = outcome.expect_code(1);
    assert!(outcome.stdout.starts_with("here:\ngood    version: paceline "), "{outcome:#?}");
    for (host, subject, verdict, found) in [
        ("gone", "agent", "broken", "cannot ask gone: ssh failed"),
        ("bare", "agent", "broken", "there is no paceline program"),
        ("old", "version", "broken", "old has paceline 0.0.1, this host "),
        ("same", "version", "broken", "with protocol an older one"),
        ("here", "version", "good", "paceline "),
        ("there", "version", "good", "paceline "),
        ("here", "shared memory", "good", "all ranks share it"),
        ("there", "ranks", "good", "one rank needs no links"),
        ("there", "path", "good", "on the machine of here: loopback carries "),
    ] {
        let finding = finding(&report, host, subject);
        assert_eq!(finding["verdict"], verdict, "{finding:#}");
        says(finding, "found", found);
        assert_eq!(finding["fix"].is_null(), verdict == "good", "{finding:#}");
    }
    says(finding(&report, "old", "version"), "fix", "--paceline");
    for subject in ["open files", "locked memory", "memory files", "Yama", "socket buffers"] {
        finding(&report, "here", subject);
        finding(&report, "there", subject);
    }
    let (outcome, _) = scratch.doctor("here\nthere\n", "exec sh -c \"$line\"", &[]);
    outcome.expect_code(0);
}

/// A limit on one host is that host's finding.
#[test]
fn a_limit_that_is_too_low_on_one_host_is_named_with_the_host() {
    let scratch = Scratch::new("limits");
    let ssh = "[ $host = here ] || { ulimit -n 70; ulimit -l 64; }\nexec sh -c \"$line\"\n";
    let (outcome, report) = scratch.doctor("here\nlow slots=4\n", ssh, &[]);
    outcome.expect_code(1);
    assert_eq!(finding(&report, "here", "open files")["verdict"], "good");
    assert_eq!(finding(&report, "low", "open files")["verdict"], "broken");
    says(finding(&report, "low", "open files"), "fix", "ulimit -n ");
    assert_eq!(finding(&report, "low", "locked memory")["verdict"], "slow");
    says(finding(&report, "low", "locked memory"), "fix", "ulimit -l ");
}

#[test]
fn a_host_whose_ranks_do_not_meet_is_named_with_the_reason() {
    let scratch = Scratch::new("ranks");
    let ssh = "[ $host = here ] || export PACELINE_PORT_RANGE=none\nexec sh -c \"$line\"\n";
    let (outcome, report) = scratch.doctor("here slots=2\nodd slots=2\n", ssh, &[]);
    outcome.expect_code(1);
    assert_eq!(finding(&report, "here", "links")["verdict"], "good");
    let ranks = finding(&report, "odd", "ranks");
    assert_eq!(ranks["verdict"], "broken", "{ranks:#}");
    says(ranks, "found", "2 of this host do not meet: rank ");
    says(ranks, "found", "PACELINE_PORT_RANGE");
    says(ranks, "fix", "`paceline doctor --ranks 2` on that host");
}

/// Two hosts with a slow NIC, which links would take, and a fast one.
#[test]
fn the_wrong_nic_is_called_out_with_what_both_carry() {
    let rate = |text: &str| text.parse::<Rate>().expect("a rate");
    let Some(lab) = needs::lab(&LabOptions { hosts: 2, shaper: Shaper::new(rate("50mbit")) }) else { return };
    lab.add_second_nics(Shaper::new(rate("500mbit"))).expect("more cables");
    let scratch = Scratch::new("nics");
    let enter = |host: usize| {
        let command = lab.command(host, "sh");
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ")
    };
    let ssh = format!("case $host in\na) exec {} -c \"$line\";;\nb) exec {} -c \"$line\";; esac\n", enter(0), enter(1));
    let (outcome, report) = scratch.doctor("a\nb\n", &ssh, &[]);
    let path = finding(&report, "b", "path");
    assert_eq!(path["verdict"], "slow", "{outcome:#?}");
    says(path, "found", "links to a take eth0 to 10.77.0.1 (eth0) with ");
    says(path, "found", "eth1 to 10.78.0.1 (eth1) carries ");
    says(path, "fix", "PACELINE_INTERFACE=eth1 ");
    let measured = |index: usize| report["paths"][index]["measured_mbit_per_s"].as_f64().expect("a rate");
    // No more than the shapers let pass, a burst aside.
    assert!(measured(0) < 75.0 && measured(1) < 700.0 && measured(1) > 1.25 * measured(0), "{report:#}");
    assert_eq!((&report["paths"][0]["used"], &report["paths"][1]["used"]), (&true.into(), &false.into()), "{report:#}");
    // The kernel states 10 Gbit/s for such a NIC.
    assert_eq!(finding(&report, "b", "rate")["verdict"], "slow", "{report:#}");
    let (_, report) = scratch.doctor("a\nb\n", &ssh, &[("PACELINE_INTERFACE", "eth1")]);
    assert_eq!(finding(&report, "b", "path")["verdict"], "good", "{report:#}");
    lab.take_down(1).and_then(|()| lab.take_down(0)).expect("both are there");
    let (outcome, report) = scratch.doctor("a\nb\n", &ssh, &[("PACELINE_INTERFACE", "eth0")]);
    outcome.expect_code(1);
    assert_eq!(finding(&report, "b", "path")["verdict"], "broken", "{report:#}");
    says(finding(&report, "b", "path"), "found", "links cannot reach a: ");
}
