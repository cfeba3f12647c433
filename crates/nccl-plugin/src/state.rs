//! What lives as long as the library: the policy, the communicators, the settings.
//!
//! NCCL may close the library with the first communicator, at the end, or never, and open it again for the next. So there is
//! no thread that could outlive its code and nothing that waits for a thread's end; contexts are kept and used again, never
//! freed. And as ranks have different communicators, some would open it anew where others keep it: so it stays in the process
//! from when it first knows something that must be the same on all ranks ([`crate::stay`]). Until then it may go.

use std::ffi::c_void;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use paceline_tune::nccl::Function;

use crate::abi::Logger;
use crate::log::{Level, log};
use crate::policy::{Call, Policy};
use crate::publish::{Published, Reader, Retired};
use crate::stay::stay;

/// `off` leaves everything to NCCL.
const SWITCH: &str = "PACELINE_TUNE";
/// A policy that was learned elsewhere.
const FILE: &str = "PACELINE_TUNE_FILE";
/// `1` records what calls took from the start on.
const PROFILE: &str = "PACELINE_TUNE_PROFILE";
/// No policy is as large.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The policy that decides; null: NCCL does.
static POLICY: Published<Policy> = Published { pointer: AtomicPtr::new(ptr::null_mut()) };
/// Its version, or 0: what samples are marked with, by threads that must not wait.
static VERSION: AtomicU64 = AtomicU64::new(0);
static STATE: Mutex<State> =
    Mutex::new(State { communicators: Vec::new(), prepared: None, retired: Retired(Vec::new()) });
static SETTINGS: OnceLock<Settings> = OnceLock::new();

struct State {
    /// All that ever were, those that have ended among them.
    communicators: Vec<&'static Communicator>,
    /// Checked, and not active yet.
    prepared: Option<Box<Policy>>,
    /// Not active any more; a call may still read them.
    retired: Retired<Policy>,
}

/// What the environment says, read once; where it names a policy or wants a record, once in the life of the process.
struct Settings {
    /// Why everything is left to NCCL; None: it is not.
    off: Option<String>,
    profile: bool,
    /// What there is to say about the switches and the policy file.
    messages: Vec<(Level, String)>,
    said: AtomicBool,
}

/// A communicator of NCCL's, as this plug-in knows it; NCCL keeps its address as the context.
#[derive(Debug)]
pub struct Communicator {
    in_use: AtomicBool,
    ranks: AtomicUsize,
    hosts: AtomicUsize,
    reader: Reader,
    /// Reads of the policy that were no decisions about a call.
    looks: AtomicU64,
    /// Calls that got an answer.
    answered: AtomicU64,
    /// By function, a bit for each power of two of bytes that NCCL has asked about.
    met: [AtomicU64; Function::ALL.len()],
}

impl Communicator {
    /// One that nobody uses; it knows neither ranks nor hosts, so only rules for any hold.
    pub const fn unused() -> Communicator {
        Communicator {
            in_use: AtomicBool::new(false),
            ranks: AtomicUsize::new(0),
            hosts: AtomicUsize::new(0),
            reader: Reader { started: AtomicU64::new(0), finished: AtomicU64::new(0) },
            looks: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            met: [const { AtomicU64::new(0) }; Function::ALL.len()],
        }
    }

