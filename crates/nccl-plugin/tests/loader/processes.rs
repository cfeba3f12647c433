//! What the environment decides, and what closing the library does: each in a process of its own.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{Opened, is_loaded, plugin_name};
use crate::nccl::{Question, Tuner};
use crate::plugin::{POLICY, clear, install, number, prepare, release};
use crate::preloaded::allocates_nothing_inside;
use crate::profile::wanted_at_first;

/// Says which of the children below the process is.
const CHILD: &str = "PACELINE_HARNESS_CHILD";

unsafe extern "C" fn log(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plug-in gives two texts.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format, c"%s");
    println!("log {level}: {}", text.to_string_lossy());
}

/// A communicator from its beginning to its end; whether a call was decided.
fn decides(library: &Opened) -> bool {
    let tuner = Tuner::find(library, release("2.30")).expect("a tuner");
    let context = tuner.init(16, 2, Some(log)).expect("a communicator");
    let (mut costs, mut bound) = ([9.0_f32; 21], 0);
    let question = Question { function: 4, bytes: 1024, operations: 1, can_register: 0 };
    assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), (7, 3), &mut bound), 0);
    assert_eq!(tuner.end(context), 0);
    costs != [9.0; 21] || bound != 0
}

/// Run by the tests below in a process of its own; by itself it does nothing.
#[test]
fn as_a_child() {
    match std::env::var(CHILD).as_deref() {
        Ok("file") => println!("{}", if decides(&Opened::plugin()) { "decided" } else { "untouched" }),
        Ok("closing") => opens_and_closes(),
        Ok("changing") => changes_the_file(),
        Ok("early") => speaks_before_nccl(),
        Ok("recording") => records(),
        Ok("allocating") => allocates_nothing_inside(),
        _ => {}
    }
}

/// A child whose environment says nothing.
pub fn child(of: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "processes::as_a_child", "--nocapture"]).env(CHILD, of);
    command.env_remove("PACELINE_TUNE").env_remove("PACELINE_TUNE_FILE").env_remove("PACELINE_TUNE_PROFILE");
    command
}

fn run(name: &str, of: &str, file: Option<&Path>, switch: Option<&str>) -> String {
    let mut command = child(of);
    command.envs(file.map(|file| ("PACELINE_TUNE_FILE", file))).envs(switch.map(|switch| ("PACELINE_TUNE", switch)));
    ended_well(name, command)
}

