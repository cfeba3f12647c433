//! A policy of one's own that calls follow: read on every rank, and followed by all of them or by none; and written by who has
//! learned one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use paceline_comm::Communicator;
use paceline_train::{named, ranks_that_differ};
use paceline_tune::{Choice, Family, Policy, Schedule, policy_file};

use crate::failure::Failure;
use crate::json_file::PlainFile;
use crate::tuning;

/// The policy of a file, if all ranks have the same one; all of them call it. None: somebody has said why, and everything is done
/// as without it, as a job does not fail for what it could have done better.
///
/// # Errors
/// Those of the communication.
pub fn agreed(path: &Path, communicator: &Communicator) -> Result<Option<Policy>, Failure> {
    let read = read(path);
    let number = read.as_ref().map_or(0, |policy| policy.fingerprint() | 1);
    let others = ranks_that_differ(communicator, number)?;
    let rank = communicator.rank();
    match &read {
        // Where all have the same trouble, one says it.
        Err(why) if rank == 0 || others.contains(&rank) => {
            eprintln!(
                "paceline: rank {rank} (host {}): {}: {why}; calls are made as without a policy",
                communicator.host(rank),
                path.display()
            );
        }
        Ok(_) if rank == 0 && !others.is_empty() => {
            eprintln!(
                "paceline: {} is not on all ranks what it is on rank 0: {}; calls are made as without a policy",
                path.display(),
                named(communicator, &others)
            );
        }
        _ => {}
    }
    Ok(read.ok().filter(|_| others.is_empty()))
}

/// So many bytes of rules go along with a world: its ranks find them in a variable of the environment, for which Linux has 128 KiB.
const FOR_WORLDS_MAX: usize = 100_000;

/// The policy of a file that worlds of a study are to follow, which get it from who conducts them. None: it has been said why not.
///
/// # Errors
/// The environment misspells that it wants none.
pub fn for_study(path: &Path) -> Result<Option<Policy>, Failure> {
    if !tuning::is_on(true)? {
        tuning::say_off("--policy");
        return Ok(None);
    }
    let fits = |policy: Policy| match policy_file::write(&policy).len() {
        ..=FOR_WORLDS_MAX => Ok(policy),
        bytes => Err(format!("{bytes} bytes of rules are more than the {FOR_WORLDS_MAX} that ranks can be told")),
    };
    let policy = read(path).and_then(fits);
    Ok(policy.inspect_err(|why| eprintln!("paceline: {}: {why}; nothing is measured with it", path.display())).ok())
}

/// Writes what a tuner has decided, as far as `--policy` can follow it, and says how much that is.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: PlainFile, policy: &Policy) -> Result<(), Failure> {
    let (policy, left_out) = without_programs(policy);
    let (path, text) = (file.path().to_owned(), policy_file::write(&policy));
    file.write(&text)?;
    match text.matches("[[rule]]").count() {
        0 if left_out == 0 => {
            eprintln!("paceline: {} has no rule: nothing stands that is better than the default", path.display());
        }
        rules => eprintln!("paceline: {} has rules for --policy: {rules}", path.display()),
    }
    if left_out > 0 {
        eprintln!(
            "paceline: {} leaves out the rules for programs from files, which --policy cannot run: {left_out}",
            path.display()
        );
    }
    Ok(())
}

/// A policy without the rules for programs from files, and how many these are. Their numbers say something only to a job that was
/// given the same files, and `--policy` is given none.
fn without_programs(policy: &Policy) -> (Policy, usize) {
    let (programs, others): (Vec<_>, Vec<_>) = policy.entries().partition(|&(_, schedule)| is_program(schedule));
    let others = others.into_iter().map(|(context, schedule)| (*context, *schedule));
    (Policy::new(policy.version(), others), programs.len())
}

/// Is that a rule for a program? What takes turns is still tried, and no rule.
fn is_program(schedule: &Schedule) -> bool {
    matches!(schedule.turns(), [Choice::Play(action)] if action.family.algorithm >= Family::PROGRAMS)
}

/// No policy is larger, as a rule takes some hundred bytes.
const BYTES_MAX: u64 = 64 << 20;