    /// One for NCCL to keep, used again after [`Communicator::close`].
    pub fn open(ranks: usize, hosts: usize) -> &'static Communicator {
        let mut state = state();
        let free = state.communicators.iter().find(|communicator| !communicator.in_use.load(Relaxed)).copied();
        let communicator = free.unwrap_or_else(|| {
            let communicator: &'static Communicator = Box::leak(Box::new(Communicator::unused()));
            state.communicators.push(communicator);
            communicator
        });
        communicator.in_use.store(true, Release);
        communicator.shape(ranks, hosts);
        communicator
    }

    /// Registers one that is not NCCL's to keep.
    pub fn register(&'static self) {
        let mut state = state();
        if !state.communicators.iter().any(|known| ptr::eq(*known, self)) {
            state.communicators.push(self);
        }
        self.in_use.store(true, Release);
    }

    /// Says who takes part; zeros: it is not known.
    fn shape(&self, ranks: usize, hosts: usize) {
        self.met.iter().for_each(|met| met.store(0, Relaxed));
        self.ranks.store(ranks, Relaxed);
        self.hosts.store(hosts, Relaxed);
    }

    /// NCCL will not ask for it again.
    pub fn close(&self) {
        self.shape(0, 0);
        self.in_use.store(false, Release);
    }

    /// The one that NCCL kept.
    ///
    /// # Safety
    /// The context is null, or comes from [`Communicator::open`].
    pub unsafe fn of_context(context: *mut c_void) -> Option<&'static Communicator> {
        // SAFETY: the caller's promise; what `open` gives away is never freed, and all its fields are atomic.
        unsafe { context.cast::<Communicator>().as_ref() }
    }

    /// What NCCL keeps.
    pub fn context(&'static self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Ranks and hosts.
    pub fn world(&self) -> (usize, usize) {
        (self.ranks.load(Relaxed), self.hosts.load(Relaxed))
    }

    /// Has NCCL not yet asked about such a call here, one by itself? (Several operations at once have the start-ups of all in their costs.)
    pub fn is_first_of_kind(&self, call: &Call) -> bool {
        let Some(met) = self.met.get(call.function.number()).filter(|_| !call.pipelined) else { return false };
        let bit = 1 << call.bytes.max(1).ilog2();
        met.load(Relaxed) & bit == 0 && met.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Decides about a call by the policy, if there is one: one pointer is read, nothing is waited for, nothing is allocated.
    /// `decide` returns whether it wrote something, which is counted.
    pub fn decide(&self, decide: impl FnOnce(&Policy) -> bool) {
        if self.read(decide) {
            // Version 1 asks for all communicators in one place, from whatever thread.
            self.answered.fetch_add(1, Relaxed);
        }
    }

    /// Looks something up in the policy, if there is one: as [`Communicator::decide`], and not counted.
    pub fn look(&self, look: impl FnOnce(&Policy) -> bool) {
        self.looks.fetch_add(1, Relaxed);
        self.read(look);
    }

    fn read(&self, read: impl FnOnce(&Policy) -> bool) -> bool {
        // Whoever frees policies asks only those that are known. Acquire: who sees the mark sees every change of policy that
        // was made before this one was known.
        if !self.in_use.load(Acquire) {
            return false;
        }
        // SAFETY: it is in the list of communicators, which is asked as a whole before a policy is freed.
        unsafe { POLICY.read(&self.reader, |policy| policy.is_some_and(read)) }
    }
}

impl State {
    fn replace(&mut self, policy: Option<Box<Policy>>) {
        let version = policy.as_ref().map_or(0, |policy| policy.version());
        POLICY.replace(policy, &mut self.retired);
        VERSION.store(version, Release);
        let readers = self.communicators.iter().map(|communicator| &communicator.reader);
        // SAFETY: whoever reads policies is in the list, and stays there.
        drop(unsafe { self.retired.release(readers) });
    }
}

/// Whoever panicked with the lock left nothing half done: each change is one step.
fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a policy for [`activate`], in place of the one that was prepared before.
///
/// # Errors
/// The switch is off.
pub fn prepare(policy: Policy) -> Result<(), String> {
    if let Some(why) = &settings().off {
        return Err(why.clone());
    }
    stay();
    state().prepared = Some(Box::new(policy));
    Ok(())
}

/// Forgets what was prepared.
pub fn discard() {
    state().prepared = None;
}

/// Lets the prepared policy decide from now on. Returns whether one with this fingerprint was prepared.
pub fn activate(fingerprint: u64) -> bool {
    settings();
    let mut state = state();
    let Some(policy) = state.prepared.take_if(|policy| policy.fingerprint() == fingerprint) else { return false };
    state.replace(Some(policy));
    true
}

/// Leaves everything to NCCL, whatever file the environment names.
pub fn clear() {
    settings();
    stay();
    let mut state = state();
    state.prepared = None;
    state.replace(None);
}

/// Version and fingerprint of the policy that decides, which is that of the file where nothing else was said.
pub fn active() -> Option<(u64, u64)> {
    settings();
    let _state = state();
    // SAFETY: policies are replaced and freed under the lock that is held.
    let policy = unsafe { POLICY.pointer.load(Acquire).as_ref() };
    policy.map(|policy| (policy.version(), policy.fingerprint()))
}

/// The version of the policy that decides, or 0: for those who must neither wait nor read a file.
pub fn version() -> u64 {
    VERSION.load(Acquire)
}

/// Version and fingerprint of the policy that waits to be activated.
pub fn prepared() -> Option<(u64, u64)> {
    state().prepared.as_ref().map(|policy| (policy.version(), policy.fingerprint()))
}

/// Calls that NCCL asked about, and those of them that got an answer.
pub fn decisions() -> (u64, u64) {
    let state = state();
    let sum = |count: fn(&Communicator) -> &AtomicU64| {
        state.communicators.iter().map(|communicator| count(communicator).load(Relaxed)).sum::<u64>()
    };
    let looks = sum(|communicator| &communicator.looks);
    // A look that has been counted may not have begun to read.
    let asked = sum(|communicator| &communicator.reader.started).saturating_sub(looks);
    (asked, sum(|communicator| &communicator.answered))
}

/// Reads the environment and the policy file, the first time; says once what there is to say about it. Returns whether the
/// tuner is on.
pub fn begin(logger: Logger) -> bool {
    let settings = settings();
    if logger.is_some() && !settings.said.swap(true, Relaxed) {
        settings.messages.iter().for_each(|(level, text)| log(logger, *level, text));
    }
    settings.off.is_none()
}

/// Whether calls are recorded from the start on.
pub fn profiles() -> bool {
    settings().profile
}

fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let mut messages = Vec::new();
        let off = match switch(SWITCH) {
            Ok(None | Some(true)) => None,
            Ok(Some(false)) => Some((Level::Info, format!("{SWITCH}=off: NCCL's own choices stay"))),
            // Whoever misspells `off` must not be tuned.
            Err(misspelt) => Some((Level::Warn, format!("{misspelt}: NCCL's own choices stay"))),
        };
        let off = off.map(|(level, why)| {
            messages.push((level, format!("Paceline: {why}")));
            why
        });
        let profile = match switch(PROFILE) {
            Ok(said) => off.is_none() && said == Some(true),
            Err(misspelt) => {
                messages.push((Level::Warn, format!("Paceline: {misspelt}: nothing is recorded")));
                false
            }
        };
        if profile {
            // As where the program says so: what is recorded is to be found.
            stay();
        }
        if let Some(path) = std::env::var_os(FILE).filter(|_| off.is_none()) {
            stay();
            messages.push(load(Path::new(&path)));
        }
        Settings { off, profile, messages, said: AtomicBool::new(false) }
    })
}