/// What a child has said.
pub fn ended_well(name: &str, mut command: Command) -> String {
    let output = command.output().expect("a child");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {out}{error}");
    out.into_owned()
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

fn with_file(name: &str, child: &str, file: Option<&[u8]>, switch: Option<&str>) -> String {
    let path = temporary(name);
    if let Some(content) = file {
        std::fs::write(&path, content).expect("a file");
    }
    let said = run(name, child, Some(&path), switch);
    let _ = std::fs::remove_file(&path);
    said
}

/// Nothing of it holds the library as long as there is no policy; from then on it stays, and the policy in it.
fn opens_and_closes() {
    for _ in 0..20 {
        assert!(!decides(&Opened::plugin()));
        // (musl keeps libraries.)
        assert!(cfg!(target_env = "musl") || !is_loaded(plugin_name()), "it could not be unloaded");
    }
    install(&Opened::plugin());
    assert!(is_loaded(plugin_name()));
    for _ in 0..20 {
        let opened = Opened::plugin();
        assert_eq!(number(&opened, "paceline_nccl_policy_version"), 5);
        assert!(decides(&opened), "as on the ranks where it was never closed");
    }
    clear(&Opened::plugin());
    assert!(!decides(&Opened::plugin()));
}

/// The file is read once in a process, whatever NCCL closes.
fn changes_the_file() {
    assert!(decides(&Opened::plugin()));
    let path = std::env::var_os("PACELINE_TUNE_FILE").expect("a file");
    std::fs::write(path, "schema = 1\nversion = 6\n").expect("our own file");
    let opened = Opened::plugin();
    assert!(decides(&opened) && number(&opened, "paceline_nccl_policy_version") == 5);
}

/// What a program says before the first communicator goes before what the file says.
fn speaks_before_nccl() {
    let opened = Opened::plugin();
    assert_eq!(number(&opened, "paceline_nccl_policy_version"), 5, "the file's will decide");
    clear(&opened);
    assert!(!decides(&opened) && number(&opened, "paceline_nccl_policy_version") == 0);
    prepare(&opened, &POLICY.replace("version = 5", "version = 6")).expect("a policy");
    assert_eq!(number(&opened, "paceline_nccl_prepared_version"), 6);
}

/// What is recorded from the start on, and whether it can be found when NCCL has closed the library.
fn records() {
    let opened = Opened::plugin();
    let mask = wanted_at_first(&opened, log);
    drop(opened);
    println!("events {mask}, {}", if is_loaded(plugin_name()) { "kept" } else { "gone" });
}

#[test]
fn who_records_from_the_start_on_keeps_the_library() {
    let said = |value: Option<&str>| {
        let mut command = child("recording");
        command.envs(value.map(|value| ("PACELINE_TUNE_PROFILE", value)));
        ended_well("recording", command)
    };
    for value in ["1", "on"] {
        let said = said(Some(value));
        assert!(said.contains("events 66, kept"), "{value}: {said}");
    }
    // (musl keeps libraries.)
    let nothing = if cfg!(target_env = "musl") { "events 0, " } else { "events 0, gone" };
    for value in [None, Some("0"), Some("onn")] {
        let said = said(value);
        assert!(said.contains(nothing), "{value:?}: {said}");
        let is_told = said.contains("log 2: Paceline: PACELINE_TUNE_PROFILE=onn is neither");
        assert_eq!(is_told, value == Some("onn"), "{value:?}: {said}");
    }
}

#[test]
fn without_a_policy_the_library_can_be_unloaded_and_with_one_it_stays() {
    run("closing", "closing", None, None);
}

#[test]
fn a_file_is_read_once() {
    with_file("changing.toml", "changing", Some(POLICY.as_bytes()), None);
    with_file("early.toml", "early", Some(POLICY.as_bytes()), None);
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let path = temporary("pipe.toml");
    let made = Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no mkfifo");
        return;
    }
    let said = run("pipe.toml", "file", Some(&path), None);
    std::fs::remove_file(&path).expect("our own pipe");
    assert!(said.contains("untouched") && said.contains("it is no regular file"), "{said}");
}

#[test]
fn files_decide_and_broken_ones_leave_nccl_alone() {
    let good = with_file("good.toml", "file", Some(POLICY.as_bytes()), None);
    assert!(good.contains("decided") && good.contains("log 3: Paceline") && good.contains("version 5"), "{good}");
    let csv = b"# schema = 1, version = 2\nfunction,algorithm,protocol\nAllReduce,Ring,LL\n";
    assert!(with_file("good.csv", "file", Some(csv), None).contains("decided"));
    let off = with_file("off.toml", "file", Some(POLICY.as_bytes()), Some("off"));
    assert!(off.contains("untouched") && off.contains("PACELINE_TUNE=off"), "{off}");
    // Whoever misspells `off` must not be tuned.
    let typing = with_file("typing.toml", "file", Some(POLICY.as_bytes()), Some("of"));
    assert!(typing.contains("untouched") && typing.contains("log 2: Paceline: PACELINE_TUNE=of is"), "{typing}");
    let on = with_file("on.toml", "file", Some(POLICY.as_bytes()), Some("Yes"));
    assert!(on.contains("decided") && !on.contains("is neither"), "{on}");
    for (name, content, words) in [
        ("missing.toml", None, "No such file"),
        ("schema.toml", Some(POLICY.replace("schema = 1", "schema = 7").into_bytes()), "schema 7"),
        ("half.toml", Some(POLICY.as_bytes()[..POLICY.len() / 2].to_vec()), "Paceline: PACELINE_TUNE_FILE="),
        ("channels.toml", Some(POLICY.replace("channels = 8", "channels = 99").into_bytes()), "channels = 99"),
        ("algorithm.toml", Some(POLICY.replace("NVLS", "Star").into_bytes()), "`Star` is no algorithm"),
        ("bytes.toml", Some(vec![0xff, 0, 0x80]), "UTF-8"),
        ("empty.toml", Some(Vec::new()), "missing field"),
        ("heading.csv", Some(b"# schema = 1, version = 2\nfunctoin,channels\n".to_vec()), "no column `functoin`"),
    ] {
        let said = with_file(name, "file", content.as_deref(), None);
        assert!(said.contains("untouched"), "{name}: {said}");
        assert!(said.contains("log 2: Paceline") && said.contains(words), "{name} has no `{words}`: {said}");
    }
}