fn read(path: &Path) -> Result<Policy, String> {
    let cannot = |error: io::Error| format!("cannot read the policy: {error}");
    // What is no file may never end, or never begin: opening a pipe waits for who writes to it.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err("it is no regular file, as --policy-out and `paceline tune -o` write".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(cannot)?;
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if read as u64 > BYTES_MAX {
        return Err(format!("it is larger than {BYTES_MAX} bytes, which no policy is"));
    }
    policy_file::read(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::{env, thread};

    use paceline_plan::Cluster;
    use paceline_tune::environment::{CostModel, OwnModel, Workload};
    use paceline_tune::{Action, Context, WireProtocol};

    use super::*;

    const POLICY: &str = "schema = 1\nstate_version = 2\nversion = 7\n";

    /// By rank the version that is followed, where rank r has the text of number r; None: there is no file.
    fn followed(name: &str, texts: [Option<&str>; 3]) -> Vec<Option<u64>> {
        let directory = env::temp_dir().join(format!("paceline-policy-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the test");
        for (rank, text) in texts.iter().enumerate() {
            if let Some(text) = text {
                fs::write(directory.join(rank.to_string()), text).expect("written");
            }
        }
        let ranks = Communicator::threads(3).expect("threads connect").into_iter().map(|communicator| {
            let path = directory.join(communicator.rank().to_string());
            thread::spawn(move || agreed(&path, &communicator).expect("they agree").map(|policy| policy.version()))
        });
        let all = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
        fs::remove_dir_all(directory).expect("our own directory");
        all
    }

    /// Nobody could follow the rules for programs: they are not in the file, and the others are.
    #[test]
    fn rules_for_programs_from_files_are_left_out() {
        let path = env::temp_dir().join(format!("paceline-policy-{}-programs", std::process::id()));
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let context = model.state(&Workload::data_parallel(8, 32).calls[0]).context();
        let rule = |size_log2: u8, algorithm: u8| {
            let family = Family { algorithm, protocol: WireProtocol::Simple };
            let action = Action { family, channels: 1, threads: 1, chunk_log2: 18 };
            (Context { size_log2, ..context }, Schedule::always(Choice::Play(action)))
        };
        let learned = Policy::new(3, [rule(14, 0), rule(15, Family::PROGRAMS), rule(16, u8::MAX)]);
        let (kept, left_out) = without_programs(&learned);
        assert_eq!((&kept, left_out), (&Policy::new(3, [rule(14, 0)]), 2));
        assert_eq!(without_programs(&kept), (kept.clone(), 0));
        write(PlainFile::create(&path).expect("a file"), &learned).expect("written");
        assert_eq!(read(&path), Ok(kept));
        fs::remove_file(path).expect("our own file");
    }

    /// Each of these would be waited for, or read, for ever.
    #[test]
    fn what_is_no_file_of_a_sane_size_is_refused_at_once() {
        let directory = env::temp_dir().join(format!("paceline-policy-{}-no-file", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the test");
        let (pipe, large, policy) = (directory.join("pipe"), directory.join("large"), directory.join("policy"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
        for path in [directory.as_path(), &pipe, Path::new("/dev/zero")] {
            assert!(read(path).is_err_and(|why| why.starts_with("it is no regular file")), "{}", path.display());
        }
        // A file with a hole takes no room on the disk.
        File::create(&large).and_then(|file| file.set_len(BYTES_MAX + 1)).expect("a large file");
        assert!(read(&large).is_err_and(|why| why.starts_with("it is larger than 67108864 bytes")));
        let missing = read(&directory.join("missing")).expect_err("there is none");
        assert!(missing.starts_with("cannot read the policy: "), "{missing}");
        fs::write(&policy, POLICY).expect("written");
        assert_eq!(read(&policy).map(|policy| policy.version()), Ok(7));
        fs::remove_dir_all(directory).expect("our own directory");
    }

    #[test]
    fn a_policy_is_followed_by_all_ranks_or_by_none() {
        let other = POLICY.replace("version = 7", "version = 8");
        assert_eq!(followed("same", [Some(POLICY); 3]), [Some(7); 3]);
        let cases = [
            ("another", [Some(POLICY), Some(POLICY), Some(other.as_str())]),
            ("missing", [Some(POLICY), None, Some(POLICY)]),
            ("first", [None, Some(POLICY), Some(POLICY)]),
            ("nobody", [None; 3]),
            ("broken", [Some("schema = 2"), Some(POLICY), Some(POLICY)]),
        ];
        for (name, texts) in cases {
            assert_eq!(followed(name, texts), [None; 3], "{name}");
        }
    }
}