/// Whether a switch of the environment is on or off; None: it is not set, or empty.
///
/// # Errors
/// It says neither, in words.
fn switch(name: &str) -> Result<Option<bool>, String> {
    let value = std::env::var_os(name).unwrap_or_default();
    let value = value.to_string_lossy();
    let is_one_of = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if value.is_empty() {
        return Ok(None);
    }
    match (is_one_of(&["on", "1", "yes", "true"]), is_one_of(&["off", "0", "no", "false"])) {
        (false, false) => Err(format!("{name}={value} is neither `on` nor `off`")),
        (is_on, _) => Ok(Some(is_on)),
    }
}

/// Activates the policy of a file, and says what came of it.
fn load(path: &Path) -> (Level, String) {
    let shown = path.display();
    match read(path) {
        Ok(policy) => {
            let (kinds, version, print) = (policy.len(), policy.version(), policy.fingerprint());
            state().replace(Some(Box::new(policy)));
            let what = format!("{kinds} kinds of calls, version {version}, fingerprint {print:016x}");
            (Level::Info, format!("Paceline: {FILE}={shown}: {what}; it must be the same on every rank"))
        }
        Err(reason) => {
            (Level::Warn, format!("Paceline: {FILE}={shown} is not used, NCCL's own choices stay: {reason}"))
        }
    }
}

fn read(path: &Path) -> Result<Policy, String> {
    // What is no file may never end, or never begin: opening a pipe waits for who writes to it.
    if !std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes, which no policy is"));
    }
    Policy::from_text(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::abi::{NcclResult, SUCCESS};

    const CALL: Call = Call { function: Function::AllReduce, bytes: 64, ranks: 8, hosts: 1, pipelined: false };

    fn policy(version: u64, algorithm: &str) -> Policy {
        let rule = format!("[[call]]\nfunction = \"AllReduce\"\nalgorithm = \"{algorithm}\"\nprotocol = \"LL\"\n");
        Policy::from_text(&format!("schema = 1\nversion = {version}\n{rule}")).expect("a policy")
    }

    fn install(policy: Policy) {
        let fingerprint = policy.fingerprint();
        prepare(policy).expect("it is on");
        assert!(activate(fingerprint));
    }

    /// One test, since there is one policy for the process.
    #[test]
    fn policies_change_under_those_who_read_them() {
        let fingerprint = policy(9, "Ring").fingerprint();
        assert!(!activate(fingerprint), "nothing is prepared");
        prepare(policy(9, "Ring")).expect("it is on");
        assert!(!activate(policy(9, "Tree").fingerprint()) && !activate(0), "another one is prepared");
        assert_eq!(prepared(), Some((9, fingerprint)));
        assert!(activate(fingerprint) && active() == Some((9, fingerprint)) && prepared().is_none());
        // Two communicators, one of which two threads ask about.
        let communicators = [Communicator::open(8, 1), Communicator::open(4, 1)];
        let stop = AtomicBool::new(false);
        let answered: u64 = thread::scope(|scope| {
            let read = |communicator: &'static Communicator| {
                let mut answered = 0_u64;
                while !stop.load(Relaxed) || answered == 0 {
                    communicator.decide(|policy| {
                        answered += u64::from(policy.call(&CALL).is_some_and(|choice| choice.way().is_some()));
                        true
                    });
                }
                answered
            };
            let of = [communicators[0], communicators[0], communicators[1]];
            let readers = of.map(|communicator| scope.spawn(move || read(communicator)));
            for version in 10..300 {
                install(policy(version, if version % 2 == 0 { "Tree" } else { "Ring" }));
            }
            stop.store(true, Relaxed);
            readers.into_iter().map(|reader| reader.join().expect("a reader")).sum()
        });
        // Every decision had a policy, a whole one; what is looked up besides is not counted.
        communicators[0].look(|_| true);
        assert_eq!(decisions(), (answered, answered));
        assert_eq!(active().map(|(version, _)| version), Some(version()));
        nobody_waits(communicators[0]);
        // With nobody reading, nothing old is kept.
        clear();
        assert!(active().is_none() && version() == 0 && state().retired.0.is_empty());
        communicators.iter().for_each(|communicator| communicator.close());
        assert!(ptr::eq(Communicator::open(2, 1), communicators[0]), "a closed one is used again");
    }

    /// Whoever holds the lock holds nobody up who asks, from the entry to the answer.
    fn nobody_waits(communicator: &'static Communicator) {
        let held = state();
        let (said, hears) = mpsc::channel();
        let asks = thread::spawn(move || said.send(asked(communicator)));
        let answer = hears.recv_timeout(Duration::from_secs(60)).expect("a decision that waits for nothing");
        assert_eq!(answer, (SUCCESS, true), "the policy decided");
        drop(held);
        asks.join().expect("it asked").expect("somebody heard it");
    }

    /// As NCCL asks about a call: what it gets, and whether something was chosen.
    fn asked(communicator: &'static Communicator) -> (NcclResult, bool) {
        let (mut costs, mut channels) = ([9.0_f32; 21], 0);
        let (function, table) = (CALL.function.number() as c_int, costs.as_mut_ptr().cast());
        let ask = crate::ncclTunerPlugin_v6.get_coll_info;
        // SAFETY: a context of ours, a table of seven rows of three, and a variable for the channels.
        let result = unsafe { ask(communicator.context(), function, CALL.bytes, 1, table, 7, 3, 0, &raw mut channels) };
        (result, costs.contains(&0.0))
    }
}
